"""Predictions for wrappers and for methods that carry state: against enumeration and simulation."""

import itertools

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.algorithms.sampling import AbstractSampling, Availability, Bernoulli, UniformSampling, WeightedSampling
from fedhsa.cli import words
from fedhsa.experiments.study import sampled
from fedhsa.problems import finite_sum, quadratic, td
from fedhsa.theory import entry, predict
from fedhsa.theory.rule import local_rule
from theory import sets


class Cautious(fh.FedHSA):
    """FedHSA whose server moves half as far as it is told to."""

    def _move(self, server, replies, round):
        return self.with_theta(server, server.theta + 0.5 * self.server_step * replies.mean())


class Renamed(fh.FedHSA):
    """FedHSA by another name."""


def test_a_subclass_with_a_server_of_its_own_gets_its_own_law():
    problem = quadratic.random(num_agents=3, dim=2)
    found, half = predict(problem, Cautious(0.05, local_steps=4)), predict(problem, fh.FedHSA(0.05, 4, server_step=0.5))
    assert local_rule(Cautious(0.05, local_steps=4)) is None
    assert found.spectral_radius == pytest.approx(half.spectral_radius, rel=1e-9)
    assert local_rule(Renamed(0.05, local_steps=4)) == local_rule(fh.FedHSA(0.05, local_steps=4))


def test_an_error_inside_an_exact_law_is_not_taken_for_a_problem_too_large(monkeypatch):
    def broken(*_):
        raise TypeError("a fault")

    monkeypatch.setattr(entry, "law_of", broken)
    with pytest.raises(TypeError, match="a fault"):
        predict(quadratic.random(num_agents=3, dim=2), fh.FedHSA(0.05, local_steps=4))


STAY = 0.8


def two_chains(slopes=((0.5, 0.5), (1.5, 1.5)), stay=STAY):
    """G_i = b_i(s) - a_i(s) theta on two-state chains that stay; by default the noise is additive."""
    A = np.array(slopes).reshape(2, 2, 1, 1)
    b = np.array([[2.0, 0.0], [-1.0, 1.5]]).reshape(2, 2, 1)
    P = np.array([[stay, 1 - stay], [1 - stay, stay]])
    return finite_sum.from_arrays(A, b, np.stack([P, P]))


def scafflsa(problem, seen, rounds, eta, H):
    """Its loop: local steps with shifts, which add up how far each agent was from the average."""
    theta, xi, path = 0.0, np.zeros(len(seen)), [0.0]
    a, b = problem.agents.A[..., 0, 0], problem.agents.b[..., 0]
    for t in range(rounds):
        ends = np.full(len(seen), theta)
        for i in range(len(seen)):
            for s in seen[i][t * H : (t + 1) * H]:
                ends[i] += eta * (b[i, s] - a[i, s] * ends[i] + xi[i])
        theta = ends.mean()
        xi += (theta - ends) / (eta * H)
        path.append(theta)
    return np.array(path)


def local_sa(problem, seen, rounds, eta, H):
    """Its loop."""
    path, a, b = [0.0], problem.agents.A[..., 0, 0], problem.agents.b[..., 0]
    for t in range(rounds):
        ends = np.full(len(seen), path[-1])
        for i in range(len(seen)):
            for s in seen[i][t * H : (t + 1) * H]:
                ends[i] += eta * (b[i, s] - a[i, s] * ends[i])
        path.append(ends.mean())
    return np.array(path)


def enumerated(problem, loop, length, independent=False):
    """E|e|^2 of every round, summed over every trajectory of two agents with two states."""
    pi, P, expected = problem.agents.source.stationary, problem.agents.source.transition, 0.0
    P = np.repeat(pi[:, None], 2, axis=1) if independent else P

    def trajectories(i):
        for states in itertools.product((0, 1), repeat=length):
            yield states, pi[i, states[0]] * np.prod([P[i, s, t] for s, t in itertools.pairwise(states)])

    for (first, p), (second, q) in itertools.product(trajectories(0), trajectories(1)):
        expected = expected + p * q * (loop([first, second]) - problem.theta_star) ** 2
    return expected


@pytest.mark.slow
def test_scafflsa_under_additive_chain_noise_is_the_sum_over_all_trajectories():
    problem, rounds, eta, H = two_chains(), 3, 0.3, 2
    expected = enumerated(problem, lambda seen: scafflsa(problem, seen, rounds, eta, H), rounds * H)
    found = predict(problem, fh.SCAFFLSA(eta, local_steps=H))
    np.testing.assert_allclose(found.error(rounds), expected, rtol=1e-12)
    assert found.law.left_out < 1e-15
    assert found.floor == pytest.approx(found.error(400)[-1], rel=1e-9)


@pytest.mark.slow
def test_two_ways_to_write_a_method_have_one_law():
    """Also where they carry different things: SCAFFOLD's first option is the one-exchange FedHSA if all take part."""
    problem = td.random(3, 3, 2, laziness=0.6, key=1)
    found = [predict(problem, a) for a in (fh.SCAFFOLD(0.2, 3, option=1), fh.OneExchangeFedHSA(0.2, 3))]
    np.testing.assert_allclose(found[0].bias, found[1].bias, rtol=1e-8)
    np.testing.assert_allclose(found[0].covariance, found[1].covariance, rtol=1e-8)
    assert [f.basis for f in found] == ["exact"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("laziness", [0.5, 0.9])
def test_scafflsa_on_chains_has_the_predicted_floor_or_says_what_is_left_out(laziness):
    """Within 4 standard errors and what the law says it leaves out."""
    problem = finite_sum.random(4, 3, 2, laziness=laziness, key=1)
    algorithm = fh.SCAFFLSA(0.03, local_steps=5)
    found = predict(problem, algorithm)
    runs = fh.simulate(problem, algorithm, rounds=500, seeds=60).error[:, 150:].mean(1)
    off, sem = abs(found.floor - runs.mean()), runs.std() / np.sqrt(len(runs))
    assert off < 4 * sem + found.law.left_out * runs.mean()
    assert found.law.left_out < 0.03


def test_an_average_is_the_sum_over_all_trajectories_of_correlated_additive_noise():
    problem, rounds, eta, H = two_chains(), 3, 0.3, 2
    algorithm = fh.Averaged(fh.SCAFFLSA(eta, local_steps=H), burn_in=1)

    def loop(seen):
        path = scafflsa(problem, seen, rounds, eta, H)
        return np.array([path[0], path[1], path[2], (path[2] + path[3]) / 2])

    found = predict(problem, algorithm)
    np.testing.assert_allclose(found.error(rounds), enumerated(problem, loop, rounds * H), rtol=1e-12)
    assert found.floor < 1e-20
    assert found.rounds_to(0.05) == np.argmax(found.error(200) <= 0.05) > 0


@pytest.mark.slow
def test_an_average_is_the_sum_over_all_trajectories_of_independent_noise_in_the_slopes():
    problem, rounds, eta = two_chains(((0.2, 0.8), (2.0, 1.0))), 4, 0.3
    decay = 0.6

    def loop(seen):
        path = local_sa(problem, seen, rounds, eta, 1)
        weights = decay ** -np.arange(1.0, rounds + 1)
        return np.array([path[0], *(np.average(path[1 : t + 1], weights=weights[:t]) for t in range(1, rounds + 1))])

    found = predict(problem.iid(), fh.GeometricAverage(fh.LocalSA(eta, local_steps=1), decay=decay))
    expected = enumerated(problem, loop, rounds, independent=True)
    np.testing.assert_allclose(found.error(rounds), expected, rtol=1e-12)
    assert found.floor == pytest.approx(found.error(300)[-1], rel=1e-9)


@pytest.mark.slow
def test_an_extrapolation_is_the_sum_over_all_trajectories_of_additive_noise_that_its_copies_share():
    problem, rounds, eta, H = two_chains(), 3, 0.2, 2

    def loop(seen):
        return 2 * local_sa(problem, seen, rounds, eta, H) - local_sa(problem, seen, rounds, 2 * eta, H)

    found = predict(problem, fh.RichardsonRomberg(fh.LocalSA(eta, local_steps=H)))
    np.testing.assert_allclose(found.error(rounds), enumerated(problem, loop, rounds * H), rtol=1e-9)
    averaged = predict(problem, fh.RichardsonRomberg(fh.Averaged(fh.LocalSA(eta, local_steps=H))))
    assert averaged.floor == pytest.approx(float(found.bias @ found.bias))


METHODS = pytest.mark.parametrize("method", [fh.FedHSA, fh.LocalSA])
KINDS = pytest.mark.parametrize(("method", "all_answer"), [(fh.FedHSA, False), (fh.FedHSA, True), (fh.LocalSA, False)])


@KINDS
def test_floors_among_some_agents_are_those_of_all_sets(method, all_answer):
    """Of two out of four with white noise, and of a number by chance."""
    problem = quadratic.from_arrays(**matrices(4), noise_std=0.7, start="stationary")
    agents, kind = sampled.mean_operators(problem), {"corrected": method is fh.FedHSA, "all_answer": all_answer}
    algorithm = fh.Partial(method(0.1, local_steps=4), UniformSampling(2, num_agents=4), all_answer_first=all_answer)
    weights, chances = sets.uniform_subsets(4, 2)
    law = sets.round_maps(agents, weights, 0.1, 4, noise_std=0.7, **kind)
    found = predict(problem, algorithm)
    assert found.floor == pytest.approx(sets.independent_floor(law, chances)[0], rel=1e-10)
    expected = sets.expected_errors(law, chances, -problem.root, 5)
    np.testing.assert_allclose(found.error(5), expected, rtol=1e-10)
    there, chances = sets.independent_subsets(np.full(4, 0.4))
    law = sets.round_maps(agents, sets.weights_of_present(there), 0.1, 4, **kind)
    found = predict(problem.noiseless(), fh.Partial(algorithm.algorithm, Bernoulli(0.4), all_answer_first=all_answer))
    assert found.floor == pytest.approx(sets.independent_floor(law, chances)[0], rel=1e-10, abs=1e-15)
    assert (found.basis, found.stability) == ("exact", "mean square, exact")


def matrices(num_agents):
    A, b = quadratic.random(num_agents, dim=2).affine_parts()
    return {"A": -A, "b": -b}


def test_unequal_chances_weigh_replies_by_their_inverse():
    problem, p = quadratic.random(4, dim=2).noiseless(), np.linspace(0.3, 0.9, 4)
    there, chances = sets.independent_subsets(p)
    law = sets.round_maps(sampled.mean_operators(problem), there / p / 4, 0.1, 4, corrected=False)
    found = predict(problem, fh.Partial(fh.LocalSA(0.1, local_steps=4), WeightedSampling(p)))
    assert found.floor == pytest.approx(sets.independent_floor(law, chances)[0], rel=1e-10)


def test_agents_that_come_and_go_are_a_chain_of_sets():
    problem = quadratic.from_arrays(**matrices(3), noise_std=0.5)
    there, chances = sets.independent_subsets(np.full(3, 2 / 3))
    agents, weights = sampled.mean_operators(problem), sets.weights_of_present(there)
    law = sets.round_maps(agents, weights, 0.1, 4, noise_std=0.5)
    expected = sets.chain_floor(law, chances, sets.availability_kernel(3, 0.2, 0.1))[0]
    found = predict(problem, fh.Partial(fh.FedHSA(0.1, local_steps=4), Availability(0.2, 0.1)))
    assert found.floor == pytest.approx(expected, rel=1e-8)


def test_many_agents_that_come_and_go_have_no_law():
    problem = quadratic.random(12, dim=2)
    with pytest.raises(TypeError, match="Presence that lasts is predicted for at most 8 agents, got 12"):
        predict(problem, fh.Partial(fh.FedHSA(0.002, local_steps=4), Availability(0.1, 0.1)))


def test_a_round_with_losses_and_codes_among_some_agents_is_the_sum_over_all_that_can_arrive():
    problem, eta, H = quadratic.random(3, dim=2).noiseless(), 0.15, 3
    coded = fh.Lossy(fh.Compressed(fh.FedHSA(eta, H, server_step=0.8), fh.codecs.RandK(0.5)), loss=0.2)
    found = predict(problem, fh.Partial(coded, UniformSampling(2, num_agents=3)))
    A, b = problem.affine_parts()
    S = eta * np.sum([np.linalg.matrix_power(np.eye(2) + eta * A, k) for k in range(H)], axis=0)
    arrives = [(0.2, np.zeros(2)), (0.4, np.array([2.5, 0.0])), (0.4, np.array([0.0, 2.5]))]
    e, square = np.array([0.3, -0.5]), np.zeros((2, 2))
    g = A @ (problem.root + e) - b
    for there in itertools.combinations(range(3), 2):
        for first, second in itertools.product(itertools.product(arrives, repeat=2), repeat=2):
            g_bar = sum(kept * g[i] for (_, kept), i in zip(first, there, strict=True)) / 2
            moved = sum(kept * (S[i] @ g_bar) for (_, kept), i in zip(second, there, strict=True)) / 2
            chance = np.prod([p for p, _ in (*first, *second)]) / 3
            square += chance * np.outer(e + 0.8 * moved, e + 0.8 * moved)
    _, after = found.law.path(e, 1)
    np.testing.assert_allclose(after.second, square, rtol=1e-12)


@METHODS
def test_correlated_noise_among_some_agents_is_the_sum_over_sets(method):
    """Two rounds: for each sequence of sets the error is a sum of the noises, whose covariances are known."""
    eta, H, M, rounds, q = 0.3, 2, 3, 2, 0.8
    slopes = np.array([0.4, 1.0, 1.6])
    problem = quadratic.from_arrays(
        slopes.reshape(M, 1, 1),
        np.array([[1.0], [-1.0], [0.5]]),
        Q=np.full((M, 1, 1), q),
        noise_std=0.5,
        start="stationary",
    )
    b, root = np.array([1.0, -1.0, 0.5]), problem.root[0]
    lags = q ** abs(np.subtract.outer(np.arange(rounds * H), np.arange(rounds * H)))
    covariance = np.kron(np.eye(M), 0.25 / (1 - q**2) * lags)

    def run(taking_part, z):
        theta = root + 0.7
        for t, there in enumerate(taking_part):
            g = {i: b[i] - slopes[i] * theta + z[i, t * H] for i in there}
            ends = dict.fromkeys(there, theta)
            for i, k in itertools.product(there, range(H)):
                shift = np.mean(list(g.values())) - g[i] if method is fh.FedHSA else 0.0
                ends[i] = ends[i] + eta * (b[i] - slopes[i] * ends[i] + z[i, t * H + k] + shift)
            theta = np.mean(list(ends.values()))
        return theta - root

    expected, silent = [], np.zeros((M, rounds * H))
    for taking_part in itertools.product(itertools.combinations(range(M), 2), repeat=rounds):
        mean = run(taking_part, silent)
        response = np.array([run(taking_part, unit.reshape(M, -1)) - mean for unit in np.eye(M * rounds * H)])
        expected.append(mean**2 + response @ covariance @ response)
    found = predict(problem, fh.Partial(method(eta, local_steps=H), UniformSampling(2, num_agents=M)))
    *_, after = found.law.path(np.array([0.7]), rounds)
    assert after.square == pytest.approx(np.mean(expected), rel=1e-12)
    assert found.floor == pytest.approx(found.law.errors(np.array([0.7]), 300)[-1], rel=1e-9)


class Rota(AbstractSampling):
    """One agent after the other."""

    num_agents: int

    @property
    def share(self):
        return 1 / self.num_agents

    def __call__(self, round, state):
        return (round.index % self.num_agents == round.agent).astype(float), state


def test_a_sampling_that_depends_on_the_number_of_the_round_has_no_law():
    problem = quadratic.random(3, dim=2)
    with pytest.raises(TypeError, match="The rounds of Partial depend on the number of the round"):
        predict(problem, fh.Partial(fh.LocalSA(0.1, local_steps=2), Rota(3)))


@pytest.mark.slow
def test_quantised_replies_have_the_floor_of_runs():
    """Within 4 standard errors and 3 %: the law is of first order and drawn."""
    problem = quadratic.random(4, dim=3, noise_std=1.0)
    algorithm = fh.Compressed(fh.FedHSA(0.02, local_steps=3), fh.codecs.Quantised(2))
    found, plain = predict(problem, algorithm), predict(problem, algorithm.algorithm)
    runs = fh.simulate(problem, algorithm, rounds=400, seeds=64, theta=problem.root).error[:, 150:].mean(1)
    assert abs(found.floor - runs.mean()) < 4 * runs.std() / 8 + 0.03 * runs.mean()
    assert found.basis == "first order"
    assert found.floor > plain.floor


@pytest.mark.slow
def test_codes_that_choose_are_played_where_nothing_is_random():
    problem = quadratic.random(4, dim=3).noiseless()
    algorithm = fh.Compressed(fh.FedHSA(0.02, local_steps=3), fh.codecs.TopK(0.34), "none")
    found, run = predict(problem, algorithm), fh.simulate(problem, algorithm, rounds=30)
    np.testing.assert_allclose(found.error(30), run.error[0], rtol=1e-9)
    assert (found.basis, found.stability) == ("played", "mean only")
    assert found.floor == pytest.approx(found.error(3000, problem.root)[2000:].mean(), rel=0.05)
    assert not predict(problem, fh.Compressed(fh.FedHSA(5.0, local_steps=3), fh.codecs.TopK(0.34), "none")).stable


def test_predictions_of_wrappers_are_told_in_words():
    problem, method = quadratic.random(2, dim=2), fh.FedHSA(0.05, local_steps=4)
    averaged, some = predict(problem, fh.Averaged(method)), predict(problem, fh.Partial(method, Bernoulli(0.5)))
    assert "at step 0.05 with" in words._stability("it", averaged)
    assert words._stability("it", some).startswith("it: stable up to step")
    assert "how far more agents would help is not known" in words._stopping("it", some)[1]
    assert some.max_step_size.kind == "mean square, exact"
    law = predict(problem.noiseless(), fh.Partial(fh.FedHSA(float(some.max_step_size), 4), Bernoulli(0.5))).law
    radius = law.mean_square_radius()
    assert radius is not None
    assert radius.value == pytest.approx(1.0, abs=1e-2)
