"""A claim's verdict as a value: what was measured, what was expected, the interval, and the rule that decides."""

from typing import Any, NamedTuple

from ...statistics import Estimate

PASS, FAIL = "pass", "fail"


class Check(NamedTuple):
    """One row of the table of claims."""

    claim: int
    """Which of the claims it belongs to."""
    name: str
    statement: str
    measured: float
    expected: float | str
    """A number, or a condition such as `> 1`."""
    interval: tuple[float, float] | None
    """Of the measured number, where it is random."""
    rule: str
    """How the verdict follows from the numbers."""
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return self._asdict()


def near(
    claim: int, name: str, statement: str, measured: float, expected: float, *, tolerance: float, relative: bool = True
) -> Check:
    """A number without noise is what it should be, up to `tolerance`.

    !!! example
        >>> near(1, "limit", "The limit is 2.", 2.0 + 1e-9, 2.0, tolerance=1e-8).verdict
        'pass'
    """
    off = abs(measured - expected) / (abs(expected) if relative else 1)
    rule = f"{'relative ' if relative else ''}difference at most {tolerance:g}"
    return Check(claim, name, statement, measured, expected, None, rule, _verdict(off <= tolerance))


def at_most(claim: int, name: str, statement: str, measured: float, limit: float) -> Check:
    """A number without noise stays below a limit."""
    return Check(
        claim, name, statement, measured, f"<= {limit:g}", None, "at most the limit", _verdict(measured <= limit)
    )


def equals(
    claim: int,
    name: str,
    statement: str,
    measured: Estimate,
    expected: float,
    *,
    slack: float = 0.0,
    precision: float = 0.25,
    relative: bool = True,
) -> Check:
    """The interval contains the expected number and is short enough to mean something.

    **Arguments:**

    - `slack`: how far the expected number may itself be off, where it is no exact law.
    - `precision`: the largest half-width of the interval that still counts.
    - `relative`: whether both are parts of the expected number.

    !!! example
        >>> equals(3, "floor", "The floor is 2.", Estimate(2.1, 1.9, 2.3), 2.0).verdict
        'pass'
        >>> equals(3, "floor", "The floor is 2.", Estimate(2.1, 0.5, 9.0), 2.0).verdict
        'fail'
    """
    unit = abs(expected) if relative else 1.0
    meets = measured.low <= expected + slack * unit and measured.high >= expected - slack * unit
    sharp = (measured.high - measured.low) / 2 <= precision * unit
    about = f", give or take {_amount(slack, relative)}" if slack else ""
    needed = " (and needs it)" if slack and meets and not measured.contains(expected) else ""
    rule = f"interval contains the expected number{about}{needed}, half-width at most {_amount(precision, relative)}"
    return Check(claim, name, statement, measured.value, expected, measured.interval, rule, _verdict(meets and sharp))


def inside(claim: int, name: str, statement: str, measured: Estimate, low: float, high: float) -> Check:
    """The whole interval lies in a range.

    !!! example
        >>> inside(3, "ratio", "The ratio is above 1.", Estimate(1.5, 1.2, 1.8), 1.0, float("inf")).verdict
        'pass'
    """
    if high == float("inf"):
        expected, rule = f"> {low:g}", "the whole interval is above"
    elif low == float("-inf"):
        expected, rule = f"< {high:g}", "the whole interval is below"
    else:
        expected, rule = f"{low:g} to {high:g}", "the whole interval is inside"
    verdict = _verdict(low < measured.low and measured.high < high)
    return Check(claim, name, statement, measured.value, expected, measured.interval, rule, verdict)


def _verdict(holds: bool) -> str:
    return PASS if holds else FAIL


def _amount(part: float, relative: bool) -> str:
    return f"{100 * part:g} %" if relative else f"{part:g}"
