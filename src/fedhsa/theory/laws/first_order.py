"""The floor to first order in the step size for any chain, from long-run covariances and lagged products."""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_continuous_lyapunov

from ..._linear import transpose
from ...algorithms import AbstractAlgorithm
from ...algorithms.codecs import CodeMoments
from ...problems import Problem
from ...sources import IID, VAR1, Silent
from ..steps import check_schedule
from .agents import Agents, additive_noise, agents_of, finite_law, mean_agents
from .coordinates import alike
from .draws import CODES
from .federation import Federation
from .pieces import Part, Pieces, Step, apply, pieces_of

TOGETHER = 25
"""The number of agents whose operators are in memory at a time."""


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
    product: np.ndarray
    """$c_{i,0}$, which matters if an observation is used twice, `(M, d)`."""


def correlations(problem: Problem, lags: int = 1) -> Correlations:
    r"""Computes exact long-run covariances and lagged products of affine problems.

    On finite chains they follow from the fundamental matrix $Z = (I - P + 1 \pi^T)^{-1}$. For VAR(1) noise
    $\Gamma = \sigma^2 (I - Q)^{-1} (I - Q)^{-T}$, and lagged products vanish since the noise is additive.

    **Arguments:**

    - `problem`: an affine problem with finite chains or additive VAR(1) noise.
    - `lags`: the number of lagged products.

    Raises `TypeError` for other problems.

    !!! example
        >>> P = [[[0.9, 0.1], [0.1, 0.9]]]                      # a symmetric chain, correlation 0.8^k
        >>> problem = fedhsa.problems.finite_sum.from_arrays(A=[[[[1.0]], [[1.0]]]], b=[[[1.0], [-1.0]]], P=P)
        >>> correlations(problem).long_run.round(6)                        # (1 + 0.8) / (1 - 0.8)
        array([[[9.]]])
    """
    M, d, source = problem.num_agents, problem.dim, problem.agents.source
    nothing = np.zeros((M, lags, d)), np.zeros((M, d)), np.zeros((M, d))
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
    parts = [
        correlations_of(agents_of(problem, part), lags) for part in np.array_split(np.arange(M), -(-M // TOGETHER))
    ]
    return Correlations(*map(np.concatenate, zip(*parts, strict=True)))


def correlations_of(agents: Agents, lags: int = 0, at: np.ndarray | None = None) -> Correlations:
    """Returns the correlations of agents on finite chains, at the root or at a point of each."""
    P, pi, given = agents.P, agents.pi, agents.given_state
    at = np.zeros((len(P), agents.dim)) if at is None else at
    value = (given @ np.concatenate([at, np.ones((len(P), 1))], axis=1)[:, None, :, None])[..., 0]
    mean = np.einsum("is,isa->ia", pi, value)
    leaving, second, product = agents.moments_at(at, products=lags > 0)
    noise, leaving = value - mean[:, None], leaving - pi[..., None] * mean[:, None]
    # times Z = (I - P + 1 pi^T)^-1, which sums over all later times
    summed = np.linalg.solve(np.eye(agents.num_states) - transpose(P) + pi[..., None], leaving)
    cross = transpose(summed) @ noise
    variance = second - mean[:, :, None] * mean[:, None]
    lagged = np.zeros((len(P), lags, agents.dim))
    for k in range(lags):
        lagged[:, k] = np.einsum("isab,isb->ia", given[..., :-1], leaving)
        leaving = transpose(P) @ leaving
    total = np.einsum("isab,isb->ia", given[..., :-1], summed)
    product = product - (agents.mean_operators[..., :-1] @ mean[..., None])[..., 0]
    return Correlations(cross + transpose(cross) + variance, variance, lagged, total, product)


def long_run_of_var(source: VAR1) -> np.ndarray:
    r"""Returns $\sigma^2 (I - Q)^{-1} (I - Q)^{-T}$ for every agent, `(M, d, d)`."""
    inverse = np.linalg.inv(np.eye(source.transition.shape[-1]) - source.transition)
    return source.noise_std[:, None, None] ** 2 * inverse @ transpose(inverse)


class FirstOrder(NamedTuple):
    """What a round makes of noise to first order in the step size, for agents that remember nothing from it."""

    num_agents: int
    block_length: int
    step: float
    """How far the parameter moves for each observation if all operators are 1."""
    products: np.ndarray
    r"""How far it moves in a round if $E[\tilde A(o_{l + k})\, \epsilon(o_l)] = 1$ for one lag $k = 0, 1, \dots$
    and all agents, `(L,)`."""
    persistent: np.ndarray
    """The same as far as an agent's own reply does not reach it before the round ends, as among infinitely many."""

    def scaled(self, step_size: float) -> "FirstOrder":
        """Returns the same for another step size, if this is for the step size 1."""
        products, persistent = step_size**2 * self.products, step_size**2 * self.persistent
        return self._replace(step=step_size * self.step, products=products, persistent=persistent)

    def covariance(self, A_bar: np.ndarray, long_run: np.ndarray) -> np.ndarray:
        """Returns the covariance in the long run, from the mean long-run covariance of agents."""
        return solve_continuous_lyapunov(A_bar, -self.step / self.num_agents * long_run)

    def bias(self, A_bar: np.ndarray, lagged: np.ndarray, total: np.ndarray, *, persistent: bool = False) -> np.ndarray:
        """Returns what noise adds to the mean in the long run, from the agents' mean products at lags 0, 1, ... and
        their sum from lag 1 on, or the part of it that remains with any number of agents."""
        L, weights = self.block_length, self.persistent if persistent else self.products
        known = np.concatenate([lagged, np.zeros((max(L - len(lagged), 0), len(total)))])[:L]
        moved = weights @ known
        if not persistent:  # noise of earlier rounds has reached all agents
            since = total - np.cumsum(np.concatenate([np.zeros((1, len(total))), known[1:]]), axis=0)
            moved = moved + self.step**2 / self.num_agents * since.sum(0)
        return -np.linalg.solve(A_bar, moved) / (self.step * L)


def first_order(pieces: Pieces) -> FirstOrder:
    """Returns what a round makes of noise to first order; one agent is followed, whose operator is 1 in one call."""
    M, L, p = len(pieces.rounds[0][0].send), pieces.block_length, len(pieces.server)
    step, products, still = 0.0, np.zeros((2, L)), np.zeros((p, p))
    count = min(M, 2) if all(map(alike, pieces.rounds)) else M  # the second stands for all others
    rounds = zip(pieces.chances, pieces.rounds, pieces.absences, strict=True)
    every = [
        (
            chance * math.prod(way.chance for way in ways) * (1.0 if absence is None else absence.present[0]),
            [_with(step, way, count) for step, way in zip(steps, ways, strict=True)],
        )
        for chance, steps, absence in rounds
        for ways in itertools.product(*(step.parts[0] for step in steps))
    ]
    for chance, steps in every:
        still += chance * _followed(pieces, steps, np.eye(p))[0]
    far = pieces.show @ np.linalg.matrix_power(still, 2**20)
    for chance, steps in every:
        calls = [call.place for step in steps for call in step.parts[0][0].calls]
        lags = np.subtract.outer(calls, calls)
        seen = (lags >= 0) & (np.minimum.outer(calls, calls) >= 0)
        moved, points = _followed(pieces, steps, np.zeros((p, len(calls))))
        alone = [each._replace(gather=np.pad(each.gather[1:], ((1, 0), (0, 0), (0, 0)))) for each in steps]
        every_points = points, _followed(pieces, alone, np.zeros((p, len(calls))))[1]
        weights = chance * M * (far @ moved)
        step += weights.sum() / L
        for row, asked in zip(products, every_points, strict=True):
            np.add.at(row, lags[seen], (weights[:, None] * asked)[seen])
    return FirstOrder(M, L, step, *products)


def _with(step: Step, way: Part, count: int) -> Step:
    """Returns the exchange of some agents that go this way; if they are two of more, the second stands for others."""
    gather = step.gather[:count].copy()
    gather[-1] *= len(step.gather) - count + 1
    return step._replace(send=step.send[:count], parts=((way,),) * count, gather=gather)


def _followed(pieces: Pieces, steps: Sequence[Step], server: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the server's state after a round in which the first agent's operator is 1 in one call, `(p, calls)`, and
    the points of all calls, `(calls, calls)`; all others are 0. If a state is given, all of them are."""
    width, points, unit = server.shape[1], [], not server.any()
    memory = np.zeros((len(steps[0].send), len(pieces.memory), width))
    for step in steps:
        places = {call.number: call.place for call in step.parts[0][0].calls}

        def operator(agents: np.ndarray, call: int, at: np.ndarray, places: dict[int, int] = places) -> np.ndarray:
            values = np.zeros_like(at)
            if places[call] <= CODES:
                codec = pieces.codes[CODES - places[call]]
                values += (codec.moments(1) or CodeMoments(1.0, 1.0, 0.0)).mean * at
            if agents[0] == 0:
                values[0] += unit * (np.arange(width) == len(points))
                points.append(at[0])
            return values

        server, memory = apply(step, server, memory, operator, [np.ones(1)] * len(step.parts))
    return server, np.array(points).reshape(len(points), width)


def first_order_covariance(problem: Problem, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""Returns the solution $X$ of $\bar A X + X \bar A^T = -\frac{\alpha}{M} \frac1M \sum_i \Gamma_i$.

    $\alpha$ is how far the parameter moves for each observation if all operators are 1, for FedHSA $\alpha_g \eta$.
    This is the constant of the linear speed-up. It contains the *average* of the agents' long-run covariances, not that
    of the slowest chain, which answers the paper's second open question.

    **Arguments:**

    - `problem`: an affine problem with finite chains or additive VAR(1) noise.
    - `algorithm`: an algorithm with a constant step size, whose rounds are affine.

    Raises `TypeError` for other problems and algorithms.

    !!! example
        >>> problem = fedhsa.problems.finite_sum.random(num_agents=3, num_components=4, dim=2, laziness=0.5)
        >>> X = first_order_covariance(problem, fedhsa.FedHSA(0.001, local_steps=5))
        >>> X.shape, bool(np.allclose(X, X.T))
        ((2, 2), True)
    """
    A, _ = problem.affine_parts()
    return _of(problem, algorithm).covariance(A.mean(0), correlations(problem).long_run.mean(0))


def first_order_bias(problem: Problem, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""Returns the Markov bias to first order in the step size; with $\kappa = 1$ for FedHSA and $0$ for Local SA it is

    $$-\eta \bar A^{-1} \frac1M \sum_i \Bigl\{ \frac1H \sum_{\ell<H} \sum_{1 \le j \le \ell}
      \bigl[c_{i,j} - \kappa (1 - \tfrac1M) c_{i,\ell}\bigr]
      + \frac{\alpha_g}{M H} \sum_{\ell<H} \sum_{k>\ell} c_{i,k} \Bigr\}.$$

    The first part comes from an agent's own local steps and is independent of $M$; the second from earlier rounds. For
    other methods, the first part follows from their exchanges.

    **Arguments:**

    - `problem`: an affine problem with finite chains or additive VAR(1) noise.
    - `algorithm`: an algorithm with a constant step size, whose rounds are affine and whose agents remember nothing
      from round to round.

    Raises `TypeError` for other problems and algorithms.

    !!! example
        >>> problem = fedhsa.problems.finite_sum.random(num_agents=3, num_components=4, dim=2, laziness=0.5)
        >>> small, large = (first_order_bias(problem, fedhsa.FedHSA(eta, local_steps=5)) for eta in (0.001, 0.002))
        >>> bool(np.allclose(large, 2 * small))  # proportional to the step size
        True
    """
    A, _ = problem.affine_parts()
    found = correlations(problem, lags=max(algorithm.block_length - 1, 1))
    lagged = np.concatenate([found.product[:, None], found.lagged], axis=1)
    return _of(problem, algorithm).bias(A.mean(0), lagged.mean(0), found.lagged_sum.mean(0))


def _of(problem: Problem, algorithm: AbstractAlgorithm) -> FirstOrder:
    check_schedule(algorithm)
    pieces = pieces_of(algorithm.relative_to(problem.root), problem.num_agents, problem.dim)
    if Federation(pieces, mean_agents(problem), type(algorithm).__name__).remembers:
        raise TypeError(
            f"The agents of {type(algorithm).__name__} remember something from round to round, and no formula to first "
            "order is known for that. `theory.predict` supports every method whose rounds are affine."
        )
    return first_order(pieces)
