"""The returns of policies, exact in models and estimated from episodes elsewhere, and their recorders."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import tree
from .._linear import solve
from .._random import as_key, fold_in
from ..environments.parametric import AbstractCategorical
from ..environments.rollouts import play

SETTLED, MOST = 1e-13, 1_000_000
"""Value iteration ends when the values change by less than this tolerance, or after this number of iterations."""


class ExactReturns(eqx.Module):
    r"""The exact returns of one agent: $J(\theta) = E \sum_t \gamma^t (r_t - \tau \log \pi_\theta(a_t \mid s_t))$."""

    going: np.ndarray
    """Discounted transitions within an episode, `(S, A, S)`."""
    rewards: np.ndarray
    """Mean rewards, `(S, A)`; 0 where an episode has ended."""
    start: np.ndarray
    """`(S,)`."""
    seen: np.ndarray
    """The policy's input in each state, `(S,)` or `(S, k)`."""
    acting: np.ndarray
    """Whether an action counts in each state, `(S,)`; it does not count after the end of an episode."""
    discount: np.ndarray

    def chances(self, policy: AbstractCategorical, theta: Any) -> tuple[Any, Any]:
        """Returns the actions' probabilities in each state, `(S, A)`, and their logarithms (0 for probability 0)."""
        seen = jnp.asarray(self.seen)
        chances, logs = (jax.vmap(of, (None, 0))(theta, seen) for of in (policy.chances, policy.log_chances))
        return chances, jnp.where(jnp.isneginf(logs), 0.0, logs)

    def action_values(self, policy: AbstractCategorical, theta: Any, entropy: Any, horizon: int | None) -> Any:
        r"""Returns $Q(s, a)$, `(S, A)`, of a whole episode, or of its first `horizon` steps."""
        chances, logs = self.chances(policy, theta)
        rewards = self.rewards - jnp.where(self.acting[:, None], entropy * logs, 0.0)
        if horizon is None:
            kernel = jnp.einsum("sa,sat->st", chances, self.going)
            V = solve(jnp.eye(len(kernel), dtype=kernel.dtype) - kernel, jnp.sum(chances * rewards, -1))
            return rewards + self.going @ V

        def back(V, _):
            Q = rewards + self.going @ V
            return jnp.sum(chances * Q, -1), None

        V, _ = jax.lax.scan(back, jnp.zeros(len(self.start), rewards.dtype), length=horizon - 1)
        return rewards + self.going @ V

    def returns(self, policy: AbstractCategorical, theta: Any, entropy: Any = 0.0, horizon: int | None = None) -> Any:
        r"""Returns $J(\theta)$ of a whole episode, or of its first `horizon` steps."""
        chances, _ = self.chances(policy, theta)
        return self.start @ jnp.sum(chances * self.action_values(policy, theta, entropy, horizon), -1)

    def advantages(self, policy: AbstractCategorical, theta: Any, entropy: Any) -> Any:
        r"""Returns $Q(s, a) - V(s)$, `(S, A)`, of a whole episode."""
        Q, (chances, _) = self.action_values(policy, theta, entropy, None), self.chances(policy, theta)
        return Q - jnp.sum(chances * Q, -1, keepdims=True)


class ExactRecorder(eqx.Module):
    """A recorder of exact quantities of models, in each agent's environment or on average."""

    policy: Any
    exact: ExactReturns
    entropy: Any
    best: Any
    """The best value of the mean objective, for the gap."""
    kind: str = eqx.field(static=True)

    def __call__(self, snapshot: Any) -> Any:
        if self.kind in ("returns", "mean_return"):
            each = jax.vmap(lambda policy, exact: exact.returns(policy, snapshot.theta))(self.policy, self.exact)
            return each if self.kind == "returns" else jnp.mean(each)

        def objective(theta):
            of_agent = lambda policy, exact, entropy: exact.returns(policy, theta, entropy)  # noqa: E731
            return jnp.mean(jax.vmap(of_agent)(self.policy, self.exact, self.entropy))

        if self.kind == "gap":
            return self.best - objective(snapshot.theta)
        return jnp.linalg.norm(tree.ravel(jax.grad(objective)(snapshot.theta)))


class PlayedReturns(eqx.Module):
    """A recorder of undiscounted returns from separate episodes, which do not depend on the rest of the run."""

    agents: Any
    average: bool = eqx.field(static=True)

    def __call__(self, snapshot: Any) -> Any:
        def of_agent(agent):
            key = fold_in(fold_in(as_key(0), snapshot.round), agent.number)
            played = play(agent.world, agent.policy, snapshot.theta, key, agent.evaluation_episodes, agent.horizon)
            return jnp.mean(jnp.sum(played.reward, axis=1))

        each = jax.vmap(of_agent)(self.agents)
        return jnp.mean(each) if self.average else each


def exact_recorders(policy: Any, exact: ExactReturns, entropy: np.ndarray) -> dict[str, Callable[[], Callable]]:
    def make(kind: str) -> ExactRecorder:
        best = best_mean_return(exact, entropy) if kind == "gap" else None
        return ExactRecorder(policy, exact, entropy, best, kind)

    return {kind: lambda kind=kind: make(kind) for kind in ("returns", "mean_return", "gradient_norm", "gap")}


def best_mean_return(exact: ExactReturns, entropy: np.ndarray) -> np.ndarray:
    """Returns the largest mean of the agents' objectives over all policies, by value iteration.

    It is known if agents differ only in their rewards: then it is the best value of the averaged model.
    """
    for name, part in (("transitions", exact.going), ("start", exact.start)):
        if not np.allclose(part, part[:1], atol=1e-12):
            raise ValueError(
                f"`record`: the 'gap' is known where agents differ only in their rewards, and here they differ in "
                f"`{name}`. Record 'mean_return' and 'gradient_norm'."
            )
    going, rewards, tau = exact.going[0], exact.rewards.mean(0), float(entropy[0])
    V = np.zeros(len(rewards))
    following = V
    for _ in range(MOST):
        Q = rewards + going @ V
        top = Q.max(-1)
        following = top if tau == 0 else top + tau * np.log(np.exp((Q - top[:, None]) / tau).sum(-1))
        following = np.where(exact.acting[0], following, 0.0)
        if abs(following - V).max() <= SETTLED * (1 + abs(V).max()):
            break
        V = following
    return exact.start[0] @ following
