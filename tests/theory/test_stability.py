"""The largest stable step and number of local steps."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import fedhsa as fh
import naive
from cases import CASES
from fedhsa import tree
from fedhsa.problems import quadratic
from fedhsa.problems.base import AffineAgent
from fedhsa.sources import Silent
from fedhsa.theory import exact, max_local_steps, max_step_size
from fedhsa.theory.maps.rounds import require_rule


def by_hand():
    """Two agents, G_i = a_i theta with a = (-0.1, -1)."""
    return quadratic.from_arrays(np.array([0.1, 1.0]).reshape(2, 1, 1), b=np.zeros((2, 1)))


def heterogeneous(seed, d=3):
    """Agents whose stiffness differs a hundredfold: FedHSA diverges on them at large H."""
    rng = np.random.default_rng(seed)
    scales = np.logspace(-2, 0, 4)
    rotations = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in scales]
    A = [s * (q * rng.uniform(0.5, 1.5, d)) @ q.T for s, q in zip(scales, rotations, strict=True)]
    return quadratic.from_arrays(np.array(A), rng.normal(size=(4, d)))


@pytest.mark.parametrize("case", ["quadratic", "td", "finite-sum"])
@pytest.mark.parametrize("algorithm", [fh.FedHSA(0.04, 7, 0.8), fh.LocalSA(0.04, 7, 0.8), fh.SynchronisedSA(0.04)])
def test_closed_form_round_maps_are_those_of_the_exchanges(case, algorithm):
    problem = CASES[case]().problem
    A, b = problem.affine_parts()
    closed = require_rule(algorithm).round_map(A, A @ problem.theta_star - b)
    found = exact.round_map(problem, algorithm)
    np.testing.assert_allclose(closed.transition, found.transition, atol=1e-13)
    np.testing.assert_allclose(closed.offset, found.offset, atol=1e-13)
    if found.noise is not None:
        np.testing.assert_allclose(closed.noise, found.noise, atol=1e-14)


def test_two_scalar_agents_are_stable_up_to_nineteen_local_steps():
    problem = by_hand()
    assert max_local_steps(problem, fh.FedHSA(0.5, 5)) == 19
    assert max_local_steps(problem, fh.LocalSA(0.5, 5)) == np.inf
    assert max_local_steps(problem, fh.SynchronisedSA(0.5)) is None


@pytest.mark.parametrize("seed", range(3))
def test_the_largest_number_of_local_steps_is_found_by_trying_every_one(seed):
    problem, eta = heterogeneous(seed), 0.3
    A, _ = problem.affine_parts()
    F, A_bar = np.eye(3) + eta * A, A.mean(0)
    power, total, unstable = np.broadcast_to(np.eye(3), A.shape), np.zeros_like(A), []
    for H in range(1, 1500):
        power, total = power @ F, total + power
        C_H = (power + eta * total @ (A_bar - A)).mean(0)
        unstable += [H] if abs(np.linalg.eigvals(C_H)).max() >= 1 else []
    assert unstable
    assert max_local_steps(problem, fh.FedHSA(eta, 5)) == unstable[0] - 1


@pytest.mark.parametrize(("slow", "last"), [(-0.05, 326), (-0.2, np.inf)])
def test_doubling_the_local_steps_of_rotating_operators_finds_the_first_unstable_number(slow, last):
    """Complex numbers a_i as matrices, not symmetric: C_H = 1 + mean(((1 + eta a_i)^H - 1) / a_i) mean(a)."""
    eta, a, H = 0.02, np.array([slow, -1 - 0.5j]), np.arange(1, 3000)
    C_H = 1 + (((1 + eta * a) ** H[:, None] - 1) / a).mean(1) * a.mean()
    assert min(H[abs(C_H) >= 1], default=np.inf) - 1 == last
    A = np.stack([np.array([[z.real, -z.imag], [z.imag, z.real]]) for z in a])
    assert max_local_steps(quadratic.from_arrays(-A, np.zeros((2, 2))), fh.FedHSA(eta, 5)) == last


@pytest.mark.parametrize("H", [1, 3, 20])
def test_the_largest_step_of_scalar_agents_is_where_the_contraction_reaches_minus_one(H):
    """For one step 2 / mean(a); in general the root of C_H(eta) = -1, found on a fine grid."""
    step = max_step_size(by_hand(), fh.FedHSA(0.1, H))
    A = np.array([-0.1, -1.0]).reshape(2, 1, 1)
    grid = np.linspace(1e-3, 4, 4000)
    radius = np.array([abs(naive.fed_hsa_contraction(A, eta, H)[0, 0]) for eta in grid])
    first = grid[np.argmax(radius >= 1)]
    assert first - 1e-3 <= step <= first + 1e-9
    assert H > 1 or step == pytest.approx(2 / 0.55, rel=1e-9)


@pytest.mark.parametrize("make", [by_hand, lambda: heterogeneous(0), lambda: heterogeneous(1)])
@pytest.mark.parametrize("method", [fh.FedHSA, fh.LocalSA])
def test_the_largest_step_separates_runs_that_converge_from_runs_that_diverge(make, method):
    """2 % below it the error of a run without noise goes to its limit, 2 % above it grows without bound."""
    problem, H = make().noiseless(), 20
    step = max_step_size(problem, method(0.1, H))
    below, above = (
        fh.simulate(problem, method(factor * step, H), rounds=3000, theta=problem.theta_star + 1, every=1000)
        for factor in (0.98, 1.02)
    )
    limit = ((exact.limit(problem, method(0.98 * step, H)) - problem.theta_star) ** 2).sum()
    assert below.error[0, -1] == pytest.approx(limit, abs=1e-6 * below.error[0, 0])
    assert not above.error[0, -1] < 1e6 * above.error[0, 0]


def test_a_root_that_repels_has_no_stable_step():
    agents = AffineAgent(Silent(), np.ones((1, 1, 1)), np.ones((1, 1)))
    with pytest.warns(UserWarning, match="The root is unstable"):
        problem = fh.Problem(agents, like=np.zeros(1))
    assert max_step_size(problem, fh.FedHSA(0.1, 2)) == 0
    assert max_local_steps(problem, fh.FedHSA(0.1, 2)) == 0


class Server(NamedTuple):
    theta: Any


class Halved(fh.AbstractAlgorithm):
    """A method that theory has no rule for: the server moves by half a step."""

    step_size: float

    @property
    def block_length(self):
        return 1

    def init(self, theta):
        return Server(theta), ()

    @property
    def exchanges(self):
        def local(theta, memory, agent, block, round):
            return agent.operator(theta, tree.take(block, 0)), memory

        def move(server, replies, round):
            return Server(server.theta + 0.5 * self.step_size * replies.mean())

        return (fh.Exchange("operator", lambda server, round: server.theta, local, move),)


def test_a_users_own_method_has_a_largest_step_too():
    """Read off its exchanges: half the step, twice the limit."""
    problem = by_hand()
    assert max_step_size(problem, Halved(0.1)) == pytest.approx(2 * max_step_size(problem, fh.SynchronisedSA(0.1)))
    assert max_local_steps(problem, Halved(0.1)) is None
    prediction = fh.theory.predict(problem, Halved(0.1))
    assert prediction.max_step_size == max_step_size(problem, Halved(0.1))
    assert prediction.rate == pytest.approx(1 - 0.05 * 0.55)
