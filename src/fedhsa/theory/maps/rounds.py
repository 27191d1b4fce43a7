"""Round maps: one round as a map of the error on an affine problem, derived from the algorithm's own exchanges.

For the paper's methods, `LocalRule` has the same map in closed form.
"""

from typing import Any, NamedTuple

import numpy as np

from ... import _check
from ...algorithms import AbstractAlgorithm, AbstractSchedule, FedHSA, LocalSA
from ...algorithms.local_sa import AbstractOneStep
from ...problems import Problem
from .joint import Joint
from .joint import check_reach as check_reach
from .joint import check_schedule as check_schedule
from .joint import start_error as start_error
from .modes import error_of, radius_of

BESIDE_THE_ROUND = {"check", "average_cost", "recorders"}
"""The attributes that a subclass may override without changing its rounds."""


class RoundMap(NamedTuple):
    r"""One round as an affine map of the error, $e' = \Phi e + c + \sum_{i,l} K_{il} z_{il}$.

    $\Phi$ is the linear part, $c$ the constant part, and $z_{il}$ is additive noise.
    """

    transition: np.ndarray
    r"""$\Phi$, `(d, d)`."""
    offset: np.ndarray
    """$c$, `(d,)`."""
    noise: np.ndarray | None = None
    """$K$, the response to additive noise, `(M, H, d, d)`; None if it is not needed."""

    def limit_error(self) -> np.ndarray:
        r"""Returns the limit of the error without noise, $(I - \Phi)^{-1} c$."""
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

    def round_map(self, A: np.ndarray, residuals: np.ndarray) -> RoundMap:
        r"""Returns the round map in closed form.

        $K_{i,\ell} = \frac{\alpha_g \eta}M [F_i^{H-1-\ell} + \kappa 1_{\ell=0} (\bar S - S_i)]$.
        """
        S, scale = self.sums(A), self.server_step * self.step_size / len(A)
        K = scale * np.moveaxis(local_powers(A, self.step_size, self.local_steps)[::-1], 0, 1)
        K[:, 0] += scale * self.correction * (S.mean(0) - S)
        return self.mean_map(A, residuals)._replace(noise=K)


def local_powers(A: np.ndarray, step: float, local_steps: int) -> np.ndarray:
    r"""$F_i^k$ of $F_i = I + \eta A_i$ for $k < H$, `(H, M, d, d)`; their sum is $S_i$."""
    powers = [np.broadcast_to(np.eye(A.shape[1]), A.shape)]
    for _ in range(local_steps - 1):
        powers.append(powers[-1] + step * A @ powers[-1])
    return np.stack(powers)


def round_map(problem: Problem, algorithm: AbstractAlgorithm) -> RoundMap:
    r"""Returns the exact map of the server's parameter over one round of `algorithm`.

    The map is computed by differentiating the algorithm's exchanges, so it is that of the code that runs. For FedHSA
    $\Phi = I + \alpha_g (\frac1M \sum_i [F_i^H + \eta S_i (\bar A - A_i)] - I)$ and $c = 0$; for Local SA
    $\Phi = I + \alpha_g (\frac1M \sum_i F_i^H - I)$ and $c = \alpha_g \eta \frac1M \sum_i S_i \bar G_i(\theta^\star)$,
    with $F_i = I + \eta A_i$ and $S_i = \sum_{k<H} F_i^k$.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: an algorithm with a constant step size that carries only the parameter from round to round.

    Raises `TypeError` for other problems and algorithms.

    !!! example
        >>> problem = fedhsa.problems.quadratic.from_arrays(A=[[[1.0]], [[3.0]]], b=[[1.0], [1.0]])
        >>> round_map(problem, fedhsa.LocalSA(0.1, local_steps=1)).transition.round(3).tolist()  # 1 - 0.1 * 2
        [[0.8]]
    """
    joint = Joint(problem, algorithm)
    if joint.size > problem.dim or len(joint.coins) > 1:
        raise TypeError(
            f"{type(algorithm).__name__} carries more than theta from round to round, or its rounds depend on a "
            "coin. `theory.joint_map` returns the mean map of everything that it carries."
        )
    map = joint.map()
    return RoundMap(map.transition, map.offset)


def spectral_radius(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """Returns the factor of the error per round in the long run. Above 1 the method diverges.

    It is the spectral radius of the joint map, restricted to modes that a run can excite and that affect the parameter.
    For methods with a coin it is the factor of the mean error.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: an algorithm with a constant step size.

    Raises `TypeError` if the problem or the rounds are not affine.

    !!! example
        >>> A = -np.array([0.1, 1.0]).reshape(2, 1, 1)      # two agents, G_i = a_i theta with a = (-0.1, -1)
        >>> problem = fedhsa.problems.quadratic.from_arrays(-A, b=np.zeros((2, 1)))
        >>> [round(spectral_radius(problem, fedhsa.FedHSA(0.5, local_steps=H)), 2) for H in (5, 10, 20)]
        [0.11, 0.38, 1.04]
    """
    return radius_of(Joint(problem, algorithm))


def limit(problem: Problem, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""Returns the limit of the method without noise, $\theta^\star + C (I - \Phi)^{-1} c$ with its joint map.

    For methods with a coin it is the limit of the mean.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: an algorithm with a constant step size.

    Raises `ValueError` if the method diverges, and `TypeError` if the problem or the rounds are not affine.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> bool(np.allclose(limit(problem, fedhsa.FedHSA(0.1, local_steps=5)), problem.theta_star))
        True
        >>> bool(np.allclose(limit(problem, fedhsa.LocalSA(0.1, local_steps=5)), problem.theta_star))
        False
    """
    joint = Joint(problem, algorithm)
    require_stable(radius_of(joint), joint.name)
    return problem.root + error_of(joint)


def noiseless_error(problem: Problem, algorithm: AbstractAlgorithm, *, rounds: int, theta: Any = None) -> np.ndarray:
    r"""Returns $|\bar\theta^{(t)} - \theta^\star|^2$ without noise for $t = 0, \dots$, `rounds`.

    For methods with a coin, $\bar\theta^{(t)}$ is replaced by its mean. Rounds may differ from each other.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: the algorithm.
    - `rounds`: the number of rounds.
    - `theta`: the initial parameter. Default: zeros.

    Raises `TypeError` if the problem is not affine.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> law = noiseless_error(problem, fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> run = fedhsa.simulate(problem.noiseless(), fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> bool(np.allclose(run.error[0], law, rtol=1e-12))
        True
    """
    start = start_error(problem, theta) + problem.root
    path = Joint(problem, algorithm).parameters(_check.count("rounds", rounds), start)
    return ((path - problem.root) ** 2).sum(-1)


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
            f"The law under noise is known for FedHSA, LocalSA, SynchronisedSA and SA at a constant step size, got "
            f"{type(algorithm).__name__}. Its noiseless map is `theory.exact.round_map`."
        )
    return rule
