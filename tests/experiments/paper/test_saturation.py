"""Where the speed-up ends."""

import json

import numpy as np
import pytest

from fedhsa import statistics
from fedhsa.experiments.paper.saturation import Saturation
from fedhsa.experiments.study.base import Outcome

STUDY = Saturation()
LEVEL = 0.01


def made(
    *,
    saturates: bool = True,
    power: float = 2.0,
    growth: float = 1.05,
    control_bias: float = 0.0,
    small: float = 2.0,
    additive_law: float = 1.0,
    spread: float = 0.003,
) -> Outcome:
    """An outcome with a lasting bias, or without one, and with levels as asked for."""
    rng, points, seeds = np.random.default_rng(0), STUDY.points(), 32
    floors, levels, errors, biases = [], [], [], []
    for point in points:
        of_h = {160: growth}.get(point.H, 1.0)
        markov = point.kind == "markov"
        level = LEVEL * (point.step / STUDY.step_size) ** power * of_h if markov else control_bias
        floor = 0.2 * 4 / point.M + (level if markov and saturates else 0.0)
        errors.append(floor * (1 + 0.1 * rng.normal(size=seeds)))
        biases.append(np.array([np.sqrt(level), 0.0]) + spread * rng.normal(size=(seeds, 2)))
        floors.append(0.2 * 4 / point.M + (level if markov else 0.0))
        predicted = 1.05 if point.H == 160 else 1.0
        levels.append(LEVEL * (point.step / STUDY.step_size) ** 2 * predicted if markov else 0.0)
    agents = np.geomspace(4, 256, 5)
    arrays = {"error": np.stack(errors), "bias": np.stack(biases)}
    arrays |= {"curve/agents": agents, "curve/markov": 0.8 / agents + LEVEL}
    facts = {
        "floors": floors,
        "levels": levels,
        "doubts": [0.001] * len(floors),
        "lasting": LEVEL,
        "saturation_agents": 80.0,
        "small_step_slope": small,
    }
    facts |= {"mixing_times": [9.0, 12.0], "independent/law": [0.2, 0.2 / 64]}
    facts |= {"additive/law": [0.2, 0.2 / 64 * additive_law]}
    return Outcome(arrays, facts)


def failing(outcome: Outcome) -> set[str]:
    return {check.name.removeprefix("saturation: ") for check in STUDY.checks(outcome) if check.verdict != "pass"}


def test_a_squared_bias_is_found_without_bias_and_its_interval_covers():
    # 2000 repetitions of 10 seeds: within four standard errors of the mean, which are 0.02 without a bias and 0.17 with
    # one three times the spread of a seed; the squared norm of the mean itself is 0.3 too large. Intervals of 95 % miss
    # in no more than 8 % of the repetitions.
    rng = np.random.default_rng(0)
    for bias in (0.0, 3.0):
        found = [statistics.squared_bias(rng.normal([bias, 0, 0], 1.0, size=(10, 3)), level=0.95) for _ in range(2000)]
        values = np.array([estimate.value for estimate in found])
        assert abs(values.mean() - bias**2) < 4 * values.std() / np.sqrt(len(values))
        missed = 1 - np.mean([estimate.contains(bias**2) for estimate in found])
        assert missed < 0.08


def test_its_samples_have_its_value_as_mean_and_its_standard_error():
    means = np.random.default_rng(0).normal([3.0, 4.0], 1.0, size=(400, 2))
    samples, found = statistics.squared_bias_samples(means), statistics.squared_bias(means)
    np.testing.assert_allclose(samples.mean(), found.value)
    half = statistics.mean(samples).high - samples.mean()
    np.testing.assert_allclose(half, found.high - found.value, rtol=0.05)  # one interval is logarithmic


def test_what_is_predicted_passes():
    assert failing(made()) == set()
    assert len(STUDY.checks(made())) == 18


def test_a_floor_that_goes_on_falling_fails():
    assert {"floor, over 1/M", "floor, M = 256"} <= failing(made(saturates=False))


@pytest.mark.parametrize("power", [1.0, 1.7, 2.3, 3.0])
def test_a_level_that_does_not_go_with_the_square_of_the_step_fails(power):
    assert failing(made(power=power)) == {"slope in the step"}


def test_a_level_that_goes_on_growing_with_the_local_steps_fails():
    assert failing(made(growth=2.3)) == {"bias, growth in H", "bias, H = 160"}
    assert "bias, growth in H" in failing(made(growth=1.3))


def test_a_prediction_whose_small_step_limit_is_not_the_square_fails():
    assert failing(made(small=1.5)) == {"slope at small steps"}


def test_a_bias_of_the_controls_fails_and_so_does_one_that_is_not_known():
    # a fiftieth of the level of Markov samples, 6 % of the floor
    assert failing(made(control_bias=0.02 * LEVEL)) == {"independent, bias", "additive, bias"}
    assert {"independent, bias", "additive, bias"} <= failing(made(spread=0.06))


def test_a_law_of_additive_noise_that_saturates_fails():
    assert "additive, law" in failing(made(additive_law=1.001))


def test_figure_sentences_and_table_are_made_from_what_was_kept():
    outcome = made()
    assert json.loads(json.dumps(outcome.facts)) == outcome.facts
    assert len(STUDY.draw(outcome).axes) == 3
    assert "M = 256" in STUDY.summary(outcome)[0]
    assert {len(column) for column in STUDY.table(outcome).values()} == {len(STUDY.points())}


def test_every_run_is_made_once_and_every_sweep_is_in_order():
    for study in (STUDY, STUDY.quick()):
        points = study.points()
        assert len(set(points)) == len(points)
        assert [points[k].M for k in study.rows("M")] == [4 * copies for copies in study.copies]
        assert [points[k].H for k in study.rows("H")] == list(study.local_step_sweep)
        assert [points[k].step for k in study.rows("step")] == list(study.step_sweep)
        assert study.local_step_sweep[-1] == 2 * study.local_step_sweep[-2]
