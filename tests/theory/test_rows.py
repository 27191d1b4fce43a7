"""Programs on rows of arguments in NumPy: operation by operation what JAX computes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedhsa._types import precision
from fedhsa.theory.laws.rows import OPERATIONS, Program

CONSTANT = np.arange(8.0).reshape(2, 4)


def numbers(x, y):
    """Operations on real numbers, `x` of shape (3, 4) and `y` of shape (4,)."""
    positive = jnp.abs(x) + 0.5
    yield from (x + y[None], x - 1, 2 * x, x / 3, -x, lax.sign(x), positive, jnp.floor(x), lax.square(x), x**3)
    yield from (jnp.exp(x), jnp.expm1(x), jnp.log(positive), jnp.log1p(positive), jnp.sqrt(positive), positive**y[None])
    yield from (jnp.maximum(x, 0.1), jnp.minimum(x, y[None]), lax.rem(x, jnp.full_like(x, 0.4)))
    yield from (x.sum(1), x.sum(), jnp.prod(x, axis=0), jnp.max(x, axis=1), jnp.min(x, axis=(0, 1)))
    yield from (x @ y, jnp.einsum("ab,cb->ac", x, CONSTANT), jnp.einsum("ab,ab->a", x, x))
    yield jnp.einsum("cab,cb->ca", jnp.stack([x, 2 * x], axis=1).swapaxes(0, 1), CONSTANT)
    yield from (x.T, x.reshape(2, 6), x[:, None, :2].squeeze(1), x[::2, 1:], jnp.concatenate([x, x[:1]], axis=0))
    yield from (lax.stop_gradient(x), lax.add_any_p.bind(x, x) if hasattr(lax, "add_any_p") else x, jnp.copy(x))
    yield from jnp.split(x, [1, 3], axis=1)
    yield jnp.broadcast_to(y, (2, 4)) + CONSTANT


def places(x, k, whole):
    """Operations on whole numbers, `k` and `whole` of shape (5,), and on places that they name."""
    yield from (whole & 6, whole | 8, whole ^ 5, ~whole, lax.div(whole, jnp.full_like(whole, 3)), lax.rem(whole, whole + 9))
    yield from (whole == 2, whole != 2, whole < 2, whole <= 2, whole > 2, whole >= 2, whole.astype(float))
    yield from (lax.dynamic_slice(x, (k, k), (2, 3)), x[k % 3], lax.select_n(k % 3, x, 2 * x, 3 * x))
    yield from (jnp.where(whole > 2, 1.0, -1.0), lax.broadcasted_iota(int, (2, 3), 1))


def test_every_operation_gives_what_jax_gives():
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(7, 3, 4)), rng.normal(size=(7, 4)), np.arange(-2, 5), rng.integers(-7, 7, (7, 5)))

    def every(x, y, k, whole):
        return [*numbers(x, y), *places(x, k, whole)]

    with precision():
        with jax.disable_jit():
            closed = jax.make_jaxpr(every)(*(row[0] for row in rows))
        program = Program(closed)
        expected = jax.jit(jax.vmap(every))(*rows)
        used = {equation.primitive.name for equation in closed.jaxpr.eqns}
        assert OPERATIONS.keys() - used <= {"add_any"}  # which appears in derivatives
        for found, wanted in zip(program(*rows), expected, strict=True):
            np.testing.assert_allclose(np.broadcast_to(found, wanted.shape), wanted, rtol=1e-14)


def test_rows_that_are_equal_are_computed_once_and_what_nobody_needs_is_not_computed():
    def function(x, y):
        jnp.sort(x)  # which is not listed
        return x * y, x + 1

    program = Program(jax.make_jaxpr(function)(np.zeros(2, np.float32), np.float32(0)))
    product, plain = program(np.ones((1, 2), np.float32), np.arange(3, dtype=np.float32))
    assert product.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert plain.tolist() == [[2, 2]]
    assert program.depends_on(1) == [True, False]


def test_a_program_with_another_operation_is_left_to_jax():
    program = Program(jax.make_jaxpr(lambda x: (jnp.sort(x), 2 * x))(np.zeros(3, np.float32)))
    ordered, doubled = program(np.array([[3, 1, 2], [0, -1, 5]], np.float32))
    assert ordered.tolist() == [[1, 2, 3], [-1, 0, 5]]
    assert doubled.tolist() == [[6, 2, 4], [0, -2, 10]]
