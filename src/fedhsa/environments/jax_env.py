"""Environments written in JAX, as sources: thousands of copies step inside the compiled simulation."""

import contextlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check, tree
from .._random import fold_in
from ..sources import AbstractSource
from .experience import Experience
from .features import as_module
from .physics import complete
from .policies import Uniform


class JaxEnvironment(AbstractSource):
    r"""An environment with gymnax's interface under a fixed policy, as a Markov chain of `Experience`.

    The chain's state is the states, observations and chosen actions of all copies. A new episode begins when one has
    ended; if it ended by its time limit, `next_features` are those of its last state.

    **Arguments:**

    - `environment`: the environment, with gymnax's `reset_env`, `step_env` and `is_truncated` (from its version 1.0 on,
      where a time limit is not a terminal state).
    - `params`: its constants.
    - `features`: a function of the observation.
    - `policy`: a function of the observation that returns the probabilities of the actions. Default: uniform.
    - `discount`: $\gamma$.
    - `num_envs`: the number of copies that step together.
    - `actions`: the environment's input for each action, `(num_actions, ...)`. Default: the action's index.

    Computations are in the precision of the run.

    !!! example
        >>> import gymnax
        >>> cart_pole, constants = gymnax.make("CartPole-v1")
        >>> source = JaxEnvironment(cart_pole, constants, features=lambda seen: seen, num_envs=2)
        >>> source.num_envs
        2
    """

    environment: Any = eqx.field(static=True)
    params: Any
    features: Any
    policy: Any
    discount: Any
    num_envs: int = eqx.field(static=True)
    actions: Any

    def __init__(
        self,
        environment: Any,
        params: Any,
        *,
        features: Any,
        policy: Any = None,
        discount: float = 0.99,
        num_envs: int = 1,
        actions: Any = None,
    ):
        self.environment, self.params, self.features = environment, params, as_module(features)
        self.num_envs = _check.count("num_envs", num_envs)
        _check.number("discount", discount, least=0.0, most=1.0)
        self.discount = np.asarray(discount, dtype=np.float64)
        self.actions = None if actions is None else np.asarray(actions, dtype=np.float64)
        self.policy = Uniform(self._count_actions()) if policy is None else as_module(policy)

    def init(self, key, /):
        with lenient():
            keys = fold_in(key, jnp.arange(2 * self.num_envs))
            state, seen = self._reset(keys[: self.num_envs])
            return state, seen, self._choose(_uniform(keys[self.num_envs :])[..., 0], seen)

    def step(self, key, state, /):
        state, block = self.draw(key[None], state)
        return state, tree.take(block, 0)

    def draw(self, keys, state, /):
        # What depends on no state is made at once for all steps: random numbers, and the starts of new episodes.
        # In one piece, since hashes take long to compile.
        folded = fold_in(keys[:, None], jnp.arange(3 * self.num_envs)[None])
        move, reset, chance = (folded[:, part * self.num_envs : (part + 1) * self.num_envs] for part in range(3))
        with lenient():
            starts = jax.vmap(lambda keys: self._reset(keys))(reset)
            state, (seen, action, reward, terminated, last, next_action) = jax.lax.scan(
                lambda state, given: self._move(state, given), state, (move, starts, _uniform(chance))
            )
            features = jax.vmap(jax.vmap(lambda observation: self.features(observation)))
            discount = jnp.where(terminated, 0.0, self.discount)
            return state, Experience(features(seen), action, reward, discount, features(last), next_action)

    def _move(self, state, given):
        """One step of all copies; a new episode begins where one has ended."""
        (inner, seen, action), (keys, (start, seen_at_start), uniform) = state, given
        told = action if self.actions is None else jnp.asarray(self.actions)[action]
        last, after, reward, terminated, _ = jax.vmap(self.environment.step_env, (0, 0, 0, None))(
            keys, inner, told, self.params
        )
        done = terminated | jax.vmap(self.environment.is_truncated, (0, None))(after, self.params)
        next_action = self._choose(uniform[..., 0], last)

        def begin_again(new, old):
            ended = done.reshape(-1, *[1] * (new.ndim - 1))
            return jnp.where(ended, new, old.astype(new.dtype))  # some environments change precision as they go

        inner, now = jax.tree.map(begin_again, (start, seen_at_start), (after, last))
        now_action = jnp.where(done, self._choose(uniform[..., 1], now), next_action)
        step = seen, action, reward.astype(float), terminated, last.astype(seen.dtype), next_action
        return (inner, now, now_action), step

    def _reset(self, keys):
        seen, state = jax.vmap(self.environment.reset_env, (0, None))(keys, self.params)
        return jax.tree.map(strong, (state, seen))

    def _choose(self, uniform, seen):
        def of_one(uniform, observation):
            reached = jnp.cumsum(jnp.asarray(self.policy(observation), dtype=float))
            return jnp.sum(uniform > reached[:-1]).astype(jnp.int32)

        return jax.vmap(of_one)(uniform, seen)

    def _count_actions(self) -> int:
        if self.actions is not None:
            return len(self.actions)
        number = getattr(self.environment.action_space(self.params), "n", None)
        if number is None:
            raise ValueError(
                "`actions` must list what the environment takes, since its actions are not numbered: for Pendulum "
                "`actions=[[-2.0], [0.0], [2.0]]`."
            )
        return int(number)


def perturbed(params: Any, **physics: Any) -> Any:
    """Change some of gymnax's constants, and those derived from them. Raises `ValueError` if a name is unknown.

    !!! example
        >>> import gymnax
        >>> float(perturbed(gymnax.make("CartPole-v1")[1], length=0.8).polemass_length.round(3))
        0.08
    """
    values = complete(physics, lambda name: getattr(params, name), vars(params), type(params).__name__)
    return params.replace(**{name: np.asarray(value, dtype=np.float64) for name, value in values.items()})


def _uniform(keys: Any) -> Any:
    """Two numbers in (0, 1) for each key, whose data are random bits."""
    return (jax.random.key_data(keys).astype(float) + 0.5) * 2.0**-32


def strong(value: Any) -> Any:
    """An array without a weak type, as loops require."""
    value = jnp.asarray(value)
    return jax.lax.convert_element_type(value, value.dtype)


@contextlib.contextmanager
def lenient() -> Iterator[None]:
    """Allows type and rank promotion, which third-party environments need even if the user forbids it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
