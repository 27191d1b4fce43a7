"""Rules that hold for the whole project: examples run, layers hold, every file says what it is for."""

import ast
import doctest
import importlib
import pathlib
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

import fedhsa

ROOT = pathlib.Path(__file__).parents[1]
MODULES = sorted(m.name for m in pkgutil.walk_packages(fedhsa.__path__, "fedhsa."))


LONG = (
    "fedhsa.algorithms.byzantine",
    "fedhsa.algorithms.channel",
    "fedhsa.algorithms.codecs",
    "fedhsa.algorithms.compression",
    "fedhsa.algorithms.delay",
    "fedhsa.algorithms.extragradient",
    "fedhsa.algorithms.fed_dvr_q",
    "fedhsa.algorithms.fed_kl",
    "fedhsa.algorithms.fed_lin",
    "fedhsa.algorithms.fed_pg_br",
    "fedhsa.algorithms.finite_sums",
    "fedhsa.algorithms.fixed_point",
    "fedhsa.algorithms.importance",
    "fedhsa.algorithms.local_sa",
    "fedhsa.algorithms.loopless",
    "fedhsa.algorithms.multilevel",
    "fedhsa.algorithms.natural",
    "fedhsa.algorithms.output",
    "fedhsa.algorithms.participation",
    "fedhsa.algorithms.personalised",
    "fedhsa.algorithms.robust",
    "fedhsa.algorithms.rules",
    "fedhsa.algorithms.scaffold",
    "fedhsa.algorithms.server",
    "fedhsa.cli.reproduction",
    "fedhsa.comparison.contest",
    "fedhsa.deploy.federate",
    "fedhsa.deploy.privacy",
    "fedhsa.engine.result",
    "fedhsa.engine.state",
    "fedhsa.engine.sweep",
    "fedhsa.environments.jax_env",
    "fedhsa.environments.parametric",
    "fedhsa.environments.toy_text",
    "fedhsa.experiments.paper.assumptions",
    "fedhsa.experiments.paper.drift",
    "fedhsa.experiments.run.code",
    "fedhsa.experiments.run.reproduce",
    "fedhsa.experiments.variants.one_exchange",
    "fedhsa.lab.app",
    "fedhsa.lab.grid_worlds",
    "fedhsa.lab.quadratic",
    "fedhsa.plots._sites",
    "fedhsa.problems.actor_critic",
    "fedhsa.problems.base",
    "fedhsa.problems.experience",
    "fedhsa.problems.games",
    "fedhsa.problems.off_policy_td",
    "fedhsa.problems.policy_gradient",
    "fedhsa.problems.q_learning",
    "fedhsa.problems.sarsa",
    "fedhsa.problems.streams",
    "fedhsa.sources.decisions",
    "fedhsa.statistics.confidence",
    "fedhsa.theory.choice",
    "fedhsa.theory.entry",
    "fedhsa.theory.exact",
    "fedhsa.theory.laws.curvature",
    "fedhsa.theory.laws.first_order",
    "fedhsa.theory.maps.joint",
    "fedhsa.theory.maps.rounds",
    "fedhsa.theory.paper.measure",
    "fedhsa.theory.paper.theorems",
    "fedhsa.theory.samples.estimate",
)
"""Modules whose examples take long, beside fast tests of what they show."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in MODULES]
)
def test_docstring_examples_run(name, tmp_path, monkeypatch, unrendered):
    monkeypatch.chdir(tmp_path)
    if name == "fedhsa.kernels.native":  # all else needs only what the set-up must install
        pytest.importorskip("_fedhsa_native", reason="fedhsa-native is not installed: `make native` builds it")
    module = importlib.import_module(name)
    context = vars(module) | {"fedhsa": fedhsa, "np": np}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module, name, globs=context, extraglobs={}):
        runner.run(test)
    assert runner.failures == 0


def test_layers_hold():
    """Each layer imports only from the ones below it; the same contract `make lint` checks."""
    done = subprocess.run(
        [pathlib.Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_every_file_begins_by_saying_what_it_is_for():
    for path in (ROOT / "src").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_importing_the_package_loads_nothing_and_using_it_loads_nothing_that_is_needed_later():
    code = """
import sys
import fedhsa
assert not {"jax", "numpy"} & set(sys.modules)
import jax
before = jax.config.values.copy()
fedhsa.simulate, fedhsa.problems, fedhsa.FedHSA
assert jax.config.values == before
later = "matplotlib rich tyro optimistix gymnasium pandas scipy.sparse scipy.linalg scipy.special scipy.stats"
later += " fedhsa.cli fedhsa.comparison fedhsa.deploy fedhsa.experiments fedhsa.outputs fedhsa.plots fedhsa.theory"
loaded = set(later.split()) & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_every_public_name_is_found_where_type_checkers_look_for_it():
    tree = ast.parse((ROOT / "src/fedhsa/__init__.py").read_text())
    imports = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names = [alias.name for alias in node.names]
            if names == ["*"]:
                names = set(importlib.import_module(f"fedhsa.{node.module}").__all__).intersection(fedhsa.__all__)
            imports |= {name: f"fedhsa.{node.module or name}" for name in names}
    assert set(imports) == set(fedhsa.__all__)
    for name, module in imports.items():
        home = importlib.import_module(module)
        assert getattr(fedhsa, name) is (home if module == f"fedhsa.{name}" else getattr(home, name)), name


POSIX = """
import importlib, os, pkgutil, signal, sys
import equinox, jax, matplotlib.pyplot, optimistix, rich, scipy, tyro  # which do without by themselves


class Refused:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "grp", "pwd", "resource", "termios"):
            raise ModuleNotFoundError(name, name=name)


sys.meta_path.insert(0, Refused())
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules.pop(name, None)
for name in ("fork", "getuid", "getgid", "sched_getaffinity", "sched_setaffinity", "sysconf", "fchmod", "killpg"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM"):
    delattr(signal, name)
import fedhsa
for module in pkgutil.walk_packages(fedhsa.__path__, "fedhsa."):
    if not module.name.startswith(("fedhsa.deploy.flower", "fedhsa.deploy.ray", "fedhsa.lab", "fedhsa.kernels.native")):
        importlib.import_module(module.name)
from fedhsa.cli import main
few = ["--dim", "2", "--no-progress", "--no-cache"]
assert main(["run", "--num-agents", "2", "--rounds", "4", "--seeds", "2", "--checkpoint", *few]) == 0
assert main(["deploy", "memory", "--rounds", "2", *few]) == 0
"""
"""Runs without what only POSIX has, as a first look at Windows and macOS, on which nothing was tried."""


@pytest.mark.slow
def test_the_package_runs_without_what_only_posix_has(tmp_path):
    """Flower, Ray and the lab, whose servers are other packages, are left out."""
    subprocess.run([sys.executable, "-c", POSIX], check=True, timeout=300, cwd=tmp_path)
