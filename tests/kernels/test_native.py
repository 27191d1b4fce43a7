"""The compiled kernels of the optional package, against loops in NumPy and against the plain steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from fedhsa._random import complex_normal, real_parts
from fedhsa._types import precision

_fedhsa_native = pytest.importorskip("_fedhsa_native", reason="fedhsa-native is not installed: `make native` builds it")
from fedhsa.kernels import native  # noqa: E402

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
SIZES = [(3, 5, 4, 7, 50), (2, 1, 3, 4, 3), (2, 17, 2, 3, 10), (9, 1, 3, 2, 33)]
"""Agents, seeds, steps, states or components, coordinates: less than a vector, several, and what is left over."""


def results(kernel, *arguments, **static):
    """What the kernel gives with each instruction set that this processor has."""
    compiled = jax.jit(lambda *arrays: kernel(*arrays, **static))
    arguments = jax.tree.map(jnp.asarray, arguments)
    for number in range(_fedhsa_native.choose()):
        _fedhsa_native.choose(number)
        yield jax.tree.map(np.asarray, compiled(*arguments))
    _fedhsa_native.choose(0)


@pytest.fixture(params=["float64", "float32"])
def dtype(request):
    with precision(request.param):
        yield request.param


def close(found, expected, dtype):
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


def drawn(rng, dtype, *shape):
    return rng.normal(size=shape).astype(dtype)


def by_loops(operator, theta, shift, minus, steps):
    """Where all agents and seeds are after the steps from 1 on, and their operators at step 0."""
    moved, first = np.empty(minus.shape), np.empty(minus.shape)
    for m, k in np.ndindex(*minus.shape[:2]):
        x = theta[0, k].astype(float)
        first[m, k] = operator(x, m, k, 0)
        for h in range(1, steps):
            x = x + 0.05 * (operator(x, m, k, h) + shift[0, k] - minus[m, k])
        moved[m, k] = x
    return moved, first


@pytest.mark.parametrize(
    ("M", "K", "H", "S", "shared"), [(3, 5, 4, 7, True), (40, 1, 3, 2, False), (2, 40, 2, 100, False)]
)
def test_chains_visit_the_states_that_their_words_and_tables_say(M, K, H, S, shared):
    rng = np.random.default_rng(0)
    table = rng.integers(2**32, size=(1 if shared else M, S, S, 2), dtype=np.uint32)
    table[..., 1] %= S
    first, second = rng.integers(2**32, size=(2, M, K, H), dtype=np.uint32)
    state = rng.integers(S, size=(M, K), dtype=np.int32)
    second[0, 0, 0] = table[0, state[0, 0], int(first[0, 0, 0]) * S >> 32, 0]  # the first word that does not keep
    states, following = np.empty((2, M, K, H), np.int32)
    for m, k in np.ndindex(M, K):
        s = state[m, k]
        for h in range(H):
            states[m, k, h], column = s, int(first[m, k, h]) * S >> 32
            threshold, alias = table[0 if shared else m, s, column]
            s = following[m, k, h] = column if second[m, k, h] < threshold else alias
    for found in results(native.walk, first, second, table, state):
        np.testing.assert_array_equal(found, (states, following))


@pytest.mark.parametrize("size", SIZES)
def test_steps_of_rank_one_are_those_of_a_loop(size, dtype):
    (M, K, H, S, d), rng = size, np.random.default_rng(1)
    weights = "ahahaah"[: S - 1]  # those of the agent, and those of every step
    theta, shift = drawn(rng, dtype, 1, K, d), drawn(rng, dtype, 1, K, d)
    minus, table, eta = drawn(rng, dtype, M, K, d), drawn(rng, dtype, M, S, d), np.full(1, 0.05, dtype)
    rows = tuple(rng.integers(S, size=(M, K, H), dtype=np.int32) for _ in weights)
    w = tuple(drawn(rng, dtype, M) if kind == "a" else drawn(rng, dtype, M, K, H) for kind in weights)
    constant = drawn(rng, dtype, M, K, H)

    def operator(x, m, k, h):
        each = [(v[m] if v.ndim == 1 else v[m, k, h], table[m, r[m, k, h]]) for v, r in zip(w, rows, strict=True)]
        return (constant[m, k, h] + sum(v * (y @ x) for v, y in each)) * each[0][1]

    moved, first = by_loops(operator, theta, shift, minus, H)
    form = (table, rows, w, constant)
    for found in results(native.rank_one_steps, theta, shift, minus, eta, *form, start=1, stop=H):
        close(found, moved, dtype)
    for found in results(native.rank_one_operator, theta, *form):
        close(found, first, dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("components", "noisy"), [(True, False), (False, True)])
def test_affine_steps_are_those_of_a_loop(size, components, noisy, dtype):
    (M, K, H, N, d), rng = size, np.random.default_rng(2)
    N = N if components else 1
    theta, shift, minus = (drawn(rng, dtype, *shape) for shape in ((1, K, d), (1, K, d), (M, K, d)))
    A, b, eta = (
        drawn(rng, dtype, M, N, d, d) / np.sqrt(d, dtype=dtype),
        drawn(rng, dtype, M, N, d),
        np.full(1, 0.05, dtype),
    )
    component = rng.integers(N, size=(M, K, H), dtype=np.int32) if components else None
    noise = drawn(rng, dtype, M, K, H, d) if noisy else None

    def operator(x, m, k, h):
        c = 0 if component is None else component[m, k, h]
        return b[m, c] - A[m, c] @ x + (0 if noise is None else noise[m, k, h])

    moved, first = by_loops(operator, theta, shift, minus, H)
    form = (A, b, component, noise)
    for found in results(native.affine_steps, theta, shift, minus, eta, *form, start=1, stop=H):
        close(found, moved, dtype)
    for found in results(native.affine_operator, theta, *form):
        close(found, first, dtype)


@pytest.mark.parametrize("size", [SIZES[1], (40, 8, 6, 1, 9), SIZES[3]])
def test_linear_chains_have_the_normal_numbers_of_their_keys(size, dtype):
    (M, K, H, _, d), rng = size, np.random.default_rng(3)
    words = rng.integers(2**32, size=(M, K, H, 2), dtype=np.uint32)
    words[0, 0, 0] = 0
    Q, scale, state = (
        drawn(rng, dtype, M, d, d) / np.sqrt(2 * d, dtype=dtype),
        drawn(rng, dtype, M),
        drawn(rng, dtype, M, K, d),
    )
    keys = jax.random.wrap_key_data(jnp.asarray(words.reshape(-1, 2)), impl="threefry2x32")
    normal = jax.jit(jax.vmap(lambda key: real_parts(complex_normal(key, (d + 1) // 2, dtype), d)))(keys)
    noise, z = np.asarray(normal).reshape(M, K, H, d), state.astype(float)
    expected = np.empty((M, K, H, d))
    for h in range(H):
        expected[:, :, h] = z
        z = np.einsum("mij,mkj->mki", Q, z) + scale[:, None, None] * noise[:, :, h]
    for last, states in results(native.normal_walk, words[..., 0], words[..., 1], Q, scale, state):
        close(states, expected, dtype)
        close(last, z, dtype)


def test_numbers_outside_a_table_read_its_last_entry():
    table, theta = jnp.asarray([[[1.0], [10.0]]]), jnp.ones((1, 1, 1))
    weights, constant = (jnp.zeros(1),), jnp.ones((1, 1, 1))
    for row in (1, 2, 10**9, -(10**9)):
        rows = (jnp.full((1, 1, 1), row, jnp.int32),)
        assert native.rank_one_operator(theta, table, rows, weights, constant) == 10.0


def test_shapes_that_do_not_fit_are_an_error_that_says_what_was_expected():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"fedhsa-native.*expected"):
        native.affine_operator(jnp.ones((1, 1, 2)), jnp.ones((1, 1, 3, 3)), jnp.ones((1, 1, 3)), None, None)


PROBLEMS = {
    "td": lambda: fh.problems.td.random(6, 5, 3),
    "quadratic": lambda: fh.problems.quadratic.random(6, 3),
    "finite sum": lambda: fh.problems.finite_sum.random(4, 3, 5),
    "n-step": lambda: fh.problems.n_step_td.random(4, 5, 3, steps=3),
    "equal agents": lambda: fh.problems.td.random(4, 5, 3, heterogeneity=0.0),
}
HSA = fh.FedHSA(0.05, 4)
RUNS = [("td", HSA, "float64"), ("quadratic", HSA, "float64")]
MORE = [("td", fh.LocalSA(0.05, 4), "float64"), ("td", fh.SCAFFLSA(0.05, 4), "float64"), ("td", HSA, "float32")]
MORE += [(name, HSA, "float64") for name in list(PROBLEMS)[2:]]


@pytest.mark.parametrize(
    ("name", "algorithm", "dtype"), [*RUNS, *(pytest.param(*m, marks=pytest.mark.slow) for m in MORE)]
)
def test_simulations_with_kernels_give_the_numbers_of_those_without(name, algorithm, dtype, monkeypatch):
    problem, options = PROBLEMS[name](), {"rounds": 6, "seeds": 9, "chunk": 9, "dtype": dtype}
    plain = fh.simulate(problem, algorithm, **options)
    used, call = [], native._call
    monkeypatch.setattr(native, "_call", lambda *arguments: used.append(arguments[0]) or call(*arguments))
    monkeypatch.delenv("FEDHSA_KERNELS")
    compiled = fh.simulate(problem, algorithm, **options)
    assert len(set(used)) == 2  # one for the chains, one for operators and steps
    close(compiled.theta, plain.theta, dtype)
