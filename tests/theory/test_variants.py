"""Predictions for wrappers and for methods that carry state: against enumeration and simulation."""

import itertools

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.problems import finite_sum, quadratic, td
from fedhsa.theory import exact, predict
from fedhsa.theory.maps.rounds import local_rule


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
    np.testing.assert_allclose(found.transition, half.transition, atol=1e-9)
    assert local_rule(Renamed(0.05, local_steps=4)) == local_rule(fh.FedHSA(0.05, local_steps=4))


def test_an_error_inside_an_exact_law_is_not_taken_for_a_problem_too_large(monkeypatch):
    def broken(*_):
        raise TypeError("a fault")

    monkeypatch.setattr(exact, "law", broken)
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


def test_scafflsa_under_additive_chain_noise_is_the_sum_over_all_trajectories():
    problem, rounds, eta, H = two_chains(), 3, 0.3, 2
    expected = enumerated(problem, lambda seen: scafflsa(problem, seen, rounds, eta, H), rounds * H)
    found = predict(problem, fh.SCAFFLSA(eta, local_steps=H))
    np.testing.assert_allclose(found.error(rounds), expected, rtol=1e-12)
    assert found.law.left_out < 1e-15
    assert found.floor == pytest.approx(found.error(400)[-1], rel=1e-9)


def test_two_ways_to_write_a_method_have_one_law():
    """Also where they carry different things: SCAFFOLD's first option is the one-exchange FedHSA if all take part."""
    problem = td.random(3, 3, 2, laziness=0.6, key=1)
    found = [predict(problem, a) for a in (fh.SCAFFOLD(0.2, 3, option=1), fh.OneExchangeFedHSA(0.2, 3))]
    np.testing.assert_allclose(found[0].bias, found[1].bias, rtol=1e-8)
    np.testing.assert_allclose(found[0].covariance, found[1].covariance, rtol=1e-8)
    assert [f.basis for f in found] == ["additive noise"] * 2


@pytest.mark.parametrize("laziness", [0.5, 0.9])
def test_scafflsa_on_chains_has_the_predicted_floor_or_says_what_is_left_out(laziness):
    """Within 4 standard errors and what the law says it leaves out."""
    problem = finite_sum.random(4, 3, 2, laziness=laziness, key=1)
    algorithm = fh.SCAFFLSA(0.03, local_steps=5)
    found = predict(problem, algorithm)
    runs = fh.simulate(problem, algorithm, rounds=500, seeds=60).error[:, 150:].mean(1)
    off, sem = abs(found.floor - runs.mean()), runs.std() / np.sqrt(len(runs))
    assert off < 4 * sem + found.law.left_out * runs.mean()
    assert found.law.left_out < 0.35


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


def test_an_extrapolation_is_the_sum_over_all_trajectories_of_additive_noise_that_its_copies_share():
    problem, rounds, eta, H = two_chains(), 3, 0.2, 2

    def loop(seen):
        return 2 * local_sa(problem, seen, rounds, eta, H) - local_sa(problem, seen, rounds, 2 * eta, H)

    found = predict(problem, fh.RichardsonRomberg(fh.LocalSA(eta, local_steps=H)))
    np.testing.assert_allclose(found.error(rounds), enumerated(problem, loop, rounds * H), rtol=1e-9)
    averaged = predict(problem, fh.RichardsonRomberg(fh.Averaged(fh.LocalSA(eta, local_steps=H))))
    assert averaged.floor == pytest.approx(float(found.bias @ found.bias))
