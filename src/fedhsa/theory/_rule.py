"""The local rule that the paper's methods share, as numbers."""

from typing import NamedTuple

import numpy as np

from ..algorithms import AbstractAlgorithm, AbstractSchedule, FedHSA, LocalSA
from ..algorithms.local_sa import AbstractOneStep
from .rounds import RoundMap


class LocalRule(NamedTuple):
    r"""$\theta \leftarrow \theta + \eta (G_i(\theta, o_\ell) + \kappa (\bar g - g_i))$, $H$ times, then averaging.

    FedHSA has $\kappa = 1$; Local SA, and the one-step methods it becomes for $H = 1$, have $\kappa = 0$. The server
    adds `server_step` times the mean displacement.
    """

    step_size: float
    local_steps: int
    server_step: float
    correction: float

    def powers(self, A: np.ndarray) -> np.ndarray:
        r"""$F_i^H$ for $F_i = I + \eta A_i$."""
        with np.errstate(over="ignore", invalid="ignore"):  # far beyond the stable steps powers overflow, and may
            return np.linalg.matrix_power(np.eye(A.shape[-1]) + self.step_size * A, self.local_steps)

    def sums(self, A: np.ndarray) -> np.ndarray:
        r"""$S_i = \sum_{k<H} F_i^k$, in $\log H$ products: $S_{2k} = S_k + F^k S_k$."""
        identity = np.eye(A.shape[-1])
        F = power = identity + self.step_size * A
        S = np.broadcast_to(identity, A.shape).copy()  # products with broadcast views are slow
        with np.errstate(over="ignore", invalid="ignore"):
            for bit in f"{self.local_steps:b}"[1:]:
                S, power = S + power @ S, power @ power
                if bit == "1":
                    S, power = identity + F @ S, F @ power
        return S

    def transition(self, A: np.ndarray) -> np.ndarray:
        r"""The map of errors, $\Phi = I + \alpha_g (\frac1M \sum_i [F_i^H + \kappa \eta S_i (\bar A - A_i)] - I)$."""
        kappa = self.correction
        nothing = np.zeros_like(A[:1])
        return self.assemble(A, self.powers(A) if kappa < 1 else nothing, self.sums(A) if kappa > 0 else nothing)

    def assemble(self, A: np.ndarray, powers: np.ndarray, sums: np.ndarray) -> np.ndarray:
        r"""`transition` from $F_i^H$ and $S_i$, by way of $\eta S_i A_i = F_i^H - I$."""
        identity, kappa = np.eye(A.shape[-1]), self.correction
        with np.errstate(over="ignore", invalid="ignore"):
            corrected = self.step_size * sums.mean(0) @ A.mean(0)
            return identity + self.server_step * (kappa * corrected + (1 - kappa) * (powers.mean(0) - identity))

    def offset(self, A: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        r"""What a round without noise adds at the root, $c = (1 - \kappa) \alpha_g \eta \frac1M \sum_i S_i r_i$.

        `residuals` are $r_i = \bar G_i(\theta^\star)$. It is zero for FedHSA, and for $H = 1$.
        """
        if self.correction == 1 or self.local_steps == 1:
            return np.zeros(A.shape[-1])
        with np.errstate(over="ignore", invalid="ignore"):
            pulled = (self.sums(A) @ residuals[..., None])[..., 0].mean(0)
            return (1 - self.correction) * self.server_step * self.step_size * pulled

    def limit_error(self, A: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        r"""Where the error goes without noise, $(I - \Phi)^{-1} c$."""
        c = self.offset(A, residuals)
        return np.linalg.solve(np.eye(len(c)) - self.transition(A), c) if c.any() else c

    def round_map(self, A: np.ndarray, residuals: np.ndarray) -> RoundMap:
        r"""The round map in closed form.

        $K_{i,\ell} = \frac{\alpha_g \eta}M [F_i^{H-1-\ell} + \kappa 1_{\ell=0} (\bar S - S_i)]$.
        """
        S, scale = self.sums(A), self.server_step * self.step_size / len(A)
        K = scale * np.moveaxis(local_powers(A, self.step_size, self.local_steps)[::-1], 0, 1)
        K[:, 0] += scale * self.correction * (S.mean(0) - S)
        return RoundMap(self.transition(A), self.offset(A, residuals), K)


def local_powers(A: np.ndarray, step: float, local_steps: int) -> np.ndarray:
    r"""$F_i^k$ of $F_i = I + \eta A_i$ for $k < H$, `(H, M, d, d)`; their sum is $S_i$."""
    powers = [np.broadcast_to(np.eye(A.shape[1]), A.shape)]
    for _ in range(local_steps - 1):
        powers.append(powers[-1] + step * A @ powers[-1])
    return np.stack(powers)


def local_rule(algorithm: AbstractAlgorithm) -> LocalRule | None:
    """The rule behind an algorithm at a constant step, or None if it has another."""
    if any(isinstance(value, AbstractSchedule) for value in vars(algorithm).values()):
        return None
    if isinstance(algorithm, FedHSA | LocalSA):
        corrected = float(isinstance(algorithm, FedHSA))
        return LocalRule(_number(algorithm.step_size), algorithm.local_steps, float(algorithm.server_step), corrected)
    if isinstance(algorithm, AbstractOneStep):
        return LocalRule(_number(algorithm.step_size), 1, 1.0, 0.0)
    return None


def require_rule(algorithm: AbstractAlgorithm) -> LocalRule:
    """The rule behind an algorithm; raises if it has another."""
    rule = local_rule(algorithm)
    if rule is None:
        raise TypeError(
            f"The law of the noise is known for FedHSA, LocalSA, SynchronisedSA and SA at a constant step, got "
            f"{type(algorithm).__name__}. Its map without noise is `theory.exact.round_map`."
        )
    return rule


def _number(step_size: float | AbstractSchedule) -> float:
    assert not isinstance(step_size, AbstractSchedule)
    return float(step_size)
