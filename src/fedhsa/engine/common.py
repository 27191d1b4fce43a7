"""Memories that do not depend on the agent, and are stored once for all agents."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Var, jaxpr_as_fun
from jaxtyping import Array, PyTree


class Common(NamedTuple):
    """A value that all agents share, without an axis for agents."""

    value: Array


def is_common(value: Any) -> bool:
    """Whether all agents share this value."""
    return isinstance(value, Common)


def for_each(value: Any, count: int) -> Array:
    """Repeats the value for each of `count` agents."""
    return jnp.broadcast_to(value.value, (count, *value.value.shape)) if is_common(value) else value


def common_once(function: Callable, arguments: tuple) -> tuple[PyTree, PyTree]:
    """Like `tree.over_agents` for replies and memories, but stores memories that do not depend on the agent once.

    XLA does this itself where it can see how the memories are used. A kernel is opaque to XLA, which would otherwise
    write out a copy for each agent.
    """
    leaves, structure = jax.tree.flatten(arguments, is_leaf=is_common)
    arrays, axes = [x.value if is_common(x) else x for x in leaves], [None if is_common(x) else 0 for x in leaves]
    one = [x if axis is None else x[0] for x, axis in zip(arrays, axes, strict=True)]
    traced, shapes = jax.make_jaxpr(lambda *x: function(*structure.unflatten(x)), return_shape=True)(*one)
    own = {v for v, axis in zip(traced.jaxpr.invars, axes, strict=True) if axis == 0}
    for equation in traced.jaxpr.eqns:
        if any(isinstance(v, Var) and v in own for v in equation.invars):
            own.update(equation.outvars)
    out_axes = [0 if isinstance(v, Var) and v in own else None for v in traced.jaxpr.outvars]
    results = jax.vmap(jaxpr_as_fun(traced), in_axes=axes, out_axes=out_axes)(*arrays)
    marked = [x if axis == 0 else Common(x) for x, axis in zip(results, out_axes, strict=True)]
    replies, memory = jax.tree.unflatten(jax.tree.structure(shapes), marked)
    width = next(x.shape[0] for x, axis in zip(arrays, axes, strict=True) if axis == 0)
    return jax.tree.map(lambda x: for_each(x, width), replies, is_leaf=is_common), memory
