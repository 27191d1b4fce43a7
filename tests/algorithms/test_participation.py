"""Who takes part, that averages stay right, and what is left of FedHSA's error."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.algorithms.base import Coded

DRAWS, ROUNDS = 5000, 4

UNIFORM, COMING_AND_GOING = fh.sampling.UniformSampling(2, num_agents=3), fh.sampling.Availability(up=0.1, down=0.3)
CHANCES = [(UNIFORM, 2 / 3), (fh.sampling.Bernoulli(0.3), 0.3), (COMING_AND_GOING, 0.25)]


def weights_of(sampling):
    """The weights of three agents in four rounds, over many runs: `(rounds, agents, runs)`."""

    def run(sampling, key):
        def one_round(states, t):
            shared = fh.Round(t, jax.random.fold_in(key, t), num_agents=3)

            def of_agent(i, state):
                mine = shared._replace(agent_key=jax.random.fold_in(shared.key, i), agent=i)
                weight, state = sampling(mine, state)
                return state, weight

            return jax.vmap(of_agent)(jnp.arange(3), states)

        states = jax.tree.map(lambda x: jnp.stack([x] * 3), sampling.init())
        return jax.lax.scan(one_round, states, jnp.arange(ROUNDS))[1]

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(2), DRAWS)
        many = jax.jit(jax.vmap(run, (None, 0), -1))
        return np.asarray(many(fh.tree.to_device(sampling, "float64"), keys))


@pytest.mark.slow
def test_agents_with_equal_chances_are_there_as_often_as_they_should_be():
    for sampling, chance in CHANCES:
        there = weights_of(sampling)
        assert sampling.share == pytest.approx(chance)
        standard_error = np.sqrt(chance * (1 - chance) / DRAWS)
        assert (np.abs(there.mean(-1) - chance) < 4 * standard_error).all()
        if sampling is UNIFORM:
            np.testing.assert_array_equal(there.sum(1), 2)
        if sampling is COMING_AND_GOING:
            stayed = there[3][there[2] > 0]
            assert abs(stayed.mean() - 0.7) < 4 * np.sqrt(0.7 * 0.3 / len(stayed))


def test_availability_has_the_chances_of_its_chain_of_two_states():
    """Who is there comes again with probability 0.7, who is not with 0.1: 0.25 on average, with correlation 0.6."""
    assert COMING_AND_GOING.share == pytest.approx(0.25)
    assert COMING_AND_GOING.memory == pytest.approx(0.7 - 0.1)
    np.testing.assert_allclose(COMING_AND_GOING.counts(3), np.array([27, 27, 9, 1]) / 64)
    np.testing.assert_array_equal(UNIFORM.counts(3), [0, 0, 1, 0])
    np.testing.assert_array_equal(fh.sampling.Bernoulli(1.0).counts(2), [0, 0, 1])


def test_weights_make_up_for_unequal_chances():
    p = np.array([0.2, 0.5, 0.8])
    weights = weights_of(fh.sampling.WeightedSampling(p))
    standard_error = np.sqrt((1 - p) / p / DRAWS)
    assert (np.abs(weights.mean(-1) - 1) < 4 * standard_error).all()
    assert set(np.unique(weights)) == {0.0, *(1 / p)}


@functools.cache
def floor(step: float, all_answer_first: bool) -> float:
    """The squared error that is left of FedHSA without noise, over the last half of the rounds of 16 runs."""
    algorithm = fh.Partial(fh.FedHSA(step, 4), fh.sampling.UniformSampling(2, num_agents=3), all_answer_first)
    rounds = round(30 / step)
    result = fh.simulate(CASES["quadratic"]().problem.noiseless(), algorithm, rounds=rounds, seeds=16)
    return result.error[:, -rounds // 2 :].mean()


@pytest.mark.slow
def test_fed_hsa_among_those_present_keeps_a_floor_of_first_order_in_the_step():
    assert floor(0.02, False) > 1e-4
    assert 1.6 < floor(0.02, False) / floor(0.01, False) < 2.5


@pytest.mark.slow
def test_fed_hsa_arrives_if_all_agents_give_their_operators():
    assert floor(0.02, True) < 1e-20


@pytest.mark.slow
def test_scaffold_arrives_with_some_agents_only():
    algorithm = fh.Partial(fh.SCAFFOLD(0.02, 4), fh.sampling.Bernoulli(0.5))
    result = fh.simulate(CASES["quadratic"]().problem.noiseless(), algorithm, rounds=3000, every=3000)
    assert result.error[0, -1] < 1e-20


def test_weights_of_the_server_and_chances_multiply():
    problem, weights = CASES["quadratic"]().problem, [0.5, 0.3, 0.2]
    algorithm = fh.LocalSA(0.03, 4)
    always = fh.Partial(algorithm, fh.sampling.WeightedSampling([1.0, 1.0, 1.0]))
    plain, same = (fh.simulate(problem, fh.Weighted(a, weights), rounds=5).theta for a in (algorithm, always))
    np.testing.assert_allclose(same, plain, rtol=1e-13)


@pytest.mark.parametrize("count", [1, 2])
def test_with_weights_the_mean_over_all_sets_of_agents_is_the_weighted_mean(count):
    weights, values = np.array([0.7, 0.2, 0.1]), np.array([[1.0], [10.0], [100.0]])
    algorithm = fh.Weighted(fh.Partial(fh.SynchronisedSA(0.5), fh.sampling.UniformSampling(count, 3)), weights)
    (exchange,), moves = algorithm.exchanges, []
    for present in itertools.combinations(range(3), count):
        there = np.isin(np.arange(3), present).astype(float)
        with jax.enable_x64(True):
            server, _ = algorithm.init(jnp.zeros(1))
            replies = fh.Replies((Coded(jnp.asarray(there), 0.0), jnp.asarray(there[:, None] * values)))
            moves.append(exchange.aggregate(server, replies, fh.Round(jnp.asarray(0), jax.random.key(0), num_agents=3)))
    np.testing.assert_allclose(np.mean([s.theta for s in moves]), 0.5 * (weights @ values)[0], rtol=1e-14)


def test_weighted_scaffold_arrives_at_the_weighted_root_with_some_agents_only():
    problem, weights = CASES["quadratic"]().problem.noiseless(), np.array([0.7, 0.2, 0.1])
    A, b = problem.affine_parts()
    algorithm = fh.Weighted(fh.Partial(fh.SCAFFOLD(0.02, 4), fh.sampling.Bernoulli(0.5)), weights)
    result = fh.simulate(problem, algorithm, rounds=3000, every=3000)
    root = np.linalg.solve(np.tensordot(weights, A, 1), weights @ b)
    assert np.linalg.norm(root - problem.theta_star) > 1e-2
    np.testing.assert_allclose(result.theta[0], root, atol=1e-10)


KEPT = {
    "FedHSA": fh.FedHSA(0.03, 4),
    "SSLocalSGD": fh.SSLocalSGD(0.03, 4, 1.0),
    "LocalSVRG": fh.LocalSVRG(0.03, 4, 1.0),
    "OneExchangeFedHSA": fh.OneExchangeFedHSA(0.03, 4),
    "MomentumSA": fh.MomentumSA(0.03, 4, 0.5),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_round_without_anyone_leaves_the_server_as_it_was(name):
    algorithm = KEPT[name]
    (exchange, *_), (server, _) = algorithm.exchanges, algorithm.init(jnp.zeros(2))
    before = jax.tree.map(lambda x: x + 1, server)
    nothing = jnp.zeros((3, 2))
    values = (nothing, nothing) if name == "OneExchangeFedHSA" else nothing
    round = fh.Round(jnp.asarray(0), jax.random.key(0), num_agents=3)
    after = exchange.aggregate(before, fh.Replies(values, jnp.zeros(3)), round)
    jax.tree.map(np.testing.assert_array_equal, after, before)
    some = exchange.aggregate(before, fh.Replies(values, jnp.array([0.0, 1.0, 0.0])), round)
    np.testing.assert_array_equal(some[1], 0)


def test_unequal_chances_and_weights_are_refused_where_averages_are_multiplied():
    unequal, half, weights = fh.sampling.WeightedSampling([0.5, 0.6, 0.7]), fh.sampling.Bernoulli(0.5), [0.7, 0.2, 0.1]
    others = fh.SSLocalSGD(0.03, 4, 0.5), fh.LocalSVRG(0.03, 4, 0.5), fh.GappedSA(0.1, (2, 3))
    for algorithm in (fh.FedHSA(0.03, 4), fh.FedLin(0.1, 4), *others):
        with pytest.raises(
            TypeError, match=r"probabilities cannot wrap \w+: the method multiplies the averages of several"
        ):
            fh.Partial(algorithm, unequal)
        with pytest.raises(TypeError, match="Weighted cannot wrap Partial: the method multiplies the averages"):
            fh.Weighted(fh.Averaged(fh.Partial(algorithm, half)), weights)
    for algorithm in fh.FedHSA(0.03, 4), fh.FedLin(0.1, 4):
        fh.Weighted(fh.Partial(algorithm, unequal, all_answer_first=True), weights)
    with pytest.raises(
        TypeError, match="cannot wrap OverTheAir: the receiver divides its noise by the number of agents that send"
    ):
        fh.Partial(fh.OverTheAir(fh.LocalSA(0.03, 4), 0.1, 0.1), unequal)


def test_everyone_answers_only_where_the_cost_of_it_is_known():
    half = fh.sampling.Bernoulli(0.5)
    for algorithm in fh.LocalSA(0.03, 4), fh.LocalSVRG(0.03, 4, 0.5), fh.Thinned(fh.FedHSA(0.03, 4), 2):
        with pytest.raises(TypeError, match="the cost of the answers is known only for these"):
            fh.Partial(algorithm, half, all_answer_first=True)
    with pytest.raises(ValueError, match="`all_answer_first` must be True or False, got 'operator'"):
        fh.Partial(fh.FedHSA(0.03, 4), half, "operator")


def test_what_does_not_fit_together_is_refused_with_the_reason():
    hsa, half = fh.FedHSA(0.03, 4), fh.sampling.Bernoulli(0.5)
    with pytest.raises(TypeError, match="shifts add to zero"):
        fh.Partial(fh.SCAFFLSA(0.03, 4), half)
    with pytest.raises(TypeError, match="Partial with unequal probabilities cannot wrap SCAFFOLD"):
        fh.Partial(fh.SCAFFOLD(0.03, 4), fh.sampling.WeightedSampling([0.5, 0.6]))
    with pytest.raises(TypeError, match="Lossy cannot wrap Partial: from the inside out"):
        fh.Lossy(fh.Partial(hsa, half), 0.1)
    with pytest.raises(ValueError, match=r"`sampling` must be one of `fedhsa\.sampling`, got 0\.5"):
        fh.Partial(hsa, 0.5)
    with pytest.raises(ValueError, match="`num_agents` is for 5 agents, got a problem with 3"):
        fh.cost(CASES["quadratic"]().problem, fh.Partial(hsa, fh.sampling.UniformSampling(2, num_agents=5)))


def test_a_probability_may_be_a_whole_number():
    problem, method = fh.problems.quadratic.random(num_agents=2, dim=1), fh.LocalSA(0.05, local_steps=1)
    everyone = fh.simulate(problem, fh.Partial(method, fh.sampling.Bernoulli(1)), rounds=3)
    np.testing.assert_allclose(everyone.error, fh.simulate(problem, method, rounds=3).error, rtol=1e-12)
