"""The stability limit of FedHSA: the smallest step size at which the spectral radius of a round reaches 1."""

import numpy as np

from ...theory.rule import LocalRule
from ...theory.stability import excess, first_crossing, largest_step


def fed_hsa_boundary(A: np.ndarray, H: int) -> float:
    """Returns the first step size at which the spectral radius of FedHSA's round map is 1, for Jacobians `(M, d, d)`.

    !!! example
        >>> A = -np.array([0.5, 2.0]).reshape(2, 1, 1)                   # with one local step 2 / mean(a)
        >>> round(fed_hsa_boundary(A, 1), 6)
        1.6
    """
    return largest_step(A, LocalRule(1.0, H, 1.0, 1.0))


def one_exchange_map(A: np.ndarray, step: float, H: int) -> np.ndarray:
    r"""Returns the map of two successive errors of FedHSA with the previous round's operators, $e^+ = F e + B e^-$."""
    F = LocalRule(step, H, 1.0, 0.0).transition(A)
    B = LocalRule(step, H, 1.0, 1.0).transition(A) - F
    return np.block([[F, B], [np.eye(len(F)), np.zeros_like(F)]])


def one_exchange_boundary(A: np.ndarray, H: int) -> float:
    """Returns the first step size at which the spectral radius of `one_exchange_map` reaches 1.

    !!! example
        >>> A = -np.array([0.1, 1.0]).reshape(2, 1, 1)
        >>> round(10 * one_exchange_boundary(A, 10), 2)
        7.56
    """

    def growing(steps: np.ndarray) -> np.ndarray:
        return excess(np.stack([one_exchange_map(A, step, H) for step in steps]))

    return first_crossing(growing, A, H)
