"""Garnet environments: random, sparse decision processes, and the pieces that other generators take from them."""

import numpy as np

from .. import _check
from .._generate import normalised, per_agent
from .._random import host_generator
from .._types import SeedLike
from ..sources.finite import check_kernel, closed_classes
from .model import Model

ATTEMPTS = 1000
"""The largest number of environments that are drawn."""


def garnet(
    num_agents: int = 10,
    num_states: int = 30,
    num_actions: int = 2,
    *,
    branching: int = 2,
    discount: float = 0.95,
    kernels: int = 1,
    perturbation: float = 0.02,
    reward_perturbation: float = 0.02,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Model:
    r"""Garnet: every action leads from every state to a few random states, about equally likely.

    The rewards of the states, $R \sim U[0, 1]$, are the same for all actions. Agent $i$ is in environment $i$ modulo
    `kernels`; if that number is odd, the rewards change sign. `kernels=2, reward_perturbation=0.0` are the
    environments of the SCAFFLSA paper's heterogeneous setting, `kernels=1` those of its homogeneous one. An environment
    is drawn again if its chain under the uniform policy does not mix, or does not visit all states.

    **Arguments:**

    - `num_agents`, `num_states`, `num_actions`: $M$, $S$ and $A$.
    - `branching`: the number of states that an action leads to.
    - `kernels`: the number of environments.
    - `perturbation`, `reward_perturbation`: each agent adds $U[0, \epsilon]$ to the equal weights of its transitions,
      and to its rewards.
    - `heterogeneity`: 0 makes all agents equal (environment 0, unperturbed); in between, transitions and rewards are
      mixed with those of the equal agents.

    !!! example
        >>> model = garnet(num_agents=3, num_states=8)
        >>> np.unique((model.transitions > 0).sum(-1))
        array([2])

    !!! cite "Archibald, McKinnon, Thomas (1995); Mangold et al. (2024), arXiv:2402.04114"
    """
    S, A = _check.count("num_states", num_states), _check.count("num_actions", num_actions)
    perturbations = perturbation, reward_perturbation
    policy = np.full((S, A), 1 / A)
    P, R = draw_agents(num_agents, policy, S, branching, kernels, perturbations, heterogeneity, key)
    return Model(P, np.repeat(R[..., None], A, axis=-1), discount)


def draw_agents(
    num_agents: int,
    policy: np.ndarray,
    visited: int,
    branching: int,
    kernels: int,
    perturbations: tuple[float, float],
    heterogeneity: float,
    key: SeedLike,
) -> tuple[np.ndarray, np.ndarray]:
    """Transitions `(M, S, A, S)` and rewards `(M, S)` of agents in environments that mix under the policy `(S, A)`."""
    M, S = _check.count("num_agents", num_agents), len(policy)
    _check.count("kernels", kernels)
    for name, size in zip(("perturbation", "reward_perturbation"), perturbations, strict=True):
        _check.number(name, size, least=0.0)
    _check.number("heterogeneity", heterogeneity, least=0.0, most=1.0)
    if _check.count("branching", branching) > S:
        raise ValueError(f"`branching` must be at most `num_states`, got {branching} > {S}.")
    reached = [draw_mixing(host_generator(key, "kernel", k), policy, branching, visited) for k in range(kernels)]
    reward = host_generator(key, "garnet").random(S)
    weights = per_agent(lambda rng, count: rng.random((count, *policy.shape, S)), "agent kernel", M, key)
    noise = per_agent(lambda rng, count: rng.random((count, S)), "agent reward", M, key)
    own = np.arange(M) % kernels
    own_kernels = normalised(np.stack(reached)[own] * (1 + perturbations[0] * weights))
    own_rewards = np.where(own % 2, -1, 1)[:, None] * reward + perturbations[1] * noise
    P = (1 - heterogeneity) * normalised(reached[0]) + heterogeneity * own_kernels
    return P, (1 - heterogeneity) * reward + heterogeneity * own_rewards


def draw_successors(rng: np.random.Generator, num_states: int, num_actions: int, branching: int) -> np.ndarray:
    """Ones for the states that a state and an action lead to, `branching` for each pair: `(S, A, S)`."""
    order = rng.permuted(np.tile(np.arange(num_states), (num_states, num_actions, 1)), axis=-1)
    return (order < branching).astype(float)


def draw_mixing(rng: np.random.Generator, policy: np.ndarray, branching: int, visited: int) -> np.ndarray:
    """The first environment whose chain has one closed class, aperiodic and of at least `visited` states."""
    num_states, num_actions = policy.shape
    for _ in range(ATTEMPTS):
        reached = draw_successors(rng, num_states, num_actions, branching)
        P = chain_of(normalised(reached), policy)
        try:
            check_kernel(P[None])
        except ValueError:
            continue
        if len(closed_classes(P)[0]) >= visited:
            return reached
    fewer = "lower `dim`" if visited < num_states else "lower `num_states`"
    raise ValueError(
        f"None of {ATTEMPTS} Garnet environments mixes and keeps visiting {visited} states or more. "
        f"Raise `branching`, got {branching}, or {fewer}."
    )


def chain_of(transitions: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """The kernel over states `(S, S)` that follows from transitions `(S, A, S)` and a policy `(S, A)`."""
    return np.einsum("sa,sat->st", policy, transitions)
