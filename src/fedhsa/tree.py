"""Operations on pytrees of arrays: stacking agents, picking one, counting floats, moving to the device."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from . import _check

T = TypeVar("T")


def stack(trees: Sequence[T]) -> T:
    """Joins pytrees of the same structure along a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *trees)


def take(tree: T, index: Any) -> T:
    """Picks from the leading axis of every array."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def leading_axis(tree: PyTree) -> int:
    """The common length of the leading axes."""
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(sizes) != 1 or sizes == {()}:
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
        raise ValueError(f"All arrays of `agents` must share their leading axis, one entry per agent; got {shapes}.")
    return sizes.pop()[0]


def size(tree: PyTree) -> int:
    """How many numbers the arrays hold; shapes suffice."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def to_device(tree: T, dtype: str) -> T:
    """Every number and array as a JAX array, floats in `dtype`."""

    def convert(leaf: Any) -> Array:
        is_float = jnp.issubdtype(leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype, np.floating)
        if isinstance(leaf, jax.Array):
            return jnp.asarray(leaf, dtype=dtype if is_float else None)
        # `jnp.asarray` would compile a program for every shape.
        return jax.device_put(np.asarray(leaf, dtype=dtype) if is_float else leaf)

    return jax.tree.map(convert, tree)


def arrays_to_device(tree: T, dtype: str) -> T:
    """Like `to_device`, but what is no NumPy array, such as a function, stays what it is."""
    return jax.tree.map(lambda leaf: to_device(leaf, dtype) if isinstance(leaf, np.ndarray) else leaf, tree)


def to_host(tree: PyTree) -> Any:
    """Every array as a NumPy array."""
    return jax.tree.map(np.asarray, tree)


def ravel(theta: PyTree) -> Any:
    """A parameter of any shape as one flat vector: float64 in NumPy, or as it is where JAX computes it."""
    leaves = jax.tree.leaves(theta)
    if any(isinstance(leaf, jax.Array) for leaf in leaves):
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])
    return np.concatenate([np.ravel(np.asarray(leaf, dtype=np.float64)) for leaf in leaves])


def ravel_like(name: str, theta: PyTree, like: PyTree) -> Any:
    """A parameter shaped like `like`, or already flat, as one flat vector; traced where `theta` is."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(like)]
    length = sum(int(np.prod(shape)) for shape in shapes)
    try:
        leaves = jax.tree.structure(like).flatten_up_to(theta)
        fits = [np.shape(leaf) for leaf in leaves] == shapes
    except (TypeError, ValueError):
        leaves, fits = [theta], False
    if not fits:
        flat = jax.tree.structure(theta) == jax.tree.structure(0) and np.shape(theta) == (length,)
        if not flat:
            expected, found = (jax.tree.map(np.shape, x) for x in (like, theta))
            raise ValueError(
                f"`{name}` must be shaped like the parameter, {expected}, or a vector of length {length}; got {found}."
            )
        leaves = [theta]
    flat = ravel(leaves)
    return flat if _check.traced(flat) else _check.array(name, flat, (length,))


@dataclasses.dataclass(frozen=True)
class Unravel:
    """A function from flat vectors to a pytree of these shapes; equal ones share compiled programs."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, vector: Array | np.ndarray) -> PyTree:
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1].tolist()
        split = jnp.split if isinstance(vector, jax.Array) else np.split
        pieces = zip(split(vector, ends, axis=-1), self.shapes, strict=True)
        return jax.tree.unflatten(self.structure, [p.reshape((*vector.shape[:-1], *shape)) for p, shape in pieces])


def unravel_like(like: PyTree) -> Unravel:
    """The inverse of `ravel` for parameters shaped like `like`; works on traced vectors, and with axes in front."""
    return Unravel(jax.tree.structure(like), tuple(np.shape(leaf) for leaf in jax.tree.leaves(like)))
