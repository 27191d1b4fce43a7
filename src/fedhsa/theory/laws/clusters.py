r"""Markov sampling of affine operators: second moments on the states of a few agents' chains, exact or approximate.

Let $x = (e, 1)$, and consider $Y_T(s) = E[x x^T 1\{s_T = s\}]$ for a set $T$ of agents, a cluster. Over a round, the
agents of the cluster follow their chains, and all others follow their mean round maps. This leads to three laws.

- `ProductLaw`: the cluster contains all agents. It is exact and has $S^M (d + 1)^2$ numbers.
- `OneSiteLaw`: decompose the moments as in an analysis of variance, $Y_T = \sum_{U \subset T} V_U \prod_{j \in T
  \setminus U} \pi_j$, where $V_U$ sums to zero over each of its states. Then $V_U = O(M^{-|U|})$, and the law keeps
  $V_\emptyset$ and every $V_i$. It is exact for one agent and in the limit of many.
- `PairsLaw` adds the difference between the product law and the one-site law of each pair of agents. It is exact for
  two agents.
"""

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..._linear import transpose
from ..maps.rounds import LocalRule
from .field import field_radius
from .finite import Edges
from .moments import AbstractSteppedLaw, MomentLaw, Moments, Radius

QUICK = 2e7
"""The largest number of multiplications of a law that is evaluated at many step sizes."""
MANY_STATES = 100
"""The binary logarithm of a number of states that is always too large."""
MANY_STEPS, MATRIX = 4, 150
"""The smallest number of local steps, and the largest size of matrices, for which powers of matrices are used."""
FEW_PAIRS = 2e8
"""The largest number of multiplications for the few pairs from which the one-site law's error is estimated."""


class Means(NamedTuple):
    r"""Each agent's mean round, $E[y_{i,H}] = R_i e + T_i \bar g + u_i$, and its mean operator $A_i e + r_i$."""

    R: np.ndarray
    T: np.ndarray
    u: np.ndarray
    A: np.ndarray
    r: np.ndarray

    def sum(self, weights: np.ndarray) -> "Means":
        """Returns the weighted sum over agents; `weights` may have leading axes, `(..., agents)`."""
        return Means(*(np.tensordot(weights, part, 1) for part in self))

    def round(self, server_step: float) -> np.ndarray:
        r"""Returns the map of $(e, 1)$ over a round if these are averages over all agents, `(d + 1, d + 1)`."""
        d = len(self.u)
        map = np.eye(d + 1)
        map[:d, :d] += server_step * (self.R + self.T @ self.A - np.eye(d))
        map[:d, d] = server_step * (self.T @ self.r + self.u)
        return map


def mean_rounds(edges: Edges, rule: LocalRule, start: np.ndarray | None = None) -> Means:
    """Returns the mean rounds of all agents, from first moments of the local error on the event of each state.

    `start` is the distribution of the chains, stationary by default.
    """
    eta, H, _, kappa = rule
    d, law = edges.dim, (edges.stationary if start is None else start)[..., None, None]
    inputs = np.eye(2 * d + 1)  # e, the average operator, 1
    e, g_bar, one = inputs[:d], inputs[d : 2 * d], inputs[-1]
    a = edges.pushed(law * e, law[..., 0] * one)
    y = edges.moved(law * (e + eta * kappa * g_bar)) + eta * (1 - kappa) * a
    anchor = a.sum(-3)
    for _ in range(H - 1):
        law = edges.moved(law)
        y = edges.moved(y + eta * kappa * (law * g_bar - a)) + eta * edges.pushed(y, law[..., 0] * one)
        a = edges.moved(a)
    end = y.sum(-3)
    return Means(end[..., :d], end[..., d:-1], end[..., -1], anchor[..., :d], anchor[..., -1])


def local_step(edges: Edges, eta, K, YY, YX, XX):
    r"""Returns second moments of $(y, x)$ on the event of each state after $y \leftarrow y + \eta (G(y) + K x)$.

    $x$ does not change; its last entry is 1. The agents' states are the axis before the moments.
    """
    d = YX.shape[-2]
    KX, YK = eta * K @ XX, eta * YX @ transpose(K)
    BX, YB = YX + KX, YY + YK  # b = y + eta K x
    BB = YB + transpose(YK) + eta * KX @ transpose(K)
    pushed = eta * edges.pushed(
        np.concatenate([YB, YX], axis=-1), np.concatenate([BX[..., -1], XX[..., -1, :]], axis=-1)
    )
    squared = eta**2 * edges.squared(YY, YX[..., -1], XX[..., -1, -1])
    left = edges.moved(np.concatenate([BB, BX], axis=-1)) + pushed
    YY = left[..., :d] + transpose(pushed[..., :d]) + squared
    return YY, left[..., d:], edges.moved(XX)


class ManySteps:
    r"""Many applications of `local_step`, for `edges` with axes `(n, 1)`, as a few matrix products.

    An agent depends on $x$ only through $u = K x$ and 1, which do not change. So its steps act on the moments of
    $(y, u, 1)$, with each other and with any other variable, as powers of the matrices of one step.
    """

    def __init__(self, edges: Edges, eta: float, steps: int):
        n, S, d = edges.num_agents, edges.num_states, edges.dim
        shapes = [(S, d, d), (S, d, d + 1), (S, d + 1, d + 1)]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        units = np.split(np.broadcast_to(np.eye(ends[-1]), (n, ends[-1], ends[-1])), ends[:-1], axis=-1)
        parts = [part.reshape(n, -1, *shape) for part, shape in zip(units, shapes, strict=True)]
        self.squares = _power(local_step(edges, eta, np.eye(d, d + 1), *parts), steps)[:, : ends[0]]
        size = S * (2 * d + 1)
        y, u, one = np.split(np.broadcast_to(np.eye(size), (n, size, size)).reshape(n, size, S, -1, 1), [d, 2 * d], -2)
        y = edges.moved(y + eta * u) + eta * edges.pushed(y, one[..., 0, :])
        rows = np.arange(size).reshape(S, -1)[:, :d].ravel()
        self.products = _power([np.concatenate([y, edges.moved(u), edges.moved(one)], axis=-2)], steps)[:, None, rows]
        self.kernel = np.linalg.matrix_power(transpose(edges.transition), steps)

    @staticmethod
    def pays(edges: Edges, steps: int) -> bool:
        """Returns whether there are enough steps and the matrices are small."""
        return steps >= MANY_STEPS and edges.num_states * (2 * edges.dim + 1) ** 2 <= MATRIX

    def __call__(self, K, YY, YX, XX):
        """Returns the moments after the steps."""
        *many, S, d, width = YX.shape
        one = np.broadcast_to(np.eye(width)[-1:], (*K.shape[:-2], 1, width))
        R = np.concatenate([K, one], axis=-2)  # (u, 1) = R x
        RX = R @ XX
        among = [YY, YX @ transpose(R), RX @ transpose(R)]
        among = np.concatenate([part.reshape(*many, -1) for part in among], axis=-1)
        YY = (among @ transpose(self.squares)).reshape(YY.shape)
        YX = self.products @ np.concatenate([YX, RX], axis=-2).reshape(*many, -1, width)
        return YY, YX.reshape(*many, S, d, width), (self.kernel @ XX.reshape(*many, S, -1)).reshape(XX.shape)


def _power(images: Sequence[np.ndarray], steps: int) -> np.ndarray:
    """Returns a power of the matrix of a map, from the parts `(n, units, S, a, b)` of its images of all units."""
    columns = np.concatenate([part.reshape(*part.shape[:2], -1) for part in images], axis=-1)
    return np.linalg.matrix_power(transpose(columns), steps)


@dataclasses.dataclass(frozen=True, eq=False)
class Agents:
    """The different agents, the number of each, and their local rule."""

    edges: Edges
    counts: np.ndarray
    rule: LocalRule

    @functools.cached_property
    def means(self) -> Means:
        """The agents' mean rounds."""
        return mean_rounds(self.edges, self.rule)

    @property
    def number(self) -> float:
        """$M$."""
        return self.counts.sum()

    @functools.cached_property
    def mean_map(self) -> np.ndarray:
        """The map of $(e, 1)$ over a round of infinitely many similar agents."""
        return self.means.sum(self.counts / self.number).round(self.rule.server_step)

    @functools.cached_property
    def noise(self) -> float:
        r"""$\eta \tau |\tilde A|^2 / |\bar A|$, the strength of multiplicative noise relative to the mean operator.

        $\tau$ is the relaxation time of the agents' chains on average, $|\tilde A|^2$ the largest mean square of their
        matrices' noise in any direction, and $|\bar A|$ the slowest mode of the mean operator.
        """
        edges, weights = self.edges, self.counts / self.number
        D, W, flow = edges.directions, edges.slopes, edges.stationary[..., None] * edges.transition
        A = np.swapaxes(D, -1, -2)[:, :, None] @ W - self.means.A[:, None, None]
        squares = np.einsum("nst,nstab,nstac->nbc", flow if W.shape[2] > 1 else flow.sum(-1, keepdims=True), A, A)
        second = np.sort(np.abs(np.linalg.eigvals(edges.transition)), axis=-1)[:, -2] if edges.num_states > 1 else 0.0
        tau = weights @ np.broadcast_to((1 + second) / (1 - second), weights.shape)
        slowest = np.abs(np.linalg.eigvals(np.tensordot(weights, self.means.A, 1)).real).min()
        return float(self.rule.step_size * tau * np.linalg.norm(np.tensordot(weights, squares, 1), 2) / slowest)

    @functools.cached_property
    def field(self) -> float | None:
        """The mean-square radius in the Gaussian field of all agents."""
        edges, alpha, M, n = self.edges, self.rule.server_step, self.number, len(self.counts)
        given = mean_rounds(edges.take(np.arange(n)[:, None]), self.rule, np.eye(edges.num_states)[None])
        bar = self.means.sum(self.counts / M)
        maps = alpha / M * (given.R + given.T @ bar.A + bar.T @ given.A)  # up to what is the same in all states
        kernels = np.linalg.matrix_power(edges.transition, self.rule.local_steps)
        return field_radius(self.mean_map[:-1, :-1], maps, self.counts, kernels, edges.stationary)

    def persistent_bias(self) -> np.ndarray:
        """The limit of infinitely many similar agents, minus the root."""
        Phi, c = self.mean_map[:-1, :-1], self.mean_map[:-1, -1]
        return np.linalg.solve(np.eye(len(c)) - Phi, c)


def agents_of(edges: Edges, rule: LocalRule) -> Agents:
    """Returns the agents of a problem; with one local step the corrections average to zero."""
    rule = rule._replace(correction=0.0) if rule.local_steps == 1 else rule
    distinct, counts = edges.distinct()
    return Agents(distinct, counts, rule)


class Clusters:
    """Clusters of agents of equal size; agents outside a cluster follow their mean round maps."""

    def __init__(self, agents: Agents, members: np.ndarray):
        edges, counts, rule, means = agents.edges, agents.counts, agents.rule, agents.means
        (n, k), M, d = members.shape, agents.number, edges.dim
        self._made: dict[int, ManySteps] = {}
        self.rule, self.edges = (
            rule,
            [edges.take(members[:, q, None]) for q in range(k)],
        )  # and all states of the other members
        weights = np.tile(counts / M, (n, 1))
        np.subtract.at(weights, (np.arange(n)[:, None], members), 1 / M)
        others = means.sum(weights)
        # The state is z = (e, y_1 .. y_k, a_1 .. a_k, 1); the first operators a_i are present only with a correction.
        self.anchored = rule.correction != 0
        rows = np.eye((1 + k * (2 if self.anchored else 1)) * d + 1)
        e, one = rows[:d], rows[-1:]
        self.local = [np.arange((1 + q) * d, (2 + q) * d) for q in range(k)]
        self.first = [at + k * d for at in self.local] if self.anchored else []
        g_bar = sum((rows[at] / M for at in self.first), others.A @ e + others.r[..., None] * one)
        eta, _, alpha, kappa = rule
        self.corrections = [kappa * (g_bar - rows[at]) for at in self.first] or [0 * g_bar] * k
        self.begin = [e + eta * ((1 - kappa) * rows[at] + kappa * g_bar) for at in self.first]
        ends = sum(rows[at] / M for at in self.local) + others.R @ e + others.T @ g_bar + others.u[..., None] * one
        self.end = np.concatenate([(1 - alpha) * e + alpha * ends, np.broadcast_to(one, (n, *one.shape))], axis=-2)
        self.enter = np.concatenate([e] * ((len(rows) - 1) // d) + [one])[:, np.r_[:d, -1]]  # every part starts as e

    def round(self, Y: np.ndarray) -> np.ndarray:
        r"""Returns second moments of $(e, 1)$ one round later, `(n, S, ..., S, d + 1, d + 1)`, one axis per member."""
        members, d = range(len(self.edges)), Y.shape[-1] - 1
        Z, steps = self.enter @ Y @ self.enter.T, self.rule.local_steps
        if self.anchored:
            to_operator = -np.eye(Z.shape[-1])[None, :d]  # e + (a - e)
            for q in members:
                Z = self._move(q, self.first[q], 1.0, to_operator, Z)
            start = np.tile(np.eye(Z.shape[-1]), (len(self.end), 1, 1))
            for at, begin in zip(self.local, self.begin, strict=True):
                start[:, at] = begin
            Z, steps = _through(start, Z), steps - 1
        for q in members:  # after the first operators, members do not interact until the end
            Z = self._move(q, self.local[q], self.rule.step_size, self.corrections[q], Z, steps)
        return _through(self.end, Z)

    def _move(self, q: int, y: np.ndarray, eta: float, K: np.ndarray, Z: np.ndarray, steps: int = 1) -> np.ndarray:
        """Applies steps of the `q`-th member of each cluster, whose error is at the positions `y` of the state."""
        axis = q - len(self.edges) - 2
        x = np.setdiff1d(np.arange(Z.shape[-1]), y)  # the last entry remains last
        Z = np.moveaxis(Z, axis, -3)
        shape, Z = Z.shape, Z.reshape(len(Z), -1, *Z.shape[-3:])
        parts = Z[..., y[:, None], y], Z[..., y[:, None], x], Z[..., x[:, None], x]
        K = K[:, None, None][..., x]
        if ManySteps.pays(self.edges[q], steps):
            parts = self._many_steps(q, eta, steps)(K, *parts)
        else:
            for _ in range(steps):
                parts = local_step(self.edges[q], eta, K, *parts)
        Z, (YY, YX, XX) = np.empty_like(Z), parts
        Z[..., y[:, None], y], Z[..., y[:, None], x], Z[..., x[:, None], y] = YY, YX, transpose(YX)
        Z[..., x[:, None], x] = XX
        return np.moveaxis(Z.reshape(shape), -3, axis)

    def _many_steps(self, q: int, eta: float, steps: int) -> ManySteps:
        """Returns the steps of a member, cached since there are hundreds of rounds."""
        if q not in self._made:
            self._made[q] = ManySteps(self.edges[q], eta, steps)
        return self._made[q]


def _through(map: np.ndarray, Z: np.ndarray) -> np.ndarray:
    map = map.reshape(len(map), *(1,) * (Z.ndim - 3), *map.shape[1:])
    return map @ Z @ transpose(map)


class AbstractChainLaw(MomentLaw):
    """A law of agents on finite chains."""

    def __init__(self, agents: Agents):
        self.agents = agents

    @property
    def dim(self):
        return self.agents.edges.dim

    @property
    @abc.abstractmethod
    def work(self) -> float:
        """The approximate number of multiplications in a round."""

    @property
    def quick(self):
        rounds = 40 if self._matrix is None else len(self._matrix)
        return rounds * self.work <= QUICK

    def persistent_bias(self):
        return self.agents.persistent_bias()


class ProductLaw(AbstractChainLaw):
    r"""The joint chains of some agents, or by default of all, which is exact. The chains move one at a time."""

    def __init__(self, agents: Agents, members: np.ndarray | None = None):
        members = np.repeat(np.arange(len(agents.counts)), agents.counts.astype(int)) if members is None else members
        super().__init__(agents)
        self.edges = agents.edges.take(members)
        self.shape = (agents.edges.num_states,) * len(members)
        self.clusters = Clusters(agents, members[None])

    @property
    def work(self):
        return cluster_work(self.agents, len(self.shape))

    def begin(self, start, *, stationary=False):
        law = functools.reduce(np.multiply.outer, self.edges.stationary if stationary else self.edges.start)
        return law.reshape(-1, 1, 1) * np.outer(start, start)

    def round(self, blocks):
        *many, _, d, _ = blocks.shape
        return self.clusters.round(blocks.reshape(1, *many, *self.shape, d, d)).reshape(blocks.shape)

    def total(self, blocks):
        return blocks.sum(-3)


class OneSiteLaw(AbstractChainLaw):
    r"""Each agent's chain alone, with the mean rounds of the others.

    Let $U = V_\emptyset$, let $L_0$ be the map of second moments by the mean round, and let $W_i$ be the image of
    $\pi_i U + V_i$ under a round of agent $i$'s cluster. A round is $U' = L_0 U + \sum_i (\sum_s W_i(s) - L_0 U)$ and
    $V_i' = W_i - \pi_i \sum_s W_i(s)$. Methods with a correction have one more term of the same order: the contribution
    $\zeta$ of the other agents' first operators to the average is multiplied by agent $i$'s random response $T_i$, not
    by its mean.
    """

    basis = "one site"

    def __init__(self, agents: Agents, sites: np.ndarray | None = None, counts: np.ndarray | None = None):
        sites = np.arange(len(agents.counts)) if sites is None else sites
        super().__init__(agents)
        self.counts = agents.counts if counts is None else counts
        self.edges, self.means = agents.edges.take(sites), Means(*(part[sites] for part in agents.means))
        self.mean_map = agents.mean_map
        self.clusters = Clusters(agents, sites[:, None])

    @property
    def work(self):
        return site_work(self.agents)

    def begin(self, start, *, stationary=False):
        square, pi = np.outer(start, start), self.edges.stationary
        away = (pi if stationary else self.edges.start) - pi
        return np.concatenate([square[None], away.reshape(-1, 1, 1) * square])

    def round(self, blocks):
        (n, S), (*many, _, d, _) = self.edges.stationary.shape, blocks.shape
        U, V = blocks[..., 0, :, :], blocks[..., 1:, :, :].reshape(*many, n, S, d, d)
        pi = self.edges.stationary[..., None, None]
        W = np.moveaxis(pi * U[..., None, None, :, :] + V, len(many), 0)  # agents first
        W = np.moveaxis(self.clusters.round(W), 0, len(many))
        total, alone = W.sum(-3), self.mean_map @ U @ self.mean_map.T
        gained = np.einsum("i,...iab->...ab", self.counts, total - alone[..., None, :, :])
        after = alone + gained + self._through_responses(U)
        V = (W - pi * total[..., None, :, :]).reshape(*many, n * S, d, d)
        return np.concatenate([after[..., None, :, :], V], axis=-3)

    def total(self, blocks):
        return blocks[..., 0, :, :]

    @functools.cached_property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The error estimated from a few pairs of agents, or from the noise alone if pairs take long.

        It is calibrated against products of chains and occupancies: 95 % of errors are smaller. It is amplified by what
        the Gaussian field of all agents indicates.
        """
        agents, M, doubt = self.agents, self.agents.number, self.mean_square_radius().doubt
        if M == 1:
            return 0.0
        few = int(FEW_PAIRS / pair_work(agents))
        if few < 3:
            scale = 0.04 if agents.rule.correction else 0.015
            return (1 + min(scale * agents.noise * (M - 1) / M**2, 1.0)) * (1 + doubt) - 1
        gaps = np.array([pair.gap() / pair.number for pair in pairs_of(agents, min(few, 8))])
        gap = _part(M * (M - 1) / 2 * math.sqrt(np.mean(gaps**2)), self.settled().square)
        return (1 + min(gap * (2 + 1.5 * math.sqrt(agents.noise) / M), 1.0)) * (1 + doubt) - 1

    def mean_square_radius(self):
        found = super().mean_square_radius()
        return found if self.agents.number == 1 else Radius(found.value, "estimate", self.agents.field)

    def _through_responses(self, U: np.ndarray) -> np.ndarray:
        r"""$(\alpha_g / M)^2 \sum_i (E[T_i Z_i T_i^T] - \bar T_i Z_i \bar T_i^T)$, $Z_i$ the covariance of $\zeta$."""
        added, (eta, H, alpha, kappa), M = np.zeros_like(U), self.agents.rule, self.agents.number
        if not kappa or M == 1:
            return added
        edges, pi, d, U = self.edges, self.edges.stationary[..., None, None], self.dim, U[..., None, :, :]
        mean = np.concatenate([self.means.A, self.means.r[..., None]], axis=-1)
        spread = pi * U[..., None, :, :]
        second = edges.squared(spread[..., :d, :d], spread[..., :d, d], spread[..., d, d]).sum(-3)
        noise = second - mean @ U @ transpose(mean)
        Z = (np.einsum("i,...iab->...ab", self.counts, noise)[..., None, :, :] - noise) / M**2
        XX = np.zeros(spread.shape)  # x = (zeta, 1) without the 1, which adds no noise
        XX[..., :d, :d] = pi * Z[..., None, :, :]
        YY, YX = (eta * kappa) ** 2 * XX[..., :d, :d], eta * kappa * XX[..., :d, :]
        for _ in range(H - 1):
            YY, YX, XX = local_step(edges, eta, kappa * np.eye(d, d + 1), YY, YX, XX)
        T = self.means.T
        spread = YY.sum(-3) - T @ Z @ transpose(T)
        added[..., :d, :d] = (alpha / M) ** 2 * np.einsum("i,...iab->...ab", self.counts, spread)
        return added


class PairsLaw(AbstractSteppedLaw):
    r"""The one-site law, corrected by the product law of every pair of agents, which is exact for two agents."""

    basis = "pairs"

    def __init__(self, agents: Agents):
        self.alone, self.pairs = OneSiteLaw(agents), pairs_of(agents)

    @functools.cached_property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The estimated error, calibrated against products of chains: 95 % of errors are smaller."""
        return min(1.6 * self.gap * (0.02 + math.sqrt(self.gap)), 1.0)

    @functools.cached_property
    def gap(self) -> float:
        """The sum over all pairs of the absolute errors of the one-site law, relative to its floor."""
        return _part(sum(abs(pair.gap()) for pair in self.pairs), self.alone.stationary().square)

    def enter(self, start):
        both = [(pair.product.enter(start), pair.closed.enter(start)) for pair in self.pairs]
        return self.alone.enter(start), both

    def step(self, state):
        alone, both = state
        pairs = zip(self.pairs, both, strict=True)
        return self.alone.step(alone), [(pair.product.step(p), pair.closed.step(c)) for pair, (p, c) in pairs]

    def seen(self, state):
        alone, both = state
        pairs = zip(self.pairs, both, strict=True)
        return self._corrected(
            self.alone.seen(alone), [(pair.product.seen(p), pair.closed.seen(c)) for pair, (p, c) in pairs]
        )

    def stationary(self):
        both = [(pair.product.settled(), pair.closed.settled()) for pair in self.pairs]
        return self._corrected(self.alone.stationary(), both)

    @property
    def quick(self):
        return self.alone.quick

    def mean_square_radius(self):
        return self.alone.mean_square_radius()

    def mean_radius(self):
        return self.alone.mean_radius()

    def persistent_bias(self):
        return self.alone.persistent_bias()

    def _corrected(self, alone: Moments, both: list[tuple[Moments, Moments]]) -> Moments:
        mean, second = alone.mean, alone.second
        for pair, (product, closed) in zip(self.pairs, both, strict=True):
            mean = mean + pair.number * (product.mean - closed.mean)
            second = second + pair.number * (product.second - closed.second)
        return Moments(mean, second - np.outer(mean, mean))


class PairOfAgents(NamedTuple):
    """A pair of kinds of agents: the number of these pairs, and their laws among the others."""

    number: float
    product: ProductLaw
    closed: OneSiteLaw

    def gap(self) -> float:
        """The mean-square error of all these pairs that the one-site law neglects."""
        return self.number * (self.product.settled().square - self.closed.settled().square)


def pairs_of(agents: Agents, few: int | None = None) -> list[PairOfAgents]:
    """Returns all pairs of agents by kinds, or a few random ones."""
    found, counts = [], agents.counts
    kinds = list(itertools.combinations_with_replacement(range(len(counts)), 2))
    kinds = [(i, j) for i, j in kinds if i != j or counts[i] > 1]
    if few is not None and few < len(kinds):
        kinds = [kinds[k] for k in np.random.default_rng(0).choice(len(kinds), few, replace=False)]
    for i, j in kinds:
        number = counts[i] * (counts[j] if i != j else (counts[i] - 1) / 2)
        if number:
            sites, of_each = (np.array([i, j]), np.ones(2)) if i != j else (np.array([i]), np.array([2.0]))
            found.append(PairOfAgents(number, ProductLaw(agents, np.array([i, j])), OneSiteLaw(agents, sites, of_each)))
    return found


def cluster_work(agents: Agents, size: int) -> float:
    """Returns the number of multiplications in a round with clusters of `size` agents."""
    S, blocks = agents.edges.num_states, (2 if agents.rule.correction else 1) * size + 1
    if (size + 1) * math.log2(S) > MANY_STATES:
        return math.inf
    return 3 * float(S) ** (size + 1) * (blocks * agents.edges.dim + 1) ** 2 * size * agents.rule.local_steps


def site_work(agents: Agents) -> float:
    """Returns the number of multiplications in a round of the one-site law."""
    S, d = agents.edges.num_states, agents.edges.dim
    return len(agents.counts) * agents.rule.local_steps * S * S * 3 * d * (d + 1)


def pair_work(agents: Agents) -> float:
    """Returns the number of multiplications in the law of one pair."""
    return cluster_work(agents, 2) * min(agents.edges.num_states**2 * (agents.edges.dim + 1) ** 2, 70)


def _part(of: float, whole: float) -> float:
    return of / whole if whole > 0 else 0.0
