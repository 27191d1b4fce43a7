"""Constants of operators that are not affine, from random points around the root: what was seen, and how far it may go.

A largest value among samples is a lower bound of the true one, and nothing more is certain. The other end of an
interval is the one-sided 95 % limit of Robson and Whitlock (1964) for the end of a distribution: the largest value plus
19 times its lead over the second largest. It holds for points drawn like these and is silent on places they miss.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._random import host_generator
from .._types import SeedLike
from ..problems import Problem
from ._extremes import Observations, by_agents, map_observations

POWER_STEPS = 16
NEWTON_STEPS = 40
LEAD = 19.0


class Sampled(NamedTuple):
    """Sampled slopes, `lipschitz` `(M,)` and `mu`, with their intervals; None for what was not asked for."""

    lipschitz: np.ndarray | None
    L_interval: tuple[float, float] | None
    mu: float
    mu_interval: tuple[float, float]


def sample(problem: Problem, every: Observations | None, points: int, key: SeedLike) -> Sampled:
    r"""Slopes at `points` random points; `every` is None if Lipschitz constants are known.

    The points lie in random directions from $\theta^\star$, at distances from 0.01 to 10 times $1 + |\theta^\star|$.
    At each, all observations of all agents are evaluated.
    """
    rng = host_generator(key, "constants")
    directions = rng.normal(size=(points, problem.dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = (1 + np.linalg.norm(problem.root)) * 10 ** rng.uniform(-2, 1, size=(points, 1))
    thetas, start = problem.root + radii * directions, rng.normal(size=problem.dim)

    def slope_and_mean(agent):
        def at(theta):
            slope = jnp.zeros(()) if every is None else _steepest(agent, every, theta, jnp.asarray(start))
            return slope, agent.mean_operator(theta)

        return jax.lax.map(at, jnp.asarray(thetas))

    size = points * problem.dim + (0 if every is None else 4 * every.shape[0] * every.shape[1] * problem.dim)
    slopes, means = by_agents(problem, slope_and_mean, size)
    pull = -(means.mean(0) * directions).sum(1) / radii[:, 0]  # <theta - theta*, G> = -pull |theta - theta*|^2
    low, second = np.sort(pull)[:2]
    mu_interval = (float(low - LEAD * (second - low)), float(low))
    if every is None:
        return Sampled(None, None, float(low), mu_interval)
    second, high = np.sort(slopes.max(0))[-2:]
    return Sampled(slopes.max(1), (float(high), float(high + LEAD * (high - second))), float(low), mu_interval)


def _steepest(agent: Any, every: Observations, theta: Any, start: Any) -> Any:
    """The largest norm of the Jacobian over all observations, by power iteration: again a lower bound."""

    def norm(row, column):
        o, possible = every.at(agent, row, column), every.possible(agent, row, column)
        _, push = jax.linearize(lambda t: agent.operator(t, o), theta)
        _, pull = jax.vjp(lambda t: agent.operator(t, o), theta)

        def improve(v, _):
            (w,) = pull(push(v))
            return w / jnp.maximum(jnp.linalg.norm(w), 1e-300), None

        v, _ = jax.lax.scan(improve, start, length=POWER_STEPS)
        return jnp.where(possible, jnp.linalg.norm(push(v)), 0.0)

    return jnp.max(map_observations(every, norm))


class Agents(NamedTuple):
    """Of every agent: its Jacobian and mean operator at the common root, and its own root or NaN."""

    jacobians: np.ndarray
    at_root: np.ndarray
    roots: np.ndarray


def agents_at_root(problem: Problem) -> Agents:
    """Agents of any kind at the common root, and their own roots by damped Newton steps from there."""

    def expand(agent):
        mean = agent.mean_operator

        def step(theta, _):
            move = jnp.linalg.solve(jax.jacfwd(mean)(theta), mean(theta))
            tries = theta[None] - (0.5 ** jnp.arange(8.0))[:, None] * move[None]
            return tries[jnp.argmin(jax.vmap(lambda t: jnp.linalg.norm(mean(t)))(tries))], None

        root = jnp.asarray(problem.root)
        own, _ = jax.lax.scan(step, root, length=NEWTON_STEPS)
        return jax.jacfwd(mean)(root), mean(root), own, jnp.linalg.norm(mean(own))

    jacobians, at_root, roots, residuals = by_agents(problem, expand, size=problem.dim**2)
    converged = residuals < 1e-10 * (1 + abs(at_root).max())
    return Agents(jacobians, at_root, np.where(converged[:, None], roots, np.nan))
