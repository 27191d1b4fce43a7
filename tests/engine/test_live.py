"""Simulations on live environments: the numbers of a naive loop, of a federation, and of the same world in JAX."""

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from fedhsa import deploy, theory, tree
from fedhsa._random import host_generator
from fedhsa._types import precision
from fedhsa.environments import EpsilonGreedy, Experience, SoftmaxTable
from fedhsa.environments.gym import GymEpisodes, GymStream
from fedhsa.problems import Live
from fedhsa.problems.experience import QAgent, TDAgent
from fedhsa.problems.policy_gradient import from_gymnasium, live_agent
from naive import fed_hsa


class Ring(gymnasium.Env):
    """Five places in a circle; every step leads to the next, pays its number, and nothing is random."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (5,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)
    state_names = ("place",)

    def __init__(self, pay=1.0):
        self.pay, self.place = pay, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.eye(5)[0], {}

    def step(self, action):
        earned, self.place = self.pay * self.place, (self.place + 1) % 5
        return np.eye(5)[self.place], earned, False, False, {}


class Door(gymnasium.Env):
    """One of two doors pays, the other does not, and one step is an episode; which one depends on what is seen."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = int(self.np_random.integers(2))
        return self.seen, {}

    def step(self, action):
        return self.seen, float(action == self.seen), True, False, {}


def first(seen):
    """The action 0, always."""
    return np.broadcast_to([1.0, 0.0], (*seen.shape[:-1], 2))


def rings(**options):
    streams = [GymStream(lambda pay=pay: Ring(pay), features=np.asarray, policy=first, discount=0.8) for pay in (1, 3)]
    return fh.Problem([Live(TDAgent(), stream) for stream in streams], like=np.zeros(5), **options)


TABLE = SoftmaxTable(2, 2)


def doors(num_agents=2):
    agent = live_agent(TABLE, horizon=2, batch=4)
    streams = [GymEpisodes(Door, TABLE, horizon=2, batch=4, evaluation_episodes=50) for _ in range(num_agents)]
    return fh.Problem([Live(agent, stream) for stream in streams], like=np.zeros(4))


def cart_poles(policy=None):
    streams = [
        GymStream("CartPole-v1", features=np.asarray, policy=policy, num_envs=2, physics={"gravity": g})
        for g in (5.0, 15.0)
    ]
    agent, d = (TDAgent(), 4) if policy is None else (QAgent(2), 8)
    return fh.Problem([Live(agent, stream) for stream in streams], like=np.zeros(d))


METHOD = fh.FedHSA(0.1, local_steps=3)


class RingSource(fh.AbstractSource):
    """The same ring in JAX."""

    pay: np.ndarray

    def init(self, key, /):
        return jnp.zeros((), int)

    def step(self, key, state, /):
        after, one = (state + 1) % 5, jnp.ones(1)
        here, there = jnp.eye(5)[state][None], jnp.eye(5)[after][None]
        nothing = jnp.zeros(1, jnp.int32)
        return after, Experience(here, nothing, self.pay * state.astype(float) * one, 0.8 * one, there, nothing)


def test_a_world_without_chance_gives_the_same_live_as_in_jax():
    known = fh.Problem([TDAgent(RingSource(np.array(pay))) for pay in (1.0, 3.0)], theta_star=np.ones(5))
    live = fh.simulate(rings(theta_star=np.ones(5)), METHOD, rounds=7, seeds=2)
    expected = fh.simulate(known, METHOD, rounds=7, seeds=2)
    assert abs(expected.error[0, -1] - expected.error[0, 0]) > 1
    np.testing.assert_allclose(live.error, expected.error, rtol=1e-12)
    np.testing.assert_allclose(live.theta, expected.theta, rtol=1e-12)
    assert live.cost == expected.cost


def test_every_seed_is_a_naive_loop_over_what_its_own_copies_of_the_environments_show():
    problem, rounds, H = cart_poles(), 4, 3
    found = fh.simulate(problem, METHOD, rounds=rounds, seeds=2, key=5, record=["theta"]).records["theta"]

    def G(i, theta, o):
        features, reward, discount, following = o
        return (reward + discount * (following @ theta) - features @ theta) @ features / len(reward)

    for seed in range(2):
        observations = []
        for i, stream in enumerate(problem.streams or []):
            own, seen = stream.fresh(), []
            for t in range(rounds):
                b = own.draw(host_generator(5, "stream", i, t, *[1] * seed), H)
                seen += list(zip(b.features, b.reward, b.discount, b.next_features, strict=True))
            observations.append(seen)
        expected = fed_hsa(G, observations, np.zeros(4), step_size=0.1, local_steps=H, server_step=1.0, rounds=rounds)
        np.testing.assert_allclose(found[seed], expected, rtol=1e-9, atol=1e-14)


def test_every_seed_acts_on_its_own_parameter():
    problem, agent = doors(), live_agent(TABLE, horizon=2, batch=4)
    found = fh.simulate(problem, fh.LocalSA(0.5, 1), rounds=3, seeds=2, record=["theta"]).records["theta"]
    operator = eqx.filter_jit(agent.operator)
    for seed in range(2):
        theta, streams = np.zeros(4), [stream.fresh() for stream in problem.streams or []]
        for t in range(3):
            with precision():
                blocks = [
                    s.draw(host_generator(0, "stream", i, t, *[1] * seed), 1, theta) for i, s in enumerate(streams)
                ]
                moves = [operator(jnp.asarray(theta), tree.to_device(tree.take(b, 0), "float64")) for b in blocks]
            theta = theta + 0.5 * np.mean(moves, axis=0)
            np.testing.assert_allclose(found[seed, t + 1], theta, rtol=1e-9, atol=1e-14)


def improving():
    return cart_poles(EpsilonGreedy(np.asarray, 2, 0.2))


@pytest.mark.parametrize("make", [doors, pytest.param(improving, marks=pytest.mark.slow)])
def test_the_first_seed_is_a_federation_by_messages(make):
    problem = make()
    by_messages = deploy.federate(problem, METHOD, rounds=3, key=2)
    together = fh.simulate(problem, METHOD, rounds=3, seeds=2, key=2)
    np.testing.assert_allclose(together.theta[0], by_messages.theta[0], rtol=1e-9, atol=1e-14)
    assert np.abs(together.theta[0] - together.theta[1]).max() > 1e-3
    assert together.quantity == by_messages.quantity == "mean_return"
    np.testing.assert_allclose(by_messages.records["mean_return"][0], together.records["mean_return"][0], rtol=1e-9)


def test_returns_are_those_of_the_policy_that_was_learned():
    problem = doors()
    learned = fh.simulate(problem, fh.LocalSA(0.5, 2), rounds=12, seeds=3, every=4, record=["returns"])
    returns = learned.records["mean_return"]
    assert returns.shape == (3, 4)
    np.testing.assert_allclose(learned.records["returns"].mean(-1), returns, atol=1e-15)
    assert (abs(returns[:, 0] - 0.5) < 0.2).all()
    assert (returns[:, -1] > 0.7).all()
    sure = fh.simulate(problem, fh.LocalSA(1e-9, 2), rounds=1, seeds=3, theta=np.array([50.0, 0.0, 0.0, 50.0]))
    np.testing.assert_array_equal(sure.records["mean_return"], 1.0)
    low, high = learned.interval()
    assert ((low < returns.mean(0)) & (returns.mean(0) < high)).all()


@pytest.mark.parametrize("make", [doors, rings, cart_poles], ids=["episodes", "own state", "cart poles"])
def test_a_live_run_continues_from_its_checkpoint_bit_for_bit(make, tmp_path):
    problem, options = make(), {"rounds": 6, "seeds": 2, "every": 2, "record": ["theta"]}
    whole = fh.simulate(problem, METHOD, **options)
    kept = {"checkpoint": tmp_path / "state", "checkpoint_every": 2}

    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="Interrupted after round 2"):
        part = fh.simulate(problem, METHOD, **options, **kept, progress=stop)
    assert not part.complete
    resumed = fh.simulate(problem, METHOD, **options, **kept, resume=True)
    for name, expected in whole.records.items():
        np.testing.assert_array_equal(resumed.records[name], expected)


def test_a_seed_that_diverges_ends_alone():
    with np.errstate(over="ignore"):
        lost = fh.simulate(cart_poles(EpsilonGreedy(np.asarray, 2)), fh.FedHSA(1e9, 3), rounds=4, seeds=2)
    assert lost.status.tolist() == ["diverged"] * 2
    assert np.isinf(lost.records["mean_return"][:, -1]).all()


class Fog(Ring):
    """A world whose state nobody can name."""

    state_names = ()


class Broken(Ring):
    """A world that ends with an error."""

    def step(self, action):
        raise KeyError("no such place")


def test_an_environment_that_fails_is_told_with_its_line():
    agents = [Live(TDAgent(), GymStream(Broken, features=np.asarray))]
    with pytest.raises(
        ValueError, match=r"Round 1: an environment could not be stepped: .*test_live.py, line \d+, in `st"
    ):
        fh.simulate(fh.Problem(agents, like=np.zeros(5)), METHOD, rounds=1)


def test_what_live_agents_cannot_do_is_told_in_a_sentence(tmp_path):
    fog = fh.Problem([Live(TDAgent(), GymStream(Fog, features=np.asarray))], like=np.zeros(5), theta_star=np.zeros(5))
    problem = doors()
    agent, stream = live_agent(TABLE, horizon=2, batch=4), GymEpisodes(Door, TABLE, horizon=2, batch=4)
    other = GymEpisodes(Door, TABLE, horizon=3, batch=4)
    for call, says in (
        (
            lambda: fh.simulate(fog, METHOD, rounds=1, checkpoint=tmp_path / "a"),
            "`checkpoint`: the observations of GymStream",
        ),
        (lambda: fh.simulate(problem, METHOD, rounds=1, debug=True), "which live agents do not use"),
        (lambda: theory.predict(problem, METHOD), "observe running environments, whose law is not known"),
        (lambda: theory.predict(fog, METHOD), "observe running environments, whose law is not known"),
        (lambda: theory.constants(fog), "observe running environments, whose law is not known"),
        (lambda: fog.noiseless(), "observe running environments, whose law is not known"),
        (lambda: problem.iid(), "`iid`: LiveSource cannot sample"),
        (lambda: fh.init(problem, METHOD), "observe running environments, whose law is not known"),
        (
            lambda: deploy.federate([Live(agent, stream)], METHOD, rounds=1),
            r"Build one from the agents: `Problem\(agents",
        ),
        (lambda: fh.Problem([agent, Live(agent, stream)], like=np.zeros(4)), "must all be `Live`, or none"),
        (lambda: fh.Problem([Live(agent, stream), Live(agent, other)], like=np.zeros(4)), "observations of one shape"),
        (lambda: fh.Problem([Live(agent, None)], like=np.zeros(4)), "must be an `AbstractStream`"),
        (lambda: fh.Problem([Live(agent, stream)], like=np.zeros(3)), "must be|shape|reshape"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            call()


@pytest.mark.slow
def test_methods_are_compared_by_the_returns_that_they_reach():
    methods = {"half": fh.LocalSA(0.2, 2), "full": fh.LocalSA(1.0, 2), "tuned": lambda step: fh.LocalSA(step, 2)}
    found = fh.compare(doors(), methods, samples=12, seeds=3, grid=3, tuning_seeds=3)
    assert [place.name for place in found.ranking.places][-1] == "half"
    alone = fh.simulate(doors(), fh.LocalSA(0.2, 2), rounds=6, seeds=3)
    np.testing.assert_array_equal(found.entries["half"].score, alone.records["mean_return"][:, -1])
    tuning = found.entries["tuned"].tuning
    assert tuning is not None
    assert tuning.best.error == min(trial.error for trial in tuning.trials) < -0.5  # the largest return
    reached = fh.compare(doors(), {"full": fh.LocalSA(1.0, 2)}, samples=12, seeds=3, target=0.7).entries["full"]
    returns = reached.result.records["mean_return"]
    np.testing.assert_array_equal(reached.reached["samples"], 2 * (returns >= 0.7).argmax(1))
    with pytest.raises(ValueError, match="Methods cannot be compared on this problem"):
        fh.compare(rings(), methods, samples=12, seeds=2)


class Board(Ring):
    """Shows a picture."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (5, 5), np.float64)


class Wheel(Door):
    """Steered by a real number."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)


@pytest.mark.slow
def test_a_policy_that_fits_the_environment_is_found_or_asked_for():
    small = {"horizon": 2, "batch": 2, "width": 3}
    assert from_gymnasium([Door] * 2, **small).dim == 4  # a table
    assert from_gymnasium([Ring], **small).dim == 5 * 3 + 3 + 3 * 3 + 3 + 3 * 2 + 2  # a network
    swing_up = from_gymnasium(["Pendulum-v1"], **small)
    assert type(swing_up.agents.policy).__name__ == "Gaussian"
    for arguments, says in (
        (("CartPole-v1",), "`environments` must be a list with a name or a function"),
        (([],), "`environments` must be a list with a name or a function"),
        (([Board],), "`policy` is required if observations are not vectors"),
        (([Wheel],), "`policy` is required if observations are numbers"),
        (([Door], np.zeros(2)), "`policy` must be an"),
    ):
        with pytest.raises((TypeError, ValueError), match=says):
            from_gymnasium(*arguments, **small)
    with pytest.raises(ValueError, match="`physics` must have an entry for each of 1"):
        from_gymnasium(["CartPole-v1"], physics=[{}, {}])
