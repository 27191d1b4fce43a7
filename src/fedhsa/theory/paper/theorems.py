"""The bounds of the paper's theorems for a problem and a FedHSA that satisfy their assumptions and conditions.

`bounds` has the same formulas in the paper's symbols, for any numbers and for step sizes beyond the conditions.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _check
from ...algorithms import FedHSA
from ...problems import Problem
from ..exact import start_error
from . import bounds
from .assumptions import FAILS, UNKNOWN, check
from .constants import Constants

__all__ = ["theorem_1", "theorem_2"]


def theorem_1(
    problem: Problem,
    algorithm: FedHSA,
    *,
    rounds: Any,
    theta: Any = None,
    constants: Constants | None = None,
    constant: float = 1.0,
) -> Any:
    r"""Computes Theorem 1's bound of $E|\bar\theta^{(T)} - \theta^\star|^2$ after `rounds`, for i.i.d. sampling.

    The constants $L$, $\mu$ and $\sigma$ are those of the problem. The decay is as proved. The factors hidden in the
    floor's $O(\cdot)$ and in the $C$ of the step size are calibrated (see `bounds`).

    **Arguments:**

    - `problem`: a problem with independent observations, such as `problem.iid()`.
    - `algorithm`: `FedHSA` with a constant step size and `server_step` 1.
    - `rounds`: $T$, one number or several.
    - `theta`: the initial parameter. Default: zeros.
    - `constants`: `theory.constants(problem)`, if it is already computed.
    - `constant`: the factor hidden in $O(\cdot)$.

    **Returns:** a number, or an array with one number for each of `rounds`.

    Raises `ValueError` with the reason if an assumption or a condition fails; warns if a constant was only sampled.

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
    r"""Computes Theorem 2's bound of $E|\bar\theta^{(T)} - \theta^\star|^2$ after `rounds`, for Markov sampling.

    The constants $L$, $\mu$, $\sigma$, $\rho$ and $\bar\tau = \tau(\alpha^2)$ are those of the problem at the
    algorithm's step size. The factors hidden in $O(\cdot)$ and in $C'$ are calibrated (see `bounds`).

    The arguments and the result are those of `theorem_1`, except for

    - `problem`: any problem with finite chains; independent observations are chains that mix in one step;
    - `algorithm`: its step size is at most `bounds.largest_step`;
    - `rounds`: $T \ge 2 \bar\tau$.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=6, dim=2)
        >>> algorithm = fedhsa.FedHSA(1e-5, local_steps=5)
        >>> early, late = theorem_2(problem, algorithm, rounds=[10**5, 10**7])
        >>> bool(late < early)
        True
        >>> theorem_2(problem, fedhsa.FedHSA(0.5, local_steps=5), rounds=1000)
        Traceback (most recent call last):
        ValueError: Theorem 2 does not apply. Theorem 2: step: eta = 0.5 > ...
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
        formula_alone = f"`theory.bounds.theorem_{number}` evaluates the formula without these checks."
        raise ValueError(f"Theorem {number} does not apply. {failing} {formula_alone}")
    error = start_error(problem, theta)
    value = bounds.evaluate(
        formula, found.constants, algorithm, T=np.asarray(rounds), d_0=error @ error, constant=constant
    )
    if np.isnan(value).any():
        raise ValueError(f"The bound of Theorem {number} cannot be computed. {unknown}")
    if unknown:
        warnings.warn(f"Theorem {number} may not apply: some constants are uncertain. {unknown}", stacklevel=3)
    return float(value) if np.ndim(value) == 0 else value
