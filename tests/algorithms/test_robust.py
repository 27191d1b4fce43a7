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


def test_a_geometric_median_stays_at_two_equal_replies_that_outweigh_the_pull_of_the_others():
    """The unit vectors (1, 0), (0.5, 0.866) and (0, -1) add up to a length of 1.506, which is less than 2."""
    x = np.array([[0.0, 0.0], [3.0, 0.0], [0.5, np.sqrt(0.75)], [0.0, -2.0], [0.0, 0.0]])
    assert not apply(fh.rules.GeometricMedian(30), x).any()


def test_a_filter_without_a_majority_gives_zero():
    assert not apply(fh.rules.ConcentrationFilter(0.1), 10 * np.eye(5)).any()


def kept(rule, x, counts=None):
    """The numbers of the replies that the filter keeps; `x` has one number for each agent."""
    counts = np.full(len(x), True) if counts is None else counts
    with jax.enable_x64(True):
        mask = KEPT(rule, jax.numpy.asarray(np.asarray(x)[:, None] * counts[:, None]), jax.numpy.asarray(counts))
    return np.flatnonzero(mask).tolist()


KEPT = jax.jit(lambda rule, x, counts: rule.kept(x, counts))  # one program, because the settings are its arguments


def test_the_filters_radius_majority_and_second_radius_are_the_published_ones():
    """By hand, for ten replies, sigma = 1, B = 4, delta = 0.6 and a share of 0.3.

    V = 2 log(2 * 10 / 0.6) = 7.013 and r = 2 sqrt(V / 4) = 2.648; for six replies V = 2 log(20) and r = 2.448.
    """
    rule, everyone = fh.rules.ConcentrationFilter(1.0, 4, 0.3, 0.6), list(range(10))
    assert kept(rule, [0.0] * 9 + [2.64]) == everyone
    assert kept(rule, [0.0] * 9 + [2.66]) == everyone[:9]
    assert kept(fh.rules.ConcentrationFilter(10.0, 4, 0.3, 0.6), [0.0] * 9 + [26.4]) == everyone
    six = np.arange(10) < 6
    assert kept(rule, [0.0] * 5 + [2.44] + [0.0] * 4, six) == everyone[:6]
    assert kept(rule, [0.0] * 5 + [2.46] + [0.0] * 4, six) == everyone[:5]
    # Half of the replies are no majority, and six of ten are one.
    assert kept(rule, [0.0] * 5 + [100.0] * 5) == []
    assert kept(rule, [0.0] * 6 + [100.0] * 4) == everyone[:6]
    # Six replies are fewer than 0.7 * 10, so the radius is 2; seven are not, and it remains 2.648.
    assert kept(rule, [0.0] * 5 + [1.9] + [100.0] * 4) == everyone[:6]
    assert kept(rule, [0.0] * 5 + [2.1] + [100.0] * 4) == []
    assert kept(rule, [0.0] * 6 + [2.1] + [100.0] * 3) == everyone[:7]
    # The centre is 0, the nearest to the mean 2/7 of those with a majority around them; the mean of all is 1.58.
    assert kept(rule, [0.0] * 6 + [2.0] + [4.6] * 3) == everyone[:7]


def test_shares_of_agents_are_not_lost_to_rounding():
    """In floating point, 0.29 of 100 is a little less than 29, and (1 - 3 / 9) of 9 a little more than 6."""
    x = np.arange(100.0)[:, None] ** 2
    np.testing.assert_allclose(apply(fh.rules.TrimmedMean(0.29), x)[0], np.mean(np.arange(29, 71) ** 2), rtol=1e-13)
    number, share = next((n, k / n) for n in range(3, 60) for k in range(1, n // 2) if (1 - k / n) * n > n - k)
    near = round((1 - share) * number)
    # Exactly as many as must be near are: the radius stays above 2 sigma.
    found = kept(fh.rules.ConcentrationFilter(1.0, 4, share, 0.6), [0.0] * (near - 1) + [2.1] + [1e3] * (number - near))
    assert found == list(range(near))


def test_a_rule_sees_neither_replies_without_numbers_nor_absent_agents():
    with jax.enable_x64(True):
        (exchange, _), server = fh.Robust(HSA, MEDIAN).exchanges, HSA.init(jax.numpy.zeros(2))[0]
        replies = fh.Replies(jax.numpy.array([[1.0, 2.0], [np.nan, 0.0], [3.0, np.inf], [5.0, 6.0], [9.0, 9.0]]))
        absent = fh.Replies(replies.values, jax.numpy.array([1.0, 1.0, 1.0, 1.0, 0.0]))
        means = [np.asarray(exchange.aggregate(server, r, None).g_bar).tolist() for r in (replies, absent)]
    assert means == [[5.0, 6.0], [3.0, 4.0]]


def test_attacks_by_hand():
    x, key = jax.numpy.array([1.0, -2.0, 4.0]), jax.random.key(1)
    assert fh.attacks.SignFlip(2.0)(key, x).tolist() == [-2.0, 4.0, -8.0]
    assert fh.attacks.Shift(0.5)(key, x).tolist() == [1.5, -1.5, 4.5]
    normal = jax.random.normal(key, (3,))
    np.testing.assert_allclose(fh.attacks.Noise(0.5)(key, x) - x, 0.5 * normal, rtol=1e-5)
    np.testing.assert_allclose(fh.attacks.Noise(0.5, relative=True)(key, x) - x, 0.5 * 6 * normal, rtol=1e-5)
    np.testing.assert_allclose(fh.attacks.Random(3.0)(key, x), 3 * normal, rtol=1e-6)


def test_the_number_of_inner_steps_is_geometric_up_to_its_bound():
    """P(N > n) = 0.8^n for m = 4; 10000 rounds, within four standard errors, each at most 0.005."""
    method = fh.FedPGBR(0.1, batches=4, max_inner=6)
    rounds = jax.vmap(lambda t: method.steps(fh.Round(0, jax.random.fold_in(jax.random.key(0), t))))
    steps = np.asarray(jax.jit(rounds)(jax.numpy.arange(10_000)))
    found = [np.mean(steps > n) for n in range(7)]
    np.testing.assert_allclose(found, [1, 0.8, 0.8**2, 0.8**3, 0.8**4, 0.8**5, 0], atol=0.02)
    assert found[0] == 1


def test_inner_steps_of_fed_pg_br_by_hand():
    """G(theta) = 1 - theta, eta = 0.1, two steps from 0, where the batch of this agent would be 1.

    With mu = 0.5: 0.1 (1 - 1 + 0.5) = 0.05, then 0.05 + 0.1 (0.95 - 1 + 0.5) = 0.095. With mu = 0, which nobody
    trusts: 0.1, then 0.1 + 0.1 * 0.9 = 0.19. Other agents than the first do not move.
    """
    problem = fh.problems.quadratic.from_arrays(A=np.ones((1, 1, 1)), b=np.ones((1, 1)))
    method, zero = fh.FedPGBR(0.1, batches=1, max_inner=2), np.zeros((3, 1))
    with jax.enable_x64(True):
        agent, memory = (
            fh.tree.to_device(fh.tree.take(problem.agents, 0), "float64"),
            method.init(jax.numpy.zeros(1))[1],
        )
        rounds = (fh.Round(jax.numpy.zeros((), int), jax.random.key(k)) for k in range(20))
        twice = next(round for round in rounds if method.steps(round) == 2)

        @jax.jit
        def moved(mu, number):
            local = method.exchanges[1].local
            return local(jax.numpy.asarray(mu)[None], memory, agent, zero, twice._replace(agent=number))[0][0]

        found = [float(moved(*at)) for at in ((0.5, 0), (0.0, 0), (0.5, 1))]
    assert found == pytest.approx([0.095, 0.19, 0.0], abs=1e-15)


def test_the_steps_of_a_round_end_where_weights_are_far_from_one_on_either_side():
    weights = jax.numpy.array([1.0, -0.5])  # logarithms, of mean size 0.75
    assert fh.FedPGBR(0.1, max_log_weight=0.76)._near(weights)
    assert not fh.FedPGBR(0.1, max_log_weight=0.74)._near(weights)


@pytest.mark.slow
def test_replies_without_numbers_count_as_absent():
    problem, key = quadratic().problem, 3
    how = {"rounds": 5, "seeds": 2, "key": key, "record": ("theta",)}
    silent = fh.Byzantine(fh.Robust(HSA, MEDIAN), (1,), fh.attacks.NotFinite())
    found = fh.simulate(problem, silent, **how).records["theta"]
    assert np.isfinite(found).all()
    undefended = fh.Byzantine(HSA, (1,), fh.attacks.NotFinite())
    assert fh.simulate(problem, undefended, **how).status.tolist() == ["diverged"] * 2


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
    assert hostile_of(0.3, 10) == hostile_of(0.26, 10) == [7, 8, 9]
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
