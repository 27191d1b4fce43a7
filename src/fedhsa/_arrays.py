"""Arrays with an entry for each agent: shared without copies, read-only, and processed in parts.

An array that all agents share is stored once: it has the same leading axis as every array of agents, but all entries
are the same memory (`numpy.broadcast_to`). Read-only arrays can be stored without a copy.
"""

import math
from typing import Any

import numpy as np

ALIGNMENT = 64
"""The alignment of arrays in bytes: on a CPU, JAX uses the memory of aligned arrays instead of copying it."""
CHUNK = 2**21
"""The number of entries that are processed at a time, so that many agents need little more memory than their result."""


def chunks(count: int, size: int) -> list[slice]:
    """Slices of `count` items of `size` numbers each, with about `CHUNK` numbers in a slice."""
    many = max(1, CHUNK // size)
    return [slice(start, start + many) for start in range(0, count, many)]


def empty(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """An uninitialised array that JAX can use without a copy."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    memory = np.empty(size + ALIGNMENT, dtype=np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def share(value: np.ndarray, count: int) -> np.ndarray:
    """An array of `count` entries that all share this value."""
    return np.broadcast_to(freeze(value), (count, *value.shape))


def is_shared(array: Any) -> bool:
    """Whether all entries along the leading axis are the same memory."""
    return isinstance(array, np.ndarray) and array.ndim > 0 and len(array) > 1 and array.strides[0] == 0


def freeze(array: np.ndarray) -> np.ndarray:
    """Makes the array, and the arrays it is a part of, read-only; only for the code that created it."""
    part: Any = array
    while isinstance(part, np.ndarray):
        part.flags.writeable = False
        part = part.base
    return array


def own(value: Any) -> np.ndarray:
    """Returns `value` as a read-only float64 array: a copy, unless it is one already; shared entries stay shared."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        if _is_frozen(value):
            return value
        if is_shared(value):
            return share(own(value[0]), len(value))
    value = np.asarray(value)
    copy = empty(value.shape)
    copy[...] = value
    return freeze(copy)


def _is_frozen(array: Any) -> bool:
    """Whether this array and all arrays it is a part of are read-only."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None
