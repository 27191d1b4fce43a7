"""Agents that learn from experience, against loops; episodes that end and that run out of time."""

import jax
import numpy as np
import pytest

import fedhsa as fh
from fedhsa import tree
from fedhsa._types import precision
from fedhsa.problems.experience import Experience, QAgent, SARSAAgent, TDAgent

K, ACTIONS, COPIES = 3, 2, 5


def experience(rng, copies=COPIES):
    features, next_features = rng.normal(size=(2, copies, K))
    action, next_action = rng.integers(ACTIONS, size=(2, copies)).astype(np.int32)
    discount = 0.9 * (rng.random(copies) < 0.7)
    return Experience(features, action, rng.normal(size=copies), discount, next_features, next_action)


def naive(kind, theta, o, regularisation):
    """The textbooks' updates, one number at a time."""
    total = [-regularisation * x for x in theta]
    for i in range(len(o.reward)):
        dim = len(o.features[i])

        def value(phi, block, dim=dim):
            return sum(phi[j] * theta[block * dim + j] for j in range(dim))

        block = 0 if kind == "td" else int(o.action[i])
        if kind == "td":
            after = value(o.next_features[i], 0)
        elif kind == "sarsa":
            after = value(o.next_features[i], int(o.next_action[i]))
        else:
            after = max(value(o.next_features[i], a) for a in range(ACTIONS))
        error = o.reward[i] + o.discount[i] * after - value(o.features[i], block)
        for j in range(dim):
            total[block * dim + j] += error * o.features[i][j] / len(o.reward)
    return np.array(total)


AGENTS = {"td": (lambda r: TDAgent(None, r), K), "sarsa": (lambda r: SARSAAgent(ACTIONS, None, r), K * ACTIONS)}
AGENTS["q"] = (lambda r: QAgent(ACTIONS, None, r), K * ACTIONS)


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("regularisation", [0.0, 0.3])
def test_operators_equal_naive_loops(kind, regularisation):
    make, dim = AGENTS[kind]
    rng = np.random.default_rng(3)
    for copies in (1, COPIES):
        theta, o = rng.normal(size=dim), experience(rng, copies)
        with precision():
            agent, given, at = tree.to_device((make(regularisation), o, theta), "float64")
            found = np.asarray(agent.operator(at, given))
        assert np.abs(found).max() > 0.01
        np.testing.assert_allclose(found, naive(kind, theta, o, regularisation), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", AGENTS)
def test_agents_are_affine_where_they_say_so(kind):
    make, dim = AGENTS[kind]
    rng = np.random.default_rng(4)
    o, (x, y) = experience(rng, 40), rng.normal(size=(2, dim))
    with precision():
        agent, given = tree.to_device((make(0.1), o), "float64")
        at = [np.asarray(agent.operator(jax.numpy.asarray(p), given)) for p in (x, y, (x + y) / 2)]
    gap = np.abs(at[2] - (at[0] + at[1]) / 2).max()
    assert (gap < 1e-12) == type(agent).affine


@pytest.mark.parametrize("kind", AGENTS)
def test_steps_in_which_an_episode_only_begins_teach_nothing(kind):
    make, dim = AGENTS[kind]
    rng = np.random.default_rng(5)
    o = experience(rng)
    o = o._replace(features=np.zeros_like(o.features))
    with precision():
        agent, given = tree.to_device((make(0.0), o), "float64")
        assert not np.asarray(agent.operator(jax.numpy.ones(dim), given)).any()


def test_the_root_of_a_record_is_least_squares_td():
    rng = np.random.default_rng(6)
    o = experience(rng, 400)
    agents = tree.stack([TDAgent(fh.sources.Replay(jax.tree.map(lambda x: x[None], o)))])
    left = o.features.T @ (o.features - o.discount[:, None] * o.next_features)
    root = fh.problems.Problem(agents, like=np.zeros(K)).theta_star
    np.testing.assert_allclose(root, np.linalg.solve(left, o.features.T @ o.reward), rtol=1e-10)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TDAgent(None, -1.0), "`regularisation` must be at least 0"),
        (lambda: QAgent(0), "`num_actions` must be at least 1"),
        (lambda: SARSAAgent(2.5), "`num_actions` must be a whole number"),
    ],
)
def test_bad_arguments_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()
