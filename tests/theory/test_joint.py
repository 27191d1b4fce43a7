"""Maps of all that a method carries: against block matrices written by hand, and against rounds that are run."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_continuous_lyapunov

import fedhsa as fh
from cases import CASES
from fedhsa import tree
from fedhsa.problems import quadratic
from fedhsa.theory import exact, joint_map, max_step_size, predict
from fedhsa.theory.laws import law
from fedhsa.theory.laws.moments import TooLargeError
from fedhsa.theory.steps import step_of
from theory.by_paths import Truth

H, STEP = 4, 0.05


def two_scalars():
    """G_i = -a_i theta + b_i with a = (0.2, 1), b = (2, -1)."""
    return quadratic.from_arrays(np.array([0.2, 1.0]).reshape(2, 1, 1), b=np.array([[2.0], [-1.0]]))


def block_matrix(problem, eta, H):
    """SCAFFLSA's map of (e, xi_1, ..., xi_M) and its offset, from the closed form of a linear round."""
    A, b = problem.affine_parts()
    (M, d, _), r = A.shape, A @ problem.theta_star - b
    F = np.eye(d) + eta * A
    powers = [np.linalg.matrix_power(F, k) for k in range(H + 1)]
    Gamma, S = powers[H], eta * sum(powers[:H])
    local = np.zeros((M, d, d * (M + 1)))
    for i in range(M):
        local[i, :, :d], local[i, :, d * (i + 1) : d * (i + 2)] = Gamma[i], S[i]
    constant = (S @ r[..., None])[..., 0]
    Phi, c = np.eye(d * (M + 1)), np.zeros(d * (M + 1))
    Phi[:d], c[:d] = local.mean(0), constant.mean(0)
    for i in range(M):
        rows = slice(d * (i + 1), d * (i + 2))
        Phi[rows] += (local.mean(0) - local[i]) / (eta * H)
        c[rows] = (constant.mean(0) - constant[i]) / (eta * H)
    return Phi, c, r


@pytest.mark.parametrize("case", ["quadratic", "td"])
def test_scafflsa_is_its_block_matrix_on_error_and_shifts_that_add_to_zero(case):
    problem = CASES[case]().problem
    Phi, c, r = block_matrix(problem, STEP, H)
    d, M = problem.dim, problem.num_agents
    fixed = np.concatenate([np.zeros(d), -r.ravel()])
    np.testing.assert_allclose(Phi @ fixed + c, fixed, atol=1e-12)
    # Shifts that add to zero: M - 1 of them are free, the last is minus their sum.
    basis = np.zeros((d * (M + 1), d * M))
    basis[:-d] = np.eye(d * M)
    for i in range(1, M):
        basis[-d:, d * i : d * (i + 1)] = -np.eye(d)
    restricted = np.linalg.lstsq(basis, Phi @ basis, rcond=None)[0]
    values = np.linalg.eigvals(restricted)
    assert np.abs(np.linalg.eigvals(Phi)).max() == pytest.approx(1)  # the sum of all shifts stays
    assert exact.spectral_radius(problem, fh.SCAFFLSA(STEP, H)) == pytest.approx(np.abs(values).max(), rel=1e-9)
    found = joint_map(problem, fh.SCAFFLSA(STEP, H))
    assert found.transition.shape == (d * M, d * M)
    np.testing.assert_allclose(np.sort(np.abs(np.linalg.eigvals(found.transition))), np.sort(np.abs(values)), rtol=1e-8)
    np.testing.assert_allclose(exact.limit(problem, fh.SCAFFLSA(STEP, H)), problem.theta_star, atol=1e-9)


@pytest.mark.parametrize("method", [fh.SCAFFLSA, pytest.param(fh.SCAFFOLD, marks=pytest.mark.slow)])
def test_scaffolds_covariance_is_that_of_its_analysis_to_first_order(method):
    """Mangold et al. (2025): eta / N times the X with H X + X H = C, the average Hessian H and the average covariance C
    of the gradients' noise. The rest is of second order: halving the step halves its part."""
    problem = fh.problems.quadratic.random(num_agents=4, dim=3, noise_radius=0.0, noise_std=1.0)
    X = solve_continuous_lyapunov(-problem.affine_parts()[0].mean(0), np.eye(3))
    rest = []
    for step in (0.01, 0.005, 0.0025):
        prediction = predict(problem, method(step, 5))
        assert prediction.basis == "exact"
        np.testing.assert_allclose(prediction.heterogeneity_bias, 0, atol=1e-10)  # rounding, of memories like 1 / step
        rest.append(np.linalg.norm(prediction.covariance / (step / 4) - X) / np.linalg.norm(X))
    assert rest[0] < 0.02
    np.testing.assert_allclose([rest[0] / rest[1], rest[1] / rest[2]], 2, rtol=0.1)


def test_methods_with_a_coin_follow_the_average_map_written_by_hand():
    """Loopless SA on two scalars: (x_1, x_2) before the coin; with probability p both continue from their mean."""
    problem, eta, p = two_scalars(), 0.3, 0.4
    a, b = np.array([0.2, 1.0]), np.array([2.0, -1.0])
    mixing = p * np.full((2, 2), 0.5) + (1 - p) * np.eye(2)
    Phi = (np.eye(2) - eta * np.diag(a)) @ mixing
    fixed = np.linalg.solve(np.eye(2) - Phi, eta * b)
    algorithm = fh.LooplessSA(eta, p)
    assert exact.spectral_radius(problem, algorithm) == pytest.approx(np.abs(np.linalg.eigvals(Phi)).max(), rel=1e-9)
    assert exact.limit(problem, algorithm)[0] == pytest.approx(fixed.mean(), rel=1e-9)
    x, means = np.zeros(2), [0.0]
    for t in range(6):
        x = (np.eye(2) - eta * np.diag(a)) @ (mixing @ x if t else x) + eta * b
        means.append(x.mean())
    errors = (np.array(means) - problem.theta_star[0]) ** 2
    np.testing.assert_allclose(exact.noiseless_error(problem, algorithm, rounds=6), errors, rtol=1e-10)


def test_scaffnew_follows_the_average_map_written_by_hand():
    """State (x_1, x_2, h_1, h_2) before the coin: if it falls, x becomes the mean and h learns from the jump."""
    problem, gamma, p = two_scalars(), 0.3, 0.4
    move = np.block([[np.eye(2) - gamma * np.diag([0.2, 1.0]), gamma * np.eye(2)], [np.zeros((2, 2)), np.eye(2)]])
    mean, zero = np.full((2, 2), 0.5), np.zeros((2, 2))
    fallen = np.block([[mean, zero], [p / gamma * (mean - np.eye(2)), np.eye(2)]])
    Phi = move @ (p * fallen + (1 - p) * np.eye(4))
    moduli = np.sort(np.abs(np.linalg.eigvals(Phi)))
    assert moduli[-1] == pytest.approx(1)  # h_1 + h_2 stays
    algorithm = fh.Scaffnew(gamma, p)
    assert exact.spectral_radius(problem, algorithm) == pytest.approx(moduli[-2], rel=1e-9)
    np.testing.assert_allclose(exact.limit(problem, algorithm), problem.theta_star, rtol=1e-9)


ELSEWHERE = ("SA", "LocalSVRG", "MCSAG", "MultilevelSA", "ImportanceAveraging")
ELSEWHERE += ("FedPGBR", "FedDVRQ", "FedNPG", "FedNPGADMM", "FedKL")
"""For one agent, for finite sums, with a random number of steps (twice), for tables, with long epochs, for policies."""


def slowest_mode(away):
    """The largest root of z^3 = a z^2 + b z + c, fitted to the errors of four rounds as they fall to 1e-9 of the start.

    Three modes are fitted, since errors may oscillate: those of SSLocalSGD do, with a period as long as the fall, and
    beside a mode that is as slow.
    """
    sizes = np.linalg.norm(away, axis=1)
    last = int(np.argmax(sizes < 1e-9 * sizes[0]))
    at = np.arange(last // 2, last - 2)
    *before, after = ((away[at + k] / sizes[at, None]).ravel() for k in range(4))
    fitted = np.linalg.lstsq(np.column_stack(before), after, rcond=None)[0]
    return abs(np.roots([1, *-fitted[::-1]])).max()


class Means(Truth):
    """The mean of all that a method carries, in its own rounds with prescribed falls of the coin."""

    def _moments(self, index):  # pyright: ignore[reportIncompatibleMethodOverride]
        return sum(p * self._maps(index, jnp.asarray(coin))[0] for coin, p in self.coins)

    def errors(self, start, rounds):
        """The mean error before the first round and after each."""
        z, found = np.append(self.spread @ start, 1.0), []
        for t in range(rounds + 1):
            found.append(self.show @ z[:-1])
            z = (self.later if t else self.first) @ z
        return np.array(found)


@functools.cache
def certain():
    """The mean operators of the quadratic problem, as agents whose chains have one state."""
    A, b = CASES["quadratic"]().problem.affine_parts()
    return fh.problems.finite_sum.from_arrays(-A[:, None], -b[:, None], np.ones((len(A), 1, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in fh.ALGORITHMS if name not in ELSEWHERE])
def test_limit_and_rate_are_those_of_rounds_that_are_run(name):
    """Rounds with a coin on average, of runs in which it fell this way or that."""
    problem = CASES["quadratic"]().problem
    available = {"step_size": STEP, "local_steps": H, "probability": 0.25, "gaps": (1, 3), "beta": 0.3}
    available |= {"batch": 3, "graph": fh.graphs.Ring(problem.num_agents)}
    algorithm = fh.algorithms.parse(name, problem, **available)
    limit, radius = exact.limit(problem, algorithm), exact.spectral_radius(problem, algorithm)
    path = problem.root + Means(certain(), algorithm, ((True, 0.25), (False, 0.75))).errors(-problem.root, 2000)
    np.testing.assert_allclose(path[-1], limit, atol=1e-8)
    assert slowest_mode(path - limit) == pytest.approx(radius, rel=0.01)
    map, y = joint_map(problem, algorithm), None
    for t in range(6):
        y = map.first - map.spread @ problem.root if t == 0 else map.transition @ y + map.offset
        np.testing.assert_allclose(problem.root + map.observe @ y, path[t + 1], rtol=1e-8, atol=1e-10)
    if not hasattr(algorithm, "probability"):
        run = fh.simulate(problem.noiseless(), algorithm, rounds=2000, every=2000)
        np.testing.assert_allclose(run.theta[0], limit, atol=1e-8)


class State(NamedTuple):
    theta: Any
    other: Any


class Odd(fh.AbstractAlgorithm):
    """One step a round, and something odd about it."""

    step_size: float
    kind: str = eqx.field(static=True)

    @property
    def block_length(self):
        return 1

    def init(self, theta):
        return State(theta, jnp.stack([theta, theta]) * 0 if self.kind == "hidden" else theta * 0), ()

    @property
    def exchanges(self):
        def local(theta, memory, agent, block, round):
            return agent.operator(theta, tree.take(block, 0)), memory

        def move(server, replies, round):
            g, velocity = replies.mean(), 0.5 * server.other
            if self.kind == "curved":
                g = g / (1 + g @ g)
            if self.kind == "ageing":
                g = g / (1.0 + round.index.astype(g.dtype))
            if self.kind == "random":
                g = g * jax.random.uniform(round.key, dtype=g.dtype)
            if self.kind == "hidden":  # both grow, and their difference is always zero
                copies = 2 * server.other + g[None]
                return State(server.theta + self.step_size * g + server.other[0] - server.other[1], copies)
            if self.kind == "unread":  # grows without end, but nobody looks at it
                return State(server.theta + self.step_size * g, 2 * server.other + g)
            return State(server.theta + self.step_size * (g + velocity), g + velocity)

        return (fh.Exchange("operator", lambda server, round: server.theta, local, move),)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("curved", "is not an affine map"), ("ageing", "on the number of the round"), ("random", "draws random numbers")],
)
def test_methods_without_one_affine_map_are_refused_with_the_reason(kind, reason):
    with pytest.raises(TypeError, match=reason):
        exact.spectral_radius(two_scalars(), Odd(0.1, kind))


def test_a_random_number_of_steps_is_refused():
    with pytest.raises(TypeError, match="MultilevelSA draws random numbers in addition to the shared coin"):
        exact.limit(CASES["quadratic"]().problem, fh.MultilevelSA(STEP, samples=H))


def test_a_method_that_looks_at_its_observations_is_refused():
    with pytest.raises(TypeError, match=r"MCSAG .*observations"):
        predict(CASES["finite-sum"]().problem, fh.MCSAG(STEP, num_components=3, local_steps=H))


def test_late_replies_do_not_change_the_limit():
    method = fh.LocalSA(STEP, local_steps=3)
    late = exact.limit(two_scalars(), fh.Delayed(method, max_delay=2, random=False))
    np.testing.assert_allclose(late, exact.limit(two_scalars(), method), rtol=1e-10)


def test_rounds_that_differ_still_have_a_curve():
    problem = two_scalars()
    run = fh.simulate(problem.noiseless(), Odd(0.1, "ageing"), rounds=5)
    np.testing.assert_allclose(exact.noiseless_error(problem, Odd(0.1, "ageing"), rounds=5), run.error[0], rtol=1e-12)


def test_what_the_parameter_never_reads_does_not_count():
    problem = two_scalars()
    assert joint_map(problem, Odd(0.1, "unread")).transition.shape == (1, 1)
    for kind in ("unread", "hidden"):
        assert exact.spectral_radius(problem, Odd(0.1, kind)) == pytest.approx(1 - 0.1 * 0.6)
        assert max_step_size(problem, Odd(0.1, kind)) == pytest.approx(2 / 0.6)


def test_a_map_of_very_much_that_is_carried_is_refused(monkeypatch):
    problem = CASES["quadratic"]().problem
    monkeypatch.setattr(exact, "MOST_CARRIED", 11)
    with pytest.raises(TooLargeError, match=r"SCAFFLSA carries 12 numbers.*too many for its map \(at most 11\)"):
        joint_map(problem, fh.SCAFFLSA(STEP, H))
    assert joint_map(problem, fh.FedHSA(STEP, H)).transition.shape == (4, 4)


@pytest.mark.slow
def test_the_largest_step_is_where_the_spectral_radius_is_one():
    problem = two_scalars()
    for method in (fh.SCAFFLSA, fh.OneExchangeFedHSA):
        largest = max_step_size(problem, method(0.1, H))
        below, above = (exact.spectral_radius(problem, method(part * largest, H)) for part in (0.999, 1.001))
        assert below < 1 < above


@pytest.mark.slow
def test_reach_follows_the_exact_law_of_a_method_that_carries_more():
    """Strongly correlated noise that starts at zero: the error first falls below its floor, then rises to it."""
    problem = quadratic.from_arrays(A=[[[1.0]]], b=[[3.0]], Q=[[[0.99]]], noise_std=0.1)
    algorithm = fh.OneExchangeFedHSA(0.3, local_steps=2)
    errors, prediction = exact.mean_square_error(problem, algorithm, rounds=50), predict(problem, algorithm)
    assert prediction.floor > 0.25
    assert prediction.reach(0.25).rounds == np.argmax(errors <= 0.25) > 0
    assert prediction.error_after(0) == pytest.approx(errors[0])
    assert prediction.error_after(10_000) == pytest.approx(prediction.floor)


def test_where_only_the_mean_is_known_the_prediction_says_so(monkeypatch):
    problem, algorithm = CASES["quadratic"]().problem, fh.Scaffnew(STEP, probability=0.5)
    monkeypatch.setattr(law, "ROOM", 1)
    prediction = predict(problem, algorithm)
    assert (prediction.basis, prediction.stable) == ("mean", True)
    assert np.isnan(prediction.floor)
    assert np.isnan(prediction.saturation_agents)
    np.testing.assert_allclose(prediction.heterogeneity_bias, 0, atol=1e-9)
    curve = exact.noiseless_error(problem, algorithm, rounds=30)
    np.testing.assert_allclose(prediction.error(30), curve, rtol=1e-9)
    assert prediction.error_after(30) == pytest.approx(curve[-1])
    assert prediction.rounds_to(float(curve[20]) * 1.0001) == 20
    assert prediction.to_dict()["floor"] is None
    assert not predict(problem, fh.SCAFFLSA(50.0, H)).stable


def test_a_schedule_inside_a_wrapper_is_seen():
    class Around(fh.algorithms.AbstractWrapper):
        algorithm: fh.AbstractAlgorithm

    plain, problem = fh.FedHSA(fh.Stages((0.3, 0.1), (2,)), 2), fh.problems.td.random(2, 2, 1, laziness=0.5)
    curves = [predict(problem, algorithm).error(4) for algorithm in (plain, Around(plain))]
    np.testing.assert_allclose(*curves, rtol=1e-9)
    assert exact.spectral_radius(two_scalars(), Around(fh.FedHSA(0.1, 2))) < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        fh.RichardsonRomberg,
        lambda method: fh.Thinned(method, every=2),
        lambda method: fh.ServerMomentum(method, beta=0.5),
        lambda method: fh.Weighted(method, (0.4, 0.3, 0.2, 0.1)),
        lambda method: fh.Gossip(method, fh.graphs.Ring(4)),
    ],
    ids=["RichardsonRomberg", "Thinned", "ServerMomentum", "Weighted", "Gossip"],
)
def test_affine_wrappers_go_where_theory_says(wrap):
    problem, algorithm = fh.problems.quadratic.random(num_agents=4, dim=2), wrap(fh.LocalSA(0.05, local_steps=4))
    assert exact.spectral_radius(problem, algorithm) < 0.8
    run = fh.simulate(problem.noiseless(), algorithm, rounds=400, every=400)
    np.testing.assert_allclose(run.theta[0], exact.limit(problem, algorithm), rtol=1e-12, atol=1e-12)


def test_a_method_with_a_first_round_of_its_own_is_after_it_where_a_run_is():
    """MomentumSA's memory is empty then, so that its first round differs from all later ones."""
    problem, algorithm, start = quadratic.random(3, 2), fh.MomentumSA(STEP, H, 0.3), np.array([2.0, -1.0])
    map = joint_map(problem, algorithm)
    after = problem.theta_star + map.observe @ (map.first + map.spread @ (start - problem.theta_star))
    run = fh.simulate(problem.noiseless(), algorithm, rounds=1, theta=start)
    np.testing.assert_allclose(after, run.theta[0], rtol=1e-12)


@pytest.mark.parametrize("step", [1e-2, 1e-3, 1e-5])
def test_what_rounds_conserve_is_left_out_however_small_the_step(step):
    """The sum of SCAFFLSA's shifts: the slowest mode is that of the mean operator, 1 - H eta 0.0809."""
    problem = fh.problems.td.random(4, 5, 2)
    slowest = np.abs(np.linalg.eigvals(problem.affine_parts()[0].mean(0))).min()
    radius = fh.theory.exact.spectral_radius(problem, fh.SCAFFLSA(step, 5))
    assert 1 - radius == pytest.approx(5 * step * slowest, rel=0.01)


class CautiousSCAFFOLD(fh.SCAFFOLD):
    """Its server moves less far with larger step sizes, so that these do more than scale the operators."""

    def _move(self, server, replies, round):
        moved = super()._move(server, replies, round)
        return moved._replace(theta=server.theta + (1 - step_of(self)) * (moved.theta - server.theta))


@pytest.mark.parametrize("method", [fh.SCAFFOLD, CautiousSCAFFOLD])
def test_a_search_that_begins_at_tiny_steps_leaves_out_what_rounds_conserve(method):
    """There are the parameter and two of three shifts; the mean of all shifts is that of the server."""
    federation = predict(quadratic.random(3, 2), method(0.07, H)).law.federation.noiseless()
    assert federation.pieces.unit == (method is fh.SCAFFOLD)
    assert [federation.at(method(step, H)).size for step in (1e-9, 0.3)] == [6, 6]


@pytest.mark.slow
def test_methods_that_ask_for_mean_operators_are_predicted_without_noise_in_them():
    problem = CASES["finite-sum"]().problem
    prediction = predict(problem, fh.LocalSVRG(STEP, H, probability=1.0))
    assert prediction.stable
    np.testing.assert_allclose(exact.limit(problem, fh.LocalSVRG(STEP, H, 0.5)), problem.theta_star, atol=1e-9)
