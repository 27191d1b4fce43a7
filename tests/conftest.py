"""Strict arithmetic for all tests: no silent broadcasting of ranks, no silent change of dtype.

Most of the suite's time is compilation of small programs that run once. So XLA optimises little and makes loops the
short way, and linear algebra keeps to one thread, as the workers share the cores. Commands that
tests start inherit this; what the environment says already is left alone.
"""

import os
from importlib import metadata

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if metadata.version("jaxlib").startswith("0.10."):  # XLA ends where it does not know an option, as later ones do
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
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


def pytest_runtest_setup():
    make_room()  # for tests that compile without the package; hundreds of programs in one process would end it


@pytest.fixture
def unrendered(monkeypatch):
    """Figures are composed and not rendered, which takes longer than the rest."""
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **settings: None)
