"""Garnet environments: their sparse chains, who equals whom, and how federated methods fare on them."""

import numpy as np
import pytest

import fedhsa as fh
from fedhsa._generate import normalised
from fedhsa.environments._garnet import chain_of
from fedhsa.problems import garnet
from fedhsa.sources.finite import closed_classes


def kernels(problem):
    return problem.agents.source.chain.transition


def test_the_policy_leaves_out_one_action_and_the_chain_is_its_mixture():
    rng = np.random.default_rng(1)
    policy = garnet.draw_policy(rng, num_states=50, num_actions=3)
    assert (np.sort(policy, axis=1) == [0, 0.5, 0.5]).all()
    assert (policy == 0).any(0).all()
    assert (garnet.draw_policy(rng, 5, num_actions=1) == 1).all()
    weights = rng.random((50, 3, 50))
    expected = [sum(policy[s, a] * weights[s, a] / weights[s, a].sum() for a in range(3)) for s in range(50)]
    np.testing.assert_allclose(chain_of(normalised(weights), policy), expected, rtol=1e-14)


@pytest.mark.parametrize("key", range(3))
def test_chains_are_sparse_and_mix_and_the_root_is_one(key):
    problem = garnet.random(key=key)
    P = kernels(problem)
    assert P.shape == (10, 30, 30)
    assert ((P > 0).sum(-1) == 2).all()  # of two actions the policy takes one
    assert all(len(closed_classes(p)) == 1 and len(closed_classes(p)[0]) >= problem.dim for p in P)
    np.testing.assert_allclose(problem.agents.features.sum(-1), 1, rtol=1e-14)
    assert abs(problem.mean_operator(problem.theta_star)).max() < 1e-15


def test_two_kernels_alternate_with_the_sign_of_the_rewards():
    problem = garnet.random(num_agents=4)
    P, R = kernels(problem), problem.agents.rewards
    np.testing.assert_array_equal((P > 0)[::2], (P > 0)[[0, 0]])
    assert ((P > 0)[0] != (P > 0)[1]).any()
    np.testing.assert_array_equal(R, [R[0], -R[0], R[0], -R[0]])
    assert 0 < abs(P[2] - P[0]).max() < 0.01  # from 1 : 1.02 to 1.02 : 1
    one = garnet.random(num_agents=4, kernels=1)
    assert 0 < np.ptp(one.agents.rewards, axis=0).max() < 0.02
    spread = [np.linalg.norm(p.local_roots - p.theta_star, axis=1).max() for p in (one, problem)]
    assert spread[0] < spread[1] / 100


def test_heterogeneity_zero_makes_agents_equal_and_half_of_it_mixes():
    whole, half, none = (garnet.random(num_agents=3, heterogeneity=h) for h in (1.0, 0.5, 0.0))
    assert np.ptp(kernels(none), axis=0).max() == np.ptp(none.agents.rewards, axis=0).max() == 0
    np.testing.assert_allclose(none.local_roots, none.theta_star[None].repeat(3, 0), rtol=1e-9)
    np.testing.assert_allclose(kernels(half), (kernels(whole) + kernels(none)) / 2, rtol=1e-14)
    np.testing.assert_allclose(half.agents.rewards[1], 0, atol=1e-16)


def test_more_agents_and_more_kernels_extend_the_problem():
    small, large = garnet.random(num_agents=2, key=5), garnet.random(num_agents=5, key=5)
    np.testing.assert_array_equal(kernels(large)[:2], kernels(small))
    np.testing.assert_array_equal(large.agents.rewards[:2], small.agents.rewards)
    three = garnet.random(num_agents=3, kernels=3, key=5)
    np.testing.assert_array_equal(kernels(three)[:2], kernels(small))
    assert (kernels(garnet.random(num_agents=2, key=6)) != kernels(small)).any()


def test_environments_without_mixing_are_drawn_again_or_refused():
    # With 6 states many draws have several closed classes or a small one; none may get through.
    for key in range(20):
        (P,) = kernels(garnet.random(1, num_states=6, dim=4, kernels=1, key=key))
        (closed,) = closed_classes(P)
        assert len(closed) >= 4
    with pytest.raises(ValueError, match=r"None of 1000 .* Raise `branching`, got 1"):
        garnet.random(1, num_states=6, dim=4, branching=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branching": 31}, "`branching` must be at most `num_states`, got 31 > 30"),
        ({"branching": 0}, "`branching` must be at least 1, got 0"),
        ({"dim": 31}, "`dim` must be at most `num_states`, got 31 > 30"),
        ({"kernels": 0}, "`kernels` must be at least 1, got 0"),
        ({"perturbation": -0.1}, "`perturbation` must be at least 0.0, got -0.1"),
        ({"heterogeneity": 1.5}, "`heterogeneity` must be at most 1.0, got 1.5"),
        ({"discount": 1.0}, r"`discount` must lie in \[0, 1\), got 1.0"),
    ],
)
def test_impossible_environments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        garnet.random(**options)


@pytest.mark.parametrize("key", range(3))
def test_fed_hsa_contracts_on_two_kernels_at_every_length_of_rounds(key):
    """The spectral radius of C_H = mean_i [(I + eta A_i)^H + eta S_i (A_bar - A_i)], at SCAFFLSA's larger step."""
    A, _ = garnet.random(key=key).affine_parts()
    eta, A_bar, identity = 0.1, A.mean(0), np.eye(8)
    for H in (10, 1000, 10_000, 100_000):
        powers = np.stack([np.linalg.matrix_power(identity + eta * a, H) for a in A])
        sums = np.linalg.solve(A, powers - identity)  # eta S_i
        assert abs(np.linalg.eigvals((powers + sums @ (A_bar - A)).mean(0))).max() < 1


def test_local_sa_ends_at_its_predicted_bias():
    problem = garnet.random(num_agents=4).noiseless()
    theta = problem.theta_star + 1
    local = fh.simulate(problem, fh.LocalSA(0.1, local_steps=1000), rounds=200, theta=theta)
    A, _ = problem.affine_parts()
    powers = np.stack([np.linalg.matrix_power(np.eye(8) + 0.1 * a, 1000) for a in A])
    pull = np.einsum("mij,mj->mi", np.eye(8) - powers, problem.local_roots - problem.theta_star).mean(0)
    bias = np.linalg.solve(np.eye(8) - powers.mean(0), pull)
    assert np.linalg.norm(bias) > 0.5
    np.testing.assert_allclose(local.theta[0] - problem.theta_star, bias, rtol=1e-6)
