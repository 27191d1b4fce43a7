"""Sources of decision processes: simulators of all actions, and chains that depend on the parameter."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, UInt32

from .._random import fold_in
from .base import AbstractIndependent, AbstractSource
from .finite import alias_draw, alias_table, key_bits


class Generative(AbstractIndependent):
    """A simulator: the observation is a next state for every pair of state and action.

    **Arguments:**

    - `laws`: the distributions of the next state, of shape `(N, S)`, one row for each pair.

    !!! example
        >>> laws = np.array([[1.0, 0.0], [0.5, 0.5]])  # from the first pair to state 0, from the second to either
        >>> source = fedhsa.tree.to_device(Generative(laws), "float32")
        >>> _, seen = source.step(jax.random.key(0), source.init(jax.random.key(1)))
        >>> seen.shape, int(seen[0])
        ((2,), 0)
    """

    laws: np.ndarray
    _table: np.ndarray

    def __init__(self, laws: np.ndarray):
        self.laws, self._table = laws, alias_table(laws)

    def step(self, key, state, /):
        pairs = jnp.arange(self._table.shape[-3])
        return (), jax.vmap(lambda bits, pair: alias_draw(bits, self._table, pair))(
            key_bits(fold_in(key, pairs)), pairs
        )


class PendingSteps(NamedTuple):
    """Steps that the agent will take: the state before them, and their random bits.

    !!! example
        >>> source = Decisions(np.full((2, 2, 2), 0.5), start=np.array([1.0, 0.0]))
        >>> source.step(jax.random.key(0), (0, 1))[1].start
        (0, 1)
    """

    start: PyTree
    """The state before the steps, with a leading axis of 1."""
    bits: UInt32[Array, "length 2"]
    """Two random words for each step."""


class AbstractControlled(AbstractSource):
    """The base class of chains whose distribution depends on the parameter, so that they cannot be stepped in advance.

    A block holds the random bits of the steps (`PendingSteps`); the agent takes the steps, by `react`, when an
    algorithm makes it observe. `init` returns the state at position 0, which is the block's `start`.

    !!! example
        >>> source = Decisions(np.full((2, 2, 2), 0.5), start=np.array([1.0, 0.0]))
        >>> isinstance(source, AbstractControlled)
        True
    """

    def step(self, key, state, /):
        return state, PendingSteps(state, key_bits(key))

    def draw(self, keys, state, /):
        # The start has a leading axis, like everything in a block.
        return state, PendingSteps(jax.tree.map(lambda x: x[None], state), key_bits(keys))


class Decisions(AbstractControlled):
    """A decision process whose actions the agent chooses; the chain's state is a pair of state and action.

    **Arguments:**

    - `transitions`: $P(s' \\mid s, a)$, of shape `(S, A, S)`.
    - `start`: the distribution of the first state, of shape `(S,)`; the first action is uniform.

    Both may have a leading axis, one entry per agent.

    !!! example
        >>> moves = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])  # in each of two states: stay, or go
        >>> Decisions(moves, start=np.array([1.0, 0.0])).transitions.shape
        (2, 2, 2)
    """

    transitions: np.ndarray
    start: np.ndarray
    _step_table: np.ndarray
    _start_table: np.ndarray

    def __init__(self, transitions: np.ndarray, start: np.ndarray):
        self.transitions, self.start = transitions, start
        self._step_table, self._start_table = alias_table(transitions), alias_table(start)

    def init(self, key, /) -> tuple[Any, Any]:
        state = alias_draw(key_bits(key), self._start_table)
        action = jax.random.randint(fold_in(key, 1), (), 0, self._step_table.shape[-3], dtype=jnp.int32)
        return state, action

    def follow(self, bits: UInt32[Array, " 2"], state: Any, action: Any) -> Any:
        """Draws the next state."""
        return alias_draw(bits, self._step_table, state, action)


class Decision(NamedTuple):
    """A state, the action taken there, and a state that followed."""

    state: Any
    action: Any
    next_state: Any


class Restarts(Decisions):
    """A decision process with restarts; the chain's state is that of the process alone.

    **Arguments:**

    - `transitions`: $P(s' \\mid s, a)$, of shape `(S, A, S)`.
    - `start`: the distribution of the first state and of the states after a restart, of shape `(S,)`.

    Both may have a leading axis, one entry per agent.

    !!! example
        >>> moves = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])  # in each of two states: stay, or go
        >>> source = fedhsa.tree.to_device(Restarts(moves, start=np.array([0.0, 1.0])), "float32")
        >>> int(source.init(jax.random.key(0)))
        1
    """

    def __init__(self, transitions: np.ndarray, start: np.ndarray):
        super().__init__(transitions, start)

    def init(self, key, /):
        return self.begin(key_bits(key))

    def begin(self, bits: UInt32[Array, " 2"]) -> Any:
        """Draws a first state."""
        return alias_draw(bits, self._start_table)
