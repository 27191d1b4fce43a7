"""Code that most methods share: local steps, sending the parameter, and moving it."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import _check, kernels, tree
from .._types import Block, Theta
from ..problems import AbstractAgent
from .base import AbstractAlgorithm, Exchange, check_local_steps, check_step_size
from .schedules import AbstractSchedule


class Server(NamedTuple):
    """The server's state: the parameter."""

    theta: Theta


class AbstractMethod(AbstractAlgorithm):
    """The base class of methods with a step size, whose agents have no memory unless `init` says otherwise."""

    step_size: float | AbstractSchedule

    def __check_init__(self):
        check_step_size("step_size", self.step_size)

    def init(self, theta) -> tuple[Any, Any]:
        return Server(theta), ()


class AbstractLocalSteps(AbstractMethod):
    """The base class of methods whose rounds use `local_steps` observations of each agent.

    Unless `exchanges` says otherwise, agents receive the parameter and reply with a displacement.
    """

    local_steps: int = eqx.field(static=True)

    def __check_init__(self):
        check_local_steps(self.local_steps)

    @property
    def block_length(self):
        return self.local_steps

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return (Exchange("delta", self._send, self._local_steps, self._move, mean_suffices=True),)

    def _send(self, server, round) -> Any:
        return server.theta

    @abc.abstractmethod
    def _local_steps(self, message, memory, agent, block, round, /) -> tuple[Any, Any]:
        """The agent's reply and its memory."""

    def _move(self, server, replies, round):
        return move(server, replies, round)


class AbstractServerStep(AbstractLocalSteps):
    """The base class of methods whose server scales the mean displacement by a separate step size."""

    server_step: float = 1.0

    def __check_init__(self):
        _check.scalar("server_step", self.server_step, above=0.0)

    def _move(self, server, replies, round):
        return self.with_theta(server, server.theta + self.server_step * replies.mean())


def local_steps(
    agent: AbstractAgent,
    theta: Theta,
    block: Block,
    eta: Any,
    length: int,
    shift: Any = None,
    *,
    minus: Any = None,
    start: int = 0,
) -> Theta:
    r"""$\theta \leftarrow \theta + \eta\,(G_i(\theta, o) + s_i)$ for `length` observations of `block`, from `start` on.

    $s_i$ is `shift`, less `minus` if that is given. A kernel is faster when it receives the whole block, and the shift
    that all agents share separately from the agent's own.
    """
    if length == 0:  # without compilation JAX raises if a loop has no iterations
        return theta
    form = agent.form(block) if kernels.in_use() and jnp.ndim(eta) == 0 else None
    if form is not None:
        return kernels.take_steps(form, theta, eta, shift, minus, start, start + length)
    shift = shift if minus is None else shift - minus
    rest = tree.take(block, slice(start, None)) if start else block

    def direction(theta, o):
        g = agent.operator(theta, o)
        return g if shift is None else g + shift

    return steps_along(direction, agent, theta, rest, eta, length)


def steps_along(
    direction: Callable[[Theta, Any], Theta], agent: AbstractAgent, theta: Theta, block: Block, eta: Any, length: int
) -> Theta:
    r"""$\theta \leftarrow \theta + \eta\, d(\theta, o)$ for the `length` observations of a block."""

    def step(theta, o):
        return agent.project(theta + eta * direction(theta, agent.observe(theta, o))), None

    return jax.lax.scan(step, theta, block, length=length)[0]


def first_operator(agent: AbstractAgent, theta: Theta, block: Block) -> Theta:
    """The operator on the first observation of a block."""
    form = agent.form(block) if kernels.in_use() else None
    if form is not None:
        return kernels.first_operator(form, theta)
    return agent.operator(theta, agent.observe(theta, tree.take(block, 0)))


def mean_operator(agent: AbstractAgent, theta: Theta, block: Block, length: int) -> Theta:
    """The mean of the operators on the first `length` observations of a block."""

    def add(total, o):
        return total + agent.operator(theta, agent.observe(theta, o)), None

    first = tree.take(block, slice(None, length))
    return jax.lax.scan(add, jnp.zeros_like(theta), first, length=length)[0] / length


def operator_elsewhere(agent: AbstractAgent, theta: Theta, o: Any, seen_at: Theta, max_weight: Any = None) -> Theta:
    r"""The operator at `theta` of an observation made under `seen_at`, unbiased by importance weights.

    $w\, G_i(\theta, o)$ with $w = p(o \mid \theta) / p(o \mid \text{seen at})$, at most `max_weight`.
    """
    weights = jnp.exp(agent.log_ratio(theta, seen_at, o))
    return agent.weighted_operator(theta, o, weights if max_weight is None else jnp.minimum(weights, max_weight))


def check_max_weight(value: Any) -> None:
    """Raises `ValueError` if the bound on importance weights is neither None nor at least 1."""
    if value is not None:
        _check.scalar("max_weight", value, least=1.0, remedy="Use None to keep all weights unchanged.")


def send_theta(server: Any, round: Any) -> Theta:
    """The server's parameter, from which the agents start."""
    return server.theta


def operators(local: Callable, aggregate: Callable) -> Exchange:
    """The exchange in which agents receive the parameter and reply with their operators there."""
    return Exchange("operator", send_theta, local, aggregate, replies_are_operators=True, mean_suffices=True)


def move(server: Any, replies: Any, round: Any) -> Any:
    """Returns the server with its parameter moved by the mean displacement."""
    return eqx.tree_at(lambda state: state.theta, server, server.theta + replies.mean())
