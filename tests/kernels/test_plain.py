"""The plain definitions of the kernels, by hand; the other tests compare kernels with these."""

import jax.numpy as jnp
import numpy as np

from fedhsa.kernels import plain


def test_a_column_is_the_upper_word_of_a_product():
    bits = np.array([0, 1, 65535, 65536, 65538, 2**31 + 12345, 2**32 - 1], dtype=np.uint32)
    for count in (1, 3, 1000, 65535):
        expected = [(int(word) * count) >> 32 for word in bits]
        assert plain.upper_word(bits, np.uint32(count)).tolist() == expected


def test_a_column_with_threshold_zero_is_never_kept():
    """Column 0 has no probability at all, not even that of one word in 2^32; column 1 is kept below its threshold."""
    table = np.array([[0, 1], [5, 0]], dtype=np.uint32)
    first, second = np.uint32(0), np.uint32(2**31)  # of columns 0 and 1
    assert int(plain.alias_draw(first, np.uint32(0), table)) == 1
    assert [int(plain.alias_draw(second, np.uint32(word), table)) for word in (4, 5)] == [1, 0]


def test_a_walk_shows_the_states_before_its_steps():
    """z = 0.5 z + 2 e from 4 with e = 1 and 3: it shows 4 and 4, and is at 8 afterwards."""
    end, shown = plain.linear_walk(np.full((1, 1), 0.5), 2.0, (np.array([[1.0], [3.0]]),), np.array([4.0]))
    np.testing.assert_array_equal(shown, [[4.0], [4.0]])
    np.testing.assert_array_equal(end, [8.0])


def test_an_operator_of_rank_one_follows_the_features_of_the_first_row():
    """(3 - phi_0 theta + 0.5 phi_1 theta) phi_0 = (3 - 1 + 1) phi_0; two steps of 0.1 with a shift of (0, 1)."""
    table, theta = jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([1.0, 1.0])
    rows, weights = (jnp.array([0, 0]), jnp.array([1, 1])), (jnp.array([-1.0, -1.0]), jnp.array([0.5, 0.5]))
    constant = jnp.array([3.0, 3.0])
    np.testing.assert_allclose(plain.rank_one_operator(theta, table, rows, weights, constant), [3.0, 0.0])
    # (1, 1) -> (1.3, 1.1), where the operator is 3 - 1.3 + 1.1 = 2.8 -> (1.58, 1.2)
    shift, minus = jnp.array([0.2, 1.5]), jnp.array([0.2, 0.5])
    moved = plain.rank_one_steps(theta, shift, minus, 0.1, table, rows, weights, constant, 0, 2)
    np.testing.assert_allclose(moved, [1.58, 1.2], rtol=1e-6)
