"""What a method draws in a round: its outcomes are prescribed, one after the other, and have known probabilities.

If an agent's draw matters in one exchange only, such as the loss of a reply, the agent has several *ways* through that
exchange. Other draws, such as the set of agents that take part, are outcomes of the whole round. If these are many,
every agent has two *roles*, present and absent.
"""

import abc
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy

from ...algorithms import Round
from .moments import NotDerivedError

MOST_DRAWS, MOST_OUTCOMES, MOST_LASTING = 6, 64, 256
"""The largest numbers of draws in a round, and of their joint outcomes, also if these follow on each other."""
CODES = -2
"""The place of the first code of an agent; others have lower numbers."""
NODES, UNLIKELY = 9, 1e-12
"""The number of numbers of present agents by which all of them are represented, and the probability below which a
number does not count."""


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
    memory: float
    """The correlation of an agent's outcomes in successive rounds."""


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
        self.codes: dict[Any, Any] = {}
        """The codecs of what agents code, in order."""
        self.probe: Any = None
        """The agent that is running, which answers what is decoded."""

    def drawn(
        self, which: Any, count: int, chances: Any, *, shared: bool = False, factor: bool = False, memory: float = 0.0
    ) -> Draw:
        if which not in self.draws and len(self.draws) == MOST_DRAWS:
            raise NotDerivedError("A round draws very often.")
        draw = self.draws.setdefault(which, Draw(len(self.draws), count, shared, factor, memory))
        if which in self.chances or draw[1:] != (count, shared, factor, memory):
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

    def lasts_for_agent(self, up, down, state, stage):
        share, memory = up / (up + down), 1 - float(up) - float(down)
        there = self._outcome((stage, "lasting"), 2, jnp.stack([1 - share, jnp.asarray(share)]), memory=memory) > 0.5
        return there, state

    def drawn_by_agent(self, count, stage, number=0):
        return self._outcome((stage, number), count, jnp.full(count, 1 / count)).astype(int)

    def gain_of_agent(self, std, stage, number=0):
        # Second moments depend on the first two moments of a gain alone, which these outcomes have.
        return 1 + std * (2 * self._outcome((stage, number), 2, jnp.full(2, 0.5), factor=True) - 1)

    def coded_by_agent(self, codec, x, stage, number=0, leaf=0):
        script = self.coin[0]
        if codec.moments(x.size) is None and not codec.unbiased:
            raise NotDerivedError(f"{type(codec).__name__} is not linear, not even on average.")
        place = list(script.codes).index((stage, number, leaf)) if (stage, number, leaf) in script.codes else None
        if place is None:
            place, script.codes[stage, number, leaf] = len(script.codes), codec
        return script.probe.answer(x, CODES - place)

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


class Drawing(NamedTuple):
    """An outcome of all draws that matter in a whole round."""

    chance: float
    drawn: np.ndarray
    """The outcomes of all draws, for each agent."""
    row: int = -1
    """If agents have roles, the row of the draw that decides about them; otherwise -1."""
    present: np.ndarray | None = None
    """Each agent's probability to be present, if agents have roles."""
    number: int | None = None
    """How many agents are present, if that is certain; otherwise agents are present independently of each other."""


class Outcomes(NamedTuple):
    """All outcomes of a round, and the ways through each of its exchanges."""

    every: tuple[Drawing, ...]
    ways: tuple[tuple[OwnDraws, ...], ...]
    kernel: np.ndarray | None
    """The probabilities of outcomes given that of the round before; None if they do not depend on it."""


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


def outcomes_of(
    exchanges: Sequence[AbstractExchange], script: Script, given: list, num_agents: int, name: str
) -> Outcomes:
    """Returns the outcomes of a round, and the ways through each of its exchanges."""
    chances = [exchange.chances(given) for exchange in exchanges]
    ways, joint = [], []
    for k, exchange in enumerate(exchanges):
        elsewhere = {which for j, other in enumerate(chances) if j != k for which in other}
        here = [which for which in chances[k] if which not in elsewhere]
        own = [
            which
            for which in here
            if not (script.draws[which].shared or script.draws[which].memory or exchange.tells(given, which))
        ]
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
    every, kernel, nothing = [Drawing(1.0, np.zeros((MOST_DRAWS, num_agents)))], np.ones((1, 1)), script.draws
    for which in joint:
        if nothing[which].factor:
            raise NotDerivedError(
                f"A gain of {name} enters in several exchanges, which requires more than its variance."
            )
        known, *others = (found[which] for found in chances if which in found)
        if not all(np.allclose(other, known, rtol=1e-10) for other in others):
            raise NotDerivedError(f"An event of {name} has different probabilities in its exchanges.")
        found, moves = _of_draw(script.draws[which], known, num_agents)
        most = MOST_OUTCOMES if moves is None else MOST_LASTING
        if len(every) * len(found) > most or (len(joint) > 1 and found[0].row >= 0):
            raise NotDerivedError(f"What a round of {name} draws has very many outcomes.")
        every = [
            b._replace(chance=a.chance * b.chance, drawn=a.drawn + b.drawn) for a, b in itertools.product(every, found)
        ]
        kernel = np.kron(kernel, np.tile([o.chance for o in found], (len(found), 1)) if moves is None else moves)
    lasting = any(script.draws[which].memory for which in joint)
    return Outcomes(tuple(every), tuple(ways), kernel if lasting else None)


def _of_draw(draw: Draw, chances: np.ndarray, num_agents: int) -> tuple[list[Drawing], np.ndarray | None]:
    """Returns the outcomes of one draw, and how they follow on each other if that is not independent."""

    def outcome(chance: float, values: np.ndarray, **roles: Any) -> Drawing:
        drawn = np.zeros((MOST_DRAWS, num_agents))
        drawn[draw.row] = values
        return Drawing(chance, drawn, **roles)

    M, everybody = num_agents, np.arange(num_agents)
    if draw.shared and (number := math.comb(M, draw.size)) <= MOST_OUTCOMES:
        sets = itertools.combinations(range(M), draw.size)
        return [outcome(1 / number, np.isin(everybody, chosen)) for chosen in sets], None
    if not draw.shared and draw.size**M <= (MOST_LASTING if draw.memory else MOST_OUTCOMES):
        every = [np.array(c) for c in itertools.product(range(draw.size), repeat=M)]
        found = [outcome(float(np.prod(chances[everybody, c])), c) for c in every]
        found = [o for o in found if o.chance > 0]
        if not draw.memory:
            return found, None
        return found, functools.reduce(np.kron, [draw.memory * np.eye(2) + (1 - draw.memory) * row for row in chances])
    roles: dict[str, Any] = {"row": draw.row}
    if draw.shared:
        return [_with(outcome, 1.0, draw.size, M, roles)], None
    if draw.memory:
        most = int(math.log2(MOST_LASTING))
        raise NotDerivedError(f"Presence that lasts is predicted for at most {most} agents, got {M}.")
    if draw.size > 2:
        raise NotDerivedError("What a round draws has very many outcomes.")
    if np.ptp(chances[:, 1]) > 0:
        return [outcome(1.0, np.ones(M), **roles, present=chances[:, 1])], None
    return [_with(outcome, p, n, M, roles) for n, p in zip(*_nodes(M, float(chances[0, 1])), strict=True)], None


def _with(outcome: Any, chance: float, count: int, num_agents: int, roles: dict[str, Any]) -> Drawing:
    """Returns the outcome that some number of agents is present, of which the first ones are an example."""
    present = np.full(num_agents, count / num_agents)
    return outcome(chance, np.arange(num_agents) < count, **roles, present=present, number=count)


def _nodes(num_agents: int, probability: float) -> tuple[list[int], np.ndarray]:
    """Returns a few numbers of present agents, and weights with which they have the moments of all of them."""
    n = np.arange(num_agents + 1)
    chances = scipy.stats.binom.pmf(n, num_agents, probability)
    likely = n[chances > UNLIKELY]
    if len(likely) <= NODES:
        return likely.tolist(), chances[likely] / chances[likely].sum()
    some = likely[likely > 0]  # an empty round is unlike all others
    mean, spread = num_agents * probability, math.sqrt(num_agents * probability * (1 - probability))
    roots, _ = np.polynomial.hermite_e.hermegauss(NODES)
    chosen = np.unique(np.clip(np.round(mean + spread * roots), some[0], some[-1]).astype(int))
    powers, z, every = np.arange(len(chosen))[:, None], (chosen - mean) / spread, (some - mean) / spread
    weights = np.linalg.solve(z**powers, every**powers @ chances[some])
    if likely[0] == 0:
        chosen, weights = np.append(chosen, 0), np.append(weights, chances[0])
    return chosen.tolist(), weights / weights.sum()
