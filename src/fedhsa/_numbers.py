"""Numbers as people read them: the one place for the digits, powers of ten, units and durations that are printed."""

import math
from collections.abc import Sequence
from typing import Any

MINUS, TIMES, SPACE = "\u2212", "\u00d7", "\u00a0"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(value: Any, digits: int = 3, *, unknown: str = "not known", infinite: str = "∞") -> str:
    """Returns a number for a terminal, with few digits and whole from 1000 on; what is no number stays as it is.

    >>> plain(0.12345), plain(12345.6), plain(math.nan), plain(math.inf, infinite="never"), plain(None)
    ('0.123', '12,346', 'not known', 'never', '-')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value)
    if math.isnan(value):
        return unknown
    if math.isinf(value):
        return infinite if value > 0 else f"-{infinite}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def typeset(value: Any, digits: int = 4) -> str:
    """Returns a number for a page, with powers of ten, true minus signs and spaces between thousands.

    >>> typeset(1.23456e-05), typeset(-0.98765), typeset(1e-20), typeset(math.inf), typeset(20000)
    ('1.235\xa0×\xa010⁻⁵', '−0.9877', '10⁻²⁰', '∞', '20\xa0000')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {"infinity": "∞", "-infinity": f"{MINUS}∞", "None": "unknown"}.get(str(value), str(value))
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    mantissa, exponent = _split(value, digits)
    if -3 <= exponent <= 4 or isinstance(value, int):
        decimals = 0 if isinstance(value, int) else max(digits - 1 - exponent, 0)
        text = f"{value:,.{decimals}f}"
        text = (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", MINUS)
        return text.replace(",", SPACE) if abs(value) >= 10_000 else text.replace(",", "")
    sign, size = (MINUS, mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    return sign + (_power(exponent) if size == "1" else f"{size}{SPACE}{TIMES}{SPACE}{_power(exponent)}")


def interval(ends: Sequence[float] | None) -> str:
    """Returns the two ends in brackets for a page, followed by their common power of ten.

    >>> interval((1.1e-05, 1.4e-05)), interval((0.9, 1.25))
    ('[1.1, 1.4]\xa0×\xa010⁻⁵', '[0.9, 1.25]')
    """
    if ends is None:
        return ""
    split = [_split(end, 4) for end in ends if math.isfinite(end)]
    exponents = {exponent for _, exponent in split}
    if len(split) == 2 and len(exponents) == 1 and not -3 <= (exponent := exponents.pop()) <= 4:
        low, high = (mantissa.replace("-", MINUS) for mantissa, _ in split)
        return f"[{low}, {high}]{SPACE}{TIMES}{SPACE}{_power(exponent)}"
    return "[" + ", ".join(typeset(end) for end in ends) + "]"


def tick(value: float) -> str:
    """Returns a number for an axis or a label, in as few characters as its size allows.

    >>> tick(0.00032), tick(20.0), tick(0.25), tick(math.inf)
    ('3.2×10⁻⁴', '20', '0.25', '∞')
    """
    if not math.isfinite(value) or value == 0 or 1e-2 <= abs(value) < 1e5:
        return plain(value)
    mantissa, exponent = _split(value, 2)
    return _power(exponent) if mantissa == "1" else f"{mantissa}{TIMES}{_power(exponent)}"


def traffic(count: float) -> str:
    """Returns a number of bytes on a network, in decimal units.

    >>> traffic(12), traffic(3.2e6), traffic(math.inf)
    ('12 B', '3.2 MB', 'never')
    """
    if math.isinf(count):
        return "never"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def memory(count: float) -> str:
    """Returns a number of bytes in memory, in binary units.

    >>> memory(100), memory(3 * 2**30)
    ('100 bytes', '3 GiB')
    """
    thousands = min(max(0, int(math.log2(max(count, 1)) / 10)), 8)
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")[thousands]
    return f"{count / 2 ** (10 * thousands):.3g} {unit}"


def duration(seconds: float) -> str:
    """Returns a duration in readable units.

    >>> duration(0.23), duration(12.4), duration(59.8), duration(200), duration(7200)
    ('0.2 s', '12 s', '1 min', '3 min 20 s', '2 h')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (0 if hours else seconds, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def about(seconds: float) -> str:
    """Returns an estimated duration in words, in the unit that gives a small number.

    >>> about(40), about(540), about(7200), about(260_000)
    ('40 s', '9 minutes', '2 hours', '3 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def _split(value: float, digits: int) -> tuple[str, int]:
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa, int(exponent)


def _power(exponent: int) -> str:
    return f"10{str(exponent).translate(SUPERSCRIPTS)}"
