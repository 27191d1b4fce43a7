r"""The paper's bounds, one function per displayed result, in its symbols and as functions of plain numbers.

Symbols: `M` agents, `H` local steps, `eta` $\eta$, $\alpha = H \eta$ (the results are for $\alpha_g = 1$), `L`, `mu`,
`sigma`, `rho`, `c` as in `theory.constants`, `tau_bar` $\bar\tau = \tau(\alpha^2)$, `error` $E|\bar\theta^{(t)} -
\theta^\star|^2$, `d_0` the same at the start, `drift` the mean $\frac1{MH} \sum_{i,\ell} E|\theta_{i,\ell}^{(t)} -
\bar\theta^{(t)}|^2$. They are the arguments of the functions. Numbers may be arrays. `evaluate` takes the symbols from
a problem's constants and a FedHSA.

The keyword `constant` is the factor hidden in $O(\cdot)$, one for all hidden terms. Its default is

- *proved* for `operator_size`, `mixing_bias`, `drift`, `variance_reduction`, `one_step_iid` and `one_step_markov`: the
  number that follows from the paper's proof if every step keeps its constant;
- *calibrated* for the others, whose proofs would give constants in the thousands and impractically small step sizes.
  It is 1, as are the constants $C$ and $C'$ of the step sizes. In simulations of FedHSA at the largest step sizes that
  this allows (finite sums and TD, fast and lazy chains, near and far starts), Theorem 1's floor required at most 0.02
  and Theorem 2 at most 0.8; `tests/theory/test_bounds.py` repeats them. A calibration is not a theorem: other problems
  may require more.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _check
from ..._linear import spectral_radius
from ...algorithms import AbstractSchedule, FedHSA
from ..rule import LocalRule
from .constants import Constants

__all__ = [
    "corollary_1",
    "corollary_1_rounds",
    "drift",
    "evaluate",
    "largest_step",
    "local_sa_bias",
    "markov_bias",
    "mixing_bias",
    "one_step",
    "one_step_iid",
    "one_step_markov",
    "operator_size",
    "parameter_change",
    "proposition_1",
    "theorem_1",
    "theorem_1_step",
    "theorem_2",
    "theorem_2_step",
    "variance_reduction",
]

DRIFT = 45 * math.e**2
r"""$|\theta_{i,\ell} - \bar\theta| \le e H \eta \cdot 3 L (|e| + 2 \sigma)$, and $(x + 2y)^2 \le 5 (x^2 + y^2)$."""
ONE_STEP_IID = 84.0
r"""$4 + 80 / (MH)$ with $MH \ge 1$; the noise term alone has 40."""
MARKOV = 192.0
r"""$6 \cdot 2 \cdot (4 L \sigma)^2 / (L \sigma)^2$ of $B_2$; the terms in $\alpha^6$ have 96, those in the error 28."""


def theorem_1(
    *, T: Any, d_0: Any, M: int, H: int, eta: float, L: float, mu: float, sigma: float, constant: float = 1.0
):
    r"""Computes the bound of Theorem 1, for i.i.d. sampling and $\eta \le$ `theorem_1_step`:

    $$d_T \le e^{-\mu \alpha T / 2} d_0
      + O\Bigl(\frac{\alpha L^2}{\mu M H} + \frac{\alpha^2 L^4}{\mu^2}\Bigr) \sigma^2$$

    !!! example
        >>> float(theorem_1(T=0, d_0=3.0, M=1, H=1, eta=0.5, L=1.0, mu=1.0, sigma=1.0))      # 3 + 0.5 + 0.25
        3.75
    """
    alpha, mu = H * eta, paper_mu(mu)
    floor = alpha * L**2 / (mu * M * H) + alpha**2 * L**4 / mu**2
    return np.exp(-mu * alpha * np.asarray(T) / 2) * d_0 + constant * floor * sigma**2


def theorem_1_step(*, H: int, L: float, mu: float, C: float = 1.0) -> float:
    r"""Returns the largest step size of Theorem 1, $\eta = \mu / (2 C L^2 H)$.

    $C$ is calibrated; the proof's constant exceeds 84.

    !!! example
        >>> theorem_1_step(H=10, L=2.0, mu=1.0)
        0.0125
    """
    return paper_mu(mu) / (2 * C * L**2 * H)


def theorem_2(
    *,
    T: Any,
    d_0: Any,
    M: int,
    H: int,
    eta: float,
    L: float,
    mu: float,
    sigma: float,
    rho: float,
    tau_bar: float,
    constant: float = 1.0,
):
    r"""Computes the bound of Theorem 2, for Markov sampling, $\eta \le$ `theorem_2_step` and $T \ge 2 \bar\tau$:

    $$d_T \le e^{-\mu \alpha T / 4} O(d_0 + \sigma^2)
      + O\Bigl(\frac{\bar\tau \alpha L^2}{\mu M H (1 - \rho)} + \frac{\alpha^2 L^4}{\mu^2}\Bigr) \sigma^2$$

    The appendix ends with $O(d_0 + \sigma)$ instead of $O(d_0 + \sigma^2)$. This is a misprint, since the square of the
    preceding line contains $\sigma^2$. The theorem's statement is weaker because $\sigma \ge 1$, and it is used here.

    !!! example
        >>> float(theorem_2(T=0, d_0=3.0, M=1, H=1, eta=0.5, L=1.0, mu=1.0, sigma=1.0, rho=0.5, tau_bar=2))
        6.25
    """
    alpha, mu = H * eta, paper_mu(mu)
    floor = tau_bar * alpha * L**2 / (mu * M * H * (1 - rho)) + alpha**2 * L**4 / mu**2
    return constant * (np.exp(-mu * alpha * np.asarray(T) / 4) * (d_0 + sigma**2) + floor * sigma**2)


def theorem_2_step(*, H: int, L: float, mu: float, tau_bar: float, C: float = 1.0) -> float:
    r"""Returns the largest step size of Theorem 2, $\eta = \mu / (C' \bar\tau L^2 H)$, for a given $\bar\tau$.

    $\bar\tau = \tau(\alpha^2)$ itself depends on the step size; `largest_step` solves for both.

    !!! example
        >>> theorem_2_step(H=10, L=2.0, mu=1.0, tau_bar=5.0)
        0.005
    """
    return paper_mu(mu) / (C * tau_bar * L**2 * H)


def corollary_1(
    *,
    T: Any,
    d_0: Any,
    M: int,
    H: int,
    L: float,
    mu: float,
    sigma: float,
    rho: float,
    tau_bar: float,
    constant: float = 16.0,
):
    r"""Computes the bound of Corollary 1, for `fedhsa.corollary_step` and $T \ge$ `corollary_1_rounds`:

    $$d_T \le \tilde O\Bigl(\Bigl(d_0 + \frac{\bar\tau L^2 \sigma^2}{\mu^2 (1 - \rho)}\Bigr) \frac{1}{MHT}\Bigr)$$

    The logarithms hidden by the tilde are $\log^2(MHT)$: with this step size, the $\alpha^2$ term of Theorem 2 becomes
    $16 \log^2(MHT) L^4 / (\mu^4 T^2)$, which also explains the default 16.

    !!! example
        >>> few, many = (
        ...     corollary_1(T=10_000, d_0=1, M=M, H=10, L=1, mu=1, sigma=1, rho=0.5, tau_bar=5) for M in (1, 10)
        ... )
        >>> bool(few > 5 * many)  # ten times, apart from the logarithms
        True
    """
    mu, total = paper_mu(mu), M * H * np.asarray(T)
    return constant * np.log(total) ** 2 * (d_0 + tau_bar * L**2 * sigma**2 / (mu**2 * (1 - rho))) / total


def corollary_1_rounds(
    *, T: int, M: int, H: int, L: float, mu: float, rho: float, tau_bar: float, C: float = 1.0
) -> float:
    r"""Returns the number of rounds that Corollary 1 requires,
    $\frac{L^2}{\mu^2} \max\{4 C' \bar\tau \log(MHT), MH(1-\rho)/\bar\tau\}$.

    It depends on the number of rounds itself, through the logarithm and $\bar\tau$.

    !!! example
        >>> corollary_1_rounds(T=10_000, M=10, H=10, L=1.0, mu=1.0, rho=0.5, tau_bar=5.0) < 10_000
        True
    """
    mu = paper_mu(mu)
    return L**2 / mu**2 * max(4 * C * tau_bar * math.log(M * H * T), M * H * (1 - rho) / tau_bar)


def proposition_1(A: Any, b: Any, eta: float) -> np.ndarray:
    r"""Returns the limit of the error of noiseless Local SA with $H = 2$, $\lim e_t = \eta v$ (Proposition 1).

    $$v = (2 \bar A + \eta \bar A')^{-1} \frac1M \sum_i \bar A_i^2 (\theta_i^\star - \theta^\star),
      \qquad \bar A' = \frac1M \sum_i \bar A_i^2$$

    The local roots are not needed: $\bar A_i^2 (\theta_i^\star - \theta^\star) = \bar A_i (\bar b_i - \bar A_i
    \theta^\star)$, so that agents without a unique root are supported.

    **Arguments:**

    - `A`, `b`: the coefficients of $\bar G_i = \bar A_i \theta - \bar b_i$, `(M, d, d)` and `(M, d)`, as returned by
      `problem.affine_parts()`.
    - `eta`: $\eta$.

    Raises `ValueError` if $I + 2 \eta \bar A + \eta^2 \bar A'$ is not Schur-stable.

    !!! example
        >>> proposition_1(A=[[[-1.0]], [[-3.0]]], b=[[-1.0], [0.0]], eta=0.1)   # 0.1 * 3/4 / (4 - 1/2)
        array([0.0214...])
    """
    sizes: dict[str, int] = {}
    A = _check.array("A", A, ("M", "d", "d"), sizes)
    b = _check.array("b", b, ("M", "d"), sizes)
    _check.number("eta", eta, above=0.0)
    A_bar, A_prime = A.mean(0), (A @ A).mean(0)
    radius = spectral_radius(np.eye(sizes["d"]) + 2 * eta * A_bar + eta**2 * A_prime)
    if radius >= 1:
        raise ValueError(
            f"`eta` is too large, got {eta}: I + 2 eta A + eta^2 A' has spectral radius {radius:.4g}, so Local SA "
            "diverges and has no limit. Use a smaller step size."
        )
    theta_star = np.linalg.solve(A_bar, b.mean(0))
    pull = (A @ (b - A @ theta_star)[..., None])[..., 0].mean(0)
    return eta * np.linalg.solve(2 * A_bar + eta * A_prime, pull)


def local_sa_bias(A: np.ndarray, b: np.ndarray, eta: float, H: int) -> np.ndarray:
    r"""Returns the limit of noiseless Local SA minus the root, for any number of local steps.

    $$\Bigl(I - \frac1M \sum_i F_i^H\Bigr)^{-1} \frac\eta M \sum_i \sum_{k<H} F_i^k\, \bar G_i(\theta^\star),
      \qquad F_i = I + \eta \bar A_i$$

    **Arguments:**

    - `A`, `b`: as for `proposition_1`.
    - `eta`, `H`: the step size and the number of local steps.

    !!! example
        >>> A, b = np.array([[[-1.0]], [[-3.0]]]), np.array([[-1.0], [0.0]])
        >>> local_sa_bias(A, b, eta=0.1, H=2), proposition_1(A, b, eta=0.1)
        (array([0.0214...]), array([0.0214...]))
    """
    residuals = A @ np.linalg.solve(A.mean(0), b.mean(0)) - b
    return LocalRule(eta, H, server_step=1.0, correction=0.0).limit_error(A, residuals)


def largest_step(constants: Constants, H: int, *, C: float = 1.0) -> float:
    r"""Returns the largest step size that Theorem 2 allows, with the $\bar\tau = \tau(\alpha^2)$ of this step size.

    The iteration starts from above: at a step size that is too large, $\bar\tau$ is too small, so the next step size is
    smaller, until they agree.

    **Arguments:**

    - `constants`: the constants of the problem.
    - `H`: the number of local steps.
    - `C`: the constant $C'$.

    Raises `ValueError` if the chains do not mix geometrically.

    !!! example
        >>> c = fedhsa.theory.constants(fedhsa.problems.td.random(num_agents=3, num_states=6, dim=2))
        >>> eta = largest_step(c, H=5)
        >>> bool(np.isclose(eta, theorem_2_step(H=5, L=c.L, mu=c.mu, tau_bar=c.tau((5 * eta) ** 2))))
        True
    """
    if math.isnan(constants.rho) or constants.rho >= 1:
        raise ValueError("Theorem 2 requires chains that mix geometrically (Assumption 3), and these chains do not.")
    eta = paper_mu(constants.mu) / (C * constants.L**2 * H)
    while True:
        tau_bar = max(1.0, constants.tau((H * eta) ** 2))
        smaller = theorem_2_step(H=H, L=constants.L, mu=constants.mu, tau_bar=tau_bar, C=C)
        if smaller >= eta:
            return eta
        eta = smaller


def evaluate(function: Callable, constants: Constants, algorithm: FedHSA, **others: Any) -> Any:
    """Evaluates a bound with symbols taken from the constants of a problem and from a FedHSA.

    **Arguments:**

    - `function`: a function of this module.
    - `constants`: the constants of the problem.
    - `algorithm`: a `FedHSA` with a constant step size and `server_step` 1.
    - `others`: the remaining symbols of the bound.

    Raises `TypeError` or `ValueError` if the paper does not cover the algorithm.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=6, dim=2)
        >>> c, algorithm = fedhsa.theory.constants(problem), fedhsa.FedHSA(1e-4, local_steps=5)
        >>> early, late = (evaluate(theorem_2, c, algorithm, T=T, d_0=1.0) for T in (10**5, 10**6))
        >>> bool(late < early)
        True
    """
    H, eta = require_covered(algorithm)
    known: dict[str, Callable[[], Any]] = {
        "M": lambda: constants.num_agents,
        "H": lambda: H,
        "eta": lambda: eta,
        "L": lambda: constants.L,
        "mu": lambda: constants.mu,
        "sigma": lambda: constants.sigma,
        "rho": lambda: constants.rho,
        "c": lambda: float(np.max(constants.geometric.c)),
        "tau_bar": lambda: max(1.0, constants.tau((H * eta) ** 2)),
    }
    missing = inspect.signature(function).parameters.keys() - others.keys()
    return function(**{name: value() for name, value in known.items() if name in missing}, **others)


def require_covered(algorithm: Any) -> tuple[int, float]:
    r"""Returns $H$ and $\eta$; raises unless the algorithm is FedHSA with a constant step size and $\alpha_g = 1$.

    !!! example
        >>> require_covered(fedhsa.FedHSA(0.1, local_steps=5))
        (5, 0.1)
    """
    if not isinstance(algorithm, FedHSA) or isinstance(algorithm.step_size, AbstractSchedule):
        raise TypeError(f"The paper's bounds are for FedHSA with a constant step size, got {algorithm}.")
    if algorithm.server_step != 1:
        raise ValueError(f"The paper's bounds are for `server_step` 1, got {algorithm.server_step}.")
    return algorithm.local_steps, float(algorithm.step_size)


# The lemmas behind the theorems.


def paper_mu(mu: float) -> float:
    r"""Returns the paper's $\mu \in (0, 1]$, which is $\min(\mu, 1)$, since a smaller $\mu$ is also valid.

    !!! example
        >>> paper_mu(0.3), paper_mu(4.0)
        (0.3, 1.0)
    """
    if not mu > 0:
        raise ValueError(f"`mu` must be positive, got {mu}: without Assumption 2 the paper has no bound.")
    return min(float(mu), 1.0)


def operator_size(*, distance: Any, L: float, sigma: float, constant: float = 4.0):
    r"""Computes the bound of $|G_i(\theta, o) - \bar G_i(\theta)| \le O(L) (|\theta - \theta^\star| + \sigma)$.

    $|G_i|$ and $|\bar G_i|$ alone are at most half of it.

    `distance` is $|\theta - \theta^\star|$.

    !!! example
        >>> found = operator_size(distance=1.0, L=2.0, sigma=0.5)
        >>> f"{found:.3g}"
        '12'
    """
    return constant * L * (distance + sigma)


def mixing_bias(*, distance: Any, tau: Any, L: float, sigma: float, rho: float, c: float = 1.0, constant: float = 4.0):
    r"""Computes the bound of the bias that remains after $\tau$ observations (eq. mixing_time):

    $$|E[G_i(\theta, o_{i,k}) \mid o_{i,k-\tau}] - \bar G_i(\theta)|
      \le O(L \rho^\tau) (|\theta - \theta^\star| + \sigma)$$

    The paper's $O$ includes $c_i$, which is not a universal constant. Pass `c`, the largest $c_i$, for a valid bound.

    `distance` is $|\theta - \theta^\star|$.

    !!! example
        >>> found = mixing_bias(distance=1.0, tau=3, L=1.0, sigma=1.0, rho=0.5)
        >>> f"{found:.3g}"
        '1'
    """
    return constant * c * L * rho ** np.asarray(tau) * (distance + sigma)


def drift(*, error: Any, H: int, eta: float, L: float, sigma: float, constant: float = DRIFT):
    r"""Computes the bound of the drift lemma, for $\eta \le 1 / (LH)$ and any sampling:

    $$|\theta_{i,\ell}^{(t)} - \bar\theta^{(t)}|^2
      \le O(\eta^2 L^2 H^2) (|\bar\theta^{(t)} - \theta^\star|^2 + \sigma^2)$$

    `error` may be that of a single run.

    !!! example
        >>> f"{drift(error=1.0, H=10, eta=0.01, L=1.0, sigma=1.0, constant=4.0):.2f}"
        '0.08'
    """
    return constant * (eta * L * H) ** 2 * (error + sigma**2)


def variance_reduction(
    *,
    error: Any,
    drift: Any,
    M: int,
    H: int,
    eta: float,
    L: float,
    sigma: float,
    rho: float,
    c: float = 1.0,
    constant: float = MARKOV,
):
    r"""Computes the bound of the variance reduction lemma, for rounds $t \ge \bar\tau$:

    $$2 \alpha^2 E\Bigl|\frac1{MH} \sum_{i,\ell} (G_i - \bar G_i)(\theta_{i,\ell}^{(t)})\Bigr|^2 \le O(L^2 \alpha^2)
      (\text{drift} + \text{error}) + O(L^2 \alpha^6 \sigma^2) + O\Bigl(\frac{L^2 \alpha^2 \sigma^2}{MH(1-\rho)}\Bigr)$$

    As in `mixing_bias`, the last term requires `c`.

    !!! example
        >>> found = variance_reduction(error=1.0, drift=0.0, M=10, H=10, eta=0.001, L=1.0, sigma=1.0, rho=0.5)
        >>> f"{found:.3g}"
        '0.0196'
    """
    alpha = H * eta
    noise = alpha**6 + c * alpha**2 / (M * H * (1 - rho))
    return constant * L**2 * (alpha**2 * (drift + error) + noise * sigma**2)


def one_step_iid(
    *,
    error: Any,
    drift: Any,
    M: int,
    H: int,
    eta: float,
    L: float,
    mu: float,
    sigma: float,
    constant: float = ONE_STEP_IID,
):
    r"""Computes the bound of the error one round later, for i.i.d. sampling:

    $$(1 - \alpha\mu + O(\alpha^2 L^2))\,\text{error} + O\Bigl(\frac{\alpha^2 L^2 \sigma^2}{MH}\Bigr)
      + O\Bigl(\frac{\alpha L^2}{\mu} + \alpha^2 L^2\Bigr) \text{drift}$$

    !!! example
        >>> found = one_step_iid(error=1.0, drift=0.0, M=10, H=10, eta=0.001, L=1.0, mu=1.0, sigma=1.0)
        >>> f"{found:.3g}"
        '0.998'
    """
    alpha, mu = H * eta, paper_mu(mu)
    hidden = (alpha * L) ** 2 * (error + sigma**2 / (M * H)) + (alpha * L**2 / mu + (alpha * L) ** 2) * drift
    return (1 - alpha * mu) * error + constant * hidden


def one_step_markov(
    *,
    error: Any,
    drift: Any,
    bias: Any,
    M: int,
    H: int,
    eta: float,
    L: float,
    mu: float,
    sigma: float,
    rho: float,
    c: float = 1.0,
    constant: float = MARKOV,
):
    r"""Computes the bound of the error one round later, for Markov sampling and $t \ge \bar\tau$:

    $$(1 - \alpha\mu + O(L^2 \alpha^2))\,\text{error} + O\Bigl(L^2 \alpha^2 + \frac{L^2 \alpha}{\mu}\Bigr) \text{drift}
      + O(L^2 \alpha^6 \sigma^2) + O\Bigl(\frac{L^2 \alpha^2 \sigma^2}{MH(1-\rho)}\Bigr) + T_{bias}$$

    `bias` is $T_{bias}$, which `markov_bias` bounds.

    !!! example
        >>> found = one_step_markov(error=1, drift=0, bias=0, M=10, H=10, eta=0.001, L=1, mu=1, sigma=1, rho=0.5)
        >>> f"{found:.3g}"
        '1.01'
    """
    alpha, mu = H * eta, paper_mu(mu)
    noise = alpha**6 + c * alpha**2 / (M * H * (1 - rho))
    hidden = alpha**2 * error + (alpha**2 + alpha / mu) * drift + noise * sigma**2
    return (1 - alpha * mu) * error + constant * L**2 * hidden + bias


def parameter_change(
    *, error: Any, M: int, H: int, eta: float, L: float, sigma: float, rho: float, tau_bar: float, constant: float = 1.0
):
    r"""Computes the bound of the change over $\bar\tau$ rounds, for $\eta \le 1 / (\tilde C \bar\tau H L^2)$:

    $$E|\bar\theta^{(t)} - \bar\theta^{(t - \bar\tau)}|^2 \le O(\bar\tau^2 L^2 \alpha^2)\,\text{error}
      + O\Bigl(\bar\tau^2 L^4 \alpha^4 + \frac{\bar\tau^2 L^2 \alpha^2}{MH(1-\rho)}\Bigr) \sigma^2$$

    The lemma introduces its constant as $\bar C$ and uses it as $\tilde C$; they are the same.

    !!! example
        >>> found = parameter_change(error=1.0, M=10, H=10, eta=0.001, L=1.0, sigma=1.0, rho=0.5, tau_bar=2.0)
        >>> f"{found:.3g}"
        '0.000408'
    """
    alpha = H * eta
    noise = (alpha * L) ** 4 + (alpha * L) ** 2 / (M * H * (1 - rho))
    return constant * tau_bar**2 * ((alpha * L) ** 2 * error + noise * sigma**2)


def markov_bias(
    *,
    error: Any,
    M: int,
    H: int,
    eta: float,
    L: float,
    mu: float,
    sigma: float,
    rho: float,
    tau_bar: float,
    constant: float = 1.0,
):
    r"""Computes the bound of the Markovian bias lemma, under the conditions of `parameter_change`:

    $$T_{bias}
      \le \Bigl(\frac{\alpha\mu}2 + O\Bigl(\bar\tau L^2 \alpha^2 + \frac{L^4 \alpha^3}\mu\Bigr)\Bigr) \text{error}
      + O\Bigl(\frac{L^4 \alpha^3}\mu + \frac{\bar\tau L^2 \alpha^2}{MH(1-\rho)}\Bigr) \sigma^2$$

    The last term of the statement has $\tau$ where the proof has $\bar\tau$; this function follows the proof. `measure`
    measures $T_{bias}$ itself.

    !!! example
        >>> found = markov_bias(error=1.0, M=10, H=10, eta=0.001, L=1.0, mu=1.0, sigma=1.0, rho=0.5, tau_bar=2.0)
        >>> f"{found:.3g}"
        '0.00521'
    """
    alpha, mu = H * eta, paper_mu(mu)
    cubic = L**4 * alpha**3 / mu
    noise = cubic + tau_bar * (L * alpha) ** 2 / (M * H * (1 - rho))
    return alpha * mu / 2 * error + constant * ((tau_bar * (L * alpha) ** 2 + cubic) * error + noise * sigma**2)


def one_step(
    *,
    error: Any,
    M: int,
    H: int,
    eta: float,
    L: float,
    mu: float,
    sigma: float,
    rho: float,
    tau_bar: float,
    constant: float = 1.0,
):
    r"""Computes the combined bound of the error one round later, which Theorem 2 iterates, for $t \ge 2 \bar\tau$:

    $$\Bigl(1 - \frac{\alpha\mu}2 + O(\bar\tau L^2 \alpha^2)\Bigr) \text{error}
      + O\Bigl(\frac{\bar\tau \alpha^2 L^2}{MH(1-\rho)} + \frac{\alpha^3 L^4}\mu\Bigr) \sigma^2$$

    Its proof uses $\alpha \le \bar\tau \mu / L^2$, which the theorem's $\alpha \le \mu / (C' \bar\tau L^2)$ implies.

    !!! example
        >>> found = one_step(error=1.0, M=10, H=10, eta=0.001, L=1.0, mu=1.0, sigma=1.0, rho=0.5, tau_bar=2.0)
        >>> f"{found:.3g}"
        '0.995'
    """
    alpha, mu = H * eta, paper_mu(mu)
    noise = tau_bar * (alpha * L) ** 2 / (M * H * (1 - rho)) + alpha**3 * L**4 / mu
    return (1 - alpha * mu / 2) * error + constant * (tau_bar * (L * alpha) ** 2 * error + noise * sigma**2)
