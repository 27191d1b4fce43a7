import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhsa import tree
from fedhsa._random import fold_in
from fedhsa.sources import IID, FiniteChain, Transition, Transitions
from fedhsa.sources.finite import alias_table, closed_classes


def draw(source, length: int, seed: int = 0):
    source, key = tree.to_device(source, "float32"), jax.random.key(seed)
    state = source.init(fold_in(key, 0))
    return source.draw(fold_in(key, np.arange(1, length + 1)), state)


@given(st.integers(1, 12), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def testalias_tables_give_exactly_the_law_they_were_made_from(S, seed):
    """A column has chance 1/S, is kept up to its threshold and exchanged for its alias above."""
    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.full(S, 0.3), size=3)
    law[0] = np.eye(S)[rng.integers(S)]
    table = alias_table(law)
    keep, alias = table[..., 0] / 2.0**32, table[..., 1]
    made = keep / S
    for row in range(3):
        np.add.at(made[row], alias[row], (1 - keep[row]) / S)
    np.testing.assert_allclose(made, law, atol=1e-9)


def test_transition_frequencies_match_the_kernel():
    """200,000 steps: each frequency within 5 standard errors, rows as multinomial samples."""
    P = np.random.default_rng(1).dirichlet(np.ones(4), size=4)
    _, states = jax.jit(lambda: draw(FiniteChain(P), 200_000))()
    states = np.asarray(states)
    counts = np.zeros((4, 4))
    np.add.at(counts, (states[:-1], states[1:]), 1)
    visits = counts.sum(1, keepdims=True)
    error = np.sqrt(P * (1 - P) / visits)
    assert (abs(counts / visits - P) < 5 * error).all()


def test_a_sparse_kernel_never_makes_an_impossible_step():
    P = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.3, 0.0, 0.7]])
    _, states = draw(FiniteChain(P), 5000)
    states = np.asarray(states)
    assert (P[states[:-1], states[1:]] > 0).all()


def test_the_stationary_law_is_a_left_eigenvector():
    rng = np.random.default_rng(2)
    P = rng.dirichlet(np.ones(6), size=(3, 6))
    chain = FiniteChain(P)
    np.testing.assert_allclose(np.einsum("is,ist->it", chain.stationary, P), chain.stationary, atol=1e-14)
    np.testing.assert_allclose(chain.stationary.sum(1), 1)


def test_transient_states_are_fine():
    P = np.array([[0.5, 0.5, 0.0], [0.0, 0.4, 0.6], [0.0, 0.7, 0.3]])
    np.testing.assert_allclose(FiniteChain(P).stationary, [0, 7 / 13, 6 / 13], atol=1e-15)
    assert [states.tolist() for states in closed_classes(P)] == [[1, 2]]


def test_steps_one_by_one_equal_a_block():
    chain = tree.to_device(FiniteChain(np.random.default_rng(0).dirichlet(np.ones(5), size=5)), "float32")
    key = jax.random.key(3)
    state = chain.init(fold_in(key, 0))
    last, block = chain.draw(fold_in(key, np.arange(1, 8)), state)
    for t in range(7):
        assert int(block[t]) == int(state)
        state, observation = chain.step(jax.random.fold_in(key, t + 1), state)
        assert int(observation) == int(block[t])
    assert int(state) == int(last)


def test_transitions_are_consecutive_states_and_blocks_join():
    source = Transitions(FiniteChain(np.random.default_rng(0).dirichlet(np.ones(5), size=5)))
    source = tree.to_device(source, "float32")
    key = jax.random.key(3)
    state = source.init(fold_in(key, 0))
    _, whole = source.draw(fold_in(key, np.arange(1, 9)), state)
    middle, first = source.draw(fold_in(key, np.arange(1, 5)), state)
    _, second = source.draw(fold_in(key, np.arange(5, 9)), middle)
    for part, one, two in zip(whole, first, second, strict=True):
        np.testing.assert_array_equal(part, np.concatenate([one, two]))
    np.testing.assert_array_equal(whole.state[1:], whole.next_state[:-1])


def test_expectations_are_sums_over_the_stationary_law():
    P = np.random.default_rng(0).dirichlet(np.ones(4), size=4)
    chain, value = FiniteChain(P), np.array([1.0, -2.0, 0.5, 3.0])
    pair = np.arange(16.0).reshape(4, 4)
    with jax.enable_x64(True):
        assert float(chain.expect(lambda s: jax.numpy.asarray(value)[s])) == pytest.approx(chain.stationary @ value)
        expected = (chain.stationary[:, None] * P * pair).sum()
        got = Transitions(chain).expect(lambda o: jax.numpy.asarray(pair)[o.state, o.next_state])
        assert float(got) == pytest.approx(expected)


def test_iid_draws_are_stationary_and_uncorrelated():
    """20,000 pairs from a chain that hardly moves: frequencies and lag-1 covariance within 5 standard errors."""
    P = np.array([[0.99, 0.01], [0.02, 0.98]])
    source = IID(Transitions(FiniteChain(P)))
    _, block = jax.jit(lambda: draw(source, 20_000))()
    assert isinstance(block, Transition)
    states, next_states = np.asarray(block.state), np.asarray(block.next_state)
    assert abs(states.mean() - 1 / 3) < 5 * np.sqrt(2 / 9 / 20_000)
    lag = np.mean((states[1:] - 1 / 3) * (states[:-1] - 1 / 3))
    assert abs(lag) < 5 * (2 / 9) / np.sqrt(20_000)
    assert abs((states != next_states).mean() - 4 / 300) < 5 * np.sqrt(4 / 300 / 20_000)


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], r"must sum to 1, got 1.1 for agent 0, row 0"),
        ([[1.1, -0.1], [0.5, 0.5]], r"must not be negative, got -0.1 for agent 0, row 0, column 1"),
        ([[0.5, 0.5]], r"`transition` must have shape \(S, S\)"),
        ([[np.nan, 1.0], [0.5, 0.5]], r"`transition` must be finite, got nan at index \(0, 0\)"),
        (np.eye(2), r"agent 0 has 2 separate recurrent classes, for instance the states \[0\] and \[1\]"),
        ([[0.0, 1.0], [1.0, 0.0]], r"agent 0 is periodic \(period 2\).*Make it lazy"),
        ([[[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.4, 0.5]]], r"got 0.9 for agent 1, row 1"),
        (np.roll(np.eye(3), 1, axis=1), r"periodic \(period 3\)"),
    ],
)
def test_bad_kernels_are_refused_with_agent_and_row(transition, message):
    with pytest.raises(ValueError, match=message):
        FiniteChain(transition)


def test_ragged_shapes_are_refused():
    with pytest.raises(ValueError, match=r"`transition` must have shape \(S, S\), got \(2, 3\)"):
        FiniteChain(np.ones((2, 3)) / 3)


@pytest.mark.parametrize("start", [5, -1, [0.5, 0.6], [1.5, -0.5]])
def test_bad_starts_are_refused(start):
    with pytest.raises(ValueError, match="`start` must be"):
        FiniteChain([[0.5, 0.5], [0.5, 0.5]], start=start)
