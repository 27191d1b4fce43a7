import jax
import numpy as np
import pytest

from fedhsa import tree
from fedhsa._random import fold_in
from fedhsa.sources import VAR1, Replay

Q = np.array([[0.6, 0.3], [-0.2, 0.5]])


def test_the_stationary_covariance_solves_its_equation():
    source = VAR1(Q, noise_std=0.7)
    np.testing.assert_allclose(source.covariance, Q @ source.covariance @ Q.T + 0.49 * np.eye(2), atol=1e-14)


def test_noise_started_from_the_stationary_law_stays_there():
    """20,000 chains: covariance at the start and 5 steps on, and between them, within 5 standard errors."""
    source = VAR1(Q, noise_std=0.7, start="stationary")
    S, n = source.covariance, 20_000
    with jax.enable_x64(True):
        keys = fold_in(jax.random.key(0), np.arange(n))
        source = tree.to_device(source, "float64")

        def chain(key):
            return source.draw(fold_in(key, np.arange(1, 7)), source.init(fold_in(key, 0)))[1]

        z = np.asarray(jax.jit(jax.vmap(chain))(keys))
    assert z.shape == (n, 6, 2)
    scale = np.sqrt(np.outer(np.diag(S), np.diag(S)) + S**2) / np.sqrt(n)
    for t in (0, 5):
        assert (abs(z[:, t].T @ z[:, t] / n - S) < 5 * scale).all()
    lagged = z[:, 5].T @ z[:, 0] / n
    assert (abs(lagged - np.linalg.matrix_power(Q, 5) @ S) < 5 * scale.max()).all()


def test_the_paper_starts_the_noise_at_zero():
    source = tree.to_device(VAR1(Q, noise_std=1.0), "float32")
    key = jax.random.key(0)
    _, block = source.draw(fold_in(key, np.arange(1, 4)), source.init(fold_in(key, 0)))
    assert (np.asarray(block[0]) == 0).all()
    assert (np.asarray(block[1]) != 0).all()


def test_an_unstable_matrix_is_refused_with_its_radius_and_agent():
    with pytest.raises(ValueError, match=r"`Q` must have a spectral radius below 1, got 1.2 for agent 1"):
        VAR1(np.stack([0.5 * np.eye(2), 1.2 * np.eye(2)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_std": -1.0}, r"`noise_std` must be at least 0.0, got -1.0"),
        ({"noise_std": [1.0, 2.0, 3.0]}, r"`noise_std` must be one number, or one per agent"),
        ({"start": "warm"}, r"`start` must be one of 'zero', 'stationary', got 'warm'"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        VAR1(Q, **options)


def test_replay_gives_back_what_was_recorded_in_order():
    record = {"x": np.arange(10.0), "y": np.arange(20).reshape(10, 2)}
    source, key = tree.to_device(Replay(record), "float32"), jax.random.key(0)
    state = source.init(key)
    state, first = source.draw(fold_in(key, np.arange(4)), state)
    _, second = source.draw(fold_in(key, np.arange(6)), state)
    for name, whole in record.items():
        np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), whole)
    assert source.length == 10
    assert Replay(record, wrap=True).length is None
    assert float(source.expect(lambda o: o["x"])) == 4.5
