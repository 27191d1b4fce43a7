"""Live environments of Gymnasium as streams: copies that step together, each agent with its own physics."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import _check, tree
from .._extras import install
from .._random import host_generator
from .._types import SeedLike, precision
from ..sources.stream import AbstractStream
from .experience import Experience
from .parametric import AbstractParametricPolicy
from .physics import complete
from .policies import AbstractImprovement, Uniform
from .rollouts import LiveEpisodes

if TYPE_CHECKING:
    import gymnasium

__all__ = ["GymEpisodes", "GymStream", "returns"]

MODES = ("sync", "vector_entry_point")

Policy = Callable[[Any], Any]


@dataclasses.dataclass(eq=False)
class GymStream(AbstractStream):
    r"""One agent's `Experience` in a Gymnasium environment, which is stepped when a block is requested.

    `num_envs` copies step together through Gymnasium's vector interface. They form one Markov chain: one step of all
    copies is one observation, over which agents (`problems.experience`) average. A time limit truncates an episode
    but does not terminate it: its last state counts like any other state, and the next episode begins in a new state.

    **Arguments:**

    - `environment`: the name of a registered environment, or a function that makes one.
    - `features`: a function of observations `(..., n)` that returns `(..., k)`.
    - `policy`: a function of observations `(..., n)` that returns the probabilities of the actions `(..., actions)`; or
      a policy that improves with the parameter (`Softmax`, `EpsilonGreedy`), evaluated at the parameter at the start of
      the round. Default: all actions have equal probability.
    - `discount`: $\gamma$.
    - `num_envs`: the number of copies that step together.
    - `physics`: constants of the environment by name, like `{"gravity": 12.0, "length": 0.7}` for a cart pole.
      Constants that the environment derives from them when it is built (the moment of the pole) are recomputed.
    - `options`: further arguments of the environment, like `{"max_episode_steps": 200}`.
    - `actions`: the environment's input for each action, `(num_actions, ...)`, if its actions are not integers.
    - `mode`: `"sync"`, or `"vector_entry_point"` for environments with a vectorised implementation (`CartPole-v1`),
      which is faster for many copies. In the latter, a copy whose episode has ended does nothing for one step.
    - `evaluation_episodes`, `evaluation_steps`: a policy that improves is judged by its mean return over this number of
      episodes of each agent, in separate copies, each with at most this number of steps.

    All random numbers, including those of the environment, are derived from the run's key, the agent's number and the
    round. A stream continues in another process from the same state if the state can be saved: this holds for
    Gymnasium's classic control and toy text, and for your own environment if it has `state_names`, the names of the
    attributes that make up its state. Other environments begin a new episode in the other process.

    !!! example
        >>> from fedhsa.environments.features import Fourier
        >>> phi = Fourier([-2.4, -3, -0.21, -3], [2.4, 3, 0.21, 3], order=1)
        >>> stream = GymStream("CartPole-v1", features=phi, num_envs=3, physics={"gravity": 12.0})
        >>> stream.draw(np.random.default_rng(0), 5).features.shape      # steps, copies, features
        (5, 3, 16)
    """

    environment: "str | Callable[[], gymnasium.Env]"
    _: dataclasses.KW_ONLY
    features: Callable[[Any], Any]
    policy: "Policy | AbstractImprovement | None" = None
    discount: float = 0.99
    num_envs: int = 1
    physics: Mapping[str, float] | None = None
    options: Mapping[str, Any] | None = None
    actions: Any = None
    mode: str = "sync"
    evaluation_episodes: int = 16
    evaluation_steps: int = 1000

    def __post_init__(self):
        _check.number("discount", self.discount, least=0.0, most=1.0)
        for name in ("evaluation_episodes", "evaluation_steps"):
            _check.count(name, getattr(self, name))
        self.copies = self._copies(self.num_envs, self.mode)
        if self.policy is None:
            self.policy = Uniform(self.copies.num_actions)
        self._seen: np.ndarray | None = None  # None before the first episode
        self._action = np.zeros(self.num_envs, np.int32)

    def _copies(self, num_envs: int, mode: str) -> "_Copies":
        return _Copies(self.environment, num_envs, self.physics or {}, self.options or {}, self.actions, mode)

    @functools.cached_property
    def _judges(self) -> "_Copies":
        """The copies in which the policy is judged, separate from those in which it learns."""
        return self._copies(self.evaluation_episodes, "sync")

    def fresh(self):
        return dataclasses.replace(self)

    @property
    def controlled(self) -> bool:
        """Whether the policy depends on the parameter."""
        return isinstance(self.policy, AbstractImprovement)

    @property
    def judged_by(self):
        return "mean_return" if self.controlled else None

    @property
    def resumable(self):
        return bool(self.copies.state_names)

    @property
    def like(self):
        space = self.copies.envs.observation_space
        k = np.shape(self.features(np.zeros(space.shape, space.dtype)))
        n, number = self.copies.num_envs, np.zeros(self.copies.num_envs)
        if len(k) != 2 or k[0] != n:
            raise ValueError(f"`features` must give ({n}, k) for observations {space.shape}, got {k}.")
        return Experience(np.zeros(k), self._action, number, number, np.zeros(k), self._action)

    def draw(self, generator, length, theta=None):
        policy = self._behaviour(theta)

        def choose(seen: np.ndarray) -> np.ndarray:
            return _choose(policy(seen), self.copies, generator)

        if self._seen is None:
            self._seen = self.copies.reset(int(generator.integers(2**31)))
            self._action = choose(self._seen)
        else:
            self.copies.seed(generator)
        steps = [self._step(choose) for _ in range(length)]
        seen, action, reward, terminated, last, next_action, moved = (
            np.stack(part) for part in zip(*steps, strict=True)
        )
        features = np.asarray(self.features(seen), dtype=np.float64) * moved[..., None]
        discount = np.where(terminated, 0.0, float(self.discount))
        next_features = np.asarray(self.features(last), dtype=np.float64)
        return Experience(features, action, reward, discount, next_features, next_action)

    def _behaviour(self, theta: Any) -> Policy:
        if isinstance(self.policy, AbstractImprovement):
            return self.policy.at(_parameter(theta))
        assert self.policy is not None
        return self.policy

    @classmethod
    def returns_together(cls, streams, generators, thetas):
        each = zip(streams, generators, thetas, strict=True)
        return np.array([_earned(s._judges, s._behaviour(theta), g, s.evaluation_steps).mean() for s, g, theta in each])

    def _step(self, choose: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, ...]:
        seen, action, moved = self._seen, self._action, ~self.copies.waiting
        after, reward, terminated, last, done = self.copies.step(action)
        next_action = choose(last)
        # At the start of an episode no action has been chosen yet.
        self._seen, self._action = after, np.where(done | ~moved, choose(after), next_action)
        assert seen is not None
        return seen, action, reward, terminated, last, next_action, moved

    def save(self):
        if self._seen is None or not self.copies.state_names:
            return {}
        return {"seen": self._seen, "action": self._action, **self.copies.save()}

    def restore(self, saved):
        if not saved:
            self._seen = None
            return
        self._seen, self._action = np.array(saved["seen"]), np.array(saved["action"])
        self.copies.restore(saved)


@dataclasses.dataclass(eq=False)
class GymEpisodes(AbstractStream):
    r"""Batches of episodes in a Gymnasium environment, played by a policy at the current parameter.

    This stream is for `problems.policy_gradient.live_agent`. One observation is a batch of episodes, each in its own
    copy; all observations of a round are played at the parameter at the start of the round. Observations share no
    state, so a stream can continue in any process.

    **Arguments:**

    - `environment`: the name of a registered environment, or a function that makes one.
    - `policy`: `Categorical` or `Gaussian`, from `fedhsa.environments`.
    - `horizon`: the largest number of steps of an episode.
    - `batch`: the number of episodes in one observation.
    - `physics`, `options`: as for `GymStream`.
    - `evaluation_episodes`: the number of episodes, in separate copies, over which a record of returns averages.

    !!! example
        >>> import equinox as eqx, jax
        >>> from fedhsa.environments import Categorical
        >>> linear = Categorical(eqx.nn.Linear(4, 2, key=jax.random.key(0)))
        >>> stream = GymEpisodes("CartPole-v1", linear, horizon=20, batch=3, physics={"gravity": 12.0})
        >>> block = stream.draw(np.random.default_rng(0), 2, np.zeros(10))
        >>> block.seen.shape                                  # observations, episodes, steps, what is seen
        (2, 3, 20, 4)
    """

    environment: "str | Callable[[], gymnasium.Env]"
    policy: AbstractParametricPolicy
    _: dataclasses.KW_ONLY
    horizon: int = 200
    batch: int = 8
    physics: Mapping[str, float] | None = None
    options: Mapping[str, Any] | None = None
    evaluation_episodes: int = 16

    def __post_init__(self):
        for name in ("horizon", "batch", "evaluation_episodes"):
            _check.count(name, getattr(self, name))
        self.copies = _Copies(self.environment, self.batch, self.physics or {}, self.options or {}, None, "sync")

    @functools.cached_property
    def _judge(self) -> "GymEpisodes":
        """The copies in which the policy is judged, separate from those in which it learns."""
        return dataclasses.replace(self, batch=self.evaluation_episodes)

    def fresh(self):
        return dataclasses.replace(self)

    @property
    def controlled(self) -> bool:
        """True: episodes depend on the parameter."""
        return True

    @property
    def judged_by(self):
        return "mean_return"

    @property
    def like(self):
        seen, space = (getattr(self.copies.envs, f"single_{kind}_space") for kind in ("observation", "action"))
        shape = (self.copies.num_envs, self.horizon)
        number = np.zeros(shape)
        return LiveEpisodes(_zeros(shape, seen), _zeros(shape, space), number, number, number)

    def draw(self, generator, length, theta=None):
        return self.draw_together([self], [generator], length, [_parameter(theta)])[0]

    @classmethod
    def draw_together(cls, streams, generators, length, thetas):
        batches = [_play_together(streams, generators, thetas) for _ in range(length)]
        return [jax.tree.map(lambda *parts: np.stack(parts), *of_one) for of_one in zip(*batches, strict=True)]

    @classmethod
    def returns_together(cls, streams, generators, thetas):
        played = _play_together([stream._judge for stream in streams], generators, thetas)
        return np.array([episodes.reward.sum(1).mean() for episodes in played])


def _zeros(shape: tuple[int, ...], space: Any) -> np.ndarray:
    """Returns zeros for elements of a space: integers for a discrete space, real numbers otherwise."""
    return np.zeros(shape, np.int32) if hasattr(space, "n") else np.zeros((*shape, *(space.shape or ())))


def _play_together(
    streams: Sequence[GymEpisodes], generators: Sequence[np.random.Generator], thetas: Sequence[np.ndarray]
) -> list[LiveEpisodes]:
    """Returns one observation of each stream: every copy plays one episode.

    The policy is evaluated once per step, for all copies of all streams; each stream has its own random numbers.
    """
    copies = [stream.copies.envs.envs for stream in streams]
    starts = [int(generator.integers(2**31)) for generator in generators]
    seen = np.array([[c.reset(seed=s + j)[0] for j, c in enumerate(of)] for of, s in zip(copies, starts, strict=True)])
    played = jax.tree.map(lambda x: np.zeros((len(streams), *x.shape), x.dtype), streams[0].like)
    alive, bits = np.ones(seen.shape[:2], dtype=bool), np.zeros((*seen.shape[:2], 2), np.uint32)
    with precision():
        policies, parameters = jax.device_put((tree.stack([s.policy for s in streams]), np.stack(thetas)))
        for t in range(streams[0].horizon):
            if not alive.any():
                break
            for i in np.flatnonzero(alive.any(1)).tolist():
                bits[i] = generators[i].integers(2**32, size=bits.shape[1:], dtype=np.uint32)
            action, log_prob = map(np.asarray, _act(policies, parameters, seen.astype(played.seen.dtype), bits))
            played.alive[:, :, t] = alive
            for whole, part in ((played.seen, seen), (played.action, action), (played.log_prob, log_prob)):
                whole[:, :, t][alive] = part[alive]
            told = action.astype(np.int64) if np.issubdtype(action.dtype, np.integer) else action
            for i, j in np.argwhere(alive).tolist():
                seen[i, j], played.reward[i, j, t], terminated, truncated, _ = copies[i][j].step(told[i, j])
                alive[i, j] = not (terminated or truncated)
    return [LiveEpisodes(*parts) for parts in zip(*played, strict=True)]


@jax.jit
def _act(policies: Any, thetas: Any, seen: Any, bits: Any) -> tuple[Any, Any]:
    """Returns an action for each copy of each stream, and the logarithm of its probability."""

    def of_copy(policy, theta, seen, bits):
        action = policy.sample(theta, seen, jax.random.wrap_key_data(bits, impl="threefry2x32"))
        return action, policy.log_prob(theta, seen, action)

    def of_stream(policy, theta, seen, bits):
        shaped = tree.unravel_like(policy.start)(theta)
        return jax.vmap(of_copy, (None, None, 0, 0))(policy, shaped, seen, bits)

    return jax.vmap(of_stream)(policies, thetas, seen, bits)


class _Copies:
    """A vector environment whose state can be set, and whose steps return the true last state of an episode."""

    def __init__(
        self,
        environment: Any,
        num_envs: int,
        physics: Mapping[str, Any],
        options: Mapping[str, Any],
        actions: Any,
        mode: str,
    ):
        self.num_envs = _check.count("num_envs", num_envs)
        _check.choice("mode", mode, MODES)
        self.envs = _make(environment, num_envs, options, mode)
        self.inner = [env.unwrapped for env in getattr(self.envs, "envs", [self.envs])]
        self.waiting = np.zeros(num_envs, dtype=bool)  # for the step in which a new episode begins
        self.native = mode != "sync"
        if self.envs.observation_space.shape is None:
            raise ValueError(f"`environment` must show arrays or numbers, got {self.envs.single_observation_space}.")
        self.actions = None if actions is None else np.asarray(actions)
        name = type(self.inner[0]).__name__
        for inner in self.inner:
            constants = {n for n, v in vars(inner).items() if type(v) in (int, float) and n[0] != "_"}
            for constant, value in complete(physics, lambda n, i=inner: getattr(i, n), constants, name).items():
                setattr(inner, constant, value)

    @property
    def num_actions(self) -> int:
        """The number of actions; raises if actions are not integers."""
        if self.actions is not None:
            return len(self.actions)
        space = self.envs.single_action_space
        if not hasattr(space, "n"):
            raise ValueError(
                f"`actions` must list what the environment gets, since its actions are {space}: for Pendulum "
                "`actions=[[-2.0], [0.0], [2.0]]`."
            )
        return int(space.n)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The attributes that make up the environment's state, if they are known."""
        module = type(self.inner[0]).__module__
        if (own := getattr(self.inner[0], "state_names", None)) is not None:
            return tuple(own)
        if not module.startswith(("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")):
            return ()
        if self.native:
            return ("state", "steps", "prev_done") if hasattr(self.inner[0], "prev_done") else ()
        return ("state",) if "classic_control" in module else ("s",)

    def reset(self, seed: int) -> np.ndarray:
        self.waiting = np.zeros(self.num_envs, dtype=bool)
        return np.asarray(self.envs.reset(seed=seed)[0])

    def seed(self, generator: np.random.Generator) -> None:
        for inner in self.inner:
            inner.np_random = np.random.default_rng(int(generator.integers(2**63)))

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the new observations, rewards, terminations, last observations of the step, and ended episodes."""
        numbered = np.issubdtype(action.dtype, np.integer)
        chosen = self.actions[action] if self.actions is not None else action.astype(np.int64) if numbered else action
        after, reward, terminated, truncated, info = self.envs.step(chosen)
        after, done = np.asarray(after), terminated | truncated
        last = after
        if self.native:  # the next episode begins with the next step, which has no effect
            self.waiting = done
            return after, np.asarray(reward, np.float64), terminated, last, np.zeros_like(done)
        if done.any():
            last = after.copy()
            for i in np.flatnonzero(done):
                last[i] = info["final_obs"][i]
        return after, np.asarray(reward, np.float64), terminated, last, done

    def save(self) -> dict[str, np.ndarray]:
        if self.native:
            return {f"env/{name}": np.asarray(getattr(self.inner[0], name)) for name in self.state_names}
        saved = {f"env/{n}": np.stack([np.asarray(getattr(i, n)) for i in self.inner]) for n in self.state_names}
        limited = [env for env in self.envs.envs if env.has_wrapper_attr("_elapsed_steps")]
        elapsed = [env.get_wrapper_attr("_elapsed_steps") for env in limited]
        return saved | ({"env/elapsed": np.array(elapsed)} if elapsed else {})

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        self.reset(0)  # Gymnasium requires a reset before a step
        if self.native:
            for name in self.state_names:
                setattr(self.inner[0], name, np.array(saved[f"env/{name}"]))
            self.waiting = np.array(saved["env/prev_done"])
            return
        for i, (env, inner) in enumerate(zip(self.envs.envs, self.inner, strict=True)):
            for name in self.state_names:
                value = np.array(saved[f"env/{name}"][i])
                setattr(inner, name, value if value.ndim else value.item())
            if "env/elapsed" in saved:
                env.set_wrapper_attr("_elapsed_steps", int(saved["env/elapsed"][i]))


def returns(
    environment: "str | Callable[[], gymnasium.Env]",
    policy: Policy,
    *,
    episodes: int = 20,
    physics: Mapping[str, float] | None = None,
    options: Mapping[str, Any] | None = None,
    actions: Any = None,
    max_steps: int = 100_000,
    key: SeedLike = 0,
) -> np.ndarray:
    """Returns the undiscounted returns of whole episodes.

    **Arguments:**

    - `environment`, `physics`, `options`, `actions`: as for `GymStream`.
    - `policy`: a function of observations that returns the probabilities of the actions.
    - `episodes`: the number of episodes, each in its own copy.
    - `max_steps`: the number of steps after which an unfinished episode is stopped; its rewards until then count.
    - `key`: the same key gives the same episodes.

    !!! example
        >>> returns("CartPole-v1", lambda seen: np.array([0.5, 0.5]), episodes=3).shape
        (3,)
    """
    copies = _Copies(environment, episodes, physics or {}, options or {}, actions, "sync")
    total = _earned(copies, policy, host_generator(key, "returns"), _check.count("max_steps", max_steps))
    copies.envs.close()
    return total


def _earned(copies: "_Copies", policy: Policy, generator: np.random.Generator, max_steps: int) -> np.ndarray:
    """Returns the undiscounted return of one episode of each copy."""
    seen = copies.reset(int(generator.integers(2**31)))
    total, over = np.zeros(copies.num_envs), np.zeros(copies.num_envs, dtype=bool)
    for _ in range(max_steps):
        if over.all():
            break
        seen, reward, _, _, done = copies.step(_choose(policy(seen), copies, generator))
        total += np.where(over, 0.0, reward)
        over |= done
    return total


def _make(environment: Any, num_envs: int, options: Mapping[str, Any], mode: str) -> Any:
    try:
        import gymnasium  # imported here because it is optional
    except ImportError as error:
        raise ImportError(f"`GymStream` needs Gymnasium: {install('gym')}.") from error
    same_step = gymnasium.vector.AutoresetMode.SAME_STEP
    if mode != "sync":
        if not isinstance(environment, str):
            raise ValueError(f"`environment` must be a name for `mode={mode!r}`, got {environment!r}.")
        envs = gymnasium.make_vec(environment, num_envs, vectorization_mode=mode, **options)
        if envs.metadata.get("autoreset_mode") is not gymnasium.vector.AutoresetMode.NEXT_STEP:
            raise ValueError(f'`mode`: {environment} does not reset in the next step as is expected; use "sync".')
        return envs
    if isinstance(environment, str):
        settings = {"autoreset_mode": same_step}
        return gymnasium.make_vec(environment, num_envs, vectorization_mode=mode, vector_kwargs=settings, **options)
    if options:
        raise ValueError("`options` are for an environment given by its name; let your function make it with them.")
    return gymnasium.vector.SyncVectorEnv([environment] * num_envs, autoreset_mode=same_step)


def _choose(chances: Any, copies: _Copies, generator: np.random.Generator) -> np.ndarray:
    """Samples an action for each copy with these probabilities."""
    chances, shape = np.asarray(chances, dtype=np.float64), (copies.num_envs, copies.num_actions)
    if chances.shape not in (shape, shape[1:]):
        raise ValueError(f"`policy` must give probabilities of shape {shape}, got {chances.shape}.")
    if not (np.isfinite(chances).all() and (chances >= 0).all() and np.allclose(chances.sum(-1), 1.0)):
        raise ValueError(f"`policy` must give probabilities, which add up to 1, got {chances}.")
    reached = np.broadcast_to(np.cumsum(chances, axis=-1), shape)
    return (generator.random(copies.num_envs)[:, None] > reached[:, :-1]).sum(-1).astype(np.int32)


def _parameter(theta: Any) -> np.ndarray:
    if theta is None:
        raise ValueError("`theta` must be given to a stream whose behaviour depends on it.")
    return np.asarray(theta, dtype=np.float64)
