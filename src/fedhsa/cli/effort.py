"""Rough estimates of the run time of predictions, which decide in advance which predictions to omit."""

from collections.abc import Iterable

from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from ..theory.laws.agents import finite_law
from ..theory.laws.law import FEWEST, SITES

START, CURVED = 0.05, 5.0
"""The least time of a prediction, in seconds, and how many times as long nonlinear operators take."""
ROUNDS, FEWER = 5, 4
"""The numbers of rounds of a law that a prediction takes as long as, the second of problems that it knows roughly."""
PER_UNIT = 1e-9
"""Seconds per multiplication of a round, on two cores."""
PER_TRIAL = 1e-8
"""Seconds per agent and cubed dimension for the search for stable settings, which tries about a hundred settings."""


def seconds(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """Returns the time of one prediction without compilation, if operators on transitions have one direction."""
    law, d, M = finite_law(problem.agents.source), problem.dim, problem.num_agents
    if law is None:
        return START + PER_UNIT * M * algorithm.block_length * d**3
    live, S, outcomes, K = 2 * d, law.num_states, law.num_outcomes, 1 if law.pairs else d
    each = algorithm.block_length * (S**2 * live * (live + d) + 2.0 * outcomes * K * d * (live + d))
    work = each * min(M, max(FEWEST, SITES / each))
    rounds = ROUNDS if M * each <= SITES else FEWER
    return START + PER_UNIT * rounds * work * (1.0 if problem.affine else CURVED)


def total(problem: Problem, algorithms: Iterable[AbstractAlgorithm]) -> float:
    """Returns the time of one prediction for each algorithm."""
    return sum(seconds(problem, algorithm) for algorithm in algorithms)


def stability(problem: Problem) -> float:
    """Returns the time of the search for the largest stable step size and number of local steps of one algorithm."""
    return PER_TRIAL * problem.num_agents * problem.dim**3
