"""What theory says of the further local rules: where they end, which methods they become, what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import fedhsa as fh
from cases import CASES
from fedhsa.algorithms.local import operator_elsewhere
from fedhsa.algorithms.multilevel import estimator_weight


def path(problem, algorithm, rounds=15, **options):
    result = fh.simulate(problem, algorithm, rounds=rounds, theta=np.ones(problem.dim), record=("theta",), **options)
    return result.records["theta"]


def local_sa_limit(problem, step_size, local_steps):
    """The root of mean_i [(I + eta A_i)^H - I] (theta - theta_i*), where noiseless Local SA ends."""
    A, _ = problem.affine_parts()
    pull = np.stack([np.linalg.matrix_power(np.eye(problem.dim) + step_size * a, local_steps) for a in A])
    pull = pull - np.eye(problem.dim)
    return np.linalg.solve(pull.mean(0), np.einsum("mij,mj->mi", pull, problem.local_roots).mean(0))


@pytest.mark.slow
def test_dissacc_without_noise_makes_one_synchronised_step_per_round():
    problem = CASES["quadratic"]().problem.noiseless()
    synchronised = path(problem, fh.SynchronisedSA(0.05))
    for H in (1, 4):
        np.testing.assert_allclose(path(problem, fh.DisSACC(0.05, H)), synchronised, rtol=1e-13)


@pytest.mark.slow
def test_one_gap_is_local_sa_and_so_are_equal_ones():
    problem = CASES["td"]().problem
    local = path(problem, fh.LocalSA(0.05, 4), rounds=6, seeds=2)
    np.testing.assert_allclose(path(problem, fh.GappedSA(0.05, (4,)), rounds=6, seeds=2), local, rtol=1e-13)
    np.testing.assert_allclose(path(problem, fh.GappedSA(0.05, (4, 4)), rounds=3, seeds=2), local[:, ::2], rtol=1e-13)


def test_one_shot_averaging_ends_at_the_mean_of_the_local_roots():
    problem = CASES["quadratic"]().problem
    result = fh.simulate(problem.noiseless(), fh.OneShotAveraging(0.1, 50), rounds=200, every=200)
    target = problem.local_roots.mean(0)
    np.testing.assert_allclose(result.theta[0], target, atol=1e-9)
    assert abs(target - problem.theta_star).max() > 1e-3


def test_one_shot_averaging_sends_nothing_that_a_channel_could_change():
    with pytest.raises(TypeError, match="send nothing"):
        fh.Lossy(fh.OneShotAveraging(0.1, 4), 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("probability", [1.0, 0.3])
def test_local_svrg_has_no_noise_floor(probability):
    """Markov observations of unlike agents, a constant step: FedHSA stays at its floor, SVRG goes to the root."""
    problem = CASES["finite-sum"]().problem
    svrg = fh.simulate(problem, fh.LocalSVRG(0.02, 5, probability), rounds=1500, every=500, seeds=2)
    assert (svrg.error[:, -1] < 1e-18).all()
    if probability == 1:
        anchored = fh.simulate(problem, fh.FedHSA(0.02, 5), rounds=1500, every=500, seeds=2)
        assert (anchored.error[:, -1] > 1e-6).all()


@pytest.mark.slow
def test_mc_sag_has_no_noise_floor_for_equal_agents_and_one_for_unlike_ones():
    algorithm = fh.MCSAG(0.02, num_components=3, local_steps=5)
    options = {"rounds": 1500, "every": 500, "seeds": 2}
    for problem in (CASES["finite-sum"](heterogeneity=0.0).problem, CASES["finite-sum"](1).problem):
        assert (fh.simulate(problem, algorithm, **options).error[:, -1] < 1e-18).all()
    assert (fh.simulate(CASES["finite-sum"]().problem, algorithm, **options).error[:, -1] > 1e-8).all()


@pytest.mark.slow
def test_mc_sag_aims_at_the_uniform_average_whatever_the_chain_visits():
    problem, G, _ = CASES["logistic"](1)
    uniform = optimize.root(lambda theta: np.mean([G(0, theta, n) for n in range(6)], axis=0), np.zeros(4), tol=1e-13)
    result = fh.simulate(problem, fh.MCSAG(0.1, num_components=6, local_steps=5), rounds=3000, every=3000)
    np.testing.assert_allclose(result.theta[0], uniform.x, atol=1e-9)
    assert abs(uniform.x - problem.theta_star).max() > 1e-3


def test_mc_sag_refuses_problems_without_its_components():
    problem = CASES["finite-sum"]().problem
    with pytest.raises(ValueError, match="`num_components` must be 3, the number of components of the problem, got 4"):
        fh.cost(problem, fh.MCSAG(0.1, 4, 5))
    for other, source in ((CASES["td"]().problem, "Transitions"), (problem.noiseless(), "Silent")):
        with pytest.raises(ValueError, match=f"numbers of components, from a FiniteChain, got those of {source}"):
            fh.simulate(other, fh.MCSAG(0.1, 3, 5), rounds=1)
    fh.MCSAG(0.1, 3, 5).check(problem.iid())


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("highest", [0, 1, 4])
def test_the_multilevel_estimator_is_the_mean_of_the_longest_batch_on_average(batch, highest):
    """The sum over all J of P(J) g(J) on one list of operators, by the weights that the algorithm uses."""
    operators = np.random.default_rng(batch).normal(size=(batch << highest, 2))
    mean = np.zeros(2)
    for J in range(highest + 1):  # J = 0 stands for all that are too high
        chance = 2.0**-J if J else 2.0**-highest
        places = jnp.arange(1, (batch << J) + 1)
        weights = np.asarray(estimator_weight(places, jnp.asarray(batch << J), batch))
        estimate = weights @ operators[: batch << J] / batch
        g = [operators[: batch << j].mean(0) for j in range(J + 1)]
        np.testing.assert_allclose(estimate, g[0] + 2**J * (g[J] - g[J - 1]) if J else g[0], atol=1e-13)
        mean += chance * estimate
    np.testing.assert_allclose(mean, operators.mean(0), atol=1e-13)


def test_batches_double_in_length_half_as_often():
    """20000 draws; the standard error of a frequency is at most 0.0035, and the tolerance four of them."""
    algorithm = fh.MultilevelSA(0.1, samples=40_000, batch=2, max_level=3)
    sizes = np.asarray(algorithm._batch_sizes(jax.random.key(0)))[::2]
    frequencies = [np.mean(sizes == size) for size in (4, 8, 16, 2)]
    np.testing.assert_allclose(frequencies, [1 / 2, 1 / 4, 1 / 8, 1 / 8], atol=0.014)
    assert sum(frequencies) == pytest.approx(1)


@pytest.mark.slow
def test_multilevel_steps_of_level_zero_are_local_sa():
    problem = CASES["td"]().problem
    local = path(problem, fh.LocalSA(0.05, 4), rounds=6, seeds=2)
    np.testing.assert_allclose(path(problem, fh.MultilevelSA(0.05, 4, max_level=0), rounds=6, seeds=2), local)


def test_operators_elsewhere_are_weighed_by_how_much_likelier_the_observation_is_there():
    """An observation seen at 1 with the likelihood exp(theta): at 1.5 it weighs exp(0.5), and at most its bound."""

    class Seen:
        def log_ratio(self, old, new, o):
            return old - new

        def weighted_operator(self, theta, o, weights):
            return weights * o

    def elsewhere(theta, bound=None):
        return float(operator_elsewhere(Seen(), jnp.asarray(theta), 2.0, jnp.asarray(1.0), bound))

    assert elsewhere(1.5) == pytest.approx(2 * np.exp(0.5), rel=1e-6)
    assert elsewhere(0.5, 1.2) == pytest.approx(2 * np.exp(-0.5), rel=1e-6)
    assert elsewhere(1.5, 1.2) == pytest.approx(2.4, rel=1e-6)


def test_momentum_keeps_the_bias_of_local_sa_for_every_beta():
    problem = CASES["quadratic"]().problem
    limit = local_sa_limit(problem, 0.05, 5)
    assert np.linalg.norm(limit - problem.theta_star) > 1e-2
    for beta in (1.0, 0.5, 0.1):
        result = fh.simulate(problem.noiseless(), fh.MomentumSA(0.05, 5, beta), rounds=3000, every=3000)
        np.testing.assert_allclose(result.theta[0], limit, atol=1e-10)


@pytest.mark.slow
def test_momentum_with_beta_one_is_local_sa():
    problem = CASES["td"]().problem
    local = path(problem, fh.LocalSA(0.05, 4), rounds=6, seeds=2)
    np.testing.assert_allclose(path(problem, fh.MomentumSA(0.05, 4, 1.0), rounds=6, seeds=2), local, rtol=1e-13)


def test_variance_reduced_steps_do_not_feel_additive_noise():
    """It cancels where one observation is seen at two parameters: only the batch, here of three, is felt."""
    problem, _, record = CASES["quadratic"]()
    first, _ = record(30, np.random.default_rng(1))
    later = np.arange(30) % 5 >= 3
    second = np.where(later[None, :, None], first + 10.0, first)
    method = fh.VarianceReducedSA(0.05, local_steps=2, batch=3)
    paths = [path(problem.replay(observations), method, rounds=6) for observations in (first, second)]
    np.testing.assert_allclose(paths[1], paths[0], rtol=1e-12)


@pytest.mark.slow
def test_decentralised_scaffnew_with_everyone_for_neighbours_is_scaffnew():
    problem = CASES["quadratic"]().problem
    graph = fh.graphs.Complete(problem.num_agents)
    expected = path(problem, fh.Scaffnew(0.05, 0.4))
    np.testing.assert_allclose(path(problem, fh.DecentralisedScaffnew(0.05, 0.4, graph)), expected, rtol=1e-12)


def test_personalised_agents_have_the_floor_of_the_two_clocks():
    """Equal scalars with independent noise of variance 1: the mean error has the step eta and the noise 1/M, what the
    errors differ by has the step beta eta and the rest of the noise. Within four standard errors of 256 seeds."""
    M, eta, beta = 8, 0.4, 0.2
    problem = fh.problems.quadratic.from_arrays(
        np.ones((M, 1, 1)), np.arange(M)[:, None], np.zeros((M, 1, 1)), np.ones(M)
    )
    assert np.ptp(problem.local_roots) == M - 1
    run = fh.simulate(
        problem,
        fh.PersonalisedSA(eta, beta, M),
        rounds=200,
        every=200,
        seeds=256,
        record={"own": fh.PersonalisedSA.own_error(problem)},
    )
    expected = eta / M / (2 - eta) + (1 - 1 / M) * beta * eta / (2 - beta * eta)
    own = run.records["own"][:, -1]
    assert abs(own.mean() - expected) < 4 * own.std(ddof=1) / np.sqrt(len(own))


def test_what_follows_the_parameter_is_not_replayed():
    problem = fh.problems.sarsa.random(2, num_states=3, num_actions=2)
    with pytest.raises(TypeError, match="replayed observations were made under another parameter"):
        fh.simulate(problem, fh.Replayed(fh.LocalSA(0.1, 4), 8), rounds=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fh.DisSACC(0.0, 4), "`step_size` must be greater than 0.0, got 0.0"),
        (lambda: fh.GappedSA(0.1, ()), r"`gaps` must be a tuple of whole numbers, got \(\). Use for instance"),
        (lambda: fh.GappedSA(0.1, (3, 0)), "`gaps` must be at least 1, got 0. Each gap is a number of local steps"),
        (lambda: fh.LocalSVRG(0.1, 4, 1.5), "`probability` must be at most 1.0, got 1.5"),
        (lambda: fh.MCSAG(0.1, 0, 4), "`num_components` must be at least 1, got 0"),
        (lambda: fh.MultilevelSA(0.1, 7, batch=2), "`samples` must be a multiple of `batch`, got 7 and 2"),
        (lambda: fh.VarianceReducedSA(0.1, 4, 0), "`batch` must be at least 1, got 0"),
        (lambda: fh.PersonalisedSA(0.1, 0.0, 3), "`beta` must be greater than 0.0, got 0.0"),
        (lambda: fh.DecentralisedScaffnew(0.1, 0.5, 3), "`graph` must be a graph, got 3. For instance `Ring"),
        (lambda: fh.MomentumSA(0.1, 4, 0.0), "`beta` must be greater than 0.0, got 0.0"),
    ],
)
def test_settings_without_meaning_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
