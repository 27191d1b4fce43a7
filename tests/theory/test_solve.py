"""Fixed points, spectral radii and slow modes of maps that are given as functions."""

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator

from fedhsa.theory.laws.solve import arnoldi, fixed_point, growth, radius, slowest_square


def as_function(matrix: np.ndarray) -> LinearOperator:
    return LinearOperator(matrix.shape, matvec=lambda x: matrix @ np.ravel(x), dtype=float)


def test_the_slowest_mode_is_found_among_many():
    values = np.linspace(0.0, 0.8, 200)
    values[[3, 50]] = 0.9, -0.99
    assert radius(as_function(np.diag(values))) == pytest.approx(0.99, rel=1e-8)
    assert radius(np.diag(values)) == pytest.approx(0.99, rel=1e-12)


def test_the_radius_of_modes_of_one_modulus_is_found():
    """Forty modes of modulus 0.9, all around the circle: none of them is the slowest."""
    angles = np.pi * (np.arange(20) + 0.5) / 20
    turns = [0.9 * np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in angles]
    matrix = np.zeros((100, 100))
    for k, turn in enumerate(turns):
        matrix[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = turn
    assert radius(as_function(matrix)) == pytest.approx(0.9, rel=1e-7)


def test_the_square_of_the_slowest_mode_is_one_that_a_round_of_the_mean_only_scales():
    A = np.array([[0.9, 0.3, 0.0], [-0.3, 0.9, 0.0], [0.1, 0.0, 0.5]])
    square = slowest_square(A)
    np.testing.assert_allclose(A @ square @ A.T, abs(np.linalg.eigvals(A)).max() ** 2 * square, atol=1e-12)
    assert not slowest_square(np.full((3, 3), np.inf)).any()


@pytest.mark.parametrize("nearly", ["well", "badly", "not at all"])
def test_a_fixed_point_is_that_of_the_matrix_whatever_nearly_solves_it(nearly):
    """By steps that use the approximate solution if it is good, otherwise by GMRES."""
    rng = np.random.default_rng(1)
    map = 0.9 * np.linalg.qr(rng.normal(size=(40, 40)))[0]
    added, scale = rng.normal(size=40), rng.uniform(0.5, 2.0, size=40)
    expected = np.linalg.solve(np.eye(40) - map, added)
    np.testing.assert_allclose(fixed_point(map, added), expected, rtol=1e-10)
    close = np.linalg.inv(np.eye(40) - map + 0.01 * rng.normal(size=(40, 40)))
    approximate = {"well": lambda x: close @ x, "badly": lambda x: scale * x, "not at all": lambda x: x}[nearly]
    calls = []
    operator = LinearOperator(map.shape, matvec=lambda x: (calls.append(1), map @ np.ravel(x))[1], dtype=float)
    np.testing.assert_allclose(fixed_point(operator, added, approximate), expected, rtol=1e-9)
    assert nearly != "well" or len(calls) < 22
    rough = fixed_point(operator, added, approximate, 1e-3)
    assert 0 < np.abs(added + map @ rough - rough).max() <= 1e-3 * np.abs(added).max()


def test_a_fixed_point_that_is_not_found_is_an_error():
    """Rounding ends the search before the residual is small where a mode keeps all but 1e-17 of itself."""
    near_one = LinearOperator((2, 2), matvec=lambda x: np.array([x.ravel()[1], x.ravel()[0]]), dtype=float)
    with pytest.raises(ValueError, match="The stationary moments were not found: the relative residual of 2 equations"):
        fixed_point(near_one, np.array([1.0, 1.0]))


def test_powers_in_a_krylov_space_are_those_of_the_map():
    """Exact as many times as there are steps; a start in an invariant space ends the search sooner."""
    rng = np.random.default_rng(0)
    A, start = rng.normal(size=(30, 30)) / 8, rng.normal(size=30)
    spaces = list(arnoldi(lambda x: A @ x, start, 12))
    assert [len(basis) for basis, _ in spaces] == [5, 10, 12]
    for basis, H in spaces:
        left = np.linalg.norm(start) * np.eye(len(basis))[0]
        for power in range(len(basis)):
            np.testing.assert_allclose(basis.T @ left, np.linalg.matrix_power(A, power) @ start, rtol=1e-9, atol=1e-12)
            left = H @ left
    values = np.diag(np.arange(1.0, 31.0))
    ((basis, H),) = arnoldi(lambda x: values @ x, np.eye(30)[4] + np.eye(30)[7], 12)
    assert len(basis) == 2
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(H)), [5, 8], rtol=1e-12)


# Second moments, whose maps keep them positive.


class Squares:
    """Moments of errors that jump between some random maps, `(chance, S)` times: X' = sum_k p_k F_k X F_k^T.

    `growth` sees the entries on and above the diagonal, as the laws do.
    """

    def __init__(self, chances, F):
        self.chances, self.F, self.d = chances, F, F.shape[-1]
        self.mean = np.einsum("k,kab->ab", chances, F)
        self.above = np.triu_indices(self.d)
        self.calls = 0

    def rows(self, X):
        return X[self.above]

    def moments(self, rows):
        X = np.zeros((self.d, self.d))
        X[self.above] = rows
        return X + np.triu(X, 1).T

    def __call__(self, rows):
        self.calls += 1
        X = self.moments(rows)
        return self.rows(np.einsum("k,kab,bc,kdc->ad", self.chances, self.F, X, self.F))

    def nearly(self, rows):
        """What moments add up to if the mean map acts alone."""
        X = np.linalg.solve(np.eye(self.d**2) - np.kron(self.mean, self.mean), self.moments(rows).ravel())
        return self.rows(X.reshape(self.d, self.d))

    @property
    def radius(self):
        square = np.einsum("k,kab,kcd->acbd", self.chances, self.F, self.F).reshape(self.d**2, -1)
        return abs(np.linalg.eigvals(square)).max()

    @property
    def starts(self):
        return [self.rows(slowest_square(self.mean)), self.rows(np.eye(self.d))]


def random_squares(seed, d, noise):
    rng = np.random.default_rng(seed)
    mean = np.eye(d) - 0.1 * np.diag(rng.uniform(0.01, 1.0, d)) + 0.02 * rng.normal(size=(d, d)) / d
    return Squares(np.full(4, 0.25), mean + noise / np.sqrt(d) * rng.normal(size=(4, d, d)))


def grown(every, **settings):
    """Rows of several maps at once, each with its own moments."""

    def map(rows):
        return np.array([one(row) for one, row in zip(every, rows, strict=True)])

    def nearly(rows):
        return np.array([one.nearly(row) for one, row in zip(every, rows, strict=True)])

    starts = [np.array(rows) for rows in zip(*(one.starts for one in every), strict=True)]
    return growth(map, starts, nearly, **settings)


@pytest.mark.parametrize("noise", [0.01, 0.3, 1.0])
def test_the_growth_of_second_moments_is_the_spectral_radius_of_their_map(noise):
    """Where the mean map decides, where noise adds to it, and where noise decides: the mean square grows."""
    found = grown([one := random_squares(0, 8, noise)])
    assert found == pytest.approx([one.radius], rel=1e-8)
    assert noise < 1 or one.radius > 1


def test_the_growth_of_several_maps_is_found_at_once_and_each_has_its_own():
    every = [random_squares(seed, 6, noise) for seed, noise in ((0, 0.05), (1, 0.5), (2, 0.9))]
    found = grown(every)
    np.testing.assert_allclose(found, [one.radius for one in every], rtol=1e-8)
    assert np.ptp(found) > 0.1
    for one, alone in zip(every, found, strict=True):
        assert grown([one]) == pytest.approx([alone], rel=1e-8)


def test_growth_is_that_of_the_mode_which_noise_makes_grow_though_another_is_the_slowest_of_the_mean():
    """Coordinate 1 contracts by 0.95 for certain, coordinate 2 by 0.5 on average, with a mean square of 1.69.

    Neither mixes with the other, and the first start has no part in coordinate 2.
    """
    F = np.array([np.diag([0.95, 0.5 + s * 1.2]) for s in (1, -1)])
    squares = Squares(np.full(2, 0.5), F)
    assert not squares.starts[0][2]
    assert grown([squares]) == pytest.approx([0.25 + 1.44], rel=1e-9)
    nearly_alone = F + 1e-6 * np.array([[0.0, 1.0], [1.0, 0.0]])
    assert grown([Squares(np.full(2, 0.5), nearly_alone)]) == pytest.approx([0.25 + 1.44], rel=1e-6)


def test_growth_needs_few_products_where_the_mean_map_decides():
    squares = random_squares(3, 12, 0.02)
    assert grown([squares]) == pytest.approx([squares.radius], rel=1e-8)
    assert squares.calls < 20  # for 78 moments


def test_growth_is_found_of_modes_that_oscillate_or_vanish():
    """A rotation, whose squares have complex modes of the same modulus, and a map that forgets everything."""
    turn = np.array([[0.6, -0.7], [0.7, 0.6]])
    assert grown([Squares(np.ones(1), turn[None])]) == pytest.approx([0.85], rel=1e-9)
    assert grown([Squares(np.ones(1), np.zeros((1, 2, 2)))]) == pytest.approx([0.0], abs=1e-12)


def test_growth_to_fewer_digits_takes_fewer_products():
    rough, fine = (random_squares(0, 8, 0.5) for _ in range(2))
    assert grown([rough], tolerance=1e-3, least=0) == pytest.approx([rough.radius], rel=1e-3)
    assert grown([fine]) == pytest.approx([fine.radius], rel=1e-8)
    assert rough.calls < fine.calls


def test_growth_that_is_not_found_in_the_steps_allowed_is_not_told():
    assert grown([random_squares(0, 8, 1.0)], most=6) is None
