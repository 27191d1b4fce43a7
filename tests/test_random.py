import jax
import numpy as np
import pytest

from fedhsa import _random


def test_folded_keys_are_those_of_jax():
    key = jax.random.key(7)
    expected = np.stack([jax.random.key_data(jax.random.fold_in(key, i)) for i in range(20)])
    np.testing.assert_array_equal(jax.random.key_data(_random.fold_in(key, np.arange(20))), expected)
    words = np.asarray(jax.random.key_data(key))
    np.testing.assert_array_equal(_random.fold_in_words(words[None], np.arange(20)), expected)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.random.key_data(_random.fold_in(key, np.arange(20))), expected)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_normal_numbers_are_normal_and_independent(dtype):
    """Moments of 200,000 numbers within 5 standard errors, for each place of the vector and each pair of places."""
    n, count = 40_000, 5
    with jax.enable_x64(dtype == "float64"):
        keys = _random.fold_in(jax.random.key(0), np.arange(n))
        draw = jax.jit(jax.vmap(lambda key: _random.real_parts(_random.complex_normal(key, 3, dtype), count)))
        z = np.asarray(draw(keys), dtype=np.float64)
    assert z.shape == (n, count)
    assert abs(z.mean(0)).max() < 5 / np.sqrt(n)
    assert abs((z**2).mean(0) - 1).max() < 5 * np.sqrt(2 / n)
    assert abs((z**4).mean(0) - 3).max() < 5 * np.sqrt(96 / n)
    products = (z.T @ z / n)[~np.eye(count, dtype=bool)]
    assert abs(products).max() < 5 / np.sqrt(n)


def test_a_part_of_a_right_angle_has_the_cosine_and_sine_it_should():
    part = np.linspace(0, 1, 1001)[:-1]
    with jax.enable_x64(True):
        cosine, sine = _random._quarter_turn(jax.numpy.asarray(part))
    np.testing.assert_allclose(cosine, np.cos(np.pi / 2 * part), atol=4e-16)
    np.testing.assert_allclose(sine, np.sin(np.pi / 2 * part), atol=4e-16)


def test_any_kind_of_key_is_accepted_and_equal_keys_are_equal():
    assert _random.key_words(3) == _random.key_words(jax.random.key(3)) == _random.key_words(jax.random.PRNGKey(3))
    assert _random.key_words(3) != _random.key_words(4)
    assert len(_random.key_words(jax.random.key(3, impl="rbg"))) == 2


def test_each_path_has_its_own_stream():
    draws = {
        path: _random.host_generator(0, *path).normal() for path in [("A", 0), ("A", 1), ("b", 0), ("A",), ("AA", 0)]
    }
    assert len(set(draws.values())) == len(draws)
