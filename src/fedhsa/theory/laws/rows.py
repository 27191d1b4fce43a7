"""Small JAX programs on many rows of arguments, in NumPy.

Pieces are derived from programs that run a few times each. Compiling such a program takes a hundred times as long as
running it in NumPy, and JAX itself compiles even single operations. A program with an operation that is not listed here
is compiled after all.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

ROWS = 64
"""The number of rows of a compiled program."""

# Every array has a leading axis of rows, which may have length one if all rows are equal.


def _each(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Returns an operation on corresponding entries of arrays, or of arrays and numbers."""

    def operation(*inputs, **_):
        most = max(x.ndim for x in inputs)
        return function(*(x.reshape(*x.shape, *[1] * (most - x.ndim)) for x in inputs))

    return operation


def _reduced(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda x, *, axes, **_: function(x, axis=tuple(k + 1 for k in axes))


def _broadcast(x, *, shape, broadcast_dimensions, **_):
    placed = [1] * len(shape)
    for size, k in zip(x.shape[1:], broadcast_dimensions, strict=True):
        placed[k] = size
    return np.broadcast_to(x.reshape(len(x), *placed), (len(x), *shape))


def _concatenate(*parts, dimension, **_):
    rows = max(len(x) for x in parts)
    return np.concatenate([np.broadcast_to(x, (rows, *x.shape[1:])) for x in parts], axis=dimension + 1)


def _divide(x, y):
    return x / y if np.issubdtype(x.dtype, np.inexact) else np.trunc(x / y).astype(x.dtype)


def _dot(x, y, *, dimension_numbers, **_):
    (summed_x, summed_y), (both_x, both_y) = dimension_numbers
    names_x, names_y = list(range(1, x.ndim)), list(range(x.ndim, x.ndim + y.ndim - 1))
    for at, to in (*zip(summed_y, summed_x, strict=True), *zip(both_y, both_x, strict=True)):
        names_y[at] = names_x[to]
    shared, summed = [names_x[k] for k in both_x], {names_x[k] for k in summed_x}
    kept = [name for name in (*names_x, *names_y) if name not in summed and name not in shared]
    return np.einsum(x, [0, *names_x], y, [0, *names_y], [0, *shared, *kept])


def _dynamic_slice(x, *starts, slice_sizes, **_):
    axes = x.ndim - 1
    places = [np.arange(len(x)).reshape(-1, *[1] * axes)]
    for k, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        first = np.clip(start, 0, x.shape[k + 1] - size).reshape(-1, *[1] * axes)
        places.append(first + np.arange(size).reshape(*[1] * (k + 1), -1, *[1] * (axes - k - 1)))
    return x[tuple(places)]


def _iota(*, dtype, shape, dimension, **_):
    line = np.arange(shape[dimension], dtype=dtype).reshape(-1, *[1] * (len(shape) - dimension - 1))
    return np.broadcast_to(line, shape)[None]


def _slice(x, *, start_indices, limit_indices, strides, **_):
    edges = zip(start_indices, limit_indices, strides or (1,) * len(start_indices), strict=True)
    return x[:, *(slice(*edge) for edge in edges)]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "abs": _each(np.abs),
    "add": _each(np.add),
    "add_any": _each(np.add),
    "and": _each(np.bitwise_and),
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "convert_element_type": lambda x, *, new_dtype, **_: x.astype(new_dtype),
    "copy": _each(lambda x: x),
    "div": _each(_divide),
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "eq": _each(np.equal),
    "exp": _each(np.exp),
    "expm1": _each(np.expm1),
    "floor": _each(np.floor),
    "ge": _each(np.greater_equal),
    "gt": _each(np.greater),
    "integer_pow": lambda x, *, y, **_: x**y,
    "iota": _iota,
    "le": _each(np.less_equal),
    "log": _each(np.log),
    "log1p": _each(np.log1p),
    "lt": _each(np.less),
    "max": _each(np.maximum),
    "min": _each(np.minimum),
    "mul": _each(np.multiply),
    "ne": _each(np.not_equal),
    "neg": _each(np.negative),
    "not": _each(np.invert),
    "or": _each(np.bitwise_or),
    "pow": _each(np.power),
    "reduce_max": _reduced(np.max),
    "reduce_min": _reduced(np.min),
    "reduce_prod": _reduced(np.prod),
    "reduce_sum": _reduced(np.sum),
    "rem": _each(np.fmod),
    "reshape": lambda x, *, new_sizes, **_: x.reshape(len(x), *new_sizes),
    "select_n": _each(lambda which, *cases: np.choose(which.astype(int), cases)),
    "sign": _each(np.sign),
    "slice": _slice,
    "split": lambda x, *, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis=axis + 1),
    "sqrt": _each(np.sqrt),
    "square": _each(np.square),
    "squeeze": lambda x, *, dimensions: np.squeeze(x, tuple(k + 1 for k in dimensions)),
    "stack": lambda *parts, axis: np.stack(np.broadcast_arrays(*parts), axis=axis + 1),
    "stop_gradient": _each(lambda x: x),
    "sub": _each(np.subtract),
    "transpose": lambda x, *, permutation: x.transpose(0, *(k + 1 for k in permutation)),
    "xor": _each(np.bitwise_xor),
}
"""JAX's operations by their names; a list has several results."""


class Program:
    """A program as a function of rows: all arguments and results have a leading axis of rows, or of one row.

    !!! example
        >>> program = Program(jax.make_jaxpr(lambda x, y: x @ y)(np.ones(2, np.float32), np.ones(2, np.float32)))
        >>> program(np.float32([[1, 2], [3, 4]]), np.float32([[1, 1]]))[0].tolist()
        [3.0, 7.0]
    """

    def __init__(self, closed: Any):
        self.shapes: list[tuple[int, ...]] = [x.shape for x in closed.out_avals]
        """The shapes of the results for one row."""
        self._program, self._equations, needed = closed.jaxpr, [], set(filter(_is_variable, closed.jaxpr.outvars))
        for equation in closed.jaxpr.eqns[::-1]:
            if needed.intersection(equation.outvars):
                self._equations.append(equation)
                needed.update(filter(_is_variable, equation.invars))
        self._equations.reverse()
        every = zip(closed.jaxpr.constvars, closed.consts, strict=True)
        listed = all(equation.primitive.name in OPERATIONS for equation in self._equations)
        self._constants = {x: np.asarray(constant)[None] for x, constant in every if x in needed} if listed else {}
        self._compiled = None if listed else jax.jit(jax.vmap(jaxpr_as_fun(closed)))

    def depends_on(self, argument: int) -> list[bool]:
        """Returns which results depend on one of the arguments."""
        reached = {self._program.invars[argument]}
        for equation in self._equations:
            if reached.intersection(filter(_is_variable, equation.invars)):
                reached.update(equation.outvars)
        return [_is_variable(x) and x in reached for x in self._program.outvars]

    def __call__(self, *arguments: np.ndarray) -> list[np.ndarray]:
        if self._compiled is not None:
            return self._in_jax(*arguments)
        known = self._constants | dict(zip(self._program.invars, arguments, strict=True))
        with np.errstate(all="ignore"):
            for equation in self._equations:
                inputs = [_value(x, known) for x in equation.invars]
                found = OPERATIONS[equation.primitive.name](*inputs, **equation.params)
                known |= zip(equation.outvars, found if isinstance(found, list) else [found], strict=True)
        return [_value(x, known) for x in self._program.outvars]

    def _in_jax(self, *arguments: np.ndarray) -> list[np.ndarray]:
        count = max(len(x) for x in arguments)
        size = -(-count // ROWS) * ROWS  # so that other numbers of rows need no other program
        every = [np.broadcast_to(x, (count, *x.shape[1:])) for x in arguments]
        every = [np.concatenate([x, np.repeat(x[-1:], size - count, axis=0)]) for x in every]
        parts = [self._compiled(*(x[at : at + ROWS] for x in every)) for at in range(0, size, ROWS)]  # pyright: ignore[reportOptionalCall]
        return [np.concatenate(column)[:count] for column in zip(*parts, strict=True)]


def _is_variable(x: Any) -> bool:
    return not hasattr(x, "val")  # literals have values


def _value(x: Any, known: dict[Any, np.ndarray]) -> np.ndarray:
    return known[x] if _is_variable(x) else np.asarray(x.val, x.aval.dtype)[None]
