"""Samplings for `Partial`: they determine which agents take part in a round."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from .. import _check
from .._random import Stream
from .base import Round, check_probability

__all__ = ["AbstractSampling", "Availability", "Bernoulli", "UniformSampling", "WeightedSampling"]


class AbstractSampling(eqx.Module):
    """The base class of samplings, from the point of view of one agent.

    !!! example
        >>> class EvenRounds(AbstractSampling):
        ...     share = 0.5
        ...     def __call__(self, round, state):
        ...         return jnp.where(round.index % 2 == 0, 1.0, 0.0), state
        >>> import jax
        >>> weight, state = EvenRounds()(Round(jnp.array(3), jax.random.key(0)), ())
        >>> float(weight)
        0.0
    """

    equal: ClassVar[bool] = True
    """Whether all agents take part with the same probability; if so, the average is over the participating agents."""

    @property
    @abc.abstractmethod
    def share(self) -> Any:
        """The share of agents that take part on average."""

    def init(self) -> Any:
        """The state that an agent keeps from round to round to determine whether it takes part."""
        return ()

    @abc.abstractmethod
    def __call__(self, round: Round, state: Any) -> tuple[Float[Array, ""], Any]:
        """Returns the agent's weight in this round, 0 if it is absent, and the new state."""

    def check(self, num_agents: int) -> None:
        """Raises `ValueError` if the sampling is for a different number of agents."""

    def counts(self, num_agents: int) -> np.ndarray | None:
        """The probabilities that 0, 1, ..., M agents take part, if all sets of equal size are equally likely.

        None if they are not, or if this is not known.
        """
        return None

    def chances(self, num_agents: int) -> np.ndarray | None:
        """Each agent's probability, if agents take part independently of each other; None if that is not known."""
        return None

    @property
    def memory(self) -> Any:
        """The correlation between an agent's presence in one round and in the next."""
        return 0.0


class UniformSampling(AbstractSampling):
    """A fixed number of agents, drawn without replacement; all sets are equally likely.

    **Arguments:**

    - `count`: the number of agents that take part.
    - `num_agents`: the number of all agents.

    Raises `ValueError` if `count` is not between 1 and `num_agents`.

    !!! example
        >>> UniformSampling(5, num_agents=20).share
        0.25

    !!! cite "McMahan et al. (2017), FedAvg"
    """

    count: int
    num_agents: int = eqx.field(static=True)

    def __check_init__(self):
        _check.count("num_agents", self.num_agents)
        _check.number("count", _check.count("count", self.count), most=self.num_agents)

    @property
    def share(self):
        return self.count / self.num_agents

    def __call__(self, round, state):
        return round.agent_is_drawn(self.count, Stream.PARTICIPATION).astype(float), state

    def check(self, num_agents):
        _check_number_of_agents("num_agents", self.num_agents, num_agents)

    def counts(self, num_agents):
        return np.eye(num_agents + 1)[int(self.count)]


class Bernoulli(AbstractSampling):
    """Each agent takes part with the same probability, independently; a round may have no participants.

    **Arguments:**

    - `probability`: the probability, in (0, 1].

    Raises `ValueError` if `probability` is out of range.

    !!! example
        >>> Bernoulli(0.3).share
        0.3
    """

    probability: float

    def __check_init__(self):
        check_probability("probability", self.probability)

    @property
    def share(self):
        return self.probability

    def __call__(self, round, state):
        return round.happens_to_agent(self.probability, Stream.PARTICIPATION).astype(float), state

    def counts(self, num_agents):
        return _binomial(num_agents, self.probability)


class Availability(AbstractSampling):
    r"""Each agent's presence is a Markov chain with two states, started in its stationary distribution.

    An agent is present with probability $\text{up}/(\text{up} + \text{down})$, for $1/\text{down}$ rounds on average.

    **Arguments:**

    - `up`: the probability, in (0, 1], that an absent agent is present in the next round.
    - `down`: the probability, in (0, 1], that a present agent is absent in the next round.

    Raises `ValueError` if a probability is out of range.

    !!! example
        >>> round(Availability(up=0.1, down=0.3).share, 3)
        0.25
    """

    up: float
    down: float

    def __check_init__(self):
        check_probability("up", self.up)
        check_probability("down", self.down)

    @property
    def share(self):
        return self.up / (self.up + self.down)

    def init(self):
        return jnp.zeros((), bool)

    def __call__(self, round, state):
        there, state = round.lasts_for_agent(self.up, self.down, state, Stream.PARTICIPATION)
        return there.astype(float), state

    def counts(self, num_agents):
        return _binomial(num_agents, self.share)

    @property
    def memory(self):
        return 1 - self.up - self.down


class WeightedSampling(AbstractSampling):
    r"""Agent $i$ takes part with probability $p_i$, independently of the others.

    Its reply is weighted by $1/p_i$ and the sum is divided by $M$ (Horvitz and Thompson), which is unbiased for all
    probabilities. An average over the participating agents would be biased towards those that often take part.

    This sampling is for methods with one exchange. FedHSA multiplies the averages of two exchanges over the
    participating agents, and the mean of the product is not the product of the means: at every step size it would
    converge to a point other than the root, so `Partial` raises an error. With `Partial(..., all_answer_first=True)`
    only one of the averages is sampled, and the limit is correct.

    **Arguments:**

    - `probabilities`: $p_i$ in (0, 1], one for each agent.

    Raises `ValueError` if a probability is out of range.

    !!! example
        >>> WeightedSampling([0.1, 0.5, 0.9]).share
        0.5

    !!! cite "Horvitz and Thompson (1952)"
    """

    probabilities: Float[np.ndarray, " agents"]

    equal: ClassVar[bool] = False

    def __init__(self, probabilities: Any):
        self.probabilities = _check.array("probabilities", probabilities, ("M",))
        _check.number("probabilities", self.probabilities, above=0.0, most=1.0)

    @property
    def share(self):
        return float(self.probabilities.mean())

    def __call__(self, round, state):
        p = self.probabilities[round.agent]
        return jnp.where(round.happens_to_agent(p, Stream.PARTICIPATION), 1 / p, 0), state

    def chances(self, num_agents):
        return self.probabilities

    def check(self, num_agents):
        _check_number_of_agents("probabilities", len(self.probabilities), num_agents)


def _binomial(num_agents: int, probability: Any) -> np.ndarray:
    n, p = np.arange(num_agents + 1), float(probability)
    if p == 1:
        return (n == num_agents).astype(float)
    return np.exp(np.log(scipy.special.comb(num_agents, n)) + n * np.log(p) + (num_agents - n) * np.log1p(-p))


def _check_number_of_agents(name: str, count: int, num_agents: int) -> None:
    if count != num_agents:
        raise ValueError(f"`{name}` is for {count} agents, got a problem with {num_agents}.")
