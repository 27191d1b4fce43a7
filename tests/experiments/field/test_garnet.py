"""SCAFFLSA's Garnet figure."""

import numpy as np
import pytest

from fedhsa.experiments.field.garnet import MANY, METHODS, Garnet
from fedhsa.experiments.study.base import Outcome

STUDY = Garnet()


def made(bias: float = 1.0, other: float = 0.0, equal: float = 1.0, noise: float = 3.0) -> Outcome:
    """Local SA at `bias` times its predicted bias, the others at this squared one; floors of equal agents
    at `equal`, and FedHSA with this much more noise for many local steps."""
    rng, arrays, rows = np.random.default_rng(0), {}, []
    for case in STUDY.cases():
        alike = case.setting == "equal"
        predicted = 0.0 if alike else 1e-4 * case.local_steps
        rows.append({"label": case.label, **case._asdict(), "rounds": 20, "every": 1, "bias": predicted})
        rows[-1]["doubt"] = 0.01 if "Markov" in case.setting else 0.0
        for method in METHODS:
            squared = bias * predicted if method == "LocalSA" else other * predicted
            mean = np.sqrt(squared / 8) * np.ones((10, 8)) + 1e-3 * rng.normal(size=(10, 8))
            floor = (mean**2).sum(1) + 1e-3 * (equal if alike and method == "LocalSA" else 1.0)
            floor *= noise if method == "FedHSA" and case.local_steps >= MANY else 1.0
            arrays[f"{case.label}/{method}/mean"] = mean
            arrays[f"{case.label}/{method}"] = np.repeat(floor[:, None], 21, axis=1)
    return Outcome(arrays, {"rows": rows})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.split(", ")[-1] for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_predicted_biases_pass():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"bias": 1.3}, {"bias"}),
        ({"bias": 0.7}, {"bias"}),
        ({"other": 0.3}, {"bias"}),
        ({"other": 1.5}, {"bias", "LocalSA by SCAFFLSA", "LocalSA by FedHSA"}),
        ({"noise": 0.8}, {"FedHSA by SCAFFLSA"}),
        ({"equal": 1.4}, {"LocalSA by SCAFFLSA", "LocalSA by FedHSA"}),
    ],
)
def test_other_biases_and_floors_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == len(STUDY.cases())
    assert "at H = 10000 (predicted 1)" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_the_longest_rounds_get_more_samples():
    samples = {case.local_steps: case.samples for case in STUDY.cases()}
    assert samples[100] == STUDY.samples
    assert samples[10000] == STUDY.least_rounds * 10000
