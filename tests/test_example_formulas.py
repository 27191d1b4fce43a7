"""The formulas of the examples of tracking, inverse problems and value networks."""

import pathlib
import runpy

import equinox as eqx
import jax
import numpy as np
import pytest

from fedhsa import tree
from fedhsa.sources import Transition

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def example(name):
    """What a script defines, without running it."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_a_receivers_moments_are_those_of_its_channel():
    """Over 20,000 channels seen at one moment, each moment within 4 standard errors."""
    script = example("fading_channel")
    agents = script["make_problem"](coherence=5).agents
    with jax.enable_x64(True):
        source = tree.to_device(tree.take(agents.source, 3), "float64")

        def seen(key):
            keys = jax.random.split(key, 13)
            _, block = source.draw(keys[1:], source.init(keys[0]))
            return tree.take(block, -1)

        pilots = jax.jit(jax.vmap(seen))(jax.random.split(jax.random.key(0), 20_000))
    y, x = np.asarray(pilots.samples), np.asarray(pilots.symbol)
    for products, expected in ((y[:, :, None] * y[:, None, :], agents.R[3]), (x[:, None] * y, agents.r[3])):
        assert (abs(products.mean(0) - expected) < 4 * products.std(0) / np.sqrt(len(x))).all()


@pytest.mark.slow
def test_a_block_of_a_fading_channel_is_its_steps():
    script = example("fading_channel")
    with jax.enable_x64(True):
        source = tree.to_device(tree.take(script["make_problem"](coherence=5).agents.source, 0), "float64")
        keys = jax.random.split(jax.random.key(2), 6)
        state = source.init(jax.random.key(1))
        last, block = source.draw(keys, state)
        for t, key in enumerate(keys):
            state, pilots = source.step(key, state)
            np.testing.assert_allclose(pilots.samples, block.samples[t], rtol=1e-12, atol=1e-14)
            assert pilots.symbol == block.symbol[t]
        for now, then in zip(state, last, strict=True):
            np.testing.assert_allclose(now, then, rtol=1e-12, atol=1e-14)


def test_alternating_minimisation_solves_both_least_squares_problems():
    """Against NumPy's least squares, the regularisation written as further rows."""
    script = example("inverse_problem")
    a = script["REGULARISATION"]
    Y = np.random.default_rng(0).normal(size=(4, 3))
    x = np.array([1.0, -0.5, 2.0, 0.3])

    def fit(left, frame):
        """The rows v with the least |frame - left v^T|^2 + a |v|^2."""
        rows = np.append(left, np.sqrt(a))[:, None]
        return np.linalg.lstsq(rows, np.concatenate([frame, np.zeros((1, frame.shape[1]))]), rcond=None)[0][0]

    expected = fit(fit(x, Y), Y.T) - x
    with jax.enable_x64(True):
        laboratory = script["Laboratory"](None, jax.numpy.asarray(Y[None]))
        np.testing.assert_allclose(laboratory.operator(jax.numpy.asarray(x), 0), expected, rtol=1e-12)


@pytest.mark.slow
def test_a_value_networks_operator_is_the_temporal_difference_times_the_slope_of_the_first_value():
    """Against central differences of V(s) alone: the next value is held fixed, as semi-gradients do."""
    script = example("value_network")
    with jax.enable_x64(True):
        theta = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, "float64"), script["START"])
        rewards = jax.numpy.linspace(-1.0, 1.0, script["STATES"])
        flat = tree.ravel(theta)
        operator = tree.ravel(script["Robot"](None, rewards).operator(theta, Transition(2, 3)))

        def value(flat, state):
            network = eqx.combine(tree.unravel_like(theta)(jax.numpy.asarray(flat)), script["SKELETON"])
            return float(network(jax.numpy.asarray(script["INPUTS"][state])))

        slope = [(value(flat + h, 2) - value(flat - h, 2)) / 2e-5 for h in 1e-5 * np.eye(flat.size)]
        error = float(rewards[2]) + script["DISCOUNT"] * value(flat, 3) - value(flat, 2)
    np.testing.assert_allclose(operator, error * np.array(slope), rtol=1e-5, atol=1e-8)
