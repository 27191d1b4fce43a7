r"""The law of any affine method: second moments of what it carries, on the states of some agents.

For a set $T$ of agents, its *sites*, consider $Y_T(s) = E[x x^T 1\{s_T = s\}]$. Over an exchange, the agents of $T$
follow their chains, and all others their mean maps. With all agents as sites the law is exact.

The *one-site* law decomposes the moments as in an analysis of variance, $Y_T = \sum_{U \subset T} V_U \prod_{j \in
T \setminus U} \pi_j$, where $V_U$ sums to zero over each of its states, and keeps $U = V_\emptyset$ and every $V_i$.
It is exact for one agent and in the limit of many. The law of *pairs* also follows how far the moments of every pair of
agents are from those that the one-site law implies, and is exact for two.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator

from ..._linear import spectral_radius, stein_sum, transpose
from ..rule import require_stable
from .coordinates import all_alike
from .exchanges import GroupExchange, Role
from .federation import Federation
from .moments import (
    MUCH,
    TOO_MUCH,
    TOO_MUCH_OF_TRIPLES,
    WORTHWHILE,
    AbstractSteppedLaw,
    LongRun,
    MomentLaw,
    Moments,
    Radius,
    State,
)
from .solve import DIGITS, TOLERANCE, growth, radius, slowest_square
from .walks import Points

NEGLIGIBLE, HUGE, DOUBLINGS = 1e-3, 1e100, 60
"""The size below which a power of the mean map is neglected, that at which it diverges, and the most times that its
exponent is doubled."""
MOST_EQUATIONS = 40
"""The largest size of $(x, 1)$ for which the equations of its second moments are solved as they are."""
SLOW = 0.9
"""The radius of the mean above which it decays slowly."""
SAME = 1e-15
"""The relative change of moments in a round that is rounding."""
CACHED = 2**17
"""The size of the maps of agents that are followed together."""
QUICK = 2e7
"""The number of multiplications in a round of laws that are evaluated for many step sizes."""
NEARLY, ROUGH, UNSOLVED = (1e-8, 1e-6), (1e-3, 1e-3), 0.01
"""The accuracies of laws that are not exact, and of agents that stand for others, and what the latter may change in the
floor."""
COARSE = 15
"""The number of rounds that a path of agents that stand for others is extrapolated from."""
FEW = 8
"""The number of pairs from which the error of a law is estimated."""
SUMMARISED = 0.25
"""About twice what sums of others' memories miss of the floor, times the number of agents, where it was largest."""
CHEAP = 2e8
"""The number of multiplications in a round that the error of a law may take."""
LOOSE = 1e-2
"""The accuracy with which an error is estimated."""


class SitesLaw(MomentLaw):
    """A law of second moments of $(x, 1)$ by the states of some agents."""

    def __init__(self, federation: Federation):
        self.federation, self.name = federation, federation.name

    @property
    def known_by(self) -> str:
        """The kind of law, apart from codes that are not linear."""
        return "exact"

    @property
    def basis(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return "first order" if self.federation.nonlinear_codes else self.known_by

    @functools.cached_property
    def accuracy(self) -> tuple[float, float]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (TOLERANCE, DIGITS) if self.known_by == "exact" else NEARLY

    @property
    def dim(self):
        return self.federation.dim

    @property
    def growing(self):
        return self.federation.size + len(self.federation.own_start)

    def shown(self, total):
        n = self.federation.size
        mean, square = total[..., :n, -1] @ self.federation.show.T, total[..., :n, :n]
        second = self.federation.show @ square @ self.federation.show.T
        return Moments(mean, second - mean[..., :, None] * mean[..., None, :])

    def enter(self, start):
        return not self.federation.starts_alike, self.begin(start)

    def step(self, state):
        first, moments = state
        return False, (self._beginning if first else self)._after(moments)

    def moments(self, state):
        return state[1]

    @functools.cached_property
    def _beginning(self) -> "SitesLaw":
        """The law of the first round."""
        return type(self)(self.federation.beginning())

    def by_outcome(self, state: State) -> State:
        """Returns moments by the outcome of what is drawn next, if outcomes depend on each other."""
        if self.federation.pieces.kernel is None:
            return state
        chances = self.federation.pieces.chances
        return tuple(chances.reshape(-1, *[1] * x.ndim) * x for x in state)

    def over_outcomes(self, rounds: Sequence[Callable[..., State]], state: State) -> State:
        """Returns the moments after a round, from a function for each outcome."""
        kernel, chances = self.federation.pieces.kernel, self.federation.pieces.chances
        if kernel is None:
            after = [round(*state) for round in rounds]
            if len(after) == 1:
                return after[0]
            return tuple(np.tensordot(chances, np.stack(parts), 1) for parts in zip(*after, strict=True))
        lead = [x.ndim - y.ndim for x, y in zip(state, self.base, strict=True)]
        each = [[np.moveaxis(x, k, 0)[w] for x, k in zip(state, lead, strict=True)] for w in range(len(rounds))]
        after = [round(*own) for round, own in zip(rounds, each, strict=True)]
        stacked = [np.stack(parts, axis=k) for parts, k in zip(zip(*after, strict=True), lead, strict=True)]
        return tuple(
            np.moveaxis(np.tensordot(kernel, np.moveaxis(x, k, 0), (0, 0)), 0, k)
            for x, k in zip(stacked, lead, strict=True)
        )

    def mixed(self, state, part: float):
        """Returns the state of a run after a running mean of the error has moved by this part of the way to it."""
        first, moments = state
        map = self.federation.mixing(part)
        return first, tuple(self._through(map, X) for X in moments)

    def _through(self, map: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Applies a map of $x$ to all moments from both sides."""
        n, N = self.federation.size, X.shape[-1]
        whole = np.eye(N)
        whole[:n, :n] = map
        return whole @ X @ whole.T

    @property
    def additive(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.federation.additive

    def mean_radius(self):
        return self._mean if self.federation.num_states == 1 else super().mean_radius()

    @functools.cached_property
    def mean_map(self) -> np.ndarray:
        """The map of $(x, 1)$ by a round in which all agents are as they are on average."""
        return self.federation.mean_round()

    @functools.cached_property
    def _mean(self) -> float:
        """The radius of a round in which all agents are as they are on average."""
        return spectral_radius(self.mean_map[:-1, :-1])

    @property
    def settles(self) -> bool:
        """Whether the mean does in such rounds."""
        return self._mean < 1

    @property
    def slow(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return SLOW < self._mean < 1

    def later(self, total: np.ndarray) -> np.ndarray:
        """Returns what moments of $(x, 1)$ add up to over all later rounds, if agents are as on average."""
        if self._coins is None:
            return _later(self.mean_map, total)
        found = scipy.linalg.lu_solve(self._coins, total.reshape(-1, total.shape[-1] ** 2).T)
        return found.T.reshape(total.shape)

    @functools.cached_property
    def _coins(self) -> Any:
        """The equations of these sums if rounds depend on a coin; None if they do not, or if there are many."""
        federation, N = self.federation, self.federation.size + 1
        if len(federation.rounds) == 1 or N > MOST_EQUATIONS:
            return None
        found = np.eye(N * N)
        for chance, (role, *_) in zip(federation.pieces.chances, federation.rounds, strict=True):
            map = functools.reduce(lambda X, e: e.mean @ X, role.exchanges, np.eye(N))
            found -= chance * np.kron(map, map)
        found[-1, -1] = 1.0  # the constant is known
        return scipy.linalg.lu_factor(found)

    def beginnings(self) -> list[np.ndarray]:
        """Returns second moments of the slowest mode of the mean, and of errors in all directions."""
        A = self.mean_map[:-1, :-1]
        return [np.pad(X, (0, 1)) for X in (slowest_square(A), np.eye(len(A)))]

    @functools.cached_property
    def square_radius(self):
        return self.mean_radius() ** 2 if self.additive else super().square_radius

    def family(self, algorithm, steps):
        return [type(self)(federation) for federation in self.federation.family(algorithm, steps)]

    @property
    def effort(self) -> float:
        """The approximate number of multiplications in a round."""
        return self.federation.work(1)

    def radius_at(self, algorithm):
        return type(self)(self.federation.at(algorithm)).mean_square_radius() if self.effort <= QUICK else None

    @functools.cached_property
    def quiet(self) -> "LinearLaw":
        """The law of the same method without noise."""
        return LinearLaw(self.federation.noiseless())

    def long_run(self):
        (mean, covariance), limit = self.stationary(), self.quiet.stationary().mean
        return LongRun(limit, mean - limit, np.zeros(self.dim), covariance)

    def persistent_bias(self):
        federation, A = self.federation, self.mean_map
        pieces = federation.pieces
        alone = len(pieces.rounds) > 1 and not all_alike(pieces)  # then it is one of many
        if federation.remembers or alone or not self.settles:
            return np.full(self.dim, math.nan)
        return federation.show @ np.linalg.solve(np.eye(len(A) - 1) - A[:-1, :-1], A[:-1, -1])

    rough: float = 0.0
    """About what sets of agents that the law does not follow may add to the floor, relative to it, or more."""
    sampled: float = 0.0
    """What the choice of agents that stand for others may change in the floor, relative to it."""
    too_much: float = TOO_MUCH
    """The value of `neglected` above which the sets may make the mean square diverge."""

    @property
    def neglected(self) -> float:
        """What sets of agents that the law does not follow may add to the floor, relative to it."""
        return self.rough

    def _amplified(self, neglected: float) -> float:
        """Returns what is left out if this is neglected, amplified by the joint noise of all agents."""
        if neglected + self.sampled == 0:
            return 0.0
        radius = self.mean_square_radius()
        return (1 + min(neglected + self.sampled, 1.0)) * (1 + radius.doubt) - 1 if radius.value < 1 else math.inf

    @functools.cached_property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return math.nan if self.federation.nonlinear_codes else self._amplified(self.neglected)

    def leaves_out_more_than(self, share):
        return self._amplified(self.rough) > share and self.left_out > share

    def stable(self):
        """Returns whether the mean-square error stays bounded; None if too much is neglected to be sure."""
        found = super().stable() and self.quiet.mean_radius() < 1
        return None if found and self.rough > self.too_much and self.neglected > self.too_much else found


class EverySiteLaw(SitesLaw):
    """All agents on their joint states: exact."""

    @property
    def effort(self):
        return self.federation.work(self.federation.num_agents)

    @functools.cached_property
    def sets(self) -> np.ndarray:
        return np.arange(self.federation.num_agents)[None]

    def begin(self, start, *, stationary=False):
        federation, agents = self.federation, self.federation.agents
        laws = agents.pi if stationary else agents.start
        law = functools.reduce(np.multiply.outer, laws if federation.num_states > 1 else laws[:1])
        law = law.reshape(-1, *law.shape[1:] if federation.num_states > 1 else ())
        law = law.reshape((federation.num_states,) * federation.num_agents)
        n, own = federation.size, federation.own
        x = np.zeros(n + federation.num_agents * own + 1)
        x[:n], x[-1] = federation.start @ start, 1.0
        Y = law[..., None, None] * np.outer(x, x)
        if agents.noise is not None:
            for i, Z in enumerate(agents.noise.stationary if stationary else agents.noise.start):
                at = slice(n + i * own, n + (i + 1) * own)
                Y[..., at, at] = Z
        return self.by_outcome((Y[None],))

    def round(self, state):
        def one(exchanges: list[GroupExchange], X: np.ndarray) -> State:
            return (functools.reduce(lambda X, exchange: exchange.second_of_sets(X, self.sets), exchanges, X),)

        return self.over_outcomes([functools.partial(one, x) for x in self.federation.full_rounds], state)

    def starts(self):
        return [(self._spread(X),) for X in self.beginnings()]

    def summed(self, state):
        if not self.settles:
            return state
        total = narrowed(self.total(state), self.federation.size)
        return (state[0] + self._spread(self.later(total) - total),)

    def _spread(self, X: np.ndarray) -> np.ndarray:
        """Returns moments of $(x, 1)$ on stationary chains."""
        (Y,) = self.base
        return Y[..., -1:, -1:] * widened(X, self.federation.size, Y.shape[-1] - self.federation.size - 1)

    def total(self, state):
        (Y,), sites = state, self.federation.num_agents
        found = Y.sum(tuple(range(-2 - sites, -2)))[..., 0, :, :]
        return found if self.federation.pieces.kernel is None else found.sum(-3)


class EachSiteLaw(SitesLaw):
    r"""Each agent's chain alone, with the mean maps of the others.

    In an exchange, let $\bar U$ be the image of $U$ if all agents are as on average, and $W_i$ that of $Y_i = \pi_i U
    + V_i$ with site $i$. Then $U' = \bar U + \sum_i (\sum_s W_i(s) - \bar U)$ and $Y_i' = W_i + \pi_i (U' - \sum_s
    W_i(s))$, where the last term is what the noise of the others adds. What agent $i$ remembers depends on it, too, as
    far as that noise is correlated with earlier messages.
    """

    def begin(self, start, *, stationary=False):
        federation, agents = self.federation, self.federation.agents
        pi, n, own = agents.pi, federation.size, federation.own
        x = np.append(federation.start @ start, 1.0)
        U = np.outer(x, x)
        y, q = np.zeros(n + own + 1), len(federation.own_start)
        y[:n], y[n : n + q], y[-1] = x[:-1], federation.own_start @ start, 1.0
        law = pi if stationary else agents.start
        V = law[..., None, None] * np.outer(y, y) - pi[..., None, None] * widened(U, n, own)
        if agents.noise is not None:
            V[:, 0, n + q : -1, n + q : -1] += agents.noise.stationary if stationary else agents.noise.start
        return self.by_outcome((U, V))

    def round(self, state):
        federation, every = self.federation, np.arange(len(self.federation.agents.P))[None]
        if federation.maps is not None:  # only what is drawn is random: $V$ is zero
            kernel, (U, V) = federation.pieces.kernel, state
            moved = federation.maps @ (U if kernel is not None else U[..., None, :, :]) @ transpose(federation.maps)
            if kernel is None:
                return np.einsum("w,...wab->...ab", federation.pieces.chances, moved), 0 * V
            return np.einsum("wv,...wab->...vab", kernel, moved, optimize=True), 0 * V

        def one(roles: list[Role], U: np.ndarray, V: np.ndarray) -> State:
            counts = federation.agents.counts
            U, V = round_of_each(roles, every, U[..., None, :, :], V[..., None, :, :, :, :], counts)
            return U[..., 0, :, :], V[..., 0, :, :, :, :]

        return self.over_outcomes([functools.partial(one, roles) for roles in federation.rounds], state)

    def total(self, state):
        return state[0] if self.federation.pieces.kernel is None else state[0].sum(-3)

    def summed(self, state):
        U, V = state
        if not self.settles:
            return state
        T, P = self._powers
        V = _later(T, V, P)
        if self.federation.own:
            added = narrowed(T[:, None] @ V @ transpose(T)[:, None], self.federation.size).sum(-3)
            U = U + np.einsum("k,...kab->...ab", self.federation.agents.counts, added)
        if self.federation.pieces.kernel is None:
            return self.later(U), V
        total = U.sum(-3)
        return U + self.federation.pieces.chances[:, None, None] * (self.later(total) - total)[..., None, :, :], V

    def points(self, state: State | None = None) -> Points:
        """Returns the second moments of the points that agents use in a round, by default in the long run."""
        federation, (U, V) = self.federation, self.still if state is None else state
        M, S, d = len(federation.agents.P), federation.num_states, federation.dim
        shape, every = (M, S, d + 1, d + 1), np.arange(M)[None]
        found = {k: np.zeros(shape) for k in range(len(federation.codes) + 1)}
        for k, (chance, roles) in enumerate(zip(federation.pieces.chances, federation.rounds, strict=True)):
            points = {j: np.zeros(shape) for j in found}
            own = (U, V) if federation.pieces.kernel is None else (U[k] / chance, V[k] / chance)
            round_of_each(roles, every, own[0][None], own[1][None], federation.agents.counts, points)
            for j, total in found.items():
                total += chance * points[j]
        return found

    @functools.cached_property
    def _powers(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean map of each agent's (x, o, 1) over a round, and the transitions of the chains."""
        federation, every = self.federation, np.arange(len(self.federation.agents.P))
        T = federation.given(every)[:, 0] if federation.own else self.mean_map[None]
        P = federation.kernels(every)
        return T, P - federation.agents.pi[:, None] if federation.num_states > 1 else P

    def starts(self):
        weights = self.base[0][..., -1:, -1:]
        return [(weights * X, np.zeros(self.base[1].shape)) for X in self.beginnings()]

    @property
    def exact(self) -> bool:
        """Whether nothing is neglected: with one agent, and if chains have one state, apart from roles that last for
        several exchanges."""
        federation = self.federation
        if federation.summary is not None:
            return False
        alone = federation.pieces.absences[0] is None or len(federation.rounds[0][0].exchanges) == 1
        return federation.num_agents == 1 or (federation.num_states == 1 and alone)

    @property
    def known_by(self):
        if self.exact:
            return "exact"
        return "one site" if self.federation.summary is None else "many agents"

    def mean_square_radius(self):
        if self.exact:
            return Radius(self.square_radius, "exact")
        return Radius(self.square_radius, "estimate", self.federation.field)

    @functools.cached_property
    def rough(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self.exact:
            return 0.0
        return 1.0 if self.square_radius >= 1 else self._formula() + self._of_roles() + self._of_summary()

    @functools.cached_property
    def neglected(self) -> float:  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
        """Twice what pairs of agents add, as those indicate whose states say most about the error."""
        federation, each = self.federation, self.federation.work(2) / len(self.federation.agents.P)
        costly = self.rough < MUCH / 2 and FEW * each > CHEAP
        if self.exact or self.square_radius >= 1 or costly or not federation.has_pairs:
            return self.rough
        (sets, numbers), told = federation.sets(2), self._told()
        weights = numbers * told[sets].prod(1)
        weights = weights if weights.any() else numbers
        most = np.argsort(-weights)[: int(np.clip(CHEAP / each, 1, FEW))]
        scale = weights.sum() / weights[most].sum()
        try:
            added = TwoSitesLaw(federation, self, most).traces(LOOSE)
        except ValueError:  # it does not settle
            return 1.0
        return _share_of_floor(scale * added, self, lambda a: 2 * a)

    def _formula(self) -> float:
        r"""Returns $(\eta \tau |\tilde A|)^{3/2} r^3 (M - 1) / M^2$, more than nearly all errors seen, often by far.

        $\tau = (1 + |\lambda|) / (1 - |\lambda|)$, with the second eigenvalue $\lambda$ of a chain, is the mean
        correlation time, $|\tilde A|^2$ the largest mean square of the matrices' noise in any direction, and $r = (1 -
        |\rho|^2) / (1 - \rho_2)$ the slowdown of the mean square by noise.
        """
        federation, M = self.federation, self.federation.num_agents
        squares, second = federation.agents.strength
        weights = federation.agents.counts / M
        shown = federation.pieces.show @ federation.coordinates.out_of[: len(federation.pieces.show)]
        step = abs(shown @ federation.responses) / federation.pieces.block_length
        tau = float(weights @ ((1 + second) / np.maximum(1 - second, 1e-12)))
        noise = math.sqrt(np.linalg.norm(np.tensordot(weights, squares, 1), 2))
        return min(float(step * tau * noise) ** 1.5 * self._slowdown() ** 3 * (M - 1) / M**2, 1.0)

    def _slowdown(self) -> float:
        """Returns by how much noise that multiplies the error slows down the decay of its mean square."""
        return max(1.0, (1 - self._mean**2) / (1 - self.square_radius))

    def _of_roles(self) -> float:
        """Returns what is neglected of roles that last for several exchanges, as enumeration of all sets shows it.

        It is more if an agent that is present may still do other things, such as losing its reply.
        """
        absences, chances = self.federation.pieces.absences, self.federation.pieces.chances
        if absences[0] is None or len(self.federation.rounds[0][0].exchanges) == 1:
            return 0.0
        present = [absence.present.sum() for absence in absences if absence is not None]
        every = [ways for role in self.federation.pieces.rounds[0] for ways in role.parts]
        other = 1 - min(max(way.chance for way in ways) for ways in every)
        return (0.1 + 2.5 * other) / max(float(chances @ present), 1.0) ** 2

    def _of_summary(self) -> float:
        """Returns what sums of others' memories miss, as laws that follow every memory show it."""
        summary = self.federation.summary
        return 0.0 if summary is None else summary.left_out + SUMMARISED / self.federation.num_agents

    def _told(self) -> np.ndarray:
        """Returns how much the state of each agent says about the mean error in the long run."""
        n, pi = self.federation.size, self.federation.agents.pi
        means = self.still[1][..., :n, -1] @ self.federation.show.T
        return np.sqrt(((means**2).sum(-1) / np.where(pi > 0, pi, 1.0)).sum(1))


class StandingLaw(EachSiteLaw):
    """The law of agents that stand for others, from which they differ."""

    vectors = COARSE

    @property
    def exact(self):
        return False

    @property
    def known_by(self):
        return "many agents"

    @functools.cached_property
    def accuracy(self):
        return ROUGH

    @functools.cached_property
    def neglected(self):
        return self.rough

    def mean_radius(self):
        return self._mean

    @functools.cached_property
    def square_radius(self):
        """By powers of the slowest mode of the mean, which is nearly that of the mean square."""
        (state, _), last, now = self.starts(), math.inf, 1.0
        while abs(now - last) > self.accuracy[1] * now:
            state, last = self.round(state), now
            now = float(np.abs(state[0]).max())
            if not 0 < now < HUGE:
                break
            state = tuple(x / now for x in state)
        return now

    def stable(self):
        """Also unknown if the noise of the agents takes more than half of what the mean gains."""
        found = super().stable()
        return None if found and self._slowdown() > 2 else found

    @functools.cached_property
    def sampled(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        r"""Three standard errors of what the agents add, and what is unknown of the bias.

        Agents were chosen with the probabilities $1 / w_i$, in proportion to about what they add, $f_i$. If they add
        $d_i$, the variance of $\sum_i w_i d_i$ is nearly $\sum_i (1 - 1 / w_i) w_i^2 (d_i - r f_i)^2$, where $r$ is the
        mean ratio of the two.
        """
        if self.square_radius >= 1:
            return 0.0
        federation, A, (U, V), counts = self.federation, self.mean_map, self.still, self.federation.agents.counts
        standing, k = federation.given_standing, len(counts)
        sets, every = np.arange(k)[:, None], np.broadcast_to(U, (k, *U.shape))
        added = round_of_each(federation.rounds[0], sets, every, V[:, None], np.full(1, federation.num_agents))[0]
        own = np.trace(self.shown(self.later(added - A @ U @ A.T)).second, axis1=1, axis2=2) / federation.num_agents
        first = standing.first * (counts @ own) / max(counts @ standing.first, np.finfo(float).tiny)
        parts = (1 - 1 / np.maximum(counts, 1.0)) * (counts * (own - first)) ** 2
        shift = federation.show @ np.linalg.solve(np.eye(len(A) - 1) - A[:-1, :-1], standing.doubt)
        bias, part = np.linalg.norm(self.persistent_bias()), np.linalg.norm(shift)
        error = 3 * math.sqrt(parts.sum() * k / max(k - 1, 1)) + 2 * (2 * bias * part + part**2)
        return float(error / self.stationary().square) + UNSOLVED


class LinearLaw(AbstractSteppedLaw):
    r"""Rounds that are the same map with additive noise, $x' = A x + c + \\sum_i B_i z_i$ and fresh noise: exact.

    With $E = \\mathrm{cov}(x)$, $X_i = \\mathrm{cov}(x, z_i)$ and $Z_i = \\mathrm{cov}(z_i)$ at the start of a round,

    $$E' = A E A^T + \\sum_i (A X_i B_i^T + B_i X_i^T A^T + B_i Z_i B_i^T) + N,$$

    $X_i' = (A X_i + B_i Z_i) Q_i^T + N_i$ and $Z_i' = Q_i Z_i Q_i^T + N_{ii}$, where $z_i' = Q_i z_i$ over a round.
    """

    additive = True

    def __init__(self, federation: Federation):
        self.federation, self.name = federation, federation.name
        if federation.summary is not None:
            self.basis, self.left_out = "many agents", federation.summary.left_out
        mean = federation.mean_round()
        self.A, self.c = mean[:-1, :-1], mean[:-1, -1]
        M, n, own = federation.num_agents, federation.size, 0 if federation.agents.noise is None else federation.dim
        self.B, self.cross = np.zeros((M, n, own)), np.zeros((M, n, own))
        self.Q, self.fresh, self.added = np.zeros((M, own, own)), np.zeros((M, own, own)), np.zeros((n, n))
        if len(federation.rounds) == 1:  # otherwise this is the mean over a coin
            self._add_noise(federation.rounds[0][0].exchanges)

    def _add_noise(self, exchanges: list[GroupExchange]) -> None:
        federation, n, found = self.federation, self.federation.size, []
        N, M, counts = n + federation.own + 1, len(federation.agents.P), federation.agents.counts
        kept = [*range(n), *range(n + len(federation.own_start), N)]  # memories that are summarised have no part in $x$
        for which in np.array_split(np.arange(M), int(np.clip(M * N**2 // CACHED, 1, M))):
            rows, noise = np.broadcast_to(np.eye(N)[kept], (len(which), 1, len(kept), N)), np.zeros(())
            for exchange in exchanges[::-1]:
                rows, covariance = exchange.back_of_each(rows, which)
                noise = noise + covariance
            rows = rows[:, 0][..., kept]
            found.append((rows[:, :n, n:-1], rows[:, n:-1, n:-1], noise[:, 0]))
        self.B, self.Q, noise = (np.concatenate(part) for part in zip(*found, strict=True))
        within, self.cross, self.fresh = noise[:, :n, :n], noise[:, :n, n:-1], noise[:, n:-1, n:-1]
        self.added, rest = np.tensordot(counts, within, 1), np.eye(n + 1)
        for exchange in exchanges[::-1]:
            to = rest[:-1, : exchange.ends]
            self.added, rest = self.added + to @ exchange.noise @ to.T, rest @ exchange.mean

    def enter(self, start):
        mean, noise = self.federation.start @ start, self.federation.agents.noise
        Z = np.zeros_like(self.fresh) if noise is None else noise.start
        return not self.federation.starts_alike, mean, np.zeros_like(self.A), np.zeros_like(self.B), Z

    @functools.cached_property
    def _beginning(self) -> "LinearLaw":
        """The law of the first round."""
        return LinearLaw(self.federation.beginning())

    def step(self, state):
        first, *moments = state
        return False, *(self._beginning if first else self)._after(*moments)

    def _after(self, mean: np.ndarray, E: np.ndarray, X: np.ndarray, Z: np.ndarray) -> State:
        AX, BZ = self.A @ X, self.B @ Z
        BT, QT = transpose(self.B), transpose(self.Q)
        mixed = (AX @ BT).sum(0)
        E = self.A @ E @ self.A.T + mixed + mixed.T + (BZ @ BT).sum(0) + self.added
        return self.A @ mean + self.c, E, (AX + BZ) @ QT + self.cross, self.Q @ Z @ QT + self.fresh

    def seen(self, state):
        show = self.federation.show
        return Moments(show @ state[1], show @ state[2] @ show.T)

    def mixed(self, state, part: float):
        """See `SitesLaw.mixed`."""
        map, (first, mean, E, X, Z) = self.federation.mixing(part), state
        return first, map @ mean, map @ E @ map.T, map @ X, Z

    def errors(self, start, rounds):
        """Follows the noise only until it has settled."""
        show, (first, mean, E, X, Z), driven, found = self.federation.show, self.enter(start), None, []
        for t in range(rounds + 1):
            found.append(np.sum((show @ mean) ** 2) + np.trace(show @ E @ show.T))
            if first and t == 0:
                mean, E, X, Z = self._beginning._after(mean, E, X, Z)
            elif driven is None:
                after = self._after(mean, E, X, Z)
                if _equal(after[2], X) and _equal(after[3], Z):
                    driven = after[1] - self.A @ E @ self.A.T
                mean, E, X, Z = after
            else:
                mean, E = self.A @ mean + self.c, self.A @ E @ self.A.T + driven
        return np.array(found)

    @functools.cached_property
    def _settled_noise(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns $X_i$ and $Z_i$ in the long run."""
        noise = self.federation.agents.noise
        Z = np.zeros_like(self.fresh) if noise is None else noise.stationary
        return stein_sum(self.A, transpose(self.Q), self.B @ Z @ transpose(self.Q) + self.cross), Z

    def covariance(self) -> np.ndarray:
        """Returns the covariance of $x$ in the long run."""
        require_stable(self.mean_radius(), self.name)
        X, Z = self._settled_noise
        _, driven, _, _ = self._after(self.c, np.zeros_like(self.A), X, Z)
        return stein_sum(self.A, self.A.T, driven)

    def stationary(self):
        covariance = self.covariance()
        return self.seen((False, np.linalg.solve(np.eye(len(self.A)) - self.A, self.c), covariance))

    @functools.cached_property
    def _radius(self) -> float:
        return spectral_radius(self.A)

    def mean_radius(self):
        return self._radius

    def mean_square_radius(self):
        return None if self.basis == "mean" else Radius(self.mean_radius() ** 2, "exact")

    def stable(self):
        return self.mean_radius() < 1

    @functools.cached_property
    def quiet(self) -> "LinearLaw":
        """The law of the same method without noise."""
        return LinearLaw(self.federation.noiseless()) if self.added.any() or self.B.any() else self

    def long_run(self):
        mean, covariance = self.stationary()
        if self.basis == "mean":
            return LongRun.of_mean(mean, math.nan)
        return LongRun.of_mean(mean, 0.0)._replace(covariance=covariance)

    def persistent_bias(self):
        return self.stationary().mean

    def family(self, algorithm, steps):
        return [LinearLaw(federation) for federation in self.federation.family(algorithm, steps)]


def _equal(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.abs(x - y).max(initial=0.0) <= SAME * np.abs(y).max(initial=0.0))


def round_of_each(
    roles: Sequence[Role],
    sets: np.ndarray,
    U: np.ndarray,
    V: np.ndarray,
    counts: np.ndarray | None = None,
    points: Points | None = None,
) -> State:
    """Returns the one-site moments of each of some sets after a round, `(..., c, N, N)` and `(..., c, k, S, N, N)`.

    Agents outside of a set are as they are on average. `counts` are the numbers of agents for which those in a set
    stand. The moments of the points that agents use are added to `points`.
    """
    (count, size), which, first = sets.shape, sets.ravel(), roles[0].exchanges
    counts = np.ones(size) if counts is None else counts
    pi = first[0].agents.pi[sets][..., None, None]
    chances = [role.chances[sets][..., None, None, None] for role in roles]
    # $V$ sums to zero over the states of the chain; the sum that rounding leaves would grow.
    total = U[..., None, :, :] - narrowed(V.sum(-3), first[0].n)
    Y = pi * widened(total, first[0].n, first[0].own)[..., None, :, :] + V
    each = [Y] if len(roles) == 1 else [chance * Y for chance in chances]
    begun, before, ends = U, np.zeros(()), first[-1].ends
    for k in range(len(first)):
        now = [role.exchanges[k] for role in roles]
        ends, W = now[0].ends, []
        for exchange, Y in zip(now, each, strict=True):
            flat = exchange.second_of_each(Y.reshape(*Y.shape[:-5], count * size, *Y.shape[-3:]), which, points)
            W.append(flat.reshape(*flat.shape[:-4], count, size, *flat.shape[-3:]))
        still = now[0].mean @ U @ now[0].mean.T
        still[..., :ends, :ends] += U[..., -1:, -1:] * now[0].noise
        seen = narrowed(functools.reduce(np.add, [x.sum(-3) for x in W]), ends)
        U = still + np.einsum("k,...kab->...ab", counts, seen - still[..., None, :, :])
        if now[0].beside is not now[0].shares:
            both = _of_roles(now, which, roles, begun, counts)
            U = U - (both - now[0].mean @ before @ now[0].mean.T if k else both) / now[0].num_agents
            before = both
        rest = (U[..., None, :, :] - seen)[..., None, :, :]
        each = []
        for role, chance, x in zip(roles, chances, W, strict=True):
            if k + 1 < len(first):
                T = role.exchanges[k + 1].remembered[sets]
                each.append(x + chance * pi * (T @ rest @ transpose(T)))
            else:
                each.append(x + chance * pi * widened(rest, ends, now[0].own_after))
    return U, sum(each) - pi * widened(U, ends, first[-1].own_after)[..., None, None, :, :]


def _of_roles(
    now: list[GroupExchange], which: np.ndarray, roles: Sequence[Role], U: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Returns what the roles of all agents add to the moments since the start of the round, each in its turn.

    Given the role of one agent, others are less often present if a certain number of them is, and so are others given
    theirs: the products of the effects of two agents add up to $M / (M - 1)$ times what they are.
    """
    parts = zip(now, roles, strict=True)
    each = [(role.chances[which][:, None, None], exchange.since[which]) for exchange, role in parts]
    mean, found = sum(chance * N for chance, N in each), np.zeros(())
    for chance, N in each:
        away = N - mean
        found = found + np.einsum("k,...kab->...ab", counts, chance * (away @ U[..., None, :, :] @ transpose(away)))
    cross = np.einsum("k,kab->ab", counts, mean - _mean_since(now[0]))
    added = cross @ U @ _mean_since(now[0]).T
    return found + added + transpose(added)


def _mean_since(exchange: GroupExchange) -> np.ndarray:
    """Returns the map of $(x, 1)$ since the start of a round if all agents are as they are on average."""
    every = exchange.round[: exchange.round.index(exchange) + 1]
    return functools.reduce(lambda X, e: e.mean @ X, every, np.eye(every[0].n + 1))


def widened(X: np.ndarray, n: int, own: int) -> np.ndarray:
    """Returns moments of $(x, 1)$ as those of (x, o, 1), with zeros."""
    if not own:
        return X
    found, at = np.zeros((*X.shape[:-2], n + own + 1, n + own + 1)), np.r_[:n, n + own]
    found[..., at[:, None], at] = X
    return found


def narrowed(X: np.ndarray, n: int) -> np.ndarray:
    """Returns the moments of $(x, 1)$ from those of (x, o, 1)."""
    if X.shape[-1] == n + 1:
        return X
    at = np.r_[:n, X.shape[-1] - 1]
    return X[..., at[:, None], at]


def _later(T: np.ndarray, X: np.ndarray, P: np.ndarray | None = None) -> np.ndarray:
    r"""Sums over all later rounds, $\sum_k T^k X(\cdot P^k) (T^k)^T$, by doubling; the constant is left out."""
    X = X.copy()
    for _ in range(DOUBLINGS):
        left = T if P is None else T[:, None]
        added = left @ X @ transpose(left)
        if P is not None and P.shape[-1] > 1:
            added = (transpose(P) @ added.reshape(*added.shape[:-2], -1)).reshape(added.shape)
        added[..., -1, -1] = 0
        X += added
        if not np.abs(added).max(initial=0.0) > NEGLIGIBLE**4 * np.abs(X).max(initial=0.0):
            break
        T, P = T @ T, None if P is None else P @ P
    return X


class TwoSitesLaw(SitesLaw):
    """The one-site law, and what pairs of agents add to it: exact for two agents.

    For a pair, let $E$ be the moments on the joint states that the one-site law implies. In a round, the exact law $T$
    of the two agents turns $E$ into $T E$, and their one-site laws into $E'$. So the difference $D$ between the exact
    moments and $E$ becomes $D' = T (E + D) - E'$.
    """

    too_much = TOO_MUCH_OF_TRIPLES

    @property
    def known_by(self):
        return "exact" if self.federation.num_agents == 2 else "pairs"

    def __init__(self, federation: Federation, alone: EachSiteLaw | None = None, which: Any = slice(None)):
        super().__init__(federation)
        self.alone = alone or EachSiteLaw(federation)
        sets, numbers = federation.sets(2)
        self.sets, self.numbers = sets[which], numbers[which]
        if self.known_by == "exact":
            self.alone.accuracy = self.accuracy
        """The pairs that are followed, and how many there are of each."""

    def begin(self, start, *, stationary=False):
        U, V = self.alone.begin(start, stationary=stationary)
        agents = self.federation.agents
        one, two = np.moveaxis((agents.pi if stationary else agents.start)[self.sets], 1, 0)
        whole = one[:, :, None, None, None] * two[:, None, :, None, None] * U
        return U, V, whole - self._implied(U, V[..., self.sets, :, :, :])

    def _implied(self, U: np.ndarray, V: np.ndarray) -> np.ndarray:
        r"""Returns $E = \pi_i \pi_j U + V_i \pi_j + \pi_i V_j$ for every pair; `V` has an axis of its agents."""
        pi = self.federation.agents.pi[self.sets][..., None, None]
        one, two = pi[:, 0, :, None], pi[:, 1, None]
        V, W = V[..., 0, :, None, :, :], V[..., 1, None, :, :, :]
        return one * two * U[..., None, None, :, :] + V * two + one * W

    def round(self, state):
        U, V, D = state
        return *self.alone.round((U, V)), self.difference(U, V, D)

    def difference(self, U: np.ndarray, V: np.ndarray, D: np.ndarray | float = 0.0) -> np.ndarray:
        """Returns the difference after a round, from the moments of the one-site law and the difference before it."""
        U, V = U[..., None, :, :], V[..., self.sets, :, :, :]
        before, found = self._implied(U, V) + D, np.zeros(())
        for chance, roles in zip(self.federation.pieces.chances, self.federation.rounds, strict=True):
            X = functools.reduce(lambda X, e: e.second_of_sets(X, self.sets), roles[0].exchanges, before)
            found = found + chance * (X - self._implied(*round_of_each(roles, self.sets, U, V)))
        return found

    def total(self, state):
        U, _, D = state
        return U + np.einsum("c,...cab->...ab", self.numbers, D.sum((-4, -3)))

    def summed(self, state):
        U, V, D = state
        if not self.settles:
            return state
        one, two = np.moveaxis(self.federation.agents.pi[self.sets], 1, 0)
        total = D.sum((-4, -3))
        more = (self.later(total) - total)[..., None, None, :, :]
        return *self.alone.summed((U, V)), D + (one[:, :, None] * two[:, None])[..., None, None] * more

    @functools.cached_property
    def still(self):
        U, V = self.alone.still
        return U, V, self._differences(TOLERANCE if self.federation.num_agents == 2 else LOOSE)

    def _differences(self, tolerance: float) -> np.ndarray:
        """Returns the differences of all pairs in the long run."""
        zero = tuple(np.zeros_like(x) for x in self.alone.still)
        return self.added_up((*zero, self.difference(*self.alone.still)), tolerance)[2]

    def traces(self, tolerance: float) -> np.ndarray:
        """Returns what the pairs add to the mean-square error in the long run."""
        shown = self.shown(self._differences(tolerance).sum((-4, -3)))
        return self.numbers * np.trace(shown.second, axis1=-2, axis2=-1)

    @functools.cached_property
    def rough(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        r"""$a / 2 + a^2$, if pairs add $a$ to the floor, all of them by absolute value."""
        if self.federation.num_agents == 2:
            return 0.0
        if self.mean_square_radius().value >= 1:
            return 1.0
        shown = self.shown(self.still[2].sum((-4, -3)))
        added = self.numbers * np.trace(shown.second, axis1=-2, axis2=-1)
        return _share_of_floor(added, self, lambda a: a / 2 + a**2)

    def starts(self):
        return []

    @functools.cached_property
    def square_radius(self) -> float:
        """The largest radius of the exact laws of pairs."""
        U, V, D = (np.zeros_like(x) for x in self.base)
        one, two = np.moveaxis(self.federation.agents.pi[self.sets], 1, 0)
        weights = (one[:, :, None] * two[:, None])[..., None, None]
        i, j = np.ogrid[: D.shape[-2], : D.shape[-1]]
        kept = np.broadcast_to((i <= j) & (j < self.growing), D.shape[1:])

        def whole(rows: np.ndarray) -> np.ndarray:
            found = np.zeros(D.shape)
            found[:, kept] = rows
            return found + np.tril(transpose(found), -1)

        def map(rows: np.ndarray) -> np.ndarray:
            return self.difference(U, V, whole(rows))[:, kept]

        def nearly(rows: np.ndarray) -> np.ndarray:
            return self.summed((U, V, whole(rows)))[2][:, kept]

        starts = [(weights * X)[:, kept] for X in self.beginnings()]
        found = growth(map, starts, nearly, self.accuracy[1], 4, WORTHWHILE) if self.slow else None
        if found is not None:
            return float(found.max())
        shape = starts[-1].shape  # the maps of all pairs are one

        def every(values: np.ndarray) -> np.ndarray:
            return map(values.reshape(shape)).ravel()

        together = LinearOperator((math.prod(shape),) * 2, matvec=every, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        return radius(together, starts[-1].ravel(), self.accuracy[1])

    def mean_square_radius(self):
        """The largest radius among the laws that are combined."""
        value, exact = max(self.alone.square_radius, self.square_radius), self.federation.num_agents == 2
        return Radius(value, "exact") if exact else Radius(value, "estimate", self.federation.field)

    def mean_radius(self):
        both = self.federation.num_agents == 2 == len(self.federation.agents.P)
        return (EverySiteLaw(self.federation) if both else self.alone).mean_radius()


def _share_of_floor(added: np.ndarray, law: SitesLaw, share: Callable[[float], float]) -> float:
    """Returns a function of what pairs of agents add, relative to the floor of a stable law; at most 1."""
    floor, whole = law.stationary().square, float(np.abs(added).sum())
    rounding = SAME * float(np.square(law.federation.agents.W[..., -1]).max())  # of methods that remove all noise
    return min(share(whole / floor), 1.0) if whole > rounding and floor > 0 else 0.0
