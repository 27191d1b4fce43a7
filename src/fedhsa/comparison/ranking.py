"""Which of several methods is better, from scores on the same seeds: intervals, paired tests, and ties."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from .. import statistics
from ..statistics import Estimate

LEVEL = 0.95
"""Of the intervals, and one minus the level of the tests."""
ROUNDING = 1e-9
"""The least relative standard error of a ratio: methods that differ by rounding alone are equal."""


_UNKNOWN = Estimate(np.nan, np.nan, np.nan)


class Pair(NamedTuple):
    """Two methods on the same seeds."""

    better: str
    worse: str
    ratio: Estimate
    """The worse mean score by the better one, with its own 95 % interval."""
    p: float
    """The chance of a ratio this far from 1, were there no difference."""
    adjusted: float
    """The same, corrected for the number of pairs (Holm)."""
    difference: Estimate | None = None
    """Of scores that may be negative, in the place of the ratio, which is then not a number: by how much the better
    mean score is above the worse."""

    @property
    def different(self) -> bool:
        """Whether chance is ruled out, in this and all other pairs together."""
        return self.adjusted < 1 - LEVEL


class Place(NamedTuple):
    """One method in the order of their mean scores."""

    rank: int
    name: str
    score: Estimate
    failed: int
    """Seeds without a finite score; a method that has one is last."""
    ties: tuple[str, ...]
    """The methods it cannot be told apart from."""


class Ranking(NamedTuple):
    """Methods from best to worst, and what is known of every two of them."""

    places: tuple[Place, ...]
    pairs: tuple[Pair, ...]
    """Of methods of which no seed failed."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
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
    r"""Orders methods by their mean scores, positive numbers of which less is better, one per seed.

    Seeds are paired: with the same key all methods see the same observations, and what these do to all of them alike
    cancels in $r = \bar a / \bar b$. To first order $\log r$ has the standard error of the mean of
    $a_s / \bar a - b_s / \bar b$ over the seeds $s$ (delta method), which gives Student's test of $r = 1$; Holm's
    correction makes the p-values hold for all pairs together.

    Scores that may be negative and of which more is better (`signed`), like returns, are compared by the mean of
    $a_s - b_s$ in the same way.

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
    """Every two, the better one first."""
    test = _test_difference if signed else _test_ratio
    found = [test(rows[a], rows[b], Pair(a, b, _UNKNOWN, 1.0, 1.0)) for a, b in itertools.combinations(rows, 2)]
    adjusted = holm([pair.p for pair in found])
    return tuple(pair._replace(adjusted=q) for pair, q in zip(found, adjusted, strict=True))


def _test_ratio(better: np.ndarray, worse: np.ndarray, pair: Pair) -> Pair:
    """The ratio of the means, the worse by the better, and the p-value of their equality."""
    ratio = statistics.ratio(worse, better, LEVEL)
    return pair._replace(
        ratio=ratio, p=_p_value(np.log(ratio.value), np.log(ratio.high / ratio.value), ROUNDING, len(better))
    )


def _test_difference(better: np.ndarray, worse: np.ndarray, pair: Pair) -> Pair:
    """No ratio, but how far the means are apart, and the p-value of their equality."""
    apart = _mean(better - worse, signed=True)
    least = ROUNDING * max(abs(better).max(), abs(worse).max(), 1e-300)
    return pair._replace(difference=apart, p=_p_value(apart.value, apart.high - apart.value, least, len(better)))


def _p_value(away: float, half_width: float, least: float, seeds: int) -> float:
    """Of Student's test that an estimate with this interval is 0; `least` is the smallest standard error."""
    standard_error = max(half_width / scipy.special.stdtrit(seeds - 1, (1 + LEVEL) / 2), least)
    return float(2 * scipy.special.stdtr(seeds - 1, -abs(away) / standard_error))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjustment: at any level, the chance of even one false difference among all is at most that level.

    !!! example
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    adjusted, least, count = [0.0] * len(p_values), 0.0, len(p_values)
    for i, index in enumerate(np.argsort(p_values, kind="stable").tolist()):
        least = max(least, min(1.0, (count - i) * p_values[index]))
        adjusted[index] = least
    return adjusted
