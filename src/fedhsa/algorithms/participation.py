"""Rounds in which not every agent takes part."""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _check
from .._types import Key
from .base import AbstractAlgorithm, Coded, Cost, Exchange, Replies, Round, check_probability
from .channel import AbstractChannel, OverTheAir, check_channel, own_key, refuse_if_replies_add_up
from .fed_hsa import FedHSA
from .fed_lin import FedLin
from .server import layers

STAGE = 4


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
        """Refuses a number of agents that this is not for."""


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
        _check.number("count", self.count, least=1, most=self.num_agents)
        _check.count("num_agents", self.num_agents)

    @property
    def share(self):
        return self.count / self.num_agents

    def __call__(self, round, state):
        places = jax.random.permutation(_key(round.key), self.num_agents)
        return _as_weight(places[round.agent] < self.count), state

    def check(self, num_agents):
        _check_number_of_agents("num_agents", self.num_agents, num_agents)


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


class WeightedSampling(AbstractSampling):
    r"""Agent $i$ takes part with probability $p_i$, whatever the others do.

    Its reply counts $1/p_i$ times and the sum is divided by $M$ (Horvitz and Thompson): right on average, however
    unequal the chances. An average over those present would lean towards those who often are.

    Of methods with one exchange. FedHSA multiplies the averages of two, both over the agents present, and the mean of
    their product is not that of the factors: it goes to a point beside the root, whatever the step, as do others like
    it, which are refused. With `Partial(..., all_answer="operator")` one of them is sampled, and it goes to the root.

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

    def check(self, num_agents):
        _check_number_of_agents("probabilities", len(self.probabilities), num_agents)


class Memory(NamedTuple):
    """What the inner algorithm keeps, what the sampling keeps, and the agent's weight in this round."""

    inner: Any
    sampling: Any
    weight: Float[Array, ""]


class Partial(AbstractChannel):
    r"""Only some agents take part in a round, the same ones in all its exchanges.

    An absent agent sends nothing and its memory stays as it is. The server averages over those present; with equal
    chances that is right on average whenever somebody is there, and it varies less than dividing by the expected
    number. With unequal chances (`WeightedSampling`) replies count in inverse proportion to them.

    FedHSA with both exchanges among the agents present heads each round for the root of their average, and without
    noise keeps a squared error of order $\eta$. If all answer the first exchange, which takes one evaluation, then
    $\bar g$ vanishes at $\theta^\star$, there no agent moves whoever it is, and the limit without noise is
    $\theta^\star$: each round multiplies the error by the mean of the agents' own round maps over those present, and
    their product tends to zero at small steps. SCAFFOLD divides its control variates by all agents, as it must.

    In `Weighted(Partial(...), ...)` replies are divided by the weights of all agents and not of those present, which
    is right on average; for methods of one exchange, or where all answer the first. In `Partial(Delayed(...), ...)` a
    reply counts if its agent is there both when it is computed and when it arrives.

    **Arguments:**

    - `algorithm`: the algorithm the agents run.
    - `sampling`: who takes part, for instance `UniformSampling(10, num_agents=100)`.
    - `all_answer`: `"operator"` if everyone answers the first exchange of FedHSA or FedLin. In the cost it counts as
      one observation, one evaluation, and as many numbers as the other exchange.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> method, half = fedhsa.FedHSA(0.02, local_steps=5), UniformSampling(2, num_agents=4)
        >>> plain, steady = Partial(method, half), Partial(method, half, all_answer="operator")
        >>> [bool(fedhsa.simulate(problem.noiseless(), a, rounds=500).error[0, -1] < 1e-20) for a in (plain, steady)]
        [False, True]
        >>> fedhsa.cost(problem, plain).floats_up, fedhsa.cost(problem, steady).floats_up
        (3.0, 4.5)

    !!! cite "McMahan et al. (2017), FedAvg; Karimireddy et al. (2020), SCAFFOLD. Of FedHSA: this package."
    """

    algorithm: AbstractAlgorithm
    sampling: AbstractSampling
    all_answer: str | None = eqx.field(static=True, default=None)

    stage: ClassVar[int] = STAGE

    def __check_init__(self):
        check_channel(self)
        if not isinstance(self.sampling, AbstractSampling):
            raise ValueError(f"`sampling` must say who takes part, got {self.sampling!r}. Use `Bernoulli(0.5)`, say.")
        if self.all_answer is not None:
            self._check_that_all_can_answer()
        if not self.sampling.equal:
            self._refuse_unequal_chances()

    def _check_that_all_can_answer(self) -> None:
        if not all(isinstance(layer, FedHSA | FedLin | AbstractChannel) for layer in layers(self.algorithm)):
            raise TypeError(
                "`all_answer` is for FedHSA and FedLin and for channels around them: only of these is it known what an "
                f"answer of everyone costs. Got {self.algorithm!r}; what else the server does goes outside."
            )
        if self.all_answer != "operator":
            which = f"`all_answer` must be 'operator', the first exchange, got {self.all_answer!r}"
            raise ValueError(f"{which}: the second goes on from the first, which an absent agent has missed.")

    def _refuse_unequal_chances(self) -> None:
        refuse_if_replies_add_up(self, "Use Bernoulli or UniformSampling.")
        *_, method = layers(self.algorithm)
        this = "Partial with unequal chances cannot wrap"
        if (reason := self.equal_weights) is not None and not isinstance(method, FedHSA):
            raise TypeError(f"{this} {type(method).__name__}: {reason}")
        if any(isinstance(layer, OverTheAir) for layer in layers(self.algorithm)):
            raise TypeError(f"{this} OverTheAir: the receiver divides its noise by those who send, not by all agents.")

    @property
    def equal_weights(self):
        if len(self.algorithm.exchanges) == 1 or self.all_answer is not None:
            return None
        return (
            "the method multiplies the averages of two exchanges over the same agents. With unequal weights or chances "
            "each is right on average and the product is not. Use FedHSA or FedLin with `all_answer='operator'`."
        )

    def check(self, problem):
        self.algorithm.check(problem)
        self.sampling.check(problem.num_agents)

    def init(self, theta):
        server, inner = self.algorithm.init(theta)
        return server, Memory(inner, self.sampling.init(), jnp.zeros((), float))

    @property
    def exchanges(self):
        return tuple(
            e._replace(local=self._local(e, first=number == 0), aggregate=self._aggregate(e))
            for number, e in enumerate(self.algorithm.exchanges)
        )

    def expected(self, cost):
        full, share = self.algorithm.expected(cost), self.sampling.share
        if self.all_answer is None:
            return Cost(*(share * part for part in full))
        # Messages of all exchanges are alike, and an answer that all can give takes one evaluation.
        alike, single = share + (1 - share) / full.exchanges, 1 - share
        return Cost(
            exchanges=share * full.exchanges + single,
            floats_down=alike * full.floats_down,
            floats_up=alike * full.floats_up,
            samples=share * full.samples + single,
            evaluations=share * full.evaluations + single,
        )

    def _local(self, exchange: Exchange, first: bool):
        def local(message, memory, agent, block, round):
            inner, state, weight = memory
            if first:
                weight, state = self.sampling(round, state)
            reply, moved = exchange.local(message, inner, agent, block, round)
            if exchange.name == self.all_answer:
                return reply, Memory(moved, state, weight)
            there = weight > 0
            inner = jax.tree.map(lambda new, old: jnp.where(there, new, old), moved, inner)
            reply = jax.tree.map(lambda x: jnp.where(there, x, jnp.zeros_like(x)), reply)
            # Whether there is a reply is seen from its coming, and takes no bits.
            return (Coded(weight, 0.0), reply), Memory(inner, state, weight)

        return local

    def _aggregate(self, exchange: Exchange):
        if exchange.name == self.all_answer:
            return exchange.aggregate

        def aggregate(server, replies, round):
            coded, values = replies.values
            chances, given = coded.values, replies.weights
            if self.sampling.equal and given is None:
                return exchange.aggregate(server, Replies(values, chances), round)
            if self.sampling.equal:  # the inverse of each agent's chance, given how many are there
                chances = chances * (round.num_agents / jnp.maximum(jnp.sum(chances), 1))
            given = jnp.ones_like(chances) if given is None else given
            weights = given * chances
            whole = jnp.sum(weights) / jnp.sum(given)  # divided by all agents' weights, not by those of who is there
            values = jax.tree.map(lambda x: whole.astype(x.dtype) * x, values)
            return exchange.aggregate(server, Replies(values, weights), round)

        return aggregate


def _key(key: Any) -> Key:
    return own_key(key, STAGE, 0)


def _uniform(round: Round) -> Float[Array, ""]:
    return jax.random.uniform(_key(round.agent_key))


def _as_weight(there: Array) -> Float[Array, ""]:
    return there.astype(float)


def _check_number_of_agents(name: str, count: int, num_agents: int) -> None:
    if count != num_agents:
        raise ValueError(f"`{name}` is for {count} agents, got a problem of {num_agents}.")
