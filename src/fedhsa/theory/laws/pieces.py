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
from jax.flatten_util import ravel_pytree

from ... import tree
from ..._types import precision
from ...algorithms import AbstractAlgorithm, Exchange, Replies, Round
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


KEYS = 6
"""The number of keys with which an agent's round is tried, to notice one that is random."""


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
        self.seen.append((int(place), theta))
        return self.values[len(self.seen) - 1].reshape(theta.shape)


class _Coin(Round):
    """A round whose coin is a number between 0 and 1, and which records the probabilities that are asked for."""

    __slots__ = ()

    def happens(self, probability):
        value, asked = self.coin
        asked.append(float(probability))
        return jnp.asarray(value < probability)


def derive(algorithm: AbstractAlgorithm, num_agents: int, dim: int, *, known: Pieces | None = None) -> Pieces:
    """Returns the pieces of an algorithm; raises `NotDerivedError` if its rounds are random, unlike or not affine.

    `known` are those of the same algorithm with another step size, for which all of this was checked.
    """
    with precision(), jax.disable_jit():
        try:
            return _derive(tree.to_device(algorithm, "float64"), num_agents, dim, known)
        except NotDerivedError:
            raise
        except (TypeError, ValueError, IndexError, AttributeError, NotImplementedError, AssertionError) as error:
            raise NotDerivedError(
                f"A round of {type(algorithm).__name__} cannot run with prescribed values of the operator: {error}"
            ) from error


def _derive(algorithm: AbstractAlgorithm, num_agents: int, dim: int, known: Pieces | None) -> Pieces:
    name, nothing = type(algorithm).__name__, jnp.zeros(1)

    def init(theta):
        return tuple(_flat(floats(part)[0])[0] for part in algorithm.init(theta))

    server, memory = (np.asarray(x).reshape(-1) for x in jax.jacfwd(init)(nothing))
    if any(np.asarray(x).any() for x in init(nothing)):
        raise NotDerivedError(f"{name} starts from numbers other than its parameter.")

    def round(side: float, index: int, asked: list) -> list[_Watched]:
        return [_Watched(algorithm, exchange, num_agents, side, index, asked) for exchange in algorithm.exchanges]

    def steps(side: float, index: int) -> tuple[Step, ...]:
        found = tuple(watched.step(dim, checked=known is None) for watched in round(side, index, []))
        w, m = server[:, None], np.tile(memory[:, None], (num_agents, 1, 1))
        for step in found:
            w, m = apply(step, w, m, lambda agent, call, point: 0 * point)
        if not _near(w[:, 0], server):
            raise NotDerivedError(f"{name} moves at the root even without noise.")
        return found

    asked: list[float] = []
    for watched in round(0.5, LATER[0], asked):
        watched.once()
    edges = np.unique([0.0, 1.0, *asked])
    sides = (edges[:-1] + edges[1:]) / 2
    rounds = tuple(steps(side, LATER[0]) for side in sides)

    def alike(side: float, index: int, found: tuple[Step, ...]) -> bool:
        return all(w.does(step, 1, agents=(0,), keys=2) for w, step in zip(round(side, index, []), found, strict=True))

    if known is not None:
        starts_alike = [a is b for a, b in zip(known.first, known.rounds, strict=True)]
    else:
        if not all(alike(side, index, found) for side, found in zip(sides, rounds, strict=True) for index in LATER[1:]):
            raise NotDerivedError(f"The rounds of {name} depend on the number of the round.")
        starts_alike = [alike(side, 0, found) for side, found in zip(sides, rounds, strict=True)]
    first = tuple(
        found if same else steps(side, 0) for side, found, same in zip(sides, rounds, starts_alike, strict=True)
    )
    show = jax.jacfwd(lambda w: whole(*_filled(algorithm, 0, w, 1)).theta)(jnp.zeros(len(server)))
    return Pieces(rounds, np.diff(edges), first, server, memory, np.asarray(show).reshape(-1), algorithm.block_length)


def _filled(algorithm: AbstractAlgorithm, which: int, values: Any, d: int) -> tuple[Any, Any]:
    """Returns the server's state (0) or an agent's memory (1) with these numbers, and the rest of it."""
    numbers, rest = floats(algorithm.init(jnp.zeros(d))[which])
    return _flat(numbers)[1](values), rest


def _flat(numbers: Any) -> tuple[Any, Callable]:
    """`ravel_pytree`, also of nothing, which has no dtype."""
    return ravel_pytree(numbers) if jax.tree.leaves(numbers) else (jnp.zeros(0), lambda x: numbers)


class _Watched:
    """An exchange whose functions act on flat vectors, `d` numbers for each coefficient."""

    def __init__(self, algorithm, exchange: Exchange, num_agents: int, side: float, index: int, asked: list):
        self.algorithm, self.exchange, self.num_agents = algorithm, exchange, num_agents
        self.side, self.index, self.asked, self.name = side, index, asked, type(algorithm).__name__
        self.server, self.memory = (len(_flat(floats(x)[0])[0]) for x in algorithm.init(jnp.zeros(1)))
        self.message = len(self.sent(jnp.zeros(self.server))[0])

    def shared(self, key: int, agent: int | None = None) -> Round:
        own = None if agent is None else jax.random.key(1000 + key)
        return _Coin(jnp.asarray(self.index), jax.random.key(key), own, agent, self.num_agents, (self.side, self.asked))

    def sent(self, w: Any, agent: int = 0, d: int = 1, key: int = 0) -> tuple[Any, Callable]:
        """Returns an agent's message, and the function that unflattens it."""
        own, deliver = split(self.exchange.send(whole(*_filled(self.algorithm, 0, w, d)), self.shared(key)))
        numbers, rest = floats(deliver([jax.tree.map(lambda x: x[agent], entries) for entries in own]))
        flat, shape = _flat(numbers)
        return flat, lambda x: whole(shape(x), rest)

    def local(self, values: Any, agent: int = 0, d: int = 1, key: int = 0) -> tuple[Any, list[int], Callable]:
        """Returns points, reply and memory, the places of the calls, and the function that unflattens a reply."""
        _, unflatten = self.sent(jnp.zeros(self.server * d), agent, d, key)
        message, memory, given = jnp.split(values, [self.message * d, (self.message + self.memory) * d])
        probe = _Probe(Silent(), given.reshape(-1, d), [])
        numbers, rest = _filled(self.algorithm, 1, memory, d)
        block = jnp.arange(self.algorithm.block_length)
        reply, kept = self.exchange.local(
            unflatten(message), whole(numbers, rest), probe, block, self.shared(key, agent)
        )
        (flat, others), (kept, counted) = floats(reply), floats(kept)
        before, after = jax.tree.leaves(rest), jax.tree.leaves(counted)
        if jax.tree.leaves(others) or any(np.any(a != b) for a, b in zip(before, after, strict=True)):
            raise NotDerivedError(f"An agent of {self.name} counts rounds, or replies with whole numbers.")
        flat, shape = _flat(flat)
        points = [point.reshape(-1) for _, point in probe.seen]
        return jnp.concatenate([*points, flat, _flat(kept)[0]]), [place for place, _ in probe.seen], shape

    def gathered(self, w: Any, replies: Any, shape: Callable, d: int = 1, key: int = 0) -> Any:
        """Returns the server's state after the agents' replies, `(M, n * d)`."""
        numbers, rest = _filled(self.algorithm, 0, w, d)
        stacked = Replies(jax.vmap(shape)(replies))
        after, counted = floats(self.exchange.aggregate(whole(numbers, rest), stacked, self.shared(key)))
        if any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (rest, counted)), strict=True)):
            raise NotDerivedError(f"The server of {self.name} counts rounds.")
        return _flat(after)[0]

    def once(self) -> None:
        """Runs the exchange, so that its coin is asked for."""
        *_, shape = self.local(self._nothing(0))
        flat = self.local(self._nothing(0))[0]
        n = len(flat) - len(self._places(0)) - self.memory
        self.gathered(jnp.zeros(self.server), jnp.zeros((self.num_agents, n)), shape)

    def step(self, dim: int, *, checked: bool) -> Step:
        """Returns the exchange as matrices, and tries whether it does what they say if `checked`."""
        M, w = self.num_agents, jnp.zeros(self.server)
        send = jax.jacfwd(lambda w: jnp.stack([self.sent(w, i)[0] for i in range(M)]))(w)
        part, shape, n = self._part(0)
        keep, gather = jax.jacfwd(lambda w, r: self.gathered(w, r, shape), (0, 1))(w, jnp.zeros((M, n)))
        found = Step(np.asarray(send), (part,) * M, np.asarray(keep), np.moveaxis(np.asarray(gather), 1, 0))
        unlike = {i for i in range(1, M) if not self.does(found, 1, agents=(i,), keys=1, server=False)}
        if unlike:  # some agents do something else
            parts = tuple(self._part(i)[0] if i in unlike else part for i in range(M))
            found = found._replace(parts=parts)
        if checked and not self.does(found, dim, agents=(0, *unlike), keys=KEYS):
            raise NotDerivedError(
                f"A round of {self.name} is random, or not affine with equal coefficients everywhere."
            )
        return found

    def _nothing(self, agent: int) -> Any:
        return jnp.zeros(self.message + self.memory + len(self._places(agent)))

    def _places(self, agent: int) -> list[int]:
        most = 4 * self.algorithm.block_length + 8
        return self.local(jnp.zeros(self.message + self.memory + most), agent)[1]

    def _part(self, agent: int) -> tuple[Part, Callable, int]:
        nothing = self._nothing(agent)
        constant, places, shape = self.local(nothing, agent)
        if np.any(constant):
            raise NotDerivedError(f"A round of {self.name} adds constants.")
        J = np.asarray(jax.jacfwd(lambda x: self.local(x, agent)[0])(nothing))
        return realise(J, places, self.message + self.memory), shape, len(J) - len(places) - self.memory

    def does(self, step: Step, d: int, agents: Sequence[int], *, keys: int, server: bool = True) -> bool:
        """Returns whether the exchange does what `step` says, in `d` dimensions, at two scales and with some keys."""
        rng, shape = np.random.default_rng(0), None
        for key in range(keys):
            scale = 1e3 if key % 2 else 1.0
            for agent in agents:
                part = step.parts[agent]
                inputs = self.message + self.memory
                x = scale * rng.standard_normal((inputs + len(part.calls), d))
                try:
                    found, places, shape = self.local(jnp.asarray(x.reshape(-1)), agent, d, key)
                except IndexError:  # it calls the operator more often
                    return False
                live, seen = part.begin @ x[:inputs], []
                for call, value in zip(part.calls, x[inputs:], strict=True):
                    seen.append(call.point @ live)
                    live = call.carry @ live + np.outer(call.enter, value)
                expected = np.concatenate([*seen, (part.end @ live).ravel()])
                if places != [call.place for call in part.calls] or not _near(np.asarray(found), expected):
                    return False
            if server:
                M, p, n = step.gather.shape
                w, r = scale * rng.standard_normal((p, d)), scale * rng.standard_normal((M, n, d))
                flat = jnp.asarray(w.reshape(-1))
                assert shape is not None
                after = np.asarray(self.gathered(flat, jnp.asarray(r.reshape(M, -1)), shape, d, key))
                messages = np.concatenate([self.sent(flat, i, d, key)[0] for i in range(M)])
                expected = step.keep @ w + np.einsum("ipn,ind->pd", step.gather, r)
                if not _near(after, expected.ravel()) or not _near(messages, (step.send @ w).ravel()):
                    return False
        return True


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
