import types

import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.theory import bounds, constants, measure

RECORD = {"bias": measure.bias, "drift": measure.drift, "variance": measure.variance}
ETA, H, SERVER_STEP = 0.05, 4, 0.5


def naive(problem, G, observations, theta, rounds):
    """FedHSA as in the paper, and the three quantities of each round straight from their definitions."""
    A, b = problem.affine_parts()
    M, alpha, found = problem.num_agents, H * ETA * SERVER_STEP, []
    for t in range(rounds):
        anchors = [G(i, theta, observations[i][t * H]) for i in range(M)]
        noise, drift, moved = 0, 0, 0
        for i in range(M):
            local = theta.copy()
            for step in range(H):
                g = G(i, local, observations[i][t * H + step])
                noise = noise + g - (A[i] @ local - b[i])
                drift += np.sum((local - theta) ** 2)
                local = local + ETA * (g + np.mean(anchors, axis=0) - anchors[i])
            moved = moved + local - theta
        push = 2 * alpha / (M * H) * noise
        found.append(
            (push @ (theta - problem.theta_star), drift / (M * H), 2 * alpha**2 * np.sum((noise / (M * H)) ** 2))
        )
        theta = theta + SERVER_STEP * moved / M
    return np.array(found), theta


@pytest.fixture(scope="module")
def td_run():
    problem, G, record = CASES["td"]()
    replayed, listed = record(6 * H, np.random.default_rng(0))
    algorithm = measure.Measured(fh.FedHSA(ETA, H, SERVER_STEP))
    run = fh.simulate(problem.replay(replayed), algorithm, rounds=6, theta=np.ones(4), record=RECORD)
    return run, naive(problem, G, listed, np.ones(4), 6)


def test_bias_drift_and_variance_are_those_of_a_naive_loop(td_run):
    run, (expected, _) = td_run
    for k, name in enumerate(RECORD):
        assert run.records[name][0, 0] == 0
        np.testing.assert_allclose(run.records[name][0, 1:], expected[:, k], rtol=1e-10)


def test_measuring_does_not_change_the_path(td_run):
    run, (_, theta) = td_run
    np.testing.assert_allclose(run.theta[0], theta, rtol=1e-12)


@pytest.mark.slow
def test_measuring_schedules_does_not_change_a_bit_of_the_path():
    problem, algorithm = CASES["td"]().problem, fh.FedHSA(fh.Polynomial(0.1, offset=5.0), H)
    plain, measured = (fh.simulate(problem, a, rounds=5) for a in (algorithm, measure.Measured(algorithm)))
    np.testing.assert_array_equal(plain.theta, measured.theta)


@pytest.mark.slow
def test_independent_samples_have_no_bias_and_chains_do():
    """4000 seeds from the root of lazy TD: the mean bias of late rounds is within 4 standard errors of 0 without
    memory, and more than 8 away with it."""
    problem, algorithm = CASES["td"](laziness=0.8).problem, fh.FedHSA(0.1, H)
    scores = []
    for each in (problem.iid(), problem):
        settings = {"rounds": 20, "seeds": 4000, "theta": problem.theta_star, "record": {"bias": measure.bias}}
        run = fh.simulate(each, measure.Measured(algorithm), **settings)
        late = run.records["bias"][:, 6:].mean(1)
        scores.append(late.mean() / (late.std(ddof=1) / np.sqrt(len(late))))
    assert abs(scores[0]) < 4
    assert abs(scores[1]) > 8


def test_the_measured_bias_is_compared_with_its_lemma():
    """Three seeds and two rounds made up: means 2 and -1, standard errors 1/sqrt(3) and 0, errors 4 and 5 before."""
    records = {"bias": np.array([[0.0, 1.0, -1.0], [0.0, 2.0, -1.0], [0.0, 3.0, -1.0]])}
    run = types.SimpleNamespace(records=records, error=np.array([[4.0, 5.0, 9.0]] * 3))
    c, algorithm = constants(CASES["finite-sum"]().problem), fh.FedHSA(0.002, H)
    found = measure.compare_bias(run, c, algorithm)
    np.testing.assert_allclose(found.bias, [2, -1])
    np.testing.assert_allclose(found.standard_error, [1 / np.sqrt(3), 0])
    bound = [bounds.evaluate(bounds.markov_bias, c, algorithm, error=error) for error in (4.0, 5.0)]
    np.testing.assert_allclose(found.bound, bound)


def test_bad_input_is_named():
    with pytest.raises(TypeError, match=r"`algorithm` must be a FedHSA, whose proof is measured, got LocalSA"):
        measure.Measured(fh.LocalSA(0.1, 2))
    run = types.SimpleNamespace(records={}, error=np.ones((1, 3)))
    with pytest.raises(ValueError, match=r"`result` has no bias of every round. Simulate with `record="):
        measure.compare_bias(run, None, fh.FedHSA(0.01, 2))
