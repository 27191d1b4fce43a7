"""Worlds: what their papers say they are, agents that extend and equal one another, and what is refused."""

import inspect

import numpy as np
import pytest

from fedhsa.environments import ENVIRONMENTS, Model, make
from fedhsa.environments._garnet import draw_successors
from fedhsa.environments.worlds import (
    fedsarsa,
    garnet,
    one_action_each,
    random,
    random_walk,
    two_state,
    windy_cliff,
)
from fedhsa.sources.finite import closed_classes, stationary_law

SMALL = {
    "fedsarsa": {"num_states": 6, "num_actions": 4},
    "garnet": {"num_states": 6, "kernels": 2},
    "random-walk": {"spread": 0.2},
    "two-state": {"heterogeneity": 1.0},
    "frozen-lake": {"layout": "own", "reward_spread": 0.5},
    "cliff-walking": {"reward_spread": 0.5},
    "taxi": {"reward_spread": 0.5},
}
"""Arguments that make agents differ in all they can, and models small."""
ARRAYS = ("transitions", "rewards", "discount", "start", "ends")


@pytest.fixture(autouse=True)
def _gymnasium(request):
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name")
    if name in ("frozen-lake", "cliff-walking", "taxi"):
        pytest.importorskip("gymnasium")


def equal(first: Model, second: Model) -> bool:
    return first.cells == second.cells and all((getattr(first, n) == getattr(second, n)).all() for n in ARRAYS)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_more_agents_extend_a_world_and_another_key_gives_another(name):
    few, many = (make(name, {"num_agents": count, **SMALL.get(name, {})}) for count in (2, 3))
    assert equal(few, many.take([0, 1]))
    other = make(name, {"num_agents": 3, **SMALL.get(name, {}), "key": 1})
    assert (other.transitions != many.transitions).any()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_heterogeneity_makes_agents_unlike_and_without_it_they_are_equal(name):
    full = make(name, {"num_agents": 3, **SMALL.get(name, {})})
    assert (full.transitions[1] != full.transitions[2]).any()
    same = make(name, {"num_agents": 3, **SMALL.get(name, {}), "heterogeneity": 0.0})
    assert equal(same.take([0, 0, 0]), same)
    half = make(name, {"num_agents": 3, **SMALL.get(name, {}), "heterogeneity": 0.5})
    apart, nearer = (abs(m.transitions - same.transitions).sum() for m in (full, half))
    assert 0 < nearer < apart


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_takes_the_common_arguments_and_checks_them(name):
    parameters = inspect.signature(ENVIRONMENTS[name]).parameters
    assert {"num_agents", "discount", "heterogeneity", "key"} <= set(parameters)
    assert make(name, {"num_agents": 2, "discount": 0.25, **SMALL.get(name, {})}).discount.tolist() == [0.25, 0.25]
    with pytest.raises(ValueError, match="`num_agents` must be at least 1, got 0"):
        make(name, {"num_agents": 0})
    with pytest.raises(ValueError, match="`heterogeneity` must be at most 1"):
        make(name, {"heterogeneity": 1.5})


def test_unknown_names_and_arguments_are_refused_with_what_is_near():
    with pytest.raises(ValueError, match=r"`environment` must be one of random, garnet, .*Did you mean 'garnet'"):
        make("Garnets")
    with pytest.raises(ValueError, match=r"windy-cliff has no argument `winds`. Did you mean 'wind'\?"):
        make("windy-cliff", {"winds": 1.0})
    with pytest.raises(ValueError, match="`wind` must be a number, got 'strong'"):
        make("windy-cliff", {"wind": "strong"})
    with pytest.raises(ValueError, match="`rows` must be a whole number"):
        make("windy-cliff", {"rows": 2.5})


def test_laziness_keeps_the_law_of_every_policy_and_slows_it_down():
    quick, slow = (random(num_agents=2, num_states=5, laziness=laziness) for laziness in (0.0, 0.75))
    policy = quick.policy(np.arange(5) % 3)
    quick_chain, slow_chain = (model.chain(policy).transition for model in (quick, slow))
    np.testing.assert_allclose(stationary_law(slow_chain), stationary_law(quick_chain), rtol=1e-10)
    np.testing.assert_allclose(slow_chain, 0.25 * quick_chain + 0.75 * np.eye(5), rtol=1e-12)
    with pytest.raises(ValueError, match="`laziness` must be below 1"):
        random(laziness=1.0)


def test_every_action_leads_to_exactly_as_many_states_as_the_branching():
    rng = np.random.default_rng(0)
    reached = draw_successors(rng, num_states=7, num_actions=3, branching=2)
    assert reached.shape == (7, 3, 7)
    assert (reached.sum(-1) == 2).all()
    assert set(np.unique(reached)) == {0.0, 1.0}
    assert len(np.unique(reached.reshape(21, 7), axis=0)) > 10  # not the same two each time


def test_garnet_perturbs_transitions_and_rewards_by_as_much_as_it_says():
    model = garnet(num_agents=4, perturbation=0.5, reward_perturbation=0.25)
    bare = garnet(num_agents=1, heterogeneity=0.0)
    assert ((model.transitions > 0) == (bare.transitions > 0)).all()
    # Weights are in [1, 1.5], so of two the larger is at most 0.6.
    assert 0.55 < model.transitions.max() <= 0.6
    more = model.rewards - bare.rewards
    assert more.min() >= 0
    assert 0.2 < more.max() <= 0.25
    assert (np.ptp(more, axis=-1) < 1e-15).all()  # rewards are those of states


def test_garnet_with_two_kernels_has_the_other_sign_of_rewards_on_odd_agents():
    model = garnet(num_agents=4, kernels=2, reward_perturbation=0.0)
    reached = model.transitions > 0
    assert (reached[0] == reached[2]).all()
    assert (reached[1] == reached[3]).all()
    assert (reached[0] != reached[1]).any()
    assert (model.rewards[0] == -model.rewards[1]).all()
    assert (model.rewards[0] == model.rewards[2]).all()


@pytest.mark.parametrize("key", range(3))
def test_garnet_visits_all_states_when_all_actions_are_taken_alike(key):
    model = garnet(num_agents=2, num_states=20, kernels=2, key=key)
    for kernel in model.chain().transition:
        (closed,) = closed_classes(kernel)
        assert len(closed) == 20


def test_garnet_that_cannot_mix_is_refused():
    with pytest.raises(ValueError, match=r"None of 1000 Garnet .* Raise `branching`, got 1"):
        garnet(num_states=4, num_actions=1, branching=1)
    with pytest.raises(ValueError, match="`branching` must be at most `num_states`, got 5 > 4"):
        garnet(num_states=4, branching=5)


def test_the_walk_with_a_spread_solves_the_gamblers_ruin():
    """Going right with chance p from k of n: (1 - r^k) / (1 - r^n), r = (1 - p) / p."""
    model = random_walk(num_agents=3, spread=0.3, key=4)
    right = model.transitions[:, 1, 0, 2]
    assert (abs(right - 0.5) <= 0.3).all()
    odds = ((1 - right) / right)[:, None]
    np.testing.assert_allclose(model.values()[:, 1:-1], (1 - odds ** np.arange(1, 6)) / (1 - odds**6), rtol=1e-10)
    with pytest.raises(ValueError, match=r"`spread` must keep chances between 0 and 1, but .* 0.5 plus or minus 0.6"):
        random_walk(spread=0.6)


def test_the_windy_cliff_has_the_value_the_paper_prints_where_all_agents_are_equal():
    model = windy_cliff(num_agents=2, heterogeneity=0.0)
    start = model.cells[0].index("S")
    np.testing.assert_allclose(model.optimal()[:, start].max(-1), 133.97, atol=0.005)  # Table 1, kappa = 0


def test_the_wind_blows_a_third_as_often_as_it_is_strong_and_only_down():
    model = windy_cliff(num_agents=1, wind=0.6, heterogeneity=0.0)
    # From the cell in row 1, column 1: up is 1, down 9, left 4, right 6, in the order of the actions.
    expected = np.zeros((4, 16))
    expected[[0, 2, 3], [1, 4, 6]] = 0.8
    expected[:, 9] = [0.2, 1.0, 0.2, 0.2]
    np.testing.assert_allclose(model.transitions[0, 5], expected, atol=1e-15)
    assert model.cells == ("............SCCG",)
    assert (model.transitions[0, 13:, :, 12] == 1).all()  # the cliff and the goal lead back to the start
    assert model.rewards[0, 12:, 0].tolist() == [-1.0, -100.0, -100.0, 100.0]
    assert not model.ends.any()
    assert model.start[0, 12] == 1


def test_the_paper_mixes_kernels_where_we_mix_winds_and_that_is_the_same():
    free, mixed = (windy_cliff(num_agents=3, heterogeneity=kappa) for kappa in (1.0, 0.4))
    common = windy_cliff(num_agents=1, heterogeneity=0.0)
    np.testing.assert_allclose(mixed.transitions, 0.6 * common.transitions + 0.4 * free.transitions, atol=1e-15)


def test_two_states_with_many_actions_are_as_in_the_paper():
    model = two_state(num_agents=3)
    assert model.transitions.shape == (3, 2, 20, 2)
    stays = model.transitions[0, [0, 1], :, [0, 1]]
    assert stays.min() >= 0.4
    assert stays.max() <= 0.6
    assert len(np.unique(stays)) == 40
    assert (model.transitions == model.transitions[:1]).all()
    # Best is to leave the first state most often and the second least often: 2 x 2 equations.
    p, q = stays[0].min(), stays[1].max()
    V = np.linalg.solve(np.eye(2) - 0.9 * np.array([[p, 1 - p], [1 - q, q]]), [0.0, 1.0])
    np.testing.assert_allclose(model.optimal().max(-1), [V] * 3, rtol=1e-12)


def test_an_agent_with_one_action_takes_no_other():
    policy = one_action_each(two_state(num_agents=5, num_actions=3))
    assert policy.shape == (5, 2, 3)
    assert policy.argmax(-1).tolist() == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1]]
    assert (policy.max(-1) == 1).all()


def test_the_perturbed_process_stays_as_near_as_it_says_and_leaves_the_first_agent_alone():
    far, bare = (fedsarsa(num_agents=3, num_states=8, num_actions=8, heterogeneity=h) for h in (1.0, 0.0))
    assert equal(far.take(0), bare.take(0))
    ratio = far.transitions[1:] / bare.transitions[1:]
    assert ratio.max() / ratio.min() <= (1.1 / 0.9) ** 2
    assert ratio.max() > 1.05
    # A kernel for each agent, whose rows the actions shift.
    assert (far.transitions[2, 5, 3] == far.transitions[2, 2, 0]).all()
    assert (far.transitions[2, 1, 3] == far.transitions[2, 6, 0]).all()
    wild = fedsarsa(num_agents=2, num_states=30, num_actions=2, perturbation=2.0)
    assert wild.transitions.min() == 0
    noise = fedsarsa(num_agents=400, num_states=5, num_actions=1, reward_perturbation=0.3)
    relative = noise.rewards[1:, :, 0] / noise.rewards[:1, :, 0] - 1
    assert abs(relative.std() - 0.3) < 4 * 0.3 / np.sqrt(2 * relative.size)
