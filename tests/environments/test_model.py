"""Finite models: values, best actions and chains against loops written out, and numbers worked by hand."""

import numpy as np
import pytest

from fedhsa.environments import Model
from fedhsa.environments.worlds import random_walk
from fedhsa.sources.finite import stationary_law

SIZES = M, S, A = 3, 5, 2


def draw(seed=0, *, ends=None, start=None, on_transitions=True, discount=(0.9, 0.5, 0.0)):
    rng = np.random.default_rng(seed)
    P = rng.random((M, S, A, S)) * (rng.random((M, S, A, S)) < 0.7) + 0.05
    R = rng.standard_normal((M, S, A, S) if on_transitions else (M, S, A))
    return Model(P / P.sum(-1, keepdims=True), R, discount, start, ends)


def draw_policy(seed=1):
    policy = np.random.default_rng(seed).random((M, S, A))
    return policy / policy.sum(-1, keepdims=True)


EPISODES = [
    pytest.param({}, id="endless"),
    pytest.param({"ends": [False, False, True, False, False], "start": 1}, id="one-start"),
    pytest.param({"ends": np.arange(S) == np.arange(M)[:, None]}, id="unlike-ends"),
    pytest.param({"ends": [True, False, True, False, False], "on_transitions": False}, id="rewards-on-actions"),
]


def reward(model, i, s, a, t):
    return model.rewards[i, s, a, t] if model.rewards.ndim == 4 else model.rewards[i, s, a]


def look_ahead(model, V, i, s, a):
    """The mean of the reward and of what comes after it, summed over where an action leads."""
    return sum(
        model.transitions[i, s, a, t]
        * (reward(model, i, s, a, t) + model.discount[i] * (0.0 if model.ends[i, t] else V[t]))
        for t in range(S)
    )


@pytest.mark.parametrize("arguments", EPISODES)
def test_values_are_the_limit_of_repeated_look_ahead(arguments):
    model, policy = draw(**arguments), draw_policy()
    values = model.values(policy)
    for i in range(M):
        V = np.zeros(S)
        for _ in range(400):
            V = np.array(
                [
                    0.0 if model.ends[i, s] else sum(policy[i, s, a] * look_ahead(model, V, i, s, a) for a in range(A))
                    for s in range(S)
                ]
            )
        np.testing.assert_allclose(values[i], V, atol=1e-12)
    np.testing.assert_allclose((policy * model.action_values(policy)).sum(-1), values, atol=1e-12)


@pytest.mark.parametrize("arguments", EPISODES)
def test_optimal_is_the_limit_of_value_iteration_and_greedy_attains_it(arguments):
    model = draw(2, **arguments)
    Q = model.optimal()
    for i in range(M):
        V = np.zeros(S)
        for _ in range(400):
            V = np.array(
                [0.0 if model.ends[i, s] else max(look_ahead(model, V, i, s, a) for a in range(A)) for s in range(S)]
            )
        np.testing.assert_allclose(Q[i].max(-1), V, atol=1e-12)
    best = model.greedy(Q)
    assert set(np.unique(best[~model.ends])) == {0.0, 1.0}
    np.testing.assert_allclose(model.values(best), Q.max(-1), atol=1e-12)
    assert (model.returns(best) >= model.returns(draw_policy()) - 1e-12).all()


def test_numbers_worked_by_hand():
    """Staying in the second state earns 1: 1 / (1 - 0.9) = 10 there, 0.9 * 10 = 9 from the first."""
    stay, move = np.eye(2), np.eye(2)[::-1]
    model = Model(np.stack([stay, move], axis=1), [[0.0, 0.0], [1.0, 0.0]], 0.9, start=0)
    np.testing.assert_allclose(model.optimal(), [[[8.1, 9.0], [10.0, 8.1]]], rtol=1e-12)
    np.testing.assert_allclose(model.values([1, 0]), [[9.0, 10.0]], rtol=1e-12)
    np.testing.assert_allclose(model.returns([1, 0]), [9.0], rtol=1e-12)
    # All alike: V0 = 0.45 (V0 + V1), V1 = 0.5 + 0.45 (V0 + V1), so the sum is 5.
    np.testing.assert_allclose(model.values(), [[2.25, 2.75]], rtol=1e-12)


def test_the_random_walk_has_the_values_of_the_textbook():
    for num_states, expected in ((5, np.arange(1, 6) / 6), (3, [0.25, 0.5, 0.75])):
        values = random_walk(num_agents=2, num_states=num_states).values()
        np.testing.assert_allclose(values[:, 1:-1], [expected] * 2, rtol=1e-12)
        assert (values[:, [0, -1]] == 0).all()


@pytest.mark.parametrize("arguments", EPISODES)
def test_chains_go_through_episodes_one_after_the_other(arguments):
    """Kernel, rewards and discounts of the chain over states, written out as loops."""
    model, policy = draw(3, **arguments), draw_policy()
    chain = model.chain(policy)
    for i in range(M):
        first = np.flatnonzero(model.start[i] == 1)
        for s in range(S):
            acts = s
            if model.ends[i, s]:
                acts = first[0] if len(first) else -1
            assert chain.states[i, s] == acts
            for t in range(S):
                assert chain.discount[i, t] == (0.0 if model.ends[i, t] else model.discount[i])
                if acts < 0:  # a step between two episodes
                    assert chain.transition[i, s, t] == model.start[i, t]
                    assert chain.rewards[i, s, t] == 0
                    continue
                chances = [policy[i, acts, a] * model.transitions[i, acts, a, t] for a in range(A)]
                earned = sum(p * reward(model, i, acts, a, t) for a, p in enumerate(chances))
                np.testing.assert_allclose(chain.transition[i, s, t], sum(chances), rtol=1e-12)
                np.testing.assert_allclose(chain.rewards[i, s, t] * sum(chances), earned, atol=1e-12)


@pytest.mark.parametrize("arguments", EPISODES)
def test_along_a_chain_values_are_what_comes_next_on_average(arguments):
    """V(s) = E[R + discount(s') V(s')], and the same for pairs, wherever an action is taken."""
    model, policy = draw(4, **arguments), draw_policy()
    V, Q = model.values(policy), model.action_values(policy)
    states, pairs = model.chain(policy), model.chain(policy, pairs=True)
    actions = np.tile(np.arange(A), S)
    for i in range(M):
        for chain, of in ((states, V[i][states.states[i]]), (pairs, Q[i][pairs.states[i], actions])):
            acts = chain.states[i] >= 0
            P = chain.transition[i]
            after = (P * (chain.rewards[i] + chain.discount[i] * of)).sum(-1)
            np.testing.assert_allclose(after[acts], of[acts], atol=1e-12)
            np.testing.assert_allclose(P.sum(-1), 1.0, rtol=1e-12)
            np.testing.assert_allclose(chain.start[i].sum(), 1.0, rtol=1e-12)


def test_pairs_visit_what_states_visit_and_act_as_the_policy_does():
    model, policy = draw(5, ends=[False, False, True, False, False]), draw_policy()
    states, pairs = model.chain(policy), model.chain(policy, pairs=True)
    np.testing.assert_array_equal(states.start, model.start)
    np.testing.assert_allclose(pairs.start.reshape(M, S, A), model.start[..., None] * policy, rtol=1e-14)
    law = stationary_law(states.transition)
    both = stationary_law(pairs.transition).reshape(M, S, A)
    np.testing.assert_allclose(both.sum(-1), law, rtol=1e-10)
    acts = ~model.ends[0]
    np.testing.assert_allclose(both[:, acts] / law[:, acts, None], policy[:, acts], rtol=1e-10)


@pytest.mark.parametrize("certain", [True, False])
def test_a_chain_spends_its_time_as_episodes_do(certain):
    """The long-run law is that of the visits in one episode, summed over its steps."""
    ends = np.array([False, False, True, False, True])
    start = np.eye(S)[1] if certain else np.array([0.5, 0.25, 0.0, 0.25, 0.0])
    model, policy = draw(6, ends=ends, start=start), draw_policy()
    law = stationary_law(model.chain(policy).transition)
    for i in range(M):
        kernel = np.einsum("sa,sat->st", policy[i], model.transitions[i]) * ~ends[:, None]
        visits = np.linalg.solve(np.eye(S) - kernel.T, start)
        np.testing.assert_allclose(visits[ends].sum(), 1.0, rtol=1e-12)  # an episode ends once
        if certain:  # the end of the last episode stands for the first step of the next
            visits[1] -= 1
        np.testing.assert_allclose(law[i], visits / visits.sum(), rtol=1e-9, atol=1e-14)


def test_policies_can_be_given_as_actions_for_all_agents_or_for_each():
    model = draw()
    chosen = np.array([1, 0, 1, 1, 0])
    assert (model.policy(chosen) == np.eye(A)[chosen]).all()
    assert model.policy(np.full((S, A), 0.5)).shape == SIZES
    assert (model.policy() == 0.5).all()
    np.testing.assert_array_equal(model.values(chosen), model.values(np.eye(A)[chosen]))


def test_greedy_shares_between_actions_that_are_equally_good():
    model = draw()
    Q = np.tile([1.0, 1.0], (S, 1))
    Q[2] = [0.0, 1.0]
    greedy = model.greedy(Q)
    assert (greedy[:, [0, 1, 3, 4]] == 0.5).all()
    assert (greedy[:, 2] == [0.0, 1.0]).all()
    Q[0, 1], Q[1, 1] = 1 + 1e-12, 1 + 1e-6  # a difference of rounding, and one that is none
    assert model.greedy(Q)[0, :2].tolist() == [[0.5, 0.5], [0.0, 1.0]]


def test_taking_and_averaging_agents():
    model = draw(discount=0.9)
    some = model.take([2, 0])
    assert (some.transitions == model.transitions[[2, 0]]).all()
    assert (some.rewards == model.rewards[[2, 0]]).all()
    assert model.take(-1).num_agents == 1
    middle = model.average()
    np.testing.assert_allclose(middle.transitions[0], model.transitions.mean(0), rtol=1e-14)
    np.testing.assert_allclose(middle.action_rewards()[0], model.action_rewards().mean(0), rtol=1e-12)
    with pytest.raises(ValueError, match="agents differ in `discount`"):
        draw().average()


def test_cells_follow_from_ends_and_start_and_travel_with_their_agents():
    ends = np.arange(S) == np.arange(M)[:, None]
    assert draw(ends=ends, start=4).cells == ("E...S", ".E..S", "..E.S")
    assert draw(ends=ends, start=4).take([2]).cells == ("..E.S",)
    named = Model(np.ones((2, 3, 1, 3)) / 3, np.zeros((2, 3, 1)), 0.9, cells=["S.G", "SHG"])
    assert named.take(1).cells == ("SHG",)
    assert named.decision_states.tolist() == [0, 1, 2]
    assert draw(ends=[True, False, False, False, False]).decision_states.tolist() == [1, 2, 3, 4]


def line(**arguments):
    """Three states in a row, two actions; the last ends the episode."""
    step = np.array([[[0, 1, 0], [1, 0, 0]], [[0, 0, 1], [1, 0, 0]], [[0, 0, 0], [0, 0, 0]]], dtype=float)
    settings = {"discount": 0.9, "ends": [False, False, True], **arguments}
    P, R = settings.pop("transitions", step), settings.pop("rewards", np.zeros((3, 2)))
    return Model(P, R, **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"transitions": np.full((3, 2, 3), 0.4)}, r"sum to 1, got 1.2 for agent 0, state 0, action 0"),
        ({"transitions": np.eye(3)[:, None] * [[2.0], [-1.0]]}, "`transitions` must not be negative, got -1"),
        ({"transitions": np.ones((3, 2, 4))}, r"`transitions` must have shape \(M, S, A, S\)"),
        ({"rewards": np.zeros((3, 3))}, r"`rewards` must have shape \(1, 3, 2\), got \(1, 3, 3\)"),
        ({"discount": 1.5}, "`discount` must be at most 1.0, got"),
        ({"discount": [0.9, 0.9]}, r"`discount` must have shape \(\), or \(1,\) for each agent, got \(2,\)"),
        ({"discount": 1.0}, "`discount` must be below 1 for agent 0: not every policy ends"),
        ({"ends": [True] * 3}, "`ends` must leave a state"),
        ({"ends": [True] * 4}, r"`ends` must have shape \(3,\), or \(1, 3\) for each agent, got \(4,\)"),
        ({"start": 2}, "`start` must not put an agent where its episode ends"),
        ({"start": 3}, "`start` must be a state from 0 to 2, got 3"),
        ({"start": [0.5, 0.4, 0.0]}, "`start` must be a probability vector"),
        ({"start": [1.0, 0.0]}, r"`start` must have shape \(3,\)"),
        ({"grid": (2, 2)}, "`grid` must have as many cells as there are states, 3"),
        ({"actions": ["left"]}, "`actions` must name 2 actions"),
        ({"cells": "S.X"}, "`cells` must be 3 letters of S, G, H, C, E, ."),
        ({"cells": ["S.G", "S.G"]}, "one for each of 1 agents"),
    ],
)
def test_models_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        line(**arguments)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ([0, 2, 0], "one of the actions 0 to 1 for each of 3 states"),
        ([0, 1], "one of the actions 0 to 1 for each of 3 states"),
        (np.full((3, 2), 0.6), "add up to 1"),
        (np.full((2, 3), 0.5), r"`policy` must have shape \(3, 2\)"),
    ],
)
def test_policies_that_cannot_be_are_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        line().values(policy)
    with pytest.raises(ValueError, match="`Q` must have shape"):
        line().greedy(np.zeros((2, 2)))


def test_no_discount_needs_episodes_that_end_whatever_is_done():
    """Where the second action leads on as well, every policy ends; where it leads back, one can go on for ever."""
    on = np.array([[[0, 1, 0], [0, 0.5, 0.5]], [[0, 0, 1], [0.9, 0, 0.1]], [[0, 0, 0], [0, 0, 0]]])
    assert line(transitions=on, discount=1.0, rewards=np.ones((3, 2))).values([0, 0, 0]).tolist() == [[2.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match="not every policy ends"):
        line(discount=1.0)
