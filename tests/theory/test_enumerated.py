"""Laws of finite chains against sums over all trajectories, on arrays alone: every term of every law matters in one.

The references are those of `enumeration.py`. Both sides are exact up to rounding, so that they agree to 1e-9.
"""

import itertools
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.algorithms.base import Arrival
from fedhsa.problems.quadratic import QuadraticAgent
from fedhsa.sources import IID, VAR1, FiniteChain, Silent, Transitions
from fedhsa.theory.laws import federation as federation_module
from fedhsa.theory.laws import finite, independent, markov, replies
from fedhsa.theory.laws.additive import AdditiveLaw, chain_noise
from fedhsa.theory.laws.federation import Federation as Parts
from fedhsa.theory.laws.federation import observed as outcomes_on
from fedhsa.theory.laws.federation import outcomes_of
from fedhsa.theory.laws.finite import AffineOperators, FiniteLaw, finite_law
from fedhsa.theory.laws.occupancies import OccupancyLaw
from fedhsa.theory.laws.pieces import pieces_of_rule
from fedhsa.theory.laws.replies import RepliesLaw
from fedhsa.theory.laws.sites import EachSiteLaw, EverySiteLaw, TwoSitesLaw
from fedhsa.theory.laws.weights import EqualChances, OwnChances
from fedhsa.theory.maps.rounds import LocalRule
from theory import enumeration
from theory.enumeration import Agent, Closure, Law, Pairs, Rule

START = np.array([0.6, -0.8])
ROUNDS = 4


class Edges(NamedTuple):
    """Agents as arrays: their chains, and the operators on the edges of them, or on their states."""

    transition: np.ndarray
    stationary: np.ndarray
    start: np.ndarray
    A: np.ndarray
    g: np.ndarray


class Federation(NamedTuple):
    """Agents for enumeration, the same agents as edges, and the distributions of their first states."""

    agents: list
    edges: Edges
    chains: list


def federation(family, S, kinds):
    """One agent for each of `kinds`, in two dimensions; equal numbers are equal agents.

    Operators depend on the state (`states`), on the edge by one coefficient in a direction of the state (`td`), or on
    the edge in every way (`edges`). Chains start in their last state.
    """
    P, features, slopes, values = [], [], [], []
    for kind in kinds:
        rng = np.random.default_rng([S, kind])
        P.append(0.5 * np.eye(S) + 0.5 * rng.dirichlet(np.full(S, 2.0), size=S))
        if family == "td":
            phi = np.eye(S, 2) + rng.uniform(-0.5, 0.5, (S, 2))
            features.append(phi[:, None])
            slopes.append((0.6 * phi[None] - phi[:, None])[:, :, None])
            values.append(rng.uniform(0, 2, (S, S, 1)))
        else:
            T = 1 if family == "states" else S
            features.append(np.broadcast_to(np.eye(2), (S, 2, 2)))
            slopes.append(-np.eye(2) + 0.5 * rng.normal(size=(S, T, 2, 2)))
            values.append(rng.normal(size=(S, T, 2)))
    P, D, W, v = (np.array(x) for x in (P, features, slopes, values))
    whole = (len(kinds), S, S)
    A, g = np.einsum("iska,istkb->istab", D, W), np.einsum("iska,istk->ista", D, v)
    everywhere = np.broadcast_to(A, (*whole, 2, 2)), np.broadcast_to(g, (*whole, 2))
    agents, root = enumeration.centred(P, *everywhere)
    pi = np.array([enumeration.stationary(p) for p in P])
    start = np.broadcast_to(np.eye(S)[-1], pi.shape)
    return Federation(agents, Edges(P, pi, start, A, g + A @ root), list(start))


def by_rule(edges, rule):
    """The parts of a federation that the laws of its sites are made of."""
    return Parts(pieces_of_rule(LocalRule(*rule), len(edges.start)), outcomes_on(*edges), "FedHSA")


def assert_equal_moments(found, moments):
    """Mean and covariance of a law against E[(e, 1)(e, 1)^T]."""
    np.testing.assert_allclose(found.mean, moments[:-1, -1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.second, moments[:-1, :-1], rtol=1e-9, atol=1e-12)


def assert_equal_paths(law, path):
    for found, moments in zip(law.path(START, ROUNDS), path, strict=True):
        assert_equal_moments(found, moments)


FEDHSA = [
    ("states", 3, (0,), Rule(0.3, 4, 0.8)),
    ("td", 2, (0, 1), Rule(0.5, 4, 0.7)),
    ("edges", 2, (0, 1, 2), Rule(0.2, 3, 1.3)),
    ("edges", 3, (0, 1), Rule(0.2, 2)),
    ("states", 2, (0, 0), Rule(0.2, 3, 0.8, 0.4)),  # half a correction, so that 1 - kappa matters too
    ("td", 2, (0, 1), Rule(0.3, 6, 0.8)),  # as many steps as are taken at once
]
LOCAL = [
    ("td", 3, (0,), Rule(0.5, 4, 0.8, 0.0)),
    ("states", 3, (0, 1), Rule(0.2, 2, 1.0, 0.0)),
    ("edges", 2, (0, 1, 2), Rule(0.2, 3, 0.7, 0.0)),
    ("td", 2, (0, 0, 1), Rule(0.5, 1, 1.0, 0.0)),  # SynchronisedSA
    ("edges", 2, (0, 1), Rule(0.1, 6, 0.8, 0.0)),
]


@pytest.mark.parametrize(("family", "S", "kinds", "rule"), FEDHSA + LOCAL)
def test_the_product_law_is_that_of_all_trajectories(family, S, kinds, rule):
    agents, edges, chains = federation(family, S, kinds)
    law, truth = EverySiteLaw(by_rule(edges, rule)), Law(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, chains))
    anywhere = EverySiteLaw(by_rule(edges._replace(start=edges.stationary), rule))
    assert_equal_paths(anywhere, truth.path(START, ROUNDS))
    assert_equal_moments(law.stationary(), truth.moments)
    assert law.mean_radius() == pytest.approx(truth.mean_radius, rel=1e-9)
    assert law.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=1e-9), "exact", None)
    assert (law.basis, law.left_out) == ("exact", 0.0)


@pytest.mark.parametrize(("S", "M", "H"), [(2, 1, 3), (2, 4, 2), (3, 2, 3), (3, 3, 1)])
def test_the_law_of_occupancies_is_that_of_all_trajectories_of_equal_agents(S, M, H):
    agents, edges, chains = federation("td", S, (0,) * M)
    rule = Rule(0.5, H, 0.7, 0.0)
    law, truth = OccupancyLaw(by_rule(edges, rule)), Law(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, chains))
    assert_equal_moments(law.stationary(), truth.moments)
    assert law.mean_square_radius().value == pytest.approx(truth.mean_square_radius, rel=1e-9)


def test_equal_agents_beyond_a_product_of_chains_have_an_exact_law_without_a_correction_alone():
    rule = Rule(0.1, 2, 1.0, 0.0)
    few, many, different = (federation("td", 2, kinds).edges for kinds in ((0,) * 2, (0,) * 40, range(40)))
    assert type(markov.law_of_federation(by_rule(few, rule))) is EverySiteLaw
    assert type(markov.law_of_federation(by_rule(many, rule))) is OccupancyLaw
    assert type(markov.law_of_federation(by_rule(many, rule._replace(correction=1.0)))) is TwoSitesLaw
    assert type(markov.law_of_federation(by_rule(different, rule))) is EachSiteLaw


ALONE = [case for case in FEDHSA + LOCAL if len(case[2]) == 1]
SEVERAL = [
    ("td", 2, (0, 1, 2), Rule(0.5, 3, 0.8, 0.0)),
    ("edges", 2, (0, 0, 1), Rule(0.2, 4, 1.0, 0.0)),
    ("states", 3, (0, 1, 2), Rule(0.3, 2, 1.2, 0.0)),
    ("edges", 2, (0, 1, 1), Rule(0.2, 3, 0.7, 0.0)),
]


@pytest.mark.parametrize(("family", "S", "kinds", "rule"), ALONE + SEVERAL)
def test_the_one_site_law_is_the_closure_without_products_of_two_states(family, S, kinds, rule):
    """For one agent the closure is exact. With two exchanges, `test_many.py` has a law that closes whole rounds."""
    agents, edges, chains = federation(family, S, kinds)
    law = EachSiteLaw(by_rule(edges, rule))
    truth = Law(agents, rule) if len(kinds) == 1 else Closure(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, [chains[0]] if len(kinds) == 1 else chains))
    assert_equal_moments(law.stationary(), truth.moments)
    assert law.mean_radius() == pytest.approx(truth.mean_radius, rel=1e-9)
    kind = "exact" if len(kinds) == 1 else "estimate"
    assert law.mean_square_radius()[:2] == (pytest.approx(truth.mean_square_radius, rel=1e-9), kind)
    assert (law.left_out == 0) == (len(kinds) == 1)


@pytest.mark.parametrize(
    ("family", "S", "kinds", "rule"),
    [
        ("td", 3, (0, 1), Rule(0.5, 2, 0.8)),
        ("edges", 2, (0, 1), Rule(0.2, 3, 0.8, 0.0)),
        ("edges", 2, (0, 0), Rule(0.2, 3, 1.2)),
        *SEVERAL[:2],
        ("edges", 2, (0, 0, 0, 1), Rule(0.2, 2, 1.0, 0.0)),
        SEVERAL[3],
    ],
)
def test_the_law_of_pairs_adds_what_every_pair_misses(family, S, kinds, rule):
    """For two agents this is exact."""
    agents, edges, chains = federation(family, S, kinds)
    law = TwoSitesLaw(by_rule(edges, rule))
    truth = Law(agents, rule) if len(kinds) == 2 else Pairs(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, chains))
    assert_equal_moments(law.stationary(), truth.moments)


# Independent observations, and additive noise.


@pytest.fixture
def uncompiled(monkeypatch):
    """Problems as arrays, so that nothing is compiled: their operators by outcome are known."""
    for module in (finite, federation_module, independent, replies):
        monkeypatch.setattr(module, "affine_operators", lambda problem, law: problem.operators)


def problem_of(source, A, g):
    """What laws ask of a problem whose root is zero: operators `A @ e + g` of all outcomes, `(M, outcomes, ...)`."""
    found = finite_law(source)
    weights = found.weights() if found is not None else np.ones(A.shape[:2])
    parts = np.einsum("io,ioab->iab", weights, A), -np.einsum("io,ioa->ia", weights, g)
    agents = QuadraticAgent(source, -parts[0], -parts[1]) if found is None else SimpleNamespace(source=source)
    known = {"affine_parts": lambda: parts, "root": np.zeros(A.shape[-1]), "operators": AffineOperators(A, g)}
    return SimpleNamespace(agents=agents, num_agents=len(A), dim=A.shape[-1], **known)


def observed(family, S, kinds):
    """The source of a federation, and its operators on all outcomes: of states or of edges."""
    agents, edges, _ = federation(family, S, kinds)
    chain = FiniteChain(edges.transition, edges.start)
    A, g = (np.array([agent[k] for agent in agents]) for k in (1, 2))
    if family == "states":
        return chain, A[:, :, 0], g[:, :, 0]
    return Transitions(chain), A.reshape(len(kinds), S * S, 2, 2), g.reshape(len(kinds), S * S, 2)


METHODS = {1.0: fh.FedHSA, 0.0: fh.LocalSA}


@pytest.mark.parametrize(
    ("family", "kinds", "rule"),
    [
        ("states", (0,), Rule(0.4, 3, 0.8)),
        ("edges", (0, 1), Rule(0.3, 3, 0.8)),
        ("td", (0, 1), Rule(0.5, 4, 1.2, 0.0)),
        ("states", (0, 1, 1), Rule(0.4, 3, 1.0, 1.0)),
        ("states", (0, 1, 2), Rule(0.4, 1, 1.0, 0.0)),
    ],
)
def test_both_laws_of_independent_observations_are_those_of_all_trajectories(family, kinds, rule, uncompiled):
    """Independent observations are a chain of outcomes that forgets, with operators of its own states."""
    source, A, g = observed(family, 2, kinds)
    problem = problem_of(IID(source), A, g)
    law = finite_law(problem.agents.source)
    assert law is not None
    agents = [
        Agent(np.tile(w, (len(w), 1)), *(np.repeat(x[:, None], len(w), 1) for x in operators))
        for w, *operators in zip(law.weights(), A, g, strict=True)
    ]
    truth, pieces = Law(agents, rule), pieces_of_rule(LocalRule(*rule), len(kinds))
    one_state = EverySiteLaw(Parts(pieces, outcomes_of(problem), "FedHSA"))
    assert one_state.shape == (1,)
    every_outcome = EverySiteLaw(Parts(pieces, outcomes_of(problem, by_state=True), "FedHSA"))
    for found in (one_state, every_outcome):
        assert_equal_paths(found, truth.path(START, ROUNDS))
        assert_equal_moments(found.stationary(), truth.moments)
        assert found.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=1e-9), "exact", None)


def mean_operators(problem):
    """Slopes and values at the root of the agents' means."""
    A, b = problem.affine_parts()
    return A, -b


@pytest.mark.parametrize(
    ("family", "kinds", "rule"),
    [
        ("states", (0, 1), Rule(0.4, 3, 0.8)),
        ("edges", (0, 1), Rule(0.4, 3, 0.8, 0.0)),
        ("edges", (0, 1), Rule(0.4, 2, 1.0, 0.0)),  # as few steps as dimensions, whose offset is computed otherwise
        ("edges", (0,), Rule(0.3, 2)),
    ],
)
def test_additive_noise_of_chains_has_the_law_of_all_trajectories(family, kinds, rule):
    """Operators that share the agent's mean slope; noise enters a round by its closed form.

    From a certain state, only the means are those of all trajectories: the law has the stationary variance of steps.
    """
    agents, edges, chains = federation(family, 3, kinds)
    flows = edges.stationary[..., None] * edges.transition
    slopes = [np.einsum("st,stab->ab", flow, agent.A) for flow, agent in zip(flows, agents, strict=True)]
    agents = [a._replace(A=np.broadcast_to(slope, a.A.shape)) for a, slope in zip(agents, slopes, strict=True)]
    g = np.array([agent.g if family == "edges" else agent.g[:, :1] for agent in agents]).reshape(len(kinds), -1, 2)
    residuals = np.array([np.einsum("st,sta->a", flow, a.g) for flow, a in zip(flows, agents, strict=True)])
    map, truth = LocalRule(*rule).round_map(np.array(slopes), residuals), Law(agents, rule)
    R = np.einsum("ihna,ioa->ihno", map.noise, g - residuals[:, None])

    def found(start):
        chain = FiniteChain(edges.transition, start)
        noise = chain_noise(FiniteLaw(chain, pairs=family == "edges", independent=False), R)
        return AdditiveLaw(map.transition, map.offset, noise, "", basis="exact")

    assert_equal_paths(found(None), truth.path(START, ROUNDS))
    for moments, expected in zip(found(edges.start).path(START, 3), truth.path(START, 3, chains), strict=True):
        np.testing.assert_allclose(moments.mean, expected[:-1, -1], rtol=1e-9, atol=1e-12)
    assert_equal_moments(found(None).stationary(), truth.moments)
    assert found(None).mean_square_radius() == (pytest.approx(truth.mean_radius**2, rel=1e-9), "exact", None)


# Replies that are missing or altered.


WHOLE = [(1.0, np.eye(2))]
LOST = [(0.3, np.zeros((2, 2))), (0.7, np.eye(2))]
ALTERED = [(0.2, np.zeros((2, 2))), (0.4, np.eye(2)), (0.2, np.diag([2.0, 0.0])), (0.2, np.diag([0.0, 2.0]))]
FADED = [(0.5, 0.6 * np.eye(2)), (0.5, 1.4 * np.eye(2))]
AIR = [(0.25, s * np.sqrt(2) * 0.5 * unit) for s in (1, -1) for unit in np.eye(2)]
ARRIVALS = {
    "whole": (WHOLE, Arrival()),
    "lost": (LOST, Arrival(0.7, 0.7)),
    "altered": (ALTERED, Arrival(0.8, 0.4, 0.8)),
    "faded": (FADED, Arrival(1.0, (0.36 + 1.96) / 2)),
    "through the air": (FADED, Arrival(1.0, (0.36 + 1.96) / 2, 0.0, 0.25)),
}
"""All ways in which a reply arrives, with their moments by hand."""


def subsets(counts):
    """All sets of agents, with equal weights in their means, if their number has these probabilities."""
    M = len(counts) - 1
    for number in np.flatnonzero(counts):
        sets = list(itertools.combinations(range(M), number))
        for there in sets:
            yield counts[number] / len(sets), np.isin(np.arange(M), there) / max(number, 1)


def weighted(chances):
    """All sets of agents that take part by themselves, with weights 1 / (M p_i)."""
    for there in itertools.product((0.0, 1.0), repeat=len(chances)):
        p = np.prod(np.where(there, chances, 1 - chances))
        yield p, np.array(there) / chances / len(chances)


ALL, SOME, MOST = np.array([0.0, 0.0, 1.0]), np.array([0.1, 0.2, 0.7, 0.0]), np.array([0.0, 0.2, 0.0, 0.8])
OWN = np.array([0.4, 0.9])
REPLIES = [
    ("none", SOME, "altered", 1.0, False, 2),
    ("none", MOST, "lost", 1.0, False, 2),
    ("none", SOME, "through the air", 1.0, False, 2),
    ("none", SOME, "through the air", 1.0, True, 2),
    ("none", SOME, "altered", 0.0, False, 2),
    ("none", SOME, "through the air", 0.0, False, 2),
    ("outcomes", ALL, "altered", 1.0, False, 2),
    ("outcomes", ALL, "lost", 1.0, False, 3),
    ("outcomes", SOME, "lost", 1.0, True, 2),
    ("outcomes", SOME, "lost", 0.0, False, 2),
    ("outcomes", ALL, "through the air", 1.0, False, 2),
    ("white", ALL, "lost", 1.0, False, 2),
    ("white", SOME, "whole", 1.0, False, 2),
    ("white", SOME, "whole", 0.0, False, 2),
    ("white", OWN, "lost", 0.0, False, 2),
    ("none", OWN, "altered", 1.0, True, 2),
]


@pytest.mark.parametrize(("noise", "taking_part", "arriving", "correction", "all_first", "H"), REPLIES)
def test_a_round_with_some_replies_is_the_sum_over_all_that_can_happen(
    noise, taking_part, arriving, correction, all_first, H, uncompiled
):
    """From several errors, which span their squares; and the long run is where the rounds lead."""
    rule, (ways, arrival) = Rule(0.3, H, 0.8, correction), ARRIVALS[arriving]
    by_chance = taking_part is OWN
    M = 2 if by_chance else len(taking_part) - 1
    chain, A, g = observed("states", 2, range(M))
    pi, std = chain.stationary, 0.4
    if noise != "outcomes":
        A, g = (np.einsum("io,io...->i...", pi, x)[:, None] for x in (A, g))
    if noise == "white":
        source = VAR1(np.zeros((M, 2, 2)), np.full(M, std), "stationary")
        drawn = [(0.25, s * np.sqrt(2) * std * unit) for s in (1, -1) for unit in np.eye(2)]
        agents = [[(p, A[i, 0], g[i, 0] + z) for p, z in drawn] for i in range(M)]
    else:
        source = IID(chain) if noise == "outcomes" else Silent()
        chances = pi if noise == "outcomes" else np.ones((M, 1))
        agents = [list(zip(chances[i], A[i], g[i], strict=True)) for i in range(M)]
    sets = list(weighted(taking_part) if by_chance else subsets(taking_part))
    airs = AIR if arrival.added else None
    truth = enumeration.outcomes(agents, rule.local_steps, sets, ways, airs, all_first=all_first)
    assert truth.chance.sum() == pytest.approx(1.0)
    weights = OwnChances(taking_part) if by_chance else EqualChances(taking_part)
    problem = problem_of(source, A, g)
    law = RepliesLaw(problem, LocalRule(*rule), arrival, weights, all_first=all_first, name="")
    for e in ([0.0, 0.0], [1.0, 0.5], [-0.3, 2.0]):
        _, after = law.path(np.array(e), 1)
        assert_equal_moments(after, truth.moments(np.array(e), rule))
    *_, last = law.path(START, 400)
    assert law.stationary().square == pytest.approx(last.square, rel=1e-8)
    assert law.basis == "exact"
