"""The paper's claims that are checked by number, and the verdict on each."""

from collections.abc import Iterable
from typing import NamedTuple

from .checks import FAIL, PASS, Check


class Claim(NamedTuple):
    """One of the ten claims, with everything that was checked for it."""

    number: int
    title: str
    statement: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> str | None:
        """`pass` when every check passes, `fail` when one does not, None when nothing was checked."""
        if not self.checks:
            return None
        return PASS if all(check.verdict == PASS for check in self.checks) else FAIL


CLAIMS: dict[int, tuple[str, str]] = {
    1: (
        "Proposition 1",
        "Without noise Local SA stops at a point that is not the root, given in closed form for two local steps; the "
        "formula extends to any number of them.",
    ),
    2: (
        "No heterogeneity bias",
        "Without noise FedHSA converges to the root, geometrically and to rounding; Local SA stops at its bias.",
    ),
    3: (
        "Lower floor",
        "With Markov noise FedHSA's error floor is below Local SA's on the paper's settings, and both are where the "
        "exact law puts them, or within 5 % of where an expansion does; elsewhere the order is the predicted one.",
    ),
    4: (
        "Linear speed-up",
        "The floor falls with the number of agents: as predicted for unlike agents, and as one over their number when "
        "a cohort is repeated.",
    ),
    5: (
        "Markov against independent sampling",
        "Correlation in time inflates the floor by the long-run variance of the noise.",
    ),
    6: (
        "Corollary 1",
        "With its step, error times MHT / log(MHT) does not change as rounds, local steps and agents grow.",
    ),
    7: (
        "Drift lemma",
        "Within a round the squared drift of an agent is at most a constant times (eta H L)^2 (|e|^2 + sigma^2), with "
        "the error e at its start.",
    ),
    8: (
        "Where the speed-up ends",
        "Markov sampling with multiplicative noise leaves a bias of the order of the squared step that more agents do "
        "not remove.",
    ),
    9: (
        "Assumptions",
        "The assumptions of the theory, examined on every problem as run, and whether the steps meet its conditions.",
    ),
    10: (
        "Communication",
        "FedHSA pays two exchanges per round, and reaches errors that Local SA does not reach at any price.",
    ),
}


def judge(checks: Iterable[Check]) -> list[Claim]:
    """The ten claims with the checks that belong to each.

    !!! example
        >>> [claim.verdict for claim in judge([])][:2]
        [None, None]
    """
    checks = list(checks)
    return [
        Claim(number, *texts, tuple(check for check in checks if check.claim == number))
        for number, texts in CLAIMS.items()
    ]
