"""FedHSA extrapolated to step size zero on the same observations: the linear speed-up with many agents."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg import solve_sylvester

from ... import statistics
from ...algorithms import AbstractAlgorithm, FedHSA, LocalSA, RichardsonRomberg
from ...problems import quadratic
from ...theory import Prediction, correlations
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, columns, figures, repeated
from ..study.foresight import WIDEST, doubt, foresee, settling, slope_doubt

METHODS: dict[str, Callable[..., AbstractAlgorithm]] = {"FedHSA": FedHSA, "LocalSA": LocalSA}
PLAIN, EXTRAPOLATED = 0, 1
"""The index of each method in the arrays."""
LOOKS = {
    ("FedHSA", PLAIN): figures.Look("FedHSA", figures.COLOURS["FedHSA"], "o"),
    ("FedHSA", EXTRAPOLATED): figures.Look("FedHSA, extrapolated", "#009E73", "s"),
    ("LocalSA", PLAIN): figures.Look("LocalSA", figures.COLOURS["LocalSA"], "v"),
    ("LocalSA", EXTRAPOLATED): figures.Look("LocalSA, extrapolated", "#B87F00", "D"),
}
SETTLED = 1e-3
"""The part of the mean's initial error that may be left when measurements begin."""
FIRST_ORDER = 0.1
"""The relative tolerance of extrapolated floors: their variance is known to first order in the step size."""
SEEN = 0.05
"""The largest half-width of the squared bias after extrapolation, relative to the squared bias before."""
FEWER = 4
"""The factor by which runs with fewer agents, which cost less, have more rounds."""
SMALL = (0.125, 0.25)
"""The fractions of the step size between which theory gives the powers of the step size in the biases."""
TINY = 1e-3
"""The step size on the problems with an exact law, on which the variance is compared with its first order."""
TURN = np.array([[1.0, 2.0], [-2.0, 1.0]])
"""The matrix of the problem whose average operator rotates."""


class Setting(NamedTuple):
    """A method at the step sizes `step` and `2 * step`, on the same observations of a number of agents."""

    method: str
    M: int
    step: float


class Extrapolation(AbstractStudy):
    """Floors against agents and biases against step sizes, before and after extrapolation."""

    name: str = "field/extrapolation"
    title: str = "FedHSA extrapolated"
    source: str = "New here: Richardson-Romberg on FedHSA"
    seeds: int = 24
    instance: Instance = dataclasses.field(
        default_factory=lambda: Instance("td", 4, {"num_states": 4, "dim": 2, "laziness": 0.85}, key=21)
    )
    """The cohort, sampled like the cohort of `saturation` with another key."""
    local_steps: int = 20
    step_size: float = 0.1
    """The smaller of the two step sizes."""
    copies: tuple[int, ...] = (1, 4, 16, 64)
    step_sweep: tuple[float, ...] = (0.05, 0.1, 0.2)
    """The step sizes with the most agents; half of `step_size` must be included."""
    rounds: int = 1800
    """The number of rounds that count, which tail averages are taken over."""

    claim: ClassVar[int] = 22
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.2)
    quick_settings: ClassVar[dict[str, Any]] = {"copies": (1, 64), "step_sweep": (0.05, 0.1), "rounds": 400}

    def seconds(self) -> float:
        work = sum(run.M * (self._chunks(run) * self.rounds + 13 / run.step) for run in self.runs())
        return 25.0 + 3.0 * len({run[:2] for run in self.runs()}) + 8e-8 * self.seeds * self.local_steps * work

    def runs(self) -> list[Setting]:
        """Returns every run once, starting with the runs that increase the number of agents."""
        fewest, most = (self.instance.num_agents * self.copies[k] for k in (0, -1))
        found = [Setting("FedHSA", self.instance.num_agents * copies, self.step_size) for copies in self.copies]
        found += [Setting("FedHSA", most, step) for step in self.step_sweep]
        found.append(Setting("FedHSA", fewest, self.step_size / 2))
        found += [Setting("LocalSA", most, step) for step in self.step_sweep if step >= self.step_size]
        return list(dict.fromkeys(found))

    def run(self, runner: Runner) -> Outcome:
        cohort, runs = self.instance.build(), self.runs()

        @functools.cache
        def theory(run: Setting) -> Prediction:
            runner.stop_if_asked()
            problem = repeated(cohort, run.M // cohort.num_agents)
            return foresee(problem, METHODS[run.method](run.step, local_steps=self.local_steps))

        both = [(theory(run), theory(run._replace(step=2 * run.step))) for run in runs]
        measured = (
            self._measure(runner, cohort.theta_star, run, one) for run, (one, _) in zip(runs, both, strict=True)
        )
        last, tails, means = zip(*measured, strict=True)
        arrays = {"last": np.stack(last), "tail": np.stack(tails), "bias": np.stack(means)}
        ratio = variance_ratio(cohort.affine_parts()[0].mean(0), correlations(cohort).long_run.mean(0))
        facts: dict[str, Any] = {
            "levels": [[_square(b) for b in _biases(*pair, run.M)] for run, pair in zip(runs, both, strict=True)],
            "floors": [_floors(*pair, run.M, ratio) for run, pair in zip(runs, both, strict=True)],
            "doubts": [doubt(one) for one, _ in both],
            "level_doubts": [[_level_doubt(one), max(map(_level_doubt, (one, two)))] for one, two in both],
            "saturation_agents": both[0][0].saturation_agents,
            "variance": self._variances(),
        }
        small, few = [part * self.step_size for part in SMALL], runs[0]
        pairs = [(theory(few._replace(step=step)), theory(few._replace(step=2 * step))) for step in small]
        levels = np.array([[_square(b) for b in _biases(*pair, math.inf)] for pair in pairs])
        facts["powers"] = (np.diff(np.log(levels), axis=0)[0] / np.diff(np.log(small))[0]).tolist()
        main, agents = both[0], np.geomspace(runs[0].M, self._most(), 30)
        arrays |= {"agents": agents, "curve": np.array([_floors(*main, M, ratio) for M in agents])}
        return Outcome(arrays, facts)

    def _measure(self, runner: Runner, root: np.ndarray, run: Setting, prediction: Prediction):
        """Returns floors of the last iterate, errors of tail averages, and mean errors, plain and extrapolated."""
        before, chunks = settling(prediction, SETTLED), self._chunks(run)
        settings: dict[str, Any] = {"seeds": self.seeds, "key": self.key, "theta": root}
        settings["record"] = {"copies": lambda snapshot: snapshot.server.inner.theta}
        both, rounds = RichardsonRomberg(prediction.algorithm), before + chunks * self.rounds
        found = runner.simulate(prediction.problem, both, rounds=rounds, **settings)
        errors = found.records["copies"][:, before + 1 :] - root
        errors = np.stack([errors[:, :, 0], 2 * errors[:, :, 0] - errors[:, :, 1]])
        tails = errors.reshape(2, self.seeds, chunks, self.rounds, -1).mean(3)
        return (errors**2).sum(-1).mean(-1), (tails**2).sum(-1).mean(-1), tails.mean(2)

    def _chunks(self, run: Setting) -> int:
        return 1 if self._most() == run.M else FEWER

    def _most(self) -> int:
        return self.instance.num_agents * self.copies[-1]

    def _variances(self) -> dict[str, float]:
        """Returns the effect of extrapolation on the last iterate's variance, exact and to first order."""
        problems = {
            "symmetric": quadratic.random(num_agents=4, dim=2, start="stationary"),
            "rotating": quadratic.from_arrays(np.stack([TURN] * 2), np.zeros((2, 2)), noise_std=0.1),
        }
        found = {}
        for name, problem in problems.items():
            plain = FedHSA(TINY, local_steps=5)
            both = foresee(problem, RichardsonRomberg(plain)), foresee(problem, plain)
            found[name] = both[0].noise_variance / both[1].noise_variance
        return found

    def check(self, outcome: Outcome, checks: Checks) -> None:
        self._check_floors(outcome, checks)
        self._check_biases(outcome, checks)
        self._check_variances(outcome, checks)

    def _check_floors(self, outcome: Outcome, checks: Checks) -> None:
        facts, most = outcome.facts, self._most()
        for k in range(len(self.copies)):
            words = ((PLAIN, "FedHSA", facts["doubts"][k]), (EXTRAPOLATED, "Extrapolated FedHSA", FIRST_ORDER))
            for kind, word, slack in words:
                M, measured = self.runs()[k].M, statistics.mean(outcome.arrays["last"][k, kind])
                name, statement = f"{word}, M = {M}", f"Floor of {word} with M = {M}, as predicted"
                options: dict[str, Any] = {"slack": slack, "precision": 0.25}
                checks.equals(name, statement, measured, facts["floors"][k][kind], **options)
        for kind, word, low, high in ((PLAIN, "FedHSA", 3.0, math.inf), (EXTRAPOLATED, "extrapolated", 0.0, 1.6)):
            statement = f"Floor with M = {most} relative to what 1/M makes of that of one cohort: {word}"
            measured = self._excess(outcome, kind)
            checks.inside(f"over 1/M, {word}", statement, measured, low, high)
        statement = f"Error of tail averages over {self.rounds} rounds with M = {most}, extrapolated by plain"
        measured = statistics.ratio(*outcome.arrays["tail"][self._at(most, self.step_size), ::-1])
        checks.inside("tail averages", statement, measured, 0.0, 0.2)
        words = ((most, 0.0, 1.0, "less"), (self.runs()[0].M, 1.0, math.inf, "more"))
        for M, low, high, word in words:
            statement = f"Floor with M = {M}, extrapolated by plain at half the step, which sends as much: {word}"
            measured = self._against_half(outcome, M)
            checks.inside(f"half the step, M = {M}", statement, measured, low, high)

    def _check_biases(self, outcome: Outcome, checks: Checks) -> None:
        facts = outcome.facts
        for k, run in enumerate(self.runs()):
            if self._most() == run.M:
                of = f"{run.method}, step {run.step:g}, M = {run.M}"
                plain, extrapolated = (statistics.squared_bias(means) for means in outcome.arrays["bias"][k])
                before, after = facts["levels"][k]
                name, statement = f"bias, {of}", f"Squared bias of {of}, as predicted"
                doubts = facts["level_doubts"][k]
                checks.equals(name, statement, plain, before, slack=doubts[PLAIN], precision=0.4)
                slack = min(sum(doubts) * before, WIDEST * after)
                options: dict[str, Any] = {"precision": SEEN * before, "relative": False, "slack": slack}
                statement = f"{statement}, after extrapolation; to {100 * SEEN:g} % of that before"
                checks.equals(f"{name}, extrapolated", statement, extrapolated, after, **options)
        rows = [self._at(self._most(), step) for step in self.step_sweep]
        expected = statistics.slope(self.step_sweep, [[facts["levels"][k][PLAIN]] * 2 for k in rows]).value
        samples = [statistics.squared_bias_samples(outcome.arrays["bias"][k, PLAIN]) for k in rows]
        slack = slope_doubt(self.step_sweep, [facts["level_doubts"][k][PLAIN] for k in rows])
        options = {"slack": slack, "precision": 0.5, "relative": False}
        statement = "Power of the step in the squared bias of FedHSA, as predicted at these steps"
        measured = statistics.slope(self.step_sweep, samples)
        checks.equals("power", statement, measured, expected, **options)
        for kind, word, expected in ((PLAIN, "FedHSA", 2.0), (EXTRAPOLATED, "extrapolated FedHSA", 4.0)):
            statement = f"Power of the step in the squared bias of {word} at small steps and any number of agents"
            name, power = f"power at small steps, {word}", facts["powers"][kind]
            checks.near(name, statement, power, expected, tolerance=0.1, relative=False)

    def _check_variances(self, outcome: Outcome, checks: Checks) -> None:
        for kind, expected in (("symmetric", 2 / 3), ("rotating", variance_ratio(-TURN, np.eye(2)))):
            statement = (
                f"Variance after extrapolation relative to that before, exact law at a small step, {kind} operator"
            )
            measured = outcome.facts["variance"][kind]
            checks.near(f"variance, {kind}", statement, measured, expected, tolerance=0.01)

    def _at(self, M: int, step: float, method: str = "FedHSA") -> int:
        return self.runs().index(Setting(method, M, step))

    def _excess(self, outcome: Outcome, kind: int) -> statistics.Estimate:
        """Returns the floor with the most agents relative to the floor of one cohort scaled by 1/M."""
        last, M = outcome.arrays["last"][:, kind], [run.M for run in self.runs()]
        k = len(self.copies) - 1
        return statistics.ratio(M[k] * last[k], M[0] * last[0])

    def _against_half(self, outcome: Outcome, M: int) -> statistics.Estimate:
        above = outcome.arrays["last"][self._at(M, self.step_size), EXTRAPOLATED]
        return statistics.ratio(above, outcome.arrays["last"][self._at(M, self.step_size / 2), PLAIN])

    def summary(self, outcome: Outcome) -> list[str]:
        most, few, k = self._most(), self.runs()[0].M, self._at(self._most(), self.step_size)
        plain, better = (self._excess(outcome, kind) for kind in (PLAIN, EXTRAPOLATED))
        tail = statistics.ratio(*outcome.arrays["tail"][k])
        before, after = (statistics.squared_bias(means) for means in outcome.arrays["bias"][k])
        local = self._at(most, self.step_size, "LocalSA")
        local_before, local_after = (statistics.squared_bias(means) for means in outcome.arrays["bias"][local])
        half, half_few = (_inverse(self._against_half(outcome, M)) for M in (most, few))
        return [
            f"With M = {most} agents FedHSA's floor is {plain:.3g} times what 1/M makes of that of {few}; after "
            f"extrapolation it is {better:.3g} times (left). Tail averages over {self.rounds} rounds gain a factor "
            f"of {tail:.3g}.",
            f"The squared bias at step {self.step_size:g} falls from {before:.3g} to {after:.3g} (predicted "
            f"{outcome.facts['levels'][k][EXTRAPOLATED]:.2g}), and that of Local SA from {local_before:.3g} to "
            f"{local_after:.3g}; by theory it goes with the power {outcome.facts['powers'][EXTRAPOLATED]:.2f} of "
            "the step at small ones, 4 in the limit, and without extrapolation with the square (right).",
            "Extrapolation sends twice as much. Plain FedHSA that sends as much, with half the step and twice the "
            f"rounds, has a floor {half:.3g} times as large with M = {most}, and {half_few:.3g} times with M = "
            f"{few}: with few agents there is nothing to gain.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for k, run in enumerate(self.runs()):
            for kind, word in ((PLAIN, "plain"), (EXTRAPOLATED, "extrapolated")):
                floor = statistics.mean(outcome.arrays["last"][k, kind], level=0.95)
                tail = statistics.mean(outcome.arrays["tail"][k, kind], level=0.95)
                level = statistics.squared_bias(outcome.arrays["bias"][k, kind], level=0.95)
                expected = outcome.facts["floors"][k][kind], outcome.facts["levels"][k][kind]
                rows.append((*run, word, *floor, expected[0], *tail, *level, expected[1]))
        names = ["method", "agents", "step_size", "output", "floor", "floor_low", "floor_high", "floor_predicted"]
        names += ["tail", "tail_low", "tail_high"]
        names += ["squared_bias", "squared_bias_low", "squared_bias_high", "squared_bias_predicted"]
        return columns(names, rows)

    def notes(self) -> list[str]:
        return [
            "Extrapolation on one Markovian trajectory is from Huo, Chen and Xie (2023, arXiv:2210.00953), for one "
            "agent; `docs/theory/extrapolation.md` derives what it does to FedHSA. The problem is drawn like that of "
            "`saturation` and picked for its bias, and more agents are copies of one cohort with noise of their own.",
            "Extrapolated floors are predicted by the bias at both steps, and by the plain variance times a ratio that "
            "is first order in the step.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, right = figure.subplots(1, 2)
        runs, most, floors = self.runs(), self._most(), range(len(self.copies))
        agents = [runs[k].M for k in floors]
        lowest = min(level for levels in outcome.facts["levels"] for level in levels) / 30
        for (method, kind), look in LOOKS.items():
            if method == "FedHSA":
                for name, face in (("last", None), ("tail", "white")):
                    found = figures.means(outcome.arrays[name][k, kind] for k in floors)
                    figures.points(left, agents, found, **figures.dots(look.colour, look.marker, face=face))
                figures.theory(left, outcome.arrays["agents"], outcome.arrays["curve"][:, kind], look.colour)
            rows = [k for k, run in enumerate(runs) if run.method == method and most == run.M]
            rows.sort(key=lambda k: runs[k].step)
            for k in rows:
                found = statistics.squared_bias(outcome.arrays["bias"][k, kind], level=figures.LEVEL)
                if found.value > 0:
                    found = found._replace(low=max(found.low, lowest))
                    figures.points(right, [runs[k].step], [found], **figures.dots(look.colour, look.marker))
            levels = [outcome.facts["levels"][k][kind] for k in rows]
            figures.theory(right, [runs[k].step for k in rows], levels, look.colour)
        left.set(xscale="log", yscale="log", xlabel="number of agents $M$", ylabel="mean-square error")
        right.set(xscale="log", yscale="log", xlabel=r"step size $\eta$", ylabel=f"squared bias, $M = {most}$")
        right.set_ylim(bottom=lowest / 1.5)
        figures.ticks(left, agents)
        figures.ticks(right, self.step_sweep)
        entries = {look.name: figures.dots(look.colour, look.marker) for look in LOOKS.values()}
        entries |= {"averaged over rounds": figures.dots("0.3", face="white"), "predicted": figures.dashed()}
        figures.grid(left, right)
        title = rf"TD: $H = {self.local_steps}$, left $\eta = {self.step_size:g}$; {self.seeds} seeds, 95 % intervals"
        figures.legend(figure, entries, 3, title)


def variance_ratio(A_bar: np.ndarray, long_run: np.ndarray) -> float:
    r"""Returns the variance of $2\theta^{(\eta)} - \theta^{(2\eta)}$ on the same observations, relative to the
    variance of $\theta^{(\eta)}$.

    To first order in the step, from $a \bar A X_{ab} + b X_{ab} \bar A^T = -ab\, \bar\Gamma$ for steps $a$ and $b$.

    !!! example
        >>> round(variance_ratio(-np.diag([1.0, 5.0]), np.eye(2)), 6)
        0.666667
    """

    def shared(a: float, b: float) -> float:
        return float(np.trace(solve_sylvester(a * A_bar, b * A_bar.T, -a * b * long_run)))

    return (4 * shared(1, 1) + shared(2, 2) - 4 * shared(1, 2)) / shared(1, 1)


def _biases(one: Prediction, two: Prediction, M: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the biases with `M` agents, at the smaller step size and after extrapolation."""
    biases = [p.persistent_bias + p.problem.num_agents / M * (p.bias - p.persistent_bias) for p in (one, two)]
    return biases[0], 2 * biases[0] - biases[1]


def _level_doubt(prediction: Prediction) -> float:
    """Returns the relative uncertainty of a predicted squared bias: all omitted parts of the floor may be bias."""
    return min(doubt(prediction) * prediction.floor / _square(prediction.bias), WIDEST)


def _floors(one: Prediction, two: Prediction, M: float, ratio: float) -> list[float]:
    variance = one.problem.num_agents / M * one.noise_variance
    plain, extrapolated = (_square(bias) for bias in _biases(one, two, M))
    return [plain + variance, extrapolated + ratio * variance]


def _square(bias: np.ndarray) -> float:
    return float(bias @ bias)


def _inverse(found: statistics.Estimate) -> statistics.Estimate:
    return statistics.Estimate(1 / found.value, 1 / found.high, 1 / found.low)
