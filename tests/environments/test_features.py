"""Features against values worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedhsa._types import precision
from fedhsa.environments.features import Fourier, OneHot, Tiles
from fedhsa.environments.policies import EpsilonGreedy, Softmax, Uniform

MAPS = {
    "fourier": Fourier([-1.0, 0.0], [1.0, 2.0], order=2),
    "tiles": Tiles([-1.0, 0.0], [1.0, 2.0], tiles=(2, 3), tilings=4),
}


def test_the_fourier_basis_is_that_of_the_paper_by_hand():
    phi = Fourier([-1.0, 0.0], [1.0, 2.0], order=1)  # c = (0, 0), (0, 1), (1, 0), (1, 1)
    values = phi(np.array([0.0, 0.5]))  # scaled (1/2, 1/4)
    np.testing.assert_allclose(values, [1, np.cos(np.pi / 4), np.cos(np.pi / 2), np.cos(3 * np.pi / 4)], atol=1e-15)
    assert phi.size == 4


def test_tiles_by_hand():
    phi = Tiles([0.0, 0.0], [2.0, 2.0], tiles=2, tilings=2)
    # Tiling 0 is not shifted; tiling 1 by half a tile in both directions (1/2, and 3/2 modulo 1). Each has 3 x 3 tiles.
    for place, first, second in (([0.2, 0.2], 0, 0), ([0.7, 0.2], 0, 3), ([1.7, 0.7], 3, 7), ([2.0, 2.0], 4, 8)):
        assert np.flatnonzero(phi(np.array(place))).tolist() == [first, 9 + second]


def test_each_tiling_has_one_active_tile_everywhere():
    phi = MAPS["tiles"]
    places = np.random.default_rng(0).uniform([-2, -1], [2, 3], (500, 2))
    active = phi(places).reshape(500, 4, -1)
    assert set(np.unique(active)) == {0.0, 1.0}
    assert (active.sum(-1) == 1).all()
    assert phi.size == 4 * 3 * 4


@pytest.mark.parametrize("name", MAPS)
def test_features_are_the_same_in_numpy_and_in_jax_and_for_many_at_once(name):
    phi = MAPS[name]
    places = np.random.default_rng(1).uniform([-2, -1], [2, 3], (3, 5, 2))
    many = phi(places)
    assert many.shape == (3, 5, phi.size)
    with precision():
        for i in range(3):
            for j in range(5):
                np.testing.assert_allclose(phi(places[i, j]), many[i, j], atol=1e-15)
                np.testing.assert_allclose(phi(jnp.asarray(places[i, j])), many[i, j], atol=1e-14)


@pytest.mark.parametrize("name", MAPS)
def test_beyond_the_box_is_its_edge(name):
    phi = MAPS[name]
    np.testing.assert_array_equal(phi(np.array([9.0, -9.0])), phi(np.array([1.0, 0.0])))


def test_a_state_has_a_feature_of_its_own():
    np.testing.assert_array_equal(OneHot(3)(np.array([2, 0])), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(OneHot(3)(jnp.array(2)), [0, 0, 1])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Fourier([0.0], [1.0], order=0), "`order` must be at least 1"),
        (lambda: Fourier([0.0, 0.0], [1.0], order=1), r"`high` must have shape \(2,\)"),
        (
            lambda: Fourier([0.0, 2.0], [1.0, 1.0], order=1),
            "`high` must be above `low`, got 1.0 and 2.0 in direction 1",
        ),
        (lambda: Fourier([0.0], [np.inf], order=1), "`high` must be finite"),
        (lambda: Tiles([0.0, 0.0], [1.0, 1.0], tiles=(2, 2, 2), tilings=1), "one for each of the 2 directions"),
        (lambda: Tiles([0.0], [1.0], tiles=2, tilings=0), "`tilings` must be at least 1"),
        (lambda: OneHot(0), "`size` must be at least 1"),
        (lambda: Fourier([0.0], [1.0], order=1)(np.zeros(3)), "`observation` must have 1 entries"),
    ],
)
def test_bad_arguments_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_policies_give_the_probabilities_they_say():
    theta = np.array([0.0, 0.0, 1.0, 2.0, 0.5, 0.0])  # three actions, two features
    seen = np.array([[1.0, 0.0], [0.0, 1.0]])  # values (0, 1, 0.5) and (0, 2, 0)
    weights = np.exp(2 * np.array([[0, 1, 0.5], [0, 2, 0]]))
    soft = Softmax(lambda s: s, 3, 2.0).at(theta)(seen)
    np.testing.assert_allclose(soft, weights / weights.sum(1, keepdims=True), rtol=1e-14)
    greedy = EpsilonGreedy(lambda s: s, 3, 0.3).at(theta)(seen)
    np.testing.assert_allclose(greedy, [[0.1, 0.8, 0.1]] * 2, rtol=1e-14)
    np.testing.assert_allclose(Uniform(3)(seen), np.full(3, 1 / 3))


def test_softmax_at_inverse_temperature_0_is_uniform_and_large_values_do_no_harm():
    theta = np.array([1e4, -1e4])
    np.testing.assert_allclose(Softmax(lambda s: s, 2, 0.0).at(theta)(np.ones(1)), [0.5, 0.5])
    np.testing.assert_allclose(Softmax(lambda s: s, 2, 1.0).at(theta)(np.ones(1)), [1.0, 0.0])
