.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
SLICE ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
EXTRAS := test,lint,bench,docs,lab,grpc,flower,ray,privacy,gym,gymnax,data,tensorboard,mlflow,wandb
# `make test PYTHON=python3.12 CONSTRAINTS=constraints-newest.txt` tests with the newest JAX, which gymnax does not admit.
CONSTRAINTS ?= constraints.txt
# Without compiled modules, which this variable forbids, every command that a test starts compiles the package.
export PYTHONDONTWRITEBYTECODE :=
comma := ,
ifeq ($(CONSTRAINTS),constraints-newest.txt)
EXTRAS := $(subst gymnax$(comma),,$(EXTRAS))
endif
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Tests of processes wait for them for a third of their time: one more worker than cores.
WAITING := $(shell expr $(WORKERS) + 1)
# Programs of tests whose time goes into simulations, and of pages, are optimised; those of others compile quickly.
PROVEN_BY_RUNS := tests/theory tests/experiments tests/cli/test_reproduce.py tests/test_confidence.py tests/test_docs.py \
	tests/test_examples.py tests/test_notebooks.py
SLOW := JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest
# The compiler comes from PyPI and goes when the wheel is built; the header it needs is that of the JAX installed here.
NATIVE := PIP_CONSTRAINT=$(CURDIR)/$(CONSTRAINTS) $(BIN)/python -m pip install --quiet --disable-pip-version-check ./native

.PHONY: help native reproduce docs docs-serve figures pages notebooks index test test-slow test-slice test-only faults bench lint format constraints wheel clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 14

.venv/base: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedhsa needs Python 3.11 or newer; set PYTHON=python3.x")'
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	@touch $@

.venv/ready: .venv/base  # all that tests need: Flower and Ray too, which reproducing the paper does not
	$(INSTALL) '.[$(EXTRAS)]'
	@touch $@

native: .venv/base  ## compile the kernels that make simulations on a CPU faster; nothing needs them
	$(NATIVE)

reproduce: .venv/base  ## run the main job: every figure and claim of the paper, on results/report.html
	OPENBLAS_NUM_THREADS=1 $(BIN)/fedhsa reproduce  # two experiments run at once, each with its own core

figures: .venv/ready  ## make the figures of the docs that are out of date; ONLY=name makes one, AGAIN=1 all of them
	$(BIN)/python docs/figures/make.py $(ONLY) $(if $(AGAIN),--again)

docs: .venv/ready  ## build the site in build/site, and check every link of it
	$(BIN)/python docs/make_site.py

docs-serve: .venv/ready  ## show the site at http://127.0.0.1:8000, and again whenever a page changes
	$(BIN)/python docs/make_site.py serve

pages: .venv/ready  ## run the code of every page and write what it prints where the page shows it
	FEDHSA_KERNELS=off $(BIN)/python tests/update_docs.py

notebooks: .venv/ready  ## run the notebooks of examples/notebooks and write them for Jupyter, with their outputs
	FEDHSA_KERNELS=off $(BIN)/python tests/notebooks.py

index: .venv/base  ## write down what `fedhsa list` shows, after a problem, an algorithm or an environment has changed
	$(BIN)/python -m fedhsa.cli.index

test: .venv/ready  ## run the tests
	$(PYTEST) -m 'not slow'

test-slow: .venv/ready  ## run the long tests; PART='--slice 3/16' runs a part of them
	$(PYTEST) -m slow $(PART) $(PROVEN_BY_RUNS:%=--ignore=%) -n $(WAITING); quick=$$?; \
	$(SLOW) -m slow $(PART) $(PROVEN_BY_RUNS) -n $(WORKERS) --dist worksteal && exit $$quick

test-slice: .venv/ready  ## run a thirtieth of the long tests, another one after each commit; SLICE=3 runs the third
	$(MAKE) test-slow PART='--slice $(SLICE)/30'

test-only: .venv/ready  ## run one file or test, long ones too: make test-only TESTS=tests/theory/test_exact.py
	$(SLOW) '$(TESTS)'

faults: .venv/ready  ## plant small faults in copies of the package and show which the tests miss; ONLY=theory plants some
	nice $(BIN)/python tests/faults/run.py '$(ONLY)' --workers $(WORKERS)

bench: .venv/ready native  ## run the benchmarks, into benchmarks/results/
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/algorithms.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/first_figure.py
	$(BIN)/python benchmarks/predictions.py
	$(BIN)/python benchmarks/deploy.py

lint: .venv/ready  ## check style, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright

format: .venv/ready  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints:  ## pin the newest versions that pass: regenerates constraints.txt from a fresh environment
	rm -rf .venv-new && $(PYTHON) -m venv .venv-new
	.venv-new/bin/python -m pip install --quiet '.[$(EXTRAS)]'
	.venv-new/bin/python -m pip freeze --exclude fedhsa > constraints.txt
	rm -rf .venv-new

wheel: .venv/ready  ## build the wheel and the source archive in dist/
	rm -rf dist && $(BIN)/python -m hatchling build

clean:  ## remove everything that was generated
	rm -rf .venv .venv-new results runs benchmarks/results dist build native/_fedhsa_native/*.so
