"""Averages weighed by visits."""

import numpy as np
import pytest

from fedhsa.experiments.rl.importance import Importance
from fedhsa.experiments.study.base import Outcome

STUDY = Importance()


def made(faster: float = 2.5, importance: float = 0.03, equal: float = 0.05, power: float = -1.0) -> Outcome:
    """Errors that fall from 0.6 to these floors, importance averaging so many times as fast as equal averaging."""
    noise = 1 + 0.02 * np.random.default_rng(0).normal(size=(STUDY.seeds, 1))
    at = np.arange(201)
    arrays = {
        "importance": (importance + 0.57 * np.exp(-at / 10)) * noise,
        "equal": (equal + 0.55 * np.exp(-at / 10 / faster)) * noise,
        "FedHSA": np.full((STUDY.seeds, 201), 0.3) * noise,
    }
    for step in STUDY.sweep_steps:
        for K in STUDY.sweep_agents:
            wobble = np.random.default_rng(K).normal(size=(STUDY.seeds, 50, 40))
            arrays[f"{K} agents, step {step:g}"] = 0.03 * K ** (power / 2) * wobble
    return Outcome(arrays, {"every": 5})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/importance: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_the_faster_average_with_the_lower_floor_passes():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"faster": 0.9}, {"after 2000", "speed"}),
        ({"importance": 0.07}, {"floor"}),
        ({"power": 0.0}, {f"{what}, step {step}" for what in ("agents", "variance") for step in (0.05, 0.02)}),
        ({"power": -2.0}, {f"{what}, step {step}" for what in ("agents", "variance") for step in (0.05, 0.02)}),
    ],
)
def test_other_curves_fail(changed, names):
    assert failing(made(**changed)) == names


def test_an_average_that_never_gets_there_counts_with_the_length_of_its_run():
    # The other one is there after 10 log(0.57 / 0.07), about 21, of 201 records.
    assert 9 < STUDY.speed(made(equal=0.3)).value < 10


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 2
    assert "stays at 0.03 and 0.0" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1
