"""Policy gradients against sums over all trajectories, naive loops and the models' own values."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import fedhsa as fh
from fedhsa import tree
from fedhsa.deploy import federate
from fedhsa.environments import Categorical, DirectTable, Gaussian, Model, SoftmaxTable, mlp
from fedhsa.environments.parametric import nearest_law
from fedhsa.environments.rollouts import Episodes, LiveEpisodes
from fedhsa.problems import policy_gradient as pg
from fedhsa.problems._returns import best_mean_return

S, A, T, GAMMA, TAU, M = 3, 2, 3, 0.7, 0.2, 2
RNG = np.random.default_rng(5)
MODEL = Model(
    RNG.dirichlet(np.ones(S), size=(M, S, A)),
    RNG.normal(size=(M, S, A, S)),
    GAMMA,
    start=[0.6, 0.4, 0.0],
    ends=[False, False, True],
)
THETA, OTHER = RNG.normal(size=(2, S, A))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def agent_of(problem: fh.Problem, number: int = 1):
    return tree.to_device(tree.take(problem.agents, number), "float64")


def trajectories(agent: int, theta: np.ndarray):
    """All that can happen in T steps, and how likely it is: lists of (s, a, r, alive)."""
    chances = scipy.special.softmax(theta, axis=1)
    P, R = MODEL.transitions[agent], MODEL.rewards[agent]

    def extend(s, steps, chance):
        if len(steps) == T or s == S - 1:
            filled = steps + [(s, 0, 0.0, 0.0)] * (T - len(steps))
            yield filled, chance
            return
        for a, following in itertools.product(range(A), range(S)):
            step = (s, a, R[s, a, following], 1.0)
            yield from extend(following, [*steps, step], chance * chances[s, a] * P[s, a, following])

    for s in range(S):
        if MODEL.start[agent, s]:
            yield from extend(s, [], MODEL.start[agent, s])


def as_episodes(*batch) -> Episodes:
    parts = [np.array([[step[k] for step in episode] for episode in batch]) for k in range(4)]
    return Episodes(*(jnp.asarray(part) for part in parts))


def of_every_length():
    """An episode with one action, one with two and one with three."""
    by_length = {sum(step[3] for step in episode): episode for episode, _ in trajectories(1, THETA)}
    return [by_length[length] for length in (1, 2, 3)]


def naive_gradient(episode, theta, estimator="gpomdp", tau=0.0, baseline=0.0):
    """The estimate of one episode, by hand; `baseline` is what is taken from what was earned from each step on."""
    chances = scipy.special.softmax(theta, axis=1)
    scores = []
    earned = np.zeros(T)
    for t, (s, a, r, alive) in enumerate(episode):
        score = np.zeros((S, A))
        score[s] -= chances[s]
        score[s, a] += 1
        scores.append(alive * score)
        earned[t] = alive * GAMMA**t * (r - tau * np.log(chances[s, a]))
    ahead = np.cumsum(earned[::-1])[::-1] if estimator == "gpomdp" else np.full(T, earned.sum())
    return sum(score * a for score, a in zip(scores, ahead - baseline, strict=True)), ahead


@pytest.mark.parametrize("estimator", ["gpomdp", "reinforce"])
def test_the_mean_of_the_estimates_over_all_trajectories_is_the_exact_gradient(estimator):
    problem = pg.from_model(MODEL, estimator=estimator, horizon=T, batch=1, entropy=TAU)
    agent = agent_of(problem)
    everything = list(trajectories(1, THETA))
    assert abs(sum(chance for _, chance in everything) - 1) < 1e-12
    by_hand = sum(chance * naive_gradient(episode, THETA, estimator, TAU)[0] for episode, chance in everything)
    np.testing.assert_allclose(agent.mean_operator(jnp.asarray(THETA)), by_hand, atol=1e-12)
    batch = as_episodes(*(episode for episode, _ in everything))
    each = jax.vmap(lambda o: agent.operator(jnp.asarray(THETA), jax.tree.map(lambda x: x[None], o)))(batch)
    mean = np.tensordot([chance for _, chance in everything], each, 1)
    np.testing.assert_allclose(mean, by_hand, atol=1e-12)
    # Drawn under another parameter and weighed, the mean is the same.
    elsewhere = list(trajectories(1, OTHER))
    old, new = jnp.asarray(THETA), jnp.asarray(OTHER)

    def weighed(o):
        o = jax.tree.map(lambda x: x[None], o)
        return agent.weighted_operator(old, o, jnp.exp(agent.log_ratio(old, new, o)))

    each = jax.vmap(weighed)(as_episodes(*(episode for episode, _ in elsewhere)))
    np.testing.assert_allclose(np.tensordot([chance for _, chance in elsewhere], each, 1), by_hand, atol=1e-12)


@pytest.mark.parametrize("baseline", ["mean", "whiten"])
def test_weights_and_baselines_are_those_of_a_loop_over_the_episodes(baseline):
    agent = agent_of(pg.from_model(MODEL, horizon=T, batch=3, baseline=baseline))
    episodes = of_every_length()
    weights = np.array([0.5, 1.7, 1.0])
    ahead = np.array([naive_gradient(episode, THETA)[1] for episode in episodes])
    alive = np.array([[step[3] for step in episode] for episode in episodes])
    scale, taken = 1.0, (ahead.sum(0) - ahead) / 2
    if baseline == "whiten":
        mean, spread = ahead[alive > 0].mean(), ahead[alive > 0].std()
        scale, taken = 1 / (spread + 1e-8), np.full((3, T), mean)
    each = [naive_gradient(e, THETA, baseline=b)[0] for e, b in zip(episodes, taken, strict=True)]
    expected = scale * np.tensordot(weights, each, 1) / 3
    found = agent.weighted_operator(jnp.asarray(THETA), as_episodes(*episodes), jnp.asarray(weights))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_live_episodes_count_by_how_much_likelier_they_are_now_up_to_a_bound():
    """Three episodes played under another parameter; the weights are products over the actions taken, at most 5."""
    how = {"estimator": "gpomdp", "discount": GAMMA, "baseline": "none", "entropy": 0.0, "max_weight": 5.0}
    agent = pg.live_agent(SoftmaxTable(S, A), horizon=T, batch=3, **how).agent
    episodes, (now, then) = of_every_length(), (scipy.special.softmax(at, axis=1) for at in (THETA, OTHER))
    ratios = [np.prod([now[s, a] / then[s, a] for s, a, _, alive in episode if alive]) for episode in episodes]
    expected = [min(w, 5) * naive_gradient(e, THETA)[0] for w, e in zip(ratios, episodes, strict=True)]
    assert min(ratios) < 5 < max(ratios)
    o = as_episodes(*episodes)
    live = LiveEpisodes(*o, jnp.asarray(np.log(then))[o.seen, o.action])
    found = jax.jit(lambda theta, o: agent.operator(theta, o))(jnp.asarray(THETA), live)
    np.testing.assert_allclose(found, np.mean(expected, axis=0), atol=1e-12)


def test_the_natural_gradient_is_the_advantage_divided_by_one_minus_the_discount():
    pi = scipy.special.softmax(THETA, axis=1)
    expected = (MODEL.action_values(pi) - MODEL.values(pi)[..., None])[1] / (1 - GAMMA)
    agent = agent_of(pg.from_model(MODEL, estimator="natural"))
    found = jax.jit(lambda theta: agent.mean_operator(theta))(jnp.asarray(THETA))
    np.testing.assert_allclose(found[:2], expected[:2], atol=1e-12)


def test_the_best_return_by_hand_with_and_without_entropy():
    """In one room, action 0 stays and earns 1.2, action 1 leaves and earns 2 for one agent and 1 for another.

    Staying for ever is worth 1.2 / (1 - 0.5) = 2.4. Without staying and with entropy 0.5, the best return solves
    V = 0.5 log(exp((1.2 + 0.5 V) / 0.5) + exp(1.5 / 0.5)).
    """
    stays, leaves = [1.0, 0.0], [0.0, 1.0]
    model = Model(
        [[[stays, leaves], [leaves] * 2]] * 2, [[[1.2, 2.0], [0, 0]], [[1.2, 1.0], [0, 0]]], 0.5, 0, [False, True]
    )
    exact = pg.from_model(model, estimator="exact").agents.exact
    assert best_mean_return(exact, np.zeros(2)) == pytest.approx(2.4, rel=1e-12)
    best = scipy.optimize.brentq(lambda V: V - 0.5 * np.log(np.exp(2.4 + V) + np.exp(3.0)), 0, 10, xtol=1e-14)
    assert best_mean_return(exact, np.full(2, 0.5)) == pytest.approx(best, rel=1e-11)


def test_normal_policies_have_the_density_and_the_divergence_of_the_normal_law():
    """From N(0.5, 1) to N(2, e^2): log(e) + (1 + 1.5^2) / (2 e^2) - 1/2."""
    policy, seen = Gaussian(eqx.nn.Linear(1, 1, use_bias=False, key=jax.random.key(0)), size=1), np.ones(1)

    def law(mean, log_std):
        network = jax.tree.map(lambda x: np.full_like(x, mean), policy.start["network"])
        return {"network": network, "log_std": np.array([log_std])}

    found = jax.jit(lambda *at: policy.log_prob(*at))(law(2.0, 1.0), seen, jnp.array([0.3]))
    np.testing.assert_allclose(found, scipy.stats.norm.logpdf(0.3, 2.0, np.e), rtol=1e-12)
    expected = 1 + (1 + 1.5**2) / (2 * np.e**2) - 0.5
    np.testing.assert_allclose(
        jax.jit(lambda *at: policy.kl(*at))(law(0.5, 0.0), law(2.0, 1.0), seen), expected, rtol=1e-12
    )


@pytest.mark.slow
def test_exact_gradients_are_those_of_the_policy_gradient_theorem():
    pi = scipy.special.softmax(THETA, axis=1)
    Q, V, going = MODEL.action_values(pi)[1], MODEL.values(pi)[1], np.where(MODEL.ends[1], 0.0, MODEL.transitions[1])
    visits = np.linalg.solve(np.eye(S) - GAMMA * np.einsum("sa,sat->ts", pi, going), MODEL.start[1])
    gradient = visits[:, None] * pi * (Q - V[:, None])
    for estimator, expected in (("exact", gradient), ("natural", (Q - V[:, None]) / (1 - GAMMA))):
        agent = agent_of(pg.from_model(MODEL, estimator=estimator))
        np.testing.assert_allclose(agent.operator(jnp.asarray(THETA), None)[:2], expected[:2], atol=1e-12)
    agent = agent_of(pg.from_model(MODEL, DirectTable(S, A), estimator="exact"))
    np.testing.assert_allclose(agent.operator(jnp.asarray(pi), None)[:2], (visits[:, None] * Q)[:2], atol=1e-12)
    sure = np.eye(A)[np.arange(S) % A]  # on the boundary, where actions that are never taken have a gradient too
    visits = np.linalg.solve(np.eye(S) - GAMMA * np.einsum("sa,sat->ts", sure, going), MODEL.start[1])
    gradient = visits[:, None] * MODEL.action_values(sure)[1]
    np.testing.assert_allclose(agent.operator(jnp.asarray(sure), None)[:2], gradient[:2], atol=1e-12)
    problem = pg.from_model(MODEL, estimator="exact")
    result = fh.simulate(
        problem, fh.LocalSA(0.1, 2), rounds=1, theta=THETA, record=["returns", "gradient_norm", "operator_norm"]
    )
    np.testing.assert_allclose(result.records["returns"][0, 0], MODEL.returns(pi), atol=1e-12)
    np.testing.assert_allclose(result.records["gradient_norm"], result.records["operator_norm"], atol=1e-12)


@pytest.mark.slow
def test_the_gap_is_zero_at_the_best_policy_of_the_averaged_model_and_refused_where_that_is_not_known():
    same = Model(np.repeat(MODEL.transitions[:1], M, axis=0), MODEL.rewards, GAMMA, MODEL.start, MODEL.ends)
    average = same.average()
    best = average.greedy(average.optimal())[0]
    problem = pg.from_model(same, DirectTable(S, A), estimator="exact")
    result = fh.simulate(problem, fh.LocalSA(0.1, 1), rounds=1, theta=best, record=["gap", "mean_return"])
    assert abs(result.records["gap"][0, 0]) < 1e-12
    soft = pg.from_model(same, estimator="exact", entropy=TAU)
    run = fh.simulate(soft, fh.SynchronisedSA(1.0), rounds=3000, record=["gap"], every=3000)
    assert 0 <= run.records["gap"][0, -1] + 1e-12 < 1e-9
    with pytest.raises(ValueError, match="differ in `transitions`"):
        fh.simulate(pg.from_model(MODEL, estimator="exact"), fh.LocalSA(0.1, 1), rounds=1, record=["gap"])


def test_episodes_are_played_with_the_chances_that_the_model_and_the_policy_give():
    agent, many = agent_of(pg.from_model(MODEL, horizon=T, batch=20_000)), 20_000
    _, o = jax.jit(lambda bits: agent.react(jnp.asarray(THETA), jnp.zeros(()), bits))(jnp.array([3, 9], jnp.uint32))
    found: dict = {}
    for row in zip(*(np.asarray(part) for part in (o.seen, o.action, o.reward, o.alive)), strict=True):
        seen, action, reward, alive = row
        name = tuple((s, a, round(r, 9)) for s, a, r, on in zip(seen, action, reward, alive, strict=True) if on)
        found[name] = found.get(name, 0) + 1
    expected: dict = {}
    for episode, chance in trajectories(1, THETA):
        name = tuple((s, a, round(r, 9)) for s, a, r, on in episode if on)
        expected[name] = expected.get(name, 0.0) + chance
    assert set(found) <= set(expected)
    likely = [name for name, chance in expected.items() if chance * many > 5]
    statistic = sum((found.get(n, 0) - many * expected[n]) ** 2 / (many * expected[n]) for n in likely)
    assert statistic < scipy.stats.chi2.isf(1e-4, len(likely))


@pytest.mark.slow
def test_fisher_products_divergences_and_surrogates_are_means_over_the_actions_taken():
    problem = pg.from_model(MODEL, horizon=T, batch=4)
    agent = agent_of(problem)
    episodes = [episode for episode, _ in trajectories(1, THETA)][3:60:15]
    o, pi, other = as_episodes(*episodes), *(scipy.special.softmax(at, axis=1) for at in (THETA, OTHER))
    F, apart, surrogate, count = np.zeros((S * A, S * A)), 0.0, 0.0, 0
    for episode in episodes:
        ahead = naive_gradient(episode, OTHER)[1]
        for t, (s, a, _, alive) in enumerate(episode):
            if alive:
                score = np.zeros((S, A))
                score[s] -= pi[s]
                score[s, a] += 1
                F += np.outer(score, score)
                apart += pi[s] @ np.log(pi[s] / other[s])
                surrogate += pi[s, a] / other[s, a] * ahead[t]
                count += 1
    vector = RNG.normal(size=(S, A))
    theta, new = jnp.asarray(THETA), jnp.asarray(OTHER)
    found = agent.fisher_product(theta, o, jnp.asarray(vector))
    np.testing.assert_allclose(np.ravel(found), F @ vector.ravel() / count, atol=1e-12)
    np.testing.assert_allclose(agent.kl(theta, new, o), apart / count, atol=1e-12)
    np.testing.assert_allclose(agent.surrogate(theta, new, o), surrogate / count, atol=1e-12)
    flat = agent_of(fh.Problem(problem.flat_agents, like=np.zeros(S * A), theta_star=None))
    np.testing.assert_allclose(
        flat.fisher_product(theta.ravel(), o, jnp.asarray(vector.ravel())), np.ravel(found), atol=1e-12
    )


@pytest.mark.slow
def test_gaussian_and_categorical_networks_give_the_laws_they_are_named_after():
    policy, seen = Gaussian(mlp(3, 2, width=4, depth=1), size=2, log_std=-0.3), jnp.array([0.1, -0.4, 0.7])
    old = jax.tree.map(jnp.asarray, policy.start)
    new = jax.tree.map(lambda x: 0.8 * x + 0.1, old)
    action = policy.sample(old, seen, jax.random.key(1))
    laws = [scipy.stats.norm(policy.mean(at, seen), np.exp(at["log_std"])) for at in (old, new)]
    np.testing.assert_allclose(policy.log_prob(old, seen, action), laws[0].logpdf(action).sum(), atol=1e-12)
    grid = [np.linspace(m - 12 * s, m + 12 * s, 4001) for m, s in zip(*laws[0].args, strict=True)]
    pieces = [
        scipy.integrate.trapezoid(
            scipy.stats.norm.pdf(x, *one) * (scipy.stats.norm.logpdf(x, *one) - scipy.stats.norm.logpdf(x, *two)), x
        )
        for x, one, two in zip(grid, zip(*laws[0].args, strict=True), zip(*laws[1].args, strict=True), strict=True)
    ]
    np.testing.assert_allclose(policy.kl(old, new, seen), sum(pieces), rtol=1e-8)
    discrete = Categorical(mlp(3, 4, width=4, depth=1))
    old = jax.tree.map(jnp.asarray, discrete.start)
    assert abs(np.exp(discrete.log_chances(old, seen)).sum() - 1) < 1e-12
    assert abs(discrete.kl(old, old, seen)) < 1e-12


def test_the_nearest_law_is_what_a_search_finds():
    rows = RNG.normal(size=(4, 3))
    for row, found in zip(rows, np.asarray(jax.vmap(nearest_law)(rows)), strict=True):
        sums = {"type": "eq", "fun": lambda p: p.sum() - 1}
        start = np.full(3, 1 / 3)
        best = scipy.optimize.minimize(
            lambda p, row=row: ((p - row) ** 2).sum(), start, bounds=[(0, 1)] * 3, constraints=sums, tol=1e-14
        )
        np.testing.assert_allclose(found, best.x, atol=1e-6)


def test_agents_go_back_to_where_they_may_be_after_each_local_step():
    """Local SA with a projection after each step, by a loop; only at the end of a round it would be another method."""
    problem, eta, H, rounds = fh.problems.quadratic.random(num_agents=3, dim=2).noiseless(), 0.3, 4, 3
    regions: list[dict] = [{"radius": 0.3}, {"box": (np.array([-0.1, -0.2]), 0.4)}]
    for region in regions:
        theta, (A_, b) = np.zeros(2), problem.affine_parts()
        for _ in range(rounds):
            ends = []
            for i in range(3):
                local = theta
                for _ in range(H):
                    local = local + eta * (A_[i] @ local - b[i])
                    if "radius" in region:
                        local = local * min(1.0, 0.3 / np.linalg.norm(local))
                    else:
                        local = np.clip(local, *region["box"])
                ends.append(local)
            theta = np.mean(ends, axis=0)
        found = fh.simulate(problem.within(**region), fh.LocalSA(eta, H), rounds=rounds)
        np.testing.assert_allclose(found.theta[0], theta, atol=1e-12)


@pytest.mark.slow
def test_engine_and_network_play_the_same_episodes():
    problem = pg.from_model(MODEL, horizon=T, batch=2)
    method = fh.MomentumSA(0.3, 2, 0.5, max_weight=1.2)
    engine = fh.simulate(problem, method, rounds=2, key=1, record=["mean_return"])
    np.testing.assert_allclose(federate(problem, method, rounds=2, key=1).theta, engine.theta, atol=1e-13)
    assert engine.theta.shape == (1, S, A)
    assert engine.cost.evaluations == 4
    assert engine.cost.samples == 2


@pytest.mark.slow
def test_episodes_of_a_jax_environment_are_its_own_steps_until_its_end():
    gymnax = pytest.importorskip("gymnax")
    problem = pg.random(2, environment="cart-pole", horizon=40, batch=3, dim=4)
    agent = agent_of(problem, 1)
    theta = problem.unravel(jnp.asarray(problem.start))
    _, o = jax.jit(lambda bits: agent.react(theta, jnp.zeros(()), bits))(jnp.array([0, 1], jnp.uint32))
    environment = gymnax.make("CartPole-v1")[0]
    step = jax.jit(environment.step_env)
    with jax.numpy_dtype_promotion("standard"):
        for seen, actions, alive in zip(o.seen, o.action, o.alive, strict=True):
            state, length = None, int(alive.sum())
            assert (np.asarray(alive) == (np.arange(40) < length)).all()
            for t in range(length):
                if state is None:
                    _, state = environment.reset_env(jax.random.key(0), agent.world.params)
                    names = ("x", "x_dot", "theta", "theta_dot")
                    state = state.replace(**dict(zip(names, seen[0], strict=True)))
                after, state, reward, over, _ = step(jax.random.key(0), state, actions[t], agent.world.params)
                assert reward == 1
                if t + 1 < 40:
                    np.testing.assert_allclose(after, seen[t + 1], atol=1e-9)
                assert bool(over) == (t + 1 == length < 40)
    assert (o.reward == o.alive).all()


def test_what_cannot_be_is_refused_with_a_reason():
    with pytest.raises(ValueError, match=r"`estimator` must be one of .*got 'reinforced'"):
        pg.from_model(MODEL, estimator="reinforced")
    with pytest.raises(ValueError, match="`batch` must be at least 2"):
        pg.from_model(MODEL, batch=1, baseline="mean")
    with pytest.raises(TypeError, match="`policy` must be an"):
        pg.from_model(MODEL, Gaussian(mlp(1, 1), 1))
    with pytest.raises(ValueError, match="requires a `SoftmaxTable`"):
        pg.from_model(MODEL, DirectTable(S, A), estimator="natural")
    assert SoftmaxTable(S, A).start.shape == (S, A)


def test_a_constant_of_nature_that_is_given_is_that_of_all_agents():
    pytest.importorskip("gymnax")
    problem = pg.random(3, environment="cart-pole", horizon=5, gravity=7.0)
    np.testing.assert_array_equal(problem.agents.world.params.gravity, 7.0)
    assert np.ptp(problem.agents.world.params.length) > 0  # the others stay the agents' own


@pytest.mark.slow
def test_agents_whose_doors_differ_need_a_policy_that_tosses_a_coin():
    """Labbi, Mangold, Tiapkin and Moulines (2025): in one room action 1 opens the door of agent 1 and action 2 that
    of agent 2, and what is behind is worth 1. A policy that always does the same lets one agent out: J = 1/2.
    The best tosses a fair coin: J = (1/2) / (1 - gamma / 2), and FedPG finds it, with local steps too.
    """
    gamma, inside, outside = 0.9, [1.0, 0.0], [0.0, 1.0]
    transitions = [[[outside, inside], [outside] * 2], [[inside, outside], [outside] * 2]]
    rewards = [[[[0.0, 1.0]] * 2, [[0.0, 0.0]] * 2]] * 2
    problem = pg.from_model(Model(transitions, rewards, gamma, start=0, ends=[False, True]), estimator="exact")
    start = np.array([2.0, 0.0, 0.0, 0.0])
    run = fh.simulate(problem, fh.LocalSA(0.5, 5), rounds=100, every=100, theta=start, record=("mean_return",))
    chances = scipy.special.softmax(run.theta[0].reshape(2, 2)[0])
    np.testing.assert_allclose(chances, 0.5, atol=1e-6)
    assert run.records["mean_return"][0, -1] == pytest.approx(0.5 / (1 - gamma / 2), rel=1e-9)
