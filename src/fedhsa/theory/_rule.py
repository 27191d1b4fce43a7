"""The local rule that the paper's methods share, as numbers."""

from typing import NamedTuple

import numpy as np

from ..algorithms import AbstractAlgorithm, AbstractSchedule, FedHSA, LocalSA
from ..algorithms.local_sa import AbstractOneStep


class LocalRule(NamedTuple):
    r"""$\theta \leftarrow \theta + \eta (G_i(\theta, o_\ell) + \kappa (\bar g - g_i))$, $H$ times, then averaging.

    FedHSA has $\kappa = 1$; Local SA, and the one-step methods it becomes for $H = 1$, have $\kappa = 0$. The server
    adds `server_step` times the mean displacement.
    """

    step_size: float
    local_steps: int
    server_step: float
    correction: float

    def matrices(self, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r"""$F_i^H$ and $S_i = \sum_{k<H} F_i^k$ for $F_i = I + \eta A_i$, in $\log H$ products.

        The powers of $\begin{pmatrix} F & I \\ 0 & I \end{pmatrix}$ hold both.
        """
        d = A.shape[-1]
        block = np.zeros((*A.shape[:-2], 2 * d, 2 * d))
        block[..., :d, :d] = np.eye(d) + self.step_size * A
        block[..., :d, d:] = block[..., d:, d:] = np.eye(d)
        with np.errstate(over="ignore", invalid="ignore"):  # far beyond the stable steps powers overflow, and may
            power = np.linalg.matrix_power(block, self.local_steps)
        return power[..., :d, :d], power[..., :d, d:]

    def transition(self, A: np.ndarray) -> np.ndarray:
        r"""$\Phi = I + \alpha_g (\frac1M \sum_i [F_i^H + \kappa \eta S_i (\bar A - A_i)] - I)$, the map of errors."""
        power, total = self.matrices(A)
        with np.errstate(over="ignore", invalid="ignore"):
            ends = power + self.correction * self.step_size * total @ (A.mean(0) - A)
            return np.eye(A.shape[-1]) * (1 - self.server_step) + self.server_step * ends.mean(0)


def local_rule(algorithm: AbstractAlgorithm) -> LocalRule | None:
    """The rule behind an algorithm at a constant step, or None where it has another."""
    if any(isinstance(value, AbstractSchedule) for value in vars(algorithm).values()):
        return None
    if isinstance(algorithm, FedHSA | LocalSA):
        corrected = float(isinstance(algorithm, FedHSA))
        return LocalRule(float(algorithm.step_size), algorithm.local_steps, float(algorithm.server_step), corrected)
    if isinstance(algorithm, AbstractOneStep):
        return LocalRule(float(algorithm.step_size), 1, 1.0, 0.0)
    return None


def require_rule(algorithm: AbstractAlgorithm) -> LocalRule:
    """The rule behind an algorithm, refused where it has another."""
    rule = local_rule(algorithm)
    if rule is None:
        raise TypeError(
            f"The law of the noise is known for FedHSA, LocalSA, SynchronisedSA and SA at a constant step, got "
            f"{type(algorithm).__name__}. Its map without noise is `theory.exact.round_map`."
        )
    return rule
