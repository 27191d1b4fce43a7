"""The step size of an algorithm, or of the one that it wraps."""

import dataclasses
from typing import Any

import jax

from ..algorithms import AbstractAlgorithm, AbstractSchedule


def with_step(algorithm: Any, step: float | AbstractSchedule) -> Any:
    """Returns the algorithm, or the one it wraps, with another step size; None if it has no step size."""
    if hasattr(algorithm, "step_size"):
        return dataclasses.replace(algorithm, step_size=step)
    inner = with_step(algorithm.algorithm, step) if hasattr(algorithm, "algorithm") else None
    return None if inner is None else dataclasses.replace(algorithm, algorithm=inner)


def step_of(algorithm: Any) -> Any:
    """Returns the step size that `with_step` changes; None if there is none."""
    inner = getattr(algorithm, "algorithm", None)
    return getattr(algorithm, "step_size", None if inner is None else step_of(inner))


def check_schedule(algorithm: AbstractAlgorithm) -> None:
    """Raises if the step size of the algorithm, or of one inside a wrapper, changes."""

    def changing(x: Any) -> bool:
        return isinstance(x, AbstractSchedule)

    if any(changing(x) for x in jax.tree.leaves(algorithm, is_leaf=changing)):
        raise TypeError(
            "Exact laws require a constant step size, got a schedule. Predict its first and last step sizes instead."
        )
