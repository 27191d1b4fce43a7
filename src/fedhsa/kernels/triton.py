"""The fused operations for GPUs, written in Pallas and compiled by Triton.

A program of the grid handles one agent and a few of its seeds: their parameters stay in registers for all steps, while
the rows of the table come from the caches. Arrays `(agents, seeds, steps)` are laid out with the seeds last, so that
neighbouring threads read neighbouring words.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas

from .._types import matmul_precision
from .plain import upper_word


def _generation(device: Any) -> float:
    try:
        return float(device.compute_capability)
    except (AttributeError, ValueError):  # not an NVIDIA device
        return 0.0


OLDEST = 8.0
"""The first generation of NVIDIA GPUs that Triton and its float32 products support (Ampere)."""
if jax.default_backend() == "gpu" and _generation(jax.devices()[0]) < OLDEST:
    raise ImportError("These kernels require an NVIDIA GPU of compute capability 8.0 or newer.")

COORDINATES = 128
"""The coordinates that a group of 32 threads handles: few, so that many groups fit and hide each other's latency."""
GROUPS = 4
"""The number of groups in a program with only one step, where starting a program would otherwise dominate."""
SEEDS = 128
"""The number of seeds in a program in which each thread handles one seed."""
MOST_STEPS = 16
"""The largest number of steps that are unrolled, so that the look-ups of later steps begin early."""
MOST_SMALL = 16
"""The largest dimension of matrices whose products are unrolled; beyond it a library's products are faster."""
interpret = False
"""Whether to run the kernels one operation at a time, on any device, for tests."""


def walk(first, second, table, state):
    """`plain.walk` for all agents and seeds."""
    (_, K, H), S = first.shape, table.shape[-2]
    M = _agents(first, second, table, state)
    if _too_large(table, (M, K, H)):
        return None

    def kernel(first, second, table, state, states, following):
        agent, seeds, inside = _place(K, SEEDS)

        def step(now, s):
            _store(states.at[agent, now, seeds], s, inside)
            column = upper_word(_load(_at(first, agent, now, seeds), inside), S).astype(jnp.int32)
            threshold = _load(_at(table, agent, s, column, 0), inside)
            alias = _load(_at(table, agent, s, column, 1), inside).astype(jnp.int32)
            s = jnp.where(_load(_at(second, agent, now, seeds), inside) < threshold, column, alias)
            _store(following.at[agent, now, seeds], s, inside)
            return s

        _repeat(step, 0, H, _load(_at(state, agent, seeds), inside))

    shapes = [ShapeDtypeStruct((M, H, K), jnp.int32)] * 2
    both = _call(kernel, shapes, (M, pl.cdiv(K, SEEDS)), 4)(_steps_first(first), _steps_first(second), table, state)
    return tuple(_steps_first(x) for x in both)


def rank_one_operator(theta, table, rows, weights, constant):
    """`plain.rank_one_operator` for all agents and seeds."""
    return rank_one_steps(theta, None, None, None, table, rows, weights, constant, 0, 1)


def rank_one_steps(theta, shift, minus, eta, table, rows, weights, constant, start, stop):
    """`plain.rank_one_steps` for all agents and seeds; without a step size, the operator at the first step."""
    inputs = theta, shift, minus, eta, table, rows, weights, constant
    (_, K, d), M = theta.shape, _agents(inputs)
    D = _power_of_two(d)
    if _too_large(*jax.tree.leaves(inputs), (M, K, d)):
        return None
    groups = 1 if stop - start > 1 else GROUPS
    block, warps = max(1, groups * COORDINATES // D), max(groups, min(8, D // COORDINATES))

    def kernel(inputs, out):
        theta, shift, minus, eta, table, rows, weights, constant = inputs
        agent, seeds, inside = _place(K, block)
        columns = jnp.arange(D, dtype=jnp.int32)[None, :]
        at, fits = (seeds[:, None], columns), _and(_column(inside), None if d == D else columns < d)
        step_size = 1 if eta is None else _own(eta, agent)
        pull = _sum(step_size, [(1, shift), (-1, minus)], agent, at, fits)

        def look_up(rows, before, found):
            """The table's rows; those of the previous step are reused where chains advance by one."""
            if found is None:
                return [_load(_at(table, agent, row[:, None], columns)) for row in rows]
            new = [
                pallas.load(_at(table, agent, row[:, None], columns), mask=(row != last)[:, None], other=value)
                for row, last, value in zip(rows, before[1:], found[1:], strict=False)
            ]
            return [*new, _load(_at(table, agent, rows[-1][:, None], columns))]

        def weight(w, now):
            return _own(w, agent) if w.ndim == 1 else _load(_at(w, agent, now, seeds), inside)[:, None]

        def step(now, carry):
            theta, before, found = carry
            here = [_load(_at(row, agent, now, seeds), inside) for row in rows]
            found = look_up(here, before, found)
            scales = [weight(w, now) for w in weights]
            direction = sum(w * row for w, row in zip(scales, found, strict=True))
            error = _load(_at(constant, agent, now, seeds), inside) + jnp.sum(direction * theta, axis=-1)
            moved = (step_size * error)[:, None] * found[0]
            if eta is None:
                return moved, here, found
            return theta + (moved if pull is None else moved + pull), here, found

        carry = step(start, (_load(_at(theta, agent, *at), fits), None, None))
        _store(out.at[agent, *at], _repeat(step, start + 1, stop, carry)[0], fits)

    table = jnp.pad(table, ((0, 0), (0, 0), (0, D - d)))
    weights = tuple(w if w.ndim == 1 else _steps_first(w) for w in weights)
    rows, constant = tuple(_steps_first(row) for row in rows), _steps_first(constant)
    inputs = theta, shift, minus, eta, table, rows, weights, constant
    return _call(kernel, ShapeDtypeStruct((M, K, d), theta.dtype), (M, pl.cdiv(K, block)), warps)(inputs)


def linear_walk(matrix, scale, noise, state):
    """`plain.linear_walk` for all agents and seeds."""
    (_, K, d), H, M = state.shape, noise[0].shape[2], _agents(matrix, noise, state)
    if d > MOST_SMALL or _too_large((M, K, H, d)):
        return None
    places = [(part, j) for part in range(len(noise)) for j in range(noise[part].shape[-1])]

    def kernel(matrix, scale, noise, state, last, states):
        agent, seeds, inside = _place(K, SEEDS)
        size, Q = _own(scale, agent), _entries(matrix, agent, d)

        def noise_at(now, i):
            part, j = places[i]
            return size * _load(_at(noise[part], agent, now, j, seeds), inside)

        z = [_load(_at(state, agent, i, seeds), inside) for i in range(d)]

        def step(now, z):
            for i in range(d):
                _store(states.at[agent, now, i, seeds], z[i], inside)
            return [_product(row, z) + noise_at(now, i) for i, row in enumerate(Q)]

        z = jax.lax.fori_loop(0, H, step, z)
        for i in range(d):
            _store(last.at[agent, i, seeds], z[i], inside)

    shapes = ShapeDtypeStruct((M, d, K), state.dtype), ShapeDtypeStruct((M, H, d, K), state.dtype)
    noise = tuple(_seeds_last(part) for part in noise)
    last, states = _call(kernel, shapes, (M, pl.cdiv(K, SEEDS)), 4)(matrix, scale, noise, _seeds_last(state))
    return _seeds_second(last), _seeds_second(states)


def affine_steps(theta, shift, minus, eta, A, b, component, noise, start, stop):
    """`plain.affine_steps` for all agents and seeds, if there is one small matrix for each agent."""
    (_, K, d), M = theta.shape, _agents(theta, shift, minus, eta, A, b, component, noise)
    if d > MOST_SMALL or A.shape[-3] > 1 or _too_large((M, K, d), *jax.tree.leaves(noise)):
        return None

    def kernel(inputs, out):
        theta, shift, minus, eta, A, b, noise = inputs
        agent, seeds, inside = _place(K, SEEDS)
        step_size, matrix = _own(eta, agent), _entries(A, agent, d)
        constant = [_own(b, agent, i) for i in range(d)]
        for sign, term in ((1, shift), (-1, minus)):
            if term is not None:
                constant = [c + sign * _load(_at(term, agent, i, seeds), inside) for i, c in enumerate(constant)]

        def step(now, theta):
            moved = [c - _product(row, theta) for c, row in zip(constant, matrix, strict=True)]
            if noise is not None:
                moved = [m + _load(_at(noise, agent, now, i, seeds), inside) for i, m in enumerate(moved)]
            return [t + step_size * m for t, m in zip(theta, moved, strict=True)]

        theta = [_load(_at(theta, agent, i, seeds), inside) for i in range(d)]
        for i, value in enumerate(jax.lax.fori_loop(start, stop, step, theta)):
            _store(out.at[agent, i, seeds], value, inside)

    shift, minus, noise = (None if x is None else _seeds_last(x) for x in (shift, minus, noise))
    inputs = (_seeds_last(theta), shift, minus, eta, A[:, 0], b[:, 0], noise)
    return _seeds_second(_call(kernel, ShapeDtypeStruct((M, d, K), theta.dtype), (M, pl.cdiv(K, SEEDS)), 4)(inputs))


def component_products(A, component, theta):
    """`A[component[k]] @ theta[k]` for one agent's seeds: products with all matrices, then a selection."""
    N, d, _ = A.shape
    products = jnp.matmul(theta, A.reshape(N * d, d).T, precision=_precision(theta.dtype)).reshape(-1, N, d)
    chosen = products[:, 0]
    for n in range(1, N):
        chosen = jnp.where((component == n)[:, None], products[:, n], chosen)
    return chosen


def _precision(dtype):
    """Float32 by three passes of the tensor cores, without loss of precision, unless the user has chosen otherwise."""
    as_chosen = interpret or dtype != jnp.float32 or matmul_precision() != "highest"
    return None if as_chosen else jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3


def _call(kernel, shapes, grid: tuple[int, int], warps: int) -> Any:
    return pl.pallas_call(
        kernel,
        out_shape=shapes,
        grid=grid,
        compiler_params=pallas.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpret,
    )


def _too_large(*arrays) -> bool:
    """Whether an array, or an array of this shape, has more elements than Triton can index."""
    return any(math.prod(x if isinstance(x, tuple) else x.shape) >= 2**31 for x in arrays)


def _agents(*arrays) -> int:
    return max(x.shape[0] for x in jax.tree.leaves(arrays))


def _place(seeds: int, block: int) -> tuple[Any, Any, Any]:
    """The agent and the seeds of this program, and the mask of seeds that exist; None if all do."""
    here = pl.program_id(1) * block + jnp.arange(block, dtype=jnp.int32)
    return pl.program_id(0), here, None if seeds % block == 0 else here < seeds


def _at(ref, agent, *where):
    """Part of an agent's data, or of the data that all agents share."""
    return ref.at[0 if ref.shape[0] == 1 else agent, *where]


def _own(ref, agent, *where):
    """One number of an agent's data."""
    return ref[0 if ref.shape[0] == 1 else agent, *where]


def _load(ref, mask=None):
    return pallas.load(ref) if mask is None else pallas.load(ref, mask=mask, other=0)


def _store(ref, value, mask=None):
    pallas.store(ref, value, mask=mask)


def _sum(scale, terms, agent, at, mask):
    """The scaled sum of the terms that are not None; None if there are none."""
    loaded = [sign * _load(_at(term, agent, *at), mask) for sign, term in terms if term is not None]
    return scale * functools.reduce(jnp.add, loaded) if loaded else None


def _entries(matrix, agent, d: int) -> list[list]:
    """The entries of an agent's matrix, as scalars for the registers."""
    return [[_own(matrix, agent, i, j) for j in range(d)] for i in range(d)]


def _product(row: list, vector: list) -> Any:
    """One entry of a product, where each coordinate is a separate array."""
    return functools.reduce(jnp.add, [a * x for a, x in zip(row, vector, strict=True)])


def _repeat(step, start: int, stop: int, carry):
    if stop > MOST_STEPS:
        return jax.lax.fori_loop(start, stop, step, carry)
    for now in range(start, stop):
        carry = step(now, carry)
    return carry


def _and(one, other):
    return other if one is None else one if other is None else one & other


def _column(x):
    return None if x is None else x[:, None]


def _steps_first(x):
    """`(agents, seeds, steps)` as `(agents, steps, seeds)`, and back."""
    return jnp.swapaxes(x, 1, 2)


def _seeds_last(x):
    """`(agents, seeds, ...)` as `(agents, ..., seeds)`."""
    return jnp.moveaxis(x, 1, -1)


def _seeds_second(x):
    """The inverse of `_seeds_last`."""
    return jnp.moveaxis(x, -1, 1)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
