"""Local steps on exact operators: the limit's distance from the root for fixed, irregular and random gaps."""

import dataclasses
import itertools
import math
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ...algorithms import GappedSA, LocalSA, LooplessSA
from ...problems import Problem
from ...theory import exact
from ...theory.paper.bounds import local_sa_bias
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, figures

CONVERGED = 1e-12
"""The part of the initial error that is left when a run ends."""
GROWS = 1 - 1e-6
"""A ratio of neighbours below this is growth; there is no noise, and with many local steps distances level off."""
NAMES = {"quadratic": "quadratic", "logistic": "logistic regression"}
SCHEDULES = {
    "fixed": figures.Look("fixed gaps $H$", "0.3", "o"),
    "irregular": figures.Look("irregular gaps up to $H$", "white", "s"),
    "coin": figures.Look("$p = 1/H$", "white", "^"),
}


class FixedPoints(AbstractStudy):
    r"""Malinovsky's local fixed-point methods with $T_i = \mathrm{Id} + \gamma G_i$, on two problems without noise."""

    name: str = "field/fixed-points"
    title: str = "Where local steps stop"
    source: str = "Malinovsky et al. 2020"
    seeds: int = 32
    """The number of independent sequences of coins."""
    quadratic: Instance = dataclasses.field(default_factory=lambda: Instance("quadratic", 10, {"dim": 5}))
    logistic: Instance = dataclasses.field(
        default_factory=lambda: Instance("logistic", 10, {"dim": 5, "num_examples": 20})
    )
    local_steps: tuple[int, ...] = (2, 5, 10, 20, 50)
    """The numbers of local steps $H$, in addition to 1."""
    steps: tuple[float, ...] = (1.0, 0.25)
    r"""The step sizes $\gamma$, in units of $1/L$."""
    distance: float = 10.0
    """The distances of the start from the root, in units of the norm of the root."""
    early: int = 2
    """The number of averages after which starts are compared."""
    coin_rounds: int = 8000
    """The number of steps with coins after the start is forgotten."""

    claim: ClassVar[int] = 13
    figure_size: ClassVar[tuple[float, float]] = (7.2, 5.0)
    quick_settings: ClassVar[dict[str, Any]] = {"local_steps": (2, 10), "seeds": 16, "coin_rounds": 2000}

    def seconds(self) -> float:
        return 4.0 + 5.0 * len(self.local_steps) + 1e-5 * self.coin_rounds * self.seeds

    def run(self, runner: Runner) -> Outcome:
        arrays, rows = {}, []
        for family, instance in (("quadratic", self.quadratic), ("logistic", self.logistic)):
            problem = instance.build().noiseless()
            L, mu = curvatures(problem, family, instance)
            root = problem.theta_star
            direction = np.ones_like(root) / math.sqrt(len(root))
            start = root + self.distance * np.linalg.norm(root) * direction
            for part in self.steps:
                for H in (1, *self.local_steps):
                    gamma = part / L
                    label = f"{family} {part:g} {H}"
                    row = {"family": family, "step": part, "H": H, "xi": 1 - gamma * mu}
                    rows.append(row | self._fixed(runner, problem, gamma, H, mu, start, arrays, label))
        return Outcome(arrays, {"rows": rows})

    def _fixed(
        self,
        runner: Runner,
        problem: Problem,
        gamma: float,
        H: int,
        mu: float,
        start: np.ndarray,
        arrays: dict[str, np.ndarray],
        label: str,
    ) -> dict[str, Any]:
        """Runs all three schedules at one step size and one number of local steps."""
        root, steps = problem.theta_star, math.ceil(math.log(CONVERGED) / math.log(1 - gamma * mu))
        rounds = max(math.ceil(steps / H), self.early + 1)
        run = runner.simulate(problem, LocalSA(gamma, local_steps=H), rounds=rounds, theta=start)
        arrays[f"{label}/error"] = run.error[0]
        fixed = _norm(run.theta[0] - root)
        pulls = gamma * np.linalg.norm(problem.mean_operators(root), axis=1).mean()
        found = {
            "fixed": fixed,
            "bound": neighbourhood(1 - gamma * mu, H, float(pulls)),
            "early": math.sqrt(run.error[0][self.early] / run.error[0][0]),
        }
        if problem.affine:
            expected = local_sa_bias(*problem.affine_parts(), gamma, H)
            found |= {"predicted": _norm(expected), "off": _norm(run.theta[0] - root - expected) / _norm(start - root)}
        if H == 1:
            return found
        gaps = irregular(H)
        rounds = math.ceil(steps / sum(gaps))
        last = runner.simulate(problem, GappedSA(gamma, gaps=gaps), rounds=rounds, theta=start)
        found["irregular"] = _norm(last.theta[0] - root)
        if problem.affine:
            expected = _norm(exact.limit(problem, GappedSA(gamma, gaps=gaps)) - root)
            found["off_irregular"] = abs(found["irregular"] / expected - 1)
        # The run starts at the limit of fixed gaps, since small step sizes take long to forget a distant start.
        coin, burn = LooplessSA(gamma, probability=1 / H), steps // 2
        rounds = (burn + self.coin_rounds) // 4 * 4
        theta = run.theta[0]
        run = runner.simulate(
            problem,
            coin,
            rounds=rounds,
            seeds=self.seeds,
            key=self.key,
            theta=theta,
            record=("error", "theta"),
            every=4,
        )
        kept = run.rounds >= burn
        arrays[f"{label}/coin"] = run.error[:, kept].mean(1)
        arrays[f"{label}/coin mean"] = run.records["theta"][:, kept].mean(1) - root
        if problem.affine:
            found["predicted_coin"] = _norm(loopless_mean(*problem.affine_parts(), gamma, 1 / H) - root)
        return found

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        top, bottom = figure.subplots(2, 2, sharey="col")
        for row, family in ((top, "quadratic"), (bottom, "logistic")):
            self._plot_sizes(row[0], outcome, family)
            self._plot_starts(row[1], outcome, family)
            row[0].set_ylabel(f"{family}: distance")
        bottom[0].set_xlabel("local steps $H$")
        bottom[1].set_xlabel("communications")
        entries = {look.name: figures.dots("0.3", look.marker, 4.5, face=look.colour) for look in SCHEDULES.values()}
        entries |= {"predicted": figures.dashed(), "bound $S$": {"color": "0.3", "linewidth": 0.8}}
        for part, colour in zip(self.steps, _colours(self.steps), strict=True):
            entries[rf"$\gamma$ = {part:g} / L"] = {"color": colour, "linewidth": 3}
        figures.legend(figure, entries, 4)

    def _plot_sizes(self, ax: figures.Axes, outcome: Outcome, family: str) -> None:
        for part, colour in zip(self.steps, _colours(self.steps), strict=True):
            rows = self._rows(outcome, family, part)[1:]
            at = [row["H"] for row in rows]
            sizes = {name: [row[name] for row in rows] for name in ("fixed", "irregular")}
            sizes["coin"] = [math.sqrt(outcome.arrays[f"{_label(row)}/coin"].mean()) for row in rows]
            for name, size in sizes.items():
                face = colour if name == "fixed" else "white"
                ax.plot(at, size, **figures.dots(colour, SCHEDULES[name].marker, 4.5, face=face))
            ax.plot(at, [row["bound"] for row in rows], color=colour, linewidth=0.8)
            if family == "quadratic":
                figures.theory(ax, at, [row["predicted"] for row in rows], colour)
        ax.set(xscale="log", yscale="log")
        figures.ticks(ax, self.local_steps)

    def _plot_starts(self, ax: figures.Axes, outcome: Outcome, family: str) -> None:
        shown = [1, *(self.local_steps[k] for k in (0, len(self.local_steps) // 2, -1))]
        for H, colour in zip(dict.fromkeys(shown), ("0.5", *figures.FALLBACK[:3]), strict=False):
            error = outcome.arrays[f"{family} {self.steps[0]:g} {H}/error"][:61]
            ax.plot(figures.drawable(np.sqrt(error)), color=colour, label=f"$H$ = {H}")
        ax.set(yscale="log", ylim=(1e-4, None), xlim=(0, 30))
        ax.legend(frameon=False, title=rf"$\gamma$ = {self.steps[0]:g} / L", loc="upper right", labelspacing=0.3)

    def summary(self, outcome: Outcome) -> list[str]:
        tight = max(row["fixed"] / row["bound"] for row in outcome.facts["rows"] if row["H"] > 1)
        ends = {name: self._rows(outcome, family, self.steps[0])[1:] for family, name in NAMES.items()}
        said = [
            f"{few['fixed']:.3g} at H = {few['H']} and {many['fixed']:.3g} at H = {many['H']} on the {name} problem"
            for name, few, many in ((name, rows[0], rows[-1]) for name, rows in ends.items())
        ]
        ratios = [self._coin_ratio(outcome, row) for row in outcome.facts["rows"] if row["H"] > 1]
        early = self._rows(outcome, "logistic", self.steps[0])
        return [
            f"With exact operators and gamma = {self.steps[0]:g} / L local steps stop away from the root, "
            f"{' and '.join(said)}; at H = 1 they reach it. Malinovsky's bound S holds everywhere; the closest any "
            f"case comes to it is {100 * tight:.0f} %.",
            f"After {self.early} averages from far away the logistic problem's distance is {early[0]['early']:.2g} of "
            f"the start's with H = 1 and {early[-1]['early']:.2g} with H = {early[-1]['H']}: a faster start, and a "
            "larger neighbourhood.",
            f"Averaging with probability 1/H leaves a distance of {min(r.value for r in ratios):.2f} to "
            f"{max(r.value for r in ratios):.2f} times that of fixed gaps H. To first order in gamma the mean is twice "
            "as far off: on average H - 1 steps have passed since the last average, with fixed gaps (H - 1) / 2.",
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        rows = outcome.facts["rows"]
        for family, name in NAMES.items():
            where, local = f"{name}, all steps and H", [row for row in rows if row["family"] == family and row["H"] > 1]
            if family == "quadratic":
                statement = f"Fixed gaps on the {where}: distance of their end from the closed form, by the start's"
                worst = max(row["off"] for row in rows if row["family"] == family)
                checks.at_most(f"{family}, limit", statement, worst, 1e-9)
                statement = f"Irregular gaps on the {where}: relative difference of the distance from the closed form"
                worst = max(row["off_irregular"] for row in local)
                checks.at_most(f"{family}, irregular limit", statement, worst, 1e-6)
            for schedule in ("fixed", "irregular"):
                statement = f"{schedule.capitalize()} gaps on the {where}: largest distance to the root by the bound S"
                worst = max(row[schedule] / row["bound"] for row in local)
                checks.at_most(f"{family}, bound, {schedule}", statement, worst, 1.0)
            for part in self.steps:
                chosen = self._rows(outcome, family, part)
                growth = max(a["fixed"] / b["fixed"] for a, b in itertools.pairwise(chosen[1:]))
                statement = f"{name}, gamma = {part:g} / L: largest ratio of a distance to that at the next larger H"
                checks.at_most(f"{family}, {part:g}, grows with H", statement, growth, GROWS)
                faster = chosen[-1]["early"] / chosen[0]["early"]
                statement = (
                    f"{name}, gamma = {part:g} / L: distance after {self.early} averages with H = {chosen[-1]['H']} by "
                    "that with H = 1"
                )
                checks.at_most(f"{family}, {part:g}, faster start", statement, faster, 0.9)
            large, small = (self._rows(outcome, family, part)[1:] for part in (self.steps[0], self.steps[-1]))
            growth = max(b["fixed"] / a["fixed"] for a, b in zip(large, small, strict=True))
            statement = f"{name}, all H: largest ratio of a distance at the smaller step to that at the larger"
            checks.at_most(f"{family}, grows with the step", statement, growth, GROWS)
            ratios = [self._coin_ratio(outcome, row) for row in local]
            for word, pick in (("smallest", min), ("largest", max)):
                ratio = pick(ratios, key=lambda r: r.value)
                statement = f"{name}: {word} ratio of the distance with p = 1/H to that with gaps H"
                checks.inside(f"{family}, coin, {word}", statement, ratio, 0.5, 3.0)
        row = next(r for r in rows if "predicted_coin" in r and r["H"] == self.local_steps[-1])
        measured = statistics.squared_bias(outcome.arrays[f"{_label(row)}/coin mean"])
        statement = f"quadratic, p = 1/{row['H']}, gamma = {row['step']:g} / L: squared bias of the mean"
        checks.equals("coin, mean", statement, measured, row["predicted_coin"] ** 2, precision=0.1)

    def table(self, outcome: Outcome) -> Table:
        names = ("family", "step", "H", "fixed", "irregular", "bound", "early", "predicted", "predicted_coin")
        columns: dict[str, Any] = {name: [row.get(name) for row in outcome.facts["rows"]] for name in names}
        coins = [outcome.arrays.get(f"{_label(row)}/coin") for row in outcome.facts["rows"]]
        return columns | {"coin": [None if coin is None else math.sqrt(coin.mean()) for coin in coins]}

    def notes(self) -> list[str]:
        return [
            "Malinovsky, Kovalev, Gasanov, Condat and Richtarik, From Local SGD to Local Fixed-Point Methods for "
            "Federated Learning, ICML 2020, arXiv:2004.01442. Theirs is logistic regression on a9a and a4a; ours is on "
            f"random data, {self.logistic.num_agents} agents with labels from directions of their own, with a "
            "quadratic problem beside it.",
            "T_i = Id + gamma G_i is a contraction by xi = 1 - gamma mu for gamma up to 1 / L, where mu and L are the "
            "least and the largest curvature of any agent; the bound is "
            "$S = xi / (1 - xi) (1 - xi^(H-1)) / (1 - xi^H)$ times the mean of $|T_i(x*) - x*|$. "
            "A ball of this radius is kept by every gap up to H, so it holds for irregular ones.",
            "Irregular gaps repeat H, 1, H / 2. With coins the distance is the root of the mean square over "
            f"{self.coin_rounds} steps of the average of all agents, also between exchanges; its mean obeys a linear "
            "recursion that is solved exactly. The source proves its loopless method for gamma below p / 15 only.",
        ]

    def _rows(self, outcome: Outcome, family: str, part: float) -> list[dict[str, Any]]:
        return [row for row in outcome.facts["rows"] if (row["family"], row["step"]) == (family, part)]

    def _coin_ratio(self, outcome: Outcome, row: dict[str, Any]) -> statistics.Estimate:
        """Returns the root-mean-square distance with coins relative to the distance with fixed gaps."""
        square = statistics.mean(outcome.arrays[f"{_label(row)}/coin"])
        return statistics.Estimate(*(math.sqrt(end) / row["fixed"] for end in square))


def neighbourhood(xi: float, H: int, pull: float) -> float:
    r"""Malinovsky's bound $\frac\xi{1-\xi} \frac{1-\xi^{H-1}}{1-\xi^H}$ times the mean of $|T_i(x^\star) - x^\star|$.

    !!! example
        >>> neighbourhood(0.5, 1, 3.0), neighbourhood(0.5, 2, 3.0)
        (0.0, 2.0)
    """
    return xi / (1 - xi) * (1 - xi ** (H - 1)) / (1 - xi**H) * pull


def loopless_mean(A: np.ndarray, b: np.ndarray, gamma: float, p: float) -> np.ndarray:
    r"""Returns the mean of the agents' average if a coin of probability `p` decides about averaging.

    The coin is independent of the agents, so the means obey $y_i = F_i (p \bar y + (1-p) y_i) - \gamma b_i$ with
    $F_i = I + \gamma A_i$.

    !!! example
        >>> A, b = np.array([[[-1.0]], [[-3.0]]]), np.array([[-1.0], [0.0]])
        >>> float(loopless_mean(A, b, 0.1, 1.0)[0])             # averaging after every step: the root
        0.25
    """
    M, d = b.shape
    F = np.eye(d) + gamma * A
    own, shared = np.zeros((M, d, M, d)), np.broadcast_to(p / M * F[:, :, None, :], (M, d, M, d))
    own[np.arange(M), :, np.arange(M), :] = (1 - p) * F
    y = np.linalg.solve(np.eye(M * d) - (own + shared).reshape(M * d, M * d), -gamma * b.ravel())
    return y.reshape(M, d).mean(0)


def irregular(H: int) -> tuple[int, ...]:
    """Returns irregular gaps of at most `H`."""
    return H, 1, (H + 1) // 2


def curvatures(problem: Problem, family: str, instance: Instance) -> tuple[float, float]:
    r"""Returns the largest and the smallest curvature of any agent anywhere, $L$ and $\mu$."""
    if family == "quadratic":
        values = np.linalg.eigvalsh(-problem.affine_parts()[0])
        return float(values.max()), float(values.min())
    agents: Any = instance.build().agents
    weighted = agents.inputs * agents.source.stationary[..., None]
    most = np.linalg.eigvalsh(np.swapaxes(agents.inputs, 1, 2) @ weighted / 4).max()
    mu = float(agents.regularisation[0])
    return float(most) + mu, mu


def _label(row: dict[str, Any]) -> str:
    return f"{row['family']} {row['step']:g} {row['H']}"


def _norm(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector))


def _colours(steps: tuple[float, ...]) -> list[str]:
    return [figures.FALLBACK[k] for k in (0, 1, 2, 4)][: len(steps)]
