"""Environments written in JAX as sources: their steps are Gymnasium's, and the simulation learns from them."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from fedhsa import tree
from fedhsa._random import as_key, fold_in
from fedhsa._types import precision
from fedhsa.environments.features import Fourier, OneHot
from fedhsa.environments.gym import GymStream
from fedhsa.environments.jax_env import JaxEnvironment, perturbed
from fedhsa.problems import experience

gymnax = pytest.importorskip("gymnax")

CART_POLE, CONSTANTS = gymnax.make("CartPole-v1")
PHI = Fourier([-0.5, -1.5, -0.21, -2.5], [0.5, 1.5, 0.21, 2.5], order=1)
UNLIKE = [perturbed(CONSTANTS, gravity=g, length=length) for g, length in ((5.0, 0.3), (20.0, 1.0))]


def identity(observation):
    return observation


def drawn(source, steps, key=0, dtype="float64"):
    with precision(dtype):
        on_device = tree.to_device(source, dtype)
        keys = fold_in(as_key(key), jnp.arange(steps + 1))
        run = jax.jit(lambda keys: on_device.draw(keys[1:], on_device.init(keys[0])))
        state, block = run(keys)
        return tree.to_host(state), tree.to_host(block)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_cart_pole_in_jax_steps_as_that_of_gymnasium(dtype):
    constants = perturbed(CONSTANTS, gravity=12.0, length=0.7, masspole=0.2)
    _, o = drawn(JaxEnvironment(CART_POLE, constants, features=identity, num_envs=3), 60, dtype=dtype)
    env = gymnasium.make("CartPole-v1").unwrapped
    env.gravity, env.length, env.masspole, env.total_mass, env.polemass_length = 12.0, 0.7, 0.2, 1.2, 0.14
    for t in range(60):
        for i in range(3):
            env.reset()
            env.state = np.asarray(o.features[t, i], dtype=np.float64)
            after, reward, terminated, _, _ = env.step(int(o.action[t, i]))
            np.testing.assert_allclose(o.next_features[t, i], after, rtol=2e-5, atol=1e-6)
            assert o.reward[t, i] == reward
            assert (o.discount[t, i] == 0) == terminated
    assert (o.discount == 0).sum() >= 3
    assert o.features.dtype == dtype


def test_an_episode_that_ends_leads_to_its_last_state_and_the_next_one_begins_elsewhere():
    short = CONSTANTS.replace(max_steps_in_episode=5)
    _, o = drawn(JaxEnvironment(CART_POLE, short, features=identity, discount=0.9), 23)
    assert (o.discount == 0.9).all()  # five steps are too few to fall: only the time was over
    follows = (o.next_features[:-1] == o.features[1:]).all(-1)[:, 0]
    assert np.flatnonzero(~follows).tolist() == [4, 9, 14, 19]
    begins = o.features[[0, 5, 10, 15, 20], 0]
    assert (np.abs(begins) <= 0.05).all()
    assert len(np.unique(begins[:, 0])) == 5
    acts = (o.next_action[:-1] == o.action[1:])[:, 0]
    assert acts[follows].all()


@pytest.mark.slow
def test_a_block_is_the_same_however_it_is_cut():
    source = JaxEnvironment(CART_POLE, CONSTANTS, features=PHI, num_envs=2)
    with precision():
        on_device = tree.to_device(source, "float64")
        keys = fold_in(as_key(3), jnp.arange(31))
        draw = jax.jit(lambda keys, state: on_device.draw(keys, state))
        state = start = jax.jit(lambda key: on_device.init(key))(keys[0])
        _, whole = draw(keys[1:], start)
        parts = []
        step = jax.jit(lambda key, state: on_device.step(key, state))
        for key in keys[1:6]:
            state, o = step(key, state)
            parts.append(o)
        state, rest = draw(keys[6:], state)
    for x, y, z in zip(whole, tree.stack(parts), rest, strict=True):
        np.testing.assert_allclose(x, np.concatenate([y, z]), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_actions_have_the_probabilities_of_the_policy():
    def policy(observation):
        return jnp.where(observation[2] > 0, jnp.array([0.1, 0.9]), jnp.array([0.7, 0.3]))

    _, o = drawn(JaxEnvironment(CART_POLE, CONSTANTS, features=identity, policy=policy, num_envs=20), 400)
    for leans, wanted in ((o.features[..., 2] > 0, 0.9), (o.features[..., 2] <= 0, 0.3)):
        count = leans.sum()
        assert abs(o.action[leans].mean() - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / count)
    uniform = drawn(JaxEnvironment(CART_POLE, CONSTANTS, features=identity, num_envs=20), 400)[1].action
    assert abs(uniform.mean() - 0.5) < 4 * 0.5 / np.sqrt(uniform.size)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-misc"])
def test_other_environments_step_in_double_precision(name):
    env, constants = gymnax.make(name)
    actions = [[-2.0], [2.0]] if name == "Pendulum-v1" else None
    features = OneHot(16) if "Lake" in name else identity
    _, o = drawn(JaxEnvironment(env, constants, features=features, num_envs=2, actions=actions), 5)
    assert o.features.dtype == np.float64
    assert np.isfinite(o.next_features).all()
    assert not np.array_equal(o.features, o.next_features)


def test_physics_with_what_follows_from_it_and_names_that_are_wrong():
    changed = perturbed(CONSTANTS, length=0.8, masspole=0.3)
    assert (float(changed.polemass_length), float(changed.total_mass)) == pytest.approx((0.24, 1.3))
    assert float(perturbed(CONSTANTS, length=0.8, polemass_length=9.0).polemass_length) == 9.0
    with pytest.raises(ValueError, match=r"no constant 'lenght'\. Did you mean 'length'"):
        perturbed(CONSTANTS, lenght=1.0)


def test_actions_that_are_not_numbered_must_be_listed():
    env, constants = gymnax.make("Pendulum-v1")
    with pytest.raises(ValueError, match="`actions` must list what the environment takes"):
        JaxEnvironment(env, constants, features=identity)


@pytest.mark.slow
def test_the_root_is_that_of_least_squares_on_a_record_of_gymnasium():
    """The same chain in two libraries: what one finds solves the other's equations, within their noise."""
    problem = experience.from_environment(CART_POLE, UNLIKE[:1], features=PHI, discount=0.9, reference_steps=20_000)
    physics = {"gravity": 5.0, "length": 0.3}
    stream = GymStream("CartPole-v1", features=PHI, discount=0.9, num_envs=20, physics=physics)
    o = stream.draw(np.random.default_rng(0), 400)
    error = o.reward + o.discount * (o.next_features @ problem.theta_star) - o.features @ problem.theta_star
    left = (error[..., None] * o.features).mean((0, 1))
    whole = (o.reward[..., None] * o.features).mean((0, 1))
    assert np.linalg.norm(left) < 0.03 * np.linalg.norm(whole)


@pytest.mark.slow
def test_many_seeds_of_unlike_cart_poles_learn_in_the_engine():
    problem = experience.from_environment(CART_POLE, UNLIKE, features=PHI, discount=0.9, reference_steps=20_000)
    assert (problem.num_agents, problem.dim, problem.affine) == (2, 16, True)
    result = fh.simulate(problem, fh.FedHSA(0.2, 5), rounds=60, seeds=4)
    value = PHI(np.zeros(4))
    truth = value @ problem.theta_star
    assert abs(result.theta @ value - truth).max() < 0.3 * truth
    assert (result.error[:, -1] < result.error[:, 0]).all()


@pytest.mark.slow
def test_a_record_that_is_too_short_is_said_to_be():
    with pytest.raises(ValueError, match="`reference_steps`: on a second record"):
        experience.from_environment(CART_POLE, UNLIKE, features=PHI, discount=0.9, reference_steps=200)
    with pytest.raises(ValueError, match="`params` must list"):
        experience.from_environment(CART_POLE, [], features=PHI)
