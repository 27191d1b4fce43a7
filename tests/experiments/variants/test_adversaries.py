"""FedHSA with hostile agents."""

import dataclasses
import json

import numpy as np
import pytest
import scipy.optimize

from fedhsa.experiments.study.base import Outcome, Runner
from fedhsa.experiments.variants.adversaries import FILTER, MEAN, MEDIAN, Adversaries

STUDY = Adversaries()


def made(off: str = "", by: float = 1.5) -> Outcome:
    """An outcome as the laws have it; what has `off` in its name is off by a factor."""
    problem, rows, costs = STUDY.problem(), [], []

    def factor(name: str) -> float:
        return by if off and off in name else 1.0

    for rule, kind, place, size in STUDY._attacks():
        known = STUDY.known_limit(problem, kind, place, size) if rule == MEAN else None
        law = None if known is None else float(((known - problem.root) ** 2).sum())
        error = (0.01 if law is None else law) * factor(f"{rule}/{kind}")
        rows.append({"rule": rule, "attack": kind, "place": place, "size": size, "error": error, "law": law})
    for rule, place, heterogeneity in STUDY._costs():
        error = 0.01 if place == "operators" else by - 1 if off == "root" else 0.0
        at = {"rule": rule, "place": place, "heterogeneity": heterogeneity}
        costs.append(at | {"error": error, "median": (by - 1 if off == "balance" else 0.0) if rule == MEDIAN else None})
    factors = {rule: 1.3 for rule in STUDY.rules if rule != FILTER}
    jitter = 1 + 0.01 * np.random.default_rng(0).normal(size=STUDY.seeds)
    arrays = {f"{MEAN}/both": jitter}
    for rule, loss in factors.items():
        for place in ("operators", "displacements"):
            arrays[f"{rule}/{place}"] = jitter[::-1] * STUDY.expected_ratio(loss, place) * factor(f"noise of {rule}")
    return Outcome(arrays, {"rows": rows, "costs": costs, "factors": factors})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("field/adversaries: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_what_the_laws_say_passes():
    assert failing(made()) == set()


@pytest.mark.parametrize(
    ("off", "named"),
    [
        ("mean/sign flip", "mean, sign flip 3, operators"),
        ("mean/shift", "mean, shift 1, displacements"),
        ("median/shift", "median, shift 1, displacements"),
        ("root", "median of displacements, heterogeneity 1"),
        ("balance", "median of operators, heterogeneity 0.5"),
        ("noise of trimmed mean", "trimmed mean of operators, noise"),
    ],
)
def test_what_the_laws_do_not_say_fails(off, named):
    assert named in failing(made(off))


@pytest.mark.slow
def test_the_summary_and_the_figure_say_what_was_found(tmp_path):
    outcome = made()
    assert "flips its displacements nothing" in STUDY.summary(outcome)[0]
    STUDY.draw(outcome).savefig(tmp_path / "figure.png")
    assert len(STUDY.table(outcome)["rule"]) == len(outcome.facts["rows"]) + len(outcome.facts["costs"])


def test_what_diverges_is_kept_and_shown(tmp_path):
    outcome = made()
    rows = [row | {"error": None} if row["size"] == 30 else row for row in outcome.facts["rows"]]
    diverged = Outcome(outcome.arrays, json.loads(json.dumps(outcome.facts | {"rows": rows}, allow_nan=False)))
    assert failing(diverged) == {c for c in failing(diverged) if "30" in c}
    assert len(STUDY.draw(diverged).axes) == 3


def test_a_falsified_average_leads_to_its_own_root():
    """Against a general solver for the zero of what the server averages."""
    problem = STUDY.problem()

    def falsified(theta):
        operators = problem.mean_operators(theta)
        return operators[:-1].sum(0) - 3 * operators[-1]

    found = STUDY.known_limit(problem, "sign flip", "operators", 3.0)
    np.testing.assert_allclose(scipy.optimize.fsolve(falsified, problem.root), found, rtol=1e-8)


def test_a_rule_multiplies_its_own_loss_by_the_local_steps():
    """One round of FedHSA from the root of equal agents with white noise, in NumPy, against the law to first order.

    The median of nine normal replies; 3 standard errors of 100,000 rounds are 2 %.
    """
    rng, H, M, count = np.random.default_rng(0), 4, 9, 100_000
    study = dataclasses.replace(STUDY, local_steps=H)
    e = rng.standard_normal((count, H, M))  # step 0 is the anchor
    median, later = np.median(e[:, 0], axis=1), (e[:, 1:] - e[:, :1]).sum(1)
    factor = 1 + M * np.mean((median - e[:, 0].mean(1)) ** 2)
    moves = {"operators": H * median + later.mean(1), "displacements": H * e[:, 0].mean(1) + np.median(later, axis=1)}
    for place, move in moves.items():
        assert np.var(move) / (H / M) == pytest.approx(study.expected_ratio(factor, place), rel=0.02)


@pytest.mark.slow
def test_it_runs_and_all_checks_pass():
    study = dataclasses.replace(STUDY.quick(), seeds=16)
    outcome = study.run(Runner())
    assert [c.name for c in study.checks(outcome) if c.verdict != "pass"] == []
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
