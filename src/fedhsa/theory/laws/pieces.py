r"""The pieces of a method, derived from its own exchanges: what its agents and its server do between two messages.

If a method is affine given the observations, an agent's part in an exchange is a linear recursion of a few *live
variables*. The $n$-th call of the operator happens at the point $t_n \cdot \text{live}$, and its value $G$ enters as
$\text{live} \leftarrow F_n\, \text{live} + B_n G$. The coefficients are numbers that multiply the identity, so they are
derived from one coordinate, by differentiating `local` with respect to the message, the memory and the values of the
operator. The live variables are a minimal realisation of this derivative (Ho and Kalman, 1966): a basis of all that the
past contributes to later points, to the reply and to the memory.

What a method draws through its `Round` is prescribed, one outcome after the other (`draws.py`).
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.flatten_util import ravel_pytree
from scipy.linalg import block_diag

from ... import tree
from ..._types import precision
from ...algorithms import AbstractAlgorithm, AbstractSchedule, Replies, Round
from ...algorithms.base import split
from ...problems import AbstractAgent
from ...sources import Silent
from ..rule import LocalRule, local_rule
from ..steps import step_of, with_step
from .draws import (
    MOST_DRAWS,
    AbstractExchange,
    Drawing,
    Outcomes,
    OwnDraws,
    Script,
    Scripted,
    outcomes_of,
    telling,
)
from .moments import NotDerivedError
from .rows import Program

MEAN = -1
"""The place of a call of the mean operator, which uses no observation."""
RANK, SAME, ROUNDING = 1e-9, 1e-10, 1e-13
"""The relative size below which a part of a basis is rounding, the difference up to which results are equal, and the
size below which a coefficient is zero."""
LATER = (1, 2, 3, 10, 1009)
"""Rounds that must be alike; the first round of a run may differ."""
KEYS, MOST_NOISE, MOST_CHECKED = 6, 2, 32
"""The number of keys with which an agent's round is tried, to notice one that is random, the largest number of the
server's noise relative to its numbers, and that of the outcomes of a round that are tried."""
FACTORS = (-50.0, -5.0, -0.5, 0.5, 1.5, 5.0, 50.0)
"""Values of a factor at which replies must be linear in it, where 0 and 1 are a standard deviation from its mean."""
USUAL = 0.37, 0.1
"""The step size at which methods are checked, whatever theirs is, and the distance to that of the round before: results
that are divided by a step size contain rounding errors as large as its inverse."""
REMEMBERED = 64
"""The number of methods that are kept, so that another step size requires no other program."""


class Call(NamedTuple):
    """One evaluation of an operator."""

    place: int
    """The number of the observation in the block, or `MEAN`."""
    point: np.ndarray
    """$t$, `(r,)`."""
    carry: np.ndarray
    """$F$, `(r', r)`."""
    enter: np.ndarray
    """$B$, `(r',)`."""
    number: int
    """The number of the call in the exchange; calls whose values are not used are left out."""

    @property
    def maps(self) -> tuple[np.ndarray, ...]:
        """$t$, $F$ and $B$."""
        return self.point, self.carry, self.enter


class Part(NamedTuple):
    """An agent's part in an exchange."""

    begin: np.ndarray
    """The first live variables from the message and the memory, `(r, m + q)`."""
    calls: tuple[Call, ...]
    end: np.ndarray
    """The reply and the new memory from the last live variables, `(n + q, r)`."""
    chance: float = 1.0
    """The probability that the agent draws this way."""


class Step(NamedTuple):
    r"""An exchange: $w' = S w + \sum_i R_i\, \text{reply}_i$, where agent $i$ receives $C_i w$."""

    send: np.ndarray
    """$C$, `(M, m, p)`."""
    parts: tuple[tuple[Part, ...], ...]
    """The ways of each agent, which draws one of them independently of the others."""
    keep: np.ndarray
    """$S$, `(p, p)`."""
    gather: np.ndarray
    """$R$, `(M, p, n)`."""
    noise: np.ndarray
    """The factors of standard normal noise that the server adds, `(p, m)`."""


class Absence(NamedTuple):
    """What agents do in a round if they are absent, and how often they are present."""

    parts: tuple[tuple[tuple[Part, ...], ...], ...]
    """For each exchange the ways of each agent."""
    present: np.ndarray
    """Each agent's probability to be present."""
    number: int | None
    """How many agents are present, if that is certain; otherwise agents are present independently of each other."""


class Pieces(NamedTuple):
    """The exchanges of a round, for each outcome of what is drawn, as maps of deviations from a run at the root."""

    rounds: tuple[tuple[Step, ...], ...]
    """The exchanges of a round, for each outcome."""
    chances: np.ndarray
    """The probabilities of the outcomes."""
    kernel: np.ndarray | None
    """The probabilities of outcomes given that of the round before; None if they do not depend on it."""
    first: tuple[tuple[Step, ...], ...]
    """The same as `rounds` for the first round of a run."""
    absences: tuple[Absence | None, ...]
    """For each outcome, what agents do that are absent; None if the exchanges say what each agent does."""
    codes: tuple[Any, ...]
    """The codecs of what agents code."""
    server: np.ndarray
    """The server's state at the start, per unit of the initial error, `(p,)`."""
    memory: np.ndarray
    """An agent's memory at the start, `(q,)`."""
    show: np.ndarray
    """The parameter as a combination of the server's state, `(p,)`."""
    block_length: int
    step_size: Any
    """The step size of the method; None if it has no single one."""
    unit: bool = False
    """Whether these pieces, of the step size 1, serve all step sizes, on operators that are as many times as large."""

    def remembering(self, basis: np.ndarray) -> "Pieces":
        """Returns the pieces of a method whose agents remember combinations of what they do, the columns of a basis."""
        known: dict[int, Part] = {}

        def reduced(part: Part) -> Part:
            if id(part) not in known:
                m, n = part.begin.shape[1] - len(basis), len(part.end) - len(basis)
                begin = np.concatenate([part.begin[:, :m], part.begin[:, m:] @ basis], axis=1)
                end = np.concatenate([part.end[:n], basis.T @ part.end[n:]])
                known[id(part)] = part._replace(begin=begin, end=end)
            return known[id(part)]

        def of(steps: tuple[Step, ...]) -> tuple[Step, ...]:
            return tuple(step._replace(parts=tuple(tuple(map(reduced, x)) for x in step.parts)) for step in steps)

        same = all(a is b for a, b in zip(self.rounds, self.first, strict=True))
        rounds = tuple(map(of, self.rounds))
        return self._replace(
            rounds=rounds, first=rounds if same else tuple(map(of, self.first)), memory=basis.T @ self.memory
        )

    def beside(self, part: float) -> "Pieces":
        """Returns the pieces of a method whose server also has a running mean of the parameter, which it shows.

        After a round the mean moves by this part of the way to the parameter.
        """
        one, mix = np.ones((1, 1)), np.eye(len(self.show) + 1)
        mix[0] = np.append(1 - part, part * self.show)

        def extended(steps: tuple[Step, ...]) -> tuple[Step, ...]:
            found = []
            for k, step in enumerate(steps):
                after = mix if k == len(steps) - 1 else np.eye(len(mix))
                send, row = np.pad(step.send, ((0, 0), (0, 0), (1, 0))), ((0, 0), (1, 0), (0, 0))
                keep, gather = after @ np.asarray(block_diag(one, step.keep)), after @ np.pad(step.gather, row)
                noise = after @ np.pad(step.noise, row[1:])
                found.append(step._replace(send=send, keep=keep, gather=gather, noise=noise))
            return tuple(found)

        known: dict[int, tuple[Step, ...]] = {}
        rounds, first = (
            tuple(known.setdefault(id(steps), extended(steps)) for steps in every)
            for every in (self.rounds, self.first)
        )
        server, show = np.append(1.0, self.server), np.eye(len(mix))[0]
        return self._replace(rounds=rounds, first=first, server=server, show=show)


class _Probe(AbstractAgent):
    """An agent whose operator returns prescribed values and records where it was called."""

    values: Any
    seen: list
    shift: Any
    """The number of the first observation, which methods must not look at; None if all operators are mean ones."""

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return self.answer(theta, MEAN if self.shift is None else o - self.shift)

    def mean_operator(self, theta, /):
        return self.answer(theta, MEAN)

    def answer(self, theta, place):
        """Records a call and returns the prescribed value."""
        if type(theta).__name__ != "BatchTracer":  # which JAX does not export
            return self._recorded(theta, place)
        # A method that maps a function over copies of itself calls the operator once for each of them.
        answer = custom_vmap(lambda theta: jnp.zeros_like(theta))
        answer.def_vmap(lambda size, _, every: (jnp.stack([self.answer(every[k], place) for k in range(size)]), True))
        return answer(theta)

    def _recorded(self, theta, place):
        if len(self.seen) == len(self.values):
            raise NotDerivedError("A round calls the operator very often.")
        self.seen.append((place, theta))
        return self.values[len(self.seen) - 1].reshape(theta.shape)


class _Steps(AbstractSchedule):
    """The step sizes of the round that is played and of the one before."""

    step_size: Any
    step_size_before: Any
    index: Any = 0
    """The number of the round that is played."""

    def __call__(self, round_index):
        before = jnp.where(round_index == self.index - 1, self.step_size_before, jnp.nan)
        return jnp.where(round_index == self.index, self.step_size, before)


class _Method(NamedTuple):
    """A method whose rounds were checked at one step size, and traced with its step sizes as arguments."""

    sides: np.ndarray
    """A value of the coin for each of its outcomes."""
    chances: np.ndarray
    watched: tuple[tuple["_Watched", ...], ...]
    """The exchanges of a round, for each outcome of the coin."""
    drawn: Outcomes
    """The outcomes of what is drawn, and the ways through each exchange."""
    codes: tuple[Any, ...]
    alike: bool
    """Whether the first round is like the others."""
    server: np.ndarray
    memory: np.ndarray
    show: np.ndarray

    def rounds(self, given: list, index: int) -> tuple[tuple[tuple[Step, ...], ...], tuple[Absence | None, ...]]:
        """Returns the exchanges of a round as matrices, for every outcome, and what absent agents do."""
        known: dict[Any, Part] = {}
        found = [self.round(exchanges, given, outcome, index, known) for exchanges, outcome in self.outcomes()]
        steps, absences = zip(*found, strict=True)
        return steps, absences

    def round(
        self, exchanges: "tuple[_Watched, ...]", given: list, outcome: Drawing, index: int, known: dict[Any, Part]
    ) -> tuple[tuple[Step, ...], Absence | None]:
        example = self._round(exchanges, given, outcome.drawn, index, known)
        if outcome.present is None:
            return example, None
        here, away = (
            self._round(
                exchanges, given, np.where(np.arange(MOST_DRAWS)[:, None] == outcome.row, there, 0.0), index, known
            )
            for there in (1.0, 0.0)
        )
        steps = []
        for one, all, none in zip(example, here, away, strict=True):
            count = len(all.parts) if outcome.number is None else outcome.number
            n = all.gather.shape[-1]
            silent = not any(part.end[:n].any() for parts in none.parts for part in parts)
            answering = [*range(count if silent else len(all.parts))]
            gather = all.gather if outcome.number is None else np.repeat(one.gather[:1], len(one.gather), axis=0)
            same = _near(one.gather[answering], gather[answering])
            same = same and (outcome.number is not None or _near(one.keep, all.keep))
            if not same or not (silent or [*map(id, _flattened(all))] == [*map(id, _flattened(none))]):
                raise NotDerivedError(f"What a round of {exchanges[0].name} draws has very many outcomes.")
            steps.append(all._replace(gather=gather, keep=one.keep, noise=one.noise))
        return tuple(steps), Absence(tuple(step.parts for step in away), outcome.present, outcome.number)

    def outcomes(self) -> "list[tuple[tuple[_Watched, ...], Drawing]]":
        return [(exchanges, outcome) for exchanges in self.watched for outcome in self.drawn.every]

    def raw(self, exchanges: "tuple[_Watched, ...]", given: list, drawn: np.ndarray, index: int) -> list[list[Step]]:
        """Returns every exchange with every way through it."""
        both = zip(exchanges, self.drawn.ways, strict=True)
        return [[exchange.step(telling(given, drawn, way), index) for way in ways] for exchange, ways in both]

    def _round(
        self, exchanges: "tuple[_Watched, ...]", given: list, drawn: np.ndarray, index: int, known: dict[Any, Part]
    ) -> tuple[Step, ...]:
        found = []
        for steps, ways in zip(self.raw(exchanges, given, drawn, index), self.drawn.ways, strict=True):
            found.append(_merged(steps, ways, exchanges[0].name, known))
        return tuple(found)

    def check_rest(self, steps: Sequence[Step], name: str) -> None:
        """Raises `NotDerivedError` if the state changes though all operators vanish."""
        M = len(steps[0].send)
        for way in range(max(len(parts) for step in steps for parts in step.parts)):
            w, m = self.server[:, None], np.tile(self.memory[:, None], (M, 1, 1))
            for step in steps:
                mix = [np.eye(len(parts))[min(way, len(parts) - 1)] for parts in step.parts]
                w, m = apply(step, w, m, lambda agents, call, points: 0 * points, mix)
            if not _near(w[:, 0], self.server):
                raise NotDerivedError(f"{name} moves at the root even without noise.")


def _merged(steps: list[Step], ways: Sequence[OwnDraws], name: str, known: dict[Any, Part]) -> Step:
    """Returns an exchange with several ways; equal parts become one object, which `known` holds."""
    if any(not _near(x, y) for step in steps for x, y in zip(_frame(step), _frame(steps[0]), strict=True)):
        raise NotDerivedError(f"The server of {name} depends on an agent's draw in more than its reply.")
    every = []
    for i in range(len(steps[0].parts)):
        parts = [(step.parts[i][0], float(way.chances[i])) for step, way in zip(steps, ways, strict=True)]
        every.append(tuple(_interned(part._replace(chance=p), known) for part, p in parts if p > 0))
    return steps[0]._replace(parts=tuple(every))


def _frame(step: Step) -> tuple[np.ndarray, ...]:
    return step.send, step.keep, step.gather, step.noise


def _flattened(step: Step) -> list[Part]:
    return [part for parts in step.parts for part in parts]


def _interned(part: Part, known: dict[Any, Part]) -> Part:
    arrays = [part.begin, part.end, *(x for call in part.calls for x in call.maps)]
    what = (part.chance, tuple(call.place for call in part.calls), *((x.shape, x.tobytes()) for x in arrays))
    return known.setdefault(what, part)


def pieces_of(algorithm: AbstractAlgorithm, num_agents: int, dim: int, before: float | None = None) -> Pieces:
    """Returns the pieces of an algorithm: in closed form if it has a local rule, otherwise derived (see `derive`)."""
    rule = local_rule(algorithm)
    return derive(algorithm, num_agents, dim, before) if rule is None else pieces_of_rule(rule, num_agents)


def pieces_of_rule(rule: LocalRule, num_agents: int) -> Pieces:
    r"""Returns the pieces of a local rule, which `derive` would find without knowing it.

    With a correction, the first exchange averages the first operators to $\bar g$, and an agent remembers its own.
    """
    eta, H, alpha, kappa = rule
    M, one = num_agents, np.ones((1, 1))

    def exchange(message, begin, calls, end, keep, gather) -> Step:
        calls = tuple(call._replace(number=k) for k, call in enumerate(calls))
        part = Part(np.array(begin), calls, np.array(end))
        send, gather = (np.tile(np.array(x, float), (M, 1, 1)) for x in (message, gather))
        return Step(send, ((part,),) * M, np.array(keep), gather, np.zeros((len(keep), 0)))

    if kappa == 0 or H == 1:
        steps = [Call(k, np.ones(1), one, np.array([eta]), 0) for k in range(H)]
        rounds = ((exchange(one, one, steps, one, (1 - alpha) * one, alpha / M * one),),)
        return Pieces(rounds, np.ones(1), None, rounds, (None,), (), np.ones(1), np.zeros(0), np.ones(1), H, eta)
    # The server has theta and g_bar, an agent its first operator g, and in the second exchange y and kappa (g_bar - g).
    first = [Call(0, np.ones(1), 0 * one, np.ones(1), 0)]
    asked = exchange([[1, 0]], [[1.0, 0.0]], first, [[1.0], [1.0]], np.diag([1.0, 0.0]), [[0], [1 / M]])
    begin = [[1, eta * kappa, eta * (1 - kappa)], [0, kappa, -kappa]]
    step = Call(0, np.array([1.0, 0.0]), np.array([[1, eta], [0, 1]]), np.array([eta, 0.0]), 0)
    steps = [step._replace(place=k) for k in range(1, H)]
    moved = exchange(np.eye(2), begin, steps, [[1.0, 0.0], [0.0, 0.0]], np.diag([1 - alpha, 0.0]), [[alpha / M], [0]])
    rounds, start = ((asked, moved),), np.array([1.0, 0.0])
    return Pieces(rounds, np.ones(1), None, rounds, (None,), (), start, np.zeros(1), start, H, eta)


_known: dict[Any, _Method] = {}
_units: dict[Any, Pieces | None] = {}


def scaled_pieces(algorithm: AbstractAlgorithm, num_agents: int, dim: int) -> tuple[Pieces, float]:
    """Returns pieces of an algorithm, and how many times as large operators must be for them: its step size if the
    pieces are those of the step size 1, which serve all step sizes, and 1 otherwise."""
    found = _unit_pieces(algorithm, num_agents, dim)
    return (pieces_of(algorithm, num_agents, dim), 1.0) if found is None else (found, float(step_of(algorithm)))


def _unit_pieces(algorithm: AbstractAlgorithm, num_agents: int, dim: int) -> Pieces | None:
    """Returns the pieces with the step size 1, if those of another one do the same on operators that are as many times
    as large; None if they do not, or if there is no single step size."""
    step, rule = step_of(algorithm), local_rule(algorithm)
    if step is None or isinstance(step, AbstractSchedule):
        return None
    which = _identity(algorithm, num_agents, dim, True)[-1]
    if which not in _units:
        if len(_units) >= REMEMBERED:
            _units.pop(next(iter(_units)))
        if rule is not None:
            _units[which] = pieces_of_rule(rule._replace(step_size=1.0), num_agents)._replace(unit=True)
        else:
            with contextlib.suppress(ValueError):  # of methods that do not admit these step sizes
                unit, other = (pieces_of(with_step(algorithm, x), num_agents, dim) for x in (1.0, USUAL[0]))
                _units[which] = unit._replace(unit=True) if _do_the_same(unit, other, USUAL[0]) else None
    return _units.setdefault(which, None)


def _do_the_same(unit: Pieces, other: Pieces, factor: float) -> bool:
    """Returns whether other pieces move the parameter as these do on operators that are so many times as large."""
    if [len(steps) for steps in unit.rounds] != [len(steps) for steps in other.rounds]:
        return False

    def path(pieces: Pieces, factor: float) -> list[np.ndarray]:
        rng, M = np.random.default_rng(0), len(pieces.rounds[0][0].send)
        w, m, found = pieces.server[:, None], np.tile(pieces.memory[:, None], (M, 1, 1)), []
        for step in (step for steps in (*pieces.first, *pieces.rounds)[: 2 * KEYS] for step in steps):
            most = max((call.number for ways in step.parts for way in ways for call in way.calls), default=0)
            slopes, values = rng.standard_normal((2, M, most + 1, 1))
            mix = [rng.dirichlet(np.ones(len(ways))) for ways in step.parts]

            def operator(agents: np.ndarray, call: int, at: np.ndarray, A=slopes, g=values) -> np.ndarray:
                return factor * (A[agents, call] * at + g[agents, call])

            w, m = apply(step, w, m, operator, mix)
            w = w + step.noise @ rng.standard_normal((step.noise.shape[1], 1))
            found.append(pieces.show @ w)
        return found

    return all(_near(a, b) for a, b in zip(path(unit, factor), path(other, 1.0), strict=True))


def derive(
    algorithm: AbstractAlgorithm, num_agents: int, dim: int, before: float | None = None, *, observed: bool = True
) -> Pieces:
    """Returns the pieces of an algorithm; raises `NotDerivedError` if its rounds are unlike, not affine, or random.

    What a method draws through the methods of its `Round` may be random. All this is checked once for all step sizes.
    If step sizes change, `before` is that of the previous round, which methods with memory may use. If operators are
    not `observed`, all of them are mean operators.
    """
    if before is not None:
        algorithm = with_step(algorithm, _Steps(step_of(algorithm), before))
    structure, own, which = _identity(algorithm, num_agents, dim, observed)
    with precision():
        leaves = jax.tree.leaves(tree.to_device(algorithm, "float64"))
        given = [*(x for x, step in zip(leaves, own, strict=True) if step), np.zeros((MOST_DRAWS, num_agents))]

        def rebuilt(given: Sequence[Any], index: Any = 0) -> AbstractAlgorithm:
            steps = iter(given)
            every = [next(steps) if step else x for x, step in zip(leaves, own, strict=True)]
            found = jax.tree.unflatten(structure, every)
            both = step_of(found)
            return with_step(found, dataclasses.replace(both, index=index)) if isinstance(both, _Steps) else found

        try:
            if which not in _known:
                usual = [jnp.full_like(x, step) for x, step in zip(given[:-1], itertools.count(*USUAL))]
                found = _watch(rebuilt, [*usual, given[-1]], num_agents, dim, observed)
                if len(_known) >= REMEMBERED:
                    _known.pop(next(iter(_known)))
                _known[which] = found
            method = _known[which]
            rounds, absences = method.rounds(given, LATER[0])
            first = rounds if method.alike else method.rounds(given, 0)[0]
        except NotDerivedError:
            raise
        except (TypeError, ValueError, IndexError, AttributeError, NotImplementedError) as error:
            # Anybody's method runs here, with an agent that has an operator and no data. What needs more fails in the
            # ways of Python and JAX, and is a method without pieces; anything else is a fault of ours.
            raise NotDerivedError(
                f"A round of {type(algorithm).__name__} cannot run with prescribed values of the operator: {error}"
            ) from error
    shared = (method.server, method.memory, method.show)
    chances = np.outer(method.chances, [outcome.chance for outcome in method.drawn.every]).ravel()
    kernel = method.drawn.kernel
    if kernel is not None:
        kernel = np.kron(np.tile(method.chances, (len(method.chances), 1)), kernel)
    length, step = algorithm.block_length, step_of(algorithm)
    return Pieces(rounds, chances, kernel, first, absences, method.codes, *shared, length, step)


def _identity(algorithm: AbstractAlgorithm, num_agents: int, dim: int, observed: bool) -> tuple[Any, list[bool], Any]:
    """Returns the structure of an algorithm, which of its leaves are step sizes, and what else its pieces depend on."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(algorithm)
    own = ["step_size" in str(path[-1]) for path, _ in leaves]
    settings = [np.asarray(x).tobytes() for (_, x), step in zip(leaves, own, strict=True) if not step]
    return structure, own, (structure, tuple(settings), num_agents, dim, observed)


def _watch(rebuilt: Callable, given: list, num_agents: int, dim: int, observed: bool) -> _Method:
    """Traces the exchanges of a method, and checks that all its rounds are alike and affine."""
    algorithm = rebuilt(given)
    name = type(algorithm).__name__

    def init(theta):
        return tuple(_flat(floats(part)[0])[0] for part in algorithm.init(theta))

    (server, constant), (memory, other) = _played(_program(init, np.zeros(1)), [], np.eye(2, 1))
    if constant.any() or other.any():
        raise NotDerivedError(f"{name} starts from numbers other than its parameter.")
    shown = _program(lambda row: _filled(algorithm, 0, row, 1).theta, server)
    (show,) = _played(shown, [], np.eye(len(server)))
    script, sizes = Script(), (len(server), len(memory))

    def round(side: float) -> tuple[_Watched, ...]:
        numbers = range(len(algorithm.exchanges))
        return tuple(_Watched(rebuilt, given, k, sizes, num_agents, side, dim, script, observed) for k in numbers)

    watched = {0.5: round(0.5)}
    edges = np.unique([0.0, 1.0, *script.coins])
    sides = (edges[:-1] + edges[1:]) / 2
    watched |= {side: round(side) for side in sides if side not in watched}
    chosen = tuple(watched[side] for side in sides)
    drawn, codes = outcomes_of(chosen[0], script, given, num_agents, name), tuple(script.codes.values())
    method = _Method(sides, np.diff(edges), chosen, drawn, codes, True, server, memory, show[:, 0])
    alike, outcomes = True, method.outcomes()
    for exchanges, outcome in outcomes[:: 1 + len(outcomes) // MOST_CHECKED]:
        every = zip(exchanges, drawn.ways, method.raw(exchanges, given, outcome.drawn, LATER[0]), strict=True)
        for exchange, passed, steps in every:
            for way, step in zip(passed, steps, strict=True):
                told = telling(given, outcome.drawn, way)
                if not exchange.does(step, told, [LATER[0]] * KEYS):
                    raise NotDerivedError(exchange.reason(told))
                if not exchange.does(step, told, LATER):
                    raise NotDerivedError(f"The rounds of {name} depend on the number of the round.")
                alike = alike and exchange.does(step, told, [0])
        method.check_rest(method.round(exchanges, given, outcome, LATER[0], {})[0], name)
    return method._replace(alike=alike)


def _filled(algorithm: AbstractAlgorithm, which: int, values: Any, d: int) -> Any:
    """Returns the server's state (0) or an agent's memory (1) with these numbers."""
    numbers, rest = floats(algorithm.init(jnp.zeros(d))[which])
    return eqx.combine(_flat(numbers)[1](values), rest)


def floats(state: Any) -> tuple[Any, Any]:
    """Splits a state into its real numbers and the rest."""
    return eqx.partition(state, eqx.is_inexact_array)


def _flat(numbers: Any) -> tuple[Any, Callable]:
    """`ravel_pytree`, also of nothing, which has no dtype."""
    return ravel_pytree(numbers) if jax.tree.leaves(numbers) else (jnp.zeros(0), lambda x: numbers)


def _program(function: Callable, *examples: Any) -> Program:
    """Returns a function of many rows of arguments.

    Loops are traced step by step, so that what happens in them can be recorded.
    """
    with jax.disable_jit():
        return Program(jax.make_jaxpr(function)(*examples))


def _varies(rows: np.ndarray) -> bool:
    return not _near(rows, np.tile(rows[:1], (len(rows), 1)))


def _played(program: Program, given: list, *rows: np.ndarray) -> list[np.ndarray]:
    """Returns the flat results for each row of arguments; those in `given` are the same for all."""
    found = program(*(np.asarray(x)[None] for x in given), *rows)
    return [np.broadcast_to(x.reshape(len(x), -1), (len(rows[0]), x[0].size)) for x in found]


class _Done(NamedTuple):
    """What an agent does in an exchange, for many rows of arguments."""

    places: np.ndarray
    points: np.ndarray
    reply: np.ndarray
    memory: np.ndarray
    told: np.ndarray
    """What the reply contains that depends on draws alone, such as the agent's weight."""

    @property
    def results(self) -> np.ndarray:
        """Points, reply and memory."""
        return np.concatenate([self.points, self.reply, self.memory], axis=1)


class _Watched(AbstractExchange):
    """An exchange whose functions act on flat vectors, `d` numbers for each coefficient, for many rows of arguments."""

    def __init__(
        self,
        rebuilt: Callable,
        given: list,
        number: int,
        sizes: tuple[int, int],
        num_agents: int,
        side: float,
        d: int,
        script: Script,
        observed: bool,
    ):
        """`rebuilt` makes the algorithm with step sizes such as those in `given`, for a round of a given number."""
        algorithm = rebuilt(given)
        self.rebuilt, self.number, self.name = rebuilt, number, type(algorithm).__name__
        self.num_agents, self.d, self.side, self.script, self.observed = num_agents, d, side, script, observed
        (self.p, self.q), zero, self.most = sizes, np.asarray(0), 4 * algorithm.block_length + 8
        self.send = _program(lambda *row: self._sent(*row)[0], given, np.zeros(self.p * d), zero, zero, zero)
        self.inputs = self.send.shapes[0][0] // d + self.q
        self.calls, self.draws, self.structure = 0, {}, jax.tree.structure(0)
        script.chances.clear()
        values = np.zeros((self.inputs + self.most) * d)
        self.run = _program(self._local, given, values, zero, zero, zero)
        if any(self.run.depends_on(argument)[3] for argument in range(len(given) + 1)):
            raise NotDerivedError(f"Probabilities of {self.name} depend on its step size, its replies or other draws.")
        self.leaves = list(zip(self.run.depends_on(len(given)), self.run.shapes, strict=True))[4:]
        """Whether each leaf of the reply depends on messages, memory or operators, and its shape."""
        self.n = sum(math.prod(shape) for own, shape in self.leaves if own) // d
        told = np.zeros((num_agents, sum(math.prod(shape) for own, shape in self.leaves if not own)))
        replies = np.zeros((num_agents, self.n * d))
        self.noise, room = 0, np.zeros(MOST_NOISE * (self.p + self.n) * d)
        self.gather = _program(self._gathered, given, np.zeros(self.p * d), replies, told, room, zero, zero)

    def _shared(self, given: list, key: Any, index: Any, agent: Any = None, noise: Any = None) -> Round:
        own = None if agent is None else jax.random.key(1000 + key)
        coin = (self.script, self.side, given[-1], noise)
        return Scripted(index, jax.random.key(key), own, agent, self.num_agents, coin)

    def _sent(self, given: list, w: Any, agent: Any, key: Any, index: Any) -> tuple[Any, Callable]:
        """Returns an agent's message, and the function that unflattens it."""
        algorithm = self.rebuilt(given, index)
        send = algorithm.exchanges[self.number].send
        own, deliver = split(send(_filled(algorithm, 0, w, self.d), self._shared(given, key, index)))
        numbers, rest = floats(deliver([jax.tree.map(lambda x: x[agent], entries) for entries in own]))
        flat, shape = _flat(numbers)
        return flat, lambda x: eqx.combine(shape(x), rest)

    def _local(self, given: list, values: Any, agent: Any, key: Any, index: Any, first: Any = None) -> tuple[Any, ...]:
        """Returns the places of all calls, their points, the memory, the probabilities of draws, and the reply.

        `first` is the number of the first observation, by default that of the key.
        """
        d, q, algorithm = self.d, self.q, self.rebuilt(given, index)
        local = algorithm.exchanges[self.number].local
        _, unflatten = self._sent(given, jnp.zeros(self.p * d), agent, key, index)
        message, memory, answers = jnp.split(values, [(self.inputs - q) * d, self.inputs * d])
        first = key if first is None else first
        shift = first if self.observed else None
        probe, before = _Probe(Silent(), answers.reshape(-1, d), [], shift), _filled(algorithm, 1, memory, d)
        block, self.script.probe = jnp.arange(algorithm.block_length) + first, probe
        reply, after = local(unflatten(message), before, probe, block, self._shared(given, key, index, agent))
        (reply, others), (after, counted) = floats(reply), floats(after)
        if jax.tree.leaves(others) or not _same(floats(before)[1], counted):
            raise NotDerivedError(f"An agent of {self.name} counts rounds, or replies with whole numbers.")
        leaves, self.structure = jax.tree.flatten(reply)
        self.calls, chances = len(probe.seen), dict(self.script.chances)
        self.draws = {which: len(x) for which, x in chances.items()}
        points = [point.reshape(-1) for _, point in probe.seen]
        places = [jnp.asarray(place, values.dtype) for place, _ in probe.seen]
        lists = (jnp.array(places), _joined(points), _flat(after)[0], _joined(list(chances.values())))
        return *lists, *leaves

    def _gathered(self, given: list, w: Any, replies: Any, told: Any, noise: Any, key: Any, index: Any) -> Any:
        """Returns the server's state after the agents' replies, `(M, n * d)`, what they tell, and noise."""
        algorithm = self.rebuilt(given, index)
        before, aggregate = _filled(algorithm, 0, w, self.d), algorithm.exchanges[self.number].aggregate
        script, stacked = self.script, Replies(jax.vmap(self._reply)(replies, told))
        script.noise, script.exchange = 0, self.number
        script.noises = {noise: other for noise, other in script.noises.items() if other != self.number}
        after, counted = floats(aggregate(before, stacked, self._shared(given, key, index, noise=noise)))
        self.noise = self.script.noise // self.d
        if not _same(floats(before)[1], counted):
            raise NotDerivedError(f"The server of {self.name} counts rounds.")
        return _flat(after)[0]

    def _reply(self, flat: Any, told: Any) -> Any:
        leaves, at = [], {True: 0, False: 0}
        for own, shape in self.leaves:
            size = math.prod(shape)
            leaves.append((flat if own else told)[at[own] : at[own] + size].reshape(shape))
            at[own] += size
        return jax.tree.unflatten(self.structure, leaves)

    def local(self, given: list, values: np.ndarray, agents: Any, keys: Any, indices: Any) -> _Done:
        """Returns what agents do with these messages, memories and values of the operator."""
        more = (self.inputs + self.most) * self.d - values.shape[1]  # values of calls that do not happen
        rows = _rows(np.pad(values, ((0, 0), (0, more))), agents, keys, indices)
        places, points, memory, _, *leaves = _played(self.run, given, *rows)
        nothing = np.zeros((len(values), 0))
        reply, told = (
            np.concatenate([nothing, *(x for x, (own, _) in zip(leaves, self.leaves, strict=True) if own is kind)], 1)
            for kind in (True, False)
        )
        return _Done(places, points, reply, memory, told)

    def chances(self, given: list) -> dict[Any, np.ndarray]:
        """Returns the probabilities of what each agent draws, `(M, count)`."""
        agents = np.arange(self.num_agents)
        values = np.zeros((self.num_agents, (self.inputs + self.most) * self.d))
        found, *others = (
            _played(self.run, given, *_rows(values, agents, k, index))[3] for k, index in enumerate((*LATER, 0))
        )
        if any(not _near(other, found) for other in others):
            raise NotDerivedError(f"Probabilities of {self.name} depend on the number of the round, or are random.")
        ends = np.cumsum(list(self.draws.values()))
        return {which: found[:, end - self.draws[which] : end] for which, end in zip(self.draws, ends, strict=True)}

    def tells(self, given: list, which: Any) -> bool:
        """Returns whether a draw affects the reply by more than its factor, so that the server can react to it.

        Raises `NotDerivedError` if the reply is not linear in a random factor.
        """
        rng, draw, agents = np.random.default_rng(0), self.script.draws[which], np.arange(self.num_agents)
        values = rng.standard_normal((self.num_agents, (self.inputs + self.calls) * self.d))
        sizes = np.ones(MOST_DRAWS, int)
        for other in self.script.draws.values():
            sizes[other.row] = 2 if other.shared else other.size
        for _ in range(KEYS):
            drawn, done = rng.integers(0, sizes[:, None], given[-1].shape).astype(float), []
            tried = [*range(draw.size), *(FACTORS if draw.factor else ())]
            for value in tried:
                drawn[draw.row] = value
                done.append(self.local([*given[:-1], drawn.copy()], values, agents, 0, LATER[0]))
            start, slope = done[0].results, done[1].results - done[0].results
            lines = zip(tried, done, strict=True)
            if draw.factor and not all(_near(other.results, start + value * slope) for value, other in lines):
                raise NotDerivedError(f"A reply of {self.name} is not linear in a random gain.")
            if not all(_near(other.told, done[0].told) for other in done[1:]):
                return True
        return False

    def step(self, given: list, index: int) -> Step:
        """Returns the exchange as matrices, with one way for each agent, from what happens to the first coordinate."""
        M, p, n, agents = self.num_agents, self.p, self.n, np.arange(self.num_agents)
        started = self._along(np.tile(np.eye(p + 1, p), (M, 1)))
        (sent,) = _played(self.send, given, *_rows(started, np.repeat(agents, p + 1), 0, index))
        sent = self._across(sent).reshape(M, p + 1, -1)
        width, rng = self.inputs + self.calls, np.random.default_rng(0)
        tried = np.repeat(rng.standard_normal(width)[None], M, axis=0)
        units = np.eye(width + 1, width)
        values, numbers = self._along(np.concatenate([units, tried])), np.r_[np.zeros(width + 1, int), agents]
        done = self.local(given, values, numbers, 0, index)
        found, told = self._across(done.results), done.told[width + 1 :]

        def after(w: np.ndarray, replies: np.ndarray, noise: np.ndarray) -> np.ndarray:
            given_all = np.broadcast_to(told, (len(w), *told.shape))
            w, replies, noise = (self._along(x) for x in (w, replies, noise))
            (found,) = _played(self.gather, given, *_rows(w, replies, given_all, self._noise(noise), 0, index))
            return self._across(found)

        w, own, noise = np.split(np.eye(p + n + self.noise + 1, p + n + self.noise), [p, p + n], axis=1)
        replies = np.concatenate([own[:, None], np.zeros((len(own), M - 1, n))], axis=1)
        after_units, random = after(w, replies, noise), rng.standard_normal((1, M, n))
        first, nothing = after_units[p : p + n], (np.zeros((1, p)), np.zeros((1, self.noise)))
        if _near(after(nothing[0], random, nothing[1]), random.sum(1) @ first):  # the server treats all agents alike
            gather = np.repeat(first.T[None], M, axis=0)
        else:
            none = (np.zeros((M * n, x.shape[1])) for x in nothing)
            every = after(next(none), np.eye(M * n).reshape(-1, M, n), next(none))
            gather = np.moveaxis(every.reshape(M, n, p), 1, 2)
        if sent[:, -1].any() or found[width].any() or after_units[-1].any():
            raise NotDerivedError(f"A round of {self.name} adds constants.")
        part = realise(found[:width].T, done.places[0].astype(int).tolist(), self.inputs)
        parts = [part] * M
        for i in agents[1:]:
            if not _near(found[width + 1 + i], found[width + 1]):  # this agent does something else
                own = self.local(given, self._along(units), np.full(len(units), i), 0, index)
                parts[i] = realise(self._across(own.results)[:width].T, own.places[0].astype(int).tolist(), self.inputs)
        ways, send = tuple((part,) for part in parts), np.moveaxis(sent[:, :-1], 1, 2)
        return Step(send, ways, after_units[:p].T, gather, after_units[p + n : -1].T)

    def reason(self, given: list) -> str:
        """Returns why this exchange is not an affine map."""
        values = np.random.default_rng(0).standard_normal((self.inputs + self.calls) * self.d)
        keys, (unused, zero) = np.arange(KEYS), (np.zeros(KEYS, int), np.asarray(0))
        done = self.local(given, np.tile(values, (KEYS, 1)), unused, keys, LATER[0])
        replies, told = (
            np.tile(x[:1], (KEYS, self.num_agents)).reshape(KEYS, self.num_agents, -1) for x in (done.reply, done.told)
        )
        server = np.tile(values[:1], (KEYS, self.p * self.d))
        rows = _rows(server, replies, told, self._noise(np.zeros((KEYS, self.noise * self.d))), keys, LATER[0])
        (after,) = _played(self.gather, given, *rows)
        if not any(_varies(x) for x in (done.results, done.places, after)):
            return f"A round of {self.name} is not an affine map of the state that it carries from round to round."
        room = np.zeros((self.inputs + self.most) * self.d)
        self.script.chances.clear()
        shown = _program(
            lambda given, values, first: self._local(given, values, zero, zero, zero, first), given, room, zero
        )
        room[: len(values)] = values
        places, points, memory, _, *reply = _played(shown, given, np.tile(room, (KEYS, 1)), keys)
        if any(_varies(x) for x in (places, points, memory, *reply)):  # with other observations and the same key
            return f"{self.name} uses observations directly, other than in its operator."
        return f"{self.name} draws random numbers in addition to the shared coin and those of its agents."

    def _along(self, values: np.ndarray) -> np.ndarray:
        """Returns vectors with these first coordinates, flat, and with all others zero."""
        return (values[..., None] * np.eye(self.d)[0]).reshape(*values.shape[:-1], -1)

    def _across(self, vectors: np.ndarray) -> np.ndarray:
        """Returns the first coordinates of flat vectors."""
        return vectors.reshape(len(vectors), -1, self.d)[..., 0]

    def _noise(self, values: np.ndarray) -> np.ndarray:
        """Adds noise that is not used."""
        return np.pad(values, ((0, 0), (0, MOST_NOISE * (self.p + self.n) * self.d - values.shape[1])))

    def does(self, step: Step, given: list, indices: Sequence[int]) -> bool:
        """Returns whether the exchange does what `step` says, in rounds of these numbers, with a key for each."""
        rng, d, M, count = np.random.default_rng(0), self.d, self.num_agents, len(indices)
        scale, keys = np.where(np.arange(count) % 2, 1e3, 1.0)[:, None, None], np.arange(count)
        told = np.zeros((count, M, 0))
        if not all(own for own, _ in self.leaves):
            width, agents = self.inputs + self.calls, np.tile(np.arange(M), count)
            every = [np.repeat(x, M) for x in (keys, indices)]
            told = self.local(given, rng.standard_normal((count * M, width * d)), agents, *every).told
            told = told.reshape(count, M, -1)
        others = [i for i, (part,) in enumerate(step.parts) if part is not step.parts[0][0]]
        for agent in (0, *others):
            (part,) = step.parts[agent]
            x = scale * rng.standard_normal((count, self.inputs + self.calls, d))
            done = self.local(given, x.reshape(count, -1), np.full(count, agent), keys, indices)
            used = {call.number for call in part.calls}
            live, seen, expected = part.begin @ x[:, : self.inputs], [], []
            for call in part.calls:
                seen.append(done.points.reshape(count, self.calls, d)[:, call.number])
                expected.append((call.point @ live).reshape(count, d))
                live = call.carry @ live + call.enter[:, None] * x[:, self.inputs + call.number, None]
            ends = [np.concatenate([done.reply, done.memory], axis=1), (part.end @ live).reshape(count, -1)]
            places = np.array([call.place for call in part.calls])
            if not _near(done.places[:, sorted(used)], np.tile(places, (count, 1))) or not _near(*ends):
                return False
            if seen and not _near(np.stack(seen), np.stack(expected)):
                return False
        w, r = scale * rng.standard_normal((count, self.p, d)), rng.standard_normal((count, M, self.n, d))
        noise = rng.standard_normal((count, self.noise, d))
        rows = _rows(w.reshape(count, -1), r.reshape(count, M, -1), told, self._noise(noise.reshape(count, -1)))
        rows += _rows(np.asarray(keys), indices)
        (after,), replied = _played(self.gather, given, *rows), np.einsum("ipn,cind->cpd", step.gather, r)
        (sent,) = _played(self.send, given, *_rows(rows[0], np.zeros(count, int), keys, indices))
        both = [
            (told, np.broadcast_to(told[:1], told.shape)),
            (after, (step.keep @ w + replied + step.noise @ noise).reshape(count, -1)),
            (sent, (step.send[0] @ w).reshape(count, -1)),
        ]
        return all(_near(found, expected) for found, expected in both)


def _joined(vectors: list) -> Any:
    return jnp.concatenate([jnp.zeros(0), *vectors])


def _rows(first: np.ndarray, *others: Any) -> list[np.ndarray]:
    """Returns arguments for as many rows as the first has; numbers are repeated."""
    return [first, *(x if np.ndim(x) > 1 else np.broadcast_to(np.asarray(x), (len(first),)) for x in others)]


def _same(before: Any, after: Any) -> bool:
    """Returns whether the whole numbers of a state were left alone."""
    return all(a is b for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))


def apply(
    step: Step, server: np.ndarray, memory: np.ndarray, operator: Callable, mix: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Runs an exchange in one dimension for columns of states, `(p, k)` and `(M, q, k)`.

    `operator` maps the numbers of some agents, the number of a call and their points `(agents, k)` to values. `mix` are
    the factors of each agent's ways, whose results are added.
    """
    after, kept, n = step.keep @ server, np.empty_like(memory), step.gather.shape[-1]
    groups: dict[Any, list[int]] = {}
    for i, parts in enumerate(step.parts):
        groups.setdefault(tuple(map(id, parts)), []).append(i)
    for which in groups.values():
        begun = np.concatenate([step.send[which] @ server, memory[which]], axis=1)
        end = np.zeros(())
        for part, factor in zip(step.parts[which[0]], np.transpose([mix[i] for i in which]), strict=True):
            live = part.begin @ begun
            for call in part.calls:
                values = operator(np.array(which), call.number, call.point @ live)
                live = call.carry @ live + call.enter[:, None] * values[:, None]
            end = end + factor[:, None, None] * (part.end @ live)
        after = after + (step.gather[which] @ end[:, :n]).sum(0)
        kept[which] = end[:, n:]
    return after, kept


def realise(J: np.ndarray, places: list[int], inputs: int) -> Part:
    """Returns the minimal recursion behind the derivative `J` of points, reply and memory.

    Its columns are the message and the memory, `inputs` in number, and the values of the operator. The live variables
    before a call are rows of what the past contributes to the future. The first independent ones are chosen, points
    before outcomes, so that equal steps have equal coefficients.
    """
    numbers = _used(J, len(places), inputs)
    rows = [*numbers, *range(len(places), len(J))]
    J = J[np.ix_(rows, [*range(inputs), *(inputs + k for k in numbers)])]
    n, calls, previous = len(numbers), [], None
    begin = np.empty((0, inputs))
    for now in range(n + 1):
        rows = list(range(now, len(J)))  # later points, then reply and memory
        past = J[np.array(rows, int), : inputs + now]
        chosen, combine = _independent(past)
        if previous is None:
            begin = past[chosen]
        else:
            before_rows, before = previous
            where = [before_rows.index(rows[k]) for k in chosen]
            carry = before[where] if where else np.empty((0, before.shape[1]))
            number = numbers[now - 1]
            enter = J[[rows[k] for k in chosen], inputs + now - 1]
            calls.append(Call(places[number], before[0], carry, enter, number))
        previous = rows, combine
    assert previous is not None
    rows, combine = previous
    return Part(begin, tuple(calls), combine)


def _used(J: np.ndarray, count: int, inputs: int) -> list[int]:
    """Returns the numbers of the calls on whose values the reply or the memory depends, also through later calls."""
    used: list[int] = []
    for k in range(count - 1, -1, -1):
        if J[[*used, *range(count, len(J))], inputs + k].any():
            used.append(k)
    return used[::-1]


def _independent(rows: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Returns the first independent rows, and all rows as combinations of them."""
    sizes = np.linalg.norm(rows, axis=1)
    chosen: list[int] = []
    basis = np.empty((0, rows.shape[1]))
    for k, row in enumerate(rows):
        rest = row - (row @ basis.T) @ basis
        rest = rest - (rest @ basis.T) @ basis
        if np.linalg.norm(rest) > RANK * max(sizes[k], RANK * sizes.max(initial=0.0)) and sizes[k] > 0:
            chosen.append(k)
            basis = np.concatenate([basis, rest[None] / np.linalg.norm(rest)])
    if not chosen:
        return [], np.zeros((len(rows), 0))
    combine = np.linalg.lstsq(rows[chosen].T, rows.T, rcond=None)[0].T
    combine[chosen] = np.eye(len(chosen))
    return chosen, np.where(abs(combine) > ROUNDING, combine, 0.0)


def _near(found: np.ndarray, expected: np.ndarray) -> bool:
    size = max(float(np.abs(expected).max(initial=0.0)), 1.0)
    return found.shape == expected.shape and bool(np.abs(found - expected).max(initial=0.0) <= SAME * size)
