"""The shared part of all policy-evaluation methods: an affine operator in the features of a chain with rewards."""

from typing import Any, ClassVar

import numpy as np

from ..sources import AbstractSource
from ._processes import Process, finite_chain
from .base import AbstractAgent, Problem
from .values import value_recorders


class AbstractEvaluator(AbstractAgent):
    """An agent that evaluates a policy whose true values are known, so that value errors can be recorded."""

    rewards: np.ndarray
    features: np.ndarray
    discount: np.ndarray
    A: np.ndarray
    b: np.ndarray
    """The mean operator is $A_i \\theta - b_i$ for every source of observations."""
    target_values: np.ndarray | None
    """The values to learn, if they differ from those of the chain."""
    model_states: np.ndarray | None
    """The model's state whose value counts, if a state may represent another."""

    affine: ClassVar[bool] = True

    def mean_operator(self, theta, /):
        return self.A @ theta - self.b

    def recorders(self):
        known = (self.rewards, self.features, self.discount, self.target_values, self.model_states)
        return value_recorders(lambda: Process(finite_chain(self.source), *known))

    def error(self, theta, state, next_state):
        r"""Returns the TD error $R(s, s') + \gamma \phi(s')^T \theta - \phi(s)^T \theta$ of one or more transitions."""
        discount = self.discounts(next_state)
        following = discount * (self.features[next_state] @ theta)
        return self.reward(state, next_state) + following - self.features[state] @ theta

    def reward(self, state, next_state):
        """Returns the reward of a transition."""
        return self.rewards[state] if self.rewards.ndim == 1 else self.rewards[state, next_state]

    def discounts(self, next_state):
        """Returns the discount on entering a state."""
        return self.discount if self.discount.ndim == 0 else self.discount[next_state]


def evaluation_problem(
    kind: type[AbstractEvaluator], source: AbstractSource, process: Process, A: np.ndarray, b: np.ndarray, **more: Any
) -> Problem:
    """Returns the problem of these evaluators, whose mean operators are $A_i \\theta - b_i$."""
    known = (process.rewards, process.features, process.discount, A, b, process.target_values, process.model_states)
    return Problem(kind(source, *known, **more), like=np.zeros(A.shape[-1]))


def projected(process: Process, E: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Returns $A = \Phi^T D E$ and $b = -\Phi^T D e$ of the operator with means $(E \theta + e)\, \phi$ in states."""
    weighted = process.weighted_features()
    return weighted @ E, -(weighted @ e[..., None])[..., 0]
