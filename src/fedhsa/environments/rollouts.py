"""Episodes played by a parametric policy, in a model or in an environment written in JAX."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._random import fold_in
from .._types import Key
from ..sources.finite import alias_draw, alias_table, key_bits
from .jax_env import lenient, strong
from .model import Model
from .parametric import AbstractParametricPolicy


class Episodes(NamedTuple):
    """Observations, actions and rewards: arrays `(episodes, steps, ...)`."""

    seen: Any
    action: Any
    reward: Any
    alive: Any
    """1 for the steps that were taken, 0 after the end of an episode."""


class LiveEpisodes(NamedTuple):
    """`Episodes` from a stream, with the log probabilities of their actions."""

    seen: Any
    action: Any
    reward: Any
    alive: Any
    log_prob: Any
    r"""$\log \pi(a_t \mid s_t)$ when they were played."""


class AbstractWorld(eqx.Module):
    """An environment in which episodes are played."""

    @abc.abstractmethod
    def reset(self, key: Key, /) -> tuple[Any, Any]:
        """The first state of an episode, and its observation."""

    @abc.abstractmethod
    def step(self, key: Key, state: Any, action: Any, /) -> tuple[Any, Any, Any, Any]:
        """The next state, its observation, the reward, and whether the episode is over."""


class ModelWorld(AbstractWorld):
    """One agent's finite model; the observation is the state's index or its features.

    All arrays may carry a leading axis, one entry per agent.
    """

    rewards: np.ndarray
    """`(S, A, S)`."""
    ends: np.ndarray
    """`(S,)`."""
    features: np.ndarray | None
    """`(S, k)`."""
    _step_table: np.ndarray
    _start_table: np.ndarray

    def __init__(self, model: Model, features: np.ndarray | None = None):
        # Rows of states that end an episode are not used, and need not be distributions.
        P = np.where(model.ends[:, :, None, None], 1 / model.num_states, model.transitions)
        rewards = model.rewards if model.rewards.ndim == 4 else model.rewards[..., None]
        self.rewards, self.ends, self.features = np.broadcast_to(rewards, P.shape), model.ends, features
        self._step_table, self._start_table = alias_table(P), alias_table(model.start)

    def see(self, state: Any) -> Any:
        """The observation of a state."""
        return state if self.features is None else self.features[state]

    def reset(self, key, /):
        state = alias_draw(key_bits(key), self._start_table)
        return state, self.see(state)

    def step(self, key, state, action, /):
        following = alias_draw(key_bits(key), self._step_table, state, action)
        return following, self.see(following), self.rewards[state, action, following], self.ends[following]


class JaxWorld(AbstractWorld):
    """An environment with gymnax's interface.

    **Arguments:**

    - `environment`: the environment, with gymnax's `reset_env`, `step_env` and `is_truncated`.
    - `params`: its constants.
    - `shift`: a vector that is added to every action. Default: none.
    """

    environment: Any = eqx.field(static=True)
    params: Any
    shift: Any = None

    def reset(self, key, /):
        with lenient():
            seen, state = self.environment.reset_env(key, self.params)
            return jax.tree.map(strong, (state, seen))

    def step(self, key, state, action, /):
        with lenient():
            told = action if self.shift is None else action + self.shift
            seen, after, reward, terminated, _ = self.environment.step_env(key, state, told, self.params)
            over = terminated | self.environment.is_truncated(after, self.params)
            # Some environments change precision as they go.
            after = jax.tree.map(lambda new, old: jnp.asarray(new).astype(jnp.asarray(old).dtype), after, state)
            return after, seen, jnp.asarray(reward).astype(float), over


def play(
    world: AbstractWorld, policy: AbstractParametricPolicy, theta: Any, key: Key, episodes: int, horizon: int
) -> Episodes:
    """Plays a number of episodes of at most `horizon` steps under one parameter."""

    def of_one(key):
        # All keys at once: hashes take long to compile, and inside the loop they would take long to run.
        first, keys = fold_in(key, 0), fold_in(key, 1 + jnp.arange(2 * horizon)).reshape(horizon, 2)
        state, seen = world.reset(first)

        def step(carry, keys):
            state, seen, alive = carry
            action = policy.sample(theta, seen, keys[0])
            state, following, reward, over = world.step(keys[1], state, action)
            taken = Episodes(seen, action, jnp.where(alive, reward, 0.0), alive.astype(reward.dtype))
            return (state, following.astype(seen.dtype), alive & ~over), taken

        return jax.lax.scan(step, (state, seen, jnp.array(True)), keys)[1]

    return jax.vmap(of_one)(fold_in(key, jnp.arange(episodes)))
