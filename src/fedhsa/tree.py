"""Operations on pytrees of arrays: stacking agents, selecting one, counting numbers, moving arrays to the device."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from . import _check
from ._arrays import chunks, is_shared, share

T = TypeVar("T")

SHARED_BYTES = 2**20
"""Smaller arrays are copied for each agent: sharing would gain nothing, and fewer programs need to be compiled."""


def stack(trees: Sequence[T]) -> T:
    """Joins pytrees of the same structure along a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *trees)


def take(tree: T, index: Any) -> T:
    """Selects from the leading axis of every array."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def leading_axis(tree: PyTree) -> int:
    """The common length of the leading axes. Raises `ValueError` if they differ."""
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(sizes) != 1 or sizes == {()}:
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
        raise ValueError(f"All arrays of `agents` must share their leading axis, one entry per agent, got {shapes}.")
    return sizes.pop()[0]


def size(tree: PyTree) -> int:
    """The number of entries in the arrays, or in arrays of these shapes."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def to_device(tree: T, dtype: str) -> T:
    """Returns every number and array as a JAX array, with floats in `dtype`."""

    def convert(leaf: Any) -> Array:
        is_float = jnp.issubdtype(leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype, np.floating)
        if isinstance(leaf, jax.Array):
            return jnp.asarray(leaf, dtype=dtype if is_float else None)
        # `jnp.asarray` would compile a program for every shape.
        return jax.device_put(np.asarray(leaf, dtype=dtype) if is_float else leaf)

    return jax.tree.map(convert, tree)


def agents_to_device(agents: T, dtype: str) -> T:
    """Like `to_device`, but a large array that all agents share is transferred once, with a leading axis of 1."""
    large = jax.tree.map(lambda leaf: leaf[:1] if is_shared(leaf) and leaf.nbytes > SHARED_BYTES else leaf, agents)
    return to_device(large, dtype)


def share_equal(agents: T) -> T:
    """Returns the same agents, with large arrays stored once if they are equal for all agents."""

    def share_one(leaf: Any) -> Any:
        worth = isinstance(leaf, np.ndarray) and leaf.ndim > 1 and leaf.nbytes > SHARED_BYTES and not is_shared(leaf)
        if not worth or (leaf[0] != leaf[-1]).any():
            return leaf
        equal = all((leaf[some] == leaf[0]).all() for some in chunks(len(leaf), leaf[0].size))
        return share(leaf[0].copy(), len(leaf)) if equal else leaf

    return jax.tree.map(share_one, agents)


def over_agents(function: Callable, batch: int | None = None) -> Callable:
    """`jax.vmap(function)` for a first argument with agents from `agents_to_device`, which may share some arrays.

    It maps over all agents simultaneously, or over `batch` agents at a time.
    """

    def of_all(agents: PyTree, *others: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(agents)
        count = max(len(leaf) for leaf in [*leaves, *jax.tree.leaves(others)])
        shared = [len(leaf) == 1 < count for leaf in leaves]

        def of_one(own: list, *others: PyTree) -> PyTree:
            mine = iter(own)
            agent = [leaf[0] if common else next(mine) for leaf, common in zip(leaves, shared, strict=True)]
            return function(jax.tree.unflatten(structure, agent), *others)

        arguments = ([leaf for leaf, common in zip(leaves, shared, strict=True) if not common], *others)
        if batch is None or batch >= count:
            return jax.vmap(of_one)(*arguments)
        return jax.lax.map(lambda one: of_one(*one), arguments, batch_size=batch)

    return of_all


def for_each(agents: T, num_agents: int) -> T:
    """Agents from `agents_to_device`, with an entry for every agent in every array."""

    def repeat(leaf: Any) -> Any:
        return jnp.broadcast_to(leaf, (num_agents, *leaf.shape[1:])) if len(leaf) == 1 else leaf

    return jax.tree.map(repeat, agents)


def arrays_to_device(tree: T, dtype: str) -> T:
    """Like `to_device`, but leaves that are not NumPy arrays, such as functions, do not change."""
    return jax.tree.map(lambda leaf: to_device(leaf, dtype) if isinstance(leaf, np.ndarray) else leaf, tree)


def to_host(tree: PyTree) -> Any:
    """Returns every array as a NumPy array."""
    return jax.tree.map(np.asarray, tree)


def ravel(theta: PyTree) -> Any:
    """Returns a parameter of any shape as one flat vector: float64 in NumPy, or with its own type in JAX."""
    leaves = jax.tree.leaves(theta)
    if any(isinstance(leaf, jax.Array) for leaf in leaves):
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])
    return np.concatenate([np.ravel(np.asarray(leaf, dtype=np.float64)) for leaf in leaves])


def ravel_like(name: str, theta: PyTree, like: PyTree) -> Any:
    """Returns a parameter shaped like `like`, or already flat, as one flat vector; traced if `theta` is."""
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
                f"`{name}` must be shaped like the parameter, {expected}, or a vector of length {length}, got {found}."
            )
        leaves = [theta]
    flat = ravel(leaves)
    return flat if _check.traced(flat) else _check.array(name, flat, (length,))


@dataclasses.dataclass(frozen=True)
class Unravel:
    """A function from flat vectors to a pytree of these shapes; equal functions share compiled programs."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, vector: Array | np.ndarray) -> PyTree:
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1].tolist()
        split = jnp.split if isinstance(vector, jax.Array) else np.split
        pieces = zip(split(vector, ends, axis=-1), self.shapes, strict=True)
        return jax.tree.unflatten(self.structure, [p.reshape((*vector.shape[:-1], *shape)) for p, shape in pieces])


def unravel_like(like: PyTree) -> Unravel:
    """The inverse of `ravel` for parameters shaped like `like`; it supports traced vectors and leading axes."""
    return Unravel(jax.tree.structure(like), tuple(np.shape(leaf) for leaf in jax.tree.leaves(like)))
