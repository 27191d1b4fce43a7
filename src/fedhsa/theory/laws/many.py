r"""Markov chains at any size: each agent's noise exactly, agents correlated with each other only through the server.

Seen from the fixed point $x_0$ of infinitely many agents, a round is $e' = \Phi e + \frac{\alpha}{M} \sum_i \zeta_i$:
$\Phi$ is the exact mean map, a mean of products $E[\prod_\ell F_i(o_\ell)]$, and $\zeta_i$ is what agent $i$'s noise adds,

$$y \leftarrow y + \eta (G_i(y, o_\ell) - \kappa h_i), \qquad
  \zeta_i = (y_i - E_i y_i) + \kappa \bar T (a_i - E_i a_i),$$

with the first operator $a_i$, the correction $h_i = a_i - \bar g$ and the response $\bar T$ of all agents to $\bar g$;
$E_i$ is the mean given $e$. The moments $Y_i(s) = E[(1, e)(1, e)^T 1\{s_i = s\}]$ then go through a round by themselves
if the other agents are replaced by their means: the joint second moments of $(y, 1, h, e)$ on the event of each state
close, multiplicative noise included, and give $R_i(Y_i) = E[(1, e')(1, e')^T 1\{s_i' = s'\}]$. The law is the solution of

$$U = L_0 U + \sum_i \Bigl(\sum_{s'} R_i(Y_i) - L_0 U\Bigr), \qquad
  Y_i = \pi_i U + V_i, \qquad V_i = R_i(Y_i) - \pi_i \sum_{s'} R_i(Y_i),$$

with $U = E[(1, e)(1, e)^T]$ and $L_0 U = \Phi U \Phi^T$. It is exact for one agent and, whatever the step, the number of
local steps and the chains, for infinitely many; what it leaves out is that two agents remember the same noise.
"""

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from ... import tree
from ..._linear import DOUBLINGS, spectral_radius, transpose
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..maps.rounds import check_reach, require_rule, require_stable
from .finite import finite_law
from .moments import AbstractLaw, Moments, Radius

CHUNK = 2**18
"""How many numbers the moments of the agents that are moved together may have."""
PARALLEL = 10**9
"""From how many operations on the agents are shared out among the cores."""


class Agents(NamedTuple):
    r"""Some agents laid open: on the way from $s$ to $t$ the operator at $e$ is $D(s)^T W(s, t) (e, 1)$."""

    P: np.ndarray
    """Kernels, `(B, S, S)`."""
    pi: np.ndarray
    """Stationary laws, `(B, S)`."""
    W: np.ndarray
    """Slopes and values of the coefficients, `(B, S, T, K, d + 1)`; `T` is 1 where the state alone is observed."""
    D: np.ndarray | None
    """The directions they multiply, `(B, S, K, d)`; None where these are the coordinates."""
    PD: np.ndarray | None
    """$P(s, t) D(s)$, `(B, T, d, S K)`."""
    independent: bool

    @property
    def dim(self) -> int:
        """$d$."""
        return self.W.shape[-1] - 1

    def move(self, X: np.ndarray) -> np.ndarray:
        r"""$\sum_s P(s, t) X(s)$; independent observations forget the state instead."""
        if self.independent:
            return self.spread(X.sum(1))
        return (transpose(self.P) @ X.reshape(*X.shape[:2], -1)).reshape(X.shape)

    def spread(self, X: np.ndarray) -> np.ndarray:
        r"""$\pi(s) X$."""
        return self.pi.reshape(*self.pi.shape, *(1,) * (X.ndim - 1)) * X[:, None]

    def coefficients(self, X: np.ndarray) -> np.ndarray:
        """$W(s, t) X(s)$ for `X` with a row for each of $(e, 1)$: `(B, S, T, K, n)`."""
        B, S, T, K, _ = self.W.shape
        return (self.W.reshape(B, S, T * K, -1) @ X).reshape(B, S, T, K, -1)

    def directed(self, r: np.ndarray) -> np.ndarray:
        r"""$\sum_s P(s, t) D(s)^T r(s, t)$, `(B, S, d, n)`."""
        if self.PD is None:  # one coefficient for each coordinate, whatever the next state
            return self.move(r[:, :, 0])
        B, S, T, K, n = r.shape
        pushed = self.PD @ r.transpose(0, 2, 1, 3, 4).reshape(B, T, S * K, n)
        return self.spread(pushed.sum(1)) if self.independent else pushed

    def squared(self, coefficients: np.ndarray) -> np.ndarray:
        r"""$q D$ of $q = W X W^T$, from $W X$: the operator's second moment is `directed` of it."""
        d = self.dim
        q = coefficients[..., : d + 1] @ transpose(self.W)
        return q if self.D is None else q @ self.D[:, :, None]

    def powers(self, exponent: int) -> np.ndarray:
        r"""$(P - 1 \pi^T)^k$, `(B, S, S)`."""
        if self.independent:
            return np.zeros_like(self.P)
        return np.linalg.matrix_power(self.P - self.pi[:, None], exponent)


class Means(NamedTuple):
    r"""The mean end of an agent's round, $E[y_i] = Q_i e + \kappa T_i \bar g + u_i$, and its mean operator, $A_i e + c_i$.

    With a leading axis of agents.
    """

    Q: np.ndarray
    T: np.ndarray
    u: np.ndarray
    A: np.ndarray
    c: np.ndarray

    def at(self, x: np.ndarray) -> "Means":
        """The same with errors measured from `x`."""
        return self._replace(u=self.u + self.Q @ x - x, c=self.c + self.A @ x)


class Others(NamedTuple):
    r"""What one agent meets: the others' means, and the covariance of their first operators' mean.

    $\bar g = B (1, e) + a_i / M + \nu$ and $e' = E (1, e) + \frac\alpha M (y_i + T a_i)$, with a leading axis of agents.
    """

    B: np.ndarray
    E: np.ndarray
    T: np.ndarray
    own_T: np.ndarray
    nu: np.ndarray


def mean_round(agents: Agents, eta: float, H: int, kappa: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""$Q_i$, $T_i$ and $u_i$ of `Means`, by the products that are still to come from each state."""
    P, d = agents.P, agents.dim
    B, S, _, K, _ = agents.W.shape
    # E[y_H | s_l, y_l] = N(s_l) (y_l, 1) + kappa R(s_l) (gbar - a), backwards from l = H.
    N = np.zeros((B, S, d, d + 1), P.dtype)
    N[..., :d] = np.eye(d)
    R = np.zeros((B, S, d, d), P.dtype)

    def average(X):
        return np.einsum("bs,bs...->b...", agents.pi, X)

    def back(X):
        """What was to come from the next state, given this one."""
        if agents.independent:
            return np.broadcast_to(average(X)[:, None], X.shape)
        return (P @ X.reshape(B, S, -1)).reshape(X.shape)

    def through(L):
        r"""$E[L(t) A(o)]$ given $s$, `(B, S, d, d + 1)`."""
        if agents.D is None:
            return back(L) @ agents.W[:, :, 0]
        if agents.independent:
            L = back(L)
        # L(t) D(s)^T for all pairs, then the products with W(s, t).
        LD = (L.reshape(B, S * d, d) @ transpose(agents.D.reshape(B, S * K, d))).reshape(B, S, d, S, K)
        LD = LD.transpose(0, 3, 2, 1, 4) * P[:, :, None, :, None]
        return LD.reshape(B, S, d, S * K) @ agents.W.reshape(B, S, S * K, d + 1)

    for _ in range(H - 1):
        if kappa:
            R = back(R + eta * N[..., :d])
        N = back(N) + eta * through(N[..., :d])
    # The first step: y_1 = e + eta ((1 - kappa) a + kappa gbar).
    L = eta * (1 - kappa) * N[..., :d] - kappa * R
    end = average(N + through(L))
    return end[..., :d], average(eta * N[..., :d] + R), end[..., d]


def round_of(agents: Agents, others: Others, Y: np.ndarray, rule: "Rule") -> np.ndarray:
    r"""$R_i(Y_i)$: the second moments of $(e, 1)$ on the event of each state, a round later, `(B, S, d + 1, d + 1)`."""
    d, eta, pi = agents.dim, rule.eta, agents.pi[..., None, None]
    if not rule.kappa:
        Z = np.concatenate([Y, Y[..., :d]], axis=-1)  # rows (y, 1), columns (y, 1, e), and y = e at first
        for _ in range(rule.H):
            Z = _step(agents, Z, None, eta)
        yy, yx = Z[..., :d, :d], Z[..., :d, [*range(d + 1, 2 * d + 1), d]]
        xx = _moved(agents, Y, rule.H)
        return _end(others, rule, xx, yx, yy)
    # The first step, with x = (e, 1): y = E_y x + (1 - rho) eta a + eta nu and h = E_h x + rho a - nu.
    rho, B = 1 - 1 / rule.M, others.B[:, None]
    E_y, E_h = eta * B, -B
    E_y[..., :d] += np.eye(d, dtype=B.dtype)
    nu = pi * others.nu[:, None]
    coefficients = agents.coefficients(Y)
    xx, ax, aa = agents.move(Y), agents.directed(coefficients), agents.directed(agents.squared(coefficients))
    xa = transpose(ax)
    yx, hx = E_y @ xx + (1 - rho) * eta * ax, E_h @ xx + rho * ax
    ya, ha = E_y @ xa + (1 - rho) * eta * aa, E_h @ xa + rho * aa
    yy = yx @ transpose(E_y) + (1 - rho) * eta * ya + eta**2 * nu
    yh = yx @ transpose(E_h) + rho * ya - eta * nu
    hh = hx @ transpose(E_h) + rho * ha + nu
    one, last = xx[..., d:, :d], slice(d, d + 1)
    top = np.concatenate([yy, yx[..., last], yh, yx[..., :d]], axis=-1)
    row = np.concatenate([transpose(yx[..., last]), xx[..., last, last], transpose(hx[..., last]), one], axis=-1)
    Z, h = np.concatenate([top, row], axis=-2), np.concatenate([hx[..., last], hh, hx[..., :d]], axis=-1)
    for _ in range(rule.H - 1):
        Z, h = _step(agents, Z, h, eta), agents.move(h)
    xx, ax, aa = (_moved(agents, X, rule.H - 1) for X in (xx, ax, aa))
    yy, yh = Z[..., :d, :d], Z[..., :d, d + 1 : 2 * d + 1]
    yx = np.concatenate([Z[..., :d, 2 * d + 1 :], Z[..., :d, last]], axis=-1)
    T_nu = others.own_T[:, None] @ nu
    ya = (yh - yx @ transpose(E_h) + T_nu) / rho  # a = (h - E_h x + nu) / rho
    yy = yy - T_nu @ transpose(others.own_T[:, None])  # the mean response to the others' noise is theirs
    T = others.T[:, None]
    Ta = T @ transpose(ya)
    return _end(others, rule, xx, yx + T @ ax, yy + Ta + transpose(Ta) + T @ aa @ transpose(T))


def _step(agents: Agents, Z: np.ndarray, h: np.ndarray | None, eta: float) -> np.ndarray:
    """One local step of the second moments: rows are $(y, 1)$, columns $(y, 1, h, e)$, those of `h` $(1, h, e)$."""
    d = agents.dim
    r = agents.coefficients(Z)
    square = agents.squared(r)
    if h is not None:
        # y loses eta h: in the rows, then in the columns.
        Z = Z.copy()
        Z[..., :d, :d] -= eta * transpose(Z[..., :d, d + 1 : 2 * d + 1])
        Z[..., :d, d:] -= eta * h
        for X in (Z, r):
            X[..., :d] -= eta * X[..., d + 1 : 2 * d + 1]
    r[..., :d] += eta / 2 * square
    Z, added = agents.move(Z), eta * agents.directed(r)
    Z[..., :d, :] += added
    Z[..., :d, :d] += transpose(added[..., :d])
    Z[..., d, :d] += added[..., d]
    return Z


def _moved(agents: Agents, X: np.ndarray, steps: int) -> np.ndarray:
    """`move` so many times."""
    if not steps:
        return X
    return agents._replace(P=agents.powers(steps) + agents.pi[:, None]).move(X)


def _end(others: Others, rule: "Rule", xx: np.ndarray, zx: np.ndarray, zz: np.ndarray) -> np.ndarray:
    r"""The second moments of $(e', 1)$, $e' = E x + \frac\alpha M z$, from those of $x = (e, 1)$ and $z$."""
    E, share, d = others.E[:, None], rule.alpha / rule.M, zz.shape[-1]
    new = np.empty_like(xx)
    Ex = E @ xx
    cross = share * zx @ transpose(E)
    new[..., :d, :d] = Ex @ transpose(E) + cross + transpose(cross) + share**2 * zz
    new[..., :d, d] = new[..., d, :d] = Ex[..., d] + share * zx[..., d]
    new[..., d, d] = xx[..., d, d]
    return new


class Rule(NamedTuple):
    r"""The local rule in the letters of the formulas; with one agent or one local step there is nothing to correct."""

    eta: float
    H: int
    alpha: float
    kappa: float
    M: int


class ManyAgentsLaw(AbstractLaw):
    """The law of this page, on finite chains with affine operators, for FedHSA, Local SA and the one-step methods.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=8, num_states=6, dim=3, laziness=0.5)
        >>> law = ManyAgentsLaw(problem, fedhsa.FedHSA(0.02, local_steps=10))
        >>> bool(law.mean_square_radius().value < 1), bool(law.stationary().square > 0)
        (True, True)
    """

    basis = "many agents"

    def __init__(self, problem: Problem, algorithm: AbstractAlgorithm):
        check_reach(problem, algorithm)
        algorithm.check(problem)
        found, law = require_rule(algorithm), finite_law(problem.agents.source)
        if law is None:
            raise TypeError(
                f"The law of many agents is one of finite chains, got {type(problem.agents.source).__name__}. "
                "`theory.estimate` has the same quantities from samples."
            )
        M, d = problem.num_agents, problem.dim
        kappa = found.correction if M > 1 and found.local_steps > 1 else 0.0
        self.name, self.problem, self.law = type(algorithm).__name__, problem, law
        self.rule = Rule(found.step_size, found.local_steps, found.server_step, kappa, M)
        A, b = problem.affine_parts()
        c = A @ problem.root - b
        self.heterogeneity_bias = found.limit_error(A, c)
        rule, T = self.rule, law.num_states if law.pairs else 1
        self.chunk = max(1, CHUNK // (law.num_states * T * (3 * d + 1)))
        ends = self._over_agents(lambda agents, _: mean_round(agents, rule.eta, rule.H, rule.kappa), problem.root)
        Q, response, u = (np.concatenate(parts) for parts in zip(*ends, strict=True))
        means = Means(Q, response, u, A, c)
        self.transition, offset = _mean_map(means, rule)
        self.spectral_radius = spectral_radius(self.transition)
        self.fixed_point = np.full(d, np.inf)
        if self.spectral_radius < 1:
            self.fixed_point = np.linalg.solve(np.eye(d) - self.transition, offset)
            self.means = means.at(self.fixed_point)

    @property
    def persistent_bias(self) -> np.ndarray:
        """What correlation in time adds to the mean however many agents like these there are."""
        return self.fixed_point - self.heterogeneity_bias

    def stationary(self):
        require_stable(self.spectral_radius, self.name)
        Phi, d, rule = self._augmented, self.problem.dim, self.rule
        U = np.zeros((d + 1, d + 1))
        U[d, d] = 1
        V = [None] * rule.M
        for k in range(60):
            new, V, nu = self._sweep(U, V, self.nu if k else None)
            self.nu = nu
            R = new - U
            R[d, d] = 0
            # U = L0 U + ... : correct the residual with the mean map
            dU = _stein(Phi, R)
            U = U + (dU + dU.T) / 2
            if np.abs(dU).max() < 1e-12 * np.abs(U[:d, :d]).max():
                break
        mean = U[:d, d]
        self.sweeps = k + 1
        return Moments(self.fixed_point + mean, U[:d, :d] - np.outer(mean, mean))

    def path(self, start, rounds):
        raise NotImplementedError

    @property
    def _augmented(self):
        d = self.problem.dim
        Phi = np.zeros((d + 1, d + 1))
        Phi[:d, :d], Phi[d, d] = self.transition, 1
        return Phi

    def _sweep(self, U, V, nu):
        Phi, d, rule = self._augmented, self.problem.dim, self.rule
        others = self._others(nu)

        def one(agents, some):
            P = agents.powers(rule.H)
            spread = agents.spread(np.broadcast_to(U, (len(agents.P), *U.shape)))
            before = np.zeros_like(spread) if V[some.start] is None else np.stack(V[some])
            Y = spread + before
            new = round_of(agents, tree.take(others, some), Y, rule)
            new = (new + transpose(new)) / 2
            total = new.sum(1)
            R = new - agents.spread(total) - before
            # anchors' covariance
            W = agents.coefficients(Y)
            aa = agents.directed(agents.squared(W)).sum(1)
            abar = agents.directed(W[..., d:d+1]).sum(1)[..., 0]
            cov = aa - abar[:, :, None] * abar[:, None, :]
            V_new = before + _memory(Phi, P, R)
            return list((V_new + transpose(V_new)) / 2), total - Phi @ U @ Phi.T, cov

        parts = self._over_agents(one, self.problem.root + self.fixed_point)
        V = [v for part in parts for v in part[0]]
        new = Phi @ U @ Phi.T + sum(part[1].sum(0) for part in parts)
        covs = np.concatenate([part[2] for part in parts])
        nu = (covs.sum(0) - covs) / rule.M**2
        return new, V, nu

    def _others(self, nu) -> Others:
        (eta, H, alpha, kappa, M), m, d = self.rule, self.means, self.problem.dim
        Q, T, u, A, c = (x.sum(0) - x for x in m)
        B = np.concatenate([A, c[..., None]], axis=-1) / M
        E = alpha / M * (kappa * T @ B)
        E[..., :d] += (1 - alpha) * np.eye(d) + alpha / M * Q
        E[..., d] += alpha / M * u
        nu = np.zeros_like(Q) if nu is None else nu
        return Others(B, E, kappa * T / M, kappa * m.T, nu)

    def _over_agents(self, function: Callable[[Agents, slice], Any], point: np.ndarray) -> list[Any]:
        """`function(agents, which)` for all agents, chunk by chunk."""
        law, flat = self.law, self.problem.flat_agents

        def part(start: int):
            some = slice(start, min(start + self.chunk, self.rule.M))
            with precision():  # which every thread has to ask for itself
                inputs = tree.to_device(tree.take((flat, law.chain), some), "float64")
                P, pi, W, D = tree.to_host(_lay_open(*inputs, tree.to_device(point, "float64"), law.pairs))
            PD = None
            if law.pairs:
                B, S, T, K, _ = W.shape
                PD = (P[..., None, None] * D[:, :, None]).transpose(0, 2, 4, 1, 3).reshape(B, T, -1, S * K)
            else:
                D = None
            return function(Agents(P, pi, W, D, PD, law.independent), some)

        return [part(start) for start in range(0, self.rule.M, self.chunk)]


def _mean_map(means: Means, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    r"""$\Phi$ and what a round adds at the point that errors are measured from, for infinitely many agents."""
    Q, T, u, A, c = (x.mean(0) for x in means)
    identity = np.eye(len(u))
    transition = (1 - rule.alpha) * identity + rule.alpha * (Q + rule.kappa * T @ A)
    return transition, rule.alpha * (rule.kappa * T @ c + u)


def _stein(Phi, R):
    X = R
    for _ in range(DOUBLINGS):
        added = Phi @ X @ Phi.T
        added[-1, -1] = 0
        X = X + added
        if not np.abs(added).max() > 1e-17 * np.abs(X).max():
            break
        Phi = Phi @ Phi
    return X


def _memory(Phi, P, R):
    r"""$\sum_k \Phi^k R P^{k} \Phi^{kT}$ over all later rounds."""
    for _ in range(DOUBLINGS):
        added = Phi @ (transpose(P) @ R.reshape(*R.shape[:2], -1)).reshape(R.shape) @ Phi.T
        R = R + added
        if not np.abs(added).max() > 1e-17 * np.abs(R).max():
            break
        Phi, P = Phi @ Phi, P @ P
    return R


@eqx.filter_jit
def _lay_open(agents, chains, point, pairs: bool):
    def one(agent, chain):
        states = jnp.arange(chain.stationary.shape[0])

        def at(s):
            def coefficients(theta):
                if pairs:
                    return agent.transition_operators(theta, s, states)[0]
                return agent.operator(theta, s)[None]

            W = jnp.concatenate([jax.jacfwd(coefficients)(point), coefficients(point)[..., None]], axis=-1)
            D = agent.transition_operators(point, s, states)[1] if pairs else jnp.zeros(())
            return W, D

        return chain.transition, chain.stationary, *jax.vmap(at)(states)

    return jax.vmap(one)(agents, chains)
