import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.engine import batch


def final_error(problem, algorithm, rounds, **options):
    state = fh.init(problem, algorithm, **options)
    state, _ = jax.lax.scan(lambda s, _: (fh.step(problem, algorithm, s), None), state, length=rounds)
    return jnp.sum((state.theta - problem.theta_star) ** 2)


def test_keys_are_folds_of_the_key_of_the_run_and_no_position_is_used_twice():
    """Seed 1 and agent 2, by JAX's own folds; the start of a chain has position 0, and rounds follow one another."""

    def fold(key, *path):
        return key if not path else fold(jax.random.fold_in(key, path[0]), *path[1:])

    key = jax.random.key(3)
    expected = [jax.random.key_data(fold(key, *path)).tolist() for path in ((1, 1), (1, 0, 2, 0), (1, 0, 2, 1))]
    many, one = batch.make_keys(key, np.arange(2), np.arange(3)), batch.keys_of_seed(key, 1, 3)
    for server, source, own in ((many.server[1], many.source[2, 1], many.agent[2, 1]), (one[0], one[1][2], one[2][2])):
        assert [jax.random.key_data(k).tolist() for k in (server, source, own)] == expected
    assert [batch.positions(t, 3).tolist() for t in (0, 1, 5)] == [[1, 2, 3], [4, 5, 6], [16, 17, 18]]


@pytest.mark.parametrize("case", ["td", pytest.param("quadratic", marks=pytest.mark.slow)])
def test_steps_mapped_over_seeds_are_simulate(case):
    problem, method = CASES[case]().problem, fh.Averaged(fh.FedHSA(0.05, 3))
    expected = fh.simulate(problem, method, rounds=4, seeds=3, key=5, theta=np.ones(problem.dim)).error[:, -1]
    with jax.enable_x64(True):
        run = jax.jit(jax.vmap(lambda seed: final_error(problem, method, 4, theta=np.ones(4), key=5, seed=seed)))
        np.testing.assert_allclose(run(jnp.arange(3)), expected, rtol=1e-12)


@pytest.mark.slow
def test_a_hundred_step_sizes_are_one_program_and_its_gradient_is_that_of_finite_differences():
    problem, traces = CASES["td"]().problem, []

    @jax.jit
    def error(step_size):
        traces.append(step_size)
        return final_error(problem, fh.FedHSA(step_size, local_steps=2), 3, key=1)

    with jax.enable_x64(True):
        steps = jnp.linspace(0.01, 0.2, 100)
        errors = jax.vmap(error)(steps)
        assert len(traces) == 1
        for at in (0, 99):
            expected = fh.simulate(problem, fh.FedHSA(float(steps[at]), 2), rounds=3, key=1).error[0, -1]
            np.testing.assert_allclose(errors[at], expected, rtol=1e-12)
        slope = jax.grad(error)(0.1)
        difference = (error(0.1 + 1e-5) - error(0.1 - 1e-5)) / 2e-5
        np.testing.assert_allclose(slope, difference, rtol=1e-7)


@pytest.mark.slow
def test_steps_run_on_problems_that_are_traced_and_in_single_precision():
    problems = [fh.problems.td.random(2, 3, 2, key=key) for key in (1, 2)]
    both = jax.tree.map(lambda *leaves: np.stack(leaves), *problems)
    method = fh.LocalSA(0.1, 2)
    found = jax.vmap(lambda problem: final_error(problem, method, 2))(both)
    expected = [fh.simulate(problem, method, rounds=2, dtype="float32").error[0, -1] for problem in problems]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_steps_carry_chains_that_depend_on_the_parameter():
    model = fh.environments.worlds.random(2, 3, 2)
    problem, method = fh.problems.sarsa.from_model(model, inverse_temperature=0.5), fh.FedHSA(0.1, 2)
    expected = fh.simulate(problem, method, rounds=3, key=2).error[0, -1]
    with jax.enable_x64(True):
        np.testing.assert_allclose(final_error(problem, method, 3, key=2), expected, rtol=1e-12)
