"""Policy evaluation of linear feedback on Gaussian linear dynamics: TD(0) with quadratic features, exact moments."""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy

from .. import _check
from .._generate import blend, with_radius
from .._types import SeedLike
from ..sources.linear import LinearGaussian
from .base import AbstractAgent, Problem

__all__ = ["LQRAgent", "Loop", "Value", "features", "from_arrays", "random", "regulate", "value"]

SYMMETRY_TOLERANCE = 1e-9


class LQRAgent(AbstractAgent):
    r"""$G_i(\theta, (s, s')) = (s^T C_i s + \gamma_i \phi(s')^T \theta - \phi(s)^T \theta)\, \phi(s)$.

    $\phi(s)$ are the products $s_j s_k$, $j \le k$, row by row, and a 1; so $\phi(s)^T \theta = s^T X s + c$.
    """

    cost: np.ndarray
    discount: np.ndarray
    A: np.ndarray
    b: np.ndarray
    """The mean operator is $A_i \\theta - b_i$, for any source."""

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        phi, next_phi = features(o.state), features(o.next_state)
        return (o.state @ self.cost @ o.state + jnp.sum((self.discount * next_phi - phi) * theta)) * phi

    def mean_operator(self, theta, /):
        return self.A @ theta - self.b

    def lipschitz(self, o, /):
        # The Jacobian phi (gamma phi' - phi)^T has rank one.
        phi, next_phi = features(o.state), features(o.next_state)
        return jnp.linalg.norm(phi) * jnp.linalg.norm(self.discount * next_phi - phi)


class Value(NamedTuple):
    """A quadratic value function, $V(s) = s^T X s + c$."""

    X: np.ndarray
    c: float


class Loop(NamedTuple):
    """A plant under feedback: the transition $s' = F s + w$, and the cost $s^T C s$ of a step."""

    transition: np.ndarray
    cost: np.ndarray


def features(state: Any) -> Any:
    """Return the features of a state: the products $s_j s_k$, $j \\le k$, row by row, and a 1.

    !!! example
        >>> features(np.array([2.0, 3.0])).tolist()
        [4.0, 6.0, 9.0, 1.0]
    """
    rows, columns = np.triu_indices(state.shape[-1])
    return jnp.append(state[rows] * state[columns], jnp.ones_like(state[:1]))


def value(theta: Any) -> Value:
    r"""Return $X$ and $c$ of the value function with a given parameter. Raises `ValueError` if its size is wrong.

    !!! example
        >>> value([1.0, 4.0, 3.0, 0.5])   # s_1^2 + 4 s_1 s_2 + 3 s_2^2 + 0.5
        Value(X=array([[1., 2.],
               [2., 3.]]), c=0.5)
    """
    theta = np.asarray(theta, dtype=np.float64)
    n = round((np.sqrt(8 * theta.size - 7) - 1) / 2)
    if theta.ndim != 1 or n * (n + 1) // 2 + 1 != theta.size:
        raise ValueError(f"`theta` must have n (n + 1) / 2 + 1 entries for a state of size n, got shape {theta.shape}.")
    X = np.zeros((n, n))
    X[np.triu_indices(n)] = theta[:-1]
    return Value((X + X.T) / 2, float(theta[-1]))


def regulate(F: Any, B: Any, state_cost: Any, input_cost: Any, gain: Any = None) -> Loop:
    r"""Compute the closed loop of the plant $s' = F s + B u + w$ with the cost $s^T Q s + u^T R u$ under $u = -K s$.

    **Arguments:**

    - `F`, `B`: `(n, n)` and `(n, m)`.
    - `state_cost`, `input_cost`: $Q$ and $R$.
    - `gain`: $K$, `(m, n)`. Default: the regulator that minimises the average cost, from the Riccati equation.

    !!! example
        >>> regulate([[2.0]], [[1.0]], [[1.0]], [[1.0]], gain=[[1.5]])
        Loop(transition=array([[0.5]]), cost=array([[3.25]]))
    """
    sizes: dict[str, int] = {}
    F = _check.array("F", F, ("n", "n"), sizes)
    B = _check.array("B", B, ("n", "m"), sizes)
    Q = _check.array("state_cost", state_cost, ("n", "n"), sizes)
    R = _check.array("input_cost", input_cost, ("m", "m"), sizes)
    if gain is None:
        X = scipy.linalg.solve_discrete_are(F, B, Q, R)
        gain = np.linalg.solve(R + B.T @ X @ B, B.T @ X @ F)
    K = _check.array("gain", gain, ("m", "n"), sizes)
    return Loop(F - B @ K, Q + K.T @ R @ K)


def from_arrays(transition: Any, noise: Any, cost: Any, discount: Any, *, start: str = "stationary") -> Problem:
    r"""Make the problem of evaluating `M` linear systems under feedback with one quadratic value function.

    Agent $i$ observes $s' = F_i s + w$, $w \sim N(0, W_i)$, and pays $s^T C_i s$ per step. Alone it would find the
    value of its system, $s^T X s + c$ with $X = C_i + \gamma F_i^T X F_i$ and
    $c = \gamma \, \mathrm{tr}(X W_i) / (1 - \gamma)$.
    The means over the stationary distribution, fourth moments of a Gaussian, are exact.

    **Arguments:**

    - `transition`: $F_i$, the closed loop, `(M, n, n)`, with spectral radius below 1. See `regulate`.
    - `noise`: $W_i$, `(M, n, n)`. It may be singular, but the stationary covariance must not be.
    - `cost`: $C_i$, `(M, n, n)`, symmetric.
    - `discount`: $\gamma_i$ in [0, 1), `(M,)` or one number.
    - `start`: the initial state, `"stationary"` or `"zero"`.

    Raises `ValueError` if an array is invalid, a loop is unstable or noise does not reach every dimension of the state.

    !!! example
        >>> problem = from_arrays([[[0.5]]], [[[1.0]]], [[[1.0]]], discount=0.8)
        >>> problem.theta_star   # X = 1 / (1 - 0.8 * 0.25), c = 0.8 * X / 0.2
        array([1.25, 5.  ])
    """
    sizes: dict[str, int] = {}
    F = _check.array("transition", transition, ("M", "n", "n"), sizes)
    W = _check.array("noise", noise, ("M", "n", "n"), sizes)
    C = _check.array("cost", cost, ("M", "n", "n"), sizes)
    discount = np.broadcast_to(discount, sizes["M"]) if np.ndim(discount) == 0 else discount
    discount = _check.array("discount", discount, ("M",), sizes)
    if (discount < 0).any() or (discount >= 1).any():
        agent = int(np.argmax((discount < 0) | (discount >= 1)))
        raise ValueError(f"`discount` must lie in [0, 1), got {discount[agent]} for agent {agent}.")
    uneven = abs(C - np.swapaxes(C, 1, 2)).max((1, 2))
    if (uneven > SYMMETRY_TOLERANCE * (1 + abs(C).max())).any():
        raise ValueError(f"`cost` must be symmetric, for agent {int(np.argmax(uneven))} it is not. Use (C + C^T) / 2.")
    source = LinearGaussian(F, W, start)
    for agent, covariance in enumerate(source.covariance):
        rank = np.linalg.matrix_rank(covariance)
        if rank < sizes["n"]:
            raise ValueError(
                f"The noise of agent {agent} reaches only {rank} of the {sizes['n']} dimensions of its state, so the "
                "value in the others cannot be learned. Add noise, or drop states."
            )
    parts = [_mean_operator(*agent) for agent in zip(F, W, C, discount, source.covariance, strict=True)]
    A, b = (np.stack(part) for part in zip(*parts, strict=True))
    return Problem(LQRAgent(source, C, discount, A, b), like=np.zeros(b.shape[-1]))


def random(
    num_agents: int = 20,
    dim: int = 2,
    *,
    num_inputs: int = 1,
    plant_radius: float = 1.1,
    input_cost: float = 1.0,
    state_std: float = 0.5,
    discount: float = 0.9,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Problem:
    r"""Make a problem of random plants, each under its optimal regulator.

    $F_i$ is Gaussian and scaled to spectral radius `plant_radius`, $B_i$ Gaussian, the cost $|s|^2$ + `input_cost`
    $|u|^2$. The noise covariance $I + R^T R / n$ is scaled until the state under feedback has the root-mean-square
    `state_std` per entry.

    **Arguments:**

    - `num_agents`, `dim`: $M$ and $n$, the size of the *state*; the parameter has $n (n + 1) / 2 + 1$ entries. More
      agents with the same key extend the problem.
    - `num_inputs`: the size of the input.
    - `plant_radius`: above 1 the plants are unstable without their regulators.
    - `state_std`: the size of the states. Operators grow with its fourth power and have the tails of a Gaussian's
      fourth power, so large states need very small steps.
    - `heterogeneity`: 0 makes all agents equal (plant, regulator and noise), 1 makes them independent draws.

    !!! example
        >>> random(num_agents=3, dim=2).theta_star.shape
        (4,)
    """
    n, m = _check.count("dim", dim), _check.count("num_inputs", num_inputs)
    for name, number in (("plant_radius", plant_radius), ("input_cost", input_cost), ("state_std", state_std)):
        _check.number(name, number, above=0.0)

    def draw_W(rng, count):
        R = rng.normal(size=(count, n, n))
        return np.eye(n) + np.swapaxes(R, 1, 2) @ R / n

    F = blend(lambda rng, count: rng.normal(size=(count, n, n)), "F", num_agents, heterogeneity, key)
    F = with_radius(F, plant_radius)
    B = blend(lambda rng, count: rng.normal(size=(count, n, m)), "B", num_agents, heterogeneity, key)
    W = blend(draw_W, "W", num_agents, heterogeneity, key)
    loops = [regulate(f, b, np.eye(n), input_cost * np.eye(m)) for f, b in zip(F, B, strict=True)]
    closed, cost = (np.stack(part) for part in zip(*loops, strict=True))
    size = np.trace(LinearGaussian(closed, W).covariance, axis1=1, axis2=2) / n
    return from_arrays(closed, W * (state_std**2 / size)[:, None, None], cost, discount)


def _mean_operator(F, W, C, discount, covariance) -> tuple[np.ndarray, np.ndarray]:
    r"""$A_i = \Sigma (\gamma T - I)^T$ and $b_i = -\Sigma \kappa$, where $\Sigma = E[\phi \phi^T]$.

    $E[\phi(s') \mid s] = T \phi(s)$, since $s'$ is linear in $s$ but for the noise, and $s^T C s = \kappa^T \phi(s)$.
    """
    rows, columns = np.triu_indices(len(F))
    twice = np.where(rows == columns, 1.0, 2.0)
    size = len(rows) + 1
    # s'_j s'_k = sum_ab F_ja F_kb s_a s_b + W_jk, and each pair a < b stands for two terms of the sum
    direct, crossed = F[rows][:, rows] * F[columns][:, columns], F[rows][:, columns] * F[columns][:, rows]
    T = np.zeros((size, size))
    T[:-1, :-1] = (direct + crossed) * twice / 2
    T[:-1, -1], T[-1, -1] = W[rows, columns], 1.0
    kappa = np.append(C[rows, columns] * twice, 0.0)
    Sigma = _second_moments(covariance, rows, columns)
    return Sigma @ (discount * T - np.eye(size)).T, -Sigma @ kappa


def _second_moments(S: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    r"""$E[\phi \phi^T]$ under $N(0, S)$, by $E[s_a s_b s_c s_d] = S_{ab} S_{cd} + S_{ac} S_{bd} + S_{ad} S_{bc}$."""
    pairs = S[rows, columns]
    fourth = np.outer(pairs, pairs)
    fourth += S[rows][:, rows] * S[columns][:, columns] + S[rows][:, columns] * S[columns][:, rows]
    return np.block([[fourth, pairs[:, None]], [pairs[None], np.ones((1, 1))]])
