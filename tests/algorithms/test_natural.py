"""Natural policy gradients: where ADMM leads, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import POLICIES, observed, quadratic
from fedhsa import tree
from fedhsa.algorithms.fed_kl import adapted, bounded, root
from fedhsa.algorithms.natural import conjugate_gradients
from loops.policies import fisher


def test_penalties_ratios_and_distances_have_the_constants_of_fed_kl():
    """For a target of 1.1 a distance below 1 halves the penalty, one above 1.21 doubles it, others leave it alone."""
    adjusted = [float(adapted(2.0, jnp.asarray(d), 1.1)) for d in (0.99, 1.01, 1.1, 1.2, 1.22)]
    assert adjusted == [1.0, 2.0, 2.0, 2.0, 4.0]
    np.testing.assert_allclose(bounded(jnp.array([1e-9, 0.5, 9.9, 10.1])), [1e-8, 0.5, 9.9, 10.0], rtol=1e-6)
    np.testing.assert_allclose(root(jnp.array([0.25, 1e-10])), [0.5, 1e-4], rtol=1e-6)
    method = fh.FedKL(0.1, 1)
    assert [float(method._bounded(p, 1e-3)) for p in (1e-4, 0.5, 30.0)] == pytest.approx([1e-3, 0.5, 20.0])


def test_the_direction_of_admm_tends_to_that_of_the_average_matrix():
    problem, G, _ = POLICIES["episodes"]()
    theta, seen = np.linspace(-1, 1, 6), [own[0] for own in observed("episodes", 0, 0)]
    F = np.mean([fisher(theta, o) for o in seen], axis=0) + 0.05 * np.eye(6)
    expected = np.linalg.solve(F, np.mean([G(i, theta, o) for i, o in enumerate(seen)], axis=0))
    method = fh.FedNPGADMM(1.0, rho=0.15, inner=3, damping=0.05)
    round, errors = fh.Round(jnp.asarray(0), jax.random.key(0), num_agents=3), []
    with jax.enable_x64(True):
        agents = tree.to_device(problem.flat_agents, "float64")
        server, memory = method.init(jnp.asarray(theta))
        memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *x.shape)), memory)
        first, again, _ = method.exchanges
        block = jax.tree.map(lambda x: x[:, :1], tree.to_device(problem.agents.source.observations, "float64"))

        def iteration(exchange):
            @jax.jit
            def play(server, memory):
                local = lambda *own: exchange.local(exchange.send(server, round), *own, round)  # noqa: E731
                replies, after = jax.vmap(local)(memory, agents, block)
                return exchange.aggregate(server, fh.Replies(replies), round), after

            return play

        server, memory = iteration(first)(server, memory)
        more = iteration(again)
        for _ in range(100):
            errors.append(float(np.abs(server.y - expected).max()))
            server, memory = more(server, memory)
    assert errors[0] > 1e-2
    assert errors[20] < 1e-2 * errors[0]
    assert errors[-1] < 1e-10


def test_conjugate_gradients_solve_in_as_many_steps_as_there_are_eigenvalues_and_stand_still_after():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    matrix, b = Q * np.repeat([1.0, 3.0], 4) @ Q.T, rng.normal(size=8)
    with jax.enable_x64(True):
        for right in (b, np.zeros(8)):
            for steps in (2, 50):
                found = conjugate_gradients(lambda v: jnp.asarray(matrix) @ v, jnp.asarray(right), steps)
                np.testing.assert_allclose(found, np.linalg.solve(matrix, right), atol=1e-13)


def test_methods_for_policies_refuse_other_problems():
    for method in (fh.FedNPG(0.1), fh.FedNPGADMM(0.1, rho=0.1), fh.FedKL(0.1, 2)):
        with pytest.raises(TypeError, match="requires agents that learn a policy, got QuadraticAgent"):
            fh.simulate(quadratic().problem, method, rounds=1)
    with pytest.raises(TypeError, match="Lossy cannot wrap FedNPGADMM"):
        fh.Lossy(fh.FedNPGADMM(0.1, rho=0.1), 0.1)
