"""Linear algebra of stacked matrices, and the check that a linear recursion is stable."""

import contextlib
import ctypes
import os
import pathlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ._arrays import chunks, empty, is_shared, share

T = TypeVar("T")

DOUBLINGS = 60
"""The largest number of doublings of a sum of powers: more terms than any chain or method of interest needs."""


def by_parts(function: Callable[..., T], *arguments: Any, size: int) -> T:
    """Evaluates `function(*arguments)`, where the arrays of the arguments and of the result have an entry per agent.

    It processes some agents at a time, on all cores, so that temporaries of `size` numbers per agent take little
    memory. Values that all agents share are computed once.
    """
    leaves = jax.tree.leaves(arguments)
    count = len(leaves[0])

    def of(some: slice) -> T:
        return function(*jax.tree.map(lambda leaf: leaf[some], arguments))

    if all(map(is_shared, leaves)):
        return jax.tree.map(lambda x: share(x[0], count), of(slice(0, 1)))
    first, *rest = chunks(count, size) or [slice(0)]
    begun = of(first)
    if not rest:
        return begun

    whole = jax.tree.map(lambda x: empty((count, *x.shape[1:]), x.dtype), begun)

    def keep(some: slice, values: T) -> None:
        jax.tree.map(lambda all, part: all.__setitem__(some, part), whole, values)

    keep(first, begun)
    with one_core_each(), ThreadPoolExecutor(len(available_cores())) as pool:
        list(pool.map(lambda some: keep(some, of(some)), rest))
    return whole


def transpose(x: np.ndarray) -> np.ndarray:
    """The transpose of stacked matrices."""
    return np.swapaxes(x, -1, -2)


def spectral_radius(matrices: np.ndarray) -> Any:
    """The largest modulus of an eigenvalue, of one matrix or of each in a stack; infinite if entries have overflowed.

    The recursion `x' = A x` is stable if it is below 1.
    """
    if np.ndim(matrices) < 3:
        return float(spectral_radius(matrices[None])[0])

    def radius(matrices):
        finite = np.isfinite(matrices).all((-1, -2))
        moduli = abs(np.linalg.eigvals(np.where(finite[..., None, None], matrices, 0.0)))
        return np.where(finite, moduli.max(-1), np.inf)

    return by_parts(radius, matrices, size=max(1, matrices[0].size))


SQUARINGS = 12
"""The number of squarings: powers up to the 2048th are tried."""


def check_stable(name: str, matrices: np.ndarray, remedy: str) -> None:
    """Raises `ValueError` if an agent's recursion is not stable; `matrices`, `(agents, d, d)`, is the user's `name`."""
    doubtful = np.flatnonzero(~by_parts(_surely_stable, matrices, size=matrices[0].size))
    if len(doubtful) and ((radius := spectral_radius(matrices[doubtful])) >= 1).any():
        worst = int(np.argmax(radius))
        agent, radius = int(doubtful[worst]), radius[worst]
        raise ValueError(
            f"`{name}` must have a spectral radius below 1, got {radius:.6g} for agent {agent}: the process it drives "
            f"would grow without bound. {remedy} Or scale it: `{name}[{agent}] *= {0.9 / radius:.3g}`."
        )


def _surely_stable(matrices: np.ndarray) -> np.ndarray:
    """Whether some power has a norm below 1; much faster than eigenvalues, and misses only nearly unstable matrices."""
    stable = np.zeros(len(matrices), dtype=bool)
    left, powers = np.arange(len(matrices)), matrices
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(SQUARINGS):
            small = (powers**2).sum((-1, -2)) < 1
            stable[left[small]] = True
            left, powers = left[~small], powers[~small]
            powers = powers @ powers
    return stable


def stein_sum(left: np.ndarray, right: np.ndarray, C: np.ndarray) -> np.ndarray:
    r"""The solution of $X = L X R + C$, computed as $\sum_k L^k C R^k$ by doubling; matrices may be stacked.

    It converges if the products of the powers vanish on $C$; the number of steps is the logarithm of the number of
    terms.
    """
    X = C
    for _ in range(DOUBLINGS):
        added = left @ X @ right
        X = X + added
        size = np.abs(X).max((-1, -2), initial=0.0)  # of each matrix, because agents may differ in scale
        if not (np.abs(added).max((-1, -2), initial=0.0) > 1e-17 * size).any():
            break
        left, right = left @ left, right @ right
    return X


def lyapunov(F: np.ndarray, W: np.ndarray) -> np.ndarray:
    r"""The solution of $X = F X F^T + W$, the covariance of $x' = F x + w$, for one stable matrix or stacked ones."""
    if F.ndim == 2:
        return lyapunov(F[None], W[None])[0]
    return by_parts(lambda F, W: stein_sum(F, transpose(F), W), F, W, size=4 * F[0].size)


def solve(A: Any, b: Any) -> Any:
    """The solution of one system `A x = b` in programs that run concurrently, like those of the engine.

    JAX distributes a stack of systems over the threads that its programs run on and waits for them, so that on a
    CPU two programs with `jnp.linalg.solve` may wait for each other forever. Here a stack, as `jax.vmap` creates it, is
    solved one by one.
    """
    A_here = jax.lax.stop_gradient(A)
    return jax.lax.custom_linear_solve(
        lambda x: A @ x, b, lambda _, b: _solve_alone(A_here, b), lambda _, b: _solve_alone(A_here.T, b)
    )


@jax.custom_batching.sequential_vmap
def _solve_alone(A, b):
    return jnp.linalg.solve(A, b)


def available_cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


@contextlib.contextmanager
def one_core_each() -> Iterator[None]:
    """Matrix products inside the block use one core, for threads that distribute the cores themselves.

    Otherwise every thread requests all cores, and they wait for each other: on a busy machine this takes ten times as
    long. With a library other than the one in NumPy's wheels it does nothing.
    """
    libraries = pathlib.Path(np.__file__).parents[1].glob("numpy.libs/libscipy_openblas64_*")
    for path in libraries:
        library = ctypes.CDLL(str(path))
        before = library.scipy_openblas_get_num_threads64_()
        library.scipy_openblas_set_num_threads64_(1)
        try:
            yield
        finally:
            library.scipy_openblas_set_num_threads64_(before)
        return
    yield
