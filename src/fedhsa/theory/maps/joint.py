"""Joint maps: what one round does to everything a method carries, read off the algorithm's own exchanges."""

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ... import tree
from ..._random import fold_in
from ..._types import precision
from ...algorithms import AbstractAlgorithm, AbstractSchedule, Round
from ...algorithms.play import one_seed, play, start
from ...problems import AbstractAgent, Problem
from ...problems.quadratic import QuadraticAgent
from ...sources import AbstractSource

ROUNDS = (1, 2, 3, 10, 1009)
"""Rounds that must be alike for a method to have one map; the first of a run may differ."""
SCALES = (1.0, 1e-3, 1e4)
"""How far from the root a method is tried, to see whether it is affine."""
ALIKE = 1e-9
"""Up to this part of their size two results count as the same."""
CHUNK, ROOM, ALONE = 64, 2**25, 4096
"""How many directions are followed at a time, how many numbers they may take, and from how many on one is alone."""


class JointMap(NamedTuple):
    r"""One round without noise as an affine map of all that the parameter depends on later, $y' = \Phi y + c$.

    $y$ is the state, server and memories, minus that before a run from the root; the error is $C y$. A run from the
    error $e_0$ is at $y_1 = a + B e_0$ after its first round, which may differ from the others.
    """

    transition: np.ndarray
    r"""$\Phi$, `(n, n)`."""
    offset: np.ndarray
    r"""$c$, `(n,)`."""
    observe: np.ndarray
    r"""$C$, `(d, n)`."""
    first: np.ndarray
    r"""$a$, `(n,)`."""
    spread: np.ndarray
    r"""$B$, `(n, d)`."""


class Probe(NamedTuple):
    """What is added to an operator: a vector, and a matrix that acts on the error."""

    noise: Any
    matrix: Any


class ProbedAgent(AbstractAgent):
    """An agent without noise whose observations are what is added to its operator."""

    source: AbstractSource
    agent: AbstractAgent
    root: Any

    def operator(self, theta, o, /):
        value = self.agent.mean_operator(theta) + o.noise
        return value if o.matrix is None else value + o.matrix @ (theta - self.root)

    def mean_operator(self, theta, /):
        return self.agent.mean_operator(theta)


class Joint:
    r"""The rounds of an algorithm on the mean operators of a problem, as its own exchanges play them.

    Of what server and agents carry, only that is kept which the parameter depends on, now or later. Where a round has
    a coin that everyone sees, it is averaged over: coins do not depend on the past, so that the mean of an affine
    method's state follows the average map exactly.
    """

    def __init__(self, problem: Problem, algorithm: AbstractAlgorithm):
        check_reach(problem, algorithm)
        algorithm.check(problem)
        quiet = problem.noiseless()
        self.problem, self.name, self.num_agents = problem, type(algorithm).__name__, problem.num_agents
        self.coins, self.weights = ways_of_the_coin(quiet, algorithm)
        with precision():
            self.agents, self.algorithm = tree.to_device((quiet.agents, algorithm), "float64")
            root = jnp.asarray(problem.root, dtype="float64")
            numbers, self.rest = floats(start(self.algorithm, root, self.num_agents))
            base, self.unravel = ravel_pytree(numbers)
            self.base = np.asarray(base)
            self.start_spread = np.asarray(jax.jacfwd(self._start)(root))
            self.shown = np.asarray(jax.jacrev(self._parameter)(base))
        self.on_server = len(jax.tree.leaves(numbers[0]))
        sizes = [np.size(leaf) for leaf in jax.tree.leaves(numbers)]
        self.part = np.repeat(np.arange(len(sizes)), sizes)
        self.chunk = max(1, min(CHUNK, ROOM // len(self.base)))
        self._probe()

    def at(self, algorithm: AbstractAlgorithm) -> "Joint":
        """The same algorithm with other numbers for settings, like a step size; it is not looked at again."""
        other = copy.copy(self)
        with precision():
            other.algorithm = tree.to_device(algorithm, "float64")
        return other

    @property
    def size(self) -> int:
        """How many numbers are kept."""
        return len(self.kept)

    @property
    def carries_more(self) -> bool:
        """Whether more than the parameter, or a coin, decides what a round does to it."""
        return self.size > self.problem.dim or len(self.coins) > 1

    @property
    def one_map(self) -> bool:
        """Whether all rounds after the first are one and the same affine map."""
        return self.affine and self.alike

    def _start(self, theta):
        return ravel_pytree(floats(start(self.algorithm, theta, self.num_agents))[0])[0]

    def _parameter(self, state):
        return whole(self.unravel(state), self.rest)[0].theta

    def observing(self, part: Callable[[Any], Any]) -> np.ndarray:
        """How a part of the server's state depends on the kept state, `(..., n)`."""
        with precision():
            rate = jax.jacrev(lambda state: part(whole(self.unravel(state), self.rest)[0]))(jnp.asarray(self.base))
        return np.asarray(rate)[..., self.kept]

    def play(self, states: np.ndarray, tangents: Any = 0.0, *, index: Any = 1, key: Any = 0):
        """The states after a round, their derivatives along `tangents`, and whether a counter moved, row by row."""
        rows = np.broadcast_arrays(np.atleast_2d(states), np.atleast_2d(tangents))
        count = max(len(rows[0]), np.size(index), np.size(key))
        inputs = [np.broadcast_to(x, (count, len(self.base))) for x in rows]
        inputs += [np.broadcast_to(np.asarray(x), (count,)) for x in (index, key)]
        chunk, found = 1 if count == 1 and len(self.base) > ALONE else self.chunk, []
        short = -count % chunk
        inputs = [np.concatenate([x, np.repeat(x[-1:], short, axis=0)]) if short else x for x in inputs]
        setting = (self.agents, self.algorithm, self.rest, self.unravel, self.coins, self.weights)
        with precision():
            for at in range(0, count, chunk):
                found.append(tree.to_host(follow(*setting, *(x[at : at + chunk] for x in inputs))))
        return tuple(np.concatenate(part)[:count] for part in zip(*found, strict=True))

    def _probe(self) -> None:
        """Finds out what the parameter depends on, and whether rounds are random, alike and affine."""
        rng, parts = np.random.default_rng(0), np.arange(self.part.max() + 1)
        scale = 1 + np.abs(self.problem.root).max()
        states = self.base + scale * np.array(SCALES)[:, None] * rng.standard_normal((len(SCALES), len(self.base)))
        along = np.where(self.part == parts[:, None], rng.standard_normal(len(self.base)), 0.0)
        _, rates, _ = self.play(states[0], np.concatenate([along, states - states[0]]))
        self.kept = self._needed(rates[: len(parts)])
        alone = np.repeat(states[:1], len(ROUNDS) + 2, axis=0)
        index, key = [*ROUNDS, *[ROUNDS[0]] * (2 + len(SCALES))], [*[0] * len(ROUNDS), 1, 2, *[0] * len(SCALES)]
        after, _, counted = self.play(np.concatenate([alone, states]), index=index, key=key)
        after = after[:, self.kept]
        straight = after[0] + rates[len(parts) :, self.kept]
        near = ALIKE * (scale + np.abs(after[0]).max())
        self.alike = bool(np.abs(after[: len(ROUNDS)] - after[0]).max() <= near and not counted.any())
        self.affine = bool((np.abs(straight - after[-len(SCALES) :]).max(1) <= near * np.maximum(SCALES, 1.0)).all())
        if not np.abs(after[len(ROUNDS) : len(ROUNDS) + 2] - after[0]).max() <= near:
            raise TypeError(
                f"{self.name} draws random numbers besides the coin that everyone sees; what its rounds do on average "
                "cannot be read off its exchanges."
            )
        if len(self.coins) > 1:
            self._check_affine()

    def _needed(self, rates: np.ndarray) -> np.ndarray:
        """Where in the state the parts stand that the parameter depends on, now or after more rounds."""
        count = len(rates)
        reaches = np.stack([np.abs(rates[:, self.part == k]).max(1) != 0 for k in range(count)], axis=1)
        needed = np.array([np.abs(self.shown[:, self.part == k]).max() != 0 for k in range(count)])
        for _ in range(count):
            needed = needed | reaches[:, needed].any(1)
        return np.flatnonzero(needed[self.part])

    def _check_affine(self) -> None:
        if not self.affine:
            raise TypeError(f"A round of {self.name} is not an affine map of what it carries from round to round.")

    def check(self) -> None:
        """Raises if the rounds are not one and the same affine map."""
        self._check_affine()
        if not self.alike:
            raise TypeError(
                f"The rounds of {self.name} are not alike: what they do, or where they store what they carry, depends "
                "on the number of the round, so there is no one map. `theory.exact.noiseless_error` follows them one "
                "by one."
            )

    def linear(self, columns: np.ndarray) -> np.ndarray:
        r"""$\Phi V$ for some columns `(n, k)`."""
        tangents = np.zeros((columns.shape[1], len(self.base)))
        tangents[:, self.kept] = columns.T
        return self.play(self.base, tangents)[1][:, self.kept].T

    def transposed(self, vector: np.ndarray) -> np.ndarray:
        r"""$\Phi^T v$."""
        full = np.zeros(len(self.base))
        full[self.kept] = np.ravel(vector)
        with precision():
            setting = (self.agents, self.algorithm, self.rest, self.unravel, self.coins, self.weights)
            return np.asarray(pull_back(*setting, jnp.asarray(self.base), jnp.asarray(full)))[self.kept]

    def sums(self) -> np.ndarray:
        """What each part of the kept state adds up to over the agents, and the server's parts themselves, `(n, k)`."""
        found = []
        for part in np.unique(self.part[self.kept]):
            at = np.flatnonzero(self.part[self.kept] == part)
            times = 1 if part < self.on_server else self.num_agents
            columns = np.zeros((self.size, len(at) // times))
            columns[at] = np.tile(np.eye(len(at) // times), (times, 1)) / np.sqrt(times)
            found.append(columns)
        return np.concatenate(found, axis=1)

    def ends(self) -> JointMap:
        """The map without its matrix, which may be large."""
        self.check()
        after, spread, _ = self.play(self.base, self.start_spread.T, index=0)
        offset = self.play(self.base)[0][0] - self.base
        return JointMap(
            np.empty((0, 0)),
            offset[self.kept],
            self.shown[:, self.kept],
            (after[0] - self.base)[self.kept],
            spread[:, self.kept].T,
        )

    def map(self) -> JointMap:
        """The map of a round."""
        return self.ends()._replace(transition=self.linear(np.eye(self.size)))

    def noise(self) -> np.ndarray | None:
        r"""The response of the kept state to additive noise, `(M, H, n, d)`; None where there is another noise."""
        return self.responses().noise if isinstance(self.problem.agents, QuadraticAgent) and not self.chancy else None

    @functools.cached_property
    def chancy(self) -> bool:
        """Whether a round is random without noise too: by a coin, or by what decides how noise counts."""
        if len(self.coins) > 1:
            return True
        first, second = (self._respond(self.base, self._quiet(matrix=False), key).noise for key in (0, 1))
        return not np.allclose(first, second, rtol=ALIKE, atol=0)

    def responses(self, moves: np.ndarray | None = None) -> "Probe":
        r"""How the kept state after a round responds to changes of each agent's operator at each of its observations.

        Without `moves` to added vectors alone, `(M, H, n, d)`; with them at the state $y$, also to added matrices that
        act on the error, `(M, H, n, d, d)`.
        """
        found = self._respond(self._state(moves), self._quiet(matrix=moves is not None), 0)
        return Probe(*(None if x is None else np.moveaxis(x, 0, 2) for x in found))

    def _respond(self, state: np.ndarray, quiet: "Probe", key: int) -> "Probe":
        with precision():
            setting = (self._probed, self.algorithm, self.rest, self.unravel, jnp.asarray(state))
            return tree.to_host(response(*setting, jnp.asarray(self.kept), quiet, jnp.asarray(key)))

    def bends(
        self, moves: np.ndarray, agent: np.ndarray, step: np.ndarray, matrix: np.ndarray, along: tuple[np.ndarray, ...]
    ) -> np.ndarray:
        r"""Second derivatives of the kept state after a round from the state $y$, summed over rows.

        A row adds `matrix` to an agent's operator at one of its steps, and moves along `along`: a move of the kept
        state `(rows, n)`, and vectors `(rows, H, d)` and matrices `(rows, H, d, d)` added to that agent's operators.
        """
        into = np.zeros((self.size, len(self.base)))
        into[np.arange(self.size), self.kept] = 1.0
        with precision():
            setting = (self._probed, self.algorithm, self.rest, self.unravel, jnp.asarray(self._state(moves)))
            rows = tree.to_device((agent, step, matrix, (along[0] @ into, *along[1:])), "float64")
            return np.asarray(bend(*setting, jnp.asarray(self.kept), self._quiet(matrix=True), rows))

    def _state(self, moves: np.ndarray | None) -> np.ndarray:
        state = self.base.copy()
        if moves is not None:
            state[self.kept] += moves
        return state

    def _quiet(self, *, matrix: bool) -> "Probe":
        shape = (self.num_agents, self.algorithm.block_length, self.problem.dim)
        with precision():
            return Probe(jnp.zeros(shape), jnp.zeros((*shape, shape[-1])) if matrix else None)

    @functools.cached_property
    def _probed(self) -> "ProbedAgent":
        roots = jnp.broadcast_to(jnp.asarray(self.problem.root, "float64"), (self.num_agents, self.problem.dim))
        return ProbedAgent(self.agents.source, self.agents, roots)

    def parameters(self, rounds: int, theta: np.ndarray) -> np.ndarray:
        """The parameter before the first round and after each of `rounds`, `(rounds + 1, d)`, from `theta`."""
        with precision():
            setting = (self.agents, self.algorithm, self.coins, self.weights)
            return np.asarray(follow_all(*setting, jnp.asarray(theta, dtype="float64"), rounds))


def joint_map(problem: Problem, algorithm: AbstractAlgorithm) -> JointMap:
    r"""The map of everything a method carries over one round, on average over the coin that everyone sees.

    The exchanges are differentiated, not re-derived. What the parameter never depends on is left out, so that for
    FedHSA and Local SA it is the map of the error alone; for SCAFFLSA it is that of the error and the agents' shifts.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> joint_map(problem, fedhsa.FedHSA(0.02, local_steps=5)).transition.shape
        (3, 3)
    """
    return Joint(problem, algorithm).map()


def check_reach(problem: Problem, algorithm: AbstractAlgorithm) -> None:
    """Raises if there is no round map: if operators are not affine or steps change."""
    if not problem.affine:
        raise TypeError(
            f"Exact laws need operators that are affine in the parameter; {type(problem.agents).__name__} is not "
            "marked so. Set `affine = True` on the agent class if it is."
        )
    check_schedule(algorithm)


def check_schedule(algorithm: AbstractAlgorithm) -> None:
    """Raises if steps change, also those of an algorithm inside a wrapper."""

    def changing(x: Any) -> bool:
        return isinstance(x, AbstractSchedule)

    if any(changing(x) for x in jax.tree.leaves(algorithm, is_leaf=changing)):
        raise TypeError("Exact laws need a constant step size, got a schedule. Predict its first and its last step.")


def start_error(problem: Problem, theta: Any) -> np.ndarray:
    """The error a run from `theta` starts with."""
    start = problem.start if theta is None else tree.ravel_like("theta", theta, problem.like)
    return start - problem.root


# Rounds as engines play them, on agents without noise: once, for many states, and one after the other.


class _Told(Round):
    """A round whose coin is a number between 0 and 1: what is likelier than that happens."""

    __slots__ = ()

    def happens(self, probability):
        return jnp.asarray(self.coin < probability)


def ways_of_the_coin(problem: Problem, algorithm: AbstractAlgorithm) -> tuple[np.ndarray, np.ndarray]:
    """A number for each way in which the coin can fall, and how likely it is; found by listening to what is asked."""
    asked: list[Any] = []

    class Listening(Round):
        __slots__ = ()

        def happens(self, probability):
            asked.append(probability)
            return jnp.asarray(True)

    def once(theta):
        begun = start(algorithm, theta, problem.num_agents)
        round = Listening(jnp.ones((), int), jax.random.key(0), num_agents=problem.num_agents)
        return _play(problem.agents, algorithm, begun, (), round)

    with precision():
        try:
            jax.eval_shape(once, jnp.asarray(problem.theta_star))
        except (TypeError, ValueError, IndexError) as error:
            raise TypeError(
                f"A round of {type(algorithm).__name__} cannot be played on mean operators, without observations, as "
                "where a method looks at them itself; what its rounds do on average cannot be read off its exchanges."
            ) from error
    try:
        edges = np.unique([0.0, 1.0, *(float(p) for p in asked)])
    except jax.errors.ConcretizationTypeError:
        name = type(algorithm).__name__
        raise TypeError(f"The probability of {name}'s coin is not a constant, so it has no mean map.") from None
    return (edges[:-1] + edges[1:]) / 2, np.diff(edges)


def _play(agents: Any, algorithm: AbstractAlgorithm, state: tuple[Any, Any], block: Any, shared: Round):
    """One round of one seed; nothing is drawn."""
    keys = fold_in(shared.key, jnp.arange(shared.num_agents))
    return play(algorithm, one_seed(agents, block, shared, keys), *state)


def floats(state: Any) -> tuple[Any, Any]:
    """The real numbers in a state, and the rest of it."""
    return eqx.partition(state, eqx.is_inexact_array)


def whole(numbers: Any, rest: Any) -> Any:
    """Both together again."""
    return eqx.combine(numbers, rest)


def _on_average(agents, algorithm, state, index, key, coins, weights):
    """The state after a round, averaged over the coin."""

    def fallen(coin):
        shared = _Told(index, key, coin=coin, num_agents=tree.leading_axis(agents))
        return _play(agents, algorithm, state, (), shared)

    every = jax.vmap(fallen)(coins)
    return jax.tree.map(lambda x: jnp.tensordot(weights, x, 1) if eqx.is_inexact_array(x) else x[0], every)


def _stepper(agents, algorithm, rest, unravel, coins, weights, index, key):
    """A round as a function of the flat state; beside the state it gives whether anything else changed."""

    def step(state):
        state = whole(unravel(state), rest)
        after = _on_average(agents, algorithm, state, index, jax.random.key(key), coins, weights)
        numbers, others = floats(after)
        moved = jax.tree.map(lambda x, y: jnp.any(x != y), others, rest)
        return ravel_pytree(numbers)[0], jnp.any(jnp.array([False, *jax.tree.leaves(moved)]))

    return step


@eqx.filter_jit
def follow(agents, algorithm, rest, unravel, coins, weights, states, tangents, index, key):
    """States after a round and their derivatives along tangents, row by row."""

    def one(state, tangent, index, key):
        step = _stepper(agents, algorithm, rest, unravel, coins, weights, index, key)
        return jax.jvp(step, (state,), (tangent,), has_aux=True)

    return jax.vmap(one)(states, tangents, index, key)


@eqx.filter_jit
def pull_back(agents, algorithm, rest, unravel, coins, weights, state, covector):
    """The transposed derivative of a round."""
    step = _stepper(agents, algorithm, rest, unravel, coins, weights, jnp.ones((), int), 0)
    return jax.vjp(step, state, has_aux=True)[1](covector)[0]


def _noisy_stepper(agents, algorithm, rest, unravel, kept, key):
    """The kept state after a round as a function of the flat state and of what the agents observe."""

    def after(state, block):
        shared = Round(jnp.ones((), int), jax.random.key(key), num_agents=tree.leading_axis(agents))
        return ravel_pytree(floats(_play(agents, algorithm, whole(unravel(state), rest), block, shared))[0])[0][kept]

    return after


@eqx.filter_jit
def response(agents, algorithm, rest, unravel, state, kept, block, key):
    """How the kept state after a round responds to what the agents observe."""
    after = _noisy_stepper(agents, algorithm, rest, unravel, kept, key)
    return jax.jacrev(lambda block: after(state, block))(block)


@eqx.filter_jit
def bend(agents, algorithm, rest, unravel, state, kept, quiet, rows):
    """Second derivatives, along a matrix added at one step and along what moved an agent before it; their sum."""
    after = _noisy_stepper(agents, algorithm, rest, unravel, kept, 0)

    def one(row):
        agent, step, matrix, (moved, noises, matrices) = row
        added = quiet._replace(matrix=quiet.matrix.at[agent, step].set(matrix))
        before = Probe(quiet.noise.at[agent].set(noises), quiet.matrix.at[agent].set(matrices))

        def responded(state, block):
            return jax.jvp(lambda block: after(state, block), (block,), (added,))[1]

        return jax.jvp(responded, (state, quiet), (moved, before))[1]

    return jnp.sum(jax.lax.map(one, rows, batch_size=CHUNK), axis=0)


@eqx.filter_jit
def follow_all(agents, algorithm, coins, weights, theta, rounds: int):
    """The parameter of every round, from a start."""

    def step(state, index):
        state = _on_average(agents, algorithm, state, index, jax.random.key(0), coins, weights)
        return state, state[0].theta

    _, path = jax.lax.scan(step, start(algorithm, theta, tree.leading_axis(agents)), jnp.arange(rounds))
    return jnp.concatenate([theta[None], path])
