import math

import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.problems import finite_sum, td
from fedhsa.theory import bounds, constants, measure

SYMBOLS = {"M": 2, "H": 5, "eta": 0.02, "L": 3.0, "mu": 0.5, "sigma": 2.0}  # alpha = 0.1
MARKOV = SYMBOLS | {"rho": 0.5, "tau_bar": 4.0}


def test_theorems_are_the_numbers_worked_out_by_hand():
    """alpha L^2 / (mu M H) = 0.18, alpha^2 L^4 / mu^2 = 3.24, sigma^2 = 4."""
    assert bounds.theorem_1(T=40, d_0=3.0, **SYMBOLS) == pytest.approx(3 * math.exp(-1) + (0.18 + 3.24) * 4)
    assert bounds.theorem_1_step(H=5, L=3.0, mu=0.5, C=2.0) == pytest.approx(0.5 / 180)
    expected = math.exp(-1) * (3 + 4) + (4 / 0.5 * 0.18 + 3.24) * 4
    assert bounds.theorem_2(T=80, d_0=3.0, **MARKOV) == pytest.approx(expected)
    assert bounds.theorem_2(T=80, d_0=3.0, constant=7.0, **MARKOV) == pytest.approx(7 * expected)
    assert bounds.theorem_2_step(H=5, L=3.0, mu=0.5, tau_bar=4.0) == pytest.approx(0.5 / 180)


def test_lemmas_are_the_numbers_worked_out_by_hand():
    """alpha L = 0.3, alpha = 0.1, MH = 10, 1 - rho = 1/2; error 3, drift 0.7."""
    error, drift = 3.0, 0.7
    markov = {k: v for k, v in MARKOV.items() if k not in ("tau_bar", "mu")}
    assert bounds.operator_size(distance=1.5, L=3.0, sigma=2.0) == pytest.approx(4 * 3 * 3.5)
    biased = bounds.mixing_bias(distance=1.5, tau=2, L=3.0, sigma=2.0, rho=0.5, c=1.25)
    assert biased == pytest.approx(4 * 1.25 * 3 * 0.25 * 3.5)
    assert bounds.drift(error=error, H=5, eta=0.02, L=3.0, sigma=2.0, constant=2.0) == pytest.approx(2 * 0.09 * 7)
    noise = 9 * 4 * (1e-6 + 1.25 * 0.01 / 5)
    reduced = bounds.variance_reduction(error=error, drift=drift, c=1.25, constant=2.0, **markov)
    assert reduced == pytest.approx(2 * (0.09 * 3.7 + noise))
    iid = bounds.one_step_iid(error=error, drift=drift, constant=2.0, **SYMBOLS)
    assert iid == pytest.approx(0.95 * 3 + 2 * (0.09 * 3.4 + (1.8 + 0.09) * 0.7))
    step = bounds.one_step_markov(error=error, drift=drift, bias=0.1, c=1.25, constant=2.0, mu=0.5, **markov)
    assert step == pytest.approx(0.95 * 3 + 2 * (0.09 * 3 + (0.09 + 1.8) * 0.7 + noise) + 0.1)
    moved = bounds.parameter_change(error=error, constant=2.0, **{k: v for k, v in MARKOV.items() if k != "mu"})
    assert moved == pytest.approx(2 * 16 * (0.09 * 3 + (0.0081 + 0.09 / 5) * 4))
    cubic, linear = 81e-3 / 0.5, 4 * 0.09
    bias = bounds.markov_bias(error=error, constant=2.0, **MARKOV)
    assert bias == pytest.approx(0.025 * 3 + 2 * ((linear + cubic) * 3 + (cubic + linear / 5) * 4))
    final = bounds.one_step(error=error, constant=2.0, **MARKOV)
    assert final == pytest.approx(0.975 * 3 + 2 * (linear * 3 + (linear / 5 + cubic) * 4))


def test_the_constants_of_lemmas_are_those_of_their_proofs():
    """The drift is (e H eta 3 L (x + 2 y))^2 at most, with (x + 2 y)^2 <= 5 (x^2 + y^2); the others are products."""
    assert pytest.approx((3 * np.e) ** 2 * 5) == bounds.DRIFT
    assert (bounds.ONE_STEP_IID, bounds.MARKOV) == (4 + 80, 6 * 2 * 4**2)


def test_the_corollary_is_theorem_2_at_its_step():
    """With T large enough, 16 log^2 covers what Theorem 2 gives at eta = 4 log(MHT) / (mu H T)."""
    M, H, L, mu, sigma, rho, tau_bar, T = 3, 5, 1.5, 0.5, 2.0, 0.4, 6.0, 10**5
    eta = fh.corollary_step(mu, M, H, T)
    asked = bounds.corollary_1_rounds(T=T, M=M, H=H, L=L, mu=mu, rho=rho, tau_bar=tau_bar)
    assert asked == pytest.approx(9 * max(24 * math.log(15e5), 15 * 0.6 / 6))
    assert asked < T
    shared = {"T": T, "d_0": 1.0, "M": M, "H": H, "L": L, "mu": mu, "sigma": sigma, "rho": rho, "tau_bar": tau_bar}
    assert bounds.theorem_2(eta=eta, **shared) < bounds.corollary_1(**shared)
    expected = 16 * math.log(15e5) ** 2 * (1 + 6 * 2.25 * 4 / (0.25 * 0.6)) / 15e5
    assert bounds.corollary_1(**shared) == pytest.approx(expected)


def test_proposition_1_is_right_by_hand_and_where_local_sa_goes():
    """Two scalar agents, G_1 = 1 - theta and G_2 = -3 theta: theta* = 1/4, local roots 1 and 0.

    A = -2, A' = 5, and A_1^2 (1 - 1/4) + A_2^2 (0 - 1/4) = 3/4 - 9/4, halved -3/4; so v = -(3/4) / (-4 + 5 eta).
    """
    eta, A, b = 0.1, np.array([[[-1.0]], [[-3.0]]]), np.array([[-1.0], [0.0]])
    np.testing.assert_allclose(bounds.proposition_1(A, b, eta), [eta * (3 / 4) / (4 - 5 * eta)])
    theta = np.array([5.0])
    for _ in range(200):  # two steps by each agent from the average, no noise
        ends = [theta + eta * (a @ theta - r) for a, r in zip(A, b, strict=True)]
        theta = np.mean([x + eta * (a @ x - r) for x, a, r in zip(ends, A, b, strict=True)], axis=0)
    np.testing.assert_allclose(theta - 1 / 4, bounds.proposition_1(A, b, eta), rtol=1e-9)


@pytest.mark.parametrize("case", ["quadratic", "td", "finite-sum"])
def test_proposition_1_is_the_exact_limit_of_local_sa(case):
    problem = CASES[case]().problem
    limit = fh.theory.exact.limit(problem, fh.LocalSA(0.02, 2)) - problem.theta_star
    np.testing.assert_allclose(bounds.proposition_1(*problem.affine_parts(), 0.02), limit, rtol=1e-8)


def test_proposition_1_needs_no_local_roots_and_refuses_divergence():
    A, b = np.array([[[0.0]], [[-2.0]]]), np.array([[1.0], [-3.0]])
    assert bounds.proposition_1(A, b, 0.1) == pytest.approx(0.1 * (-2 * (-3 + 2)) / 2 / (-2 + 0.2))
    with pytest.raises(ValueError, match=r"`eta` is too large, got 3.0.*spectral radius 13, so Local SA diverges"):
        bounds.proposition_1(A, b, 3.0)


def test_a_mu_above_one_counts_as_one_and_one_below_zero_is_refused():
    assert bounds.theorem_1(T=9, d_0=1.0, **SYMBOLS | {"mu": 5.0}) == bounds.theorem_1(
        T=9, d_0=1.0, **SYMBOLS | {"mu": 1}
    )
    with pytest.raises(ValueError, match=r"`mu` must be positive, got -0.1: without Assumption 2"):
        bounds.theorem_1_step(H=1, L=1.0, mu=-0.1)


PROBLEMS = {
    "finite-sum": lambda: finite_sum.random(4, 3, 3, eigenvalues=(1.0, 2.0), laziness=0.5, key=1),
    "td": lambda: td.random(4, 5, 2, key=1),
}


BOTH = ["finite-sum", pytest.param("td", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=BOTH)
def markov_run(request):
    """FedHSA at the largest step of Theorem 2, everything its proof speaks of recorded: 40 seeds from a far start."""
    problem = PROBLEMS[request.param]()
    c, H = constants(problem), 4
    algorithm = fh.FedHSA(bounds.largest_step(c, H), H)
    record = {"bias": measure.bias, "drift": measure.drift, "variance": measure.variance, "theta": lambda s: s.theta}
    run = fh.simulate(
        problem, measure.Measured(algorithm), rounds=600, seeds=40, theta=problem.theta_star + 3, record=record
    )
    return problem, c, algorithm, run


@pytest.mark.slow
def test_theorem_2_and_its_lemmas_hold_in_simulation(markov_run):
    """Means over 40 seeds, below the bounds by much more than their standard errors; this is the calibration."""
    _, c, algorithm, run = markov_run
    tau_bar = int(max(1, c.tau((algorithm.local_steps * algorithm.step_size) ** 2)))
    error, t = run.error.mean(0), np.arange(run.error.shape[1])
    late = t[:-1] >= 2 * tau_bar

    def feed(bound, **others):
        return bounds.evaluate(bound, c, algorithm, **others)

    assert (error <= feed(bounds.theorem_2, T=t, d_0=error[0]))[t >= 2 * tau_bar].all()
    before, after = error[:-1], error[1:]
    bias, drift, variance = (run.records[name].mean(0)[1:] for name in ("bias", "drift", "variance"))
    assert (run.records["drift"][:, 1:] <= feed(bounds.drift, error=run.error[:, :-1])).all()
    assert (variance <= feed(bounds.variance_reduction, error=before, drift=drift))[late].all()
    assert (after <= feed(bounds.one_step_markov, error=before, drift=drift, bias=bias))[late].all()
    compared = measure.compare_bias(run, c, algorithm)
    np.testing.assert_allclose(compared.bound, feed(bounds.markov_bias, error=before))
    assert (bias - 4 * compared.standard_error <= compared.bound)[late].all()
    per_seed = run.records["bias"][:, 1:][:, late].mean(1)
    assert per_seed.mean() + 4 * per_seed.std(ddof=1) / np.sqrt(len(per_seed)) <= compared.bound[late].mean()
    assert (after <= feed(bounds.one_step, error=before))[late].all()
    moved = ((run.records["theta"][:, tau_bar:] - run.records["theta"][:, :-tau_bar]) ** 2).sum(-1).mean(0)
    assert (moved <= feed(bounds.parameter_change, error=error[tau_bar:]))[tau_bar:].all()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_theorem_1_holds_in_simulation(name):
    """I.i.d. sampling at the theorem's largest step, 40 seeds, from far and from the root; and its one-step lemma."""
    problem = PROBLEMS[name]().iid()
    c, H = constants(problem), 4
    algorithm = fh.FedHSA(bounds.theorem_1_step(H=H, L=c.L, mu=c.mu), H)
    for start in (problem.theta_star + 3, problem.theta_star):
        settings = {"rounds": 200, "seeds": 40, "theta": start, "record": {"drift": measure.drift}}
        run = fh.simulate(problem, measure.Measured(algorithm), **settings)
        error, drift = run.error.mean(0), run.records["drift"].mean(0)
        bound = bounds.evaluate(bounds.theorem_1, c, algorithm, T=np.arange(201), d_0=error[0])
        assert (error <= bound * (1 + 1e-12)).all()
        step = bounds.evaluate(bounds.one_step_iid, c, algorithm, error=error[:-1], drift=drift[1:])
        assert (error[1:] <= step).all()


def test_what_is_left_of_a_bias_is_bounded_at_every_distance_in_time():
    """E[G(theta, o_k) | o_0] from explicit powers of the kernel, for all starts, against eq. mixing_time."""
    problem, G, _ = CASES["finite-sum"](laziness=0.6)
    c, P, rng = constants(problem), problem.agents.source.transition, np.random.default_rng(0)
    for theta in rng.normal(size=(5, problem.dim)):
        distance = np.linalg.norm(theta - problem.theta_star)
        for i in range(problem.num_agents):
            values = np.array([G(i, theta, o) for o in range(3)])
            for tau in range(1, 30):
                left = np.linalg.norm(np.linalg.matrix_power(P[i], tau) @ values - values.mean(0), axis=1).max()
                bound = bounds.mixing_bias(
                    distance=distance, tau=tau, L=c.L, sigma=c.sigma, rho=c.geometric.rho[i], c=c.geometric.c[i]
                )
                assert left <= bound + 1e-12
            assert (
                np.linalg.norm(values, axis=1) <= bounds.operator_size(distance=distance, L=c.L, sigma=c.sigma) / 2
            ).all()


def test_the_largest_step_is_consistent_with_its_own_mixing_time(markov_run):
    _, c, algorithm, _ = markov_run
    eta, H = algorithm.step_size, algorithm.local_steps
    tau_bar = c.tau((H * eta) ** 2)
    assert eta == pytest.approx(bounds.theorem_2_step(H=H, L=c.L, mu=c.mu, tau_bar=tau_bar))
    larger = 1.01 * eta
    assert larger > bounds.theorem_2_step(H=H, L=c.L, mu=c.mu, tau_bar=c.tau((H * larger) ** 2))


def test_only_fed_hsa_with_constant_steps_is_fed(markov_run):
    _, c, _, _ = markov_run
    for algorithm in (fh.LocalSA(0.1, 2), fh.FedHSA(fh.Polynomial(1.0), 2)):
        with pytest.raises(TypeError, match=r"bounds are for FedHSA with a constant step size, got"):
            bounds.evaluate(bounds.theorem_1, c, algorithm, T=1, d_0=1.0)
    with pytest.raises(ValueError, match=r"bounds are for `server_step` 1, got 0.5"):
        bounds.evaluate(bounds.theorem_1, c, fh.FedHSA(0.1, 2, 0.5), T=1, d_0=1.0)


def test_theorem_2_of_a_problem_is_its_formula_fed_with_the_constants_of_the_problem(markov_run):
    problem, c, algorithm, run = markov_run
    T = np.arange(100, run.error.shape[1])
    found = fh.theory.theorem_2(problem, algorithm, rounds=T, theta=problem.theta_star + 3)
    by_hand = bounds.theorem_2(
        T=T,
        d_0=9.0 * problem.dim,
        M=problem.num_agents,
        H=algorithm.local_steps,
        eta=algorithm.step_size,
        L=c.L,
        mu=c.mu,
        sigma=c.sigma,
        rho=c.rho,
        tau_bar=max(1.0, c.tau((algorithm.local_steps * algorithm.step_size) ** 2)),
    )
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)
    assert (run.error.mean(0)[100:] <= found).all()
    one = fh.theory.theorem_2(problem, algorithm, rounds=100, theta=problem.theta_star + 3, constants=c)
    assert one == found[0]


def test_theorem_1_of_a_problem_holds_under_independent_sampling_and_is_refused_for_chains(markov_run):
    problem, _, algorithm, _ = markov_run
    independent = problem.iid()
    run = fh.simulate(independent, algorithm, rounds=50, seeds=10)
    assert (run.error.mean(0)[1:] <= fh.theory.theorem_1(independent, algorithm, rounds=np.arange(1, 51))).all()
    with pytest.raises(ValueError, match=r"Theorem 1 does not apply. .*: Sampling is markov"):
        fh.theory.theorem_1(problem, algorithm, rounds=50)


def test_a_theorem_gives_no_number_where_a_condition_fails(markov_run):
    problem, c, algorithm, _ = markov_run
    H, eta = algorithm.local_steps, algorithm.step_size
    with pytest.raises(ValueError, match=r"Theorem 2 does not apply. Theorem 2: step: eta = .* >"):
        fh.theory.theorem_2(problem, fh.FedHSA(1.01 * eta, H), rounds=1000, constants=c)
    with pytest.raises(ValueError, match=r"Theorem 2: rounds: 2 tau_bar = .* > T = 1\."):
        fh.theory.theorem_2(problem, algorithm, rounds=[1, 1000], constants=c)
    with pytest.raises(TypeError, match=r"bounds are for FedHSA with a constant step size, got LocalSA"):
        fh.theory.theorem_2(problem, fh.LocalSA(eta, H), rounds=1000, constants=c)
    gaussian = CASES["quadratic"]().problem
    with pytest.raises(ValueError, match=r"Assumption 1: growth: The noise of agent 0 is Gaussian"):
        fh.theory.theorem_2(gaussian, fh.FedHSA(1e-6, H), rounds=1000)
    with pytest.raises(ValueError, match=r"`rounds` must be a whole number, got 10.5"):
        fh.theory.theorem_2(problem, algorithm, rounds=10.5, constants=c)


@pytest.mark.slow
def test_a_theorem_with_sampled_constants_warns():
    problem = fh.problems.logistic.random(2, 2, 2)
    with pytest.warns(UserWarning, match=r"Theorem 2 may not apply.*Lipschitz: Sampled.*Assumption 2: Sampled"):
        assert fh.theory.theorem_2(problem, fh.FedHSA(1e-9, 2), rounds=10**6) > 0


def test_without_geometric_mixing_there_is_no_largest_step():
    with pytest.raises(ValueError, match=r"Theorem 2 requires chains that mix geometrically \(Assumption 3\)"):
        bounds.largest_step(constants(CASES["quadratic"]().problem), 4)


def test_corollary_1_asks_for_the_larger_of_two_numbers_of_rounds():
    """4 C' tau log(MHT) = 4 log(10^4) = 36.8 against MH(1 - rho) / tau = 500; a tau of 100 makes it 3684 against 5."""
    settings = {"T": 10, "M": 100, "H": 10, "L": 1.0, "mu": 1.0, "rho": 0.5}
    assert bounds.corollary_1_rounds(tau_bar=1.0, **settings) == pytest.approx(500)
    assert bounds.corollary_1_rounds(tau_bar=100.0, **settings) == pytest.approx(400 * np.log(1e4))
