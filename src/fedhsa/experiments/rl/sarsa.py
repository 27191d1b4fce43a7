"""FedSARSA, control in heterogeneous environments: the benefit of more agents, and the limits of corrections."""

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import statistics
from ...algorithms import AbstractAlgorithm, FedHSA, LocalSA
from ...environments import worlds
from ...problems import Problem, sarsa
from ...theory.rule import require_rule
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, late

GROUPS = 5
"""The number of groups into which states, and actions, are aggregated."""
RECORDS = 100
LARGE = 0.5
"""The smallest perturbation at which the distance of the roots can be distinguished from the noise."""
NAMES = {"LocalSA": "FedSARSA (LocalSA)", "FedHSA": "FedHSA"}


class Case(NamedTuple):
    """The number of agents and the heterogeneity of their environments."""

    num_agents: int
    perturbation: float

    @property
    def label(self) -> str:
        """The name of the case's arrays."""
        return f"N = {self.num_agents}, eps = {self.perturbation:g}"


class FedSARSA(AbstractStudy):
    """SARSA by several agents: distances from the first agent's own solution and from the common solution."""

    name: str = "rl/sarsa"
    title: str = "FedSARSA in heterogeneous environments"
    source: str = "The experiments of Zhang, Wang, Mitra and Anderson on FedSARSA"
    seeds: int = 8
    step_size: float = 0.01
    local_steps: int = 10
    samples: int = 25_000
    agents: tuple[int, ...] = (1, 5, 20)
    """The numbers of agents at the smallest perturbation above 0."""
    num_agents: int = 10
    """The number of agents in the sweep over perturbations."""
    perturbations: tuple[float, ...] = (0.1, 0.5, 1.0)
    """The perturbations of transitions and of rewards."""
    many_steps: tuple[int, ...] = (10, 100, 1000)
    """The numbers of local steps for which the drift is predicted."""
    num_states: int = 30
    num_actions: int = 30
    inverse_temperature: float = 0.02
    discount: float = 0.2
    problem_key: int = 0

    claim: ClassVar[int] = 27
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.9)
    quick_settings: ClassVar[dict[str, Any]] = {
        "agents": (1, 10),
        "perturbations": (0.1, 0.5),
        "num_states": 10,
        "num_actions": 10,
        "step_size": 0.02,
        "samples": 12_500,
        "seeds": 20,
    }

    def seconds(self) -> float:
        runs = [case.num_agents * len(self.methods(case)) for case in self.cases()]
        return 20.0 + 8.0 * len(self.agents) + 1.2e-6 * sum(runs) * self.samples * self.seeds

    @property
    def like(self) -> float:
        """The perturbation in the sweep over agents."""
        return min(eps for eps in self.perturbations if eps > 0)

    def cases(self) -> list[Case]:
        """Returns the cases: first the sweep over agents, then the sweep over perturbations."""
        found = [Case(n, self.like) for n in self.agents] + [Case(self.num_agents, eps) for eps in self.perturbations]
        return list(dict.fromkeys(found))

    def methods(self, case: Case) -> dict[str, AbstractAlgorithm]:
        """Returns the methods; FedHSA is included in the sweep over perturbations."""
        local: dict[str, AbstractAlgorithm] = {"LocalSA": LocalSA(self.step_size, local_steps=self.local_steps)}
        corrected = {"FedHSA": FedHSA(self.step_size, local_steps=self.local_steps)}
        return local | corrected if case.num_agents == self.num_agents else local

    def problem(self, case: Case) -> Problem:
        """Returns the problem; the first agent's environment is the same in all cases."""
        S, A, eps = self.num_states, self.num_actions, case.perturbation
        model = worlds.fedsarsa(
            *(case.num_agents, S, A),
            perturbation=eps,
            reward_perturbation=eps,
            discount=self.discount,
            key=self.problem_key,
        )
        group = GROUPS * (np.arange(S) * GROUPS // S)[:, None] + np.arange(A) * GROUPS // A
        return sarsa.from_model(model, np.eye(GROUPS**2)[group], inverse_temperature=self.inverse_temperature)

    def run(self, runner: Runner) -> Outcome:
        alone = self.problem(Case(1, 0.0))
        first = alone.theta_star
        arrays, rows = {}, []
        rounds = self.samples // self.local_steps
        every = math.gcd(rounds, max(1, rounds // RECORDS))
        for case in self.cases():
            runner.stop_if_asked()
            problem = self.problem(case) if case.num_agents > 1 else alone
            root, jacobians = problem.theta_star, problem.jacobians(problem.theta_star)
            residuals, drift = problem.mean_operators(root), {}
            for H in self.many_steps:
                bias = require_rule(LocalSA(self.step_size, local_steps=H)).limit_error(jacobians, residuals)
                drift[str(H)] = float(bias @ bias)
            apart = float(((root - first) ** 2).sum())
            for name, algorithm in self.methods(case).items():
                settings = {"rounds": rounds, "every": every, "seeds": self.seeds, "key": self.key}
                theta = runner.simulate(problem, algorithm, record=("theta",), **settings).records["theta"]
                label = f"{case.label}/{name}"
                arrays[f"{label}/common"] = ((theta - root) ** 2).sum(-1)
                arrays[f"{label}/first"] = ((theta - first) ** 2).sum(-1)
                arrays[f"{label}/mean"] = theta[:, -theta.shape[1] // 4 :].mean(1) - first
            rows.append({**case._asdict(), "label": case.label, "apart": apart, "drift": drift})
        return Outcome(arrays, {"rows": rows, "every": every})

    def rows(self, outcome: Outcome, agents: bool) -> list[dict[str, Any]]:
        """Returns the rows of the sweep over agents, or of the sweep over perturbations."""
        labels = {Case(n, self.like).label for n in self.agents}
        if not agents:
            labels = {Case(self.num_agents, eps).label for eps in self.perturbations}
        return [row for row in outcome.facts["rows"] if row["label"] in labels]

    def power(self, outcome: Outcome) -> Estimate:
        """Returns the power of the number of agents with which the distance from the common root decreases."""
        floors = [floor(outcome, row["label"], "LocalSA", "common") for row in self.rows(outcome, True)]
        return statistics.slope(self.agents, np.stack(floors))

    def check(self, outcome: Outcome, checks: Checks) -> None:
        statement = "Power of the number of agents with which the squared distance from the common root falls"
        checks.equals("speed-up", statement, self.power(outcome), -1.0, slack=0.1)
        heterogeneous = self.rows(outcome, False)
        most, least = (floor(outcome, heterogeneous[i]["label"], "LocalSA", "first") for i in (-1, 0))
        statement = f"Squared distance from the first agent's root, eps = {heterogeneous[-1]['perturbation']:g} by "
        statement += f"{heterogeneous[0]['perturbation']:g}"
        checks.above("grows with eps", statement, statistics.ratio(most, least))
        for row in heterogeneous:
            if row["perturbation"] < LARGE:
                continue
            for name in NAMES:
                measured = statistics.squared_bias(outcome.arrays[f"{row['label']}/{name}/mean"])
                statement = f"{row['label']}, {name}: squared distance of the mean from the first agent's root"
                where = f"{row['label']}, {name}"
                checks.equals(where, statement, measured, row["apart"], slack=0.05)
            drift = max(row["drift"].values()) / row["apart"]
            statement = f"{row['label']}: drift of Local SA with up to {max(self.many_steps)} local steps, squared, by "
            statement += "the squared distance of the roots"
            checks.at_most(f"{row['label']}, drift", statement, drift, 0.01)

    def gain(self, outcome: Outcome, row: dict[str, Any], reference: str) -> Estimate:
        """Returns FedHSA's floor relative to `LocalSA`'s floor."""
        corrected, local = (floor(outcome, row["label"], name, reference) for name in ("FedHSA", "LocalSA"))
        return statistics.ratio(corrected, local)

    def summary(self, outcome: Outcome) -> list[str]:
        power, heterogeneous = self.power(outcome), self.rows(outcome, False)
        said = []
        for row in heterogeneous:
            found = floor(outcome, row["label"], "LocalSA", "first").mean()
            said.append(f"{found:.3g} at eps = {row['perturbation']:g} (the roots: {row['apart']:.3g} apart)")
        last = heterogeneous[-1]
        gain, noise = self.gain(outcome, last, "first"), self.gain(outcome, last, "common")
        drifts = [f"{size:.1g} at H = {H}" for H, size in last["drift"].items()]
        return [
            f"With more agents the squared distance from the common root falls to the power {power:.2f} of "
            "their number.",
            f"From the first agent's own root, {self.num_agents} agents stay at {', '.join(said)}.",
            f"FedHSA's correction does not remove that: at eps = {last['perturbation']:g} its distance is {gain:.3f} "
            "times as large, squared. The distance lies between two solutions, and every method that solves the common "
            "problem keeps it. What a correction can remove is the drift of Local SA away from the common root, and "
            f"that is {', '.join(drifts)}, squared: nothing here. From the common root FedHSA's squared distance is "
            f"{noise:.2f} times FedSARSA's.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for row in outcome.facts["rows"]:
            for name in NAMES:
                if f"{row['label']}/{name}/first" not in outcome.arrays:
                    continue
                for reference in ("first", "common"):
                    found = statistics.mean(floor(outcome, row["label"], name, reference), level=0.95)
                    about = (row["num_agents"], row["perturbation"], name, reference)
                    rows.append((*about, *found, row["apart"], row["drift"][str(self.many_steps[0])]))
        names = ("agents", "eps", "method", "root", "squared distance", "low", "high", "roots apart", "drift")
        return columns(names, rows)

    def notes(self) -> list[str]:
        return [
            "Zhang, Wang, Mitra and Anderson, Finite-time analysis of on-policy heterogeneous federated reinforcement "
            "learning, ICLR 2024, arXiv:2401.15273: 100 states, 100 actions, 25 features (5 x 5 groups), discount "
            "0.2, 10 local steps, 20000 samples, step 0.01, up to 40 agents, eps from 0 to 2 for kernels and rewards.",
            f"Ours have {self.num_states} states and {self.num_actions} actions in as many groups, without "
            "projection, as in the source's code. Policies are softmax with inverse temperature "
            f"{self.inverse_temperature:g}, for values between 0 and 125; both perturbations are equal.",
            "The source measures from the first agent's own solution, found by a long run; here it is solved for, and "
            "so is the common one. Squared distances are means over the last quarter.",
            "The drift of Local SA is that without noise, for operators linearised at the common root.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, middle, right = figure.subplots(1, 3)
        like, heterogeneous = (self.rows(outcome, agents) for agents in (True, False))
        for row, colour in zip(like, figures.shades(self.agents).values(), strict=True):
            error = outcome.arrays[f"{row['label']}/LocalSA/first"]
            at = outcome.facts["every"] * self.local_steps * np.arange(error.shape[1])
            figures.band(left, at, error, colour, label=f"$N$ = {row['num_agents']}")
        left.set(yscale="log", xlabel="samples of each agent", title=rf"FedSARSA, $\epsilon$ = {self.like:g}")
        left.set_ylabel("squared distance to the first agent's root")
        left.locator_params(axis="x", nbins=3)
        figures.panel_legend(left)
        style: dict[str, Any] = {"marker": "o", "linestyle": "-"}
        roots = {"first": ("#D55E00", "to the first agent's root"), "common": ("#000000", "to the common root")}
        for reference, (colour, words) in roots.items():
            found = figures.means(floor(outcome, row["label"], "LocalSA", reference) for row in like)
            figures.points(middle, self.agents, found, color=colour, label=words, **style)
            if reference == "common":
                slope = found[0].value / np.array(self.agents)
                middle.plot(self.agents, slope, label="proportional to $1/N$", **figures.REFERENCE)
        middle.set(xscale="log", yscale="log", xlabel="number of agents $N$", ylabel="floor")
        middle.set_title(rf"FedSARSA, $\epsilon$ = {self.like:g}")
        figures.ticks(middle, self.agents)
        figures.panel_legend(middle)
        at = np.arange(len(self.perturbations))
        for i, (name, words) in enumerate(NAMES.items()):
            for reference, marker in (("first", "o"), ("common", "s")):
                found = figures.means(floor(outcome, row["label"], name, reference) for row in heterogeneous)
                look = figures.dots(figures.COLOURS[name], marker)
                figures.points(right, at + 0.16 * i - 0.08, found, label=f"{words}, {reference} root", **look)
        apart = np.array([row["apart"] for row in heterogeneous])
        right.plot(at[apart > 0], apart[apart > 0], color="0.4", linewidth=0.8, label="distance of the two roots")
        right.set(yscale="log", xlabel=r"heterogeneity $\epsilon$", ylabel="floor", title=f"$N$ = {self.num_agents}")
        right.set_xticks(at, [f"{eps:g}" for eps in self.perturbations])
        right.set_ylim(top=right.get_ylim()[1] * 60)  # space for the legend
        figures.panel_legend(right, fontsize=6.5, loc="upper left")
        figures.grid(left, middle, right)
        title = rf"$H$ = {self.local_steps}, $\eta = {self.step_size:g}$; {self.seeds} seeds, 95 % intervals"
        figures.heading(figure, title)


def floor(outcome: Outcome, label: str, method: str, reference: str) -> np.ndarray:
    """Returns the mean squared distance from a root over the last quarter, for every seed."""
    return late(outcome.arrays[f"{label}/{method}/{reference}"])
