"""The fused operations for GPUs, written in Pallas and compiled by Triton.

A program of the grid is one agent and a few of its seeds: their parameters stay in registers for all steps, while the
rows they look up come from the caches. Arrays `(agents, seeds, steps)` are laid out with the seeds last, so that
neighbouring threads read neighbouring words.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas

from .plain import upper_word

SEEDS, WARPS = 8, 4
"""Seeds of one program, and the groups of 32 threads that share it."""
WALKERS = 128
"""Chains of one program."""
MOST_SMALL = 32
"""The largest dimension whose matrices a program keeps in registers; beyond it a library's products are faster."""
interpret = False
"""Runs the kernels one operation at a time, on any device: for tests."""


def walk(first, second, table, state):
    """`plain.walk` for all agents and seeds."""
    (M, K, H), S = first.shape, table.shape[-2]
    block = min(WALKERS, _power_of_two(K))

    def kernel(first, second, table, state, last, states):
        agent, seeds, inside = _place(block, K)
        own = _own(agent, table)
        s = _load(state.at[agent, seeds], inside)
        for step in range(H):
            _store(states.at[agent, step, seeds], s, inside)
            column = upper_word(_load(first.at[agent, step, seeds], inside), S).astype(jnp.int32)
            threshold = _load(table.at[own, s, column, 0], inside)
            alias = _load(table.at[own, s, column, 1], inside).astype(jnp.int32)
            s = jnp.where(_load(second.at[agent, step, seeds], inside) < threshold, column, alias)
        _store(last.at[agent, seeds], s, inside)

    shapes = _shape((M, K), jnp.int32), _shape((M, H, K), jnp.int32)
    last, states = _call(kernel, shapes, (M, K), block)(_seeds_last(first), _seeds_last(second), table, state)
    return last, _seeds_last(states)


def linear_walk(matrix, noise, state):
    """`plain.linear_walk` for all agents and seeds."""
    (M, K, H, d), D = noise.shape, _power_of_two(noise.shape[-1])
    if D > MOST_SMALL:
        return None
    block = min(SEEDS, _power_of_two(K))

    def kernel(matrix, noise, state, last, states):
        agent, seeds, inside = _place(block, K)
        at, fits = _grid(seeds, inside, D, d)
        Q = _square(matrix, (_own(agent, matrix),), D, d)

        def step(now, z):
            _store(states.at[agent, now, *at], z, fits)
            return _product(Q, z) + _load(noise.at[agent, now, *at], fits)

        _store(last.at[agent, *at], jax.lax.fori_loop(0, H, step, _load(state.at[agent, *at], fits)), fits)

    shapes = _shape((M, K, d), noise.dtype), _shape((M, H, K, d), noise.dtype)
    last, states = _call(kernel, shapes, (M, K), block)(matrix, jnp.swapaxes(noise, 1, 2), state)
    return last, jnp.swapaxes(states, 1, 2)


def rank_one_steps(theta, shift, eta, table, rows, weights, constant):
    """`plain.rank_one_steps` for all agents and seeds."""
    (M, K, d), H, D = theta.shape, constant.shape[-1], _power_of_two(theta.shape[-1])
    block = min(SEEDS, _power_of_two(K))

    def kernel(inputs, out):
        theta, shift, eta, table, rows, weights, constant = inputs
        agent, seeds, inside = _place(block, K)
        at, fits = _grid(seeds, inside, D, d)
        own, columns = _own(agent, table), at[1]
        step_size = eta[_own(agent, eta)]
        pull = None if shift is None else _load(shift.at[agent, *at], fits)

        def look_up(row):
            return _load(table.at[own, row[:, None], columns], columns < d)

        def weight(w, now):
            return w[_own(agent, w)] if w.ndim == 1 else _load(w.at[agent, now, seeds], inside)[:, None]

        def step(now, theta):
            found = [look_up(_load(row.at[agent, now, seeds], inside)) for row in rows]
            direction = sum(weight(w, now) * row for w, row in zip(weights, found, strict=True))
            error = _load(constant.at[agent, now, seeds], inside) + jnp.sum(direction * theta, axis=-1)
            moved = error[:, None] * found[0]
            return theta + step_size * (moved if pull is None else moved + pull)

        theta = jax.lax.fori_loop(0, H, step, _load(theta.at[agent, *at], fits))
        _store(out.at[agent, *at], theta, fits)

    weights = tuple(w if w.ndim == 1 else _seeds_last(w) for w in weights)
    inputs = (theta, shift, eta, table, tuple(_seeds_last(r) for r in rows), weights, _seeds_last(constant))
    return _call(kernel, _shape(theta.shape, theta.dtype), (M, K), block)(inputs)


def affine_steps(theta, shift, eta, A, b, component, noise, length):
    """`plain.affine_steps` for all agents and seeds."""
    (M, K, d), D = theta.shape, _power_of_two(theta.shape[-1])
    if D > MOST_SMALL or (component is not None and A.shape[-3] > 1):
        return None
    block = min(SEEDS, _power_of_two(K))

    def kernel(inputs, out):
        theta, shift, eta, A, b, noise = inputs
        agent, seeds, inside = _place(block, K)
        at, fits = _grid(seeds, inside, D, d)
        step_size = eta[_own(agent, eta)]
        matrix = _square(A, (_own(agent, A), 0), D, d)
        constant = _load(b.at[_own(agent, b), 0, at[1]], at[1] < d)
        if shift is not None:
            constant = constant + _load(shift.at[agent, *at], fits)

        def step(now, theta):
            moved = constant - _product(matrix, theta)
            return theta + step_size * (moved if noise is None else moved + _load(noise.at[agent, now, *at], fits))

        theta = jax.lax.fori_loop(0, length, step, _load(theta.at[agent, *at], fits))
        _store(out.at[agent, *at], theta, fits)

    inputs = (theta, shift, eta, A, b, None if noise is None else jnp.swapaxes(noise, 1, 2))
    return _call(kernel, _shape(theta.shape, theta.dtype), (M, K), block)(inputs)


def _call(kernel, shapes, sizes: tuple[int, int], block: int, warps: int = WARPS) -> Any:
    return pl.pallas_call(
        kernel,
        out_shape=shapes,
        grid=(sizes[0], pl.cdiv(sizes[1], block)),
        compiler_params=pallas.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpret,
    )


def _place(block: int, K: int) -> tuple[Any, Any, Any]:
    """The agent and the seeds of this program; None in the place of a mask where every seed exists."""
    seeds = pl.program_id(1) * block + jnp.arange(block)
    return pl.program_id(0), seeds, None if K % block == 0 else seeds < K


def _own(agent, array):
    """Where an agent's own entry is: the first of all if they share it."""
    return 0 if array.shape[0] == 1 else agent


def _grid(seeds, inside, D: int, d: int):
    """Indices of the parameters of these seeds, and which of them exist."""
    columns = jnp.arange(D)[None, :]
    masks = [None if inside is None else inside[:, None], None if d == D else columns < d]
    return (seeds[:, None], columns), functools.reduce(_and, masks)


def _and(one, other):
    return other if one is None else one if other is None else one & other


def _load(ref, mask=None):
    return pallas.load(ref) if mask is None else pallas.load(ref, mask=mask, other=0)


def _store(ref, value, mask=None):
    pallas.store(ref, value, mask=mask)


def _square(ref, where: tuple, D: int, d: int):
    i = jnp.arange(D)
    fits = None if d == D else (i < d)[:, None] & (i < d)[None, :]
    return _load(ref.at[*where, i[:, None], i[None, :]], fits)


def _product(matrix, vectors):
    """`matrix @ v` for each row `v`."""
    return jnp.sum(matrix[None, :, :] * vectors[:, None, :], axis=-1)


def _seeds_last(x):
    return jnp.swapaxes(x, 1, 2)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _shape(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)
