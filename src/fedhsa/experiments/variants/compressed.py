"""FedHSA with both exchanges compressed: the floor with each kind of memory, and the error per byte (claim 20)."""

from typing import Any, ClassVar, Literal

import numpy as np

from ... import statistics
from ...algorithms import AbstractAlgorithm, Compressed, FedHSA
from ...algorithms.codecs import AbstractCodec, Quantised, RandK, Sign, TopK
from ...problems import Problem, quadratic
from ...theory import predict
from ...theory.prediction import FLOAT_BYTES
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, repeated, second_half
from ..study import codes as laws
from ..study.sampled import mean_operators

PLAIN = "uncompressed"
PART, LEVELS = 0.3, 4
"""The part of the entries that TopK and RandK send, and the levels of Quantised."""
METHODS: dict[str, tuple[AbstractCodec, Literal["error", "difference", "none"]]] = {
    "TopK": (TopK(PART), "none"),
    "RandK": (RandK(PART), "none"),
    "Quantised": (Quantised(LEVELS), "none"),
    "TopK, error": (TopK(PART), "error"),
    "Sign, error": (Sign(), "error"),
    "TopK, difference": (TopK(PART), "difference"),
    "RandK, difference": (RandK(PART), "difference"),
}
CODECS = {"TopK": ("#D55E00", "s"), "RandK": ("#009E73", "^"), "Quantised": ("#CC79A7", "D"), "Sign": ("#8424FC", "v")}
FACES = {"error": "full", "difference": "left", "none": "none"}
LINES = {"error": "-", "difference": figures.DOTS, "none": (0, (6, 1.5, 1, 1.5))}
"""A codec determines the colour and the marker; its memory determines the marker's filling and the line style."""
NOISY = [PLAIN, *(label for label in METHODS if label != "TopK")]
UNBIASED, FEEDBACK = ("RandK", "Quantised"), ("TopK, error", "Sign, error")
ROUNDING = 1e-20
"""The squared error below which an error counts as zero."""
HIGHER_ORDERS = 0.1
"""The tolerance of floors and slopes relative to their leading order, at the step sizes of the study."""
EVERY = 5
"""The number of rounds between two records of noisy runs."""


class CompressedStudy(AbstractStudy):
    """A quadratic problem at several step sizes, with and without noise, and with noise at two numbers of agents."""

    name: str = "field/compressed"
    title: str = "Compressed FedHSA"
    source: str = "New here"
    seeds: int = 12
    num_agents: int = 10
    dim: int = 10
    problem_key: int = 0
    local_steps: int = 5
    steps: tuple[float, ...] = (0.0025, 0.005, 0.01, 0.02)
    rounds: int = 2400
    """The number of rounds without noise; runs with noise have half this number."""
    noise_std: float = 1.0
    start: float = 3.0
    """The initial distance from the root in each entry, in noisy runs."""
    targets: tuple[float, ...] = (1.0, 0.1, 0.03, 0.01)
    """The squared errors for which the numbers of bytes are compared."""
    copies: int = 8
    """The number of copies of all agents in the measurement of the linear speed-up."""

    claim: ClassVar[int] = 20
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 8, "rounds": 1200, "steps": (0.005, 0.01, 0.02), "copies": 2}

    def seconds(self) -> float:
        return 60.0 + 1e-3 * self.seeds * self.rounds

    def run(self, runner: Runner) -> Outcome:
        problem = quadratic.random(self.num_agents, self.dim, noise_std=self.noise_std, key=self.problem_key)
        silent, arrays = problem.noiseless(), {}
        facts: dict[str, Any] = {"averaged": {}, "zero": {}, "bytes": {}}
        for label in METHODS:
            if label.endswith("difference"):
                final = runner.simulate(silent, self._method(label, self.steps[-1]), **self._how()).error[:, -1]
                facts["zero"][label] = float(final.max())
                continue
            for step in self.steps:
                key = f"{label}/step {step:g}"
                arrays[key], facts["averaged"][key] = self._floors(runner, silent, self._method(label, step))
        for label in NOISY:
            for step in self.steps:
                run = self._noisy(runner, problem, label, step)
                arrays[f"{label}/noise {step:g}"] = run.error
                up, down = (FLOAT_BYTES * floats for floats in (run.cost.floats_up, run.cost.floats_down))
                facts["bytes"][label] = {"up": up, "down": down}
            many = self._noisy(runner, repeated(problem, self.copies), label, self.middle)
            arrays[f"{label}/many"] = second_half(many.error)
        facts["plain floor"] = predict(problem, self._method(PLAIN, self.middle)).floor
        return Outcome(arrays, facts | {"laws": self._laws(problem)})

    @property
    def middle(self) -> float:
        """The step size at which methods are compared side by side."""
        return self.steps[-2]

    def _method(self, label: str, step: float) -> AbstractAlgorithm:
        plain = FedHSA(step, local_steps=self.local_steps)
        return plain if label == PLAIN else Compressed(plain, *METHODS[label])

    def _how(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "seeds": self.seeds, "key": self.key}

    def _floors(self, runner: Runner, problem: Problem, algorithm: AbstractAlgorithm) -> tuple[np.ndarray, float]:
        """Returns each seed's mean-square error over half of a run from the root, and that of the time average."""
        root, half = problem.theta_star, self.rounds // 2
        found = runner.simulate(problem, algorithm, theta=root, record=("error", "theta"), **self._how())
        average = found.records["theta"][:, half:].mean(1) - root
        return found.error[:, half:].mean(1), float((average**2).sum(1).mean())

    def _noisy(self, runner: Runner, problem: Problem, label: str, step: float) -> Any:
        how = self._how() | {"rounds": self.rounds // 2 // EVERY * EVERY, "every": EVERY}
        return runner.simulate(problem, self._method(label, step), theta=problem.theta_star + self.start, **how)

    def _laws(self, problem: Problem) -> dict[str, list[float]]:
        """Returns the floors without noise from each derivation, one for each step size."""
        agents, H, k, silent = mean_operators(problem), self.local_steps, round(PART * self.dim), problem.noiseless()
        scales = [step * H for step in self.steps]
        rest = laws.fixed_point(agents, laws.top_k(k))
        loud = laws.unbiased_floor(agents, laws.quantised(LEVELS, np.random.default_rng(0)), 1.0)
        late = {"TopK, error": laws.top_k(k), "Sign, error": laws.sign}
        found = {
            "TopK": [float(rest @ rest)] * len(scales),
            "RandK": [predict(silent, self._method("RandK", step)).floor for step in self.steps],
            "Quantised": [loud * scale for scale in scales],
        }
        for label, code in late.items():
            found[label] = [laws.feedback_floor(agents, code, step, H) for step in self.steps]
        return found

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        floors, curves, prices = figure.subplots(1, 3)
        for label, law in outcome.facts["laws"].items():
            found = figures.means(outcome.arrays[f"{label}/step {step:g}"] for step in self.steps)
            figures.points(floors, self.steps, found, **_marks(label))
            figures.theory(floors, self.steps, law, _marks(label)["color"])
        floors.set(xlabel=r"step size $\eta$", ylabel="floor", xscale="log", yscale="log", title="without noise")
        figures.ticks(floors, self.steps)
        for place, label in enumerate(NOISY, start=-1):
            errors = outcome.arrays[f"{label}/noise {self.middle:g}"]
            at = np.unique(np.geomspace(1, errors.shape[1] - 1, 100).round().astype(int))
            sent = EVERY * at * outcome.facts["bytes"][label]["up"]
            look = _marks(label)
            figures.band(curves, sent, errors[:, at], look["color"], linestyle=_line(label))
            found = {target: self.price(outcome, label, target) for target in self.targets if label != PLAIN}
            reached = {target: price for target, price in found.items() if price is not None}
            if reached:
                at = np.arange(len(self.targets))[[target in reached for target in self.targets]] + 0.11 * (place - 2)
                figures.points(prices, at, list(reached.values()), **look)
        curves.set(xlabel="bytes sent by each agent", ylabel="squared error $E_t$", xscale="log", yscale="log")
        curves.set_title(rf"with noise, $\eta = {self.middle:g}$")
        prices.axhline(1.0, color=figures.COLOURS["FedHSA"], linewidth=1.0)
        prices.set(xlabel="squared error to reach", ylabel="bytes, relative to uncompressed", yscale="log")
        prices.set_xticks(range(len(self.targets)), [f"{target:g}" for target in self.targets])
        prices.set_title(r"with noise, best $\eta$")
        figures.grid(floors, curves, prices)
        entries = {label: _marks(label) | {"linestyle": _line(label)} for label in (PLAIN, *METHODS)}
        title = rf"FedHSA: $M = {self.num_agents}$, $H = {self.local_steps}$; {self.seeds} seeds, 95 % intervals"
        figures.legend(figure, entries | {"predicted": figures.dashed()}, 5, title)

    def notes(self) -> list[str]:
        return [
            f"TopK and RandK send {100 * PART:g} % of the entries, Quantised has {LEVELS} levels. Error feedback and "
            "differences keep one memory for each of the two exchanges.",
            "TopK without memory and the methods with error feedback are deterministic without noise: their numbers "
            "are means over the second half of the rounds, and have no intervals.",
            f"With noise, observations are the quadratic problem's Markov chains with standard deviation "
            f"{self.noise_std:g}. Bytes are those that agents send; what the server sends is not coded. The price of "
            "an error is that of the best of the steps.",
            "Error feedback after Seide et al. (2014) and Mitra, Pappas and Hassani (2024, EF-TD), differences after "
            "Mishchenko et al. (2019, DIANA) and Richtárik et al. (2021, EF21).",
        ]

    def summary(self, outcome: Outcome) -> list[str]:
        slopes = ", ".join(f"{label} {self.slope(outcome, label).value:.2f}" for label in (*UNBIASED, *FEEDBACK))
        rest = outcome.arrays[f"TopK/step {self.steps[0]:g}"].mean()
        worst = max(outcome.facts["zero"].values())
        floors = ", ".join(f"{label} {self.by_plain(outcome, label, self.middle):.2f}" for label in NOISY[1:])
        speed = ", ".join(f"{label} {self.speed_up(outcome, label):.1f}" for label in NOISY)
        return [
            f"Without noise the floors' slopes in the step are {slopes}; TopK without memory rests {rest:.3g} from the "
            f"root (squared) whatever the step, and with differences the root is reached (squared error {worst:.1g}).",
            f"With noise, at step {self.middle:g}, floors relative to that of uncompressed FedHSA: {floors}. "
            f"{self.copies} times the agents divide the floor by: {speed}.",
            f"Bytes that agents send until an error relative to those of uncompressed FedHSA: {self._prices(outcome)}.",
        ]

    def _prices(self, outcome: Outcome) -> str:
        said = []
        for target in self.targets:
            found = {label: self.price(outcome, label, target) for label in NOISY[1:]}
            words = ", ".join(f"{label} {f'{price:.2f}' if price else 'never'}" for label, price in found.items())
            said.append(f"{target:g}: {words}")
        return "; ".join(said)

    def slope(self, outcome: Outcome, label: str) -> Estimate:
        """Returns the slope of the floor without noise in the step size."""
        samples = [outcome.arrays[f"{label}/step {step:g}"] for step in self.steps]
        return statistics.slope(self.steps, samples)

    def by_plain(self, outcome: Outcome, label: str, step: float) -> Estimate:
        """Returns the floor with noise relative to the floor of uncompressed FedHSA at the same step size."""
        own, plain = (second_half(outcome.arrays[f"{name}/noise {step:g}"]) for name in (label, PLAIN))
        return statistics.ratio(own, plain)

    def added(self, outcome: Outcome, label: str) -> Estimate:
        """Returns the slope, in the step size, of the increase in the floor with noise that compression causes."""
        floors = [
            [second_half(outcome.arrays[f"{name}/noise {step:g}"]) for name in (label, PLAIN)] for step in self.steps
        ]
        return statistics.slope(self.steps, [coded - plain for coded, plain in floors])

    def speed_up(self, outcome: Outcome, label: str) -> Estimate:
        """Returns the floor relative to the floor with copies of all agents."""
        return statistics.ratio(
            second_half(outcome.arrays[f"{label}/noise {self.middle:g}"]), outcome.arrays[f"{label}/many"]
        )

    def price(self, outcome: Outcome, label: str, target: float, ways: tuple[str, ...] = ("up",)) -> Estimate | None:
        """Returns the bytes to an error relative to uncompressed FedHSA, each at its best step size, or None."""
        best = [self._best(outcome, name, target) for name in (label, PLAIN)]
        if None in best:
            return None
        sent = [sum(outcome.facts["bytes"][name][way] for way in ways) for name in (label, PLAIN)]
        own, plain = (outcome.arrays[f"{name}/noise {step:g}"] for name, step in zip((label, PLAIN), best, strict=True))

        def price(seeds: np.ndarray) -> float:
            rounds = [statistics.crossing(errors[seeds].mean(0), target) for errors in (own, plain)]
            return rounds[0] * sent[0] / (rounds[1] * sent[1])

        return statistics.jackknife(price, np.arange(self.seeds))

    def _best(self, outcome: Outcome, label: str, target: float) -> float | None:
        """Returns the step size that reaches an error first, with a floor well below it, so that all means reach it."""
        rounds = {}
        for step in self.steps:
            errors = outcome.arrays[f"{label}/noise {step:g}"]
            if 1.2 * second_half(errors).mean() < target:
                rounds[step] = statistics.crossing(errors.mean(0), target)
        return min(rounds, key=rounds.__getitem__) if rounds else None

    def check(self, outcome: Outcome, checks: Checks) -> None:
        self._check_silent(outcome, checks)
        self._check_noisy(outcome, checks)

    def _check_silent(self, outcome: Outcome, checks: Checks) -> None:
        known = outcome.facts["laws"]
        first, last = (outcome.arrays[f"TopK/step {step:g}"].mean() for step in (self.steps[0], self.steps[-1]))
        statement = "TopK without memory: its floor at the largest step relative to that at the smallest."
        checks.near("TopK, any step", statement, last / first, 1.0, tolerance=0.2)
        statement = "TopK without memory: its floor at the smallest step is that of the derived point."
        checks.near("TopK, point", statement, first, known["TopK"][0], tolerance=HIGHER_ORDERS)
        for step, law in zip(self.steps, known["RandK"], strict=True):
            floor = statistics.mean(outcome.arrays[f"RandK/step {step:g}"])
            statement = "RandK without memory: the floor is that of the exact law."
            checks.equals(f"RandK, step {step:g}", statement, floor, law)
        for label in UNBIASED:
            how: dict[str, Any] = {"slack": HIGHER_ORDERS, "precision": 0.2}
            statement = f"{label} without memory: the floor is of the order of the step, slope 1."
            checks.equals(f"{label}, slope", statement, self.slope(outcome, label), 1.0, **how)
        floor = statistics.mean(outcome.arrays[f"Quantised/step {self.steps[0]:g}"])
        statement = "Quantised without memory: the floor at the smallest step is that of the first order."
        how = {"slack": HIGHER_ORDERS, "precision": 0.25}
        checks.equals("Quantised, floor", statement, floor, known["Quantised"][0], **how)
        for label in FEEDBACK:
            slope = self.slope(outcome, label).value
            statement = f"{label} feedback: the floor is of the order of the squared step, slope 2."
            checks.near(f"{label}, slope", statement, slope, 2.0, tolerance=HIGHER_ORDERS)
            key = f"{label}/step {self.steps[0]:g}"
            floor = float(outcome.arrays[key].mean())
            statement = f"{label} feedback: the floor at the smallest step is that of the memories alone."
            checks.near(f"{label}, floor", statement, floor, known[label][0], tolerance=HIGHER_ORDERS)
            statement = f"{label} feedback: the squared error of the mean parameter by the floor."
            part = outcome.facts["averaged"][key] / floor
            checks.at_most(f"{label}, mean", statement, part, 0.01)
        for label, error in outcome.facts["zero"].items():
            statement = "Differences: the root is reached, largest final squared error."
            checks.at_most(f"{label}, root", statement, error, ROUNDING)

    def _check_noisy(self, outcome: Outcome, checks: Checks) -> None:
        floor = statistics.mean(second_half(outcome.arrays[f"{PLAIN}/noise {self.middle:g}"]))
        statement = "Uncompressed FedHSA with noise: the floor is the predicted one."
        checks.equals("uncompressed", statement, floor, outcome.facts["plain floor"])
        for label in FEEDBACK:
            statement = (
                f"{label} feedback with noise: what it adds to the uncompressed floor is of order 2 in the step."
            )
            how: dict[str, Any] = {"slack": HIGHER_ORDERS, "precision": 0.2}
            checks.equals(f"{label}, noise", statement, self.added(outcome, label), 2.0, **how)
        small, large = (self.by_plain(outcome, "Quantised", step) for step in (self.steps[0], self.steps[-1]))
        statement = "Quantised with noise: its floor by the uncompressed one is the same at all steps."
        how = {"slack": HIGHER_ORDERS, "precision": 0.2}
        checks.equals("Quantised, noise", statement, small, large.value, **how)
        for label in (PLAIN, *UNBIASED):
            gain = self.speed_up(outcome, label)
            statement = f"{label}: so many times the agents divide the floor by as much."
            how = {"slack": 0.25 if label != PLAIN else 0.0, "precision": 0.25}
            checks.equals(f"{label}, speed-up", statement, gain, float(self.copies), **how)
        price = self.price(outcome, "Sign, error", self.targets[0])
        statement = "Sign with error feedback: bytes to the largest of the errors by uncompressed FedHSA's."
        if price is not None:
            checks.inside("Sign, error, bytes", statement, price, 0.0, 1.0)

    def table(self, outcome: Outcome) -> Table:
        rows: list[tuple[Any, ...]] = []
        for label, law in outcome.facts["laws"].items():
            for step, value in zip(self.steps, law, strict=True):
                rows.append((label, step, "none", *statistics.mean(outcome.arrays[f"{label}/step {step:g}"]), value))
        for label in NOISY:
            for step in self.steps:
                errors = second_half(outcome.arrays[f"{label}/noise {step:g}"])
                rows.append((label, step, "Markov", *statistics.mean(errors), np.nan))
        return columns(("method", "step", "noise", "floor", "low", "high", "law"), rows)


def _marks(label: str) -> dict[str, Any]:
    """Returns the colour and the marker of a method from its codec, and the marker's filling from its memory."""
    if label == PLAIN:
        return figures.dots(figures.COLOURS["FedHSA"])
    colour, marker = CODECS[label.partition(",")[0]]
    filled: dict[str, Any] = {"fillstyle": FACES[METHODS[label][1]], "markerfacecoloralt": "white"}
    return figures.dots(colour, marker) | filled


def _line(label: str) -> Any:
    return "-" if label == PLAIN else LINES[METHODS[label][1]]
