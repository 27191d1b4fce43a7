"""Checks of the theory's assumptions on the problems that are run (claim 9)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import theory, tree
from ..._random import host_generator
from ..._types import precision
from ...algorithms import FedHSA
from ...problems import Problem
from ..study.checks import Checks

STATEMENTS = {
    "lipschitz": "No slope between sampled parameters exceeds L: the largest, as a part of L.",
    "growth": "No sampled operator exceeds L (|theta| + sigma): the largest, as a part of it.",
    "monotone": "The average operator pulls to the root at least as mu asks: mu by the least pull sampled.",
}
POINTS, OBSERVATIONS = 4, 16
"""The number of pairs of parameters, and of observations of every agent, with which the constants are tested."""


def examine(problem: Problem, algorithm: FedHSA, rounds: int, key: int = 0) -> dict[str, Any]:
    """Returns constants, assumptions, conditions, and the largest sampled values relative to the constants.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=6, dim=2)
        >>> found = examine(problem, FedHSA(0.05, local_steps=5), rounds=100)
        >>> 0 < found["seen"]["lipschitz"] <= 1, 0 < found["seen"]["growth"] <= 1, found["seen"]["monotone"] <= 1
        (True, True, True)
    """
    report = theory.check(problem, algorithm, rounds=rounds)
    c = report.constants
    rng = host_generator(key, "points")
    pairs = problem.theta_star + rng.normal(size=(POINTS, 2, problem.dim))
    slopes, sizes = _sampled(problem, pairs, key)
    radius = np.linalg.norm(pairs[:, 0], axis=-1)
    error = pairs[:, 0] - problem.theta_star
    descent = [-float(e @ problem.mean_operator(theta)) for e, theta in zip(error, pairs[:, 0], strict=True)]
    bounded = bool(np.isfinite(c.sigma_i).all())
    seen = {
        "lipschitz": float(slopes.max() / c.L),
        "growth": float((sizes / (c.L * (radius + np.maximum(c.sigma_i, 1.0)[:, None]))).max()) if bounded else None,
        "monotone": float((c.mu * (error**2).sum(-1) / np.array(descent)).max()),
    }
    constants = {"L": c.L, "mu": c.mu, "sigma": c.sigma if bounded else None, "rho": c.rho}
    return {
        "assumptions": [list(row) for row in report.rows()],
        "constants": constants | {"mixing_time": float(np.max(c.mixing_times)) if c.noise is None else None},
        "gaussian": c.noise is not None,
        "seen": seen,
    }


def check_assumptions(checks: Checks, facts: dict[str, Any]) -> None:
    """Adds the results of `examine` as checks of claim 9."""
    checks.claim = 9
    excused = {"Assumption 1: growth", "Assumption 3"} if facts["gaussian"] else set()
    rows = [row for row in facts["assumptions"] if row[0].startswith("Assumption")]
    others = [row[0] for row in rows if (row[1] != "holds") != (row[0] in excused)]
    for name, statement in STATEMENTS.items():
        if facts["seen"][name] is not None:
            checks.at_most(name, statement, facts["seen"][name], 1.0)
    said = "but for growth and finite chains, since the noise is Gaussian" if excused else "all of them"
    statement = f"Assumptions 1 to 4 hold, {said}: how many of their parts differ from what is expected."
    checks.near("assumptions", statement, len(others), 0, tolerance=0, relative=False)


def condition_sentence(facts: dict[str, Any]) -> str:
    """Returns a sentence on whether the step size meets the condition of the paper's main theorem."""
    _, verdict, reason = {row[0]: row for row in facts["assumptions"]}["Theorem 2: step"]
    if facts["gaussian"]:
        return (
            "Theorem 2 is about finite chains and bounded noise: it does not cover the Gaussian noise of this problem."
        )
    if verdict == "holds":
        return f"The step meets Theorem 2's condition: {reason}"
    return f"The step does not meet Theorem 2's condition (constants taken as 1), so its bound is silent here: {reason}"


def _sampled(problem: Problem, pairs: np.ndarray, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the largest slope between each pair, and the largest operator at its first point, for each agent."""
    with precision():
        agents, points = tree.to_device((problem.flat_agents, pairs), "float64")
        keys = jax.random.split(jax.random.key(key), problem.num_agents)
        slopes, sizes = _extremes(agents, points, keys)
        return np.asarray(slopes), np.asarray(sizes)


@eqx.filter_jit
def _extremes(agents, pairs, keys):
    def of_agent(agent, key):
        keys = jax.random.split(key, OBSERVATIONS + 1)
        _, block = agent.source.draw(keys[1:], agent.source.init(keys[0]))

        def of_pair(pair):
            near, far = (jax.vmap(lambda o, theta=theta: agent.operator(theta, o))(block) for theta in pair)
            slope = jnp.linalg.norm(near - far, axis=-1) / jnp.linalg.norm(pair[0] - pair[1])
            return slope.max(), jnp.linalg.norm(near, axis=-1).max()

        return jax.lax.map(of_pair, pairs)

    return jax.lax.map(lambda both: of_agent(*both), (agents, keys))
