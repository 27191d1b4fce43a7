"""Checks of the paper's assumptions and conditions for a problem and an algorithm, each with a witness."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from ... import _check
from ...algorithms import AbstractAlgorithm, AbstractSchedule, FedHSA, LocalSA
from ...algorithms.schedules import corollary_step
from ...problems import Problem
from ...sources.finite import closed_classes
from ..laws.agents import finite_law
from . import bounds
from .constants import Constants
from .constants import constants as compute

HOLDS, FAILS, UNKNOWN = "holds", "fails", "unknown"


__all__ = ["Line", "Verdicts", "check"]


class Line(NamedTuple):
    """The verdict on one assumption or condition."""

    name: str
    """The name of the assumption or condition."""
    verdict: str
    """ "holds", "fails" or "unknown"."""
    reason: str
    """A sentence with the numbers and, if it applies, the agent."""


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """The result of `check`. It has no truth value: use `failures`, or one line by its name."""

    lines: tuple[Line, ...]
    """The verdicts, in order."""
    constants: Constants
    """The constants behind the verdicts."""

    def __getitem__(self, name: str) -> Line:
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(f"{name!r} is not in this report; it has {', '.join(line.name for line in self.lines)}.")

    def __bool__(self):
        raise TypeError("A report has no truth value: use `failures`, or one line such as `report['Theorem 2: step']`.")

    @property
    def failures(self) -> tuple[Line, ...]:
        """The lines that fail."""
        return tuple(line for line in self.lines if line.verdict == FAILS)

    def rows(self) -> list[tuple[str, str, str]]:
        """Returns rows `(name, verdict, reason)` for tables."""
        return [(line.name, line.verdict, line.reason) for line in self.lines]

    def __str__(self) -> str:
        width = max(len(line.name) for line in self.lines)
        return "\n".join(f"{line.name:<{width}}  {line.verdict:<7}  {line.reason}" for line in self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: `{"lines": [{"name", "verdict", "reason"}, ...], "constants": {...}}`."""
        return {"lines": [line._asdict() for line in self.lines], "constants": self.constants.to_dict()}


def check(
    problem: Problem,
    algorithm: AbstractAlgorithm | None = None,
    *,
    rounds: int | None = None,
    constants: Constants | None = None,
) -> Verdicts:
    r"""Checks Assumptions 1 to 4 for a problem and, given an algorithm, the conditions of the paper's theorems.

    **Arguments:**

    - `problem`: any problem.
    - `algorithm`: the algorithm. The theorems cover `FedHSA` with a constant step size and $\alpha_g = 1$; for other
      algorithms the report says that they are not covered. The universal constants $C$, $C'$ and $\tilde C$ are taken
      as 1 (see `bounds`).
    - `rounds`: $T$, for the conditions on the number of rounds and for Corollary 1.
    - `constants`: the constants of the problem, if they are already computed.

    Raises `ValueError` if `constants` belong to another problem.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=6, dim=2)
        >>> report = check(problem, fedhsa.FedHSA(0.5, local_steps=10))
        >>> report["Assumption 3"].verdict, report["Theorem 2: step"].verdict
        ('holds', 'fails')
    """
    rounds = None if rounds is None else _check.count("rounds", rounds)
    found = compute(problem) if constants is None else constants
    if found.num_agents != problem.num_agents:
        raise ValueError(
            f"`constants` must be those of this problem, got those of {found.num_agents} agents for a problem of "
            f"{problem.num_agents}. Omit the argument to have them computed."
        )
    lines = [_lipschitz(found), _growth(found), _monotone(found), _mixing(problem, found), _independence(found)]
    if algorithm is not None:
        lines += _conditions(found, algorithm, rounds)
    return Verdicts(tuple(lines), found)


def _lipschitz(c: Constants) -> Line:
    name = "Assumption 1: Lipschitz"
    if math.isnan(c.L):
        return Line(name, UNKNOWN, "The set of observations is unknown, so slopes cannot be bounded.")
    agent = int(np.argmax(c.lipschitz))
    if c.L_interval is not None:
        low, high = c.L_interval
        return Line(name, UNKNOWN, f"Sampled: the largest slope is {low:.4g} (agent {agent}), 95 % limit {high:.4g}.")
    return Line(name, HOLDS, f"L = {c.L:.4g}; the steepest is agent {agent} with {c.lipschitz[agent]:.4g}.")


def _growth(c: Constants) -> Line:
    name, agent = "Assumption 1: growth", int(np.argmax(c.sigma_i))
    if np.isnan(c.sigma_i).any():
        return Line(name, UNKNOWN, "The set of observations is unknown, so operators cannot be bounded.")
    if np.isinf(c.sigma_i[agent]):
        return Line(name, FAILS, f"The noise of agent {agent} is Gaussian: no sigma bounds |G| <= L (|theta| + sigma).")
    verdict = HOLDS if c.L_interval is None else UNKNOWN
    return Line(
        name, verdict, f"sigma = {c.sigma:.4g}; the largest sigma_i is {c.sigma_i[agent]:.4g}, of agent {agent}."
    )


def _monotone(c: Constants) -> Line:
    name = "Assumption 2"
    if not c.mu > 0:
        return Line(name, FAILS, f"mu = {c.mu:.4g}: at some points the average operator does not point to the root.")
    if c.mu_interval is not None:
        low, high = c.mu_interval
        return Line(name, UNKNOWN, f"Sampled: the smallest slope is {high:.4g}, 95 % limit {low:.4g}.")
    capped = "" if c.mu <= 1 else "; bounds use 1"
    return Line(name, HOLDS, f"mu = {c.mu:.4g}{capped}.")


def _mixing(problem: Problem, c: Constants) -> Line:
    name, law = "Assumption 3", finite_law(problem.agents.source)
    if c.sampling == "none":
        return Line(name, HOLDS, "There are no observations: the agents have no noise.")
    if c.sampling == "independent":
        return Line(name, HOLDS, "Observations are independent: they mix in one step.")
    if c.noise is not None:
        agent = int(np.argmax(c.noise.spectral_radius))
        radius = c.noise.spectral_radius[agent]
        return Line(
            name, FAILS, f"The chain is not finite, although it mixes: spectral radius {radius:.4g}, agent {agent}."
        )
    if law is None:
        return Line(name, UNKNOWN, f"Observations are {c.sampling}: there is no chain to examine.")
    not_mixing = np.flatnonzero(np.asarray(c.geometric.rho) >= 1)
    if len(not_mixing):
        return Line(name, FAILS, f"Agent {not_mixing[0]} hardly mixes: its second eigenvalue is 1 to rounding.")
    for agent in np.flatnonzero(~(law.chain.transition > 0).all((-1, -2))):
        if transient := law.num_states - len(closed_classes(law.chain.transition[agent])[0]):
            reason = f"Agent {agent} is not irreducible, with {transient} transient states, but it mixes."
            return Line(name, FAILS, reason)
    agent = c.slowest_agent
    time = int(c.mixing_times[agent])
    return Line(name, HOLDS, f"The slowest is agent {agent}: mixing time {time}, rho = {c.geometric.rho[agent]:.4g}.")


def _independence(c: Constants) -> Line:
    name = "Assumption 4"
    if c.sampling == "recorded":
        return Line(name, UNKNOWN, "Observations are recorded: they do not show whether agents influenced each other.")
    return Line(name, HOLDS, "Each agent's observations are drawn with its own keys.")


def _conditions(c: Constants, algorithm: AbstractAlgorithm, rounds: int | None) -> list[Line]:
    """Returns the verdicts on the conditions of the theorems, or the reason why they do not apply."""
    if not isinstance(algorithm, FedHSA):
        why = f"The paper's theorems are about FedHSA; {type(algorithm).__name__} is not covered."
        if isinstance(algorithm, LocalSA) and algorithm.local_steps > 1:
            why += " Heterogeneous agents bias it at any constant step size (`bounds.proposition_1`, for H = 2)."
        return [Line(name, UNKNOWN, why) for name in ("Theorem 1", "Theorem 2")]
    if isinstance(algorithm.step_size, AbstractSchedule):
        why = "The paper's theorems are about a constant step size; schedules are not covered."
        return [Line(name, UNKNOWN, why) for name in ("Theorem 1", "Theorem 2")]
    H, eta, L = algorithm.local_steps, float(algorithm.step_size), c.L
    holds = HOLDS if algorithm.server_step == 1 else FAILS
    lines = [Line("Theorems: server step", holds, f"alpha_g = {algorithm.server_step}; the theorems require 1.")]
    lines.append(_compare("Drift lemma: step", eta, 1 / (L * H), "eta", "1/(LH)"))
    if not c.mu > 0:
        return [*lines, *(Line(f"Theorem {k}: step", FAILS, f"mu = {c.mu:.4g} is not positive.") for k in (1, 2))]
    lines += [
        _sampling(c),
        _compare("Theorem 1: step", eta, bounds.theorem_1_step(H=H, L=L, mu=c.mu), "eta", "mu/(2CL^2H)"),
    ]
    tau_bar = max(1.0, c.tau((H * eta) ** 2)) if not math.isnan(c.rho) else math.nan
    largest = bounds.theorem_2_step(H=H, L=L, mu=c.mu, tau_bar=tau_bar)
    step = _compare("Theorem 2: step", eta, largest, "eta", "mu/(C' tau_bar L^2 H)")
    if not math.isnan(tau_bar):
        step = step._replace(reason=f"{step.reason[:-1]}, with tau_bar = tau(alpha^2) = {tau_bar:.4g}.")
    lines.append(step)
    if rounds is not None:
        lines.append(_compare("Theorem 2: rounds", 2 * tau_bar, rounds, "2 tau_bar", "T"))
        lines += _corollary(c, H, eta, rounds)
    return lines


def _sampling(c: Constants) -> Line:
    name = "Theorem 1: i.i.d. sampling"
    if c.sampling in ("independent", "none"):
        return Line(name, HOLDS, f"Sampling is {c.sampling}.")
    verdict = FAILS if c.sampling == "markov" else UNKNOWN
    return Line(
        name, verdict, f"Sampling is {c.sampling}; `problem.iid()` samples independently, and Theorem 2 covers chains."
    )


def _corollary(c: Constants, H: int, eta: float, T: int) -> list[Line]:
    M, mu = c.num_agents, min(c.mu, 1.0)
    step = corollary_step(mu, M, H, T)
    close = math.isclose(eta, step, rel_tol=1e-2)
    said = f"eta = {eta:.4g}; the corollary requires 4 log(MHT)/(mu HT) = {step:.4g}."
    lines = [Line("Corollary 1: step", HOLDS if close else FAILS, said)]
    tau_bar = max(1.0, c.tau((H * step) ** 2)) if not math.isnan(c.rho) else math.nan
    least = bounds.corollary_1_rounds(T=T, M=M, H=H, L=c.L, mu=mu, rho=c.rho, tau_bar=tau_bar)
    return [*lines, _compare("Corollary 1: rounds", least, T, "(L^2/mu^2) max{...}", "T")]


def _compare(name: str, value: float, limit: float, what: str, limit_name: str) -> Line:
    """Returns the verdict on `value <= limit`."""
    if math.isnan(value) or math.isnan(limit):
        return Line(name, UNKNOWN, f"{what} <= {limit_name} cannot be decided: a constant is unknown.")
    holds = value <= limit * (1 + 1e-12)
    sign = "<=" if holds else ">"
    return Line(name, HOLDS if holds else FAILS, f"{what} = {value:.4g} {sign} {limit_name} = {limit:.4g}.")
