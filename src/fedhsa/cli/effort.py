"""Rough estimates of the run time of predictions, which decide in advance which predictions to omit."""

import math
from collections.abc import Iterable

from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from ..theory.laws.finite import finite_law
from ..theory.laws.many import LARGE, SMALL

START, CURVED = 0.02, 5.0
"""The least time of a prediction, in seconds, and how many times as long nonlinear operators take."""
PER_UNIT = {SMALL: 2e-8, LARGE: 2e-9, math.inf: 2.5e-11}
"""Seconds per multiplication of a round up to these numbers of them, fitted to two cores: larger ones are solved for
fewer digits, in fewer rounds."""
PER_TRIAL = 2e-7
"""Seconds per agent and cubed dimension for the search for stable settings, which tries about a hundred settings."""


def seconds(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """Returns the time of one prediction without compilation, if operators on transitions have one direction."""
    law, d = finite_law(problem.agents.source), problem.dim
    outcomes, directions = (1, d) if law is None else (law.num_outcomes, 1 if law.pairs else d)
    work = 12.0 * problem.num_agents * algorithm.block_length * outcomes * directions * d**2
    each = next(each for most, each in PER_UNIT.items() if work <= most)
    return START + each * work * (1.0 if problem.affine else CURVED)


def total(problem: Problem, algorithms: Iterable[AbstractAlgorithm]) -> float:
    """Returns the time of one prediction for each algorithm."""
    return sum(seconds(problem, algorithm) for algorithm in algorithms)


def stability(problem: Problem) -> float:
    """Returns the time of the search for the largest stable step size and number of local steps of one algorithm."""
    return PER_TRIAL * problem.num_agents * problem.dim**3
