"""The choice of a law: an exact one if it is fast, otherwise the best of the others."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._linear import spectral_radius
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from .agents import AddedNoise, Agents, agents_of, mean_agents
from .coordinates import alike, only_sums_matter
from .exchanges import drifts
from .federation import Federation, summarised
from .first_order import correlations
from .levels import EachSiteLaw, EverySiteLaw, LinearLaw, SitesLaw, TwoSitesLaw
from .moments import NotDerivedError, TooLargeError
from .occupancies import OccupancyLaw
from .pieces import Pieces, pieces_of

PRODUCT, PAIRS = 2e7, 6e7
"""The largest numbers of multiplications in a round of the exact law, and of all pairs together."""
SITES, FEWEST = 1e10, 4
"""The number of multiplications in a round above which some agents stand for all, and the smallest number of them."""
SLOWEST, SMALLEST = 0.9999, 1e-300
"""The largest correlation of noise from one observation to the next, and the smallest variance."""
DRAWS, SWEEPS = 1000, 4
"""The number of points of each agent that are coded to find the covariance of a code, and of sweeps over all codes."""
BIASED, TOGETHER = 400, 25
"""The number of agents from which the bias of all is taken, and of those considered at a time."""
DIRECTIONS = 1
"""The number of random directions of points where all agents' noise is considered."""
LATER, ALIKE = 50, 0.01
"""The most rounds until errors depend on the states of agents as in the long run, and the relative change of that."""
REMEMBERED = 12
"""The number of agents above which those that are not followed are summarised by sums of what they remember."""
MOST_PAIRS, OCCUPANCIES, ROOM = 21, 400, 2**25
"""The largest number of different pairs, of occupancies, and of the numbers in moments or operators."""


def law_of(problem: Problem, algorithm: AbstractAlgorithm, like: Federation | None = None) -> SitesLaw | LinearLaw:
    """Returns the best fast law of an affine method on affine agents whose noise is known.

    `like` is the federation of the same problem and algorithm with another step size.

    Raises `NotDerivedError` if its pieces cannot be derived, and `TooLargeError` if every law would take long.
    """
    federation = federation_of(problem, algorithm) if like is None else like.at(algorithm)
    return best_law(_coded(federation) if federation.nonlinear_codes else federation)


def _coded(federation: Federation) -> Federation:
    """Returns the same with the covariances of nonlinear codes in the long run, points being taken as Gaussian."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((len(federation.agents.P), DRAWS, federation.dim))
    for _ in range(SWEEPS):
        law, found = EachSiteLaw(federation), {}
        if not law.square_radius < 1:
            break
        points = law.points()
        for k in federation.nonlinear_codes:
            total = points[k + 1].sum(1)
            total = total / total[:, -1:, -1:]
            mean, square = total[:, :-1, -1], total[:, :-1, :-1]
            values, vectors = np.linalg.eigh(square - mean[:, :, None] * mean[:, None, :])
            root = vectors * np.sqrt(values.clip(min=0.0))[:, None]
            x = mean[:, None] + normal @ np.swapaxes(root, 1, 2)
            with precision():
                away = np.asarray(_decoded(federation.pieces.codes[k], jax.random.key(k), jnp.asarray(x))) - x
            found[k] = np.swapaxes(away, 1, 2) @ away / DRAWS
        federation = federation.with_codes(found)
    return federation


@eqx.filter_jit
def _decoded(codec, key, x):
    return jax.vmap(jax.vmap(codec))(jax.random.split(key, x.shape[:2]), x)


def best_law(federation: Federation) -> SitesLaw | LinearLaw:
    """Returns the best fast law of a federation."""
    if federation.additive:
        return LinearLaw(federation)
    some = federation.chosen is not None or federation.summary is not None
    if federation.num_states == 1 or some or federation.pieces.absences[0] is not None:
        return EachSiteLaw(federation)
    if federation.num_agents == len(federation.agents.P) and federation.work(federation.num_agents) <= PRODUCT:
        return EverySiteLaw(federation)
    if OccupancyLaw.number(federation) <= OCCUPANCIES:
        return OccupancyLaw(federation)
    if federation.pieces.kernel is not None:
        return EachSiteLaw(federation)
    pairs = len(federation.sets(2)[0])
    few = pairs <= MOST_PAIRS and pairs * federation.work(2) <= PAIRS * len(federation.agents.P)
    return TwoSitesLaw(federation) if few else EachSiteLaw(federation)


def federation_of(problem: Problem, algorithm: AbstractAlgorithm) -> Federation:
    """Returns a method on the agents of a problem; in large problems, some of them stand for all."""
    name, M = type(algorithm).__name__, problem.num_agents
    pieces = pieces_of(algorithm.relative_to(problem.root), M, problem.dim)
    if M > REMEMBERED and only_sums_matter(pieces):
        found = summarised(pieces, agents_of(problem), name)
        if not found.additive and M * found.num_states * (found.size + found.own + 1) ** 2 > ROOM:
            raise TooLargeError(f"The law of {name} on this problem would take long.")
        return found
    one = _federation(pieces, agents_of(problem, slice(1)).standing_for(np.array([float(M)])), name)
    each, S = one.work(1), one.num_states
    if one.remembers or not all(map(alike, (*pieces.rounds, *pieces.first))):
        if M * S * (one.size + one.own + 1) ** 2 > ROOM or M * each > SITES or M * one.agents.W.size > ROOM:
            raise TooLargeError(f"The law of {name} on this problem would take long.")
    elif not one.certain and pieces.absences == (None,) and (M * each > SITES or M * one.agents.W.size > ROOM):
        return _sampled(problem, pieces, max(FEWEST, int(SITES / each)), one)
    agents = agents_of(problem)
    whole = _federation(pieces, agents, name)
    if S == 1 or one.remembers or len(set(agents.kinds)) == M or whole.work(M) <= PRODUCT:
        return whole
    _, which, stands, counts = np.unique(agents.kinds, return_index=True, return_inverse=True, return_counts=True)
    found = _federation(pieces, agents.of(which).standing_for(counts.astype(float)), name)
    found.stands = stands
    return found


def _federation(pieces: Pieces, agents: Agents, name: str) -> Federation:
    """Returns a federation whose agents may use an observation in several exchanges."""
    try:
        found = Federation(pieces, agents, name)
        found.check()
    except NotDerivedError:
        if agents.W.shape[2] == 1 or len(agents.P) * agents.chances[0].size ** 2 > ROOM:
            raise
        found = Federation(pieces, agents.by_observation(), name)
    return found


def _sampled(problem: Problem, pieces: Pieces, count: int, one: Federation) -> Federation:
    """Returns some agents that stand for all.

    What all agents do without noise is as it is, their noise differs from that of the chosen ones as autoregressions
    do that have its variance and long-run covariance at points of the long run, and their bias at the root is that of
    all, or of many; everything else is that of the chosen ones.
    """
    M, every = problem.num_agents, mean_agents(problem)

    def spread(count: int) -> np.ndarray:
        return np.unique(np.linspace(0, M - 1, min(count, M)).round().astype(int))

    def among(agents: Agents, which: np.ndarray) -> Federation:
        counts = np.full(len(which), M / len(which))
        return Federation(pieces, agents.standing_for(counts), one.name, one.coordinates)

    which, more = spread(count), spread(BIASED)
    found, quiet, some = (
        among(*x)
        for x in ((agents_of(problem, which).single(), which), (every, np.arange(M)), (every.of(which), which))
    )
    biased = [
        [[x.sum(0) for x in drifts(role.exchanges)] for role, *_ in among(agents_of(problem, part), part).rounds]
        for part in np.array_split(more, -(-len(more) // TOGETHER))
    ]
    rounds = zip(*(federation.rounds for federation in (found, quiet, some)), strict=True)
    for r, every_role in enumerate(rounds):
        exchanges, of_all, of_some = (role.exchanges for role, *_ in every_role)
        for k, none in enumerate(drifts(of_all)):
            exchange, counts = exchanges[k], found.agents.counts
            rest = of_all[k].others.sum(0) - np.tensordot(counts, of_some[k].others, 1)
            bias = sum(part[r][k] for part in biased) / len(more) - none[more].mean(0)
            rest[:, -1] += M * bias - counts @ (exchange.others - of_some[k].others)[..., -1]
            exchange.rest = rest
    A, c = found.mean_round()[:-1, :-1], found.mean_round()[:-1, -1]
    found.doubt = math.sqrt(1 / len(more) - 1 / M) * (c - quiet.mean_round()[:-1, -1])
    found.chosen, found.stands = which, np.abs(np.arange(M)[:, None] - which).argmin(1)

    def noisy(which: np.ndarray, points: np.ndarray) -> LinearLaw:
        every.noise = _autoregression(problem, points)
        return LinearLaw(among(every.of(which), which))

    def square(law: LinearLaw) -> np.ndarray:
        x = np.append(np.linalg.solve(np.eye(len(A)) - A, c), 1.0)
        return np.outer(x, x) + np.pad(law.covariance(), (0, 1))

    points = np.broadcast_to(problem.root, (1, M, problem.dim))
    if spectral_radius(A) >= 1:
        found.noises = noisy(np.arange(M), points).within
        return found
    guess = noisy(spread(TOGETHER), points)
    if guess.mean_radius() < 1:
        begun = square(guess), np.zeros((M, 1, len(A) + 1, len(A) + 1))
        points = problem.root + _spread(EachSiteLaw(quiet).points(begun)[0][:, 0])
    law = noisy(np.arange(M), points)
    found.noises = law.added_by_each()
    # Autoregressions explain this part of the differences between agents.
    own, taken = EachSiteLaw(found).each_alone(square(law), _correlated(found, square(law)))
    found.noises *= np.clip(-(own @ taken) / max(taken @ taken, SMALLEST), 0.0, 1.0)
    return found


def _correlated(federation: Federation, square: np.ndarray) -> np.ndarray:
    """Returns how the second moments of $(x, 1)$ depend on the states of agents once these have been followed."""
    law = EachSiteLaw(federation)
    found = np.zeros_like(law.base[1])
    for _ in range(LATER):
        before, found = found, law.round((square, found))[1]
        if np.linalg.norm(found - before) <= ALIKE * np.linalg.norm(found):
            break
    return found


def _spread(squares: np.ndarray) -> np.ndarray:
    """Returns points with these second moments of $(x, 1)$ on average over directions of which some are drawn."""
    squares = squares / squares[:, -1:, -1:]
    d, mean = squares.shape[-1] - 1, squares[:, :-1, -1]
    values, vectors = np.linalg.eigh(squares[:, :-1, :-1] - mean[:, :, None] * mean[:, None])
    drawn = np.linalg.qr(np.random.default_rng(0).standard_normal((d, min(d, DIRECTIONS))))[0]
    away = np.moveaxis(math.sqrt(d) * (vectors * np.sqrt(values.clip(min=0.0))[:, None]) @ drawn, -1, 0)
    return mean + np.concatenate([away, -away])


def _autoregression(problem: Problem, points: np.ndarray) -> AddedNoise:
    """Returns autoregressions with each agent's long-run covariance and variance, on average over points of agents."""
    known = [correlations(problem, lags=0, at=x) for x in points]
    covariance = sum(x.long_run for x in known) / len(known)
    variance = sum(np.trace(x.variance, axis1=1, axis2=2) for x in known) / len(known)
    long_run = np.trace(covariance, axis1=1, axis2=2)
    slow = np.clip((long_run - variance) / np.maximum(long_run + variance, SMALLEST), -SLOWEST, SLOWEST)[:, None, None]
    spread = covariance * (1 - slow) / (1 + slow)
    return AddedNoise(slow * np.eye(problem.dim), spread * (1 - slow**2), spread, spread)
