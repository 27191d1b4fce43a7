"""`LocalSA`'s limit without noise: simulated, and compared with Proposition 1 and its extension to any `H`."""

import math
from typing import Any, ClassVar

import numpy as np

from ..._linear import spectral_radius
from ...algorithms import LocalSA
from ...problems import Problem
from ...theory.paper.bounds import local_sa_bias, proposition_1
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, figures, rows_of

TOLERANCE = 1e-8
"""The largest relative difference between the limit and the closed form."""
CONVERGED = 1e-11
"""The distance from the limit, relative to the bias, at which simulations end."""


class Proposition(AbstractStudy):
    """`LocalSA`'s limit without noise, for several numbers of local steps and step sizes."""

    name: str = "proposition"
    title: str = "Where Local SA stops"
    source: str = "Proposition 1"
    seeds: int = 1
    """One seed is enough because only the problems are random."""
    num_agents: int = 20
    dim: int = 10
    """The dimension of all families: without noise they are matrices and vectors, and share compiled programs."""
    num_states: int = 20
    num_components: int = 2
    problem_key: int = 0
    quadratic_step: float = 0.02
    nonconvex_step: float = 0.02
    td_step: float = 0.1
    finite_sum_step: float = 0.01
    local_steps: tuple[int, ...] = (2, 5, 10, 20, 100, 300)
    """Each needs one compilation; 2, the paper's number, is always included."""
    indefinite_steps: int = 10
    """The most local steps for agents with negative curvature, which diverge alone."""
    sweep: tuple[float, ...] = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
    """Step sizes for the quadratic problem at two local steps."""

    families: ClassVar[list[str]] = ["quadratic", "nonconvex", "td", "finite-sum"]
    claim: ClassVar[int] = 1
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.1)
    quick_settings: ClassVar[dict[str, Any]] = {"local_steps": (2, 20), "sweep": (0.002, 0.02, 0.2)}

    @property
    def random(self):
        return False

    def seconds(self) -> float:
        return 2.0 + 1.2 * len(self.local_steps) + 0.1 * len(self.sweep)

    def instances(self) -> dict[str, Instance]:
        """Returns the problem of each family."""
        arguments: dict[str, dict[str, Any]] = {
            "quadratic": {},
            "nonconvex": {},
            "td": {"num_states": self.num_states},
            "finite-sum": {"num_components": self.num_components},
        }
        sizes = {"dim": self.dim}
        return {
            family: Instance.of_family(family, self.num_agents, sizes | own, self.problem_key)
            for family, own in arguments.items()
        }

    def step_size(self, family: str) -> float:
        """Returns the step size for one family."""
        return getattr(self, f"{family.replace('-', '_')}_step")

    def run(self, runner: Runner) -> Outcome:
        problems = {family: instance.build().noiseless() for family, instance in self.instances().items()}
        numbers = sorted({2, *self.local_steps})
        cases = [(f, H, self.step_size(f)) for f in problems for H in numbers if self._follows(f, H)]
        cases += [("quadratic", 2, eta) for eta in self.sweep if ("quadratic", 2, eta) not in cases]
        rows, measured, predicted = [], [], []
        for family, H, eta in cases:
            limit, row = _limit(runner, problems[family], H, eta)
            A, b = problems[family].affine_parts()
            expected = local_sa_bias(A, b, eta, H)
            paper = proposition_1(A, b, eta) if H == 2 else expected
            rows.append(
                {"family": family, "local_steps": H, "step_size": eta, **row}
                | {"off": _part(limit - expected, expected), "off_paper": _part(limit - paper, paper)}
            )
            measured.append(limit)
            predicted.append(expected)
        ends = {family: _norm(end) for family, p in problems.items() if (end := _many_steps(p)) is not None}
        return Outcome({"measured": np.stack(measured), "predicted": np.stack(predicted)}, {"rows": rows, "ends": ends})

    def _follows(self, family: str, H: int) -> bool:
        return family != "nonconvex" or max(2, self.indefinite_steps) >= H

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, right = figure.subplots(1, 2)
        for family in self.families:
            look, chosen = figures.LOOKS[family], rows_of(outcome, family=family, step_size=self.step_size(family))
            _plot_biases(left, chosen, "local_steps", look)
            if family in outcome.facts["ends"]:
                left.axhline(outcome.facts["ends"][family], color=look.colour, linewidth=0.8, zorder=1)
        chosen = sorted(rows_of(outcome, family="quadratic", local_steps=2), key=lambda row: row["step_size"])
        _plot_biases(right, chosen, "step_size", figures.LOOKS["quadratic"])
        at = np.array([row["step_size"] for row in chosen])
        right.plot(at, chosen[0]["predicted"] / at[0] * at, color="0.55", linewidth=0.8, zorder=1)
        left.set(xscale="log", yscale="log", xlabel="local steps $H$")
        left.set_ylabel(r"bias $\|\lim_t \bar\theta^{(t)} - \theta^{{\star}}\|$")
        right.set(xscale="log", yscale="log", xlabel=r"step size $\eta$, at $H = 2$", ylabel="bias, quadratic")
        entries = {figures.LOOKS[family].name: figures.LOOKS[family].style for family in self.families}
        entries["closed form"] = figures.dashed()
        entries[r"left: $H \to \infty$, right: $\propto \eta$"] = {"color": "0.5", "linewidth": 0.8}
        figures.legend(figure, entries, 6, title="LocalSA without noise")

    def summary(self, outcome: Outcome) -> list[str]:
        rows = outcome.facts["rows"]
        worst = max(row["off"] for row in rows)
        (first,) = rows_of(outcome, family="quadratic", local_steps=2, step_size=self.step_size("quadratic"))
        last = rows_of(outcome, family="quadratic", step_size=self.step_size("quadratic"))[-1]
        end = outcome.facts["ends"]["quadratic"]
        return [
            f"Without noise Local SA stops {first['measured']:.3g} from the root of the quadratic problem at H = 2 and "
            f"{last['measured']:.3g} at H = {last['local_steps']}; with ever more local steps it ends at the average "
            f"of the agents' own roots, {end:.3g} away (thin lines).",
            f"In all {len(rows)} cases the closed form (dashed) meets the simulated limit (markers) to {worst:.1g} of "
            "its size.",
            "At two local steps the bias is nearly proportional to the step size (right; the grey line is exactly so): "
            "only vanishing steps remove it.",
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for family in self.families:
            two, every = rows_of(outcome, family=family, local_steps=2), rows_of(outcome, family=family)
            steps = ", ".join(f"{row['step_size']:g}" for row in sorted(two, key=lambda row: row["step_size"]))
            where = f"Local SA without noise on the {figures.LOOKS[family].name} problem"
            statement = f"{where}, H = 2, eta = {steps}: relative difference of its limit from $theta* + eta v$"
            worst = max(row["off_paper"] for row in two)
            checks.at_most(f"{family}, H = 2", statement, worst, TOLERANCE)
            numbers = ", ".join(str(H) for H in sorted({row["local_steps"] for row in every}))
            statement = f"{where}, H = {numbers}: relative difference of its limit from the formula for any H"
            worst = max(row["off"] for row in every)
            checks.at_most(f"{family}, any H", statement, worst, TOLERANCE)

    def notes(self) -> list[str]:
        return [
            "The paper gives no example of Proposition 1: problems, sizes and steps are ours, all four families with "
            f"{self.num_agents} heterogeneous agents.",
            f"Rounds: until what is left of the way is {CONVERGED:g} of the bias, by the spectral radius of a round.",
            "For $H$ above 2 the limit is the fixed point of the averaged local steps, at the distance "
            "$(I - mean F_i^H)^(-1) eta mean(S_i G_i(theta*))$ from the root, with $F_i = I + eta A_i$ and "
            "$S_i = I + F_i + ... + F_i^(H-1)$: the proof's own recursion.",
        ]


def _limit(runner: Runner, problem: Problem, H: int, eta: float) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the simulated limit of `LocalSA` minus the root, and facts about the simulation."""
    A, b = problem.affine_parts()
    expected, root = local_sa_bias(A, b, eta, H), np.linalg.solve(A.mean(0), b.mean(0))
    power = np.linalg.matrix_power(np.eye(len(root)) + eta * A, H).mean(0)
    radius = spectral_radius(power)
    if radius >= 1:
        raise ValueError(f"Local SA has no limit at H = {H}, eta = {eta}: its round has spectral radius {radius:.4g}.")
    left = CONVERGED * _norm(expected) / (_norm(root) + _norm(expected))
    rounds = math.ceil(math.log(left) / math.log(radius))
    result = runner.simulate(problem, LocalSA(eta, local_steps=H), rounds=rounds)
    limit = result.theta[0] - root
    row = {"rounds": rounds, "radius": radius, "measured": _norm(limit), "predicted": _norm(expected)}
    return limit, row


def _many_steps(problem: Problem) -> np.ndarray | None:
    """Returns the limit for many local steps, the mean of the agents' own roots; None if an agent is unstable."""
    A, b = problem.affine_parts()
    if np.linalg.eigvals(A).real.max() >= 0:
        return None
    own = np.linalg.solve(A, b[..., None])[..., 0]
    return own.mean(0) - np.linalg.solve(A.mean(0), b.mean(0))


def _norm(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector))


def _part(difference: np.ndarray, whole: np.ndarray) -> float:
    return _norm(difference) / _norm(whole)


def _plot_biases(ax: figures.Axes, rows: list[dict[str, Any]], along: str, look: figures.Look) -> None:
    at = [row[along] for row in rows]
    ax.plot(at, [row["measured"] for row in rows], **look.style)
    figures.theory(ax, at, [row["predicted"] for row in rows], look.colour)
