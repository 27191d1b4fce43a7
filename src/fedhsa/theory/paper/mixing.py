"""Mixing of finite chains: distance to stationarity, mixing times, and Assumption 3's geometric pair, certified.

All functions take one kernel `(S, S)` and return numbers, or a stack `(M, S, S)` and return one entry per agent.

They are based on $N = P - 1 \\pi^T$, for which $N^t = P^t - 1 \\pi^T$. Its powers keep their relative accuracy at any
size, whereas the difference $P^t - 1 \\pi^T$ would be dominated by rounding at $10^{-16}$.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from ... import _check
from ...sources.finite import check_kernel, stationary_law

__all__ = ["Geometric", "distance", "geometric", "mixing_time"]

SMALLEST_RHO = 1e-3
"""The rate of chains that mix in one step, whose second eigenvalue is 0: Assumption 3 requires a positive rate."""
MOST_DOUBLINGS = 34
"""Chains are followed for $2^{34}$ steps. Beyond that, rounding affects half of the digits of $P^t$."""
RATE_TOLERANCE = 0.05
ROUNDING = 1e-12
SINGLE_THREADED = 2**18
"""Matrix products of up to this number of multiplications run on one core in OpenBLAS."""


class Geometric(NamedTuple):
    r"""The pair of Assumption 3: $\max_s d_{TV}(P(o_t = \cdot \mid o_0 = s), \mu) \le c \rho^t$ for all $t \ge 1$.

    !!! example
        >>> Geometric(rho=0.5, c=2.0).of_pairs()
        Geometric(rho=0.5, c=4.0)
    """

    rho: Any
    r"""$\rho_i \in (0, 1)$, or 1 for a chain that does not mix to within floating-point accuracy."""
    c: Any
    r"""$c_i \ge 1$."""

    def tau(self, eps: float) -> Any:
        r"""Returns $\tau_i(\varepsilon) = \min\{t \ge 0 : c_i \rho_i^t \le \varepsilon\}$, a whole number or infinity.

        !!! example
            >>> Geometric(rho=0.5, c=2.0).tau(0.25)
            3.0
        """
        _check_eps(eps)
        rho, c = np.broadcast_arrays(np.asarray(self.rho, dtype=float), np.asarray(self.c, dtype=float))
        times = np.full(rho.shape, np.inf)
        mixes = rho < 1
        # Rounding must not add a step if c rho^t equals eps.
        exact = np.log(c[mixes] / eps) / -np.log(rho[mixes])
        times[mixes] = np.maximum(np.ceil(exact - ROUNDING * (1 + exact)), 0)
        return times if times.ndim else float(times)

    def of_pairs(self) -> "Geometric":
        r"""Returns the pair of the process $(s_t, s_{t+1})$, the observations of TD, for a chain $s_t$ with this pair.

        Given $(s_0, s_1)$, the distribution of $(s_t, s_{t+1})$ is as far from stationary as that of $s_t$ given $s_1$,
        so the distance of the pairs at $t$ is that of the chain at $t - 1$: they have the same $\rho$, and $c / \rho$
        instead of $c$.
        """
        return Geometric(self.rho, self.c / self.rho)


def distance(P: Any, time: int) -> Any:
    r"""Returns the distance to stationarity, $d(t) = \max_s d_{TV}(P^t(s, \cdot), \pi)$.

    **Arguments:**

    - `P`: one kernel or a stack of kernels.
    - `time`: $t$.

    !!! example
        >>> round(distance([[0.9, 0.1], [0.2, 0.8]], time=3), 6)     # two thirds of 0.7^3
        0.228667
    """
    time = _check.count("time", time, least=0)

    def one(N, pi, _):
        return _norm(np.linalg.matrix_power(N, time)) / 2 if time else float(1 - pi.min())

    return _each(one, P)


def mixing_time(P: Any, eps: float = 0.25) -> Any:
    r"""Returns the exact mixing time $\min\{t \ge 0 : d(t) \le \varepsilon\}$, by doubling and then bisection.

    $d$ never increases, so $2 \log_2 t$ products are sufficient. Rounding becomes visible beyond $10^8$ steps.

    **Arguments:**

    - `P`: one kernel or a stack of kernels.
    - `eps`: $\varepsilon$, a distance in total variation.

    Raises `ValueError` if a chain takes more than $2^{34}$ steps.

    !!! example
        >>> mixing_time([[0.9, 0.1], [0.2, 0.8]])                   # the first t with 2/3 * 0.7^t <= 1/4
        3
    """
    _check_eps(eps)

    def one(N, pi, agent):
        time = _mixing_time(N, pi, eps)
        if time is None:
            raise _does_not_mix(agent)
        return time

    return _each(one, P)


def geometric(P: Any) -> Geometric:
    r"""Returns the pair $(\rho, c)$ of Assumption 3, certified for every $t$.

    With $\bar d(t) = \max_{s, s'} d_{TV}(P^t(s, \cdot), P^t(s', \cdot)) \le 2 d(t)$, distances multiply:
    $d(s + t) \le d(s) \bar d(t)$. So if $2 d(t_0) \le \rho^{t_0}$ for a single $t_0$, then $d(t) / \rho^t$ at
    $t = k t_0 + r$ is at most its value at $r$, and $c = \max(1, \max_{1 \le t < t_0} d(t) / \rho^t)$ is always valid.

    - $\rho = (2 d(t_0))^{1 / t_0}$, which by Gelfand's formula decreases to the second largest eigenvalue modulus as
      $t_0$ grows. $t_0$ is doubled until $\log(1/\rho)$ changes by less than 5 %, so that $\rho$ is slightly above the
      eigenvalue. A defective kernel, for which $d(t) / |\lambda_2|^t$ grows like a polynomial, is not a special case:
      it leads to a larger $t_0$ and a larger $c$.
    - A chain that mixes in one step (a kernel of rank one) has eigenvalue 0; the result is $\rho = 0.001$ and $c = 1$.
    - Beyond $t = 128$ only some $t$ are evaluated. In between, $d(t)$ is replaced by its value at the last of them,
      which makes $c$ up to a fifth larger than necessary.

    **Arguments:**

    - `P`: one kernel or a stack of kernels.

    Raises `ValueError` if a chain does not mix to within floating-point accuracy.

    !!! example
        >>> rho, c = geometric([[0.9, 0.1], [0.2, 0.8]])              # d(t) = 2/3 * 0.7^t
        >>> bool(0.7 <= rho < 0.7**0.95), c
        (True, 1.0)
    """

    def one(N, pi, agent):
        pair = _geometric(N)
        if pair.rho == 1:
            raise _does_not_mix(agent)
        return pair

    pairs = _each(one, P)
    return pairs if isinstance(pairs, Geometric) else Geometric(pairs[:, 0], pairs[:, 1])


class MixingSpeeds(NamedTuple):
    """Geometric pairs and mixing times, `(M,)`. A chain that does not mix has rate 1 and infinite mixing time."""

    geometric: Geometric
    times: np.ndarray


def of_chains(P: np.ndarray, stationary: np.ndarray, eps: float = 0.25) -> MixingSpeeds:
    """Returns geometric pairs and mixing times of valid kernels `(M, S, S)`, including those that hardly mix.

    !!! example
        >>> P = np.array([[[0.9, 0.1], [0.1, 0.9]]])
        >>> of_chains(P, np.array([[0.5, 0.5]])).times.tolist()
        [4.0]
    """
    pairs, times = [], []
    for kernel, pi in zip(P, stationary, strict=True):
        N = kernel - pi
        pairs.append(_geometric(N))
        time = _mixing_time(N, pi, eps) if pairs[-1].rho < 1 else None
        times.append(np.inf if time is None else time)
    rho, c = np.array(pairs).T
    return MixingSpeeds(Geometric(rho, c), np.array(times, dtype=float))


def _each(function, P: Any) -> Any:
    """Applies `function(N, pi, agent)` to every kernel; returns a single value for one kernel."""
    stacked = np.ndim(P) == 3
    P = _check.array("P", P, ("M", "S", "S") if stacked else ("S", "S"))
    P = P if stacked else P[None]
    check_kernel(P)
    values = [function(kernel - pi, pi, i) for i, (kernel, pi) in enumerate(zip(P, stationary_law(P), strict=True))]
    return np.array(values) if stacked else values[0]


def _norm(matrix: np.ndarray) -> float:
    """Returns the largest sum of moduli in a row, which for a power of N is twice the distance."""
    return float(abs(matrix).sum(-1).max())


def _product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Computes `A @ B` in strips too small for BLAS to start threads, which are slow on busy cores."""
    strip = SINGLE_THREADED // B.size
    if not 4 <= strip < len(A):
        return A @ B
    return np.concatenate([A[k : k + strip] @ B for k in range(0, len(A), strip)])


def _mixing_time(N: np.ndarray, pi: np.ndarray, eps: float) -> int | None:
    def mixed(power: np.ndarray) -> bool:
        return _norm(power) / 2 <= eps * (1 + ROUNDING)

    if 1 - pi.min() <= eps * (1 + ROUNDING):
        return 0
    powers = [N]
    while not mixed(powers[-1]):
        if len(powers) > MOST_DOUBLINGS:
            return None
        powers.append(_product(powers[-1], powers[-1]))
    time, reached = 0, None
    for k in range(len(powers) - 2, -1, -1):  # the largest time at which the chain is not mixed, bit by bit
        further = powers[k] if reached is None else _product(reached, powers[k])
        if not mixed(further):
            time, reached = time + 2**k, further
    return time + 1


def _geometric(N: np.ndarray) -> Geometric:
    rate = _rate(N)
    if rate is None:
        return Geometric(1.0, 1.0)
    rho, last = rate
    return Geometric(rho, max(1.0, _largest_ratio(N / rho, rho, last)))


def _rate(N: np.ndarray) -> tuple[float, int] | None:
    """Returns rho and a $t_0$ with $2 d(t_0) <= rho^{t_0}$, or None for a chain that does not mix in time."""
    power, log_norm, decay = N, 0.0, -np.inf
    for k in range(MOST_DOUBLINGS + 1):
        norm = _norm(power)
        log_norm = 2 * log_norm + (math.log(norm) if norm > 0 else -np.inf)
        before, decay = decay, -log_norm / 2**k
        if decay >= -math.log(SMALLEST_RHO):
            return SMALLEST_RHO, 2**k
        if decay > 2.0**-MOST_DOUBLINGS and decay - before <= RATE_TOLERANCE * decay:
            return math.exp(-decay), 2**k
        power = power / norm  # so that no power underflows
        power = _product(power, power)
    return None


def _largest_ratio(B: np.ndarray, rho: float, last: int) -> float:
    """Returns an upper bound of $d(t) / rho^t$ over $1 <= t < last$, from powers of $B = N / rho$."""
    powers, ratio = [B], 0.0
    time, power = 1, B
    while time < last:
        k = max(0, (time // 64).bit_length() - 1)
        while len(powers) <= k:
            powers.append(_product(powers[-1], powers[-1]))
        stride = 2**k
        ratio = max(ratio, _norm(power) / 2 * rho ** -(stride - 1))  # d(t) does not grow until the next evaluation
        time, power = time + stride, _product(power, powers[k])
    return ratio


def _check_eps(eps: float) -> None:
    _check.number("eps", eps, above=0.0, remedy="Use a distance such as 0.25.")


def _does_not_mix(agent: int) -> ValueError:
    return ValueError(
        f"The kernel of agent {agent} hardly mixes: after 2^{MOST_DOUBLINGS} steps it still depends on its start, so "
        f"its second eigenvalue is 1 to within {2.0**-MOST_DOUBLINGS:.0e}, and neither its mixing time nor its "
        "stationary distribution can be computed in floating point. Its parts are nearly disconnected (or it is nearly "
        "periodic): treat the parts as separate agents, or connect them."
    )
