"""Ranking of methods by their scores on the same seeds: intervals, paired tests, and ties."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import statistics
from ..statistics import Estimate

LEVEL = 0.95
"""The level of the intervals; the tests have the level 1 - `LEVEL`."""
ROUNDING = 1e-9
"""Differences below this fraction of the largest score are rounding, and count as zero."""
MOST_ENUMERATED = 16
"""The largest number of seeds for which all sign flips are enumerated."""
SAMPLED = 16, 4096
"""The number of batches of random sign flips with more seeds, and the number of flips in a batch."""


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
    """The probability of means at least this far apart if the methods do not differ, by sign flips."""
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

    Seeds are paired: with the same key all methods see the same observations, so that common noise cancels in the
    differences $a_s - b_s$ of the seeds $s$. If two methods do not differ, each difference is equally likely to have
    the opposite sign. The p-value is the fraction of all $2^n$ choices of signs whose mean difference is at least as
    large as the observed one, which is exact for any distribution of the scores. With more than 16 seeds, 65 536 random
    choices replace them, always the same. Holm's correction makes the p-values hold for all pairs together.

    With $n$ seeds no p-value is below $2^{1-n}$: a single pair requires at least 6 seeds to differ significantly, and
    $m$ pairs require `least_seeds(m)`.

    **Arguments:**

    - `scores`: for each method, one score per seed. Scores are positive, and smaller is better.
    - `signed`: scores may be negative, and larger is better, as for returns. Pairs then have a difference instead of a
      ratio.

    Raises `ValueError` if there are fewer than two seeds.

    !!! example
        >>> noise = np.array([1.0, 2.0, 3.0, 2.0, 1.0, 4.0, 2.0, 3.0])
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
    chosen = list(itertools.combinations(rows, 2))
    if not chosen:
        return ()
    p_values = flip_signs(np.stack([_difference(rows[a], rows[b]) for a, b in chosen], axis=1)).tolist()
    return tuple(
        Pair(a, b, _UNKNOWN, p, adjusted, _mean(rows[a] - rows[b], signed=True))
        if signed
        else Pair(a, b, statistics.ratio(rows[b], rows[a], LEVEL), p, adjusted)
        for (a, b), p, adjusted in zip(chosen, p_values, holm(p_values), strict=True)
    )


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the differences of the seeds, without those by rounding."""
    apart = a - b
    return np.where(abs(apart) > ROUNDING * max(abs(a).max(), abs(b).max()), apart, 0.0)


def flip_signs(differences: np.ndarray) -> np.ndarray:
    """Returns the two-sided p-value of each column `(seeds, pairs)` of paired differences, by sign flips.

    !!! example
        >>> flip_signs(np.array([[3.0], [1.0], [2.0]])).item()       # only +++ and --- are as far from 0: 2 of 8
        0.25
    """
    n = len(differences)
    # Sums that are equal but for rounding must count as equal.
    observed = abs(differences.sum(0)) - 1e-12 * abs(differences).sum(0)
    if n <= MOST_ENUMERATED:
        # The last sign stays, since flipping all signs changes no absolute value.
        signs = 1.0 - 2.0 * (np.arange(2 ** (n - 1))[:, None] >> np.arange(n) & 1)
        return np.mean(abs(signs @ differences) >= observed, axis=0)
    rng, (batches, size) = np.random.default_rng(0), SAMPLED
    sums = (rng.choice([-1.0, 1.0], (size, n)) @ differences for _ in range(batches))
    reached = np.sum([np.sum(abs(part) >= observed, axis=0) for part in sums], axis=0)
    return (reached + 1) / (batches * size + 1)  # the observed signs are one of the choices


def least_seeds(pairs: int) -> int:
    """Returns the smallest number of seeds with which any of so many pairs of methods can differ significantly.

    !!! example
        >>> least_seeds(1), least_seeds(3), least_seeds(6)
        (6, 7, 8)
    """
    return math.floor(math.log2(max(pairs, 1) / (1 - LEVEL))) + 2


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
