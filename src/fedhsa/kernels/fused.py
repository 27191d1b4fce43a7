"""Dispatches operations to the current backend's kernels, once all agents and seeds are batched together."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from . import plain
from .backend import kernel_for
from .forms import Affine, RankOne


def walk(first: Any, second: Any, table: Any, state: Any) -> tuple[Any, Any]:
    """The states of a finite chain from `state` on, and the state after each of them.

    **Arguments:**

    - `first`, `second`: random words, of shape `(H,)`.
    - `table`: the alias table of the kernel, of shape `(S, S, 2)`.
    """
    return _fused("walk", plain.walk, (first, second, table, state), own=(False, False, True, False))


def linear_walk(matrix: Any, scale: Any, noise: tuple, state: Any) -> tuple[Any, Any]:
    r"""The states of $z' = Q z + \sigma \epsilon$ from `state` on: `(the state after them, the states)`.

    `noise` has the coordinates of $\epsilon$ in parts, each of shape `(H, ...)`, which are concatenated.
    """
    own = (True, True, (False,) * len(noise), False)
    return _fused("linear_walk", plain.linear_walk, (matrix, scale, noise, state), own)


def normal_walk(first: Any, second: Any, matrix: Any, scale: Any, state: Any) -> tuple[Any, Any]:
    r"""Like `linear_walk`, where $\epsilon$ are the standard normal numbers of keys with these words, `(H,)` each."""
    arguments, own = (first, second, matrix, scale, state), (False, False, True, True, False)
    return _fused("normal_walk", plain.normal_walk, arguments, own)


def take_steps(form: RankOne | Affine, theta: Any, eta: Any, shift: Any, minus: Any, start: int, stop: int) -> Any:
    r"""$\theta \leftarrow \theta + \eta\,(G(\theta, o_\ell) + s)$ for the observations from `start` to before `stop`.

    $s$ is `shift`, less `minus` if that is given.
    """
    eta = jnp.asarray(eta, theta.dtype)
    part = {"start": start, "stop": stop}
    if isinstance(form, Affine):
        own = (False, False, False, True, True, True, False, False)
        return _fused("affine_steps", plain.affine_steps, (theta, shift, minus, eta, *form), own, **part)
    arrays, own_arrays = _rank_one(form, theta)
    own = (False, False, False, True, *own_arrays)
    return _fused("rank_one_steps", plain.rank_one_steps, (theta, shift, minus, eta, *arrays), own, **part)


def first_operator(form: RankOne | Affine, theta: Any) -> Any:
    r"""$G(\theta, o_0)$."""
    if isinstance(form, Affine):
        own = (False, True, True, False, False)
        return _fused("affine_operator", plain.affine_operator, (theta, *form), own)
    arrays, own = _rank_one(form, theta)
    return _fused("rank_one_operator", plain.rank_one_operator, (theta, *arrays), (False, *own))


def _rank_one(form: RankOne, theta: Any) -> tuple[tuple, tuple]:
    """The arrays of a form, and flags for those that are the agent's own."""
    weights = tuple(jnp.asarray(w, theta.dtype) for w in form.weights)
    own = (True, (False,) * len(form.rows), tuple(w.ndim == 0 for w in weights), False)
    return (form.table, form.rows, weights, form.constant), own


def _fused(name: str, step_by_step: Callable, arguments: tuple, own: tuple, **static: Any) -> Any:
    """Evaluates `step_by_step(*arguments)`, by the current backend if it has a kernel for it.

    `own` marks the arguments that belong to the agent and are the same for all its seeds. A kernel receives them with
    shape `(agents, ...)` and all others with shape `(agents, seeds, ...)`; arguments that all agents share have a first
    axis of 1.
    """
    kernel = kernel_for(name)
    if kernel is None:
        return step_by_step(*arguments, **static)
    leaves, structure = jax.tree.flatten(arguments)
    owned = jax.tree.leaves(jax.tree.map(lambda o, a: jax.tree.map(lambda _: o, a), own, arguments))

    def of_one(*leaves):
        return step_by_step(*jax.tree.unflatten(structure, leaves), **static)

    def fused(*leaves):
        done = kernel(*jax.tree.unflatten(structure, leaves), **static)
        if done is None:  # a shape that the kernel does not support
            of_seeds = jax.vmap(of_one, in_axes=[None if o else 0 for o in owned])
            together = max(x.shape[0] for x in leaves)
            shared = [x.shape[0] < together for x in leaves]
            once = [x[0] if s else x for s, x in zip(shared, leaves, strict=True)]
            return jax.vmap(of_seeds, in_axes=[None if s else 0 for s in shared])(*once)
        return done

    return batched(of_one, fused, owned)(*leaves)


def batched(of_one: Callable, of_all: Callable, own: list[bool]) -> Callable:
    """`of_one(*arrays)`, which becomes `of_all(*arrays)` when it is mapped over the seeds and then over the agents.

    Under any other mapping it remains `of_one`.
    """

    @custom_vmap
    def one(*arrays):
        return of_one(*arrays)

    @custom_vmap
    def agent(*arrays):
        return jax.vmap(of_one, in_axes=[None if o else 0 for o in own])(*arrays)

    @one.def_vmap
    def _(size, mapped, *arrays):
        if not any(mapped):
            return _with_flags(one(*arrays), False)
        if any(m and o for m, o in zip(mapped, own, strict=True)):
            return _with_flags(jax.vmap(of_one, in_axes=[0 if m else None for m in mapped])(*arrays), True)
        spread = [
            x if m or o else jnp.broadcast_to(x, (size, *x.shape)) for x, m, o in zip(arrays, mapped, own, strict=True)
        ]
        return _with_flags(agent(*spread), True)

    @agent.def_vmap
    def _(size, mapped, *arrays):
        if not any(mapped):
            return _with_flags(agent(*arrays), False)
        return _with_flags(of_all(*[x if m else x[None] for x, m in zip(arrays, mapped, strict=True)]), True)

    return one


def _with_flags(values, flag: bool):
    return values, jax.tree.map(lambda _: flag, values)
