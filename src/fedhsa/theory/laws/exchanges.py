r"""A method on the agents of a problem: its exchanges as maps of moments, for some agents among the mean of all others.

At the start of a round, $x$ is what a method carries, server and memories together, in coordinates that a run reaches
and the parameter depends on. Between two exchanges it is the server's state, and what the other agents remember of
earlier messages. An agent that is followed has its memory and its additive noise beside it, its *own* coordinates. The
last coordinate is the constant 1.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..._linear import transpose
from .agents import Agents
from .coordinates import Coordinates, same
from .pieces import Part, Step
from .pieces import _independent as independent
from .walks import Action, Code, Points, Walk, actions_of

ALONE = 10**8
"""The number of multiplications for an agent above which agents are followed one by one, which takes less memory."""


class Frame(NamedTuple):
    """Coordinates before an exchange and after it, as numbers that multiply the identity.

    An axis of agents has length 1 if all entries are equal.
    """

    keep: np.ndarray
    """The new coordinates from the old ones, `(n', n)`."""
    gather: np.ndarray
    """The new coordinates from the replies, `(M, n', r)`."""
    store: np.ndarray | None
    """The new coordinates from the memories, `(M, n', q)`; None if agents keep their memories."""
    messages: list[np.ndarray]
    """The messages of this exchange and of the earlier ones from the old coordinates, `(M, m, n)`."""
    memories: np.ndarray
    """The memories at the start of the round from the old coordinates, `(M, q, n)`."""
    noise: np.ndarray
    """The factors of the server's noise in the new coordinates."""


def frames_of(steps: Sequence[Step], coordinates: Coordinates, p: int, q: int, *, others: bool) -> list[Frame]:
    """Returns the coordinates of a round; `others` are agents that are not followed, but on average."""
    into, out_of = coordinates
    M, lasting = len(steps[0].send), len(out_of) > p
    server, memories = (
        out_of[:p],
        _common(out_of[p:].reshape(M, q, -1)) if lasting else np.zeros((1, q, out_of.shape[1])),
    )
    past: list[np.ndarray] = []
    found = []
    for k, step in enumerate(steps):
        past, n, gather = [*past, _common(step.send @ server)], server.shape[1], _common(step.gather)
        if k == len(steps) - 1:
            to = into[:, :p]
            store = _common(np.moveaxis(into[:, p:].reshape(-1, M, q), 1, 0)) if lasting else np.zeros((1, len(to), q))
            found.append(Frame(to @ step.keep @ server, to @ gather, store, past, memories, to @ step.noise))
            break
        kept = (*past, memories) if others else ()
        replied = np.moveaxis(gather, 0, 1).reshape(p, -1)
        rows = np.concatenate(
            [np.concatenate([step.keep @ server, replied, step.noise], axis=1)]
            + [np.pad(x.reshape(-1, n), ((0, 0), (0, replied.shape[1] + step.noise.shape[1]))) for x in kept]
        )
        chosen, combine = independent(rows)
        keep, replied, noise = np.split(rows[chosen], [n, rows.shape[1] - step.noise.shape[1]], axis=1)
        to = np.moveaxis(replied.reshape(len(chosen), len(gather), -1), 1, 0)
        found.append(Frame(keep, to, None, past, memories, noise))
        server, at = combine[:p], p
        shaped = []
        for x in kept:
            size = x.shape[0] * x.shape[1]
            shaped.append(combine[at : at + size].reshape(*x.shape[:2], len(chosen)))
            at += size
        past, memories = (shaped[:-1], shaped[-1]) if others else ([], np.zeros((1, q, len(chosen))))
    return found


def _common(x: np.ndarray) -> np.ndarray:
    return x[:1] if same(x) else x


def _kron(x: np.ndarray, d: int) -> np.ndarray:
    """Returns $x \\otimes I$ for stacked matrices."""
    *batch, a, b = x.shape
    return np.einsum("...ab,cd->...acbd", x, np.eye(d)).reshape(*batch, a * d, b * d)


def _times(X: np.ndarray, x: np.ndarray, d: int) -> np.ndarray:
    """Returns $X (x \\otimes I)$ for rows `(M, ..., a d)` and stacked matrices, or one for all agents, `(M, a, b)`."""
    a, b = x.shape[-2:]
    parts = X.reshape(*X.shape[:-1], a, d).swapaxes(-1, -2)
    found = parts @ x.reshape(len(x), *[1] * (parts.ndim - 3), a, b)
    return found.swapaxes(-1, -2).reshape(*X.shape[:-1], b * d)


class Summary(NamedTuple):
    """What affects the server of the memories of all agents, as a part of $x$: sums of their images."""

    maps: np.ndarray
    """The maps of each agent's memory, `(M, k, q d)`, whose rows are orthonormal for all agents together."""
    conserved: np.ndarray
    """Orthonormal rows for one agent, `(c, q d)`, whose sums over all agents the server's state determines."""
    known: np.ndarray
    """These sums as maps of the server's part of $x$, `(c, p d)`."""
    left_out: float
    """The part of the effect of memories that later powers have."""


class Way(NamedTuple):
    """A way of some agents through an exchange: they begin as $E (x, o, 1)$ and add $R\\,(\\text{live}, z, 1)$."""

    part: Part
    E: np.ndarray
    """`(n, 1, m, N)`, where the second axis is for states."""
    R: np.ndarray
    walk: Walk


class Contribution:
    """What some agents contribute to an exchange; moments have an axis for them, then one for states."""

    def __init__(self, groups: list[tuple[Any, list[Way]]], kernel: np.ndarray):
        self.groups, self.kernel = groups, kernel
        """The agents that go the same ways, and these; and the transitions of their chains."""

    def first(self, X: np.ndarray) -> np.ndarray:
        """Returns the mean of the contributions times $w^T$, given $E[(x, o, 1) w^T]$ by the states of the agents."""
        (found,) = self._each([X], lambda way, X: [way.R @ way.walk.first(way.E @ X)])
        return found

    def second(self, Y: np.ndarray, X: np.ndarray, points: Points | None = None) -> list[np.ndarray]:
        """Returns the second moments of the contributions, given those of (x, o, 1), and what `first` does.

        See `Walk.second` about `points`.
        """

        def one(way: Way, Y: np.ndarray, X: np.ndarray) -> list[np.ndarray]:
            seen = None if points is None else {k: np.zeros((*Y.shape[:2], *x.shape[2:])) for k, x in points.items()}
            square, cross = way.walk.second(way.E @ Y @ transpose(way.E), way.E @ X, seen)
            return [way.R @ square @ transpose(way.R), way.R @ cross, *(seen or {}).values()]

        square, cross, *seen = self._each([Y, X], one)
        for total, part in zip((points or {}).values(), seen, strict=True):
            total += part
        return [square, cross]

    def back(self, N: np.ndarray) -> list[np.ndarray]:
        """Returns the mean of rows of the contributions as a map of (x, o, 1), given the states before.

        Also returns the covariance that fresh additive noise gives them, if all agents go one way.
        """

        def one(way: Way, N: np.ndarray) -> list[np.ndarray]:
            covariance = np.zeros((*N.shape[:-1], N.shape[-2]))
            return [way.walk.back(N @ way.R, covariance) @ way.E, covariance]

        return self._each([N], one)

    def back_moved(self, N: np.ndarray) -> np.ndarray:
        """Returns the mean of a function of the new states, given the old ones."""
        return N if N.shape[-3] == 1 else (self.kernel @ N.reshape(*N.shape[:-2], -1)).reshape(N.shape)

    def moved(self, X: np.ndarray) -> np.ndarray:
        """Returns moments that agents do not change, by their new states."""
        if X.shape[-3] == 1:
            return X
        return (transpose(self.kernel) @ X.reshape(*X.shape[:-2], -1)).reshape(X.shape)

    def _each(self, given: list[np.ndarray], function: Callable[..., list[np.ndarray]]) -> list[np.ndarray]:
        """Returns the results of a function of ways and moments, averaged over the ways of each agent."""
        found: list[np.ndarray] = []
        for places, ways in self.groups:
            some = given if len(self.groups) == 1 else [X[..., places, :, :, :] for X in given]
            parts = [
                [way.part.chance * x for x in function(way, *some)] if len(ways) > 1 else function(way, *some)
                for way in ways
            ]
            total = [functools.reduce(np.add, every) for every in zip(*parts, strict=True)]
            if len(self.groups) == 1:
                return total
            found = found or [np.empty((*given[0].shape[:-3], *x.shape[-3:])) for x in total]
            for whole, part in zip(found, total, strict=True):
                whole[..., places, :, :, :] = part
        return found


class Group(NamedTuple):
    """Agents that go the same ways through an exchange."""

    members: np.ndarray
    parts: tuple[Part, ...]
    actions: list[list[Action]]


class GroupExchange:
    """An exchange of the agents in one frame."""

    def __init__(
        self,
        step: Step,
        frame: Frame,
        agents: Agents,
        groups: list[Group],
        walks: dict[Any, Walk],
        codes: Sequence[Code],
        *,
        first: bool,
        summary: Summary | None = None,
    ):
        self.step, self.frame, self.agents, self.all_groups, self.codes = step, frame, agents, groups, codes
        self._walks = walks
        self.num_agents = len(step.send)
        self.d, self.M, self.q = agents.dim, len(agents.P), groups[0].parts[0].begin.shape[1] - step.send.shape[1]
        self.added = 0 if agents.noise is None else self.d
        self.summary, self.summed = summary, 0 if summary is None else summary.maps.shape[1]
        """What stands for agents' memories in $x$, and its size."""
        self.n, self.ends = (size * self.d + self.summed for size in frame.keep.shape[::-1])
        """The size of $x$ before and after the exchange, without the constant."""
        self.own = (0 if first else self.q) * self.d + self.added
        self.own_after = (self.q if frame.store is None else 0) * self.d + self.added
        """The size of an agent's own coordinates before and after."""
        self.first = first
        self.kernel = np.linalg.matrix_power(agents.P, sum(a.times for a in groups[0].actions[0] if a.moves))
        self.noise = np.pad(_kron(frame.noise @ frame.noise.T, self.d), (0, self.summed))
        self._shares: dict[Any, Contribution] = {}
        self.round: list[GroupExchange] = []
        """The exchanges of the round; empty if all agents are followed, so that there are no others."""
        self.rest: np.ndarray | float = 0.0
        """What agents contribute on average that none of these stands for."""
        self.shares: list[tuple[GroupExchange, np.ndarray]] = [(self, np.ones(self.M))]
        """The exchange in each role that an agent may have, with the probabilities of the roles."""
        self.beside: list[tuple[GroupExchange, np.ndarray]] = self.shares
        """The same given that another agent has the role of this exchange."""

    @functools.cached_property
    def others(self) -> np.ndarray:
        """What each agent contributes to $x$ on average, as a map of $(x, 1)$, `(M, n', n + 1)`.

        It carries its chain and its memory from exchange to exchange.
        """
        found = np.zeros((self.M, self.ends, self.n + 1))
        if not self.round:
            return found
        S, d, pi, rows = self.agents.num_states, self.d, self.agents.pi, None
        for j in range(self.round.index(self), -1, -1):
            exchange, before = self.round[j], rows  # rows of the memory at the end of an exchange, given the state
            m, q = exchange.step.send.shape[1] * d, exchange.q
            rows = np.zeros((self.M, S, self.ends, m + q * d + 1))
            for places, ways in exchange.share(np.arange(self.M)).groups:
                for way in ways:
                    if before is None:
                        end = way.R[..., : self.ends, :]
                        N = np.broadcast_to(end, (len(places), S, *end.shape[2:]))
                    else:
                        N = _times(before[places], way.part.end[None, -q:], d)
                        N = np.concatenate([N, np.zeros((*N.shape[:-1], exchange.added + 1))], axis=-1)
                    N = way.walk.back(N)
                    begun = _times(N[..., : len(way.part.begin) * d], way.part.begin[None], d)
                    rows[places] += way.part.chance * np.concatenate([begun, N[..., -1:]], axis=-1)
            mean, served = np.einsum("is,is...->i...", pi, rows), self.frame.keep.shape[1] * d
            found[..., :served] += _times(mean[..., :m], self.frame.messages[j], d)
            found[..., -1] += mean[..., -1]
            rows = rows[..., m:-1]
            if j == 0:
                found[..., :served] += _times(mean[..., m:-1], self.frame.memories, d)
                self._ports = mean[..., m:-1]
            elif not rows.any():
                break
        return found

    @property
    def ports(self) -> np.ndarray:
        """What each agent's memory at the start of the round contributes to $x$ on average, `(M, n', q d)`."""
        assert self.others is not None
        return self._ports

    @functools.cached_property
    def remembered(self) -> np.ndarray:
        """What each agent's (x, own memory, 1) is on average before the exchange, given its state, as a map of $(x,
        1)$, `(M, S, N, n + 1)`."""
        S, d, q = self.agents.num_states, self.d, self.q * self.d
        one = self.agents.pi[..., None, None]
        known = np.broadcast_to(np.eye(q, q + 1), (self.M, S, q, q + 1)) * one  # columns: memory, messages, 1
        for exchange in self.round[: self.round.index(self)]:
            m = exchange.step.send.shape[1] * d
            inputs = np.zeros((self.M, S, m + q + exchange.added + 1, known.shape[-1] + m))
            inputs[..., :m, -1 - m : -1] = one * np.eye(m)
            inputs[..., m : m + q, : -1 - m], inputs[..., m : m + q, -1] = known[..., :-1], known[..., -1]
            inputs[..., -1, -1] = self.agents.pi
            known = np.zeros((self.M, S, q, inputs.shape[-1]))
            for places, ways in exchange.share(np.arange(self.M)).groups:
                for way in ways:
                    begun = _kron(way.part.begin, d) @ inputs[places, :, : m + q]
                    live = way.walk.first(np.concatenate([begun, inputs[places, :, m + q :]], axis=-2))
                    end = _kron(way.part.end[len(way.part.end) - self.q :], d)
                    known[places] += way.part.chance * (end @ live[..., : end.shape[1], :])
        found = np.zeros((self.M, S, self.n + self.own + 1, self.n + 1))
        found[..., : self.n, : self.n], found[..., -1, -1] = np.eye(self.n), 1
        labels = [_kron(x, d) for x in (self.frame.memories, *self.frame.messages[:-1])]
        labels = np.concatenate([np.broadcast_to(x, (self.M, *x.shape[1:])) for x in labels], axis=1)
        known = known / np.where(one > 0, one, 1.0)
        found[..., self.n : self.n + q, : self.n] = known[..., :-1] @ labels[:, None]
        found[..., self.n : self.n + q, -1] = known[..., -1]
        return found

    @functools.cached_property
    def since(self) -> np.ndarray:
        """The mean map of $(x, 1)$ from the start of the round, given the role of each agent, `(M, n' + 1, n + 1)`."""
        which, n = np.arange(self.M), self.round[0].n
        rows = np.zeros((self.M, self.agents.num_states, self.ends + 1, self.ends + self.own_after + 1))
        rows[..., : self.ends, : self.ends], rows[..., -1, -1] = np.eye(self.ends), 1
        for exchange in self.round[self.round.index(self) :: -1]:
            rows, _ = exchange.back_of_each(rows, which)
        return np.einsum("is,isab->iab", self.agents.pi, rows[..., [*range(n), -1]])

    @functools.cached_property
    def mean(self) -> np.ndarray:
        """The map of $(x, 1)$ if all agents are as they are on average."""
        found, keep = np.zeros((self.ends + 1, self.n + 1)), _kron(self.frame.keep, self.d)
        found[: len(keep), : len(keep.T)], found[-1, -1] = keep, 1
        for role, share in self.shares:
            found[:-1] += np.tensordot(share * self.agents.counts, role.others, 1)
        found[:-1] += self.rest
        if self.summary is not None:
            still = self.ports.mean(0) @ self.summary.conserved.T
            found[:-1, len(keep.T) : -1] += np.einsum("iab,icb->ac", self.ports, self.summary.maps)
            found[:-1, : len(keep.T)] += still @ self.summary.known
        return found

    @functools.cached_property
    def each(self) -> float:
        """The approximate number of multiplications for one agent."""
        return self.work(1) / self.M

    def work(self, size: int) -> float:
        """Returns the approximate number of multiplications for all agents in sets of a size."""
        S, N = float(self.agents.num_states), self.n + size * self.own + 1
        share = self.share(np.arange(self.M))
        walks = sum(way.walk.work(N) for _, ways in share.groups for way in ways)
        return S ** (size - 1) * (walks + 4 * self.M * S * N**3)

    def without(self, sets: np.ndarray) -> np.ndarray:
        """Returns the map of (x, own coordinates, 1) by all agents but the ones in each of some sets, `(c, N', N)`.

        It is zero on own coordinates, which agents change themselves.
        """
        count, size = sets.shape
        found = np.zeros((count, self.ends + size * self.own_after + 1, self.n + size * self.own + 1))
        rest = self._among - sum(
            np.einsum("ck,ckab->cab", share[sets], role.others[sets]) for role, share in self.beside
        )
        found[:, : self.ends, : self.n], found[:, : self.ends, -1], found[:, -1, -1] = rest[..., :-1], rest[..., -1], 1
        for site in range(size if self.summary is not None else 0):
            at = self.n + site * self.own
            found[:, : self.ends, at : at + self.q * self.d] = -self.ports[sets[:, site]]
        return found

    @functools.cached_property
    def _among(self) -> np.ndarray:
        """What all agents do on average given that another one has the role of this exchange."""
        found = self.mean[:-1]
        for (role, share), (_, given) in zip(self.shares, self.beside, strict=True):
            if given is not share:
                found = found + np.tensordot((given - share) * self.agents.counts, role.others, 1)
        return found

    def share(self, which: np.ndarray, site: int = 0, size: int = 1) -> Contribution:
        """Returns what agents contribute that are a site of sets of a size, one agent of each set."""
        key = which.tobytes(), site, size
        if key not in self._shares:
            groups = []
            for group in self.all_groups:
                places = np.flatnonzero(np.isin(which, group.members))
                if len(places):
                    chosen = which[places]
                    ways = [
                        Way(
                            part,
                            self._begin(part, chosen, site, size),
                            self._end(part, chosen, site, size),
                            self._walk(part, actions, chosen),
                        )
                        for part, actions in zip(group.parts, group.actions, strict=True)
                    ]
                    groups.append((places, ways))
            self._shares[key] = Contribution(groups, self.kernel[which])
        return self._shares[key]

    def _walk(self, part: Part, actions: list[Action], which: np.ndarray) -> Walk:
        shape = tuple((len(action.calls), action.moves, action.times) for action in actions)
        key = id(part), shape, which.tobytes()
        if key not in self._walks:
            every = len(which) == self.M and bool((which == np.arange(self.M)).all())
            codes = [code._replace(added=code.added[which]) for code in self.codes]
            self._walks[key] = Walk(part, actions, self.agents if every else self.agents.of(which), codes)
        return self._walks[key]

    def _begin(self, part: Part, which: np.ndarray, site: int, size: int) -> np.ndarray:
        m, d = self.step.send.shape[1], self.d
        x = part.begin[:, :m] @ _of(self.frame.messages[-1], which)
        if self.first:
            x = x + part.begin[:, m:] @ _of(self.frame.memories, which)
        r = len(part.begin) * d
        found = np.zeros((len(x), 1, r + self.added + 1, self.n + size * self.own + 1))
        found[:, 0, :r, : self.frame.keep.shape[1] * d], found[:, :, -1, -1] = _kron(x, d), 1
        at = self.n + site * self.own
        if not self.first:
            found[:, 0, :r, at : at + self.q * d] = _kron(part.begin[:, m:], d)
        z = at + self.own - self.added
        found[:, :, r:-1, z : z + self.added] = np.eye(self.added)
        return found.astype(self.agents.W.dtype)

    def _end(self, part: Part, which: np.ndarray, site: int, size: int) -> np.ndarray:
        n, d = self.step.gather.shape[-1], self.d
        x = _of(self.frame.gather, which) @ part.end[:n]
        if self.frame.store is not None:
            x = x + _of(self.frame.store, which) @ part.end[n:]
        r, served = part.end.shape[1] * d, len(self.frame.keep) * d
        count = len(x) if self.summary is None else len(which)
        found = np.zeros((count, 1, self.ends + size * self.own_after + 1, r + self.added + 1))
        found[:, 0, :served, :r] = _kron(x, d)
        if self.summary is not None:
            found[:, 0, served : self.ends, :r] = self.summary.maps[which] @ _kron(part.end[n:], d)
        at = self.ends + site * self.own_after
        if self.frame.store is None:
            found[:, 0, at : at + self.q * d, :r] = _kron(part.end[n:], d)
        z = at + self.own_after - self.added
        found[:, :, z : z + self.added, r:-1] = np.eye(self.added)
        return found.astype(self.agents.W.dtype)

    def back_of_each(self, N: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows of (x, o, 1) after the exchange, `(..., n, S, k, N)`, as those before, given the states of each
        of some agents then, and the covariance that fresh additive noise of these agents gives them."""
        share = self.share(which)
        rows, covariance = share.back(N)
        return rows + share.back_moved(N) @ self.without(which[:, None])[:, None], covariance

    def second_of_each(self, Y: np.ndarray, which: np.ndarray, points: Points | None = None) -> np.ndarray:
        """Returns the second moments of (x, o, 1) by the states of each of some agents, the others on average.

        See `Walk.second` about `points`.
        """
        if len(which) > 1 and self.each > ALONE:
            every = [slice(k, k + 1) for k in range(len(which))]
            seen = [None if points is None else {j: x[k] for j, x in points.items()} for k in every]
            parts = [self.second_of_each(Y[..., k, :, :, :], which[k], p) for k, p in zip(every, seen, strict=True)]
            return np.concatenate(parts, axis=-4)
        dtype = self.agents.W.dtype
        share, A, Y = self.share(which), self.without(which[:, None])[:, None].astype(dtype), Y.astype(dtype)
        AY = A @ Y
        rest = AY @ transpose(A)
        rest[..., : self.ends, : self.ends] += Y[..., -1:, -1:] * self.noise
        square, with_rest = share.second(Y, transpose(AY), points)
        return share.moved(rest) + with_rest + transpose(with_rest) + square

    def second_of_sets(self, Y: np.ndarray, sets: np.ndarray) -> np.ndarray:
        """Returns second moments `(..., c, S, ..., S, N, N)` by the states of all agents of each of some sets."""
        size, A = sets.shape[1], self.without(sets)
        lead = Y.ndim - size - 3
        A = A.reshape(len(A), *[1] * size, *A.shape[1:])
        XX, UX = Y, A @ Y
        UU = UX @ transpose(A)
        UU[..., : self.ends, : self.ends] += Y[..., -1:, -1:] * self.noise
        for site in range(size):
            share = self.share(sets[:, site], site, size)
            XX, UX, UU = (_site_last(X, lead, site) for X in (XX, UX, UU))
            square, with_rest = share.second(XX, transpose(UX))
            UU = share.moved(UU) + with_rest + transpose(with_rest) + square
            if site + 1 < size:
                UX, XX = share.moved(UX) + share.first(XX), share.moved(XX)
            XX, UX, UU = (_site_back(X, lead, site) for X in (XX, UX, UU))
        return UU


def _site_last(X: np.ndarray, lead: int, site: int) -> np.ndarray:
    """Moves the axes of sets and of the states of a site behind those of other sites."""
    return np.moveaxis(X, (lead, lead + 1 + site), (-4, -3))


def _site_back(X: np.ndarray, lead: int, site: int) -> np.ndarray:
    return np.moveaxis(X, (-4, -3), (lead, lead + 1 + site))


def _of(x: np.ndarray, which: np.ndarray) -> np.ndarray:
    return x if len(x) == 1 else x[which]


def exchanges_of(
    steps: Sequence[Step],
    frames: Sequence[Frame],
    agents: Agents,
    block_length: int,
    walks: dict[Any, Walk],
    codes: Sequence[Code],
    *,
    others: bool,
    summary: Summary | None = None,
) -> list[GroupExchange]:
    """Returns the exchanges of a round; `others` are agents that are not followed, but on average."""
    at, found = 0, []
    for k, (step, frame) in enumerate(zip(steps, frames, strict=True)):
        again = {call.place for later in steps[k + 1 :] for ways in later.parts for w in ways for call in w.calls}
        alike: dict[tuple[int, ...], list[int]] = {}
        for i, ways in enumerate(step.parts):
            alike.setdefault(tuple(id(part) for part in ways), []).append(i)
        flat = [part for which in alike.values() for part in step.parts[which[0]]]
        every, at = actions_of(flat, at, k == len(steps) - 1, block_length, again)
        actions, groups = iter(every), []
        for which in alike.values():
            parts = step.parts[which[0]]
            groups.append(Group(np.array(which), parts, [next(actions) for _ in parts]))
        first = k == 0 and summary is None
        found.append(GroupExchange(step, frame, agents, groups, walks, codes, first=first, summary=summary))
    if others:
        for exchange in found:
            exchange.round = found
    return found


def drifts(exchanges: Sequence[GroupExchange]) -> list[np.ndarray]:
    """Returns what each agent contributes to every exchange of a round on average if all messages are zero."""
    agents, M, d = exchanges[0].agents, exchanges[0].M, exchanges[0].d
    memory, found = np.zeros((M, agents.num_states, exchanges[0].q * d, 1)), []
    for exchange in exchanges:
        m, r = exchange.step.send.shape[1] * d, exchange.step.gather.shape[-1] * d
        inputs = np.zeros((M, agents.num_states, m + memory.shape[-2] + exchange.added + 1, 1))
        inputs[..., m : m + memory.shape[-2], :], inputs[..., -1, 0] = memory, agents.pi
        replies, memory = np.zeros((M, agents.num_states, r, 1)), np.zeros_like(memory)
        for places, ways in exchange.share(np.arange(M)).groups:
            for way in ways:
                begun = _kron(way.part.begin, d) @ inputs[places, :, : -1 - exchange.added]
                live = way.walk.first(np.concatenate([begun, inputs[places, :, -1 - exchange.added :]], axis=-2))
                end = way.part.chance * (_kron(way.part.end, d) @ live[..., : way.part.end.shape[1] * d, :])
                replies[places] += end[..., :r, :]
                memory[places] += end[..., r:, :]
        gather = np.broadcast_to(_kron(exchange.frame.gather, d), (M, exchange.ends, r))
        found.append((gather @ replies.sum(1))[..., 0])
        if exchange.frame.store is not None:
            found[-1] = found[-1] + (_kron(exchange.frame.store, d) @ memory.sum(1))[..., 0]
    return found


class Role(NamedTuple):
    """What agents do in a round if they are present, or absent."""

    exchanges: list[GroupExchange]
    chances: np.ndarray
    """Each agent's probability of it."""


def roles_of(
    present: list[GroupExchange], absent: list[GroupExchange], chances: np.ndarray, count: int | None
) -> list[Role]:
    """Returns both roles. If `count` agents are present for certain, others are less often so if one is."""
    M, every = present[0].num_agents, (chances, 1 - chances)
    for one, other in zip(present, absent, strict=True):
        one.shares = other.shares = [(one, every[0]), (other, every[1])]
        one.beside = other.beside = one.shares
        for exchange, left in ((one, count - 1), (other, count)) if count is not None and M > 1 else ():
            given = np.full(len(chances), np.clip(left / (M - 1), 0.0, 1.0))
            exchange.beside = [(one, given), (other, 1 - given)]
    return [Role(present, chances), Role(absent, 1 - chances)]
