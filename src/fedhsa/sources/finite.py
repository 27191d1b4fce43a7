"""Markov chains on finitely many states, sampled in constant time per step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Int, Shaped, UInt32

from .. import _check, kernels
from .._arrays import is_shared
from .._linear import by_parts
from .base import AbstractSource

ROW_SUM_TOLERANCE = 1e-9


class FiniteChain(AbstractSource):
    r"""A chain on the states $0, \dots, S - 1$; the observation is the state.

    A step costs two random words and two table look-ups, regardless of the number of states (Walker's alias method).

    **Arguments:**

    - `transition`: $P$, of shape `(S, S)`, with rows that sum to 1. It must have one closed class of states and be
      aperiodic; transient states are allowed.
    - `start`: the distribution of the first state, of shape `(S,)`, or the number of the initial state. Default:
      stationary.

    Both may have a leading axis, one entry per agent.

    Raises `ValueError` if `transition` or `start` is not valid.

    !!! example
        >>> FiniteChain([[0.9, 0.1], [0.2, 0.8]]).stationary.round(4)
        array([0.6667, 0.3333])
    """

    transition: np.ndarray
    start: np.ndarray
    stationary: np.ndarray
    """The stationary distribution."""
    _step_table: np.ndarray
    _start_table: np.ndarray
    _stationary_table: np.ndarray

    def __init__(self, transition, start=None):
        batched = np.ndim(transition) == 3
        P = _check.array("transition", transition, ("agents", "S", "S") if batched else ("S", "S"))
        P = P if batched else P[None]
        check_kernel(P[:1] if is_shared(P) else P)
        stationary = stationary_law(P)
        start = stationary if start is None else start_law(start, stationary.shape)
        visits = alias_table(stationary)
        unbatch = (lambda x: x) if batched else (lambda x: x[0])
        self.transition = unbatch(P)
        self.stationary = unbatch(stationary)
        self.start = unbatch(start)
        self._step_table = unbatch(alias_table(P))
        self._start_table = unbatch(visits if start is stationary else alias_table(start))
        self._stationary_table = unbatch(visits)

    def init(self, key, /):
        return alias_draw(key_bits(key), self._start_table)

    def sample(self, key, /):
        return alias_draw(key_bits(key), self._stationary_table)

    def step(self, key, state, /):
        return self._move(state, key_bits(key)), state

    def draw(self, keys, state, /):
        if kernels.kernel_for("walk"):
            states, following = self.walk(keys, state)
            return following[-1], states
        return jax.lax.scan(lambda state, bits: (self._move(state, bits), state), state, key_bits(keys))

    def walk(self, keys, state, /):
        """The states at the times of these keys, and the state after each of them, by a kernel if there is one."""
        bits = key_bits(keys)
        return kernels.walk(bits[:, 0], bits[:, 1], self._step_table, state)

    def expect(self, function, /):
        values = jax.vmap(function)(jnp.arange(self.stationary.shape[-1]))
        return jax.tree.map(lambda v: jnp.tensordot(self.stationary, v, axes=1), values)

    def _move(self, state, bits):
        return alias_draw(bits, self._step_table, state)


class Transition(NamedTuple):
    """Two consecutive states of a chain."""

    state: Shaped[Array, "*batch"]
    """The state at time $t$."""
    next_state: Shaped[Array, "*batch"]
    """The state at time $t + 1$."""


class Transitions(AbstractSource):
    """A finite chain observed in pairs: the observation at time $t$ is $(s_t, s_{t+1})$.

    **Arguments:**

    - `chain`: the chain.

    !!! example
        >>> source = Transitions(FiniteChain([[0.0, 1.0], [0.5, 0.5]], start=0))
        >>> _, seen = source.step(jax.random.key(0), source.init(jax.random.key(1)))
        >>> int(seen.state), int(seen.next_state)
        (0, 1)
    """

    chain: FiniteChain

    def init(self, key, /):
        return self.chain.init(key)

    def sample(self, key, /):
        return self.chain.sample(key)

    def step(self, key, state, /):
        next_state, state = self.chain.step(key, state)
        return next_state, Transition(state, next_state)

    def draw(self, keys, state, /):
        if kernels.kernel_for("walk"):
            seen = Transition(*self.chain.walk(keys, state))
            return seen.next_state[-1], seen
        last, states = self.chain.draw(keys, state)
        return last, Transition(states, jnp.append(states[1:], last))

    def expect(self, function, /):
        chain, S = self.chain, self.chain.stationary.shape[-1]
        states, next_states = jnp.divmod(jnp.arange(S * S), S)
        values = jax.vmap(function)(Transition(states, next_states))
        weights = jnp.ravel(chain.stationary[:, None] * chain.transition)
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)


def check_kernel(P: np.ndarray) -> None:
    """Raises `ValueError` if kernels `(agents, S, S)` are not stochastic, or not ergodic on one closed class."""
    if (P < 0).any():
        agent, row, column = np.argwhere(P < 0)[0]
        raise ValueError(
            f"`transition` must not be negative, got {P[agent, row, column]:.3g} for agent {agent}, "
            f"row {row}, column {column}."
        )
    sums = P.sum(-1)
    wrong = np.argwhere(abs(sums - 1) > ROW_SUM_TOLERANCE)
    if len(wrong):
        agent, row = wrong[0]
        raise ValueError(
            f"Each row of `transition` must sum to 1, got {sums[agent, row]:.9g} for agent {agent}, row {row}. "
            "Divide each row by its sum."
        )
    for agent in np.flatnonzero(~(P > 0).all((-1, -2))):
        closed = closed_classes(P[agent])
        if len(closed) > 1:
            raise ValueError(
                f"`transition` of agent {agent} has {len(closed)} separate recurrent classes, for instance the states "
                f"{closed[0][:5].tolist()} and {closed[1][:5].tolist()}, so its stationary distribution is not unique. "
                "Connect them, or give each class its own agent."
            )
        period = _period(P[agent][np.ix_(closed[0], closed[0])])
        if period > 1:
            raise ValueError(
                f"`transition` of agent {agent} is periodic (period {period}), so it never mixes. "
                "Make it lazy: 0.9 * P + 0.1 * I has the same stationary distribution."
            )


def stationary_law(P: np.ndarray) -> np.ndarray:
    """The stationary distributions `(agents, S)` of kernels with one closed class: $\\pi (I - P + 1 1^T) = 1^T$."""
    S = P.shape[-1]

    def law(P):
        system = np.swapaxes(np.eye(S) - P + 1.0, -1, -2)
        pi = np.linalg.solve(system, np.ones((len(P), S, 1)))[..., 0].clip(min=0)
        return pi / pi.sum(-1, keepdims=True)

    return by_parts(law, P, size=S * S)


def closed_classes(P: np.ndarray) -> list[np.ndarray]:
    """The sets of states that a kernel `(S, S)` never leaves; states outside them are transient."""
    count, label = scipy.sparse.csgraph.connected_components(scipy.sparse.csr_array(P > 0), connection="strong")
    leaves = {label[i] for i, j in np.argwhere(P > 0) if label[i] != label[j]}
    return [np.flatnonzero(label == c) for c in range(count) if c not in leaves]


def _period(P: np.ndarray) -> int:
    """The period of an irreducible kernel: the gcd of `level(i) + 1 - level(j)` over its edges."""
    level = scipy.sparse.csgraph.shortest_path(scipy.sparse.csr_array(P > 0), unweighted=True, indices=0).astype(int)
    i, j = np.nonzero(P)
    return int(np.gcd.reduce(level[i] + 1 - level[j]))


def start_law(start: Any, shape: tuple[int, int]) -> np.ndarray:
    """The distributions of the first state, `(agents, S)`, from one of them, one per agent, or a state."""
    if isinstance(start, int | np.integer):
        if not 0 <= start < shape[1]:
            raise ValueError(f"`start` must be a state from 0 to {shape[1] - 1}, got {start}.")
        start = np.eye(shape[1])[start]
    start = np.broadcast_to(np.asarray(start, dtype=np.float64), shape)
    if (start < 0).any() or (abs(start.sum(-1) - 1) > ROW_SUM_TOLERANCE).any():
        raise ValueError(f"`start` must be a probability vector per agent, got sums {start.sum(-1)}.")
    return start


def alias_table(law: np.ndarray) -> np.ndarray:
    """Two words for each column of a distribution `(..., S)`, next to each other because they are used together.

    Column `j` is kept if a random word is below its first word, and otherwise replaced by the column in its second
    word.
    """
    S = law.shape[-1]

    def of_some(law):
        return _alias_rows(law.reshape(-1, S)).reshape(*law.shape, 2)

    if law.ndim == 1:
        return of_some(law)
    # Small parts, because the rows are accessed many times and in random order.
    return by_parts(of_some, law, size=16 * law[0].size)


def _alias_rows(law: np.ndarray) -> np.ndarray:
    """Vose's construction for all rows `(n, S)`: in each pass every row pairs a light column with a heavy one.

    Columns are numbered through all rows, so that each look-up is in a flat array.
    """
    n, S = law.shape
    weight, first = law / law.sum(-1, keepdims=True) * S, S * np.arange(n)
    # Light columns first. A heavy column that has become light replaces the light one just processed.
    order = (np.argsort(weight, axis=-1) + first[:, None]).ravel()
    weight, keep, alias = weight.ravel(), np.ones(n * S), np.tile(np.arange(S, dtype=np.uint32), n)
    light, heavy = first, first + S - 1
    for _ in range(S - 1):
        small, large = order[light], order[heavy]
        kept = weight[small]
        going = (light < heavy) & (kept < 1)
        if not going.all():
            first, light, heavy, small, large, kept = (x[going] for x in (first, light, heavy, small, large, kept))
        keep[small], alias[small] = kept, large - first
        remainder = weight[large] + (kept - 1)
        weight[large] = remainder
        exhausted = remainder < 1
        order[light] = np.where(exhausted, large, small)
        light, heavy = light + ~exhausted, heavy - exhausted
    threshold = np.minimum(keep * 2.0**32, 2.0**32 - 1).astype(np.uint32)
    return np.stack([threshold, alias], axis=-1).reshape(n, S, 2)


def key_bits(key) -> UInt32[Array, "*batch 2"]:
    """The random words of a key."""
    # A folded key already consists of 64 fresh random bits; hashing it again would only double the cost.
    return jax.random.key_data(key)


def alias_draw(bits: UInt32[Array, " 2"], table: Any, *row: Int[Array, ""]) -> Int[Array, ""]:
    """Draws a column from the row's distribution."""
    return kernels.alias_draw(bits[0], bits[1], table, *row)
