import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import fedhsa as fh
from cases import CASES
from fedhsa.problems import _roots, finite_sum, quadratic, td
from fedhsa.sources import FiniteChain


@pytest.mark.parametrize("case", CASES)
def test_the_mean_operator_is_the_stationary_mean_of_the_noisy_one(case):
    """Against sums over the model in NumPy, with the naive operators; exactly, no sampling."""
    problem, G, _ = CASES[case]()
    theta = np.linspace(-1, 2, problem.dim)
    for i, mean in enumerate(problem.mean_operators(theta)):
        if case == "quadratic":
            expected = G(i, theta, 0.0)
        elif case in ("td", "q-learning"):
            chain = problem.agents.source.chain
            pi, P = chain.stationary[i], chain.transition[i]
            pairs = [(s, t) for s in range(len(pi)) for t in range(len(pi))]
            expected = sum(pi[s] * P[s, t] * G(i, theta, (s, t)) for s, t in pairs)
        else:
            pi = problem.agents.source.stationary[i]
            expected = sum(p * G(i, theta, s) for s, p in enumerate(pi))
        np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_the_root_is_a_root_and_so_are_the_local_ones(case):
    problem, _, _ = CASES[case](2)
    assert abs(problem.mean_operator(problem.theta_star)).max() < 1e-12
    for i, root in enumerate(problem.local_roots):
        assert abs(problem.mean_operators(root)[i]).max() < 1e-10
        np.testing.assert_allclose(problem.take([i]).theta_star, root, atol=1e-9)


def test_the_logistic_root_is_the_minimum_scipy_finds():
    problem = CASES["logistic"]().problem
    agents = problem.agents

    def loss(theta):
        margins = agents.labels * np.einsum("mnd,d->mn", agents.inputs, theta)
        fit = (agents.source.stationary * np.logaddexp(0, -margins)).sum(1).mean()
        return fit + agents.regularisation[0] / 2 * theta @ theta

    found = optimize.minimize(loss, np.zeros(problem.dim), tol=1e-12)
    np.testing.assert_allclose(problem.theta_star, found.x, atol=1e-6)


def test_a_jacobian_that_is_singular_up_to_rounding_has_no_unique_root():
    _roots._check_jacobian(np.diag([-1.0, -1e-11]), True)
    with pytest.raises(ValueError, match=r"The average operator has no unique root: .* is 1e-13, the largest 1"):
        _roots._check_jacobian(np.diag([-1.0, -1e-13]), True)


def test_td_roots_with_full_features_are_the_value_function():
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(4), size=4)
    R = rng.normal(size=(4, 4))
    problem = td.from_arrays(P[None], R[None], np.eye(4)[None], 0.9)
    value = np.linalg.solve(np.eye(4) - 0.9 * P, (P * R).sum(1))
    np.testing.assert_allclose(problem.theta_star, value, rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_more_agents_extend_a_problem(case):
    few, many = CASES[case](2).problem, CASES[case](3).problem
    theta = np.ones(few.dim)
    np.testing.assert_array_equal(many.mean_operators(theta)[:2], few.mean_operators(theta))
    assert not np.array_equal(few.theta_star, many.theta_star)


@pytest.mark.parametrize("case", CASES)
def test_heterogeneity_zero_makes_operators_and_chain_laws_equal(case):
    problem = CASES[case](3, heterogeneity=0.0).problem
    values = problem.mean_operators(np.ones(problem.dim))
    np.testing.assert_allclose(values, values[:1].repeat(3, axis=0), rtol=1e-13)
    source = problem.agents.source
    kernel = source.chain.transition if hasattr(source, "chain") else source.transition
    np.testing.assert_allclose(kernel, kernel[:1].repeat(3, axis=0), atol=1e-14)
    unlike = CASES[case](3).problem.mean_operators(np.ones(problem.dim))
    assert np.ptp(unlike, axis=0).min() > 1e-3


def test_the_scripts_level_scales_only_the_offsets():
    plain, level = quadratic.random(3, 2, key=4), quadratic.random(3, 2, b_level=100.0, key=4)
    np.testing.assert_array_equal(plain.agents.A, level.agents.A)
    assert np.std(level.agents.b) > 20 * np.std(plain.agents.b)
    # What is added for each unit of the level is normal and independent of the rest: 1200 numbers, within 4 errors.
    plain, level = (quadratic.draw(300, 4, 1.0, 1.0, b_level, 0.5, True, 0)[1] for b_level in (0.0, 3.0))
    added = (level - plain).ravel() / 3
    assert abs(added.std() - 1) < 4 / np.sqrt(2 * 1200)
    assert abs(np.corrcoef(added, plain.ravel())[0, 1]) < 4 / np.sqrt(1200)


@pytest.mark.parametrize("key", [0, 1, 2])
def test_nonconvex_agents_have_a_convex_average_over_every_prefix(key):
    problem = quadratic.random(25, 4, convex=False, key=key)
    A = problem.agents.A
    assert np.linalg.eigvalsh(A[0])[0] > 0
    assert (np.linalg.eigvalsh(A[1:])[:, 0] < 0).all()
    prefixes = np.cumsum(A, axis=0) / np.arange(1, 26)[:, None, None]
    assert np.linalg.eigvalsh(prefixes)[:, 0].min() > 0.1
    spectrum = quadratic.spectrum(problem)
    np.testing.assert_allclose(spectrum.agents, np.linalg.eigvalsh(A))
    np.testing.assert_allclose(spectrum.average, np.linalg.eigvalsh(A.mean(0)))
    np.testing.assert_array_equal(quadratic.random(7, 4, convex=False, key=key).agents.A, A[:7])


def test_the_papers_generators_have_the_stated_spectra():
    A = quadratic.random(5, 6, min_eigenvalue=0.3).agents.A
    np.testing.assert_allclose(np.linalg.eigvalsh(A)[:, 0], 0.3)
    source = quadratic.random(5, 6).agents.source
    np.testing.assert_allclose(abs(np.linalg.eigvals(source.transition)).max(1), 1 / 1.2)
    A = finite_sum.random(2, 3, 6).agents.A
    np.testing.assert_allclose(np.linalg.eigvalsh(A)[..., [0, -1]], np.broadcast_to([1.0, 10.0], (2, 3, 2)))
    P = finite_sum.random(2, 7, 3).agents.source.transition
    np.testing.assert_allclose(P.sum(1), 1, atol=1e-12)


def test_laziness_keeps_the_stationary_law_and_slows_the_chain():
    quick, slow = td.random(2, 8, 3), td.random(2, 8, 3, laziness=0.9)
    quick, slow = quick.agents.source.chain, slow.agents.source.chain
    np.testing.assert_allclose(quick.stationary, slow.stationary, rtol=1e-9)
    np.testing.assert_allclose(slow.transition, 0.1 * quick.transition + 0.9 * np.eye(8))


@pytest.mark.parametrize("case", CASES)
def test_noiseless_and_iid_problems_keep_their_means(case):
    problem = CASES[case]().problem
    theta = np.ones(problem.dim)
    for variant in (problem.noiseless(), problem.iid()):
        np.testing.assert_array_equal(variant.theta_star, problem.theta_star)
        np.testing.assert_allclose(variant.mean_operators(theta), problem.mean_operators(theta), rtol=1e-12)
    quiet = fh.simulate(problem.noiseless(), fh.SynchronisedSA(0.1), rounds=1, theta=theta)
    np.testing.assert_allclose(quiet.theta[0], theta + 0.1 * problem.mean_operator(theta), rtol=1e-13)


def test_a_user_problem_takes_ten_lines():
    class Median(fh.AbstractAgent):
        """A smoothed median: tanh instead of sign."""

        source: fh.AbstractSource
        values: np.ndarray

        def operator(self, theta, o, /):
            return jnp.tanh(self.values[o] - theta)

    P = np.full((3, 3), 1 / 3)
    agents = [Median(FiniteChain(P), np.array(v)) for v in ([0.0, 1.0, 9.0], [1.0, 2.0, 3.0])]
    problem = fh.Problem(agents, like=np.zeros(()))
    root = optimize.brentq(lambda t: np.tanh(np.array([0, 1, 9, 1, 2, 3]) - t).sum(), 0, 9, xtol=1e-14)
    np.testing.assert_allclose(problem.theta_star, [root], atol=1e-10)
    result = fh.simulate(problem, fh.FedHSA(0.02, 5), rounds=400, seeds=4)
    assert result.error[:, -1].max() < 0.2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: quadratic.from_arrays(np.eye(2), np.zeros((1, 2))),
            r"`A` must have shape \(M, d, d\), got \(2, 2\)",
        ),
        (
            lambda: quadratic.from_arrays([np.eye(2)], np.zeros((1, 3))),
            r"`b` must have shape \(1, 2\), got \(1, 3\)",
        ),
        (
            lambda: quadratic.from_arrays([np.eye(2)], [[0, np.inf]]),
            r"`b` must be finite, got inf at index \(0, 1\)",
        ),
        (lambda: quadratic.from_arrays("A", [[0.0]]), r"`A` must be an array of numbers, got str"),
        (
            lambda: quadratic.from_arrays([np.diag([1.0, 0.0])], np.zeros((1, 2))),
            r"average of `A`.*smallest is 0",
        ),
        (
            lambda: quadratic.from_arrays([np.diag([1.0, -2.0]), np.eye(2)], np.zeros((2, 2))),
            r"average of `A` must have eigenvalues with positive real parts, but its smallest is -0.5 \(the smallest "
            r"of any agent is -2\)",
        ),
        (lambda: quadratic.random(0), r"`num_agents` must be at least 1, got 0"),
        (lambda: quadratic.random(2, heterogeneity=1.5), r"`heterogeneity` must be at most 1.0, got 1.5"),
        (lambda: quadratic.random(2, 1, convex=False), r"`dim` must be at least 2 for `convex=False`"),
        (lambda: td.random(2, 3, 5), r"`dim` must be at most `num_states`, got 5 > 3"),
        (lambda: td.random(2, 3, 2, laziness=1.0), r"`laziness` must be below 1"),
        (
            lambda: td.from_arrays(np.full((1, 2, 2), 0.5), [[0, 1]], [np.eye(2)], 1.0),
            r"`discount` must lie in \[0, 1\), got 1.0 for agent 0",
        ),
        (
            lambda: td.from_arrays(np.full((1, 2, 2), 0.5), [[0, 1]], np.ones((1, 2, 2)), 0.5),
            r"`features` must have full column rank 2 on the states that the chains visit, got 1",
        ),
        (
            lambda: finite_sum.from_arrays(np.ones((1, 2, 1, 1)), np.ones((1, 2, 1)), [[[0.9, 0.1], [0.5, 0.5]]]),
            r"`P` must have a uniform stationary distribution, but agent 0 visits.*from 0.167 to 0.833",
        ),
        (
            lambda: finite_sum.random(2, 2, 3, eigenvalues=(2.0, 1.0)),
            r"`eigenvalues` must be \(smallest, largest\)",
        ),
        (
            lambda: fh.problems.logistic.from_arrays(np.ones((1, 2, 1)), [[0, 1]], np.full((1, 2, 2), 0.5)),
            r"`labels` must be -1 or 1, got \[0. 1.\]",
        ),
        (lambda: fh.Problem([]), r"`agents` must list at least one agent, got none"),
        (lambda: fh.Problem(quadratic.random(2, 2).agents), r"Give `like`, an example of the parameter"),
    ],
)
def test_bad_problems_are_raise_with_a_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_average_without_a_unique_root_is_refused():
    A = -np.array([[[1.0, 0.0], [0.0, 0.0]]])
    with pytest.raises(ValueError, match=r"has no unique root: the smallest singular value of its Jacobian is 0"):
        fh.Problem(fh.problems.base.AffineAgent(fh.sources.Silent(), A, np.zeros((1, 2))), like=np.zeros(2))


def test_an_average_that_is_not_monotone_is_warned_of():
    # Eigenvalues 1 and 1, but a symmetric part with eigenvalues -1 and 3.
    with pytest.warns(UserWarning, match=r"not monotone.*Assumption 2 of the paper fails"):
        quadratic.from_arrays([[[1.0, 4.0], [0.0, 1.0]]], np.zeros((1, 2)))


def test_a_root_that_repels_is_warned_of():
    class Wrong(fh.AbstractAgent):
        source: fh.AbstractSource
        target: np.ndarray

        def operator(self, theta, o, /):
            return theta - self.target

    with pytest.warns(UserWarning, match=r"The root is unstable.*Check the sign of the operator"):
        fh.Problem(Wrong(FiniteChain(np.full((1, 2, 2), 0.5)), np.ones((1, 1))), like=np.zeros(1))


def test_an_operator_without_a_root_is_refused_with_its_residual():
    class Rootless(fh.AbstractAgent):
        source: fh.AbstractSource
        one: np.ndarray

        def operator(self, theta, o, /):
            return self.one + theta**2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"No root of the average operator was found from `like`: the residual is"):
            fh.Problem(Rootless(FiniteChain(np.full((1, 2, 2), 0.5)), np.ones((1, 1))), like=np.zeros(1))
