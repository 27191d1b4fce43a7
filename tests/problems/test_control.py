"""Q-learning and SARSA against loops, value iteration and sums over the model; chains that depend on the parameter."""

import itertools

import equinox as eqx
import jax
import numpy as np
import pytest

import fedhsa as fh
from cases import agent_key
from fedhsa import tree
from fedhsa.deploy import Faults, federate
from fedhsa.environments import Model
from fedhsa.problems import q_learning, sarsa, td
from fedhsa.sources import Transition

M, S, A, D, GAMMA = 2, 4, 3, 3, 0.7
END = S - 1
RNG = np.random.default_rng(5)
FEATURES = RNG.normal(size=(S, A, D)) / 2
BEHAVIOUR = RNG.dirichlet(np.ones(A), size=(M, S))
THETA = np.array([0.3, -0.8, 1.1])


# Compiled once for all agents, where calls in a loop would go to the device operation by operation.
operate = eqx.filter_jit(lambda agent, theta, o: agent.operator(theta, o))
observe = eqx.filter_jit(lambda agent, theta, state, bits: agent.react(theta, state, bits))


def make_model(episodic: bool = False) -> Model:
    """Random transitions and rewards; if episodes end, they do in the last state, and begin in the first."""
    rng = np.random.default_rng(6)
    P, R = rng.dirichlet(np.ones(S), size=(M, S, A)), rng.normal(size=(M, S, A, S))
    return Model(P, R, GAMMA, start=0 if episodic else None, ends=[False] * (S - 1) + [episodic])


class Naive:
    """One agent's model again, in loops."""

    def __init__(self, episodic: bool, agent: int):
        model = make_model(episodic)
        self.P, self.R, self.episodic = model.transitions[agent], model.rewards[agent], episodic

    def place(self, s):
        return 0 if self.episodic and s == END else s

    def gamma(self, s):
        return 0.0 if self.episodic and s == END else GAMMA

    def q(self, theta, s, a):
        return FEATURES[self.place(s), a] @ theta

    def law(self, policy):
        """How often each pair comes up, by a power of the chain of pairs."""
        K = np.zeros((S, A, S, A))
        for s, a, t, b in itertools.product(range(S), range(A), range(S), range(A)):
            K[s, a, t, b] = self.P[self.place(s), a, t] * policy[self.place(t), b]
        return np.linalg.matrix_power(K.reshape(S * A, S * A), 4096)[0].reshape(S, A)

    def q_operator(self, theta, s, a, t):
        best = max(self.q(theta, t, b) for b in range(A))
        error = self.R[self.place(s), a, t] + self.gamma(t) * best - self.q(theta, s, a)
        return error * FEATURES[self.place(s), a]

    def sarsa_operator(self, theta, s, a, t, b):
        error = self.R[self.place(s), a, t] + self.gamma(t) * self.q(theta, t, b) - self.q(theta, s, a)
        return error * FEATURES[self.place(s), a]

    def softmax(self, theta, inverse_temperature):
        weights = np.exp(inverse_temperature * FEATURES @ theta)
        return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("episodic", [False, True])
def test_q_learning_is_the_loop_of_its_paper_and_its_mean_the_sum_over_transitions(episodic):
    problem = q_learning.from_model(make_model(episodic), BEHAVIOUR, FEATURES)
    for i, found in enumerate(problem.mean_operators(THETA)):
        naive, expected = Naive(episodic, i), np.zeros(D)
        law = naive.law(BEHAVIOUR[i])
        with jax.enable_x64(True):
            agent = tree.to_device(tree.take(problem.agents, i), "float64")
            for s, a, t in itertools.product(range(S), range(A), range(S)):
                value = naive.q_operator(THETA, s, a, t)
                expected += law[s, a] * naive.P[naive.place(s), a, t] * value
                pair = Transition(np.int32(s * A + a), np.int32(t * A + (a + 1) % A))
                np.testing.assert_allclose(operate(agent, THETA, pair), value, atol=1e-12)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    assert abs(problem.mean_operator(problem.theta_star)).max() < 1e-10


@pytest.mark.parametrize("episodic", [False, True])
def test_one_agents_table_is_what_value_iteration_finds(episodic):
    model = make_model(episodic).take([1])
    Q = np.zeros((S, A))
    for _ in range(300):
        best = np.where(model.ends[0], 0.0, Q.max(1))
        Q = (model.transitions[0] * (model.rewards[0] + GAMMA * best)).sum(-1)
    acts = np.flatnonzero(~model.ends[0])
    problem = q_learning.from_model(model)
    np.testing.assert_allclose(problem.theta_star.reshape(-1, A), Q[acts], atol=1e-10)


def test_several_agents_table_is_the_fixed_point_of_their_visits_average():
    model, problem = make_model(), q_learning.from_model(make_model(), BEHAVIOUR)
    visits = np.stack([Naive(False, i).law(BEHAVIOUR[i]) for i in range(M)])
    Q = np.zeros((S, A))
    for _ in range(300):
        backed_up = (model.transitions * (model.rewards + GAMMA * Q.max(1))).sum(-1)
        Q = (visits * backed_up).sum(0) / visits.sum(0)
    np.testing.assert_allclose(problem.theta_star.reshape(S, A), Q, atol=1e-10)


@pytest.mark.slow
def test_all_pairs_at_once_lead_to_the_optimal_values_of_the_average_model():
    model = make_model()
    problem = q_learning.from_model(model, synchronous=True)
    np.testing.assert_allclose(problem.theta_star.reshape(S, A), model.average().optimal()[0], atol=1e-10)
    with jax.enable_x64(True):
        agent = tree.to_device(tree.take(problem.agents, 1), "float64")
        _, seen = agent.source.step(jax.random.key(3), ())
        Q = np.linspace(-1, 1, S * A).reshape(S, A)
        found, seen = np.asarray(operate(agent, Q.ravel(), seen)), np.asarray(seen)
        for s, a in itertools.product(range(S), range(A)):
            t = int(seen[s * A + a])
            expected = model.rewards[1, s, a, t] + GAMMA * Q[t].max() - Q[s, a]
            np.testing.assert_allclose(found[s * A + a], expected, atol=1e-12)
        keys = jax.random.split(jax.random.key(0), 4000)
        _, many = agent.source.draw(keys, ())
    counts = np.stack([(np.asarray(many) == t).mean(0) for t in range(S)], axis=-1).reshape(S, A, S)
    P = model.transitions[1]
    error = np.sqrt(P * (1 - P) / len(keys))
    assert (abs(counts - P) < 4.5 * error).all()  # 48 frequencies; one beyond 4.5 standard errors in 3000 runs


def test_with_episodes_too_every_pair_counts_once():
    """An end stands for the next start on a trajectory, but not where all pairs are asked about."""
    model = make_model(True)
    problem = q_learning.from_model(model, synchronous=True)
    np.testing.assert_allclose(problem.theta_star.reshape(END, A), model.average().optimal()[0, :END], atol=1e-10)
    slopes = np.linalg.eigvals(problem.jacobians(problem.theta_star).mean(0))
    assert slopes.real.min() > -2  # a step of 1 is an average with a contraction


def test_pairs_that_nobody_takes_are_named():
    never = np.tile([0.5, 0.5, 0.0], (S, 1))
    with pytest.raises(ValueError, match="but no agent ever takes action 2 in state 0"):
        q_learning.from_model(make_model(), never)


def test_importance_averaging_is_for_tables():
    problem = q_learning.from_model(make_model(), BEHAVIOUR, FEATURES)
    with pytest.raises(TypeError, match=r"with a table, or give the agent a method `visited\(o\)`"):
        fh.simulate(problem, fh.ImportanceAveraging(0.1, 3), rounds=1)


def test_chains_that_cannot_be_drawn_from_have_no_independent_observations():
    with pytest.raises(ValueError, match="`iid`: Decisions cannot sample from its stationary distribution"):
        sarsa.from_model(make_model(), FEATURES).iid()


def test_q_learnings_conditions_hold_for_a_table_seen_evenly_and_fail_for_features_that_blow_up():
    """Two agents that see four pairs evenly, with a discount of 1/2: by hand, 1/4 - (1/2)^2 / 2 is the margin."""
    good = q_learning.conditions(q_learning.from_model(Model(np.full((2, 2, 2, 2), 0.5), np.ones((2, 2, 2)), 0.5)))
    assert good.holds
    assert good.margin == pytest.approx(1 / 8)
    bad = q_learning.conditions(_running_away())
    assert bad.root < 0 > bad.margin  # stable where it rests, but from elsewhere values run away


def _running_away():
    """A behaviour that is mostly where the best action's features are larger than its own."""
    P = np.zeros((1, 2, 2, 2))
    P[0, :, 0], P[0, :, 1] = [0.9, 0.1], [0.1, 0.9]
    features = np.array([[[1.0], [2.0]], [[1.0], [2.0]]])
    return q_learning.from_model(Model(P, -np.ones((1, 2, 2)), 0.95), np.array([[0.95, 0.05]] * 2), features)


@pytest.mark.parametrize("episodic", [False, True])
def test_sarsa_is_the_loop_of_its_paper_and_its_mean_the_sum_under_its_own_policy(episodic):
    inverse_temperature = 1.5
    problem = sarsa.from_model(make_model(episodic), FEATURES, inverse_temperature=inverse_temperature)
    for i, found in enumerate(problem.mean_operators(THETA)):
        naive, expected = Naive(episodic, i), np.zeros(D)
        policy = naive.softmax(THETA, inverse_temperature)
        law = naive.law(policy)
        with jax.enable_x64(True):
            agent = tree.to_device(tree.take(problem.agents, i), "float64")
            for s, a, t, b in itertools.product(range(S), range(A), range(S), range(A)):
                value = naive.sarsa_operator(THETA, s, a, t, b)
                expected += law[s, a] * naive.P[naive.place(s), a, t] * policy[naive.place(t), b] * value
                pair = Transition(np.int32(s * A + a), np.int32(t * A + b))
                np.testing.assert_allclose(operate(agent, THETA, pair), value, atol=1e-12)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    assert abs(problem.mean_operator(problem.theta_star)).max() < 1e-10


def test_an_action_of_sarsa_counts_elsewhere_as_much_as_it_is_likelier_there():
    """The next action, 1 in state 2, at the inverse temperature 1.7."""
    agents = sarsa.from_model(make_model(), FEATURES, inverse_temperature=1.7).agents
    other, seen = THETA + np.array([0.5, 0.2, -0.3]), Transition(np.int32(0), np.int32(2 * A + 1))
    then, now = (Naive(False, 0).softmax(at, 1.7)[2, 1] for at in (other, THETA))
    with jax.enable_x64(True):
        agent = tree.to_device(tree.take(agents, 0), "float64")
        found = jax.jit(lambda old, new: agent.log_ratio(old, new, seen))(other, THETA)
    np.testing.assert_allclose(np.exp(found), then / now, rtol=1e-12)


def test_sarsas_chain_goes_where_model_and_policy_send_it():
    """Frequencies of 40 000 steps at a fixed parameter; batches of 400 steps give the standard errors."""
    problem = sarsa.from_model(make_model(True), FEATURES, inverse_temperature=2.0)
    naive = Naive(True, 0)
    law = naive.law(naive.softmax(THETA, 2.0))
    with jax.enable_x64(True):
        agent = tree.to_device(tree.take(problem.agents, 0), "float64")

        def step(state, bits):
            state, o = agent.react(THETA, state, bits)
            return state, o.state

        keys = jax.random.split(jax.random.key(1), 40_000)
        _, pairs = jax.lax.scan(step, agent.source.init(jax.random.key(2)), jax.random.key_data(keys))
    batches = np.stack([(np.asarray(pairs).reshape(100, 400) == x).mean(1) for x in range(S * A)], axis=1)
    error = batches.std(0, ddof=1) / 10
    assert (abs(batches.mean(0) - law.ravel()) < 4 * error + 1e-4).all()


@pytest.mark.slow
def test_sarsa_that_takes_all_actions_alike_is_td_of_that_policy():
    model = make_model()
    controlled = sarsa.from_model(model, FEATURES, inverse_temperature=0.0)
    chain = model.chain(pairs=True)
    pairs = np.broadcast_to(FEATURES.reshape(S * A, D), (M, S * A, D))
    fixed = td.from_arrays(chain.transition, chain.rewards, pairs, chain.discount)
    np.testing.assert_allclose(controlled.theta_star, fixed.theta_star, atol=1e-10)
    np.testing.assert_allclose(controlled.mean_operators(THETA), fixed.mean_operators(THETA), atol=1e-12)
    # The same observations, fed to TD: the same run.
    rounds, H, key = 5, 4, 3
    trajectory = [_walk(controlled, agent, np.zeros((rounds * H, D)), key) for agent in range(M)]
    replayed = fixed.replay(Transition(*(np.stack(part) for part in zip(*trajectory, strict=True))))
    method = fh.FedHSA(0.1, H)
    found = fh.simulate(controlled, method, rounds=rounds, key=key).theta
    np.testing.assert_allclose(found, fh.simulate(replayed, method, rounds=rounds, key=key).theta, atol=1e-12)


def _walk(problem, agent, thetas, key):
    """One agent's transitions under these parameters, one step at a time, by the keys of the positions."""
    with jax.enable_x64(True):
        one = tree.to_device(tree.take(problem.agents, agent), "float64")
        own = jax.random.fold_in(agent_key(key, 0, agent), 0)
        state, seen = one.source.init(jax.random.fold_in(own, 0)), []
        for position, theta in enumerate(thetas):
            bits = jax.random.key_data(jax.random.fold_in(own, position + 1))
            state, o = observe(one, theta, state, bits)
            seen.append(o)
    return [np.array([int(part) for part in parts]) for parts in zip(*seen, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("corrected", [True, False])
def test_every_local_step_acts_under_the_local_parameter_of_the_moment(corrected):
    """FedHSA and FedSARSA as loops over rounds, agents and steps, which act and update in turn."""
    problem = sarsa.from_model(make_model(), FEATURES, inverse_temperature=3.0)
    rounds, H, eta, key = 4, 3, 0.2, 7
    with jax.enable_x64(True):
        agents = [tree.to_device(tree.take(problem.agents, i), "float64") for i in range(M)]
        own = [jax.random.fold_in(agent_key(key, 0, i), 0) for i in range(M)]
        states = [agent.source.init(jax.random.fold_in(k, 0)) for agent, k in zip(agents, own, strict=True)]
        theta_bar = np.zeros(D)

        def act(i, theta, position):
            bits = jax.random.key_data(jax.random.fold_in(own[i], position + 1))
            states[i], o = observe(agents[i], theta, states[i], bits)
            (s, a), (t, b) = divmod(int(o.state), A), divmod(int(o.next_state), A)
            return Naive(False, i).sarsa_operator(theta, s, a, t, b)

        for r in range(rounds):
            g = [act(i, theta_bar, r * H) for i in range(M)]
            shift = [np.mean(g, axis=0) - g[i] if corrected else np.zeros(D) for i in range(M)]
            ends = []
            for i in range(M):
                theta = theta_bar + eta * (g[i] + shift[i])
                for step in range(1, H):
                    theta = theta + eta * (act(i, theta, r * H + step) + shift[i])
                ends.append(theta)
            theta_bar = np.mean(ends, axis=0)
    method = fh.FedHSA(eta, H) if corrected else fh.LocalSA(eta, H)
    np.testing.assert_allclose(fh.simulate(problem, method, rounds=rounds, key=key).theta[0], theta_bar, atol=1e-12)


@pytest.mark.slow
def test_engine_debug_mode_and_a_network_with_losses_agree_on_controlled_chains():
    problem = sarsa.from_model(make_model(), FEATURES, inverse_temperature=2.0)
    method = fh.FedHSA(0.1, 3)
    engine = fh.simulate(problem, method, rounds=2, key=1, seeds=2).theta
    np.testing.assert_allclose(fh.simulate(problem, method, rounds=2, key=1, debug=True).theta, engine[:1], atol=1e-13)
    network = federate(problem, method, rounds=2, key=1, faults=Faults(0.3, seed=2))
    np.testing.assert_allclose(network.theta, engine[:1], atol=1e-13)
    assert network.settings["algorithm"]["name"] == "FedHSA"


def test_controlled_runs_continue_from_a_checkpoint(tmp_path):
    problem = sarsa.from_model(make_model(), FEATURES)
    settings = {"seeds": 2, "checkpoint": tmp_path / "run.npz", "checkpoint_every": 2}
    fh.simulate(problem, fh.LocalSA(0.1, 3), rounds=4, **settings)
    resumed = fh.simulate(problem, fh.LocalSA(0.1, 3), rounds=8, resume=True, **settings)
    np.testing.assert_array_equal(resumed.theta, fh.simulate(problem, fh.LocalSA(0.1, 3), rounds=8, seeds=2).theta)


@pytest.mark.slow
def test_an_observation_of_a_controlled_chain_may_be_evaluated_twice():
    """Momentum, again by a loop: each step is taken under the agent's parameter and weighed at the one before."""
    problem, eta, H, beta, rounds, key = sarsa.from_model(make_model(), FEATURES), 0.1, 3, 0.4, 3, 5
    theta, before, u = THETA, THETA, np.zeros_like(THETA)
    with jax.enable_x64(True):
        agents = [tree.to_device(tree.take(problem.agents, i), "float64") for i in range(M)]
        keys = [jax.random.fold_in(agent_key(key, 0, i), 0) for i in range(M)]
        chains = [agent.source.init(jax.random.fold_in(own, 0)) for agent, own in zip(agents, keys, strict=True)]
        for t in range(rounds):
            moved = []
            for i, agent in enumerate(agents):
                local = theta
                for step in range(H):
                    bits = jax.random.key_data(jax.random.fold_in(keys[i], t * H + step + 1))
                    chains[i], o = agent.react(jax.numpy.asarray(local), chains[i], bits)
                    state, action = divmod(int(o.next_state), A)
                    then, now = (Naive(False, i).softmax(at, 1.0)[state, action] for at in (before, local))
                    weight = min(then / now, 1.01)
                    g, g_before = (np.asarray(agent.operator(jax.numpy.asarray(at), o)) for at in (local, before))
                    past = (1 - beta) * (u - weight * g_before) if t else 0.0
                    local = local + eta * (g + past)
                moved.append(local)
            before, mean = theta, np.mean(moved, axis=0)
            u, theta = (mean - theta) / (eta * H), mean
    method = fh.MomentumSA(eta, H, beta, max_weight=1.01)
    found = fh.simulate(problem, method, rounds=rounds, key=key, theta=THETA)
    np.testing.assert_allclose(found.theta[0], theta, atol=1e-12)
    assert found.cost.evaluations == 2 * H


def test_chains_that_follow_the_parameter_step_once_for_each_observation():
    problem = sarsa.from_model(make_model(), FEATURES)
    fh.simulate(problem, fh.SCAFFOLD(0.1, 3, option=1), rounds=1)
    for method in (fh.RichardsonRomberg(fh.LocalSA(0.1, 3)), fh.Thinned(fh.LocalSA(0.1, 3), every=2)):
        with pytest.raises(TypeError, match="must be taken exactly once, under its own parameter"):
            fh.simulate(problem, method, rounds=1)


@pytest.mark.slow
def test_returns_are_those_of_the_models_policies():
    model = make_model(True)
    problem = sarsa.from_model(model, FEATURES, inverse_temperature=2.0)
    result = fh.simulate(problem, fh.LocalSA(0.1, 2), rounds=1, theta=THETA, record=["returns", "mean_return"])
    policy = Naive(True, 0).softmax(THETA, 2.0)
    np.testing.assert_allclose(result.records["returns"][0, 0], model.returns(policy), atol=1e-12)
    np.testing.assert_allclose(result.records["mean_return"][0, 0], model.returns(policy).mean(), atol=1e-12)
    greedy = q_learning.from_model(model, None, FEATURES)
    result = fh.simulate(greedy, fh.LocalSA(0.1, 2), rounds=1, theta=THETA, record=["returns"])
    np.testing.assert_allclose(result.records["returns"][0, 0], model.returns((FEATURES @ THETA).argmax(1)), atol=1e-12)


def test_importance_averaging_counts_who_has_seen_more():
    """The server's rule again with plain powers, on the replies of one round."""
    model, eta, H = make_model(), 0.3, 6
    problem = q_learning.from_model(model, BEHAVIOUR)
    theta, key = np.linspace(0, 1, S * A), 4
    observed = []
    for agent in range(M):
        with jax.enable_x64(True):
            source = tree.to_device(tree.take(problem.agents.source, agent), "float64")
            own = jax.random.fold_in(agent_key(key, 0, agent), 0)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(own, np.arange(H + 1))
            observed.append(tree.to_host(source.draw(keys[1:], source.init(keys[0]))[1]))
    tables, counts = [], []
    for agent, (now, then) in enumerate(observed):
        Q, N = theta.copy(), np.zeros(S * A)
        for x, y in zip(now, then, strict=True):
            s, a, t = *divmod(int(x), A), int(y) // A
            target = model.rewards[agent, s, a, t] + GAMMA * Q.reshape(S, A)[t].max()
            Q[x] += eta * (target - Q[x])
            N[x] += 1
        tables.append(Q)
        counts.append(N)
    weights = (1 - eta) ** -np.array(counts)
    expected = (weights * tables).sum(0) / weights.sum(0)
    found = fh.simulate(problem, fh.ImportanceAveraging(eta, H), rounds=1, key=key, theta=theta).theta[0]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.slow
def test_every_algorithm_and_wrapper_that_can_run_on_sarsa_runs():
    """Those that cannot say why when they are made or checked; nobody fails in the middle."""
    problem = fh.problems.make("sarsa", {"num_agents": 2, "num_states": 4})
    ran, refused = [], []
    for algorithm in fh.ALGORITHMS:
        try:
            method = fh.algorithms.parse(algorithm, problem, step_size=0.05, local_steps=2, server_step=1.0)
            result = fh.simulate(problem, method, rounds=2)
        except (TypeError, ValueError) as error:
            refused.append(str(error))
        else:
            ran.append(algorithm)
            assert np.isfinite(result.theta).all()
    assert len(ran) >= 9
    assert all(len(words) > 40 for words in refused)  # they say what to do


@pytest.mark.slow
def test_theory_says_what_it_knows_of_controlled_chains():
    problem = sarsa.from_model(make_model(), FEATURES)
    method = fh.LocalSA(0.1, 4)
    for ask in (lambda: fh.theory.predict(problem, method), lambda: fh.theory.constants(problem)):
        with pytest.raises(TypeError, match="depend on the parameter; no law is known"):
            ask()
    predicted = fh.theory.predict(problem.noiseless(), method)
    long = fh.simulate(problem.noiseless(), method, rounds=4000)
    np.testing.assert_allclose(long.theta[0] - problem.theta_star, predicted.heterogeneity_bias, rtol=0.1, atol=1e-6)
