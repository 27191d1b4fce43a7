r"""The exact law of any number of equal agents on finite chains, which depends only on the number in each state.

Without a correction, agents are independent within a round given its start: agent $i$ ends at $B_i x$, with
$x = (e, 1)$, and its chain in another state. So the moments $E[x x^T 1\{n\}]$ on each occupancy $n$, the numbers of
agents in the $S$ states, form a closed system; there are $\binom{M + S - 1}{S - 1}$ occupancies. With a correction,
every agent's first operator affects every agent's steps, and the system is not closed.
"""

import itertools

import numpy as np
import scipy

from .clusters import AbstractChainLaw, Agents, local_step


class OccupancyLaw(AbstractChainLaw):
    r"""The moments of $x' = C x + \frac{\alpha_g}M \sum_i B_i x$ on each occupancy.

    If an agent moves from $s$ to $t$, the $M - 1$ others move from $n - 1_s$ to $n' - 1_t$; for a pair of agents there
    are $M - 2$ others. So a round requires $E[B Y B^T]$ and $E[B]$ of one agent, on its state before and after.
    """

    def __init__(self, agents: Agents):
        super().__init__(agents)
        rule, edges, M = agents.rule, agents.edges, int(agents.number)
        S, d, share = edges.num_states, self.dim, rule.server_step / M
        self.law = {True: edges.stationary[0], False: edges.start[0]}
        kernel = np.linalg.matrix_power(edges.transition[0], rule.local_steps)
        moves = [_moves(kernel, M - gone) for gone in range(min(M, 2) + 1)]
        self.occupancies = n = _occupancies(M, S)
        self.stay = np.diag([*[1 - rule.server_step] * d, 1.0])
        self.everyone = moves[0]
        ways = list(itertools.product(range(S), repeat=2))
        self.one = {(s, t): share * n[:, s, None] * _without(moves[1], M, (s,), (t,), S) for s, t in ways}
        self.two = {}
        for (s, r), (t, u) in itertools.product(ways, ways) if M > 1 else ():
            pairs = n[:, s] * (n[:, r] - (s == r))
            self.two[s, r, t, u] = share**2 * pairs[:, None] * _without(moves[2], M, (s, r), (t, u), S)
        self.mean, self.square, self.share = *_one_agent(agents), share

    @property
    def work(self):
        return (1 + len(self.one) + len(self.two)) * self.everyone.size * (self.dim + 1) ** 2

    def begin(self, start, *, stationary=False):
        chances = scipy.stats.multinomial.pmf(self.occupancies, self.occupancies[0].sum(), self.law[stationary])
        return chances[:, None, None] * np.outer(start, start)

    def round(self, blocks):
        C, shape = self.stay, blocks.shape

        def moved(matrix, Y):
            return np.einsum("mn,...mab->...nab", matrix, Y)

        found = moved(self.everyone, C @ blocks @ C.T)
        for (s, t), matrix in self.one.items():
            Y = moved(matrix, blocks)
            cross = self.mean[s, t] @ Y @ C.T
            square = (Y.reshape(*shape[:-2], -1) @ self.square[s, t]).reshape(shape)
            found = found + cross + np.swapaxes(cross, -1, -2) + self.share * square
        for (s, r, t, u), matrix in self.two.items():
            found = found + self.mean[s, t] @ moved(matrix, blocks) @ self.mean[r, u].T
        return found

    def total(self, blocks):
        return blocks.sum(-3)


def _one_agent(agents: Agents) -> tuple[np.ndarray, np.ndarray]:
    r"""Returns $E[B 1\{t\} | s]$, with a last row of zeros, and the map $Y \mapsto E[B Y B^T 1\{t\} | s]$."""
    edges, rule, d = agents.edges, agents.rule, agents.edges.dim
    S, q = edges.num_states, (d + 1) ** 2
    begun = np.eye(S)[:, None, :, None, None]  # axes: the previous state, one of the inputs, the current state
    inputs = np.eye(q).reshape(1, q, 1, d + 1, d + 1)
    inputs = (inputs + np.swapaxes(inputs, -1, -2)) / 2
    XX = begun * inputs
    YY, YX, K = XX[..., :d, :d], XX[..., :d, :], np.zeros((d, d + 1))
    y, one = begun[:, 0] * np.eye(d, d + 1), begun[:, 0, :, 0] * np.eye(d + 1)[-1]
    for _ in range(rule.local_steps):
        YY, YX, XX = local_step(edges, rule.step_size, K, YY, YX, XX)
        y, one = (
            edges.moved(y) + rule.step_size * edges.pushed(y, one),
            edges.moved(one[..., None])[..., 0],
        )
    mean, square = np.zeros((S, S, d + 1, d + 1)), np.zeros((S, S, q, d + 1, d + 1))
    mean[..., :d, :], square[..., :d, :d] = y, np.moveaxis(YY, 1, 2)
    return mean, square.reshape(S, S, q, q)


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
