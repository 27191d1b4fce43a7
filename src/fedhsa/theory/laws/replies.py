"""FedHSA and Local SA with missing or altered replies: absent agents, losses, codecs, fading.

Given the participating agents and the received replies, a round is an affine map of the error. Second moments form a
closed system with averages of products of up to four weights. These are sums over patterns of equal agents, so that no
sets of agents are enumerated.
"""

import copy
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_discrete_lyapunov
from scipy.sparse.linalg import LinearOperator

from ..._linear import spectral_radius, stein_sum, transpose
from ...algorithms import AbstractAlgorithm, Partial
from ...algorithms.base import Arrival
from ...algorithms.sampling import AbstractSampling
from ...problems import Problem
from ...sources import IID, Silent
from ..maps.rounds import LocalRule, RoundMap, local_powers, local_rule, require_stable
from ..prediction import Prediction, settled, undecided, unstable
from .additive import AdditiveLaw, HiddenNoise, autoregressive, chain_noise
from .finite import additive_noise, affine_operators, finite_law
from .first_order import noise_is_known
from .independent import IndependentNoise
from .moments import AbstractLaw, MomentLaw, Moments, Radius, RelaxationLaw, TooLargeError
from .solve import Part, fixed_point, radius
from .weights import EqualChances, OwnChances

DENSE, LARGEST = 8, 30
"""The largest dimension in which the map of second moments is a matrix, and in which it is available."""
MOST_SETS = 256
"""The largest number of sets of agents that are enumerated."""


class OwnNoise(NamedTuple):
    r"""The noise $z$ of an agent's first operator and $o$ of its displacement, by hidden state and new noise."""

    first: np.ndarray
    """The response of $z$ to $u$, `(M, d, s)`."""
    moved: np.ndarray
    """The response of $o$ to $u$."""
    fresh_first: np.ndarray
    """The covariance of $z$ given $u$, `(M, d, d)`."""
    fresh_moved: np.ndarray
    fresh_both: np.ndarray
    """The covariance of $o$ with $z$ given $u$."""
    next_first: np.ndarray
    """The covariance of $z$ with the next $u$, `(M, d, s)`."""
    next_moved: np.ndarray
    decay: np.ndarray
    """The mean of the next $u$ is this times $u$."""
    renewed: np.ndarray
    hidden: np.ndarray
    """The covariance of $u$ in the long run, `(M, s, s)`."""
    start: np.ndarray
    start_mean: np.ndarray


COVARIANCES = ("fresh_first", "fresh_moved", "fresh_both", "next_first", "next_moved", "renewed", "hidden", "start")
"""The fields that are proportional to the strength of the noise."""


class RepliesLaw(AbstractLaw):
    r"""The error with random weights of participating agents and random arrival of replies.

    With $g_b$ agent $b$'s operator at the start of the round and $o_a$ the noise of its own displacement,

    $$e' = e + \alpha_g \sum_a w_a L'_a \Bigl(\eta S_a \sum_b w_b L_b\, g_b + o_a\Bigr)$$

    for FedHSA; Local SA has $\eta S_a g_a$ instead of $\eta S_a \hat g$. $w$ are the weights of participating agents,
    the same in both exchanges, or $1/M$ in the first if all agents answer it. $L$ describes the received replies (see
    `Arrival`). The law is exact without noise, for additive VAR(1) noise and for independent observations of finite
    chains; on Markov chains the noise is evaluated at the root, as if it were additive.
    """

    def __init__(
        self,
        problem: Problem,
        rule: LocalRule,
        arrival: Arrival,
        weights: EqualChances | OwnChances,
        *,
        all_first: bool = False,
        unit: float = 1.0,
        name: str,
    ):
        self.unit = unit
        """The factor of the last replies in the server's update: the step size if they are operators."""
        self.rule, self.arrival, self.weights, self.all_first, self.name = rule, arrival, weights, all_first, name
        A, b = problem.affine_parts()
        self.M, self.d = A.shape[:2]
        self.G = np.concatenate([A, (A @ problem.root - b)[..., None]], axis=2)  # g = G (e, 1)
        powers = local_powers(A, rule.step_size, rule.local_steps)
        self.F = np.eye(self.d) + rule.step_size * A
        self.sums = rule.step_size * np.concatenate([np.zeros((1, *A.shape)), np.cumsum(powers, axis=0)])
        """$\\eta S_i$ of $0, \\dots, H$ steps, `(H + 1, M, d, d)`."""
        self.S = self.sums[-1]
        finite = finite_law(problem.agents.source)
        self.independent = IndependentNoise(problem) if finite is not None and finite.independent else None
        self.noise = self._own_noise(problem, powers)
        if finite is not None and not finite.independent:
            self.basis, self.left_out = "additive noise", math.nan
        if rule.correction:
            self.mean_map = arrival.mean**2 * self._sum("Aij,Bjk->ik", "Ab", self.S, self.G)
        else:
            self.mean_map = arrival.mean * self._sum("Aik->ik", "A", self.S @ self.G)
        self.transition = np.eye(self.d) + rule.server_step * self.mean_map[:, :-1]
        self.offset = rule.server_step * self.mean_map[:, -1]
        self.markov_bias = np.zeros(self.d)

    def with_noise_of(self, plain: Prediction) -> "RepliesLaw":
        """Returns the law with the noise and the bias of the prediction with all replies, which is more accurate."""
        all_replies = EqualChances(np.eye(self.M + 1)[-1])
        everyone = RepliesLaw(plain.problem, self.rule, Arrival(), all_replies, name=self.name)
        factor = plain.noise_variance / np.trace(everyone.stationary().covariance)
        found, n = copy.copy(self), self.noise
        found.noise = n._replace(**{name: factor * getattr(n, name) for name in COVARIANCES})
        found.markov_bias = plain.markov_bias
        found.left_out = max(plain.left_out, abs(factor - 1))
        return found

    def path(self, start, rounds):
        x = np.append(start, 1.0)
        X, cross = np.outer(x, x), x[:, None] * self.noise.start_mean[:, None, :]
        Z = self.noise.start + self.noise.start_mean[:, :, None] * self.noise.start_mean[:, None, :]
        missing, driven = self.markov_bias, None
        for _ in range(rounds + 1):
            mean, covariance = self._moments(X)
            yield Moments(mean + self.markov_bias - missing, covariance)
            missing = self.transition @ missing
            if driven is None or not (_close(cross, driven[0]) and _close(Z, driven[1])):
                driven = cross, Z, self._next(np.zeros_like(X), cross, Z)
            X, (_, cross, Z) = self._alone(X) + driven[2][0], driven[2]

    def stationary(self):
        require_stable(spectral_radius(self.transition), self.name)
        require_stable(self._square_radius, self.name, mean_square=True)
        mean = np.linalg.solve(np.eye(self.d) - self.transition, self.offset)
        cross = self._settled_cross()
        known = np.zeros((self.d + 1,) * 2)
        known[-1] = known[:, -1] = np.append(mean, 1.0)
        added = self._next(known, cross, self.noise.hidden)[0][:-1, :-1].ravel()
        E = fixed_point(self._map, added).reshape(self.d, self.d)
        return Moments(mean + self.markov_bias, (E + E.T) / 2 - np.outer(mean, mean))

    @functools.cached_property
    def _square_radius(self) -> float:
        return radius(self._map)

    def mean_square_radius(self):
        """Returns the radius of the map of second moments; None if multiplicative noise of Markov chains is missing."""
        return Radius(self._square_radius, "exact") if self.basis == "exact" else None

    @functools.cached_property
    def _map(self) -> Part:
        """Returns the map of the second moment of the error."""
        if self._matrix is not None:
            places = np.add.outer(np.arange(self.d) * (self.d + 1), np.arange(self.d)).ravel()
            return self._matrix[np.ix_(places, places)]

        def carried(E: np.ndarray) -> np.ndarray:
            return self._without_hidden(np.pad(E.reshape(self.d, self.d), (0, 1)))[:-1, :-1].ravel()

        return LinearOperator((self.d**2,) * 2, matvec=carried, dtype=np.float64)  # pyright: ignore[reportCallIssue]

    @functools.cached_property
    def _matrix(self) -> np.ndarray | None:
        """Returns the map of second moments of $(e, 1)$ alone as a matrix; None if it is large."""
        if self.d > DENSE:
            return None
        units = np.eye((self.d + 1) ** 2).reshape(-1, self.d + 1, self.d + 1)
        return np.stack([self._without_hidden(unit).ravel() for unit in units], axis=1)

    def _alone(self, X: np.ndarray) -> np.ndarray:
        return self._without_hidden(X) if self._matrix is None else (self._matrix @ X.ravel()).reshape(X.shape)

    def _without_hidden(self, X: np.ndarray) -> np.ndarray:
        return self._next((X + X.T) / 2, self._no_cross, np.zeros_like(self.noise.hidden))[0]

    @property
    def _no_cross(self) -> np.ndarray:
        """Products of the error with hidden states that are zero, `(M, d + 1, s)`."""
        return np.zeros((self.M, self.d + 1, self.noise.first.shape[-1]))

    def _moments(self, X: np.ndarray) -> Moments:
        mean = X[:-1, -1]
        return Moments(mean, X[:-1, :-1] - np.outer(mean, mean))

    def _settled_cross(self) -> np.ndarray:
        """Returns the covariance of the error with the hidden states in the long run, `(M, d + 1, s)`."""
        driven = self._next_cross(self._no_cross, self.noise.hidden)[:, :-1]
        found = stein_sum(self.transition, transpose(self.noise.decay), driven)
        return np.pad(found, ((0, 0), (0, 1), (0, 0)))

    def _sum(self, spec: str, factors: str, *arrays: np.ndarray, in_the_air: bool = False) -> np.ndarray:
        """Returns the mean of an `einsum` over weighted agents; small letters are weights of the first exchange."""
        first, degree, scale = [f for f in factors if f.islower()], len(factors), 1.0
        letters = factors.upper()
        if self.all_first:
            letters, degree = "".join(f for f in factors if f.isupper()), degree - len(first)
            scale = self.M ** -float(len(first) + 2 * in_the_air)
        elif in_the_air:
            degree += 2
        return scale * self.weights.contract(spec, "".join(dict.fromkeys(letters)), degree, *arrays)

    def _next(self, X: np.ndarray, cross: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the second moments of $(e, 1)$, with hidden states, and of hidden states after one more round."""
        n, s = self.noise, self.rule.server_step
        square, moved = self._square(X, cross, Z), X @ self.mean_map.T + self._noise_drift(cross)
        after = X.copy()
        after[:, :-1] += s * moved
        after[:-1] += s * moved.T
        after[:-1, :-1] += s**2 * square
        return after, self._next_cross(cross, Z), n.decay @ Z @ transpose(n.decay) + n.renewed

    def sampling_noise(self, x: np.ndarray) -> np.ndarray:
        """Returns the covariance of the server's displacement from a known point due to participation and arrival."""
        law, moved = copy.copy(self), self.mean_map @ x
        law.noise, law.independent = OwnNoise(*map(np.zeros_like, self.noise)), None
        square = law._square(np.outer(x, x), self._no_cross, law.noise.hidden)
        return self.rule.server_step**2 * (square - np.outer(moved, moved))

    def _noise_drift(self, cross: np.ndarray) -> np.ndarray:
        r"""Returns $E[(e, 1) D^T]$ for the part of the displacement $D$ due to hidden states, `(d + 1, d)`."""
        n, m = self.noise, self.arrival.mean
        moved = m * self._sum("Aki->ki", "A", cross @ transpose(n.moved))
        if self.rule.correction:
            moved = moved + m**2 * self._sum("Bkj,Aij->ki", "Ab", cross @ transpose(n.first), self.S)
        return moved

    def _next_cross(self, cross: np.ndarray, Z: np.ndarray) -> np.ndarray:
        n, m, s = self.noise, self.arrival.mean, self.rule.server_step
        later = Z @ transpose(n.decay)
        first, moved = n.first @ later + n.next_first, n.moved @ later + n.next_moved
        D = self.mean_map @ cross @ transpose(n.decay) + m * self._sum("Ais->Ais", "A", moved)
        if self.rule.correction:
            D = D + m**2 * self._sum("Aij,Bjs->Bis", "Ab", self.S, first)
        after = cross @ transpose(n.decay)
        after[:, :-1] += s * D
        return after

    def _excess(self, V: np.ndarray) -> np.ndarray:
        """Returns the second moments that random arrival adds."""
        a = self.arrival
        return (a.square - a.mean**2) * V + a.entries * V * np.eye(self.d)

    @property
    def _random_arrivals(self) -> bool:
        return self.arrival.square != self.arrival.mean**2 or self.arrival.entries != 0

    def _square(self, X: np.ndarray, cross: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Returns the second moment of the server's displacement; new noise is multiplied by the 1 in $(e, 1)$."""
        return self._two_exchanges(X, cross, Z) if self.rule.correction else self._one_exchange(X, cross, Z)

    def _one_exchange(self, X: np.ndarray, cross: np.ndarray, Z: np.ndarray) -> np.ndarray:
        n, m, B, one = self.noise, self.arrival.mean, self.S @ self.G, X[-1, -1]
        U = n.moved @ transpose(cross)
        own = n.moved @ Z @ transpose(n.moved) + one * n.fresh_moved
        found = m**2 * (self._sum("Aik,kl,Djl->ij", "AD", B, X, B) + _both(self._sum("Aik,Djk->ij", "AD", U, B)))
        alone = self._sum("Aij->ij", "AA", own)
        if self.independent is not None:
            alone = alone + self._steps_of_one_exchange(X)
        if self._random_arrivals:
            each = B @ X @ transpose(B) + _both(U @ transpose(B))
            found = found + self._excess(self._sum("Aij->ij", "AA", each) + alone)
        return found + m**2 * alone + one * self._air()

    def _two_exchanges(self, X: np.ndarray, cross: np.ndarray, Z: np.ndarray) -> np.ndarray:
        n, S, G, m, one = self.noise, self.S, self.G, self.arrival.mean, X[-1, -1]
        added = one * self.arrival.added
        D = n.first @ Z @ transpose(n.first) + one * n.fresh_first
        W = n.moved @ Z @ transpose(n.first) + one * n.fresh_both
        own = n.moved @ Z @ transpose(n.moved) + one * n.fresh_moved
        if self.independent is not None:  # the noise of the first operator also enters every later step
            E, mean = (np.broadcast_to(x, (self.M, *x.shape)) for x in (X[:-1, :-1], X[:-1, -1]))
            D = self.independent.covariance(E, mean, one=one)
            late = self.sums[-2]
            W, own = -late @ D, late @ D @ transpose(late)
        Y, U = cross @ transpose(n.first), n.moved @ transpose(cross)
        first = m**2 * D
        if self._random_arrivals:
            first = first + self._excess(G @ X @ transpose(G) + _both(G @ Y) + D)

        def of_agents(last: str, carried: np.ndarray) -> np.ndarray:
            """Returns the sum over the agents `A` and `last` of the products of their displacements."""
            both = self._sum(f"Ail,Bml,{last}nm->in", f"A{last}b", U, G, S)
            return (
                m**2 * np.tensordot(carried, X, 2)
                + m**2 * _both(self._sum(f"Aij,Bjk,Ckm,{last}nm->in", f"A{last}bc", S, G, Y, S))
                + self._sum(f"Aij,Bjm,{last}nm->in", f"A{last}bb", S, first, S)
                + m * _both(both + self._sum(f"Aim,{last}nm->in", f"A{last}a", W, S))
            )

        found = m**2 * of_agents("D", self._between)
        alone = self._sum("Aij->ij", "AA", own)
        if self.independent is not None:
            alone = alone + self._steps_of_two_exchanges(X, D, first, added)
        if self._random_arrivals:
            found = found + self._excess(of_agents("A", self._within) + alone)
        if added:
            found = found + m**2 * added * self._sum("Aij,Dnj->in", "AD", S, S, in_the_air=True)
            found = found + added * self._excess(self._sum("Aij,Anj->in", "AA", S, S, in_the_air=True))
        return found + m**2 * alone + one * self._air()

    @functools.cached_property
    def _between(self) -> np.ndarray:
        r"""Returns $E[\sum w_a w_b w_c w_d\, S_a G_b X G_c^T S_d^T]$ as a map of $X$, `(d, d, d + 1, d + 1)`."""
        return self._sum("Aij,Bjk,Cml,Dnm->inkl", "ADbc", self.S, self.G, self.G, self.S)

    @functools.cached_property
    def _within(self) -> np.ndarray:
        """Returns `_between` restricted to $a = d$."""
        return self._sum("Aij,Bjk,Cml,Anm->inkl", "AAbc", self.S, self.G, self.G, self.S)

    def _air(self) -> Any:
        """Returns the covariance of the receiver's noise in the server's average."""
        added = self.unit**2 * self.arrival.added
        if not added:
            return 0.0
        assert isinstance(self.weights, EqualChances)  # `Partial` does not support unequal probabilities over the air
        return added * self.weights.moment(0, 2) * np.eye(self.d)

    def _steps_of_one_exchange(self, X: np.ndarray) -> np.ndarray:
        """Returns the covariance of displacements due to independent observations, times squared weights."""
        assert self.independent is not None
        count = self._sum("A->A", "AA", np.ones(self.M))
        C, power = np.zeros((self.M, self.d, self.d)), np.broadcast_to(np.eye(self.d), self.F.shape)
        for k in range(self.rule.local_steps):
            J = np.concatenate([power, self.sums[k] @ self.G[..., -1:]], axis=2)  # the local error is J (e, 1)
            Y, y = count[:, None, None] * (J @ X @ transpose(J)), count[:, None] * (J @ X[:, -1])
            C = self._local_step(C, Y, y, count * X[-1, -1])
            power = self.F @ power
        return C.sum(0)

    def _steps_of_two_exchanges(self, X: np.ndarray, D: np.ndarray, first: np.ndarray, added: float) -> np.ndarray:
        r"""Returns it for FedHSA, whose mean local error is $e + \eta S_\ell\, \hat g - \eta S_{\ell-1}\, \xi_i$."""
        assert self.independent is not None
        m, G, ones = self.arrival.mean, self.G, np.ones(self.M)
        count = self._sum("A->A", "AA", ones)
        operators = m**2 * self._sum("A,Bjk,kl,Cml->Ajm", "AAbc", ones, G, X, G) + self._sum(
            "A,Bjm->Ajm", "AAbb", ones, first
        )
        if added:
            operators = (
                operators + added * np.eye(self.d) * self._sum("A->A", "AA", ones, in_the_air=True)[:, None, None]
            )
        with_error = m * self._sum("A,kl,Bml->Akm", "AAb", ones, X, G)
        with_own = m * self._sum("Ajm->Ajm", "AAa", D)
        own, C = count[:, None, None] * D, np.zeros((self.M, self.d, self.d))
        for k in range(1, self.rule.local_steps):
            P, R = self.sums[k], self.sums[k - 1]
            Y = count[:, None, None] * X[:-1, :-1] + _both(with_error[:, :-1] @ transpose(P))
            Y = Y + P @ operators @ transpose(P) - _both(P @ with_own @ transpose(R)) + R @ own @ transpose(R)
            y = count[:, None] * X[:-1, -1] + np.einsum("aij,aj->ai", P, with_error[:, -1])
            C = self._local_step(C, Y, y, count * X[-1, -1])
        return C.sum(0)

    def _local_step(self, C: np.ndarray, Y: np.ndarray, y: np.ndarray, count: np.ndarray) -> np.ndarray:
        assert self.independent is not None
        noise = self.independent.covariance(C + Y, y, one=count)
        return self.F @ C @ transpose(self.F) + self.rule.step_size**2 * noise

    def _own_noise(self, problem: Problem, powers: np.ndarray) -> OwnNoise:
        """Returns the agents' noise; that of independent observations of finite chains is computed step by step."""
        (M, d), (eta, H, _, kappa) = (self.M, self.d), self.rule
        source, finite = problem.agents.source, finite_law(problem.agents.source)
        if isinstance(source, Silent) or self.independent is not None:
            seen, square, hidden = np.zeros((M, d, 0)), np.zeros((M, d, d)), np.zeros((M, 0, 0))
            nothing = seen, seen, square, square, square, seen, seen, hidden, hidden, hidden, hidden
            return OwnNoise(*nothing, np.zeros((M, 0)))
        # Noise in the operators of a round affects the first operator and the agent's displacement.
        K = np.zeros((M, H, 2 * d, d))
        K[:, 0, :d] = np.eye(d)
        K[:, :, d:] = eta * np.moveaxis(powers[::-1], 0, 1)
        K[:, 0, d:] -= kappa * self.S
        if finite is not None:
            operators = affine_operators(problem, finite)
            g = operators.g - np.einsum("io,ioa->ia", finite.weights(), operators.g)[:, None]
            noise = chain_noise(finite, np.einsum("ihna,ioa->ihno", K, g), each=True)
        else:
            noise = autoregressive(source, K)
        each = [
            AdditiveLaw(np.zeros((2 * d,) * 2), np.zeros(2 * d), _of_agent(noise, i), "", basis="") for i in range(M)
        ]
        Psi, cross = np.concatenate([a.Psi for a in each]), np.concatenate([a.fresh_cross for a in each])
        fresh, own = np.stack([a.fresh for a in each]), np.concatenate([a.fresh_own for a in each])
        first, moved = slice(d), slice(d, None)
        new = fresh[:, first, first], fresh[:, moved, moved], fresh[:, moved, first], cross[:, first], cross[:, moved]
        hidden = np.concatenate([a.QH for a in each]), own, noise.stationary, noise.start, noise.start_mean
        return OwnNoise(Psi[:, first], Psi[:, moved], *new, *hidden)


class SetsLaw(MomentLaw):
    r"""The error of few agents whose participation is a Markov chain, by second moments on each set of agents.

    The law is exact without noise and for white noise, and enumerates all $2^M$ sets.
    """

    def __init__(self, problem: Problem, rule: LocalRule, sampling: AbstractSampling, *, all_first: bool, name: str):
        self.name, share, lasting = name, float(sampling.share), float(sampling.memory)
        A, b = problem.affine_parts()
        (M, d, _), r = A.shape, A @ problem.root - b
        there = np.array(list(itertools.product((0.0, 1.0), repeat=M)))
        self.chances = np.prod(np.where(there > 0, share, 1 - share), axis=1)
        one = lasting * np.eye(2) + (1 - lasting) * np.array([1 - share, share])
        self.kernel = functools.reduce(np.kron, [one] * M)
        w = there / np.maximum(there.sum(1, keepdims=True), 1)
        first = np.full_like(w, 1 / M) if all_first else w
        kappa, scale, powers = rule.correction, rule.server_step * rule.step_size, local_powers(A, *rule[:2])
        S, G = powers.sum(0), np.concatenate([A, r[..., None]], axis=2)
        S_mean, moved, g = np.einsum("nm,mij->nij", w, S), S @ G, np.einsum("nm,mik->nik", first, G)
        self.maps = np.zeros((len(w), d + 1, d + 1)) + np.eye(d + 1)
        self.maps[:, :-1] += scale * (kappa * S_mean @ g + (1 - kappa) * np.einsum("nm,mik->nik", w, moved))
        self.transition = np.einsum("n,nij->ij", self.chances, self.maps)[:-1, :-1]
        self.noise, white = np.zeros_like(self.maps), white_noise(problem)
        for step in range(rule.local_steps):
            K = w[:, :, None, None] * powers[rule.local_steps - 1 - step]
            if step == 0:
                K = K + kappa * (first[:, :, None, None] * S_mean[:, None] - w[:, :, None, None] * S)
            if white is not None:
                self.noise[:, :-1, :-1] += scale**2 * (K @ white @ transpose(K)).sum(1)

    @property
    def dim(self):
        return self.maps.shape[-1] - 1

    def begin(self, start, *, stationary=False):
        return self.chances[:, None, None] * np.outer(start, start)

    def round(self, blocks):
        after = self.maps @ blocks @ transpose(self.maps) + blocks[..., -1:, -1:] * self.noise
        return np.einsum("st,...sab->...tab", self.kernel, after)

    def total(self, blocks):
        return blocks.sum(-3)


def white_noise(problem: Problem) -> np.ndarray | None:
    """Returns the covariance of additive white noise, `(M, d, d)`; None without noise or for other noise."""
    noise, source = additive_noise(problem), problem.agents.source
    white = noise is not None and (isinstance(source, IID) or not noise.transition.any())
    return noise.covariance if noise is not None and white else None


def replies_law(problem: Problem, algorithm: AbstractAlgorithm) -> RepliesLaw | SetsLaw | RelaxationLaw | None:
    """Returns the law of a method with a local rule inside wrappers that alter replies; None for other algorithms."""
    *wrappers, method = algorithm.layers
    rule = local_rule(method)
    if rule is None or not wrappers:
        return None
    arrival, sampling, all_first = Arrival(), None, False
    for layer in reversed(wrappers):
        if isinstance(layer, Partial):
            sampling, all_first = layer.sampling, layer.all_answer_first
        elif (stage := layer.arrival(problem.dim)) is None:
            return None
        else:
            arrival = arrival.then(stage)
    M, name = problem.num_agents, type(algorithm).__name__
    if problem.dim > LARGEST:
        raise TooLargeError(
            f"The law of {name} supports up to {LARGEST} dimensions, got {problem.dim}. `theory.predict` supports "
            f"{type(method).__name__} with all replies."
        )
    weights = EqualChances(np.eye(M + 1)[M]) if sampling is None else _weights(sampling, M, name)
    if isinstance(weights, OwnChances) and rule.correction and not all_first:
        raise TypeError(
            f"The law of {name} with unequal probabilities is known for one sampled exchange. Let all agents answer "
            "the first exchange."
        )
    unit = rule.step_size if method.exchanges[-1].replies_are_operators else 1.0
    if sampling is None or sampling.memory == 0:
        return RepliesLaw(problem, rule, arrival, weights, all_first=all_first, unit=unit, name=name)
    quiet = isinstance(problem.agents.source, Silent) or white_noise(problem) is not None
    if 2**M <= MOST_SETS and quiet and arrival == Arrival():
        return SetsLaw(problem, rule, sampling, all_first=all_first, name=name)
    law = RepliesLaw(problem, rule, arrival, weights, all_first=all_first, unit=unit, name=name)
    return lasting_law(law, float(sampling.memory))


def _weights(sampling: AbstractSampling, num_agents: int, name: str) -> EqualChances | OwnChances:
    if (counts := sampling.counts(num_agents)) is not None:
        return EqualChances(counts)
    if (chances := sampling.chances(num_agents)) is not None:
        return OwnChances(np.asarray(chances, dtype=float))
    raise TypeError(
        f"`sampling` of {name} does not define the probabilities of sets of agents, so no law is known. Give "
        f"{type(sampling).__name__} the method `counts` or `chances`."
    )


def lasting_law(law: RepliesLaw, correlation: float) -> RelaxationLaw:
    r"""Returns the law if participation has a correlation $\lambda$ from one round to the next, to first order.

    The sampling noise $Q$ of a round is correlated over rounds, which adds $X = \Phi X \Phi^T + B Q + Q B^T$ to the
    covariance without correlation, with $B = \lambda \Phi (I - \lambda \Phi)^{-1}$.
    """
    (mean, covariance), Phi = law.stationary(), law.transition
    x = np.append(mean, 1.0)
    Q = law.sampling_noise(x)
    B = correlation * Phi @ np.linalg.inv(np.eye(len(Phi)) - correlation * Phi)
    echoes = solve_discrete_lyapunov(Phi, B @ Q + Q @ B.T)
    return RelaxationLaw(Phi, Moments(mean, covariance + echoes), basis="first order")


def predict_replies(
    problem: Problem, algorithm: AbstractAlgorithm, predict: Callable[[Problem, AbstractAlgorithm], Prediction]
) -> Prediction | None:
    """Returns the prediction from `replies_law`; None if there is none, or the noise is unknown or not affine."""
    if not problem.affine or not noise_is_known(problem):
        return None
    law = replies_law(problem, algorithm)
    if law is None:
        return None
    markov, known_stable = np.zeros(problem.dim), True
    if isinstance(law, RepliesLaw) and law.basis != "exact":
        plain = predict(problem, algorithm.layers[-1])
        known_stable = bool(plain.stable)
        if known_stable:
            law, markov = law.with_noise_of(plain), plain.markov_bias
    finite = finite_law(problem.agents.source)
    quiet = problem if finite is not None and finite.independent else problem.noiseless()

    def radius_at(other: AbstractAlgorithm) -> Radius | None:
        known = law.basis == "exact" and problem.dim <= DENSE  # otherwise it takes long
        found = replies_law(quiet, other) if known else None
        return None if found is None else found.mean_square_radius()

    A, nothing = problem.affine_parts()[0], np.zeros(problem.dim)
    map = RoundMap(law.transition, list(law.path(nothing, 1))[1].mean)
    found = undecided(problem, algorithm, law, map, A, radius_at)
    try:
        mean, covariance = law.stationary()
    except ValueError:
        return unstable(found)
    if not known_stable:  # the noise at the root, which this law has, is not what makes the wrapped method diverge
        return found
    persistent = np.full(problem.dim, np.nan)  # it depends on the participation of additional agents
    return settled(found, mean - markov, markov, nothing, covariance, persistent, law.left_out)


def _of_agent(noise: HiddenNoise, i: int) -> HiddenNoise:
    """Returns one agent's noise; `seen` must not be summed over agents."""
    seen = noise.seen[i] if noise.seen.ndim == 4 else noise.seen
    return HiddenNoise(*(seen if x is noise.seen else x[i : i + 1] for x in noise))


def _close(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(np.abs(x - y).max(initial=0.0) <= 1e-15 * np.abs(y).max(initial=0.0))


def _both(x: np.ndarray) -> np.ndarray:
    return x + transpose(x)
