"""A method on the agents of a problem: its pieces, the agents' chains, and coordinates of what is carried."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from ...algorithms import AbstractAlgorithm
from ...algorithms.codecs import CodeMoments
from ..steps import step_of, with_step
from .agents import Agents, kinds_of
from .coordinates import Coordinates, alike, coordinates_of, server_coordinates
from .exchanges import Frame, GroupExchange, Role, Summary, exchanges_of, frames_of, roles_of
from .field import field_radius
from .moments import Steps, TooLargeError
from .pieces import Pieces, Step, pieces_of
from .walks import Code

FACTORS = np.array([1.0, 0.37, 0.11])
"""Step sizes relative to one, whose rounds reach what those of any step size do."""
LEVELS, NEW = 3, 1e-6
"""The number of powers of the mean maps of memories that are summarised, and the size of directions that are new."""
SOME = 4
"""The number of step sizes of a schedule whose rounds reach what those of all of them do."""


class Standing(NamedTuple):
    """What is known of agents that stand for others."""

    first: np.ndarray
    """What the noise of each of them adds to the floor to first order in the step size, `(k,)`."""
    doubt: np.ndarray
    """About the error of what noise adds to the mean of $x$, if not all agents have been considered, `(n,)`."""


class Federation:
    """A method's pieces on the chains of a problem, in coordinates that a run reaches and the parameter depends on."""

    def __init__(
        self,
        pieces: Pieces,
        agents: Agents,
        name: str,
        coordinates: Coordinates | None = None,
        summary: Summary | None = None,
    ):
        self.summary = summary
        """What stands for agents' memories in $x$; None if all of them are in $x$."""
        self.pieces, self.agents, self.name = pieces, agents, name
        self.num_agents, self.num_states, self.dim = len(pieces.rounds[0][0].send), agents.num_states, agents.dim
        self.coordinates = coordinates or coordinates_of([pieces], self.num_agents)
        self._common: Coordinates | None = None
        self._walks: dict[Any, Any] = {}
        into, out_of = self.coordinates
        p, identity = len(pieces.server), np.eye(self.dim)
        begun = np.concatenate([pieces.server, np.tile(pieces.memory, self.num_agents)])[: len(out_of)]
        self.show, self.start = np.kron(pieces.show @ out_of[:p], identity), np.kron((into @ begun)[:, None], identity)
        """The maps from $x$ to the error, and from the initial error to $x$."""
        self.own_start = np.zeros((0, self.dim))
        """The map from the initial error to an agent's memory, if that is no part of $x$."""
        if summary is not None:
            self.own_start = np.kron(pieces.memory[:, None], identity)
            self.show = np.pad(self.show, ((0, 0), (0, summary.maps.shape[1])))
            self.start = np.concatenate([self.start, (summary.maps @ self.own_start).sum(0)])
        self.starts_alike = all(a is b for a, b in zip(pieces.first, pieces.rounds, strict=True))
        self.standing: Standing | None = None
        """If agents stand for others that differ from them, what is known of these."""
        self.inner: Federation | None = None
        """The same without a running mean of the error as a part of $x$."""
        self.stands = np.arange(len(agents.P))
        """Which of these agents stands for each agent of the problem."""

    def check(self) -> None:
        """Raises `NotDerivedError` if agents cannot make the observations of the exchanges."""
        for roles in self.rounds:
            for exchange in (exchange for role in roles for exchange in role.exchanges):
                exchange.share(np.arange(len(self.agents.P)))

    @property
    def given_standing(self) -> Standing:
        """What is known of the agents for which others stand."""
        assert self.standing is not None
        return self.standing

    @property
    def size(self) -> int:
        """The size of $x$ at the start of a round, without the constant."""
        return len(self.show.T)

    @property
    def own(self) -> int:
        """The size of an agent's own coordinates at the start of a round: its memory, and additive noise."""
        return len(self.own_start) + (0 if self.agents.noise is None else self.dim)

    @property
    def has_pairs(self) -> bool:
        """Whether pairs of agents can be followed: what is drawn is independent of the past, agents have one role, and
        every memory is followed."""
        return self.pieces.kernel is None and self.pieces.absences[0] is None and self.summary is None

    @property
    def remembers(self) -> bool:
        """Whether agents remember something from round to round."""
        return len(self.coordinates.out_of) > len(self.pieces.server) or self.summary is not None

    @functools.cached_property
    def rounds(self) -> list[list[Role]]:
        """The roles of agents in a round, for each outcome, if some agents are followed."""
        found = []
        for steps, absence in zip(self.pieces.rounds, self.pieces.absences, strict=True):
            exchanges = self._exchanges(steps, others=True)
            if absence is None:
                found.append([Role(exchanges, np.ones(len(self.agents.P)))])
                continue
            away = [step._replace(parts=parts) for step, parts in zip(steps, absence.parts, strict=True)]
            absent = self._exchanges(away, others=True, like=[exchange.frame for exchange in exchanges])
            found.append(roles_of(exchanges, absent, absence.present[: len(self.agents.P)], absence.number))
        return found

    @functools.cached_property
    def full_rounds(self) -> list[list[GroupExchange]]:
        """The same if all agents are followed."""
        return [self._exchanges(steps, others=False) for steps in self.pieces.rounds]

    def beginning(self) -> "Federation":
        """Returns the same in the first round of a run, which may be unlike the others."""
        pieces = self.pieces._replace(rounds=self.pieces.first)
        return Federation(pieces, self.agents, self.name, self.coordinates, self.summary)

    def beside(self, part: float = 0.0) -> "Federation":
        """Returns the same with a running mean of the error as a part of $x$, which it shows; see `Pieces.beside`."""
        coordinates = Coordinates(*(np.asarray(block_diag(1.0, map)) for map in self.coordinates))
        summary = self.summary
        if summary is not None:
            summary = summary._replace(known=np.pad(summary.known, ((0, 0), (self.dim, 0))))
        found = Federation(self.pieces.beside(part), self.agents, self.name, coordinates, summary)
        found.inner, found.stands = self, self.stands
        return found

    def mixing(self, part: float) -> np.ndarray:
        """Returns the map of $x$ by which the running mean in it moves by this part of the way to the error."""
        assert self.inner is not None
        found = np.eye(self.size)
        found[: self.dim] = np.concatenate([(1 - part) * np.eye(self.dim), part * self.inner.show], axis=1)
        return found

    def _exchanges(
        self, steps: Sequence[Step], *, others: bool, like: list[Frame] | None = None
    ) -> list[GroupExchange]:
        p, q, length = len(self.pieces.server), len(self.pieces.memory), self.pieces.block_length
        frames = like or frames_of(steps, self.coordinates, p, q, others=others)
        if self.summary is not None:  # agents keep their memories
            frames = [frame._replace(store=None) for frame in frames]
        given = self.agents, length, self._walks, self.codes
        return exchanges_of(steps, frames, *given, others=others, summary=self.summary)

    @functools.cached_property
    def codes(self) -> list[Code]:
        """The moments of what is decoded; codes that are not linear add a covariance, which is unknown at first."""
        nothing = np.zeros((len(self.agents.P), self.dim, self.dim))
        every = [codec.moments(self.dim) for codec in self.pieces.codes]
        every = [CodeMoments(1.0, 1.0, 0.0) if known is None else known for known in every]
        return [Code(known.mean, known.square, known.entries, nothing) for known in every]

    @property
    def nonlinear_codes(self) -> list[int]:
        """The numbers of codes that are linear only on average."""
        return [k for k, codec in enumerate(self.pieces.codes) if codec.moments(self.dim) is None]

    def with_codes(self, covariances: dict[int, np.ndarray]) -> "Federation":
        """Returns the same with the covariances that some codes add."""
        found = Federation(self.pieces, self.agents, self.name, self.coordinates, self.summary)
        found.stands = self.stands
        found.codes = [
            code._replace(added=covariances[k]) if k in covariances else code for k, code in enumerate(self.codes)
        ]
        return found

    def work(self, size: int) -> float:
        """Returns the approximate number of multiplications in a round of the law of all sets of agents of a size."""
        if size * math.log2(max(self.num_states, 2)) > 60:
            return math.inf
        return sum(exchange.work(size) for roles in self.rounds for role in roles for exchange in role.exchanges)

    @functools.cached_property
    def certain(self) -> bool:
        """Whether operators are certain, apart from additive noise."""
        return self.agents.chances.shape[1:] == (1, 1)

    @functools.cached_property
    def additive(self) -> bool:
        """Whether all rounds are the same map with added noise."""
        return self._alone and len(self.pieces.rounds) == 1

    @functools.cached_property
    def _alone(self) -> bool:
        """Whether rounds of the same outcome are the same map with added noise."""
        alone = all(len(ways) == 1 for steps in self.pieces.rounds for step in steps for ways in step.parts)
        drawn = {absence is None for absence in self.pieces.absences} == {True}
        return self.certain and alone and drawn and not self.pieces.codes

    @functools.cached_property
    def maps(self) -> np.ndarray | None:
        """The map of $(x, 1)$ by a round for each outcome, if nothing else is random; None otherwise."""
        every = [[exchange for role in roles for exchange in role.exchanges] for roles in self.rounds]
        noisy = self.standing is not None or any(exchange.noise.any() for exchanges in every for exchange in exchanges)
        if noisy or self.own or not self._alone:
            return None
        one = np.eye(self.size + 1)
        return np.array([functools.reduce(lambda X, e: e.mean @ X, exchanges, one) for exchanges in every])

    @functools.cached_property
    def responses(self) -> np.ndarray:
        """What a round makes of $x$, in numbers that multiply the identity, if every operator is 1."""
        # Agents with memories or messages of their own stand for themselves.
        count = self.num_agents if self.remembers or not all(map(alike, self.pieces.rounds)) else 1
        one, unit = np.ones((count, 1)), np.tile([0.0, 1.0], (count, 1)).reshape(count, 1, 1, 1, 2)
        alone = Agents(one[..., None], one, one, one[..., None], unit, counts=np.full(count, self.num_agents / count))
        return Federation(self.pieces, alone, self.name, self.coordinates).mean_round()[:-1, -1]

    def mean_round(self) -> np.ndarray:
        """Returns the map of $(x, 1)$ by a round in which all agents are as they are on average."""
        found = np.zeros((self.size + 1,) * 2)
        for chance, (role, *_) in zip(self.pieces.chances, self.rounds, strict=True):
            found += chance * functools.reduce(lambda X, e: e.mean @ X, role.exchanges, np.eye(self.size + 1))
        return found

    @functools.cached_property
    def kinds(self) -> np.ndarray:
        """A number for each agent, the same for agents that observe, do, receive and contribute the same."""
        steps, count = [step for steps in self.pieces.rounds for step in steps], len(self.agents.P)
        each = [tuple(id(way) for step in steps for way in step.parts[i]) for i in range(count)]
        numbers = {ways: k for k, ways in enumerate(dict.fromkeys(each))}
        messages = [x[:count] for step in steps for x in (step.send, step.gather)]
        return kinds_of((self.agents.kinds, np.array([numbers[ways] for ways in each]), *messages))

    def sets(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns one set of agents of this size for each combination of kinds, and how many there are of it.

        An agent that stands for several may be in a set several times.
        """
        members = [np.flatnonzero(self.kinds == k) for k in range(self.kinds.max() + 1)]
        counts = np.array([self.agents.counts[m].sum() for m in members])
        chosen = np.array([*itertools.combinations_with_replacement(range(len(counts)), size)])
        again = np.array([(chosen[:, :k] == chosen[:, [k]]).sum(1) for k in range(size)]).T  # of its kind so far
        numbers = ((counts[chosen] - again) / (again + 1)).prod(1)
        agents = np.array([[m[k % len(m)] for k in range(size)] for m in members])[chosen, again]
        return agents[numbers > 0], numbers[numbers > 0]

    def noiseless(self) -> "Federation":
        """Returns the same agents with their mean operators."""
        return Federation(self.pieces, self.agents.noiseless(), self.name, self.coordinates, self.summary)

    def with_agents(self, agents: Agents) -> "Federation":
        """Returns the same method on other agents."""
        if self.summary is not None:
            return summarised(self.pieces, agents, self.name)
        return Federation(self.pieces, agents, self.name, self.coordinates)

    def at(self, algorithm: AbstractAlgorithm) -> "Federation":
        """Returns the same agents with another step size of their algorithm, in coordinates that serve all of them."""
        if self.pieces.unit:
            return self.with_agents(self.agents.scaled(step_of(algorithm) / self.agents.scale))
        if self.summary is not None:
            return summarised(pieces_of(algorithm, self.num_agents, self.dim), self.agents, self.name)
        if self._common is None:  # of step sizes near its own, since rounding hides directions at much smaller ones
            steps = self.pieces.step_size * FACTORS
            every = [pieces_of(with_step(algorithm, step), self.num_agents, self.dim) for step in steps]
            self._common = coordinates_of(every, self.num_agents)
        found = Federation(pieces_of(algorithm, self.num_agents, self.dim), self.agents, self.name, self._common)
        found._common = self._common
        return found

    def family(self, algorithm: AbstractAlgorithm, steps: Sequence[Steps]) -> "list[Federation]":
        """Returns the same agents in rounds with other step sizes, all in the same coordinates."""
        if self.summary is not None:
            raise TooLargeError(
                f"{self.num_agents} agents of {self.name} remember too much to predict step sizes that change. Predict "
                "the first and the last step size separately, or use fewer agents."
            )
        agents = self.agents.scaled(1 / self.agents.scale)
        every = [pieces_of(with_step(algorithm, now), self.num_agents, self.dim, before) for now, before in steps]
        some = np.unique(np.linspace(0, len(every) - 1, SOME).astype(int))
        coordinates = coordinates_of([every[k] for k in some], self.num_agents)
        return [Federation(pieces, agents, self.name, coordinates) for pieces in every]

    @functools.cached_property
    def field(self) -> float | None:
        """The mean-square radius in the Gaussian field of all agents."""
        sets, counts = self.sets(1)
        which, n = sets[:, 0], self.size
        maps, mean, pi = self.given(which)[..., :n, :n], self.mean_round()[:-1, :-1], self.agents.pi[which]
        return field_radius(mean, maps, counts, self.kernels(which), pi)

    def given(self, which: np.ndarray) -> np.ndarray:
        """Returns the mean maps of (x, o, 1) over a round, given the states of each of some agents, the others on
        average, `(k, S, N, N)`."""
        N, found = self.size + self.own + 1, np.zeros(())
        for chance, roles in zip(self.pieces.chances, self.rounds, strict=True):
            for role in roles:
                rows = np.broadcast_to(np.eye(N), (len(which), self.num_states, N, N))
                for exchange in role.exchanges[::-1]:
                    rows, _ = exchange.back_of_each(rows, which)
                found = found + chance * role.chances[which][:, None, None, None] * rows
        return found

    def kernels(self, which: np.ndarray) -> np.ndarray:
        """Returns the transitions of some agents' chains over a round."""
        each = [functools.reduce(np.matmul, [e.kernel[which] for e in role.exchanges]) for role, *_ in self.rounds]
        return np.tensordot(self.pieces.chances, each, 1)


def summarised(pieces: Pieces, agents: Agents, name: str) -> Federation:
    """Returns a federation in which others' memories are a few sums: what affects the server, now or soon.

    With the mean maps $C_i$ of memories over a round and $P_i$ from memories to the server, these are an orthonormal
    basis of the rows of $P, P C, P C^2, \\dots$ for all agents together, which a few powers nearly span, apart from
    sums that rounds conserve.
    """
    pieces, coordinates, of_server, of_memories = server_coordinates(pieces)
    M, d, size = len(agents.P), agents.dim, len(pieces.memory) * agents.dim
    right, left = np.linalg.qr(of_memories.T)
    known = -np.linalg.solve(left.T, of_server) if len(of_memories) else of_server
    still, known = np.kron(right.T, np.eye(d)), np.kron(known, np.eye(d))
    whole = Summary(np.broadcast_to(np.eye(size), (M, size, size)), still[:0], known[:0], 0.0)
    ((role,),) = Federation(pieces, agents, name, coordinates, whole).rounds
    ports = role.exchanges[0].ports
    rows, C, found = ports[:, :-size], ports[:, -size:], np.zeros((0, M * size))
    begun = np.linalg.norm(rows)
    for _ in range(LEVELS):
        rows = rows - rows.mean(0) @ still.T @ still  # every agent's part of a sum over all of them
        flat = np.moveaxis(rows, 0, 1).reshape(rows.shape[1], -1)
        clear = np.linalg.norm(flat, axis=1) > NEW * begun
        found, rows = _orthonormal(found, flat[clear]), rows @ C
    flat = np.moveaxis(rows - rows.mean(0) @ still.T @ still, 0, 1).reshape(rows.shape[1], -1)
    left = np.linalg.norm(flat - (flat @ found.T) @ found) / begun if begun else 0.0
    summary = Summary(np.moveaxis(found.reshape(-1, M, size), 1, 0), still, known, float(left))
    return Federation(pieces, agents, name, coordinates, summary)


def _orthonormal(basis: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns an orthonormal basis of the span of rows, of which the first ones are given."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for _ in range(2):
        rows = rows - (rows @ basis.T) @ basis
    _, values, vectors = np.linalg.svd(rows, full_matrices=False)
    return np.concatenate([basis, vectors[values > NEW]])
