"""Strict arithmetic for all tests: no silent broadcasting of ranks, no silent change of dtype.

Nearly all of the suite's time is compilation of small programs that run once, so XLA is told to optimise little, and every
worker and command it starts works on one core. What the environment says already is left alone.
"""

import os
import sys

assert "jax" not in sys.modules, "JAX reads these settings when it is imported"
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
