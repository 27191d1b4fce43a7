"""What most methods have in common: local steps, a parameter that is sent, a parameter that moves."""

from typing import Any

import jax

from .._types import Block, Theta
from ..problems import AbstractAgent


def local_steps(agent: AbstractAgent, theta: Theta, block: Block, eta: Any, length: int, shift: Any = None) -> Theta:
    r"""$\theta \leftarrow \theta + \eta\,(G_i(\theta, o) + s_i)$ for each of the `length` observations of `block`."""
    if length == 0:  # without compilation JAX refuses to repeat anything zero times
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
    return server._replace(theta=server.theta + replies.mean())
