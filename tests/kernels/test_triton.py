"""The kernels for GPUs give the numbers of the plain steps; without a GPU they are interpreted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from fedhsa import kernels
from fedhsa._types import precision
from fedhsa.kernels import triton

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
PRECISIONS = ["float64", pytest.param("float32", marks=pytest.mark.slow)]
M, K, H, S, D = 2, 3, 4, 5, 3


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(triton, "interpret", jax.default_backend() != "gpu")


def both(function, arguments, axes):
    """A function of one agent and seed for all of them, by the plain steps and by kernels; `axes` say whose is what."""

    def run(backend):
        of_seeds = jax.vmap(function, in_axes=[None if axis == "agent" else 0 for axis in axes])
        of_agents = jax.vmap(of_seeds, in_axes=[None if axis == "shared" else 0 for axis in axes])
        with kernels.using(backend):
            return jax.jit(of_agents)(*arguments)

    return run(None), run("triton")


def normal(*shape, dtype="float64", key=0):
    return jax.random.normal(jax.random.fold_in(jax.random.key(7), key), shape, dtype)


def close(found, expected, dtype):
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_local_steps_of_rank_one_are_those_of_the_plain_steps(dtype):
    with precision(dtype):
        draw = functools.partial(normal, dtype=dtype)
        path = jax.random.randint(jax.random.key(1), (M, K, H + 1), 0, S)
        jumps = jax.random.randint(jax.random.key(2), (M, K, H), 0, S)  # a chain that does not move on by one

        def steps(table, discount, theta, path, jumps, constant, common, own):
            form = kernels.RankOne(table, (path[:-1], path[1:], jumps), (-1.0, discount, constant), constant)
            first = kernels.first_operator(form, theta)
            return first, kernels.take_steps(form, theta, 0.1, common, own, start=1, stop=H)

        arguments = (draw(M, S, D), draw(M, key=1), draw(M, K, D, key=2), path, jumps, draw(M, K, H, key=3))
        arguments += (draw(K, D, key=4), draw(M, K, D, key=5))
        axes = ("agent", "agent", "both", "both", "both", "both", "shared", "both")
        close(*both(steps, arguments, axes), dtype)


@pytest.mark.parametrize("most_steps", [pytest.param(triton.MOST_STEPS, marks=pytest.mark.slow), 1])
def test_chains_walk_through_the_same_states(monkeypatch, most_steps):
    monkeypatch.setattr(triton, "MOST_STEPS", most_steps)  # steps written out, and steps in a loop
    law = np.random.default_rng(0).dirichlet(np.ones(S), size=(M, S))
    chain = fh.tree.to_device(fh.sources.Transitions(fh.sources.FiniteChain(law)), "float64")

    def walk(chain, key):
        state = chain.init(key)
        return chain.draw(jax.random.split(key, H), state)

    keys = jax.random.split(jax.random.key(3), (M, K))
    plain, fused = both(walk, (chain, keys), ("agent", "both"))
    assert all((one == two).all() for one, two in zip(jax.tree.leaves(plain), jax.tree.leaves(fused), strict=True))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.slow
def test_small_matrices_multiply_as_in_the_plain_steps(dtype):
    with precision(dtype):
        draw = functools.partial(normal, dtype=dtype)

        def steps(A, b, scale, theta, parts, common):
            last, noise = kernels.linear_walk(A / 4, scale, (parts[0], parts[1]), theta)
            form = kernels.Affine(A[None], b[None], noise=noise)
            return last, kernels.take_steps(form, theta, 0.1, common, None, start=1, stop=H)

        # Two parts of two make four coordinates, of which the last is not needed.
        arguments = (draw(M, D, D), draw(M, D, key=1), draw(M, key=2), draw(M, K, D, key=3))
        arguments += (draw(M, K, 2, H, 2, key=4), draw(K, D, key=5))
        close(*both(steps, arguments, ("agent", "agent", "agent", "both", "both", "shared")), dtype)


@pytest.mark.slow
def test_what_is_not_mapped_over_seeds_and_then_agents_takes_the_plain_steps():
    with precision():
        form = kernels.Affine(normal(1, D, D), normal(1, D, key=1), noise=normal(H, D, key=2))
        with kernels.using("triton"):
            etas = jnp.array([0.1, 0.2])
            found = jax.vmap(lambda eta: kernels.take_steps(form, jnp.ones(D), eta, None, None, 0, H))(etas)
        one = kernels.take_steps(form, jnp.ones(D), 0.2, None, None, 0, H)
    np.testing.assert_allclose(found[1], one, rtol=1e-12)


def test_matrices_that_are_too_large_for_registers_are_left_to_the_plain_steps():
    with precision():
        d = triton.MOST_SMALL + 1

        def steps(A, theta):
            return kernels.take_steps(kernels.Affine(A[None], jnp.zeros((1, d))), theta, 0.1, None, None, 0, 2)

        close(*both(steps, (normal(M, d, d), normal(M, K, d, key=1)), ("agent", "both")), "float64")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "dtype"),
    [
        (fh.FedHSA(0.05, local_steps=3), "float64"),
        (fh.LocalSA(0.05, local_steps=3), "float32"),
        (fh.SCAFFLSA(0.05, local_steps=3), "float64"),
        (fh.OneExchangeFedHSA(0.05, local_steps=3), "float64"),
        (fh.SSLocalSGD(0.05, local_steps=3, probability=0.5), "float64"),
        (fh.Partial(fh.FedHSA(0.05, local_steps=3), fh.sampling.Bernoulli(0.5)), "float32"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_a_simulation_with_kernels_is_the_one_without(monkeypatch, algorithm, dtype):
    made = {"td": fh.problems.td.random(3, 5, 3), "quadratic": fh.problems.quadratic.random(3, 3)}
    for problem in made.values():
        thetas = []
        for backend in (None, "triton"):
            monkeypatch.setattr(kernels, "backend_of", lambda platform, backend=backend: backend)
            thetas.append(fh.simulate(problem, algorithm, rounds=4, seeds=3, dtype=dtype).theta)
        np.testing.assert_allclose(thetas[1], thetas[0], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
