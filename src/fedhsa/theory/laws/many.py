r"""Markov chains of any size: each agent's own noise is exact, and agents are correlated only through the server.

Relative to the fixed point $x_0$ of infinitely many agents, a round maps the error to $e' = \Phi e$ in the mean. Here
$\Phi$ is exact: a mean of products $E[\prod_\ell F_i(o_\ell)]$, not of powers of $E[F_i]$. Agent $i$ iterates

$$y \leftarrow y + \eta\, (G_i(y, o_\ell) - \kappa h_i), \qquad h_i = a_i - \bar g,$$

from $y = e$, with its first operator $a_i$. If all others are replaced by their means, then
$e' = E_i (e, 1) + \frac\alpha M (y + T a_i)$ with the others' mean response $T$ to $a_i$ in $\bar g$, and the second
moments of $(y, 1, h, e)$ on the event of each state of agent $i$ form a closed system, including multiplicative noise.
A round maps $Y_i(s) = E[(e, 1)(e, 1)^T 1\{s_i = s\}]$ to $R_i(Y_i)$. The law is the solution of

$$U = L_0 U + \sum_i \Bigl(\sum_s R_i(Y_i)(s) - L_0 U\Bigr), \qquad
  Y_i = \pi_i U + V_i, \qquad V_i = R_i(Y_i) - \pi_i \sum_s R_i(Y_i)(s),$$

where $U = E[(e, 1)(e, 1)^T]$ and $L_0$ is the mean map on both sides. FedHSA's $R_i$ includes the effect of the noise
$\nu$ of the others' first operators in $\bar g$ through agent $i$'s random map.

The law is exact for one agent, for independent observations and in the limit of many agents, for any step size, number
of local steps and mixing. In between it neglects products of the states of two agents with the error.
"""

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.linalg import LinearOperator, gmres

from ... import tree
from ..._linear import DOUBLINGS, available_cores, one_core_each, spectral_radius, transpose
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ...sources import Transition
from ..maps.rounds import RoundMap, check_reach, require_rule, require_stable
from .field import field_radius
from .finite import directions, finite_law
from .moments import MUCH, TOO_MUCH, AbstractSteppedLaw, Moments, Radius
from .solve import radius, slowest_square

CHUNK = 2**18
"""The approximate largest size of the moments of agents that are processed together."""
PARALLEL = 10**9
"""The number of operations per round above which agents are distributed over the cores."""
QUICK, SMALL = 10**6, 10**8
"""The numbers of operations per round up to which a law is evaluated at many step sizes, and up to which everything is
solved to many digits."""
LARGE = 2 * 10**10
"""The number of operations per round above which an agent's correlation with the error is of leading order only."""
ROUNDS, ROOM = 400, 2**26
"""The largest number of rounds that the long run takes to solve, and of numbers kept: slow chains need many vectors."""
PATH = 2 * 10**9
"""The number of operations for rounds of a path that are followed one by one."""
BLOCK = 128
"""The number of later rounds whose errors are computed together."""
KEPT = 2**22
"""The largest size up to which the operators of all agents are stored."""
SOME = 6
"""The number of agents from which the first guess for a large problem is computed."""
VISITS = 60
"""The number of agents from which second guesses for a large problem are computed."""
DENSE = 60
"""The number of unknowns up to which the mean-square radius is computed from a matrix."""
GROWING, SETTLED = 12, 1e-2
"""The largest number of rounds for which the growth of the mean square is followed, and its tolerance."""
CLOSE, ROUGHLY = 1e-9, 1e-4
"""The relative residual of the long run, for small problems and for others."""
ESTIMATED = 1e-6
"""The accuracy of a mean-square radius that is not exact."""
SINGLE = 3
"""The largest number of directions for which products of coefficients are summed one by one."""
SLOW = 1e-3
"""The distance of the mean map's radius from 1 that single precision requires."""


class OpenAgents(NamedTuple):
    r"""Some agents as arrays: from $s$ to $t$ the operator at $e$, times the step size, is $D(s)^T W(s, t) (e, 1)$."""

    P: np.ndarray
    """The kernels, `(B, S, S)`."""
    pi: np.ndarray
    """The stationary distributions, `(B, S)`."""
    W: np.ndarray
    """The slopes and values of the coefficients, `(B, S, T, K, d + 1)`; `T` is 1 if only the state is observed."""
    D: np.ndarray | None
    """The directions of the coefficients, `(B, S, K, d)`; None for the coordinates."""
    PD: np.ndarray | None
    """$P(s, t) D(s)$, `(B, T, d, S K)`."""
    independent: bool

    @property
    def dim(self) -> int:
        return self.W.shape[-1] - 1

    def spread(self, X: np.ndarray) -> np.ndarray:
        r"""Returns $\pi(s) X$."""
        return self.pi.reshape(*self.pi.shape, *(1,) * (X.ndim - 1)) * X[:, None]

    def move(self, X: np.ndarray) -> np.ndarray:
        r"""Returns $\sum_s P(s, t) X(s)$; independent observations forget the state instead."""
        if self.independent:
            return self.spread(X.sum(1))
        return (transpose(self.P) @ X.reshape(*X.shape[:2], -1)).reshape(X.shape)

    def memory(self, steps: int) -> np.ndarray:
        r"""Returns $(P - 1 \pi^T)^k$, `(B, S, S)`."""
        if self.independent:
            return np.zeros_like(self.P)
        return np.linalg.matrix_power(self.P - self.pi[:, None], steps)

    def move_on(self, X: np.ndarray, steps: int) -> np.ndarray:
        return self._replace(P=self.memory(steps) + self.pi[:, None]).move(X) if steps else X

    def coefficients(self, X: np.ndarray) -> np.ndarray:
        """Returns $W(s, t) X(s)$ for `X` with a row for each of $(e, 1)$, `(B, S, T, K, n)`."""
        B, S, T, K, rows = self.W.shape
        return (self.W.reshape(B, S, T * K, rows) @ X).reshape(B, S, T, K, -1)

    def squares(self, of_y: np.ndarray, of_one: np.ndarray, part: float = 1.0) -> np.ndarray:
        r"""Returns `part` times $W X W^T D$, from the columns of $W X$; `directed` maps it to the second moment."""
        slopes, values = self.W[..., :-1], self.W[..., -1]
        if self.D is None:
            return part * (of_y @ transpose(slopes) + of_one * values[..., None, :])
        B, S, T, K, _ = of_y.shape
        if K <= SINGLE:  # faster than many products of small matrices
            square = np.stack([np.einsum("bstkn,bstn->bstk", of_y, slopes[..., k, :]) for k in range(K)], axis=-1)
        else:
            square = of_y @ transpose(slopes)
        square += of_one * values[..., None, :]
        multiply = np.multiply if K == 1 else np.matmul
        return multiply(part * square.reshape(B, S, T * K, K), self.D).reshape(B, S, T, K, self.dim)

    def directed(self, r: np.ndarray) -> np.ndarray:
        r"""Returns $\sum_s P(s, t) D(s)^T r(s, t)$, `(B, S, d, n)`."""
        if self.PD is None:
            return self.move(r[:, :, 0])
        B, S, T, K, n = r.shape
        directed = self.PD @ r.transpose(0, 2, 1, 3, 4).reshape(B, T, S * K, n)
        return self.spread(directed.sum(1)) if self.independent else directed

    def given(self, W: np.ndarray) -> np.ndarray:
        r"""Returns the mean of operators with some columns `W` given the state, `(B, S, d, n)`."""
        if self.D is None:
            return W[:, :, 0]
        return transpose(self.D) @ np.einsum("bst,bstkn->bskn", self.P, W)

    def average(self, X: np.ndarray) -> np.ndarray:
        """Returns the mean of a function of the state, `(B, S, ...)`."""
        return np.einsum("bs,bs...->b...", self.pi, X)


class RoundRule(NamedTuple):
    r"""The local rule for operators times the step size; there is no correction with one agent or one local step."""

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
        r"""$1 - 1/M$, the fraction of an agent's first operator that its correction removes."""
        return 1 - 1 / self.M


class MeanEnds(NamedTuple):
    r"""The mean end of an agent's round, $E[y_i] = (F_i - \kappa K_i)(e, 1) + \kappa T_i \bar g$; axis 0 is agents.

    $F_i$ is the end without correction, $T_i$ the mean response to the correction, $K_i = E[T a_i]$ the mean response
    to the agent's own first operator, and $A_i$ the mean of the first operator.
    """

    F: np.ndarray
    K: np.ndarray
    T: np.ndarray
    A: np.ndarray

    def seen_from(self, x: np.ndarray) -> "MeanEnds":
        """Returns the ends with errors relative to `x`."""
        d = len(x)
        F, K, A = (
            np.concatenate([X[..., :d], X[..., d:] + X[..., :d] @ x[:, None]], -1) for X in (self.F, self.K, self.A)
        )
        F[..., d] -= x
        return MeanEnds(F, K, self.T, A)


class Others(NamedTuple):
    r"""The effect of the other agents on each agent; arrays have an axis of agents.

    $\bar g = B (e, 1) + a_i / M + \nu$ with $\nu$ of the covariance `noise`, and $e' = E (e, 1) + \frac\alpha M (y +
    T a_i)$; `own` is the agent's own mean response to $\bar g$.
    """

    B: np.ndarray
    E: np.ndarray
    T: np.ndarray
    own: np.ndarray
    noise: np.ndarray


def mean_round(agents: OpenAgents, rule: RoundRule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Returns $F_i$, $K_i$ and $T_i$ of `MeanEnds` given the state at the start, `(B, S, d, ...)`.

    The recursion $E[y_H \mid s_\ell, y_\ell] = N(s_\ell) (y_\ell, 1) + \kappa R(s_\ell) (\bar g - a)$ runs backwards
    from $\ell = H$.
    """
    P, W, d = agents.P, agents.W, agents.dim
    B, S, _, K, _ = W.shape
    N = np.zeros((B, S, d, d + 1), P.dtype)
    N[..., :d] = np.eye(d)
    R, own = np.zeros((B, S, d, d), P.dtype), np.zeros_like(N)
    D, PW, LD = agents.D, W, W
    if D is not None:
        D, PW = D.reshape(B, S * K, d), (P[..., None, None] * W).reshape(B, S, S * K, d + 1)
        LD = np.empty((B, S * K, S * d), P.dtype)

    def back(X):
        """Returns the mean of a function of the next state, given this one."""
        if agents.independent:
            return np.broadcast_to(agents.average(X)[:, None], X.shape)
        return (P @ X.reshape(B, S, -1)).reshape(X.shape)

    def through(L):
        r"""Returns $E[L(t) A(o)]$ given $s$, `(B, S, d, d + 1)`."""
        if D is None:
            return back(L) @ W[:, :, 0]
        L = back(L) if agents.independent else L
        np.matmul(D, L.transpose(0, 3, 1, 2).reshape(B, d, S * d), out=LD)  # L(t) D(s)^T for all pairs
        return transpose(LD.reshape(B, S, K, S, d).swapaxes(2, 3).reshape(B, S, S * K, d)) @ PW

    for step in range(rule.H):
        if rule.kappa:
            R = R + N[..., :d]
            if step == rule.H - 1:
                own = through(R)
            R = back(R)
        N = back(N) + through(N[..., :d])
    return N, own, R


class End(NamedTuple):
    r"""Moments at the end of a round, on the event of each state, of $x = (e, 1)$ at its start, $y$, $h$ and $a$."""

    xx: np.ndarray
    yx: np.ndarray
    """Only the product with 1 if products with $e$ are not followed; then only sums of the other fields are valid."""
    yy: np.ndarray
    yh: np.ndarray | None = None
    ax: np.ndarray | None = None
    aa: np.ndarray | None = None


def second_moments(agents: OpenAgents, others: Others, Y: np.ndarray, rule: RoundRule, *, follow: bool) -> End:
    r"""Applies a round to $Y = E[x x^T 1\{s\}]$, `(B, S, d + 1, d + 1)`; `follow` includes products of $y$ with $e$."""
    d = agents.dim
    e, one = slice(0, d), slice(d, d + 1)
    x = slice(0, d + 1) if follow else one
    if not rule.kappa:
        of_y, more, h = Y[..., e], Y[..., x], None  # initially y = e
        for _ in range(rule.H):
            of_y, more, h = _step(agents, of_y, more, h)
        return End(agents.move_on(Y, rule.H) if follow else Y, more[..., e, :], of_y[..., e, :])
    # The first step: h = rho a - B x - nu and y = e + a - h.
    rho, B, noise = rule.rho, others.B[:, None], agents.spread(others.noise)
    r = agents.coefficients(Y)
    xx, ax, aa = agents.move(Y), agents.directed(r), agents.directed(agents.squares(r[..., e], r[..., one]))
    hx = rho * ax - B @ xx
    ha = rho * aa - B @ transpose(ax)
    yx, ya = xx[..., e, :] + ax - hx, transpose(ax[..., e]) + aa - ha
    hh = rho * ha - hx @ transpose(B) + noise
    yh = rho * ya - yx @ transpose(B) - noise
    yy = yx[..., e] + ya - yh
    of_y = np.concatenate([yy, transpose(yx[..., one])], axis=-2)
    more = np.block([[yh, yx[..., x]], [transpose(hx[..., one]), xx[..., one, x]]])
    h = np.concatenate([hh, hx[..., x]], axis=-1)
    for _ in range(rule.H - 1):
        of_y, more, h = _step(agents, of_y, more, h)
    ax = agents.move_on(ax[..., x], rule.H - 1)
    if follow:
        xx, aa = (agents.move_on(X, rule.H - 1) for X in (xx, aa))
    return End(xx, more[..., e, d:], of_y[..., e, :], more[..., e, :d], ax, aa)


def _step(agents: OpenAgents, of_y: np.ndarray, more: np.ndarray, h: np.ndarray | None) -> tuple[Any, Any, Any]:
    """Applies one local step to second moments, of $(y, 1)$ with $y$ and `more` with $(h, e, 1)$, and of `h` with it.

    The last columns are separate because slices of one array are slow to add.
    """
    d, r, of_more = agents.dim, agents.coefficients(of_y), agents.coefficients(more)
    r += agents.squares(r, of_more[..., -1:], 0.5)
    added, added_more = agents.directed(r), agents.directed(of_more)
    of_y, more = agents.move(of_y), agents.move(more)
    y = of_y[..., :d, :]
    if h is not None:  # y' = y + G - h
        h = agents.move(h)
        added_more -= h
        y -= h[..., :d]
    more[..., :d, :] += added_more
    if h is not None:
        added -= more[..., :d, :d]
    y += added
    y += transpose(added)
    of_y[..., d, :] = more[..., :d, -1]
    return of_y, more, h


def server(end: End, others: Others, rule: RoundRule, pi: np.ndarray) -> np.ndarray:
    r"""Returns the moments of $(e', 1)$ with $e' = E x + \frac\alpha M z$, $z = y + T a$; `pi` are probabilities."""
    xx, zx, zz = end.xx, end.yx, end.yy
    E, d = others.E[:, None], zz.shape[-1]
    if end.yh is not None and end.ax is not None and end.aa is not None:
        B, T, own, noise = (X[:, None] for X in (others.B, others.T, others.own, others.noise))
        response = pi[..., None, None] * (own @ noise)
        ya = (end.yh + zx @ transpose(B) + response) / rule.rho  # a = (h + B x + nu) / rho
        cross = T @ transpose(ya)
        zx = zx + T @ end.ax
        # The mean response to the others' noise is attributed to them.
        zz = zz - response @ transpose(own) + cross + transpose(cross) + T @ end.aa @ transpose(T)
    Ex, cross = E @ xx, rule.share * zx @ transpose(E)
    new = np.empty_like(xx)
    new[..., :d, :d] = Ex @ transpose(E) + cross + transpose(cross) + rule.share**2 * zz
    new[..., :d, d] = new[..., d, :d] = Ex[..., d] + rule.share * zx[..., d]
    new[..., d, d] = xx[..., d, d]
    return (new + transpose(new)) / 2


def first_moments(agents: OpenAgents, others: Others, v: np.ndarray, rule: RoundRule) -> np.ndarray:
    r"""Returns $E[z]$ for errors with $E[e 1\{s\}] = v$, `(B, S, d, 1)`, of sum zero, from the operators' slopes."""
    x = np.concatenate([v, np.zeros_like(v[..., :1, :])], axis=-2)
    h = a = None
    for _ in range(rule.H):
        G = agents.directed(agents.coefficients(x))
        x = agents.move(x)
        if rule.kappa and h is None:
            a, h = G, rule.rho * G - others.B[:, None] @ x
        elif h is not None:
            h = agents.move(h)
        x[..., :-1, :] += G if h is None else G - h
    z = x[..., :-1, :] if a is None else x[..., :-1, :] + others.T[:, None] @ a
    return z.sum(1)


class ManyMoments(NamedTuple):
    r"""The state of the law: the moments $U$ of $(e, 1)$, and their dependence on each agent's state."""

    U: np.ndarray
    V: np.ndarray
    """`(M, S, d + 1, d + 1)`, with sum zero over the states."""

    def seen_from(self, x: np.ndarray) -> "ManyMoments":
        """Returns the moments of errors relative to `x`."""
        shift = np.eye(len(x) + 1)
        shift[:-1, -1] = -x
        return ManyMoments(*(shift @ part @ shift.T for part in self))

    def pack(self) -> np.ndarray:
        return np.concatenate([x.ravel() for x in self])

    def unpack(self, vector: np.ndarray) -> "ManyMoments":
        """Returns the state of a packed vector, with the shapes of this state."""
        parts = np.split(vector, np.cumsum([x.size for x in self])[:-1])
        return ManyMoments(*(part.reshape(x.shape) for part, x in zip(parts, self, strict=True)))


class ManyAgentsLaw(AbstractSteppedLaw):
    """The law of this module, on finite chains with affine operators, for FedHSA, Local SA and the one-step methods.

    In problems with more than `LARGE` operations per round, an agent's state is correlated with the server's error only
    through its own noise, which is correct to leading order in the number of agents.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=8, num_states=6, dim=3, laziness=0.5)
        >>> law = ManyAgentsLaw(problem, fedhsa.FedHSA(0.02, local_steps=10))
        >>> bool(law.mean_square_radius().value < 1), bool(law.stationary().square > 0)
        (True, True)
    """

    @property
    def basis(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return "many agents" if self.large else "exact" if self.exact else "one site"

    @property
    def exact(self) -> bool:
        """Whether nothing is neglected: with one agent, or if all observations are independent."""
        return not self.large and (self.rule.M == 1 or self.law.independent)

    by_pairs: Callable[[], float] = staticmethod(lambda: math.inf)
    """Estimates from pairs of agents what the floor neglects; infinite if they are too large."""

    @property
    def quick(self):
        return self.work <= QUICK

    @property
    def steps(self):
        return not self.large

    def __init__(self, problem: Problem, algorithm: AbstractAlgorithm, map: RoundMap | None = None):
        check_reach(problem, algorithm)
        algorithm.check(problem)
        found, law = require_rule(algorithm), finite_law(problem.agents.source)
        if law is None:
            raise TypeError(
                f"The law of many agents requires finite chains, got {type(problem.agents.source).__name__}. "
                "`theory.estimate` estimates the same quantities from samples."
            )
        M, d, S = problem.num_agents, problem.dim, law.num_states
        kappa = found.correction if M > 1 and found.local_steps > 1 else 0.0
        self.rule, self.step_size = RoundRule(found.local_steps, found.server_step, kappa, M), found.step_size
        self.name, self.problem, self.law = type(algorithm).__name__, problem, law
        self._open: dict[tuple[bytes, bytes], OpenAgents] = {}
        self._path: tuple[np.ndarray, list[np.ndarray], ManyMoments] | None = None
        # Transitions may share few directions; operators that depend on states alone count as full matrices.
        self._directions = directions(problem, law) if law.pairs else None
        K = d if self._directions is None else self._directions.shape[-2]
        self.work = 12.0 * M * found.local_steps * law.num_outcomes * K * d**2
        self.numbers = M * law.num_outcomes * K * d
        """The size of all operators."""
        size, cores = CHUNK / (max(law.num_outcomes * K, S * (3 * d + 1)) * (3 * d + 1)), len(available_cores())
        parts = math.ceil(M / max(1, size) / cores) * cores if self.work >= PARALLEL else math.ceil(M / max(1, size))
        self.chunk = math.ceil(M / parts)  # all of one size, so that few programs are compiled
        A, b = problem.affine_parts()
        residuals = A @ problem.root - b
        map = found.mean_map(A, residuals) if map is None else map
        slow = not spectral_radius(map.transition) < 1 - SLOW
        self.large = self.work > LARGE
        self.dtype = np.float64 if slow or not self.large else np.float32
        # Errors are relative to the noiseless limit, or to the root if there is no limit.
        self._origin = origin = np.zeros(d) if slow else map.limit_error()
        self._operators = self.step_size * np.concatenate([A, (residuals + A @ origin)[..., None]], axis=-1)

        def one(agents: OpenAgents, which: np.ndarray):
            F, K, T = mean_round(agents, self.rule)
            given = (F - self.rule.kappa * self.rule.rho * K)[..., d]  # E[y | s] at e = 0 and g_bar = a_i / M
            return *(agents.average(X) for X in (F, K, T)), given

        F, K, T, self._given = (part.astype(float) for part in self._over_agents(one, origin))
        means = MeanEnds(F, K, T, self._operators)
        self.transition, self._offset = self._mean_map(means)
        self.spectral_radius = float(spectral_radius(self.transition))
        further = np.zeros(d)
        if self.spectral_radius < 1:
            further, self._offset = np.linalg.solve(np.eye(d) - self.transition, self._offset), np.zeros(d)
        self.centre, self.means = origin + further, means.seen_from(further)

    def persistent_bias(self):
        return self.centre if self.spectral_radius < 1 else np.full(self.problem.dim, np.inf)

    def mean_radius(self):
        """Returns the radius of the mean, or that of the mean map if the full one would take long."""
        if not self.quick_round:
            return self.spectral_radius
        products = np.zeros((self.problem.dim + 1,) * 2, bool)
        products[:-1, -1] = products[-1, :-1] = True
        return self._radius_of(products)

    def mean_square_radius(self):
        if self.exact and self.quick_round:
            return Radius(self._radius, "exact")
        return Radius(self._radius, "estimate", self._field if self.quick_round else None)

    @functools.cached_property
    def _field(self) -> float | None:
        """The mean-square radius in the Gaussian field of all agents."""
        (H, _, kappa, M), d, share = self.rule, self.problem.dim, self.rule.share
        A, T = self.means.A.mean(0)[:, :d], self.means.T.mean(0)

        def one(agents: OpenAgents, which: np.ndarray):
            F, K, R = mean_round(agents, self.rule)
            maps = (F - kappa * K)[..., :d] + kappa * (R @ A + T @ agents.given(agents.W[..., :d]))
            return share * maps, agents.memory(H) + agents.pi[:, None], agents.pi

        maps, kernels, pi = self._over_agents(one, self.centre)
        return field_radius(self.transition, maps, np.ones(M), kernels, pi)

    def stationary(self):
        require_stable(self.spectral_radius, self.name)
        require_stable(self._radius, self.name, mean_square=True)
        return self._moments(self._long_run.U)

    def blocks(self) -> np.ndarray:
        """Returns the moments of $(e, 1)$ in the long run, and their dependence on the state of each agent."""
        found = self._long_run.seen_from(-self.centre)
        return np.concatenate([found.U[None], found.V.reshape(-1, *found.U.shape)])

    def enter(self, start):
        chain, x = self.law.chain, np.append(start, 1.0)
        state = self._state(np.outer(x, x))
        if self.large or self.law.independent:
            return state
        return state._replace(V=(chain.start - chain.stationary)[..., None, None] * state.U)

    def step(self, state):
        return self._round(state.seen_from(self.centre)).seen_from(-self.centre)

    def seen(self, state):
        mean = state.U[:-1, -1]
        return Moments(mean, state.U[:-1, :-1] - np.outer(mean, mean))

    def path(self, start, rounds):
        """Yields the first rounds one by one while that is fast; then relaxes to the long run with the mean map."""
        for k in range(min(rounds, self._patience) + 1):
            yield self._moments(self._after(start, k))
        if rounds > self._patience:
            (limit, away), Phi = self._relaxing(start), self._augmented
            for _ in range(rounds - self._patience):
                away = Phi @ away @ Phi.T
                away[:-1, :-1] *= self._gain  # multiplicative noise slows the decay of the mean square
                yield self._moments(limit + away)

    def errors(self, start, rounds):
        later = rounds - self._patience
        if later < BLOCK or not self._settles:
            return super().errors(start, rounds)
        first = [self._moments(self._after(start, k)).square for k in range(self._patience + 1)]
        (limit, away), Phi, centre = self._relaxing(start), self.transition, self.centre
        A, m, Q = away[:-1, :-1], away[:-1, -1], np.eye(len(Phi))
        squares, lines = [], []  # after t rounds, the error is off by gain^t tr(Phi^t A Phi^t^T) + 2 c^T Phi^t m
        for t in range(1, BLOCK + 1):
            Q = Phi @ Q
            squares.append(self._gain**t * Q.T @ Q)
            lines.append(2 * centre @ Q)
        S, found = np.reshape(squares, (BLOCK, -1)), []
        for _ in range(-(-later // BLOCK)):
            found.append(S @ A.ravel() + lines @ m)
            A, m = self._gain**BLOCK * Q @ A @ Q.T, Q @ m
        return np.concatenate([first, self._moments(limit).square + np.concatenate(found)[:later]])

    def _after(self, start: np.ndarray, rounds: int) -> np.ndarray:
        """Returns $U$ after some of the rounds that are followed one by one; those from the last start are kept."""
        if not self._path or not np.array_equal(self._path[0], start):
            begun = self.enter(start).seen_from(self.centre)
            self._path = start, [begun.U], begun
        _, known, state = self._path
        while len(known) <= rounds:
            state = self._round(state)
            known.append(state.U)
        self._path = start, known, state
        return known[rounds]

    @property
    def _patience(self) -> int:
        """The number of rounds that are followed one by one."""
        return 0 if self.large else int(PATH / self.work)

    def _relaxing(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the moments to which rounds relax, and the distance to them after those followed one by one."""
        U = self._after(start, self._patience)
        limit = self._long_run.U if self._settles else np.zeros_like(U)
        return limit, U - limit

    @property
    def _settles(self) -> bool:
        return self.spectral_radius < 1 and self._radius < 1

    @property
    def _gain(self) -> float:
        return max(1.0, self._radius / self.spectral_radius**2)

    @functools.cached_property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        r"""$(\eta \tau |\tilde A|)^{3/2} r^3 (M - 1) / M^2$, which exceeds nearly all observed errors, often by far.

        $\tau = (1 + |\lambda|) / (1 - |\lambda|)$, with the second eigenvalue $\lambda$ of a chain, is the mean
        correlation time, $|\tilde A|^2$ the largest mean square of the matrices' noise in any direction, and $r = (1 -
        |\rho|^2) / (1 - \rho_2)$ the slowdown of the mean square by noise. In large problems it is computed from some
        agents, plus a tenth of $1 / M (1 - |\lambda|)$ of the slowest chain for the neglected correlations. In others
        it is amplified by what the Gaussian field of all agents indicates. Pairs of agents tell more, if they are not
        too large, and are asked where the formula would give a warning.
        """
        if self.exact:
            return 0.0
        radius = self.mean_square_radius()
        if not radius.value < 1:
            return math.nan
        found = self._formula()
        if found + radius.doubt > MUCH:
            found = min(found, self._by_pairs)
        return (1 + found) * (1 + radius.doubt) - 1

    @functools.cached_property
    def _by_pairs(self) -> float:
        return self.by_pairs()

    def stable(self):
        """Returns whether the mean-square error stays bounded; None if pairs leave doubts that the field does not."""
        found, explained = super().stable(), 2 * self.mean_square_radius().doubt
        doubtful = found and self.left_out > TOO_MUCH and self._by_pairs > max(TOO_MUCH, explained)
        return None if doubtful and self._by_pairs < math.inf else found

    def _formula(self) -> float:
        """Returns what is neglected by the formula alone."""
        M, d, slack = self.rule.M, self.problem.dim, 1 - self.mean_square_radius().value

        def one(agents: OpenAgents, which: np.ndarray):
            W, D, A = agents.W[..., :d], agents.D, self._operators[which, :, :d]
            if D is None:
                squares = np.einsum("bs,bska,bskc->bac", agents.pi, W[:, :, 0], W[:, :, 0])
            else:
                flow, both = agents.pi[..., None] * agents.P, D @ transpose(D)
                squares = np.einsum("bst,bskl,bstka,bstlc->bac", flow, both, W, W, optimize=True)
            return squares - transpose(A) @ A, spectral_radius(agents.memory(1))

        squares, second = self._over_agents(one, self._origin, np.arange(M)[self._some] if self.large else None)
        tau = float(np.mean((1 + second) / np.maximum(1 - second, 1e-12)))
        slower = max(1.0, (1 - self.spectral_radius**2) / slack)
        part = (tau * math.sqrt(np.linalg.norm(squares.mean(0), 2))) ** 1.5 * slower**3 * (M - 1) / M**2
        part = part + 0.1 / max(1 - second.max(), 1e-12) / M if self.large else part
        return min(float(part), 1.0)

    @functools.cached_property
    def _radius(self) -> float:
        of_e = np.pad(np.full((self.problem.dim,) * 2, True), (0, 1))
        return self._radius_of(of_e) if self.quick_round else self._slowest()

    def _radius_of(self, entries: np.ndarray) -> float:
        """Returns the radius of a round on some entries of the moments that form a closed system."""
        empty = self._state(np.zeros_like(self._augmented))
        kept = ManyMoments(entries, np.broadcast_to(entries, empty.V.shape)).pack()
        size = int(kept.sum())

        def round(vector):
            full = np.zeros(len(kept))
            full[kept] = np.ravel(vector)
            return self._round(empty.unpack(full)).pack()[kept]

        if size <= DENSE:
            return radius(np.stack([round(unit) for unit in np.eye(size)], axis=1))
        near = self._state(np.pad(slowest_square(self.transition), (0, 1))).pack()[kept]
        tolerance = CLOSE if self.exact else ESTIMATED
        return radius(LinearOperator((size, size), matvec=round, dtype=np.float64), near, tolerance)  # pyright: ignore[reportCallIssue]

    def _slowest(self) -> float:
        r"""Returns the larger factor of two: of the slowest mean mode, and of modes that noise amplifies."""
        values, right = np.linalg.eig(self.transition)
        top = np.argmax(abs(values))
        x, y = right[:, top], np.linalg.inv(right)[top]
        X, Y = np.real(np.outer(x, x.conj())), np.real(np.outer(y.conj(), y))
        U, square = np.pad(X, (0, 1)), float(abs(values[top]) ** 2)

        def seen(moments):
            return float(np.sum(Y * moments[:-1, :-1]) / np.sum(Y * X))

        if self.large:
            square += seen(self._leading_noise(U, self._some)[0])
        else:
            state = self._state(U)
            for _ in range(3):
                new = self._round(state, settled=square)
                state, square = state._replace(V=new.V), seen(new.U)
        return max(square, self._growth())

    def _growth(self) -> float:
        r"""Returns the growth factor of the mean square after a few rounds, from errors in all directions.

        Noise that the correction carries through many local steps may amplify a mode that the mean damps strongly.
        """
        Phi, factor, C = self._augmented, 0.0, None
        state = self._state(np.pad(np.eye(self.problem.dim), (0, 1)) / self.problem.dim)
        for _ in range(GROWING):
            if self.large:
                added, C = self._leading_noise(state.U, self._some, C)
                new = state._replace(U=Phi @ state.U @ Phi.T + added)
            else:
                new = self._round(state)
            before, factor = factor, float(np.trace(new.U[:-1, :-1]))
            state, C = ManyMoments(*(part / factor for part in new)), None if C is None else C / factor
            if abs(factor - before) <= SETTLED * factor:
                break
        return factor

    @functools.cached_property
    def _long_run(self) -> ManyMoments:
        d, Phi = self.problem.dim, self._augmented
        base = np.diag([0.0] * d + [1.0])
        if self.large:
            added, C = self._leading_noise(base, self._some)
            U, before = base + _later(Phi, added), base
            for _ in range(max(1, VISITS // self.rule.M)):
                added, C = self._leading_noise(U, slice(None), C)
                U, before = base + _later(Phi, added), U
                if np.trace(abs(U - before)) < ROUGHLY * np.trace(U[:d, :d]):
                    break
            return ManyMoments(U, np.zeros(0))
        guess = self._state(_later(Phi, self._leading_noise(base, slice(None))[0]))
        constant = self._sweep(guess.unpack(np.zeros(guess.pack().size))).pack()

        def residual(vector):
            return vector - self._sweep(guess.unpack(vector)).pack() + constant

        operator = LinearOperator((constant.size,) * 2, residual, dtype=float)  # pyright: ignore[reportCallIssue]
        close = CLOSE if self.quick_round or self.exact else ROUGHLY
        kept, start = int(np.clip(ROOM / constant.size, 20, 100)), self._sweep(guess).pack()
        solved, failed = gmres(operator, constant, x0=start, rtol=close, restart=kept, maxiter=-(-ROUNDS // kept))
        if failed:
            raise ValueError(
                f"The stationary moments were not found in {ROUNDS} iterations. The method may be close to its largest "
                "stable step size; use a smaller one."
            )
        found = guess.unpack(solved)
        return found._replace(U=found.U + base)

    def _sweep(self, state: ManyMoments) -> ManyMoments:
        """Improves a guess of the long run without $E[1] = 1$; accurate if noise is a small part of a round."""
        U = state.U.copy()
        U[-1, -1] = 1
        new = self._round(state._replace(U=U), settled=1.0)
        U = U + _later(self._augmented, new.U - U)
        U[-1, -1] = 0
        return new._replace(U=U)

    def _round(self, state: ManyMoments, *, settled: float | None = None) -> ManyMoments:
        """Applies one round; `settled` is the factor per round of moments that have approximately converged."""
        Phi, rule = self._augmented, self.rule
        U, V = ((X + transpose(X)) / 2 for X in state)  # asymmetry comes from rounding or from trial vectors
        mean = Phi @ U @ Phi.T

        def spread(agents: OpenAgents):
            return agents.spread(np.broadcast_to(U, (len(agents.pi), *U.shape)))

        def first(agents: OpenAgents, which: np.ndarray):
            r = agents.coefficients(spread(agents))
            squares = agents.squares(r[..., :-1], r[..., -1:])
            return (self._anchor_noise(agents.directed(squares), U, which),)

        others = self._others(self._over_agents(first, self.centre)[0]) if rule.kappa else self._around

        def one(agents: OpenAgents, which: np.ndarray):
            around, before = tree.take(others, which), V[which] - agents.spread(V[which].sum(1))
            end = second_moments(agents, around, spread(agents) + before, rule, follow=True)
            new = server(end, around, rule, agents.pi)
            total = new.sum(1)
            after = new - agents.spread(total)
            if settled is not None:
                away = _later(Phi / np.sqrt(settled), after - settled * before, agents.memory(rule.H))
                after = before + away / settled
            return after, total - mean

        after, added = self._over_agents(one, self.centre)
        return ManyMoments(mean + added.sum(0), after)

    def _leading_noise(self, U: np.ndarray, which: slice, C: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the noise added to $U$ in a round and the first operators' covariances, from some agents for all.

        The server's error is correlated with an agent's state only through that agent's own noise.
        """
        Phi, rule, d, M = self._augmented, self.rule, self.problem.dim, self.rule.M
        others = self._others(np.zeros((1, d, d)) if C is None else C)
        mean, chosen, ends = Phi @ U @ Phi.T, np.arange(M)[which], self._ends

        def one(agents: OpenAgents, which: np.ndarray):
            around = tree.take(others, which)
            near = Others(*(X.astype(self.dtype) for X in around))
            Y = agents.spread(np.broadcast_to(U.astype(self.dtype), (len(which), *U.shape)))
            end = second_moments(agents, near, Y, rule, follow=False)
            z = end.yx if end.ax is None else end.yx + near.T[:, None] @ end.ax
            v = rule.share * (z - agents.spread(z.sum(1)))  # from this round's noise, then from that of all rounds
            v = _later(self.transition.astype(self.dtype), v, agents.memory(rule.H), squares=False)
            pushed = first_moments(agents, near, v, rule)
            end = End(*(X if X is None else X.sum(1, keepdims=True).astype(float) for X in end))  # pyright: ignore[reportArgumentType]

            def with_error(map, given, column):
                """Returns products with an error that depends on the round only through its first state."""
                products = map @ U
                products[..., :d] += np.einsum("bsi,bsj->bij", given, v[..., 0])
                products[..., d:] = column
                return products[:, None]

            yx = with_error(ends[which], self._given[which], end.yx[:, 0] + pushed)
            ax = None
            if end.ax is not None:
                ax = with_error(self.means.A[which], agents.given(agents.W[..., d:])[..., 0], end.ax[:, 0])
            end = end._replace(xx=np.broadcast_to(U, (len(which), 1, *U.shape)), yx=yx, ax=ax)
            new = server(end, around, rule, np.ones((len(which), 1)))[:, 0]
            return new - mean, self._anchor_noise(end.aa, U, which)

        added, C = self._over_agents(one, self.centre, chosen)
        return added.sum(0) * M / len(chosen), C

    def _anchor_noise(self, squares: np.ndarray | None, U: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Returns the covariances of first operators from their second moments; zero without a correction."""
        if squares is None:
            return np.zeros((len(which), *self.transition.shape))
        A = self.means.A[which]
        return squares.sum(1) - A @ U @ transpose(A)

    def _others(self, C: np.ndarray) -> Others:
        M, around = self.rule.M, self._around
        noise = C.sum(0) - C if len(C) == M else np.broadcast_to((M - 1) * C.mean(0), around.T.shape)
        return around._replace(noise=noise / M**2)

    @functools.cached_property
    def _around(self) -> Others:
        """Returns the effect of the other agents without their noise."""
        (_, alpha, kappa, M), means, d = self.rule, self.means, self.problem.dim
        Q, T, A = (x.sum(0) - x for x in (means.F - kappa * means.K, means.T, means.A))
        B = A / M
        E = alpha / M * (Q + kappa * T @ B if kappa else Q)
        E[..., :d] += (1 - alpha) * np.eye(d)
        return Others(B, E, kappa * T / M, kappa * means.T, np.zeros_like(T))

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """Returns the agents' mean ends of a round as functions of the error at its start."""
        rule, means = self.rule, self.means
        if not rule.kappa:
            return means.F
        return means.F - rule.kappa * rule.rho * means.K + rule.kappa * means.T @ self._around.B

    def _mean_map(self, means: MeanEnds) -> tuple[np.ndarray, np.ndarray]:
        r"""Returns $\Phi$ and the displacement at the reference point, for infinitely many agents."""
        (_, alpha, kappa, _), d = self.rule, self.problem.dim
        F, K, T, A = (x.mean(0) for x in means)
        map = alpha * (F - kappa * K + kappa * T @ A)
        return (1 - alpha) * np.eye(d) + map[:, :d], map[:, d]

    @functools.cached_property
    def _augmented(self) -> np.ndarray:
        r"""Returns $\Phi$ on $(e, 1)$; if it is not stable, errors are not relative to its fixed point."""
        Phi = np.eye(self.problem.dim + 1)
        Phi[:-1, :-1], Phi[:-1, -1] = self.transition, self._offset
        return Phi

    @property
    def quick_round(self) -> bool:
        """Whether a round is fast enough for many rounds."""
        return not self.large and self.work <= SMALL

    @property
    def _some(self) -> slice:
        return slice(0, None, max(1, self.rule.M // SOME))

    def _state(self, U: np.ndarray) -> ManyMoments:
        """Returns a state in which the error is independent of the agents' states."""
        M, S, n = self.rule.M, 0 if self.large else self.law.num_states, len(U)
        return ManyMoments(U, np.zeros((M, S, n, n)))

    def _moments(self, U: np.ndarray) -> Moments:
        mean = U[:-1, -1]
        return Moments(self.centre + mean, U[:-1, :-1] - np.outer(mean, mean))

    def _over_agents(
        self, function: Callable[[OpenAgents, np.ndarray], tuple], error: np.ndarray, chosen: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """Applies `function(agents, which)` to all agents or those `chosen`; errors are relative to `error`."""
        chosen = np.arange(self.rule.M) if chosen is None else chosen

        def part(start: int):
            which = chosen[start : start + self.chunk]
            return function(self._lay_open(which, error), which)

        starts = range(0, len(chosen), self.chunk)
        if self.work < PARALLEL:
            parts = [part(start) for start in starts]
        else:
            with ThreadPoolExecutor(len(available_cores())) as pool, one_core_each():
                parts = list(pool.map(part, starts))
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))

    def _lay_open(self, which: np.ndarray, error: np.ndarray) -> OpenAgents:
        """Returns these agents as arrays, which small problems cache because every round uses them."""
        if self.numbers > KEPT:
            return self._laid_open(which, error)
        key = which.tobytes(), error.tobytes()
        if key not in self._open:
            self._open[key] = self._laid_open(which, error)
        return self._open[key]

    def _laid_open(self, which: np.ndarray, error: np.ndarray) -> OpenAgents:
        chain, point = self.law.chain, self.problem.root + error
        D = None if self._directions is None else self._directions[which]
        with precision():  # required in every thread
            inputs = tree.take(self.problem.flat_agents, which), D, point, np.float64(self.step_size)
            agents, along, *at = tree.to_device(inputs, np.dtype(self.dtype).name)
            W = tree.to_host(_coefficients(agents, along, np.arange(self.law.num_states), *at))
        P, pi = (x[which].astype(self.dtype, copy=False) for x in (chain.transition, chain.stationary))
        PD = None
        if D is not None:
            D = D.astype(self.dtype, copy=False)
            PD = P[..., None, None] * D[:, :, None]
            PD = PD.transpose(0, 2, 4, 1, 3).reshape(len(P), W.shape[2], self.problem.dim, -1)
        return OpenAgents(P, pi, W, D, PD, self.law.independent)


def _later(Phi: np.ndarray, R: np.ndarray, P: np.ndarray | None = None, *, squares: bool = True) -> np.ndarray:
    r"""Sums `R` over all later rounds, $\sum_k \Phi^k R(\cdot P^k) (\Phi^k)^T$; for vectors without the last factor.

    The entry $E[1]$ is excluded, since it does not change.
    """
    for _ in range(DOUBLINGS):
        added = R if P is None else (transpose(P) @ R.reshape(*R.shape[:2], -1)).reshape(R.shape)
        added = Phi @ added @ Phi.T if squares else Phi @ added
        if squares:
            added[..., -1, -1] = 0
        R = R + added
        if not np.abs(added).max() > 1e-17 * np.abs(R).max():
            break
        Phi, P = Phi @ Phi, None if P is None else P @ P
    return R


@eqx.filter_jit
def _coefficients(agents, directions, states, point, step):
    """Returns slopes and values of the coefficients, times the step size, `(B, S, T, K, d + 1)`."""

    def of(coefficients):
        values = coefficients(point)
        backward = len(values) < len(point)  # one reverse pass gives all slopes of TD's single coefficient
        slopes = (jax.jacrev if backward else jax.jacfwd)(coefficients)(point)
        return step * jnp.concatenate([slopes, values[:, None]], axis=-1)

    def on_states(agent):
        return jax.vmap(lambda s: of(lambda theta: agent.operator(theta, s)))(states)[:, None]

    def on_transitions(agent, directions):
        def between(s, D, t):
            return of(lambda theta: D @ agent.operator(theta, Transition(s, t)))

        return jax.vmap(lambda s, D: jax.vmap(lambda t: between(s, D, t))(states))(states, directions)

    return jax.vmap(on_states)(agents) if directions is None else jax.vmap(on_transitions)(agents, directions)
