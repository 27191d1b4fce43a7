"""Partial participation: rounds in which some agents are absent."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .._random import Stream
from .base import Coded, Cost, Replies
from .demands import Effect
from .sampling import AbstractSampling
from .wrapper import AbstractWrapper


class Memory(NamedTuple):
    """The inner algorithm's memory, and the state of the sampling."""

    inner: Any
    sampling: Any


class Partial(AbstractWrapper):
    r"""Only some agents take part in a round, the same agents in all its exchanges.

    An absent agent sends nothing and its memory does not change. The server averages over the participating agents.
    With equal probabilities the average is unbiased in every round that has participants, and it varies less than
    division by the expected number of participants. With unequal probabilities (`WeightedSampling`) replies are
    weighted by the inverse probabilities.

    If both exchanges take place among the participating agents, FedHSA moves towards the root of their average in each
    round, and without noise keeps a squared error of order $\eta$. If all agents answer the first exchange, which takes
    one evaluation, then $\bar g$ vanishes at $\theta^\star$, no agent moves there, and the limit without noise is
    $\theta^\star$: each round multiplies the error by the mean of the participating agents' own round maps, and their
    product tends to zero at small step sizes. SCAFFOLD divides its control variates by the number of all agents, as it
    must.

    In `Weighted(Partial(...), ...)` replies are divided by the weights of all agents rather than those of the
    participants, which is unbiased; this requires a method with one exchange, or that all agents answer the first. In
    `Partial(Delayed(...), ...)` an agent computes and sends only while it is present, and delays count these rounds.

    **Arguments:**

    - `algorithm`: the algorithm that the agents run.
    - `sampling`: one of `fedhsa.sampling`, for instance `UniformSampling(10, num_agents=100)`.
    - `all_answer_first`: whether all agents answer the first exchange, for methods in which this takes one evaluation
      (FedHSA, FedLin). In the cost it counts as one observation, one evaluation, and the numbers of one exchange.

    Raises `ValueError` if `sampling` is not a sampling for the problem's agents, and `TypeError` if the algorithm does
    not support absent agents or `all_answer_first`.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> method, half = fedhsa.FedHSA(0.02, local_steps=5), fedhsa.sampling.UniformSampling(2, num_agents=4)
        >>> plain, steady = Partial(method, half), Partial(method, half, all_answer_first=True)
        >>> [bool(fedhsa.simulate(problem.noiseless(), a, rounds=500).error[0, -1] < 1e-20) for a in (plain, steady)]
        [False, True]
        >>> fedhsa.cost(problem, plain).floats_up, fedhsa.cost(problem, steady).floats_up
        (3.0, 4.5)

    !!! cite "McMahan et al. (2017), FedAvg; Karimireddy et al. (2020), SCAFFOLD. For FedHSA: this package."
    """

    sampling: AbstractSampling
    all_answer_first: bool = eqx.field(static=True, default=False)

    stage = Stream.PARTICIPATION

    def __check_init__(self):
        if not isinstance(self.sampling, AbstractSampling):
            raise ValueError(
                f"`sampling` must be one of `fedhsa.sampling`, got {self.sampling!r}. Use `Bernoulli(0.5)`."
            )
        if self.all_answer_first is not False:
            self._check_that_all_can_answer()

    def _check_that_all_can_answer(self) -> None:
        if self.all_answer_first is not True:
            raise ValueError(f"`all_answer_first` must be True or False, got {self.all_answer_first!r}.")
        *wrappers, method = self.algorithm.layers
        if not method.first_exchange_is_one_evaluation or any(wrapper.stage is None for wrapper in wrappers):
            raise TypeError(
                "`all_answer_first` supports methods whose first exchange takes one evaluation, like FedHSA and "
                "FedLin, and wrappers on the path of their replies; the cost of the answers is known only for these. "
                f"Got {self.algorithm!r}; put other wrappers outside."
            )

    @property
    def effects(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        found = Effect.SKIPS_AGENTS if self.sampling.equal else Effect.SKIPS_AGENTS | Effect.UNEQUAL_CHANCES
        if self.all_answer_first or len(self.algorithm.exchanges) == 1:
            return found
        return found | (Effect.SAMPLES_PRODUCTS if self.sampling.equal else Effect.UNEQUAL_PRODUCTS)

    def check(self, problem):
        self.algorithm.check(problem)
        self.sampling.check(problem.num_agents)

    def init(self, theta):
        server, inner = self.algorithm.init(theta)
        return server, Memory(inner, self.sampling.init())

    def average_cost(self, cost):
        full, share = self.algorithm.average_cost(cost), self.sampling.share
        if not self.all_answer_first:
            return Cost(*(share * part for part in full))
        # Messages of all exchanges have the same size, and the first answer takes one evaluation.
        messages, single = share + (1 - share) / full.exchanges, 1 - share
        return Cost(
            exchanges=share * full.exchanges + single,
            floats_down=messages * full.floats_down,
            floats_up=messages * full.floats_up,
            samples=share * full.samples + single,
            evaluations=share * full.evaluations + single,
        )

    def _around(self, exchange, number):
        all_answer = self.all_answer_first and number == 0
        last = number == len(self.algorithm.exchanges) - 1

        def local(message, memory, agent, block, round):
            inner, state = memory
            weight, later = self.sampling(round, state)  # the same in every exchange of the round
            state = later if last else state
            reply, moved = exchange.local(message, inner, agent, block, round)
            if all_answer:
                return reply, Memory(moved, state)
            there = weight > 0
            inner = jax.tree.map(lambda new, old: jnp.where(there, new, old), moved, inner)
            reply = jax.tree.map(lambda x: jnp.where(there, x, jnp.zeros_like(x)), reply)
            # The server sees whether a reply comes, so its presence takes no bits.
            return (Coded(weight, 0.0), reply), Memory(inner, state)

        def aggregate(server, replies, round):
            coded, values = replies.values
            chances, given = coded.values, replies.weights
            if self.sampling.equal and given is None:
                return exchange.aggregate(server, Replies(values, chances), round)
            if self.sampling.equal:  # the inverse of each agent's probability, given the number of participants
                chances = chances * (round.num_agents / jnp.maximum(jnp.sum(chances), 1))
            given = jnp.ones_like(chances) if given is None else given
            weights = given * chances
            whole = jnp.sum(weights) / jnp.sum(given)  # divided by the weights of all agents, not of the participants
            values = jax.tree.map(lambda x: whole.astype(x.dtype) * x, values)
            return exchange.aggregate(server, Replies(values, weights), round)

        if all_answer:
            return exchange._replace(local=local)
        return exchange._replace(local=local, aggregate=aggregate, mean_suffices=False)  # agents send weights too
