"""Linearisation of nonlinear problems at a point."""

from typing import ClassVar

import jax
import numpy as np

from ...problems import AbstractAgent, Problem
from ...sources import AbstractSource


class LinearisedAgent(AbstractAgent):
    r"""$G_i(x_i, o) + \partial G_i(x_i, o)\,(\theta - x_i)$ at the agent's point $x_i$."""

    source: AbstractSource
    agent: AbstractAgent
    point: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        value, change = jax.jvp(lambda t: self.agent.operator(t, o), (self.point,), (theta - self.point,))
        return value + change

    def mean_operator(self, theta, /):
        value, change = jax.jvp(self.agent.mean_operator, (self.point,), (theta - self.point,))
        return value + change


def linearised(problem: Problem, points: np.ndarray | None = None) -> Problem:
    """Linearises `problem` at `points`, one for each agent, or at its root. An affine problem is returned unchanged."""
    if problem.affine:
        return problem
    points = np.broadcast_to(problem.root if points is None else points, (problem.num_agents, problem.dim))
    agents = LinearisedAgent(problem.agents.source, problem.flat_agents, points)
    return Problem(agents, like=np.zeros(problem.dim), theta_star=problem.root)
