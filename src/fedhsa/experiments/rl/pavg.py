"""PAvg: exact policy steps in heterogeneous environments, in logits or in probabilities, averaged periodically."""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import statistics
from ..._random import host_generator
from ...algorithms import LocalSA
from ...environments import DirectTable, Model, worlds
from ...problems import Problem, policy_gradient
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures

EVERY = 32
"""The number of iterations between two records: a multiple of every number of local steps."""
SPARSITY = 0.5
"""The probability that a state is reachable in the nominal environment; `complementary` uses the other states."""


class Setting(NamedTuple):
    """The source's initial step size, and the number of iterations."""

    step_size: float
    iterations: int


SETTINGS = {
    ("cliffs", "SoftPAvg"): Setting(0.1, 192),
    ("cliffs", "ProjPAvg"): Setting(0.01, 64),
    ("random", "SoftPAvg"): Setting(0.05, 512),
    ("random", "ProjPAvg"): Setting(0.01, 960),
}
COLOURS = {"SoftPAvg": "#0072B2", "ProjPAvg": "#D55E00"}


class PAvg(AbstractStudy):
    """The learned policy's return in the nominal environment, and the effect of local steps, without noise."""

    name: str = "rl/pavg"
    title: str = "PAvg in heterogeneous environments"
    source: str = "Table 1 of Jin et al. on federated reinforcement learning, and their claim on local steps"
    seeds: int = 16
    """The number of cohorts of environments, each with a random initial policy."""
    kappas: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """The degrees of heterogeneity of the environments."""
    worlds: tuple[str, ...] = ("random", "cliffs")
    methods: tuple[str, ...] = ("SoftPAvg", "ProjPAvg")
    table_steps: int = 4
    """The number of local steps $E$ in the sweep over kappa."""
    local_steps: tuple[int, ...] = (1, 4, 32)
    """The numbers of local steps $E$ in the random environments with the largest kappa."""
    num_agents: int = 5

    claim: ClassVar[int] = 70
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.8)
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 8,
        "kappas": (0.0, 1.0),
        "worlds": ("random",),
        "methods": ("SoftPAvg",),
        "table_steps": 32,
        "local_steps": (4, 32),
    }

    def seconds(self) -> float:
        programs = len(self.methods) * (len(self.local_steps) + len(self.worlds) - 1)
        runs = len(self.methods) * len(self.kappas) * len(self.worlds) + len(self.methods) * (len(self.local_steps) - 1)
        return 3.0 * programs + 0.08 * runs * self.seeds

    def model(self, world: str, kappa: float, cohort: int) -> Model:
        """Returns the environments; the first agent has the nominal environment for every kappa."""
        if world == "random":
            return complementary(self.num_agents, kappa, self.key, cohort)
        model = worlds.windy_cliff(self.num_agents, heterogeneity=kappa, key=1000 * self.key + cohort)
        P = model.transitions.copy()
        P[0] = worlds.windy_cliff(1, heterogeneity=0.0).transitions[0]
        return Model(P, model.rewards, model.discount, model.start)

    def problem(self, method: str, model: Model) -> Problem:
        """Returns natural gradients in logits, or gradients in probabilities, projected after each local step."""
        if method == "SoftPAvg":
            return policy_gradient.from_model(model, estimator="natural")
        return policy_gradient.from_model(model, DirectTable(model.num_states, model.num_actions), estimator="exact")

    def start(self, method: str, model: Model, cohort: int) -> np.ndarray:
        """Returns uniform random numbers, as logits or divided by their sum."""
        drawn = host_generator(self.key, "policy", cohort).random((model.num_states, model.num_actions))
        return drawn if method == "SoftPAvg" else drawn / drawn.sum(-1, keepdims=True)

    def run(self, runner: Runner) -> Outcome:
        arrays: dict[str, list[np.ndarray]] = {}
        best = []

        def learn(world: str, kappa: float, cohort: int, method: str, E: int) -> np.ndarray:
            model, setting = self.model(world, kappa, cohort), SETTINGS[world, method]
            algorithm, start = LocalSA(setting.step_size, local_steps=E), self.start(method, model, cohort)
            lengths = {"rounds": setting.iterations // E, "every": EVERY // E}
            result = runner.simulate(
                self.problem(method, model), algorithm, theta=start, record=("returns",), **lengths
            )
            return result.records["returns"][0]

        for cohort in range(self.seeds):
            for world in self.worlds:
                nominal = self.model(world, 0.0, cohort).take([0])
                best.append((world, float(nominal.returns(nominal.greedy(nominal.optimal()))[0])))
                for method in self.methods:
                    for kappa in self.kappas:
                        earned = learn(world, kappa, cohort, method, self.table_steps)[-1]
                        label = f"{world}, {method}, {kappa:g}"
                        arrays.setdefault(f"{label}, centre", []).append(earned[0])
                        arrays.setdefault(f"{label}, mean", []).append(earned.mean())
            for method in self.methods:
                for E in self.local_steps:
                    curve = learn("random", max(self.kappas), cohort, method, E).mean(1)
                    arrays.setdefault(f"{method}, E = {E}", []).append(curve)
        for world in self.worlds:
            arrays[f"{world}, best"] = [value for name, value in best if name == world]
        return Outcome({name: np.array(rows) for name, rows in arrays.items()}, {})

    def lost(self, outcome: Outcome, world: str, method: str, kappa: float) -> np.ndarray:
        """Returns the gap to the best return in the nominal environment, for every cohort."""
        return outcome.arrays[f"{world}, best"] - outcome.arrays[f"{world}, {method}, {kappa:g}, centre"]

    def end(self, outcome: Outcome, method: str) -> Estimate:
        """Returns the final mean return with the most local steps relative to that with the fewest."""
        most, least = (outcome.arrays[f"{method}, E = {E}"][:, -1] for E in self.extremes)
        return statistics.ratio(most, least)

    def early(self, outcome: Outcome, method: str) -> Estimate:
        """Returns the remaining gap after the first record, with the most local steps relative to the fewest."""
        most, least = (outcome.arrays[f"{method}, E = {E}"] for E in self.extremes)
        goal = least[:, -1]
        return statistics.ratio(goal - most[:, 1], goal - least[:, 1])

    @property
    def extremes(self) -> tuple[int, int]:
        """The most and the fewest local steps."""
        return max(self.local_steps), min(self.local_steps)

    def check(self, outcome: Outcome, checks: Checks) -> None:
        high, low = max(self.kappas), min(self.kappas)
        most, least = self.extremes
        for world in self.worlds:
            worst = np.max(self.lost(outcome, world, "SoftPAvg", low) / outcome.arrays[f"{world}, best"])
            statement = f"SoftPAvg, {world}, kappa = {low:g}: largest part of the best return that is missing"
            checks.at_most(f"best policy, {world}", statement, float(worst), 1e-3)
        for method in self.methods:
            far, near = (self.lost(outcome, "random", method, kappa) for kappa in (high, low))
            statement = f"{method}, random: what is lost in the nominal environment, kappa = {high:g} by {low:g}"
            checks.above(f"{method}, kappa", statement, statistics.ratio(far, near))
            statement = f"{method}, random, kappa = {high:g}: mean return at the end, E = {most} by E = {least}"
            checks.equals(
                f"{method}, one limit", statement, self.end(outcome, method), 1.0, slack=0.005, precision=0.01
            )
            statement = (
                f"{method}, random, kappa = {high:g}: way left after {EVERY} iterations, E = {most} by E = {least}"
            )
            checks.inside(f"{method}, speed", statement, self.early(outcome, method), 0.8, 1.25)

    def summary(self, outcome: Outcome) -> list[str]:
        most, least = self.extremes
        kappas = ", ".join(f"{kappa:g}" for kappa in self.kappas)
        said = []
        for world in self.worlds:
            for method in self.methods:
                means = [outcome.arrays[f"{world}, {method}, {kappa:g}, centre"].mean() for kappa in self.kappas]
                digits = 1 if world == "cliffs" else 3
                said.append(f"{', '.join(f'{value:.{digits}f}' for value in means)} ({method}, {world})")
        ends = [f"{self.end(outcome, method):.4f} for {method}" for method in self.methods]
        early = [f"{self.early(outcome, method):.3f} for {method}" for method in self.methods]
        return [
            f"Returns in the nominal environment at kappa = {kappas}, with E = {self.table_steps}: {'; '.join(said)}.",
            f"One limit: at the end the mean return with E = {most} is that with E = {least} times {', '.join(ends)}.",
            f"Slower with more local steps? After {EVERY} iterations, which are {EVERY // most} and {EVERY // least} "
            f"rounds, what is left of the way with E = {most} is that with E = {least} times {', '.join(early)}: per "
            "iteration there is hardly a difference, and per round more local steps are faster.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows: list[tuple] = []
        for world in self.worlds:
            for method in self.methods:
                for kappa in self.kappas:
                    for where in ("centre", "mean"):
                        found = statistics.mean(outcome.arrays[f"{world}, {method}, {kappa:g}, {where}"], level=0.95)
                        rows.append((world, method, kappa, self.table_steps, where, *found))
        for method in self.methods:
            for E in self.local_steps:
                found = statistics.mean(outcome.arrays[f"{method}, E = {E}"][:, -1], level=0.95)
                rows.append(("random", method, max(self.kappas), E, "mean", *found))
        return columns(("world", "method", "kappa", "E", "return", "value", "low", "high"), rows)

    def notes(self) -> list[str]:
        rates = ", ".join(f"{rate:g} ({method}, {world})" for (world, method), (rate, _) in SETTINGS.items())
        return [
            "Jin, Peng, Yang, Wang and Zhang, Federated reinforcement learning with environment heterogeneity, AISTATS "
            "2022, arXiv:2204.02634, as its public code has it: 5 agents, of which the first has the nominal "
            "environment; Table 1 is the return there at the end. Random environments have 5 states, 5 actions, "
            "discount 0.9 and a uniform start; the others' kernels are mixtures with ones on the complement of the "
            "nominal one's support. Windy cliffs are 4 x 4, discount 0.95. First policies are random. The source "
            "subtracts 0.5 / (1 - discount) from returns in random environments; here nothing is subtracted. Its "
            "printed numbers for PAvg could not be read.",
            f"Rates are the source's first ones, {rates}, and iterations are its. They stay as they are, which was "
            "decided after a first look at the public rule: it lowers a rate whenever the objective has grown by less "
            "than 0.1 % in a round, and rounds are shorter with fewer local steps, so that E = 1 stops on the way: a "
            "test replays that. A test also shows that Local SA on natural gradients is the public loop of SoftPAvg, "
            "rule and all, to rounding.",
            "On cliffs ProjPAvg may stop at a policy that stays where it is, at a return of -20, even when all agents "
            "are alike: lives begin in one state, and states that the policy does not visit have no gradient. In a "
            "replay beside this study 41 of 400 first policies ended there. No check is made of ProjPAvg on cliffs.",
            "Intervals are over cohorts of environments and first policies: nothing else is random. That returns fall "
            "with kappa is checked by what is missing to the best nominal return; the returns themselves vary so much "
            "between cohorts that 16 of them do not quite show it for ProjPAvg (0.980 times, 0.960 to 1.0003).",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        axes = figure.subplots(1, 3)
        for ax, world in zip(axes, ("random", "cliffs"), strict=False):
            if world not in self.worlds:
                ax.set_axis_off()
                continue
            for i, method in enumerate(self.methods):
                lost = np.stack([self.lost(outcome, world, method, kappa) for kappa in self.kappas])
                half = 2 * lost.std(1, ddof=1) / np.sqrt(self.seeds)  # on a linear scale, since some gaps are zero
                at, look = np.array(self.kappas) + 0.02 * i, {"color": COLOURS[method], "marker": "o", "markersize": 3}
                look["capsize"] = 2
                ax.errorbar(at, lost.mean(1), half, **look)
            words = {"cliffs": "windy cliffs", "random": "random environments"}[world]
            ax.set(xlabel=r"heterogeneity $\kappa$", title=f"{words}, $E$ = {self.table_steps}")
            ax.set_ylabel("gap to the best return")
        styles = dict(zip(self.local_steps, ("-", "--", ":"), strict=False))
        for method in self.methods:
            goal = max(outcome.arrays[f"{method}, E = {E}"][:, -1].mean() for E in self.local_steps)
            for E, style in styles.items():
                curve = goal - outcome.arrays[f"{method}, E = {E}"].mean(0)
                at = EVERY * np.arange(len(curve))
                axes[2].plot(at[:-1], figures.drawable(curve[:-1]), color=COLOURS[method], linestyle=style)
        axes[2].set(yscale="log", xlabel="iteration", title=rf"random environments, $\kappa$ = {max(self.kappas):g}")
        axes[2].set_ylabel("gap to the best final return")
        entries: dict[str, dict[str, Any]] = {method: {"color": COLOURS[method]} for method in self.methods}
        entries |= {f"right: $E$ = {E}": {"color": "0.3", "linestyle": style} for E, style in styles.items()}
        figures.grid(*axes)
        title = f"{self.num_agents} agents, averages after every $E$ iterations; {self.seeds} seeds, 95 % intervals"
        figures.legend(figure, entries, 5, title)


def complementary(num_agents: int, kappa: float, key: int, cohort: int, size: int = 5) -> Model:
    """Returns random kernels that mix the first kernel, by `1 - kappa`, with states that it never reaches."""
    rng = host_generator(key, "complementary", cohort)
    reached = rng.random((size, size, size)) < SPARSITY
    for row in reached.reshape(-1, size):
        if row.all() or not row.any():
            row[rng.integers(size)] ^= True
    rewards, nominal = rng.random((size, size)), rng.random(reached.shape) * reached
    others = rng.random((num_agents, *reached.shape)) * ~reached
    nominal, others = (part / part.sum(-1, keepdims=True) for part in (nominal, others))
    P = (1 - kappa) * nominal + kappa * others
    P[0] = nominal
    return Model(P, np.repeat(rewards[None], num_agents, axis=0), 0.9)
