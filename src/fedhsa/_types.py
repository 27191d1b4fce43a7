"""The type names that recur in signatures, and the switch to the requested precision."""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ._check import DTYPES

Key: TypeAlias = PRNGKeyArray
Theta: TypeAlias = Float[Array, " d"]
"""A parameter as algorithms see it: one flat vector."""
Observation: TypeAlias = PyTree
Block: TypeAlias = PyTree
"""The observations of one round: an observation whose arrays have a leading axis, one entry per step."""
State: TypeAlias = PyTree
SeedLike: TypeAlias = Any
"""What users pass as `key`: an int, or a JAX key."""

Device: TypeAlias = Any
"""A `jax.Device`, which JAX does not export as a type."""


def matmul_precision() -> str | None:
    """JAX's setting for products of matrices, where users or `precision` have made one."""
    return jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def precision(dtype: str = "float64") -> Iterator[None]:
    """Computes in `dtype` inside the block, whatever the user's global JAX configuration is."""
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    # GPUs would multiply matrices of float32 in 10 bits, unless users have asked for that themselves.
    products = matmul_precision() or ("highest" if dtype == "float32" else None)
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision(products):
        yield
