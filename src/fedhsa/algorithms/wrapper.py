"""What a wrapper is: an algorithm around an algorithm, which changes one thing and leaves the rest."""

from typing import Any

import equinox as eqx

from .base import AbstractAlgorithm


class AbstractWrapper(AbstractAlgorithm):
    """An algorithm that is another one but for what it overrides.

    A wrapper that keeps state of its own puts the inner server's (or agent's) state beside it.
    """

    algorithm: eqx.AbstractVar[AbstractAlgorithm]

    @property
    def exact_replies(self):
        return self.algorithm.exact_replies

    @property
    def step_is_per_round(self):
        return self.algorithm.step_is_per_round

    @property
    def block_length(self):
        return self.algorithm.block_length

    def init(self, theta):
        return self.algorithm.init(theta)

    @property
    def exchanges(self):
        return self.algorithm.exchanges

    def check(self, problem):
        self.algorithm.check(problem)

    def expected(self, cost):
        return self.algorithm.expected(cost)


def check_algorithm(wrapper: Any) -> None:
    """Refuses what is not an algorithm."""
    if not isinstance(wrapper.algorithm, AbstractAlgorithm):
        raise ValueError(
            f"`algorithm` must be an algorithm, got {wrapper.algorithm!r}. "
            f"Wrap one: `{type(wrapper).__name__}(FedHSA(0.1, local_steps=10), ...)`."
        )


def refuse_if_exact(wrapper: AbstractWrapper) -> None:
    """Refuses to lose or change the replies of a method that needs them as they were sent."""
    if (reason := wrapper.algorithm.exact_replies) is not None:
        raise TypeError(f"{type(wrapper).__name__} cannot wrap {type(wrapper.algorithm).__name__}: {reason}")
