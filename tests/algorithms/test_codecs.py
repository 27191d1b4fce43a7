"""Codecs keep what they promise: the mean, the error, the bits."""

import functools
import itertools

import jax
import numpy as np
import pytest

import fedhsa as fh

CODECS = [
    fh.codecs.TopK(0.3),
    fh.codecs.RandK(0.3),
    fh.codecs.RandK(0.3, rescale=False),
    fh.codecs.Sign(),
    fh.codecs.Quantised(1),
    fh.codecs.Quantised(5),
]
SIZE, DRAWS = 10, 5000


VECTORS = np.stack([np.random.default_rng(0).normal(size=SIZE), np.eye(SIZE)[3], np.ones(SIZE), np.zeros(SIZE)])


@functools.cache
def coded(codec):
    """What arrives of each vector, for many keys."""
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(1), DRAWS)
        of_one = jax.vmap(codec, (0, None))
        return np.asarray(jax.jit(lambda vectors: jax.lax.map(lambda x: of_one(keys, x), vectors))(VECTORS))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_codec_keeps_its_promises(codec):
    for x, arrived in zip(VECTORS, coded(codec), strict=True):
        errors = ((arrived - x) ** 2).sum(1)
        # Monte Carlo: four standard errors of the mean over 5000 draws.
        assert errors.mean() <= codec.error(SIZE) * x @ x + 4 * errors.std() / np.sqrt(DRAWS) + 1e-12
        if codec.unbiased:
            standard_error = arrived.std(0) / np.sqrt(DRAWS)
            assert (np.abs(arrived.mean(0) - x) <= 4 * standard_error + 1e-12).all()
        else:
            assert codec.error(SIZE) < 1
    np.testing.assert_array_equal(coded(codec)[3], 0.0)


def test_the_error_of_sparse_codecs_is_met_by_equal_entries():
    for codec in CODECS[:3]:
        np.testing.assert_allclose(((coded(codec)[2] - VECTORS[2]) ** 2).sum(1), codec.error(SIZE) * SIZE)


@pytest.mark.parametrize("num_bits", [1, 5])
def test_uniform_levels_are_right_on_average_inside_their_range_and_cut_off_outside(num_bits):
    codec = fh.codecs.Uniform(2.0, num_bits)
    spacing = 4.0 / (2**num_bits - 1)
    inside, levels = VECTORS / np.abs(VECTORS[0]).max(), np.arange(2**num_bits) * spacing - 2.0
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(2), DRAWS)
        of_one = jax.jit(jax.vmap(codec, (0, None)))
        for x in inside:
            arrived = np.asarray(of_one(keys, x))
            assert np.abs(arrived[..., None] - levels).min(-1).max() < 1e-14
            assert np.abs(arrived - x).max() <= spacing
            # The variance of an entry is at most spacing^2/4; four standard errors of the mean.
            assert np.abs(arrived.mean(0) - x).max() <= 4 * spacing / 2 / np.sqrt(DRAWS)
        np.testing.assert_allclose(of_one(keys, np.array([5.0, -9.0])), np.tile([2.0, -2.0], (DRAWS, 1)), rtol=1e-15)
    assert codec.bits(10) == 10 * num_bits
    assert codec.scaled(0.25).range == 0.5
    assert fh.codecs.Quantised(3).scaled(0.25) == fh.codecs.Quantised(3)


def test_bits_are_those_of_values_places_signs_and_levels():
    sizes = {
        codec: codec.bits(1000)
        for codec in (fh.codecs.TopK(0.1), fh.codecs.RandK(0.1), fh.codecs.Sign(), fh.codecs.Quantised(3))
    }
    assert list(sizes.values()) == [100 * (64 + 10), 100 * 64, 1000 + 64, 64 + 1000 * (1 + 2)]
    assert fh.codecs.TopK(0.01).bits(3) == 64 + 2  # at least one entry


def test_the_error_of_the_quantiser_is_the_smaller_of_two_bounds():
    """d / s^2 and sqrt(d) / s: 10 / 25 = 0.4 is below sqrt(10) / 5 = 0.63, and 10 is above sqrt(10)."""
    assert fh.codecs.Quantised(5).error(10) == pytest.approx(0.4)
    assert fh.codecs.Quantised(1).error(10) == pytest.approx(np.sqrt(10))


@pytest.mark.parametrize("rescale", [True, False])
def test_the_moments_of_random_entries_are_the_mean_over_all_choices(rescale):
    """E C(x) = m x and E C(x) C(x)^T = s x x^T + t diag(x x^T), summed over the ten pairs among five entries."""
    codec, x = fh.codecs.RandK(0.4, rescale=rescale), np.array([1.0, -2.0, 0.5, 3.0, -1.5])
    sent = [x * np.isin(np.arange(5), pair) * (2.5 if rescale else 1) for pair in itertools.combinations(range(5), 2)]
    m, s, t = codec.moments(5)
    np.testing.assert_allclose(np.mean(sent, axis=0), m * x, rtol=1e-14)
    squares = s * np.outer(x, x) + t * np.diag(x**2)
    np.testing.assert_allclose(np.mean([np.outer(c, c) for c in sent], axis=0), squares, rtol=1e-14)


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"`fraction` must be at most 1\.0, got 1\.5"):
        fh.codecs.TopK(1.5)
    with pytest.raises(ValueError, match="`levels` must be at least 1, got 0"):
        fh.codecs.Quantised(0)
    with pytest.raises(ValueError, match=r"`range` must be greater than 0\.0, got 0\.0"):
        fh.codecs.Uniform(0.0, 4)
