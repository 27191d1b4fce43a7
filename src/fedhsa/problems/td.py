"""Policy evaluation by TD(0) with linear features (section 6.2 of the paper)."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from .. import _check
from .._types import SeedLike
from ..sources import AbstractSource, FiniteChain, Transitions
from ._generate import blend, dense_kernel, lazy
from .base import AbstractAgent, Problem


class TDAgent(AbstractAgent):
    r"""$G_i(\theta, (s, s')) = (R_i(s, s') + \gamma_i \phi_i(s')^T \theta - \phi_i(s)^T \theta) \, \phi_i(s)$."""

    source: AbstractSource
    rewards: np.ndarray
    features: np.ndarray
    discount: np.ndarray
    A: np.ndarray
    b: np.ndarray
    """The mean operator is $A_i \\theta - b_i$, whatever the observations are drawn from."""

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        phi, next_phi = self.features[o.state], self.features[o.next_state]
        reward = self.rewards[o.state] if self.rewards.ndim == 1 else self.rewards[o.state, o.next_state]
        return (reward + jnp.sum((self.discount * next_phi - phi) * theta)) * phi

    def mean_operator(self, theta, /):
        return self.A @ theta - self.b

    def lipschitz(self, o, /):
        # The Jacobian phi (gamma phi' - phi)^T has rank one.
        phi, next_phi = self.features[o.state], self.features[o.next_state]
        return jnp.linalg.norm(phi) * jnp.linalg.norm(self.discount * next_phi - phi)

    def transition_operators(self, theta, state, next_states, /):
        phi = self.features[state]
        rewards = self.rewards[state] if self.rewards.ndim == 1 else self.rewards[state, next_states]
        errors = rewards + self.discount * (self.features[next_states] @ theta) - phi @ theta
        return errors[:, None], phi[None, :]


def from_arrays(P: Any, R: Any, features: Any, discount: Any, *, start: Any = None) -> Problem:
    r"""TD(0) in `M` Markov reward processes that share a parameter.

    **Arguments:**

    - `P`: transition kernels, `(M, S, S)`.
    - `R`: rewards, `(M, S)` on leaving a state, or `(M, S, S)` on a transition.
    - `features`: $\Phi_i$, `(M, S, d)`, of full column rank on the recurrent states.
    - `discount`: $\gamma_i$ in [0, 1), `(M,)` or one number.
    - `start`: the law of the first state, `(S,)` or `(M, S)`, or a state. Default: stationary.

    !!! example
        >>> P = [[[0.5, 0.5], [0.5, 0.5]]]
        >>> from_arrays(P, R=[[0.0, 1.0]], features=[np.eye(2)], discount=0.5).theta_star   # V = (I - P/2)^-1 R
        array([0.5, 1.5])
    """
    sizes: dict[str, int] = {}
    P = _check.array("P", P, ("M", "S", "S"), sizes)
    R = _check.array("R", R, ("M", "S") if np.ndim(R) == 2 else ("M", "S", "S"), sizes)
    features = _check.array("features", features, ("M", "S", "d"), sizes)
    discount = np.broadcast_to(discount, sizes["M"]) if np.ndim(discount) == 0 else discount
    discount = _check.array("discount", discount, ("M",), sizes)
    if (discount < 0).any() or (discount >= 1).any():
        agent = int(np.argmax((discount < 0) | (discount >= 1)))
        raise ValueError(f"`discount` must lie in [0, 1), got {discount[agent]} for agent {agent}.")
    chain = FiniteChain(P, start)
    P = chain.transition  # one copy of the kernels is enough
    _check_rank(features, chain.stationary)
    A, b = _mean_operators(P, R, features, discount, chain.stationary)
    return Problem(TDAgent(Transitions(chain), R, features, discount, A, b), like=np.zeros(sizes["d"]))


def random(
    num_agents: int = 200,
    num_states: int = 100,
    dim: int = 50,
    *,
    heterogeneity: float = 1.0,
    laziness: float = 0.0,
    key: SeedLike = 0,
) -> Problem:
    r"""The paper's random TD problem.

    Rows of $P_i$ are normalised uniform numbers, $R_i \sim U[0, 2]$, $\Phi_i \sim U[0, 1]$ and
    $\gamma_i \sim U[0.5, 0.99]$.

    **Arguments:**

    - `num_agents`, `num_states`, `dim`: $M$, $S$ and $d$. More agents with the same key extend the problem.
    - `heterogeneity`: 0 makes all agents equal (kernel, rewards, features, discount), 1 makes them independent draws.
    - `laziness`: the chance to stay in place. The paper's kernels mix almost at once; 0.9 makes correlation visible.

    !!! example
        >>> random(num_agents=3, num_states=8, dim=4).theta_star.shape
        (4,)
    """
    S = _check.count("num_states", num_states)
    _check.count("dim", dim)
    if dim > S:
        raise ValueError(f"`dim` must be at most `num_states`, got {dim} > {S}: features could not have full rank.")
    P = blend(dense_kernel(S), "P", num_agents, heterogeneity, key)
    R = blend(lambda rng: 2 * rng.random(S), "R", num_agents, heterogeneity, key)
    features = blend(lambda rng: rng.random((S, dim)), "features", num_agents, heterogeneity, key)
    discount = blend(lambda rng: np.asarray(rng.uniform(0.5, 0.99)), "discount", num_agents, heterogeneity, key)
    return from_arrays(lazy(P, laziness), R, features, discount)


def _mean_operators(P, R, features, discount, stationary) -> tuple[np.ndarray, np.ndarray]:
    r"""$A_i = \Phi_i^T D_i (\gamma_i P_i - I) \Phi_i$ and $b_i = -\Phi_i^T D_i R_i$, $D_i$ the stationary law."""
    rewards = R if R.ndim == 2 else (P * R).sum(-1)
    weighted = np.swapaxes(features * stationary[..., None], 1, 2)
    A = weighted @ (discount[:, None, None] * (P @ features) - features)
    return A, -(weighted @ rewards[..., None])[..., 0]


def _check_rank(features: np.ndarray, stationary: np.ndarray) -> None:
    ranks = np.linalg.matrix_rank(np.sqrt(stationary)[..., None] * features)
    if (ranks < features.shape[-1]).any():
        agent = int(np.argmin(ranks))
        raise ValueError(
            f"`features` must have full column rank {features.shape[-1]} on the states a chain visits, "
            f"got {ranks[agent]} for agent {agent}. Drop dependent columns."
        )
