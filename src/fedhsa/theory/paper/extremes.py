"""The largest slopes and values of the agents' operators over all their observations, in chunks.

Operators that are not affine are evaluated at random points around the root. The largest sampled value is only a lower
bound of the true one. The other end of an interval is the one-sided 95 % limit of Robson and Whitlock (1964) for the
end of a distribution: the largest value plus 19 times its distance from the second largest. It holds for points from
the same distribution and says nothing about regions that they miss.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import tree
from ..._random import host_generator
from ..._types import SeedLike, precision
from ...problems import AbstractAgent, Problem
from ...problems.quadratic import QuadraticAgent
from ...sources import Replay, Silent, Transition
from ..laws.agents import finite_law, known_law

CHUNK = 2**21
"""The number of numbers that are computed at a time."""
NEVER = 1e-15
"""The stationary probability below which states count as transient."""
POWER_STEPS = 16
NEWTON_STEPS = 40
LEAD = 19.0


class Observations(NamedTuple):
    """The observations of one agent as a table: one row per state and, for transitions, one column per next state."""

    shape: tuple[int, int]
    at: Callable[[Any, Any, Any], Any]
    """`(agent, row, column) -> observation`."""
    possible: Callable[[Any, Any, Any], Any]
    """`(agent, row, column) -> bool`: a transition of probability 0 is never observed."""


class Extremes(NamedTuple):
    """Per agent, `(M,)`: the largest Lipschitz constant, or None if it must be sampled, and $\\max_o |G_i(0, o)|$."""

    lipschitz: np.ndarray | None
    origin: np.ndarray


def observations(problem: Problem) -> Observations | None:
    """Returns the observations of a problem, or None if they cannot be listed."""
    source = problem.agents.source
    law = finite_law(source)
    if law is not None:
        S, independent, pairs = law.num_states, law.independent, law.pairs

        def possible(agent, row, column):
            chain = known_law(agent).chain
            visited = chain.stationary[row] > NEVER if independent else True
            return visited & (chain.transition[row, column] > 0 if pairs else True)

        if pairs:
            return Observations((S, S), lambda agent, row, column: Transition(row, column), possible)
        return Observations((S, 1), lambda agent, row, column: row, possible)
    if isinstance(source, Silent):
        return Observations((1, 1), lambda agent, row, column: (), _always)
    if isinstance(problem.agents, QuadraticAgent):  # additive noise does not change slopes, so one value is enough
        return Observations((1, 1), lambda agent, row, column: jnp.zeros_like(agent.b), _always)
    if isinstance(source, Replay):
        length = jax.tree.leaves(source.observations)[0].shape[1]
        return Observations((length, 1), lambda agent, row, column: tree.take(agent.source.observations, row), _always)
    return None


def map_observations(every: Observations, function: Callable[[Any, Any], Any]) -> Any:
    """Applies `function(row, column)` to all observations; parts that depend on one index are computed once."""
    rows, columns = every.shape
    return jax.vmap(lambda row: jax.vmap(lambda column: function(row, column))(jnp.arange(columns)))(jnp.arange(rows))


def extremes(problem: Problem, every: Observations) -> Extremes:
    """Returns the largest slope and value at 0 of each agent; slopes only for affine or declared ones."""
    d = problem.dim

    def largest(agent):
        def slope_and_value(row, column):
            o, possible = every.at(agent, row, column), every.possible(agent, row, column)
            slope, value = agent.lipschitz(o), jnp.linalg.norm(agent.operator(jnp.zeros(d), o))
            known = jnp.full((), jnp.nan) if slope is None else slope
            return jnp.where(possible, known, -jnp.inf), jnp.where(possible, value, 0.0)

        slopes, values = map_observations(every, slope_and_value)
        return jnp.max(slopes), jnp.max(values)

    slopes, values = by_agents(problem, largest, size=math.prod(every.shape) * d)
    if not np.isnan(slopes).any():
        return Extremes(slopes, values)
    return Extremes(_affine_norms(problem, every) if problem.affine else None, values)


def by_agents(problem: Problem, function: Callable[[AbstractAgent], Any], size: int) -> Any:
    """Applies `function`, which requires `size` numbers, to every agent; returns arrays `(M, ...)`."""
    values = list(_agent_chunks(problem, function, size))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *values)


def _agent_chunks(problem: Problem, function: Callable[[AbstractAgent], Any], size: int) -> Iterator[Any]:
    """Yields the values of `function` for a few agents at a time."""
    M = problem.num_agents
    count = max(1, min(M, CHUNK // size))
    compiled = eqx.filter_jit(jax.vmap(function))
    for start in range(0, M, count):
        # The last chunk is padded with repetitions, since another shape would require another compilation.
        indices = np.minimum(np.arange(start, start + count), M - 1)
        with precision():
            agents = tree.to_device(tree.take(problem.flat_agents, indices), "float64")
            values = tree.to_host(compiled(agents))
        yield jax.tree.map(lambda v, rest=M - start: v[:rest], values)


def _affine_norms(problem: Problem, every: Observations) -> np.ndarray:
    """Returns the largest spectral norm of each agent's Jacobians, which are computed in chunks and not stored."""
    d, columns, count = problem.dim, every.shape[1], math.prod(every.shape)
    many = max(1, min(count, CHUNK // d**2))
    best = np.zeros(problem.num_agents)
    for start in range(0, count, many):

        def jacobians(agent, start=start):
            def jacobian(k):
                o, possible = (table(agent, k // columns, k % columns) for table in (every.at, every.possible))
                return jnp.where(possible, jax.jacfwd(lambda theta: agent.operator(theta, o))(jnp.zeros(d)), 0.0)

            return jax.vmap(jacobian)(jnp.minimum(start + jnp.arange(many), count - 1))

        agents = itertools.chain.from_iterable(_agent_chunks(problem, jacobians, many * d**2))
        for i, J in enumerate(agents):
            best[i] = largest_norm(J, best[i])
    return best


def largest_norm(matrices: np.ndarray, best: float = 0.0) -> float:
    """Returns the maximum of `best` and the largest spectral norm in a stack of matrices.

    Only relevant norms are computed: $|J|_2$ is at most the Frobenius norm and $\\sqrt{|J|_1 |J|_\\infty}$, so matrices
    are processed in the order of these bounds until the next bound is below the largest norm found.
    """
    moduli = abs(matrices)
    frobenius = np.sqrt((matrices**2).sum((1, 2)))
    bound = np.minimum(frobenius, np.sqrt(moduli.sum(1).max(-1) * moduli.sum(2).max(-1)))
    for k in np.argsort(-bound):
        if bound[k] <= best:
            break
        best = max(best, float(np.linalg.norm(matrices[k], 2)))
    return best


def _always(agent, row, column):
    return True


class Sampled(NamedTuple):
    """Sampled slopes, `lipschitz` `(M,)` and `mu`, with their intervals; None if they were not requested."""

    lipschitz: np.ndarray | None
    L_interval: tuple[float, float] | None
    mu: float
    mu_interval: tuple[float, float]


def sample(problem: Problem, every: Observations | None, points: int, key: SeedLike) -> Sampled:
    r"""Samples slopes at `points` random points; `every` is None if Lipschitz constants are known.

    The points are in random directions from $\theta^\star$, at distances from 0.01 to 10 times $1 + |\theta^\star|$.
    At each point, all observations of all agents are evaluated.
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
    """Returns a lower bound of the largest norm of the Jacobian over all observations, by power iteration."""

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


class AtRoot(NamedTuple):
    """Each agent's Jacobian and mean operator at the common root, and its own root or NaN."""

    jacobians: np.ndarray
    at_root: np.ndarray
    roots: np.ndarray


def agents_at_root(problem: Problem) -> AtRoot:
    """Evaluates agents at the common root, and finds their own roots by damped Newton steps from there."""

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
    return AtRoot(jacobians, at_root, np.where(converged[:, None], roots, np.nan))
