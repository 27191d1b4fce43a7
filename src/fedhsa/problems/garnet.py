"""TD(0) in Garnet environments: random, sparse decision processes under a fixed policy (SCAFFLSA's experiments)."""

import numpy as np

from .. import _check
from .._random import host_generator
from .._types import SeedLike
from ..environments._garnet import chain_of, draw_agents
from .base import Problem
from .td import from_arrays

__all__ = ["random"]


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
    r"""Make the problem of TD(0) by agents in a few common Garnet environments, each slightly perturbed.

    In a Garnet environment every action leads from every state to `branching` states, drawn at random and about
    equally likely; the policy takes all actions except one, drawn for each state, with equal probabilities. All agents
    share the policy, the features (rows of uniform numbers that sum to 1) and the rewards $R \sim U[0, 1]$ of the
    states. Agent $i$ is in environment $i$ modulo `kernels`; if that number is odd, the rewards change sign.

    `kernels=2` is the heterogeneous setting of the SCAFFLSA paper, `kernels=1` its homogeneous one. Its public code
    draws transitions independently: `garnet.random().iid()`. It does not check its environments; here, an environment
    is drawn again if its chain under the policy does not mix or has fewer than `dim` recurrent states (transient
    states have no weight).

    **Arguments:**

    - `num_agents`, `num_states`, `dim`: $M$, $S$ and $d$. More agents with the same key extend the problem.
    - `num_actions`, `branching`: the number of actions, and of states that each action leads to.
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
    S, d = _check.count("num_states", num_states), _check.count("dim", dim)
    _check.count("num_actions", num_actions)
    if d > S:
        raise ValueError(f"`dim` must be at most `num_states`, got {d} > {S}: features could not have full rank.")
    rng = host_generator(key, "garnet")
    rng.random(S)  # the rewards, which `draw_agents` draws
    features, policy = rng.random((S, d)), draw_policy(rng, S, num_actions)
    features = features / features.sum(1, keepdims=True)
    perturbations = perturbation, perturbation if kernels == 1 else 0.0
    P, R = draw_agents(num_agents, policy, d, branching, kernels, perturbations, heterogeneity, key)
    chains = np.stack([chain_of(transitions, policy) for transitions in P])
    return from_arrays(chains, R, np.broadcast_to(features, (len(P), S, d)), discount)


def draw_policy(rng: np.random.Generator, num_states: int, num_actions: int) -> np.ndarray:
    """A policy with equal probabilities for all actions except one, which is drawn for each state: `(S, A)`."""
    policy = np.ones((num_states, num_actions))
    if num_actions > 1:
        policy[np.arange(num_states), rng.integers(num_actions, size=num_states)] = 0
    return policy / policy.sum(1, keepdims=True)
