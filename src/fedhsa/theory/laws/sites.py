r"""The law of any affine method on finite chains: second moments of what it carries, on the states of some agents.

Let $x$ be the state that a method carries from exchange to exchange, server and memories together, with a constant 1.
For a set $T$ of agents, its *sites*, consider $Y_T(s) = E[x x^T 1\{s_T = s\}]$. Over an exchange, the agents of $T$
follow their chains, and all others follow their mean maps. With all agents as sites the law is exact.

The *one-site* law decomposes the moments as in an analysis of variance, $Y_T = \sum_{U \subset T} V_U \prod_{j \in T
\setminus U} \pi_j$, where $V_U$ sums to zero over each of its states, and keeps $V_\emptyset$ and every $V_i$. It is
exact for one agent and in the limit of many. The law of *pairs* also follows how far the moments of every
pair of agents are from those that the one-site law implies, and is exact for two.
"""

import abc
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ..._linear import spectral_radius, transpose
from .federation import EachAlone, Exchanged, Federation
from .moments import TOO_MUCH, TOO_MUCH_OF_TRIPLES, AbstractLaw, MomentLaw, Moments, Radius
from .solve import TOLERANCE

QUICK, ROUNDS = 2e7, 40
"""The largest number of multiplications for the radius of a law that is evaluated at many step sizes, and the rounds
that it takes without a matrix."""
FEW, NEXT = 8, 1e8
"""The number of pairs from which the error of a law is estimated, and the multiplications that each may take."""
LOOSE, SAME = 1e-5, 1e-3
"""The accuracy with which an error is estimated, and the relative error of a long run that another law may have."""


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

    @functools.cached_property
    def additive(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all rounds are the same map with added noise."""
        rounds = self.federation.rounds
        return len(rounds) == 1 and all(step.certain is not None for step in rounds[0])

    @functools.cached_property
    def _square_radius(self):
        return self.mean_radius() ** 2 if self.additive else super()._square_radius

    def mean_radius(self):
        """Returns the factor of the mean error; additive noise has modes of its own, which do not count."""
        if self.federation.num_states > 1:
            return super().mean_radius()
        return spectral_radius(self._mean_map[: self.free, : self.free])

    @property
    def free(self):
        return self.dim - self.federation.added

    def family(self, algorithm, steps):
        return [type(self)(federation) for federation in self.federation.family(algorithm, steps)]

    neglected: float = 0.0
    """What sets of agents that the law does not follow may add to the floor, relative to it; infinite if unknown."""
    too_much: float = TOO_MUCH
    """The value of `neglected` above which the sets may make the mean square diverge."""

    @functools.cached_property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What is neglected, amplified by the joint noise of all agents."""
        if self.neglected == 0:
            return 0.0
        radius = self.mean_square_radius()
        return (1 + min(self.neglected, 1.0)) * (1 + radius.doubt) - 1 if radius.value < 1 else math.inf

    def stable(self):
        """Returns whether the mean-square error stays bounded; None if too much is neglected to be sure."""
        found = super().stable()
        return None if found and self.too_much < self.neglected < math.inf else found

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
        return self.mixed(self._turn(self.federation.rounds, blocks))

    def mixed(self, blocks: np.ndarray) -> np.ndarray:
        """Returns the blocks after the running mean beside the state has moved, if there is one."""
        mixing = self.federation.mixing
        return blocks if mixing is None else mixing @ blocks @ mixing.T

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
        spread = start[-1] ** 2 * self.federation.spread(stationary=stationary)
        return law.reshape(-1, 1, 1) * (np.outer(start, start) + spread)

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
        self._gaps: dict[tuple[int, ...], float] = {}
        self._radius: Radius | None = None

    def take_over(self, moments: np.ndarray, radius: Radius) -> None:
        """Takes over the long run of $(e, 1)$ and the radius from the same law elsewhere, unless a round changes it.

        `moments` are blocks like those of this law, relative to a federation that carries the error alone.
        """
        if self.dim != self.federation.dim:
            return
        lift = np.eye(self.dim + 1)
        lift[:-1, :-1] = self.federation.start
        blocks = lift @ moments @ lift.T
        change, slack = np.abs(self._after(blocks) - blocks)[..., :-1].max(), 1 - radius.value
        if change <= SAME * slack * self._trace(blocks):
            self._still, self._radius = blocks, radius

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
        if self._radius is not None:
            return self._radius
        found, alone = super().mean_square_radius(), self.federation.num_agents == 1
        return found if alone else Radius(found.value, "estimate", self.federation.field)

    @functools.cached_property
    def neglected(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Twice what pairs of agents add, as those indicate whose states say most about the error."""
        if self.federation.num_agents == 1:
            return 0.0
        if self.mean_square_radius().value >= 1:
            return 1.0
        every, told = self.federation.sets(2), self._told()
        weights = np.array([number * told[list(pair)].prod() for number, pair in every])
        weights = weights if weights.any() else np.array([number for number, _ in every])
        most = np.argsort(-weights)[: min(FEW, int(NEXT / self.federation.work(2)))]
        scale = weights.sum() / weights[most].sum() if len(most) else 1.0
        gaps = [scale * every[k][0] * self.gap(every[k][1]) for k in most]
        return _share_of_floor(gaps, self, lambda a: 2 * a)

    def _told(self) -> np.ndarray:
        """Returns how much the state of each agent says about the mean error in the long run."""
        means = self._still[1:, :-1, -1] @ self.federation.show.T
        return np.sqrt(((means**2).sum(-1).reshape(len(self.sites), -1) / self.pi[..., 0, 0]).sum(1))

    def gap(self, sites: tuple[int, ...]) -> float:
        """Returns what the joint chains of two agents add to the mean-square error in the long run."""
        alike = tuple(sorted(self.federation.kinds[list(sites)].tolist()))
        if alike not in self._gaps:
            both = PairOfSites(self, sites)
            try:
                self._gaps[alike] = both.joint._trace(both.added_up(self._still, LOOSE))
            except ValueError:  # it does not settle
                self._gaps[alike] = math.inf
        return self._gaps[alike]


class PairOfSites:
    r"""What the joint chains of two agents add to the one-site law.

    Let $E$ be the moments on the joint states that the one-site law implies. In a round, the exact law $T$ of the two
    agents turns $E$ into $T E$, and their one-site laws into $E'$. So the difference $D$ between the exact moments and
    $E$ becomes $D' = T (E + D) - E'$.
    """

    def __init__(self, law: EachSiteLaw, sites: tuple[int, ...]):
        S = law.federation.num_states
        self.joint, self.alone = EverySiteLaw(law.federation, sites), EachSiteLaw(law.federation, sites)
        self.rows = [0, *(1 + i * S + s for i in sites for s in range(S))]

    def begin(self, start: np.ndarray, *, stationary: bool = False) -> np.ndarray:
        """Returns the difference at the start of a run."""
        implied = self._implied(self.alone.begin(start, stationary=stationary))
        return self.joint.begin(start, stationary=stationary) - implied

    def exchange(self, steps: list[Exchanged], blocks: np.ndarray, D: np.ndarray | float = 0.0) -> np.ndarray:
        """Returns the difference after a round, from the moments of the one-site law and the difference before it."""
        own = blocks[..., self.rows, :, :]
        after = self._implied(self.alone.exchange(steps, own))
        return self.joint.exchange(steps, self._implied(own) + D) - after

    def added_up(self, blocks: np.ndarray, tolerance: float = TOLERANCE) -> np.ndarray:
        """Returns the difference in the long run, from the moments of the one-site law in the long run."""
        chances, rounds = self.joint.federation.pieces.chances, self.joint.federation.rounds
        every = (p * self.exchange(steps, blocks) for p, steps in zip(chances, rounds, strict=True))
        return self.joint.added_up(self.joint.mixed(sum(every, np.zeros(()))), tolerance)

    def _implied(self, blocks: np.ndarray) -> np.ndarray:
        r"""Returns $E = \pi_i \pi_j U + V_i \pi_j + \pi_i V_j$ from blocks $U, V_i, V_j$ of the one-site law."""
        S, N = self.joint.federation.num_states, blocks.shape[-1]
        one, two = self.joint.federation.outcomes.stationary[list(self.joint.sites)][..., None, None]
        U, V, W = np.split(blocks[..., None, :, :, :], [1, 1 + S], axis=-3)  # with an axis for the other's state
        found = one[:, None] * two * U + V.swapaxes(-3, -4) * two + one[:, None] * W
        return found.reshape(*blocks.shape[:-3], S * S, N, N)


class TwoSitesLaw(SitesLaw):
    """The one-site law and what every pair of agents adds to it, which is exact for two agents."""

    basis, too_much = "pairs", TOO_MUCH_OF_TRIPLES

    def __init__(self, federation: Federation):
        super().__init__(federation)
        self.alone, self.sets = EachSiteLaw(federation), federation.sets(2)
        self.pairs = [PairOfSites(self.alone, pair) for _, pair in self.sets]

    def _parts(self, blocks: np.ndarray) -> list[np.ndarray]:
        """Returns the blocks of the one-site law and those of all pairs."""
        M, S = self.federation.num_agents, self.federation.num_states
        return np.split(blocks, 1 + M * S + S**2 * np.arange(len(self.pairs)), axis=-3)

    @property
    def work(self):
        return self.alone.work + len(self.pairs) * (self.federation.work(2) + 2 * self.federation.work(1))

    def begin(self, start, *, stationary=False):
        every = [one.begin(start, stationary=stationary) for one in (self.alone, *self.pairs)]
        return np.concatenate(every, axis=-3)

    def exchange(self, steps, blocks):
        x, *more = self._parts(blocks)
        after = [pair.exchange(steps, x, D) for pair, D in zip(self.pairs, more, strict=True)]
        return np.concatenate([self.alone.exchange(steps, x), *after], axis=-3)

    def total(self, blocks):
        x, *more = self._parts(blocks)
        both = zip(self.sets, more, strict=True)
        return self.alone.total(x) + sum((number * D.sum(-3) for (number, _), D in both), np.zeros(()))

    @functools.cached_property
    def _still(self):
        tolerance = TOLERANCE if self.federation.num_agents == 2 else LOOSE
        every = [pair.added_up(self.alone._still, tolerance) for pair in self.pairs]
        return np.concatenate([self.alone._still, *every], axis=-3)

    def mean_square_radius(self):
        """The largest radius among the laws that are combined."""
        every = [self.alone, *(pair.joint for pair in self.pairs)]
        value, exact = max(law._square_radius for law in every), self.federation.num_agents == 2
        return Radius(value, "exact") if exact else Radius(value, "estimate", self.federation.field)

    def mean_radius(self):
        return self.alone.mean_radius()

    @functools.cached_property
    def neglected(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        r"""$a / 2 + a^2$, if pairs add $a$ to the floor, all of them by absolute value."""
        if self.federation.num_agents == 2:
            return 0.0
        if self.mean_square_radius().value >= 1:
            return 1.0
        every = zip(self.sets, self.pairs, self._parts(self._still)[1:], strict=True)
        return _share_of_floor([n * pair.joint._trace(D) for (n, _), pair, D in every], self, lambda a: a / 2 + a**2)


def _share_of_floor(gaps: Sequence[float], law: SitesLaw, share: Callable[[float], float]) -> float:
    """Returns a function of what pairs of agents add, relative to the floor of a stable law.

    It is at most 1, and infinite if there are no pairs to estimate it from.
    """
    if not gaps:
        return math.inf
    if not np.isfinite(gaps).all():
        return 1.0
    floor = law.stationary().square
    return min(share(float(np.abs(gaps).sum()) / floor), 1.0) if floor > 0 else 0.0
