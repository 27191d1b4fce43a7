r"""The exact law of any number of equal agents on finite chains, which depends only on the number in each state.

If a round has one exchange and agents remember nothing, they are independent within a round given its start: agent $i$
contributes $B_i x$, and its chain moves to another state. So the moments $E[x x^T 1\{n\}]$ on each occupancy $n$, the
numbers of agents in the $S$ states, form a closed system; there are $\binom{M + S - 1}{S - 1}$ occupancies. With a
correction, every agent's first operator affects every agent's steps, and the system is not closed.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import scipy

from .federation import Exchanged, Federation
from .sites import SitesLaw


class _Round(NamedTuple):
    """The contributions of one agent, and the transition probabilities of the occupancies."""

    mean: np.ndarray
    """$E[B 1\\{t\\} | s]$, `(S, S, N + 1, N + 1)`."""
    square: np.ndarray
    """The maps $Y \\mapsto E[B Y B^T 1\\{t\\} | s]$ on flat matrices."""
    everyone: np.ndarray
    one: dict[Any, np.ndarray]
    """Those of the others if an agent moves from $s$ to $t$, times the number of agents in $s$."""
    two: dict[Any, np.ndarray]


class OccupancyLaw(SitesLaw):
    r"""The moments of $x' = L x + \sum_i B_i x$ on each occupancy.

    If an agent moves from $s$ to $t$, the $M - 1$ others move from $n - 1_s$ to $n' - 1_t$; for a pair of agents there
    are $M - 2$ others. So a round requires $E[B Y B^T]$ and $E[B]$ of one agent, on its state before and after.
    """

    def __init__(self, federation: Federation):
        super().__init__(federation)
        self.occupancies = _occupancies(federation.num_agents, federation.num_states)
        self._rounds = {id(steps): self._of(*steps) for steps in federation.rounds}

    @staticmethod
    def number(federation: Federation) -> float:
        """Returns the number of occupancies; infinity if agents differ, or a round depends on more than them."""
        M, S = federation.num_agents, federation.num_states
        equal = federation.forgets and not federation.kinds.any()
        return scipy.special.comb(M + S - 1, S - 1) if equal else np.inf

    def _of(self, step: Exchanged) -> _Round:
        M, S, n, share = self.federation.num_agents, self.federation.num_states, self.occupancies, step.share(0)
        N = self.dim + 1
        begun, units = np.eye(S)[:, :, None, None], np.eye(N * N).reshape(-1, 1, N, N)
        units = (units + units.swapaxes(-1, -2)) / 2
        square = np.moveaxis(share.squared(begun[:, None] * units), 1, 2).reshape(S, S, N * N, N * N)
        moves = [_moves(share.kernel, M - gone) for gone in range(min(M, 2) + 1)]
        ways, two = list(itertools.product(range(S), repeat=2)), {}
        for (s, r), (t, u) in itertools.product(ways, ways) if M > 1 else ():
            pairs = n[:, s] * (n[:, r] - (s == r))
            two[s, r, t, u] = pairs[:, None] * _without(moves[2], M, (s, r), (t, u), S)
        one = {(s, t): n[:, s, None] * _without(moves[1], M, (s,), (t,), S) for s, t in ways}
        return _Round(share.crossed(begun * np.eye(N)), square, moves[0], one, two)

    @property
    def work(self):
        every = sum((1 + len(round.one) + len(round.two)) * round.everyone.size for round in self._rounds.values())
        return every * (self.dim + 1) ** 2

    def begin(self, start, *, stationary=False):
        start, outcomes = self.lifted(start), self.federation.outcomes
        law = (outcomes.stationary if stationary else outcomes.start)[0]
        chances = scipy.stats.multinomial.pmf(self.occupancies, self.federation.num_agents, law)
        return chances[:, None, None] * np.outer(start, start)

    def exchange(self, steps, blocks):
        (step,), known, shape = steps, self._rounds[id(steps)], blocks.shape

        def moved(matrix, Y):
            return np.einsum("mn,...mab->...nab", matrix, Y)

        found = moved(known.everyone, step.L @ blocks @ step.L.T + blocks[..., -1:, -1:] * step.noise)
        for (s, t), matrix in known.one.items():
            Y = moved(matrix, blocks)
            cross = known.mean[s, t] @ Y @ step.L.T
            square = (Y.reshape(*shape[:-2], -1) @ known.square[s, t]).reshape(shape)
            found = found + cross + np.swapaxes(cross, -1, -2) + square
        for (s, r, t, u), matrix in known.two.items():
            found = found + known.mean[s, t] @ moved(matrix, blocks) @ known.mean[r, u].T
        return found

    def total(self, blocks):
        return blocks.sum(-3)


def _occupancies(number: int, states: int) -> np.ndarray:
    """Returns all distributions of agents over states, `(ways, states)`."""
    bars = itertools.combinations(range(number + states - 1), states - 1)
    ends = np.array([(-1, *bar, number + states - 1) for bar in bars])
    return np.diff(ends, axis=1) - 1


def _moves(kernel: np.ndarray, number: int) -> np.ndarray:
    """Returns the transition probabilities of occupancies for independent agents, adding one agent at a time."""
    S, found = len(kernel), np.ones((1, 1))
    for count in range(1, number + 1):
        now, index = _occupancies(count, S), _index(count - 1, S)
        mover = (now > 0).argmax(1)
        before = index[tuple((now - np.eye(S, dtype=int)[mover]).T)]
        rows, moved = found[before], np.zeros((len(now), len(now)))
        for t in range(S):
            there = now[:, t] > 0
            after = index[tuple((now[there] - np.eye(S, dtype=int)[t]).T)]
            moved[:, there] += kernel[mover, t][:, None] * rows[:, after]
        found = moved
    return found


def _without(moves: np.ndarray, number: int, left: tuple[int, ...], entered: tuple[int, ...], S: int) -> np.ndarray:
    """Returns the transition probabilities of `number` agents, given the states that the others leave and enter."""
    now, index, unit = _occupancies(number, S), _index(number - len(left), S), np.eye(S, dtype=int)
    found = np.zeros((len(now), len(now)))
    fewer = [now - sum(unit[s] for s in states) for states in (left, entered)]
    possible = [(occupancy >= 0).all(1) for occupancy in fewer]
    rows, columns = (index[tuple(occupancy[there].T)] for occupancy, there in zip(fewer, possible, strict=True))
    found[np.ix_(*possible)] = moves[np.ix_(rows, columns)]
    return found


def _index(number: int, states: int) -> np.ndarray:
    """Returns the position of each occupancy, indexed by its numbers."""
    occupancies = _occupancies(number, states)
    index = np.zeros((number + 1,) * states, dtype=int)
    index[tuple(occupancies.T)] = np.arange(len(occupancies))
    return index
