r"""A method on the finite chains of its agents: the maps of its exchanges, by what the agents observe.

Let $x$ be the state that a method carries from exchange to exchange, server and memories together, with a constant 1.
In an exchange an agent begins with a part of $x$, walks along its chain (`Walk`), and contributes to the next $x$.
"""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from scipy.linalg import block_diag

from ..._linear import transpose
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..stability import with_step
from .field import field_radius
from .finite import AddedNoise, added_noise, additive_noise, affine_operators, finite_law, kinds_of
from .moments import NotDerivedError, Steps
from .pieces import MEAN, ROUNDING, Call, Part, Pieces, Step, apply, pieces_of

MATRIX = 700
"""The size up to which an agent's map of first or second moments is a matrix."""
DRAWS, SOME, SEED = 3, 4, 0
"""The number of random rounds without a new direction after which the carried state is complete, the number of step
sizes whose rounds reach what those of all step sizes do, and the seed of these rounds."""
FACTORS = np.array([1.0, 0.37, 0.11])
"""Step sizes relative to one, whose rounds reach what those of any step size do."""
SMALL, CLEAR, ROOM = 1e-10, 1e-6, 2**23
"""The relative sizes below which a direction is rounding and above which a random column shows it clearly, and the
largest size of maps that are followed at once."""


class Outcomes(NamedTuple):
    r"""What the agents observe: in state $s$ the outcome $t$, with the operator $A(s, t)\, y + g(s, t)$ at $y$.

    Arrays have a leading axis of agents. Agents with additive noise have one state and one outcome.
    """

    flow: np.ndarray
    """The probability of the outcome and of the next state, `(M, S, T, S)`."""
    A: np.ndarray
    """`(M, S, T, d, d)`."""
    g: np.ndarray
    """`(M, S, T, d)`."""
    stationary: np.ndarray
    """`(M, S)`."""
    start: np.ndarray
    """`(M, S)`."""
    noise: AddedNoise | None = None

    def of(self, which: Any) -> "Outcomes":
        """Returns those of some of the agents, or of one of them without an axis of agents."""
        return jax.tree.map(lambda x: x[which], self)

    @property
    def hidden(self) -> bool:
        """Whether an outcome is more than the state, so that it cannot be used again."""
        return self.A.shape[-3] > 1


def outcomes_of(problem: Problem, *, by_state: bool = False) -> Outcomes:
    """Returns the outcomes of affine agents on finite chains, with additive noise, or without noise.

    Independent observations need only one state, unless `by_state`, so that an outcome can be used twice.
    """
    law = finite_law(problem.agents.source)
    if law is None:
        A, b = problem.affine_parts()
        return _one_outcome(
            A, A @ problem.root - b, None if additive_noise(problem) is None else added_noise(problem.agents.source)
        )
    A, g = affine_operators(problem, law)
    (M, _, d), S, chain, weights = g.shape, law.num_states, law.chain, law.weights()
    if law.independent and by_state:
        return observed(
            np.repeat(weights[:, None], law.num_outcomes, 1), weights, weights, A[:, :, None], g[:, :, None]
        )
    if law.independent:
        one = np.ones((M, 1))
        return Outcomes(weights[:, None, :, None], A[:, None], g[:, None], one, one)
    A, g = A.reshape(M, S, -1, d, d), g.reshape(M, S, -1, d)
    return observed(chain.transition, chain.stationary, chain.start, A, g)


def _one_outcome(A: np.ndarray, g: np.ndarray, noise: AddedNoise | None = None) -> Outcomes:
    """Returns the outcomes of agents whose operators are $A y + g$ besides additive noise."""
    one = np.ones((len(A), 1))
    return Outcomes(one[..., None, None], A[:, None, None], g[:, None, None], one, one, noise)


def observed(P: np.ndarray, stationary: np.ndarray, start: np.ndarray, A: np.ndarray, g: np.ndarray) -> Outcomes:
    """Returns the outcomes of agents whose operators depend on the transition, or on the state if `T` is 1."""
    flow = P[:, :, None, :] if A.shape[2] == 1 else P[..., None] * np.eye(P.shape[-1])
    return Outcomes(flow, A, g, stationary, start)


class Action(NamedTuple):
    """Calls at one observation, and whether the chain then moves; some `times` in a row."""

    calls: tuple[Call, ...]
    moves: bool
    times: int

    @property
    def uses(self) -> bool:
        """Whether a call uses the observation."""
        return any(call.place != MEAN for call in self.calls)


def actions_of(
    parts: Sequence[Part], at: int, last: bool, length: int, again: set[int]
) -> tuple[list[list[Action]], int]:
    """Returns the actions of agents in an exchange that begins at observation `at`, and where it ends.

    `again` are the observations that later exchanges use, before which the chains must not move on.
    """
    every, ends = [], []
    for part in parts:
        found: list[Action] = []
        now, calls = at, []
        for call in part.calls:
            if call.place not in (MEAN, now):
                if call.place < now:
                    raise NotDerivedError("An observation is used again after the next one.")
                found += [Action(tuple(calls), True, 1), *[Action((), True, 1)] * (call.place - now - 1)]
                now, calls = call.place, []
            calls.append(call)
        if calls:
            action = Action(tuple(calls), False, 1)
            moves = action.uses and now not in again
            found.append(action._replace(moves=moves))
            now += moves
        every.append(found)
        ends.append(now)
    end = length if last else max(ends)
    for found, now in zip(every, ends, strict=True):  # an agent may use fewer observations than others, or none
        if again.intersection(range(now, end)):
            raise NotDerivedError("The agents use different numbers of observations in an exchange.")
        found += [Action((), True, 1)] * (end - now)
    return [_grouped(found) for found in every], end


def _grouped(actions: Sequence[Action]) -> list[Action]:
    """Joins equal actions in a row."""
    found: list[Action] = []
    for action in actions:
        if found and _equal(found[-1], action):
            found[-1] = found[-1]._replace(times=found[-1].times + 1)
        else:
            found.append(action)
    return found


def _equal(a: Action, b: Action) -> bool:
    if a.moves != b.moves or len(a.calls) != len(b.calls):
        return False
    for one, two in zip(a.calls, b.calls, strict=True):
        if (one.place == MEAN) != (two.place == MEAN) or one.carry.shape != two.carry.shape:
            return False
        if not all(np.allclose(x, y, rtol=1e-11, atol=1e-14) for x, y in zip(one.maps, two.maps, strict=True)):
            return False
    return all(call.carry.shape[0] == call.carry.shape[1] for call in a.calls)


class Walk:
    """A part in an exchange on the chains of some agents: maps of first and second moments of (live variables, 1).

    Moments are arrays `(..., n, S, a, b)`, with an axis of agents if `agents` have one. Additive noise is the last live
    variable.
    """

    def __init__(self, part: Part, actions: Sequence[Action], agents: Outcomes):
        self.part, self.agents, self.actions = part, agents, actions
        self.S, _, self.d, _ = agents.A.shape[-4:]
        if agents.hidden and any(a.uses and not a.moves for a in actions):
            raise NotDerivedError("An observation is used in two exchanges, and it is more than the chain's state.")
        self.moves = agents.flow.sum(-2)
        times = sum(a.times for a in actions if a.moves)
        self.kernel = transpose(np.linalg.matrix_power(self.moves, times))
        lives = [len(part.begin), *(len(a.calls[-1].carry) for a in actions if a.calls)]
        self.added = 0 if agents.noise is None else self.d
        """The number of live variables for additive noise."""
        self.begins, self.most = (live * self.d + self.added + 1 for live in (lives[0], max(lives)))
        self.joined, self.dense = (self.S * self.most**power <= MATRIX for power in (1, 2))
        """Whether the maps of first and of second moments of all actions together are matrices."""

    def of(self, which: Any) -> "Walk":
        """Returns the walks of some of the agents, or of one of them without an axis of agents."""
        found = Walk(self.part, self.actions, self.agents.of(which))
        for name in ("first", "matrix"):  # which take long
            if name in vars(self):
                vars(found)[name] = vars(self)[name][which]
        return found

    @functools.cached_property
    def maps(self) -> list[tuple[np.ndarray, Action]]:
        """The maps of all actions, by states and outcomes."""
        size, found = self.begins, []
        for action in self.actions:
            map = self._map(action, size)
            found.append((map, action))
            size = size if self._alone(action) else map.shape[-2]
        return found

    def _alone(self, action: Action) -> bool:
        """Whether an action changes the chain alone."""
        return not action.calls and not self.added

    @property
    def room(self) -> int:
        """The number of entries of the maps of one action."""
        return math.prod(self.agents.g.shape[:-1]) * self.most**2

    def work(self, carried: int) -> float:
        """Returns the number of multiplications for each state of others, who carry this many numbers."""
        m = self.most
        return self.S * m**2 * carried + (self.S * m**4 if self.dense else len(self.actions) * self.S * m**3)

    @functools.cached_property
    def first(self) -> np.ndarray:
        """The matrices of first moments."""
        return self._product([self._first(*both) for both in self.maps], self.S * self.begins)

    @functools.cached_property
    def matrix(self) -> np.ndarray:
        """The matrices of second moments, which the mean does not need."""
        return self._product([self._second(*both) for both in self.maps], self.S * self.begins**2)

    def _map(self, action: Action, size: int) -> np.ndarray:
        """Returns the map of (live, 1), `size` in number, by an action, for every state and outcome.

        It is `(..., S, T, m', m)`, and empty if the action changes the chain alone.
        """
        if self._alone(action):
            return np.empty((0, 0, 0, 0))
        d, added, batch, found = self.d, self.added, self.agents.g.shape[:-1], None
        for call in action.calls:
            A, g = self._mean if call.place == MEAN else (self.agents.A, self.agents.g)
            A, g = np.broadcast_to(A, self.agents.A.shape), np.broadcast_to(g, self.agents.g.shape)
            rows, columns = (count * d for count in call.carry.shape)
            map = np.zeros((*batch, rows + added + 1, columns + added + 1))
            map[..., rows:, columns:] = np.eye(added + 1)
            pushed = np.einsum("a,b,...cd->...acbd", call.enter, call.point, A).reshape(*batch, rows, -1)
            map[..., :rows, :columns] = np.kron(call.carry, np.eye(d)) + pushed
            map[..., :rows, -1] = np.einsum("a,...c->...ac", call.enter, g).reshape(*batch, -1)
            if added and call.place != MEAN:
                map[..., :rows, columns:-1] = np.kron(call.enter[:, None], np.eye(d))
            found = map if found is None else map @ found
        found = np.broadcast_to(np.eye(size), (*batch, size, size)).copy() if found is None else found
        if self.agents.noise is not None and action.moves:
            places = slice(-1 - added, -1)
            found[..., places, :] = self.agents.noise.Q[..., None, None, :, :] @ found[..., places, :]
        return found

    @functools.cached_property
    def _mean(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean operators."""
        chances = np.einsum("...s,...stu->...st", self.agents.stationary, self.agents.flow)[..., None]
        g = (chances * self.agents.g).sum((-3, -2), keepdims=True)
        return (chances[..., None] * self.agents.A).sum((-4, -3), keepdims=True), g

    def _flow(self, action: Action) -> np.ndarray:
        if action.moves:
            return self.agents.flow
        share = self.agents.flow.sum(-1)[..., None]
        return share * np.eye(self.S)[:, None]

    def _first(self, map: np.ndarray, action: Action) -> np.ndarray | None:
        """Returns the matrices of first moments; None for chains that move alone."""
        if self._alone(action):
            return None
        found = np.einsum("...stu,...stab->...uasb", self._flow(action), map, optimize=True)
        return found.reshape(*map.shape[:-4], self.S * map.shape[-2], -1)

    def _second(self, map: np.ndarray, action: Action) -> np.ndarray | None:
        if self._alone(action):
            return None
        found = np.einsum("...stu,...stab,...stcd->...uacsbd", self._flow(action), map, map, optimize=True)
        if self.agents.noise is not None and action.moves:
            added = slice(-1 - self.added, -1)
            found[..., 0, added, added, 0, -1, -1] += self.agents.noise.fresh
        return found.reshape(*map.shape[:-4], self.S * map.shape[-2] ** 2, -1)

    def _product(self, matrices: list[np.ndarray | None], size: int) -> np.ndarray:
        found = np.broadcast_to(np.eye(size), (*self.moves.shape[:-2], size, size))
        for matrix, (_, action) in zip(matrices, self.maps, strict=True):
            if matrix is None:
                kernel, size = np.linalg.matrix_power(self.moves, action.times), found.shape[-2]
                matrix = np.einsum("...ts,ab->...satb", kernel, np.eye(size // self.S))
                matrix = matrix.reshape(*kernel.shape[:-2], size, size)
            elif action.times > 1:
                matrix = np.linalg.matrix_power(matrix, action.times)
            found = matrix @ found
        return found

    def moved(self, X: np.ndarray) -> np.ndarray:
        """Returns moments that these agents do not change, on their new states."""
        return (self.kernel @ X.reshape(*X.shape[:-2], -1)).reshape(X.shape)

    def crossed(self, X: np.ndarray) -> np.ndarray:
        """Returns $E[(\\text{live}, 1)\\, w^T]$, `(..., S, m, k)`, after the exchange, for $w$ that does not change."""
        if self.joined:
            flat = self.first @ X.reshape(*X.shape[:-3], -1, X.shape[-1])
            return flat.reshape(*flat.shape[:-2], self.S, -1, X.shape[-1])
        return self._followed(X, lambda map, X: map @ X)

    def squared(self, X: np.ndarray) -> np.ndarray:
        """Returns the second moments of (live, 1), `(..., S, m, m)`, after the exchange."""
        if not self.dense:
            return self._followed(X, lambda map, X: map @ X @ transpose(map), self.agents.noise)
        *batch, size = (*X.shape[:-3], math.prod(X.shape[-3:]))
        agents = self.matrix.shape[:-2]
        rows = X.reshape(-1, *agents, size).swapaxes(0, -2)  # of which each agent has many
        rows = (rows @ transpose(self.matrix)).swapaxes(0, -2)
        m = math.isqrt(rows.shape[-1] // self.S)
        return rows.reshape(*batch, self.S, m, m)

    def _followed(
        self, X: np.ndarray, apply: Callable[[np.ndarray, np.ndarray], np.ndarray], noise: AddedNoise | None = None
    ) -> np.ndarray:
        """Returns moments after all actions, one after another, where `apply` is the effect of a map on them."""
        added = slice(-1 - self.added, -1)
        for map, action in self.maps:
            for _ in range(action.times):
                if self._alone(action):
                    X = (transpose(self.moves) @ X.reshape(*X.shape[:-2], -1)).reshape(X.shape)
                    continue
                Y = apply(map, X[..., None, :, :])
                X = np.einsum("...stu,...stab->...uab", self._flow(action), Y, optimize=True)
                if noise is not None and action.moves:
                    X[..., added, added] += X[..., -1:, -1:] * noise.fresh[..., None, :, :]
        return X


class Way(NamedTuple):
    r"""A way of agents through an exchange: they begin as $E x$ and contribute $R\,(\text{live}, 1)$."""

    chance: float
    E: np.ndarray
    """`(n, 1, m, N)`, where the second axis is for states; `(m, N)` for one agent."""
    R: np.ndarray
    walk: Walk


class Contribution:
    """The contributions of agents to an exchange, on their chains, averaged over their ways.

    All of them go the same ways. Moments have an axis of agents before that of states, unless this is one agent.
    """

    def __init__(self, ways: Sequence[Way], stationary: np.ndarray):
        self.ways, self.moved, self.stationary = ways, ways[0].walk.moved, stationary

    def of(self, which: Any) -> "Contribution":
        """Returns the contributions of some of the agents, or of one of them without an axis of agents."""
        rows = (which, 0) if isinstance(which, int) else which
        return Contribution(
            [Way(p, E[rows], R[rows], walk.of(which)) for p, E, R, walk in self.ways], self.stationary[which]
        )

    def between(self, into: np.ndarray, out_of: np.ndarray) -> "Contribution":
        """Returns the same with other coordinates of $x$ after the exchange, and before it."""
        return Contribution([w._replace(E=w.E @ out_of, R=into @ w.R) for w in self.ways], self.stationary)

    @functools.cached_property
    def mean(self) -> np.ndarray:
        """The contribution on average as a map of $x$, with the chains in their stationary states."""
        return self.crossed(self.stationary[..., None, None] * np.eye(self.ways[0].E.shape[-1])).sum(-3)

    @property
    def kernel(self) -> np.ndarray:
        """The transition of the chains over the exchange."""
        return transpose(self.ways[0].walk.kernel)

    def crossed(self, X: np.ndarray) -> np.ndarray:
        """Returns the mean of the contribution times $w^T$, given $E[x w^T]$ by the state of the agent."""
        return sum((p * (R @ walk.crossed(E @ X)) for p, E, R, walk in self.ways), np.zeros(()))

    def squared(self, X: np.ndarray) -> np.ndarray:
        """Returns the second moments of the contribution."""
        every = (p * (R @ walk.squared(E @ X @ transpose(E)) @ transpose(R)) for p, E, R, walk in self.ways)
        return sum(every, np.zeros(()))


@dataclasses.dataclass(eq=False)
class Exchanged:
    r"""An exchange in reduced coordinates: $x'$ is $L x$ plus the contributions of all agents."""

    L: np.ndarray
    groups: Sequence[tuple[np.ndarray, Contribution]]
    """The numbers of the agents that go the same ways, and their contributions."""
    noise: np.ndarray
    """The covariance of the noise that the server adds."""
    _found: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def means(self) -> np.ndarray:
        """The contribution of every agent on average, as a map of $x$."""
        found = np.zeros((sum(len(which) for which, _ in self.groups), *self.L.shape))
        for which, share in self.groups:
            found[which] = share.mean
        return found

    @functools.cached_property
    def mean(self) -> np.ndarray:
        """The map of $x$ on average."""
        return self.L + self.means.sum(0)

    @functools.cached_property
    def kernels(self) -> np.ndarray:
        """The transitions of the agents' chains over the exchange, `(M, S, S)`."""
        found = np.zeros((len(self.means), *self.groups[0][1].kernel.shape[1:]))
        for which, share in self.groups:
            found[which] = share.kernel
        return found

    @functools.cached_property
    def certain(self) -> np.ndarray | None:
        """The covariance of all noise, if the maps of all agents are certain; otherwise None."""
        every = [way.walk for _, share in self.groups for way in share.ways]
        if len(every) > len(self.groups) or any(walk.agents.A.shape[-4:-2] != (1, 1) for walk in every):
            return None
        found, one = self.noise, np.diag(np.eye(len(self.L.T))[-1])
        for which, share in self.groups:
            moved = share.mean[..., -1]
            squares = share.squared(np.broadcast_to(one, (len(which), 1, *one.shape)))
            found = found + squares.sum((0, 1)) - moved.T @ moved
        return found

    def share(self, agent: int) -> Contribution:
        """Returns the contribution of one agent."""
        if agent not in self._found:
            which, share = next((which, share) for which, share in self.groups if agent in which)
            self._found[agent] = share.of(which.tolist().index(agent))
        return self._found[agent]

    def some(self, agents: tuple[int, ...]) -> list[tuple[np.ndarray, Contribution]]:
        """Returns the contributions of these agents, with their positions among them."""
        if agents == tuple(range(len(self.means))):
            return list(self.groups)
        if agents not in self._found:
            places = [np.flatnonzero(np.isin(agents, which)) for which, _ in self.groups]
            both = [(at, *group) for at, group in zip(places, self.groups, strict=True) if len(at)]
            self._found[agents] = [
                (at, share.of(np.searchsorted(which, np.array(agents)[at]))) for at, which, share in both
            ]
        return self._found[agents]

    def alone(self, Y: np.ndarray, sites: Sequence[int] = ()) -> np.ndarray:
        """Returns moments after the exchange without the contributions of these agents."""
        L = self.others(sites)
        return L @ Y @ L.T + Y[..., -1:, -1:] * self.noise

    def others(self, sites: Sequence[int]) -> np.ndarray:
        """Returns the map of $x$ by everybody except these agents."""
        return self.mean - self.means[list(sites)].sum(0)

    def advance(self, Y: np.ndarray, sites: Sequence[int], batch: int) -> np.ndarray:
        """Returns moments `(*batch, S, ..., S, N, N)` after the exchange, with one axis for each site."""
        if self.certain is not None and len(sites) == len(self.means):
            return self.mean @ Y @ self.mean.T + Y[..., -1:, -1:] * self.certain
        XX, UX, UU = Y, self.others(sites) @ Y, self.alone(Y, sites)
        for q, i in enumerate(sites):
            axis, share = _axis(Y, q, batch), self.share(i)
            XX, UX, UU = (np.moveaxis(part, axis, -3) for part in (XX, UX, UU))
            with_u = share.crossed(transpose(UX))
            UU = share.moved(UU) + with_u + transpose(with_u) + share.squared(XX)
            if q + 1 < len(sites):
                UX = share.moved(UX) + share.crossed(XX)
                XX = share.moved(XX)
            XX, UX, UU = (np.moveaxis(part, -3, axis) for part in (XX, UX, UU))
        return UU

    def followed(self, X: np.ndarray, sites: Sequence[int], batch: int) -> np.ndarray:
        """Returns $E[x w^T]$ by the states of the sites after the exchange, for $w$ that does not change."""
        UX = self.others(sites) @ X
        for q, i in enumerate(sites):
            axis, share = _axis(X, q, batch), self.share(i)
            X, UX = (np.moveaxis(part, axis, -3) for part in (X, UX))
            X, UX = share.moved(X), share.moved(UX) + share.crossed(X)
            X, UX = (np.moveaxis(part, -3, axis) for part in (X, UX))
        return UX

    def moved(self, X: np.ndarray, sites: Sequence[int], batch: int) -> np.ndarray:
        """Returns moments that nobody changes, on the new states of the sites."""
        for q, i in enumerate(sites):
            axis = _axis(X, q, batch)
            X = np.moveaxis(self.share(i).moved(np.moveaxis(X, axis, -3)), -3, axis)
        return X

    def each(self, agents: tuple[int, ...]) -> "EachAlone":
        """Returns the exchange with each of these agents as the only site."""
        return EachAlone((self.mean - self.means[list(agents)])[:, None], self.some(agents), self.noise)

    def total(self, Y: np.ndarray, agents: tuple[int, ...]) -> np.ndarray:
        r"""Returns $\bar L U \bar L^T + \sum_i (\sum_s W_i(s) - \bar L U \bar L^T)$, where $W_i$ is the image of $Y_i$.

        With the contributions $c_i$ of the agents, their mean maps $C_i$ and $D_i = E[c_i x^T] - C_i U$, the summand is
        $E[c_i c_i^T] + D_i (\bar L - C_i)^T + (\bar L - C_i) D_i^T - C_i U C_i^T$.
        """
        U, C = Y[..., 0, :, :, :].sum(-3), self.means[list(agents)]
        D, found = -C @ U[..., None, :, :], self.alone(U)
        for places, share in self.some(agents):
            for p, E, R, walk in share.ways:
                X, R = E @ Y[..., places, :, :, :], R[:, 0]
                D[..., places, :, :] += p * (R @ walk.crossed(X).sum(-3))
                squares = R @ walk.squared(X @ transpose(E)).sum(-3)
                found = found + p * np.einsum("...iab,icb->...ac", squares, R, optimize=True)
        added = D.sum(-3) @ self.mean.T - np.einsum("...iab,icb->...ac", D, C, optimize=True)
        squares = np.einsum("...iab,icb->...ac", C @ U[..., None, :, :], C, optimize=True)
        return found + added + transpose(added) - squares


def _axis(X: np.ndarray, site: int, batch: int) -> int:
    """Returns the axis of a site's states; sites with one state each share an axis."""
    return batch + min(site, X.ndim - batch - 3)


class EachAlone(NamedTuple):
    """An exchange in which each of some agents in turn is the only site; moments are `(..., n, S, N, N)`."""

    L: np.ndarray
    """The map of $x$ by everybody else, `(n, 1, N', N)`."""
    groups: Sequence[tuple[np.ndarray, Contribution]]
    noise: np.ndarray

    def advance(self, Y: np.ndarray) -> np.ndarray:
        """Returns second moments after the exchange."""
        UX = self.L @ Y
        UU = UX @ transpose(self.L) + Y[..., -1:, -1:] * self.noise
        for places, share in self.groups:
            at = (..., places, slice(None), slice(None), slice(None))
            with_u = share.crossed(transpose(UX[at]))
            UU[at] = share.moved(UU[at]) + share.squared(Y[at]) + with_u + transpose(with_u)
        return UU

    def followed(self, X: np.ndarray) -> np.ndarray:
        """Returns $E[x w^T]$, `(..., n, S, N, k)`, after the exchange, for $w$ that does not change."""
        UX = self.L @ X
        for places, share in self.groups:
            at = (..., places, slice(None), slice(None), slice(None))
            UX[at] = share.moved(UX[at]) + share.crossed(X[at])
        return UX

    def between(self, into: np.ndarray, out_of: np.ndarray) -> "EachAlone":
        """Returns the same with other coordinates of $x$ after the exchange and before it, for each agent its own."""
        groups = [(at, share.between(into[at], out_of[at])) for at, share in self.groups]
        return EachAlone(into @ self.L @ out_of, groups, into @ self.noise @ transpose(into))


class Federation:
    """A method's pieces on the chains of a problem, in coordinates that a run reaches and the parameter depends on."""

    def __init__(self, pieces: Pieces, outcomes: Outcomes, name: str, coordinates: "Coordinates | None" = None):
        self.pieces, self.outcomes, self.name = pieces, outcomes, name
        self.num_agents, self.num_states, self.dim = len(outcomes.A), outcomes.A.shape[1], outcomes.A.shape[-1]
        self.into, self.out_of = coordinates or _coordinates([pieces], self.num_agents)
        self._common: Coordinates | None = None
        self._walks: dict[Any, Walk] = {}
        self._carried: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._seen: dict[Any, list[Exchanged]] = {}
        self.extra, self.mixing = 0, None
        """The size of a running mean beside the state, and the map by which it moves after a round."""
        self.rounds = [self._round(steps) for steps in pieces.rounds]
        same = all(a is b for a, b in zip(pieces.first, pieces.rounds, strict=True))
        self.first = self.rounds if same else [self._round(steps) for steps in pieces.first]
        self.starts_alike = same
        added = ((0, 0), (0, self.added))
        show = np.kron(pieces.show @ self.out_of[0][: len(pieces.show)], np.eye(self.dim))
        start = np.concatenate([pieces.server, np.tile(pieces.memory, self.num_agents)])
        start = np.kron((self.into[0] @ start)[:, None], np.eye(self.dim))
        self.show, self.start = np.pad(show, added), np.pad(start, added[::-1])

    @functools.cached_property
    def kinds(self) -> np.ndarray:
        """A number for each agent, the same for agents that observe, do, receive and contribute the same."""
        steps = [step for steps in self.pieces.rounds for step in steps]
        each = [tuple(id(way) for step in steps for way in step.parts[i]) for i in range(self.num_agents)]
        parts = np.array([each.index(ways) for ways in each])
        messages = [x for step in steps for x in (step.send, step.gather)]
        return kinds_of((*jax.tree.leaves(self.outcomes), parts, *messages))

    def sets(self, size: int) -> list[tuple[float, tuple[int, ...]]]:
        """Returns one set of agents of this size for each combination of kinds, and how many there are of it."""
        counts = np.bincount(self.kinds)
        members = [np.flatnonzero(self.kinds == k) for k in range(len(counts))]
        found = []
        for chosen in itertools.combinations_with_replacement(range(len(counts)), size):
            times = np.bincount(chosen, minlength=len(counts))
            number = math.prod(math.comb(int(n), int(k)) for n, k in zip(counts, times, strict=True))
            if number:
                found.append((float(number), tuple(int(i) for m, k in zip(members, times, strict=True) for i in m[:k])))
        return found

    @property
    def forgets(self) -> bool:
        """Whether rounds have one exchange, and agents remember nothing but their chains."""
        memories = self.out_of[0][len(self.pieces.server) :]
        return all(len(steps) == 1 for steps in self.rounds) and not memories.any() and self.starts_alike

    @property
    def added(self) -> int:
        """The size of all agents' additive noise, which is the last part of $x$ before the constant."""
        return 0 if self.outcomes.noise is None else self.num_agents * self.dim

    @property
    def size(self) -> int:
        """The size of $x$ at the start of a round, without the constant."""
        return self.extra + len(self.into[0]) * self.dim + self.added

    def spread(self, *, stationary: bool) -> np.ndarray:
        """Returns the covariance of $(x, 1)$ at the start, due to additive noise."""
        noise, found = self.outcomes.noise, np.zeros((self.size + 1,) * 2)
        if noise is not None:
            places = slice(self.size - self.added, self.size)
            found[places, places] = block_diag(*(noise.stationary if stationary else noise.start))
        return found

    def _round(self, steps: Sequence[Step]) -> list[Exchanged]:
        pieces, d, at, found = self.pieces, self.dim, 0, []
        p, q = len(pieces.server), len(pieces.memory)
        for k, step in enumerate(steps):
            again = {call.place for later in steps[k + 1 :] for ways in later.parts for w in ways for call in w.calls}
            alike: dict[tuple[int, ...], list[int]] = {}
            for i, ways in enumerate(step.parts):
                alike.setdefault(tuple(id(part) for part in ways), []).append(i)
            flat = [(tuple(which), part) for which in alike.values() for part in step.parts[which[0]]]
            last = k == len(steps) - 1
            every, at = actions_of([part for _, part in flat], at, last, pieces.block_length, again)
            U, V = self.out_of[k], self.into[(k + 1) % len(steps)]
            n, ways = step.gather.shape[-1], {tuple(which): [] for which in alike.values()}
            for (which, part), actions in zip(flat, every, strict=True):
                E, R = [], []
                for i in which:
                    own = slice(p + i * q, p + (i + 1) * q)
                    begin = part.begin @ np.concatenate([step.send[i] @ U[:p], U[own]])
                    end = (V[:, :p] @ step.gather[i]) @ part.end[:n] + V[:, own] @ part.end[n:]
                    added = np.eye(self.added)[i * d : (i + 1) * d]
                    E.append(block_diag(np.kron(begin, np.eye(d)), added, 1))
                    R.append(block_diag(np.kron(end, np.eye(d)), added.T, 0))
                walk = self._walk(which, part, actions)
                ways[which].append(Way(part.chance, np.stack(E)[:, None], np.stack(R)[:, None], walk))
            still = np.zeros((self.added,) * 2)
            L = np.asarray(block_diag(np.kron(V[:, :p] @ step.keep @ U[:p], np.eye(d)), still, 1))
            groups = [(np.array(i), Contribution(w, self.outcomes.stationary[list(i)])) for i, w in ways.items()]
            noise = V[:, :p] @ step.noise
            found.append(Exchanged(L, groups, np.asarray(block_diag(np.kron(noise @ noise.T, np.eye(d)), still, 0))))
        return found

    def _walk(self, agents: tuple[int, ...], part: Part, actions: list[Action]) -> Walk:
        """Returns the walks of agents, which the outcomes of a round share if the agents do the same in them."""
        what = (agents, id(part), tuple((len(action.calls), action.moves, action.times) for action in actions))
        if what not in self._walks:
            self._walks[what] = Walk(part, actions, self.outcomes.of(list(agents)))
        return self._walks[what]

    def noiseless(self) -> "Federation":
        """Returns the same agents with their mean operators, and so with one state each."""
        weights = np.einsum("is,istu->ist", self.outcomes.stationary, self.outcomes.flow)
        A, g = (np.einsum("ist,ist...->i...", weights, x) for x in (self.outcomes.A, self.outcomes.g))
        return Federation(self.pieces, _one_outcome(A, g), self.name, (self.into, self.out_of))

    def at(self, algorithm: AbstractAlgorithm) -> "Federation":
        """Returns the same agents with another step size of their algorithm, in coordinates that serve all of them."""
        if self._common is None:  # of step sizes near its own, since rounding hides directions at much smaller ones
            steps = self.pieces.step_size * FACTORS
            every = [pieces_of(with_step(algorithm, step), self.num_agents, self.dim) for step in steps]
            self._common = _coordinates(every, self.num_agents)
        return Federation(pieces_of(algorithm, self.num_agents, self.dim), self.outcomes, self.name, self._common)

    def family(self, algorithm: AbstractAlgorithm, steps: Sequence[Steps]) -> "list[Federation]":
        """Returns the same agents in rounds with other step sizes, all in the same coordinates."""
        every = [pieces_of(with_step(algorithm, now), self.num_agents, self.dim, before) for now, before in steps]
        some = np.unique(np.linspace(0, len(every) - 1, SOME).astype(int))
        coordinates = _coordinates([every[k] for k in some], self.num_agents)
        return [Federation(pieces, self.outcomes, self.name, coordinates) for pieces in every]

    def beside(self, part: float = 0.0) -> "Federation":
        """Returns the same federation with a running mean of the error at the start of its state, which it shows.

        After a round the mean moves by this part of the way to the error.
        """
        found, d = copy.copy(self), self.dim

        def padded(share: Contribution) -> Contribution:
            nothing = ((0, 0), (0, 0))
            ways = [
                w._replace(E=np.pad(w.E, (*nothing, (0, 0), (d, 0))), R=np.pad(w.R, (*nothing, (d, 0), (0, 0))))
                for w in share.ways
            ]
            return Contribution(ways, share.stationary)

        def exchanged(step: Exchanged) -> Exchanged:
            groups = [(which, padded(share)) for which, share in step.groups]
            L, noise = (np.pad(map, ((d, 0), (d, 0))) for map in (step.L, step.noise))
            L[:d, :d] = np.eye(d)
            return Exchanged(L, groups, noise)

        found.rounds, found.first = ([[exchanged(s) for s in steps] for steps in r] for r in (self.rounds, self.first))
        found.mixing = self.mixing_by(part)
        found.show, found.start = np.eye(d, d + self.size), np.concatenate([np.eye(d), self.start])
        found.extra, found._carried, found._seen = d, {}, {}
        return found

    def mixing_by(self, part: float) -> np.ndarray:
        """Returns the map of (mean, state, 1) by which the mean moves by this part of the way to the error."""
        found = np.eye(self.dim + self.size + 1)
        found[: self.dim, :-1] = np.concatenate([(1 - part) * np.eye(self.dim), part * self.show], axis=1)
        return found

    def mean_round(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the linear and the constant part of a round in the mean, in which every exchange is on average."""
        mean = np.zeros((self.size + 1,) * 2)
        for chance, steps in zip(self.pieces.chances, self.rounds, strict=True):
            mean += chance * _mean_of(steps)
        return mean[:-1, :-1], mean[:-1, -1]

    def seen_by(self, steps: Sequence[Exchanged], sites: tuple[int, ...]) -> list[Exchanged]:
        """Returns the exchanges of a round of these agents, with the others on average.

        Between the exchanges $x$ is reduced to what affects these agents, or the state at the end of the round.
        """
        key = id(steps), sites
        if key not in self._seen:
            out_of = self.matters(steps, sites)
            self._seen[key] = []
            for step, V, U in zip(steps, [*out_of[1:], np.eye(self.size + 1)], out_of, strict=True):
                groups = [(at, share.between(V.T, U)) for at, share in step.some(sites)]
                self._seen[key].append(Exchanged(V.T @ step.others(sites) @ U, groups, V.T @ step.noise @ V))
        return self._seen[key]

    def matters(self, steps: Sequence[Exchanged], sites: tuple[int, ...]) -> list[np.ndarray]:
        """Returns bases of what matters to these agents or at the end of a round, as columns, before each exchange."""
        found = [np.eye(self.size + 1)]
        for step in steps[:0:-1]:
            begun = [E.reshape(-1, E.shape[-1])[:, :-1].T for _, share in step.some(sites) for _, E, *_ in share.ways]
            own, rest = _spanned(np.concatenate(begun, axis=1)), (found[0].T @ step.others(sites))[:, :-1].T
            size = np.abs(rest).max(initial=0.0)
            for _ in range(2):  # two passes are sufficient against rounding
                rest = rest - own @ (own.T @ rest)
            if np.abs(rest).max(initial=0.0) > ROUNDING * size:  # it may be small with the step size, and matter
                own = np.concatenate([own, _spanned(rest)], axis=1)
            found.insert(0, _with_one(own))
        return [np.eye(self.size + 1), *found[:-1]]

    def carried(self, steps: Sequence[Exchanged]) -> tuple[np.ndarray, np.ndarray]:
        r"""Returns what each agent adds to the mean round $\bar L$, `(M, N + 1, N + 1)`, and the mean round.

        In the mean round, every exchange is on average. But an agent carries its chain from one exchange to the next.
        """
        if id(steps) not in self._carried:
            agents, mean = tuple(range(self.num_agents)), _mean_of(steps)
            X = self.outcomes.stationary[..., None, None] * np.eye(self.size + 1)
            for step in steps:
                X = step.each(agents).followed(X)
            self._carried[id(steps)] = X.sum(1) - mean, mean
        return self._carried[id(steps)]

    @functools.cached_property
    def field(self) -> float | None:
        """The mean-square radius in the Gaussian field of all agents."""
        S, N, chances = self.num_states, self.size, self.pieces.chances
        counts, members = np.array([number for number, _ in self.sets(1)]), tuple(i for _, (i,) in self.sets(1))
        maps, kernels = np.zeros((len(members), S, N, N)), np.zeros((len(members), S, S))
        begun = np.eye(S)[:, None, :, None, None] * np.eye(N + 1)  # by the state at the start, then by the current one
        mean, together = np.zeros((N + 1, N + 1)), max(1, ROOM // (S * (N + 1)) ** 2)
        for chance, steps in zip(chances, self.rounds, strict=True):
            for k in range(0, len(members), together):
                some = members[k : k + together]
                X = np.broadcast_to(begun, (S, len(some), S, N + 1, N + 1))
                for step in steps:
                    X = step.each(some).followed(X)
                maps[k : k + together] += chance * X.sum(2).swapaxes(0, 1)[..., :-1, :-1]
            kernels += chance * functools.reduce(np.matmul, [step.kernels[list(members)] for step in steps])
            carried, alone = self.carried(steps)
            mean += chance * (alone + carried.sum(0))
        return field_radius(mean[:-1, :-1], maps, counts, kernels, self.outcomes.stationary[list(members)])

    @property
    def room(self) -> int:
        """The number of entries of the agents' maps by states and outcomes."""
        return sum(walk.room for walk in self._walks.values())

    def work(self, sites: int) -> float:
        """Returns the approximate number of multiplications in a round with this number of sites."""
        S, total = float(self.num_states), 0.0
        if sites * math.log2(max(S, 2)) > 60:
            return math.inf
        for step in self.seen_by(self.rounds[0], tuple(range(min(sites, self.num_agents)))):
            after, before = step.L.shape
            own = sum(len(i) * w.walk.work(before + after) for i, share in step.groups for w in share.ways)
            total += S**sites * (2 * before * after * (before + after) + own)
        return len(self.rounds) * total


def _mean_of(steps: Sequence[Exchanged]) -> np.ndarray:
    """Returns the map of $(x, 1)$ by exchanges that are on average."""
    return functools.reduce(lambda X, step: step.mean @ X, steps[1:], steps[0].mean)


Coordinates: TypeAlias = tuple[list[np.ndarray], list[np.ndarray]]


def _coordinates(every: Sequence[Pieces], M: int) -> Coordinates:
    """Returns the maps into reduced coordinates and out of them, at the start of each exchange of a round.

    They span what a run can reach with any of the pieces, modulo what never affects the parameter, as random operators
    show.
    """
    pieces = every[0]
    first = [steps for own in every for steps in own.first]
    later = [steps for own in every for steps in own.rounds]
    p, q, exchanges, rng = len(pieces.server), len(pieces.memory), len(pieces.rounds[0]), np.random.default_rng(SEED)
    n, units = p + M * q, np.ones(p + M * q)

    def drawn(step: Step) -> np.ndarray:
        """A random exchange as a map of (z, 1), in which operators move agents by about one; z is in `units`."""
        sizes = {c.number: np.abs(c.enter).max(initial=0.0) for ways in step.parts for way in ways for c in way.calls}
        slopes, added = rng.standard_normal((2, M, max(sizes, default=-1) + 1, 1))
        mix = [rng.dirichlet(np.ones(len(ways))) for ways in step.parts]
        columns, one = np.eye(n, n + 1), np.eye(n + 1)[-1]

        def operator(agents: np.ndarray, call: int, points: np.ndarray) -> np.ndarray:
            return (0.5 * slopes[agents, call] * points + added[agents, call] * one) / (sizes[call] or 1.0)

        w, m = apply(step, columns[:p], columns[p:].reshape(M, q, n + 1), operator, mix)
        w[:, -1] += step.noise @ rng.standard_normal(step.noise.shape[1])
        return np.concatenate([w, m.reshape(M * q, n + 1)]) / units[:, None] * np.append(units, 1.0)

    begun, nothing = np.concatenate([pieces.server, np.tile(pieces.memory, M)]), np.zeros((n, 0))
    visited = [begun]
    for steps in (*first, *later, *later):
        for step in steps:
            map = drawn(step)
            visited.append(map[:, :-1] @ visited[-1] + map[:, -1])
    largest = np.abs(visited).max(0)
    # Memories may be large with the inverse of the step size; powers of 2 change no digits.
    units = 2.0 ** np.round(np.log2(np.where(largest > 0, largest, 1.0)))
    reach = [nothing] * exchanges
    reach[0] = _grown(nothing, (begun / units)[:, None])
    quiet, turn = 0, 0
    while quiet < DRAWS:
        before = [basis.shape[1] for basis in reach]
        for steps in later if turn else first:
            for k, step in enumerate(steps):
                map, after = drawn(step), (k + 1) % exchanges
                reach[after] = _grown(reach[after], np.concatenate([map[:, :-1] @ reach[k], map[:, -1:]], axis=1))
        turn += 1
        quiet = quiet + 1 if before == [basis.shape[1] for basis in reach] else 0
    seen = [nothing] * exchanges
    seen[0] = _grown(nothing, (units * np.concatenate([pieces.show, np.zeros(M * q)]))[:, None])
    quiet = 0
    while quiet < DRAWS:
        before = [basis.shape[1] for basis in seen]
        for steps in (*later, *first):
            for k in range(exchanges - 1, -1, -1):
                map, after = drawn(steps[k]), (k + 1) % exchanges
                seen[k] = _grown(seen[k], map[:, :-1].T @ seen[after])
        quiet = quiet + 1 if before == [basis.shape[1] for basis in seen] else 0
    into, out_of = [], []
    for R, visible in zip(reach, seen, strict=True):
        W = _grown(np.zeros((R.shape[1], 0)), R.T @ visible)
        into.append((R @ W).T / units)
        out_of.append(units[:, None] * (R @ W))
    return into, out_of


def _grown(basis: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns an orthonormal basis that also spans the columns, as far as they clearly leave what was spanned.

    A direction that one column hardly shows would be inaccurate; other random columns show it better.
    """
    sizes = np.linalg.norm(columns, axis=0)
    rest = columns[:, sizes > 0] / sizes[sizes > 0]
    for _ in range(2):  # two passes are sufficient against rounding
        rest = rest - basis @ (basis.T @ rest)
    left, values, _ = np.linalg.svd(rest, full_matrices=False)
    found = np.concatenate([basis, left[:, values > CLEAR]], axis=1)
    return np.eye(len(found)) if found.shape[1] == len(found) else found


def _spanned(columns: np.ndarray) -> np.ndarray:
    """Returns an orthonormal basis of the span of the columns; unit vectors if it is the whole space."""
    if not columns.size:
        return columns[:, :0]
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    rank = int((values > SMALL * values[0]).sum())
    return np.eye(len(columns)) if rank == len(columns) else left[:, :rank]


def _with_one(map: np.ndarray) -> np.ndarray:
    found = np.zeros((map.shape[0] + 1, map.shape[1] + 1))
    found[:-1, :-1], found[-1, -1] = map, 1
    return found
