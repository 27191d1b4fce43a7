"""Nonlinear operators on finite chains: the bias due to the agents' spread, and an affine approximation."""

import contextlib
import copy
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import tree
from ..._linear import spectral_radius
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...problems import AbstractAgent, Problem
from ...sources import AbstractSource, Transition
from ..maps.linearise import linearised
from ..maps.rounds import LocalRule, require_rule
from ..stability import step_of
from .finite import FiniteLaw, finite_law
from .first_order import correlations, known_law
from .moments import AbstractLaw, Moments, TooLargeError

LARGEST, LARGEST_AGENT, BATCH = 4 * 10**9, 10**8, 10**6
"""The largest size of averages in a round of all agents and in a step of one, and the best batch size."""
CLOSE = 0.05
"""The size of the last step to the fixed point, relative to the bias; the remaining error is much smaller."""
MOST = 50
ROUNDING = 1e-12
JITTER = 1e-12
SMALLEST = 1e-14
"""The number added to covariances before their roots are taken, since slopes are differences over these roots."""
NEGLIGIBLE = 0.1
"""The server's spread, relative to the local spread, up to which it is neglected in the slopes."""
BLOCK = 64
"""The number of noiseless rounds that are computed in one call."""
REPEATED = 2
"""The number of times that operators are averaged, each time over the long run that the averages before have given."""
SENSITIVITY = 0.75
"""The relative error of the floor per relative change of the average slope; in simulations 96 % are below it."""


LawOf: TypeAlias = Callable[[Problem, AbstractAlgorithm], AbstractLaw]


class SeenAgent(AbstractAgent):
    r"""An affine agent by its outcomes, $G(\theta, o) = g(o) + A(o)\,\theta$."""

    source: AbstractSource
    A: np.ndarray
    g: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        n = o.state * math.isqrt(len(self.g)) + o.next_state if isinstance(o, Transition) else o
        return self.g[n] + self.A[n] @ theta


class ApproximatedLaw(AbstractLaw):
    """A law of nonlinear operators that rests on the `law` of affine ones."""

    law: Any
    """Of the kind that `law_of` returns."""

    @functools.cached_property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The error of the affine law plus `bend`."""
        return float(np.hypot(self.law.left_out, self.bend))

    @property
    def affine(self):
        return self.law

    @property
    def quick(self):
        return self.law.quick

    def mean_square_radius(self):
        return self.law.mean_square_radius()

    def stable(self):
        return self.law.stable()

    def mean_radius(self):
        return self.law.mean_radius()


class CurvedLaw(ApproximatedLaw):
    r"""The error on a nonlinear problem, from the law of an affine problem linearised over the agents' positions.

    Inside a round an agent is spread out by its own noise and by the server's, so that the average of its operator is
    not the operator at the average. This changes the mean for any number of agents. So two things are computed. The
    mean field is a round of one agent whose local error, given its first and its current observation, is assumed to be
    Gaussian; its fixed point is the mean of many agents. The affine problem has the average slopes and values at that
    point; its law gives the covariance, and the bias due to a small number of agents.
    """

    def __init__(self, problem: Problem, algorithm: AbstractAlgorithm, law_of: LawOf):
        self.problem, self.algorithm, self.law_of = problem, algorithm, law_of
        self.rule = rule = require_rule(algorithm)
        A, self.noiseless = problem.jacobians(problem.root), _Noiseless(problem, rule)
        self.inverse = np.linalg.inv(np.eye(problem.dim) - rule.transition(A))
        self.limit = problem.root
        if rule.correction < 1 and rule.local_steps > 1:  # otherwise the limit is the root
            self.limit, _ = self._settle(self.noiseless, problem.root, ROUNDING)
        self.finite = finite_law(problem.agents.source)
        if self.finite is None:
            self.many = self.limit
            self._see(linearised(problem, self.noiseless(self.limit).paths))
        else:
            self.field, nothing = _MeanField(problem, rule, self.finite), np.zeros_like(A[0])
            self.many, at = self._settle(lambda theta: self.field(theta, nothing, 0.0), self.limit)
            self._see(_seen(problem, at.A, at.g), at.spread)
        self.basis, self.A_bar = "exact" if self.finite is None else "mean field", A.mean(0)

    @functools.cached_property
    def bend(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The error of the affine approximation, from the difference of the average slope to that at the root."""
        self.stationary()
        return _bend(self.model, self.A_bar)

    @property
    def heterogeneity_bias(self) -> np.ndarray:
        """The limit of the method without noise, minus the root."""
        return self.limit - self.problem.root

    def persistent_bias(self):
        return self.many - self.problem.root

    @property
    def curvature_bias(self) -> np.ndarray:
        """The bias that noise adds because the operators are nonlinear."""
        A, b = self.model.affine_parts()
        linear = self.law.stationary().mean - self.rule.limit_error(A, A @ self.model.root - b)
        return self.stationary().mean - self.heterogeneity_bias - linear

    @functools.cached_property
    def _long_run(self) -> Moments:
        share, found = 1 / self.problem.num_agents, self.many
        mean, E = np.zeros_like(found), np.zeros_like(self.inverse)
        if self.finite is None:
            return Moments(self.heterogeneity_bias, E)
        for _ in range(3):
            before, (mean, E) = E, self.law.stationary()
            found, at = self._settle(lambda theta, E=E: self.field(theta, E, share), found)
            if np.trace(E - before) < NEGLIGIBLE * self.spread:
                break
            self._see(_seen(self.problem, at.A, at.g), at.spread)
        if not self.finite.independent:  # the bias of few agents: the law of the affine problem minus its mean field
            affine = functools.partial(_affine_field, self.model, self.rule, self.finite, share)
            many, _ = self._settle(affine, found, ROUNDING)
            found = found + self.model.root + mean - many
        return Moments(found - self.problem.root, E)

    def _settle(self, round: Callable[[np.ndarray], Any], theta: np.ndarray, close: float = CLOSE):
        """Finds the fixed point of a round by Broyden's method from $(I - \\Phi)^{-1}$; also returns the last round."""
        at, step, inverse = round(theta), theta, self.inverse
        for _ in range(MOST):
            step = inverse @ at.move
            theta = theta + step
            rest = ROUNDING * np.linalg.norm(theta) + 1e-6 * math.sqrt(at.spread)
            if np.linalg.norm(step) <= close * np.linalg.norm(theta - self.problem.root) + rest:
                return theta, at
            before, at = at, round(theta)
            fallen, row = before.move - at.move, step @ inverse
            inverse = inverse + np.outer(step - inverse @ fallen, row) / (row @ fallen)
        raise ArithmeticError(f"The mean of the method does not converge: after {MOST} steps it still moves by {step}.")

    def _see(self, model: Problem, spread: float = 0.0) -> None:
        """Replaces the affine problem, its law, and the spread of the local errors that it is averaged over."""
        self.model, self.law, self.spread = model, self.law_of(model, self.algorithm), spread

    def path(self, start, rounds):
        """Follows noiseless rounds exactly; the bias due to noise builds up at their rate."""
        root, added = self.problem.root, np.zeros_like(start)
        target = self.stationary().mean - self.heterogeneity_bias
        Phi = self.rule.transition(self.model.affine_parts()[0])
        law = self.law.path(root + start - self.model.root, rounds)
        for theta, (_, covariance) in zip(self.noiseless.path(root + start, rounds), law, strict=True):
            yield Moments(theta - root + added, covariance)
            added = target + Phi @ (added - target)

    def stationary(self):
        return self._long_run


class BentLaw(ApproximatedLaw):
    """The law of a method on an affine approximation, with errors relative to the root of the nonlinear problem."""

    basis = "linearised"

    def __init__(self, problem: Problem, model: Problem, law: Any, bend: float):
        self.model, self.law, self.shift, self.bend = model, law, model.root - problem.root, bend
        self.federation = law.federation

    def around(self, law: AbstractLaw) -> "BentLaw":
        """Returns the same for another law on this approximation."""
        found = copy.copy(self)
        found.law = law
        return found

    def path(self, start, rounds):
        for mean, covariance in self.law.path(start - self.shift, rounds):
            yield Moments(mean + self.shift, covariance)

    def stationary(self):
        mean, covariance = self.law.stationary()
        return Moments(mean + self.shift, covariance)


def bent_law(problem: Problem, algorithm: AbstractAlgorithm, law_of: LawOf) -> BentLaw:
    """Returns the law of any method on a nonlinear problem on finite chains, whose operators are averaged.

    An agent's position is taken to be Gaussian, with the mean and covariance of the server's error in the long run, and
    with what the agent's own noise adds in half a round. If the method may diverge, the law that says so is returned.
    """
    finite = known_law(problem.agents)
    if problem.num_agents * finite.num_outcomes * problem.dim**2 > LARGEST_AGENT:
        raise TooLargeError(f"There are too many operators of {type(problem.agents).__name__} to average.")
    A_bar, model = problem.jacobians(problem.root).mean(0), linearised(problem)
    law, own = law_of(model, algorithm), 0.0
    if isinstance(step := step_of(algorithm), float | int):  # a user's method may have none
        own = (algorithm.block_length - 1) / 2 * step**2 * correlations(problem).long_run
    for _ in range(REPEATED):
        if not law.mean_square_radius().stable:  # pyright: ignore[reportOptionalMemberAccess]
            return BentLaw(problem, model, law, math.nan)
        mean, covariance = law.stationary()
        spread = np.broadcast_to(covariance, (problem.num_agents, *covariance.shape)) + own
        jitter = JITTER * np.trace(spread, axis1=1, axis2=2) + SMALLEST
        roots = np.linalg.cholesky(spread + jitter[:, None, None] * np.eye(problem.dim))
        with precision():
            inputs = tree.to_device((problem.flat_agents, model.root + mean, roots), "float64")
            model = _seen(problem, *tree.to_host(_averaged(*inputs)))
        law = law_of(model, algorithm)
    return BentLaw(problem, model, law, _bend(model, A_bar))


def _seen(problem: Problem, A: np.ndarray, g: np.ndarray) -> Problem:
    """Returns the problem of agents with these slopes and values of every outcome, at its own root."""
    w, M = known_law(problem.agents).weights(), problem.num_agents
    slope, value = np.einsum("io,ioab->ab", w, A) / M, np.einsum("io,ioa->a", w, g) / M
    root = -np.linalg.solve(slope, value)
    return Problem(SeenAgent(problem.agents.source, A, g), like=np.zeros_like(root), theta_star=root)


def _bend(model: Problem, A_bar: np.ndarray) -> float:
    """Returns the error of the floor of an affine approximation, whose slopes differ from those at the root."""
    seen, _ = model.affine_parts()
    return SENSITIVITY * float(np.linalg.norm(np.linalg.solve(A_bar, seen.mean(0) - A_bar), 2))


def curved_law(problem: Problem, algorithm: AbstractAlgorithm, law_of: LawOf) -> AbstractLaw:
    """Returns the law of the error on a nonlinear problem, without noise or on finite chains.

    `law_of` returns the law of affine problems on the same chains. If the method diverges, its mean does not converge,
    or there are too many outcomes to average over, the law is that of the problem linearised at its root.

    !!! example
        >>> from fedhsa.theory.laws.markov import markov_law
        >>> problem, algorithm = fedhsa.problems.logistic.random(4, 5, 2, key=1).iid(), fedhsa.FedHSA(0.1, 10)
        >>> law = curved_law(problem, algorithm, markov_law)
        >>> runs = fedhsa.simulate(problem, algorithm, rounds=300, seeds=300, theta=problem.theta_star)
        >>> bool(abs(runs.error[:, 100:].mean() / law.stationary().square - 1) < 0.1)
        True
    """
    A = problem.jacobians(problem.root)
    if spectral_radius(require_rule(algorithm).transition(A)) < 1:
        with contextlib.suppress(TooLargeError, ArithmeticError):
            law = CurvedLaw(problem, algorithm, law_of)
            with contextlib.suppress(ValueError):  # unstable in the mean square: reported on request
                law.stationary()
            return law
    return law_of(linearised(problem), algorithm)


class _Quiet(NamedTuple):
    move: np.ndarray
    paths: np.ndarray
    """The mean position of each agent during the round, `(M, d)`."""
    spread: float = 0.0


class _Noiseless:
    """Rounds of the mean operators."""

    def __init__(self, problem: Problem, rule: LocalRule):
        numbers = np.float64(rule.step_size), np.float64(rule.correction), np.int64(rule.local_steps)
        self.rule = rule
        with precision():
            self.agents, self.numbers = tree.to_device((problem.flat_agents, numbers), "float64")

    def __call__(self, theta: np.ndarray) -> _Quiet:
        with precision():
            end, total = tree.to_host(_noiseless_round(self.agents, tree.to_device(theta, "float64"), *self.numbers))
        return _Quiet(self.rule.server_step * (end.mean(0) - theta), total / self.rule.local_steps)

    def path(self, theta: np.ndarray, rounds: int) -> np.ndarray:
        """Returns the parameter before the first round and after each of `rounds`, `(rounds + 1, d)`."""
        found = [theta[None]]
        with precision():
            for _ in range(0, rounds, BLOCK):
                at, part = tree.to_device((found[-1][-1], np.float64(self.rule.server_step)), "float64")
                found.append(tree.to_host(_noiseless_rounds(self.agents, at, part, *self.numbers)))
        return np.concatenate(found)[: rounds + 1]


@eqx.filter_jit
def _noiseless_rounds(agents, theta, server_step, eta, kappa, H):
    def one(theta, _):
        end, _ = _noiseless_round(agents, theta, eta, kappa, H)
        theta = theta + server_step * (jnp.mean(end, axis=0) - theta)
        return theta, theta

    return jax.lax.scan(one, theta, length=BLOCK)[1]


@eqx.filter_jit
def _noiseless_round(agents, theta, eta, kappa, H):
    def means(points):
        return jax.vmap(lambda agent, point: agent.mean_operator(point))(agents, points)

    start = jnp.broadcast_to(theta, (tree.leading_axis(agents), theta.size))
    g = means(start)
    corrections = kappa * (jnp.mean(g, axis=0, keepdims=True) - g)

    def step(_, carry):
        y, total = carry
        return y + eta * (means(y) + corrections), total + y

    end, total = jax.lax.fori_loop(0, H, step, (start, jnp.zeros_like(start)))
    return end, total


class _Round(NamedTuple):
    """A round of the mean field from one point."""

    move: np.ndarray
    spread: float
    """The trace of the covariance of the local errors, on average."""
    A: np.ndarray
    """The average slopes of every outcome, `(M, outcomes, d, d)`."""
    g: np.ndarray
    """The average values, extrapolated to `theta` zero with these slopes."""


def _affine_field(model: Problem, rule: LocalRule, law: FiniteLaw, share: float, theta: np.ndarray) -> _Quiet:
    """Runs a round of the mean field of affine agents, for which means on the event of each observation suffice."""
    eta, H, server_step, kappa = rule
    agents, P, w = model.agents, law.chain.transition, law.weights()[..., None]
    assert isinstance(agents, SeenAgent)
    A, (M, outcomes, d) = agents.A, agents.g.shape

    def moved(x: np.ndarray) -> np.ndarray:
        if not law.pairs:
            return np.swapaxes(P, 1, 2) @ x
        arrived = x.reshape(M, law.num_states, law.num_states, d).sum(1)
        return (P[..., None] * arrived[:, :, None]).reshape(M, outcomes, d)

    g = agents.g + A @ theta
    own = (w * g).sum(1, keepdims=True)
    held = kappa * w * (own.mean(0) - share * own - (1 - share) * g)
    u = np.zeros_like(g)
    for _ in range(H):
        u, held = moved(u + eta * ((A @ u[..., None])[..., 0] + w * g + held)), moved(held)
    return _Quiet(server_step * u.sum(1).mean(0), theta + u.sum(1))


class _Shared(NamedTuple):
    """The quantities common to all agents, as traced arrays."""

    theta: Any
    root: Any
    """A square root of the server's covariance."""
    share: Any
    eta: Any
    kappa: Any
    local_steps: Any


class _MeanField:
    r"""A round of every agent alone, given the average operator: the mean and spread of its local errors.

    Let $n$ be the first observation, which the correction uses, and $o$ the current one. The local error given both has
    a mean $u(n, o)$ and, given the first, a covariance $C(n)$. It starts as the server's, and a step maps it to

    $$ u + \eta\,(E[G(\theta + u + \sqrt{C} z, o)] + c(n)), \qquad
       E\bigl[(\sqrt C + \eta\, G_z)(\sqrt C + \eta\, G_z)^T\bigr] + \text{what } c \text{ adds}, $$

    with the average $G_z = E[G z^T]$ over Gaussian $z$, by the three-point rule along every axis. It is exact for
    affine operators, up to the correlation of the server's error with an agent's chain, which is of order $1/M$.
    """

    def __init__(self, problem: Problem, rule: LocalRule, law: FiniteLaw):
        self.rule, self.agents = rule, problem.flat_agents
        self.anchored = rule.correction > 0
        each = (law.num_outcomes if self.anchored else 1) * law.num_outcomes * (2 * problem.dim + 1) * problem.dim
        M = problem.num_agents
        needed = float(M) * rule.local_steps * each
        if needed > LARGEST or each > LARGEST_AGENT:
            raise TooLargeError(
                f"A round averages over {needed:.2g} numbers, more than {LARGEST:.2g}: the bias due to the curvature "
                f"of {type(problem.agents).__name__} is not computed at this size."
            )
        self.batch = max(n for n in range(1, M + 1) if M % n == 0 and (n == 1 or n * each <= BATCH))

    def __call__(self, theta: np.ndarray, covariance: np.ndarray, share: float) -> _Round:
        jitter = JITTER * np.trace(covariance) + SMALLEST
        root = np.linalg.cholesky(covariance + jitter * np.eye(len(theta)))
        eta, kappa = np.float64(self.rule.step_size), np.float64(self.rule.correction)
        with precision():
            shared = _Shared(theta, root, np.float64(share), eta, kappa, np.int64(self.rule.local_steps))
            inputs = tree.to_device((self.agents, shared), "float64")
            found = tree.to_host(_round(*inputs, self.anchored, self.batch))
        moves, spreads, A, g = (x.reshape(-1, *x.shape[2:]) for x in found)
        return _Round(self.rule.server_step * moves.mean(0), float(spreads.mean()) / self.rule.local_steps, A, g)


@eqx.filter_jit
def _round(agents, shared: _Shared, anchored: bool, batch: int):
    anchors = jax.vmap(lambda agent: _anchor(agent, shared))(agents)
    average = jax.tree.map(lambda x: jnp.mean(x, axis=0), anchors[2:])
    some = jax.tree.map(lambda x: x.reshape(-1, batch, *x.shape[1:]), (agents, anchors))
    local = jax.vmap(lambda agent, own: _local(agent, own, shared, average, anchored))
    return jax.lax.map(lambda inputs: local(*inputs), some)


class _Anchor(NamedTuple):
    """An agent's first operators: values `(outcomes, d)`, slopes times the root of the covariance, and moments."""

    values: Any
    columns: Any
    value: Any
    column: Any
    noise: Any


def _anchor(agent, shared: _Shared) -> _Anchor:
    w, _ = _chain(agent)
    values, columns = _averages(agent, shared.theta, jnp.zeros((w.size, shared.theta.size)), shared.root)
    value, column = w @ values, jnp.einsum("o,oak->ak", w, columns)
    noise = jnp.concatenate([(values - value[None])[..., None], columns - column[None]], axis=-1)
    return _Anchor(values, columns, value, column, jnp.einsum("o,oak,obk->ab", w, noise, noise))


def _local(agent, own: _Anchor, shared: _Shared, average, anchored: bool):
    theta, start, share, eta, kappa, H = shared
    w, onward = _chain(agent)
    outcomes, d = w.size, theta.size
    value, column, noise = average
    if anchored:  # c = kappa (g_bar - g_i), given the first observation; g_bar includes the agent
        weights, p = w, jnp.eye(outcomes)
        c = kappa * ((value - share * own.value)[None] - (1 - share) * own.values)
        B = kappa * ((column - share * own.column)[None] - (1 - share) * own.columns)
        others = kappa**2 * share * (noise - share * own.noise)
    else:
        weights, p = jnp.ones(1), w[None]
        c, B, others = jnp.zeros((1, d)), jnp.zeros((1, d, d)), jnp.zeros((d, d))
    cross = start[None] @ jnp.swapaxes(B, 1, 2)
    square = B @ jnp.swapaxes(B, 1, 2) + others[None]
    u = jnp.zeros((weights.size, outcomes, d))
    C = jnp.broadcast_to(start @ start.T, (weights.size, d, d))

    def step(_, carry):
        u, C, cross, p, spread, seen = carry
        scale = jnp.einsum("naa->n", C) + jnp.einsum("no,noa->n", p, u**2)
        L = jnp.linalg.cholesky(C + (JITTER * scale + SMALLEST)[:, None, None] * jnp.eye(d)[None])
        values, columns = jax.vmap(lambda u, L: _averages(agent, theta, u, L))(u, L)
        inverse = jax.vmap(lambda L: jax.scipy.linalg.solve_triangular(L, jnp.eye(d), lower=True))(L)
        q = weights[:, None] * p
        z = jnp.einsum("nkb,nob->nok", inverse, theta[None, None] + u)
        slopes = jnp.einsum("noak,nkb->oab", q[..., None, None] * columns, inverse)
        intercepts = jnp.einsum("no,noa->oa", q, values - jnp.sum(columns * z[:, :, None], axis=-1))
        added = slopes, intercepts, jnp.sum(q, axis=0)
        seen, spread = jax.tree.map(jnp.add, seen, added), spread + weights @ scale
        to = L[:, None] + eta * columns
        moved = u + eta * (values + c[:, None])
        crossed = jnp.einsum("no,noak->nak", p, to) @ (inverse @ cross)
        C = jnp.einsum("no,noak,nobk->nab", p, to, to) + eta * (crossed + jnp.swapaxes(crossed, 1, 2)) + eta**2 * square
        after = onward(p[..., None])[..., 0]
        u = onward(p[..., None] * moved) / jnp.where(after > 0, after, 1.0)[..., None]
        C = C + jnp.einsum("no,noa,nob->nab", p, moved, moved) - jnp.einsum("no,noa,nob->nab", after, u, u)
        return u, C, crossed + eta * square, after, spread, seen

    nothing = jnp.zeros((outcomes, d, d)), jnp.zeros((outcomes, d)), jnp.zeros(outcomes)
    carry = (u, C, cross, p, jnp.zeros(()), nothing)
    u, _, _, p, spread, (A, g, often) = jax.lax.fori_loop(0, H, step, carry)
    often = jnp.where(often > 0, often, 1.0)
    move = jnp.einsum("n,no,noa->a", weights, p, u)
    return move, spread, A / often[:, None, None], g / often[:, None]


def _averages(agent, theta, u, L):
    r"""Returns $E[G(\theta + u + L z, o)]$ and $E[G z^T]$ over Gaussian $z$, for every outcome."""
    outcomes = known_law(agent).outcomes()

    def at(shift):
        return jax.vmap(lambda u, o: agent.operator(theta + u + shift, o))(u, outcomes)

    axes = math.sqrt(3) * L.T
    # The operators are compiled once for all points.
    (centre,), plus, minus = jnp.split(jax.vmap(at)(jnp.concatenate([0 * axes[:1], axes, -axes])), [1, 1 + len(axes)])
    values = centre + jnp.sum(plus + minus - 2 * centre[None], axis=0) / 6
    return values, jnp.moveaxis((plus - minus) / math.sqrt(12), 0, -1)


@eqx.filter_jit
def _averaged(agents, theta, roots):
    """Returns the slopes and values of all outcomes, averaged over Gaussian positions around `theta`."""

    def one(agent, L):
        w, _ = _chain(agent)
        values, columns = _averages(agent, theta, jnp.zeros((w.size, theta.size)), L)
        slopes = columns @ jax.scipy.linalg.solve_triangular(L, jnp.eye(theta.size), lower=True)[None]
        return slopes, values - slopes @ theta

    return jax.vmap(one)(agents, roots)


def _chain(agent):
    """Returns the stationary distribution of an agent's outcomes, and the map of `(n, outcomes, k)` to the next one."""
    law: Any = known_law(agent)
    P, S, w = law.chain.transition, law.num_states, law.weights().ravel()

    def onward(x):
        if law.independent:
            return w[None, :, None] * jnp.sum(x, axis=1, keepdims=True)
        if not law.pairs:
            return jnp.einsum("nok,ot->ntk", x, P)
        arrived = jnp.sum(x.reshape(len(x), S, S, -1), axis=1)
        return (P[None, :, :, None] * arrived[:, :, None]).reshape(x.shape)

    return w, onward
