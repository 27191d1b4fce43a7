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

from ..._linear import transpose
from .exchanges import GroupExchange
from .federation import Federation
from .levels import SitesLaw


class _Round(NamedTuple):
    """The contributions of one agent, and the transition probabilities of the occupancies."""

    L: np.ndarray
    """The map of $(x, 1)$ without contributions."""
    noise: np.ndarray
    mean: np.ndarray
    """$E[B 1\\{t\\} | s]$, `(S, S, N, N)`."""
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
        self._rounds = [self._of(*role.exchanges) for role, *_ in federation.rounds]

    @staticmethod
    def number(federation: Federation) -> float:
        """Returns the number of occupancies; infinity if agents differ, or a round depends on more than them."""
        M, S = federation.num_agents, federation.num_states
        alone = all(len(roles[0].exchanges) == len(roles) == 1 for roles in federation.rounds)
        alone = alone and not federation.remembers and federation.pieces.kernel is None
        equal = alone and federation.starts_alike and not federation.kinds.any() and federation.standing is None
        return scipy.special.comb(M + S - 1, S - 1) if equal else np.inf

    def _of(self, exchange: GroupExchange) -> _Round:
        M, S, n, N = self.federation.num_agents, self.federation.num_states, self.occupancies, exchange.n + 1
        share, begun = exchange.share(np.array([0])), np.eye(S)[:, None, :, None, None]
        mean = share.first(begun * np.eye(N))[:, 0]
        units = np.eye(N * N).reshape(-1, 1, 1, 1, N, N)
        units = begun * (units + transpose(units)) / 2
        square = np.moveaxis(share.second(units, units[..., :0])[0][:, :, 0], 0, 2).reshape(S, S, N * N, N * N)
        moves = [_moves(exchange.kernel[0], M - gone) for gone in range(min(M, 2) + 1)]
        ways, two = list(itertools.product(range(S), repeat=2)), {}
        for (s, r), (t, u) in itertools.product(ways, ways) if M > 1 else ():
            pairs = n[:, s] * (n[:, r] - (s == r))
            two[s, r, t, u] = pairs[:, None] * _without(moves[2], M, (s, r), (t, u), S)
        one = {(s, t): n[:, s, None] * _without(moves[1], M, (s,), (t,), S) for s, t in ways}
        L = np.pad(np.kron(exchange.frame.keep, np.eye(self.dim)), (0, 1))
        L[-1, -1] = 1
        return _Round(L, np.pad(exchange.noise, (0, 1)), mean, square, moves[0], one, two)

    def begin(self, start, *, stationary=False):
        agents, x = self.federation.agents, np.append(self.federation.start @ start, 1.0)
        law = (agents.pi if stationary else agents.start)[0]
        chances = scipy.stats.multinomial.pmf(self.occupancies, self.federation.num_agents, law)
        return (chances[:, None, None] * np.outer(x, x),)

    def round(self, state):
        (blocks,), after = state, np.zeros(())
        for chance, known in zip(self.federation.pieces.chances, self._rounds, strict=True):
            after = after + chance * self._after_one(known, blocks)
        return (after,)

    def _after_one(self, known: _Round, blocks: np.ndarray) -> np.ndarray:
        shape = blocks.shape

        def moved(matrix, Y):
            return np.einsum("mn,...mab->...nab", matrix, Y)

        found = moved(known.everyone, known.L @ blocks @ known.L.T + blocks[..., -1:, -1:] * known.noise)
        for (s, t), matrix in known.one.items():
            Y = moved(matrix, blocks)
            cross = known.mean[s, t] @ Y @ known.L.T
            square = (Y.reshape(*shape[:-2], -1) @ known.square[s, t]).reshape(shape)
            found = found + cross + transpose(cross) + square
        for (s, r, t, u), matrix in known.two.items():
            found = found + known.mean[s, t] @ moved(matrix, blocks) @ known.mean[r, u].T
        return found

    def total(self, state):
        return state[0].sum(-3)

    def starts(self):
        return [(self.base[0][..., -1:, -1:] * X,) for X in self.beginnings()]

    def summed(self, state):
        if not self.settles:
            return state
        total = self.total(state)
        return (state[0] + self.base[0][..., -1:, -1:] * (self.later(total) - total),)


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
