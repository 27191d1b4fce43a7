"""The choice of the law for Markov sampling: an exact law if it is fast, otherwise the best of the others."""

import math

from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..maps.rounds import RoundMap, require_rule
from .clusters import Agents, OneSiteLaw, PairsLaw, ProductLaw, agents_of, cluster_work, pair_work, site_work
from .finite import edges_of, finite_law
from .many import ManyAgentsLaw
from .moments import AbstractLaw, MomentLaw, TooLargeError
from .occupancies import OccupancyLaw

WORK = 1.2e7
"""The largest number of multiplications in a round of second moments; a law takes about sixty rounds."""
PAIRS, KINDS = 3e8, 20
"""The largest number of multiplications for all pairs of agents together, and of different kinds of agents."""
OCCUPANCIES = 400
EDGES = 2**22
"""The largest size of the operators on the edges of all chains."""


def exact_law(problem: Problem, algorithm: AbstractAlgorithm) -> MomentLaw:
    """Returns the exact law of affine agents on finite chains; raises `TooLargeError` if it would take long."""
    agents = _agents(problem, algorithm)
    found = None if agents is None else _exact(agents)
    if found is None:
        law = finite_law(problem.agents.source)
        assert law is not None
        raise TooLargeError(
            f"The product of {problem.num_agents} chains with {law.num_states} states in {problem.dim} dimensions is "
            "too large for its exact law. `theory.predict` supports every size."
        )
    return found


def markov_law(problem: Problem, algorithm: AbstractAlgorithm, map: RoundMap | None = None) -> AbstractLaw:
    """Returns the best fast law of affine agents on finite chains; `map` is as in `law_of`."""
    agents = _agents(problem, algorithm)
    if agents is None:
        return ManyAgentsLaw(problem, algorithm, map)
    law = _exact(agents)
    if law is not None:
        return law
    if site_work(agents) > WORK:
        return ManyAgentsLaw(problem, algorithm, map)
    kinds = len(agents.counts)
    few = kinds <= KINDS and kinds * (kinds + 1) / 2 * pair_work(agents) <= PAIRS
    return PairsLaw(agents) if few else OneSiteLaw(agents)


def _agents(problem: Problem, algorithm: AbstractAlgorithm) -> Agents | None:
    """Returns the agents as arrays, or None if they are too large."""
    law = finite_law(problem.agents.source)
    assert law is not None
    M, S, d = problem.num_agents, law.num_states, problem.dim
    per_edge = S * d if law.pairs and not law.independent else d * d
    rule = require_rule(algorithm)
    if M * S * per_edge > EDGES or 3 * rule.local_steps * S**2 * d * (d + 1) > WORK:
        return None
    return agents_of(edges_of(problem, law), rule)


def _exact(agents: Agents) -> MomentLaw | None:
    S, M, corrected = agents.edges.num_states, int(agents.number), agents.rule.correction != 0
    if cluster_work(agents, M) <= WORK:
        return ProductLaw(agents)
    if len(agents.counts) == 1 and not corrected and math.comb(M + S - 1, S - 1) <= OCCUPANCIES:
        return OccupancyLaw(agents)
    return None
