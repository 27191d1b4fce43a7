"""What is drawn from one key: pairs of draws have their joint law, so that no two of them share random bits.

Every law below is a table worked out by hand from the kernels. Counts of `N` draws are compared with it in standard
errors; of about 100 frequencies in all, one beyond 4.5 of them is expected once in more than a thousand suites.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhsa import tree
from fedhsa.environments import Model
from fedhsa.problems import sarsa
from fedhsa.sources import IID, Decisions, FiniteChain, Generative, Transitions, Windows

N = 20_000
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), size=3)
PAIRS = RNG.dirichlet(np.ones(3), size=(3, 2))
"""Transitions of a decision process with 3 states and 2 actions."""
CHAIN = FiniteChain(P)


def frequencies(source, draw, shape):
    """How often each pair of draws comes up over many keys."""
    with jax.enable_x64(True):
        source = tree.to_device(source, "float64")
        first, second = jax.jit(jax.vmap(lambda key: tuple(draw(source, key))))(jax.random.split(jax.random.key(1), N))
    return np.bincount(np.asarray(first) * shape[1] + np.asarray(second), minlength=np.prod(shape)).reshape(shape) / N


START = np.array([0.2, 0.3, 0.5])
CASES = {
    "an independent transition": (
        IID(Transitions(CHAIN)),
        lambda source, key: source.step(key, ())[1],
        CHAIN.stationary[:, None] * P,
    ),
    "the first window": (Windows(CHAIN, 1), lambda source, key: source.init(key), CHAIN.stationary[:, None] * P),
    "the first state and action": (
        Decisions(PAIRS, START),
        lambda source, key: source.init(key),
        START[:, None] * np.full((1, 2), 0.5),
    ),
    "two pairs of a simulator": (
        Generative(PAIRS.reshape(6, 3)),
        lambda source, key: source.step(key, ())[1][:2],
        PAIRS[0, 0][:, None] * PAIRS[0, 1],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_two_draws_of_one_key_are_independent_where_their_law_says_so(case):
    source, draw, law = CASES[case]
    error = np.sqrt(law * (1 - law) / N)
    assert (abs(frequencies(source, draw, law.shape) - law) < 4.5 * error).all()


@pytest.mark.slow
def test_sarsas_next_state_and_next_action_are_drawn_from_streams_of_their_own():
    """The state from the position's bits, the action from these folded with 1, as they are in every recorded run."""
    theta = RNG.normal(size=6)
    agent = tree.take(sarsa.from_model(Model(PAIRS, np.ones((3, 2)), 0.5), inverse_temperature=1.0).agents, 0)
    policy = np.exp(theta.reshape(3, 2)) / np.exp(theta.reshape(3, 2)).sum(1, keepdims=True)

    def draw(agent, key):
        pair = jnp.int32(1), jnp.int32(0)
        return agent.react(jnp.asarray(theta), pair, jax.random.key_data(key))[0]

    law = PAIRS[1, 0][:, None] * policy
    assert (abs(frequencies(agent, draw, (3, 2)) - law) < 4.5 * np.sqrt(law * (1 - law) / N)).all()
    with jax.enable_x64(True):
        keys, one = jax.random.split(jax.random.key(2), 50), tree.to_device(agent, "float64")
        states, actions = jax.vmap(lambda key: draw(one, key))(keys)
        points = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, 1), dtype="float64"))(keys)
    expected = [int(point >= policy[s, 0]) for point, s in zip(points.tolist(), states.tolist(), strict=True)]
    assert expected == actions.tolist()
