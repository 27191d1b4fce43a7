"""Strict arithmetic for all tests: no silent broadcasting of ranks, no silent change of dtype.

Most of the suite's time is compilation of small programs that run once. So XLA optimises little and makes loops the
short way, and each program in one piece; linear algebra keeps to one thread, as the workers share the cores. Where
`JAX_DISABLE_MOST_OPTIMIZATIONS=0`, as in tests whose time goes into simulations, XLA optimises what pays off there.
Commands that tests start inherit this.
"""

import collections
import itertools
import os
import re
import shlex
import sys
import zlib
from importlib import metadata

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "")
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "0":
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true"
if metadata.version("jaxlib").startswith("0.10."):  # XLA ends where it does not know an option, as later ones do
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # commands are not to fill the cache of whoever runs the tests
    os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "0")

os.environ.setdefault("FEDHSA_KERNELS", "off")  # what everyone has; those of `fedhsa-native` have tests of their own

import jax
import pytest
from matplotlib.figure import Figure

from fedhsa._programs import make_room

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_addoption(parser):
    parser.addoption("--slice", metavar="K/N", help="run one of N parts of the tests: part K modulo N, by their names")


def pytest_collection_modifyitems(config, items):
    """Keeps one part of the tests, which depends on nothing but their names, so that N successive parts are all."""
    if asked := config.getoption("slice"):
        if not re.fullmatch(r"\d+/[1-9]\d*", asked):
            raise pytest.UsageError(f"--slice takes K/N, such as 3/8, got {asked!r}.")
        part, parts = map(int, asked.split("/"))
        chosen = [(zlib.crc32(item.nodeid.encode()) - part) % parts == 0 for item in items]
        config.hook.pytest_deselected(items=[item for item, ours in zip(items, chosen, strict=True) if not ours])
        items[:] = itertools.compress(items, chosen)


def pytest_terminal_summary(terminalreporter):
    """Prints how long each folder of tests took, and the command that repeats each failure."""
    reports = [r for found in terminalreporter.stats.values() for r in found if hasattr(r, "duration")]
    rooms = collections.Counter()
    for report in reports:
        rooms["/".join(report.nodeid.split("::")[0].split("/")[:2])] += report.duration
    terminalreporter.section("seconds per room, over all workers")
    for room, seconds in rooms.most_common():
        terminalreporter.line(f"{seconds:8.1f}  {room}")
    failed = dict.fromkeys(r.nodeid for kind in ("failed", "error") for r in terminalreporter.stats.get(kind, ()))
    if failed:
        terminalreporter.section("commands that repeat the failures")
    for name in failed:
        terminalreporter.line(f"make test-only TESTS={shlex.quote(name)}")


def pytest_runtest_setup():
    make_room()  # for tests that compile without the package; hundreds of programs in one process would end it


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """The folder of a file that a test loads comes to `sys.path`, where no other test is to find it."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def unrendered(monkeypatch):
    """Figures are composed and not rendered, which takes longer than the rest."""
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **settings: None)
