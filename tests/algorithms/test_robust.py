"""Rules in the place of the mean against other ways to compute them, and who is hostile to whom."""

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import fedhsa as fh
from cases import CASES, quadratic
from fedhsa.algorithms import parse
from loops import hostile

HSA = fh.FedHSA(0.03, 4)
MEDIAN = fh.rules.CoordinateMedian()
RULES = {
    "median": (MEDIAN, hostile.median),
    "trimmed mean": (fh.rules.TrimmedMean(0.2), hostile.trimmed_mean(0.2)),
    "median of means": (fh.rules.MedianOfMeans(4), hostile.median_of_means(4)),
    "geometric median": (fh.rules.GeometricMedian(30), hostile.geometric_median(30)),
    "filter": (fh.rules.ConcentrationFilter(0.5, 4), hostile.concentration_filter(0.5, 4, 0.3, 0.6)),
}


def apply(rule, x, counts=None):
    with jax.enable_x64(True):
        counts = np.full(len(x), True) if counts is None else counts
        return np.asarray(jax.jit(rule)(jax.numpy.asarray(x * counts[:, None]), jax.numpy.asarray(counts)))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_equals_its_loop_whoever_is_absent_or_far_away(name):
    rule, loop = RULES[name]
    rng = np.random.default_rng(0)
    for M, far in ((9, 0.0), (9, 1e150), (10, 30.0)):
        x = rng.standard_normal((M, 3))
        x[0] += far
        counts = np.arange(M) != 4
        for there in (counts, np.full(M, True), np.arange(M) == 2):
            np.testing.assert_allclose(apply(rule, x, there), loop(list(x[there])), rtol=1e-12, atol=1e-12)
    assert not apply(rule, x, np.full(M, False)).any()


def test_the_trimmed_mean_is_that_of_scipy_and_the_median_that_of_numpy():
    x = np.random.default_rng(1).standard_cauchy((21, 4))
    np.testing.assert_allclose(apply(MEDIAN, x), np.median(x, axis=0), rtol=1e-15)
    for share in (0.0, 0.1, 0.24, 0.49):
        found = apply(fh.rules.TrimmedMean(share), x)
        np.testing.assert_allclose(found, scipy.stats.trim_mean(x, share, axis=0), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("corner", [False, True])
def test_the_geometric_median_has_the_smallest_sum_of_distances(corner):
    """Against a general optimiser, to what one reaches; in the second case the minimum is itself one of the replies."""
    x = np.random.default_rng(2).standard_normal((15, 3)) + np.array([1.0, 0.0, 0.0])
    x[0] = 1e3
    if corner:
        x[1:8] = x[1]

    def total(z):
        return np.linalg.norm(x - z, axis=1).sum()

    found = apply(fh.rules.GeometricMedian(2000 if corner else 60), x)  # to a corner it is a long way
    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 4000, "maxfev": 8000}
    best = scipy.optimize.minimize(total, np.median(x, axis=0), method="Nelder-Mead", options=options)
    assert total(found) <= best.fun + 1e-9
    np.testing.assert_allclose(found, best.x, atol=1e-5)


def test_a_geometric_median_that_begins_at_a_reply_leaves_it_if_it_must():
    x = np.array([[0.0, 0.0], [0.4, 0.0], [-0.5, -2.3], [0.0, 0.9], [1.0, -0.5], [2.2, 1.9], [-0.2, -0.2]])
    assert not np.median(x, axis=0).any()

    def pull(z):
        away = x[(x != z).any(axis=1)] - z
        return np.linalg.norm((away / np.linalg.norm(away, axis=1, keepdims=True)).sum(0))

    assert pull(x[0]) > 1
    found = apply(fh.rules.GeometricMedian(400), x)
    assert found.any()
    assert pull(found) < 1e-8


def test_a_filter_without_a_majority_gives_zero():
    assert not apply(fh.rules.ConcentrationFilter(0.1), 10 * np.eye(5)).any()


@pytest.mark.slow
def test_replies_without_numbers_count_as_absent():
    problem, key = quadratic().problem, 3
    how = {"rounds": 5, "seeds": 2, "key": key, "record": ("theta",)}
    silent = fh.Byzantine(fh.Robust(HSA, MEDIAN), (1,), fh.attacks.NotFinite())
    found = fh.simulate(problem, silent, **how).records["theta"]
    assert np.isfinite(found).all()
    undefended = fh.Byzantine(HSA, (1,), fh.attacks.NotFinite())
    assert fh.simulate(problem, undefended, **how).status.tolist() == ["diverged"] * 2
    with jax.enable_x64(True):
        (exchange, _), server = fh.Robust(HSA, MEDIAN).exchanges, HSA.init(jax.numpy.zeros(2))[0]
        replies = fh.Replies(jax.numpy.array([[1.0, 2.0], [np.nan, 0.0], [3.0, np.inf], [5.0, 6.0], [9.0, 9.0]]))
        absent = fh.Replies(replies.values, jax.numpy.array([1.0, 1.0, 1.0, 1.0, 0.0]))
        means = [np.asarray(exchange.aggregate(server, r, None).g_bar).tolist() for r in (replies, absent)]
    assert means == [[5.0, 6.0], [3.0, 4.0]]


def test_the_mean_of_a_rule_that_trims_nobody_is_the_mean():
    problem = quadratic().problem
    how = {"rounds": 6, "record": ("theta",)}
    plain, robust = (
        fh.simulate(problem, a, **how).records["theta"] for a in (HSA, fh.Robust(HSA, fh.rules.TrimmedMean(0.0)))
    )
    np.testing.assert_allclose(robust, plain, rtol=1e-12)


def test_who_is_hostile_follows_from_the_share_or_is_listed():
    def hostile_of(share, M):
        return [i for i in range(M) if fh.Byzantine(HSA, share, fh.attacks.Zero()).hostile(i, M)]

    assert hostile_of(0.05, 20) == [19]
    assert hostile_of(0.3, 10) == [7, 8, 9]
    assert hostile_of([0, 2], 4) == [0, 2]
    with pytest.raises(ValueError, match=r"`share` of 0\.1 selects no agent among 3\. Use 0\.333333 for one agent"):
        fh.simulate(quadratic().problem, fh.Byzantine(HSA, 0.1, fh.attacks.Zero()), rounds=1)
    with pytest.raises(ValueError, match=r"`share` must be at most 2, got 3\. There are agents 0 to 2"):
        fh.simulate(quadratic().problem, fh.Byzantine(HSA, (3,), fh.attacks.Zero()), rounds=1)
    with pytest.raises(ValueError, match=r"`share` must be below 1\.0, got 1"):
        fh.Byzantine(HSA, 1, fh.attacks.Zero())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: fh.Robust(HSA, "median"),
            r"`rule` must be one of `fedhsa.rules`, like `CoordinateMedian\(\)`",
        ),
        (lambda: fh.Robust(HSA, (MEDIAN,)), "`rule` must have one entry for each exchange, operator, delta, got 1"),
        (lambda: fh.Byzantine(HSA, 0.1, None), "`attack` must be one of `fedhsa.attacks`"),
        (lambda: fh.rules.TrimmedMean(0.5), "`share` must be below 0.5"),
        (lambda: fh.rules.ConcentrationFilter(0.0), "`sigma` must be greater than 0"),
        (lambda: fh.attacks.SignFlip(-1.0), "`scale` must be greater than 0"),
    ],
)
def test_settings_that_make_no_sense_raise(make, reason):
    with pytest.raises(ValueError, match=reason):
        make()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Robust(SCAFFLSA, CoordinateMedian)", "shifts add to zero only if the average includes every agent's own"),
        ("Robust(SCAFFOLD, CoordinateMedian)", "the server adds the agents' changes"),
        (
            "Weighted(Robust(FedHSA, CoordinateMedian), (1.0, 1.0, 1.0))",
            "a robust rule counts every participating agent",
        ),
        (
            "Robust(Weighted(FedHSA, (1.0, 1.0, 1.0)), CoordinateMedian)",
            "a robust rule counts every participating agent",
        ),
        (
            "Partial(Robust(LocalSA, TrimmedMean), WeightedSampling((0.5, 0.6, 0.7)))",
            "a robust rule counts every participating agent",
        ),
        ("Lossy(Robust(FedHSA, CoordinateMedian), 0.1)", "a lost reply counts as zero there"),
        ("OverTheAir(Robust(FedHSA, CoordinateMedian), 0.1, 0.1)", "the server receives only the sum"),
        ("Robust(Byzantine(FedHSA, 0.4, Zero), CoordinateMedian)", "the order is Robust, Byzantine, Compressed"),
        ("Byzantine(Scaffnew, 0.4, Zero)", "its agents communicate only when the coin says so"),
        ("Gossip(Byzantine(LocalSA, 0.4, Zero), Ring)", "neighbours average their parameters unchanged"),
    ],
)
def test_what_a_method_cannot_bear_is_refused_with_the_reason(text, reason):
    with pytest.raises(TypeError, match=reason):
        parse(text, quadratic().problem, step_size=0.1, local_steps=3)


def test_all_may_answer_the_first_exchange_of_a_robust_method_whose_replies_are_coded():
    inside = "Compressed(Byzantine(Robust(FedHSA, (CoordinateMedian, None)), 0.4, Shift), Sign)"
    text = f"Partial({inside}, Bernoulli(0.5), True)"
    algorithm = parse(text, quadratic().problem, step_size=0.01, local_steps=3)
    assert fh.simulate(quadratic().problem, algorithm, rounds=3).status.tolist() == ["ok"]


def test_no_law_is_made_up_for_a_rule_that_is_not_affine():
    problem = CASES["quadratic"]().problem
    with pytest.raises(TypeError, match="A round of Robust is not an affine map"):
        fh.theory.exact.limit(problem, fh.Robust(HSA, MEDIAN))


def test_the_limit_under_a_flipped_sign_is_known_exactly():
    """A flipped sign is affine, so that the map of a round gives the limit; the run goes there."""
    problem = quadratic().problem.noiseless()
    flipped = fh.Byzantine(HSA, (0,), fh.attacks.SignFlip(0.5))
    limit = fh.theory.exact.limit(problem, flipped)
    found = fh.simulate(problem, flipped, rounds=600, every=600).theta[0]
    np.testing.assert_allclose(found, limit, atol=1e-8)
    assert np.linalg.norm(limit - problem.theta_star) > 1e-3


@pytest.mark.slow
def test_robust_fed_q_learns_the_optimal_table_beside_hostile_agents():
    """Maity and Mitra: the average of equal agents is turned around by two of twenty, the median of means is not."""
    problem = fh.problems.q_learning.random(20, num_states=3, num_actions=2, synchronous=True, heterogeneity=0.0)
    plain = fh.DisSACC(0.5, local_steps=20)
    ends = []
    for method in (plain, fh.Robust(plain, fh.rules.MedianOfMeans(5))):
        attacked = fh.Byzantine(method, 0.1, fh.attacks.SignFlip(20.0))
        ends.append(fh.simulate(problem, attacked, rounds=60, theta=np.zeros(6)).error[0])
    assert not ends[0][-1] < ends[0][0]
    assert ends[1][-1] < 1e-2 * ends[1][0]


@pytest.mark.slow
def test_agents_that_act_at_random_do_what_the_parameter_zero_does():
    rng = np.random.default_rng(0)
    model = fh.environments.Model(rng.dirichlet(np.ones(3), size=(2, 3, 2)), rng.random((2, 3, 2)), 0.8)
    problem = fh.problems.policy_gradient.from_model(model, horizon=6, batch=2)
    at_random = fh.Byzantine(fh.SynchronisedSA(0.5), (0, 1), fh.attacks.RandomAction())

    def moved(algorithm, theta):
        return fh.simulate(problem, algorithm, rounds=1, theta=theta).theta[0]

    assert np.array_equal(moved(at_random, np.zeros((3, 2))), moved(fh.SynchronisedSA(0.5), np.zeros((3, 2))))
    far = np.array([[9.0, -9.0]] * 3)
    assert np.abs(moved(fh.SynchronisedSA(0.5), far) - far).max() < 1e-3  # it always does the same, and scores vanish
    assert np.abs(moved(at_random, far) - far).max() > 0.1
    with pytest.raises(TypeError, match="`attack` requires agents that act by a policy, got QuadraticAgent"):
        fh.simulate(quadratic().problem, at_random, rounds=1)


@pytest.mark.slow
def test_the_inner_steps_of_a_round_end_when_the_law_of_episodes_has_changed_too_much():
    rng = np.random.default_rng(0)
    model = fh.environments.Model(rng.dirichlet(np.ones(3), size=(2, 3, 2)), rng.random((2, 3, 2)), 0.8)
    problem = fh.problems.policy_gradient.from_model(model, horizon=6, batch=2)
    one, never, soon = (
        fh.simulate(problem, fh.FedPGBR(0.5, 2, inner, max_log_weight=bound), rounds=1, key=4).theta[0]
        for inner, bound in ((1, None), (6, None), (6, 1e-9))
    )
    assert np.array_equal(one, soon)  # the first step is taken where the round begins
    assert not np.array_equal(one, never)


def test_one_agent_leads_and_is_needed():
    for wrap in (
        lambda a: fh.Partial(a, fh.sampling.Bernoulli(0.5)),
        lambda a: fh.Robust(a, MEDIAN),
        lambda a: fh.Weighted(a, [1.0, 2.0]),
    ):
        with pytest.raises(TypeError, match="agent 0 acts as the server there"):
            wrap(fh.FedPGBR(0.1))
    with pytest.raises(ValueError, match=r"`rule` must be one of `fedhsa\.rules`"):
        fh.FedPGBR(0.1, rule="median")
