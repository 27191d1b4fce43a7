"""Scaffnew's probability of communicating."""

import dataclasses
import json
import math

import numpy as np
import pytest

from fedhsa.experiments.field.scaffnew import Probability, vertex
from fedhsa.experiments.study.base import Outcome, Runner

STUDY = Probability()
TINY = dataclasses.replace(
    STUDY,
    condition_numbers=(9.0, 25.0),
    multiples=(0.5, 1.0, 2.0),
    compared=9.0,
    local_steps=(3,),
    steps=(1.0,),
    seeds=4,
)


def made(power: float = -0.5, times: float = 1.0, **exchanges: float) -> Outcome:
    """An outcome in which the best p is `times` kappa to the `power`, and methods need so many exchanges."""
    noise, arrays = 1 + 0.01 * np.random.default_rng(0).normal(size=STUDY.seeds), {}
    for kappa in STUDY.condition_numbers:
        best = times * (kappa / 200) ** (power + 0.5) / math.sqrt(kappa)
        for multiple in STUDY.multiples:
            p = min(1.0, multiple / math.sqrt(kappa))
            arrays[f"{kappa:g} {multiple:g}"] = noise * 100 * math.cosh(math.log(p / best))
    needed = {"Scaffnew": 100.0, "SCAFFLSA": 110.0, "FedHSA": 200.0, "SGD": 2000.0} | exchanges
    rows = [{"method": m, "H": 20, "step": 1.0, "exchanges": n, "end": None} for m, n in needed.items() if m != "end"]
    rows.append({"method": "LocalSA", "H": 20, "step": 1.0, "exchanges": None, "end": exchanges.get("end", 1e-2)})
    return Outcome(arrays, {"curvature": {}, "rows": rows})


def failing(outcome: Outcome) -> set[str]:
    return {check.name.split(": ")[1] for check in STUDY.checks(outcome) if check.verdict != "pass"}


def test_the_law_passes():
    assert not failing(made())


def test_the_vertex_is_found_between_grid_points():
    p = np.geomspace(0.01, 1, 9)
    assert abs(vertex(p, np.exp(np.log(p / 0.13) ** 2)) - 0.13) < 1e-9


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"power": -0.8}, "slope"),
        ({"power": -0.2}, "slope"),
        ({"times": 0.45}, "kappa = 100"),
        ({"times": 2.2}, "kappa = 100"),
        ({"Scaffnew": 200.0}, "as good as SCAFFOLD"),
        ({"Scaffnew": 1500.0}, "fewer than SGD"),
        ({"end": 1e-9}, "Local SA stalls"),
    ],
)
def test_another_law_fails(changed, expected):
    assert expected in failing(made(**changed))


@pytest.mark.slow
def test_a_small_run_gives_what_is_kept_on_disk():
    outcome = TINY.run(Runner())
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
    assert all(np.isfinite(row).all() for row in outcome.arrays.values())
    few = {row["method"]: row["exchanges"] for row in outcome.facts["rows"]}
    assert few["LocalSA"] is None
    assert few["Scaffnew"] < few["SGD"]
    assert len(TINY.draw(outcome).axes) == 3
    assert "Scaffnew needs" in TINY.summary(outcome)[1]
    assert len({len(column) for column in TINY.table(outcome).values()}) == 1
