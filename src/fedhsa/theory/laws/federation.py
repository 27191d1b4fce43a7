r"""A method on the finite chains of its agents: the maps of its exchanges, by what the agents observe.

Let $x$ be the state that a method carries from exchange to exchange, server and memories together, with a constant 1.
In an exchange an agent begins with a part of $x$, walks along its chain (`Walk`), and contributes to the next $x$.
"""

import copy
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..._linear import transpose
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..stability import step_of, with_step
from .field import field_radius
from .finite import edges_of, finite_law, kinds_of
from .moments import NotDerivedError, Steps
from .pieces import MEAN, Call, Part, Pieces, Step, apply, derive

MATRIX = 700
"""The size up to which an agent's map of first or second moments is a matrix."""
DRAWS, SOME, SEED = 3, 4, 0
"""The number of random rounds without a new direction after which the carried state is complete, the number of step
sizes whose rounds reach what those of all step sizes do, and the seed of these rounds."""
FACTORS = np.array([1.0, 0.37, 0.11])
"""Step sizes relative to one, whose rounds reach what those of any step size do."""
SMALL = 1e-9
"""The relative size below which a direction counts as rounding."""


class Outcomes(NamedTuple):
    r"""What the agents observe: in state $s$ the outcome $t$, with the operator $A(s, t)\, y + g(s, t)$ at $y$.

    Arrays have a leading axis of agents.
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

    @property
    def hidden(self) -> bool:
        """Whether an outcome is more than the state, so that it cannot be used again."""
        return self.A.shape[2] > 1


def outcomes_of(problem: Problem, *, by_state: bool = False) -> Outcomes:
    """Returns the outcomes of affine agents on finite chains.

    Independent observations need only one state, unless `by_state`, so that an outcome can be used twice.
    """
    law = finite_law(problem.agents.source)
    assert law is not None
    edges = edges_of(problem, law)
    A, g = transpose(edges.directions)[:, :, None] @ edges.slopes, edges.values
    g = np.einsum("iska,istk->ista", edges.directions, g)
    P = edges.transition
    if law.independent and not by_state:
        one = np.ones((len(P), 1))
        return Outcomes(P[:, :1, :, None], np.moveaxis(A, 2, 1), np.moveaxis(g, 2, 1), one, one)
    flow = P[:, :, None, :] if A.shape[2] == 1 else P[..., None] * np.eye(P.shape[-1])
    return Outcomes(flow, A, g, edges.stationary, edges.start)


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
    """An agent's part in an exchange on its chain: maps of first and second moments of (live variables, 1)."""

    def __init__(self, part: Part, actions: Sequence[Action], agent: Outcomes):
        """`agent` has no axis of agents."""
        self.agent, self.actions = agent, actions
        self.S, self.d = agent.A.shape[0], agent.A.shape[-1]
        if agent.hidden and any(a.uses and not a.moves for a in actions):
            raise NotDerivedError("An observation is used in two exchanges, and it is more than the chain's state.")
        self.moves = agent.flow.sum(1)
        self.kernel = np.linalg.matrix_power(self.moves, sum(a.times for a in actions if a.moves)).T
        lives = [len(part.begin), *(len(a.calls[-1].carry) for a in actions if a.calls)]
        self.begins, self.most = lives[0] * self.d + 1, max(lives) * self.d + 1
        self.joined, self.dense = (self.S * self.most**power <= MATRIX for power in (1, 2))
        """Whether the maps of first and of second moments of all actions together are matrices."""

    @functools.cached_property
    def maps(self) -> list[tuple[np.ndarray, Action]]:
        """The maps of all actions, by states and outcomes."""
        return [(self._map(action), action) for action in self.actions]

    def work(self, carried: int) -> float:
        """Returns the number of multiplications for each state of others, who carry this many numbers."""
        m = self.most
        return self.S * m**2 * carried + (self.S * m**4 if self.dense else len(self.actions) * self.S * m**3)

    @functools.cached_property
    def first(self) -> np.ndarray:
        """The matrix of first moments."""
        return self._product([self._first(*both) for both in self.maps], self.S * self.begins)

    @functools.cached_property
    def matrix(self) -> np.ndarray:
        """The matrix of second moments, which the mean does not need."""
        return self._product([self._second(*both) for both in self.maps], self.S * self.begins**2)

    def _map(self, action: Action) -> np.ndarray:
        """Returns the map of (live, 1) by the calls of an action, for every state and outcome, `(S, T, m', m)`."""
        d, found = self.d, None
        for call in action.calls:
            A, g = self._mean if call.place == MEAN else (self.agent.A, self.agent.g)
            A, g = np.broadcast_to(A, self.agent.A.shape), np.broadcast_to(g, self.agent.g.shape)
            rows, columns = call.carry.shape
            map = np.zeros((*A.shape[:2], rows * d + 1, columns * d + 1))
            map[..., -1, -1] = 1
            pushed = np.einsum("a,b,stcd->stacbd", call.enter, call.point, A).reshape(*A.shape[:2], rows * d, -1)
            map[..., :-1, :-1] = np.kron(call.carry, np.eye(d)) + pushed
            map[..., :-1, -1] = np.einsum("a,stc->stac", call.enter, g).reshape(*g.shape[:2], -1)
            found = map if found is None else map @ found
        return np.empty((0, 0, 0, 0)) if found is None else found

    @functools.cached_property
    def _mean(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean operator."""
        chances = np.einsum("s,stu->st", self.agent.stationary, self.agent.flow)
        return np.einsum("st,stab->ab", chances, self.agent.A), np.einsum("st,sta->a", chances, self.agent.g)

    def _flow(self, action: Action) -> np.ndarray:
        if action.moves:
            return self.agent.flow
        share = self.agent.flow.sum(-1)[..., None]
        return share * np.eye(self.S)[:, None]

    def _first(self, map: np.ndarray, action: Action) -> np.ndarray | None:
        """Returns the matrix of first moments; None for a chain that moves alone."""
        if not action.calls:
            return None
        found = np.einsum("stu,stab->uasb", self._flow(action), map, optimize=True)
        return found.reshape(self.S * map.shape[-2], -1)

    def _second(self, map: np.ndarray, action: Action) -> np.ndarray | None:
        if not action.calls:
            return None
        found = np.einsum("stu,stab,stcd->uacsbd", self._flow(action), map, map, optimize=True)
        return found.reshape(self.S * map.shape[-2] ** 2, -1)

    def _product(self, matrices: list[np.ndarray | None], size: int) -> np.ndarray:
        found = np.eye(size)
        for matrix, (_, action) in zip(matrices, self.maps, strict=True):
            if matrix is None:
                kernel = np.linalg.matrix_power(self.moves, action.times).T
                matrix = np.kron(kernel, np.eye(len(found) // self.S))
            elif action.times > 1:
                matrix = np.linalg.matrix_power(matrix, action.times)
            found = matrix @ found
        return found

    def moved(self, X: np.ndarray) -> np.ndarray:
        """Returns moments `(..., S, a, b)` that this agent does not change, on its new state."""
        return (self.kernel @ X.reshape(*X.shape[:-2], -1)).reshape(X.shape)

    def crossed(self, X: np.ndarray) -> np.ndarray:
        """Returns $E[(\\text{live}, 1)\\, w^T]$, `(..., S, m, k)`, after the exchange, for $w$ that does not change."""
        if self.joined:
            flat = self.first @ X.reshape(*X.shape[:-3], -1, X.shape[-1])
            return flat.reshape(*X.shape[:-3], self.S, -1, X.shape[-1])
        return self._followed(X, lambda map, X: map @ X)

    def squared(self, X: np.ndarray) -> np.ndarray:
        """Returns the second moments of (live, 1), `(..., S, m, m)`, after the exchange."""
        if self.dense:
            flat = X.reshape(*X.shape[:-3], -1) @ self.matrix.T
            m = math.isqrt(flat.shape[-1] // self.S)
            return flat.reshape(*X.shape[:-3], self.S, m, m)
        return self._followed(X, lambda map, X: map @ X @ transpose(map))

    def _followed(self, X: np.ndarray, apply: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Returns moments after all actions, one after another, where `apply` is the effect of a map on them."""
        for map, action in self.maps:
            for _ in range(action.times):
                if not action.calls:
                    X = (self.moves.T @ X.reshape(*X.shape[:-2], -1)).reshape(X.shape)
                    continue
                Y = apply(map, X[..., None, :, :])
                X = np.einsum("stu,...stab->...uab", self._flow(action), Y, optimize=True)
        return X


class Way(NamedTuple):
    r"""A way of an agent through an exchange: it begins as $E x$ and contributes $R\,(\text{live}, 1)$."""

    chance: float
    E: np.ndarray
    R: np.ndarray
    walk: Walk


class Contribution:
    """An agent's contribution to an exchange, on its chain, averaged over its ways."""

    def __init__(self, ways: Sequence[Way], stationary: np.ndarray):
        self.ways, self.moved, self.stationary = ways, ways[0].walk.moved, stationary

    @functools.cached_property
    def mean(self) -> np.ndarray:
        """The contribution on average as a map of $x$, with the agent's chain in its stationary state."""
        return self.crossed(self.stationary[:, None, None] * np.eye(self.ways[0].E.shape[1])).sum(-3)

    @property
    def kernel(self) -> np.ndarray:
        """The transition of the agent's chain over the exchange."""
        return self.ways[0].walk.kernel.T

    def crossed(self, X: np.ndarray) -> np.ndarray:
        """Returns the mean of the contribution times $w^T$, given $E[x w^T]$ by the state of the agent."""
        return sum((p * (R @ walk.crossed(E @ X)) for p, E, R, walk in self.ways), np.zeros(()))

    def squared(self, X: np.ndarray) -> np.ndarray:
        """Returns the second moments of the contribution."""
        return sum((p * (R @ walk.squared(E @ X @ E.T) @ R.T) for p, E, R, walk in self.ways), np.zeros(()))


class Exchanged(NamedTuple):
    r"""An exchange in reduced coordinates: $x'$ is $L x$ plus the contributions of all agents."""

    L: np.ndarray
    shares: list[Contribution]
    noise: np.ndarray
    """The covariance of the noise that the server adds."""

    def alone(self, Y: np.ndarray, sites: Sequence[int] = ()) -> np.ndarray:
        """Returns moments after the exchange without the contributions of these agents."""
        L = self.others(sites)
        return L @ Y @ L.T + Y[..., -1:, -1:] * self.noise

    def others(self, sites: Sequence[int]) -> np.ndarray:
        """Returns the map of $x$ by everybody except these agents."""
        means = (share.mean for i, share in enumerate(self.shares) if i not in sites)
        return self.L + sum(means, np.zeros_like(self.L))

    def advance(self, Y: np.ndarray, sites: Sequence[int], batch: int) -> np.ndarray:
        """Returns moments `(*batch, S, ..., S, N, N)` after the exchange, with one axis for each site."""
        L = self.others(sites)
        XX, UX, UU = Y, L @ Y, self.alone(Y, sites)
        for q, i in enumerate(sites):
            axis, share = batch + q, self.shares[i]
            XX, UX, UU = (np.moveaxis(part, axis, -3) for part in (XX, UX, UU))
            with_u = share.crossed(transpose(UX))
            UU = share.moved(UU) + with_u + transpose(with_u) + share.squared(XX)
            if q + 1 < len(sites):
                UX = share.moved(UX) + share.crossed(XX)
                XX = share.moved(XX)
            XX, UX, UU = (np.moveaxis(part, -3, axis) for part in (XX, UX, UU))
        return UU


class Federation:
    """A method's pieces on the chains of a problem, in coordinates that a run reaches and the parameter depends on."""

    def __init__(self, pieces: Pieces, outcomes: Outcomes, name: str, coordinates: "Coordinates | None" = None):
        self.pieces, self.outcomes, self.name = pieces, outcomes, name
        self.num_agents, self.num_states, self.dim = len(outcomes.A), outcomes.A.shape[1], outcomes.A.shape[-1]
        self.into, self.out_of = coordinates or _coordinates([pieces], self.num_agents)
        self._common: Coordinates | None = None
        self._walks: dict[Any, Walk] = {}
        self.extra, self.mixing = 0, None
        """The size of a running mean beside the state, and the map by which it moves after a round."""
        self.rounds = [self._round(steps) for steps in pieces.rounds]
        same = all(a is b for a, b in zip(pieces.first, pieces.rounds, strict=True))
        self.first = self.rounds if same else [self._round(steps) for steps in pieces.first]
        self.starts_alike = same
        self.gaps: dict[tuple[int, ...], float] = {}
        self.show = np.kron(pieces.show @ self.out_of[0][: len(pieces.show)], np.eye(self.dim))
        start = np.concatenate([pieces.server, np.tile(pieces.memory, self.num_agents)])
        self.start = np.kron((self.into[0] @ start)[:, None], np.eye(self.dim))

    @functools.cached_property
    def kinds(self) -> np.ndarray:
        """A number for each agent, the same for agents that observe, do, receive and contribute the same."""
        steps = [step for steps in self.pieces.rounds for step in steps]
        each = [tuple(id(way) for step in steps for way in step.parts[i]) for i in range(self.num_agents)]
        parts = np.array([each.index(ways) for ways in each])
        messages = [x for step in steps for x in (step.send, step.gather)]
        return kinds_of((*self.outcomes, parts, *messages))

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
    def size(self) -> int:
        """The size of $x$ at the start of a round, without the constant."""
        return self.extra + len(self.into[0]) * self.dim

    def _round(self, steps: Sequence[Step]) -> list[Exchanged]:
        pieces, d, at, found = self.pieces, self.dim, 0, []
        p, q = len(pieces.server), len(pieces.memory)
        for k, step in enumerate(steps):
            again = {call.place for later in steps[k + 1 :] for ways in later.parts for w in ways for call in w.calls}
            flat = [(i, part) for i, ways in enumerate(step.parts) for part in ways]
            last = k == len(steps) - 1
            every, at = actions_of([part for _, part in flat], at, last, pieces.block_length, again)
            U, V = self.out_of[k], self.into[(k + 1) % len(steps)]
            n, ways = step.gather.shape[-1], [[] for _ in range(self.num_agents)]
            for (i, part), actions in zip(flat, every, strict=True):
                own = slice(p + i * q, p + (i + 1) * q)
                begin = part.begin @ np.concatenate([step.send[i] @ U[:p], U[own]])
                end = (V[:, :p] @ step.gather[i]) @ part.end[:n] + V[:, own] @ part.end[n:]
                E, R = _with_one(np.kron(begin, np.eye(d))), _with_zero(np.kron(end, np.eye(d)))
                ways[i].append(Way(part.chance, E, R, self._walk(i, part, actions)))
            L = _with_one(np.kron(V[:, :p] @ step.keep @ U[:p], np.eye(d)))
            shares = [Contribution(w, pi) for w, pi in zip(ways, self.outcomes.stationary, strict=True)]
            noise = V[:, :p] @ step.noise
            found.append(Exchanged(L, shares, _with_zero(np.kron(noise @ noise.T, np.eye(d)))))
        return found

    def _walk(self, agent: int, part: Part, actions: list[Action]) -> Walk:
        """Returns an agent's walk, which the outcomes of a round share if the agent does the same in them."""
        moves = tuple((len(action.calls), action.moves, action.times) for action in actions)
        if (agent, id(part), moves) not in self._walks:
            self._walks[agent, id(part), moves] = Walk(part, actions, Outcomes(*(x[agent] for x in self.outcomes)))
        return self._walks[agent, id(part), moves]

    def noiseless(self) -> "Federation":
        """Returns the same agents with their mean operators, and so with one state each."""
        weights = np.einsum("is,istu->ist", self.outcomes.stationary, self.outcomes.flow)
        A, g = (np.einsum("ist,ist...->i...", weights, x)[:, None, None] for x in (self.outcomes.A, self.outcomes.g))
        one = np.ones((self.num_agents, 1))
        quiet = Outcomes(one[..., None, None], A, g, one, one)
        return Federation(self.pieces, quiet, self.name, (self.into, self.out_of))

    def at(self, algorithm: AbstractAlgorithm) -> "Federation":
        """Returns the same agents with another step size of their algorithm, in coordinates that serve all of them."""
        if self._common is None:
            steps = step_of(algorithm) * FACTORS
            every = [derive(with_step(algorithm, step), self.num_agents, self.dim) for step in steps]
            self._common = _coordinates(every, self.num_agents)
        return Federation(derive(algorithm, self.num_agents, self.dim), self.outcomes, self.name, self._common)

    def family(self, algorithm: AbstractAlgorithm, steps: Sequence[Steps]) -> "list[Federation]":
        """Returns the same agents in rounds with other step sizes, all in the same coordinates."""
        every = [derive(with_step(algorithm, now), self.num_agents, self.dim, before) for now, before in steps]
        some = np.unique(np.linspace(0, len(every) - 1, SOME).astype(int))
        coordinates = _coordinates([every[k] for k in some], self.num_agents)
        return [Federation(pieces, self.outcomes, self.name, coordinates) for pieces in every]

    def beside(self, part: float = 0.0) -> "Federation":
        """Returns the same federation with a running mean of the error at the start of its state, which it shows.

        After a round the mean moves by this part of the way to the error.
        """
        found, d = copy.copy(self), self.dim

        def exchanged(step: Exchanged) -> Exchanged:
            shares = []
            for share, pi in zip(step.shares, self.outcomes.stationary, strict=True):
                ways = [
                    w._replace(E=np.pad(w.E, ((0, 0), (d, 0))), R=np.pad(w.R, ((d, 0), (0, 0)))) for w in share.ways
                ]
                shares.append(Contribution(ways, pi))
            L, noise = (np.pad(map, ((d, 0), (d, 0))) for map in (step.L, step.noise))
            L[:d, :d] = np.eye(d)
            return Exchanged(L, shares, noise)

        found.rounds, found.first = ([[exchanged(s) for s in steps] for steps in r] for r in (self.rounds, self.first))
        found.mixing = self.mixing_by(part)
        found.show, found.start = np.eye(d, d + self.size), np.concatenate([np.eye(d), self.start])
        found.extra = d
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
            mean += chance * functools.reduce(lambda X, step: step.others(()) @ X, steps, np.eye(self.size + 1))
        return mean[:-1, :-1], mean[:-1, -1]

    @functools.cached_property
    def field(self) -> float | None:
        """The mean-square radius in the Gaussian field of all agents."""
        S, N, chances = self.num_states, self.size, self.pieces.chances
        begun = np.eye(S)[:, :, None, None] * np.eye(N + 1)  # by the state at the start, then by the current one
        members = [i for _, (i,) in self.sets(1)]
        maps, kernels = np.zeros((len(members), S, N, N)), np.zeros((len(members), S, S))
        for chance, steps in zip(chances, self.rounds, strict=True):
            for k, i in enumerate(members):
                X, kernel = begun, np.eye(S)
                for step in steps:
                    share = step.shares[i]
                    X = share.moved(step.others((i,)) @ X) + share.crossed(X)
                    kernel = kernel @ share.kernel
                maps[k] += chance * X.sum(1)[:, :-1, :-1]
                kernels[k] += chance * kernel
        counts, pi = np.array([number for number, _ in self.sets(1)]), self.outcomes.stationary[members]
        alone, _ = self.mean_round()  # in which no agent's later exchanges depend on its earlier observations
        mean = alone + np.einsum("k,kab->ab", counts, np.einsum("ks,ksab->kab", pi, maps) - alone)
        return field_radius(mean, maps, counts, kernels, pi)

    def work(self, sites: int) -> float:
        """Returns the approximate number of multiplications in a round with this number of sites."""
        S, total = float(self.num_states), 0.0
        if sites * math.log2(max(S, 2)) > 60:
            return math.inf
        for step in self.rounds[0]:
            after, before = step.L.shape
            own = sum(way.walk.work(before + after) for share in step.shares for way in share.ways) / self.num_agents
            total += S**sites * (2 * before * after * (before + after) + sites * own)
        return len(self.rounds) * total


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
    n = p + M * q

    def drawn(step: Step) -> np.ndarray:
        """A random exchange as a map of (z, 1)."""
        calls = [call.number for ways in step.parts for part in ways for call in part.calls]
        values = rng.standard_normal((2, M, max(calls, default=-1) + 1))
        mix = [rng.dirichlet(np.ones(len(ways))) for ways in step.parts]
        columns = np.eye(n, n + 1)
        one = np.eye(n + 1)[-1]
        w, m = apply(
            step, columns[:p], columns[p:].reshape(M, q, n + 1),
            lambda i, c, point: 0.5 * values[0, i, c] * point + values[1, i, c] * one, mix,
        )  # fmt: skip
        w[:, -1] += step.noise @ rng.standard_normal(step.noise.shape[1])
        return np.concatenate([w, m.reshape(M * q, n + 1)])

    reach = [np.zeros((n, 0)) for _ in range(exchanges)]
    reach[0] = _spanned(np.concatenate([pieces.server, np.tile(pieces.memory, M)])[:, None])
    quiet, turn = 0, 0
    while quiet < DRAWS:
        before = [basis.shape[1] for basis in reach]
        for steps in later if turn else first:
            for k, step in enumerate(steps):
                map, after = drawn(step), (k + 1) % exchanges
                reach[after] = _spanned(np.concatenate([reach[after], map[:, :-1] @ reach[k], map[:, -1:]], axis=1))
        turn += 1
        quiet = quiet + 1 if before == [basis.shape[1] for basis in reach] else 0
    seen = [np.zeros((n, 0)) for _ in range(exchanges)]
    seen[0] = _spanned(np.concatenate([pieces.show, np.zeros(M * q)])[:, None])
    quiet = 0
    while quiet < DRAWS:
        before = [basis.shape[1] for basis in seen]
        for steps in (*later, *first):
            for k in range(exchanges - 1, -1, -1):
                map, after = drawn(steps[k]), (k + 1) % exchanges
                seen[k] = _spanned(np.concatenate([seen[k], map[:, :-1].T @ seen[after]], axis=1))
        quiet = quiet + 1 if before == [basis.shape[1] for basis in seen] else 0
    into, out_of = [], []
    for R, visible in zip(reach, seen, strict=True):
        W = _spanned(R.T @ visible)
        into.append((R @ W).T)
        out_of.append(R @ W)
    return into, out_of


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


def _with_zero(map: np.ndarray) -> np.ndarray:
    """Adds a row and a column of zeros: the constant of an agent adds nothing to that of the state."""
    return np.pad(map, ((0, 1), (0, 1)))
