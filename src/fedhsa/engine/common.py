"""Memories that do not depend on the agent: they are there once, for all agents."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Var, jaxpr_as_fun
from jaxtyping import Array, PyTree


class Common(NamedTuple):
    """What is the same for all agents, and so has no axis for them."""

    value: Array


def is_common(value: Any) -> bool:
    """Whether there is one value for all agents."""
    return isinstance(value, Common)


def for_each(value: Any, count: int) -> Array:
    """The value with an entry for each of `count` agents."""
    return jnp.broadcast_to(value.value, (count, *value.value.shape)) if is_common(value) else value


def common_once(function: Callable, arguments: tuple) -> tuple[PyTree, PyTree]:
    """Like `tree.over_agents`, for replies and memories, but memories that do not depend on the agent are there once.

    XLA sees to that by itself wherever it sees what is done with them. For a kernel, into which it does not see, it
    would write out a copy for each agent.
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
