"""Fed-DVR-Q: samples and bits until an error."""

import numpy as np
import pytest

from fedhsa.experiments.rl.fed_dvr_q import Case, DoublyReduced
from fedhsa.experiments.study.base import Outcome

STUDY = DoublyReduced()


def made(agents: float = 0.0, horizon: float = 0.0, gain: float = 2.0) -> Outcome:
    """Errors that are at the target in the middle of the last refinements, and later by powers of agents or horizon."""
    rng, arrays = np.random.default_rng(0), {}
    for case in STUDY.cases():
        rounds, sent = STUDY.algorithm(case).rounds, STUDY.exchanged(case)
        late = (case.num_agents / 8) ** agents * ((1 - 0.9) / (1 - case.discount)) ** horizon
        at = np.interp(0.6 * sent[-1] * late, sent, np.arange(rounds + 1))
        noise = np.exp(0.01 * rng.normal(size=(STUDY.seeds, 1)))
        arrays[case.label] = STUDY.target * noise * (at / np.maximum(np.arange(rounds + 1), 1)) ** 2
    end = arrays[Case(STUDY.num_agents, 0.9).label]
    for step in STUDY.synq_steps:
        arrays[f"synq {step:g}"] = gain * np.repeat(end[:, -1:], STUDY.synq(step)[1] + 1, axis=1)
    return Outcome(arrays, {"dim": 16})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/fed-dvr-q: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_a_linear_speed_up_with_bits_that_grow_with_the_horizon_alone_passes():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"agents": 0.25}, {"samples", "bits"}),
        ({"horizon": -0.5}, {"horizon"}),
        ({"gain": 0.9}, {"Fed-SynQ"}),
        ({"horizon": 0.6}, {"horizon", "reached"}),
    ],
)
def test_other_outcomes_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 3
    assert "sends 8 times the bits" in STUDY.summary(made())[2]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_exchanges_and_samples_are_those_of_the_schedule():
    method = STUDY.algorithm(Case(8, 0.9))
    assert (method.local_steps, method.refinements) == (8, 40)
    sent = STUDY.exchanged(Case(8, 0.9))
    assert len(sent) == method.rounds + 1
    assert sent[-1] == 4 * 41
    local, rounds = STUDY.synq(0.02)
    assert rounds == 4 * 41
    assert local.local_steps == method.rounds * 8 // rounds
