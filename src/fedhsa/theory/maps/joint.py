"""Joint maps: one round as a map of everything that a method carries, derived from the algorithm's exchanges."""

import copy
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
from ...problems import Problem

ROUNDS = (1, 2, 3, 10, 1009)
"""The rounds that must be equal for a method to have one map; the first round of a run may differ."""
SCALES = (1.0, 1e-3, 1e4)
"""The distance from the root at which a method is tested for being affine."""
ALIKE = 1e-9
"""The relative difference up to which two results count as equal."""
CHUNK, ROOM, ALONE = 64, 2**25, 4096
"""The number of directions processed together, their largest total size, and the size above which each is alone."""


class JointMap(NamedTuple):
    r"""One noiseless round as an affine map $y' = \Phi y + c$ of everything that later parameters depend on.

    $y$ is the state of the server and the agents' memories, minus the initial state of a run from the root, and the
    error is $C y$. A run from the error $e_0$ is at $y_1 = a + B e_0$ after its first round, which may differ.
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


class Joint:
    r"""The rounds of an algorithm on the mean operators of a problem, computed by its own exchanges.

    The kept state contains only those parts of the server's and agents' states that affect the parameter, now or later.
    A shared coin is averaged over. Coins do not depend on the past, so that the mean of an affine method's state
    follows the average map exactly.
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
        """Returns the joint of the algorithm with other numerical settings, such as a step size, without new checks."""
        other = copy.copy(self)
        with precision():
            other.algorithm = tree.to_device(algorithm, "float64")
        return other

    @property
    def size(self) -> int:
        """The size of the kept state."""
        return len(self.kept)

    @property
    def one_map(self) -> bool:
        """Whether all rounds after the first are the same affine map."""
        return self.affine and self.alike

    def _start(self, theta):
        return ravel_pytree(floats(start(self.algorithm, theta, self.num_agents))[0])[0]

    def _parameter(self, state):
        return whole(self.unravel(state), self.rest)[0].theta

    def play(self, states: np.ndarray, tangents: Any = 0.0, *, index: Any = 1, key: Any = 0):
        """Returns for each row the state after a round, its derivative along `tangents`, and whether counters moved."""
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
        """Determines the parts that the parameter depends on, and whether rounds are random, equal and affine."""
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
                f"{self.name} draws random numbers in addition to the shared coin, so its mean rounds cannot be "
                "derived from its exchanges."
            )
        if len(self.coins) > 1:
            self._check_affine()

    def _needed(self, rates: np.ndarray) -> np.ndarray:
        """Returns the positions in the state that the parameter depends on, now or after more rounds."""
        count = len(rates)
        reaches = np.stack([np.abs(rates[:, self.part == k]).max(1) != 0 for k in range(count)], axis=1)
        needed = np.array([np.abs(self.shown[:, self.part == k]).max() != 0 for k in range(count)])
        for _ in range(count):
            needed = needed | reaches[:, needed].any(1)
        return np.flatnonzero(needed[self.part])

    def _check_affine(self) -> None:
        if not self.affine:
            raise TypeError(
                f"A round of {self.name} is not an affine map of the state that it carries from round to round."
            )

    def check(self) -> None:
        """Raises if the rounds are not the same affine map."""
        self._check_affine()
        if not self.alike:
            raise TypeError(
                f"The rounds of {self.name} depend on the number of the round, so there is no single map. "
                "`theory.exact.noiseless_error` follows them one by one."
            )

    def linear(self, columns: np.ndarray) -> np.ndarray:
        r"""Returns $\Phi V$ for some columns `(n, k)`."""
        tangents = np.zeros((columns.shape[1], len(self.base)))
        tangents[:, self.kept] = columns.T
        return self.play(self.base, tangents)[1][:, self.kept].T

    def transposed(self, vector: np.ndarray) -> np.ndarray:
        r"""Returns $\Phi^T v$."""
        full = np.zeros(len(self.base))
        full[self.kept] = np.ravel(vector)
        with precision():
            setting = (self.agents, self.algorithm, self.rest, self.unravel, self.coins, self.weights)
            return np.asarray(pull_back(*setting, jnp.asarray(self.base), jnp.asarray(full)))[self.kept]

    def sums(self) -> np.ndarray:
        """Returns the sums of the kept state over agents, and the server's parts, as linear forms `(n, k)`."""
        found = []
        for part in np.unique(self.part[self.kept]):
            at = np.flatnonzero(self.part[self.kept] == part)
            times = 1 if part < self.on_server else self.num_agents
            columns = np.zeros((self.size, len(at) // times))
            columns[at] = np.tile(np.eye(len(at) // times), (times, 1)) / np.sqrt(times)
            found.append(columns)
        return np.concatenate(found, axis=1)

    def ends(self) -> JointMap:
        """Returns the map without its matrix, which may be large."""
        self.check()
        kept, (after, spread, _) = self.kept, self.play(self.base, self.start_spread.T, index=0)
        offset, first = (self.play(self.base)[0][0] - self.base)[kept], (after[0] - self.base)[kept]
        return JointMap(np.empty((0, 0)), offset, self.shown[:, kept], first, spread[:, kept].T)

    def map(self) -> JointMap:
        return self.ends()._replace(transition=self.linear(np.eye(self.size)))

    def parameters(self, rounds: int, theta: np.ndarray) -> np.ndarray:
        """Returns the parameter before the first round and after each of `rounds`, `(rounds + 1, d)`, from `theta`."""
        with precision():
            setting = (self.agents, self.algorithm, self.coins, self.weights)
            return np.asarray(follow_all(*setting, jnp.asarray(theta, dtype="float64"), rounds))


def joint_map(problem: Problem, algorithm: AbstractAlgorithm) -> JointMap:
    r"""Returns the map over one round of everything that a method carries, averaged over a shared coin.

    The map is computed by differentiating the algorithm's exchanges. Parts that never affect the parameter are omitted:
    for FedHSA and Local SA it is the map of the error alone, for SCAFFLSA that of the error and the agents' shifts.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: an algorithm with a constant step size.

    Raises `TypeError` if the problem or the rounds are not affine, or if rounds differ from each other.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> joint_map(problem, fedhsa.FedHSA(0.02, local_steps=5)).transition.shape
        (3, 3)
    """
    return Joint(problem, algorithm).map()


def check_reach(problem: Problem, algorithm: AbstractAlgorithm) -> None:
    """Raises if there is no round map because operators are not affine or step sizes change."""
    if not problem.affine:
        raise TypeError(
            f"Exact laws require operators that are affine in the parameter; {type(problem.agents).__name__} is not "
            "declared affine. Set `affine = True` on the agent class if it is."
        )
    check_schedule(algorithm)


def check_schedule(algorithm: AbstractAlgorithm) -> None:
    """Raises if the step size of the algorithm, or of one inside a wrapper, changes."""

    def changing(x: Any) -> bool:
        return isinstance(x, AbstractSchedule)

    if any(changing(x) for x in jax.tree.leaves(algorithm, is_leaf=changing)):
        raise TypeError(
            "Exact laws require a constant step size, got a schedule. Predict its first and last step sizes instead."
        )


def start_error(problem: Problem, theta: Any) -> np.ndarray:
    """Returns the initial error of a run from `theta`."""
    start = problem.start if theta is None else tree.ravel_like("theta", theta, problem.like)
    return start - problem.root


# Rounds as the engine runs them, on agents without noise: once, for many states, and in sequence.


class _Told(Round):
    """A round whose coin is a given number between 0 and 1: events with a larger probability happen."""

    __slots__ = ()

    def happens(self, probability):
        return jnp.asarray(self.coin < probability)


def ways_of_the_coin(problem: Problem, algorithm: AbstractAlgorithm) -> tuple[np.ndarray, np.ndarray]:
    """Returns a number for each outcome of the coin, and its probability, by recording the requested probabilities."""
    asked: list[Any] = []

    class Listening(Round):
        __slots__ = ()

        def happens(self, probability):
            asked.append(probability)
            return jnp.asarray(True)

    def once(theta):
        begun = start(algorithm, theta, problem.num_agents)
        round = Listening(jnp.ones((), int), jax.random.key(0), num_agents=problem.num_agents)
        return _play(problem.agents, algorithm, begun, round)

    with precision():
        try:
            jax.eval_shape(once, jnp.asarray(problem.theta_star))
        except (TypeError, ValueError, IndexError) as error:
            raise TypeError(
                f"A round of {type(algorithm).__name__} cannot run on mean operators without observations, possibly "
                "because the method uses observations directly. Its mean rounds cannot be derived from its exchanges."
            ) from error
    try:
        edges = np.unique([0.0, 1.0, *(float(p) for p in asked)])
    except jax.errors.ConcretizationTypeError:
        name = type(algorithm).__name__
        raise TypeError(f"The probability of {name}'s coin is not a constant, so it has no mean map.") from None
    return (edges[:-1] + edges[1:]) / 2, np.diff(edges)


def _play(agents: Any, algorithm: AbstractAlgorithm, state: tuple[Any, Any], shared: Round):
    """Runs one round of one seed without random numbers."""
    keys = fold_in(shared.key, jnp.arange(shared.num_agents))
    return play(algorithm, one_seed(agents, (), shared, keys), *state)


def floats(state: Any) -> tuple[Any, Any]:
    """Splits a state into its real numbers and the rest."""
    return eqx.partition(state, eqx.is_inexact_array)


def whole(numbers: Any, rest: Any) -> Any:
    """Joins the two parts of a state."""
    return eqx.combine(numbers, rest)


def _on_average(agents, algorithm, state, index, key, coins, weights):
    """Returns the state after a round, averaged over the coin."""

    def fallen(coin):
        shared = _Told(index, key, coin=coin, num_agents=tree.leading_axis(agents))
        return _play(agents, algorithm, state, shared)

    every = jax.vmap(fallen)(coins)
    return jax.tree.map(lambda x: jnp.tensordot(weights, x, 1) if eqx.is_inexact_array(x) else x[0], every)


def _stepper(agents, algorithm, rest, unravel, coins, weights, index, key):
    """Returns a round as a function of the flat state, which also reports whether anything else changed."""

    def step(state):
        state = whole(unravel(state), rest)
        after = _on_average(agents, algorithm, state, index, jax.random.key(key), coins, weights)
        numbers, others = floats(after)
        moved = jax.tree.map(lambda x, y: jnp.any(x != y), others, rest)
        return ravel_pytree(numbers)[0], jnp.any(jnp.array([False, *jax.tree.leaves(moved)]))

    return step


@eqx.filter_jit
def follow(agents, algorithm, rest, unravel, coins, weights, states, tangents, index, key):
    """Returns states after a round and their derivatives along tangents, row by row."""

    def one(state, tangent, index, key):
        step = _stepper(agents, algorithm, rest, unravel, coins, weights, index, key)
        return jax.jvp(step, (state,), (tangent,), has_aux=True)

    return jax.vmap(one)(states, tangents, index, key)


@eqx.filter_jit
def pull_back(agents, algorithm, rest, unravel, coins, weights, state, covector):
    """Applies the transposed derivative of a round."""
    step = _stepper(agents, algorithm, rest, unravel, coins, weights, jnp.ones((), int), 0)
    return jax.vjp(step, state, has_aux=True)[1](covector)[0]


@eqx.filter_jit
def follow_all(agents, algorithm, coins, weights, theta, rounds: int):
    """Returns the parameter of every round, from a start."""

    def step(state, index):
        state = _on_average(agents, algorithm, state, index, jax.random.key(0), coins, weights)
        return state, state[0].theta

    _, path = jax.lax.scan(step, start(algorithm, theta, tree.leading_axis(agents)), jnp.arange(rounds))
    return jnp.concatenate([theta[None], path])
