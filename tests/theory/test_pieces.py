"""Pieces of predictions, worked out by hand on arrays: stages, outlines, averages, modes, solvers and searches."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.sources import FiniteChain
from fedhsa.theory import choice
from fedhsa.theory.changing import ChangingLaw
from fedhsa.theory.exact import NoiselessLaw
from fedhsa.theory.laws import mean as means_alone
from fedhsa.theory.laws import moments
from fedhsa.theory.laws.additive import AdditiveLaw, HiddenNoise
from fedhsa.theory.laws.curvature import CurvedLaw, SeenAgent, _affine_field, _Quiet
from fedhsa.theory.laws.finite import FiniteLaw
from fedhsa.theory.laws.mean import PlayedLaw
from fedhsa.theory.laws.moments import Moments, RelaxationLaw
from fedhsa.theory.laws.replies import RepliesLaw
from fedhsa.theory.laws.reported import AveragedLaw
from fedhsa.theory.laws.sites import EverySiteLaw
from fedhsa.theory.laws.unbiased import DRAWS, _own_noise
from fedhsa.theory.maps.joint import JointMap
from fedhsa.theory.maps.linearise import LinearisedAgent
from fedhsa.theory.maps.modes import reduced, settled, visible_radius
from fedhsa.theory.maps.rounds import LocalRule, RoundMap
from fedhsa.theory.prediction import Prediction
from fedhsa.theory.samples.estimate import _plan
from fedhsa.theory.samples.long_run import lagged_means
from fedhsa.theory.sketch import Outline, Sketch
from theory import enumeration
from theory.enumeration import Law, Rule
from theory.test_enumerated import START, by_rule, federation


def scalar(factor, offset=0.0):
    """The law of e' = factor e + offset."""
    return NoiselessLaw(RoundMap(np.array([[factor]]), np.array([offset])), "It")


# Laws that follow one another, and laws of which little is known.


def test_a_stage_begins_with_the_round_of_its_number():
    """Two rounds that halve, one that adds three, and then rounds that halve and add one, whose limit is two."""
    laws = {3.0: scalar(0.5), 2.0: scalar(1.0, 3.0), 1.0: scalar(0.5, 1.0)}
    schedule = fh.Stages(tuple(laws), begins=(2, 3))
    law = ChangingLaw(schedule, lambda steps: [laws[now] for now, _ in steps], laws[1.0], left_out=0.0)
    assert [m.mean[0] for m in law.path(np.array([8.0]), 5)] == [8.0, 4.0, 2.0, 5.0, 3.5, 2.75]
    assert law.stationary().mean[0] == 2.0
    assert law.mean_square_radius() == (0.25, "exact", None)


def test_laws_are_interpolated_between_the_step_sizes_of_which_they_are_computed():
    """e' = e - step e + 1 / step, in 400 rounds with steps from 0.5 to 0.00125."""
    asked, schedule = [], fh.Polynomial(0.5)

    def laws_at(steps):
        asked.extend(steps)
        return [scalar(1 - now, 1 / now) for now, _ in steps]

    law, e = ChangingLaw(schedule, laws_at, scalar(1.0), left_out=0.0), 8.0
    found = [m.mean[0] for m in law.path(np.array([8.0]), 400)]
    for t, mean in enumerate(found):
        assert mean == pytest.approx(e, rel=1e-9)
        e = e - 0.5 / (t + 1) * e + (t + 1) / 0.5
    assert len(set(asked)) < 200


def test_a_law_that_is_not_analytic_in_the_step_size_is_not_interpolated():
    def laws_at(steps):
        return [scalar(1 - now, float(now > 0.005)) for now, _ in steps]

    law = ChangingLaw(fh.Polynomial(0.5), laws_at, scalar(1.0), left_out=0.0, name="Odd")
    with pytest.raises(TypeError, match=r"law of Odd cannot be interpolated between the step sizes 0\.00125 and 0\.5"):
        list(law.path(np.array([8.0]), 400))


def test_a_relaxing_error_goes_to_its_moments_by_its_map():
    Phi, mean, covariance = np.array([[0.5, 0.2], [0.0, 0.4]]), np.array([1.0, -1.0]), np.diag([2.0, 3.0])
    *_, last = RelaxationLaw(Phi, Moments(mean, covariance), basis="").path(START, 3)
    power = Phi @ Phi @ Phi
    np.testing.assert_allclose(last.mean, mean + power @ (START - mean), rtol=1e-12)
    np.testing.assert_allclose(last.covariance, covariance - power @ covariance @ power.T, rtol=1e-12)


def test_a_played_round_counts_from_the_second_half_on_and_by_its_two_quarters(monkeypatch):
    monkeypatch.setattr(means_alone, "SETTLING", 7)  # eight parameters, and the last five from the middle on
    theta = np.array([9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 3.0, 3.0])[:, None]
    problem = SimpleNamespace(root=np.zeros(1))
    law = PlayedLaw(SimpleNamespace(problem=problem, parameters=lambda rounds, start: theta, name="It"))  # pyright: ignore[reportArgumentType]
    center, covariance = law.stationary()
    assert center[0] == pytest.approx(9 / 5)
    assert covariance[0, 0] == pytest.approx(21 / 5 - (9 / 5) ** 2)
    assert law.unsettled() == pytest.approx((9 - 1) / 5)  # halves of three and two rounds: mean squares 1 and 9


# Outlines, from which a choice begins.


def test_an_outline_counts_rounds_with_fractions():
    """e = 4 halves in a round: 1 after two rounds, and half-way in logarithms at 4 / 2^1.5."""
    outline = Outline(np.array([[0.5]]), np.zeros(1), np.zeros((1, 1)))
    start = Moments(np.array([4.0]), np.zeros((1, 1)))
    assert outline.rounds_to(1.0, start) == pytest.approx(2)
    assert outline.rounds_to(2.0, start) == pytest.approx(1.5)
    assert outline.rounds_to(16.0 / 4**37, start) == pytest.approx(37)
    assert outline.rounds_to(16.0, start) == 0
    assert outline.after(3, start).mean[0] == 0.5
    noisy = outline._replace(covariance=np.array([[0.7]]))
    assert noisy.scaled(2.0).floor == pytest.approx(1.4)
    assert noisy.after(2, start).covariance[0, 0] == pytest.approx(0.7 * (1 - 0.5**4))
    assert noisy.rounds_to(0.6, start) == math.inf
    assert outline._replace(transition=np.array([[1.1]])).floor == math.inf


def test_an_outline_adds_up_the_noise_of_rounds_with_a_server_step():
    """One agent -a e with long-run variance v: X = eta v / 2a, and a round adds alpha^2 (1 - F^2H) X."""
    a, v, (eta, H, alpha) = 0.8, 1.7, (0.1, 3, 0.5)
    sketch = Sketch.__new__(Sketch)
    sketch.A, sketch.residuals, sketch.long_run = np.array([[[-a]]]), np.zeros((1, 1)), np.array([[[v]]])
    sketch.lagged, sketch.lagged_sum, sketch.A_bar = np.zeros((1, 2, 1)), np.zeros((1, 1)), sketch.A[0]
    X, F = eta * v / (2 * a), 1 - eta * a
    Phi = 1 + alpha * (F**H - 1)
    found = sketch.outline(LocalRule(eta, H, alpha, 0.0))
    assert found.transition[0, 0] == pytest.approx(Phi)
    assert found.covariance[0, 0] == pytest.approx(alpha**2 * (1 - F ** (2 * H)) * X / (1 - Phi**2))
    assert sketch.outline(LocalRule(eta, H, 1.0, 0.0)).covariance[0, 0] == pytest.approx(X)


# Searches of a choice.


def test_the_largest_step_with_a_low_enough_floor_is_found_to_its_resolution():
    """A floor that is proportional to the step, then faster: log(floor / target) = 3 x + x^3 vanishes at zero."""
    for begin in (-6.0, -1.0, 2.0):
        found = choice._last_low_enough(lambda x: 3 * x + x**3, begin, -8.0, 3.0)
        assert -choice.RESOLUTION <= found <= 0
    assert choice._last_low_enough(lambda x: x - 5, 0.0, -8.0, 3.0) == 3.0
    assert choice._last_low_enough(lambda x: x + 9, 0.0, -8.0, 3.0) == -8.0


@pytest.mark.parametrize("cheapest", [-0.4, -1.3, -2.9, -3.7])
def test_walking_down_tries_the_cheapest_step(cheapest):
    tried = {}

    def cost(x):
        tried[x] = (x - cheapest) ** 2
        return tried[x]

    choice._walk_down(cost, 0.0, -6.0)
    assert min(tried, key=tried.get) == pytest.approx(cheapest, abs=4 * choice.RESOLUTION)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert len(tried) < 40


# What follows from a prediction's parts.


def predicted(**changes):
    nothing, d = np.zeros(2), 2
    known = {field.name: None for field in dataclasses.fields(Prediction)}
    known |= {"stable": True, "heterogeneity_bias": nothing, "markov_bias": nothing, "curvature_bias": nothing}
    known |= {"covariance": np.eye(d), "persistent_bias": nothing, "problem": SimpleNamespace(num_agents=4)}
    return Prediction(**known | changes)


def test_bias_adds_up_and_more_agents_remove_variance_and_all_but_the_persistent_bias():
    parts = {"heterogeneity_bias": np.array([1.0, 0.0]), "markov_bias": np.array([0.0, 2.0])}
    found = predicted(**parts, curvature_bias=np.array([0.5, 0.0]), persistent_bias=np.array([1.0, 1.0]))
    assert found.floor == 1.5**2 + 2**2 + 2
    half = np.array([1.0, 1.0]) + (np.array([1.5, 2.0]) - 1) / 2
    assert found.floor_at(8) == pytest.approx(half @ half + 2 / 2)
    assert found.saturation_agents == pytest.approx(4 * 2 / 2)
    assert predicted().saturation_agents == math.inf


# Averages.


@pytest.mark.parametrize(
    ("average", "weights"),
    [
        (fh.GeometricAverage(fh.SA(0.1), decay=0.6), 0.6 ** -np.arange(1.0, 5)),
        (fh.Averaged(fh.SA(0.1), burn_in=1), np.array([0.0, 1.0, 1.0, 1.0])),
    ],
    ids=["geometric", "equal"],
)
@pytest.mark.parametrize("extra", [0.0, 0.3])
def test_an_average_has_the_variance_of_all_its_rounds_together(average, weights, extra):
    """Noise u' = q u + w in e' = phi e + u + w, and as the remainder independent noise of the variance `extra`."""
    phi, q, rounds = 0.7, 0.5, 4
    one = np.ones((1, 1, 1))
    Z = one / (1 - q**2)
    noise = HiddenNoise(q * one, one[None], one, one, one[None], Z, Z, np.zeros((1, 1)))
    law = AdditiveLaw(np.array([[phi]]), np.zeros(1), noise, "", basis="exact")
    # u has the covariance q^|j-k| / (1 - q^2), and w_k = u_(k+1) - q u_k, so that u_k + w_k = (1 - q) u_k + u_(k+1).
    hidden = q ** abs(np.subtract.outer(np.arange(rounds + 1), np.arange(rounds + 1))) / (1 - q**2)
    step = (1 - q) * np.eye(rounds, rounds + 1) + np.eye(rounds, rounds + 1, 1)
    later = np.tril(phi ** abs(np.subtract.outer(np.arange(rounds), np.arange(rounds))))
    covariance = later @ (step @ hidden @ step.T + extra * np.eye(rounds)) @ later.T
    found = AveragedLaw(_Noisier(law, extra, phi), average, law, np.array([[phi]]))
    path = list(found.path(np.array([2.0]), 60))
    for t in range(1, rounds + 1):
        w = weights[:t] / weights[:t].sum() if weights[:t].any() else np.eye(t)[-1]
        assert path[t].mean[0] == pytest.approx(w @ (2 * phi ** np.arange(1.0, t + 1)))
        assert path[t].covariance[0, 0] == pytest.approx(w @ covariance[:t, :t] @ w)
    expected = path[-1].covariance if found.forgets else np.zeros((1, 1))
    np.testing.assert_allclose(found.stationary().covariance, expected, rtol=1e-8)


class _Noisier(moments.AbstractLaw):
    """A law with independent noise in addition."""

    def __init__(self, law, extra, phi):
        self.law, self.extra, self.phi = law, extra, phi

    def path(self, start, rounds):
        for t, (mean, V) in enumerate(self.law.path(start, rounds)):
            yield Moments(mean, V + self.extra * (1 - self.phi ** (2 * t)) / (1 - self.phi**2))

    def stationary(self):
        mean, V = self.law.stationary()
        return Moments(mean, V + self.extra / (1 - self.phi**2))


# Modes of carried states.


def test_what_rounds_conserve_and_what_is_never_seen_is_no_mode():
    """(x, s, h): x' = x / 2 + s, s is conserved at zero, and h doubles unseen."""
    Phi = np.array([[0.5, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    map = JointMap(Phi, np.array([1.0, 0.0, 0.0]), np.eye(1, 3), np.zeros(3), np.eye(3)[:, :1])
    modes = reduced(map)
    assert visible_radius(modes) == pytest.approx(0.5)
    assert settled(modes)[0] == pytest.approx(2.0)
    read = reduced(map._replace(observe=np.array([[1.0, 0.0, 1.0]]), spread=np.array([[1.0], [0.0], [1.0]])))
    assert visible_radius(read) == pytest.approx(2.0)
    excited = reduced(map._replace(spread=np.array([[1.0], [1.0], [0.0]])))
    assert visible_radius(excited) == pytest.approx(1.0)


# Solvers without matrices.


def test_a_law_without_a_matrix_has_the_same_long_run_radii_and_later_rounds(monkeypatch):
    """Fixed points by GMRES, radii by Arnoldi, and rounds beyond the first from the space that these span."""
    monkeypatch.setattr(moments, "DENSE", 0)
    monkeypatch.setattr(moments, "KRYLOV", 12)
    agents, edges, chains = federation("edges", 2, (0, 1))
    rule = Rule(0.1, 2, 0.8)
    law, truth = EverySiteLaw(by_rule(edges, rule)), Law(agents, rule)
    assert law._matrix is None
    np.testing.assert_allclose(law.stationary().second, truth.moments[:-1, :-1], rtol=1e-8)
    assert law.mean_square_radius().value == pytest.approx(truth.mean_square_radius, rel=1e-7)
    assert law.mean_radius() == pytest.approx(truth.mean_radius, rel=1e-7)
    np.testing.assert_allclose(law.errors(START, 40), truth.errors(START, 40, chains), rtol=1e-6)


# Nonlinear operators.


def test_a_fixed_point_is_found_though_the_first_slope_is_wrong():
    law = CurvedLaw.__new__(CurvedLaw)
    law.problem, law.inverse = SimpleNamespace(root=np.zeros(2)), np.eye(2)  # pyright: ignore[reportAttributeAccessIssue]
    slope, goal = np.array([[0.3, 0.2], [-0.1, 0.5]]), np.array([1.0, -2.0])

    def round(theta):
        away = goal - theta
        return _Quiet(slope @ (away + 0.1 * away**3), np.zeros(0))

    found, _ = law._settle(round, np.zeros(2), 1e-12)
    np.testing.assert_allclose(found, goal, rtol=1e-10)


@pytest.mark.parametrize("family", ["states", "edges"])
@pytest.mark.parametrize("correction", [1.0, 0.0])
def test_the_affine_mean_field_is_the_mean_over_all_trajectories_of_each_agent(family, correction):
    """Of the agents' first operators in the average, each agent sees its own noise with weight 1/M and the means."""
    agents, edges, _ = federation(family, 2, (0, 1, 2))
    rule, M, theta = Rule(0.4, 3, 0.8, correction), 3, np.array([0.5, -1.0])
    next_states = 1 if family == "states" else 2
    A, g = (np.array([a[k][:, :next_states] for a in agents]) for k in (1, 2))
    A, g = A.reshape(M, -1, 2, 2), g.reshape(M, -1, 2)
    law = FiniteLaw(FiniteChain(edges.transition), pairs=family == "edges", independent=False)
    model = SimpleNamespace(agents=SeenAgent(law.chain, A, g))
    found = _affine_field(model, LocalRule(*rule), law, 1 / M, theta)  # pyright: ignore[reportArgumentType]
    x, ends = np.append(theta, 1.0), []
    weighted = [enumeration._weighted(agent, rule) for agent in agents]
    means = [np.einsum("n,nab,b->a", p, anchor, x) for p, anchor, _, _ in weighted]
    for (p, anchor, end, steer), mean in zip(weighted, means, strict=True):
        average = np.mean(means, axis=0) + (anchor @ x - mean) / M
        ends.append(p @ (end @ x + np.einsum("nab,nb->na", steer, average)))
    np.testing.assert_allclose(found.move, 0.8 * (np.mean(ends, axis=0) - theta), rtol=1e-10)
    np.testing.assert_allclose(found.paths, ends, rtol=1e-10)


# Codecs.


def test_sampled_noise_of_first_operators_and_displacements_has_the_covariance_of_the_law():
    """4000 draws: every entry within 5 standard errors, of which a product of two variables has at most the scale."""
    d, rng = 1, np.random.default_rng(1)
    first, moved = rng.normal(size=(2, 1, d, 3))
    hidden, noise = np.diag([1.0, 2.0, 0.5])[None], {"fresh_first": 0.3, "fresh_moved": 0.9, "fresh_both": -0.4}
    parts = {name: np.full((1, d, d), value) for name, value in noise.items()}
    law = RepliesLaw.__new__(RepliesLaw)
    law.M, law.d, law.noise = 1, d, SimpleNamespace(first=first, moved=moved, hidden=hidden, **parts)  # pyright: ignore[reportAttributeAccessIssue]
    both = np.concatenate([first[0], moved[0]])
    expected = both @ hidden[0] @ both.T + np.array([[0.3, -0.4], [-0.4, 0.9]])
    drawn = np.concatenate(_own_noise(law, np.random.default_rng(0)), axis=-1)[:, 0]
    scale = np.sqrt(2 * np.outer(np.diag(expected), np.diag(expected)) / DRAWS)
    assert (abs(drawn.T @ drawn / DRAWS - expected) < 5 * scale).all()


def test_a_linearised_agent_is_its_tangent_at_its_point():
    """G = theta^2 - o at the point 3: 9 - o + 6 (theta - 3)."""

    class Square(fh.AbstractAgent):
        source: fh.AbstractSource

        def operator(self, theta, o, /):
            return theta**2 - o

        def mean_operator(self, theta, /):
            return theta**2

    point = np.array([3.0])
    agent = LinearisedAgent(fh.sources.Silent(), Square(fh.sources.Silent()), point)
    assert agent.operator(np.array([5.0]), np.array([1.0]))[0] == 9 - 1 + 6 * 2
    assert agent.mean_operator(np.array([5.0]))[0] == 9 + 6 * 2


# Products at a distance in time, from samples.


def test_lagged_means_are_the_means_of_centred_matrices_times_earlier_noise():
    rng = np.random.default_rng(0)
    A, noise, mean = rng.normal(size=(6, 2, 2)), rng.normal(size=(6, 2)), rng.normal(size=(2, 2))
    sums = np.array([sum(A[t] @ noise[t - k] for t in range(k, 6)) for k in range(3)])
    expected = [np.mean([(A[t] - mean) @ noise[t - k] for t in range(k, 6)], axis=0) for k in range(3)]
    np.testing.assert_allclose(lagged_means(sums[None], mean, noise[None])[0], expected, rtol=1e-12)


def test_a_source_that_cannot_start_stationary_is_sampled_after_a_while():
    class Walk(fh.AbstractSource):
        def init(self, key, /):
            return 0

        def step(self, key, state, /):
            return state + 1, state

    walked, drawn = (_plan(source, 1000, 4, None) for source in (Walk(), FiniteChain(np.full((2, 2), 0.5))))
    assert (walked.stationary, drawn.stationary, drawn.burn_in) == (False, True, 0)
    assert walked.burn_in >= 100
    assert _plan(Walk(), 1000, 4, 7).burn_in == 7


def test_a_chosen_method_is_told_on_one_line_with_three_digits():
    staged = fh.FedHSA(fh.Stages((0.15748272339193847, 0.019122902126163955), (3,)), local_steps=5, server_step=0.75)
    words = "FedHSA(step_size=Stages(step_sizes=(0.157, 0.0191), begins=(3,)), local_steps=5, server_step=0.75)"
    assert choice._brief(staged) == words
