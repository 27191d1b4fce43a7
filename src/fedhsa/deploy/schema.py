"""The schema of messages: the names, shapes and types of their arrays, derived from the algorithm."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from .. import tree
from ..algorithms.base import PerAgent
from .wire import RejectedError


class Leaf(NamedTuple):
    """One array of a message."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Schema:
    """Converts a pytree of arrays to named arrays and back.

    **Arguments:**

    - `shapes`: a pytree of arrays, or of their shapes and types.

    `join` raises `RejectedError` if the names, shapes or types of the arrays differ.

    !!! example
        >>> schema = Schema({"theta": np.zeros(3), "age": np.zeros((), int)})
        >>> [leaf.name for leaf in schema.leaves]
        ['age', 'theta']
        >>> schema.join({"age": np.zeros((), int)})
        Traceback (most recent call last):
        fedhsa.deploy.wire.RejectedError: the arrays are ['age'], expected ['age', 'theta']
    """

    def __init__(self, shapes: PyTree):
        paths, self.structure = jax.tree_util.tree_flatten_with_path(shapes)
        names, shapes = _names([path for path, _ in paths]), [shape for _, shape in paths]
        pairs = zip(names, shapes, strict=True)
        self.leaves = tuple(Leaf(name, tuple(s.shape), np.dtype(s.dtype).name) for name, s in pairs)
        self._types = [(leaf, np.dtype(leaf.dtype), np.dtype(leaf.dtype).kind == "f") for leaf in self.leaves]
        self._names = {leaf.name for leaf in self.leaves}

    @property
    def num_bytes(self) -> int:
        return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in self.leaves)

    def plain(self) -> list[list[Any]]:
        """The schema as JSON values, for comparison."""
        return [[leaf.name, list(leaf.shape), leaf.dtype] for leaf in self.leaves]

    def zeros(self) -> PyTree:
        """The pytree with a zero for every number."""
        return self.structure.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves])

    def split(self, values: PyTree) -> dict[str, np.ndarray]:
        """The arrays of a pytree by their names."""
        arrays = self.structure.flatten_up_to(values)
        return {leaf.name: np.asarray(array) for leaf, array in zip(self.leaves, arrays, strict=True)}

    def join(self, arrays: dict[str, np.ndarray], finite: bool = True) -> PyTree:
        """Returns the pytree of these arrays; raises `RejectedError` if they do not match or are not finite."""
        if arrays.keys() != self._names:
            raise RejectedError("malformed", f"the arrays are {sorted(arrays)}, expected {sorted(self._names)}")
        found = []
        for leaf, dtype, is_float in self._types:
            array = arrays[leaf.name]
            if array.shape != leaf.shape or array.dtype != dtype:
                raise RejectedError(
                    "malformed",
                    f"{leaf.name!r} is {array.dtype.name} of shape {array.shape}, expected {leaf.dtype} {leaf.shape}",
                )
            if finite and is_float and not np.isfinite(array).all():
                raise RejectedError("non-finite", f"{leaf.name!r} has numbers that are not finite")
            found.append(array)
        return self.structure.unflatten(found)


def is_common(message: PyTree) -> bool:
    """Whether all agents receive the same message."""
    leaves = jax.tree.leaves(message, is_leaf=lambda x: isinstance(x, PerAgent))
    return not any(isinstance(leaf, PerAgent) for leaf in leaves)


def for_agents(message: PyTree, rows: Any) -> PyTree:
    """Returns the message to some of the agents, with only their entries of per-agent values."""

    def cut(leaf: Any) -> Any:
        return PerAgent(tree.take(leaf.values, rows)) if isinstance(leaf, PerAgent) else leaf

    return jax.tree.map(cut, message, is_leaf=lambda x: isinstance(x, PerAgent))


def is_finite(values: PyTree) -> bool:
    """Whether all numbers are finite."""
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(values) if np.asarray(leaf).dtype.kind == "f")


def _names(paths: list[tuple]) -> list[str]:
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "value" for path in paths]
    return names if len(set(names)) == len(names) else [f"{i}.{name}" for i, name in enumerate(names)]
