"""Late updates: TD(0) whose directions arrive after random delays, with and without a rule that skips stale ones."""

import math
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ..._linear import spectral_radius
from ...algorithms import SA, AbstractAlgorithm, Delayed
from ...problems import Problem, td
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, second_half

NAMES = {"none": "no delay", "adaptive": "delay-adaptive", "vanilla": "vanilla"}
UNSTABLE = math.pi**2 / 2
r"""Uniform delays up to $\tau$ make $x' = -k x$ unstable from $k \tau = \pi^2 / 2$ on."""
RECORDS = 400


class Delays(AbstractStudy):
    """One agent at a common step size: no delays, all late directions, and only directions that are not too stale."""

    name: str = "field/delays"
    title: str = "Late updates"
    source: str = "The experiments of Adibi et al. on delayed stochastic approximation"
    seeds: int = 64
    step_size: float = 0.35
    num_states: int = 20
    dim: int = 10
    discount: float = 0.5
    problem_key: int = 0
    max_delay: int = 200
    """The value in the source."""
    max_delays: tuple[int, ...] = (25, 50, 100, 200, 400)
    """All values that are tried."""
    rounds: int = 10_000

    claim: ClassVar[int] = 16
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.9)
    quick_settings: ClassVar[dict[str, Any]] = {"max_delays": (50, 200), "seeds": 48, "rounds": 6000}

    def seconds(self) -> float:
        return 6.0 + 3.5 * len(self.max_delays) + 2e-8 * self.rounds * self.seeds * sum(self.max_delays)

    def problem(self) -> Problem:
        """Returns a random chain with orthonormal features."""
        rng = np.random.default_rng(self.problem_key)
        P = rng.random((self.num_states, self.num_states))
        R, features = rng.random(self.num_states), np.linalg.qr(rng.normal(size=(self.num_states, self.dim)))[0]
        return td.from_arrays(P[None] / P.sum(1)[None, :, None], R[None], features[None], self.discount)

    def run(self, runner: Runner) -> Outcome:
        problem, step = self.problem(), SA(self.step_size)
        runs: dict[str, AbstractAlgorithm] = {"none": step}
        for most in self.max_delays:
            runs[f"adaptive {most}"] = Delayed(step, max_delay=most, threshold=self.step_size)
            runs[f"vanilla {most}"] = Delayed(step, max_delay=most)
        every = math.gcd(self.rounds, max(1, self.rounds // RECORDS))
        arrays = {}
        for label, algorithm in runs.items():
            settings = {"rounds": self.rounds, "every": every, "seeds": self.seeds, "key": self.key}
            arrays[label] = runner.simulate(problem, algorithm, **settings).error
        fastest = spectral_radius(problem.affine_parts()[0][0])
        return Outcome(arrays, {"every": every, "fastest": fastest, "start": float(arrays["none"][0, 0])})

    def floor(self, outcome: Outcome, label: str) -> np.ndarray:
        """Returns the mean error over the second half of the run, for every seed."""
        return second_half(outcome.arrays[label])

    def reached(self, outcome: Outcome, label: str) -> int | None:
        """Returns the first recorded round in which the mean error is half of the initial error, or None."""
        below = np.flatnonzero(outcome.arrays[label].mean(0) <= outcome.facts["start"] / 2)
        return int(below[0]) * outcome.facts["every"] if len(below) else None

    def limit(self, outcome: Outcome) -> float:
        """Returns approximately the largest delay up to which the mean of vanilla updates is stable."""
        return UNSTABLE / (self.step_size * outcome.facts["fastest"])

    def check(self, outcome: Outcome, checks: Checks) -> None:
        most = self.max_delay
        for above, below in ((f"adaptive {most}", "none"), (f"vanilla {most}", f"adaptive {most}")):
            ratio = statistics.ratio(self.floor(outcome, above), self.floor(outcome, below))
            statement = f"Delays up to {most}: error floor, {above} by {below}"
            checks.above(f"{above} by {below}", statement, ratio)
        for other in self.max_delays:
            ratio = statistics.ratio(self.floor(outcome, f"adaptive {other}"), self.floor(outcome, "none"))
            statement = (
                f"Delays up to {other}: floor of the adaptive rule relative to that without delays, the step unchanged"
            )
            checks.inside(f"adaptive, delays up to {other}", statement, ratio, 0.0, 2.0)
        for other in self.max_delays:
            if other > 1.2 * self.limit(outcome):
                ratio = self._end(outcome, f"vanilla {other}") / outcome.facts["start"]
                statement = (
                    f"Delays up to {other}, beyond the stable ones: error of vanilla updates relative to that of the "
                    "start"
                )
                checks.above(f"vanilla, delays up to {other}", statement, ratio)

    def _end(self, outcome: Outcome, label: str, level: float = statistics.LEVEL) -> Estimate:
        return statistics.mean(np.minimum(self.floor(outcome, label), 1e300), level)

    def summary(self, outcome: Outcome) -> list[str]:
        most = self.max_delay
        floors = {name: statistics.mean(self.floor(outcome, name)).value for name in self._labels()}
        times = [self.reached(outcome, name) for name in self._labels()]
        said = ["never" if t is None else f"after {t}" for t in times]
        others = ", ".join(
            f"{self._end(outcome, f'adaptive {m}').value:.3g} and {self._end(outcome, f'vanilla {m}').value:.3g} "
            f"up to {m}"
            for m in self.max_delays
        )
        none, adaptive, vanilla = floors.values()
        later = outcome.arrays[f"vanilla {most}"].mean(0)
        third, fourth = (part.mean() for part in np.array_split(later, 4)[2:])
        growing = ", where it still grows" if fourth > 1.5 * third else ""
        return [
            f"With delays up to {most} at one step for all the error stays at {none:.3g} without delays and "
            f"{adaptive:.3g} with the delay-adaptive rule, and is {vanilla:.3g} with vanilla updates{growing}. It is "
            f"halved {said[0]} rounds without delays, {said[1]} with the adaptive rule, {said[2]} with vanilla ones.",
            f"Floors of the adaptive rule and of vanilla updates by the largest delay: {others}. The adaptive rule "
            "keeps its ball at the same step whatever the delays are, and pays in speed; vanilla updates are unstable "
            f"in the mean from delays of about {self.limit(outcome):.0f} on at this step, and noisy well before.",
        ]

    def _labels(self) -> list[str]:
        return ["none", f"adaptive {self.max_delay}", f"vanilla {self.max_delay}"]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for label in outcome.arrays:
            method, _, most = label.partition(" ")
            end = self._end(outcome, label, figures.LEVEL)
            rows.append((method, int(most or 0), *end, self.reached(outcome, label)))
        return columns(("method", "max_delay", "floor", "low", "high", "halved"), rows)

    def notes(self) -> list[str]:
        return [
            "Adibi, Dal Fabbro, Schenato, Kulkarni, Poor, Pappas, Hassani and Mitra, Stochastic approximation with "
            "delayed updates: finite-time rates under Markovian sampling, AISTATS 2024, arXiv:2402.11800: one agent, "
            "20 states, 10 orthonormal features, discount 0.5, delays uniform on 1 to 200, step 0.35, which is also "
            "the distance from which the adaptive rule skips an update.",
            "Kernel (normalised uniform rows), rewards (uniform on [0, 1]), start (0) and length are ours; the source "
            "does not print them. A direction may arrive several times or never, since each round draws its delay.",
            "Floors are means over the second half of the runs. The stable delays are those of the mean: a uniform "
            "delay up to tau destabilises $x' = -k x$ from $k tau = pi^2 / 2$ on, with $k$ the step times the largest "
            "eigenvalue. Noise in the operators' matrices comes on top: in the source vanilla updates stay in a larger "
            "ball, on our chain their error grows with its delays as long as we run.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        looks, (left, right) = figures.colours(list(NAMES)), figure.subplots(1, 2)
        for label, colour in zip(self._labels(), looks.values(), strict=True):
            error = outcome.arrays[label]
            figures.band(left, outcome.facts["every"] * np.arange(error.shape[1]), error, colour)
        for name in ("adaptive", "vanilla"):
            found = [self._end(outcome, f"{name} {most}", figures.LEVEL) for most in self.max_delays]
            figures.points(right, self.max_delays, found, color=looks[name], marker="o", linestyle="-")
        left.set(yscale="log", xlabel="round", title=f"delays up to {self.max_delay}")
        left.set_ylabel(r"$|\theta - \theta^{{\star}}|^2$")
        right.axhline(statistics.mean(self.floor(outcome, "none")).value, color=looks["none"])
        right.axvline(self.limit(outcome), color="0.55", linewidth=0.8, zorder=0)
        right.set(xscale="log", yscale="log", xlabel="largest delay", ylabel="error floor")
        right.set(title="the same step for all", ylim=(None, min(right.get_ylim()[1], 1e6)))
        figures.ticks(right, self.max_delays)
        entries = {words: {"color": looks[name], "marker": "o", "markersize": 4} for name, words in NAMES.items()}
        figures.legend(figure, entries, 3)
