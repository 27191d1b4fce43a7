"""FedHSA with partial participation: the floor due to sampling, and the value of replies from all agents (claim 21)."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from scipy.optimize import brentq

from ... import statistics
from ...algorithms import SCAFFOLD, AbstractAlgorithm, FedHSA, LocalSA, Partial, cost
from ...algorithms.sampling import AbstractSampling, Availability, Bernoulli, UniformSampling, WeightedSampling
from ...problems import Problem, quadratic
from ...theory import predict
from ...theory.prediction import FLOAT_BYTES
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, figures
from ..study import sampled as laws

FED, ALL, LOCAL, SCAFFOLDED = "FedHSA", "FedHSA, all answer", "Local SA", "SCAFFOLD"
WEIGHTED = "Horvitz-Thompson"
MARKERS = {FED: "o", LOCAL: "s", ALL: "D", SCAFFOLDED: "^"}
PALETTE = {FED: figures.COLOURS["FedHSA"], LOCAL: figures.COLOURS["LocalSA"]}
PALETTE |= dict(zip((ALL, SCAFFOLDED, "Bernoulli", "availability", WEIGHTED), figures.FALLBACK, strict=False))
FIRST_ORDER: dict[str, Any] = {"color": "0.5", "linestyle": figures.DOTS, "linewidth": 1.0}
ROUNDING = 1e-20
"""The squared error below which an error counts as zero."""
HIGHER_ORDERS = 0.06
"""The tolerance of slopes, and of ratios to the first order in the step size, around 1."""
STEP, H = 0.02, 5
"""The step size and the local steps in runs that do not vary them."""
UP = DOWN = 0.1
"""The rates of availability: on average half of the agents are available, for ten rounds."""
ABOVE = 4
"""Costs are measured at an error of this multiple of the floor."""
LONG = 2000
"""The number of rounds in which the exact error reaches the target for all settings."""

Case = tuple[str, AbstractAlgorithm, float | None]
"""A label, an algorithm and its exact floor, if there is one."""


class Participation(AbstractStudy):
    """A quadratic problem small enough that exact floors are sums over all sets of agents."""

    name: str = "field/participation"
    title: str = "FedHSA with some of the agents"
    source: str = "New here"
    seeds: int = 64
    num_agents: int = 8
    dim: int = 3
    problem_key: int = 0
    counts: tuple[int, ...] = (1, 2, 4, 6)
    """The numbers of participating agents."""
    steps: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04)
    local_steps: tuple[int, ...] = (2, 5, 10)
    rounds: int = 1500
    noise: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """The standard deviations of white noise in each entry of an operator."""
    noisy_step: float = 0.01
    target: float = 0.02
    """The floor for which step sizes are chosen when costs are compared."""

    claim: ClassVar[int] = 21
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 32, "rounds": 600, "local_steps": (2, 5), "noise": (0.25, 4.0)}

    def seconds(self) -> float:
        return 80.0 + 4e-4 * self.seeds * self.rounds

    def run(self, runner: Runner) -> Outcome:
        problem = quadratic.random(num_agents=self.num_agents, dim=self.dim, key=self.problem_key)
        agents, arrays, law, price = laws.mean_operators(problem), {}, {}, {}
        runs = [(problem.noiseless(), case) for case in self._silent(problem.noiseless())]
        for sigma in self.noise:
            noisy = self.with_noise(problem, sigma)
            runs += [(noisy, case) for case in self._noisy(noisy, sigma)]
            if sigma in (self.noise[0], self.noise[-1]):
                price[f"{sigma:g}"] = self._price(runner, noisy)
        for on, (label, algorithm, floor) in runs:
            arrays[label], arrays[f"{label}/mean"] = self._measure(runner, on, algorithm)
            law |= {} if floor is None else {label: floor}
        for sigma, found in price.items():
            arrays |= {f"price {sigma}/{label}": found.pop(f"{label}/errors") for label in (FED, ALL)}
        facts = {"laws": law, "price": price, "zero": self._zero(runner, problem.noiseless())}
        return Outcome(arrays, facts | self._first_order(problem.noiseless(), agents))

    def _sample(self, count: int) -> UniformSampling:
        return UniformSampling(count, num_agents=self.num_agents)

    @property
    def _half(self) -> int:
        return self.num_agents // 2

    @property
    def _chances(self) -> np.ndarray:
        """Returns unequal probabilities of participation."""
        return np.linspace(0.2, 0.9, self.num_agents)

    def with_noise(self, problem: Problem, sigma: float) -> Problem:
        """Returns the problem with white noise of this standard deviation."""
        A, b = problem.affine_parts()
        return quadratic.from_arrays(-A, -b, noise_std=sigma)

    def _silent(self, problem: Problem) -> Iterator[Case]:
        """Yields the runs without noise."""

        def case(label: str, algorithm: AbstractAlgorithm) -> Case:
            return label, algorithm, predict(problem, algorithm).floor

        for m in self.counts:
            some = self._sample(m)
            yield case(f"{FED}/m {m}", _partial(some))
            yield case(f"{LOCAL}/m {m}", Partial(LocalSA(STEP, local_steps=H), some))
        half = self._sample(self._half)
        for step in self.steps:
            yield case(f"{FED}/step {step:g}", _partial(half, step))
        for steps in self.local_steps:
            yield case(f"{FED}/H {steps}", _partial(half, local_steps=steps))
        yield case("Bernoulli", _partial(Bernoulli(0.5)))
        yield case("availability", _partial(Availability(UP, DOWN)))
        agents, chances = laws.mean_operators(problem), self._chances
        for step in (self.steps[0], STEP):
            floor = laws.weighted_floor(agents, chances, step, H)
            yield f"{WEIGHTED}/step {step:g}", _partial(WeightedSampling(chances), step), floor

    def _noisy(self, problem: Problem, sigma: float) -> Iterator[Case]:
        """Yields the runs with noise."""
        half, step = self._sample(self._half), self.noisy_step
        for label in (FED, ALL):
            algorithm = _partial(half, step, all_answer=label == ALL)
            yield f"{label}/noise {sigma:g}", algorithm, predict(problem, algorithm).floor
        yield f"{SCAFFOLDED}/noise {sigma:g}", Partial(SCAFFOLD(step, local_steps=H, option=2), half), None

    def _measure(self, runner: Runner, problem: Problem, algorithm: AbstractAlgorithm) -> tuple[np.ndarray, np.ndarray]:
        """Returns each seed's mean-square error and mean error over the last two thirds of a run from the root."""
        root, skipped = problem.theta_star, self.rounds // 3
        how: dict[str, Any] = {"rounds": self.rounds, "seeds": self.seeds, "key": self.key, "theta": root}
        found = runner.simulate(problem, algorithm, record=("error", "theta"), **how)
        return found.error[:, skipped:].mean(1), found.records["theta"][:, skipped:].mean(1) - root

    def _zero(self, runner: Runner, problem: Problem) -> dict[str, float]:
        """Returns the largest final error without noise of the methods that converge to the root."""
        half = self._sample(self._half)
        methods = {
            ALL: _partial(half, all_answer=True),
            f"{WEIGHTED}, all answer": _partial(WeightedSampling(self._chances), all_answer=True),
            SCAFFOLDED: Partial(SCAFFOLD(STEP, local_steps=H, option=2), half),
        }
        how: dict[str, Any] = {"rounds": self.rounds, "seeds": self.seeds, "key": self.key}
        return {label: float(runner.simulate(problem, a, **how).error[:, -1].max()) for label, a in methods.items()}

    def _price(self, runner: Runner, problem: Problem) -> dict[str, Any]:
        """Runs both kinds at step sizes with the target floor, from an error of a hundred times that floor."""
        found: dict[str, Any] = {}
        theta = problem.theta_star + np.full(self.dim, np.sqrt(100 * self.target / self.dim))
        how: dict[str, Any] = {"rounds": self.rounds, "seeds": self.seeds, "key": self.key, "theta": theta}
        half = self._sample(self._half)
        for label in (FED, ALL):
            make = functools.partial(_partial, half, all_answer=label == ALL)
            step = self._tuned(lambda step, make=make: predict(problem, make(step)).floor)
            algorithm = make(step)
            found[f"{label}/errors"] = runner.simulate(problem, algorithm, **how).error
            expected = predict(problem, algorithm).error(LONG, theta)
            spent = cost(problem, algorithm)
            prices = {"bytes": FLOAT_BYTES * (spent.floats_up + spent.floats_down), "evaluations": spent.evaluations}
            found[label] = {"step": step, "rounds": statistics.crossing(expected, ABOVE * self.target)} | prices
        return found

    def _tuned(self, floor: Callable[[float], float]) -> float:
        """Returns the step size with the target floor; the largest step size if its floor is lower."""
        low, high = 1e-5, self.steps[-1]
        if floor(high) <= self.target:
            return high
        return float(brentq(lambda step: floor(step) - self.target, low, high))  # pyright: ignore[reportArgumentType]

    def _first_order(self, problem: Problem, agents: laws.MeanOperators) -> dict[str, Any]:
        """Returns the limits of the exact laws at small step sizes."""
        M, smallest = self.num_agents, self.steps[0]

        def floor(count: int, scale: float) -> float:
            return laws.first_order_floor(agents, scale, laws.sampling_factor(M, count))

        two = self._sample(2)
        means = [predict(problem, Partial(kind(smallest, local_steps=H), two)).bias for kind in (FedHSA, LocalSA)]
        first = {f"{FED}/m {m}": floor(m, STEP * H) for m in self.counts}
        first |= {f"{FED}/step {step:g}": floor(self._half, step * H) for step in self.steps}
        first |= {f"{FED}/H {steps}": floor(self._half, STEP * steps) for steps in self.local_steps}
        factor = laws.binomial_sampling_factor(M, 0.5)
        first["Bernoulli"] = laws.first_order_floor(agents, STEP * H, factor)
        first["availability"] = laws.correlated_floor(agents, STEP * H, factor, 1 - UP - DOWN)
        bias = laws.product_bias(agents, self._chances)
        return {
            "first order": first,
            "bias of two by Local SA's": float(np.linalg.norm(means[0]) / np.linalg.norm(means[1])),
            "bias of products": float(bias @ bias),
            "break-even": H * M / ((H - 2) * (M - 1)),
            "heterogeneous": float((agents.r**2).mean()),
        }

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        counts, scales, noise = figure.subplots(1, 3)
        for label in (LOCAL, FED):
            _plot_floors(counts, outcome, label, self.counts, [f"{label}/m {m}" for m in self.counts])
        others = {"Bernoulli": "Bernoulli", "availability": "availability", WEIGHTED: f"{WEIGHTED}/step {STEP:g}"}
        for label, key in others.items():
            at = self.num_agents * (0.55 if label == WEIGHTED else 0.5)
            _plot_floors(counts, outcome, label, [at], [key])
        counts.set(xlabel="participating agents $m$", ylabel="floor", yscale="log")
        counts.set_title(rf"without noise, $\eta = {STEP:g}$, $H = {H}$")
        at = [H * step for step in self.steps]
        _plot_floors(scales, outcome, FED, at, [f"{FED}/step {step:g}" for step in self.steps])
        keys = [f"{FED}/H {steps}" for steps in self.local_steps]
        _plot_floors(scales, outcome, FED, [STEP * steps for steps in self.local_steps], keys, marker="x")
        first = [outcome.facts["first order"][f"{FED}/step {step:g}"] for step in self.steps]
        scales.plot(at, first, **FIRST_ORDER)
        scales.set(xlabel=r"step size $\times$ local steps, $\eta H$", ylabel="floor", xscale="log", yscale="log")
        scales.set_title(rf"without noise, $m = {self.num_agents // 2}$")
        figures.ticks(scales, at)
        even = outcome.facts["break-even"]
        noise.axvline(even, color="0.55", linewidth=0.8)
        text: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "rotation": 90}
        noise.annotate("break-even", (even, 0.02), xytext=(2, 0), fontsize=7, color="0.4", **text)
        at = [sigma**2 / outcome.facts["heterogeneous"] for sigma in self.noise]
        for label in (FED, ALL, SCAFFOLDED):
            _plot_floors(noise, outcome, label, at, [f"{label}/noise {sigma:g}" for sigma in self.noise])
        noise.set(xlabel="noise / heterogeneity", ylabel="floor", xscale="log", yscale="log")
        noise.set_title(rf"with noise, $m = {self.num_agents // 2}$, $\eta = {self.noisy_step:g}$")
        figures.grid(counts, scales, noise)
        names = {LOCAL: "LocalSA", ALL: "FedHSA, all agents answer"}
        entries = {
            names.get(label, label): figures.dots(colour, MARKERS.get(label, "v")) for label, colour in PALETTE.items()
        }
        entries |= {f"{FED}, $H$ varied": figures.dots(PALETTE[FED], "x")}
        entries |= {"exact": figures.dashed(), "first order": FIRST_ORDER}
        title = rf"Some of $M = {self.num_agents}$ agents participate; {self.seeds} seeds, 95 % intervals"
        figures.legend(figure, entries, 5, title)

    def notes(self) -> list[str]:
        return [
            "Whoever takes part does so in both exchanges of the round. The floors are means over all but the first "
            "third of runs that begin at the root.",
            f"Where neither is varied, the step is {STEP:g} with {H} local steps and half of the agents take part. The "
            "noise is white and additive, so that the exact law covers it.",
            f"Bytes are those of all messages of the agents that take part, up and down. Prices are those of "
            f"{ABOVE} times the target {self.target:g}, at steps that put the floor at the target, or at the largest.",
            "SCAFFOLD is option II with controls that begin at 0 (Karimireddy et al. 2020, arXiv:1910.06378).",
        ]

    def summary(self, outcome: Outcome) -> list[str]:
        counts, steps, local_steps = (self.slope(outcome, by) for by in ("m", "step", "H"))
        bias = self.bias(outcome, STEP)
        lasting = 1 - UP - DOWN
        return [
            f"Without noise FedHSA among {self._half} of {self.num_agents} agents keeps a floor of the order of the "
            f"step: slope {steps:.2f} in the step, {local_steps:.2f} in the local steps and {counts:.2f} in "
            "(M - m) / (m (M - 1)). If everyone answers the exchange of operators, and for SCAFFOLD, it is zero to "
            "rounding.",
            f"Agents that come and go with correlation {lasting:g} raise the floor "
            f"{statistics.ratio(outcome.arrays['availability'], outcome.arrays['Bernoulli']):.2f} times over "
            "independent ones. Weights of one over the chances in both exchanges leave a squared bias of "
            f"{bias:.4f} that no smaller step removes.",
            "With noise it pays that everyone answers while agents differ by more than one observation's noise. At "
            + " and at ".join(self._told(outcome, f"{sigma:g}") for sigma in (self.noise[0], self.noise[-1]))
            + ".",
        ]

    def _told(self, outcome: Outcome, sigma: str) -> str:
        bytes_, evaluations = (self.price(outcome, sigma, unit) for unit in ("bytes", "evaluations"))
        return (
            f"noise {sigma} the floor is {self.gain(outcome, sigma):.3f} times that among those present, and an "
            f"error costs {bytes_:.2f} times the bytes and {evaluations:.2f} times the evaluations"
        )

    def slope(self, outcome: Outcome, by: str) -> Estimate:
        """Returns the slope of FedHSA's floor without noise in the factor of `m`, the step size, or `H`."""
        M = self.num_agents
        values = {"m": self.counts, "step": self.steps, "H": self.local_steps}[by]
        x = [laws.sampling_factor(M, value) for value in values] if by == "m" else values
        return statistics.slope(x, [outcome.arrays[f"{FED}/{by} {value:g}"] for value in values])

    def bias(self, outcome: Outcome, step: float) -> Estimate:
        """Returns the squared bias of weighted exchanges."""
        return statistics.squared_bias(outcome.arrays[f"{WEIGHTED}/step {step:g}/mean"])

    def gain(self, outcome: Outcome, sigma: str) -> Estimate:
        """Returns the floor if all agents reply relative to the floor if only participating agents reply."""
        return statistics.ratio(outcome.arrays[f"{ALL}/noise {sigma}"], outcome.arrays[f"{FED}/noise {sigma}"])

    def price(self, outcome: Outcome, sigma: str, unit: str) -> Estimate:
        """Returns the cost of an error if all agents reply, relative to the cost if only participating agents reply."""
        facts = outcome.facts["price"][sigma]
        every, some = (outcome.arrays[f"price {sigma}/{label}"] for label in (ALL, FED))

        def price(seeds: np.ndarray) -> float:
            taken = [statistics.crossing(errors[seeds].mean(0), ABOVE * self.target) for errors in (every, some)]
            return taken[0] * facts[ALL][unit] / (taken[1] * facts[FED][unit])

        return statistics.jackknife(price, np.arange(len(every)))

    def check(self, outcome: Outcome, checks: Checks) -> None:
        facts = outcome.facts
        for label, law in facts["laws"].items():
            statement = "The floor is that of the exact law."
            measured = statistics.mean(outcome.arrays[label])
            checks.equals(f"{label}", statement, measured, law, precision=0.2)
        for by, name in (("m", "(M - m) / (m (M - 1))"), ("step", "the step"), ("H", "the local steps")):
            statement = f"Without noise FedHSA's floor is in proportion to {name}: slope on logarithmic axes."
            how: dict[str, Any] = {"slack": HIGHER_ORDERS, "precision": 0.1}
            checks.equals(f"slope, {by}", statement, self.slope(outcome, by), 1.0, **how)
        label = f"{FED}/step {self.steps[0]:g}"
        statement = "At the smallest step the exact floor is that of the first order."
        law, first = facts["laws"][label], facts["first order"][label]
        checks.near("first order", statement, law, first, tolerance=HIGHER_ORDERS)
        statement = "Coming and going: the exact floor is that of the first order with the echoes of each round."
        law, first = facts["laws"]["availability"], facts["first order"]["availability"]
        checks.near("echoes", statement, law, first, tolerance=0.2)
        statement = "Among two agents FedHSA's mean is off by (M - 2) / (2 (M - 1)) of Local SA's bias."
        ratio, expected = facts["bias of two by Local SA's"], laws.sampling_factor(self.num_agents, 2)
        checks.near("mean", statement, ratio, expected, tolerance=0.02)
        statement = "Weighted in both exchanges, the squared bias at the smallest step is that of step zero."
        bias, expected = self.bias(outcome, self.steps[0]), facts["bias of products"]
        checks.equals("products", statement, bias, expected, slack=0.05, precision=0.25)
        for label, error in facts["zero"].items():
            statement = "Without noise the root is reached: largest final squared error."
            checks.at_most(f"{label}, root", statement, error, ROUNDING)
        for sigma, low, high in ((self.noise[0], 0.0, 1.0), (self.noise[-1], 1.0, np.inf)):
            said = f"{sigma:g}"
            statement = (
                "The floor when everyone answers relative to that among those present: lower where noise is small."
            )
            checks.inside(f"gain, noise {said}", statement, self.gain(outcome, said), low, high)
            statement = "Rounds to the same error when everyone answers, in bytes of those among the present."
            law = facts["price"][said]
            expected = law[ALL]["rounds"] * law[ALL]["bytes"] / (law[FED]["rounds"] * law[FED]["bytes"])
            price = self.price(outcome, said, "bytes")
            checks.equals(f"bytes, noise {said}", statement, price, expected, precision=0.2)

    def table(self, outcome: Outcome) -> Table:
        labels = [label for label in outcome.arrays if "/mean" not in label and "price" not in label]
        floors = [statistics.mean(outcome.arrays[label], 0.95) for label in labels]
        columns = {name: [getattr(floor, name) for floor in floors] for name in ("value", "low", "high")}
        facts = [[outcome.facts[kind].get(label, np.nan) for label in labels] for kind in ("laws", "first order")]
        return {"run": labels} | columns | {"law": facts[0], "first order": facts[1]}


def _partial(
    sampling: AbstractSampling, step: float = STEP, local_steps: int = H, *, all_answer: bool = False
) -> Partial:
    method = FedHSA(step, local_steps=local_steps)
    if all_answer or sampling.equal:
        return Partial(method, sampling, all_answer)
    # The constructor rejects this pair, for the reason that this study shows, so the method is replaced afterwards.
    return eqx.tree_at(lambda pair: pair.algorithm, Partial(LocalSA(step, local_steps), sampling), method)


def _plot_floors(
    ax: figures.Axes, outcome: Outcome, label: str, x: Sequence[float], keys: list[str], marker: str | None = None
) -> None:
    found = figures.means(outcome.arrays[key] for key in keys)
    size = 6 if label == LOCAL else 4  # FedHSA's markers overlap it
    marker = marker or MARKERS.get(label, "v")
    figures.points(ax, x, found, marker=marker, color=PALETTE[label], markersize=size, linewidth=0.8)
    known = [outcome.facts["laws"].get(key) for key in keys]
    if None not in known and len(known) > 1:
        order = np.argsort(x)
        figures.theory(ax, np.array(x)[order], np.array(known)[order], PALETTE[label])
