"""The operations for one agent and one seed, step by step: the reference for every kernel."""

import jax
import jax.numpy as jnp

from .._random import complex_normal, real_parts
from .products import component_product


def walk(first, second, table, state):
    """The states of a chain from `state` on, and the state after each of them: an alias draw for each pair of words."""

    def move(state, bits):
        following = alias_draw(*bits, table, state)
        return following, (state, following)

    return jax.lax.scan(move, state, (first, second))[1]


def alias_draw(first, second, table, *row):
    """Draws a column from the row's distribution by the alias method: `first` proposes it, `second` accepts it."""
    column = upper_word(first, table.shape[-2])
    threshold, alias = table[*row, column]
    return jnp.where(second < threshold, column, alias).astype(jnp.int32)


def upper_word(bits, count):
    """The upper word of `bits * count`, in 32-bit arithmetic: a number from 0 to `count - 1`."""
    high, low = bits >> 16, bits & 0xFFFF
    return (high * count + ((low * count) >> 16)) >> 16


def linear_walk(matrix, scale, noise, state):
    r"""The states of $z' = Q z + \sigma \epsilon$ from `state` on, and the state after them."""
    noise = jnp.concatenate(noise, axis=-1)[:, : state.shape[-1]]
    return jax.lax.scan(lambda z, e: (matrix @ z + scale * e, z), state, noise)


def normal_walk(first, second, matrix, scale, state):
    r"""The states of $z' = Q z + \sigma \epsilon$, where each $\epsilon$ is the normal vector of a key's words."""
    count, keys = state.shape[-1], jnp.stack([first, second], axis=-1)

    def normals(words):
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return real_parts(complex_normal(key, (count + 1) // 2, state.dtype), count)

    return linear_walk(matrix, scale, (jax.vmap(normals)(keys),), state)


def rank_one_operator(theta, table, rows, weights, constant):
    """The operator of the form `RankOne` on the first observation."""
    first = jax.tree.map(lambda x: x[0] if x.ndim else x, (rows, weights, constant))
    return _rank_one(theta, table, *first)


def _rank_one(theta, table, rows, weights, constant):
    direction = sum(w * table[i] for w, i in zip(weights, rows, strict=True))
    return (constant + jnp.sum(direction * theta)) * table[rows[0]]


def rank_one_steps(theta, shift, minus, eta, table, rows, weights, constant, start, stop):
    """Local steps with an operator of the form `RankOne`."""
    shift = shift if minus is None else shift - minus

    def step(theta, now):
        moved = _rank_one(theta, table, *now)
        return theta + eta * (moved if shift is None else moved + shift), None

    weights = tuple(jnp.broadcast_to(w, constant.shape) for w in weights)
    some = jax.tree.map(lambda x: x[start:stop], (rows, weights, constant))
    return jax.lax.scan(step, theta, some)[0]


def affine_operator(theta, A, b, component, noise):
    """The operator of the form `Affine` on the first observation."""
    return _affine(theta, A, b, *jax.tree.map(lambda x: x[0], (component, noise)))


def _affine(theta, A, b, component, noise):
    moved = b[0] - A[0] @ theta if component is None else b[component] - component_product(A, component, theta)
    return moved if noise is None else moved + noise


def affine_steps(theta, shift, minus, eta, A, b, component, noise, start, stop):
    """Local steps with an operator of the form `Affine`."""
    shift = shift if minus is None else shift - minus

    def step(theta, now):
        moved = _affine(theta, A, b, *now)
        return theta + eta * (moved if shift is None else moved + shift), None

    some = jax.tree.map(lambda x: x[start:stop], (component, noise))
    return jax.lax.scan(step, theta, some, length=stop - start)[0]
