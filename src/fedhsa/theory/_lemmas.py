"""The lemmas behind the paper's theorems, one function each; `bounds` exports them and explains their symbols."""

import math
from typing import Any

import numpy as np

DRIFT = 45 * math.e**2
r"""$|\theta_{i,\ell} - \bar\theta| \le e H \eta \cdot 3 L (|e| + 2 \sigma)$, and $(x + 2y)^2 \le 5 (x^2 + y^2)$."""
ONE_STEP_IID = 84.0
r"""$4 + 80 / (MH)$ with $MH \ge 1$; the noise term alone has 40."""
MARKOV = 192.0
r"""$6 \cdot 2 \cdot (4 L \sigma)^2 / (L \sigma)^2$ of $B_2$; the terms in $\alpha^6$ have 96, those in the error 28."""


def paper_mu(mu: float) -> float:
    r"""The paper's $\mu \in (0, 1]$: at most 1, which is no loss since a smaller $\mu$ serves as well."""
    if not mu > 0:
        raise ValueError(f"`mu` must be positive, got {mu}: without Assumption 2 the paper has no bound.")
    return min(float(mu), 1.0)


def operator_size(*, distance: Any, L: float, sigma: float, constant: float = 4.0):
    r"""$|G_i(\theta, o) - \bar G_i(\theta)| \le O(L) (|\theta - \theta^\star| + \sigma)$, for `distance` $|\theta -
    \theta^\star|$. $|G_i|$ and $|\bar G_i|$ alone are half of it.

    !!! example
        >>> found = operator_size(distance=1.0, L=2.0, sigma=0.5)
        >>> f"{found:.3g}"
        '12'
    """
    return constant * L * (distance + sigma)


def mixing_bias(*, distance: Any, tau: Any, L: float, sigma: float, rho: float, c: float = 1.0, constant: float = 4.0):
    r"""What is left of a bias $\tau$ observations later (eq. mixing_time), for `distance` $|\theta - \theta^\star|$:

    $$|E[G_i(\theta, o_{i,k}) \mid o_{i,k-\tau}] - \bar G_i(\theta)|
      \le O(L \rho^\tau) (|\theta - \theta^\star| + \sigma)$$

    The paper's $O$ swallows $c_i$, which is no universal constant: pass `c`, the largest $c_i$, for a bound that holds.

    !!! example
        >>> found = mixing_bias(distance=1.0, tau=3, L=1.0, sigma=1.0, rho=0.5)
        >>> f"{found:.3g}"
        '1'
    """
    return constant * c * L * rho ** np.asarray(tau) * (distance + sigma)


def drift(*, error: Any, H: int, eta: float, L: float, sigma: float, constant: float = DRIFT):
    r"""The drift lemma, for $\eta \le 1 / (LH)$, whatever the sampling; `error` may be of one run:

    $$|\theta_{i,\ell}^{(t)} - \bar\theta^{(t)}|^2
      \le O(\eta^2 L^2 H^2) (|\bar\theta^{(t)} - \theta^\star|^2 + \sigma^2)$$

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
    r"""The variance reduction lemma, for rounds $t \ge \bar\tau$:

    $$2 \alpha^2 E\Bigl|\frac1{MH} \sum_{i,\ell} (G_i - \bar G_i)(\theta_{i,\ell}^{(t)})\Bigr|^2 \le O(L^2 \alpha^2)
      (\text{drift} + \text{error}) + O(L^2 \alpha^6 \sigma^2) + O\Bigl(\frac{L^2 \alpha^2 \sigma^2}{MH(1-\rho)}\Bigr)$$

    As in `mixing_bias` the last term needs `c`.

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
    r"""The error one round later, i.i.d. sampling:

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
    r"""The error one round later, Markov sampling, $t \ge \bar\tau$, with `bias` $T_{bias}$ as `markov_bias` bounds it:

    $$(1 - \alpha\mu + O(L^2 \alpha^2))\,\text{error} + O\Bigl(L^2 \alpha^2 + \frac{L^2 \alpha}{\mu}\Bigr) \text{drift}
      + O(L^2 \alpha^6 \sigma^2) + O\Bigl(\frac{L^2 \alpha^2 \sigma^2}{MH(1-\rho)}\Bigr) + T_{bias}$$

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
    *,
    error: Any,
    M: int,
    H: int,
    eta: float,
    L: float,
    sigma: float,
    rho: float,
    tau_bar: float,
    constant: float = 1.0,
):
    r"""The change of the parameter over $\bar\tau$ rounds, for $\eta \le 1 / (\tilde C \bar\tau H L^2)$:

    $$E|\bar\theta^{(t)} - \bar\theta^{(t - \bar\tau)}|^2 \le O(\bar\tau^2 L^2 \alpha^2)\,\text{error}
      + O\Bigl(\bar\tau^2 L^4 \alpha^4 + \frac{\bar\tau^2 L^2 \alpha^2}{MH(1-\rho)}\Bigr) \sigma^2$$

    The lemma names its constant $\bar C$ where it is introduced and $\tilde C$ where it is used; they are one.

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
    r"""The Markovian bias lemma, under the conditions of `parameter_change`:

    $$T_{bias}
      \le \Bigl(\frac{\alpha\mu}2 + O\Bigl(\bar\tau L^2 \alpha^2 + \frac{L^4 \alpha^3}\mu\Bigr)\Bigr) \text{error}
      + O\Bigl(\frac{L^4 \alpha^3}\mu + \frac{\bar\tau L^2 \alpha^2}{MH(1-\rho)}\Bigr) \sigma^2$$

    The statement has $\tau$ in its last term where the proof has $\bar\tau$; the proof's is used. `measure` gives
    $T_{bias}$ itself.

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
    r"""The error one round later with everything put together, which Theorem 2 iterates, for $t \ge 2 \bar\tau$:

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
