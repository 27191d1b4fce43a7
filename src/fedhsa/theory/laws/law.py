"""The choice of a law: an exact one if it is fast, otherwise the best of the others."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._linear import spectral_radius, stein_sum
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from .agents import Agents, agents_of, mean_agents
from .coordinates import alike, only_sums_matter
from .exchanges import drifts
from .federation import Federation, Standing, summarised
from .first_order import TOGETHER, correlations_of
from .levels import EachSiteLaw, EverySiteLaw, LinearLaw, SitesLaw, StandingLaw, TwoSitesLaw
from .moments import NotDerivedError, TooLargeError
from .occupancies import OccupancyLaw
from .pieces import Pieces, scaled_pieces

PRODUCT, PAIRS = 2e7, 6e7
"""The largest numbers of multiplications in a round of the exact law, and of all pairs together."""
SITES, FEWEST = 1e10, 4
"""The number of multiplications in a round above which some agents stand for all, and the smallest number of them."""
DRAWS, SWEEPS = 1000, 4
"""The number of points of each agent that are coded to find the covariance of a code, and of sweeps over all codes."""
ROUNDING = 1e-12
"""The size of a round's displacement that is rounding."""
BIASED = 400
"""The number of agents from which the bias of all is taken."""
REMEMBERED = 12
"""The number of agents above which those that are not followed are summarised by sums of what they remember."""
MOST_PAIRS, OCCUPANCIES, ROOM = 21, 400, 2**25
"""The largest number of different pairs, of occupancies, and of the numbers in moments or operators."""


def law_of(problem: Problem, algorithm: AbstractAlgorithm) -> SitesLaw | LinearLaw:
    """Returns the best fast law of an affine method on affine agents whose noise is known.

    Raises `NotDerivedError` if its pieces cannot be derived, and `TooLargeError` if every law would take long.
    """
    federation = federation_of(problem, algorithm)
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
    if federation.standing is not None:
        return StandingLaw(federation)
    if federation.num_states == 1 or federation.summary is not None or federation.pieces.absences[0] is not None:
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
    pieces, scale = scaled_pieces(algorithm.relative_to(problem.root), problem.num_agents, problem.dim)
    return _of_pieces(problem, pieces, scale, type(algorithm).__name__)


def federation_on(problem: Problem, algorithm: AbstractAlgorithm, agents: Agents) -> Federation:
    """Returns a method on other agents in the place of a problem's, as many as it has."""
    name, (pieces, scale) = (
        type(algorithm).__name__,
        scaled_pieces(algorithm.relative_to(problem.root), len(agents.P), agents.dim),
    )
    sums, agents = len(agents.P) > REMEMBERED and only_sums_matter(pieces), agents.scaled(scale)
    return summarised(pieces, agents, name) if sums else Federation(pieces, agents, name)


def _of_pieces(problem: Problem, pieces: Pieces, scale: float, name: str) -> Federation:
    M = problem.num_agents
    if M > REMEMBERED and only_sums_matter(pieces):
        found = summarised(pieces, agents_of(problem).scaled(scale), name)
        if not found.additive and M * found.num_states * (found.size + found.own + 1) ** 2 > ROOM:
            raise TooLargeError(f"The law of {name} on this problem would take long.")
        return found
    first = agents_of(problem, slice(1)).scaled(scale)
    one = _federation(pieces, first.standing_for(np.array([float(M)])), name)
    each, S = one.work(1), one.num_states
    if one.remembers or not all(map(alike, (*pieces.rounds, *pieces.first))):
        if M * S * (one.size + one.own + 1) ** 2 > ROOM or M * each > SITES or M * one.agents.W.size > ROOM:
            raise TooLargeError(f"The law of {name} on this problem would take long.")
    elif not one.certain and pieces.absences == (None,) and (M * each > SITES or M * one.agents.W.size > ROOM):
        return _sampled(problem, pieces, scale, max(FEWEST, int(SITES / each)), one)
    agents = agents_of(problem).scaled(scale)
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


def _sampled(problem: Problem, pieces: Pieces, scale: float, count: int, one: Federation) -> Federation:
    """Returns some agents that stand for all.

    What all agents do without noise is as it is, and their bias at the root is that of all, or of many. Agents are
    chosen with probabilities proportional to what their noise adds to the floor to first order in the step size, and
    stand for as many agents as the inverses of these say.
    """
    M, every = problem.num_agents, mean_agents(problem).scaled(scale)
    more = np.unique(np.linspace(0, M - 1, min(BIASED, M)).round().astype(int))

    def among(agents: Agents, counts: np.ndarray) -> Federation:
        return Federation(pieces, agents.standing_for(counts), one.name, one.coordinates)

    quiet, biases, long_run = among(every, np.ones(M)), [], []
    points = _points(quiet)
    for part in np.array_split(more, -(-len(more) // TOGETHER)):
        agents = agents_of(problem, part).scaled(scale)
        rounds = among(agents, np.full(len(part), M / len(part))).rounds
        biases.append([[x.sum(0) for x in drifts(role.exchanges)] for role, *_ in rounds])
        long_run.append(correlations_of(agents, at=points[part]).long_run)
    first = _noisy(quiet, np.concatenate(long_run))
    chances = first / first.sum() if first.sum() > 0 else np.full(len(more), 1 / len(more))
    picked = np.searchsorted(np.cumsum(chances), (np.arange(count) + 0.5) / count)
    picked, times = np.unique(np.minimum(picked, len(more) - 1), return_counts=True)
    which, counts = more[picked], times * M / len(more) / (count * chances[picked])
    found, some = (among(x, counts) for x in (agents_of(problem, which).scaled(scale).single(), every.of(which)))
    rounds = zip(*(federation.rounds for federation in (found, quiet, some)), strict=True)
    for r, every_role in enumerate(rounds):
        exchanges, of_all, of_some = (role.exchanges for role, *_ in every_role)
        for k, none in enumerate(drifts(of_all)):
            exchange = exchanges[k]
            rest = of_all[k].others.sum(0) - np.tensordot(counts, of_some[k].others, 1)
            bias = sum(part[r][k] for part in biases) / len(more) - none[more].mean(0)
            rest[:, -1] += M * bias - counts @ (exchange.others - of_some[k].others)[..., -1]
            exchange.rest = rest
    drifting = found.mean_round()[:-1, -1] - quiet.mean_round()[:-1, -1]
    found.standing = Standing(first[picked], math.sqrt(1 / len(more) - 1 / M) * drifting)
    found.stands = np.abs(np.arange(M)[:, None] - which).argmin(1)
    return found


def _noisy(quiet: Federation, long_run: np.ndarray) -> np.ndarray:
    """Returns what the noise of agents adds to the floor, each, to first order in the step size."""
    A, show, d, unit = quiet.mean_round()[:-1, :-1], quiet.show, quiet.dim, quiet.responses
    weight = stein_sum(A.T, A, show.T @ show) if spectral_radius(A) < 1 else show.T @ show
    weight = np.einsum("a,abcd,c->bd", unit, weight.reshape(len(unit), d, len(unit), d), unit)
    return np.einsum("ab,iab->i", weight, long_run) / (quiet.num_agents**2 * quiet.pieces.block_length)


def _points(quiet: Federation) -> np.ndarray:
    """Returns the mean points at which agents observe in the long run without noise, `(M, d)`, or the root."""
    map = quiet.mean_round()
    if np.abs(map[:-1, -1]).max() <= ROUNDING or spectral_radius(map[:-1, :-1]) >= 1:
        return np.zeros((len(quiet.agents.P), quiet.dim))
    x = np.append(np.linalg.solve(np.eye(len(map) - 1) - map[:-1, :-1], map[:-1, -1]), 1.0)
    law = EachSiteLaw(quiet)
    total = law.points((np.outer(x, x), 0 * law.base[1]))[0][:, 0]
    return total[:, :-1, -1] / total[:, -1:, -1]
