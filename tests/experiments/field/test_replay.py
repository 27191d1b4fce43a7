"""Experience replay on slow chains."""

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.experiments.field.replay import METHODS, POWERS, Replay
from fedhsa.experiments.study.base import Outcome

STUDY = Replay()


def made(**powers: float) -> Outcome:
    noise = 1 + 0.02 * np.random.default_rng(0).normal(size=STUDY.seeds)
    start = dict(zip(METHODS, (3000.0, 20_000.0, 2500.0), strict=True))
    return Outcome(
        {
            f"{name}/{e:g}": start[name] * (max(STUDY.epsilons) / e) ** {**POWERS, **powers}[name] * noise
            for name in METHODS
            for e in STUDY.epsilons
        },
        {},
    )


def failed(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("field/replay: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_the_claimed_powers_pass_and_others_fail():
    assert failed(made()) == set()
    assert failed(made(**{"SGD with replay": 2.0})) == {"SGD with replay, slope", "gain"}
    assert failed(made(SGD=1.5)) == {"SGD, slope"}


def test_inputs_have_the_mean_square_and_the_correlation_they_should():
    problem = STUDY.problem(0.1)
    source = problem.agents.source
    np.testing.assert_allclose(source.covariance[0], np.eye(STUDY.dim), rtol=1e-9)
    assert source.transition[0, 0, 0] ** 2 + 0.1**2 == pytest.approx(1)
    np.testing.assert_allclose(problem.mean_operator(problem.theta_star), 0, atol=1e-15)
    assert fh.cost(problem, STUDY.method("SGD with replay", 0.1)).samples == 100


def test_figure_sentences_and_table_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 1
    assert "2.00 [2.00, 2.00] for SGD" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1
