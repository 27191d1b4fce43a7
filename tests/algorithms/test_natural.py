"""Natural policy gradients: where ADMM leads, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import POLICIES, observed, quadratic
from fedhsa import tree
from fedhsa.algorithms.natural import conjugate_gradients
from loops.policies import fisher


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
