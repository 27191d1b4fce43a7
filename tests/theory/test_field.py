"""Near the edge of stability the noise of all agents decides: against the exact chain of occupancies."""

import warnings

import numpy as np
import pytest
from scipy.stats import binom

import fedhsa as fh
from fedhsa.cli.forecast import explain_divergence
from fedhsa.problems import finite_sum, td
from fedhsa.theory import PredictionWarning
from fedhsa.theory.laws import law
from fedhsa.theory.laws.field import field_radius
from fedhsa.theory.laws.moments import Radius

EDGE = [(24, 0.055, 0.86, 2.65, 0.344), (24, 0.005, 0.7, 2.0, 0.05)]
"""Agents, probability to switch, mean slope, spread of slopes, step size."""


def slopes(M, switch, mean, spread, *, apart=0.0):
    """Agents whose slopes are `mean +- spread` in the two states of their chains; `apart` makes them different."""
    A = np.tile(np.array([mean + spread, mean - spread]).reshape(1, 2, 1, 1), (M, 1, 1, 1))
    A = A + apart * np.random.default_rng(0).standard_normal(A.shape)
    P = np.array([[1 - switch, switch], [switch, 1 - switch]])
    return finite_sum.from_arrays(A, np.tile(np.array([[1.0], [-1.0]]), (M, 1, 1)), np.tile(P, (M, 1, 1)))


def exact_radius(M, switch, mean, spread, step):
    """The mean-square radius of one step per round, on the chain of the number of agents in the first state."""
    P = np.zeros((M + 1, M + 1))
    for k in range(M + 1):
        stay, come = binom.pmf(np.arange(k + 1), k, 1 - switch), binom.pmf(np.arange(M - k + 1), M - k, switch)
        P[k] = np.convolve(stay, come)
    A = mean + spread * (2 * np.arange(M + 1) / M - 1)
    return abs(np.linalg.eigvals(P.T @ np.diag((1 - step * A) ** 2))).max()


def radius_of(prediction) -> Radius:
    return prediction.law.mean_square_radius()


def predicted(problem, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PredictionWarning)
        return fh.theory.predict(problem, method)


@pytest.mark.parametrize(("M", "switch", "mean", "spread", "step"), EDGE)
def test_what_diverges_by_the_noise_of_all_agents_is_not_called_stable(M, switch, mean, spread, step):
    assert exact_radius(M, switch, mean, spread, step) > 1.03
    with pytest.warns(PredictionWarning, match=r"Whether SynchronisedSA is stable is unknown.*Use a smaller step size"):
        found = fh.theory.predict(slopes(M, switch, mean, spread, apart=1e-4), fh.SynchronisedSA(step))
    assert found.basis == "one site"
    assert found.stable is None
    assert radius_of(found).value < 1  # what one site alone would say
    assert np.isnan([found.floor, found.floor_at(10), found.rounds_to(1.0), found.left_out]).all()
    assert found.max_step_size < step
    assert "unknown: too close to the edge of stability" in repr(found)
    assert "is stable with these settings is unknown" in explain_divergence("SynchronisedSA", found)


@pytest.mark.parametrize(("M", "spread", "step", "basis"), [(3, 2.0, 0.4, "pairs"), (8, 2.5, 0.6, "one site")])
def test_few_agents_that_only_diverge_together_are_not_called_stable(monkeypatch, M, spread, step, basis):
    """Neither pairs of agents nor the Gaussian field of all of them tell, but pairs suggest that much is left out."""
    problem, method = slopes(M, 0.2, 1.0, spread, apart=0.3), fh.FedHSA(step, 2)
    exact = predicted(problem, method)
    assert (exact.basis, exact.stable) == ("exact", False)
    assert radius_of(exact).value > 1.1
    monkeypatch.setattr(law, "PRODUCT", 0.0)
    with pytest.warns(PredictionWarning, match=rf"Whether FedHSA is stable is unknown: .*\({basis}\) may leave out"):
        found = fh.theory.predict(problem, method)
    assert radius_of(found).highest < 0.9
    assert (found.basis, found.stable) == (basis, None)
    assert np.isnan([found.floor, found.left_out]).all()


def test_hundreds_of_equal_agents_have_an_exact_law():
    found = predicted(slopes(300, 0.05, 0.8, 2.0), fh.SynchronisedSA(0.3))
    assert found.basis == "exact"
    assert found.mean_square_radius == pytest.approx(exact_radius(300, 0.05, 0.8, 2.0, 0.3), rel=1e-9)


def test_agents_that_hardly_differ_get_the_verdict_of_equal_agents():
    M, switch, mean, spread, step = EDGE[0]
    assert predicted(slopes(M, switch, mean, spread), fh.SynchronisedSA(step)).stable is False  # exact
    for smaller in (0.1, 0.03):
        truth = exact_radius(M, switch, mean, spread, step * smaller)
        equal, other = (
            predicted(slopes(M, switch, mean, spread, apart=x), fh.SynchronisedSA(step * smaller)) for x in (0, 1e-9)
        )
        assert equal.stable is other.stable is True
        assert equal.mean_square_radius == pytest.approx(truth, rel=1e-9)
        assert radius_of(other).highest == pytest.approx(truth, rel=3e-3)
        assert abs(other.floor / equal.floor - 1) < max(other.left_out, 1e-3)


@pytest.mark.parametrize("step", [0.01, 0.012])
def test_the_radius_of_the_field_is_nearly_that_of_all_occupancies(step):
    """On slow chains it is far nearer to it than that of one site, whose floor is too low, so that there is none."""
    M, switch, mean, spread = 40, 0.004, 0.7, 2.5
    truth = exact_radius(M, switch, mean, spread, step)
    equal = predicted(slopes(M, switch, mean, spread), fh.SynchronisedSA(step))
    other = predicted(slopes(M, switch, mean, spread, apart=1e-4), fh.SynchronisedSA(step))
    found = radius_of(other)
    assert equal.mean_square_radius == pytest.approx(truth, rel=1e-9)
    assert found.field is not None
    assert 0 <= found.field - truth < 0.15 * (truth - found.value)
    assert 0.5 < equal.floor / other.law.settled().square - 1 < other.law.left_out
    assert (equal.stable, other.stable) == (True, None)
    assert np.isnan(other.floor)


def test_without_memory_the_field_adds_its_variance():
    maps, kernel, pi = np.array([[[[0.1]], [[-0.1]]]]), np.full((1, 2, 2), 0.5), np.full((1, 2), 0.5)
    assert field_radius(np.array([[0.9]]), maps, np.ones(1), kernel, pi) == pytest.approx(0.9**2 + 0.1**2, rel=1e-9)


def test_two_directions_of_the_field_give_the_radius_of_two_independent_ones():
    """Two coordinates, each multiplied by its own field: the radius is the larger one of them alone."""
    kernel, pi = np.array([[0.9, 0.1], [0.1, 0.9]]), np.full((1, 2), 0.5)
    mean, small, large = np.diag([0.9, 0.8]), np.diag([0.1, 0.0]), np.diag([0.0, 0.2])
    alone = [
        field_radius(mean[k : k + 1, k : k + 1], np.array([[[[x]], [[-x]]]]), np.ones(1), kernel[None], pi)
        for k, x in ((0, 0.1), (1, 0.2))
    ]
    maps = np.stack([np.stack([x, -x]) for x in (small, large)])
    both = field_radius(mean, maps, np.ones(2), np.stack([kernel] * 2), np.repeat(pi, 2, axis=0))
    assert both == pytest.approx(max(alone), rel=1e-3)


def test_many_slow_modes_are_followed_in_the_slowest_ones():
    kernel, pi = np.array([[0.9, 0.1], [0.1, 0.9]]), np.full((1, 2), 0.5)
    T = np.random.default_rng(0).standard_normal((5, 5))
    inverse = np.linalg.inv(T)
    spread = np.zeros((5, 5))
    spread[:, 0] = 0.05  # noise in the slow mode disturbs the others too, which is soon forgotten
    mean, noise = T @ np.diag([0.95, 0.5, 0.4, 0.3, 0.2]) @ inverse, T @ spread @ inverse
    one = field_radius(np.array([[0.95]]), np.array([[[[0.05]], [[-0.05]]]]), np.ones(1), kernel[None], pi)
    found = field_radius(mean, np.stack([noise, -noise])[None], np.ones(1), kernel[None], pi)
    assert found == pytest.approx(one, rel=1e-6)
    assert field_radius(mean, 1e-3 * np.stack([noise, -noise])[None], np.ones(1), kernel[None], pi) is None


def test_a_radius_tells_what_its_estimates_agree_on():
    assert Radius(0.9, "exact").stable is True
    assert Radius(0.9, "exact").doubt == 0
    assert Radius(1.1, "estimate", 0.9).stable is False
    assert Radius(0.9, "estimate", 1.0).stable is None
    assert Radius(0.9, "estimate", 0.95).stable is True
    assert Radius(0.9, "estimate", 0.95).doubt == pytest.approx(1.0)
    assert Radius(0.9, "estimate", 0.8).doubt == 0


def test_a_choice_keeps_away_from_steps_whose_stability_is_unknown():
    M, switch, mean, spread, _ = EDGE[1]
    given = {"target": 0.3, "theta": np.ones(1), "algorithms": ("LocalSA",), "local_steps": (1,)}
    chosen = fh.theory.choose(slopes(M, switch, mean, spread, apart=1e-4), **given)
    step = chosen.algorithm.step_size
    assert chosen.prediction.stable is True
    assert exact_radius(M, switch, mean, spread, max(getattr(step, "step_sizes", (step,)))) < 1


@pytest.mark.parametrize(
    "method",
    [
        fh.SCAFFLSA(0.05, 3),
        fh.Averaged(fh.FedHSA(0.05, 3)),
        fh.Partial(fh.LocalSA(0.05, 3), fh.sampling.Bernoulli(0.5)),
        fh.FedHSA(fh.Stages((0.1, 0.05), (10,)), 3),
    ],
    ids=["memories", "average", "participation", "stages"],
)
def test_every_prediction_prints_as_the_same_card(method):
    found = predicted(td.random(num_agents=2, num_states=3, dim=2), method)
    assert repr(found).split()[0] == "algorithm"
    assert {"problem", "stable", "floor", "known"} <= {line.split()[0] for line in repr(found).splitlines()}


def test_absent_agents_around_a_method_that_may_diverge_get_no_floor():
    M, switch, mean, spread, step = EDGE[0]
    method = fh.Partial(fh.LocalSA(step, 1), fh.sampling.Bernoulli(0.5))
    with pytest.warns(PredictionWarning, match="Partial is stable is unknown.*in the joint noise of all agents"):
        found = fh.theory.predict(slopes(M, switch, mean, spread), method)
    assert found.stable is None
    assert np.isnan(found.floor)
