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

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, gmres

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
"""From how many operations a sweep on the agents are shared out among the cores."""
LARGE = 10**11
"""From how many operations a sweep on single precision is used, and memory of the server's error is left out."""
PATH = 10**10
"""How many operations the first rounds of a path may take; the rest follows the mean map."""
SOME = 20
"""From so many agents a first guess of a large law is made."""
DENSE = 60
"""Up to how many unknowns the mean-square radius is that of a matrix."""
CLOSE = 1e-9
"""The relative residual of the long run."""
SLOW = 1e-3
"""From which distance of the mean map's radius to 1 on single precision is enough."""


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

    def squared(self, coefficients: np.ndarray, scale: float = 1.0) -> np.ndarray:
        r"""$q D$ of $q = W X W^T$, from $W X$: the operator's second moment is `directed` of it."""
        coefficients = coefficients[..., : self.dim + 1]
        if self.D is None:
            return scale * coefficients @ transpose(self.W)
        if self.W.shape[3] == 1:  # many tiny products are slow
            return scale * np.einsum("bstkn,bstkn->bstk", coefficients, self.W)[..., None] * self.D[:, :, None]
        return scale * (coefficients @ transpose(self.W)) @ self.D[:, :, None]

    def given(self) -> np.ndarray:
        r"""The mean operator at $e = 0$ given the state, `(B, S, d)`."""
        value = self.W[..., -1]
        if self.D is None:
            return value[:, :, 0]
        return (np.einsum("bst,bstk->bsk", self.P, value)[:, :, None] @ self.D)[:, :, 0]

    def powers(self, exponent: int) -> np.ndarray:
        r"""$(P - 1 \pi^T)^k$, `(B, S, S)`."""
        if self.independent:
            return np.zeros_like(self.P)
        return np.linalg.matrix_power(self.P - self.pi[:, None], exponent)


class Means(NamedTuple):
    r"""The mean end of an agent's round, $E[y_i] = (F_i - \kappa K_i)(e, 1) + \kappa T_i \bar g$, with a leading axis.

    $F_i$ is the mean of the local steps without correction, $T_i$ the mean response to the correction, and
    $K_i = E[T a_i]$ that to the agent's own first operator, whose mean is $A_i (e, 1)$.
    """

    F: np.ndarray
    K: np.ndarray
    T: np.ndarray
    A: np.ndarray

    def at(self, x: np.ndarray) -> "Means":
        """The same with errors measured from `x`, of which `y` is one."""

        def shift(map):
            shifted = map.copy()
            shifted[..., -1] += map[..., :-1] @ x
            return shifted

        F = shift(self.F)
        F[..., -1] -= x
        return Means(F, shift(self.K), self.T, shift(self.A))


class Others(NamedTuple):
    r"""What an agent meets: the others' means, and the covariance $\nu$ of what their noise adds to $\bar g$.

    $\bar g = B (e, 1) + a_i / M + \nu$ and $e' = E (e, 1) + \frac\alpha M (y_i + T a_i)$, with a leading axis of agents.
    """

    B: np.ndarray
    E: np.ndarray
    T: np.ndarray
    own_T: np.ndarray
    nu: np.ndarray


class Rule(NamedTuple):
    r"""The local rule in the letters of the formulas; with one agent or one local step there is nothing to correct."""

    eta: float
    H: int
    alpha: float
    kappa: float
    M: int

    @property
    def share(self) -> float:
        r"""$\alpha / M$."""
        return self.alpha / self.M

    @property
    def rho(self) -> float:
        r"""$1 - 1/M$, the part of an agent's first operator that its correction takes away."""
        return 1 - 1 / self.M


def mean_round(agents: Agents, rule: Rule) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    r"""$F_i$, $K_i$ and $T_i$ of `Means`, and $E[y_i \mid s]$ at $e = 0$ and $\bar g = a_i / M$, `(B, S, d)`."""
    P, d, eta = agents.P, agents.dim, rule.eta
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

    own = np.zeros_like(N)
    for step in range(rule.H):
        if rule.kappa:
            R = R + eta * N[..., :d]
            if step == rule.H - 1:
                own = through(R)
            R = back(R)
        N = back(N) + eta * through(N[..., :d])
    end = N - rule.kappa * rule.rho * own
    return average(N), average(own), average(R), end[..., d]


class End(NamedTuple):
    r"""Moments at the end of a round, on the event of each state, of $x = (e, 1)$ at its start, $y$, $h$ and $a$."""

    xx: np.ndarray
    yx: np.ndarray
    """Without the columns of $e$ where they are not followed."""
    yy: np.ndarray
    yh: np.ndarray | None = None
    ax: np.ndarray | None = None
    aa: np.ndarray | None = None

    def summed(self) -> "End":
        """The same, whatever the state."""
        return End(*(None if X is None else X.sum(1, keepdims=True) for X in self))


def second_moments(agents: Agents, others: Others, Y: np.ndarray, rule: Rule, *, follow: bool) -> End:
    r"""A round of the second moments $Y = E[x x^T 1\{s\}]$; `follow` says whether products of $y$ with $e$ are kept."""
    d, eta = agents.dim, rule.eta
    e, one = slice(0, d), slice(d, d + 1)
    if not rule.kappa:
        Z, h = np.concatenate([Y, Y[..., e]], axis=-1) if follow else Y, None
        for _ in range(rule.H):
            Z, h = _step(agents, Z, h, eta)
        yx = np.concatenate([Z[..., e, d + 1 :], Z[..., e, one]], axis=-1)
        return End(_moved(agents, Y, rule.H), yx, Z[..., e, e])
    # The first step: y = E_y x + (1 - rho) eta a + eta nu and h = E_h x + rho a - nu.
    rho, B, nu = rule.rho, others.B[:, None], agents.spread(others.nu)
    E_y, E_h = eta * B, -B
    E_y[..., e] += np.eye(d, dtype=B.dtype)
    coefficients = agents.coefficients(Y)
    xx, ax, aa = agents.move(Y), agents.directed(coefficients), agents.directed(agents.squared(coefficients))
    yx, hx = E_y @ xx + (1 - rho) * eta * ax, E_h @ xx + rho * ax
    ya, ha = E_y @ transpose(ax) + (1 - rho) * eta * aa, E_h @ transpose(ax) + rho * aa
    yy = yx @ transpose(E_y) + (1 - rho) * eta * ya + eta**2 * nu
    yh = yx @ transpose(E_h) + rho * ya - eta * nu
    hh = hx @ transpose(E_h) + rho * ha + nu
    top, row = [yy, yx[..., one], yh], [transpose(yx[..., one]), xx[..., one, one], transpose(hx[..., one])]
    left = [hx[..., one], hh]
    if follow:
        top, row, left = [*top, yx[..., e]], [*row, xx[..., one, e]], [*left, hx[..., e]]
    h = np.concatenate(left, axis=-1)
    Z = np.concatenate([np.concatenate(top, axis=-1), np.concatenate(row, axis=-1)], axis=-2)
    for _ in range(rule.H - 1):
        Z, h = _step(agents, Z, h, eta)
    xx, ax, aa = (_moved(agents, X, rule.H - 1) for X in (xx, ax, aa))
    yx = np.concatenate([Z[..., e, 2 * d + 1 :], Z[..., e, one]], axis=-1)
    return End(xx, yx, Z[..., e, e], Z[..., e, d + 1 : 2 * d + 1], ax, aa)


def _step(agents: Agents, Z: np.ndarray, h: np.ndarray | None, eta: float) -> tuple[np.ndarray, np.ndarray | None]:
    """One local step of the second moments: rows are $(y, 1)$, columns $(y, 1, h, e)$, those of `h` $(1, h, e)$."""
    d = agents.dim
    r = agents.coefficients(Z)
    r[..., :d] += agents.squared(r, eta / 2)
    added, Z = agents.directed(r), agents.move(Z)
    added *= eta
    if h is not None:  # y loses eta h: in the rows, then in the columns
        of_h = slice(d + 1, 2 * d + 1)
        h = agents.move(h)
        Z[..., :d, :d] -= eta * transpose(Z[..., :d, of_h])
        Z[..., :d, d:] -= eta * h
        Z[..., :d] -= eta * Z[..., of_h]
        added[..., :d] -= eta * added[..., of_h]
    Z[..., :d, :] += added
    Z[..., :d, :d] += transpose(added[..., :d])
    Z[..., d, :d] += added[..., d]
    return Z, h


def _moved(agents: Agents, X: np.ndarray, steps: int) -> np.ndarray:
    """`move` so many times."""
    if not steps:
        return X
    return agents._replace(P=agents.powers(steps) + agents.pi[:, None]).move(X)


def server(end: End, others: Others, rule: Rule, pi: np.ndarray) -> np.ndarray:
    r"""The moments of $(e', 1)$ for $e' = E x + \frac\alpha M z$ and $z = y + T a$; `pi` is the chance of each event."""
    xx, zx, zz = end.xx, end.yx, end.yy
    E, d = others.E[:, None], zz.shape[-1]
    if end.yh is not None and end.ax is not None:
        B, T, own_T, nu = (X[:, None] for X in (others.B, others.T, others.own_T, others.nu))
        T_nu = pi[..., None, None] * (own_T @ nu)
        ya = (end.yh + zx @ transpose(B) + T_nu) / rule.rho  # a = (h + B x + nu) / rho
        cross = T @ transpose(ya)
        # The mean response to the others' noise is theirs.
        zz = zz - T_nu @ transpose(own_T) + cross + transpose(cross) + T @ end.aa @ transpose(T)
        zx = zx + T @ end.ax
    new, Ex, cross = np.empty_like(xx), E @ xx, rule.share * zx @ transpose(E)
    new[..., :d, :d] = Ex @ transpose(E) + cross + transpose(cross) + rule.share**2 * zz
    new[..., :d, d] = new[..., d, :d] = Ex[..., d] + rule.share * zx[..., d]
    new[..., d, d] = xx[..., d, d]
    return (new + transpose(new)) / 2


def first_moments(agents: Agents, others: Others, x: np.ndarray, rule: Rule) -> np.ndarray:
    r"""$E[z]$ for errors with $E[(e, 1) 1\{s\}] = x$, `(B, S, d + 1, 1)`: a column of `second_moments` alone."""
    d, eta = agents.dim, rule.eta
    y, h, a = x[..., :d, :], None, 0.0
    for _ in range(rule.H):
        if rule.kappa and h is None:
            a, x = agents.directed(agents.coefficients(x)), agents.move(x)
            h = rule.rho * a - others.B[:, None] @ x
            y = x[..., :d, :] + eta * (a - h)
            continue
        G = agents.directed(agents.coefficients(np.concatenate([y, x[..., d:, :]], axis=-2)))
        y, x = agents.move(y) + eta * G, agents.move(x)
        if h is not None:
            h = agents.move(h)
            y = y - eta * h
    z = y if h is None else y + others.T[:, None] @ a
    return z.sum(1)


class State(NamedTuple):
    r"""The moments $U$ of $(e, 1)$, what each agent's states tell about them, and each first operator's noise."""

    U: np.ndarray
    V: np.ndarray
    """`(M, S, d + 1, d + 1)`, zero in sum over states."""
    C: np.ndarray
    """`(M, d, d)`."""

    @classmethod
    def of(cls, U: np.ndarray, num_agents: int, num_states: int) -> "State":
        """Moments of which no agent's state tells anything yet."""
        n = len(U)
        return cls(U, np.zeros((num_agents, num_states, n, n)), np.zeros((num_agents, n - 1, n - 1)))

    def pack(self) -> np.ndarray:
        """All of it as one vector."""
        return np.concatenate([x.ravel() for x in self])

    def unpack(self, vector: np.ndarray) -> "State":
        """The state that was packed, in the shapes of this one."""
        parts = np.split(vector, np.cumsum([x.size for x in self])[:-1])
        return State(*(part.reshape(x.shape) for part, x in zip(parts, self, strict=True)))


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
        M, d, S = problem.num_agents, problem.dim, law.num_states
        kappa = found.correction if M > 1 and found.local_steps > 1 else 0.0
        self.name, self.problem, self.law = type(algorithm).__name__, problem, law
        self.rule = Rule(found.step_size, found.local_steps, found.server_step, kappa, M)
        A, b = problem.affine_parts()
        residuals = A @ problem.root - b
        with np.errstate(all="ignore"):
            quiet = 1 - spectral_radius(found.transition(A))
        outcomes = S * (S if law.pairs else 1)
        self.work = 12.0 * M * found.local_steps * outcomes * d * d
        self.large = self.work > LARGE
        self.dtype = np.float32 if self.large and quiet > SLOW else np.float64
        self.chunk = max(1, CHUNK // (outcomes * (3 * d + 1)))
        # Seen from where the method goes without noise, as far as that is somewhere.
        self.heterogeneity_bias = found.limit_error(A, residuals) if quiet > 0 else np.zeros(d)
        origin = self.heterogeneity_bias
        parts = self._over_agents(lambda agents, _: mean_round(agents, self.rule), problem.root + origin)
        F, K, T, self._given = (part.astype(float) for part in parts)
        operators = np.concatenate([A, (residuals + A @ origin)[..., None]], axis=-1)
        means = Means(F, K, T, operators)
        self.transition, offset = self._mean_map(means)
        self.spectral_radius = float(spectral_radius(self.transition))
        self.fixed_point = np.full(d, np.inf)
        if self.spectral_radius < 1:
            from_origin = np.linalg.solve(np.eye(d) - self.transition, offset)
            self.fixed_point = origin + from_origin
            self.means = means.at(from_origin)

    @property
    def _some(self) -> slice:
        return slice(0, None, max(1, self.rule.M // SOME))

    @property
    def persistent_bias(self) -> np.ndarray:
        """What correlation in time adds to the mean however many agents like these there are."""
        return self.fixed_point - self.heterogeneity_bias

    def stationary(self):
        require_stable(self.spectral_radius, self.name)
        U = self._long_run.U
        require_stable(self.mean_square_radius().value, self.name, mean_square=True)
        mean = U[:-1, -1]
        return Moments(self.fixed_point + mean, U[:-1, :-1] - np.outer(mean, mean))

    def path(self, start, rounds):
        """Exact one by one as far as that is quick, and with the mean map from there to the long run."""
        require_stable(self.spectral_radius, self.name)
        x = np.append(start - self.fixed_point, 1.0)
        state = self._state(np.outer(x, x))
        yield self._moments(state.U)
        exact = min(rounds, int(PATH / self.work)) if not self.large else 0
        for _ in range(exact):
            state = self._round(state)
            yield self._moments(state.U)
        if exact < rounds:
            limit, Phi = self._long_run.U, self._augmented
            away = state.U - limit
            for _ in range(rounds - exact):
                away = Phi @ away @ Phi.T
                yield self._moments(limit + away)

    def mean_square_radius(self):
        return self._radius

    @functools.cached_property
    def _radius(self) -> Radius:
        require_stable(self.spectral_radius, self.name)
        d, kind = self.problem.dim, "exact" if self.rule.M == 1 else "estimate"
        if self.large:
            return Radius(self._perturbed_radius(), kind)
        empty = self._state(np.zeros((d + 1, d + 1)))
        kept = np.zeros((d + 1, d + 1), bool)
        kept[:d, :d] = True
        kept = State(kept, np.broadcast_to(kept, empty.V.shape), np.full(empty.C.shape, True)).pack()

        def apply(vector):
            full = np.zeros(len(kept))
            full[kept] = vector
            return self._round(empty.unpack(full)).pack()[kept]

        size = int(kept.sum())
        if size <= DENSE:
            matrix = np.stack([apply(unit) for unit in np.eye(size)], axis=1)
            return Radius(float(spectral_radius(matrix)), kind)
        start = self._state(np.diag([1.0] * d + [0.0])).pack()[kept]
        try:
            found = eigs(
                LinearOperator((size, size), apply, dtype=float), 1, v0=start, tol=1e-6, return_eigenvectors=False
            )
        except ArpackNoConvergence:
            return Radius(np.nan, kind)
        return Radius(float(abs(found).max()), kind)

    def _perturbed_radius(self) -> float:
        r"""$|\lambda|^2 + \langle Y, K(X) \rangle / \langle Y, X \rangle$ with the noise's share $K$ of a round, from some agents."""
        d = self.problem.dim
        values, right = np.linalg.eig(self.transition)
        top = np.argmax(abs(values))
        x, y = right[:, top], np.linalg.inv(right)[top]
        X, Y = np.outer(x, x.conj()).real, np.outer(y, y.conj()).real
        U = np.zeros((d + 1, d + 1))
        U[:d, :d] = X
        added, _ = self._leading_noise(U, self._some)
        return float(abs(values[top]) ** 2 + np.sum(Y * added[:d, :d]) / np.sum(Y * X))

    @functools.cached_property
    def _long_run(self) -> State:
        d = self.problem.dim
        U = np.zeros((d + 1, d + 1))
        U[d, d] = 1
        if self.large:
            nu = None
            for which in (self._some, self._some, slice(None)):
                added, nu = self._leading_noise(U, which, nu)
                U = np.diag([0.0] * d + [1.0]) + _later(self._augmented, added)
            return State(U, np.zeros(()), np.zeros(()))
        added, _ = self._leading_noise(U, slice(None))
        leading = U + _later(self._augmented, added)
        start = self._state(leading)
        zero = self._sweep(start.unpack(np.zeros(start.pack().size))).pack()
        first = self._sweep(start).pack()
        operator = LinearOperator(
            (zero.size,) * 2, lambda v: v - self._sweep(start.unpack(v)).pack() + zero, dtype=float
        )
        solved, failed = gmres(operator, zero, x0=first, rtol=CLOSE, restart=20, maxiter=20)
        found = start.unpack(solved)
        return found

    def _sweep(self, state: State) -> State:
        """The state whose difference from this one would be right if the noise were a small part of a round."""
        U = state.U.copy()
        U[-1, -1] = 1
        new = self._round(state._replace(U=U), correct=True)
        U = U + _later(self._augmented, new.U - U)
        U[-1, -1] = 0
        return new._replace(U=U)

    def _state(self, U: np.ndarray) -> State:
        return State.of(U, self.rule.M, self.law.num_states)

    def _moments(self, U: np.ndarray) -> Moments:
        mean = U[:-1, -1]
        return Moments(self.fixed_point + mean, U[:-1, :-1] - np.outer(mean, mean))

    @functools.cached_property
    def _augmented(self) -> np.ndarray:
        r"""$\Phi$ on $(e, 1)$."""
        d = self.problem.dim
        Phi = np.eye(d + 1)
        Phi[:d, :d] = self.transition
        return Phi

    def _round(self, state: State, *, correct: bool = False) -> State:
        """One round; with `correct`, what agents remember is what they would in the long run."""
        Phi, (U, V, C), rule = self._augmented, state, self.rule
        others, mean = self._others(C), Phi @ U @ Phi.T

        def one(agents: Agents, which: np.ndarray):
            before = V[which] - agents.spread(V[which].sum(1))
            Y = agents.spread(np.broadcast_to(U, (len(which), *U.shape))) + before
            new = server(
                second_moments(agents, tree.take(others, which), Y, rule, follow=True),
                tree.take(others, which),
                rule,
                agents.pi,
            )
            total = new.sum(1)
            after = new - agents.spread(total)
            if correct:
                after = before + _later(Phi, after - before, agents.powers(rule.H))
            return after, total - mean, self._anchor_noise(agents, Y, U, which)

        after, added, C = self._over_agents(one, self.problem.root + self.fixed_point)
        return State(mean + added.sum(0), (after + transpose(after)) / 2, C)

    def _anchor_noise(self, agents: Agents, Y: np.ndarray, U: np.ndarray, which: np.ndarray) -> np.ndarray:
        """The covariance of the first operators around their mean given the error."""
        if not self.rule.kappa:
            return np.zeros((len(which), agents.dim, agents.dim))
        A = self.means.A[which]
        return agents.directed(agents.squared(agents.coefficients(Y))).sum(1) - A @ U @ transpose(A)

    def _leading_noise(self, U: np.ndarray, which: slice, C: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """What noise adds in a round to the moments of an error that agents know only their own share of, and `C`."""
        Phi, rule, d, M = self._augmented, self.rule, self.problem.dim, self.rule.M
        others = self._others(np.zeros((1, d, d)) if C is None else C)
        mean, chosen = Phi @ U @ Phi.T, np.arange(M)[which]
        own = self.means.F - rule.kappa * rule.rho * self.means.K + rule.kappa * self.means.T @ others.B

        def one(agents: Agents, which: np.ndarray):
            around = tree.take(others, which)
            near = Others(*(x.astype(self.dtype) for x in around))
            Y = agents.spread(np.broadcast_to(U.astype(self.dtype), (len(which), *U.shape)))
            end = second_moments(agents, near, Y, rule, follow=False)
            # What the last state tells about the error: this round's noise, and that of all rounds before.
            z = end.yx if end.ax is None else end.yx + near.T[:, None] @ end.ax[..., d:]
            v = rule.share * (z - agents.spread(z.sum(1)))
            v = _later(self.transition.astype(self.dtype), v, agents.powers(rule.H), squares=False)
            pushed = first_moments(agents, near, np.concatenate([v, np.zeros_like(v[..., :1, :])], axis=-2), rule)

            def with_error(mean_map, given, column):
                """The products with $e$, which is independent of the round but for what the first state tells."""
                products = mean_map @ U
                products[..., :d] += np.einsum("bsi,bsj->bij", given, v[..., 0])
                products[..., d:] = column
                return products[:, None]

            end = End(*(None if X is None else X.astype(float) for X in end.summed()))
            yx = with_error(own[which], self._given[which], end.yx[:, 0] + pushed)
            ax = None if end.ax is None else with_error(self.means.A[which], agents.given(), end.ax[:, 0, :, d:])
            end = end._replace(xx=np.broadcast_to(U, (len(which), 1, *U.shape)), yx=yx, ax=ax)
            new = server(end, around, rule, np.ones((len(which), 1)))[:, 0]
            return new - mean, self._anchor_noise(agents, Y, U, which)

        added, C = self._over_agents(one, self.problem.root + self.fixed_point, chosen)
        return added.sum(0) * M / len(chosen), C

    def _others(self, C: np.ndarray) -> Others:
        (_, _, alpha, kappa, M), means, d = self.rule, self.means, self.problem.dim
        Q, T, A = (x.sum(0) - x for x in (means.F - kappa * means.K, means.T, means.A))
        B = A / M
        E = alpha / M * (Q + kappa * T @ B)
        E[..., :d] += (1 - alpha) * np.eye(d)
        # Of some agents' noise that of all: what another one adds is the mean of theirs.
        nu = (C.sum(0) - C) / M**2 if len(C) == M else np.broadcast_to((M - 1) / M**2 * C.mean(0), T.shape)
        return Others(B, E, kappa * T / M, kappa * means.T, nu)

    def _mean_map(self, means: Means) -> tuple[np.ndarray, np.ndarray]:
        r"""$\Phi$ and what a round adds where errors are measured from, for infinitely many agents."""
        (_, _, alpha, kappa, _), d = self.rule, self.problem.dim
        F, K, T, A = (x.mean(0) for x in means)
        map = alpha * (F - kappa * K + kappa * T @ A)
        return (1 - alpha) * np.eye(d) + map[:, :d], map[:, d]

    def _over_agents(
        self, function: Callable[[Agents, np.ndarray], tuple], point: np.ndarray, chosen: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """`function(agents, which)` for all agents, or those `chosen`, chunk by chunk; its arrays joined."""
        flat, law = self.problem.flat_agents, self.law
        chosen = np.arange(self.rule.M) if chosen is None else chosen

        def part(start: int):
            which = chosen[start : start + self.chunk]
            with precision():  # which every thread has to ask for itself
                inputs = tree.to_device(tree.take((flat, law.chain), which), "float64")
                P, pi, W, D = tree.to_host(_lay_open(*inputs, tree.to_device(point, "float64"), law.pairs))
            P, pi, W = (x.astype(self.dtype, copy=False) for x in (P, pi, W))
            PD = None
            if D is not None:
                D = D.astype(self.dtype, copy=False)
                PD = (
                    (P[..., None, None] * D[:, :, None])
                    .transpose(0, 2, 4, 1, 3)
                    .reshape(*W.shape[:1], W.shape[2], D.shape[-1], -1)
                )
            return function(Agents(P, pi, W, D, PD, law.independent), which)

        starts = range(0, len(chosen), self.chunk)
        if self.work < PARALLEL:
            parts = [part(start) for start in starts]
        else:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                parts = list(pool.map(part, starts))
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _later(Phi: np.ndarray, R: np.ndarray, P: np.ndarray | None = None, *, squares: bool = True) -> np.ndarray:
    r"""What `R` adds in all rounds to come, $\sum_k \Phi^k R(\cdot P^k) (\Phi^k)^T$; of vectors without the last."""
    for _ in range(DOUBLINGS):
        added = R if P is None else (transpose(P) @ R.reshape(*R.shape[:2], -1)).reshape(R.shape)
        added = Phi @ added @ Phi.T if squares else Phi @ added
        R = R + added
        if not np.abs(added).max() > 1e-17 * np.abs(R).max():
            break
        Phi, P = Phi @ Phi, None if P is None else P @ P
    return R


@eqx.filter_jit
def _lay_open(agents, chains, point, pairs: bool):
    def one(agent, chain):
        states = jnp.arange(chain.stationary.shape[0])

        def between(s, t):
            def coefficients(theta):
                return agent.transition_operators(theta, s, t[None])[0][0] if pairs else agent.operator(theta, s)

            values = coefficients(point)
            backward = len(values) < len(point)  # TD's one coefficient has its slopes in one go
            slopes = (jax.jacrev if backward else jax.jacfwd)(coefficients)(point)
            return jnp.concatenate([slopes, values[:, None]], axis=-1)

        def at(s):
            D = agent.transition_operators(point, s, states)[1] if pairs else None
            return jax.vmap(lambda t: between(s, t))(states if pairs else states[:1]), D

        return chain.transition, chain.stationary, *jax.vmap(at)(states)

    return jax.vmap(one)(agents, chains)
