"""Actor-critic against loops and sums over the model: its chain with restarts, its two time scales, A3C."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import agent_key
from fedhsa import tree
from fedhsa.deploy import federate
from fedhsa.environments import Model
from fedhsa.problems import actor_critic
from fedhsa.problems.actor_critic import ActorCritic
from fedhsa.sources import Decision

M, S, A, D, GAMMA = 2, 4, 2, 3, 0.7
RNG = np.random.default_rng(3)
FEATURES = RNG.normal(size=(S, D)) / 2
THETA = ActorCritic(RNG.normal(size=(S, A)), RNG.normal(size=D))
FLAT = np.concatenate([THETA.policy.ravel(), THETA.critic])

operate = eqx.filter_jit(lambda agent, theta, o: agent.operator(theta, o))
react = eqx.filter_jit(lambda agent, theta, state, bits: agent.react(theta, state, bits))


def make_model(episodic: bool = False) -> Model:
    """If episodes end, they do in the last state."""
    rng = np.random.default_rng(6)
    P, R = rng.dirichlet(np.ones(S), size=(M, S, A)), rng.normal(size=(M, S, A, S))
    return Model(P, R, GAMMA, start=[0.5, 0.3, 0.2, 0.0], ends=[False] * (S - 1) + [episodic])


def softmax(logits):
    weights = np.exp(logits)
    return weights / weights.sum(-1, keepdims=True)


class Naive:
    """One agent again, in loops."""

    def __init__(self, episodic: bool, agent: int):
        model = make_model(episodic)
        self.P, self.R, self.start = model.transitions[agent], model.rewards[agent], model.start[agent]
        self.gamma = [0.0 if episodic and s == S - 1 else GAMMA for s in range(S)]

    def operator(self, theta, s, a, t):
        error = self.R[s, a, t] + self.gamma[t] * FEATURES[t] @ theta.critic - FEATURES[s] @ theta.critic
        score = np.zeros((S, A))
        score[s, a] = 1.0
        score[s] -= softmax(theta.policy)[s]
        return np.concatenate([(error * score).ravel(), error * FEATURES[s]])

    def restarting(self, s, a):
        """The law of the state with which the chain goes on."""
        law = np.zeros(S)
        for t in range(S):
            law[t] += self.P[s, a, t] * self.gamma[t]
            law += self.P[s, a, t] * (1 - self.gamma[t]) * self.start
        return law

    def visits(self, policy):
        """The discounted visits of episodes, added up step by step and divided by their sum."""
        law, total = self.start.copy(), np.zeros(S)
        for _ in range(400):
            total += law
            law = np.einsum("s,sa,sat->t", law, policy, self.P) * self.gamma
        return total / total.sum()


@pytest.mark.parametrize(("episodic", "target"), [(False, "restart"), (False, "next"), (True, "next")])
def test_operators_are_the_formulas_and_their_mean_the_sum_under_the_discounted_visits(episodic, target):
    problem = actor_critic.from_model(make_model(episodic), FEATURES, target=target)
    states = range(S - 1 if episodic else S)
    policy = softmax(THETA.policy)
    for i, found in enumerate(problem.mean_operators(FLAT)):
        naive, expected = Naive(episodic, i), np.zeros(S * A + D)
        visits = naive.visits(policy)
        with jax.enable_x64(True):
            agent = tree.to_device(tree.take(problem.flat_agents, i), "float64")
            for s, a, t in itertools.product(states, range(A), range(S)):
                value = naive.operator(THETA, s, a, t)
                led = naive.P[s, a] if target == "next" else naive.restarting(s, a)
                expected += visits[s] * policy[s, a] * led[t] * value
                seen = Decision(*(np.int32(x) for x in (s, a, t)))
                np.testing.assert_allclose(operate(agent, jnp.asarray(FLAT), seen), value, atol=1e-12)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_with_a_right_critic_the_policy_moves_along_the_gradient_of_the_return():
    """With a table as critic: (1 - gamma) times the gradient, here by differences of the models' returns."""
    model = make_model()
    problem = actor_critic.from_model(model)
    for i in range(M):
        values = model.values(softmax(THETA.policy))[i]
        found = problem.mean_operators(np.concatenate([THETA.policy.ravel(), values]))[i]
        np.testing.assert_allclose(found[S * A :], 0.0, atol=1e-12)
        for k, e in enumerate(np.eye(S * A).reshape(-1, S, A) * 1e-5):
            up, down = (model.returns(softmax(THETA.policy + sign * e))[i] for sign in (1, -1))
            np.testing.assert_allclose(found[k], (1 - GAMMA) * (up - down) / 2e-5, atol=1e-9)


@pytest.mark.parametrize("sampling", ["markov", "iid"])
def test_the_chain_visits_states_and_actions_as_discounted_episodes_do(sampling):
    """Frequencies of 40 000 steps at a fixed parameter; batches of 400 steps give the standard errors."""
    problem = actor_critic.from_model(make_model(True), FEATURES, sampling=sampling)
    naive, policy = Naive(True, 0), softmax(THETA.policy)
    law = naive.visits(policy)[:, None, None] * policy[:, :, None] * naive.P
    with jax.enable_x64(True):
        agent = tree.to_device(tree.take(problem.agents, 0), "float64")
        words = jax.random.key_data(jax.random.split(jax.random.key(1), 40_000))
        theta = jax.tree.map(jnp.asarray, THETA)
        walk = jax.jit(lambda: jax.lax.scan(lambda s, w: agent.react(theta, s, w), jnp.int32(0), words)[1])
        seen = np.ravel_multi_index([np.asarray(part) for part in walk()], (S, A, S))
    batches = np.stack([(seen.reshape(100, 400) == x).mean(1) for x in range(S * A * S)], axis=1)
    error = batches.std(0, ddof=1) / 10
    assert (abs(batches.mean(0) - law.ravel()) < 4 * error + 1e-4).all()
    if sampling == "iid":  # what is seen does not depend on what was seen before
        first, second = seen[:-1] // (S * A) == 0, seen[1:] // (S * A) == 0
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(len(seen))


ROUNDS, DELAY, RADIUS, KEY = 6, 3, 0.4, 7
A3C = fh.Delayed(
    fh.Projected(
        fh.SynchronisedSA(fh.PerBlock((fh.Polynomial(0.5, power=0.6), fh.Polynomial(0.8, power=0.4)), (S * A, D))),
        radius=RADIUS,
        part=(S * A, S * A + D),
    ),
    max_delay=DELAY,
)


@pytest.mark.slow
def test_a3c_is_the_loop_in_which_workers_act_at_once_and_their_operators_arrive_late():
    problem = actor_critic.from_model(make_model(), FEATURES, target="restart")
    path, computed = [FLAT], []
    with jax.enable_x64(True):
        agents = [tree.to_device(tree.take(problem.agents, i), "float64") for i in range(M)]
        own = [jax.random.fold_in(agent_key(KEY, 0, i), 0) for i in range(M)]
        states = [agent.source.init(jax.random.fold_in(k, 0)) for agent, k in zip(agents, own, strict=True)]
        for t in range(ROUNDS):
            theta = ActorCritic(path[t][: S * A].reshape(S, A), path[t][S * A :])
            computed.append([])
            for i in range(M):
                words = jax.random.key_data(jax.random.fold_in(own[i], t + 1))
                states[i], o = react(agents[i], theta, states[i], words)
                computed[t].append(Naive(False, i).operator(theta, *(int(x) for x in o)))
            arrived = np.zeros(S * A + D)
            for i in range(M):
                key = jax.random.fold_in(jax.random.fold_in(agent_key(KEY, 0, i), 1), t)
                key = jax.random.fold_in(jax.random.fold_in(key, 2**30 + 1), 0)
                tau = int(jax.random.randint(key, (), 1, DELAY + 1))
                arrived += computed[t - tau][i] / M if tau <= t else 0.0
            policy = path[t][: S * A] + 0.5 / (t + 1) ** 0.6 * arrived[: S * A]
            critic = path[t][S * A :] + 0.8 / (t + 1) ** 0.4 * arrived[S * A :]
            path.append(np.concatenate([policy, critic * min(1, RADIUS / np.linalg.norm(critic))]))
    assert abs(np.linalg.norm(path[-1][S * A :]) - RADIUS) < 1e-12  # the projection has been at work
    result = fh.simulate(problem, A3C, rounds=ROUNDS, key=KEY, theta=FLAT, record=("theta",))
    np.testing.assert_allclose(result.records["theta"][0], path, atol=1e-12)


@pytest.mark.slow
def test_a3c_runs_by_messages_as_in_the_engine():
    problem, options = actor_critic.from_model(make_model(), FEATURES), {"rounds": ROUNDS, "key": KEY, "theta": FLAT}
    engine, network = fh.simulate(problem, A3C, **options).theta, federate(problem, A3C, **options).theta
    np.testing.assert_allclose(tree.ravel(network), tree.ravel(engine), atol=1e-13)


@pytest.mark.slow
def test_what_is_recorded_is_what_the_models_say():
    model, names = make_model(True), ["returns", "mean_return", "gradient_norm", "critic_gap"]
    problem, policy = actor_critic.from_model(model, FEATURES), softmax(THETA.policy)
    records = fh.simulate(problem, fh.LocalSA(0.1, 2), rounds=1, theta=THETA, record=names).records
    np.testing.assert_allclose(records["returns"][0, 0], model.returns(policy), atol=1e-12)
    np.testing.assert_allclose(records["mean_return"][0, 0], model.returns(policy).mean(), atol=1e-12)
    slopes = []
    for e in np.eye(S * A).reshape(-1, S, A) * 1e-5:
        up, down = (model.returns(softmax(THETA.policy + sign * e)).mean() for sign in (1, -1))
        slopes.append((up - down) / 2e-5)
    np.testing.assert_allclose(records["gradient_norm"][0, 0], np.linalg.norm(slopes), rtol=1e-7)
    matrix, vector = np.zeros((D, D)), np.zeros(D)
    for naive in (Naive(True, i) for i in range(M)):
        visits = naive.visits(policy)
        for s, a, t in itertools.product(range(S - 1), range(A), range(S)):
            weight = visits[s] * policy[s, a] * naive.P[s, a, t]
            matrix += weight * np.outer(FEATURES[s], naive.gamma[t] * FEATURES[t] - FEATURES[s])
            vector += weight * naive.R[s, a, t] * FEATURES[s]
    gap = np.linalg.norm(THETA.critic + np.linalg.solve(matrix, vector))
    np.testing.assert_allclose(records["critic_gap"][0, 0], gap, rtol=1e-10)


def test_an_action_counts_elsewhere_as_much_as_it_is_likelier_there():
    agents = actor_critic.from_model(make_model(), FEATURES).agents
    other, seen = ActorCritic(2 * THETA.policy, THETA.critic), Decision(*np.array([2, 1, 0], np.int32))
    with jax.enable_x64(True):
        agent, old, new = (tree.to_device(x, "float64") for x in (tree.take(agents, 0), other, THETA))
        found = np.exp(agent.log_ratio(old, new, seen))
    np.testing.assert_allclose(found, softmax(other.policy)[2, 1] / softmax(THETA.policy)[2, 1], rtol=1e-12)


def test_what_does_not_fit_is_refused_with_the_reason():
    endless = Model(np.full((2, 1, 2), 0.5), np.zeros((2, 1)), 1.0, start=0, ends=[False, True])
    actor_critic.from_model(endless)
    with pytest.raises(ValueError, match=r"`sampling='iid'` stops episodes with probability 1 - discount"):
        actor_critic.from_model(endless, sampling="iid")
    with pytest.raises(ValueError, match="`target` must be one of"):
        actor_critic.from_model(make_model(), target="now")
    with pytest.raises(ValueError, match="full column rank 2 on the states in which agents act, got 1"):
        actor_critic.from_model(make_model(), np.ones((S, 2)))
