"""Fixed points and spectral radii of linear maps, given as matrices or as functions of a vector."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, gmres

from ..._linear import spectral_radius

Part: TypeAlias = np.ndarray | LinearOperator
"""A linear map of vectors."""

RESTART, CYCLES = 150, 40
TOLERANCE = 1e-12
CLOSE = 1e-8
"""The largest relative residual that a solution may have."""
DIGITS = 1e-9
"""The relative accuracy of spectral radii."""
ASIDE = 1e-4
"""The random part of a start near the slowest mode."""


def fixed_point(
    map: Part,
    added: np.ndarray,
    nearly: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    tolerance: float = TOLERANCE,
) -> np.ndarray:
    """Returns the solution of `x = map @ x + added` for a map with a radius below 1; raises if it is not found.

    `nearly` is a linear map that nearly solves these equations for any `added`, which makes the iteration shorter. A
    larger `tolerance`, relative to `added`, ends it sooner.
    """
    n = added.size
    if isinstance(map, np.ndarray):
        return np.linalg.solve(np.eye(n) - map, added)

    def away(z: np.ndarray) -> np.ndarray:
        x = nearly(np.ravel(z))
        return x - map @ x

    equations = LinearOperator((n, n), matvec=away, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    x, left, residual = np.zeros(n), added, np.inf
    for _ in range(CYCLES):  # of which each starts from the true residual; rounding ends their progress
        better = x + nearly(gmres(equations, left, rtol=tolerance, atol=0.0, restart=RESTART, maxiter=1)[0])
        left = added + map @ better - better
        before, residual = residual, np.abs(left).max()
        if not residual < before / 2:
            residual = min(before, residual)
            break
        x = better
        if tolerance > TOLERANCE and residual <= tolerance * np.abs(added).max():
            break
    if not residual <= max(CLOSE * np.abs(x).max(), tolerance * np.abs(added).max()):
        raise ValueError(
            f"The stationary moments were not found: the relative residual of {n:,} equations is {residual:.2g}. The "
            "method may be close to its largest stable step size; use a smaller one."
        )
    return x


def slowest_square(A: np.ndarray) -> np.ndarray:
    r"""Returns the second moment $x x^*$ of the slowest mode $x$ of a mean map; zero if the map has overflowed."""
    if not np.isfinite(A).all():
        return np.zeros_like(A)
    values, modes = np.linalg.eig(A)
    x = modes[:, np.argmax(np.abs(values))]
    return np.real(np.outer(x, x.conj()))


def arnoldi(map: Callable[[np.ndarray], np.ndarray], start: np.ndarray, count: int):
    """Returns an orthonormal basis of the Krylov space of `start`, the map in this basis, and the norm of `start`.

    The powers of the small matrix give those of the map on `start`: exactly up to `count`, and beyond it as accurately
    as this number of steps resolves the slowest modes.
    """
    size = float(np.linalg.norm(start))
    if size == 0:
        return np.zeros((1, start.size)), np.zeros((1, 1)), 0.0
    basis, H = [start / size], np.zeros((count + 1, count))
    for k in range(count):
        moved = map(basis[k])
        reach = np.linalg.norm(moved)
        for _ in range(2):  # two passes are sufficient against rounding
            parts = np.array([vector @ moved for vector in basis])
            H[: k + 1, k] += parts
            moved = moved - parts @ np.stack(basis)
        H[k + 1, k] = np.linalg.norm(moved)
        if not H[k + 1, k] > 1e-14 * reach or k == count - 1:
            break
        basis.append(moved / H[k + 1, k])
    return np.stack(basis), H[: len(basis), : len(basis)], size


def radius(map: Part, near: np.ndarray | None = None, tolerance: float = DIGITS) -> float:
    """Returns the spectral radius of a map, from all eigenvalues of a matrix or by Arnoldi iteration.

    The iteration takes fewer steps if it starts `near` the slowest mode, or if the relative `tolerance` is larger; a
    random part finds the mode wherever it is.
    """
    if isinstance(map, np.ndarray):
        return spectral_radius(map)
    n = map.shape[0]
    start = np.random.default_rng(0).standard_normal(n)
    if near is not None and (size := np.linalg.norm(near)) > 0:
        start = near / size + ASIDE * start / np.linalg.norm(start)
    try:
        values = eigs(map, k=1, ncv=min(n, 24), v0=start, maxiter=1000, tol=tolerance, return_eigenvectors=False)  # pyright: ignore[reportArgumentType]
    except ArpackNoConvergence:  # several eigenvalues of nearly the same modulus: compute a few of them
        values = eigs(map, k=4, ncv=min(n, 80), v0=start, maxiter=5000, tol=tolerance, return_eigenvectors=False)  # pyright: ignore[reportArgumentType]
    return float(np.abs(values).max())
