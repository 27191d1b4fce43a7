"""Table 1 of the paper as numbers."""

import dataclasses
import json

import numpy as np
import pytest

from fedhsa.experiments.field.systems import SYSTEMS, Systems
from fedhsa.experiments.study.base import Outcome, Runner

TINY = dataclasses.replace(Systems(), seeds=2, samples=200, copies=(1, 2), systems=("one-shot averaging",))


def made_up(experiment: Systems, *, limit: float = 0.0, slope: float = -1.0) -> Outcome:
    """An outcome of the right form: errors that fall with the agents by a slope, and a noiseless limit."""
    rng, arrays, facts = np.random.default_rng(0), {}, {}
    for name in experiment.systems:
        noise = np.exp(0.01 * rng.standard_normal(experiment.seeds))
        for copies in experiment.copies:
            arrays[f"{name}/equal {copies}"] = noise * float(copies) ** slope
        arrays[f"{name}/independent"] = noise
        arrays[f"{name}/limit"] = np.full(2, limit)
        arrays[f"{name}/heterogeneous"] = np.tile(np.geomspace(1.0, 1e-3, 50), (experiment.seeds, 1))
        arrays[f"{name}/rounds"] = np.arange(50)
        facts[name] = {"start": 1.0, "exchanges": 1.0, "bytes": 10.0, "samples": 10, "slope": -1.0, "doubt": 0.001}
    return Outcome(arrays, facts)


def verdicts(experiment: Systems, outcome: Outcome) -> dict[str, str]:
    return {check.name.removeprefix("field/table1: "): check.verdict for check in experiment.checks(outcome)}


def test_every_system_of_the_table_can_be_built():
    experiment = Systems()
    problem = experiment.heterogeneous.build()
    for name in SYSTEMS:
        experiment.algorithm(name, problem).check(problem)


def test_a_bias_where_there_should_be_none_fails_and_so_does_a_missing_one():
    found = verdicts(Systems(), made_up(Systems(), limit=1e-4))
    assert (found["FedHSA, bias"], found["FedTD, bias"]) == ("fail", "pass")
    found = verdicts(Systems(), made_up(Systems(), limit=0.0))
    assert (found["FedHSA, bias"], found["FedTD, bias"]) == ("pass", "fail")


@pytest.mark.parametrize(("slope", "verdict"), [(-1.0, "pass"), (-0.5, "fail")])
def test_a_wrong_slope_fails(slope, verdict):
    found = verdicts(Systems(), made_up(Systems(), slope=slope))
    assert (found["DisSACC, slope"], found["FedHSA, slope"]) == (verdict, verdict)


def test_traffic_is_counted_until_the_error_stays_below_the_target():
    experiment = Systems()
    outcome = made_up(experiment)
    curve = outcome.arrays["FedHSA/heterogeneous"]
    curve[:, 30] = 1.0  # back above it
    assert experiment.reach(outcome, "FedHSA") == (31.0, 310.0)
    curve[:, -1] = 1.0
    assert experiment.reach(outcome, "FedHSA") is None


@pytest.mark.slow
def test_a_small_run_gives_an_outcome_that_can_be_kept_drawn_and_told():
    outcome = TINY.run(Runner())
    outcome = Outcome(outcome.arrays, json.loads(json.dumps(outcome.facts, allow_nan=False)))
    assert TINY.table(outcome)["system"] == ["one-shot averaging"]
    assert 0 < TINY.bias(outcome, "one-shot averaging") < 1
    assert "one-shot averaging" in " ".join(TINY.summary(outcome))
    assert len(TINY.draw(outcome).axes) == 4
