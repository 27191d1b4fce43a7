"""Finds the root of the average of the agents' mean operators: a linear solve, Newton's method, or a trust region."""

import warnings
from typing import TYPE_CHECKING

import numpy as np

from .. import tree
from .._types import precision

if TYPE_CHECKING:
    from .base import Problem

RESIDUAL_TOLERANCE = 1e-10
SINGULAR_TOLERANCE = 1e-12
NEWTON_STEPS = 50


def affine_roots(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    r"""Returns the roots of $A_i \theta - b_i$, `(M, d)`; NaN if a matrix is singular."""
    regular = np.linalg.cond(A) < 1 / SINGULAR_TOLERANCE
    roots = np.full_like(b, np.nan)
    roots[regular] = np.linalg.solve(A[regular], b[regular][..., None])[..., 0]
    return roots


def find_root(problem: "Problem") -> np.ndarray:
    """Returns the root of the average operator; raises if no root is found or if it is not unique."""
    start, should_be_monotone = tree.ravel(problem.like), type(problem.agents).should_be_monotone
    if problem.affine:
        origin = np.zeros(problem.dim)
        A = problem.mean_jacobian(origin)
        _check_jacobian(A, should_be_monotone)
        return np.linalg.solve(A, -problem.mean_operator(origin))
    scale = 1 + np.abs(problem.mean_operators(start)).max()
    root = _newton(problem, start, RESIDUAL_TOLERANCE * scale)
    if root is None:
        root = _dogleg(problem, start)
    residual = np.abs(problem.mean_operator(root)).max()
    if not residual <= RESIDUAL_TOLERANCE * scale:
        raise ValueError(
            f"No root of the average operator was found from `like`: the residual is {residual:.3g}. "
            "Start closer with another `like`, pass the root as `theta_star`, or `theta_star=None` if there is none."
        )
    _check_jacobian(problem.mean_jacobian(root), should_be_monotone)
    return root


def _newton(problem: "Problem", theta: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Runs Newton's method while it makes progress; returns None if it does not converge."""
    residual = problem.mean_operator(theta)
    for _ in range(NEWTON_STEPS):
        try:
            step = np.linalg.solve(problem.mean_jacobian(theta), residual)
        except np.linalg.LinAlgError:
            break
        following = problem.mean_operator(theta - step)
        if not np.abs(following).max() < np.abs(residual).max():
            break
        theta, residual = theta - step, following
    return theta if np.abs(residual).max() <= tolerance else None


def _dogleg(problem: "Problem", start: np.ndarray) -> np.ndarray:
    """Runs a trust-region method, which is slower than Newton's method but converges from further away."""
    import optimistix as optx  # imported here because few problems need it and it loads slowly

    with precision():
        agents, theta = tree.agents_to_device(problem.flat_agents, "float64"), tree.to_device(start, "float64")

        def average(theta, agents):
            return tree.over_agents(lambda agent: agent.mean_operator(theta))(agents).mean(0)

        solver = optx.Dogleg(rtol=1e-12, atol=1e-12)
        return np.asarray(optx.root_find(average, solver, theta, agents, max_steps=1000, throw=False).value)


def _check_jacobian(J: np.ndarray, should_be_monotone: bool) -> None:
    """Raises if the root is not unique, and warns if it is unstable or the average operator not monotone."""
    singular = np.linalg.svd(J, compute_uv=False)
    if not singular[-1] > SINGULAR_TOLERANCE * singular[0]:
        raise ValueError(
            "The average operator has no unique root: the smallest singular value of its Jacobian is "
            f"{singular[-1]:.3g}, the largest {singular[0]:.3g}. Remove redundant parameters, or regularise."
        )
    growth = np.linalg.eigvals(J).real.max()
    if growth >= 0:
        warnings.warn(
            f"The root is unstable: an eigenvalue of the average operator's Jacobian has real part {growth:.3g} >= 0, "
            "so theta + step_size * G moves away from it. Check the sign of the operator (for a loss, G = -gradient).",
            stacklevel=4,
        )
    elif should_be_monotone and (slope := np.linalg.eigvalsh((J + J.T) / 2)[-1]) >= 0:
        warnings.warn(
            f"The average operator is not monotone (largest eigenvalue of its symmetric part: {slope:.3g}), so "
            "Assumption 2 of the paper fails: small steps still converge, but its rates and bounds do not apply.",
            stacklevel=4,
        )
