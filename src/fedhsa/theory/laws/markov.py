"""The choice of the law on finite chains: an exact law if it is fast, otherwise the best of the others."""

import contextlib
import math

import jax
import numpy as np

from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..maps.rounds import RoundMap, local_rule
from .federation import Federation, outcomes_of
from .finite import additive_noise, finite_law, kinds_of
from .many import ManyAgentsLaw
from .moments import AbstractLaw, NotDerivedError, TooLargeError
from .occupancies import OccupancyLaw
from .pieces import pieces_of
from .sites import EachSiteLaw, EverySiteLaw, SitesLaw, TwoSitesLaw

PRODUCT, SITES, PAIRS = 2e7, 3e7, 3e7
"""The largest numbers of multiplications in a round of the exact law, of the one-site law and of all pairs together."""
MOST_AGENTS, MOST_PAIRS, OCCUPANCIES, ROOM, MAPS = 64, 21, 400, 2**22, 2**24
"""The largest number of agents, of different pairs, of occupancies, and of the numbers in all operators and maps."""
CARRIED, DRAWN, MOST_AGENTS_ALONE = 1200, 300, 300
"""The largest size of all that a method carries, that if anything is drawn, and the largest number of agents without
states."""
FEW_STATES = 12
"""The largest binary logarithm of the number of joint states for which an exact law of different agents is tried."""


def sites_law(problem: Problem, algorithm: AbstractAlgorithm, like: Federation | None = None) -> SitesLaw:
    """Returns the best fast law of an affine method on finite chains.

    `like` is the federation of the same problem and algorithm with another step size.

    Raises `NotDerivedError` if its pieces cannot be derived, and `TooLargeError` if every law would take long.
    """
    name, M, d = type(algorithm).__name__, problem.num_agents, problem.dim
    law, long = finite_law(problem.agents.source), TooLargeError(f"The law of {name} on this problem would take long.")
    if M > MOST_AGENTS_ALONE if law is None else _too_many(problem, algorithm) or M * law.num_outcomes * d**2 > ROOM:
        raise long
    if like is not None:
        return law_of_federation(like.at(algorithm))
    pieces = pieces_of(algorithm.relative_to(problem.root), M, d)
    if (len(pieces.server) + M * (len(pieces.memory) + (additive_noise(problem) is not None))) * d > CARRIED:
        raise long
    try:
        federation = Federation(pieces, outcomes_of(problem), name)
    except NotDerivedError:
        if law is None or (law.independent and M * law.num_outcomes**2 > ROOM):
            raise long from None
        federation = Federation(pieces, outcomes_of(problem, by_state=True), name)
    return law_of_federation(federation)


def law_of_federation(federation: Federation) -> SitesLaw:
    """Returns the best fast law of a federation; raises `TooLargeError` if every law would take long."""
    M = federation.num_agents
    if federation.room > MAPS:
        raise TooLargeError(f"The law of {federation.name} on this problem would take much memory.")
    if federation.num_states == 1:
        found = EverySiteLaw(federation)
        if federation.size > DRAWN and not found.additive:
            raise TooLargeError(f"The law of {federation.name} on this problem would take long.")
        return found
    if federation.work(M) <= PRODUCT:
        return EverySiteLaw(federation)
    if OccupancyLaw.number(federation) <= OCCUPANCIES:
        return OccupancyLaw(federation)
    if federation.work(1) * M > SITES:
        raise TooLargeError(f"The law of {federation.name} on this problem would take long.")
    pairs = len(federation.sets(2))
    few = pairs <= MOST_PAIRS and pairs * federation.work(2) <= PAIRS
    return TwoSitesLaw(federation) if few else EachSiteLaw(federation)


def exact_law(problem: Problem, algorithm: AbstractAlgorithm) -> AbstractLaw:
    """Returns the exact law of affine agents whose noise is known; raises `TooLargeError` if it would take long."""
    found = (sites_law if local_rule(algorithm) is None else markov_law)(problem, algorithm)
    if found.basis != "exact":
        law = finite_law(problem.agents.source)
        assert law is not None
        raise TooLargeError(
            f"The exact law of {problem.num_agents} agents with {law.num_states} states in {problem.dim} dimensions "
            "would take long. `theory.predict` supports every size."
        )
    return found


def markov_law(problem: Problem, algorithm: AbstractAlgorithm, map: RoundMap | None = None) -> AbstractLaw:
    """Returns the best fast law of a local rule on finite chains; `map` is as in `law_of`."""
    if _few(problem):
        with contextlib.suppress(TooLargeError):
            found = sites_law(problem, algorithm)
            if not isinstance(found, EachSiteLaw):  # otherwise the law of many agents is the same, and faster
                found.limit_of_many = lambda: ManyAgentsLaw(problem, algorithm, map).persistent_bias()
                return found
    law = ManyAgentsLaw(problem, algorithm, map)
    law.by_pairs = lambda: _by_pairs(problem, algorithm, law)
    return law


def _by_pairs(problem: Problem, algorithm: AbstractAlgorithm, many: ManyAgentsLaw) -> float:
    """Returns what a floor may neglect, with its distance from the one-site law; infinite if that law is too large."""
    try:
        law = sites_law(problem, algorithm)
        if isinstance(law, EachSiteLaw) and not many.large:
            law.take_over(many.blocks(), many.mean_square_radius())
        return abs(many.stationary().square / law.stationary().square - 1) + law.neglected
    except (TooLargeError, ValueError):
        return math.inf


def _few(problem: Problem) -> bool:
    """Returns whether there may be an exact law, or one of all pairs of agents."""
    law = finite_law(problem.agents.source)
    assert law is not None
    if problem.num_agents * math.log2(max(law.num_states, 2)) <= FEW_STATES:
        return True
    if law.independent:  # the law of many agents is exact
        return False
    kinds = _kinds(problem)
    return kinds * (kinds + 1) / 2 <= MOST_PAIRS


def _kinds(problem: Problem) -> int:
    """Returns the number of different agents."""
    return int(kinds_of([np.asarray(x) for x in jax.tree.leaves(problem.agents) if np.ndim(x)]).max()) + 1


def _too_many(problem: Problem, algorithm: AbstractAlgorithm) -> bool:
    """Returns whether there are more agents than laws admit; equal ones without a correction may be many."""
    law, rule, M = finite_law(problem.agents.source), local_rule(algorithm), problem.num_agents
    assert law is not None
    if M <= MOST_AGENTS or rule is None or (rule.correction and rule.local_steps > 1):
        return M > MOST_AGENTS
    return math.comb(M + law.num_states - 1, law.num_states - 1) > OCCUPANCIES or _kinds(problem) > 1
