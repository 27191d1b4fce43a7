"""The law of linear rounds with additive noise of any correlation in time, which also describes small noise."""

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from ..._linear import spectral_radius, stein_sum, transpose
from ...problems import Problem
from ...sources import AbstractSource
from ..maps.rounds import LocalRule, RoundMap, require_stable
from .finite import FiniteLaw, added_noise, affine_operators, finite_law
from .moments import AbstractSteppedLaw, Moments, Radius

LARGEST = 2**26
"""The largest size of operators and responses to all outcomes."""
SAME = 1e-15
"""The relative change of moments in a round that is rounding."""


class HiddenNoise(NamedTuple):
    r"""The noise that is added to the state in a round: $\sum_{i,\ell} (C_{i,\ell} u_{i,\ell} + v_{i,\ell})$.

    The agents' hidden states follow $u_{i,\ell+1} = Q_i u_{i,\ell} + w_{i,\ell}$; $v$ and $w$ have mean zero given the
    past. Only first and second moments matter, so that VAR(1) noise has this form, and so have finite chains, with
    $u = 1\{s\} - \pi$.
    """

    Q: np.ndarray
    """`(M, s, s)`."""
    C: np.ndarray
    """`(M, H, n, s)`."""
    hidden: np.ndarray
    """The covariance of $w$, `(M, s, s)`."""
    seen: np.ndarray
    """The covariance of $v$, summed over the agents, `(H, n, n)`."""
    both: np.ndarray
    """The covariance of $v$ with $w$, `(M, H, n, s)`."""
    stationary: np.ndarray
    """The covariance of $u$ in the long run, `(M, s, s)`."""
    start: np.ndarray
    """The covariance of $u$ before the first round, `(M, s, s)`."""
    start_mean: np.ndarray
    """The mean of $u$ before the first round, `(M, s)`."""

    def through(self, matrix: np.ndarray) -> "HiddenNoise":
        """Returns the noise of a linear image of the state."""
        return self._replace(C=matrix @ self.C, seen=matrix @ self.seen @ matrix.T, both=matrix @ self.both)


class AdditiveState(NamedTuple):
    """The mean and covariance of the state, its covariance with the hidden states, and the hidden states' moments."""

    mean: np.ndarray
    E: np.ndarray
    X: np.ndarray
    """`(M, n, s)`."""
    Z: np.ndarray
    hidden_mean: np.ndarray


class AdditiveLaw(AbstractSteppedLaw):
    r"""The state $y' = \Phi y + c$ plus `HiddenNoise`.

    With $E = \mathrm{cov}(y)$, $X_i = \mathrm{cov}(y, u_i)$ and $Z_i = \mathrm{cov}(u_i)$ at the start of a round,

    $$E' = \Phi E \Phi^T + \sum_i (\Phi X_i \Psi_i^T + \Psi_i X_i^T \Phi^T + \Psi_i Z_i \Psi_i^T) + N,$$

    $X_i' = (\Phi X_i + \Psi_i Z_i) (Q_i^H)^T + N_i$ and $Z_i' = Q_i^H Z_i (Q_i^H)^T + N_{ii}$. $\Psi_i$ is the response
    of the state to the hidden one at the start of the round; $N$, $N_i$ and $N_{ii}$ come from new noise in the round.
    """

    def __init__(self, transition: np.ndarray, offset: np.ndarray, noise: HiddenNoise, name: str, *, basis: str):
        self.Phi, self.offset, self.noise, self.name, self.basis = transition, offset, noise, name, basis
        self.additive = basis == "exact"
        M, H, n, s = noise.C.shape
        W = noise.hidden
        J, power = np.zeros((M, n, s)), np.broadcast_to(np.eye(s), (M, s, s))
        self.fresh, self.fresh_cross, self.fresh_own = np.zeros((n, n)), np.zeros((M, n, s)), np.zeros((M, s, s))
        for k in range(H - 1, -1, -1):
            # J is the response to w_k through the observations after step k, and `power` its effect on the last u.
            both = noise.both[:, k] @ transpose(J)
            self.fresh += noise.seen[k] + (J @ W @ transpose(J) + both + transpose(both)).sum(0)
            self.fresh_cross += (J @ W + noise.both[:, k]) @ transpose(power)
            self.fresh_own += power @ W @ transpose(power)
            J, power = noise.C[:, k] + J @ noise.Q, power @ noise.Q
        self.Psi, self.QH = J, power
        self._known: Any = ((None, None, None), None)
        """The moments of the noise before the last round, and what came of them."""

    def enter(self, start) -> AdditiveState:
        nothing, none = np.zeros_like(self.Phi), np.zeros_like(self.Psi)
        return AdditiveState(start, nothing, none, self.noise.start, self.noise.start_mean)

    def seen(self, state):
        return Moments(state.mean, state.E)

    def step(self, state) -> AdditiveState:
        mean, E, *noise = state
        (pushed, driven), after = self._of_noise(*noise)
        return AdditiveState(self.Phi @ mean + self.offset + pushed, self.Phi @ E @ self.Phi.T + driven, *after)

    def _of_noise(self, X: np.ndarray, Z: np.ndarray, hidden: np.ndarray) -> Any:
        """Returns what noise adds to the mean and the covariance in a round, and its own moments afterwards.

        The noise is soon in its long run, long before the error is; then its moments stay the same arrays.
        """
        before, found = self._known
        if any(now is not then for now, then in zip((X, Z, hidden), before, strict=True)):
            after = (
                (self.Phi @ X + self.Psi @ Z) @ transpose(self.QH) + self.fresh_cross,
                self.QH @ Z @ transpose(self.QH) + self.fresh_own,
                np.einsum("ist,it->is", self.QH, hidden),
            )
            after = tuple(now if _same(now, then) else then for now, then in zip((X, Z, hidden), after, strict=True))
            found = (np.einsum("ins,is->n", self.Psi, hidden), self._driven(X, Z)), after
            self._known = (X, Z, hidden), found
        return found

    def crossed(self) -> np.ndarray:
        """The covariance of the state with the hidden states in the long run, even if the state is not stable."""
        start = self.Psi @ self.noise.stationary @ transpose(self.QH) + self.fresh_cross
        return stein_sum(self.Phi, transpose(self.QH), start)

    def added(self) -> np.ndarray:
        """The covariance that noise adds to the state in one round, with stationary hidden states."""
        return (self.Psi @ self.noise.stationary @ transpose(self.Psi)).sum(0) + self.fresh

    def settled(self) -> AdditiveState:
        """The moments in the long run."""
        Phi, Z = self.Phi, self.noise.stationary
        require_stable(spectral_radius(Phi), self.name)
        X = self.crossed()
        E = solve_discrete_lyapunov(Phi, self._driven(X, Z))
        return AdditiveState(np.linalg.solve(np.eye(len(Phi)) - Phi, self.offset), E, X, Z, np.zeros(Z.shape[:2]))

    def stationary(self):
        return Moments(*self.settled()[:2])

    def mean_square_radius(self):
        return Radius(spectral_radius(self.Phi) ** 2, "exact") if self.basis == "exact" else None

    def _driven(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Returns the covariance that the noise adds to the state in one round."""
        mixed = (self.Phi @ X @ transpose(self.Psi)).sum(0)
        return mixed + mixed.T + (self.Psi @ Z @ transpose(self.Psi)).sum(0) + self.fresh


def _same(now: np.ndarray, then: np.ndarray) -> bool:
    return np.abs(then - now).max(initial=0.0) <= SAME * np.abs(now).max(initial=0.0)


def gaussian_law(problem: Problem, map: RoundMap, name: str) -> AdditiveLaw:
    r"""Returns the exact law under VAR(1) noise, $G_i = A_i \theta - b_i + z_i$ with $z_i' = Q_i z_i + \epsilon_i$."""
    assert map.noise is not None
    noise = autoregressive(problem.agents.source, map.noise)
    return AdditiveLaw(map.transition, map.offset, noise, name, basis="exact")


def autoregressive(source: AbstractSource, K: np.ndarray) -> HiddenNoise:
    """Returns VAR(1) noise, sequential or independent, in a round with the response `K`, `(M, H, n, d)`."""
    M, H, n, d = K.shape
    Q, fresh, stationary, start = added_noise(source)
    nothing = np.zeros((H, n, n)), np.zeros((M, H, n, d))
    return HiddenNoise(Q, K, fresh, *nothing, stationary, start, np.zeros((M, d)))


def noise_on_chains(problem: Problem, rule: LocalRule) -> AdditiveLaw | None:
    """Returns the law with the noise of finite chains as it is at the limit without noise; None if that is large."""
    (A, b), law = problem.affine_parts(), finite_law(problem.agents.source)
    assert law is not None
    d = problem.dim
    if (
        problem.num_agents * d * (rule.local_steps * d + law.num_outcomes * d + rule.local_steps * law.num_outcomes)
        > LARGEST
    ):
        return None
    map = rule.round_map(A, A @ problem.root - b)
    assert map.noise is not None
    operators, weights = affine_operators(problem, law), law.weights()
    g = operators.g + operators.A @ map.limit_error()
    g = g - np.einsum("io,ioa->ia", weights, g)[:, None]
    noise = chain_noise(law, np.einsum("ihna,ioa->ihno", map.noise, g))
    return AdditiveLaw(map.transition, map.offset, noise, "", basis="additive noise")


def chain_noise(law: FiniteLaw, R: np.ndarray, *, each: bool = False) -> HiddenNoise:
    """Returns the noise that moves the state by `R`, `(M, H, n, outcomes)`, of mean zero, for each observed outcome.

    With `each`, the covariances `seen` are not summed over the agents, `(M, H, n, n)`.
    """
    squares = "ihnm" if each else "hnm"
    (M, H, n, _), chain, S = R.shape, law.chain, law.num_states
    if law.independent:
        seen = np.einsum(f"ihno,io,ihmo->{squares}", R, law.weights(), R, optimize=True)
        none, empty = np.zeros((M, 0, 0)), np.zeros((M, H, n, 0))
        return HiddenNoise(none, empty, none, seen, empty, none, none, np.zeros((M, 0)))
    P, pi = chain.transition, chain.stationary
    Q = transpose(P - pi[:, None, :])  # equal to P on vectors with sum zero, and damps rounding errors
    covariance = _covariance(pi)
    given, seen, both = R, np.zeros((M, H, n, n) if each else (H, n, n)), np.zeros((M, H, n, S))
    if law.pairs:
        R = R.reshape(M, H, n, S, S)
        given = np.einsum("ist,ihnst->ihns", P, R)
        leaving = np.einsum("is,ist,ihnst->ihnt", pi, P, R)
        square = np.einsum(f"ihnst,is,ist,ihmst->{squares}", R, pi, P, R, optimize=True)
        seen = square - np.einsum(f"ihns,is,ihms->{squares}", given, pi, given, optimize=True)
        both = leaving - (given * pi[:, None, None]) @ P[:, None]
    hidden = covariance - Q @ covariance @ transpose(Q)
    return HiddenNoise(Q, given, hidden, seen, both, covariance, _covariance(chain.start), chain.start - pi)


def _covariance(law: np.ndarray) -> np.ndarray:
    """Returns the covariance of the indicators of states with these probabilities, `(M, S, S)`."""
    return law[:, :, None] * np.eye(law.shape[-1]) - law[:, :, None] * law[:, None, :]
