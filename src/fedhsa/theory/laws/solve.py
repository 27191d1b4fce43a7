"""Fixed points and spectral radii of linear maps, given as matrices or as functions of a vector."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, gmres

from ..._linear import spectral_radius

Part: TypeAlias = np.ndarray | LinearOperator
"""A linear map of vectors."""

RESTART, CYCLES = 150, 40
TOLERANCE = 1e-12
FALLS = 0.2
"""The factor by which corrections must become smaller, or the equations are solved by GMRES."""
CLOSE = 1e-8
"""The largest relative residual that a solution may have."""
ROUNDED = 10.0
"""How far the error of a solution may be above its tolerance, in units of it, where rounding allows no better one."""
DIGITS = 1e-9
"""The relative accuracy of spectral radii."""
STRIDE = 5
"""The number of vectors by which a Krylov space grows before it is looked at again."""
KNOWN = 1e-12
"""The relative size of a new direction's part outside of a space below which it is rounding."""


def largest(x: np.ndarray) -> float:
    """Returns the largest modulus."""
    return float(np.abs(x).max(initial=0.0))


def fixed_point(
    map: Part,
    added: np.ndarray,
    nearly: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    tolerance: float = TOLERANCE,
    size: Callable[[np.ndarray], float] = largest,
) -> np.ndarray:
    """Returns the solution of `x = map @ x + added` for a map with a radius below 1; raises if it is not found.

    `nearly` is a linear map that nearly solves these equations for any `added`, which makes the iteration shorter. It
    ends as soon as the next correction is smaller than the solution by the factor `tolerance`, as `size` measures them.
    """
    n = added.size
    if isinstance(map, np.ndarray):
        return np.linalg.solve(np.eye(n) - map, added)

    def away(z: np.ndarray) -> np.ndarray:
        x = nearly(np.ravel(z))
        return x - map @ x

    def missing(x: np.ndarray) -> np.ndarray:
        return added + map @ x - x

    x, left, before = np.zeros(n), added, math.inf
    while largest(left) > TOLERANCE * largest(added):
        correction = nearly(left)
        if not (now := size(correction)) < FALLS * before:  # `nearly` is not good enough
            break
        x, before = x + correction, now
        if now <= tolerance * size(x):
            return x
        left = missing(x)
    else:
        return x
    equations = LinearOperator((n, n), matvec=away, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    for _ in range(CYCLES):  # each starts from the true residual; rounding ends progress
        correction = nearly(gmres(equations, left, rtol=tolerance, atol=0.0, restart=RESTART, maxiter=1)[0])
        rest = missing(x + correction)
        if not largest(rest) < largest(left):
            break
        x, last, left = x + correction, left, rest
        if size(nearly(left)) <= tolerance * size(x):
            return x
        if not largest(left) < largest(last) / 2:
            break
    error = largest(left)
    good = error <= max(CLOSE * largest(x), TOLERANCE * largest(added)) or (
        size(nearly(left)) <= ROUNDED * tolerance * size(x)
    )
    if not good:
        raise ValueError(
            f"The stationary moments were not found: the relative residual of {n:,} equations is {error:.2g}. The "
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


def arnoldi(
    map: Callable[[np.ndarray], np.ndarray], start: np.ndarray, count: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields an orthonormal basis of larger and larger Krylov spaces of `start`, the first vector, and the map in it.

    The powers of the small matrix give those of the map on `start`: exactly up to the number of vectors, and beyond it
    as accurately as these resolve the slowest modes. The last space has `count` vectors, or the map does not leave it.
    """
    size = float(np.linalg.norm(start))
    basis, H = [start / (size or 1.0)], np.zeros((count + 1, count))
    for k in range(count):
        moved = map(basis[k])
        reach = np.linalg.norm(moved)
        for _ in range(2):  # two passes are sufficient against rounding
            parts = np.array([vector @ moved for vector in basis])
            H[: k + 1, k] += parts
            moved = moved - parts @ np.stack(basis)
        H[k + 1, k] = np.linalg.norm(moved)
        ends = not H[k + 1, k] > 1e-14 * reach or k == count - 1
        if ends or k % STRIDE == STRIDE - 1:
            yield np.stack(basis), H[: k + 1, : k + 1]
        if ends:
            return
        basis.append(moved / H[k + 1, k])


def radius(map: Part, start: np.ndarray | None = None, tolerance: float = DIGITS) -> float:
    """Returns the spectral radius of a map, from all eigenvalues or by Arnoldi iteration; infinite if it overflows."""
    if isinstance(map, np.ndarray):
        return spectral_radius(map)
    start = np.random.default_rng(0).standard_normal(map.shape[0]) if start is None else start
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(np.asarray(map @ start)).all():
            return np.inf
    how: Any = {"v0": start, "tol": tolerance, "return_eigenvectors": False}
    try:
        values = eigs(map, k=1, ncv=min(start.size, 24), maxiter=1000, **how)
    except ArpackNoConvergence:  # several eigenvalues of nearly the same modulus: compute a few of them
        values = eigs(map, k=4, ncv=min(start.size, 80), maxiter=5000, **how)
    return float(np.abs(values).max())


def growth(
    map: Callable[[np.ndarray], np.ndarray],
    starts: Sequence[np.ndarray],
    nearly: Callable[[np.ndarray], np.ndarray],
    tolerance: float = DIGITS,
    least: int = 4,
    most: int = 40,
) -> np.ndarray | None:
    """Returns the spectral radii of linear maps of rows that keep second moments positive (Davidson's method).

    Such a radius is an eigenvalue. Its mode is sought in the space of some positive `starts`, `(rows, n)`, of the
    corrections that `nearly` makes of residuals, which is as in `fixed_point`, and of the images of the last start,
    which show modes that the corrections miss; at least and at most these numbers of times. None if that is not enough.
    """
    basis = images = np.empty((len(starts[0]), 0, starts[0].shape[1]))
    new, last = list(starts), starts[-1]
    for step in range(most):
        for vector in new:
            least_size = KNOWN * np.linalg.norm(vector, axis=1, keepdims=True)
            for _ in range(2):  # two passes are sufficient against rounding
                parts = basis @ vector[..., None]
                vector = vector - (np.swapaxes(basis, 1, 2) @ parts)[..., 0]
            sizes = np.linalg.norm(vector, axis=1, keepdims=True)
            vector = np.where(sizes > least_size, vector, 0.0) / np.where(sizes > 0, sizes, 1.0)
            last = map(vector)
            basis = np.concatenate([basis, vector[:, None]], axis=1)
            images = np.concatenate([images, last[:, None]], axis=1)
        small = basis @ np.swapaxes(images, 1, 2)
        if not np.isfinite(small).all():
            return np.full(len(small), np.inf)
        values, modes = np.linalg.eig(small)
        which = np.argmax(np.real(values), axis=1)[:, None]  # others of the same modulus may be complex
        value = np.real(np.take_along_axis(values, which, 1))
        mode = np.real(np.take_along_axis(modes, which[:, None], 2))
        rest = (np.swapaxes(images, 1, 2) @ mode)[..., 0] - value * (np.swapaxes(basis, 1, 2) @ mode)[..., 0]
        close = np.linalg.norm(rest, axis=1) <= tolerance * value[:, 0] * np.linalg.norm(mode[..., 0], axis=1)
        if step >= least and close.all():
            return value[:, 0]
        better = nearly(rest)
        new = [better if np.isfinite(better).all() and not close.all() else rest, last]
    return None
