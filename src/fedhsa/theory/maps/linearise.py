"""Nonlinear problems seen from the root: the affine problem they look like there, and how they curve."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import tree
from ..._types import precision
from ...problems import AbstractAgent, Problem
from ...sources import AbstractSource


class LinearisedAgent(AbstractAgent):
    r"""$G_i(x_i, o) + \partial G_i(x_i, o)\,(\theta - x_i)$ at a point $x_i$ of its own."""

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
    """The affine problem that `problem` is to first order at `points`, one for each agent, or at its root.

    Itself where it is affine.
    """
    if problem.affine:
        return problem
    points = np.broadcast_to(problem.root if points is None else points, (problem.num_agents, problem.dim))
    agents = LinearisedAgent(problem.agents.source, problem.flat_agents, points)
    return Problem(agents, like=np.zeros(problem.dim), theta_star=problem.root)


def curvature(problem: Problem, covariance: np.ndarray) -> np.ndarray:
    r"""$\frac12 \frac1M \sum_i \bar G_i''(\theta^\star)[\Sigma]$: what a covariance $\Sigma$ does to the mean."""
    if problem.affine:
        return np.zeros(problem.dim)
    values, vectors = np.linalg.eigh(covariance)
    directions = (vectors * np.sqrt(values.clip(min=0))).T
    with precision():
        inputs = tree.to_device((problem.flat_agents, problem.root, directions), "float64")
        return np.asarray(_second_derivative(*inputs)) / 2


@eqx.filter_jit
def _second_derivative(agents, root, directions):
    def average(theta):
        return jnp.mean(jax.vmap(lambda agent: agent.mean_operator(theta))(agents), axis=0)

    def along(direction):
        return jax.jvp(lambda t: jax.jvp(average, (t,), (direction,))[1], (root,), (direction,))[1]

    return jnp.sum(jax.vmap(along)(directions), axis=0)
