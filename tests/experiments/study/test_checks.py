"""Verdicts: every kind of check passes when it should and fails when it should."""

import math

import pytest

from fedhsa.experiments.study.checks import at_most, equals, inside, near
from fedhsa.experiments.study.claims import CLAIMS, judge
from fedhsa.statistics import Estimate

SHARP, WIDE = Estimate(2.0, 1.9, 2.1), Estimate(2.0, 0.2, 20.0)


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        (near(1, "n", "s", 1 + 1e-9, 1.0, tolerance=1e-8), "pass"),
        (near(1, "n", "s", 1 + 1e-7, 1.0, tolerance=1e-8), "fail"),
        (near(1, "n", "s", math.nan, 1.0, tolerance=1e-8), "fail"),
        (near(1, "n", "s", 0.5, 0.0, tolerance=0.5, relative=False), "pass"),
        (at_most(2, "n", "s", 1e-21, 1e-20), "pass"),
        (at_most(2, "n", "s", 2e-20, 1e-20), "fail"),
        (at_most(2, "n", "s", math.nan, 1e-20), "fail"),
        (equals(3, "n", "s", SHARP, 2.05), "pass"),
        (equals(3, "n", "s", SHARP, 2.2), "fail"),
        (equals(3, "n", "s", SHARP, 2.2, slack=0.05), "pass"),
        (equals(3, "n", "s", SHARP, 2.2, slack=0.04), "fail"),
        (equals(3, "n", "s", WIDE, 2.0), "fail"),
        (equals(3, "n", "s", WIDE, 2.0, precision=10.0), "pass"),
        (equals(4, "n", "s", Estimate(-0.9, -0.95, -0.85), -1.0, slack=0.05, precision=0.1, relative=False), "pass"),
        (equals(4, "n", "s", Estimate(-0.9, -0.95, -0.85), -1.1, slack=0.05, precision=0.1, relative=False), "fail"),
        (equals(3, "n", "s", Estimate(math.nan, math.nan, math.nan), 2.0), "fail"),
        (inside(3, "n", "s", SHARP, 1.0, math.inf), "pass"),
        (inside(3, "n", "s", SHARP, 1.95, math.inf), "fail"),
        (inside(3, "n", "s", SHARP, -math.inf, 2.2), "pass"),
        (inside(3, "n", "s", Estimate(math.nan, math.nan, math.nan), 0.0, 1.0), "fail"),
    ],
)
def test_a_check_passes_when_the_numbers_say_so_and_fails_otherwise(check, verdict):
    assert check.verdict == verdict
    assert check.rule


def test_a_claim_passes_when_all_its_checks_do_and_has_no_verdict_without_any():
    good, bad = near(1, "good", "s", 1.0, 1.0, tolerance=0), near(2, "bad", "s", 2.0, 1.0, tolerance=0)
    claims = {claim.number: claim for claim in judge([good, bad, good._replace(claim=2)])}
    assert [claims[n].verdict for n in (1, 2, 3)] == ["pass", "fail", None]
    assert list(claims) == list(CLAIMS) == list(range(1, 11))
