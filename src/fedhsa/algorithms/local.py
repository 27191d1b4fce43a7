"""What most methods have in common: local steps, a parameter that is sent, a parameter that moves."""

from typing import Any

import equinox as eqx
import jax

from .. import _check
from .._types import Block, Theta
from ..problems import AbstractAgent
from .base import AbstractAlgorithm, check_local_steps, check_step_size
from .schedules import AbstractSchedule


class AbstractLocalSteps(AbstractAlgorithm):
    """A method whose rounds take `local_steps` observations of each agent."""

    step_size: float | AbstractSchedule
    local_steps: int = eqx.field(static=True)

    def __check_init__(self):
        check_step_size("step_size", self.step_size)
        check_local_steps(self.local_steps)

    @property
    def block_length(self):
        return self.local_steps


class AbstractServerStep(AbstractLocalSteps):
    """One whose server takes a step of its own along the mean displacement."""

    server_step: float = 1.0

    def __check_init__(self):
        _check.scalar("server_step", self.server_step, above=0.0)

    def _move(self, server, replies, round):
        return self.with_theta(server, server.theta + self.server_step * replies.mean())


def local_steps(agent: AbstractAgent, theta: Theta, block: Block, eta: Any, length: int, shift: Any = None) -> Theta:
    r"""$\theta \leftarrow \theta + \eta\,(G_i(\theta, o) + s_i)$ for each of the `length` observations of `block`."""
    if length == 0:  # without compilation JAX raises if a loop has no iterations
        return theta

    def step(theta, o):
        direction = agent.operator(theta, o)
        return theta + eta * (direction if shift is None else direction + shift), None

    return jax.lax.scan(step, theta, block, length=length)[0]


def send_theta(server: Any, round: Any) -> Theta:
    """The server's parameter, from which the agents start."""
    return server.theta


def move(server: Any, replies: Any, round: Any) -> Any:
    """The server with its parameter moved by the mean displacement."""
    return eqx.tree_at(lambda state: state.theta, server, server.theta + replies.mean())
