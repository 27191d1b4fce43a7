"""A3C with more and more workers."""

import numpy as np
import pytest

from fedhsa.experiments.rl.a3c import A3C, crossing
from fedhsa.experiments.study.base import Outcome

STUDY = A3C()


def made(power: float = -1.0, late: float = 1.2, critic: float = -0.5) -> Outcome:
    """Samples to the target and the critic's gap that fall with N to these powers; late operators cost this factor."""
    rng, arrays = np.random.default_rng(0), {}
    for variant in STUDY.variants:
        for n in STUDY.agents:
            samples = STUDY.updates // n // 50 * np.arange(51)
            needed = 3000 * float(n) ** power * (late if "late" in variant else 1) * rng.uniform(0.9, 1.1, (10, 1))
            arrays[f"{variant}/{n}/samples"] = samples
            arrays[f"{variant}/{n}/part"] = 2 * STUDY.level * samples / (needed + samples)
            arrays[f"{variant}/{n}/gap"] = rng.uniform(0.9, 1.1, (10, 51)) * float(n) ** critic
    return Outcome(arrays, {"worst": 5.0, "best": 8.0})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/a3c: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_samples_in_inverse_proportion_to_the_workers_pass_and_others_fail():
    assert not failing(made())
    assert failing(made(power=-0.7)) >= {"i.i.d., speed-up", "Markov, speed-up"}
    assert failing(made(critic=0.1)) == {f"{variant}, critic" for variant in STUDY.variants}
    assert failing(made(late=1.8)) == {"delays"}


def test_a_level_is_crossed_on_the_line_between_two_records():
    samples = np.array([0.0, 10.0, 20.0])
    assert crossing(samples, np.array([0.0, 0.2, 0.6]), 0.4) == pytest.approx(15.0)
    assert crossing(samples, np.array([0.0, 0.2, 0.3]), 0.4) == 20.0


def test_a_round_of_n_workers_has_the_steps_of_the_common_counter():
    one, four = (STUDY.algorithm(n, "Markov").algorithm.step_size for n in (1, 4))
    for t in (0, 3):
        np.testing.assert_allclose(four(t), 4 * one(4 * t), rtol=1e-6)


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 3
    assert "power -1.0" in STUDY.summary(made())[1]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1
