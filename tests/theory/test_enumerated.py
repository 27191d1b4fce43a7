"""Laws of finite chains against sums over all trajectories, on arrays alone: every term of every law matters in one.

The references are those of `enumeration.py`. Both sides are exact up to rounding, so that they agree to 1e-9.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.theory.laws import draws, pieces
from fedhsa.theory.laws.agents import AddedNoise, Agents
from fedhsa.theory.laws.federation import Federation
from fedhsa.theory.laws.law import best_law
from fedhsa.theory.laws.levels import EachSiteLaw, EverySiteLaw, TwoSitesLaw
from fedhsa.theory.laws.occupancies import OccupancyLaw
from fedhsa.theory.laws.pieces import derive, pieces_of_rule
from fedhsa.theory.rule import LocalRule
from theory import enumeration
from theory.enumeration import Agent, Closure, Law, Pairs, Rule

START = np.array([0.6, -0.8])
ROUNDS = 4


class Chains(NamedTuple):
    """Agents for enumeration, the same agents as arrays of the package, and the distributions of their first states."""

    agents: list
    arrays: Agents
    starts: list


def chains_of(family, S, kinds):
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
    coefficients = np.concatenate([W, (v + W @ root)[..., None]], axis=-1)
    chances = np.ones((*pi.shape, 1)) if family == "states" else P
    arrays = Agents(P, pi, start, chances, coefficients, D if family == "td" else None)
    return Chains(agents, arrays, list(start))


def stationary(agents):
    """The same agents on chains that start stationary."""
    return Agents(agents.P, agents.pi, agents.pi, agents.chances, agents.W, agents.D, agents.noise)


def by_rule(agents, rule):
    """The federation of a local rule."""
    return Federation(pieces_of_rule(LocalRule(*rule), len(agents.start)), agents, "FedHSA")


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
    ("td", 2, (0, 1), Rule(0.3, 6, 0.8)),
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
    agents, arrays, starts = chains_of(family, S, kinds)
    law, truth = EverySiteLaw(by_rule(arrays, rule)), Law(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, starts))
    anywhere = EverySiteLaw(by_rule(stationary(arrays), rule))
    assert_equal_paths(anywhere, truth.path(START, ROUNDS))
    assert_equal_moments(law.stationary(), truth.moments)
    assert law.mean_radius() == pytest.approx(truth.mean_radius, rel=1e-9)
    assert law.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=1e-9), "exact", None)
    assert (law.basis, law.left_out) == ("exact", 0.0)


@pytest.mark.parametrize("family", ["td", "edges"])
def test_transitions_as_states_have_the_law_of_all_trajectories(family):
    """Methods that use an observation in two exchanges need agents whose states are their observations."""
    agents, arrays, starts = chains_of(family, 2, (0, 1))
    rule = Rule(0.3, 2, 0.8)
    law, truth = EverySiteLaw(by_rule(arrays.by_observation(), rule)), Law(agents, rule)
    assert law.federation.num_states == 4
    assert_equal_paths(law, truth.path(START, ROUNDS, starts))
    assert_equal_moments(law.stationary(), truth.moments)


@pytest.mark.parametrize(("S", "M", "H"), [(2, 1, 3), (2, 4, 2), (3, 2, 3), (3, 3, 1)])
def test_the_law_of_occupancies_is_that_of_all_trajectories_of_equal_agents(S, M, H):
    agents, arrays, starts = chains_of("td", S, (0,) * M)
    rule = Rule(0.5, H, 0.7, 0.0)
    law, truth = OccupancyLaw(by_rule(arrays, rule)), Law(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, starts))
    assert_equal_moments(law.stationary(), truth.moments)
    assert law.mean_square_radius().value == pytest.approx(truth.mean_square_radius, rel=1e-9)


def test_equal_agents_beyond_a_product_of_chains_have_an_exact_law_without_a_correction_alone():
    rule = Rule(0.1, 2, 1.0, 0.0)
    few, many, different = (chains_of("td", 2, kinds).arrays for kinds in ((0,) * 2, (0,) * 40, range(40)))
    assert type(best_law(by_rule(few, rule))) is EverySiteLaw
    assert type(best_law(by_rule(many, rule))) is OccupancyLaw
    assert type(best_law(by_rule(many, rule._replace(correction=1.0)))) is TwoSitesLaw
    assert type(best_law(by_rule(different, rule))) is EachSiteLaw


@pytest.mark.parametrize(
    ("law", "correction"),
    [(OccupancyLaw, 0.0), (EachSiteLaw, 0.0), (EachSiteLaw, 1.0), (TwoSitesLaw, 0.0), (TwoSitesLaw, 1.0)],
)
def test_an_agent_that_stands_for_equal_ones_has_the_law_of_all_of_them(law, correction):
    arrays, rule = chains_of("edges", 2, (0, 0, 0)).arrays, LocalRule(0.2, 3, 0.8, correction)
    one = arrays.of(np.array([1])).standing_for(np.array([3.0]))
    all, found = (law(Federation(pieces_of_rule(rule, 3), agents, "FedHSA")) for agents in (arrays, one))
    np.testing.assert_allclose(found.errors(START, ROUNDS), all.errors(START, ROUNDS), rtol=1e-10)
    np.testing.assert_allclose(found.stationary().second, all.stationary().second, rtol=1e-9)


ALONE = [case for case in FEDHSA + LOCAL if len(case[2]) == 1]
SEVERAL = [
    ("td", 2, (0, 1, 2), Rule(0.5, 3, 0.8, 0.0)),
    ("edges", 2, (0, 0, 1), Rule(0.2, 4, 1.0, 0.0)),
    ("states", 3, (0, 1, 2), Rule(0.3, 2, 1.2, 0.0)),
    ("edges", 2, (0, 1, 1), Rule(0.2, 3, 0.7, 0.0)),
]


@pytest.mark.parametrize(("family", "S", "kinds", "rule"), ALONE + SEVERAL)
def test_the_one_site_law_is_the_closure_without_products_of_two_states(family, S, kinds, rule):
    """For one agent the closure is exact. With two exchanges, see `test_sites.py`."""
    agents, arrays, starts = chains_of(family, S, kinds)
    law = EachSiteLaw(by_rule(arrays, rule))
    truth = Law(agents, rule) if len(kinds) == 1 else Closure(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, starts))
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
    """For two agents this is exact. The mean square grows where that of any pair does."""
    agents, arrays, starts = chains_of(family, S, kinds)
    law = TwoSitesLaw(by_rule(arrays, rule))
    truth = Law(agents, rule) if len(kinds) == 2 else Pairs(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, starts))
    assert_equal_moments(law.stationary(), truth.moments)
    pairs = itertools.combinations(range(len(kinds)), 2)
    expected = max(Law(agents, rule, random=pair).mean_square_radius for pair in pairs)
    assert law.square_radius == pytest.approx(expected, rel=1e-7)
    assert law.mean_square_radius().kind == ("exact" if len(kinds) == 2 else "estimate")
    if len(kinds) == 2:
        assert law.mean_square_radius().value == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("kinds", [(0, 1), (0, 0)])
def test_the_rate_of_the_mean_of_two_agents_is_exact_by_the_law_of_pairs(kinds):
    agents, arrays, _ = chains_of("edges", 2, kinds)
    rule = Rule(0.5, 3, 0.8)
    truth, law = Law(agents, rule), TwoSitesLaw(by_rule(arrays, rule))
    assert law.mean_radius() == pytest.approx(truth.mean_radius, rel=1e-9)


def scalar(M):
    """Agents in one dimension on two states, whose pairs have four moments."""
    P, pi = np.tile([[0.7, 0.3], [0.2, 0.8]], (M, 1, 1)), np.tile([0.4, 0.6], (M, 1))
    A = np.tile(np.array([-1.5, 0.3]).reshape(2, 1, 1, 1), (M, 1, 2, 1, 1))
    g = np.repeat(np.random.default_rng(0).normal(size=(M, 2, 1, 1)), 2, axis=2)
    agents, _ = enumeration.centred(P, A, g)
    W = np.array([np.concatenate([agent.A, agent.g[..., None]], axis=-1)[:, :1] for agent in agents])
    return agents, Agents(P, pi, pi, np.ones((M, 2, 1)), W)


@pytest.mark.parametrize("M", [2, 3])
@pytest.mark.parametrize("step", [0.02, 0.1, 0.3, 1.0])
def test_pairs_with_few_moments_grow_as_their_exact_law(M, step):
    (agents, arrays), rule = scalar(M), Rule(step, 3, 1.0, 1.0)
    expected = Law(agents[:2], rule) if M == 2 else Law(agents, rule, random=(0, 1))
    assert TwoSitesLaw(by_rule(arrays, rule)).square_radius == pytest.approx(expected.mean_square_radius, rel=1e-7)


# Independent observations.


def drawn(family, S, kinds):
    """Agents that observe their chains independently: one state, and draws of it."""
    arrays = chains_of(family, S, kinds).arrays
    weights = (arrays.pi[..., None] * arrays.chances).reshape(len(kinds), 1, -1)
    one = np.ones((len(kinds), 1))
    return Agents(one[..., None], one, one, weights, arrays.matrices.reshape(len(kinds), 1, -1, 2, 3))


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
def test_every_law_of_independent_observations_is_that_of_all_trajectories(family, kinds, rule):
    """They are a chain of outcomes that forgets, with operators of its own states; or draws of agents with one state,
    of which the one-site law neglects nothing."""
    arrays = drawn(family, 2, kinds)
    agents = [
        Agent(np.tile(w, (len(w), 1)), *(np.repeat(x[:, None], len(w), 1) for x in (W[..., :-1], W[..., -1])))
        for w, W in zip(arrays.chances[:, 0], arrays.W[:, 0], strict=True)
    ]
    truth, by_outcome = Law(agents, rule), arrays.by_observation()
    assert by_outcome.num_states == len(agents[0].P)
    laws = (EverySiteLaw, arrays), (EverySiteLaw, by_outcome), (EachSiteLaw, arrays)
    for found in (law(by_rule(observing, rule)) for law, observing in laws):
        assert_equal_paths(found, truth.path(START, ROUNDS))
        assert_equal_moments(found.stationary(), truth.moments)
        assert found.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=1e-9), "exact", None)
        assert (found.basis, found.left_out) == ("exact", 0.0)


# Replies that are missing or altered.


WHOLE = [(1.0, np.eye(2))]
LOST = [(0.3, np.zeros((2, 2))), (0.7, np.eye(2))]
ALTERED = [(0.2, np.zeros((2, 2))), (0.4, np.diag([2.0, 0.0])), (0.4, np.diag([0.0, 2.0]))]
FADED = [(0.5, 0.6 * np.eye(2)), (0.5, 1.4 * np.eye(2))]
AIR = [(0.25, s * np.sqrt(2) * 0.5 * unit) for s in (1, -1) for unit in np.eye(2)]
ARRIVALS = {
    "whole": (WHOLE, None, lambda method: method),
    "lost": (LOST, None, lambda method: fh.Lossy(method, 0.3, rescale=False)),
    "altered": (ALTERED, None, lambda m: fh.Lossy(fh.Compressed(m, fh.codecs.RandK(0.5)), 0.2, rescale=False)),
    "faded": (FADED, None, lambda method: fh.OverTheAir(method, 0.4, 0.0)),
    "through the air": (FADED, AIR, lambda method: fh.OverTheAir(method, 0.4, 0.5)),
}
"""All ways in which a reply arrives, what the receiver adds, and the method whose replies do so."""


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


OWN = np.array([0.4, 0.9])
TAKING_PART = {
    "all": (2, lambda: subsets([0.0, 0.0, 1.0]), None),
    "two": (3, lambda: subsets([0.0, 0.0, 1.0, 0.0]), fh.sampling.UniformSampling(2, 3)),
    "some": (3, lambda: subsets([0.4**3, 3 * 0.6 * 0.4**2, 3 * 0.6**2 * 0.4, 0.6**3]), fh.sampling.Bernoulli(0.6)),
    "own": (2, lambda: weighted(OWN), fh.sampling.WeightedSampling(OWN)),
}
"""The number of agents, the sets of those that take part with their weights, and how they are chosen."""
REPLIES = [
    ("none", "some", "altered", fh.FedHSA, False, 2),
    ("none", "two", "lost", fh.FedHSA, False, 2),
    ("none", "some", "through the air", fh.FedHSA, False, 2),
    ("none", "some", "through the air", fh.FedHSA, True, 2),
    ("none", "some", "altered", fh.LocalSA, False, 2),
    ("none", "two", "through the air", fh.LocalSA, False, 2),
    ("outcomes", "all", "altered", fh.FedHSA, False, 2),
    ("outcomes", "all", "lost", fh.FedHSA, False, 3),
    ("outcomes", "two", "lost", fh.FedHSA, True, 2),
    ("outcomes", "some", "lost", fh.LocalSA, False, 2),
    ("outcomes", "all", "through the air", fh.FedHSA, False, 2),
    ("white", "all", "lost", fh.FedHSA, False, 2),
    ("white", "some", "whole", fh.FedHSA, False, 2),
    ("white", "two", "whole", fh.LocalSA, False, 2),
    ("white", "own", "lost", fh.LocalSA, False, 2),
    ("none", "own", "altered", fh.FedHSA, True, 2),
]


def observing(noise, M):
    """Agents without noise, with independent outcomes or with white noise, and what each may observe."""
    arrays, std = drawn("states", 2, range(M)), 0.4
    if noise == "outcomes":
        return arrays, [list(zip(p, A, g, strict=True)) for p, A, g in zip(*parts(arrays), strict=True)]
    arrays = arrays.noiseless()
    certain = [(A[0], g[0]) for _, A, g in zip(*parts(arrays), strict=True)]
    if noise == "none":
        return arrays, [[(1.0, A, g)] for A, g in certain]
    own = np.tile(std**2 * np.eye(2), (M, 1, 1))
    arrays.noise = AddedNoise(np.zeros((M, 2, 2)), own, own, own)
    white = [(0.25, s * np.sqrt(2) * std * unit) for s in (1, -1) for unit in np.eye(2)]
    return arrays, [[(p, A, g + z) for p, z in white] for A, g in certain]


def parts(arrays):
    """Probabilities, slopes and values of the outcomes of agents with one state."""
    return arrays.chances[:, 0], arrays.W[:, 0, ..., :-1], arrays.W[:, 0, ..., -1]


class OneRound:
    """The linear map of E[(e, 1)(e, 1)^T] that follows from rounds from several errors."""

    def __init__(self, after):
        every = np.random.default_rng(0).normal(size=(6, 2))
        before = [np.outer(x, x).ravel() for x in np.append(every, np.ones((6, 1)), axis=1)]
        self.map = np.array([after(e).ravel() for e in every]).T @ np.linalg.pinv(np.array(before).T)

    def path(self, start, rounds):
        x = np.append(start, 1.0)
        Y = np.outer(x, x).ravel()
        for _ in range(rounds + 1):
            yield Y.reshape(3, 3)
            Y = self.map @ Y

    @property
    def moments(self):
        """Those that a round does not change."""
        values, modes = np.linalg.eig(self.map)
        Y = np.real(modes[:, np.argmin(abs(values - 1))])
        return (Y / Y[-1]).reshape(3, 3)

    @property
    def mean_square_radius(self):
        squares = [0, 1, 3, 4]
        return abs(np.linalg.eigvals(self.map[np.ix_(squares, squares)])).max()


def replying(noise, taking_part, arriving, method, all_first, H):
    """The federation of a method, and the truth about a round of it."""
    M, sets, sampling = TAKING_PART[taking_part]
    ways, air, altered = ARRIVALS[arriving]
    arrays, seen = observing(noise, M)
    algorithm = altered(method(0.3, H, 0.8))
    if sampling is not None:
        algorithm = fh.Partial(algorithm, sampling, all_answer_first=all_first)
    truth = enumeration.outcomes(seen, H, list(sets()), ways, air, all_first=all_first)
    assert truth.chance.sum() == pytest.approx(1.0)
    rule = Rule(0.3, H, 0.8, float(method is fh.FedHSA))
    return Federation(derive(algorithm, M, 2), arrays, "It"), OneRound(lambda e: truth.moments(e, rule))


def assert_law_of_rounds(federation, truth):
    law = best_law(federation)
    assert_equal_paths(law, truth.path(START, ROUNDS))
    assert_equal_moments(law.stationary(), truth.moments)
    assert law.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=1e-9), "exact", None)
    assert (law.basis, law.left_out) == ("exact", 0.0)


@pytest.mark.parametrize(("noise", "taking_part", "arriving", "method", "all_first", "H"), REPLIES)
def test_a_round_with_some_replies_is_the_sum_over_all_that_can_happen(
    noise, taking_part, arriving, method, all_first, H
):
    assert_law_of_rounds(*replying(noise, taking_part, arriving, method, all_first, H))


@pytest.mark.parametrize(
    ("noise", "taking_part", "arriving", "outcomes"),
    [("none", "some", "through the air", 7), ("white", "two", "lost", 2), ("outcomes", "own", "altered", 3)],
)
def test_agents_with_two_roles_have_the_law_of_all_sets(noise, taking_part, arriving, outcomes, monkeypatch):
    """Sets of agents that are more than this number of outcomes are not enumerated: agents are present, or absent."""
    monkeypatch.setattr(draws, "MOST_OUTCOMES", outcomes)
    monkeypatch.setattr(pieces, "_known", {})
    federation, truth = replying(noise, taking_part, arriving, fh.LocalSA, False, 2)
    assert federation.pieces.absences[0] is not None
    assert_law_of_rounds(federation, truth)


@pytest.mark.parametrize(
    ("noise", "taking_part", "arriving", "all_first", "outcomes"),
    [
        ("none", "some", "lost", False, 7),
        ("white", "two", "whole", False, 2),
        ("none", "two", "lost", True, 2),
        ("outcomes", "some", "through the air", True, 7),
    ],
)
def test_roles_that_last_for_two_exchanges_leave_out_no_more_than_they_say(
    noise, taking_part, arriving, all_first, outcomes, monkeypatch
):
    """What agents remember within a round ends with it, so that only the parameter is carried."""
    monkeypatch.setattr(draws, "MOST_OUTCOMES", outcomes)
    monkeypatch.setattr(pieces, "_known", {})
    federation, truth = replying(noise, taking_part, arriving, fh.FedHSA, all_first, 2)
    law, expected = best_law(federation), np.trace(truth.moments[:-1, :-1])
    assert 0 < law.left_out < 0.5
    assert abs(law.stationary().square / expected - 1) < law.left_out
    assert law.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=2e-3), "estimate", None)
    assert federation.size == 2
