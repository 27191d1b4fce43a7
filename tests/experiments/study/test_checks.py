"""Verdicts: every kind of check passes when it should and fails when it should."""

import math

import pytest

from fedhsa.experiments.study.checks import Checks
from fedhsa.experiments.study.claims import CLAIMS, judge
from fedhsa.statistics import Estimate


def check(kind, *numbers, **settings):
    checks = Checks(1, "study")
    getattr(checks, kind)("name", "statement", *numbers, **settings)
    return checks.found[0]


SHARP, WIDE = Estimate(2.0, 1.9, 2.1), Estimate(2.0, 0.2, 20.0)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (check("near", 1 + 1e-9, 1.0, tolerance=1e-8), "pass"),
        (check("near", 1 + 1e-7, 1.0, tolerance=1e-8), "fail"),
        (check("near", 0.5, 1.0, tolerance=0.4), "fail"),
        (check("near", math.nan, 1.0, tolerance=1e-8), "fail"),
        (check("near", 0.5, 0.0, tolerance=0.5, relative=False), "pass"),
        (check("at_most", 1e-21, 1e-20), "pass"),
        (check("at_most", 2e-20, 1e-20), "fail"),
        (check("at_most", math.nan, 1e-20), "fail"),
        (check("equals", SHARP, 2.05), "pass"),
        (check("equals", SHARP, 2.2), "fail"),
        (check("equals", SHARP, 2.2, slack=0.05), "pass"),
        (check("equals", SHARP, 2.2, slack=0.04), "fail"),
        (check("equals", WIDE, 2.0), "not decided"),
        (check("equals", Estimate(2.0, 1.4, 2.6), 2.0, precision=0.31), "pass"),
        (check("equals", Estimate(2.0, 1.4, 2.6), 2.0, precision=0.29), "not decided"),
        (check("equals", WIDE, 2.0, precision=10.0), "pass"),
        (check("equals", Estimate(-0.9, -0.95, -0.85), -1.0, slack=0.05, precision=0.1, relative=False), "pass"),
        (check("equals", Estimate(-0.9, -0.95, -0.85), -1.1, slack=0.05, precision=0.1, relative=False), "fail"),
        (check("equals", Estimate(math.nan, math.nan, math.nan), 2.0), "fail"),
        (check("inside", SHARP, 1.0, math.inf), "pass"),
        (check("inside", SHARP, 1.95, math.inf), "not decided"),
        (check("inside", SHARP, 2.2, math.inf), "fail"),
        (check("inside", SHARP, -math.inf, 1.8), "fail"),
        (check("inside", Estimate(math.inf, math.inf, math.inf), 1.0, math.inf), "fail"),
        (check("at_most", 2.0, 1.0), "fail"),
        (check("at_most", 2.0, 1.0, short="the run is too short"), "not decided"),
        (check("at_most", 1.0, 1.0, short="the run is too short"), "pass"),
        (check("inside", SHARP, -math.inf, 2.2), "pass"),
        (check("inside", Estimate(math.nan, math.nan, math.nan), 0.0, 1.0), "fail"),
    ],
)
def test_a_check_passes_or_fails_as_the_numbers_say_and_decides_nothing_where_they_do_not(found, verdict):
    assert found.verdict == verdict
    assert found.rule
    assert (found.claim, found.name) == (1, "study: name")


def test_a_claim_passes_when_all_its_checks_do_and_has_no_verdict_without_any():
    good, bad = check("near", 1.0, 1.0, tolerance=0), check("near", 2.0, 1.0, tolerance=0)._replace(claim=2)
    vague = check("equals", WIDE, 2.0)._replace(claim=4)
    claims = {
        claim.number: claim for claim in judge([good, bad, good._replace(claim=2), vague, good._replace(claim=4)])
    }
    assert [claims[n].verdict for n in (1, 2, 3, 4)] == ["pass", "fail", None, "not decided"]
    assert list(claims) == list(CLAIMS) == list(range(1, 11))
