"""How fast an affine map settles, and where, as far as its start excites it and the parameter shows it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, gmres

from .joint import Joint, JointMap

DENSE, LARGEST = 600, 200_000
"""From how many numbers on no matrix is formed, and from how many on nothing is tried."""
CONSERVED = 1e-11
"""Singular values below this part of the largest belong to what a round does not change."""
ROUNDING = 1e-13
"""What a round moves by less than this part of the state it moves by rounding alone."""
INVISIBLE = 1e-9
"""A mode whose part in the parameter is below this is not there."""
CLUSTER, WORST = 1e-6, 1e12
"""Eigenvalues this close together are looked at as one; the condition up to which their vectors are trusted."""


class Modes(NamedTuple):
    r"""An affine map $x' = \Phi x + c$ of moves from a state, and what other starts add to it; $e = e_1 + C x$."""

    transition: np.ndarray
    offset: np.ndarray
    observe: np.ndarray
    spread: np.ndarray
    origin: np.ndarray
    """The error $e_1$ at that state."""
    project: np.ndarray
    """What $x$ is of a move of the whole state, `(m, n)`."""


def reduced(map: JointMap) -> Modes:
    r"""The map on what a run can reach: without the quantities that rounds conserve and all starts share.

    They are the $w$ with $w^T (\Phi - I) = 0$ and $w^T b = 0$ for the moves $b$ of the start: for SCAFFLSA the sum of
    the agents' shifts. Each would be an eigenvalue 1 that no run ever sees.
    """
    Phi, observe = map.transition, map.observe
    move = Phi @ map.first + map.offset - map.first
    rows = _spanned(np.concatenate([Phi, observe]).T)  # of the rest nothing is ever seen
    Phi, observe, move, spread = rows.T @ Phi @ rows, observe @ rows, rows.T @ move, rows.T @ map.spread
    move = _without_rounding(Phi, move, 1 + np.abs(map.first).max())
    basis = _spanned(np.concatenate([Phi - np.eye(len(Phi)), _unit(spread), _unit(move[:, None])], axis=1))
    origin, project = map.observe @ map.first, (rows @ basis).T
    return Modes(basis.T @ Phi @ basis, basis.T @ move, observe @ basis, basis.T @ spread, origin, project)


def _without_rounding(Phi: np.ndarray, move: np.ndarray, size: float) -> np.ndarray:
    """A move without what it has of conserved directions by rounding, which at small steps would look like a part."""
    if not np.isfinite(Phi).all():
        return move
    left, sizes, _ = np.linalg.svd(Phi - np.eye(len(Phi)))
    still = left[:, sizes <= CONSERVED * sizes[0]]
    parts = still.T @ move
    return move - still @ np.where(np.abs(parts) <= ROUNDING * size, parts, 0.0)


def _spanned(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what the columns span; the unit vectors where that is everything."""
    if not np.isfinite(columns).all():
        return np.eye(len(columns))
    Q, R, _ = scipy.linalg.qr(columns, mode="economic", pivoting=True)  # pyright: ignore[reportAssignmentType]
    sizes = np.abs(np.diag(R))
    spanned = sizes > CONSERVED * sizes[0]
    return np.eye(len(columns)) if spanned.all() else np.asarray(Q)[:, spanned]


def visible_radius(modes: Modes) -> float:
    """The largest modulus of an eigenvalue whose mode a start excites and the parameter shows."""
    if not np.isfinite(modes.transition).all():
        return float("inf")
    values, left, right = scipy.linalg.eig(modes.transition, left=True, right=True)  # pyright: ignore[reportAssignmentType]
    found = _leading(values, right, values, left, modes)
    return 0.0 if found is None else found


def _leading(values: np.ndarray, right: np.ndarray, others: np.ndarray, left: np.ndarray, modes: Modes) -> float | None:
    """The first eigenvalue by modulus that shows; `others` are those that the vectors from the left belong to.

    A mode shows by its residue $C V (W^* V)^{-1} W^* B$. Where it is not known, for a Jordan block or vectors found
    on one side only, the mode counts.
    """
    entering = np.concatenate([_unit(modes.spread), _unit(modes.offset[:, None])], axis=1)
    left_over = np.ones(len(values), dtype=bool)
    while left_over.any():
        value = values[left_over][np.argmax(np.abs(values[left_over]))]
        near, paired = (np.abs(of - value) <= CLUSTER * max(1.0, abs(value)) for of in (values, others))
        V, W = right[:, near], left[:, paired]
        overlap = W.conj().T @ V
        known = near.sum() == paired.sum() and np.linalg.cond(overlap) < WORST
        if not known or np.abs(modes.observe @ V @ np.linalg.solve(overlap, W.conj().T @ entering)).max() > INVISIBLE:
            return float(abs(value))
        left_over &= ~near
    return None


def settled(modes: Modes) -> np.ndarray:
    r"""The error in the long run, $e_1 + C (I - \Phi)^{-1} c$."""
    x = np.linalg.lstsq(np.eye(len(modes.offset)) - modes.transition, modes.offset, rcond=1e-14)[0]
    return modes.origin + modes.observe @ x


def radius_of(joint: Joint) -> float:
    """The spectral radius, with or without a matrix."""
    if joint.size <= DENSE:
        return visible_radius(reduced(joint.map()))
    return _sparse_radius(joint)


def error_of(joint: Joint) -> np.ndarray:
    """The error of a stable method in the long run, with or without a matrix."""
    if joint.size <= DENSE:
        return settled(reduced(joint.map()))
    ends, phi = _ends(joint)
    move = phi(ends.first) + ends.offset - ends.first
    operator = LinearOperator((joint.size,) * 2, matvec=lambda x: x - phi(x), dtype=float)  # pyright: ignore[reportCallIssue]
    x, failed = gmres(operator, move, rtol=1e-12, atol=0.0, restart=min(joint.size, 200), maxiter=50)
    if failed:
        raise ValueError(f"The limit of {joint.name} was not found among {joint.size} numbers that it carries.")
    return ends.observe @ (ends.first + x)


def _ends(joint: Joint) -> tuple[JointMap, Callable[[np.ndarray], np.ndarray]]:
    if joint.size > LARGEST:
        raise TypeError(
            f"{joint.name} carries {joint.size:,} numbers from round to round on this problem, too many for its joint "
            f"map (at most {LARGEST:,}). Use fewer agents."
        )
    return joint.ends(), lambda x: joint.linear(np.reshape(x, (-1, 1)))[:, 0]


def _sparse_radius(joint: Joint) -> float:
    """By Arnoldi's iteration from both sides, on what is left when conserved sums over the agents are taken out."""
    ends, phi = _ends(joint)
    n, count = joint.size, 2 * joint.problem.dim + 6
    move = phi(ends.first) + ends.offset - ends.first
    modes = Modes(np.empty((0, 0)), move, ends.observe, ends.spread, ends.observe @ ends.first, np.empty((0, n)))
    conserved = _conserved(joint, modes)

    def reachable(x: np.ndarray) -> np.ndarray:
        return x - conserved @ (conserved.T @ x)

    found, start = [], np.random.default_rng(0).standard_normal(n)
    for product in (phi, joint.transposed):
        operator = LinearOperator((n, n), matvec=lambda x, f=product: reachable(f(reachable(np.ravel(x)))), dtype=float)  # pyright: ignore[reportCallIssue]
        try:
            found.append(eigs(operator, k=count, which="LM", v0=start))
        except ArpackNoConvergence as partial:
            found.append((partial.eigenvalues, partial.eigenvectors))
    (values, right), (others, left) = found
    radius = _leading(values, right, np.conj(others), left, modes)
    if radius is None:
        raise ValueError(f"The slowest mode of {joint.name} was not found among {n:,} numbers that it carries.")
    return radius


def _conserved(joint: Joint, modes: Modes) -> np.ndarray:
    """The sums over agents that no round changes and no start moves, as orthonormal columns."""
    sums = joint.sums()
    changes = np.stack([joint.transposed(column) for column in sums.T], axis=1) - sums
    entering = np.concatenate([_unit(modes.spread), _unit(modes.offset[:, None])], axis=1)
    _, sizes, right = np.linalg.svd(np.concatenate([changes, entering.T @ sums]))
    still = right[np.concatenate([sizes, np.zeros(len(right) - len(sizes))]) <= CONSERVED * sizes[0]].T
    return np.linalg.qr(sums @ still)[0]


def _unit(columns: np.ndarray) -> np.ndarray:
    """The columns in length 1, and zero where they are nothing."""
    sizes = np.linalg.norm(columns, axis=0)
    return columns / np.where(sizes > 0, sizes, 1.0)
