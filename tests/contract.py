"""What every algorithm and wrapper is held to: a loop written again in NumPy, and the entry of the cost table."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import fedhsa as fh
from cases import CASES, agent_key

COIN = 2**31 - 1


class World(NamedTuple):
    """All that a naive loop may look at: one seed of a problem, its observations and its random numbers."""

    problem: fh.Problem
    G: Callable[[int, np.ndarray, Any], np.ndarray]
    """`(agent, theta, observation)`."""
    observations: list
    """`observations[agent][position]`."""
    theta: np.ndarray
    rounds: int
    key: int
    seed: int

    @property
    def num_agents(self) -> int:
        return self.problem.num_agents

    def mean_operator(self, agent: int, theta: np.ndarray) -> np.ndarray:
        """Gbar_i, for affine problems from their matrices, else from the package."""
        if self.problem.affine:
            A, b = self.problem.affine_parts()
            return A[agent] @ theta - b[agent]
        with jax.enable_x64(True):
            one = fh.tree.to_device(fh.tree.take(self.problem.flat_agents, agent), "float64")
            return np.asarray(one.mean_operator(jax.numpy.asarray(theta)))

    def round_key(self, t: int):
        """The key that server and agents share in round `t`."""
        server = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.key), self.seed), 1)
        return jax.random.fold_in(server, t)

    def agent_key(self, agent: int, t: int):
        """The agent's own key in round `t`."""
        return jax.random.fold_in(jax.random.fold_in(agent_key(self.key, self.seed, agent), 1), t)

    def coin(self, t: int, probability: float) -> bool:
        """How the coin of round `t` falls."""
        with jax.enable_x64(True):
            return float(jax.random.uniform(jax.random.fold_in(self.round_key(t), COIN), dtype="float64")) < probability


class Method(NamedTuple):
    """An entry of the table."""

    algorithm: fh.AbstractAlgorithm | Callable[[fh.Problem], fh.AbstractAlgorithm]
    """The algorithm, or what makes it for a problem."""
    loop: Callable[[World], Any]
    """Gives the path of the parameter, `(rounds + 1, d)`."""
    cost: Callable[[int], fh.Cost]
    """The expected cost, given the dimension."""
    cases: tuple[str, ...] = tuple(CASES)
    """The problems it runs on."""

    def on(self, problem: fh.Problem) -> fh.AbstractAlgorithm:
        """The algorithm for this problem."""
        return self.algorithm if isinstance(self.algorithm, fh.AbstractAlgorithm) else self.algorithm(problem)
