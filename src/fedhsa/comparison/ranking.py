"""Ranking of methods by their scores on the same seeds: intervals, paired tests, and ties."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from .. import statistics
from ..statistics import Estimate

LEVEL = 0.95
"""The level of the intervals; the tests have the level 1 - `LEVEL`."""
ROUNDING = 1e-9
"""The smallest relative standard error of a ratio. Methods that differ by less than rounding count as equal."""


_UNKNOWN = Estimate(np.nan, np.nan, np.nan)


class Pair(NamedTuple):
    """A paired comparison of two methods on the same seeds."""

    better: str
    """The name of the method with the better mean score."""
    worse: str
    """The name of the other method."""
    ratio: Estimate
    """The worse mean score divided by the better one, with its 95 % interval. NaN for signed scores."""
    p: float
    """The probability of a ratio at least this far from 1 if the methods do not differ."""
    adjusted: float
    """The p-value after Holm's correction for the number of pairs."""
    difference: Estimate | None = None
    """For signed scores, the better mean score minus the worse one; otherwise None."""

    @property
    def different(self) -> bool:
        """Whether the difference is significant, at 5 % for all pairs together."""
        return self.adjusted < 1 - LEVEL


class Place(NamedTuple):
    """The place of one method in a ranking."""

    rank: int
    """The rank, from 1 for the best mean score."""
    name: str
    """The name of the method."""
    score: Estimate
    """The mean score over the seeds, with its 95 % interval; infinite if a seed failed."""
    failed: int
    """The number of seeds without a finite score. Methods with failed seeds come last."""
    ties: tuple[str, ...]
    """The methods that do not differ significantly from this one."""


class Ranking(NamedTuple):
    """Methods from best to worst, with a comparison of every pair."""

    places: tuple[Place, ...]
    """The methods from best to worst."""
    pairs: tuple[Pair, ...]
    """All pairs of methods without failed seeds."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the ranking as plain dictionaries, lists and numbers."""
        estimate = Estimate._asdict
        places = [place._asdict() | {"score": estimate(place.score)} for place in self.places]
        pairs = [
            pair._asdict()
            | {"ratio": estimate(pair.ratio), "difference": pair.difference and estimate(pair.difference)}
            | {"different": pair.different}
            for pair in self.pairs
        ]
        return {"places": places, "pairs": pairs}


def rank(scores: Mapping[str, Any], *, signed: bool = False) -> Ranking:
    r"""Ranks methods by their mean scores over seeds.

    Seeds are paired: with the same key all methods see the same observations, so that common noise cancels in
    $r = \bar a / \bar b$. To first order $\log r$ has the standard error of the mean of
    $a_s / \bar a - b_s / \bar b$ over the seeds $s$ (delta method), which gives Student's test of $r = 1$. Holm's
    correction makes the p-values hold for all pairs together.

    **Arguments:**

    - `scores`: for each method, one score per seed. Scores are positive, and smaller is better.
    - `signed`: scores may be negative, and larger is better, as for returns. They are compared by the mean of
      $a_s - b_s$.

    Raises `ValueError` if there are fewer than two seeds.

    !!! example
        >>> noise = np.array([1.0, 2.0, 3.0, 2.0])
        >>> found = rank({"A": 5 * noise, "B": noise, "C": noise[::-1]})
        >>> [(place.name, place.ties) for place in found.places]
        [('B', ('C',)), ('C', ('B',)), ('A', ())]
    """
    rows = {name: np.asarray(row, dtype=float) for name, row in scores.items()}
    failed = {name: int((~np.isfinite(row)).sum()) for name, row in rows.items()}
    sign = -1 if signed else 1
    order = sorted(rows, key=lambda name: (failed[name], sign * rows[name].mean() if not failed[name] else np.inf))
    sound = [name for name in order if not failed[name]]
    pairs = _pairs({name: rows[name] for name in sound}, signed)
    same = [{pair.better, pair.worse} for pair in pairs if not pair.different]
    places = (
        Place(
            rank=i + 1,
            name=name,
            score=Estimate(np.inf, np.inf, np.inf) if failed[name] else _mean(rows[name], signed),
            failed=failed[name],
            ties=tuple(other for other in order if {name, other} in same),
        )
        for i, name in enumerate(order)
    )
    return Ranking(tuple(places), pairs)


def _mean(row: np.ndarray, signed: bool) -> Estimate:
    if not signed:
        return statistics.mean(row, LEVEL)
    return Estimate(*(float(end[0]) for end in statistics.interval(row[:, None], LEVEL, positive=False)))


def _pairs(rows: Mapping[str, np.ndarray], signed: bool) -> tuple[Pair, ...]:
    """Returns all pairs, with the better method first."""
    test = _test_difference if signed else _test_ratio
    found = [test(rows[a], rows[b], Pair(a, b, _UNKNOWN, 1.0, 1.0)) for a, b in itertools.combinations(rows, 2)]
    adjusted = holm([pair.p for pair in found])
    return tuple(pair._replace(adjusted=q) for pair, q in zip(found, adjusted, strict=True))


def _test_ratio(better: np.ndarray, worse: np.ndarray, pair: Pair) -> Pair:
    """Adds the ratio of the worse mean to the better one, and the p-value of their equality."""
    ratio = statistics.ratio(worse, better, LEVEL)
    return pair._replace(
        ratio=ratio, p=_p_value(np.log(ratio.value), np.log(ratio.high / ratio.value), ROUNDING, len(better))
    )


def _test_difference(better: np.ndarray, worse: np.ndarray, pair: Pair) -> Pair:
    """Adds the difference of the means, and the p-value of their equality."""
    apart = _mean(better - worse, signed=True)
    least = ROUNDING * max(abs(better).max(), abs(worse).max(), 1e-300)
    return pair._replace(difference=apart, p=_p_value(apart.value, apart.high - apart.value, least, len(better)))


def _p_value(away: float, half_width: float, least: float, seeds: int) -> float:
    """Returns the p-value of Student's test that an estimate with this interval is 0.

    `least` is a lower bound on the standard error.
    """
    standard_error = max(half_width / scipy.special.stdtrit(seeds - 1, (1 + LEVEL) / 2), least)
    return float(2 * scipy.special.stdtr(seeds - 1, -abs(away) / standard_error))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values by Holm's method: at any level, the probability of any false rejection is at most that level.

    !!! example
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    adjusted, least, count = [0.0] * len(p_values), 0.0, len(p_values)
    for i, index in enumerate(np.argsort(p_values, kind="stable").tolist()):
        least = max(least, min(1.0, (count - i) * p_values[index]))
        adjusted[index] = least
    return adjusted
