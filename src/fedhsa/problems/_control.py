"""Shared parts of the control methods: features of state-action pairs, and the returns of a policy."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check
from .._linear import solve
from ..environments import Model
from ..environments.model import at_states
from ..environments.policies import softmax
from .base import AbstractAgent


def action_features(model: Model, features: Any = None) -> np.ndarray:
    """Returns the features of pairs, `(M, S, A, d)`: common features, one table per agent, or a coordinate per pair.

    They are zero between two episodes, where no action counts; a state that represents another has its features.
    """
    M, S, A = model.num_agents, model.num_states, model.num_actions
    if features is None:
        features = np.eye(S * A).reshape(S, A, S, A)[:, :, model.decision_states].reshape(S, A, -1)
    features = _check.array("features", features, ("S", "A", "d") if np.ndim(features) == 3 else ("M", "S", "A", "d"))
    if features.shape[-3:-1] != (S, A) or (features.ndim == 4 and len(features) != M):
        raise ValueError(
            f"`features` must have shape (M, S, A, d) or (S, A, d) with M, S, A = {M, S, A}, got {features.shape}."
        )
    table = np.broadcast_to(features, (M, S, A, features.shape[-1]))
    return at_states(table, model.continuing().states, 0.0)


def one_hot_coordinates(features: np.ndarray) -> np.ndarray | None:
    """Returns the coordinate of the 1 in one-hot features, `(M, S, A)`; None if some features are not one-hot.

    Values of a table are looked up at this coordinate, which is faster than a product with features. If no action
    counts, the coordinate is past the end.
    """
    ones = features == 1
    if not ((features == 0) | ones).all() or (ones.sum(-1) > 1).any():
        return None
    return np.where(ones.any(-1), ones.argmax(-1), features.shape[-1]).astype(np.int32)


class AbstractModelAgent(AbstractAgent):
    """An agent that knows its decision process, from which the means of its operators and its returns follow."""

    transitions: np.ndarray
    """`(S, A, S)`."""
    rewards: np.ndarray
    """`(S, A, S)`."""
    features: np.ndarray
    """Of states `(S, d)`, or of pairs of state and action `(S, A, d)`."""
    discount: np.ndarray
    """`(S,)`, by the state entered: 0 where an episode ends."""
    start: np.ndarray
    """`(S,)`, the distribution of the first state of an episode."""

    def return_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Discounted transitions, mean rewards and starts, which `policy_return` needs; `self` is stacked."""
        discounted = self.transitions * self.discount[:, None, None, :]
        return discounted, (self.transitions * self.rewards).sum(-1), self.start


class AbstractPairAgent(AbstractModelAgent):
    """An agent that learns the values of state-action pairs."""

    coordinates: np.ndarray | None = eqx.field(default=None, kw_only=True)
    """`(S, A)`, the coordinate of each pair, if the features are those of a table."""
    inverse_temperature: np.ndarray | None = eqx.field(default=None, kw_only=True)
    """$\\beta$ of the softmax policy; None for the greedy policy."""

    def values(self, theta, *pair):
        """Returns the values of a pair, of the pairs of some states, or of all pairs, `(S, A)`."""
        if self.coordinates is None:
            return self.features[pair] @ theta
        return theta.at[self.coordinates[pair]].get(mode="fill", fill_value=0.0)

    def times_features(self, theta, errors, *pair):
        """Returns the sum of the errors of a pair, or of all pairs, times their features."""
        if self.coordinates is None:
            return jnp.tensordot(errors, self.features[pair], axes=jnp.ndim(errors))
        return jnp.zeros_like(theta).at[self.coordinates[pair]].add(errors, mode="drop")

    def mean_errors(self, values, next_values):
        """Returns the mean error of each pair, `(S, A)`, if the next states have the values `next_values`, `(S,)`."""
        ahead = self.rewards + (self.discount * next_values)[None, None, :]
        return jnp.sum(self.transitions * ahead, axis=-1) - values

    def recorders(self):
        def make(average: bool) -> Returns:
            return Returns(self.features, *self.return_arrays(), self.inverse_temperature, average)

        return {"returns": lambda: make(False), "mean_return": lambda: make(True)}


def stationary(P: Any) -> Any:
    """Returns the stationary distribution of a kernel `(S, S)`: a differentiable `sources.finite.stationary_law`."""
    S = P.shape[-1]
    system = (jnp.eye(S, dtype=P.dtype) - P + 1.0).T
    return solve(system, jnp.ones(S, dtype=P.dtype))


def policy_return(policy: Any, discounted_transitions: Any, rewards: Any, start: Any) -> Any:
    """Returns the expected discounted return of an episode under a policy `(S, A)` in one environment."""
    kernel = jnp.einsum("sa,sat->st", policy, discounted_transitions)
    earned = jnp.sum(policy * rewards, axis=-1)
    return start @ solve(jnp.eye(len(earned), dtype=kernel.dtype) - kernel, earned)


def greedy(values: Any) -> Any:
    """Returns the policy that takes the best actions with equal probabilities, `(..., A)`."""
    best = (values >= jnp.max(values, axis=-1, keepdims=True)).astype(values.dtype)
    return best / jnp.sum(best, axis=-1, keepdims=True)


class Returns(eqx.Module):
    """The expected return of an episode under the learned policy, in each agent's environment or on average."""

    features: np.ndarray
    discounted_transitions: np.ndarray
    """Discounted transitions, `(M, S, A, S)`."""
    rewards: np.ndarray
    """Mean rewards, `(M, S, A)`."""
    start: np.ndarray
    inverse_temperature: np.ndarray | None
    """The inverse temperature of the softmax policy; None for the greedy policy."""
    average: bool = eqx.field(static=True)

    def __call__(self, snapshot: Any) -> Any:
        def of_agent(features, discounted_transitions, rewards, start, inverse_temperature):
            values = features @ snapshot.theta
            policy = greedy(values) if inverse_temperature is None else softmax(values, inverse_temperature)
            return policy_return(policy, discounted_transitions, rewards, start)

        arrays = (self.features, self.discounted_transitions, self.rewards, self.start, self.inverse_temperature)
        each = jax.vmap(of_agent)(*arrays)
        return jnp.mean(each) if self.average else each
