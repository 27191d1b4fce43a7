"""The paper's theorems for a problem and a FedHSA, where their assumptions and conditions hold.

`bounds` has the same formulas in the paper's symbols, for numbers of your own and for steps beyond the conditions.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _check
from ...algorithms import FedHSA
from ...problems import Problem
from ..maps.rounds import start_error
from . import bounds
from .assumptions import FAILS, UNKNOWN, check
from .constants import Constants


def theorem_1(
    problem: Problem,
    algorithm: FedHSA,
    *,
    rounds: Any,
    theta: Any = None,
    constants: Constants | None = None,
    constant: float = 1.0,
) -> Any:
    r"""Theorem 1's bound of $E|\bar\theta^{(T)} - \theta^\star|^2$ after `rounds`, under independent sampling.

    The constants $L$, $\mu$ and $\sigma$ are those of the problem. A `ValueError` says which assumption or condition
    fails where the theorem is silent, and a warning which constant was only sampled. The decay is as proved; what the
    floor hides in $O(\cdot)$ and the step in $C$ is calibrated (see `bounds`).

    **Arguments:**

    - `problem`: one whose samples are independent, as those of `problem.iid()`.
    - `algorithm`: `FedHSA` with a constant step and `server_step` 1.
    - `rounds`: $T$, one number or several.
    - `theta`: where the run starts, 0 unless given.
    - `constants`: `theory.constants(problem)`, if they are at hand already.
    - `constant`: what $O(\cdot)$ hides.

    **Returns:** a number, or an array with one for each of `rounds`.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=6, dim=2).iid()
        >>> algorithm = fedhsa.FedHSA(1e-4, local_steps=5)
        >>> bound = theorem_1(problem, algorithm, rounds=1000)
        >>> run = fedhsa.simulate(problem, algorithm, rounds=1000, seeds=4)
        >>> bool(run.error[:, -1].mean() < bound)
        True
    """
    return _bound(1, bounds.theorem_1, problem, algorithm, rounds, theta, constants, constant)


def theorem_2(
    problem: Problem,
    algorithm: FedHSA,
    *,
    rounds: Any,
    theta: Any = None,
    constants: Constants | None = None,
    constant: float = 1.0,
) -> Any:
    r"""Theorem 2's bound of $E|\bar\theta^{(T)} - \theta^\star|^2$ after `rounds`, under Markov sampling.

    The constants $L$, $\mu$, $\sigma$, $\rho$ and $\bar\tau = \tau(\alpha^2)$ are those of the problem at the
    algorithm's step. A `ValueError` says which assumption or condition fails where the theorem is silent, and a warning
    which constant was only sampled. What the paper hides in $O(\cdot)$ and $C'$ is calibrated (see `bounds`).

    **Arguments:**

    - `problem`: any problem with finite chains; independent samples are chains that forget at once.
    - `algorithm`: `FedHSA` with `server_step` 1 and a constant step of at most `bounds.largest_step`.
    - `rounds`: $T \ge 2 \bar\tau$, one number or several.
    - `theta`: where the run starts, 0 unless given.
    - `constants`: `theory.constants(problem)`, if they are at hand already.
    - `constant`: what $O(\cdot)$ hides.

    **Returns:** a number, or an array with one for each of `rounds`.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=6, dim=2)
        >>> algorithm = fedhsa.FedHSA(1e-5, local_steps=5)
        >>> early, late = theorem_2(problem, algorithm, rounds=[10**5, 10**7])
        >>> bool(late < early)
        True
        >>> theorem_2(problem, fedhsa.FedHSA(0.5, local_steps=5), rounds=1000)
        Traceback (most recent call last):
        ValueError: Theorem 2 says nothing here. Theorem 2: step: eta = 0.5 > ...
    """
    return _bound(2, bounds.theorem_2, problem, algorithm, rounds, theta, constants, constant)


def _bound(
    number: int,
    formula: Callable,
    problem: Problem,
    algorithm: FedHSA,
    rounds: Any,
    theta: Any,
    constants: Constants | None,
    constant: float,
) -> Any:
    bounds.require_covered(algorithm)
    T = [_check.count("rounds", t) for t in np.ravel(rounds).tolist()]
    found = check(problem, algorithm, rounds=min(T), constants=constants)
    about = ("Assumption 1", "Assumption 2", "Assumption 4", "Theorems:", f"Theorem {number}:")
    asked = [line for line in found.lines if line.name.startswith(about if number == 1 else (*about, "Assumption 3"))]
    failing, unknown = (
        " ".join(f"{line.name}: {line.reason}" for line in asked if line.verdict == verdict)
        for verdict in (FAILS, UNKNOWN)
    )
    if failing:
        formula_alone = f"The formula alone is `theory.bounds.theorem_{number}`."
        raise ValueError(f"Theorem {number} says nothing here. {failing} {formula_alone}")
    error = start_error(problem, theta)
    value = bounds.evaluate(
        formula, found.constants, algorithm, T=np.asarray(rounds), d_0=error @ error, constant=constant
    )
    if np.isnan(value).any():
        raise ValueError(f"Theorem {number} has no number here. {unknown}")
    if unknown:
        warnings.warn(f"Theorem {number} may not hold: not everything is certain. {unknown}", stacklevel=3)
    return float(value) if np.ndim(value) == 0 else value
