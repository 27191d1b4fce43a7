"""The tables of the suite: small problems with their naive operators and observations, and the algorithms."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import fedhsa as fh
from fedhsa import tree
from fedhsa.environments.rollouts import Episodes
from fedhsa.sources import Transition
from naive import chain, var1


class Case(NamedTuple):
    """A problem, its operator written again in NumPy, and a recorder of observations made in NumPy."""

    problem: fh.Problem
    G: Callable
    record: Callable[[int, np.random.Generator], tuple[Any, list]]
    """`(length, rng)` -> the observations as the package wants them for replay, and as lists for naive loops."""


@functools.cache
def quadratic(num_agents: int = 3, **options) -> Case:
    problem = fh.problems.quadratic.random(num_agents, 4, **options)
    A, b, source = problem.agents.A, problem.agents.b, problem.agents.source

    def record(length, rng):
        z = np.stack([var1(Q, s, length, rng) for Q, s in zip(source.transition, source.noise_std, strict=True)])
        return z, list(z)

    return Case(problem, lambda i, theta, z: -(A[i] @ theta - b[i]) + z, record)


@functools.cache
def td(num_agents: int = 3, **options) -> Case:
    problem = fh.problems.td.random(num_agents, 6, 4, **options)
    agents = problem.agents
    P, R, phi, gamma = agents.source.chain.transition, agents.rewards, agents.features, agents.discount

    def G(i, theta, o):
        s, s_next = o
        return (R[i][s] + gamma[i] * phi[i][s_next] @ theta - phi[i][s] @ theta) * phi[i][s]

    def record(length, rng):
        states = np.stack([chain(P[i], length + 1, rng) for i in range(num_agents)])
        pairs = [list(itertools.pairwise(row)) for row in states]
        return Transition(states[:, :-1], states[:, 1:]), pairs

    return Case(problem, G, record)


@functools.cache
def finite_sum(num_agents: int = 3, **options) -> Case:
    problem = fh.problems.finite_sum.random(num_agents, 3, 4, **options)
    A, b, P = problem.agents.A, problem.agents.b, problem.agents.source.transition

    def record(length, rng):
        states = np.stack([chain(P[i], length, rng) for i in range(num_agents)])
        return states, list(states)

    return Case(problem, lambda i, theta, j: -(A[i][j] @ theta - b[i][j]), record)


@functools.cache
def logistic(num_agents: int = 3, **options) -> Case:
    problem = fh.problems.logistic.random(num_agents, 6, 4, **options)
    agents = problem.agents
    x, y, P, reg = agents.inputs, agents.labels, agents.source.transition, agents.regularisation

    def record(length, rng):
        states = np.stack([chain(P[i], length, rng) for i in range(num_agents)])
        return states, list(states)

    def G(i, theta, n):
        return y[i][n] * x[i][n] / (1 + np.exp(y[i][n] * x[i][n] @ theta)) - reg[i] * theta

    return Case(problem, G, record)


@functools.cache
def q_learning(num_agents: int = 3, **options) -> Case:
    problem = fh.problems.q_learning.random(num_agents, num_states=3, num_actions=2, **options)
    agents = problem.agents
    P, R, gamma = agents.source.chain.transition, agents.rewards, agents.discount

    def record(length, rng):
        pairs = np.stack([chain(P[i], length + 1, rng) for i in range(num_agents)])
        return Transition(pairs[:, :-1], pairs[:, 1:]), [list(itertools.pairwise(row)) for row in pairs]

    def G(i, theta, o):
        (s, a), t, values = divmod(o[0], 2), o[1] // 2, theta.reshape(3, 2)
        found = np.zeros((3, 2))
        found[s, a] = R[i][s, a, t] + gamma[i][t] * values[t].max() - values[s, a]
        return found.ravel()

    return Case(problem, G, record)


@functools.cache
def episodes(num_agents: int = 3) -> Case:
    """Softmax tables on recorded episodes of three states and two actions, some of them shorter than the others."""

    def record(length, rng):
        shape = (num_agents, length, 2, 5)
        alive = 1.0 * (np.arange(5) < rng.integers(2, 6, size=shape[:-1])[..., None])
        drawn = Episodes(rng.integers(3, size=shape), rng.integers(2, size=shape), rng.normal(size=shape), alive)
        return drawn, [[tree.take(drawn, (i, t)) for t in range(length)] for i in range(num_agents)]

    played, _ = record(4, np.random.default_rng(3))
    model = fh.environments.worlds.random(num_agents, 3, 2, discount=0.8)
    problem = fh.problems.policy_gradient.from_model(model, horizon=5, batch=2)

    def G(i, theta, o):
        total = np.zeros(6)
        for b, t in np.argwhere(o.alive):
            ahead = sum(0.8**h * o.reward[b, h] * o.alive[b, h] for h in range(t, 5))
            total += score(theta, o.seen[b, t], o.action[b, t]) * ahead / 2
        return total

    return Case(problem.replay(played, wrap=True), G, record)


def score(theta: np.ndarray, state: int, action: int) -> np.ndarray:
    """The gradient of the logarithm of an action's probability, of a softmax table with two actions as a vector."""
    found, chances = np.zeros((3, 2)), np.exp(theta.reshape(3, 2)[state])
    found[state] = -chances / chances.sum()
    found[state, action] += 1
    return found.ravel()


CASES: dict[str, Callable[..., Case]] = {
    "quadratic": quadratic,
    "td": td,
    "finite-sum": finite_sum,
    "logistic": logistic,
    "q-learning": q_learning,
}
POLICIES: dict[str, Callable[..., Case]] = {"episodes": episodes}
"""For methods that ask more of agents than their operators; there is no root."""


def agent_key(key: int, seed: int, agent: int):
    """The key of all that one agent draws."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(key), seed), 0), agent)


@functools.cache
def observed(case: str, key: int, seed: int, length: int = 256) -> list:
    """What each agent of a case sees under this key, as lists for naive loops."""
    problem, lists = (CASES | POLICIES)[case]().problem, []
    with jax.enable_x64(True):
        for agent in range(problem.num_agents):
            own = jax.random.fold_in(agent_key(key, seed, agent), 0)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(own, jax.numpy.arange(length + 1))
            source = tree.to_device(tree.take(problem.agents.source, agent), "float64")
            block = tree.to_host(source.draw(keys[1:], source.init(keys[0]))[1])
            lists.append([tree.take(block, position) for position in range(length)])
    return lists


STEP = 0.02
LOCAL_STEPS = 4

ALGORITHMS: dict[str, fh.AbstractAlgorithm] = {
    "FedHSA": fh.FedHSA(STEP, LOCAL_STEPS),
    "FedHSA, server step": fh.FedHSA(STEP, LOCAL_STEPS, server_step=0.5),
    "FedHSA, schedule": fh.FedHSA(fh.Polynomial(0.1, offset=5.0), LOCAL_STEPS),
    "LocalSA": fh.LocalSA(STEP, LOCAL_STEPS),
    "LocalSA, server step": fh.LocalSA(STEP, LOCAL_STEPS, server_step=1.5),
    "SynchronisedSA": fh.SynchronisedSA(STEP),
}
