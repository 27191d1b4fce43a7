"""Predictions: their parts, what follows from them, and where they come from."""

import dataclasses
import itertools
import json
import warnings

import equinox as eqx
import numpy as np
import pytest

import fedhsa as fh
from cases import ALGORITHMS, CASES
from fedhsa.problems import finite_sum, quadratic, td
from fedhsa.theory import Estimates, PredictionWarning, exact, predict
from fedhsa.theory.prediction import Prediction
from fedhsa.theory.samples.law import SampledLaw

CONSTANT = [name for name, algorithm in ALGORITHMS.items() if isinstance(algorithm.step_size, float)]


def every_pair():
    """Every method on every problem; the fast tests have the paper's two on the linear ones, the others on one each."""
    fast = {("logistic", "FedHSA"), ("td", "FedHSA, server step"), ("quadratic", "LocalSA, server step")}
    fast |= {("finite-sum", "SynchronisedSA")}
    fast |= set(itertools.product(("quadratic", "td", "finite-sum"), ("FedHSA", "LocalSA")))
    for case, name in itertools.product(CASES, CONSTANT):
        slow = (case, name) not in fast
        yield pytest.param(case, name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "name"), list(every_pair()))
def test_every_method_has_a_prediction_on_every_problem(case, name):
    problem, algorithm = CASES[case]().problem, ALGORITHMS[name]
    prediction = predict(problem, algorithm)
    assert prediction.stable
    assert 0 < prediction.spectral_radius < 1
    assert 0 < prediction.rate < 1
    assert prediction.max_step_size > algorithm.step_size
    assert prediction.floor == pytest.approx((prediction.bias**2).sum() + np.trace(prediction.covariance))
    assert prediction.noise_variance == pytest.approx(np.trace(prediction.covariance))
    assert (abs(prediction.heterogeneity_bias) < 1e-12).all() == ("LocalSA" not in name)  # rounding
    assert (prediction.curvature_bias == 0).all() == problem.affine
    assert prediction.basis in (("exact", "pairs", "one site") if problem.affine else ("mean field",))
    assert prediction.interval is None
    assert prediction.floor_at(1e20) == pytest.approx((prediction.persistent_bias**2).sum(), rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("name", ["FedHSA, server step", "LocalSA"])
def test_on_additive_noise_and_independent_samples_predictions_are_the_exact_laws(name):
    for problem in (CASES["quadratic"]().problem, CASES["td"]().problem.iid(), CASES["td"]().problem.noiseless()):
        prediction, algorithm = predict(problem, ALGORITHMS[name]), ALGORITHMS[name]
        assert prediction.basis == "exact"
        assert prediction.floor == pytest.approx(exact.floor(problem, algorithm), rel=1e-9, abs=1e-25)
        assert prediction.spectral_radius == pytest.approx(exact.spectral_radius(problem, algorithm))
        law = exact.mean_square_error(problem, algorithm, rounds=20)
        np.testing.assert_allclose(prediction.error(20), law, rtol=1e-9)
        limit = exact.limit(problem, algorithm) - problem.theta_star
        np.testing.assert_allclose(prediction.heterogeneity_bias, limit, atol=1e-12)


def test_more_agents_than_a_product_of_chains_can_be_counted_for_are_predicted():
    one = fh.problems.finite_sum.random(1, num_components=2, dim=1, laziness=0.5)
    few, many = (fh.theory.predict(one.take([0] * M), fh.FedHSA(0.02, local_steps=2)) for M in (500, 2000))
    assert few.basis == many.basis != "exact"
    assert many.floor == pytest.approx(few.floor / 4, rel=0.01)  # next to no bias, and variance goes as 1 / M


@pytest.mark.slow
def test_the_predicted_floor_of_more_agents_is_that_of_the_same_agents_repeated_to_leading_order():
    """Three agents on chains of which the product has the exact law, two and seven times over: within 5 %."""
    problem, algorithm = CASES["td"](laziness=0.6).problem, fh.LocalSA(0.1, 6)
    prediction = predict(problem, algorithm)
    for times in (2, 7):
        repeated = predict(problem.take([0, 1, 2] * times), algorithm)
        assert prediction.floor_at(3 * times) == pytest.approx(repeated.floor, rel=0.05)
        assert repeated.saturation_agents == pytest.approx(prediction.saturation_agents, rel=0.05)
    M = prediction.saturation_agents
    variance = prediction.noise_variance * 3 / M
    assert prediction.persistent_bias @ prediction.persistent_bias == pytest.approx(variance)
    assert prediction.floor_at(1e15) == pytest.approx(variance, rel=1e-6)


def test_additive_noise_never_saturates():
    assert predict(CASES["quadratic"]().problem, fh.FedHSA(0.02, 5)).saturation_agents == np.inf


def test_reach_counts_the_rounds_until_the_noiseless_error_is_below_the_target():
    problem, algorithm = CASES["td"]().problem.noiseless(), fh.FedHSA(0.5, 4)
    run = fh.simulate(problem, algorithm, rounds=2000)
    for target in (1e-1, 1e-3, 1e-6):
        reach = predict(problem, algorithm).reach(target)
        assert reach.rounds == np.argmax(run.error[0] <= target)
        assert reach.samples == reach.rounds * 3 * 4
        assert reach.bytes == reach.rounds * 3 * 8 * 4 * problem.dim
    start = np.ones(problem.dim) * 3
    run = fh.simulate(problem, algorithm, rounds=2000, theta=start)
    assert predict(problem, algorithm).reach(1e-3, start).rounds == np.argmax(run.error[0] <= 1e-3)


def test_a_target_below_the_floor_is_never_reached_and_one_above_the_start_at_once():
    problem = CASES["quadratic"]().problem
    prediction = predict(problem, fh.LocalSA(0.02, 5))
    assert prediction.reach(prediction.floor * 0.99).rounds == np.inf
    assert prediction.reach(prediction.floor * 1.01).rounds < np.inf
    assert prediction.reach(1e6) == (0, 0, 0)
    with pytest.raises(ValueError, match="`target` must be greater than 0"):
        prediction.reach(-1.0)
    with pytest.raises(ValueError, match="`num_agents` must be greater than 0"):
        prediction.floor_at(0)
    with pytest.raises(ValueError, match="`rounds` must be at least 0"):
        prediction.error_after(-1)
    assert prediction.error(0) == prediction.error_after(0)


def test_a_method_that_diverges_is_said_to():
    problem = quadratic.from_arrays(A=[[[0.1]], [[1.0]]], b=[[1.0], [1.0]], noise_std=0.1)
    prediction = predict(problem, fh.FedHSA(0.5, 20))
    assert not prediction.stable
    assert prediction.spectral_radius == pytest.approx(1.039, abs=1e-3)
    assert prediction.floor == np.inf
    assert prediction.reach(1e-3).rounds == np.inf
    assert prediction.max_local_steps == 19
    assert 0.4 < prediction.max_step_size < 0.5


def test_a_method_stable_in_the_mean_but_not_in_the_mean_square_is_not_called_stable():
    A, P = np.array([0.1, 5.0]).reshape(1, 2, 1, 1), np.full((1, 2, 2), 0.5)
    problem = fh.problems.finite_sum.from_arrays(A, np.array([[[1.0], [1.0]]]), P).iid()
    prediction = predict(problem, fh.SynchronisedSA(0.6))
    assert prediction.mean_square_radius is not None
    assert prediction.spectral_radius < 1 < prediction.mean_square_radius
    assert not prediction.stable


@pytest.mark.parametrize("case", CASES)
def test_a_step_far_beyond_the_stable_ones_diverges_and_nothing_overflows_aloud(case):
    prediction = predict(CASES[case]().problem, fh.LocalSA(1e60, 40))
    assert not prediction.stable
    assert prediction.spectral_radius == np.inf
    assert prediction.floor_at(7) == np.inf


def test_the_error_of_a_diverging_method_is_followed_with_its_noise():
    """2000 seeds, three rounds: within 4 standard errors, far above that of the mean."""
    problem, algorithm = CASES["finite-sum"]().problem, fh.LocalSA(1.5, 3)
    run = fh.simulate(problem, algorithm, rounds=3, seeds=2000, theta=problem.theta_star)
    prediction = predict(problem, algorithm)
    found, error = run.error.mean(0), run.error.std(0, ddof=1) / np.sqrt(2000)
    assert not prediction.stable
    assert (abs(prediction.error(3, problem.theta_star) - found)[1:] < 4 * error[1:]).all()


def test_reach_follows_the_exact_law_where_there_is_one():
    """Strongly correlated noise that starts at zero: the error first falls below its floor, then rises to it."""
    problem = quadratic.from_arrays(A=[[[1.0]]], b=[[3.0]], Q=[[[0.99]]], noise_std=0.1)
    law = exact.mean_square_error(problem, fh.SA(0.5), rounds=50)
    prediction = predict(problem, fh.SA(0.5))
    assert prediction.floor > 0.25
    assert prediction.reach(0.25).rounds == np.argmax(law <= 0.25)


def test_the_mean_square_radius_is_that_of_the_map_of_second_moments():
    """One agent, one step a round: E[(I + eta A) x (I + eta A)] as a Kronecker product, also where it oscillates."""
    rng = np.random.default_rng(1)
    A = np.array([[[1.0, -3.0], [3.0, 1.0]], [[1.5, -2.0], [2.5, 0.5]]])
    problem = fh.problems.finite_sum.from_arrays(A[None], rng.normal(size=(1, 2, 2)), np.full((1, 2, 2), 0.5)).iid()
    F = np.eye(2) - 0.01 * A
    expected = abs(np.linalg.eigvals(sum(np.kron(f, f) for f in F) / 2)).max()
    found = predict(problem, fh.SA(0.01))
    assert found.mean_square_radius == pytest.approx(expected, rel=1e-9)
    assert found.rate == pytest.approx(np.sqrt(expected), rel=1e-9)


def test_the_mean_square_radius_of_larger_problems_is_at_least_the_squared_spectral_radius():
    prediction = predict(td.random(4, 8, 6, laziness=0.5).iid(), fh.FedHSA(0.0005, 2))
    assert prediction.mean_square_radius is not None
    assert prediction.spectral_radius**2 <= prediction.mean_square_radius * (1 + 1e-9) < 1


def test_a_record_is_predicted_from_its_pieces():
    problem = td.random(2, 3, 2, key=1)
    states = np.random.default_rng(0).integers(3, size=(2, 4001))
    record = problem.replay(fh.sources.Transition(states[:, :-1], states[:, 1:]))
    assert predict(record, fh.FedHSA(0.01, 3)).basis == "samples"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fh.LocalSA(0.1, 2), fh.LocalSA(5.0, 20)], ids=["stable", "diverging"])
def test_predictions_are_json(algorithm):
    values = json.loads(json.dumps(predict(CASES["td"]().problem, algorithm).to_dict(), allow_nan=False))
    assert values["algorithm"] == "LocalSA"
    assert values["stable"] == (algorithm.step_size < 1)
    assert len(values["markov_bias"]) == 4


def test_a_schedule_has_no_law_of_all_rounds():
    with pytest.raises(TypeError, match="require a constant step size, got a schedule"):
        fh.theory.exact.limit(CASES["td"]().problem, fh.FedHSA(fh.Polynomial(1.0), 2))


class Unknown(fh.AbstractSource):
    """A source that keeps the law of another to itself."""

    source: fh.AbstractSource

    def init(self, key, /):
        return self.source.init(key)

    def step(self, key, state, /):
        return self.source.step(key, state)


@pytest.mark.slow
@pytest.mark.parametrize("method", [fh.FedHSA, fh.LocalSA])
def test_a_problem_known_only_by_samples_is_predicted_within_its_interval(method):
    """The floor to first order from samples, against the same from the kernels; the interval is at 95 %."""
    problem, algorithm = td.random(3, 4, 2, laziness=0.5, key=2), method(0.002, 5)
    hidden = eqx.tree_at(lambda p: p.agents.source, problem, Unknown(problem.agents.source))
    prediction, truth = predict(hidden, algorithm, samples=5000), predict(problem, algorithm)
    assert prediction.basis == "samples"
    assert prediction.interval is not None
    low, high = prediction.interval
    assert low < prediction.floor < high
    spread = (high - low) / 2
    assert abs(prediction.floor - truth.floor) < 2 * spread
    assert spread < 0.1 * truth.floor


def switching(switch, M, rng, *, spread=None):
    """Scalar agents on chains with two states, which switch with this probability."""
    mean, spread = rng.uniform(0.5, 1.2), rng.uniform(0.1, 1.0) if spread is None else spread
    A = (mean + spread * np.array([1, -1]) * rng.uniform(0.7, 1.3, (M, 1)))[..., None, None]
    b = rng.uniform(0.5, 1.5, (M, 1, 1)) * np.array([[1.0], [-1.0]])
    P = np.array([[1 - switch, switch], [switch, 1 - switch]])
    return finite_sum.from_arrays(A, b, np.tile(P, (M, 1, 1)))


@pytest.mark.parametrize(("switch", "spread", "step"), [(0.5, 3.0, 0.05), (0.05, 1.0, 0.05), (0.01, 0.6, 0.02)])
def test_what_a_prediction_from_samples_leaves_out_covers_its_error(switch, spread, step):
    """Estimates without sampling error: two states with the correlation c have a long-run factor of (1+c)/(1-c)."""
    problem, algorithm = switching(switch, 2, np.random.default_rng(0), spread=spread), fh.SynchronisedSA(step)
    A, g = (np.asarray(part).reshape(2, 2) for part in (-problem.agents.A, problem.agents.b))
    c = 1 - 2 * switch
    values = A * problem.root + g
    noise, slope, long = values - values.mean(1, keepdims=True), A - A.mean(1, keepdims=True), (1 + c) / (1 - c)
    lagged = (slope * noise).mean(1)[:, None] * c ** np.arange(2000)
    estimates = Estimates(
        problem.root, A.mean(1)[:, None, None], values.mean(1)[:, None], long * (noise**2).mean(1)[:, None, None],
        lagged[..., None], long * (slope**2).mean(1)[:, None, None], np.zeros(2), np.ones(2), samples=long,
    )  # fmt: skip
    names = ("theta", "jacobians", "residuals", "long_run", "lagged", "slopes")
    twice = {name: np.repeat(getattr(estimates, name)[None], 2, axis=0) for name in names}
    estimates = dataclasses.replace(estimates, each=dataclasses.replace(estimates, **twice))
    found = Prediction(problem, algorithm, SampledLaw.of(problem, algorithm, estimates))
    floor, truth = found.law.stationary().square, predict(problem, algorithm).floor
    assert found.interval is not None
    low, high = found.interval
    assert abs(truth / floor - 1) > 0.05  # else there is nothing to cover
    assert low < truth < high * (1 + 1e-9) < 4 * truth
    assert found.error_after(0) == pytest.approx(problem.root @ problem.root)
    assert found.error_after(10_000) == pytest.approx(floor)
    if switch == 0.5:  # independent observations
        assert high == pytest.approx(truth, rel=1e-9)


def test_a_method_whose_matrices_are_very_noisy_is_not_called_stable_from_samples():
    problem = switching(0.01, 1, np.random.default_rng(0), spread=2.0)
    hidden = eqx.tree_at(lambda p: p.agents.source, problem, Unknown(problem.agents.source))
    with pytest.warns(PredictionWarning, match="Whether SA is stable is unknown: the noise in the operators' matrices"):
        found = predict(hidden, fh.SA(0.1), samples=20_000)
    assert found.stable is None
    assert np.isnan(found.floor)
    assert not predict(problem, fh.SA(0.1)).stable


def test_a_method_that_diverges_in_the_mean_is_called_unstable_from_samples():
    problem = switching(0.3, 1, np.random.default_rng(0), spread=0.1)
    hidden = eqx.tree_at(lambda p: p.agents.source, problem, Unknown(problem.agents.source))
    assert predict(hidden, fh.SA(5.0), samples=2000).stable is False


@pytest.mark.slow
def test_intervals_from_samples_of_slow_chains_contain_the_exact_floor():
    """At least 90 %, and no prediction that is wrong by more than 10 % without a warning."""
    rng, covered, silent = np.random.default_rng(3), [], []
    for switch, M, step, H, method in itertools.product(
        (0.01, 0.05, 0.3), (1, 4), (0.01, 0.05), (1, 4), (fh.LocalSA, fh.FedHSA)
    ):
        problem, algorithm = switching(switch, M, rng), method(step, local_steps=H)
        hidden = eqx.tree_at(lambda p: p.agents.source, problem, Unknown(problem.agents.source))
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            found = predict(hidden, algorithm)
        if found.stable:
            truth = predict(problem, algorithm).floor
            assert found.interval is not None
            covered.append(found.interval[0] < truth < found.interval[1])
            silent.append(not given and abs(found.floor / truth - 1) > 0.1)
    assert len(covered) >= 36
    assert np.mean(covered) >= 0.9
    assert not any(silent)


def recorded(problem, length, rng):
    """The problem as known from a record of its chains, which begin in their stationary distributions."""
    chain = problem.agents.source
    states = [[rng.choice(len(pi), p=pi)] for pi in chain.stationary]
    for path, P in zip(states, np.asarray(chain.transition), strict=True):
        for _ in range(length - 1):
            path.append(rng.choice(len(P), p=P[path[-1]]))
    return problem.replay(np.array(states))


def test_a_record_of_137_observations_has_a_prediction_with_an_interval_and_one_of_99_says_what_is_missing():
    problem, rng = switching(0.3, 1, np.random.default_rng(0)), np.random.default_rng(0)
    with pytest.warns(UserWarning, match="45 steps are too few for their correlation.*Use more steps, or a longer"):
        found = predict(recorded(problem, 137, rng), fh.SA(0.01))
    assert found.interval is not None
    low, high = found.interval
    assert low < predict(problem, fh.SA(0.01)).floor < high < 4 * found.floor
    assert f"interval {low:.3g} to {high:.3g})" in repr(found)
    with pytest.raises(ValueError, match="record has 99 observations per agent, and at least 100 are needed"):
        predict(recorded(problem, 99, rng), fh.SA(0.01))


@pytest.mark.filterwarnings("ignore:.*steps are too few")
def test_a_record_without_noise_is_not_taken_for_a_stream_without_noise():
    problem = switching(0.01, 1, np.random.default_rng(0))
    with pytest.warns(PredictionWarning, match="The floor of SA is 0 if there is no noise: the samples contain none"):
        assert predict(problem.replay(np.zeros((1, 137), int)), fh.SA(0.01)).floor == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_intervals_from_short_records_contain_the_exact_floor():
    """At least 90 %, on three states in two dimensions."""
    rng, covered = np.random.default_rng(5), []
    for seed, laziness, M in itertools.product(range(15), (0.0, 0.8), (1, 3)):
        problem = finite_sum.random(M, 3, 2, key=seed, laziness=laziness)
        found = predict(recorded(problem, 137, rng), fh.LocalSA(0.02, local_steps=3))
        if found.interval is not None:
            low, high = found.interval
            covered.append(low < predict(problem, fh.LocalSA(0.02, local_steps=3)).floor < high)
    assert len(covered) >= 50
    assert np.mean(covered) >= 0.9


def test_rounding_does_not_grow_on_the_way_to_the_floor():
    """A large server step: what second moments differ from their transposes grew threefold a round."""
    problem = td.random(8, 6, 3, key=0, laziness=0.4)
    prediction = predict(problem, fh.FedHSA(0.00443, 5, server_step=4.0))
    path = [moments.square for moments in prediction.law.path(-problem.theta_star, 60)]
    np.testing.assert_array_less(path[1:], path[:-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "steps"),
    [
        (td.random(2, 3, 2, key=0, laziness=0.8), (0.4, 0.1)),
        (quadratic.random(3, 2, key=0), (0.1, 0.02)),
        (td.random(3, 4, 2, key=1).iid(), (0.3, 0.1)),
    ],
)
def test_steps_in_stages_are_predicted_round_by_round(problem, steps):
    """Sticky chains, VAR(1) noise and independent sampling: within 4 standard errors of 2000 seeds in every round."""
    algorithm = fh.FedHSA(fh.Stages(steps, (10,)), 5)
    prediction = predict(problem, algorithm)
    errors = fh.simulate(problem, algorithm, rounds=20, seeds=2000, key=5).error[:, 1:]
    spread = errors.std(0, ddof=1) / np.sqrt(len(errors))
    assert (abs(errors.mean(0) - prediction.error(20)[1:]) < 4 * spread).all()
    assert prediction.floor == predict(problem, fh.FedHSA(steps[1], 5)).floor
