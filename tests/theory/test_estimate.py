import functools
import itertools

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

import fedhsa as fh
from cases import CASES
from fedhsa.theory.samples import long_run
from fedhsa.theory.samples.estimate import estimate


def deviations(repeats, truth):
    """How many standard errors the mean over the leading axis is from the truth, at worst."""
    error = repeats.std(0, ddof=1) / np.sqrt(len(repeats))
    return abs((repeats.mean(0) - truth) / np.where(error > 0, error, 1e-12)).max()


def var1_series(Q, repeats, length, rng, burn_in=300):
    x, out = np.zeros((repeats, len(Q))), np.empty((repeats, length, len(Q)))
    for t in range(-burn_in, length):
        x = x @ Q.T + rng.normal(size=x.shape)
        if t >= 0:
            out[:, t] = x
    return out


@pytest.mark.parametrize("kernel", long_run.KERNELS)
@pytest.mark.parametrize("Q", [[[0.0, 0.0], [0.0, 0.0]], [[0.8, 0.1], [-0.3, 0.5]], [[-0.6, 0.0], [0.0, 0.9]]], ids=str)
def test_the_long_run_covariance_of_a_var1_is_its_closed_form(Q, kernel):
    """40 series of 2000 steps against (I - Q)^-1 (I - Q)^-T: within 5 standard errors, and within 26 % of the trace,
    which is 4 standard errors sqrt(2 b / 2000 / 40) at the largest of the bandwidths b, about 170."""
    Q = np.array(Q)
    gain = np.linalg.inv(np.eye(2) - Q)
    series = var1_series(Q, 40, 2000, np.random.default_rng(1))
    bandwidth = long_run.choose_bandwidth(series, kernel=kernel)
    found = long_run.long_run_covariance(series, kernel=kernel, bandwidth=bandwidth)
    assert deviations(found, gain @ gain.T) < 5
    np.testing.assert_allclose(found.mean(0), gain @ gain.T, atol=0.26 * np.trace(gain @ gain.T))


def test_the_long_run_covariance_of_a_two_state_chain_is_its_closed_form():
    """Leaving with a and b, pi_0 pi_1 (1 + s) / (1 - s), s = 1 - a - b: 20 chains, within 4 standard errors."""
    a, b = 0.1, 0.2
    rng = np.random.default_rng(2)
    states = np.empty((20, 5000, 1))
    state = rng.random((20, 1)) < a / (a + b)
    for t in range(5000):
        states[:, t] = state
        state = np.where(state, rng.random((20, 1)) >= b, rng.random((20, 1)) < a)
    second = 1 - a - b
    truth = a * b / (a + b) ** 2 * (1 + second) / (1 - second)
    assert deviations(long_run.long_run_covariance(states)[:, 0, 0], truth) < 4


def test_slow_correlation_under_fast_noise_is_seen():
    """A tenth of the variance decays as 0.95^k and makes four fifths of the sum, at a lag-one correlation of 0.095."""
    rng = np.random.default_rng(3)
    slow = var1_series(np.array([[0.95]]), 20, 4000, rng) * np.sqrt(0.1 * (1 - 0.95**2))
    series = slow + np.sqrt(0.9) * rng.normal(size=slow.shape)
    truth = 0.9 + 0.1 * (1 + 0.95) / (1 - 0.95)
    bandwidth = long_run.choose_bandwidth(series)
    found = long_run.smooth_covariance(series, bandwidth).mean()
    assert found == pytest.approx(truth, rel=0.1)
    assert long_run._plug_in(np.array([0.095]), 80_000, "quadratic-spectral") < bandwidth / 10


def fitted(x):
    """The matrix of the least-squares fit of x_t to x_{t-1} and a constant."""
    return np.linalg.lstsq(np.column_stack([x[:-1], np.ones(len(x) - 1)]), x[1:], rcond=None)[0][:-1].T


@pytest.mark.parametrize("kernel", long_run.KERNELS)
def test_the_estimate_is_the_double_sum_of_its_definition(kernel):
    x, b = var1_series(np.array([[0.8, 0.1], [-0.3, 0.5]]), 1, 41, np.random.default_rng(4))[0], 6.5
    u = abs(np.subtract.outer(np.arange(40), np.arange(40))) / b
    if kernel == "bartlett":
        w = np.maximum(1 - u, 0)
    else:
        z = 6 * np.pi * np.where(u == 0, 1, u) / 5
        w = np.where(u == 0, 1, 25 / (12 * np.pi**2 * np.where(u == 0, 1, u) ** 2) * (np.sin(z) / z - np.cos(z)))
    A = fitted(x)
    e = x[1:] - x[:-1] @ A.T
    centred, gain = e - e.mean(0), np.linalg.inv(np.eye(2) - A)
    expected = gain @ (centred.T @ w @ centred / 40 / (1 - w.sum() / 40**2)) @ gain.T
    np.testing.assert_allclose(long_run.smooth_covariance(x, b, kernel), expected, rtol=1e-10)


def test_the_kernel_estimate_of_prewhitened_residuals_is_that_of_another_package():
    """Against `arch`, which does not correct for the estimated mean: the factor 1 - S/n, with its weights, is ours."""
    from arch.covariance.kernel import QuadraticSpectral

    x, n = var1_series(np.array([[0.8, 0.1], [-0.3, 0.5]]), 1, 400, np.random.default_rng(8))[0], 399
    A = fitted(x)
    theirs = QuadraticSpectral(x[1:] - x[:-1] @ A.T, bandwidth=12.0, center=True, force_int=False)
    weights = np.asarray(theirs.kernel_weights)
    spent = (2 * np.sum(weights * (1 - np.arange(n) / n)) - 1) / n
    gain = np.linalg.inv(np.eye(2) - A)
    expected = gain @ np.asarray(theirs.cov.long_run) @ gain.T / (1 - spent)
    np.testing.assert_allclose(long_run.smooth_covariance(x, 12.0), expected, rtol=1e-10)


def test_repetitions_share_the_fit_and_each_has_its_own_covariance():
    """One least-squares fit over both repetitions, written out; in units in which one component is a million times as
    large, the answer is the same."""
    x = var1_series(np.array([[0.7, 0.2], [0.0, 0.4]]), 2, 200, np.random.default_rng(9))
    before, now = x[:, :-1].reshape(-1, 2), x[:, 1:].reshape(-1, 2)
    A = np.linalg.lstsq(np.column_stack([before, np.ones(398)]), now, rcond=None)[0][:2].T
    fit, residuals = long_run._prewhiten(x)
    np.testing.assert_allclose(fit, A, rtol=1e-10)
    np.testing.assert_allclose(residuals, x[:, 1:] - x[:, :-1] @ A.T, rtol=1e-9)
    found, units = long_run.smooth_covariance(x, 20.0), np.array([1.0, 1e6])
    assert abs(found[0] - found[1]).max() > 0.1
    np.testing.assert_allclose(long_run.smooth_covariance(x * units, 20.0), found * np.outer(units, units), rtol=1e-9)


def test_a_fit_near_a_unit_root_is_shrunk():
    """A line has the fit 1, whose inverse of I - A is infinite; the largest singular value kept is 0.97."""
    fit, _ = long_run._prewhiten(np.arange(200.0)[:, None])
    np.testing.assert_allclose(fit, 0.97, rtol=1e-12)


def test_noise_that_fills_a_subspace_has_the_same_covariance_whatever_its_mean():
    """Nothing is fitted to rounding: three values in four dimensions, as of three observations."""
    rng = np.random.default_rng(5)
    series = rng.normal(size=(3, 4))[rng.integers(3, size=1000)].reshape(2, 500, 4)
    series -= series.mean((0, 1))
    found = long_run.smooth_covariance(series, 5.0)
    np.testing.assert_allclose(long_run.smooth_covariance(series + 0.3, 5.0), found, rtol=1e-9)


@pytest.mark.parametrize("slow", [0.95, 0.98])
def test_prewhitening_removes_the_bias_of_the_kernel_on_slow_chains(slow):
    """Series of 4000 steps against (1 + a) / (1 - a) per variance: the mean of 64 within 4 of its standard errors, and
    95 % intervals over 8 of them cover. Without prewhitening the bias at 0.98 is 7 %, or two standard errors."""
    series = lfilter([1.0], [1.0, -slow], np.random.default_rng(10).normal(size=(64, 5000)))[:, 1000:, None]
    groups = series.reshape(8, 8, 4000, 1) * (1 - slow)
    found = np.array([long_run.smooth_covariance(x, long_run.choose_bandwidth(x))[:, 0, 0] for x in groups])
    assert deviations(found.reshape(-1, 1), 1.0) < 4
    assert found.mean() == pytest.approx(1, abs=0.1)
    low, high = stats.t.interval(0.95, 7, found.mean(1), stats.sem(found, axis=1))
    assert np.sum((low < 1) & (high > 1)) >= 5  # fewer of 8 would happen once in 170 times


@pytest.mark.parametrize("kernel", long_run.KERNELS)
def test_the_estimate_is_positive_semi_definite_at_any_bandwidth(kernel):
    x = np.random.default_rng(5).normal(size=(120, 4)).cumsum(0)
    for bandwidth in (0.5, 3.0, 40.0, 1000.0):
        values = np.linalg.eigvalsh(long_run.smooth_covariance(x, bandwidth, kernel))
        assert values.min() >= -1e-12 * values.max()


def test_a_constant_has_no_covariance():
    x = np.full((200, 2), 0.1)
    assert long_run.choose_bandwidth(x) == 1
    np.testing.assert_allclose(long_run.long_run_covariance(x), 0, atol=1e-30)


def test_a_series_too_short_for_its_correlation_is_said_so():
    series = var1_series(np.array([[0.99]]), 1, 1000, np.random.default_rng(6))[0]
    with pytest.warns(UserWarning, match=r"1000 steps are too few.*series 0 are worth about \d+ .*more steps"):
        long_run.long_run_covariance(series)


def pair_kernel(P):
    """The chain of transitions (s, s'), in the order s * S + s'."""
    S = len(P)
    K = np.zeros((S * S, S * S))
    for s, t, u in itertools.product(range(S), repeat=3):
        K[s * S + t, t * S + u] = P[t, u]
    return K


def finite_truth(P, outcomes, G, theta, K):
    """A, r, Gamma and the lagged products of an affine operator on a chain, by sums over its kernel alone."""
    values, vectors = np.linalg.eig(P.T)
    pi = np.real(vectors[:, np.argmax(values.real)])
    pi = pi / pi.sum()
    g = np.array([G(theta, o) for o in outcomes])
    J = np.array([[G(theta + u, o) - G(theta, o) for u in np.eye(len(theta))] for o in outcomes]).swapaxes(1, 2)
    A, r = np.einsum("s,sab->ab", pi, J), pi @ g
    eps = g - r
    fundamental = np.linalg.inv(np.eye(len(P)) - P + pi)
    half = (pi[:, None] * eps).T @ fundamental @ eps
    gamma = half + half.T - (pi[:, None] * eps).T @ eps
    powers = itertools.accumulate(range(K), lambda Q, _: Q @ P, initial=np.eye(len(P)))
    lagged = [np.einsum("s,st,tab,sb->a", pi, Q, J - A, eps) for Q in powers]
    return A, r, gamma, np.array(lagged)


@functools.cache
def known(name, laziness=0.7):
    """A problem with visible correlation, and the truth about its agents."""
    case, theta = CASES[name](), CASES[name]().problem.theta_star
    if name == "td":
        old = case.problem.agents
        S = old.features.shape[1]
        P = laziness * np.eye(S) + (1 - laziness) * old.source.chain.transition
        problem = fh.problems.td.from_arrays(P, old.rewards, old.features, old.discount)
        kernels, outcomes = [pair_kernel(p) for p in P], list(itertools.product(range(S), repeat=2))
    else:
        old = case.problem.agents
        P = laziness * np.eye(3) + (1 - laziness) * old.source.transition
        problem = fh.problems.finite_sum.from_arrays(old.A, old.b, P)
        kernels, outcomes = P, range(3)
    theta = problem.theta_star
    truth = [finite_truth(K, outcomes, functools.partial(case.G, i), theta, 40) for i, K in enumerate(kernels)]
    return problem, [np.array(part) for part in zip(*truth, strict=True)]


@functools.cache
def estimated(name):
    return estimate(known(name)[0], samples=2500, replications=32, lags=40, key=5)


def parts(estimates):
    return estimates.jacobians, estimates.residuals, estimates.long_run, estimates.lagged


@pytest.mark.parametrize("name", ["td", pytest.param("finite-sum", marks=pytest.mark.slow)])
def test_estimates_equal_sums_over_the_kernels(name):
    """32 replications of 2500: every entry within 5 standard errors, and small beside the largest."""
    truth = known(name)[1]
    each = estimated(name).replications
    for found, expected in zip(parts(each), truth, strict=True):
        assert deviations(found, expected) < 5
        np.testing.assert_allclose(found.mean(0), expected, atol=0.08 * abs(expected).max())


@pytest.mark.parametrize("name", ["td", pytest.param("finite-sum", marks=pytest.mark.slow)])
def test_what_enters_floor_and_bias_lies_in_its_interval(name):
    """99.9 % intervals of tr(Abar^-1 mean Gamma), of all later lags together and of the mean residual."""
    truth, found = known(name)[1], estimated(name)
    functions = (
        lambda A, r, gamma, lagged: np.trace(np.linalg.solve(A.mean(0), gamma.mean(0))),
        lambda A, r, gamma, lagged: np.linalg.solve(A.mean(0), lagged[:, 1:].sum(1).mean(0)),
        lambda A, r, gamma, lagged: r.mean(0),
    )
    for function in functions:
        _, low, high = found.interval(lambda e, f=function: f(*parts(e)), level=0.999)
        assert ((low < function(*truth)) & (function(*truth) < high)).all()


@pytest.mark.slow
def test_lags_end_where_the_correlation_has_died():
    """By default at half the bandwidth, where the sum over the kernel is below a hundredth of the first."""
    problem, truth = known("finite-sum")
    found = estimate(problem, samples=2500, replications=32, key=5)
    last = np.ceil(found.bandwidth / 2).astype(int)
    assert found.lagged.shape[1] == last.max() + 1
    for i, k in enumerate(last):
        assert (found.lagged[i, k + 1 :] == 0).all()
        assert (found.lagged[i, k] != 0).all()
        assert abs(truth[3][i][min(k, 40)]).max() < 0.01 * abs(truth[3][i][0]).max()


@pytest.mark.slow
def test_a_record_gives_the_plain_sums_over_its_pieces():
    """Against loops over time: 2 pieces of 1100 steps, over two stretches. A record that wraps is no longer."""
    problem, G, record = CASES["finite-sum"]()
    replayed, listed = record(2200, np.random.default_rng(7))
    found = estimate(problem.replay(replayed), replications=2, lags=3)
    theta, d = problem.theta_star, problem.dim
    for i in range(problem.num_agents):
        g = np.array([G(i, theta, o) for o in listed[i]]).reshape(2, 1100, d)
        J = np.array([-problem.agents.A[i][o] for o in listed[i]]).reshape(2, 1100, d, d)
        eps, tilde = g - g.mean((0, 1)), J - J.mean((0, 1))
        products = [np.einsum("rtab,rtb->ra", tilde[:, k:], eps[:, : 1100 - k]) / (1100 - k) for k in range(4)]
        np.testing.assert_allclose(found.replications.residuals[:, i], g.mean(1), atol=1e-12)
        np.testing.assert_allclose(found.replications.jacobians[:, i], J.mean(1), atol=1e-12)
        np.testing.assert_allclose(found.replications.lagged[:, i], np.stack(products, axis=1), atol=1e-12)
        direct = long_run.long_run_covariance(g, bandwidth=found.bandwidth[i])
        np.testing.assert_allclose(found.replications.long_run[:, i], direct, rtol=1e-9)
    again = estimate(problem.replay(replayed, wrap=True), replications=2, lags=3)
    assert (again.lagged == found.lagged).all()


class Drift(fh.sources.AbstractSource):
    """x' = 0.8 x + u with u uniform on [-1, 1], from far away: a stream that cannot say what its stationary law is."""

    start: np.ndarray

    def init(self, key, /):
        return self.start

    def step(self, key, state, /):
        return 0.8 * state + jax.random.uniform(key, (), state.dtype, -1.0, 1.0), state


class Cubic(fh.AbstractAgent):
    """G = c + x - (1 + x/2) w - w^3."""

    source: fh.sources.AbstractSource
    c: np.ndarray

    def operator(self, theta, o, /):
        w = theta["w"]
        return {"w": self.c + o - (1 + o / 2) * w - w**3}


def cubic(c=(1.5, 2.5)):
    """The root of w + w^3 = mean c = 2 is 1."""
    agents = [Cubic(Drift(np.asarray(9.0)), np.asarray(value)) for value in c]
    return fh.Problem(agents, theta_star={"w": np.ones(())})


VARIANCE = (1 / 3) / (1 - 0.8**2)
LONG_RUN = 0.5**2 * VARIANCE * (1 + 0.8) / (1 - 0.8)
"""At the root, epsilon = x / 2 and the derivative's noise is -x / 2."""


def test_a_stream_without_a_known_law_is_estimated():
    """A nonlinear operator on a user's own source, any pytree: 64 replications of 1000, within 5 standard errors."""
    found = [estimate(cubic(), samples=1000, lags=8, key=key) for key in range(8)]
    all_parts = zip(*(parts(f.replications) for f in found), strict=True)
    jacobians, residuals, covariances, lagged = (np.concatenate(part) for part in all_parts)
    assert deviations(jacobians, np.full((2, 1, 1), -4.0)) < 5
    assert deviations(residuals, np.array([[-0.5], [0.5]])) < 5
    assert deviations(covariances, np.full((2, 1, 1), LONG_RUN)) < 5
    assert deviations(lagged, np.tile((-0.25 * VARIANCE * 0.8 ** np.arange(9))[:, None], (2, 1, 1))) < 5
    np.testing.assert_allclose(covariances.mean(0), LONG_RUN, rtol=0.1)
    np.testing.assert_allclose(np.mean([f.effective_samples for f in found], axis=0), 8 * 1000 / 9, rtol=0.1)


def test_a_method_on_a_stream_without_a_known_law_is_predicted_from_samples():
    """To first order its variance is the step size times the long-run covariance over 2 |A| M."""
    found = fh.theory.predict(cubic(), fh.SynchronisedSA(0.001), samples=1000)
    assert (found.basis, found.stable) == ("samples", True)
    np.testing.assert_allclose(found.jacobians, np.full((2, 1, 1), -4.0), rtol=0.1)
    assert found.noise_variance == pytest.approx(0.001 * LONG_RUN / (2 * 4 * 2), rel=0.25)


def test_a_root_that_is_not_known_is_found_from_the_samples():
    """From w = -0.2, each replication its own: the residuals average to zero there, and the interval has the root 1."""
    found = estimate(cubic(), samples=1000, lags=8, theta={"w": -0.2})
    _, low, high = found.interval(lambda e: e.theta[0], level=0.999)
    assert low < 1 < high
    assert high - low < 0.2
    np.testing.assert_allclose(found.replications.residuals.mean(1), 0, atol=1e-9)


def coverage(repetitions, **options):
    """How often 95 % intervals hold the long-run variance, the Jacobian and the sum of lags."""
    problem, covered = cubic(), []
    truth = np.array([LONG_RUN, -4.0, -0.25 * VARIANCE * 0.8 * (1 - 0.8**8) / 0.2])
    for key in range(repetitions):
        _, low, high = estimate(problem, samples=1000, lags=8, key=key, **options).interval(
            lambda e: np.array([e.long_run[0, 0, 0], e.jacobians.mean(), e.lagged[1, 1:].sum()])
        )
        covered.append((low < truth) & (truth < high))
    return np.mean(covered, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("theta", [None, {"w": 0.5}], ids=["root known", "root found"])
def test_intervals_cover_the_truth_at_their_level_over_many_repetitions(theta):
    """In 200 repetitions: within 3 binomial standard errors of 95 %, less 2 % for the kernel's bias."""
    error = np.sqrt(0.05 * 0.95 / 200)
    covered = coverage(200, theta=theta)
    assert covered.min() > 0.95 - 0.02 - 3 * error
    assert covered.max() < 0.95 + 3 * error


def test_the_interval_of_a_linear_function_is_students():
    found = estimated("td")
    r = found.replications.residuals[:, 0, 0]
    value, low, high = found.interval(lambda e: e.residuals[0, 0], level=0.9)
    expected = stats.t.interval(0.9, len(r) - 1, loc=r.mean(), scale=stats.sem(r))
    np.testing.assert_allclose([value, low, high], [r.mean(), *expected], rtol=1e-9)


@pytest.mark.filterwarnings("ignore:100 steps are too few")
def test_an_agents_estimates_do_not_depend_on_the_other_agents():
    one, other = (estimate(cubic((1.5, c)), samples=100, lags=1) for c in (2.5, 9.0))
    for a, b in zip(parts(one), parts(other), strict=True):
        assert (a[0] == b[0]).all()


def test_too_few_samples_for_the_correlation_are_said_so():
    with pytest.warns(UserWarning, match=r"100 steps are too few.*agent \d are worth about \d+ .*\(2 of 2 agents"):
        estimate(cubic(), samples=100, lags=1)


def test_wrong_arguments_are_named():
    problem = CASES["td"]().problem
    recorded, _ = CASES["td"]().record(500, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"`samples` must be at least 100, got 50. Correlations"):
        estimate(problem, samples=50)
    with pytest.raises(ValueError, match=r"`replications` must be at least 2, got 1. Intervals require repetitions"):
        estimate(problem, replications=1)
    with pytest.raises(ValueError, match=r"`lags` must be at most 99, got 100"):
        estimate(problem, samples=100, lags=100)
    with pytest.raises(ValueError, match=r"`theta` must be shaped like the parameter, \(4,\)"):
        estimate(problem, theta=np.zeros(3))
    with pytest.raises(ValueError, match=r"record has 500 observations per agent, too few for 20 pieces of 33"):
        estimate(problem.replay(recorded), replications=20)
    with pytest.raises(ValueError, match=r"record has 500 .* `burn_in` discards 401. At least 100 are needed"):
        estimate(problem.replay(recorded), burn_in=401)
    with pytest.raises(ValueError, match=r"record has 500 observations per agent, too few for 2 pieces of 300"):
        estimate(problem.replay(recorded), samples=300, replications=2)
    with pytest.raises(ValueError, match=r"`iid`: Drift cannot sample from its stationary distribution. Override"):
        estimate(cubic().iid(), samples=100)
    with pytest.raises(ValueError, match=r"`series` must have at least 100 steps, got shape \(10, 1\)"):
        long_run.long_run_covariance(np.zeros((10, 1)))
    with pytest.raises(ValueError, match=r"A single replication has no interval. Use the object"):
        estimated("td").replications.interval(lambda e: e.theta)


def test_an_operator_that_is_not_finite_is_named_with_its_agent():
    problem = eqx.tree_at(lambda p: p.agents.c, cubic(), np.array([1.5, np.inf]))
    with pytest.raises(ValueError, match=r"operator of agent 1 is not finite at 800 of 800 observations"):
        estimate(problem, samples=100)
    with pytest.raises(ValueError, match=r"operator of agent 1 is not finite"):
        estimate(problem, samples=100, theta={"w": 0.5})


class Parabola(fh.AbstractAgent):
    source: fh.sources.AbstractSource
    c: np.ndarray

    def operator(self, theta, o, /):
        return self.c - theta**2


def parabola(c):
    return fh.Problem(Parabola(fh.sources.Silent(), np.full((2, 1), c)), theta_star=np.ones(1))


def test_agents_without_noise_have_none():
    found = estimate(parabola(1.0), samples=100)
    assert (found.jacobians == -2).all()
    for part in (found.residuals, found.long_run, found.lagged):
        assert (part == 0).all()


@pytest.mark.parametrize("start", [1.0, 3.0])
def test_a_root_that_is_not_there_is_not_found(start):
    with pytest.raises(ValueError, match=r"found no root of the sample average in 50 steps.*Start closer"):
        estimate(parabola(-1.0), samples=100, theta=[start])


def test_lagged_means_are_those_of_the_centred_products():
    """Written out for one repeat of five steps, with a mean matrix that is not symmetric."""
    rng = np.random.default_rng(0)
    matrices, noise = rng.normal(size=(5, 2, 2)), rng.normal(size=(1, 5, 2))
    mean = matrices.mean(0)
    sums = np.array([[sum(matrices[t] @ noise[0, t - k] for t in range(k, 5)) for k in range(3)]])
    expected = [np.mean([(matrices[t] - mean) @ noise[0, t - k] for t in range(k, 5)], axis=0) for k in range(3)]
    np.testing.assert_allclose(long_run.lagged_means(sums, mean, noise)[0], expected, rtol=1e-12)
