r"""Agents as arrays: their hidden chains, and affine operators for everything that they observe.

In state $s$ an agent observes $t$ and has the operator $D(s, t)^T W(s, t) (y, 1)$ at $y$. The observation is the state
itself, the transition to the next state, or an independent draw of an agent with a single state.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import tree
from ..._linear import spectral_radius, transpose
from ..._types import Observation, precision
from ...problems import AbstractAgent, Problem
from ...problems.quadratic import QuadraticAgent
from ...sources import IID, VAR1, AbstractSource, FiniteChain, Silent, Transition, Transitions

FIRST, SEED, RANK = 2, 0, 1e-10
"""The number of random combinations of operators with which the search for their directions begins, its seed, and the
relative size below which a direction is rounding."""
WAYS, NEARLY = 3, 1e-7
"""The number of random directions in which agents are compared, and the relative difference up to which they count as
equal."""
FULL = 6
"""The dimension up to which operators count as full matrices, without a search for directions that they share."""
ONE_BY_ONE = 10**5
"""The size of an agent's operators above which agents are evaluated one by one."""
SINGLE = 3
"""The largest number of directions for which products of coefficients are summed one by one."""


class FiniteLaw(NamedTuple):
    """The observations of agents on finite chains: states or transitions, in sequence or independent."""

    chain: FiniteChain
    """The agents' chains; arrays have a leading axis of agents."""
    pairs: bool
    """Whether an observation is a transition $(s_t, s_{t+1})$; otherwise it is the state $s_t$."""
    independent: bool
    """Whether observations are independent samples of the stationary distribution."""

    @property
    def num_states(self) -> int:
        """$S$."""
        return self.chain.stationary.shape[-1]

    @property
    def num_outcomes(self) -> int:
        """The number of different observations."""
        return self.num_states ** (2 if self.pairs else 1)

    def outcomes(self) -> Observation:
        """Returns all observations; transitions `(s, s')` are in the order of `s * S + s'`."""
        S = self.num_states
        return Transition(*jnp.divmod(jnp.arange(S * S), S)) if self.pairs else jnp.arange(S)

    def weights(self) -> np.ndarray:
        """Returns the stationary probabilities of `outcomes`, `(M, outcomes)`."""
        pi = self.chain.stationary
        return (pi[..., None] * self.chain.transition).reshape(len(pi), -1) if self.pairs else pi


def finite_law(source: AbstractSource) -> FiniteLaw | None:
    """Returns the finite law of a problem's `agents.source`, or None if the source is not a finite chain."""
    independent = isinstance(source, IID)
    inner = source.source if isinstance(source, IID) else source
    pairs = isinstance(inner, Transitions)
    chain = inner.chain if isinstance(inner, Transitions) else inner
    return FiniteLaw(chain, pairs, independent) if isinstance(chain, FiniteChain) else None


def known_law(agents: AbstractAgent) -> FiniteLaw:
    """Returns the finite law of one agent or of several, whose sources are known to be finite chains."""
    law = finite_law(agents.source)
    assert law is not None
    return law


def check_exogenous(problem: Problem) -> None:
    """Raises if the chains depend on the parameter, since their distribution then changes with it."""
    if problem.controlled:
        raise TypeError(
            f"The chains of {type(problem.agents).__name__}, and so their noise, depend on the parameter; no law is "
            "known for this case. Use `problem.noiseless()` or `--noiseless` for stability, rate and noiseless bias."
        )


def additive_noise(problem: Problem) -> VAR1 | None:
    """Returns the autoregressive source of additive noise, sequential or independent; None for any other noise."""
    source = problem.agents.source
    inner = source.source if isinstance(source, IID) else source
    return inner if isinstance(problem.agents, QuadraticAgent) and isinstance(inner, VAR1) else None


def noise_is_known(problem: Problem) -> bool:
    """Returns whether the noise of a problem is known exactly; otherwise it can only be sampled."""
    source = problem.agents.source
    return isinstance(source, Silent) or additive_noise(problem) is not None or finite_law(source) is not None


class AddedNoise(NamedTuple):
    r"""Noise $z$ that is added to operators, with $z' = Q z + \epsilon$ at the next observation; axis 0 is agents."""

    Q: np.ndarray
    """`(M, d, d)`."""
    fresh: np.ndarray
    r"""The covariance of $\epsilon$."""
    stationary: np.ndarray
    """The covariance of $z$ in the long run."""
    start: np.ndarray
    """The covariance of $z$ at the start of a run."""


def added_noise(source: AbstractSource) -> AddedNoise:
    """Returns the noise of an autoregressive source, sequential or independent."""
    inner = source.source if isinstance(source, IID) else source
    assert isinstance(inner, VAR1)
    Q, covariance = inner.transition, inner.covariance
    if isinstance(source, IID):
        return AddedNoise(np.zeros_like(Q), covariance, covariance, covariance)
    fresh = inner.noise_std[:, None, None] ** 2 * np.eye(Q.shape[-1])
    return AddedNoise(Q, fresh, covariance, covariance if inner.start == "stationary" else np.zeros_like(covariance))


def kinds_of(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Returns a number for each agent, the same for agents whose arrays are nearly equal; axis 0 is agents.

    Arrays are compared in a few random directions, which is much faster than comparing all of their entries.
    """
    rng, every = np.random.default_rng(SEED), []
    for part in parts:
        rows = part.reshape(len(part), -1)
        size = np.linalg.norm(rows, axis=1).max(initial=0.0)
        for shown in (rows @ rng.standard_normal((rows.shape[1], WAYS))).T:
            order = np.argsort(shown, kind="stable")
            numbers = np.empty(len(rows), int)
            numbers[order] = np.append(0, np.cumsum(np.diff(shown[order]) > NEARLY * size))
            every.append(numbers)
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), len(seen)) for row in np.stack(every, axis=1)])


class Agents:
    """Some agents as arrays with a leading axis of agents.

    Moments of theirs are arrays `(..., M, S, m, n)`.
    """

    def __init__(
        self,
        P: np.ndarray,
        pi: np.ndarray,
        start: np.ndarray,
        chances: np.ndarray,
        W: np.ndarray,
        D: np.ndarray | None = None,
        noise: AddedNoise | None = None,
        counts: np.ndarray | None = None,
        scale: float = 1.0,
    ):
        self.P, self.pi, self.start = P, pi, start
        """The kernels `(M, S, S)`, the stationary and the initial distributions `(M, S)`."""
        self.chances = chances
        """The probabilities of observations, `(M, S, T)`. If `T` is `S > 1`, the observation is the next state."""
        self.W, self.D, self.noise = W, D, noise
        """Slopes and values of coefficients, `(M, S, T, K, d + 1)`, and their directions `(M, S, K, d)`; None if they
        are the coordinates."""
        self.counts = np.ones(len(P)) if counts is None else counts
        """How many equal agents each one stands for."""
        self.scale = scale
        """How many times as large operators are as those of the problem."""

    @property
    def dim(self) -> int:
        return self.W.shape[-1] - 1

    @property
    def num_states(self) -> int:
        return self.pi.shape[-1]

    @property
    def hidden(self) -> bool:
        """Whether an observation is more than the state, so that it cannot be used again."""
        return self.W.shape[-3] > 1

    def of(self, which: Any) -> "Agents":
        """Returns some of the agents."""
        arrays = (self.P, self.pi, self.start, self.chances, self.W, self.D, self.noise, self.counts)
        return Agents(*jax.tree.map(lambda x: x[which], arrays), scale=self.scale)

    def scaled(self, factor: float) -> "Agents":
        """Returns the same agents with operators that are so many times as large."""
        noise = self.noise and AddedNoise(self.noise.Q, *(factor**2 * covariance for covariance in self.noise[1:]))
        W, scale = factor * self.W, factor * self.scale
        return Agents(self.P, self.pi, self.start, self.chances, W, self.D, noise, self.counts, scale)

    def single(self) -> "Agents":
        """Returns the same agents in single precision."""
        arrays = (self.P, self.pi, self.start, self.chances, self.W, self.D)
        return Agents(*jax.tree.map(lambda x: x.astype(np.float32), arrays), counts=self.counts, scale=self.scale)

    def standing_for(self, counts: np.ndarray) -> "Agents":
        """Returns the same agents, each of which stands for this many."""
        return Agents(self.P, self.pi, self.start, self.chances, self.W, self.D, self.noise, counts, self.scale)

    def move(self, X: np.ndarray) -> np.ndarray:
        """Returns moments by the next state."""
        if self.num_states == 1:
            return X
        return (transpose(self.P) @ X.reshape(*X.shape[:-2], -1)).reshape(X.shape)

    def coefficients(self, X: np.ndarray) -> np.ndarray:
        """Returns $W(s, t) X(s)$ for `X` with a row for each of $(y, 1)$, `(..., M, S, T, K, n)`."""
        M, S, T, K, rows = self.W.shape
        found = self.W.reshape(M, S, T * K, rows) @ X
        return found.reshape(*found.shape[:-2], T, K, -1)

    def directed(self, r: np.ndarray) -> np.ndarray:
        r"""Returns the mean of $D^T r(s, t)$ by the next state, `(..., M, S, d, n)`."""
        *batch, M, S, T, K, n = r.shape
        if T == 1:
            G = r[..., 0, :, :]
            return self.move(G if self.D is None else transpose(self.D) @ G)
        if S == 1:
            return self._flow @ r.reshape(*batch, M, 1, T * K, n)
        if n == 1:
            return self._directed_once(self.chances[..., None] * r[..., 0])[..., None]
        return self._flow @ np.moveaxis(r, -4, -3).reshape(*batch, M, T, S * K, n)

    @functools.cached_property
    def _flow(self) -> np.ndarray:
        """The directions times the probabilities of observations, by the next state."""
        M, S, _, K, _ = self.W.shape
        D = np.broadcast_to(np.eye(K), (M, S, K, K)) if self.D is None else self.D
        weighted = self.chances[..., None, None] * D[:, :, None]  # (M, S, T, K, d)
        order = (0, 1, 4, 2, 3) if S == 1 else (0, 2, 4, 1, 3)
        return weighted.transpose(order).reshape(M, S, self.dim, -1)

    def squares(self, of_y: np.ndarray, of_one: np.ndarray) -> np.ndarray:
        r"""Returns $W X W^T D$, from the columns of $W X$; `directed` maps it to the second moment of operators."""
        slopes = self.W[..., :-1]
        if slopes.shape[-2] <= SINGLE:  # many products of tiny matrices would be slow
            square = np.einsum("...istkd,istld->...istkl", of_y, slopes)
        else:
            square = of_y @ transpose(slopes)
        square += of_one * self.W[..., None, :, -1]
        return square if self.D is None else square @ self.D[:, :, None]

    def given(self, N: np.ndarray) -> np.ndarray:
        r"""Returns the mean of $N(u) G(s, t)$ over the observation $t$ and the next state $u$, given the state $s$.

        `N` are rows `(..., M, S, k, d)`, and the result has a column for each of $(y, 1)$.
        """
        M, S, T, K, _ = self.W.shape
        if T == 1 or S == 1:
            return self.back(N) @ self.given_state
        D = np.broadcast_to(np.eye(K), (M, S, K, K)) if self.D is None else self.D
        *batch, k, d = N.shape[:-4] + N.shape[-2:]
        along = D.reshape(M, S * K, d) @ np.moveaxis(N, -1, -3).reshape(*batch, M, d, S * k)  # N(u) D(s)^T
        along = np.moveaxis(along.reshape(*batch, M, S, K, S, k), -1, -3)  # (..., M, S, k, K, S)
        along = np.swapaxes(along, -1, -2).reshape(*batch, M, S, k, S * K)
        return along @ self._weighted

    @functools.cached_property
    def given_state(self) -> np.ndarray:
        """The mean operator given the state, `(M, S, d, d + 1)`."""
        M, S, T, K, rows = self.W.shape
        mean = (self.chances[:, :, None] @ self.W.reshape(M, S, T, K * rows)).reshape(M, S, K, rows)
        return mean if self.D is None else transpose(self.D) @ mean

    @functools.cached_property
    def _weighted(self) -> np.ndarray:
        return (self.chances[..., None, None] * self.W).reshape(*self.W.shape[:2], -1, self.dim + 1)

    def back(self, N: np.ndarray) -> np.ndarray:
        """Returns the mean of a function of the next state, given the state."""
        if self.num_states == 1:
            return N
        return (self.P @ N.reshape(*N.shape[:-2], -1)).reshape(N.shape)

    @functools.cached_property
    def mean_operators(self) -> np.ndarray:
        """$\\bar G_i$ as a map of $(y, 1)$, `(M, d, d + 1)`."""
        return np.einsum("is,isab->iab", self.pi, self.given_state)

    def moments_at(self, points: np.ndarray, *, products: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        r"""Returns $E[G_i 1\{s'\}]$ by the next state $s'$, `(M, S, d)`, and $E[G_i G_i^T]$ at points `(M, d)`, and
        $E[A_i G_i]$, `(M, d)`, if asked for."""
        w, (M, S, _, K, _) = self.W[..., -1], self.W.shape
        if points.any():
            w = w + (self.W[..., :-1] @ points[:, None, None, :, None])[..., 0]
        weights = self.pi[..., None] * self.chances
        weighted = weights[..., None] * w
        square = transpose(weighted) @ w
        product = np.full((M, S, K), np.nan)
        if products:
            value = w if self.D is None else w @ self.D
            product = (weights[..., None] * (self.W[..., :-1] @ value[..., None])[..., 0]).sum(2)
        if self.D is not None:
            square, product = transpose(self.D) @ square @ self.D, (product[..., None, :] @ self.D)[..., 0, :]
        return self._directed_once(weighted), square.sum(1), product.sum(1)

    def _directed_once(self, weighted: np.ndarray) -> np.ndarray:
        """Returns `directed` of one column, without the arrays that it keeps."""
        M, S, T, K = weighted.shape
        if T == 1 or S == 1:
            G = weighted.sum(2)
            return self.move((G if self.D is None else (G[..., None, :] @ self.D)[..., 0, :])[..., None])[..., 0]
        D = np.broadcast_to(np.eye(K), (M, S, K, K)) if self.D is None else self.D
        return weighted.swapaxes(1, 2).reshape(M, T, S * K) @ D.reshape(M, S * K, -1)

    @functools.cached_property
    def strength(self) -> tuple[np.ndarray, np.ndarray]:
        r"""The mean squares of the matrices' noise, $E[\tilde A^T \tilde A]$, and each chain's second eigenvalue."""
        A, weights = self.W[..., :-1], self.pi[..., None] * self.chances
        both = np.eye(A.shape[3]) if self.D is None else self.D @ transpose(self.D)
        both = np.broadcast_to(both, (*A.shape[:2], *both.shape[-2:]))
        squares = np.einsum("ist,istka,iskl,istlc->iac", weights, A, both, A, optimize=True)
        mean = self.mean_operators[..., :-1]
        return squares - transpose(mean) @ mean, spectral_radius(self.P - self.pi[:, None])

    @functools.cached_property
    def matrices(self) -> np.ndarray:
        """The operators as maps of $(y, 1)$, `(M, S, T, d, d + 1)`, for small problems."""
        return self.W if self.D is None else transpose(self.D)[:, :, None] @ self.W

    def noiseless(self) -> "Agents":
        """Returns agents whose operators are the mean operators."""
        one = np.ones((len(self.P), 1))
        W, kept = self.mean_operators[:, None, None], {"counts": self.counts, "scale": self.scale}
        return Agents(one[..., None], one, one, one[..., None], W, **kept)

    def by_observation(self) -> "Agents":
        """Returns the same agents with their observations as states, so that they can use one again."""
        M, S, T, _, rows = self.W.shape
        if T == 1:
            return self
        A = self.matrices.reshape(M, S * T, 1, self.dim, rows)
        weights = (self.pi[..., None] * self.chances).reshape(M, -1)
        start = (self.start[..., None] * self.chances).reshape(M, -1)
        if S == 1:
            P = np.repeat(weights[:, None], T, axis=1)
        else:  # from (s, t) to (t, u)
            P = np.zeros((M, S, S, S, S))
            for t in range(S):
                P[:, :, t, t] = self.P[:, None, t]
            P = P.reshape(M, S * S, S * S)
        return Agents(P, weights, start, np.ones((M, S * T, 1)), A, counts=self.counts, scale=self.scale)

    @functools.cached_property
    def kinds(self) -> np.ndarray:
        """A number for each agent, the same for equal agents."""
        return kinds_of(jax.tree.leaves((self.P, self.pi, self.start, self.W, self.D, self.noise)))


def agents_of(problem: Problem, which: Any = slice(None)) -> Agents:
    """Returns affine agents on finite chains, with additive noise or without noise, relative to the root."""
    law = finite_law(problem.agents.source)
    if law is None:
        found = mean_agents(problem)
        if additive_noise(problem) is not None:
            found.noise = added_noise(problem.agents.source)
        return found.of(which)
    d, S, chain = problem.dim, law.num_states, law.chain
    D = directions(problem, law, which) if law.pairs and d > FULL and not law.independent else None
    agents = tree.take(problem.flat_agents, which)
    with precision():
        outcomes, point = tree.to_host(law.outcomes()), problem.root

        def coefficients(which: Any) -> np.ndarray:
            return np.asarray(_coefficients(*tree.take((agents, D), which), outcomes, point))

        if law.num_outcomes * d > ONE_BY_ONE:  # so that any number of agents needs the same program
            every = range(tree.leading_axis(agents))
            W = np.concatenate([coefficients(slice(i, i + 1)) for i in every])
        else:
            W = coefficients(slice(None))
    P, pi, start = (x[which] for x in (chain.transition, chain.stationary, chain.start))
    M, K = len(P), W.shape[2]
    if law.independent:
        one = np.ones((M, 1))
        return Agents(one[..., None], one, one, law.weights()[which, None], W[:, None], D)
    T = S if law.pairs else 1
    chances = P if law.pairs else np.ones((M, S, 1))
    return Agents(P, pi, start, chances, W.reshape(M, S, T, K, d + 1), D)


@eqx.filter_jit
def _coefficients(agents, directions, outcomes, point):
    """Returns slopes and values of the coefficients of all observations, `(M, outcomes, K, d + 1)`."""

    def one(agent, D, o):
        def coefficients(theta):
            value = agent.operator(theta, o)
            return value if D is None else D @ value

        values = coefficients(point)
        backward = len(values) < len(point)  # one reverse pass gives all slopes of TD's single coefficient
        slopes = (jax.jacrev if backward else jax.jacfwd)(coefficients)(point)
        return jnp.concatenate([slopes, values[:, None]], axis=-1)

    if directions is None:
        return jax.vmap(jax.vmap(lambda agent, o: one(agent, None, o), (None, 0)), (0, None))(agents, outcomes)
    states = jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, 0))
    by_state = jax.tree.map(lambda x: x.reshape(directions.shape[1], -1), outcomes)
    found = jax.vmap(states, (0, 0, None))(agents, directions, by_state)
    return found.reshape(len(found), -1, *found.shape[3:])


def mean_agents(problem: Problem) -> Agents:
    """Returns agents with the mean operators of an affine problem, relative to its root."""
    (A, b), one = problem.affine_parts(), np.ones((problem.num_agents, 1))
    W = np.concatenate([A, (A @ problem.root - b)[..., None]], axis=-1)
    return Agents(one[..., None], one, one, one[..., None], W[:, None, None])


def directions(problem: Problem, law: FiniteLaw, which: Any = slice(None)) -> np.ndarray:
    """Returns orthonormal directions that span an agent's operators on all transitions from each state, `(M, S, K, d)`.

    Those of TD are multiples of the features of the state, for example, and a law takes a time that grows with $K$. The
    directions are found from random combinations of the operators, of which there must be more than directions.
    """
    d, S, rng, number = problem.dim, law.num_states, np.random.default_rng(SEED), FIRST
    agents = tree.take(problem.flat_agents, which)
    every = [tree.take(agents, i) for i in range(tree.leading_axis(agents))]
    with precision():
        while True:
            drawn = problem.root, rng.standard_normal((number, S)), rng.standard_normal((number, S, d))
            found = np.stack([np.asarray(_combined(agent, *drawn)) for agent in every])
            _, sizes, vectors = np.linalg.svd(found, full_matrices=False)
            rank = max(1, int((sizes > RANK * sizes[..., :1]).sum(-1).max()))
            if rank < number:
                return vectors[..., :rank, :]
            number = min(2 * number, d + 1)


@eqx.filter_jit
def _combined(agent, root, weights, shifts):
    states = jnp.arange(weights.shape[1])

    def one(s, weights, shifts):
        values = jax.vmap(lambda t, shift: agent.operator(root + shift, Transition(s, t)))(states, shifts)
        return weights @ values

    return jax.vmap(jax.vmap(one, in_axes=(None, 0, 0)), in_axes=(0, None, None))(states, weights, shifts)
