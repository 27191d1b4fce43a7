"""QAvg in heterogeneous environments."""

import numpy as np
import pytest

from fedhsa.experiments.rl.qavg import QAvg, returns, times
from fedhsa.experiments.study.base import Outcome

STUDY = QAvg()


def made(
    power: float = -1.0,
    slower: float = 4.0,
    stalled: float = 1e-2,
    corrected: float = 1e-12,
    loss: float = 0.02,
    nominal: float = 0.0,
) -> Outcome:
    """Errors that fall to this power of time, `slower` times later for the most local steps; the floor of constant
    steps, the error of FedHSA, the part of the return that heterogeneous cliffs cost, and
    how much more they cost in the nominal one."""
    rng = np.random.default_rng(0)
    noise, at, arrays = 1 + 0.05 * rng.normal(size=(STUDY.seeds, 1)), 16 * np.arange(401), {}
    for E in STUDY.local_steps:
        late = slower if max(STUDY.local_steps) == E else 1.0
        arrays[f"capped, E = {E}"] = 10 * (1 + at / late) ** power * noise
        arrays[f"printed, E = {E}"] = arrays[f"capped, E = {E}"]
        arrays[f"constant, E = {E}"] = 10 * np.exp(-at / 100) + stalled * noise
        arrays[f"FedHSA, E = {E}"] = 10 * np.exp(-at / 100) + corrected * noise
    for kappa in STUDY.kappas:
        luck = 1 + 0.001 * rng.normal(size=STUDY.cohorts)
        worth = 134 * (1 - loss * kappa) * luck
        arrays |= {f"cohort, {kappa:g}": worth, f"own, {kappa:g}": worth + 1}
        arrays[f"centre, {kappa:g}"] = (133.97 - (0.4 + nominal) * kappa) * luck
    return Outcome(arrays, {"every": 16})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/qavg: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_one_limit_that_is_reached_later_with_more_local_steps_passes():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"power": -0.2}, {*(f"one limit, E = {E}" for E in STUDY.local_steps)}),
        ({"power": 1.0}, {*(f"{what}, E = {E}" for E in (1, 4, 16) for what in ("one limit", "bound"))}),
        ({"slower": 0.5}, {"slower with E"}),
        ({"stalled": 1e-4}, {"constant steps stop"}),
        ({"corrected": 1e-3}, {"FedHSA"}),
        ({"loss": 0.0}, {"returns fall"}),
        ({"nominal": 1.0}, {"return, kappa = 0.8"}),
    ],
)
def test_other_limits_fail(changed, names):
    assert failing(made(**changed)) >= names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 3
    assert "FedHSA gets to 1e-12 for every E" in STUDY.summary(made())[1]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_ratios_of_unlike_sizes_are_compared_by_their_logarithms():
    assert times(np.array([2e-6, 2.0, 3e3]), np.array([1e-6, 1.0, 1.5e3])).value == pytest.approx(2)


def test_like_cliffs_are_worth_what_the_source_prints_and_nobody_can_do_better_than_in_the_own_environment():
    found = returns(5, 3, 0.0, 0)
    for earned in found.values():
        np.testing.assert_allclose(earned, 133.97, atol=0.005)
    found = returns(5, 3, 0.8, 0)
    assert (found["cohort"] <= found["own"] + 1e-9).all()


def test_returns_in_the_nominal_environment_are_those_of_the_source_and_those_of_the_cohort_are_lower():
    """At kappa = 0.6 the mean over 400,000 cohorts is 133.957; four standard errors are allowed."""
    found = returns(5, 300, 0.6, 0)
    assert abs(found["centre"].mean() - 133.957) < 4 * found["centre"].std() / np.sqrt(300) < 0.05
    assert found["cohort"].mean() < 133.5
