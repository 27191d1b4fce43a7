"""Linear systems in programs that run side by side."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from fedhsa._linear import solve


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
