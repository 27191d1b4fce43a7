"""Markov sampling at any size: covariance and bias of the error to second order in the noise."""

import itertools
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from ... import tree
from ..._linear import DOUBLINGS, spectral_radius
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...problems import AbstractAgent, Problem
from ..maps.rounds import check_reach, require_rule, require_stable
from .finite import chain_of, finite_law

ROOM = 32
CLOSE = 1e-3
"""The relative accuracy of the persistent bias."""
PART_BYTES = 2**27
"""How much of the agents' arrays is on the device at a time, for each core."""
PARALLEL = 10**8
"""From how much work on the agents are shared out among the cores."""


class Expansion(NamedTuple):
    """The error in the long run, to second order in the noise."""

    heterogeneity_bias: np.ndarray
    """Where the method goes without noise, minus the root, `(d,)`."""
    markov_bias: np.ndarray
    """What correlation in time adds to the mean, `(d,)`."""
    persistent_bias: np.ndarray
    """The part of `markov_bias` that stays however many agents like these there are: that of their own local steps."""
    covariance: np.ndarray
    """`(d, d)`; proportional to $1/M$ over agents like these."""


def expansion(problem: Problem, algorithm: AbstractAlgorithm) -> Expansion:
    r"""Covariance and bias of the error in the long run on finite chains, to second order in the noise.

    Let $x_{i,\ell}$ be the path of agent $i$ through a round without noise, $\epsilon_{i,\ell} = G_i(x_{i,\ell}, o) -
    \bar G_i(x_{i,\ell})$ the noise on it, and $\tilde A_i(o) = A_i(o) - A_i$. With the round's response $K_{i,\ell}$ to
    a change of agent $i$'s operator at its step $\ell$,

    $$e' = \Phi e + \sum_{i,\ell} K_{i,\ell}\, (\epsilon_{i,\ell} + \tilde A_i(o_{i,\ell})\, \delta_{i,\ell}),$$

    where $\delta_{i,\ell} = \theta_{i,\ell} - x_{i,\ell}$ is the local error. Without the last term this gives the
    covariance; the mean of the last term, with $\delta$ to first order, gives the bias. Both are sums over each agent's
    kernel alone, at any $\eta H$ (`docs/theory.md` derives them), and exact for additive noise. The part of the bias
    that stays at any number of agents is exact for infinitely many.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=8, num_states=6, dim=3, laziness=0.5)
        >>> found = expansion(problem, fedhsa.FedHSA(0.02, local_steps=10))
        >>> bool(np.linalg.norm(found.markov_bias) > 0), bool((found.heterogeneity_bias == 0).all())
        (True, True)
    """
    check_reach(problem, algorithm)
    algorithm.check(problem)
    rule, law = require_rule(algorithm), finite_law(problem.agents.source)
    if law is None:
        raise TypeError(
            f"The expansion sums over finite chains, got {type(problem.agents.source).__name__}. "
            "`theory.estimate` has the same quantities from samples."
        )
    A, b = problem.affine_parts()
    (M, d, _), total = A.shape, rule.sums(A)
    Phi = rule.transition(A)
    require_stable(spectral_radius(Phi), type(algorithm).__name__)
    heterogeneity = rule.limit_error(A, A @ problem.root - b)
    numbers = map(np.float64, (rule.step_size, rule.server_step, rule.correction, 1 / M))
    steps = np.int64(rule.local_steps)
    shared = _Shared(Phi, _doublings(Phi), A.mean(0), total.mean(0), problem.root + heterogeneity, steps, *numbers)
    room = max(ROOM, 2 ** math.ceil(math.log2(rule.local_steps)))
    kind = Kind(room, law.pairs, law.independent, moving=rule.local_steps > 1 and not rule.correction)
    work = M * law.num_states**2 * d * rule.local_steps
    with precision(), _Workers((problem.flat_agents, A), M, many=work > PARALLEL) as sum_over_agents:
        driven, push = sum_over_agents(_one_agent, tree.to_device(shared, "float64"), kind)
        gain = np.linalg.inv(np.eye(d) - Phi)
        persistent = np.zeros(d)
        if not law.independent:
            persistent = _fixed_point_of_many(sum_over_agents, shared, kind, gain, problem.mean_operator)
    covariance = solve_discrete_lyapunov(Phi, driven + driven.T)
    return Expansion(heterogeneity, persistent + gain @ push, persistent, covariance)


class _Shared(NamedTuple):
    """What all agents have in common, as traced arrays: another step size compiles nothing."""

    Phi: Any
    doublings: Any
    r"""$\Phi, \Phi^2, \Phi^4, \dots$ until nothing is left of them."""
    A_bar: Any
    S_bar: Any
    start: Any
    local_steps: Any
    eta: Any
    server_step: Any
    kappa: Any
    share: Any
    """$1/M$."""


def _fixed_point_of_many(sum_over_agents, shared: _Shared, kind: "Kind", gain: np.ndarray, mean_operator) -> np.ndarray:
    """The fixed point of infinitely many agents like these, relative to the limit without noise.

    Averages over so many are certain, and each agent's local steps depend on its own chain alone, so that their mean is
    exact. Newton's method with the derivative of the round without noise; one step where that does not converge.
    """
    bias, before = np.zeros_like(shared.start), np.inf
    while True:
        theta = shared.start + bias
        at = _MeanField(theta, mean_operator(theta), shared.eta, shared.local_steps, shared.server_step, shared.kappa)
        (moved,) = sum_over_agents(_mean_move, tree.to_device(at, "float64"), kind)
        change = gain @ moved * shared.share
        size = np.linalg.norm(change)
        if not size < before:
            return bias
        bias = bias + change
        if np.isfinite(before) and size * size / before <= CLOSE * np.linalg.norm(bias):  # about the next change
            return bias
        before = size


class _Workers:
    """Sums over agents, one after the other: it bounds the memory, and products of single matrices are the fastest.

    Large problems are shared out among the cores.
    """

    def __init__(self, inputs: tuple, num_agents: int, *, many: bool):
        self.inputs, self.cores = inputs, (os.cpu_count() or 1) if many else 1
        size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(inputs))
        parts = min(num_agents, self.cores * math.ceil(size / (self.cores * PART_BYTES)))
        self.parts = [slice(*ends) for ends in itertools.pairwise(np.linspace(0, num_agents, parts + 1).astype(int))]

    def __enter__(self):
        self.pool = ThreadPoolExecutor(self.cores)
        return self.sum

    def __exit__(self, *_):
        self.pool.shutdown()

    def sum(self, of_one_agent, shared, kind: "Kind") -> tuple[np.ndarray, ...]:
        """The sum over all agents of what `of_one_agent(shared, inputs, kind)` gives."""

        def part(agents: slice):
            with precision():  # which every thread has to ask for itself
                inputs = tree.to_device(tree.take(self.inputs, agents), "float64")
                return tree.to_host(_sum(of_one_agent, shared, inputs, kind))

        sums = list(self.pool.map(part, self.parts))
        return tuple(np.sum(column, axis=0) for column in zip(*sums, strict=True))


@eqx.filter_jit
def _sum(of_one_agent, shared, inputs, kind):
    each = jax.lax.map(lambda one: of_one_agent(shared, one, kind), inputs)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), each)


class Kind(NamedTuple):
    """What the compiled program depends on besides shapes."""

    room: int
    """A power of two that the number of local steps fits in, so that few of them compile anything."""
    pairs: bool
    independent: bool
    moving: bool
    """Whether agents move through a round even without noise, as in Local SA."""


class Noise(NamedTuple):
    """The noise of one agent at one point, summed over its outcomes."""

    given: jax.Array
    """Its mean given the state before, `(S, d)`."""
    leaving: jax.Array
    """Its mean on the event of the state after, `(d, S)`."""
    square: jax.Array
    """Its covariance, `(d, d)`."""
    factor: jax.Array | None
    """A matrix with few columns whose product with its transpose is `square`, where there is one."""

    def square_through(self, K):
        r"""$K\, \mathrm{square}\, K^T$."""
        if self.factor is None:
            return K @ self.square @ K.T
        through = K @ self.factor
        return through @ through.T


def _one_agent(shared: _Shared, inputs: tuple, kind: Kind):
    """An agent's share of the covariance that a round adds (half of it), and of the bias that shrinks with $M$."""
    agent, A = inputs
    chain: Any = chain_of(agent)
    H, eta, kappa, P, d = shared.local_steps, shared.eta, shared.kappa, chain.transition, A.shape[0]
    start, zero = shared.start, jnp.zeros((d, P.shape[0]))
    F, scale = jnp.eye(d) + eta * A, shared.server_step * eta * shared.share
    powers = jnp.zeros((kind.room, d, d)).at[0].set(jnp.eye(d))
    powers = jax.lax.fori_loop(1, H, lambda k, powers: powers.at[k].set(F @ powers[k - 1]), powers)
    total = jnp.sum(powers, axis=0)
    at_start = noise_at(agent, chain, start, kind)
    pull = agent.mean_operator(start)

    def response(step):
        anchored = jnp.where(step == 0, kappa, 0.0) * (shared.S_bar - total)
        return scale * (powers[H - 1 - step] + anchored)

    def advance(x):
        """The point of the path without noise after `x`, and the noise there."""
        x = x + eta * (agent.mean_operator(x) - kappa * pull)
        return x, noise_at(agent, chain, x, kind) if kind.moving else at_start

    def respond(step, carry):
        T, x, noise = carry
        return T @ P + response(step) @ noise.leaving, *advance(x)

    added, _, _ = jax.lax.fori_loop(0, H, respond, (zero, start, at_start))
    X = _sum_of_powers(shared.doublings, _power(P - chain.stationary[None, :], H), added)

    def step(step, carry):
        # D is the local error, and R the correction, that earlier rounds and the shared operator bring of the agent's
        # own noise, on the event of each state. What the agent's own local steps bring is in `_mean_move`.
        T, D, R, driven, bias, x, noise = carry
        K = response(step)
        driven = driven + T @ (noise.given @ K.T) + noise.square_through(K) / 2
        bias = bias + K @ multiplied(agent, chain, start, D[None], kind)[0]
        R = R @ P + jnp.where(step == 0, shared.share, 0.0) * noise.leaving
        D = F @ D @ P + eta * kappa * R
        return T @ P + K @ noise.leaving, D, R, driven, bias, *advance(x)

    R = (shared.A_bar - A) @ X
    carry = (shared.Phi @ X, X, R, jnp.zeros((d, d)), jnp.zeros(d), start, at_start)
    _, _, _, driven, bias, _, _ = jax.lax.fori_loop(0, H, step, carry)
    return driven, bias


class _MeanField(NamedTuple):
    """Where agents start a round, and what the average of their operators is there: certain, for very many of them."""

    theta: Any
    g_bar: Any
    eta: Any
    local_steps: Any
    server_step: Any
    kappa: Any


def _mean_move(at: _MeanField, inputs: tuple, kind: Kind):
    """How far one agent moves in a round, averaged over its noise."""
    agent, _ = inputs
    chain: Any = chain_of(agent)
    P, pi, theta = chain.transition, chain.stationary, at.theta
    leaving = noise_at(agent, chain, theta, kind).leaving + jnp.outer(agent.mean_operator(theta), pi)

    def step(step, carry):
        U, R = carry  # the displacement, and the correction, on the event of each state
        R = jnp.where(step == 0, R, R @ P)
        pushed = multiplied_and_moved(agent, chain, theta, U, kind)
        return U @ P + at.eta * (pushed + leaving + at.kappa * R), R

    carry = jnp.zeros_like(leaving), jnp.outer(at.g_bar, pi) - leaving
    U, _ = jax.lax.fori_loop(0, at.local_steps, step, carry)
    return (at.server_step * jnp.sum(U, axis=1),)


def noise_at(agent: AbstractAgent, chain, x, kind: Kind) -> Noise:
    """The noise of an agent at the point `x`."""
    P, pi = chain.transition, chain.stationary
    states = jnp.arange(P.shape[0])
    if kind.pairs:
        values, directions = jax.vmap(lambda s: agent.transition_operators(x, s, states))(states)
        weighted = (pi[:, None] * P)[..., None] * values
        inner = jnp.einsum("stk,stm->skm", weighted, values)
        square = jnp.einsum("ska,skm,smb->ab", directions, inner, directions)
        given = jnp.einsum("st,stk,ska->sa", P, values, directions)
        leaving = jnp.einsum("stk,ska->ta", weighted, directions)
        mean, factor = pi @ given, None
        square = square - jnp.outer(mean, mean)
    else:
        given = jax.vmap(lambda s: agent.operator(x, s))(states)
        leaving, mean = P.T @ (pi[:, None] * given), pi @ given
        factor = (jnp.sqrt(pi)[:, None] * (given - mean[None])).T
        square = factor @ factor.T
    if kind.independent:
        return Noise(jnp.zeros_like(given), jnp.zeros_like(given.T), square, factor)
    return Noise(given - mean[None], (leaving - jnp.outer(pi, mean)).T, square, factor)


def multiplied(agent: AbstractAgent, chain, x, D, kind: Kind):
    r"""$E[\tilde A(o)\, \delta]$ for errors whose mean on the event of each state is `D`, `(k, d, S)`."""
    if kind.independent:
        return jnp.zeros(D.shape[:2])
    P = chain.transition
    states = jnp.arange(P.shape[0])

    def given(theta, s):
        if not kind.pairs:
            return agent.operator(theta, s)
        values, directions = agent.transition_operators(theta, s, states)
        return P[s] @ values @ directions

    def along(s, direction):
        return jax.jvp(lambda theta: given(theta, s), (x,), (direction,))[1]

    return jax.vmap(lambda D: jnp.sum(jax.vmap(along, in_axes=(0, 1))(states, D), axis=0))(D)


def multiplied_and_moved(agent: AbstractAgent, chain, x, U, kind: Kind):
    r"""$E[A(o)\, u]$ on the event of the state after, for $u$ whose mean on the event of the state before is `U`."""
    P = chain.transition
    states = jnp.arange(P.shape[0])

    def along(s, direction):
        return jax.jvp(lambda theta: agent.operator(theta, s), (x,), (direction,))[1]

    def along_each(s, direction):
        # The directions do not depend on the parameter of an affine operator, its coefficients are affine in it.
        (_, directions), (values, _) = jax.jvp(
            lambda theta: agent.transition_operators(theta, s, states), (x,), (direction,)
        )
        return values, directions

    if not kind.pairs:
        return jax.vmap(along, in_axes=(0, 1))(states, U).T @ P
    values, directions = jax.vmap(along_each, in_axes=(0, 1))(states, U)
    return jnp.einsum("st,stk,ska->at", P, values, directions)


def _doublings(Phi: np.ndarray) -> np.ndarray:
    r"""$\Phi^{2^k}$ for $k = 0, 1, \dots$: the same for all agents, so they are made once."""
    powers = [Phi]
    while abs(powers[-1]).max() > 1e-30 and len(powers) < DOUBLINGS:
        powers.append(powers[-1] @ powers[-1])
    return np.stack(powers)


def _sum_of_powers(doublings, right, C):
    r"""$\sum_k L^k C R^k$, by doubling, given $L^{2^k}$."""

    def unfinished(carry):
        X, _, added, count = carry
        return (count < len(doublings)) & (jnp.max(jnp.abs(added)) > 1e-17 * jnp.max(jnp.abs(X)))

    def double(carry):
        X, right, _, count = carry
        added = doublings[count] @ X @ right
        return X + added, right @ right, added, count + 1

    return jax.lax.while_loop(unfinished, double, (C, right, C, 0))[0]


def _power(matrix, exponent):
    """An integer power whose exponent is traced."""

    def square(carry):
        power, base, rest = carry
        return jnp.where(rest % 2 == 1, power @ base, power), base @ base, rest // 2

    return jax.lax.while_loop(lambda carry: carry[2] > 0, square, (jnp.eye(matrix.shape[0]), matrix, exponent))[0]
