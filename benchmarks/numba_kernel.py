"""FedHSA hand-written in Numba: a reference for the speed of a native kernel on this machine.

Each problem has two functions, one per exchange, for a block of agents and a block of seeds: `anchor` adds
the operators at `theta_bar` to `total`, `local` takes the local steps and adds the displacements to `total`.
Two drivers distribute the blocks among threads, and `kernel(problem, ...)` combines all parts.
"""

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
from numba import njit, prange, uint64

from fedhsa import Problem
from fedhsa.problems.finite_sum import FiniteSumAgent
from fedhsa.problems.quadratic import QuadraticAgent
from fedhsa.problems.td import TDAgent
from machine import cores

CHAINS_TOGETHER = 32
"""The number of chains that move together: each waits for memory at every step, so their waits should overlap."""
SPACING = 8
"""Words from one thread's random state to the next: a cache line, so that threads do not share one."""

fast = njit(fastmath=True)


class Block(NamedTuple):
    """The share of one thread: agents `i0 <= i < i1` and seeds `k0 <= k < k1`."""

    thread: int
    i0: int
    i1: int
    k0: int
    k1: int


class ChainMemory(NamedTuple):
    """The state of agents on finite chains."""

    states: np.ndarray
    """The round's trajectories, `(M, H + 1, K)`; the last state is the first of the next round."""
    g: np.ndarray
    """Operators at theta_bar `(M, K, d)`; for TD only their scalar factors `(M, K, 1)`."""
    theta: np.ndarray
    """Scratch memory for each thread, as are the three fields below."""
    push: np.ndarray
    product: np.ndarray
    order: np.ndarray
    rng: np.ndarray


class NoiseMemory(NamedTuple):
    """The state of quadratic agents; agents are the last axis."""

    z: np.ndarray
    """`(K, d, M)`."""
    g: np.ndarray
    """Operators at theta_bar, `(K, d, M)`."""
    theta: np.ndarray
    """Scratch memory for each thread, `(d, M)`, as are the two fields below."""
    push: np.ndarray
    work: np.ndarray
    rng: np.ndarray


# Random numbers: splitmix64 (Steele, Lea, Flood, 2014) and the ziggurat (Marsaglia, Tsang, 2000), which take
# about 2 and 4 ns where Numba's own `np.random.random` and `np.random.standard_normal` take 21 and 65. The
# state is passed around by value, so that it stays in a register.

LAYERS = 256
TAIL = 3.6541528853610088
LAYER_AREA = 0.00492867323399


def _ziggurat() -> tuple[np.ndarray, np.ndarray]:
    """Returns the right ends of the layers, from the base up, and the density there."""
    x = np.zeros(LAYERS + 1)
    x[0], x[1] = LAYER_AREA * np.exp(TAIL**2 / 2), TAIL
    for i in range(2, LAYERS):
        x[i] = np.sqrt(-2 * np.log(LAYER_AREA / x[i - 1] + np.exp(-(x[i - 1] ** 2) / 2)))
    return x, np.exp(-(x**2) / 2)


ENDS, DENSITY = _ziggurat()
WIDTH = ENDS[:-1] * 2.0**-53
INSIDE = (ENDS[1:] / ENDS[:-1] * 2.0**53).astype(np.uint64)


@njit(inline="always")
def random_word(rng):
    rng = rng + uint64(0x9E3779B97F4A7C15)
    word = (rng ^ (rng >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> uint64(27))) * uint64(0x94D049BB133111EB)
    return rng, word ^ (word >> uint64(31))


@njit
def uniform(rng):
    rng, word = random_word(rng)
    return rng, (word >> uint64(11)) * 2.0**-53


@njit(inline="always")
def normal(rng):
    while True:
        rng, word = random_word(rng)
        layer = word & uint64(LAYERS - 1)
        position = word >> uint64(11)
        x = position * WIDTH[layer]
        accepted = position < INSIDE[layer]
        if not accepted:
            rng, x, accepted = _edge(rng, layer, x)
        if accepted:
            return rng, (x if word & uint64(LAYERS) else -x)


@njit
def _edge(rng, layer, x):
    """Handles the rare case: a point near the curve, or in the tail beyond the base layer."""
    rng, u = uniform(rng)
    if layer > 0:
        return rng, x, DENSITY[layer] + u * (DENSITY[layer + 1] - DENSITY[layer]) < np.exp(-0.5 * x * x)
    while True:
        x = -np.log(1 - u) / TAIL
        rng, v = uniform(rng)
        if -2 * np.log(1 - v) > x * x:
            return rng, TAIL + x, True
        rng, u = uniform(rng)


@njit(inline="always")
def alias_draw(rng, row):
    """Draws from a row of an alias table: thresholds in the upper 32 bits, aliases in the lower."""
    rng, word = random_word(rng)
    column = ((word >> uint64(32)) * uint64(len(row))) >> uint64(32)
    entry = row[column]
    kept = (word & uint64(0xFFFFFFFF)) < (entry >> uint64(32))
    return rng, np.int32(column if kept else entry & uint64(0xFFFFFFFF))


@fast
def draw_round(table, memory, block):
    """Draws the states of a round, for all chains of the block."""
    states, H = memory.states, memory.states.shape[1] - 1
    rng = memory.rng[block.thread * SPACING]
    tile = max(1, CHAINS_TOGETHER // (block.k1 - block.k0))
    for first in range(block.i0, block.i1, tile):
        last = min(first + tile, block.i1)
        for i in range(first, last):
            states[i, 0, block.k0 : block.k1] = states[i, H, block.k0 : block.k1]
        for step in range(H):
            for i in range(first, last):
                now, later, rows = states[i, step], states[i, step + 1], table[i]
                for k in range(block.k0, block.k1):
                    rng, later[k] = alias_draw(rng, rows[now[k]])
    memory.rng[block.thread * SPACING] = rng


# TD(0). An agent's features and table stay in the core's cache for all its steps and seeds.


class TD(NamedTuple):
    table: np.ndarray
    rewards: np.ndarray
    features: np.ndarray
    discount: np.ndarray


@fast
def td_error(phi, phi_next, gamma, theta):
    error = theta.dtype.type(0)
    for j in range(len(theta)):
        error += (gamma * phi_next[j] - phi[j]) * theta[j]
    return error


@fast
def td_move(theta, phi, error, push):
    for j in range(len(theta)):
        theta[j] += error * phi[j] + push[j]


@fast
def td_move_then_error(theta, phi, error, push, phi_1, phi_2, gamma):
    """Computes `td_move` and the `td_error` of the next step, in one pass over theta."""
    next_error = theta.dtype.type(0)
    for j in range(len(theta)):
        moved = theta[j] + (error * phi[j] + push[j])
        theta[j] = moved
        next_error += (gamma * phi_2[j] - phi_1[j]) * moved
    return next_error


@fast
def td_anchor(agents, memory, theta_bar, total, block):
    draw_round(agents.table, memory, block)
    for i in range(block.i0, block.i1):
        rewards, features, gamma = agents.rewards[i], agents.features[i], agents.discount[i]
        for k in range(block.k0, block.k1):
            s, s_next = memory.states[i, 0, k], memory.states[i, 1, k]
            error = rewards[s] + td_error(features[s], features[s_next], gamma, theta_bar[k])
            memory.g[i, k, 0] = error
            add_scaled(total[k], error, features[s])


@fast
def td_local(agents, memory, theta_bar, g_bar, total, eta, block):
    theta, push, H = memory.theta[block.thread, 0], memory.push[block.thread, 0], memory.states.shape[1] - 1
    for i in range(block.i0, block.i1):
        rewards, features, gamma = agents.rewards[i], agents.features[i], agents.discount[i]
        for k in range(block.k0, block.k1):
            s = memory.states[i, :, k]
            start_agent(theta, push, theta_bar[k], g_bar[k], memory.g[i, k, 0], features[s[0]], eta)
            if H > 1:
                error = rewards[s[1]] + td_error(features[s[1]], features[s[2]], gamma, theta)
                for step in range(2, H):
                    before, now, later = features[s[step - 1]], features[s[step]], features[s[step + 1]]
                    error = td_move_then_error(theta, before, eta * error, push, now, later, gamma)
                    error += rewards[s[step]]
                td_move(theta, features[s[H - 1]], eta * error, push)
            add_difference(total[k], theta, theta_bar[k])


@fast
def start_agent(theta, push, theta_bar, g_bar, scale, g, eta):
    """Takes the first local step, which is `eta g_bar` for every agent, and computes the correction of later steps."""
    for j in range(len(theta)):
        theta[j] = theta_bar[j] + eta * g_bar[j]
        push[j] = eta * (g_bar[j] - scale * g[j])


@fast
def add_scaled(y, scale, x):
    for j in range(len(y)):
        y[j] += scale * x[j]


@fast
def add_difference(y, x1, x0):
    for j in range(len(y)):
        y[j] += x1[j] - x0[j]


# Finite sums. Seeds at the same component share its matrix, four seeds at a time and in tiles of four rows;
# `d` is rounded up to a multiple of four with zeros.


class FiniteSum(NamedTuple):
    table: np.ndarray
    A: np.ndarray
    b: np.ndarray


@fast
def finite_sum_anchor(agents, memory, theta_bar, total, block):
    draw_round(agents.table, memory, block)
    order = memory.order[block.thread]
    for i in range(block.i0, block.i1):
        component, g = memory.states[i, 0], memory.g[i]
        multiply(agents.A[i], theta_bar, g, component, order, block)
        for k in range(block.k0, block.k1):
            g_k, b = g[k], agents.b[i, component[k]]
            for j in range(len(b)):
                g_k[j] = b[j] - g_k[j]
            add_scaled(total[k], 1, g_k)


@fast
def finite_sum_local(agents, memory, theta_bar, g_bar, total, eta, block):
    theta, push, product = memory.theta[block.thread], memory.push[block.thread], memory.product[block.thread]
    order, H = memory.order[block.thread], memory.states.shape[1] - 1
    for i in range(block.i0, block.i1):
        for k in range(block.k0, block.k1):
            start_agent(theta[k], push[k], theta_bar[k], g_bar[k], 1, memory.g[i, k], eta)
        for step in range(1, H):
            component = memory.states[i, step]
            multiply(agents.A[i], theta, product, component, order, block)
            for k in range(block.k0, block.k1):
                finite_sum_move(theta[k], eta, agents.b[i, component[k]], product[k], push[k])
        for k in range(block.k0, block.k1):
            add_difference(total[k], theta[k], theta_bar[k])


@fast
def finite_sum_move(theta, eta, b, product, push):
    for j in range(len(theta)):
        theta[j] += eta * (b[j] - product[j]) + push[j]


@fast
def multiply(A, x, y, component, order, block):
    """`y[k] = A[component[k]] @ x[k]` for the block's seeds."""
    for n in range(len(A)):
        count = 0
        for k in range(block.k0, block.k1):
            if component[k] == n:
                order[count] = k
                count += 1
        whole = count // 4 * 4
        for c in range(0, whole, 4):
            p, q, r, s = order[c], order[c + 1], order[c + 2], order[c + 3]
            four_products(A[n], x[p], x[q], x[r], x[s], y[p], y[q], y[r], y[s])
        for c in range(whole, count):
            one_product(A[n], x[order[c]], y[order[c]])


@fast
def one_product(A, x, y):
    zero = x.dtype.type(0)
    for r in range(0, len(A), 4):
        a, b, c, d = A[r], A[r + 1], A[r + 2], A[r + 3]
        ya, yb, yc, yd = zero, zero, zero, zero
        for j in range(len(x)):
            ya += a[j] * x[j]
            yb += b[j] * x[j]
            yc += c[j] * x[j]
            yd += d[j] * x[j]
        y[r], y[r + 1], y[r + 2], y[r + 3] = ya, yb, yc, yd


@fast
def four_products(A, x0, x1, x2, x3, y0, y1, y2, y3):
    zero = x0.dtype.type(0)
    for r in range(0, len(A), 4):
        a, b, c, d = A[r], A[r + 1], A[r + 2], A[r + 3]
        a0, a1, a2, a3, b0, b1, b2, b3 = zero, zero, zero, zero, zero, zero, zero, zero
        c0, c1, c2, c3, d0, d1, d2, d3 = zero, zero, zero, zero, zero, zero, zero, zero
        for j in range(len(x0)):
            p, q, s, t = x0[j], x1[j], x2[j], x3[j]
            a0, a1, a2, a3 = a0 + a[j] * p, a1 + a[j] * q, a2 + a[j] * s, a3 + a[j] * t
            b0, b1, b2, b3 = b0 + b[j] * p, b1 + b[j] * q, b2 + b[j] * s, b3 + b[j] * t
            c0, c1, c2, c3 = c0 + c[j] * p, c1 + c[j] * q, c2 + c[j] * s, c3 + c[j] * t
            d0, d1, d2, d3 = d0 + d[j] * p, d1 + d[j] * q, d2 + d[j] * s, d3 + d[j] * t
        y0[r], y1[r], y2[r], y3[r] = a0, a1, a2, a3
        y0[r + 1], y1[r + 1], y2[r + 1], y3[r + 1] = b0, b1, b2, b3
        y0[r + 2], y1[r + 2], y2[r + 2], y3[r + 2] = c0, c1, c2, c3
        y0[r + 3], y1[r + 3], y2[r + 3], y3[r + 3] = d0, d1, d2, d3


# Quadratics with VAR(1) noise. The matrices are small, so agents are the last axis and fill the vector
# registers; `d` is rounded up to an even number with zeros, and products go by tiles of two rows and columns.


class Quadratic(NamedTuple):
    negated: np.ndarray
    """$-A$, `(d, d, M)`."""
    b: np.ndarray
    Q: np.ndarray
    noise_std: np.ndarray
    local_steps: int
    dim: int


@fast
def quadratic_anchor(agents, memory, theta_bar, total, block):
    i0, i1 = block.i0, block.i1
    for k in range(block.k0, block.k1):
        for r in range(theta_bar.shape[1]):
            g, b, z = memory.g[k, r, i0:i1], agents.b[r, i0:i1], memory.z[k, r, i0:i1]
            for i in range(len(g)):
                g[i] = b[i] + z[i]
            for c in range(theta_bar.shape[1]):
                add_scaled(g, theta_bar[k, c], agents.negated[r, c, i0:i1])
            total[k, r] += g.sum()


@fast
def quadratic_local(agents, memory, theta_bar, g_bar, total, eta, block):
    t, i0, i1 = block.thread, block.i0, block.i1
    theta, push, work = memory.theta[t], memory.push[t], memory.work[t]
    rng = memory.rng[t * SPACING]
    for k in range(block.k0, block.k1):
        z = memory.z[k]
        for r in range(len(theta)):
            for i in range(i0, i1):
                theta[r, i] = theta_bar[k, r] + eta * g_bar[k, r]
                push[r, i] = eta * (g_bar[k, r] - memory.g[k, r, i] + agents.b[r, i])
        for _ in range(1, agents.local_steps):
            rng = next_noise(rng, agents, z, work, i0, i1)
            work[:, i0:i1] = z[:, i0:i1]
            add_products(work, agents.negated, theta, i0, i1)
            for r in range(len(theta)):
                quadratic_move(theta[r, i0:i1], eta, work[r, i0:i1], push[r, i0:i1])
        rng = next_noise(rng, agents, z, work, i0, i1)
        for r in range(len(theta)):
            for i in range(i0, i1):
                total[k, r] += theta[r, i] - theta_bar[k, r]
    memory.rng[t * SPACING] = rng


@fast
def quadratic_move(theta, eta, g, push):
    for i in range(len(theta)):
        theta[i] += eta * g[i] + push[i]


@fast
def next_noise(rng, agents, z, work, i0, i1):
    for r in range(agents.dim):
        for i in range(i0, i1):
            rng, epsilon = normal(rng)
            work[r, i] = agents.noise_std[i] * epsilon
    work[agents.dim :, i0:i1] = 0
    add_products(work, agents.Q, z, i0, i1)
    z[:, i0:i1] = work[:, i0:i1]
    return rng


@fast
def add_products(y, A, x, i0, i1):
    """`y += A @ x` for the agents of the block."""
    for r in range(0, len(A), 2):
        y0, y1 = y[r, i0:i1], y[r + 1, i0:i1]
        for c in range(0, len(A), 2):
            a00, a01 = A[r, c, i0:i1], A[r, c + 1, i0:i1]
            a10, a11 = A[r + 1, c, i0:i1], A[r + 1, c + 1, i0:i1]
            add_tile(y0, y1, a00, a01, a10, a11, x[c, i0:i1], x[c + 1, i0:i1])


@fast
def add_tile(y0, y1, a00, a01, a10, a11, x0, x1):
    for i in range(len(y0)):
        y0[i] += a00[i] * x0[i] + a01[i] * x1[i]
        y1[i] += a10[i] * x0[i] + a11[i] * x1[i]


# Drivers


@fast
def set_mean(mean, totals, M):
    for k in range(mean.shape[0]):
        for j in range(mean.shape[1]):
            mean[k, j] = totals[:, k, j].sum() / M


def over_agents(anchor: Callable, local: Callable) -> Callable:
    """Each thread takes some agents, with all seeds; threads meet after every exchange."""

    @njit(parallel=True, fastmath=True)
    def run(agents, memory, theta_bar, eta, rounds, M, threads):
        K, d = theta_bar.shape
        totals = np.zeros((threads, K, d), theta_bar.dtype)
        g_bar, move = np.zeros_like(theta_bar), np.zeros_like(theta_bar)
        for _ in range(rounds):
            for t in prange(threads):
                totals[t] = 0
                anchor(
                    agents,
                    memory,
                    theta_bar,
                    totals[t],
                    Block(t, t * M // threads, (t + 1) * M // threads, 0, K),
                )
            set_mean(g_bar, totals, M)
            for t in prange(threads):
                totals[t] = 0
                block = Block(t, t * M // threads, (t + 1) * M // threads, 0, K)
                local(agents, memory, theta_bar, g_bar, totals[t], eta, block)
            set_mean(move, totals, M)
            theta_bar += move

    return run


def over_seeds(anchor: Callable, local: Callable) -> Callable:
    """Each thread takes some seeds, with all agents, for the whole run; threads never meet."""

    @njit(parallel=True, fastmath=True)
    def run(agents, memory, theta_bar, eta, rounds, M, threads):
        K = len(theta_bar)
        total, g_bar = np.zeros_like(theta_bar), np.zeros_like(theta_bar)
        for t in prange(threads):
            k0, k1 = t * K // threads, (t + 1) * K // threads
            block = Block(t, 0, M, k0, k1)
            for _ in range(rounds):
                total[k0:k1] = 0
                anchor(agents, memory, theta_bar, total, block)
                g_bar[k0:k1] = total[k0:k1] / M
                total[k0:k1] = 0
                local(agents, memory, theta_bar, g_bar, total, eta, block)
                theta_bar[k0:k1] += total[k0:k1] / M

    return run


# Finite chains go over agents: an agent's arrays are large, and so they pass through one core's cache only.
td_run = over_agents(td_anchor, td_local)
finite_sum_run = over_agents(finite_sum_anchor, finite_sum_local)
quadratic_over_agents = over_agents(quadratic_anchor, quadratic_local)
quadratic_over_seeds = over_seeds(quadratic_anchor, quadratic_local)


def kernel(
    problem: Problem,
    *,
    local_steps: int,
    seeds: int,
    dtype: str = "float64",
    threads: int | None = None,
    key: int = 0,
) -> Callable[[int, float], np.ndarray]:
    """Returns `run(rounds, step_size)`, which continues all seeds and returns their parameters, `(seeds, d)`."""
    threads = threads or cores()
    setups = {TDAgent: _td, FiniteSumAgent: _finite_sum, QuadraticAgent: _quadratic}
    setup = setups[type(problem.agents)]
    program, agents, memory, width = setup(
        problem, local_steps, seeds, np.dtype(dtype), threads, np.random.default_rng(key)
    )
    theta_bar = np.zeros((seeds, width), dtype)

    def run(rounds: int, step_size: float) -> np.ndarray:
        numba.set_num_threads(threads)
        program(agents, memory, theta_bar, theta_bar.dtype.type(step_size), rounds, problem.num_agents, threads)
        return theta_bar[:, : problem.dim].copy()

    return run


def _td(problem: Problem, H: int, K: int, dtype: np.dtype, threads: int, rng: np.random.Generator):
    agents, chain = problem.agents, problem.agents.source.chain
    arrays = (np.ascontiguousarray(x, dtype) for x in (agents.rewards, agents.features, agents.discount))
    memory = _chain_memory(chain, H, K, 1, problem.dim, dtype, threads, rng)
    return td_run, TD(_alias_table(chain), *arrays), memory, problem.dim


def _finite_sum(problem: Problem, H: int, K: int, dtype: np.dtype, threads: int, rng: np.random.Generator):
    agents, chain = problem.agents, problem.agents.source
    more = -problem.dim % 4
    width = problem.dim + more
    A = np.pad(agents.A.astype(dtype), ((0, 0), (0, 0), (0, more), (0, more)))
    b = np.pad(agents.b.astype(dtype), ((0, 0), (0, 0), (0, more)))
    memory = _chain_memory(chain, H, K, width, width, dtype, threads, rng)
    return finite_sum_run, FiniteSum(_alias_table(chain), A, b), memory, width


def _quadratic(problem: Problem, H: int, K: int, dtype: np.dtype, threads: int, rng: np.random.Generator):
    agents, more = problem.agents, problem.dim % 2

    def agents_last(x):
        x = np.pad(x, [(0, 0)] + [(0, more)] * (x.ndim - 1))
        return np.ascontiguousarray(np.moveaxis(x, 0, -1), dtype)

    b, std = agents_last(agents.b), agents.source.noise_std.astype(dtype)
    arrays = Quadratic(agents_last(-agents.A), b, agents_last(agents.source.transition), std, H, problem.dim)
    noise, room = (np.zeros((n, *b.shape), dtype) for n in (K, threads))
    memory = NoiseMemory(noise, noise.copy(), room, room.copy(), room.copy(), _streams(threads, rng))
    program = quadratic_over_seeds if threads <= K else quadratic_over_agents
    return program, arrays, memory, len(b)


def _chain_memory(chain, H, K, g_width, width, dtype, threads, rng) -> ChainMemory:
    states = np.zeros((len(chain.start), H + 1, K), np.int32)
    u = rng.random((len(chain.start), K, 1))
    states[:, H] = (u >= np.cumsum(chain.start, -1)[:, None, :-1]).sum(-1)
    g, room = np.zeros((len(chain.start), K, g_width), dtype), np.zeros((threads, K, width), dtype)
    order = np.zeros((threads, K), np.int64)
    return ChainMemory(states, g, room, room.copy(), room.copy(), order, _streams(threads, rng))


def _streams(threads: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(2**64, size=threads * SPACING, dtype=np.uint64)


def _alias_table(chain) -> np.ndarray:
    table = chain._step_table
    return (table[..., 0].astype(np.uint64) << np.uint64(32)) | table[..., 1].astype(np.uint64)
