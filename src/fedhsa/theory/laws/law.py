"""The choice of a law: an exact one if it is fast, otherwise the best of the others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from .agents import AddedNoise, Agents, agents_of, mean_agents
from .coordinates import alike, only_sums_matter
from .exchanges import drifts
from .federation import Federation, summarised
from .first_order import correlations
from .levels import MORE, EachSiteLaw, EverySiteLaw, LinearLaw, SitesLaw, TwoSitesLaw
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

    What all agents do without noise is as it is, their noise at the root differs from that of the chosen ones as
    autoregressions with the same variance and long-run covariance do, and their bias at the root is that of more
    agents; everything else is that of the chosen ones.
    """
    M, every = problem.num_agents, mean_agents(problem)

    def spread(count: int) -> np.ndarray:
        return np.unique(np.linspace(0, M - 1, min(count, M)).round().astype(int))

    def among(agents: Agents, which: np.ndarray) -> Federation:
        counts = np.full(len(which), M / len(which))
        return Federation(pieces, agents.standing_for(counts), one.name, one.coordinates)

    which, more = spread(count), spread(MORE * count)
    found, quiet, some = (
        among(*x)
        for x in ((agents_of(problem, which).single(), which), (every, np.arange(M)), (every.of(which), which))
    )
    biased, unbiased = among(agents_of(problem, more), more), among(every.of(more), more)
    rounds = zip(*(federation.rounds for federation in (found, quiet, some, biased, unbiased)), strict=True)
    for every_role in rounds:
        exchanges, of_all, of_some, *both = (role.exchanges for role, *_ in every_role)
        for k, (bias, none) in enumerate(zip(*(drifts(x) for x in both), strict=True)):
            exchange, counts = exchanges[k], found.agents.counts
            rest = of_all[k].others.sum(0) - np.tensordot(counts, of_some[k].others, 1)
            rest[:, -1] += M * (bias - none).mean(0) - counts @ (exchange.others - of_some[k].others)[..., -1]
            exchange.rest = rest
    found.shift = (found.mean_round() - quiet.mean_round())[:-1, -1]
    every.noise = _autoregression(problem)
    law = LinearLaw(among(every, np.arange(M)))
    found.noises = law.added_by_each() if law.mean_radius() < 1 else law.within
    found.chosen, found.stands = which, np.abs(np.arange(M)[:, None] - which).argmin(1)
    return found


def _autoregression(problem: Problem) -> AddedNoise:
    """Returns autoregressions with each agent's long-run covariance and variance at the root."""
    known = correlations(problem, lags=0)
    long_run, variance = (np.trace(x, axis1=1, axis2=2) for x in (known.long_run, known.variance))
    slow = np.clip((long_run - variance) / np.maximum(long_run + variance, SMALLEST), -SLOWEST, SLOWEST)[:, None, None]
    spread = known.long_run * (1 - slow) / (1 + slow)
    return AddedNoise(slow * np.eye(problem.dim), spread * (1 - slow**2), spread, spread)
