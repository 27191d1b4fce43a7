r"""Nonlinear operators on finite chains: an affine approximation, averaged over the agents' positions.

Inside a round an agent is spread out by its own noise and by the server's, so that the average of its operator is not
the operator at the average. This changes the mean for any number of agents. So every operator is replaced by the affine
one that is best on average over the positions at which it is called, whose mean and covariance, given the state of the
chain, the law of the affine problem gives. The two are found together, for any method whose rounds are affine given
the operators.
"""

import contextlib
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import tree
from ..._linear import transpose
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...problems import AbstractAgent, Problem
from ...problems.base import AffineAgent
from ...sources import AbstractSource, Silent, Transition
from .agents import agents_of, finite_law, known_law
from .coordinates import all_alike
from .federation import Federation
from .law import federation_of, law_of
from .levels import EachSiteLaw, LinearLaw, SitesLaw
from .moments import AbstractLaw, AbstractSteppedLaw, LongRun, Moments, TooLargeError
from .pieces import pieces_of
from .played import PlayedLaw, parameters

LARGEST = 10**8
"""The largest size of the operators that are averaged."""
ROUGH = 1e-5, 1e-4
"""The accuracies of the laws that say where agents are, in the long run and of radii."""
SWEEPS, SETTLED = 12, 1e-4
"""The largest number of times that operators are averaged, and the change of the long run relative to the error at
which they are averaged no more."""
COPIES = 8
"""The number of copies of agents that show what depends on their number."""
JITTER, SMALLEST, ROUNDING = 1e-12, 1e-14, 1e-12
"""The numbers added to covariances before their roots are taken, relative and absolute, since slopes are differences
over these roots."""
SENSITIVITY = 0.75
"""The relative error of the floor per relative change of the average slope; in simulations 96 % are below it."""


class SeenAgent(AbstractAgent):
    r"""An affine agent by its outcomes, $G(\theta, o) = g(o) + A(o)\,\theta$."""

    source: AbstractSource
    A: np.ndarray
    g: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        n = o.state * math.isqrt(len(self.g)) + o.next_state if isinstance(o, Transition) else o
        return self.g[n] + self.A[n] @ theta


class LinearisedAgent(AbstractAgent):
    r"""$G_i(x_i, o) + \partial G_i(x_i, o)\,(\theta - x_i)$ at the agent's point $x_i$."""

    source: AbstractSource
    agent: AbstractAgent
    point: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        value, change = jax.jvp(lambda t: self.agent.operator(t, o), (self.point,), (theta - self.point,))
        return value + change

    def mean_operator(self, theta, /):
        value, change = jax.jvp(self.agent.mean_operator, (self.point,), (theta - self.point,))
        return value + change


def linearised(problem: Problem, points: np.ndarray | None = None) -> Problem:
    """Linearises `problem` at `points`, one for each agent, or at its root. An affine problem is returned unchanged."""
    if problem.affine:
        return problem
    points = np.broadcast_to(problem.root if points is None else points, (problem.num_agents, problem.dim))
    agents = LinearisedAgent(problem.agents.source, problem.flat_agents, points)
    return Problem(agents, like=np.zeros(problem.dim), theta_star=problem.root)


class NonlinearLaw(AbstractLaw):
    """The law of a method on an affine approximation, with errors relative to the root of the nonlinear problem."""

    basis = "mean field"

    def __init__(
        self,
        problem: Problem,
        algorithm: AbstractAlgorithm,
        model: Problem,
        law: SitesLaw | LinearLaw,
        limit: np.ndarray,
        modelled: np.ndarray,
    ):
        self.problem, self.algorithm, self.model, self.law, self.limit = problem, algorithm, model, law, limit
        """`limit` is that of rounds without noise, and `modelled` the same by an affine model of these."""
        self.modelled, self.shift = modelled, model.root - problem.root + limit - modelled
        slope, seen = problem.jacobians(problem.root).mean(0), model.jacobians(model.root).mean(0)
        self.bend = SENSITIVITY * float(np.linalg.norm(np.linalg.solve(slope, seen - slope), 2))
        if isinstance(problem.agents.source, Silent) and not np.array_equal(limit, modelled):  # rounds were run
            self.basis, self.bend = "exact", 0.0

    @property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The error of the affine law plus `bend`."""
        return float(np.hypot(self.law.left_out, self.bend))

    @property
    def affine(self):
        return self.law

    def mean_square_radius(self):
        return self.law.mean_square_radius()

    def stable(self):
        return self.law.stable()

    def mean_radius(self):
        return self.law.mean_radius()

    def leaves_out_more_than(self, share):
        return self.law.leaves_out_more_than(share)

    def long_run(self):
        mean, covariance = self.stationary()
        curved = self.shift + self.law.quiet.stationary().mean - self.limit
        return LongRun(self.limit, mean - self.limit - curved, curved, covariance)

    def persistent_bias(self):
        """Follows from `COPIES` of each agent, to first order in the inverse of their number."""
        every, K = [], COPIES
        for copies in (1, K):
            model = _settled(self.problem, self.algorithm, self.model, copies)
            if (law := _copied(model, self.algorithm, copies)) is None or not _is_stable(law):
                return np.full(self.problem.dim, math.nan)
            every.append(law.persistent_bias() + model.root - self.problem.root + self.limit - self.modelled)
        return (K * every[1] - every[0]) / (K - 1)

    def stationary(self):
        mean, covariance = self.law.stationary()
        return Moments(mean + self.shift, covariance)

    def path(self, start, rounds):
        """Follows rounds without noise exactly; what noise adds to the mean is that of the affine problem, and what it
        adds to the limit builds up at the rate of its rounds."""
        quiet, begun = self.law.quiet, start - self.shift
        added, plain = quiet.stationary().mean + self.shift - self.limit, np.zeros((rounds + 1, len(start)))
        with contextlib.suppress(TypeError):  # rounds with a coin are those of the affine problem
            plain = parameters(self.problem, self.algorithm, self.problem.root + start, rounds) - self.problem.root
            plain = plain + added - [moments.mean + self.shift for moments in quiet.path(begun + added, rounds)]
        for (mean, covariance), other in zip(self.law.path(begun, rounds), plain, strict=True):
            yield Moments(mean + self.shift + other, covariance)


def nonlinear_law(problem: Problem, algorithm: AbstractAlgorithm) -> NonlinearLaw:
    """Returns the law of a method on a nonlinear problem, without noise or on finite chains.

    If the method may diverge, the law that says so is returned.

    !!! example
        >>> problem, algorithm = fedhsa.problems.logistic.random(4, 5, 2, key=1).iid(), fedhsa.FedHSA(0.1, 10)
        >>> law = nonlinear_law(problem, algorithm)
        >>> runs = fedhsa.simulate(problem, algorithm, rounds=300, seeds=100, theta=problem.theta_star)
        >>> bool(abs(runs.error[:, 100:].mean() / law.stationary().square - 1) < 0.1)
        True
    """
    finite = finite_law(problem.agents.source)
    if problem.num_agents * (1 if finite is None else finite.num_outcomes) * problem.dim**2 > LARGEST:
        raise TooLargeError(f"There are too many operators of {type(problem.agents).__name__} to average.")
    quiet = problem.noiseless()
    still = _settled(quiet, algorithm, linearised(quiet))
    model = still if finite is None else _settled(problem, algorithm, linearised(problem))
    law, limit = law_of(model, algorithm), np.full(problem.dim, math.nan)
    limits = limit, limit
    if _is_stable(alone := law_of(still, algorithm)):
        modelled = alone.stationary().mean + still.root - problem.root
        limits = _played_limit(problem, algorithm, modelled), modelled
    return NonlinearLaw(problem, algorithm, model, law, *limits)


def _played_limit(problem: Problem, algorithm: AbstractAlgorithm, modelled: np.ndarray) -> np.ndarray:
    """Returns the limit of rounds without noise, if they can be run; otherwise that of an affine model."""
    if np.abs(modelled).max() <= ROUNDING * max(np.abs(problem.root).max(), 1.0):
        return modelled
    with contextlib.suppress(TypeError, ValueError):
        limit = PlayedLaw(problem.noiseless(), algorithm).stationary().mean
        if np.linalg.norm(limit - modelled) < np.linalg.norm(modelled):  # otherwise it goes elsewhere
            return limit
    return modelled


def _is_stable(law: AbstractSteppedLaw) -> bool:
    radius = law.mean_square_radius()
    return radius is not None and radius.stable is True


def _copied(problem: Problem, algorithm: AbstractAlgorithm, copies: int) -> EachSiteLaw | None:
    """Returns the one-site law of copies of each agent; None if a method's agents do not all do the same."""
    if copies == 1:
        return EachSiteLaw(federation_of(problem, algorithm))
    agents = agents_of(problem)
    pieces = pieces_of(algorithm.relative_to(problem.root), copies * problem.num_agents, problem.dim)
    found = Federation(pieces, agents.standing_for(copies * agents.counts), type(algorithm).__name__)
    return None if found.remembers or not all_alike(pieces) else EachSiteLaw(found)


def _settled(problem: Problem, algorithm: AbstractAlgorithm, model: Problem, copies: int = 1) -> Problem:
    """Returns the affine problem whose operators are averages over the positions in its own long run.

    The positions are those of the one-site law.
    """
    now, square = np.full(problem.dim, math.inf), math.inf
    for sweep in range(SWEEPS):
        if (law := _copied(model, algorithm, copies)) is None:
            return model
        law.accuracy = ROUGH
        if sweep == 0 and not _is_stable(law):
            return model
        try:
            mean, covariance = law.settled()
        except ValueError:  # on these operators the method diverges
            return model
        before, now = (now, square), mean + model.root
        model, square = averaged(problem, *positions(law, model)), np.trace(covariance) + mean @ mean
        size = max(square, SMALLEST)  # rounding may make a variance negative
        if np.abs(now - before[0]).max() <= SETTLED * math.sqrt(size) and abs(square - before[1]) <= SETTLED * size:
            return model
    return model


def positions(law: EachSiteLaw, model: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Returns the means `(M, S, d)` and covariances of the points at which agents call their operators, by state."""
    total = law.points()[0][law.federation.stands]
    mass = np.where(total[..., -1:, -1:] > 0, total[..., -1:, -1:], 1.0)
    mean, square = (total / mass)[..., :-1, -1], (total / mass)[..., :-1, :-1]
    values, vectors = np.linalg.eigh(square - mean[..., :, None] * mean[..., None, :])
    covariance = vectors * values.clip(min=0.0)[..., None, :] @ transpose(vectors)  # rounding may make some negative
    return mean + model.root, covariance


def averaged(problem: Problem, means: np.ndarray, covariances: np.ndarray) -> Problem:
    """Returns the affine problem of operators averaged over Gaussian positions, by the states of the agents."""
    jitter = JITTER * np.trace(covariances, axis1=-2, axis2=-1) + SMALLEST
    roots = np.linalg.cholesky(covariances + jitter[..., None, None] * np.eye(problem.dim))
    silent = isinstance(problem.agents.source, Silent)
    weights = np.ones((problem.num_agents, 1)) if silent else known_law(problem.agents).weights()
    repeats = weights.shape[1] // means.shape[1]
    with precision():
        inputs = tree.to_device((problem.flat_agents, means, roots), "float64")
        A, g = tree.to_host(_averaged(*inputs, repeats))
    slope, value = np.einsum("io,ioab->ab", weights, A), np.einsum("io,ioa->a", weights, g)
    root = -np.linalg.solve(slope, value)
    agents = AffineAgent(Silent(), A[:, 0], -g[:, 0]) if silent else SeenAgent(problem.agents.source, A, g)
    return Problem(agents, like=np.zeros_like(root), theta_star=root)


@eqx.filter_jit
def _averaged(agents, means, roots, repeats: int):
    """Returns the slopes and values of all outcomes, averaged over Gaussian positions given the state."""

    def one(agent, means, roots):
        d = means.shape[-1]
        outcomes = None if isinstance(agent.source, Silent) else known_law(agent).outcomes()
        means, roots = jnp.repeat(means, repeats, axis=0), jnp.repeat(roots, repeats, axis=0)

        def at(points):
            if outcomes is None:
                return jax.vmap(agent.mean_operator)(points)
            return jax.vmap(agent.operator)(points, outcomes)

        # The three-point rule along every axis; the operators are compiled once for all points.
        axes = math.sqrt(3) * jnp.moveaxis(roots, -1, 0)
        points = jnp.concatenate([means[None], means[None] + axes, means[None] - axes])
        (centre,), plus, minus = jnp.split(jax.vmap(at)(points), [1, 1 + d])
        values = centre + jnp.sum(plus + minus - 2 * centre[None], axis=0) / 6
        columns = jnp.moveaxis((plus - minus) / math.sqrt(12), 0, -1)
        slopes = jax.vmap(lambda c, L: jax.scipy.linalg.solve_triangular(L, c.T, lower=True, trans=1).T)(columns, roots)
        return slopes, values - jnp.einsum("oab,ob->oa", slopes, means)

    return jax.vmap(one)(agents, means, roots)
