"""Rough estimates of the run time of predictions, which decide in advance which predictions to omit."""

from collections.abc import Iterable

from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from ..theory.laws.finite import finite_law

START, PER_UNIT = 0.02, 3e-9
"""Seconds, fitted to two cores: the least time of a prediction, and the time per multiplication."""
PER_TRIAL = 2e-7
"""Seconds per agent and cubed dimension for the search for stable settings, which tries about a hundred settings."""


def seconds(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """Returns the time of one prediction without compilation, which grows like $M H d (S + d)^2$."""
    law, d = finite_law(problem.agents.source), problem.dim
    each = d * (d + (0 if law is None else law.num_states)) ** 2 * algorithm.block_length
    return START + PER_UNIT * problem.num_agents * each


def total(problem: Problem, algorithms: Iterable[AbstractAlgorithm]) -> float:
    """Returns the time of one prediction for each algorithm."""
    return sum(seconds(problem, algorithm) for algorithm in algorithms)


def stability(problem: Problem) -> float:
    """Returns the time of the search for the largest stable step size and number of local steps of one algorithm."""
    return PER_TRIAL * problem.num_agents * problem.dim**3
