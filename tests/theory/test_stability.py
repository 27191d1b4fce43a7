"""The largest stable step and number of local steps."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import fedhsa as fh
import naive
from cases import CASES
from fedhsa import tree
from fedhsa.problems import finite_sum, quadratic
from fedhsa.problems.base import AffineAgent
from fedhsa.sources import Silent
from fedhsa.theory import exact, max_local_steps, max_step_size
from fedhsa.theory.laws.moments import Radius
from fedhsa.theory.rule import LocalRule, require_rule
from fedhsa.theory.stability import Limit, ManyRoundMaps, largest_mean_square_step


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
    closed = require_rule(algorithm).mean_map(A, A @ problem.theta_star - b)
    found = exact.round_map(problem, algorithm)
    np.testing.assert_allclose(closed.transition, found.transition, atol=1e-13)
    np.testing.assert_allclose(closed.offset, found.offset, atol=1e-13)


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


def rotating(a):
    """Agents G_i = a_i theta with complex numbers a_i, as matrices: not symmetric, and away from the real line."""
    A = np.stack([np.array([[z.real, -z.imag], [z.imag, z.real]]) for z in a])
    return quadratic.from_arrays(-A, np.zeros((len(a), 2)))


def contraction(a, eta, H):
    """|C_H| of FedHSA with complex a: C_H = 1 + mean(((1 + eta a_i)^H - 1) / a_i) mean(a)."""
    eta, H = np.broadcast_arrays(np.asarray(eta, dtype=float)[..., None], np.asarray(H)[..., None])
    return abs(1 + (((1 + eta * a) ** H - 1) / a).mean(-1) * np.mean(a))


@pytest.mark.parametrize(
    ("a", "eta", "last"),
    [
        ([-0.05, -1 - 0.5j], 0.02, 326),
        ([-0.2, -1 - 0.5j], 0.02, np.inf),
        ([-0.29 - 0.9j, -0.14 + 1.0j], 0.1, 39),  # unstable from 40 to 60 only
    ],
)
def test_the_first_unstable_number_of_local_steps_is_found_though_more_are_stable_again(a, eta, last):
    a, H = np.array(a), np.arange(1, 3000)
    assert min(H[contraction(a, eta, H) >= 1], default=np.inf) - 1 == last
    found = max_local_steps(rotating(a), fh.FedHSA(eta, 5))
    assert found is not None
    assert found == last
    assert found.kind == "mean"
    assert found.scanned.startswith("every number up to ")


def test_the_first_unstable_step_is_found_though_larger_ones_are_stable_again():
    """Unstable from 0.160 to 0.200, and stable up to 0.3 again; a grid of 80 000 steps has the truth."""
    a, H, steps = np.array([-0.25 + 1.3j, -0.45 - 0.43j]), 27, np.geomspace(1e-3, 1, 80_000)
    unstable = contraction(a, steps, H) >= 1
    assert not unstable[(steps > 0.201) & (steps < 0.3)].any()
    largest = max_step_size(rotating(a), fh.FedHSA(0.3, H))
    assert largest == pytest.approx(steps[np.argmax(unstable)], rel=1e-4)
    assert largest.scanned.startswith("60 steps a decade from 0.0001")


def test_an_algorithm_that_is_unstable_is_never_within_its_own_limits():
    """Its step and local steps are on the grid: a band narrower than the grid, around a setting beyond every number."""
    a, eta = np.array([-0.3 + 1.3j, -0.001 + 0.2j]), 0.001
    numbers = np.arange(1000, 60_000)
    unstable = numbers[contraction(a, eta, numbers) >= 1]
    assert len(unstable)
    algorithm = fh.FedHSA(eta, int(unstable[0]))
    assert max_local_steps(rotating(a), algorithm) < unstable[0]
    assert max_step_size(rotating(a), algorithm) <= eta


def test_powers_of_matrices_without_eigenvectors_are_taken_of_the_matrices():
    A = np.array([[[-1.0, 1.0], [0.0, -1.0]], [[-0.1, 0.0], [0.5, -0.1]]])
    rule = LocalRule(0.4, 7, 0.9, 0.5)
    maps = ManyRoundMaps(A, rule)
    assert maps.modes is None
    for H, found in zip((1, 30), maps(0.4, np.array([1, 30])), strict=True):
        np.testing.assert_allclose(found, rule._replace(local_steps=H).transition(A), rtol=1e-12)


@pytest.mark.parametrize("symmetric", [True, False])
def test_many_round_maps_at_once_are_those_of_one_rule_each(symmetric):
    A = np.random.default_rng(0).normal(size=(3, 4, 4)) - 3 * np.eye(4)
    A, rule = A + symmetric * np.swapaxes(A, 1, 2), LocalRule(0.1, 5, 0.9, 0.7)
    steps, numbers = np.array([1e-9, 0.1, 0.2, 0.7]), np.array([3, 1, 40, 9])
    for step, H, found in zip(steps, numbers, ManyRoundMaps(A, rule)(steps, numbers), strict=True):
        expected = rule._replace(step_size=step, local_steps=H).transition(A)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def two_slopes(stay, steps):
    """The mean-square radius of SA on slopes 0.3 and -1.5 that take turns, by the eigenvalues of 2 x 2 matrices."""
    P = np.array([[stay, 1 - stay], [1 - stay, stay]])
    squares = (1 + np.atleast_1d(steps)[:, None] * np.array([0.3, -1.5])) ** 2
    return abs(np.linalg.eigvals(P * squares[:, None])).max(1)


@pytest.mark.parametrize("stay", [0.5, 0.95])
def test_the_largest_mean_square_stable_step_is_where_its_radius_is_one(stay):
    """Independent slopes are stable up to -2 E[a] / E[a^2] = 1.2 / 1.17, sticky ones far less, as a fine grid says."""
    steps = np.geomspace(1e-3, 2, 20_000)
    first = steps[np.argmax(two_slopes(stay, steps) >= 1)]
    assert stay != 0.5 or first == pytest.approx(1.2 / 1.17, rel=1e-3)
    mean = Limit(2 / 0.6, "mean", "by hand")
    found = largest_mean_square_step(fh.SA(0.3), lambda a: Radius(two_slopes(stay, a.step_size)[0], "exact"), mean)
    assert found == pytest.approx(first, rel=1e-3)
    assert found.kind == "mean square, exact"
    assert found.scanned.startswith(f"3 steps a decade from {0.167 if stay == 0.5 else 0.0167}")


def test_a_prediction_knows_the_largest_mean_square_stable_step_on_a_sticky_chain():
    """One agent: stable in the mean square up to 0.072, where the mean without noise is up to 3.33."""
    stay, slopes = 0.95, np.array([-0.3, 1.5]).reshape(1, 2, 1, 1)
    problem = finite_sum.from_arrays(slopes, np.array([[[1.0], [2.0]]]), [[[stay, 1 - stay], [1 - stay, stay]]])
    prediction = fh.theory.predict(problem, fh.SA(0.3))
    steps = np.geomspace(1e-2, 1, 20_000)
    first = steps[np.argmax(two_slopes(stay, steps) >= 1)]
    assert not prediction.stable
    assert prediction.max_step_size == pytest.approx(first, rel=1e-3)
    assert prediction.max_step_size.kind == prediction.stability == "mean square, exact"
    assert max_step_size(problem, fh.SA(0.3)) == pytest.approx(2 / 0.6)


def test_where_no_mean_square_radius_is_known_the_limit_is_that_of_the_mean_and_says_so():
    mean = Limit(2.0, "mean", "by hand")
    assert largest_mean_square_step(fh.SA(0.3), lambda algorithm: None, mean) is mean
    estimated = largest_mean_square_step(fh.SA(0.3), lambda a: Radius(0.5 + a.step_size, "estimate"), mean)
    assert (estimated, estimated.kind) == (pytest.approx(0.5, rel=1e-3), "mean square, estimated")


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


@pytest.mark.slow
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
    assert prediction.max_step_size == pytest.approx(max_step_size(problem, Halved(0.1)), rel=1e-9)
    assert prediction.rate == pytest.approx(1 - 0.05 * 0.55)
