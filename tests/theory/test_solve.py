"""Fixed points and spectral radii of maps that are given as functions."""

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator

from fedhsa.theory.laws.solve import fixed_point, radius, slowest_square


def as_function(matrix: np.ndarray) -> LinearOperator:
    return LinearOperator(matrix.shape, matvec=lambda x: matrix @ np.ravel(x), dtype=float)


def test_the_slowest_mode_is_found_though_the_iteration_starts_at_another():
    values = np.linspace(0.0, 0.8, 200)
    values[[3, 50]] = 0.9, 0.99
    near = (np.arange(200) != 50).astype(float)  # everything but that mode
    assert radius(as_function(np.diag(values)), near) == pytest.approx(0.99, rel=1e-8)
    assert radius(as_function(np.diag(values)), 0 * near) == pytest.approx(0.99, rel=1e-8)


def test_a_start_near_the_slowest_mode_takes_fewer_steps():
    map, counts = np.random.default_rng(0).normal(size=(300, 300)) / 20, []
    map = 0.9 * map / abs(np.linalg.eigvals(map)).max()
    map[0, 0] += 1.2
    values, modes = np.linalg.eig(map)
    top = np.real(modes[:, np.argmax(abs(values))])
    for near in (None, top + 1e-3):
        calls = []
        operator = LinearOperator(map.shape, matvec=lambda x, calls=calls: (calls.append(1), map @ np.ravel(x))[1])
        assert radius(operator, near) == pytest.approx(abs(values).max(), rel=1e-8)
        counts.append(len(calls))
    assert counts[1] < counts[0]


def test_the_square_of_the_slowest_mode_is_one_that_a_round_of_the_mean_only_scales():
    A = np.array([[0.9, 0.3, 0.0], [-0.3, 0.9, 0.0], [0.1, 0.0, 0.5]])
    square = slowest_square(A)
    np.testing.assert_allclose(A @ square @ A.T, abs(np.linalg.eigvals(A)).max() ** 2 * square, atol=1e-12)
    assert not slowest_square(np.full((3, 3), np.inf)).any()


def test_a_fixed_point_is_that_of_the_matrix_whatever_nearly_solves_it():
    rng = np.random.default_rng(1)
    map = 0.9 * np.linalg.qr(rng.normal(size=(40, 40)))[0]
    added, scale = rng.normal(size=40), rng.uniform(0.5, 2.0, size=40)
    expected = np.linalg.solve(np.eye(40) - map, added)
    np.testing.assert_allclose(fixed_point(map, added), expected, rtol=1e-10)
    np.testing.assert_allclose(fixed_point(as_function(map), added, lambda x: scale * x), expected, rtol=1e-9)
