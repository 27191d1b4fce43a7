"""Linear algebra of stacked matrices, and the one check of whether a linear recursion is stable."""

import contextlib
import ctypes
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DOUBLINGS = 60
"""How often a sum of powers may be doubled: more terms than any chain or method of interest needs."""


CHUNK = 2**21
"""How many numbers are worked on at a time, so that many agents need hardly more memory than their result takes."""


def chunks(count: int, size: int) -> list[slice]:
    """Slices of `count` things of `size` numbers each, about `CHUNK` numbers to a slice."""
    many = max(1, CHUNK // size)
    return [slice(start, start + many) for start in range(0, count, many)]


def transpose(x: np.ndarray) -> np.ndarray:
    """The transpose of stacked matrices."""
    return np.swapaxes(x, -1, -2)


def spectral_radius(matrices: np.ndarray) -> Any:
    """The largest modulus of an eigenvalue, of one matrix or of each in a stack; infinite where entries overflowed.

    The recursion `x' = A x` is stable where it is below 1.
    """
    finite = np.asarray(np.isfinite(matrices).all((-1, -2)))
    moduli = abs(np.linalg.eigvals(np.where(finite[..., None, None], matrices, 0.0)))
    radius = np.where(finite, moduli.max(-1), np.inf)
    return radius if radius.ndim else float(radius)


def check_stable(name: str, matrices: np.ndarray, remedy: str) -> None:
    """Raises if the recursion of some agent is not stable; `matrices` are `(agents, d, d)`, the argument `name`."""
    radius = spectral_radius(matrices)
    if (radius >= 1).any():
        agent = int(np.argmax(radius))
        raise ValueError(
            f"`{name}` must have spectral radius below 1, got {radius[agent]:.6g} for agent {agent}: what it drives "
            f"would grow without bound. {remedy} Or scale it: `{name}[{agent}] *= {0.9 / radius[agent]:.3g}`."
        )


def stein_sum(left: np.ndarray, right: np.ndarray, C: np.ndarray) -> np.ndarray:
    r"""The solution of $X = L X R + C$, as $\sum_k L^k C R^k$ by doubling; stacked matrices are fine.

    Converges wherever the products of their powers vanish on $C$, and in as many steps as the logarithm of their time.
    """
    X = C
    for _ in range(DOUBLINGS):
        added = left @ X @ right
        X = X + added
        if not np.abs(added).max(initial=0.0) > 1e-17 * np.abs(X).max(initial=0.0):
            break
        left, right = left @ left, right @ right
    return X


def solve(A: Any, b: Any) -> Any:
    """The solution of `A x = b` in programs that run side by side, as those of the engine do; of one system.

    JAX shares a stack of systems out over the very threads that its programs run on and waits for them, so that on a
    CPU two programs with `jnp.linalg.solve` may wait for each other for ever. Here a stack, as `jax.vmap` makes it, is
    solved one by one.
    """
    A_here = jax.lax.stop_gradient(A)
    return jax.lax.custom_linear_solve(
        lambda x: A @ x, b, lambda _, b: _solve_alone(A_here, b), lambda _, b: _solve_alone(A_here.T, b)
    )


@jax.custom_batching.sequential_vmap
def _solve_alone(A, b):
    return jnp.linalg.solve(A, b)


@contextlib.contextmanager
def one_core_each() -> Iterator[None]:
    """Matrix products inside the block use one core, for threads that share out the cores themselves.

    Otherwise every thread asks for all cores, and they wait for each other: on a busy machine ten times as long. With
    another library than the one that NumPy's wheels bring it does nothing.
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
