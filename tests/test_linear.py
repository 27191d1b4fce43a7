"""Linear algebra of stacked matrices: covariances, stability, and systems in programs that run side by side."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from fedhsa._linear import check_stable, lyapunov, solve, spectral_radius


def test_a_stack_is_solved_one_by_one_with_the_derivatives_of_the_solution():
    rng = np.random.default_rng(0)
    A, b = np.eye(3) + rng.normal(size=(4, 3, 3)) / 4, rng.normal(size=(4, 3))

    def both(A, b):
        return jax.vmap(solve)(A, b), jax.vmap(jax.grad(lambda A, b: jnp.sum(solve(A, b) ** 2), (0, 1)))(A, b)

    with jax.enable_x64(True):
        program = jax.jit(both).lower(A, b).compile()
        found, (by_A, by_b) = program(A, b)
    assert set(re.findall(r"f64\[([\d,]*)\]\S*, [^=]*custom-call\(.*lapack_dgetrf", program.as_text())) == {"3,3"}
    for i in range(4):
        x = np.linalg.solve(A[i], b[i])
        back = np.linalg.solve(A[i].T, 2 * x)
        np.testing.assert_allclose(found[i], x, atol=1e-13)
        np.testing.assert_allclose(by_b[i], back, atol=1e-13)
        np.testing.assert_allclose(by_A[i], -np.outer(back, x), atol=1e-13)


def test_covariances_of_many_agents_are_those_that_scipy_finds_one_by_one():
    """Also of matrices next to unstable, and of sizes that differ by far; errors grow as the gap to 1 closes."""
    rng = np.random.default_rng(0)
    radii, scales = np.array([0.0, 0.5, 0.99, 1 - 1e-6]), np.array([1.0, 1e-12, 1e8, 1.0])
    F = rng.normal(size=(4, 5, 5))
    F *= (radii / spectral_radius(F))[:, None, None]
    R = rng.normal(size=(4, 5, 5))
    W = scales[:, None, None] * (R @ np.swapaxes(R, 1, 2))
    for f, w, found, radius in zip(F, W, lyapunov(F, W), radii, strict=True):
        expected = scipy.linalg.solve_discrete_lyapunov(f, w, method="direct")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 / (1 - radius) * abs(expected).max())


def test_stability_is_decided_as_by_eigenvalues_also_where_norms_are_large():
    shear = np.array([[0.9, 1e6], [0.0, 0.9]])  # its powers grow far beyond 1 before they shrink
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    check_stable("Q", np.stack([0.5 * np.eye(2), shear, (1 - 1e-9) * turn]), "")
    for radius, shown in ((1.0, "1"), (1 + 1e-5, "1.00001"), (1e200, "1e\\+200")):
        with pytest.raises(ValueError, match=f"`Q` must have a spectral radius below 1, got {shown} for agent 1"):
            check_stable("Q", np.stack([shear, radius * turn, 0.99 * turn]), "")
        with pytest.raises(ValueError, match=f"got {shown} for agent 0"):
            check_stable("Q", np.stack([np.diag([radius, 0.0]), shear]), "")
