"""Too many local steps: the simulated onset of FedHSA's divergence, against the stability limit of its round map."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ..._linear import spectral_radius
from ...algorithms import SCAFFLSA, AbstractAlgorithm, FedHSA, OneExchangeFedHSA
from ...problems import Problem, quadratic, td
from ...theory import predict
from ...theory.rule import LocalRule
from ..study import AbstractStudy, Checks, Outcome, Runner, figures, rows_of
from .contraction import fed_hsa_boundary, one_exchange_boundary, one_exchange_map

COLOUR = figures.colours(["FedHSA", "SCAFFLSA", "OneExchangeFedHSA"])
NAMES = {"scalars": "two scalars", "quadratic": "quadratic", "td": "TD"}
SHARP = 2e-3
"""The tolerance of a measured factor per round relative to the spectral radius."""


class Boundary(AbstractStudy):
    r"""Step sizes and local steps on three problems: the error's factor per round, and the spectral radius."""

    name: str = "field/boundary"
    title: str = "Too many local steps"
    source: str = "Large H in FedHSA: a question that the paper leaves open"
    seeds: int = 32
    """The number of seeds of the runs with noise."""
    slopes: tuple[float, ...] = (0.1, 1.0)
    """The slopes of the two scalar operators."""
    num_agents: int = 20
    dim: int = 10
    num_states: int = 20
    min_eigenvalue: float = 1e-6
    """The smallest curvature of every agent of the quadratic problem."""
    problem_key: int = 0
    local_steps: tuple[int, ...] = (1, 2, 3, 5, 10, 30, 100, 1000)
    parts: tuple[float, ...] = (0.1, 0.25, 0.5, 0.8, 1.25, 2.0, 4.0)
    """The step size times local steps, relative to the boundary at the most local steps."""
    near: float = 0.02
    """Two further step sizes are below and above the boundary by this relative distance, for each number of steps."""
    others: tuple[int, ...] = (10, 100, 1000)
    """The numbers of local steps at which other corrections are tried."""
    noisy_steps: int = 10
    """The number of local steps in the runs with noise."""
    rounds: int = 400

    claim: ClassVar[int] = 18
    figure_size: ClassVar[tuple[float, float]] = (7.2, 5.4)
    quick_settings: ClassVar[dict[str, Any]] = {"local_steps": (2, 3, 10, 100), "others": (100,)}

    def seconds(self) -> float:
        return 6.0 + 3.5 * len(self.local_steps) + 5.0 * len(self.others)

    def problems(self) -> dict[str, Problem]:
        """Returns the problems by name; TD has independent observations, for which the mean-square law is exact."""
        A = np.array(self.slopes).reshape(-1, 1, 1)
        common: dict[str, Any] = {"num_agents": self.num_agents, "dim": self.dim, "key": self.problem_key}
        return {
            "scalars": quadratic.from_arrays(A, b=np.arange(1.0, 1 + len(A))[:, None], noise_std=0.1),
            "quadratic": quadratic.random(min_eigenvalue=self.min_eigenvalue, start="stationary", **common),
            "td": td.random(num_states=self.num_states, **common).iid(),
        }

    def run(self, runner: Runner) -> Outcome:
        rows, noisy, facts, arrays = [], [], {}, {}
        fine = np.unique(np.geomspace(1, self.local_steps[-1], 30).round().astype(int))
        for name, problem in self.problems().items():
            A, quiet = problem.affine_parts()[0], problem.noiseless()
            reach = fed_hsa_boundary(A, self.local_steps[-1]) * self.local_steps[-1]
            of_one = [H * one_exchange_boundary(A, int(H)) for H in fine]
            of_two = [H * fed_hsa_boundary(A, int(H)) for H in fine]
            arrays |= {f"{name}/local_steps": fine, f"{name}/FedHSA": np.array(of_two)}
            arrays[f"{name}/OneExchangeFedHSA"] = np.array(of_one)
            facts[name] = {"reach": reach}
            for row in self._plan(A, reach):
                rows.append({"problem": name, **row, "growth": self._growth(runner, quiet, row)})
            noisy += [{"problem": name, **row} for row in self._with_noise(runner, problem, A, name, arrays)]
        even = quadratic.from_arrays(np.array([[[0.5]], [[1.0]]]), b=np.zeros((2, 1)))
        many = FedHSA(0.5, local_steps=self.local_steps[-1])
        error = runner.simulate(even.noiseless(), many, rounds=8, theta=np.ones(1)).error[0]
        facts["even"] = statistics.growth(error)
        return Outcome(arrays, {"rows": rows, "noisy": noisy, **facts})

    def _plan(self, A: np.ndarray, reach: float) -> list[dict[str, Any]]:
        """Returns the runs without noise: method, local steps, step size, and the spectral radius if it is known."""
        found = []
        for H in self.local_steps:
            own = fed_hsa_boundary(A, H)
            steps = [(part * reach / H, False) for part in self.parts]
            steps += [(own * (1 - self.near), True), (own * (1 + self.near), True)]
            for step, near in steps:
                rho = spectral_radius(LocalRule(step, H, 1.0, 1.0).transition(A))
                found.append({"method": "FedHSA", "H": H, "step": step, "near": near, "radius": min(rho, 1e300)})
                alone = max(spectral_radius(F) for F in np.eye(len(A[0])) + step * A)
                if H in self.others and rho >= 1 > alone:
                    found.append({"method": "SCAFFLSA", "H": H, "step": step, "near": near, "radius": None})
        for H in self.others:
            own = one_exchange_boundary(A, H)
            for step in (own * (1 - self.near), own * (1 + self.near)):
                rho = spectral_radius(one_exchange_map(A, step, H))
                found.append({"method": "OneExchangeFedHSA", "H": H, "step": step, "near": True, "radius": rho})
        return found

    def _growth(self, runner: Runner, problem: Problem, row: dict[str, Any]) -> float:
        methods: dict[str, Callable[..., AbstractAlgorithm]]
        methods = {"FedHSA": FedHSA, "SCAFFLSA": SCAFFLSA, "OneExchangeFedHSA": OneExchangeFedHSA}
        algorithm = methods[row["method"]](row["step"], local_steps=row["H"])
        start = problem.theta_star + np.random.default_rng(0).normal(size=problem.dim)
        return statistics.growth(runner.simulate(problem, algorithm, rounds=self.rounds, theta=start).error[0])

    def _with_noise(
        self, runner: Runner, problem: Problem, A: np.ndarray, name: str, arrays: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Runs with noise below and above the boundary; TD has multiplicative noise and can diverge below it."""
        H, own = self.noisy_steps, fed_hsa_boundary(A, self.noisy_steps)
        steps = {"below": 0.9 * own, "above": 1.1 * own}
        if name == "td":
            steps = {"below": 0.2 * own, "between": 0.9 * own, "above": 1.1 * own}
        found = []
        for where, step in steps.items():
            law = predict(problem, FedHSA(step, local_steps=H))
            settings = {
                "rounds": 2 * self.rounds,
                "seeds": self.seeds,
                "key": self.key,
                "theta": problem.theta_star + 1,
            }
            error = runner.simulate(problem, FedHSA(step, local_steps=H), **settings).error
            row = {"where": where, "H": H, "step": step, "radius": law.spectral_radius, "floor": None}
            row["mean_square_radius"] = law.mean_square_radius
            if law.stable:
                row["floor"] = law.floor
                arrays[f"{name}/floor"] = error[:, self.rounds :].mean(1)
            else:
                row["diverged"] = float(np.isinf(error[:, -1]).mean())
            found.append(row)
        return found

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for name in NAMES:
            rows = rows_of(outcome, problem=name, method="FedHSA")
            wrong = sum((row["growth"] >= 1) != (row["radius"] >= 1) for row in rows)
            statement = (
                f"FedHSA without noise, {NAMES[name]}: of {len(rows)} pairs of step and local steps, those where it "
                "diverges and the spectral radius is below 1, or converges and it is not"
            )
            checks.at_most(f"{name}, boundary", statement, float(wrong), 0.0)
            for method in ("FedHSA", "OneExchangeFedHSA"):
                close = rows_of(outcome, problem=name, method=method, near=True)
                if not close:
                    continue
                off = max(abs(row["growth"] - row["radius"]) for row in close)
                wrong = sum((row["growth"] >= 1) != (row["radius"] >= 1) for row in close)
                statement = (
                    f"{method} without noise, {NAMES[name]}, {100 * self.near:g} % below and above its boundary at "
                    f"{len(close) // 2} numbers of local steps: largest difference of the error's factor per round "
                    "from the spectral radius"
                )
                checks.at_most(f"{name}, {method}, factor", statement, off + wrong, SHARP)
            if stable := [row["growth"] for row in rows_of(outcome, problem=name, method="SCAFFLSA")]:
                statement = (
                    f"SCAFFLSA without noise, {NAMES[name]}, at the {len(stable)} pairs where FedHSA diverges and each "
                    "agent alone does not: its largest factor per round"
                )
                checks.at_most(f"{name}, SCAFFLSA", statement, max(stable), 1 - 1e-6)
            self._check_noise(outcome, checks, name)
        statement = "Slopes 0.5 and 1, AM/HM = 9/8: FedHSA's factor at the most local steps, by AM/HM - 1"
        checks.at_most("like slopes", statement, abs(8 * outcome.facts["even"] - 1), 1e-6)

    def _check_noise(self, outcome: Outcome, checks: Checks, name: str) -> None:
        for row in rows_of(outcome, "noisy", problem=name):
            where = f"FedHSA with noise, {NAMES[name]}, H = {row['H']}, step {row['step']:.3g}"
            if row["floor"] is not None:
                measured = statistics.mean(outcome.arrays[f"{name}/floor"])
                label = f"{name}, floor with noise"
                checks.equals(label, f"{where}: its floor, by the exact law", measured, row["floor"])
            else:
                kept = 1 - row["diverged"]
                statement = f"{where} (spectral radius {row['radius']:.3f}): the part of the seeds that do not diverge"
                checks.at_most(f"{name}, {row['where']} with noise", statement, kept, 0.0)

    def summary(self, outcome: Outcome) -> list[str]:
        facts, rows = outcome.facts, rows_of(outcome, method="FedHSA")
        reach = ", ".join(f"{facts[name]['reach']:.3g} for {NAMES[name]}" for name in NAMES)
        off = max(abs(row["growth"] - row["radius"]) for row in rows if row["near"])
        shares = []
        for name in NAMES:
            at = int(np.searchsorted(outcome.arrays[f"{name}/local_steps"], 100))
            of_one, of_two = (outcome.arrays[f"{name}/{m}"][at] for m in ("OneExchangeFedHSA", "FedHSA"))
            shares.append(f"{of_one / of_two:.2f}")
        slow = max(row["growth"] for row in rows_of(outcome, method="SCAFFLSA"))
        below, between = (rows_of(outcome, "noisy", problem="td", where=w)[0] for w in ("below", "between"))
        return [
            f"FedHSA diverges exactly where the spectral radius of its round map passes 1: in all {len(rows)} runs "
            f"without noise, down to {100 * self.near:g} % from the boundary, and there its factor per round is the "
            f"radius to {off:.1g}. With many local steps only step times local steps counts, and may be {reach}.",
            f"SCAFFLSA converges at every pair tried where FedHSA does not and single agents do, if slowly (largest "
            f"factor {slow:.4f}); FedHSA with one exchange has {', '.join(shares)} of FedHSA's largest step on the "
            "three problems at about a hundred local steps. Agents with slopes 0.5 and 1 (AM/HM below 2) have no "
            f"boundary: the factor at H = {self.local_steps[-1]} is {facts['even']:.4f}.",
            "Additive noise leaves the boundary where it is. TD's noise multiplies and moves it: at H = "
            f"{between['H']} and step {between['step']:.3g} the radius of the mean is {between['radius']:.2f}, that "
            f"of the mean square {between['mean_square_radius']:.3g}, and all runs diverge; at {below['step']:.3g}, "
            f"where it is {below['mean_square_radius']:.2f}, their floor is the predicted one.",
        ]

    def notes(self) -> list[str]:
        return [
            "Zhu, Heath and Mitra (2025, arXiv:2504.11645) ask for a step of at most $mu / (C L^2 H)$ and do not say "
            "what happens beyond. For ever more local steps at a fixed step FedHSA's round map tends to "
            "I - mean(A_i^-1) A; for numbers its factor is AM/HM - 1 of the slopes, above 1 when AM/HM is above 2.",
            "Factors per round are fitted to the second half of a run from a random start, above "
            f"{statistics.ROUNDING:g} of its error. Boundaries are the first steps at which the radius reaches 1.",
            "Quadratic: the paper's generator with smallest curvature "
            f"{self.min_eigenvalue:g}. TD: the paper's generator with {self.num_states} states and {self.dim} "
            "features, independent observations where there is noise, since their law in the mean square is exact.",
            "FedHSA with one exchange corrects by the operators of the round before: its map of two successive errors "
            "has the blocks mean F_i^H and eta mean(S_i (A - A_i)).",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        axes = figure.subplots(2, 2).ravel()
        for ax, name in zip(axes, NAMES, strict=False):
            self._plot_problem(ax, outcome, name)
        self._plot_factors(axes[3], outcome)
        entries = {
            "FedHSA converges": figures.dots(COLOUR["FedHSA"]),
            "FedHSA diverges": figures.dots(COLOUR["FedHSA"], "x"),
            "SCAFFLSA converges, FedHSA does not": figures.dots(COLOUR["SCAFFLSA"], face="none"),
            "spectral radius 1: FedHSA": figures.dashed(COLOUR["FedHSA"]),
            "with one exchange": figures.dashed(COLOUR["OneExchangeFedHSA"], linestyle=figures.DOTS),
        }
        figures.legend(figure, entries, 3)

    def _plot_problem(self, ax: figures.Axes, outcome: Outcome, name: str) -> None:
        at = outcome.arrays[f"{name}/local_steps"]
        for method, dashes in (("FedHSA", figures.DASHES), ("OneExchangeFedHSA", figures.DOTS)):
            figures.theory(ax, at, outcome.arrays[f"{name}/{method}"], COLOUR[method], linestyle=dashes)
        for row in rows_of(outcome, problem=name, method="FedHSA"):
            marker = "x" if row["growth"] >= 1 else "o"
            ax.plot(row["H"], row["H"] * row["step"], **figures.dots(COLOUR["FedHSA"], marker, 3.5))
        rings = [row for row in rows_of(outcome, problem=name, method="SCAFFLSA") if row["growth"] < 1]
        at = [row["H"] for row in rings], [row["H"] * row["step"] for row in rings]
        ax.plot(*at, **figures.dots(COLOUR["SCAFFLSA"], size=7, face="none"))
        ax.set(xscale="log", yscale="log", xlabel="local steps $H$", ylabel=r"$\eta H$", title=NAMES[name])

    def _plot_factors(self, ax: figures.Axes, outcome: Outcome) -> None:
        ends = (0.88, 1.12)  # the agents' own instability is steeper: a few points of TD are outside
        for name, look in (("scalars", "finite-sum"), ("quadratic", "quadratic"), ("td", "td")):
            near = rows_of(outcome, problem=name, method="FedHSA", near=True)
            at = [row["radius"] for row in near], [row["growth"] for row in near]
            ax.plot(*at, **figures.LOOKS[look].style, label=NAMES[name])
        ax.plot(ends, ends, color="0.4", linewidth=0.8, zorder=0)
        ax.axhline(1, color="0.55", linewidth=0.8, zorder=0)
        ax.set(xlim=ends, ylim=ends, xlabel="spectral radius", ylabel="factor per round, simulated")
        ax.set_title("FedHSA next to its boundary")
        ax.legend(frameon=False, loc="upper left")
