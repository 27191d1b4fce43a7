"""How many rounds are needed."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedhsa import cost
from fedhsa.experiments.field.rounds import SAMPLINGS, Rounds, _label
from fedhsa.experiments.study.base import Outcome, Runner
from fedhsa.experiments.study.instance import Instance

STUDY = Rounds()
TINY = dataclasses.replace(
    STUDY,
    instance=Instance("finite-sum", 3, {"num_components": 2, "dim": 2, "eigenvalues": (0.5, 1.0), "laziness": 0.5}),
    samples=(256,),
    frontier=256,
    rounds=(8,),
    sums=(4.0, 6.0),
    seeds=4,
)


class Pretend(Runner):
    """Counts the cost of a run and makes up its errors, which fall with the square root of the samples."""

    def simulate(self, problem, algorithm, **settings) -> Any:
        samples = settings["rounds"] * algorithm.block_length
        errors = np.random.default_rng(samples).exponential(size=(settings["seeds"], 2)) / samples**0.5
        return SimpleNamespace(error=errors, cost=cost(problem, algorithm))


def made(few: float = 1.0, once: float = 50.0, sampling: str = "markov") -> Outcome:
    """All errors alike, but for DisSACC's in few rounds and for averaging once with one kind of sampling."""
    noise, arrays, rows = 1 + 0.1 * np.random.default_rng(0).normal(size=STUDY.seeds), {}, []
    for name in SAMPLINGS:
        for case in STUDY.cases(0.5, 1.0):
            row = {"sampling": name, **case, "stable": True, "step": 0.1, "edge": False, "bytes": 64.0 * case["rounds"]}
            times = few if (case["kind"], name) == ("few", sampling) else 1.0
            if case["method"] == "OneShotAveraging":
                times = once if name == sampling else 50.0
            arrays[_label(row)] = times * noise / case["samples"]
            rows.append(row)
    facts = {"mu": 0.5, "L": 1.0, "bias": 0.1, "independent spread": 1.0, "markov spread": 2.0}
    return Outcome(arrays, facts | {"rows": rows})


def failing(outcome: Outcome) -> set[str]:
    return {check.name.split(": ")[1] for check in STUDY.checks(outcome) if check.verdict != "pass"}


def test_errors_alike_pass():
    assert not failing(made())


def test_a_larger_error_in_few_rounds_fails():
    found = failing(made(few=2.5))
    assert len(found) == 2 * len(STUDY.samples)
    assert all(name.startswith("markov") and "DisSACC by" in name for name in found)


def test_averaging_once_must_stay_behind():
    assert failing(made(once=1.5)) == {"markov, averaging once"}


def test_few_rounds_grow_with_the_logarithm():
    few, more = (STUDY.few_rounds(R, mu=0.5, L=1.0) for R in (10**3, 10**6))
    assert few == np.ceil(4 * np.log(10**4))
    assert more < 2 * few


@pytest.mark.slow
@pytest.mark.parametrize("runner", [Pretend, pytest.param(Runner, marks=pytest.mark.slow)])
def test_a_small_run_gives_what_is_kept_on_disk(runner):
    outcome = TINY.run(runner())
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
    assert {row["sampling"] for row in outcome.facts["rows"]} == set(SAMPLINGS)
    once = next(row for row in outcome.facts["rows"] if row["method"] == "OneShotAveraging")
    fed, batch = (
        next(r for r in outcome.facts["rows"] if (r["kind"], r["method"]) == ("sweep", method))
        for method in ("FedHSA", "DisSACC")
    )
    assert once["bytes"] == 8 * 2
    assert fed["bytes"] == 2 * batch["bytes"]
    assert len(TINY.draw(outcome).axes) == 6
    assert "DisSACC's error" in TINY.summary(outcome)[0]
    assert {len(column) for column in TINY.table(outcome).values()} == {len(outcome.facts["rows"])}
