"""Pieces of predictions, worked out by hand on arrays: stages, outlines, averages, modes, solvers and searches."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.problems import quadratic
from fedhsa.sources import FiniteChain, Silent
from fedhsa.theory import choice, predict
from fedhsa.theory.changing import ChangingLaw
from fedhsa.theory.laws import moments, played
from fedhsa.theory.laws.agents import AddedNoise, Agents
from fedhsa.theory.laws.averages import CarriedAverage, RelaxingAverage
from fedhsa.theory.laws.coordinates import coordinates_of
from fedhsa.theory.laws.federation import Federation
from fedhsa.theory.laws.levels import EachSiteLaw, EverySiteLaw, LinearLaw, TwoSitesLaw
from fedhsa.theory.laws.moments import AbstractSteppedLaw, LongRun, Moments, Radius
from fedhsa.theory.laws.nonlinear import LinearisedAgent
from fedhsa.theory.laws.pieces import Call, Part, Pieces, Step, pieces_of_rule
from fedhsa.theory.laws.played import PlayedLaw
from fedhsa.theory.prediction import Prediction
from fedhsa.theory.rule import LocalRule
from fedhsa.theory.samples.estimate import Estimates, _plan
from fedhsa.theory.samples.long_run import lagged_means
from fedhsa.theory.sketch import Outline, Sketch
from theory.enumeration import Law, Rule
from theory.test_enumerated import START, by_rule, chains_of


class Scalar(AbstractSteppedLaw):
    """The law of e' = factor e + offset."""

    def __init__(self, factor, offset=0.0):
        self.factor, self.offset = factor, offset

    def enter(self, start):
        return start

    def step(self, state):
        return self.factor * state + self.offset

    def seen(self, state):
        return Moments(state, np.zeros((1, 1)))

    def stationary(self):
        return Moments(np.array([self.offset / (1 - self.factor)]), np.zeros((1, 1)))

    def mean_square_radius(self):
        return Radius(self.factor**2, "exact")

    def mean_radius(self):
        return abs(self.factor)

    def long_run(self):
        return LongRun.of_mean(self.stationary().mean, 0.0)

    def persistent_bias(self):
        return self.stationary().mean


# Laws that follow one another, and laws of which little is known.


def test_a_stage_begins_with_the_round_of_its_number():
    """Two rounds that halve, one that adds three, and then rounds that halve and add one, whose limit is two."""
    laws = {3.0: Scalar(0.5), 2.0: Scalar(1.0, 3.0), 1.0: Scalar(0.5, 1.0)}
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
        return [Scalar(1 - now, 1 / now) for now, _ in steps]

    law, e = ChangingLaw(schedule, laws_at, Scalar(1.0), left_out=0.0), 8.0
    found = [m.mean[0] for m in law.path(np.array([8.0]), 400)]
    for t, mean in enumerate(found):
        assert mean == pytest.approx(e, rel=1e-9)
        e = e - 0.5 / (t + 1) * e + (t + 1) / 0.5
    assert len(set(asked)) < 200


def test_a_law_that_is_not_analytic_in_the_step_size_is_not_interpolated():
    def laws_at(steps):
        return [Scalar(1 - now, float(now > 0.005)) for now, _ in steps]

    law = ChangingLaw(fh.Polynomial(0.5), laws_at, Scalar(1.0), left_out=0.0, name="Odd")
    with pytest.raises(TypeError, match=r"law of Odd cannot be interpolated between the step sizes 0\.00125 and 0\.5"):
        list(law.path(np.array([8.0]), 400))


def test_the_long_run_of_played_rounds_is_their_second_half_and_its_halves_tell_how_settled_it_is(monkeypatch):
    """Eight parameters, and the last five from the middle on."""
    theta = np.array([9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 3.0, 3.0])[:, None]
    monkeypatch.setattr(played, "SETTLING", 7)
    monkeypatch.setattr(played, "parameters", lambda problem, algorithm, start, rounds: theta[: rounds + 1])
    law = PlayedLaw(SimpleNamespace(root=np.zeros(1)), "It")  # pyright: ignore[reportArgumentType]
    center, covariance = law.stationary()
    assert center[0] == pytest.approx(9 / 5)
    assert covariance[0, 0] == pytest.approx(21 / 5 - (9 / 5) ** 2)
    assert law.left_out == pytest.approx((9 - 1) / 5)  # halves of three and two rounds: mean squares 1 and 9


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
    one = np.ones(1)
    estimates = Estimates(one, -a * one.reshape(1, 1, 1), 0 * one[None], v * one.reshape(1, 1, 1), np.zeros((1, 2, 1)),
                          0 * one.reshape(1, 1, 1), one, one)  # fmt: skip
    sketch = Sketch(None, estimates, H)  # pyright: ignore[reportArgumentType]
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
    nothing = np.zeros(2)
    persistent = changes.pop("persistent", nothing)
    parts = LongRun(nothing, nothing, nothing, np.eye(2))._replace(**changes)
    law = SimpleNamespace(stable=lambda: True, long_run=lambda: parts, persistent_bias=lambda: persistent)
    return Prediction(SimpleNamespace(num_agents=4, dim=2), None, law)  # pyright: ignore[reportArgumentType]


def test_bias_adds_up_and_more_agents_remove_variance_and_all_but_the_persistent_bias():
    parts = {"heterogeneity": np.array([1.0, 0.0]), "markov": np.array([0.0, 2.0])}
    found = predicted(**parts, curvature=np.array([0.5, 0.0]), persistent=np.array([1.0, 1.0]))
    assert found.floor == 1.5**2 + 2**2 + 2
    half = np.array([1.0, 1.0]) + (np.array([1.5, 2.0]) - 1) / 2
    assert found.floor_at(8) == pytest.approx(half @ half + 2 / 2)
    assert found.saturation_agents == pytest.approx(4 * 2 / 2)
    assert predicted().saturation_agents == math.inf


# Averages.


def autoregressive(phi, q):
    """One agent with e' = phi e + z, one step a round, and noise z' = q z + w that starts stationary."""
    one = np.ones((1, 1, 1))
    noise = AddedNoise(q * one, one, one / (1 - q**2), one / (1 - q**2))
    slope = np.array([phi - 1, 0.0]).reshape(1, 1, 1, 1, 2)
    agents = Agents(one, one[0], one[0], one, slope, noise=noise)
    return Federation(pieces_of_rule(LocalRule(1.0, 1, 1.0, 0.0), 1), agents, "SA")


AVERAGES = [
    (fh.GeometricAverage(fh.SA(0.1), decay=0.6), 0.6 ** -np.arange(1.0, 5)),
    (fh.Averaged(fh.SA(0.1), burn_in=1), np.array([0.0, 1.0, 1.0, 1.0])),
]
LAWS = {
    "linear": (0.5, lambda law, average: CarriedAverage(LinearLaw(law), average)),
    "every site": (0.5, lambda law, average: CarriedAverage(EverySiteLaw(law), average)),
    "each site": (0.5, lambda law, average: CarriedAverage(EachSiteLaw(law), average)),
    "relaxing": (0.0, lambda law, average: RelaxingAverage(LinearLaw(law), average, np.array([[0.7]]))),
}
"""The correlation of the noise, and a law that is exact for it."""


@pytest.mark.parametrize(("average", "weights"), AVERAGES, ids=["geometric", "equal"])
@pytest.mark.parametrize("law", LAWS)
def test_an_average_has_the_variance_of_all_its_rounds_together(law, average, weights):
    (q, make), phi, rounds = LAWS[law], 0.7, 4
    hidden = q ** abs(np.subtract.outer(np.arange(rounds), np.arange(rounds))) / (1 - q**2)
    later = np.tril(phi ** abs(np.subtract.outer(np.arange(rounds), np.arange(rounds))))
    covariance = later @ hidden @ later.T
    found = make(autoregressive(phi, q), average)
    path = list(found.path(np.array([2.0]), 80))
    for t in range(1, rounds + 1):
        w = weights[:t] / weights[:t].sum() if weights[:t].any() else np.eye(t)[-1]
        assert path[t].mean[0] == pytest.approx(w @ (2 * phi ** np.arange(1.0, t + 1)))
        assert path[t].covariance[0, 0] == pytest.approx(w @ covariance[:t, :t] @ w)
    expected = path[-1].covariance if weights[0] else np.zeros((1, 1))
    np.testing.assert_allclose(found.stationary().covariance, expected, rtol=1e-8)


# Coordinates of what is carried.


def carrying(keep, server, show):
    """A server (x, s, h) that adds the reply of its only agent to x and h."""
    call = Call(0, np.ones(1), np.zeros((1, 1)), np.ones(1), 0)
    part = Part(np.ones((1, 1)), (call,), np.ones((1, 1)))
    step = Step(np.eye(3)[None, :1], ((part,),), keep, np.array([1.0, 0.0, 1.0]).reshape(1, 3, 1), np.zeros((3, 0)))
    nothing = np.zeros(0)
    return Pieces(((step,),), np.ones(1), None, ((step,),), (None,), (), server, nothing, show, 1, None)


@pytest.mark.parametrize(
    ("server", "show", "radius"),
    [
        ([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5]),
        ([1.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.5, 2.0]),
        ([1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 1.0]),
    ],
    ids=["neither", "h is read", "s is excited"],
)
def test_what_rounds_conserve_and_what_is_never_seen_is_not_carried(server, show, radius):
    """x' = x / 2 + s + G, s is conserved at zero, and h' = 2 h + G is unseen. At the root G is 1 without a slope."""
    keep = np.array([[0.5, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    pieces, one = carrying(keep, np.array(server), np.array(show)), np.ones((1, 1))
    assert coordinates_of([pieces], 1).into.shape == (len(radius), 3)
    agents = Agents(one[..., None], one, one, one[..., None], np.array([0.0, 1.0]).reshape(1, 1, 1, 1, 2))
    law = LinearLaw(Federation(pieces, agents, "It"))
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(law.A)), radius, rtol=1e-12)
    if len(radius) == 1:
        assert law.stationary().mean[0] == pytest.approx(2.0)


# Solvers without matrices.


@pytest.mark.parametrize("family", ["td", "edges"])
def test_a_law_without_a_matrix_has_the_same_long_run_radii_and_later_rounds(family, monkeypatch):
    """Fixed points by GMRES, radii by Davidson's method, and rounds beyond the first from the space that these span."""
    monkeypatch.setattr(moments, "DENSE", 0)
    monkeypatch.setattr(moments.MomentLaw, "vectors", 12)
    agents, arrays, starts = chains_of(family, 2, (0, 1))
    rule = Rule(0.1, 2, 0.8)
    truth = Law(agents, rule)
    for law in (EverySiteLaw(by_rule(arrays, rule)), TwoSitesLaw(by_rule(arrays, rule))):
        assert law._matrix is None
        np.testing.assert_allclose(law.stationary().second, truth.moments[:-1, :-1], rtol=1e-8)
        assert law.mean_square_radius().value == pytest.approx(truth.mean_square_radius, rel=1e-7)
        np.testing.assert_allclose(law.errors(START, 40), truth.errors(START, 40, starts), rtol=1e-6)
    assert EverySiteLaw(by_rule(arrays, rule)).mean_radius() == pytest.approx(truth.mean_radius, rel=1e-7)


# Where agents call their operators.


@pytest.mark.parametrize("correction", [0.0, 1.0])
@pytest.mark.parametrize("family", ["states", "edges"])
def test_the_points_of_calls_are_those_of_all_steps_by_the_states_in_which_they_happen(family, correction):
    """One agent, whose correction is zero, in the long run: moments of (y, 1) on each state, step by step."""
    (agent,), arrays, _ = chains_of(family, 3, (0,))
    eta, H, d = 0.3, 3, 2
    moved = np.zeros((3, 3, d + 1, d + 1))
    moved[..., :d, :d], moved[..., :d, d], moved[..., d, d] = np.eye(d) + eta * agent.A, eta * agent.g, 1
    Y = arrays.pi[0][:, None, None] * np.eye(d + 1)[-1:] * np.eye(d + 1)[:, -1:]
    for _ in range(400 * H):
        Y = np.einsum("st,stab,sbc,stdc->tad", agent.P, moved, Y, moved)
    expected = np.zeros_like(Y)
    for _ in range(H):
        expected, Y = expected + Y, np.einsum("st,stab,sbc,stdc->tad", agent.P, moved, Y, moved)
    found = EachSiteLaw(by_rule(arrays, Rule(eta, H, 1.0, correction))).points()[0]
    np.testing.assert_allclose(found[0], expected, rtol=1e-9, atol=1e-12)


# Codes.


def test_codes_that_are_right_on_average_add_the_variance_of_gaussian_points():
    """Levels at a distance of 2 D / 3: what is coded is -a e + z, and its variance between levels l and h is
    (x - l)(h - x) in the mean over x, which is Gaussian. The law draws 1000 points: within 5 standard errors.
    """
    eta, a, std, D = 0.4, 0.7, 0.5, 3.0
    problem = quadratic.from_arrays([[[a]]], [[0.0]], Q=[[[0.0]]], noise_std=std, start="stationary")
    method = fh.Compressed(fh.SA(eta), fh.codecs.Uniform(D, 2))
    x, w = np.polynomial.hermite_e.hermegauss(200)
    V, coded = 0.0, 0.0
    for _ in range(200):
        at = np.clip(np.sqrt(a**2 * V + std**2) * x, -D, D)
        below = np.minimum(np.floor((at + D) / (2 * D / 3)), 2) * (2 * D / 3) - D
        coded = w @ ((at - below) * (below + 2 * D / 3 - at)) / w.sum()
        V = (1 - eta * a) ** 2 * V + eta**2 * (std**2 + coded)
    found = predict(problem, method)
    assert coded > std**2  # most of the noise
    assert found.floor == pytest.approx(V, rel=5 * np.sqrt(2 / 1000))
    assert (found.basis, found.bias[0]) == ("first order", 0.0)
    assert np.isnan(found.left_out)


# Nonlinear operators; see `test_nonlinear.py`.


def test_a_linearised_agent_is_its_tangent_at_its_point():
    """G = theta^2 - o at the point 3: 9 - o + 6 (theta - 3)."""

    class Square(fh.AbstractAgent):
        source: fh.AbstractSource

        def operator(self, theta, o, /):
            return theta**2 - o

        def mean_operator(self, theta, /):
            return theta**2

    point = np.array([3.0])
    agent = LinearisedAgent(Silent(), Square(Silent()), point)
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
