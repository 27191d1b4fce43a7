"""The type names that recur in signatures, and the switch to the requested precision."""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ._check import DTYPES
from ._programs import make_room

Key: TypeAlias = PRNGKeyArray
Theta: TypeAlias = Float[Array, " d"]
"""A parameter as algorithms see it: one flat vector."""
Observation: TypeAlias = PyTree
Block: TypeAlias = PyTree
"""The observations of one round: an observation whose arrays have a leading axis, one entry per step."""
State: TypeAlias = PyTree
SeedLike: TypeAlias = Any
"""The type of the argument `key`: an int, or a JAX key."""

Device: TypeAlias = Any
"""A `jax.Device`, which JAX does not export as a type."""


def matmul_precision() -> str | None:
    """JAX's precision setting for matrix products, if the user or `precision` has set one."""
    return jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def precision(dtype: str = "float64") -> Iterator[None]:
    """Computes in `dtype` inside the block, regardless of the user's global JAX configuration."""
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    make_room()  # here, because every computation of the package passes through this block
    # GPUs would multiply float32 matrices with 10 bits, unless the user has chosen that.
    products = matmul_precision() or ("highest" if dtype == "float32" else None)
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision(products):
        yield
