"""How long predictions take, roughly: for deciding beforehand what to leave out."""

from collections.abc import Iterable

from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from ..theory._finite import finite_law

START, PER_UNIT = 0.02, 1.5e-9
"""Seconds, fitted to two cores: what a prediction takes at least, and per multiplication."""


def seconds(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """The time of one prediction, once its program is compiled: it grows like $M H d (S + d)^2$."""
    law = finite_law(problem.agents.source)
    size = problem.dim + (0 if law is None else law.num_states)
    return START + PER_UNIT * problem.num_agents * algorithm.block_length * problem.dim * size**2


def total(problem: Problem, algorithms: Iterable[AbstractAlgorithm]) -> float:
    """The time of one prediction for each."""
    return sum(seconds(problem, algorithm) for algorithm in algorithms)
