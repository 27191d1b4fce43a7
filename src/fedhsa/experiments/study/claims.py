"""The claims that are checked numerically, those of the paper and those of related work, and their verdicts."""

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .checks import FAIL, PASS, UNDECIDED, Check
from .texts import paragraphs


class Claim(NamedTuple):
    """A claim with all of its checks."""

    number: int
    title: str
    statement: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> str | None:
        """`pass` if every check passes, `fail` if one fails, else `not decided`; None if there are no checks."""
        found = {check.verdict for check in self.checks}
        return next((verdict for verdict in (FAIL, UNDECIDED, PASS) if verdict in found), None)


def _numbered(text: str) -> dict[int, tuple[str, str]]:
    """Returns titles and statements by number, from paragraphs such as `1, title: statement`."""
    found = {}
    for heading, statement in paragraphs(text).items():
        number, _, title = heading.partition(", ")
        found[int(number)] = title, statement
    return found


CLAIMS = _numbered("""
1, Proposition 1: Without noise Local SA stops at a point that is not the root, given in closed form for two local
    steps; the formula extends to any number of them.
2, No heterogeneity bias: Without noise FedHSA converges to the root, geometrically and to rounding; Local SA stops at
    its bias.
3, Lower floor: With Markov noise FedHSA's error floor is below Local SA's on the paper's settings, and both are where
    the exact law puts them, or another one up to what that leaves out; elsewhere the lower floor is whose theory says
    it is, Local SA's among them.
4, Linear speed-up: The floor falls with the number of agents: as predicted for heterogeneous agents, and as one over
    their number when a cohort is repeated.
5, Markov against independent sampling: Correlation in time inflates the floor by the long-run variance of the noise.
6, Corollary 1: With its step, error times $MHT / log(MHT)$ does not change as rounds, local steps and agents grow.
7, Drift lemma: Within a round the squared drift of an agent is at most a constant times $(eta H L)^2 (|e|^2 +
    sigma^2)$, with the error $e$ at its start.
8, Where the speed-up ends: Markov sampling with multiplicative noise leaves a bias of the order of the squared step
    that more agents do not remove.
9, Assumptions: The assumptions of the theory, examined on every problem as run, and whether the steps meet its
    conditions.
10, Communication: FedHSA pays two exchanges per round, and reaches errors that Local SA does not reach at any price.
""")
"""The title and statement of each claim of the paper."""

FIELD_CLAIMS = _numbered("""
11, SCAFFLSA on Garnet: Between heterogeneous environments federated TD stops at its predicted bias; with many local
    steps the squared bias of SCAFFLSA and FedHSA is below a tenth of it; FedHSA pays for many of them with noise.
12, SCAFFLSA's speed-up: At stationarity SCAFFLSA's error falls as one over the number of agents.
13, Local fixed points: Local steps on exact operators converge to a neighbourhood that grows with their number, whether
    averaging comes after fixed gaps, irregular ones or by chance.
14, Scaffnew: With the largest step, communicating with probability about one over the square root of the condition
    number costs the fewest exchanges.
15, SCAFFOLD's two quadratics: Local SGD slows down as the gradients' dissimilarity and the local steps grow, SCAFFOLD
    does not.
16, Delays: Stale updates enlarge the error; skipping those that are too stale makes up for part of it.
17, How many rounds: Moving once per round on a whole batch reaches the error of many short rounds in logarithmically
    many.
18, Too many local steps: FedHSA diverges exactly where the spectral radius of its round map passes one.
19, Table 1, measured: What the paper's Table 1 says of other systems with a tick, as numbers.
20, FedHSA compressed: With both exchanges coded in a few bits FedHSA still goes to the root without noise when
    differences are coded, and to a distance of the order of the step with error feedback.
21, FedHSA with some of the agents: Sampling agents leaves an error of the order of the step even without noise, unless
    everyone answers the exchange of operators.
22, FedHSA extrapolated: Extrapolating two steps on the same observations takes the bias at which the speed-up ends to
    the next order in the step, and does not add to the variance where the average operator does not rotate.
23, FedHSA with one exchange: The correction of the round before halves the round trips and costs part of the stable
    steps; the floor of additive noise is the same to first order in the step, the bias of noise that multiplies is
    larger.
24, Importance averaging: Where agents see different pairs, weighing them by their visits makes Q-learning faster than
    equal averages, and its error falls with the number of agents.
25, One average at the end: TD learning by n like agents that average once, at the end, has an n-th of the variance of
    one.
26, QAvg: With decaying steps averaged Bellman steps reach one limit for all numbers of local steps, more slowly with
    more of them; with a constant step they stop beside it, and FedHSA does not.
27, FedSARSA: More agents bring a linear speed-up, and heterogeneous environments a distance from an agent's own
    solution, which lies between the solutions themselves, so that no correction removes it.
28, Two phases of federated Q-learning: With a constant step and several local ones in heterogeneous environments the
    error falls, bounces up and stays, higher with more local steps.
40, Fed-DVR-Q: The samples that each agent needs fall as one over their number; the bits that it sends do not depend on
    the number of agents and grow linearly with the horizon.
41, FedNPG-ADMM: Natural policy gradients whose direction is found by ADMM learn as fast per iteration as with the
    Fisher matrices of all agents, for $d$ numbers instead of $d (d + 1)$.
42, FedKL: A price on the divergence from the common policy makes local policy optimisation by heterogeneous agents
    better than FedProx's distance of parameters, and both better than none.
45, FedHSA with hostile agents: One hostile agent moves the limit to the root of the falsified operator; lies about
    displacements that vanish with them do not move it. A robust rule for operators is biased where agents differ, one
    for displacements is not; both lose in noise what the rule loses, times the local steps.
46, FedPG-BR: More agents learn CartPole with fewer trajectories each, and three hostile ones of ten change nothing,
    where the plain mean of gradients fails.
50, SCAFFOLD's stationary law: To first order in the step, SCAFFOLD's variance is that of averaged gradients, and it and
    the bias fall as one over the number of agents; a bias of higher order does not.
51, A root for every agent: Agents that take a part of each step together reach their own roots at any heterogeneity,
    and do so in a fraction of the time where they are equal.
52, Experience replay: On autoregressive inputs that forget after $1/epsilon^2$ steps, the observations that least
    squares takes grow as $1/epsilon^2$ with SGD, of all data or of few, and as $1/epsilon$ with experience replay.
60, A3C: Workers that update a common policy and critic need samples in inverse proportion to their number, with
    independent states and along chains, also if their operators arrive late.
70, PAvg: Policies that are averaged in logits or in probabilities after exact local steps reach one limit for all
    numbers of local steps, which earns less in the nominal environment the more heterogeneous the others are.
71, Fast-FedPG: Corrected local policy gradients converge linearly to the best policy where plain ones stop beside it,
    and with gradients from episodes the floor of the gap falls as one over the number of agents.
72, FedSVRPG-M: Momentum with importance weights has less noise than plain local policy gradients, and less with more
    agents; it leaves the drift of heterogeneous agents as it is, which small local steps remove.
""")
"""The claims of other papers, and those about open questions of the paper."""


class Finding(NamedTuple):
    """The result of a claim as one number: the check that it comes from, and its wording."""

    check: str
    """A pattern, as in `fnmatch`, for the end of the names of the checks."""
    words: str
    """The wording, with `{}` for the measured number."""
    pick: Callable[[Sequence[Check]], Check] = lambda found: max(found, key=lambda check: abs(check.measured))
    """Selects one of several checks. Defaults to the check with the largest measured number."""


FINDINGS: dict[int, Finding] = {
    1: Finding("H = 2", "limit within {} of the formula"),
    2: Finding(": root", "squared error of FedHSA down to {}"),
    3: Finding(": order", "{} times lower floor", lambda found: found[0]),
    4: Finding("slope", "floor falls as the number of agents to the power {}", lambda found: found[0]),
    5: Finding("prediction", "up to {} times the floor of independent samples"),
    6: Finding("slope in ?", "flat, up to a slope of {}"),
    7: Finding("bound", "a constant of {} suffices"),
    8: Finding("over 1/M", "{} times the floor that one over M would give"),
    9: Finding(": assumptions", "{} of their parts differ from what is expected"),
    10: Finding("price at *", "at most {} times the bytes, for errors that both reach"),
}
"""The findings of the paper's claims; that of any other claim is its first check."""


def finding(claim: Claim, say: Callable[[float], str]) -> str:
    """Returns the result of a claim as one number, which `say` formats; an empty string if there are no checks.

    !!! example
        >>> ratio = Check(3, "quadratic/markov: order", "Above 1.", 1340.2, "> 1", (1300.0, 1400.0), "above", "pass")
        >>> finding(Claim(3, "Lower floor", "", (ratio,)), "{:.3g}".format)
        '1.34e+03 times lower floor (quadratic/markov)'
    """
    how = FINDINGS.get(claim.number)
    found = [check for check in claim.checks if how and fnmatch.fnmatch(check.name, f"*{how.check}")]
    if how is None or not found:
        first = next(iter(claim.checks), None)
        if first is None:
            return ""
        expected = first.expected if isinstance(first.expected, str) else say(first.expected)
        return f"{say(first.measured)}, expected {expected} ({first.name.partition(':')[0]})"
    chosen = how.pick(found)
    measured, words = chosen.measured, how.words
    if claim.number == 3 and 0 < measured < 1:  # FedHSA's floor is the higher one, as predicted
        measured, words = 1 / measured, "{} times higher floor"
    return f"{words.format(say(measured))} ({chosen.name.partition(':')[0]})"


def judge(checks: Iterable[Check]) -> list[Claim]:
    """Returns the paper's claims and the other claims that were checked, each with its checks.

    !!! example
        >>> [claim.verdict for claim in judge([])][:2]
        [None, None]
    """
    by_number: dict[int, list[Check]] = {number: [] for number in CLAIMS}
    for check in checks:
        by_number.setdefault(check.claim, []).append(check)
    known = CLAIMS | FIELD_CLAIMS
    return [Claim(number, *known[number], tuple(found)) for number, found in sorted(by_number.items())]
