"""The fused operations on a CPU, by the compiled kernels of the optional package `fedhsa-native`.

XLA calls them through its foreign function interface. Arrays of steps have the seeds last in memory, as in the engine's
blocks of observations, so that a kernel reads the data of many seeds at one step from one place.
"""

from typing import Any

import _fedhsa_native
import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

if _fedhsa_native.INTERFACE != 1:
    raise ImportError(
        f"`fedhsa-native` has interface {_fedhsa_native.INTERFACE}, not 1: rebuild it with `make native`."
    )
for _target in _fedhsa_native.TARGETS:
    jax.ffi.register_ffi_target(_target, jax.ffi.pycapsule(getattr(_fedhsa_native.library, _target)), platform="cpu")

MOST_ROWS = 16
"""The largest number of table rows that an operator of rank one may use."""
STEPS, VECTORS = (0, 2, 1), (0, 2, 3, 1)
"""The order in memory of the axes of `(agents, seeds, steps)` and `(agents, seeds, steps, coordinates)`."""


def walk(first, second, table, state):
    """`plain.walk` for all agents and seeds."""
    first, second, state = _for_all(first, second, state)
    shape = ShapeDtypeStruct(first.shape, jnp.int32)
    return _call("fedhsa_walk", (shape, shape), (STEPS, STEPS), (STEPS, STEPS, None, None))(first, second, table, state)


def normal_walk(first, second, matrix, scale, state):
    """`plain.normal_walk` for all agents and seeds."""
    first, second, state = _for_all(first, second, state)
    shapes = ShapeDtypeStruct(state.shape, state.dtype), ShapeDtypeStruct((*first.shape, state.shape[-1]), state.dtype)
    call = _call("fedhsa_normal_walk", shapes, (None, VECTORS), (STEPS, STEPS, None, None, None))
    return call(first, second, matrix, scale, state)


def rank_one_operator(theta, table, rows, weights, constant):
    """`plain.rank_one_operator` for all agents and seeds: to the kernel, a step without a step size."""
    return rank_one_steps(theta, None, None, None, table, rows, weights, constant, 0, 1)


def rank_one_steps(theta, shift, minus, eta, table, rows, weights, constant, start, stop):
    """`plain.rank_one_steps` for all agents and seeds."""
    if len(rows) > MOST_ROWS:
        return None
    constant, *rows = _for_all(
        constant.astype(theta.dtype), *(row.astype(jnp.int32) for row in rows), like=(theta, table)
    )
    inputs = (theta, *_or_none(theta.dtype, shift, minus, eta), table, constant, *rows, *weights)
    layouts = [STEPS if i >= 5 and x.ndim == 3 else None for i, x in enumerate(inputs)]
    shape = ShapeDtypeStruct((len(constant), *theta.shape[1:]), theta.dtype)
    return _call("fedhsa_rank_one", shape, None, layouts)(*inputs, start=np.int64(start), stop=np.int64(stop))


def affine_operator(theta, A, b, component, noise):
    """`plain.affine_operator` for all agents and seeds: to the kernel, a step without a step size."""
    return affine_steps(theta, None, None, None, A, b, component, noise, 0, 1)


def affine_steps(theta, shift, minus, eta, A, b, component, noise, start, stop):
    """`plain.affine_steps` for all agents and seeds."""
    many = max(len(x) for x in (theta, shift, minus, A, b, component, noise) if x is not None)
    component, noise = (None if x is None else jnp.broadcast_to(x, (many, *x.shape[1:])) for x in (component, noise))
    component = None if component is None else component.astype(jnp.int32)
    inputs = (theta, *_or_none(theta.dtype, shift, minus, eta), A, b)
    inputs += (*_or_none(jnp.int32, component), *_or_none(theta.dtype, noise))
    layouts = (None,) * 6 + (None if component is None else STEPS, None if noise is None else VECTORS)
    shape = ShapeDtypeStruct((many, *theta.shape[1:]), theta.dtype)
    return _call("fedhsa_affine", shape, None, layouts)(*inputs, start=np.int64(start), stop=np.int64(stop))


def _for_all(*arrays, like=()):
    """Returns the arrays with an entry for every agent, also where all agents share one entry."""
    many = max(len(x) for x in (*arrays, *like))
    return [jnp.broadcast_to(x, (many, *x.shape[1:])) for x in arrays]


def _call(target: str, shapes: Any, outputs: Any, inputs: Any) -> Any:
    return jax.ffi.ffi_call(target, shapes, output_layouts=outputs, input_layouts=inputs)


def _or_none(dtype, *arrays):
    """Replaces None by an array without elements, which means None to the kernel."""
    return [jnp.zeros(0, dtype) if x is None else x for x in arrays]
