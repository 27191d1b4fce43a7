"""Which kernel carries an operation out: the current backend's, once all agents and seeds have come together."""

import contextlib
import contextvars
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from . import plain
from .forms import Affine, RankOne

_backend: contextvars.ContextVar[str | None] = contextvars.ContextVar("backend", default=None)


@contextlib.contextmanager
def using(backend: str | None) -> Iterator[None]:
    """Traces what is inside with the kernels of `backend`, a module of this package, or with none."""
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


def active(operation: str | None = None) -> bool:
    """Whether a backend is in use, and has a kernel for `operation` if one is named."""
    backend = _backend.get()
    return backend is not None and (operation is None or hasattr(_module(backend), operation))


def backend_of(platform: str) -> str | None:
    """The backend whose kernels run on this kind of device; None where the plain steps do."""
    for name in {"gpu": ["triton"], "cpu": ["native"]}.get(platform, []):
        if _module(name) is not None:
            return name
    return None


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f".{name}", __package__)
    except ImportError:  # this JAX has no Pallas for it, or the optional package is not installed
        return None


def walk(first: Any, second: Any, table: Any, state: Any) -> tuple[Any, Any]:
    """The states of a finite chain from `state` on: `(the one after them, the states)`.

    **Arguments:**

    - `first`, `second`: random words, `(H,)`.
    - `table`: the alias table of the kernel, `(S, S, 2)`.
    """
    return _fused("walk", plain.walk, (first, second, table, state), own=(False, False, True, False))


def linear_walk(matrix: Any, noise: Any, state: Any) -> tuple[Any, Any]:
    """The states of $z' = Q z + \\epsilon$ from `state` on: `(the one after them, the states)`."""
    return _fused("linear_walk", plain.linear_walk, (matrix, noise, state), own=(True, False, False))


def take_steps(form: RankOne | Affine, theta: Any, eta: Any, shift: Any, minus: Any, length: int) -> Any:
    r"""$\theta \leftarrow \theta + \eta\,(G(\theta, o_\ell) + s)$ for the observations of a block.

    $s$ is `shift`, less `minus` where that is given.
    """
    eta = jnp.asarray(eta, theta.dtype)
    if isinstance(form, Affine):

        def affine(*arguments):
            return plain.affine_steps(*arguments, length=length)

        own = (False, False, False, True, True, True, False, False)
        return _fused("affine_steps", affine, (theta, shift, minus, eta, *form), own, length=length)
    weights = tuple(jnp.asarray(w, theta.dtype) for w in form.weights)
    own_weights = tuple(w.ndim == 0 for w in weights)
    own = (False, False, False, True, True, (False,) * len(form.rows), own_weights, False)
    arguments = (theta, shift, minus, eta, form.table, form.rows, weights, form.constant)
    return _fused("rank_one_steps", plain.rank_one_steps, arguments, own)


def _fused(name: str, step_by_step: Callable, arguments: tuple, own: tuple, **static: Any) -> Any:
    """`step_by_step(*arguments)`, by the current backend if it has a kernel for it.

    `own` marks the arguments that belong to the agent and are the same for all its seeds. A kernel sees them as
    `(agents, ...)` and all others as `(agents, seeds, ...)`; what all agents share comes once, with a first axis of 1.
    """
    backend = _backend.get()
    kernel = None if backend is None else getattr(_module(backend), name, None)
    if kernel is None:
        return step_by_step(*arguments)
    leaves, structure = jax.tree.flatten(arguments)
    owned = jax.tree.leaves(jax.tree.map(lambda o, a: jax.tree.map(lambda _: o, a), own, arguments, is_leaf=_is_bool))

    def of_one(*leaves):
        return step_by_step(*jax.tree.unflatten(structure, leaves))

    def fused(*leaves):
        done = kernel(*jax.tree.unflatten(structure, leaves), **static)
        if done is None:  # a shape that the kernel is not made for
            of_seeds = jax.vmap(of_one, in_axes=[None if o else 0 for o in owned])
            together = max(x.shape[0] for x in leaves)
            shared = [x.shape[0] < together for x in leaves]
            once = [x[0] if s else x for s, x in zip(shared, leaves, strict=True)]
            return jax.vmap(of_seeds, in_axes=[None if s else 0 for s in shared])(*once)
        return done

    return batched(of_one, fused, owned)(*leaves)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def batched(of_one: Callable, of_all: Callable, own: list[bool]) -> Callable:
    """`of_one(*arrays)`, which becomes `of_all(*arrays)` when it is mapped over the seeds, then over the agents.

    Mapped in any other way it stays `of_one`.
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
