"""What a method draws in a round: its outcomes are prescribed, one after the other, and have known probabilities.

If an agent's draw matters in one exchange only, such as the loss of a reply, the agent has several *ways* through that
exchange. Other draws, such as the set of agents that take part, are outcomes of the whole round.
"""

import abc
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ...algorithms import Round
from .moments import NotDerivedError

MOST_DRAWS, MOST_OUTCOMES = 6, 64
"""The largest numbers of draws in a round, and of their joint outcomes."""


class Draw(NamedTuple):
    """Something that agents draw in a round."""

    row: int
    """The row of the prescribed outcomes, one for each agent."""
    size: int
    """The number of outcomes of an agent, or of agents in a set that is drawn for all of them."""
    shared: bool
    """Whether it is a set of agents."""
    factor: bool
    """Whether it is a factor that is known by its mean and its variance alone."""


class Script:
    """A record of what a method draws, by stage and number."""

    def __init__(self):
        self.coins: list[float] = []
        self.draws: dict[Any, Draw] = {}
        self.chances: dict[Any, Any] = {}
        """The probabilities of what was drawn since the record was last emptied."""
        self.noise = 0
        """The number of values of the server's noise that were used."""
        self.noises: dict[Any, int] = {}
        """The exchange in which each noise is added."""
        self.exchange = 0

    def drawn(self, which: Any, count: int, chances: Any, *, shared: bool = False, factor: bool = False) -> Draw:
        if which not in self.draws and len(self.draws) == MOST_DRAWS:
            raise NotDerivedError("A round draws very often.")
        draw = self.draws.setdefault(which, Draw(len(self.draws), count, shared, factor))
        if which in self.chances or draw[1:] != (count, shared, factor):
            raise NotDerivedError("An exchange draws twice with the same stage and number.")
        self.chances[which] = chances
        return draw


class Scripted(Round):
    """A round with prescribed outcomes.

    Its `coin` holds its script, the value of the shared coin, the agents' draws, and the server's noise.
    """

    __slots__ = ()

    def happens(self, probability):
        script, value, *_ = self.coin
        script.coins.append(float(probability))
        return jnp.asarray(value < probability)

    def happens_to_agent(self, probability, stage, number=0):
        return self._outcome((stage, number), 2, jnp.stack([1 - probability, jnp.asarray(probability)])) > 0.5

    def drawn_by_agent(self, count, stage, number=0):
        return self._outcome((stage, number), count, jnp.full(count, 1 / count)).astype(int)

    def gain_of_agent(self, std, stage, number=0):
        # Second moments depend on the first two moments of a gain alone, which these outcomes have.
        return 1 + std * (2 * self._outcome((stage, number), 2, jnp.full(2, 0.5), factor=True) - 1)

    def noise(self, shape, dtype, stage, number=0, leaf=0):
        script, *_, values = self.coin
        if (stage, number, leaf) in script.noises:
            raise NotDerivedError("A round adds the same noise twice.")
        script.noises[stage, number, leaf] = script.exchange
        size = math.prod(shape)
        found = values[script.noise : script.noise + size].reshape(shape)
        script.noise += size
        return found

    def agent_is_drawn(self, count, stage):
        return self._outcome((stage, "set"), int(count), jnp.zeros(0), shared=True) > 0.5

    def _outcome(self, which, count, chances, **kind):
        script, _, drawn, _ = self.coin
        return drawn[script.drawn(which, count, chances, **kind).row, self.agent]


class OwnDraws(NamedTuple):
    """Outcomes of all draws that matter in one exchange only, the same for all agents."""

    values: dict[int, int]
    """An outcome for each row of draws."""
    chances: np.ndarray
    """Each agent's probability of them."""


def telling(given: list, drawn: np.ndarray, way: OwnDraws) -> list:
    """Returns the arguments of an exchange with these outcomes of all draws."""
    drawn = drawn.copy()
    for row, value in way.values.items():
        drawn[row] = value
    return [*given[:-1], drawn]


class AbstractExchange(abc.ABC):
    """An exchange that reports what it draws."""

    @abc.abstractmethod
    def chances(self, given: list) -> dict[Any, np.ndarray]:
        """Returns the probabilities of what each agent draws, `(M, count)`."""

    @abc.abstractmethod
    def tells(self, given: list, which: Any) -> bool:
        """Returns whether a draw affects the reply by more than its factor, so that the server can react to it."""


def joint_outcomes(
    exchanges: Sequence[AbstractExchange], script: Script, given: list, num_agents: int, name: str
) -> tuple[tuple[tuple[float, np.ndarray], ...], tuple[tuple[OwnDraws, ...], ...]]:
    """Returns the joint outcomes of a round, and the ways through each of its exchanges."""
    chances = [exchange.chances(given) for exchange in exchanges]
    ways, joint = [], []
    for k, exchange in enumerate(exchanges):
        elsewhere = {which for j, other in enumerate(chances) if j != k for which in other}
        here = [which for which in chances[k] if which not in elsewhere]
        own = [which for which in here if not script.draws[which].shared and not exchange.tells(given, which)]
        joint += [which for which in chances[k] if which not in own and which not in joint]
        values = itertools.product(*(range(script.draws[which].size) for which in own))
        ways.append(
            tuple(
                OwnDraws(
                    {script.draws[which].row: value for which, value in zip(own, chosen, strict=True)},
                    np.prod([chances[k][which][:, v] for which, v in zip(own, chosen, strict=True)], axis=0)
                    * np.ones(num_agents),
                )
                for chosen in values
            )
        )
    every: list[list[tuple[float, int, np.ndarray]]] = []
    for which in joint:
        row, count, shared, factor = script.draws[which]
        if factor:
            raise NotDerivedError(
                f"A gain of {name} enters in several exchanges, which requires more than its variance."
            )
        known, *others = (found[which] for found in chances if which in found)
        if not all(np.allclose(other, known, rtol=1e-10) for other in others):
            raise NotDerivedError(f"An event of {name} has different probabilities in its exchanges.")
        if shared:
            number, choices = math.comb(num_agents, count), itertools.combinations(range(num_agents), count)
            found = ((1 / number, np.isin(np.arange(num_agents), chosen)) for chosen in choices)
        else:
            number, choices = count**num_agents, itertools.product(range(count), repeat=num_agents)
            found = ((float(np.prod(known[np.arange(num_agents), c])), np.array(c)) for c in choices)
        if number > MOST_OUTCOMES:
            raise NotDerivedError(f"What a round of {name} draws has very many outcomes.")
        every.append([(chance, row, values) for chance, values in found if chance > 0])
    if math.prod(len(found) for found in every) > MOST_OUTCOMES:
        raise NotDerivedError(f"What a round of {name} draws has very many outcomes.")
    sets = []
    for outcomes in itertools.product(*every):
        drawn = np.zeros((MOST_DRAWS, num_agents))
        for _, row, values in outcomes:
            drawn[row] = values
        sets.append((math.prod(chance for chance, _, _ in outcomes), drawn))
    return tuple(sets), tuple(ways)
