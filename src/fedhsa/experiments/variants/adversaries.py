"""FedHSA with Byzantine agents: their effect on either exchange, and the cost of robust rules (claim 45)."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ... import statistics
from ..._types import precision
from ...algorithms import AbstractAlgorithm, Byzantine, FedHSA, Robust
from ...algorithms.attacks import AbstractAttack, Shift, SignFlip
from ...algorithms.rules import AbstractRule, ConcentrationFilter, CoordinateMedian, GeometricMedian, TrimmedMean
from ...problems import Problem, quadratic
from ...theory.exact import round_map
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures

MEAN, MEDIAN, TRIMMED, GEOMETRIC, FILTER = "mean", "median", "trimmed mean", "geometric median", "filter"
PLACES = {"operators": (True, False), "displacements": (False, True), "both": (True, True)}
"""The exchanges to which a rule or an attack applies."""
PALETTE = {MEAN: figures.COLOURS["FedHSA"]} | dict(
    zip((MEDIAN, TRIMMED, GEOMETRIC, FILTER), figures.FALLBACK, strict=False)
)
MARKERS = {MEAN: "o", MEDIAN: "s", TRIMMED: "^", GEOMETRIC: "D", FILTER: "v"}
LINES = {"operators": "-", "displacements": figures.DOTS, "both": figures.DASHES}
LOWEST, HIGHEST = 1e-5, 1e2
"""The ends of the axis of squared errors."""
ROUNDING = 1e-16
"""The squared error below which an error counts as zero."""
HIGHER_ORDERS = 0.08
"""The tolerance of ratios of floors relative to their first order in the step size."""
DRAWS = 4000
"""The number of samples of normal replies of all agents, for the variance of a rule."""
ASIDE = 0.22
"""The distance of the two exchanges from the middle of a rule's place in the figure."""


class Adversaries(AbstractStudy):
    """Quadratic agents, one of which is Byzantine; limits without noise, and floors of equal agents with noise."""

    name: str = "field/adversaries"
    title: str = "FedHSA with hostile agents"
    source: str = "New here"
    seeds: int = 32
    num_agents: int = 20
    dim: int = 5
    problem_key: int = 0
    step_size: float = 0.02
    local_steps: int = 5
    strengths: tuple[float, ...] = (1.0, 3.0, 8.0, 30.0)
    """The factors by which a Byzantine agent multiplies a reply with flipped sign."""
    shift: float = 1.0
    """The shift added to displacements, in units of eta H times the size of operators. At 0 this attack is not run."""
    places: tuple[str, ...] = tuple(PLACES)
    """The exchanges that are attacked."""
    heterogeneities: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
    rules: tuple[str, ...] = (MEDIAN, TRIMMED, GEOMETRIC, FILTER)
    rounds: int = 1000
    noise_std: float = 1.0
    noisy_rounds: int = 1200

    claim: ClassVar[int] = 45
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.4)
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 16,
        "strengths": (3.0,),
        "shift": 0.0,
        "places": ("operators", "displacements"),
        "heterogeneities": (0.25, 1.0),
        "rules": (MEDIAN,),
        "noisy_rounds": 800,
    }

    def seconds(self) -> float:
        return 10.0 + 13.0 * len(self.rules) + 2e-4 * self.seeds * self.noisy_rounds

    def problem(self, heterogeneity: float = 1.0) -> Problem:
        """Returns the agents, without noise."""
        made = quadratic.random(self.num_agents, self.dim, heterogeneity=heterogeneity, key=self.problem_key)
        return made.noiseless()

    def rule(self, name: str, problem: Problem) -> tuple[AbstractRule | None, AbstractRule | None]:
        """Returns the rules for operators and for displacements; the filter uses the true spread of operators."""
        if name == FILTER:
            sigma = max(self._spread(problem), 1e-3) / 2
            return ConcentrationFilter(sigma), ConcentrationFilter(self.step_size * self.local_steps * sigma)
        rules = {MEAN: None, MEDIAN: CoordinateMedian(), TRIMMED: TrimmedMean(0.1), GEOMETRIC: GeometricMedian(30)}
        return rules[name], rules[name]

    def method(self, name: str, problem: Problem, place: str = "both") -> AbstractAlgorithm:
        """Returns FedHSA with a rule in some of its exchanges."""
        plain = FedHSA(self.step_size, local_steps=self.local_steps)
        rules = tuple(
            rule if here else None for rule, here in zip(self.rule(name, problem), PLACES[place], strict=True)
        )
        return plain if rules == (None, None) else Robust(plain, rules)

    def _spread(self, problem: Problem) -> float:
        """Returns the root mean square of the agents' operators at the root."""
        return float(np.sqrt((problem.mean_operators(problem.root) ** 2).sum(1).mean()))

    def run(self, runner: Runner) -> Outcome:
        rows = [self._attacked(runner, *case) for case in self._attacks()]
        costs = [self._cost(runner, *case) for case in self._costs()]
        arrays, factors = self._noise(runner)
        return Outcome(arrays, {"rows": rows, "costs": costs, "factors": factors})

    def _attacks(self) -> Iterator[tuple[str, str, str, float]]:
        for rule in (MEAN, *self.rules):
            for place in self.places:
                yield from ((rule, "sign flip", place, c) for c in self.strengths)
            if self.shift:
                yield rule, "shift", "displacements", self.shift

    def attack(self, problem: Problem, kind: str, place: str, size: float) -> tuple[AbstractAttack | None, ...]:
        """Returns the Byzantine agent's attack in each exchange."""
        if kind == "sign flip":
            both: tuple[AbstractAttack, ...] = (SignFlip(size), SignFlip(size))
        else:
            entry = size * self._spread(problem) / np.sqrt(self.dim)
            both = (Shift(entry), Shift(self.step_size * self.local_steps * entry))
        return tuple(attack if here else None for attack, here in zip(both, PLACES[place], strict=True))

    def _attacked(self, runner: Runner, rule: str, kind: str, place: str, size: float) -> dict[str, Any]:
        """Returns the squared error under an attack by one agent without noise, and its exact value where known."""
        problem = self.problem()
        method = self.method(rule, problem)
        attacked = Byzantine(method, 1 / self.num_agents, self.attack(problem, kind, place, size))
        found = runner.simulate(problem, attacked, rounds=self.rounds, every=self.rounds)
        error = float(found.error[0, -1])
        error = error if error < HIGHEST else None  # it diverges, or has begun to diverge
        known = self.known_limit(problem, kind, place, size) if rule == MEAN else None
        law = None if known is None else float(((known - problem.root) ** 2).sum())
        return {"rule": rule, "attack": kind, "place": place, "size": size, "error": error, "law": law}

    def known_limit(self, problem: Problem, kind: str, place: str, size: float) -> np.ndarray | None:
        """Returns FedHSA's limit if false replies are averaged: the falsified operator's root, or a shifted point."""
        A, b = problem.affine_parts()
        M, root = self.num_agents, problem.root
        if place == "both":
            return None
        if place == "displacements":
            if kind == "sign flip":  # where operators balance, displacements vanish, with either sign
                return root if size < M - 1 else None
            pull = self.attack(problem, kind, place, size)[1].size / M * np.ones(self.dim)  # pyright: ignore
            transition = round_map(problem, FedHSA(self.step_size, local_steps=self.local_steps)).transition
            return root + np.linalg.solve(np.eye(self.dim) - transition, pull)
        weights = np.append(np.ones(M - 1), -size)
        matrix = np.tensordot(weights, A, 1)
        return np.linalg.solve(matrix, weights @ b) if np.linalg.eigvals(matrix).real.max() < 0 else None

    def _costs(self) -> Iterator[tuple[str, str, float]]:
        for rule in self.rules:
            yield from ((rule, "operators", heterogeneity) for heterogeneity in self.heterogeneities)
            yield rule, "displacements", 1.0

    def _cost(self, runner: Runner, rule: str, place: str, heterogeneity: float) -> dict[str, Any]:
        """Returns a rule's squared error without Byzantine agents, and the size of the operators' median there."""
        problem = self.problem(heterogeneity)
        found = runner.simulate(problem, self.method(rule, problem, place), rounds=self.rounds, every=self.rounds)
        operators = problem.mean_operators(found.theta[0])
        vanishes = None
        if rule == MEDIAN and place == "operators":
            vanishes = float(np.abs(np.median(operators, axis=0)).max() / self._spread(problem))
        error = float(found.error[0, -1])
        return {"rule": rule, "place": place, "heterogeneity": heterogeneity, "error": error, "median": vanishes}

    def _noise(self, runner: Runner) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Returns floors of equal agents with white noise, and each rule's variance relative to the mean's variance."""
        A, b = self.problem(0.0).affine_parts()
        problem = quadratic.from_arrays(-A, -b, noise_std=self.noise_std)
        rng, arrays, factors = np.random.default_rng(self.key), {}, {}
        how: dict[str, Any] = {"rounds": self.noisy_rounds, "seeds": self.seeds, "key": self.key}
        for name in (MEAN, *(rule for rule in self.rules if rule != FILTER)):
            for place in ("operators", "displacements") if name != MEAN else ("both",):
                method = self.method(name, problem, place)
                errors = runner.simulate(problem, method, theta=problem.root, **how).error
                arrays[f"{name}/{place}"] = errors[:, self.noisy_rounds // 4 :].mean(1)
            if name != MEAN:
                factors[name] = self._variance_factor(self.rule(name, problem)[0], rng)
        return arrays, factors

    def _variance_factor(self, rule: AbstractRule | None, rng: np.random.Generator) -> float:
        """Returns the variance of a rule's vector for standard normal replies, relative to their mean's variance."""
        x = rng.standard_normal((DRAWS, self.num_agents, self.dim))
        with precision():
            everyone = jnp.full(self.num_agents, True)
            found = np.asarray(jax.jit(jax.vmap(lambda x: rule(x, everyone)))(jnp.asarray(x)))  # pyright: ignore
        # The covariance of a translation-equivariant rule with the mean of the replies is the mean's variance.
        return 1 + self.num_agents * float(((found - x.mean(1)) ** 2).mean())

    def expected_ratio(self, factor: float, place: str) -> float:
        """Returns the factor by which a rule raises the floor of equal agents, to first order in the step size."""
        return 1 + (factor - 1) * (self.local_steps if place == "operators" else self.local_steps - 1)

    def ratio(self, outcome: Outcome, rule: str, place: str) -> Estimate:
        """Returns the floor with a rule relative to the floor with the mean."""
        return statistics.ratio(outcome.arrays[f"{rule}/{place}"], outcome.arrays[f"{MEAN}/both"])

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        attacks, costs, noise = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
        self._plot_attacks(attacks, outcome)
        for rule in self.rules:
            rows = _rows(outcome.facts["costs"], rule=rule, place="operators")
            x, y = zip(*((row["heterogeneity"], _shown(row["error"])) for row in rows), strict=True)
            costs.plot(x, y, linewidth=0.8, **_look(rule))
        costs.set(
            xlabel="heterogeneity", ylabel="squared error, no adversary", xscale="log", yscale="log", ylim=(LOWEST, 0.1)
        )
        costs.set_title("without noise")
        figures.ticks(costs, self.heterogeneities)
        costs.set_yticks(
            [LOWEST, *(10.0**power for power in range(-4, 0))], ["0", *(f"$10^{{{power}}}$" for power in range(-4, 0))]
        )
        for at, rule in enumerate(outcome.facts["factors"]):
            self._plot_noise(noise, outcome, rule, at)
        noise.axhline(1.0, color="0.55", linewidth=0.8)
        noise.set(ylabel="floor, relative to the mean's", xlabel="exchange with the rule")
        noise.set_title(f"equal agents, {self.seeds} seeds")
        places = [at + away for at in range(len(outcome.facts["factors"])) for away in (-ASIDE, ASIDE)]
        noise.set_xticks(places, ["1st", "2nd"] * len(outcome.facts["factors"]))
        figures.grid(attacks, costs, noise)
        entries = {rule: _look(rule) for rule in (MEAN, *self.rules)}
        lines = {
            f"attacks {place}": {"color": "0.3", "linestyle": LINES[place], "linewidth": 0.9} for place in self.places
        }
        title = rf"FedHSA, 1 of $M = {self.num_agents}$ agents adversarial: $H = {self.local_steps}$, "
        title += rf"$\eta = {self.step_size:g}$; 95 % intervals"
        figures.legend(figure, entries | lines | {"predicted, first order": figures.dashed()}, 4, title)

    def _plot_attacks(self, ax: figures.Axes, outcome: Outcome) -> None:
        for rule in (MEAN, *self.rules):
            for place in self.places:
                rows = _rows(outcome.facts["rows"], rule=rule, attack="sign flip", place=place)
                x, y = zip(*((row["size"], _shown(row["error"])) for row in rows), strict=True)
                ax.plot(x, y, linestyle=LINES[place], linewidth=0.9, **_look(rule))
        ax.axhline(HIGHEST, color="0.55", linewidth=0.8)
        ax.axhline(LOWEST, color="0.55", linewidth=0.8)
        ax.set(xlabel="strength of the flipped sign", ylabel="squared error", xscale="log", yscale="log")
        ax.set_title("without noise")
        figures.ticks(ax, self.strengths)
        between = [10.0**power for power in range(-4, 2)]
        ax.set_yticks([LOWEST, *between, HIGHEST], ["0", *(f"$10^{{{power}}}$" for power in range(-4, 2)), "diverges"])

    def _plot_noise(self, ax: figures.Axes, outcome: Outcome, rule: str, at: int) -> None:
        for place, x in (("operators", at - ASIDE), ("displacements", at + ASIDE)):
            figures.points(ax, [x], [self.ratio(outcome, rule, place)], **_look(rule))
            law = self.expected_ratio(outcome.facts["factors"][rule], place)
            ax.plot([x - 0.15, x + 0.15], [law, law], **figures.dashed(PALETTE[rule]))

    def notes(self) -> list[str]:
        return [
            f"One of {self.num_agents} agents is hostile, the last one. Limits are without noise, after {self.rounds} "
            f"rounds at the step {self.step_size:g} with {self.local_steps} local steps. Rules of the first panel are "
            "in both exchanges.",
            "The trimmed mean leaves out a tenth at either end. The filter's sigma is half the root mean square of the "
            "agents' operators at the root, which a real server would have to guess; for displacements eta H times it.",
            "A shift adds to every entry of a displacement eta H times the root mean square of the entries of the "
            "agents' operators at the root.",
            "Chosen after a first look: a strength of 8 in the place of 10, at which a thousand rounds are not enough "
            "to see the limit.",
            "Costs in noise are those of equal agents with white noise, where there is no bias. The variance of a rule "
            "relative to that of the mean is drawn from normal replies.",
        ]

    def summary(self, outcome: Outcome) -> list[str]:
        strength = 3.0 if 3.0 in self.strengths else self.strengths[0]

        def told(rule: str, place: str, attack: str = "sign flip", size: float = strength) -> str:
            (row,) = _rows(outcome.facts["rows"], rule=rule, attack=attack, place=place, size=size)
            if row["error"] is None:
                return "no limit"
            return f"{row['error']:.2g}" if row["error"] > ROUNDING else "nothing"

        first = self.rules[0]
        cost = _rows(outcome.facts["costs"], rule=first, place="operators", heterogeneity=1.0)[0]["error"]
        found = [
            f"One agent of {self.num_agents} that flips its operators {strength:g} times over leaves FedHSA a squared "
            f"error of {told(MEAN, 'operators')}; one that flips its displacements {told(MEAN, 'displacements')}, "
            "since they vanish at the root.",
            f"The {first} bounds that by {told(first, 'operators')} however strong the attack, and itself leaves "
            f"{cost:.2g} where nobody is hostile: heterogeneous agents' operators have another median than mean. In "
            "the exchange of displacements no rule leaves anything.",
            f"With noise and equal agents the {first} of operators raises the floor "
            f"{self.ratio(outcome, first, 'operators'):.2f} times, that of displacements "
            f"{self.ratio(outcome, first, 'displacements'):.2f} times: local steps multiply what a rule loses.",
        ]
        if self.shift:
            shifted = told(MEAN, "displacements", "shift", self.shift)
            found[0] += f" A common shift of displacements leaves {shifted}."
        return found

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for row in outcome.facts["rows"]:
            name = f"{row['rule']}, {row['attack']} {row['size']:g}, {row['place']}"
            error = np.inf if row["error"] is None else row["error"]
            if row["law"] is not None and row["law"] > ROUNDING:
                statement = "Averaged lies lead to the root of the falsified operator, or as far as the shift pulls."
                checks.near(name, statement, error, row["law"], tolerance=1e-6)
            elif row["law"] is not None:
                statement = "Displacements vanish at the root, and so do their opposites: the limit is the root."
                checks.at_most(name, statement, error, ROUNDING)
            elif row["rule"] not in (MEAN, FILTER) and row["place"] == "displacements":
                nobody = _rows(outcome.facts["costs"], rule=row["rule"], place="operators", heterogeneity=1.0)
                statement = "A rule for displacements leaves out the one that differs: as if all were honest."
                checks.near(name, statement, error, nobody[0]["error"], tolerance=1e-6)
        for row in outcome.facts["costs"]:
            name = f"{row['rule']} of {row['place']}, heterogeneity {row['heterogeneity']:g}"
            if row["place"] == "displacements":
                statement = "At the root no honest agent moves: a rule for displacements leaves the root where it is."
                checks.at_most(name, statement, row["error"], ROUNDING)
            if row["median"] is not None:
                statement = "FedHSA with medians stops where that of the operators is zero, in parts of their size."
                checks.at_most(name, statement, row["median"], 1e-8)
        for rule, factor in outcome.facts["factors"].items():
            for place in ("operators", "displacements"):
                statement = "A rule raises the floor of equal agents by its own loss times the local steps."
                expected = self.expected_ratio(factor, place)
                how: dict[str, Any] = {"slack": HIGHER_ORDERS, "precision": 0.15}
                checks.equals(f"{rule} of {place}, noise", statement, self.ratio(outcome, rule, place), expected, **how)

    def table(self, outcome: Outcome) -> Table:
        facts = outcome.facts
        found = [[*(row[k] for k in ("rule", "attack", "place", "size", "error")), row["law"]] for row in facts["rows"]]
        for row in facts["costs"]:
            found.append([row["rule"], "nobody hostile", row["place"], row["heterogeneity"], row["error"], None])
        return columns(["rule", "attack", "place", "size or heterogeneity", "squared error", "law"], found)


def _rows(rows: Sequence[dict[str, Any]], **values: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def _look(rule: str) -> dict[str, Any]:
    return {"color": PALETTE[rule], "marker": MARKERS[rule], "markersize": 3.5}


def _shown(error: float | None) -> float:
    """Returns the error, clipped to the axis."""
    return HIGHEST if error is None else max(error, LOWEST)
