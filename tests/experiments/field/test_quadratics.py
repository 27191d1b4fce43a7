"""SCAFFOLD's two quadratics."""

import dataclasses
import json

import numpy as np
import pytest

from fedhsa.experiments.field.quadratics import RADII, Quadratics, fed_radius, last_above, local_limit, scaffold_radius
from fedhsa.experiments.study.base import Outcome, Runner

STUDY = Quadratics()
TINY = dataclasses.replace(
    STUDY, dissimilarities=(1.0, 10.0), local_steps=(2,), tried_steps=(0.225,), halvings=8, most_rounds=500
)


def made(**changed: float) -> Outcome:
    """What the source says, but for what is changed."""
    value = {"limit": 1.0, "G": 100.0, "K": 2.0, "scaffold": 1.0, "fed": 1.0, "speed": 1.0} | changed
    arrays, rows = {}, []
    for k, G in enumerate(STUDY.dissimilarities):
        arrays[f"SGD {G:g}"] = 0.5 ** np.arange(200.0)
        rows.append({"method": "SGD", "K": 1, "G": G, "step": 1.0, "rounds": 7})
        for K in STUDY.local_steps:
            limit = local_limit(STUDY.common_step, K, G) * value["limit"]
            arrays[f"LocalSA {K} {G:g}"] = np.full(200, limit**2)
            arrays[f"SCAFFOLD {K} {G:g}"] = 0.5 ** (np.arange(200.0) * (value["scaffold"] if k else 1.0))
            arrays[f"FedHSA {K} {G:g}"] = 0.5 ** (np.arange(200.0) * (value["fed"] if k else 1.0))
            slower = value["K"] if STUDY.local_steps[-1] == K else 1.0
            rounds = round(100 * slower * value["G"] ** (k / 2))
            rows += [{"method": m, "K": K, "G": G, "step": 1.0, "rounds": 5} for m in ("SCAFFOLD", "FedHSA")]
            rows.append({"method": "LocalSA", "K": K, "G": G, "step": 1.0, "rounds": rounds})
    steps = np.array(STUDY.tried_steps)
    speeds = {"SGD": list(-np.log(1 - steps / 2))}
    for method, radius in RADII.items():
        for K in STUDY.local_steps:
            speeds[f"{method} {K}"] = [-np.log(radius(step, K)) for step in steps]
    speeds["SCAFFOLD 10"][0] *= value["speed"]
    return Outcome(arrays, {"rows": rows, "speeds": speeds})


def failing(outcome: Outcome) -> set[str]:
    return {check.name.split(": ")[1] for check in STUDY.checks(outcome) if check.verdict != "pass"}


def test_what_the_source_says_passes():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"limit": 1.001}, {"Local SA, limit"}),
        ({"G": 10.0}, {"Local SA, K = 2, slower with G", "Local SA, K = 10, slower with G"}),
        ({"K": 1.0}, {"Local SA, slower with K"}),
        ({"scaffold": 0.8}, {"SCAFFOLD, K = 2, same speed for all G", "SCAFFOLD, K = 10, same speed for all G"}),
        ({"fed": 1.001}, {"FedHSA, K = 2, same path for all G", "FedHSA, K = 10, same path for all G"}),
        ({"speed": 1.2}, {"SCAFFOLD, K = 10, speed"}),
    ],
)
def test_anything_else_fails(changed, expected):
    assert failing(made(**changed)) == expected


@pytest.mark.slow
def test_the_closed_forms_are_those_of_the_runs():
    outcome = TINY.run(Runner())
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
    for G in TINY.dissimilarities:
        limit = local_limit(TINY.common_step, 2, G)
        np.testing.assert_allclose(outcome.arrays[f"LocalSA 2 {G:g}"][-1], limit**2, rtol=1e-9)
        for method, radius in (("SCAFFOLD", scaffold_radius), ("FedHSA", fed_radius)):
            error = outcome.arrays[f"{method} 2 {G:g}"]
            start, end = last_above(error, 1e-6), last_above(error, 1e-22)
            measured = (error[end] / error[start]) ** (1 / (2 * (end - start)))
            assert abs(measured - radius(TINY.common_step, 2)) < 1e-3
    assert len(TINY.draw(outcome).axes) == 4
    assert TINY.summary(outcome)[0].startswith("At one step")
    assert {len(column) for column in TINY.table(outcome).values()} == {len(outcome.facts["rows"])}
