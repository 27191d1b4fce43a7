"""Checks of claims: the measured and the expected number, the interval, the rule that decides, and the verdict."""

import math
from typing import Any, NamedTuple

from ...statistics import Estimate

PASS, FAIL, UNDECIDED = "pass", "fail", "not decided"
"""The verdicts. A run that is too short or has too few seeds does not refute a claim: the check is not decided."""


class Check(NamedTuple):
    """One row of the table of claims."""

    claim: int
    """The number of the claim that the check belongs to."""
    name: str
    statement: str
    measured: float
    expected: float | str
    """A number, or a condition such as `> 1`."""
    interval: tuple[float, float] | None
    """The confidence interval of the measured number, if it is random."""
    rule: str
    """The rule by which the verdict follows from the numbers."""
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values, with the `$` marks of formulas removed."""
        return self._asdict() | {"statement": self.statement.replace("$", ""), "rule": self.rule.replace("$", "")}


class Checks:
    """The checks of one study, in the order in which they are added.

    **Arguments:**

    - `claim`: the number of the claim that the checks belong to.
    - `study`: the name of the study, which precedes the names of the checks.

    !!! example
        >>> checks = Checks(1, "limits")
        >>> checks.near("quadratic", "The limit is 2.", 2.0 + 1e-9, 2.0, tolerance=1e-8)
        >>> [(check.name, check.verdict) for check in checks.found]
        [('limits: quadratic', 'pass')]
    """

    def __init__(self, claim: int, study: str):
        self.claim, self.study = claim, study
        self.found: list[Check] = []

    def near(
        self,
        name: str,
        statement: str,
        measured: float,
        expected: float,
        *,
        tolerance: float,
        relative: bool = True,
        short: str | None = None,
    ) -> None:
        """Checks that a number without noise agrees with the expected one up to `tolerance`.

        If `short` is given, it is the reason why the run was too short, and a check that does not pass is not decided.
        """
        off = abs(measured - expected) / (abs(expected) if relative else 1)
        rule = f"{'relative ' if relative else ''}difference at most {tolerance:g}"
        self._add_exact((name, statement, measured, expected), rule, off <= tolerance, short)

    def at_most(self, name: str, statement: str, measured: float, limit: float, *, short: str | None = None) -> None:
        """Checks that a number without noise is at most a limit; `short` is the same as in `near`."""
        self._add_exact((name, statement, measured, f"<= {limit:g}"), "at most the limit", measured <= limit, short)

    def equals(
        self,
        name: str,
        statement: str,
        measured: Estimate,
        expected: float,
        *,
        slack: float = 0.0,
        precision: float = 0.25,
        relative: bool = True,
    ) -> None:
        """Checks that the interval contains the expected number and is short enough to be informative.

        The check is not decided if the interval contains the number but is too long.

        **Arguments:**

        - `slack`: the possible error of the expected number, if it is not exact.
        - `precision`: the largest half-width of the interval for a decision.
        - `relative`: whether both are relative to the expected number.

        !!! example
            >>> checks = Checks(3, "floors")
            >>> checks.equals("precise", "The floor is 2.", Estimate(2.1, 1.9, 2.3), 2.0)
            >>> checks.equals("vague", "The floor is 2.", Estimate(2.1, 0.5, 9.0), 2.0)
            >>> [check.verdict for check in checks.found]
            ['pass', 'not decided']
        """
        unit = abs(expected) if relative else 1.0
        meets = measured.low <= expected + slack * unit and measured.high >= expected - slack * unit
        sharp = (measured.high - measured.low) / 2 <= precision * unit
        about = f", give or take {_amount(slack, relative)}" if slack else ""
        needed = " (and needs it)" if slack and meets and not measured.contains(expected) else ""
        widest = _amount(precision, relative)
        rule = f"interval contains the expected number{about}{needed}, half-width at most {widest}"
        if meets and not sharp:
            rule += "; the interval is wider, and more seeds or rounds would decide"
        verdict = (PASS if sharp else UNDECIDED) if meets else FAIL
        self._add((name, statement, measured, expected), rule, verdict)

    def inside(self, name: str, statement: str, measured: Estimate, low: float, high: float) -> None:
        """Checks that the whole interval is in a range; the check is not decided if only a part of the interval is.

        !!! example
            >>> checks = Checks(3, "floors")
            >>> for low, high in ((1.1, 1.3), (0.9, 1.3), (0.7, 0.9)):
            ...     checks.above("ratio", "The ratio is above 1.", Estimate(1.0, low, high))
            >>> [check.verdict for check in checks.found]
            ['pass', 'not decided', 'fail']
        """
        if high == math.inf:
            expected, rule = f"> {low:g}", "the whole interval is above"
        elif low == -math.inf:
            expected, rule = f"< {high:g}", "the whole interval is below"
        else:
            expected, rule = f"{low:g} to {high:g}", "the whole interval is inside"
        verdict = PASS if low < measured.low and measured.high < high else FAIL
        if verdict == FAIL and measured.low < high and measured.high > low and math.isfinite(measured.high):
            verdict, rule = UNDECIDED, f"{rule}; only a part of it is, and more seeds or rounds would decide"
        self._add((name, statement, measured, expected), rule, verdict)

    def above(self, name: str, statement: str, measured: Estimate, low: float = 1.0) -> None:
        """Checks that the whole interval is above a number."""
        self.inside(name, statement, measured, low, math.inf)

    def _add_exact(self, row: tuple[str, str, float, float | str], rule: str, holds: bool, short: str | None) -> None:
        verdict = PASS if holds else FAIL if short is None else UNDECIDED
        self._add(row, f"{rule}; {short}" if verdict == UNDECIDED else rule, verdict)

    def _add(self, row: tuple[str, str, float | Estimate, float | str], rule: str, verdict: str) -> None:
        name, statement, measured, expected = row
        value, interval = (measured.value, measured.interval) if isinstance(measured, Estimate) else (measured, None)
        named = f"{self.study}: {name}"
        self.found.append(Check(self.claim, named, statement, value, expected, interval, rule, verdict))


def _amount(part: float, relative: bool) -> str:
    return f"{100 * part:.3g} %" if relative else f"{part:.3g}"
