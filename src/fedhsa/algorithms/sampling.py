"""Who takes part in a round: samplings for `Partial`."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from .. import _check
from .._random import Stream
from .._types import Key
from .base import Round, check_probability
from .channel import own_key


class AbstractSampling(eqx.Module):
    """Who takes part in a round, seen from one agent."""

    equal: ClassVar[bool] = True
    """Whether all agents have the same chance; if so, the average is over those present."""

    @property
    @abc.abstractmethod
    def share(self) -> Any:
        """The part of the agents that is present on average."""

    def init(self) -> Any:
        """What an agent keeps from round to round to know whether it takes part."""
        return ()

    @abc.abstractmethod
    def __call__(self, round: Round, state: Any) -> tuple[Float[Array, ""], Any]:
        """The agent's weight in this round, 0 if it is absent, and what it keeps."""

    def check(self, num_agents: int) -> None:
        """Raises if the number of agents is not the one this is for."""

    def counts(self, num_agents: int) -> np.ndarray | None:
        """The probabilities that 0, 1, ..., M agents are there, if given their number all sets are equally likely.

        None where that is not so, or not known.
        """
        return None

    def chances(self, num_agents: int) -> np.ndarray | None:
        """Each agent's own chance, if agents take part independently of each other; None where that is not known."""
        return None

    @property
    def memory(self) -> Any:
        """The correlation between an agent's presence in one round and in the next."""
        return 0.0


class UniformSampling(AbstractSampling):
    """As many agents as asked for, drawn without replacement; all sets are equally likely.

    **Arguments:**

    - `count`: how many take part.
    - `num_agents`: of how many.

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
        ranks = jax.random.permutation(_key(round.key), self.num_agents)
        return _as_weight(ranks[round.agent] < self.count), state

    def check(self, num_agents):
        _check_number_of_agents("num_agents", self.num_agents, num_agents)

    def counts(self, num_agents):
        return np.eye(num_agents + 1)[int(self.count)]


class Bernoulli(AbstractSampling):
    """Each agent takes part with the same probability, whatever the others do; nobody may be there.

    **Arguments:**

    - `probability`: the probability.

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
        return _as_weight(_uniform(round) < self.probability), state

    def counts(self, num_agents):
        return _binomial(num_agents, self.probability)


class Availability(AbstractSampling):
    r"""Each agent comes and goes as a Markov chain of two states, begun in its stationary law.

    It is there with probability $\text{up}/(\text{up} + \text{down})$, for $1/\text{down}$ rounds on average.

    **Arguments:**

    - `up`: the probability that an absent agent is there in the next round.
    - `down`: the probability that a present one is not.

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
        draw = _uniform(round)
        stays = jnp.where(state, draw >= self.down, draw < self.up)
        there = jnp.where(round.index == 0, draw < self.share, stays)
        return _as_weight(there), there

    def counts(self, num_agents):
        return _binomial(num_agents, self.share)

    @property
    def memory(self):
        return 1 - self.up - self.down


class WeightedSampling(AbstractSampling):
    r"""Agent $i$ takes part with probability $p_i$, whatever the others do.

    Its reply counts $1/p_i$ times and the sum is divided by $M$ (Horvitz and Thompson): right on average, however
    unequal the chances. An average over those present would lean towards those who often are.

    It is for methods of one exchange. FedHSA multiplies the averages of two, both over the agents present, and the mean
    of their product is not the product of their means: it would go to a point other than the root, whatever the step,
    and `Partial` raises. With `Partial(..., all_answer_first=True)` one of them is sampled, and the limit is right.

    **Arguments:**

    - `probabilities`: $p_i$, one for each agent.

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
        return jnp.where(_uniform(round) < p, 1 / p, 0), state

    def chances(self, num_agents):
        return self.probabilities

    def check(self, num_agents):
        _check_number_of_agents("probabilities", len(self.probabilities), num_agents)


def _key(key: Any) -> Key:
    return own_key(key, Stream.PARTICIPATION, 0)


def _uniform(round: Round) -> Float[Array, ""]:
    return jax.random.uniform(_key(round.agent_key))


def _binomial(num_agents: int, probability: Any) -> np.ndarray:
    n, p = np.arange(num_agents + 1), float(probability)
    if p == 1:
        return (n == num_agents).astype(float)
    return np.exp(np.log(scipy.special.comb(num_agents, n)) + n * np.log(p) + (num_agents - n) * np.log1p(-p))


def _as_weight(there: Array) -> Float[Array, ""]:
    return there.astype(float)


def _check_number_of_agents(name: str, count: int, num_agents: int) -> None:
    if count != num_agents:
        raise ValueError(f"`{name}` is for {count} agents, got a problem of {num_agents}.")
