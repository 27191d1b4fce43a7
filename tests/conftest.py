"""Strict arithmetic for all tests: no silent broadcasting of ranks, no silent change of dtype."""

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
