"""Rates and limits of affine maps, restricted to modes that a run can excite and that affect the parameter."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, gmres

from ..laws.solve import arnoldi
from .joint import Joint, JointMap

DENSE, LARGEST, KRYLOV = 600, 200_000, 300
"""The sizes above which no matrix is formed, above which nothing is computed, and of the space used in between."""
CONSERVED = 1e-11
"""Singular values below this fraction of the largest belong to directions that a round does not change."""
ROUNDING = 1e-13
"""Displacements below this fraction of the state count as rounding."""
INVISIBLE = 1e-9
"""Modes whose contribution to the parameter is below this number are ignored."""
CLUSTER, WORST = 1e-6, 1e12
"""The distance within which eigenvalues count as equal; the condition up to which their vectors are trusted."""


class Modes(NamedTuple):
    r"""An affine map $x' = \Phi x + c$ of displacements from a state, and effects of other starts; $e = e_1 + C x$."""

    transition: np.ndarray
    offset: np.ndarray
    observe: np.ndarray
    spread: np.ndarray
    origin: np.ndarray
    """The error $e_1$ at that state."""


def reduced(map: JointMap) -> Modes:
    r"""Restricts the map to the reachable states, without quantities that rounds conserve and all starts share.

    These are the $w$ with $w^T (\Phi - I) = 0$ and $w^T b = 0$ for the displacements $b$ of the start. For SCAFFLSA
    this is the sum of the agents' shifts. Each would be an eigenvalue 1 that has no effect on any run.
    """
    Phi, observe = map.transition, map.observe
    move = Phi @ map.first + map.offset - map.first
    rows = _spanned(np.concatenate([Phi, observe]).T)  # the rest has no effect on the parameter
    Phi, observe, move, spread = rows.T @ Phi @ rows, observe @ rows, rows.T @ move, rows.T @ map.spread
    move = _without_rounding(Phi, move, 1 + np.abs(map.first).max())
    basis = _spanned(np.concatenate([Phi - np.eye(len(Phi)), _unit(spread), _unit(move[:, None])], axis=1))
    return Modes(basis.T @ Phi @ basis, basis.T @ move, observe @ basis, basis.T @ spread, map.observe @ map.first)


def _without_rounding(Phi: np.ndarray, move: np.ndarray, size: float) -> np.ndarray:
    """Removes rounding errors in conserved directions, which would be significant at small step sizes."""
    if not np.isfinite(Phi).all():
        return move
    left, sizes, _ = np.linalg.svd(Phi - np.eye(len(Phi)))
    still = left[:, sizes <= CONSERVED * sizes[0]]
    parts = still.T @ move
    return move - still @ np.where(np.abs(parts) <= ROUNDING * size, parts, 0.0)


def _spanned(columns: np.ndarray) -> np.ndarray:
    """Returns an orthonormal basis of the span of the columns; the unit vectors if it is the whole space."""
    if not np.isfinite(columns).all():
        return np.eye(len(columns))
    Q, R, _ = scipy.linalg.qr(columns, mode="economic", pivoting=True)  # pyright: ignore[reportAssignmentType]
    sizes = np.abs(np.diag(R))
    spanned = sizes > CONSERVED * sizes[0]
    return np.eye(len(columns)) if spanned.all() else np.asarray(Q)[:, spanned]


def visible_radius(modes: Modes) -> float:
    r"""Returns the largest modulus of an eigenvalue whose mode a start excites and that affects the parameter.

    The residue $C V (W^* V)^{-1} W^* B$ determines that. If it is unknown, for a Jordan block, the mode counts.
    """
    if not np.isfinite(modes.transition).all():
        return float("inf")
    values, left, right = scipy.linalg.eig(modes.transition, left=True, right=True)  # pyright: ignore[reportAssignmentType]
    entering = np.concatenate([_unit(modes.spread), _unit(modes.offset[:, None])], axis=1)
    left_over = np.ones(len(values), dtype=bool)
    while left_over.any():
        value = values[left_over][np.argmax(np.abs(values[left_over]))]
        near = np.abs(values - value) <= CLUSTER * max(1.0, abs(value))
        V, W = right[:, near], left[:, near]
        overlap = W.conj().T @ V
        if np.linalg.cond(overlap) >= WORST:
            return float(abs(value))
        if np.abs(modes.observe @ V @ np.linalg.solve(overlap, W.conj().T @ entering)).max() > INVISIBLE:
            return float(abs(value))
        left_over &= ~near
    return 0.0


def settled(modes: Modes) -> np.ndarray:
    r"""Returns the error in the long run, $e_1 + C (I - \Phi)^{-1} c$."""
    x = np.linalg.lstsq(np.eye(len(modes.offset)) - modes.transition, modes.offset, rcond=1e-14)[0]
    return modes.origin + modes.observe @ x


def radius_of(joint: Joint) -> float:
    """Returns the spectral radius, with or without forming a matrix."""
    joint.check()
    return visible_radius(reduced(joint.map()) if joint.size <= DENSE else _krylov(joint)[0])


def error_of(joint: Joint) -> np.ndarray:
    """Returns the error of a stable method in the long run, with or without forming a matrix."""
    joint.check()
    if joint.size <= DENSE:
        return settled(reduced(joint.map()))
    modes, move, phi = _krylov(joint)
    operator = LinearOperator((joint.size,) * 2, matvec=lambda x: x - phi(np.ravel(x)), dtype=float)  # pyright: ignore[reportCallIssue]
    x, failed = gmres(operator, move, rtol=1e-12, atol=0.0, restart=200, maxiter=50)
    if failed:
        raise ValueError(f"The limit of {joint.name} was not found: the solver failed for {joint.size:,} variables.")
    return modes.origin + joint.shown[:, joint.kept] @ x


def _krylov(joint: Joint) -> tuple[Modes, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Returns the map in a space that runs from the root and from a random start span, which has their slowest modes.

    Also returns the displacement from the state after the first round from the root to the next one, and the map.
    """
    if joint.size > LARGEST:
        raise TypeError(
            f"{joint.name} carries {joint.size:,} numbers from round to round on this problem, too many for its joint "
            f"map (at most {LARGEST:,}). Use fewer agents."
        )
    ends, rng = joint.ends(), np.random.default_rng(0)

    def phi(x: np.ndarray) -> np.ndarray:
        return joint.linear(x[:, None])[:, 0]

    move = phi(ends.first) + ends.offset - ends.first
    conserved = _conserved(joint, np.concatenate([_unit(ends.spread), _unit(move[:, None])], axis=1))

    def reachable(x: np.ndarray) -> np.ndarray:
        return x - conserved @ (conserved.T @ x)

    start = _unit(ends.spread @ rng.standard_normal((ends.spread.shape[1], 1))) + _unit(move[:, None])
    basis, transition, _ = arnoldi(lambda x: reachable(phi(x)), reachable(start[:, 0]), KRYLOV)
    found = Modes(transition, basis @ move, ends.observe @ basis.T, basis @ ends.spread, ends.observe @ ends.first)
    return found, move, phi


def _conserved(joint: Joint, entering: np.ndarray) -> np.ndarray:
    """Returns the sums over agents that neither rounds nor starts change, as orthonormal columns."""
    sums = joint.sums()
    changes = np.stack([joint.transposed(column) for column in sums.T], axis=1) - sums
    _, sizes, right = np.linalg.svd(np.concatenate([changes, entering.T @ sums]))
    still = right[np.concatenate([sizes, np.zeros(len(right) - len(sizes))]) <= CONSERVED * sizes[0]].T
    return np.linalg.qr(sums @ still)[0]


def _unit(columns: np.ndarray) -> np.ndarray:
    """Normalises the columns to length 1; negligible columns become zero."""
    sizes = np.linalg.norm(columns, axis=0)
    return columns / np.where(sizes > 0, sizes, 1.0)
