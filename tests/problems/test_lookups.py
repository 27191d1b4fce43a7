"""Tables of action values are looked up: the same numbers as with their features written out."""

import equinox as eqx
import numpy as np
import pytest

import fedhsa
from fedhsa.environments import worlds
from fedhsa.problems import q_learning, sarsa
from fedhsa.problems._control import one_hot_coordinates

pytestmark = pytest.mark.filterwarnings("ignore:The average operator is not monotone")

MODEL = worlds.random(num_agents=3, num_states=4, num_actions=3, key=1)
WALK = worlds.random_walk(num_agents=2, spread=0.2, key=1)
AGGREGATED = np.eye(2)[np.arange(12).reshape(4, 3) // 6]

PROBLEMS = {
    "trajectory": lambda: q_learning.from_model(MODEL),
    "synchronous": lambda: q_learning.from_model(MODEL, synchronous=True),
    "episodes": lambda: q_learning.from_model(WALK),
    "sarsa": lambda: sarsa.from_model(MODEL, inverse_temperature=2.0),
    "aggregated": lambda: sarsa.from_model(MODEL, AGGREGATED, inverse_temperature=2.0),
}


def written_out(problem: fedhsa.Problem) -> fedhsa.Problem:
    return eqx.tree_at(lambda p: p.agents.coordinates, problem, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in ("trajectory", "sarsa") else pytest.param(name, marks=pytest.mark.slow) for name in PROBLEMS],
)
def test_lookups_give_the_numbers_of_the_features(name):
    looked_up = PROBLEMS[name]()
    plain = written_out(looked_up)
    assert looked_up.agents.coordinates is not None
    theta = np.random.default_rng(0).normal(size=looked_up.dim)
    np.testing.assert_allclose(looked_up.mean_operators(theta), plain.mean_operators(theta), rtol=1e-12, atol=1e-14)
    runs = [
        fedhsa.simulate(p, fedhsa.LocalSA(0.1, local_steps=5), rounds=20, key=1, theta=theta).theta
        for p in (looked_up, plain)
    ]
    np.testing.assert_allclose(*runs, rtol=1e-12)


def test_features_that_are_not_of_a_table_are_multiplied():
    rng = np.random.default_rng(0)
    assert q_learning.from_model(MODEL, features=rng.normal(size=(4, 3, 5))).agents.coordinates is None
    assert one_hot_coordinates(np.full((1, 2, 2, 3), 1.0)) is None
    assert one_hot_coordinates(np.full((1, 2, 2, 3), 0.5)) is None


def test_pairs_without_features_have_a_place_past_the_end():
    assert (one_hot_coordinates(np.zeros((1, 2, 2, 3))) == 3).all()


def test_importance_averaging_costs_twice_the_floats_upwards():
    cost = fedhsa.algorithms.cost(q_learning.from_model(MODEL), fedhsa.ImportanceAveraging(0.1, local_steps=5))
    assert (cost.exchanges, cost.floats_down, cost.floats_up, cost.evaluations) == (1, 12, 24, 5)
