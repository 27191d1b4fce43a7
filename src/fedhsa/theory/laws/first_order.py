"""The floor to first order in the step size for any chain, from long-run covariances and lagged products."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_continuous_lyapunov

from ... import tree
from ..._linear import transpose
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...problems import AbstractAgent, Problem
from ...sources import IID, VAR1, Silent, Transition
from ..rule import LocalRule, require_rule
from .agents import additive_noise, finite_law, known_law


class Correlations(NamedTuple):
    r"""The correlations of the agents' noise at the root over time, which determine the floor to first order."""

    long_run: np.ndarray
    r"""$\Gamma_i = C_0 + \sum_{k \ge 1} (C_k + C_k^T)$, $C_k = \mathrm{Cov}(G_i(\theta^\star, o_0), G_i(\theta^\star,
    o_k))$, `(M, d, d)`."""
    variance: np.ndarray
    """$C_0$, `(M, d, d)`."""
    lagged: np.ndarray
    r"""$c_{i,k} = E[(A_i(o_k) - A_i)(G_i(\theta^\star, o_0) - \bar G_i(\theta^\star))]$ for $k = 1, 2, \dots$,
    `(M, lags, d)`."""
    lagged_sum: np.ndarray
    r"""$\sum_{k \ge 1} c_{i,k}$, `(M, d)`."""


def correlations(problem: Problem, lags: int = 1, at: np.ndarray | None = None) -> Correlations:
    r"""Computes exact long-run covariances and lagged products of affine problems.

    On finite chains they follow from the fundamental matrix $Z = (I - P + 1 \pi^T)^{-1}$. For VAR(1) noise
    $\Gamma = \sigma^2 (I - Q)^{-1} (I - Q)^{-T}$, and lagged products vanish since the noise is additive.

    **Arguments:**

    - `problem`: an affine problem with finite chains or additive VAR(1) noise.
    - `lags`: the number of lagged products; with 0, their sum is not computed either.
    - `at`: parameters whose noise is meant instead of the root, `(M, d)`.

    Raises `TypeError` for other problems.

    !!! example
        >>> P = [[[0.9, 0.1], [0.1, 0.9]]]                      # a symmetric chain, correlation 0.8^k
        >>> problem = fedhsa.problems.finite_sum.from_arrays(A=[[[[1.0]], [[1.0]]]], b=[[[1.0], [-1.0]]], P=P)
        >>> correlations(problem).long_run.round(6)                        # (1 + 0.8) / (1 - 0.8)
        array([[[9.]]])
    """
    M, d = problem.num_agents, problem.dim
    source = problem.agents.source
    nothing = np.zeros((M, lags, d)), np.zeros((M, d))
    if isinstance(source, Silent):
        return Correlations(np.zeros((M, d, d)), np.zeros((M, d, d)), *nothing)
    if (noise := additive_noise(problem)) is not None:
        long_run = noise.covariance if isinstance(source, IID) else long_run_of_var(noise)
        return Correlations(long_run, noise.covariance, *nothing)
    if finite_law(source) is None:
        raise TypeError(
            f"Correlations are known exactly for finite chains and for additive VAR(1) noise, got "
            f"{type(problem.agents).__name__} observing {type(source).__name__}. `theory.estimate` samples them."
        )
    with precision():
        at = np.broadcast_to(problem.root if at is None else at, (problem.num_agents, problem.dim))
        agents, x = tree.to_device((problem.flat_agents, at), "float64")
        return Correlations(*tree.to_host(_correlations(agents, x, lags)))


@eqx.filter_jit
def _correlations(agents, x, lags: int):
    def one(agent, x):
        chain: Any = known_law(agent).chain
        P, pi = chain.transition, chain.stationary
        given, leaving, square = _noise_at(agent, x)
        # times Z = (I - P + 1 pi^T)^-1, which sums over all later times
        summed = jnp.linalg.solve((jnp.eye(P.shape[0]) - P + pi[None, :]).T, leaving.T).T
        cross = summed @ given
        if not lags:
            return square + cross + cross.T, square, jnp.zeros((0, len(x))), jnp.full(len(x), jnp.nan)
        _, joint = jax.lax.scan(lambda D, _: (D @ P, D), leaving, length=lags)
        products = _multiplied(agent, x, jnp.concatenate([joint, summed[None]]))
        return square + cross + cross.T, square, products[:-1], products[-1]

    return jax.lax.map(lambda each: one(*each), (agents, x))


def _noise_at(agent: AbstractAgent, x):
    """Returns an agent's noise at `x`: its mean given the previous state, on each next state, and its covariance."""
    law: Any = known_law(agent)
    P, pi, states = law.chain.transition, law.chain.stationary, jnp.arange(law.num_states)
    if law.pairs:
        values = jax.vmap(lambda s: _leaving(agent, x, s, states))(states)
        weighted = (pi[:, None] * P)[..., None] * values
        square = jnp.einsum("sta,stb->ab", weighted, values)
        given, leaving = jnp.einsum("st,sta->sa", P, values), weighted.sum(0)
    else:
        given = jax.vmap(lambda s: agent.operator(x, s))(states)
        leaving, square = P.T @ (pi[:, None] * given), given.T @ (pi[:, None] * given)
    mean = pi @ given
    square = square - jnp.outer(mean, mean)
    if law.independent:
        return jnp.zeros_like(given), jnp.zeros_like(given.T), square
    return given - mean[None], (leaving - jnp.outer(pi, mean)).T, square


def _leaving(agent: AbstractAgent, x, s, states):
    """Returns the operators at `x` on the transitions from `s` to all `states`."""
    return jax.vmap(lambda t: agent.operator(x, Transition(s, t)))(states)


def _multiplied(agent: AbstractAgent, x, D):
    r"""Returns $E[\tilde A(o)\, \delta]$ for errors whose mean on the event of each state is `D`, `(k, d, S)`."""
    law, states = known_law(agent), jnp.arange(D.shape[-1])
    if law.independent:
        return jnp.zeros(D.shape[:2])

    def given(theta, s):
        if not law.pairs:
            return agent.operator(theta, s)
        return law.chain.transition[s] @ _leaving(agent, theta, s, states)

    def along(s, direction):
        return jax.jvp(lambda theta: given(theta, s), (x,), (direction,))[1]

    return jax.vmap(lambda D: jnp.sum(jax.vmap(along, in_axes=(0, 1))(states, D), axis=0))(D)


def long_run_of_var(source: VAR1) -> np.ndarray:
    r"""Returns $\sigma^2 (I - Q)^{-1} (I - Q)^{-T}$ for every agent, `(M, d, d)`."""
    inverse = np.linalg.inv(np.eye(source.transition.shape[-1]) - source.transition)
    return source.noise_std[:, None, None] ** 2 * inverse @ transpose(inverse)


def first_order_covariance(problem: Problem, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""Returns the solution $X$ of $\bar A X + X \bar A^T = -\frac{\alpha_g \eta}{M} \frac1M \sum_i \Gamma_i$.

    This is the constant of the linear speed-up. It contains the *average* of the agents' long-run covariances, not that
    of the slowest chain, which answers the paper's second open question.

    **Arguments:**

    - `problem`: an affine problem with finite chains or additive VAR(1) noise.
    - `algorithm`: FedHSA, LocalSA, SynchronisedSA or SA, with a constant step size.

    Raises `TypeError` for other problems and algorithms.

    !!! example
        >>> problem = fedhsa.problems.finite_sum.random(num_agents=3, num_components=4, dim=2, laziness=0.5)
        >>> X = first_order_covariance(problem, fedhsa.FedHSA(0.001, local_steps=5))
        >>> X.shape, bool(np.allclose(X, X.T))
        ((2, 2), True)
    """
    A, _ = problem.affine_parts()
    return covariance_of(A.mean(0), correlations(problem).long_run, require_rule(algorithm))


def first_order_bias(problem: Problem, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""Returns the Markov bias to first order in the step size, for $\kappa = 1$ (FedHSA) or $0$ (Local SA),

    $$-\eta \bar A^{-1} \frac1M \sum_i \Bigl\{ \frac1H \sum_{\ell<H} \sum_{1 \le j \le \ell}
      \bigl[c_{i,j} - \kappa (1 - \tfrac1M) c_{i,\ell}\bigr]
      + \frac{\alpha_g}{M H} \sum_{\ell<H} \sum_{k>\ell} c_{i,k} \Bigr\}.$$

    The first part comes from an agent's own local steps and is independent of $M$; the second from earlier rounds.

    **Arguments:**

    - `problem`: an affine problem with finite chains or additive VAR(1) noise.
    - `algorithm`: FedHSA, LocalSA, SynchronisedSA or SA, with a constant step size.

    Raises `TypeError` for other problems and algorithms.

    !!! example
        >>> problem = fedhsa.problems.finite_sum.random(num_agents=3, num_components=4, dim=2, laziness=0.5)
        >>> small, large = (first_order_bias(problem, fedhsa.FedHSA(eta, local_steps=5)) for eta in (0.001, 0.002))
        >>> bool(np.allclose(large, 2 * small))  # proportional to the step size
        True
    """
    rule = require_rule(algorithm)
    A, _ = problem.affine_parts()
    found = correlations(problem, lags=max(rule.local_steps - 1, 1))
    return bias_of(A.mean(0), found.lagged, found.lagged_sum, rule, 1 / problem.num_agents)


def covariance_of(A_bar: np.ndarray, long_run: np.ndarray, rule: LocalRule) -> np.ndarray:
    """Computes `first_order_covariance` from its ingredients."""
    return solve_continuous_lyapunov(A_bar, -rule.server_step * rule.step_size / len(long_run) * long_run.mean(0))


def bias_of(A_bar: np.ndarray, lagged: np.ndarray, lagged_sum: np.ndarray, rule: LocalRule, share: float) -> np.ndarray:
    """Computes `first_order_bias` from its ingredients; `share` is $1/M$, and 0 gives the part independent of $M$."""
    H, c, total = rule.local_steps, lagged.mean(0)[: rule.local_steps - 1], lagged_sum.mean(0)
    sums = np.concatenate([np.zeros((1, len(total))), np.cumsum(c, axis=0)])  # over 1 <= j <= l, for l = 0 .. H-1
    repeated = np.concatenate([np.zeros((1, len(total))), c]) * np.arange(len(sums))[:, None]
    own = (sums - rule.correction * (1 - share) * repeated).sum(0) + (H - len(sums)) * sums[-1]
    earlier = (total - sums).sum(0) + (H - len(sums)) * (total - sums[-1])
    return -rule.step_size / H * np.linalg.solve(A_bar, own + rule.server_step * share * earlier)
