r"""The pieces of a method, derived from its own exchanges: what its agents and its server do between two messages.

If a method is affine given the observations, an agent's part in an exchange is a linear recursion of a few *live
variables*. The $n$-th call of the operator happens at the point $t_n \cdot \text{live}$, and its value $G$ enters as
$\text{live} \leftarrow F_n\, \text{live} + B_n G$. The coefficients are numbers that multiply the identity, so they are
derived in one dimension, by differentiating `local` with respect to the message, the memory and the values of the
operator. The live variables are a minimal realisation of this derivative (Ho and Kalman, 1966): a basis of all that the
past contributes to later points, to the reply and to the memory.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.flatten_util import ravel_pytree

from ... import tree
from ..._types import precision
from ...algorithms import AbstractAlgorithm, Replies, Round
from ...algorithms.base import split
from ...problems import AbstractAgent
from ...sources import Silent
from ..maps.joint import floats, whole

MEAN = -1
"""The place of a call of the mean operator, which uses no observation."""
RANK, SAME, ROUNDING = 1e-9, 1e-10, 1e-13
"""The relative size below which a part of a basis is rounding, the difference up to which results are equal, and the
size below which a coefficient is zero."""
LATER = (1, 2, 3, 10, 1009)
"""Rounds that must be alike; the first round of a run may differ."""


KEYS, ROWS = 6, 64
"""The number of keys with which an agent's round is tried, to notice one that is random; rows computed at a time."""
REMEMBERED = 64
"""The number of methods that are kept, so that another step size requires no other program."""


class NotDerivedError(TypeError):
    """Raised if a method has no pieces; the message says why."""


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


class Part(NamedTuple):
    """An agent's part in an exchange."""

    begin: np.ndarray
    """The first live variables from the message and the memory, `(r, m + q)`."""
    calls: tuple[Call, ...]
    end: np.ndarray
    """The reply and the new memory from the last live variables, `(n + q, r)`."""


class Step(NamedTuple):
    r"""An exchange: $w' = S w + \sum_i R_i\, \text{reply}_i$, where agent $i$ receives $C_i w$."""

    send: np.ndarray
    """$C$, `(M, m, p)`."""
    parts: tuple[Part, ...]
    """One for each agent."""
    keep: np.ndarray
    """$S$, `(p, p)`."""
    gather: np.ndarray
    """$R$, `(M, p, n)`."""


class Pieces(NamedTuple):
    """The exchanges of a round, for each side of a shared coin, as maps of deviations from a run at the root."""

    rounds: tuple[tuple[Step, ...], ...]
    """The exchanges of a round, for each outcome of the coin."""
    chances: np.ndarray
    """The probabilities of the outcomes."""
    first: tuple[tuple[Step, ...], ...]
    """The same for the first round of a run."""
    server: np.ndarray
    """The server's state at the start, per unit of the initial error, `(p,)`."""
    memory: np.ndarray
    """An agent's memory at the start, `(q,)`."""
    show: np.ndarray
    """The parameter as a combination of the server's state, `(p,)`."""
    block_length: int


class _Probe(AbstractAgent):
    """An agent whose operator returns prescribed values and records where it was called."""

    values: Any
    seen: list

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return self._answer(theta, o)

    def mean_operator(self, theta, /):
        return self._answer(theta, MEAN)

    def _answer(self, theta, place):
        if len(self.seen) == len(self.values):
            raise NotDerivedError("A round calls the operator very often.")
        self.seen.append((place, theta))
        return self.values[len(self.seen) - 1].reshape(theta.shape)


class _Coin(Round):
    """A round whose coin is a number between 0 and 1, and which records the probabilities that are asked for."""

    __slots__ = ()

    def happens(self, probability):
        value, asked = self.coin
        asked.append(float(probability))
        return jnp.asarray(value < probability)


class _Method(NamedTuple):
    """A method whose rounds were checked at one step size, and traced with its step sizes as arguments."""

    sides: np.ndarray
    """A value of the coin for each of its outcomes."""
    chances: np.ndarray
    watched: tuple[tuple["_Watched", ...], ...]
    """The exchanges of a round, for each outcome of the coin."""
    alike: tuple[bool, ...]
    """Whether the first round is like the others, for each outcome of the coin."""
    server: np.ndarray
    memory: np.ndarray
    show: np.ndarray


_known: dict[Any, _Method] = {}


def derive(algorithm: AbstractAlgorithm, num_agents: int, dim: int) -> Pieces:
    """Returns the pieces of an algorithm; raises `NotDerivedError` if its rounds are random, unlike or not affine.

    This is checked once for all step sizes.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(algorithm)
    own = ["step_size" in str(path[-1]) for path, _ in leaves]
    settings = [np.asarray(x).tobytes() for (_, x), step in zip(leaves, own, strict=True) if not step]
    which = (structure, tuple(settings), num_agents, dim)
    with precision():
        leaves = jax.tree.leaves(tree.to_device(algorithm, "float64"))
        given = [x for x, step in zip(leaves, own, strict=True) if step]

        def rebuilt(given: Sequence[Any]) -> AbstractAlgorithm:
            steps = iter(given)
            every = [next(steps) if step else x for x, step in zip(leaves, own, strict=True)]
            return jax.tree.unflatten(structure, every)

        try:
            if which not in _known:
                found = _watch(rebuilt, given, num_agents, dim)
                if len(_known) >= REMEMBERED:
                    _known.pop(next(iter(_known)))
                _known[which] = found
            method = _known[which]
            rounds = [_steps(method, side, given, LATER[0]) for side in range(len(method.sides))]
            first = [r if method.alike[k] else _steps(method, k, given, 0) for k, r in enumerate(rounds)]
        except NotDerivedError:
            raise
        except (TypeError, ValueError, IndexError, AttributeError, NotImplementedError) as error:
            # Anybody's method runs here, with an agent that has an operator and no data. What needs more fails in the
            # ways of Python and JAX, and is a method without pieces; anything else is a fault of ours.
            raise NotDerivedError(
                f"A round of {type(algorithm).__name__} cannot run with prescribed values of the operator: {error}"
            ) from error
    shared = (method.server, method.memory, method.show)
    return Pieces(tuple(rounds), method.chances, tuple(first), *shared, algorithm.block_length)


def _watch(rebuilt: Callable, given: list, num_agents: int, dim: int) -> _Method:
    """Traces the exchanges of a method, and checks that all its rounds are alike and affine."""
    algorithm = rebuilt(given)
    name = type(algorithm).__name__

    def init(theta):
        return tuple(_flat(floats(part)[0])[0] for part in algorithm.init(theta))

    (server, memory), constants = ([np.asarray(x).reshape(-1) for x in init(jnp.full(1, at))] for at in (1.0, 0.0))
    if any(x.any() for x in constants):
        raise NotDerivedError(f"{name} starts from numbers other than its parameter.")
    show = np.stack([_filled(algorithm, 0, row, 1).theta[0] for row in jnp.eye(len(server))])

    def round(side: float, d: int, asked: list) -> tuple[_Watched, ...]:
        numbers = range(len(algorithm.exchanges))
        return tuple(_Watched(rebuilt, given, k, num_agents, side, d, asked) for k in numbers)

    asked: list[float] = []
    watched = {0.5: round(0.5, 1, asked)}
    edges = np.unique([0.0, 1.0, *asked])
    sides = (edges[:-1] + edges[1:]) / 2
    watched |= {side: round(side, 1, []) for side in sides if side not in watched}
    chosen = tuple(watched[side] for side in sides)
    method = _Method(sides, np.diff(edges), chosen, (False,) * len(sides), server, memory, show)
    alike = []
    for k, side in enumerate(sides):
        found = _steps(method, k, given, LATER[0])
        for here, there, step in zip(round(side, dim, []), chosen[k], found, strict=True):
            if not here.does(step, given, [LATER[0]] * KEYS):
                raise NotDerivedError(f"A round of {name} is random, or not affine with equal coefficients.")
            if not there.does(step, given, LATER):
                raise NotDerivedError(f"The rounds of {name} depend on the number of the round.")
        alike.append(all(there.does(step, given, [0]) for there, step in zip(chosen[k], found, strict=True)))
    return method._replace(alike=tuple(alike))


def _steps(method: _Method, side: int, given: list, index: int) -> tuple[Step, ...]:
    """Returns the exchanges of a round as matrices, for one outcome of the coin."""
    found = tuple(exchange.step(given, index) for exchange in method.watched[side])
    w, m = method.server[:, None], np.tile(method.memory[:, None], (found[0].send.shape[0], 1, 1))
    for step in found:
        w, m = apply(step, w, m, lambda agent, call, point: 0 * point)
    if not _near(w[:, 0], method.server):
        raise NotDerivedError(f"{method.watched[side][0].name} moves at the root even without noise.")
    return found


def _filled(algorithm: AbstractAlgorithm, which: int, values: Any, d: int) -> Any:
    """Returns the server's state (0) or an agent's memory (1) with these numbers."""
    numbers, rest = floats(algorithm.init(jnp.zeros(d))[which])
    return whole(_flat(numbers)[1](values), rest)


def _flat(numbers: Any) -> tuple[Any, Callable]:
    """`ravel_pytree`, also of nothing, which has no dtype."""
    return ravel_pytree(numbers) if jax.tree.leaves(numbers) else (jnp.zeros(0), lambda x: numbers)


def _traced(function: Callable, given: list, *examples: Any) -> tuple[Callable, int]:
    """Returns a function of step sizes and of many rows of arguments, and the length of its result.

    Loops are traced step by step, so that what happens in them can be recorded, and then compiled once.
    """
    with jax.disable_jit():
        closed = jax.make_jaxpr(function)(given, *examples)
    run = jax.jit(jax.vmap(jaxpr_as_fun(closed), (*[None] * len(given), *[0] * len(examples))))

    def many(given: list, *rows: np.ndarray) -> np.ndarray:
        count = len(rows[0])
        more = -count % ROWS  # so that other numbers of rows need no other program
        every = (np.concatenate([x, np.repeat(x[-1:], more, axis=0)]) for x in rows)
        return np.asarray(run(*given, *every)[0])[:count]

    return many, closed.out_avals[0].shape[0]


class _Watched:
    """An exchange whose functions act on flat vectors, `d` numbers for each coefficient, for many rows of arguments."""

    def __init__(self, rebuilt: Callable, given: list, number: int, num_agents: int, side: float, d: int, asked: list):
        """`rebuilt` makes the algorithm with step sizes such as those in `given`."""
        algorithm = rebuilt(given)
        self.rebuilt, self.number, self.name = rebuilt, number, type(algorithm).__name__
        self.num_agents, self.d, self.coin = num_agents, d, (side, asked)
        self.p, self.q = (len(_flat(floats(x)[0])[0]) for x in algorithm.init(jnp.zeros(1)))
        zero, self.most = jnp.asarray(0), 4 * algorithm.block_length + 8
        self.send, length = _traced(lambda *row: self._sent(*row)[0], given, jnp.zeros(self.p * d), zero, zero, zero)
        self.inputs = length // d + self.q
        self.calls, self.shape = 0, (lambda x: x)
        values = jnp.zeros((self.inputs + self.most) * d)
        self.local, length = _traced(self._local, given, values, zero, zero, zero)
        self.n = (length - self.calls) // d - self.calls - self.q
        replies = jnp.zeros((num_agents, self.n * d))
        self.gather, _ = _traced(self._gathered, given, jnp.zeros(self.p * d), replies, zero, zero)

    def _shared(self, key: Any, index: Any, agent: Any = None) -> Round:
        own = None if agent is None else jax.random.key(1000 + key)
        return _Coin(index, jax.random.key(key), own, agent, self.num_agents, self.coin)

    def _sent(self, given: list, w: Any, agent: Any, key: Any, index: Any) -> tuple[Any, Callable]:
        """Returns an agent's message, and the function that unflattens it."""
        algorithm = self.rebuilt(given)
        send = algorithm.exchanges[self.number].send
        own, deliver = split(send(_filled(algorithm, 0, w, self.d), self._shared(key, index)))
        numbers, rest = floats(deliver([jax.tree.map(lambda x: x[agent], entries) for entries in own]))
        flat, shape = _flat(numbers)
        return flat, lambda x: whole(shape(x), rest)

    def _local(self, given: list, values: Any, agent: Any, key: Any, index: Any) -> Any:
        """Returns the places of all calls, their points, reply and memory."""
        d, q, algorithm = self.d, self.q, self.rebuilt(given)
        local = algorithm.exchanges[self.number].local
        _, unflatten = self._sent(given, jnp.zeros(self.p * d), agent, key, index)
        message, memory, answers = jnp.split(values, [(self.inputs - q) * d, self.inputs * d])
        probe, before = _Probe(Silent(), answers.reshape(-1, d), []), _filled(algorithm, 1, memory, d)
        block = jnp.arange(algorithm.block_length)
        reply, after = local(unflatten(message), before, probe, block, self._shared(key, index, agent))
        (reply, others), (after, counted) = floats(reply), floats(after)
        if jax.tree.leaves(others) or not _same(floats(before)[1], counted):
            raise NotDerivedError(f"An agent of {self.name} counts rounds, or replies with whole numbers.")
        flat, self.shape = _flat(reply)
        self.calls = len(probe.seen)
        places = jnp.array([jnp.asarray(place, values.dtype) for place, _ in probe.seen])
        return jnp.concatenate([places, *(point.reshape(-1) for _, point in probe.seen), flat, _flat(after)[0]])

    def _gathered(self, given: list, w: Any, replies: Any, key: Any, index: Any) -> Any:
        """Returns the server's state after the agents' replies, `(M, n * d)`."""
        algorithm = self.rebuilt(given)
        before, aggregate = _filled(algorithm, 0, w, self.d), algorithm.exchanges[self.number].aggregate
        stacked = Replies(jax.vmap(self.shape)(replies))
        after, counted = floats(aggregate(before, stacked, self._shared(key, index)))
        if not _same(floats(before)[1], counted):
            raise NotDerivedError(f"The server of {self.name} counts rounds.")
        return _flat(after)[0]

    def step(self, given: list, index: int) -> Step:
        """Returns the exchange as matrices; it has one dimension."""
        M, p, n, calls, agents = self.num_agents, self.p, self.n, self.calls, np.arange(self.num_agents)
        sent = self.send(given, *_rows(np.tile(np.eye(p + 1, p), (M, 1)), np.repeat(agents, p + 1), 0, index))
        sent = sent.reshape(M, p + 1, -1)
        width, rng = self.inputs + calls, np.random.default_rng(0)
        tried = rng.standard_normal(width)
        values = np.concatenate([np.eye(width + 1, width), np.repeat(tried[None], M, axis=0)])
        found = self.local(given, *_rows(self._padded(values), np.r_[np.zeros(width + 1, int), agents], 0, index))
        places, found = found[0, :calls].astype(int).tolist(), found[:, calls:]
        after = self.gather(given, *_rows(*self._units(), 0, index))
        if sent[:, -1].any() or found[width].any() or after[-1].any():
            raise NotDerivedError(f"A round of {self.name} adds constants.")
        part = realise(found[:width].T, places, self.inputs)
        parts = [part] * M
        for i in agents[1:]:
            if not _near(found[width + 1 + i], found[width + 1]):  # this agent does something else
                own = self.local(given, *_rows(self._padded(values), np.full(len(values), i), 0, index))
                parts[i] = realise(own[:width, calls:].T, own[0, :calls].astype(int).tolist(), self.inputs)
        gather = np.moveaxis(after[p:-1].reshape(M, n, p), 1, 2)
        return Step(np.moveaxis(sent[:, :-1], 1, 2), tuple(parts), after[:p].T, gather)

    def _padded(self, values: np.ndarray) -> np.ndarray:
        """Adds values of calls that do not happen."""
        more = (self.inputs + self.most) * self.d - values.shape[1]
        return np.pad(values, ((0, 0), (0, more)))

    def _units(self) -> tuple[np.ndarray, np.ndarray]:
        """Every direction of the server's state and of the replies, and none."""
        p, size = self.p, self.num_agents * self.n
        rows = np.eye(p + size + 1, p + size)
        return rows[:, :p], rows[:, p:].reshape(-1, self.num_agents, self.n)

    def does(self, step: Step, given: list, indices: Sequence[int]) -> bool:
        """Returns whether the exchange does what `step` says, in rounds of these numbers, with a key for each."""
        rng, d, M, count = np.random.default_rng(0), self.d, self.num_agents, len(indices)
        scale, keys = np.where(np.arange(count) % 2, 1e3, 1.0)[:, None, None], np.arange(count)
        others = [i for i, part in enumerate(step.parts) if part is not step.parts[0]]
        for agent in (0, *others):
            part = step.parts[agent]
            x = scale * rng.standard_normal((count, self.inputs + len(part.calls), d))
            live, seen = part.begin @ x[:, : self.inputs], []
            for n, call in enumerate(part.calls):
                seen.append((call.point @ live).reshape(count, d))
                live = call.carry @ live + call.enter[:, None] * x[:, self.inputs + n, None]
            expected = np.concatenate([*seen, (part.end @ live).reshape(count, -1)], axis=1)
            rows = _rows(self._padded(x.reshape(count, -1)), np.full(count, agent), keys, indices)
            found, places = self.local(given, *rows), [call.place for call in part.calls]
            if self.calls != len(places) or not _near(found, np.column_stack([np.tile(places, (count, 1)), expected])):
                return False
        w, r = scale * rng.standard_normal((count, self.p, d)), rng.standard_normal((count, M, self.n, d))
        after = self.gather(given, *_rows(w.reshape(count, -1), r.reshape(count, M, -1), keys, indices))
        sent = self.send(given, *_rows(w.reshape(count, -1), np.zeros(count, int), keys, indices))
        expected = step.keep @ w + np.einsum("ipn,cind->cpd", step.gather, r)
        return _near(after, expected.reshape(count, -1)) and _near(sent, (step.send[0] @ w).reshape(count, -1))


def _rows(first: np.ndarray, *others: Any) -> list[np.ndarray]:
    """Returns arguments for as many rows as the first has; numbers are repeated."""
    return [first, *(x if np.ndim(x) > 1 else np.broadcast_to(np.asarray(x), (len(first),)) for x in others)]


def _same(before: Any, after: Any) -> bool:
    """Returns whether the whole numbers of a state were left alone."""
    return all(a is b for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))


def apply(step: Step, server: np.ndarray, memory: np.ndarray, operator: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Runs an exchange in one dimension for columns of states, `(p, k)` and `(M, q, k)`.

    `operator` maps an agent, the number of a call and its points `(k,)` to values `(k,)`.
    """
    after, kept, n = step.keep @ server, [], step.gather.shape[-1]
    for i, part in enumerate(step.parts):
        live = part.begin @ np.concatenate([step.send[i] @ server, memory[i]])
        for number, call in enumerate(part.calls):
            live = call.carry @ live + np.outer(call.enter, operator(i, number, call.point @ live))
        end = part.end @ live
        after = after + step.gather[i] @ end[:n]
        kept.append(end[n:])
    return after, np.stack(kept)


def realise(J: np.ndarray, places: list[int], inputs: int) -> Part:
    """Returns the minimal recursion behind the derivative `J` of points, reply and memory.

    Its columns are the message and the memory, `inputs` in number, and the values of the operator. The live variables
    before a call are rows of what the past contributes to the future. The first independent ones are chosen, points
    before outcomes, so that equal steps have equal coefficients.
    """
    n, calls, previous = len(places), [], None
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
            calls.append(Call(places[now - 1], before[0], carry, J[[rows[k] for k in chosen], inputs + now - 1]))
        previous = rows, combine
    assert previous is not None
    rows, combine = previous
    return Part(begin, tuple(calls), combine)


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
