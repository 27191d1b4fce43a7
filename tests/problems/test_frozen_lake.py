"""Policy evaluation on unlike FrozenLakes: Local SA is off by the bias that theory predicts, and FedHSA is not."""

import numpy as np
import pytest

import fedhsa as fh
from fedhsa import theory
from fedhsa.environments import make
from fedhsa.problems import td

STEP, LOCAL_STEPS, ROUNDS, BURN_IN, SEEDS = 0.05, 200, 400, 100, 16
POLICY = np.tile([0.0, 0.5, 0.5, 0.0], (16, 1))


@pytest.fixture(scope="module")
def problem():
    """Six lakes with maps and ice of their own, and one policy that goes down or right."""
    lakes = make("frozen-lake", {"num_agents": 6, "layout": "own", "slipperiness": 1 / 3})
    return td.from_model(lakes, POLICY)


@pytest.fixture(scope="module")
def limit(problem):
    """Where Local SA goes without noise, minus the root, in closed form."""
    A, b = problem.affine_parts()
    F = np.eye(problem.dim) + STEP * A
    S = sum(np.linalg.matrix_power(F, k) for k in range(LOCAL_STEPS))
    residuals = A @ problem.theta_star - b
    drift = STEP * (S @ residuals[..., None])[..., 0].mean(0)
    return np.linalg.solve(np.eye(problem.dim) - np.linalg.matrix_power(F, LOCAL_STEPS).mean(0), drift)


@pytest.mark.slow
def test_the_predicted_bias_is_the_closed_form(problem, limit):
    prediction = theory.predict(problem, fh.LocalSA(STEP, LOCAL_STEPS))
    np.testing.assert_allclose(prediction.heterogeneity_bias, limit, atol=1e-9)
    # Correlation in time adds a third to two thirds of it, from draw to draw of the lakes.
    assert np.linalg.norm(prediction.markov_bias) < np.linalg.norm(limit)


@pytest.mark.slow
@pytest.mark.parametrize("method", [fh.LocalSA, fh.FedHSA])
def test_on_unlike_frozen_lakes_the_mean_error_is_the_predicted_bias(problem, limit, method):
    algorithm = method(STEP, LOCAL_STEPS)
    run = fh.simulate(problem, fh.Averaged(algorithm, burn_in=BURN_IN), rounds=ROUNDS, seeds=SEEDS, every=ROUNDS)
    off, towards = run.theta - problem.theta_star, limit / np.linalg.norm(limit)
    along = off @ towards
    error = along.std(ddof=1) / np.sqrt(SEEDS)  # 0.0004 for Local SA, 0.0028 for FedHSA; the bias is 0.04
    assert error < 0.005
    predicted = theory.predict(problem, algorithm).bias
    assert abs(along.mean() - predicted @ towards) < 4 * error
    distance = np.linalg.norm(off.mean(0))
    if method is fh.LocalSA:
        assert distance == pytest.approx(np.linalg.norm(predicted), rel=0.03)
        assert abs(along.mean() - np.linalg.norm(limit)) < 4 * error
    else:
        assert abs(along.mean()) < 4 * error
        assert distance < np.linalg.norm(limit) / 2  # correlation in time leaves a third of it


@pytest.mark.slow
def test_on_unlike_frozen_lakes_the_average_of_fed_hsa_beats_local_sa_by_the_squared_bias(problem, limit):
    errors = {
        method: fh.simulate(
            problem,
            fh.Averaged(method(STEP, LOCAL_STEPS), burn_in=BURN_IN),
            rounds=ROUNDS,
            seeds=SEEDS,
            every=ROUNDS,
        ).error[:, -1]
        for method in (fh.FedHSA, fh.LocalSA)
    }
    gain = errors[fh.LocalSA] - errors[fh.FedHSA]  # seed by seed on the same observations
    error = gain.std(ddof=1) / np.sqrt(SEEDS)
    assert gain.mean() - 4 * error > 0.5 * limit @ limit
    assert errors[fh.FedHSA].mean() < errors[fh.LocalSA].mean() / 2
