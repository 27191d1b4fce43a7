"""What a run of the study of Corollary 1 found, read from its outcome."""

import math
from typing import NamedTuple

import numpy as np

from ... import statistics
from ...theory._lemmas import paper_mu
from ..study.base import Outcome

WORDS = {"T": "rounds", "H": "local steps", "M": "agents"}


class Point(NamedTuple):
    """One run: agents, local steps, rounds."""

    M: int
    H: int
    T: int

    @property
    def samples(self) -> int:
        """All observations of all agents."""
        return self.M * self.H * self.T

    @property
    def scale(self) -> float:
        """What Corollary 1 says the error falls with."""
        return self.samples / math.log(self.samples)


def points(outcome: Outcome, part: str) -> list[Point]:
    """The runs `inside` or `outside` the condition."""
    return [Point(*point) for point in outcome.facts[part]]


def swept(outcome: Outcome, axis: str) -> list[Point]:
    """Those of one sweep."""
    every = points(outcome, "inside")
    return [every[k] for k in outcome.facts["sweeps"][axis]]


def scaled(outcome: Outcome, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one sweep: where, the scaled error of every seed, and what is predicted."""
    rows = outcome.facts["sweeps"][axis]
    at, scale = np.array([[getattr(p, axis), p.scale] for p in swept(outcome, axis)]).T
    error, predicted = outcome.arrays["inside/error"][rows], outcome.arrays["inside/predicted"][rows]
    return at, error * scale[:, None], predicted * scale


def slope(outcome: Outcome, axis: str) -> statistics.Estimate:
    """Of the scaled error in one sweep, on logarithmic axes."""
    at, samples, _ = scaled(outcome, axis)
    return statistics.slope(at, samples)


def predicted_slope(outcome: Outcome, axis: str) -> float:
    """Of the scaled prediction."""
    at, _, predicted = scaled(outcome, axis)
    return float(np.polyfit(np.log(at), np.log(predicted), 1)[0])


def asked(outcome: Outcome) -> float:
    """The rounds that the condition asks for over those run, at the worst point of the sweeps."""
    return float(max(outcome.arrays["inside/asked"] / [point.T for point in points(outcome, "inside")]))


def outside_parts(outcome: Outcome) -> np.ndarray:
    """The rounds that either part of the condition asks for outside it, the larger first.

    Only the larger was kept, but their product does not depend on the mixing time.
    """
    facts, asked = outcome.facts, outcome.arrays["outside/asked"]
    square = (facts["L"] / paper_mu(facts["mu"])) ** 2
    grown = np.array([4 * p.M * p.H * math.log(p.samples) for p in points(outcome, "outside")])
    return np.stack([asked, square**2 * (1 - facts["rho"]) * grown / asked], axis=1)


def over_plateau(outcome: Outcome, which: int) -> statistics.Estimate:
    """The scaled error of a point outside over that of the sweeps' middle: two runs without common noise."""
    (middle,) = set.intersection(*(set(rows) for rows in outcome.facts["sweeps"].values()))
    above, below = (
        statistics.mean(outcome.arrays[f"{part}/error"][k] * points(outcome, part)[k].scale)
        for part, k in (("outside", which), ("inside", middle))
    )
    value, halves = above.value / below.value, [math.log(e.high / e.value) for e in (above, below)]
    factor = math.exp(math.hypot(*halves))
    return statistics.Estimate(value, value / factor, value * factor)
