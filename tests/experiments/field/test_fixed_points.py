"""Where local steps on exact operators stop."""

import dataclasses
import json

import numpy as np
import pytest

from fedhsa.experiments.field.fixed_points import FixedPoints, loopless_mean, neighbourhood
from fedhsa.experiments.study.base import Outcome, Runner
from fedhsa.theory.paper.bounds import local_sa_bias

STUDY = FixedPoints()
TINY = dataclasses.replace(STUDY, local_steps=(2,), steps=(1.0,), seeds=4, coin_rounds=200)


def made() -> Outcome:
    """Distances that grow with H and with the step, and are those of theory."""
    arrays, rows, noise = {}, [], 1 + 0.02 * np.random.default_rng(0).normal(size=(32, 1))
    for family in ("quadratic", "logistic"):
        for step in STUDY.steps:
            for H in (1, *STUDY.local_steps):
                size = 0.1 * step * (1 - 1 / H)
                row = {"family": family, "step": step, "H": H, "fixed": size, "bound": 1.0, "early": 0.5 / H}
                row |= {"off": 0.0, "predicted": size} if family == "quadratic" else {}
                if H > 1:
                    row |= {"irregular": size}
                    row |= {"off_irregular": 0.0, "predicted_coin": 2 * size} if family == "quadratic" else {}
                    arrays[f"{family} {step:g} {H}/coin"] = 2 * size**2 * noise[:, 0]
                    arrays[f"{family} {step:g} {H}/coin mean"] = 2 * size * np.hstack([noise, 0 * noise])
                arrays[f"{family} {step:g} {H}/error"] = 0.5 ** np.arange(20.0)
                rows.append(row)
    return Outcome(arrays, {"rows": rows})


def failing(outcome: Outcome) -> set[str]:
    return {check.name.split(": ")[1] for check in STUDY.checks(outcome) if check.verdict != "pass"}


def test_what_the_source_says_passes():
    assert not failing(made())


@pytest.mark.slow
def test_a_small_run_gives_what_is_kept_on_disk():
    outcome = TINY.run(Runner())
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
    assert all(row["fixed"] <= row["bound"] for row in outcome.facts["rows"] if row["H"] > 1)
    assert len(TINY.draw(outcome).axes) == 4
    assert "bound S" in TINY.summary(outcome)[0]
    assert {len(column) for column in TINY.table(outcome).values()} == {len(outcome.facts["rows"])}


@pytest.mark.parametrize(
    ("changed", "value", "expected"),
    [
        ("off", 1e-3, "quadratic, limit"),
        ("off_irregular", 1e-3, "quadratic, irregular limit"),
        ("fixed", 1e3, "quadratic, bound, fixed"),
        ("irregular", 1e3, "quadratic, bound, irregular"),
        ("fixed", 1e-4, "quadratic, 1, grows with H"),
        ("fixed", 1e-4, "quadratic, grows with the step"),
        ("early", 2.0, "quadratic, 1, faster start"),
        ("predicted_coin", 1.0, "coin, mean"),
    ],
)
def test_other_numbers_fail(changed, value, expected):
    other = made()
    row = next(r for r in other.facts["rows"] if (r["family"], r["step"], r["H"]) == ("quadratic", 1.0, 50))
    assert changed in row
    row[changed] = value
    assert expected in failing(other)


@pytest.mark.parametrize(("times", "expected"), [(0.1, "logistic, coin, smallest"), (20.0, "logistic, coin, largest")])
def test_coins_that_leave_another_size_fail(times, expected):
    other = made()
    other.arrays["logistic 1 50/coin"] = times * other.arrays["logistic 1 50/coin"]
    assert expected in failing(other)


def test_the_mean_with_coins_is_twice_as_far_off_for_small_steps():
    rng = np.random.default_rng(0)
    R = rng.normal(size=(3, 2, 2))
    A, b = -(R @ np.swapaxes(R, 1, 2) + np.eye(2)), rng.normal(size=(3, 2))
    root, H, gamma = np.linalg.solve(A.mean(0), b.mean(0)), 5, 1e-5
    np.testing.assert_allclose(loopless_mean(A, b, gamma, 1 / H) - root, 2 * local_sa_bias(A, b, gamma, H), rtol=1e-3)


def test_the_bound_holds_for_one_parameter():
    A, b = np.array([[[-1.0]], [[-3.0]]]), np.array([[-1.0], [2.0]])
    root, gamma = (b.mean(0) / A.mean(0)[0])[0], 0.2
    pull = gamma * abs(A[:, 0, 0] * root - b[:, 0]).mean()
    for H in (2, 5, 20):
        assert abs(local_sa_bias(A, b, gamma, H)[0]) <= neighbourhood(1 - gamma, H, float(pull))
