"""FedNPG-ADMM beside FedNPG."""

import numpy as np
import pytest

from fedhsa.experiments.rl.npg import NaturalGradients
from fedhsa.experiments.study.base import Outcome

STUDY = NaturalGradients()


def made(ratio: float = 1.0, end: float = 0.02, floats: float = 15.0) -> Outcome:
    """Gaps that fall from 0.6 to `end`, ADMM's `ratio` times as large, which sends this many numbers."""
    rng, fall = np.random.default_rng(0), 0.6 * (end / 0.6) ** np.linspace(0, 1, 51)
    arrays = {name: fall * np.exp(0.05 * rng.normal(size=(STUDY.seeds, 1))) for name in STUDY.methods()}
    arrays["FedNPG-ADMM"] = ratio * arrays["FedNPG-ADMM"]
    return Outcome(arrays, {"floats": {"FedNPG": 240.0, "FedNPG-ADMM": floats, "policy gradient": 15.0}, "dim": 15})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/npg: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


@pytest.mark.parametrize(
    ("changed", "names"),
    [({}, set()), ({"ratio": 1.5}, {"same curve"}), ({"end": 0.2}, {"learns"}), ({"floats": 30.0}, {"numbers"})],
)
def test_equal_curves_for_fewer_numbers_pass_and_other_outcomes_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 2
    assert "sends 15 numbers per agent and iteration instead of 240" in STUDY.summary(made())[1]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1
