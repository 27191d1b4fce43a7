"""The local rule of the paper's methods in closed form, which is quick for many step sizes and numbers of steps."""

from typing import NamedTuple

import numpy as np

from ..algorithms import AbstractAlgorithm, AbstractSchedule, FedHSA, LocalSA
from ..algorithms.local_sa import AbstractOneStep

BESIDE_THE_ROUND = {"check", "average_cost", "recorders"}
"""The attributes that a subclass may override without changing its rounds."""


class RoundMap(NamedTuple):
    r"""One noiseless round as an affine map, $e' = \Phi e + c$, of the error or of all that a method carries."""

    transition: np.ndarray
    r"""$\Phi$, `(d, d)`."""
    offset: np.ndarray
    """$c$, `(d,)`."""

    def limit_error(self) -> np.ndarray:
        r"""Returns the limit without noise, $(I - \Phi)^{-1} c$."""
        c = self.offset
        return np.linalg.solve(np.eye(len(c)) - self.transition, c) if c.any() else c


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
        with np.errstate(over="ignore", invalid="ignore"):  # far beyond the stable step sizes powers may overflow
            return np.linalg.matrix_power(np.eye(A.shape[-1]) + self.step_size * A, self.local_steps)

    def sums(self, A: np.ndarray) -> np.ndarray:
        r"""$S_i = \sum_{k<H} F_i^k$, in $\log H$ products: $S_{2k} = S_k + F^k S_k$."""
        identity, bits = np.eye(A.shape[-1]), f"{self.local_steps:b}"[1:]
        F = power = identity + self.step_size * A
        S = np.broadcast_to(identity, A.shape).copy()  # products with broadcast views are slow
        with np.errstate(over="ignore", invalid="ignore"):
            for left, bit in zip(range(len(bits), 0, -1), bits, strict=True):
                S = S + (F if left == len(bits) else power @ S)
                S = identity + F @ S if bit == "1" else S
                if left > 1:
                    power = power @ power
                    power = F @ power if bit == "1" else power
        return S

    def transition(self, A: np.ndarray) -> np.ndarray:
        r"""The map of errors, $\Phi = I + \alpha_g (\frac1M \sum_i [F_i^H + \kappa \eta S_i (\bar A - A_i)] - I)$.

        It is computed by way of $\eta S_i A_i = F_i^H - I$.
        """
        identity, kappa, moved = np.eye(A.shape[-1]), self.correction, 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            if kappa > 0:
                moved = kappa * (self.step_size * self.sums(A).mean(0) @ A.mean(0))
            if kappa < 1:
                moved = moved + (1 - kappa) * (self.powers(A).mean(0) - identity)
            return identity + self.server_step * moved

    def offset(self, A: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        r"""The displacement of a noiseless round at the root, $c = (1 - \kappa) \alpha_g \eta \frac1M \sum_i S_i r_i$.

        `residuals` are $r_i = \bar G_i(\theta^\star)$. It is zero for FedHSA, and for $H = 1$.
        """
        if self.correction == 1 or self.local_steps == 1:
            return np.zeros(A.shape[-1])
        r = residuals[..., None]
        with np.errstate(over="ignore", invalid="ignore"):
            if self.local_steps > A.shape[-1]:
                pulled = self.sums(A) @ r
            else:  # H products with a vector are cheaper than a few with matrices
                pulled = r
                for _ in range(self.local_steps - 1):
                    pulled = r + pulled + self.step_size * (A @ pulled)
            return (1 - self.correction) * self.server_step * self.step_size * pulled[..., 0].mean(0)

    def limit_error(self, A: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        r"""Returns the limit of the error without noise, $(I - \Phi)^{-1} c$."""
        return self.mean_map(A, residuals).limit_error()

    def mean_map(self, A: np.ndarray, residuals: np.ndarray) -> RoundMap:
        """Returns the noiseless round map."""
        return RoundMap(self.transition(A), self.offset(A, residuals))


def local_powers(A: np.ndarray, step: float, local_steps: int) -> np.ndarray:
    r"""$F_i^k$ of $F_i = I + \eta A_i$ for $k < H$, `(H, M, d, d)`; their sum is $S_i$."""
    powers = [np.broadcast_to(np.eye(A.shape[1]), A.shape)]
    for _ in range(local_steps - 1):
        powers.append(powers[-1] + step * A @ powers[-1])
    return np.stack(powers)


def require_stable(growth: float, name: str, *, mean_square: bool = False) -> None:
    """Raises if the spectral radius `growth` of a round is 1 or more, in the mean or in the mean square."""
    if growth < 1:
        return
    if mean_square:
        raise ValueError(
            f"{name} converges in the mean here, but its mean-square error grows without bound (by {growth:.4g} per "
            "round): the noise in the operators' matrices is too strong for this step size. Use a smaller step size."
        )
    raise ValueError(
        f"{name} diverges on this problem (spectral radius {growth:.4g}), so it has no limit. "
        "Use a smaller step size or fewer local steps."
    )


def local_rule(algorithm: AbstractAlgorithm) -> LocalRule | None:
    """Returns the local rule of an algorithm with a constant step size, or None if it has another rule.

    A subclass has the rule of its base class unless it overrides a part of the round.
    """
    if any(isinstance(value, AbstractSchedule) for value in vars(algorithm).values()):
        return None
    if isinstance(algorithm, FedHSA | LocalSA):
        base = FedHSA if isinstance(algorithm, FedHSA) else LocalSA
        further = algorithm.local_steps, float(algorithm.server_step), float(base is FedHSA)
    elif isinstance(algorithm, AbstractOneStep):
        base, further = AbstractOneStep, (1, 1.0, 0.0)
    else:
        return None
    assert not isinstance(algorithm.step_size, AbstractSchedule)
    return LocalRule(float(algorithm.step_size), *further) if _does_what(type(algorithm), base) else None


def _does_what(cls: type, base: type) -> bool:
    """Returns whether a subclass overrides no part of its base's round."""
    before = cls.__mro__[: cls.__mro__.index(base)]
    overridden = {name for c in before for name, value in vars(c).items() if callable(value) or hasattr(value, "fget")}
    return not any(hasattr(base, name) for name in overridden - BESIDE_THE_ROUND if not name.startswith("__"))


def require_rule(algorithm: AbstractAlgorithm) -> LocalRule:
    """Returns the local rule of an algorithm; raises if it has none."""
    rule = local_rule(algorithm)
    if rule is None:
        raise TypeError(
            "This is known for FedHSA, LocalSA, SynchronisedSA and SA at a constant step size, got "
            f"{type(algorithm).__name__}. `theory.predict` supports every method whose rounds are affine."
        )
    return rule
