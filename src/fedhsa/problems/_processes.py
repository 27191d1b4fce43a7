"""Markov reward processes with features, from arrays or from a model under a policy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _check
from .._linear import by_parts
from ..environments import Model
from ..environments.model import at_states
from ..sources import AbstractSource, FiniteChain

STARTS = ("stationary", "episode")


class Process(NamedTuple):
    """Markov reward processes with features, one for each agent."""

    chain: FiniteChain
    rewards: np.ndarray
    """`(M, S)` on leaving a state, or `(M, S, S)` on a transition."""
    features: np.ndarray
    """`(M, S, d)`."""
    discount: np.ndarray
    """`(M,)`, or `(M, S)` by the state entered: 0 where an episode ends."""
    target_values: np.ndarray | None = None
    """The values to learn, `(M, S)`, if they differ from those of the chain: those of a policy, before it acts."""
    model_states: np.ndarray | None = None
    """The model's state whose value counts, `(M, S)`, if a state may represent another; -1 for none."""

    def by_parts(self, function: Callable[["Process"], Any]) -> Any:
        """Returns `function(process)`, computed for a few agents at a time to limit the size of temporary arrays."""
        return by_parts(function, self, size=2 * self.chain.transition[0].size)

    @property
    def discounted_transitions(self) -> np.ndarray:
        r"""The discounted transitions $P \Gamma$, `(M, S, S)`."""
        discount = self.discount[..., None, None] if self.discount.ndim == 1 else self.discount[:, None, :]
        return self.chain.transition * discount

    @property
    def mean_rewards(self) -> np.ndarray:
        """The mean reward on leaving each state, `(M, S)`."""
        return self.rewards if self.rewards.ndim == 2 else (self.chain.transition * self.rewards).sum(-1)

    def values(self) -> np.ndarray:
        r"""Returns the values to learn, `(M, S)`; those of the chain are $V = \bar R + P \Gamma V$."""
        if self.target_values is not None:
            return self.target_values
        identity = np.eye(self.chain.stationary.shape[-1])
        return np.linalg.solve(identity - self.discounted_transitions, self.mean_rewards[..., None])[..., 0]

    def average_values(self) -> np.ndarray:
        r"""Returns $\frac1M \sum_i V_i$ in each agent's states, `(M, S)`, with 0 where an agent's episode ends."""
        values = self.values()
        if self.model_states is None:
            return np.broadcast_to(values.mean(0), values.shape)
        somewhere = self.model_states >= 0
        by_state = np.zeros((len(values), self.model_states.max() + 1))
        by_state[np.nonzero(somewhere)[0], self.model_states[somewhere]] = values[somewhere]
        return np.where(somewhere, by_state.mean(0)[self.model_states], 0.0)

    def errors(self) -> tuple[np.ndarray, np.ndarray]:
        r"""Returns $E = P \Gamma \Phi - \Phi$ and $e = \bar R$; the mean TD error of each state is $E \theta + e$."""
        return self.discounted_transitions @ self.features - self.features, self.mean_rewards

    def weighted_features(self) -> np.ndarray:
        r"""Returns $\Phi^T D$, `(M, d, S)`, with the stationary distribution $D$."""
        return np.swapaxes(self.features * self.chain.stationary[..., None], 1, 2)


def from_arrays(P: Any, R: Any, features: Any, discount: Any, start: Any = None) -> Process:
    """Returns checked processes, whose features have full rank on the states that the agents together visit."""
    sizes: dict[str, int] = {}
    P = _check.array("P", P, ("M", "S", "S"), sizes)
    R = _check.array("R", R, ("M", "S") if np.ndim(R) == 2 else ("M", "S", "S"), sizes)
    features = _check.array("features", features, ("M", "S", "d"), sizes)
    discount = np.full(sizes["M"], discount) if np.ndim(discount) == 0 else discount
    by_state = np.ndim(discount) == 2
    discount = _check.array("discount", discount, ("M", "S") if by_state else ("M",), sizes)
    wrong = (discount < 0) | ((discount > 1) if by_state else (discount >= 1))
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0])
        raise ValueError(f"`discount` must lie in [0, 1), got {discount[where]} for agent {where[0]}.")
    process = Process(FiniteChain(P, start), R, features, discount)
    _check_rank(process)
    return process


def from_model(
    model: Model, policy: Any = None, features: Any = None, *, pairs: bool | None = None, start: str = "stationary"
) -> Process:
    """Returns the processes of agents that follow a policy in their models.

    Their states are the model's states if rewards depend only on these, and otherwise state-action pairs; `pairs`
    overrides this choice.
    """
    _check.choice("start", start, STARTS)
    if pairs is None:
        pairs = not _rewards_of_states(model)
    chain = model.chain(policy, pairs=pairs)
    table = state_features(model, features)
    features = at_states(table, chain.states, 0.0)
    first = chain.start if start == "episode" else None
    process = from_arrays(chain.transition, chain.rewards, features, chain.discount, first)
    model_states = chain.states.astype(np.int32)
    values = at_states(model.values(policy), chain.states, 0.0)
    return process._replace(target_values=values, model_states=model_states)


def state_features(model: Model, features: Any = None) -> np.ndarray:
    """Returns the features of states, `(M, S, d)`: common features, one table per agent, or a coordinate per state."""
    shape = (model.num_agents, model.num_states)
    features = np.eye(model.num_states)[:, model.decision_states] if features is None else features
    features = _check.array("features", features, ("S", "d") if np.ndim(features) == 2 else ("M", "S", "d"))
    if features.shape[-2] != model.num_states or (features.ndim == 3 and len(features) != model.num_agents):
        raise ValueError(f"`features` must have shape (M, S, d) or (S, d) with M, S = {shape}, got {features.shape}.")
    return np.broadcast_to(features, (*shape, features.shape[-1]))


def finite_chain(source: AbstractSource) -> FiniteChain:
    """Returns the chain that a source observes."""
    inner: Any = source
    while not isinstance(inner, FiniteChain):
        inner = getattr(inner, "source", None) or getattr(inner, "chain", None)
        if inner is None:
            raise TypeError(f"The values of {type(source).__name__} are not known: it observes no finite chain.")
    return inner


def _rewards_of_states(model: Model) -> bool:
    """Returns whether the reward of a transition is independent of the action that caused it."""
    if model.num_actions == 1:
        return True
    rewards = model.rewards if model.rewards.ndim == 4 else model.rewards[..., None]
    possible = (model.transitions > 0) & ~model.ends[:, :, None, None]
    highest = np.where(possible, rewards, -np.inf).max(2)
    lowest = np.where(possible, rewards, np.inf).min(2)
    return bool((highest <= lowest).all(where=possible.any(2)))


def _check_rank(process: Process) -> None:
    d = process.features.shape[-1]
    squares = process.by_parts(lambda part: part.weighted_features() @ part.features)
    rank = np.linalg.matrix_rank(squares.sum(0), hermitian=True)
    if rank < d:
        raise ValueError(
            f"`features` must have full column rank {d} on the states that the chains visit, got {rank}. "
            "Drop dependent columns."
        )
