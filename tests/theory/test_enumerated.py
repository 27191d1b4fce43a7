"""Laws of finite chains against sums over all trajectories, on arrays alone: every term of every law matters in one.

The references are those of `enumeration.py`. Both sides are exact up to rounding, so that they agree to 1e-9.
"""

from typing import NamedTuple

import numpy as np
import pytest

from fedhsa.theory.laws import markov
from fedhsa.theory.laws.clusters import OneSiteLaw, PairsLaw, ProductLaw, agents_of
from fedhsa.theory.laws.finite import Edges
from fedhsa.theory.laws.occupancies import OccupancyLaw
from fedhsa.theory.maps.rounds import LocalRule
from theory import enumeration
from theory.enumeration import Closure, Law, Pairs, Rule

START = np.array([0.6, -0.8])
ROUNDS = 4


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
    A = np.broadcast_to(np.einsum("iska,istkb->istab", D, W), (*whole, 2, 2))
    agents, root = enumeration.centred(P, A, np.broadcast_to(np.einsum("iska,istk->ista", D, v), (*whole, 2)))
    pi = np.array([enumeration.stationary(p) for p in P])
    start = np.broadcast_to(np.eye(S)[-1], pi.shape)
    return Federation(agents, Edges(P, pi, start, D, W, v + W @ root), list(start))


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
    law, truth = ProductLaw(agents_of(edges, LocalRule(*rule))), Law(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, chains))
    anywhere = ProductLaw(agents_of(edges._replace(start=edges.stationary), LocalRule(*rule)))
    assert_equal_paths(anywhere, truth.path(START, ROUNDS))
    assert_equal_moments(law.stationary(), truth.moments)
    assert law.mean_radius() == pytest.approx(truth.mean_radius, rel=1e-9)
    assert law.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=1e-9), "exact")
    assert (law.basis, law.left_out) == ("exact", 0.0)
    standing = Law(agents, rule, random=()).mean  # all agents are as infinitely many are on average
    np.testing.assert_allclose(law.persistent_bias(), standing, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("S", "M", "H"), [(2, 1, 3), (2, 4, 2), (3, 2, 3), (3, 3, 1)])
def test_the_law_of_occupancies_is_that_of_all_trajectories_of_equal_agents(S, M, H):
    agents, edges, chains = federation("td", S, (0,) * M)
    rule = Rule(0.5, H, 0.7, 0.0)
    law, truth = OccupancyLaw(agents_of(edges, LocalRule(*rule))), Law(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, chains))
    assert_equal_moments(law.stationary(), truth.moments)
    assert law.mean_square_radius().value == pytest.approx(truth.mean_square_radius, rel=1e-9)


def test_equal_agents_beyond_a_product_of_chains_have_an_exact_law_without_a_correction_alone():
    rule = LocalRule(0.1, 2, 1.0, 0.0)
    few, many = (federation("td", 2, (0,) * M).edges for M in (2, 40))
    assert type(markov._exact(agents_of(few, rule))) is ProductLaw
    assert type(markov._exact(agents_of(many, rule))) is OccupancyLaw
    assert markov._exact(agents_of(many, rule._replace(correction=1.0))) is None
    different = federation("td", 2, range(40)).edges
    assert markov._exact(agents_of(different, rule)) is None


ALONE = [case for case in FEDHSA + LOCAL if len(case[2]) == 1]
SEVERAL = [
    ("td", 2, (0, 1, 2), Rule(0.5, 3, 0.8)),
    ("edges", 2, (0, 0, 1), Rule(0.2, 4)),
    ("states", 3, (0, 1, 2), Rule(0.3, 2, 1.2, 0.4)),
    ("edges", 2, (0, 1, 1), Rule(0.2, 3, 0.7, 0.0)),
]


@pytest.mark.parametrize(("family", "S", "kinds", "rule"), ALONE + SEVERAL)
def test_the_one_site_law_is_the_closure_without_products_of_two_states(family, S, kinds, rule):
    """For one agent the closure is exact."""
    agents, edges, chains = federation(family, S, kinds)
    law = OneSiteLaw(agents_of(edges, LocalRule(*rule)))
    truth = Law(agents, rule) if len(kinds) == 1 else Closure(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, [chains[0]] if len(kinds) == 1 else chains))
    assert_equal_moments(law.stationary(), truth.moments)
    assert law.mean_radius() == pytest.approx(truth.mean_radius, rel=1e-9)
    kind = "exact" if len(kinds) == 1 else "estimate"
    assert law.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=1e-9), kind)
    assert (law.left_out == 0) == (len(kinds) == 1)


@pytest.mark.parametrize(
    ("family", "S", "kinds", "rule"),
    [
        ("td", 3, (0, 1), Rule(0.5, 2, 0.8)),
        ("edges", 2, (0, 1), Rule(0.2, 3, 0.8, 0.0)),
        ("edges", 2, (0, 0), Rule(0.2, 3, 1.2)),
        *SEVERAL[:2],
        ("edges", 2, (0, 0, 0, 1), Rule(0.2, 2)),
        SEVERAL[3],
    ],
)
def test_the_law_of_pairs_adds_what_every_pair_misses(family, S, kinds, rule):
    """For two agents this is exact."""
    agents, edges, chains = federation(family, S, kinds)
    law = PairsLaw(agents_of(edges, LocalRule(*rule)))
    truth = Law(agents, rule) if len(kinds) == 2 else Pairs(agents, rule)
    assert_equal_paths(law, truth.path(START, ROUNDS, chains))
    assert_equal_moments(law.stationary(), truth.moments)


def test_what_laws_leave_out_grows_with_the_gaps_of_pairs():
    """As their docstrings have it: gaps are the floors of pairs, exact and closed, relative to the floor of the law."""
    kinds, rule = (0, 0, 0, 1), Rule(0.2, 2)
    agents, edges, _ = federation("edges", 2, kinds)
    truth = Pairs(agents, rule)
    gaps = np.array([exact.floor - closed.floor for _, exact, closed in truth.pairs]) / truth.alone.floor
    pairs = PairsLaw(agents_of(edges, LocalRule(*rule)))
    assert pairs.gap == pytest.approx(abs(gaps).sum(), rel=1e-7)
    assert pairs.left_out == pytest.approx(1.6 * pairs.gap * (0.02 + np.sqrt(pairs.gap)), rel=1e-9)
    # The one-site law looks at kinds of pairs: two of the three equal agents, and one of each kind.
    each = gaps[[0, 2]]
    weights = np.array([0.75, 0.25])
    pi = [enumeration.stationary(agents[i].P) for i in (0, 3)]
    flows = [p[:, None] * agents[i].P for p, i in zip(pi, (0, 3), strict=True)]
    means = [np.einsum("st,stab->ab", flow, agents[i].A) for flow, i in zip(flows, (0, 3), strict=True)]
    squares = sum(
        w * np.einsum("st,stab,stac->bc", flow, agents[i].A - mean, agents[i].A - mean)
        for w, flow, mean, i in zip(weights, flows, means, (0, 3), strict=True)
    )
    second = [np.trace(agents[i].P) - 1 for i in (0, 3)]  # the other eigenvalue of two states
    tau = weights @ [(1 + x) / (1 - x) for x in second]
    slowest = abs(np.linalg.eigvals(np.tensordot(weights, means, 1)).real).min()
    noise = 0.2 * tau * np.linalg.norm(squares, 2) / slowest
    expected = 6 * np.sqrt(np.mean(each**2)) * (2 + 1.5 * np.sqrt(noise) / 4)
    assert OneSiteLaw(agents_of(edges, LocalRule(*rule))).left_out == pytest.approx(expected, rel=1e-7)
