"""FedKL beside its limits."""

import numpy as np
import pytest

from fedhsa.experiments.rl.fed_kl import LOOKS, KLPenalties
from fedhsa.experiments.study.base import Outcome

STUDY = KLPenalties()


def made(ends: tuple[float, float, float] = (30.0, 45.0, 60.0)) -> Outcome:
    """Costs that fall from 330 to these, in the order of the claim."""
    rng, arrays = np.random.default_rng(0), {}
    for step in STUDY.steps:
        for name, end in zip(LOOKS, ends, strict=True):
            fall = 330 * (end / 330) ** np.linspace(0, 1, STUDY.rounds + 1)
            arrays[f"{name}, {step:g}"] = fall * np.exp(0.05 * rng.normal(size=(STUDY.seeds, 1)))
    return Outcome(arrays, {"dim": 98})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/fed-kl: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_the_ordering_of_the_claim_passes_and_others_fail():
    assert not failing(made())
    assert failing(made((45.0, 30.0, 60.0))) == {"FedProx, 0.01", "FedProx, 0.03"}
    assert failing(made((200.0, 300.0, 300.0))) == {"learns, 0.01", "learns, 0.03"}


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 2
    assert "At the step 0.01 an episode costs" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_fed_prox_and_fed_avg_are_fed_kl_without_the_price_on_the_distance():
    methods = STUDY.methods(0.03)
    assert [float(methods[name].sigma) for name in LOOKS] == [1e-3, 0.0, 0.0]
    assert [float(methods[name].proximal) for name in LOOKS] == [0.0, 0.01, 0.0]
    assert methods["FedKL"].distance_target == pytest.approx(5 * 0.03**0.5)
