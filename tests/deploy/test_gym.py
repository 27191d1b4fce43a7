"""Live environments of Gymnasium: what an experience says, and that nothing is lost when a process ends."""

import pathlib

import equinox as eqx
import gymnasium
import jax
import numpy as np
import pytest
import scipy

import fedhsa as fh
from federation import kill_at
from fedhsa import tree
from fedhsa._types import precision
from fedhsa.deploy import (
    AgentContext,
    Faults,
    Killed,
    Live,
    MemoryTransport,
    Plan,
    Server,
    Site,
    Store,
    Task,
    in_memory,
)
from fedhsa.deploy.plan import load_agent
from fedhsa.environments import Categorical
from fedhsa.environments.features import Fourier, OneHot
from fedhsa.environments.gym import MODES, GymEpisodes, GymStream, returns
from fedhsa.environments.policies import EpsilonGreedy, Softmax, Uniform
from fedhsa.problems.experience import QAgent, SARSAAgent, TDAgent
from fedhsa.problems.policy_gradient import live_agent

PHI = Fourier([-2.4, -3, -0.21, -3], [2.4, 3, 0.21, 3], order=1)


def seen(observation):
    return np.asarray(observation, dtype=np.float64)


class Corridor(gymnasium.Env):
    """Counts its steps: 1, 2, 3; after 3 it is over, or its time is, as it was told."""

    observation_space = gymnasium.spaces.Box(0.0, 99.0, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, terminal):
        self.terminal, self.place, self.starts = terminal, 0.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.starts += 1
        self.place = 10.0 * self.starts
        return np.array([self.place]), {}

    def step(self, action):
        self.place += 1.0
        over = self.place % 10 == 3
        return np.array([self.place]), 0.5 * self.place, over and self.terminal, over and not self.terminal, {}


@pytest.mark.parametrize("terminal", [True, False], ids=["terminated", "truncated"])
def test_the_step_that_ends_an_episode_leads_to_its_last_state_and_not_to_the_next_start(terminal):
    stream = GymStream(lambda: Corridor(terminal), features=seen, discount=0.9)
    o = stream.draw(np.random.default_rng(0), 7)
    assert o.features[:, 0, 0].tolist() == [10, 11, 12, 20, 21, 22, 30]
    assert o.next_features[:, 0, 0].tolist() == [11, 12, 13, 21, 22, 23, 31]
    assert o.reward[:, 0].tolist() == [5.5, 6, 6.5, 10.5, 11, 11.5, 15.5]
    ends = 0.0 if terminal else 0.9  # time that has run out is not a terminal state
    assert o.discount[:, 0].tolist() == [0.9, 0.9, ends, 0.9, 0.9, ends, 0.9]


def test_what_is_done_next_is_what_was_said_to_be_but_where_an_episode_begins():
    stream = GymStream(lambda: Corridor(False), features=seen)
    o = stream.draw(np.random.default_rng(2), 60)
    followed = o.next_action[:-1, 0] == o.action[1:, 0]
    begins = o.features[1:, 0, 0] % 10 == 0
    assert followed[~begins].all()
    assert not followed[begins].all()


def test_the_next_action_is_chosen_where_the_step_led():
    def policy(observation):  # 1 at the end of an episode, 0 elsewhere
        last = observation[..., 0] % 10 == 3
        return np.stack([~last, last], axis=-1).astype(float)

    o = GymStream(lambda: Corridor(False), features=seen, policy=policy).draw(np.random.default_rng(0), 9)
    assert o.next_action[:, 0].tolist() == [0, 0, 1] * 3
    assert not o.action.any()


def test_written_for_many_copies_the_step_that_begins_an_episode_teaches_nothing():
    options = {"max_episode_steps": 6}
    stream = GymStream(
        "CartPole-v1", features=seen, num_envs=4, mode="vector_entry_point", options=options, discount=0.9
    )
    o = stream.draw(np.random.default_rng(0), 30)
    idle = ~o.features.any(-1)
    assert np.flatnonzero(idle[:, 0]).tolist() == [6, 13, 20, 27]
    assert (o.reward[idle] == 0).all()
    assert (o.discount == 0.9).all()  # six steps are too few to fall
    going = ~idle[1:] & ~idle[:-1]
    np.testing.assert_array_equal(o.next_features[:-1][going], o.features[1:][going])
    assert (np.abs(o.next_features[idle]) <= 0.05).all()  # where episodes begin


@pytest.mark.parametrize("mode", MODES)
def test_steps_are_those_of_the_environment_with_its_physics(mode):
    physics = {"gravity": 12.0, "length": 0.7}
    stream = GymStream("CartPole-v1", features=seen, num_envs=2, mode=mode, physics=physics)
    o = stream.draw(np.random.default_rng(0), 40)
    alone = gymnasium.make("CartPole-v1").unwrapped
    alone.gravity, alone.length, alone.polemass_length = 12.0, 0.7, 0.07
    compared = 0
    for t in range(40):
        for i in range(2):
            if o.features[t, i].any():
                alone.reset()
                alone.state = o.features[t, i]
                after, reward, terminated, _, _ = alone.step(int(o.action[t, i]))
                np.testing.assert_allclose(after, o.next_features[t, i], rtol=1e-5, atol=1e-6)
                assert (reward, 0.0 if terminated else 0.99) == (o.reward[t, i], o.discount[t, i])
                compared += 1
    assert compared > 70
    assert (o.discount == 0).any()


CASES = {
    "CartPole-v1": {"features": PHI},
    "CartPole-v1 for many": {"features": PHI, "mode": "vector_entry_point"},
    "CartPole-v1 cut": {"features": PHI, "options": {"max_episode_steps": 7}},
    "Pendulum-v1": {"features": seen, "actions": [[-2.0], [0.0], [2.0]]},
    "Acrobot-v1": {"features": seen},
    "MountainCar-v0": {"features": seen, "physics": {"gravity": 0.003}},
    "FrozenLake-v1": {"features": OneHot(16)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_stream_continues_in_another_process_where_it_was(case):
    def begin():
        return GymStream(case.split()[0], num_envs=3, **CASES[case])

    whole = begin()
    whole.draw(np.random.default_rng(0), 15)
    saved = whole.save()
    other = begin()
    other.restore(saved)
    for i in range(1, 3):
        there, here = (stream.draw(np.random.default_rng(i), 15) for stream in (other, whole))
        for x, y in zip(there, here, strict=True):
            np.testing.assert_array_equal(x, y)
    assert [x.shape for x in whole.draw(np.random.default_rng(3), 15)] == [(15, *x.shape) for x in whole.like]


def test_a_stream_begins_anew_from_nothing_and_where_the_state_is_unknown():
    stream = GymStream(lambda: Corridor(True), features=seen)
    assert stream.save() == {}
    stream.draw(np.random.default_rng(0), 2)
    assert stream.save() == {}
    stream.restore({})
    assert stream.draw(np.random.default_rng(0), 1).features.item() == 20  # the second start


def test_the_same_generator_gives_the_same_experience_and_another_another():
    first, same, other = (
        GymStream("CartPole-v1", features=PHI).draw(np.random.default_rng(seed), 30) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(x, y) for x, y in zip(first, same, strict=True))
    assert not np.array_equal(first.features, other.features)


METHOD = fh.FedHSA(0.1, 4)


def federated(folder, faults=None, kills=(), control=False, method=METHOD, dim=16):
    """Three rounds of three cart poles with different physics, the server killed on its way; gives theta."""
    task = Task(method, 3, np.zeros(dim), key=5)

    def begin(site):
        physics = {"gravity": 7.0 + 4 * site, "length": 0.3 + 0.2 * site}
        agent = SARSAAgent(2, None, np.zeros(1)) if control else TDAgent(None, np.zeros(1))
        policy = Softmax(PHI, 2, 1.0) if control else None
        stream = GymStream("CartPole-v1", features=PHI, policy=policy, num_envs=2, physics=physics)
        return Site(task, agent, [site], Store(folder / f"{site}.state", sync=False), "test", [stream])

    def server():
        made = Server(task, MemoryTransport(begin, 3, faults), [[0], [1], [2]], folder=folder, run="test")
        assert made.store is not None
        made.store.sync = False
        return made

    running = server()
    for place in kills:
        running.phase = kill_at(place)
        try:
            running.run(3)
        except Killed:
            running = server()
            running.resume()
    return np.asarray(running.run(3).server.theta)[0]


@pytest.mark.slow
@pytest.mark.parametrize("control", [False, True], ids=["evaluation", "control"])
def test_a_federation_of_live_cart_poles_is_the_same_wherever_its_processes_end(control, tmp_path):
    dim = 32 if control else 16
    expected = federated(tmp_path / "whole", control=control, dim=dim)
    assert np.abs(expected).max() > 0.01
    for place, fault in ((0, "kill received"), (2, "kill computed"), (4, "kill saved"), (7, "late repeat")):
        faults = Faults(schedule=[None] * place + [fault])
        found = federated(tmp_path / fault, faults, [place // 2], control, dim=dim)
        assert found.tobytes() == expected.tobytes()


def test_live_control_acts_on_the_parameter_with_which_the_round_began():
    greedy = EpsilonGreedy(PHI, 2, 0.0)
    stream = GymStream("CartPole-v1", features=PHI, policy=greedy)
    assert stream.controlled
    for action in (0, 1):
        theta = np.zeros((2, 16))
        theta[action, 0] = 1.0  # the constant feature makes this action the better one everywhere
        stream.restore({})
        assert (stream.draw(np.random.default_rng(0), 5, theta.reshape(-1)).action == action).all()
    with pytest.raises(ValueError, match="`theta` must be given"):
        stream.draw(np.random.default_rng(0), 5)


def test_an_algorithm_that_does_not_send_the_parameter_is_rejected_for_live_control(tmp_path):
    with pytest.raises(ValueError, match="the messages of OneShotAveraging do not begin"):
        federated(tmp_path, control=True, method=fh.OneShotAveraging(0.1, 4), dim=32)


def test_returns_are_those_of_whole_episodes():
    def lean(observation):  # pushes to where the pole falls: balances for long
        right = (observation[..., 2] + 0.5 * observation[..., 3] > 0).astype(float)
        return np.stack([1 - right, right], axis=-1)

    good, bad = returns("CartPole-v1", lean, episodes=4), returns("CartPole-v1", Uniform(2), episodes=4)
    assert good.min() > 100 > bad.max() >= bad.min() > 5
    np.testing.assert_array_equal(bad, returns("CartPole-v1", Uniform(2), episodes=4))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: GymStream("CartPole-v1", features=PHI, physics={"gravty": 1.0}),
            r"no constant 'gravty'\. Did you mean 'gravity'",
        ),
        (lambda: GymStream("CartPole-v1", features=PHI, num_envs=0), "`num_envs` must be at least 1"),
        (lambda: GymStream("CartPole-v1", features=PHI, mode="async"), "`mode` must be one of"),
        (lambda: GymStream("CartPole-v1", features=PHI, discount=1.5), "`discount` must be at most 1"),
        (lambda: GymStream("Pendulum-v1", features=seen), "`actions` must list what the environment gets"),
        (lambda: GymStream("Blackjack-v1", features=seen), "`environment` must show arrays or numbers"),
        (
            lambda: GymStream(lambda: Corridor(True), features=seen, options={"a": 1}),
            "`options` are for an environment",
        ),
        (lambda: GymStream("CartPole-v1", features=lambda o: 1.0).like, "`features` must give"),
        (
            lambda: GymStream("CartPole-v1", features=PHI, policy=lambda o: np.ones(3) / 3).draw(
                np.random.default_rng(0), 1
            ),
            "`policy` must give probabilities",
        ),
        (
            lambda: GymStream("CartPole-v1", features=PHI, policy=lambda o: np.ones(2)).draw(
                np.random.default_rng(0), 1
            ),
            "which add up to 1",
        ),
    ],
)
def test_bad_arguments_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()


EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "cart_poles.py"


def test_the_example_builds_live_agents_with_unlike_physics():
    build = load_agent(f"{EXAMPLE}:build")
    made = [build(AgentContext(number, 3, {})) for number in range(3)]
    assert all(isinstance(one, Live) for one in made)
    assert len({one.stream.copies.inner[0].length for one in made}) == 3


@pytest.mark.slow
def test_live_cart_poles_run_on_ray_as_in_memory(tmp_path):
    ray = pytest.importorskip("fedhsa.deploy.ray", reason="needs Ray")
    plan = Plan(num_agents=3, dim=16, agent=f"{EXAMPLE}:build", step_size=0.1, local_steps=5)
    here = in_memory(plan, tmp_path / "here")
    here.run(3)
    there = ray.federate_on_ray(plan, rounds=3, folder=tmp_path / "there", actors=2)
    np.testing.assert_allclose(there.theta[0], np.asarray(here.progress.server.theta)[0], rtol=1e-12)


def test_q_learning_needs_no_more_than_the_stream_gives():
    block = GymStream("CartPole-v1", features=PHI, num_envs=3).draw(np.random.default_rng(0), 4)
    with precision():
        agent, given, theta = tree.to_device((QAgent(2), tree.take(block, 0), np.zeros(32)), "float64")
        move = np.asarray(agent.operator(theta, given)).reshape(2, 16)
    for action in (0, 1):  # without values, what moves is the reward times the features of those who acted so
        expected = block.features[0][block.action[0] == action].sum(0) / 3
        np.testing.assert_allclose(move[action], expected, rtol=0, atol=1e-12)


def test_live_episodes_are_played_to_their_end_under_the_parameter_of_the_round():
    """Rewards and ends are the environment's, chances those of the policy, and where the round begins weights are 1."""
    policy = Categorical(eqx.nn.Linear(1, 2, key=jax.random.key(0)))
    theta = np.array([0.02, -0.01, 0.3, -0.2])
    block, again = (
        GymEpisodes(lambda: Corridor(True), policy, horizon=5, batch=2).draw(np.random.default_rng(3), 2, theta)
        for _ in range(2)
    )
    np.testing.assert_array_equal(block.alive[0, 0], [1, 1, 1, 0, 0])
    places = block.seen[..., :3, 0]
    np.testing.assert_array_equal(block.reward[..., :3], 0.5 * (places + 1))
    assert (block.reward[..., 3:] == 0).all()
    logits = np.stack([theta[0] * places + theta[2], theta[1] * places + theta[3]], axis=-1)
    chances = scipy.special.log_softmax(logits, axis=-1)
    taken = np.take_along_axis(chances, block.action[..., :3, None], axis=-1)[..., 0]
    np.testing.assert_allclose(block.log_prob[..., :3], taken, atol=1e-12)
    np.testing.assert_array_equal(again.action, block.action)  # the same generator, the same actions
    agent = live_agent(policy, horizon=5, batch=2, max_weight=1.5)
    with precision():
        o = jax.tree.map(lambda part: jax.numpy.asarray(part[0]), block)
        here, there = jax.numpy.asarray(theta), jax.numpy.asarray(theta + 0.2)
        operator, weighted, log_ratio = map(eqx.filter_jit, (agent.operator, agent.weighted_operator, agent.log_ratio))
        np.testing.assert_allclose(operator(here, o), weighted(here, o, jax.numpy.ones(2)), atol=1e-12)
        moved = np.minimum(np.exp(log_ratio(there, here, o)), 1.5)
        expected = weighted(there, o, jax.numpy.asarray(moved))
        np.testing.assert_allclose(operator(there, o), expected, atol=1e-12)


@pytest.mark.slow
def test_agents_learn_a_policy_by_messages(tmp_path):
    agent = pathlib.Path(__file__).parents[2] / "examples" / "learn_cart_pole.py"
    plan = Plan(num_agents=2, dim=10, agent=f"{agent}:build", algorithm="FedHSA", step_size=0.02, local_steps=1)
    server = in_memory(plan, tmp_path)
    server.run(1)
    assert np.isfinite(np.asarray(server.progress.server.theta)).all()
    assert (np.asarray(server.progress.server.theta) != 0).all()
