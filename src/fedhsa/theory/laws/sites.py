r"""The law of any affine method on finite chains: second moments of what it carries, on the states of some agents.

Let $x$ be the state that a method carries from exchange to exchange, server and memories together, with a constant 1.
For a set $T$ of agents, its *sites*, consider $Y_T(s) = E[x x^T 1\{s_T = s\}]$. Over an exchange, the agents of $T$
follow their chains, and all others follow their mean maps. With all agents as sites the law is exact.

The *one-site* law decomposes the moments as in an analysis of variance, $Y_T = \sum_{U \subset T} V_U \prod_{j \in T
\setminus U} \pi_j$, where $V_U$ sums to zero over each of its states, and keeps $V_\emptyset$ and every $V_i$. It is
exact for one agent and in the limit of many. The law of *pairs* adds the difference between the two laws for every pair
of agents, and is exact for two.
"""

import abc
import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from ..._linear import transpose
from .federation import EachAlone, Exchanged, Federation
from .moments import AbstractLaw, AbstractSteppedLaw, MomentLaw, Moments, Radius

QUICK, ROUNDS = 2e7, 40
"""The largest number of multiplications for the radius of a law that is evaluated at many step sizes, and the rounds
that it takes without a matrix."""
FEW, NEXT, SEED = 6, 1e8, 0
"""The number of pairs or triples from which the error of a law is estimated, the multiplications they may take, and the
seed that chooses them."""


class SitesLaw(MomentLaw):
    """A law whose blocks are second moments of $(x, 1)$."""

    def __init__(self, federation: Federation):
        self.federation, self.name = federation, federation.name

    @property
    def dim(self):
        return self.federation.size

    @property
    @abc.abstractmethod
    def work(self) -> float:
        """The approximate number of multiplications in a round."""

    @property
    def quick(self):
        return (ROUNDS if self._matrix is None else len(self._matrix)) * self.work <= QUICK

    def family(self, algorithm, steps):
        return [type(self)(federation) for federation in self.federation.family(algorithm, steps)]

    def lifted(self, start: np.ndarray) -> np.ndarray:
        """Returns $(x, 1)$ of a run from the error and the constant in `start`, unless it is that already."""
        if len(start) == self.dim + 1 and self.dim != self.federation.dim:
            return start
        return np.append(self.federation.start @ start[:-1], start[-1])

    @functools.cached_property
    def _mean_map(self):
        transition, mixing = self.federation.mean_round()[0], self.federation.mixing
        return transition if mixing is None else mixing[:-1, :-1] @ transition

    def round(self, blocks):
        after, mixing = self._turn(self.federation.rounds, blocks), self.federation.mixing
        return after if mixing is None else mixing @ after @ mixing.T

    def _turn(self, rounds: list[list[Exchanged]], blocks: np.ndarray) -> np.ndarray:
        chances = self.federation.pieces.chances
        return sum((p * self.exchange(steps, blocks) for p, steps in zip(chances, rounds, strict=True)), 0 * blocks)

    @abc.abstractmethod
    def exchange(self, steps: list[Exchanged], blocks: np.ndarray) -> np.ndarray:
        """Returns the blocks after all exchanges of a round with one outcome of what is drawn."""

    def enter(self, start):
        return 0, self.begin(np.append(start, 1.0))

    def step(self, state):
        turn, blocks = state
        if turn == 0 and not self.federation.starts_alike:
            return 1, self._turn(self.federation.first, (blocks + transpose(blocks)) / 2)
        return turn + 1, self._after(blocks)

    def seen(self, state):
        return self._moments(state[1])

    def errors(self, start, rounds):
        if not self.federation.starts_alike:
            return AbstractLaw.errors(self, start, rounds)
        return super().errors(start, rounds)

    def _moments(self, blocks):
        total, C = self.total(blocks), self.federation.show
        mean = C @ total[:-1, -1]
        return Moments(mean, C @ total[:-1, :-1] @ C.T - np.outer(mean, mean))

    def _trace(self, blocks):
        C = self.federation.show
        return float(np.trace(C @ self.total(blocks)[:-1, :-1] @ C.T))


class EverySiteLaw(SitesLaw):
    """The joint chains of some agents, or by default of all, which is exact."""

    def __init__(self, federation: Federation, sites: Sequence[int] | None = None):
        super().__init__(federation)
        self.sites = tuple(range(federation.num_agents)) if sites is None else tuple(sites)
        self.shape = (federation.num_states,) * (len(self.sites) if federation.num_states > 1 else 1)

    @property
    def work(self):
        return self.federation.work(len(self.sites))

    def begin(self, start, *, stationary=False):
        start, outcomes = self.lifted(start), self.federation.outcomes
        laws = (outcomes.stationary if stationary else outcomes.start)[list(self.sites)]
        law = functools.reduce(np.multiply.outer, laws if self.federation.num_states > 1 else laws[:1], np.ones(()))
        return law.reshape(-1, 1, 1) * np.outer(start, start)

    def exchange(self, steps, blocks):
        *batch, _, N, _ = blocks.shape
        began = blocks = blocks.reshape(*batch, *self.shape, N, N)
        seen, sites = self.federation.seen_by(steps, self.sites), range(len(self.sites))
        for step in seen:
            blocks = step.advance(blocks, sites, len(batch))
        if len(steps) > 1 and len(self.sites) < self.federation.num_agents:
            K, _ = self.federation.carried(steps)
            rest = K.sum(0) - K[list(self.sites)].sum(0)
            added, moved = began @ rest.T, began
            for step in seen:
                added = step.followed(added, sites, len(batch))
                moved = step.moved(moved, sites, len(batch))
            blocks = blocks + added + transpose(added) + rest @ moved @ rest.T
        return blocks.reshape(*batch, -1, *blocks.shape[-2:])

    def total(self, blocks):
        return blocks.sum(-3)


class EachSiteLaw(SitesLaw):
    r"""Each agent's chain alone, with the mean maps of the others.

    Let $U = V_\emptyset$, and let $W_i$ be the image of $\pi_i U + V_i$ under an exchange with site $i$. Then
    $U' = \bar L U \bar L^T + \sum_i (\sum_s W_i(s) - \bar L U \bar L^T)$ and $V_i' = W_i - \pi_i \sum_s W_i(s)$.

    If a round has several exchanges, an agent that carries its chain from one to the next adds $K_i$ to the mean round.
    This is not in the mean maps of single exchanges, so that a round with site $i$ lacks $\sum_{j \ne i} K_j$, which is
    added at its end.
    """

    basis = "one site"

    def __init__(self, federation: Federation, sites: Sequence[int] | None = None):
        super().__init__(federation)
        self.sites = tuple(range(federation.num_agents)) if sites is None else tuple(sites)
        self.pi = federation.outcomes.stationary[list(self.sites)][..., None, None]
        self._known: dict[int, tuple[list[EachAlone], np.ndarray | None]] = {}

    @property
    def work(self):
        return len(self.sites) * self.federation.work(1)

    def begin(self, start, *, stationary=False):
        start, outcomes = self.lifted(start), self.federation.outcomes
        pi = outcomes.stationary[list(self.sites)]
        away = (pi if stationary else outcomes.start[list(self.sites)]) - pi
        square = np.outer(start, start)
        return np.concatenate([square[None], away.reshape(-1, 1, 1) * square])

    def exchange(self, steps, blocks):
        U, began = blocks[..., 0, :, :], self._by_states(blocks)
        after, Y = self._advanced(steps, U, began)
        if len(steps) == 1:
            return self._summed(Y, after)
        K, alone = self.federation.carried(steps)
        mean, rest = alone + K.sum(0), (K.sum(0) - K[list(self.sites)])[:, None]
        kernel = functools.reduce(np.matmul, [step.kernels[list(self.sites)] for step in steps])
        added = began @ transpose(rest)
        for step in steps:
            added = step.each(self.sites).followed(added)
        moved = (transpose(kernel) @ began.reshape(*began.shape[:-2], -1)).reshape(began.shape)
        W = added + transpose(added) + rest @ moved @ transpose(rest)
        return self._summed(Y, after) + self._summed(W, mean @ U @ mean.T - alone @ U @ alone.T)

    def _advanced(self, steps: list[Exchanged], U: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the image of the total by the last exchange without any site, and of all agents' moments.

        With two exchanges, an agent's moments between them are reduced to what matters to it, since a method may carry
        memories of all agents there.
        """
        each, basis = self._each(steps)
        for step, alone in zip(steps[:-1], each, strict=False):
            U, W = step.total(Y, self.sites), alone.advance(Y)
            seen = U[..., None, None, :, :]
            seen = seen if basis is None else transpose(basis) @ seen @ basis
            Y = W + self.pi * (seen - W.sum(-3, keepdims=True))
        return steps[-1].alone(U), each[-1].advance(Y)

    def _each(self, steps: list[Exchanged]) -> tuple[list[EachAlone], np.ndarray | None]:
        """Returns the exchanges with each agent as the only site, and its coordinates between two if they are fewer."""
        if id(steps) not in self._known:
            each, basis = [step.each(self.sites) for step in steps], None
            if len(steps) == 2:
                bases = [self.federation.matters(steps, (i,))[1] for i in self.sites]
                most = max(one.shape[1] for one in bases)
                basis = np.zeros((len(bases), 1, len(bases[0]), most))
                for k, one in enumerate(bases):  # the last coordinate is the constant
                    basis[k, 0, :, : one.shape[1] - 1], basis[k, 0, :, -1] = one[:, :-1], one[:, -1]
                whole = np.broadcast_to(np.eye(self.dim + 1), (len(bases), 1, self.dim + 1, self.dim + 1))
                each = [each[0].between(transpose(basis), whole), each[1].between(whole, basis)]
            self._known[id(steps)] = each, basis
        return self._known[id(steps)]

    def _by_states(self, blocks: np.ndarray) -> np.ndarray:
        """Returns the moments on the states of each agent, `(..., n, S, N, N)`."""
        shape = (*blocks.shape[:-3], len(self.sites), self.federation.num_states, *blocks.shape[-2:])
        return self.pi * blocks[..., :1, None, :, :] + blocks[..., 1:, :, :].reshape(shape)

    def _summed(self, W: np.ndarray, still: np.ndarray) -> np.ndarray:
        """Returns blocks from the images of all agents' moments, and from the image of the total without any site."""
        total = W.sum(-3)
        after = still + (total - still[..., None, :, :]).sum(-3)
        away = (W - self.pi * total[..., None, :, :]).reshape(*W.shape[:-4], -1, *W.shape[-2:])
        return np.concatenate([after[..., None, :, :], away], axis=-3)

    def total(self, blocks):
        return blocks[..., 0, :, :]

    def mean_square_radius(self):
        found, alone = super().mean_square_radius(), self.federation.num_agents == 1
        return found if alone else Radius(found.value, "estimate", self.federation.field)

    @functools.cached_property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The error of the floor, from a few pairs of agents; what is neglected is amplified near instability."""
        if self.federation.num_agents == 1:
            return 0.0
        gaps = [(number, gap_of(self.federation, pair)) for number, pair in _some(self.federation, 2)]
        return _amplified(gaps, self)


class TwoSitesLaw(AbstractSteppedLaw):
    """The one-site law, corrected by the product law of every pair of agents, which is exact for two agents."""

    basis = "pairs"

    def __init__(self, federation: Federation):
        self.federation, self.name = federation, federation.name
        self.alone = EachSiteLaw(federation)
        self.pairs = [
            (number, EverySiteLaw(federation, pair), EachSiteLaw(federation, pair))
            for number, pair in federation.sets(2)
        ]

    def enter(self, start):
        return self.alone.enter(start), [(joint.enter(start), each.enter(start)) for _, joint, each in self.pairs]

    def step(self, state):
        alone, both = state
        steps = zip(self.pairs, both, strict=True)
        return self.alone.step(alone), [(joint.step(x), each.step(y)) for (_, joint, each), (x, y) in steps]

    def seen(self, state):
        alone, both = state
        steps = zip(self.pairs, both, strict=True)
        return self._corrected(self.alone.seen(alone), [(j.seen(x), e.seen(y)) for (_, j, e), (x, y) in steps])

    def stationary(self):
        both = [(joint.settled(), each.settled()) for _, joint, each in self.pairs]
        return self._corrected(self.alone.stationary(), both)

    def family(self, algorithm, steps):
        return [TwoSitesLaw(federation) for federation in self.federation.family(algorithm, steps)]

    @property
    def quick(self):
        return self.alone.quick and len(self.pairs) * ROUNDS * self.federation.work(2) <= QUICK

    def mean_square_radius(self):
        """The largest radius among the laws that are combined."""
        every = [self.alone.mean_square_radius().value, *(p.mean_square_radius().value for _, p, _ in self.pairs)]
        exact = self.federation.num_agents == 2
        return Radius(max(every), "exact") if exact else Radius(max(every), "estimate", self.federation.field)

    def mean_radius(self):
        return self.alone.mean_radius()

    @functools.cached_property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The error of the floor, from a few triples of agents; what is neglected is amplified near instability."""
        M = self.federation.num_agents
        if M == 2:
            return 0.0
        gaps = []
        for number, triple in _some(self.federation, 3):
            two = sum(gap_of(self.federation, pair) for pair in itertools.combinations(triple, 2))
            gaps.append((number, gap_of(self.federation, triple) - two))
        return _amplified(gaps, self)

    def _corrected(self, alone: Moments, both: list[tuple[Moments, Moments]]) -> Moments:
        mean, second = alone.mean, alone.second
        for (number, _, _), (joint, each) in zip(self.pairs, both, strict=True):
            mean = mean + number * (joint.mean - each.mean)
            second = second + number * (joint.second - each.second)
        return Moments(mean, second - np.outer(mean, mean))


def gap_of(federation: Federation, sites: tuple[int, ...]) -> float:
    """Returns the mean-square error that the one-site law neglects among these agents, once for equal ones."""
    alike = tuple(sorted(federation.kinds[list(sites)].tolist()))
    if alike not in federation.gaps:
        try:
            joint, each = EverySiteLaw(federation, sites).settled(), EachSiteLaw(federation, sites).settled()
            federation.gaps[alike] = joint.square - each.square
        except ValueError:  # no stationary moments were found
            federation.gaps[alike] = math.inf
    return federation.gaps[alike]


def _some(federation: Federation, size: int) -> list[tuple[float, tuple[int, ...]]]:
    """Returns sets of agents of this size with their numbers, or a few random ones; none if they would take long."""
    few, every = min(FEW, int(NEXT / federation.work(size))), federation.sets(size)
    if len(every) <= few:
        return every
    chosen = np.random.default_rng(SEED).choice(len(every), few, replace=False)
    return [(every[k][0] * len(every) / few, every[k][1]) for k in chosen]


def _amplified(gaps: list[tuple[float, float]], law: EachSiteLaw | TwoSitesLaw) -> float:
    """Returns what larger sets of agents add to the mean-square error, relative to the floor, as rounds amplify it.

    The part that comes from the gaps is at most 1, and 1 if there is nothing to estimate it from. That of the joint
    noise of all agents comes on top.
    """
    radius, added = law.mean_square_radius(), 1.0
    if radius.value < 1 and gaps and np.isfinite(gaps).all():
        floor = law.stationary().square
        added = sum(number * abs(gap) for number, gap in gaps) / floor / (1 - radius.value) if floor > 0 else 0.0
    return (1 + min(added, 1.0)) * (1 + radius.doubt) - 1
