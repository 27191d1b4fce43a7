"""TD(0) in Garnet environments: random, sparse decision processes under a fixed policy (SCAFFLSA's experiments)."""

import numpy as np

from .. import _check
from .._random import host_generator
from .._types import SeedLike
from ..environments._garnet import chain_of, check_branching, draw_mixing
from .base import Problem
from .td import from_arrays


def random(
    num_agents: int = 10,
    num_states: int = 30,
    dim: int = 8,
    *,
    num_actions: int = 2,
    branching: int = 2,
    discount: float = 0.95,
    kernels: int = 2,
    perturbation: float = 0.02,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Problem:
    r"""Agents in the same few Garnet environments, each slightly perturbed.

    In a Garnet environment every action leads from every state to `branching` states, drawn at random and about
    equally likely; the policy takes all actions but one, drawn for each state, with equal chances. All agents share
    it and the features, rows of uniform numbers that add up to 1, and the rewards $R \sim U[0, 1]$ of the states.
    Agent $i$ lives in environment $i$ modulo `kernels`; where that number is odd, the rewards change sign.

    `kernels=2` is the heterogeneous setting of the SCAFFLSA paper, `kernels=1` its homogeneous one. Its public code
    draws transitions independently: `garnet.random().iid()`. It takes its environments as they come; here one is drawn
    again where its chain under the policy does not mix, or visits fewer than `dim` states in the long run (other
    states are transient and weigh nothing).

    **Arguments:**

    - `num_agents`, `num_states`, `dim`: $M$, $S$ and $d$. More agents with the same key extend the problem.
    - `num_actions`, `branching`: the actions, and the states that each leads to.
    - `discount`: $\gamma$.
    - `kernels`: the number of environments.
    - `perturbation`: $\epsilon$. Each agent adds $U[0, \epsilon]$ to the equal weights of its transitions and, if
      `kernels` is 1, to its rewards.
    - `heterogeneity`: 0 makes all agents equal (environment 0, unperturbed); in between, kernels and rewards are
      mixed with those of the equal agents.

    !!! example
        >>> problem = random(num_agents=4)
        >>> np.unique((problem.agents.source.chain.transition > 0).sum(-1))
        array([2])

    !!! cite "Mangold et al. (2024), arXiv:2402.04114; Archibald, McKinnon, Thomas (1995) for Garnet"
    """
    M, S, d = (_check.count(n, v) for n, v in (("num_agents", num_agents), ("num_states", num_states), ("dim", dim)))
    _check.count("num_actions", num_actions)
    _check.count("kernels", kernels)
    _check.number("perturbation", perturbation, least=0.0)
    _check.number("heterogeneity", heterogeneity, least=0.0, most=1.0)
    check_branching(branching, S)
    if d > S:
        raise ValueError(f"`dim` must be at most `num_states`, got {d} > {S}: features could not have full rank.")

    rng = host_generator(key, "garnet")
    reward, features, policy = rng.random(S), rng.random((S, d)), draw_policy(rng, S, num_actions)
    features = features / features.sum(1, keepdims=True)
    reached = [draw_mixing(host_generator(key, "kernel", k), policy, branching, d) for k in range(kernels)]

    P, R = np.empty((M, S, S)), np.empty((M, S))
    for i in range(M):
        rng, k = host_generator(key, "agent", i), i % kernels
        own_kernel = chain_of(reached[k] * (1 + perturbation * rng.random(reached[k].shape)), policy)
        own_reward = reward + perturbation * rng.random(S) if kernels == 1 else reward * (-1) ** k
        P[i] = (1 - heterogeneity) * chain_of(reached[0], policy) + heterogeneity * own_kernel
        R[i] = (1 - heterogeneity) * reward + heterogeneity * own_reward
    return from_arrays(P, R, np.broadcast_to(features, (M, S, d)), discount)


def draw_policy(rng: np.random.Generator, num_states: int, num_actions: int) -> np.ndarray:
    """All actions but one, drawn for each state, with equal chances: `(S, A)`."""
    policy = np.ones((num_states, num_actions))
    if num_actions > 1:
        policy[np.arange(num_states), rng.integers(num_actions, size=num_states)] = 0
    return policy / policy.sum(1, keepdims=True)
