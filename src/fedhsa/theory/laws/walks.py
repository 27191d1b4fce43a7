r"""Moments of what agents do in an exchange, along their chains.

An agent's *live variables* are followed call by call: at the point $t \cdot \text{live}$ it observes the operator $G$,
and $\text{live} \leftarrow F\,\text{live} + B\,G$. The rows of a moment are (live, z, 1), where $z$ is additive noise.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from ..._linear import transpose
from .agents import Agents
from .draws import CODES
from .moments import NotDerivedError
from .pieces import MEAN, Call, Part

Points: TypeAlias = dict[int, np.ndarray]
"""Second moments of points and 1, `(M, S, d + 1, d + 1)`, by the states when they are used: 0 for the points at which
operators are called on observations, summed over the calls, and 1 and more for what is coded."""
MATRIX, PACKED = 64, 128
"""The sizes up to which an agent's maps of first and of second moments are matrices."""


class Code(NamedTuple):
    """The moments of what is decoded."""

    mean: float
    square: float
    entries: float
    """See `codecs.CodeMoments`."""
    added: np.ndarray
    """The covariance that the code adds besides, of each agent, `(M, d, d)`."""


class Action(NamedTuple):
    """Calls at one observation, and whether the chain then moves; some `times` in a row."""

    calls: tuple[Call, ...]
    moves: bool
    times: int

    @property
    def uses(self) -> bool:
        """Whether a call uses the observation."""
        return any(call.place >= 0 for call in self.calls)

    @property
    def code(self) -> int | None:
        """The number of the code that it makes; None if it calls operators."""
        return CODES - self.calls[0].place if self.calls and self.calls[0].place <= CODES else None


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
            if call.place <= CODES:
                if calls:
                    found.append(_action(calls, now, again))
                    now, calls = now + found[-1].moves, []
                found.append(Action((call,), False, 1))
                continue
            if call.place not in (MEAN, now):
                if call.place < now:
                    raise NotDerivedError("An observation is used again after the next one.")
                found += [Action(tuple(calls), True, 1), *[Action((), True, 1)] * (call.place - now - 1)]
                now, calls = call.place, []
            calls.append(call)
        if calls:
            found.append(_action(calls, now, again))
            now += found[-1].moves
        every.append(found)
        ends.append(now)
    end = length if last else max(ends)
    for found, now in zip(every, ends, strict=True):  # an agent may use fewer observations than others, or none
        if again.intersection(range(now, end)):
            raise NotDerivedError("The agents use different numbers of observations in an exchange.")
        found += [Action((), True, 1)] * (end - now)
    return [_grouped(found) for found in every], end


def _action(calls: list[Call], now: int, again: set[int]) -> Action:
    action = Action(tuple(calls), False, 1)
    return action._replace(moves=action.uses and now not in again)


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
        if min(one.place, 0) != min(two.place, 0) or one.carry.shape != two.carry.shape:
            return False
        if any((np.abs(x - y) > 1e-14 + 1e-11 * np.abs(y)).any() for x, y in zip(one.maps, two.maps, strict=True)):
            return False
    return all(call.carry.shape[0] == call.carry.shape[1] for call in a.calls)


def mixed(F: np.ndarray, X: np.ndarray, d: int) -> np.ndarray:
    """Returns $(F \\otimes I) X$ for rows in groups of `d`."""
    groups = [X[..., k * d : (k + 1) * d, :] for k in range(F.shape[1])]
    found = [_combined(row, groups) for row in F]
    return found[0] if len(found) == 1 else np.concatenate(found, axis=-2) if found else X[..., :0, :]


def _columns(X: np.ndarray, F: np.ndarray, d: int) -> np.ndarray:
    """Returns $X (F \\otimes I)$ for columns in groups of `d`."""
    groups = [X[..., k * d : (k + 1) * d] for k in range(len(F))]
    found = [_combined(column, groups) for column in F.T]
    return found[0] if len(found) == 1 else np.concatenate(found, axis=-1) if found else X[..., :0]


def _combined(factors: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """Returns a sum of groups with these factors, of which most are 0 or 1."""
    parts = [group if x == 1 else x * group for x, group in zip(factors.tolist(), groups, strict=True) if x]
    return sum(parts[1:], parts[0]) if parts else np.zeros_like(groups[0])


def _packed(Z: np.ndarray) -> np.ndarray:
    """Returns the entries at and above the diagonals of symmetric matrices by states, `(..., S m (m + 1) / 2)`."""
    i, j = np.triu_indices(Z.shape[-1])
    return Z[..., i, j].reshape(*Z.shape[:-3], -1)


def _unpacked(entries: np.ndarray, S: int) -> np.ndarray:
    """Returns the symmetric matrices with these entries."""
    entries = entries.reshape(*entries.shape[:-1], S, -1)
    m = (math.isqrt(8 * entries.shape[-1] + 1) - 1) // 2
    found, (i, j) = np.empty((*entries.shape[:-1], m, m), entries.dtype), np.triu_indices(m)
    found[..., i, j] = found[..., j, i] = entries
    return found


class _Shear(NamedTuple):
    """A call after which every group of rows is itself, plus multiples of later groups and of the value."""

    added: list[tuple[slice, slice, float]]
    entering: list[tuple[slice, float]]
    halved: list[tuple[slice, float]]
    """Half of the factors of the groups that the call turns into what it adds of the value."""

    @staticmethod
    def of(F: np.ndarray, enter: np.ndarray, d: int) -> "_Shear | None":
        """Returns the call $F\\,\\text{live} + B\\,G$; None if it is something else."""
        if F.shape[0] != F.shape[1] or (np.tril(F) != np.eye(len(F))).any():
            return None
        at = [slice(k * d, (k + 1) * d) for k in range(len(F))]
        before = np.linalg.solve(F, enter)
        pairs = [(at[k], at[j], float(F[k, j])) for k in range(len(F)) for j in range(k + 1, len(F)) if F[k, j]]
        lists = ([(at[k], float(x[k])) for k in np.flatnonzero(x)] for x in (enter, before / 2))
        return _Shear(pairs, *lists)

    def apply(self, X: np.ndarray, value: np.ndarray | None = None) -> None:
        """Changes rows in their place."""
        for to, other, factor in self.added:
            X[..., to, :] += factor * X[..., other, :]
        if value is not None:
            for to, factor in self.entering:
                X[..., to, :] += factor * value


class Walk:
    """What some agents do in an exchange, as maps of first and second moments `(..., M, S, m, n)`."""

    def __init__(self, part: Part, actions: Sequence[Action], agents: Agents, codes: Sequence["Code"] = ()):
        self.codes = codes
        if agents.hidden and any(a.uses and not a.moves for a in actions):
            raise NotDerivedError("An observation is used in two exchanges, and it is more than the chain's state.")
        self.part, self.actions, self.agents, self.d = part, actions, agents, agents.dim
        self.noise = agents.noise
        self.extra = (0 if agents.noise is None else self.d) + 1
        """The number of rows for additive noise and the constant."""
        lives = [len(part.begin), *(len(a.calls[-1].carry) for a in actions if a.calls)]
        self.begins, self.ends, self.most = (n * self.d + self.extra for n in (lives[0], lives[-1], max(lives)))

    def work(self, columns: int) -> float:
        """Returns the approximate number of multiplications for moments with this number of further columns."""
        M, S, T, K, rows = self.agents.W.shape
        wide = self.most + columns
        call = S * T * K * 2.0 * rows * (wide + rows) + self.most * wide * rows
        move = S**2 * self.most * wide if S > 1 else 0.0
        maps = S * T * self.most**2 * 2.0 * wide
        each = (a.times * (move + (maps if self._maps_needed(a) else call if a.calls else 0.0)) for a in self.actions)
        return M * sum(each)

    @property
    def room(self) -> float:
        """The number of entries of the maps that it forms."""
        M, S, T = self.agents.chances.shape
        return M * S * T * self.most**2 if any(map(self._maps_needed, self.actions)) else 0.0

    def _maps_needed(self, action: Action) -> bool:
        """Whether the calls of an action are not followed along the chain, but on every observation."""
        return bool(action.calls) and not (len(action.calls) == 1 and action.moves and action.uses)

    def first(self, X: np.ndarray) -> np.ndarray:
        """Returns $E[(\\text{live}, z, 1)\\, w^T]$ after the exchange, for $w$ that does not change."""
        if self.agents.num_states * self.most <= MATRIX:
            S, n = self.agents.num_states, X.shape[-1]
            flat = self._first_matrix @ X.reshape(*X.shape[:-3], S * self.begins, n)
            return flat.reshape(*flat.shape[:-2], S, self.ends, n)
        for action in self.actions:
            for _ in range(action.times):
                X = self._first(action, X)
        return X

    def second(self, Z: np.ndarray, X: np.ndarray, points: Points | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the second moments of (live, z, 1) after the exchange, `(..., M, S, m, m)`, and what `first` does.

        Those of the points at which operators are called, and 1, are added to `points`; see `Points`.
        """
        if points is None and self.agents.num_states * self.most * (self.most + 1) <= 2 * PACKED:
            found = self._second_matrix @ _packed(Z)[..., None]
            return _unpacked(found[..., 0], self.agents.num_states), self.first(X)
        return self._second(Z, X, self.actions, points)

    @functools.cached_property
    def _first_matrix(self) -> np.ndarray:
        M, S, m = len(self.agents.P), self.agents.num_states, self.begins
        found = np.broadcast_to(np.eye(S * m).reshape(1, S, m, S * m), (M, S, m, S * m))
        for action in self.actions:
            for _ in range(action.times):
                found = self._first(action, found)
        return found.reshape(M, -1, S * m)

    @functools.cached_property
    def _second_matrix(self) -> np.ndarray:
        """Maps `_packed` moments; equal actions in a row are a power."""
        M, S, m = len(self.agents.P), self.agents.num_states, self.begins
        found = np.eye(S * m * (m + 1) // 2)
        for action in self.actions:
            units = _unpacked(np.eye(found.shape[-2])[:, None].repeat(M, axis=1), S)
            after, _ = self._second(units, units[..., :0], [action._replace(times=1)])
            map = np.moveaxis(_packed(after), 0, -1)
            found = (np.linalg.matrix_power(map, action.times) if action.times > 1 else map) @ found
        return found

    def _first(self, action: Action, X: np.ndarray) -> np.ndarray:
        """Returns first moments after an action."""
        if (maps := self._maps(action)) is not None:
            X = self._flow(action, maps @ X[..., None, :, :])
        elif action.calls:
            (call,) = action.calls
            value, X = self.agents.directed(self._asked(call, X)), self.agents.move(X)
            X = self._turned(call, X, value if self.noise is None else value + X[..., self._added, :])
        else:
            X = self.agents.move(X)
        return self._drifted(X) if action.moves else X

    def _second(
        self, Z: np.ndarray, X: np.ndarray, actions: Sequence[Action], points: Points | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        m = Z.shape[-1]
        X = np.concatenate([Z, X], axis=-1)
        for action in actions:
            maps = self._maps(action)
            for _ in range(action.times):
                point = None
                if action.code is not None or (points is not None and action.uses):
                    point = self._points(action, X[..., :m])
                    if points is not None:
                        points[0 if action.code is None else action.code + 1] += point
                if maps is not None:
                    every = maps @ X[..., None, :, :]
                    X = self._flow(action, np.concatenate([every[..., :m] @ transpose(maps), every[..., m:]], axis=-1))
                    m = maps.shape[-2]
                    if action.code is not None and point is not None:
                        self._add_code(action, X, point)
                elif action.calls:
                    (call,) = action.calls
                    X, m = self._called(call, X, m)
                else:
                    X = self.agents.move(X)
                if action.moves and self.noise is not None:
                    X = self._drifted(X)
                    X[..., :m] = transpose(self._drifted(transpose(X[..., :m])))
                    X[..., self._added, m - 1 - self.d : m - 1] += X[..., -1:, m - 1 : m] * self.noise.fresh[:, None]
        return X[..., :m], X[..., m:]

    def _called(self, call: Call, X: np.ndarray, m: int) -> tuple[np.ndarray, int]:
        """Returns moments after a call and a move of the chain; the first `m` columns are (live, z, 1)."""
        n, d = len(call.point) * self.d, self.d
        r, shear = self._asked(call, X), self._shears[id(call)]
        squares = self.agents.squares(_columns(r[..., :n], call.point[:, None], d), r[..., m - 1 : m])
        if shear is not None:
            # Half of the value's second moment is counted with its products with the live variables, the other half
            # with their mirror images, which takes no arrays beyond the moments.
            for to, factor in shear.halved:
                r[..., to] += factor * squares
            value, X = self.agents.directed(r), self.agents.move(X)
            mirrored = transpose(value[..., :m]).copy()
            shear.apply(mirrored)
            shear.apply(X, value)
            shear.apply(transpose(X[..., :m]), transpose(mirrored))
            return X, m
        value, X = self.agents.directed(np.concatenate([squares, r], axis=-1)), self.agents.move(X)
        if self.noise is not None:
            at, z = self._added, slice(m - 1, d + m - 1)
            value[..., :d] += value[..., z] + transpose(value[..., z]) + X[..., at, m - 1 - d : m - 1]
            value[..., d:] += X[..., at, :]
        rows = self._turned(call, np.concatenate([transpose(value[..., d : d + m]), X], axis=-1), value)
        columns = transpose(rows[..., : d + m])
        square = self._turned(call, columns[..., d:, :], columns[..., :d, :])
        return np.concatenate([square, rows[..., d + m :]], axis=-1), square.shape[-1]

    def _points(self, action: Action, Z: np.ndarray) -> np.ndarray:
        """Returns the second moments of the points of an action's calls and 1, without those of mean operators."""
        found = np.zeros(())
        for k, call in enumerate(action.calls):
            if call.place == MEAN:
                continue
            n = len(call.point) * self.d
            to = np.zeros((self.d + 1, n + self.extra))
            to[:-1, :n], to[-1, -1] = np.kron(call.point, np.eye(self.d)), 1
            if k == 0:
                found = found + to @ Z @ to.T
                continue
            to = to @ self._maps_of(action, action.calls[:k])
            found = found + np.einsum(
                "ist,...istab->...isab", self.agents.chances, to @ Z[..., None, :, :] @ transpose(to)
            )
        return found

    @functools.cached_property
    def _shears(self) -> dict[int, _Shear | None]:
        found = {}
        for call in (call for action in self.actions for call in action.calls):
            F, enter = call.carry, call.enter
            if self.noise is not None:  # which is a part of the value
                F = np.block([[F, enter[:, None]], [np.zeros((1, F.shape[1])), np.ones((1, 1))]])
                enter = np.append(enter, 0.0)
            found[id(call)] = _Shear.of(F, enter, self.d)
        return found

    def _asked(self, call: Call, X: np.ndarray) -> np.ndarray:
        """Returns the coefficients of the operator's value at a call."""
        point = mixed(call.point[None], X[..., : len(call.point) * self.d, :], self.d)
        return self.agents.coefficients(np.concatenate([point, X[..., -1:, :]], axis=-2))

    def _turned(self, call: Call, X: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Returns rows (live, z, 1) after a call that returns `value`."""
        n = len(call.point) * self.d
        live = mixed(call.carry, X[..., :n, :], self.d) + mixed(call.enter[:, None], value, self.d)
        return np.concatenate([live, X[..., n:, :]], axis=-2)

    def _add_code(self, action: Action, X: np.ndarray, point: np.ndarray) -> None:
        """Adds the covariance of a code to second moments, given those of the coded point and 1."""
        code, (call,) = self.codes[action.code or 0], action.calls
        square, one = point[..., :-1, :-1], point[..., -1:, -1:]
        noise = (
            (code.square - code.mean**2) * square + code.entries * square * np.eye(self.d) + one * code.added[:, None]
        )
        n = len(call.enter) * self.d
        X[..., :n, :n] += np.einsum("a,b,...cd->...acbd", call.enter, call.enter, noise).reshape(
            *noise.shape[:-2], n, n
        )

    @property
    def _added(self) -> slice:
        """The rows of additive noise."""
        return slice(-1 - self.d, -1)

    def _drifted(self, X: np.ndarray) -> np.ndarray:
        """Returns rows after additive noise has moved on."""
        if self.noise is not None:
            X = X.copy()
            X[..., self._added, :] = self.noise.Q[:, None] @ X[..., self._added, :]
        return X

    def _maps(self, action: Action) -> np.ndarray | None:
        """Returns the maps of rows by an action, `(M, S, T, m', m)`; None if it is a call that the chain follows."""
        return self._maps_of(action, action.calls) if self._maps_needed(action) else None

    def _maps_of(self, action: Action, calls: Sequence[Call]) -> np.ndarray:
        """Returns the maps of rows by the first calls of an action."""
        d, found = self.d, np.eye(1)
        shape = self.agents.chances.shape if action.uses else (len(self.agents.P), 1, 1)
        for call in calls:
            mean = call.place < 0
            if call.place <= CODES:
                A = self.codes[CODES - call.place].mean * np.eye(d, d + 1)[None, None, None]
            else:
                A = self.agents.mean_operators[:, None, None] if mean else self.agents.matrices
            rows, columns = (count * d for count in call.carry.shape)
            map = np.zeros((*shape, rows + self.extra, columns + self.extra))
            map[..., rows:, columns:] = np.eye(self.extra)
            pushed = np.einsum("a,b,...cd->...acbd", call.enter, call.point, A[..., :-1])
            map[..., :rows, :columns] = np.kron(call.carry, np.eye(d)) + pushed.reshape(*A.shape[:3], rows, columns)
            map[..., :rows, -1] = np.einsum("a,...c->...ac", call.enter, A[..., -1]).reshape(*A.shape[:3], -1)
            if self.noise is not None and not mean:
                map[..., :rows, columns:-1] = np.kron(call.enter[:, None], np.eye(d))
            found = map if call is calls[0] else map @ found
        return found

    def _flow(self, action: Action, Y: np.ndarray) -> np.ndarray:
        """Returns moments by the next state, from those by the state and the observation."""
        if Y.shape[-3] == 1:
            return self.agents.move(Y[..., 0, :, :]) if action.moves else Y[..., 0, :, :]
        if self.agents.num_states == 1:
            return np.einsum("...ist,...istab->...isab", self.agents.chances, Y)
        return np.einsum("...ist,...istab->...itab", self.agents.chances, Y)

    def back(self, N: np.ndarray, covariance: np.ndarray | None = None) -> np.ndarray:
        """Returns the mean of rows of (live, z, 1) at the end, `(..., M, S, k, m)`, given (live, z, 1) at the start.

        What the fresh part of additive noise adds to their covariance is added to `covariance`.
        """
        d = self.d
        for action in self.actions[::-1]:
            maps = self._maps(action)
            for _ in range(action.times):
                if action.moves and self.noise is not None:
                    z = N[..., self._added]
                    if covariance is not None:
                        covariance += z @ self.noise.fresh[:, None] @ transpose(z)
                    N = np.concatenate([N[..., : -1 - d], z @ self.noise.Q[:, None], N[..., -1:]], axis=-1)
                if maps is not None:
                    N = self._given(action, N, maps)
                elif not action.calls:
                    N = self.agents.back(N)
                else:
                    (call,) = action.calls
                    n = len(call.carry) * d
                    entering = _columns(N[..., :n], call.enter[:, None], d)
                    through, N = self.agents.given(entering), self.agents.back(N)
                    live = _columns(N[..., :n], call.carry, d) + _columns(through[..., :d], call.point[None], d)
                    rest = N[..., n:].copy()
                    rest[..., -1] += through[..., d]
                    if self.noise is not None:
                        rest[..., :-1] += entering
                    N = np.concatenate([live, rest], axis=-1)
        return N

    def _given(self, action: Action, N: np.ndarray, maps: np.ndarray) -> np.ndarray:
        """Returns the mean of rows after an action with these maps, given the state before it."""
        if maps.shape[-3] == 1:
            return (self.agents.back(N) if action.moves else N) @ maps[..., 0, :, :]
        if self.agents.num_states == 1:
            return np.einsum("...iska,ist,istab->...iskb", N, self.agents.chances, maps, optimize=True)
        return np.einsum("...itka,ist,istab->...iskb", N, self.agents.chances, maps, optimize=True)
