"""Arrays with an entry for each agent: shared by all of them without copies, no longer to be changed, and in parts.

What all agents share is stored once: its array has the leading axis that every array of agents has, but each entry is
the same memory (`numpy.broadcast_to`). What can no longer change need not be copied to be kept.
"""

import math
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Where arrays begin, in bytes: JAX uses the memory of such arrays on a CPU as it is, instead of a copy."""
CHUNK = 2**21
"""How many numbers are worked on at a time, so that many agents need hardly more memory than their result takes."""


def chunks(count: int, size: int) -> list[slice]:
    """Slices of `count` things of `size` numbers each, about `CHUNK` numbers to a slice."""
    many = max(1, CHUNK // size)
    return [slice(start, start + many) for start in range(0, count, many)]


def empty(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """An array to be filled, which JAX can use without a copy."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    memory = np.empty(size + ALIGNMENT, dtype=np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def share(value: np.ndarray, count: int) -> np.ndarray:
    """An array of `count` entries that are all this one."""
    return np.broadcast_to(freeze(value), (count, *value.shape))


def is_shared(array: Any) -> bool:
    """Whether all entries along the leading axis are one and the same memory."""
    return isinstance(array, np.ndarray) and array.ndim > 0 and len(array) > 1 and array.strides[0] == 0


def freeze(array: np.ndarray) -> np.ndarray:
    """The array, which nobody can change from now on, nor what it is a part of; for those who have made it."""
    part: Any = array
    while isinstance(part, np.ndarray):
        part.flags.writeable = False
        part = part.base
    return array


def own(value: Any) -> np.ndarray:
    """`value` in float64 as an array that nobody can change: a copy, unless it is one; shared entries stay shared."""
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
    """Whether neither this array nor those it is a part of can be changed."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None
