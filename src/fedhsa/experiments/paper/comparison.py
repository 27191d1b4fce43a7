"""FedHSA and `LocalSA` on one problem, with or without noise: figures 2, 4, 6 and 8 of the paper."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from ... import plots, statistics
from ...algorithms import AbstractAlgorithm, FedHSA, LocalSA
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, figures, traces
from ..study.foresight import draw_stable, law
from .assumptions import check_assumptions, condition_sentence, examine

DEEP = 1e-20
"""The squared error that counts as zero."""


class Comparison(AbstractStudy):
    """Both methods on the same problem, with the same starting point and the same noise."""

    instance: Instance = dataclasses.field(default_factory=lambda: Instance("quadratic", 20))
    noiseless: bool = False
    """Whether every agent uses its mean operator."""
    step_size: float = 0.001
    local_steps: int = 10
    rounds: int = 1500
    start: str = "zeros"
    ordered: bool = True
    """Whether the paper claims that FedHSA has the lower floor here."""
    choices: tuple[str, ...] = ()

    claim: ClassVar[int] = 3

    def algorithms(self) -> dict[str, AbstractAlgorithm]:
        """Returns the two methods."""
        return {a.__name__: a(self.step_size, local_steps=self.local_steps) for a in (FedHSA, LocalSA)}

    def seconds(self) -> float:
        problem, seeds = self.instance.cost(), 1 if self.noiseless else self.seeds
        return 2 * (3 + problem.prediction + problem.step * self.local_steps * self.rounds * seeds) + problem.build

    def programs(self):
        return self.instance.shape()

    def run(self, runner: Runner) -> Outcome:
        algorithms = self.algorithms()
        problem, key = draw_stable(self.instance, list(algorithms.values()))
        examined = {} if self.noiseless else examine(problem, algorithms["FedHSA"], self.rounds)  # pyright: ignore[reportArgumentType]
        problem = problem.noiseless() if self.noiseless else problem
        how: dict[str, Any] = {
            "rounds": self.rounds,
            "seeds": 1 if self.noiseless else self.seeds,
            "key": self.key,
            "theta": traces.starting_point(self.start, problem.dim, self.key),
        }
        found = {name: traces.follow(runner, problem, algorithm, **how) for name, algorithm in algorithms.items()}
        return traces.gather(found, examined | {"problem_key": key})

    def draw(self, outcome: Outcome) -> figures.Figure:
        exact = all(curve["basis"] == "exact" for curve in outcome.facts["curves"].values())
        label = "exact" if exact else "predicted"
        how: dict[str, Any] = {"theory": traces.predicted(outcome), "theory_label": label, "title": self.settings()}
        figure = plots.curves(traces.curves(outcome), **how)
        if self.noiseless:
            figure.axes[0].set_ylim(bottom=DEEP / 30)
        return figure

    def settings(self) -> str:
        """Returns the settings in the heading of the figure."""
        M = self.instance.settings()["num_agents"]
        return rf"$M = {M}$, $H = {self.local_steps}$, $\eta = {self.step_size:g}$"

    def summary(self, outcome: Outcome) -> list[str]:
        return self._summary_noiseless(outcome) if self.noiseless else self._summary_noisy(outcome)

    def check(self, outcome: Outcome, checks: Checks) -> None:
        (self._check_noiseless if self.noiseless else self._check_noisy)(outcome, checks)

    def table(self, outcome: Outcome) -> Table:
        return traces.table(outcome)

    def _check_noiseless(self, outcome: Outcome, checks: Checks) -> None:
        fed, local = (outcome.arrays[f"{name}/error"][0] for name in ("FedHSA", "LocalSA"))
        until, law = max(2, _reached(fed)), outcome.arrays["FedHSA/predicted"]
        checks.claim = 2
        short = self._too_short(float(law[-1])) if law[-1] > DEEP else None
        checks.at_most("root", "FedHSA's squared error at the end.", float(fed[-1]), DEEP, short=short)
        statement = "FedHSA's error shrinks per round by the predicted factor, over the second half of its way down."
        checks.near("rate", statement, _decay(fed, until), _decay(law, until), tolerance=1e-5)
        statement = "Local SA's squared error at the end is its predicted squared bias."
        limit = outcome.facts["curves"]["LocalSA"]["predicted_bias"]
        end, tolerance = float(outcome.arrays["LocalSA/predicted"][-1]), 1e-8
        short = self._too_short(end) if abs(end - limit) > tolerance * limit else None
        checks.near("bias", statement, float(local[-1]), limit, tolerance=tolerance, short=short)

    def _too_short(self, predicted: float) -> str:
        return f"the run is too short, since theory puts it at {predicted:.2g} after {self.rounds} rounds too"

    def _summary_noiseless(self, outcome: Outcome) -> list[str]:
        curves = outcome.facts["curves"]
        fed, local = (outcome.arrays[f"{name}/error"][0] for name in ("FedHSA", "LocalSA"))
        reached = _reached(fed)
        at = f"reaches {DEEP:g} in round {reached}" if fed.min() <= DEEP else f"is at {fed[-1]:.2g} after {self.rounds}"
        return [
            *self._moved(outcome),
            f"FedHSA's error falls geometrically, by a factor of {curves['FedHSA']['radius'] ** 2:.4f} per round in "
            f"the long run, and {at}.",
            f"Local SA stops at {local[-1]:.3g}, the squared bias that theory predicts "
            f"({curves['LocalSA']['predicted_bias']:.3g}); no number of rounds removes it.",
        ]

    def _check_noisy(self, outcome: Outcome, checks: Checks) -> None:
        curves, ratio = outcome.facts["curves"], self._ratio(outcome)
        if self.ordered:
            checks.above("order", "Local SA's floor relative to FedHSA's, paired over seeds, is above 1.", ratio)
        else:
            local, fed = (curves[name]["predicted_floor"] for name in ("LocalSA", "FedHSA"))
            low, high = (1.0, math.inf) if local > fed else (0.0, 1.0)
            statement = (
                f"Local SA's floor relative to FedHSA's is on the predicted side of 1 (prediction {local / fed:.3g})."
            )
            checks.inside("order", statement, ratio, low, high)
        for label, curve in curves.items():
            name, floor = f"floor of {label}", traces.floor(outcome, label)
            statement = f"The floor is that of the {law(curve['basis'])}."
            checks.equals(name, statement, floor, curve["predicted_floor"], slack=curve["doubt"])
        traces.doubt_unsettled(outcome, checks)
        check_assumptions(checks, outcome.facts)

    def _summary_noisy(self, outcome: Outcome) -> list[str]:
        curves, ratio = outcome.facts["curves"], self._ratio(outcome)
        fed, local = (traces.floor(outcome, label) for label in ("FedHSA", "LocalSA"))
        better, factor = ("FedHSA", ratio.value) if ratio.value > 1 else ("Local SA", 1 / ratio.value)
        biased = curves["LocalSA"]["predicted_bias"] / curves["LocalSA"]["predicted_floor"]
        slow = {label: statistics.autocorrelation_time(traces.flat_part(outcome, label)) for label in curves}
        return [
            f"FedHSA stops at {fed.value:.3g} (predicted {curves['FedHSA']['predicted_floor']:.3g}), Local SA at "
            f"{local.value:.3g} (predicted {curves['LocalSA']['predicted_floor']:.3g}): {better} is lower by a factor "
            f"of {factor:.3g}. Of Local SA's floor {100 * biased:.0f} % is squared bias.",
            *self._moved(outcome),
            self._flatness(outcome, slow),
            condition_sentence(outcome.facts),
        ]

    def _flatness(self, outcome: Outcome, slow: dict[str, float]) -> str:
        rounds = max(curve["settled"] for curve in outcome.facts["curves"].values())
        if not all(traces.is_flat(outcome, label) for label in outcome.facts["curves"]):
            return f"The prediction settles in round {rounds} only: with so few rounds the floor is not to be trusted."
        flat = traces.flatness(outcome, "FedHSA")
        change = [100 * (end - 1) for end in flat]
        return (
            f"Floors are means over the second half of the rounds; the prediction is within 2 % of its floor from "
            f"round {rounds} on, and FedHSA's last quarter differs from the third by {change[0]:+.1f} % "
            f"[{change[1]:+.1f}, {change[2]:+.1f}]. "
            f"Errors stay correlated over {slow['FedHSA']:.0f} (FedHSA) and {slow['LocalSA']:.0f} (Local SA) rounds."
        )

    def _moved(self, outcome: Outcome) -> list[str]:
        """Returns a note on the random problem, if the first one was unstable."""
        key = outcome.facts["problem_key"]
        said = f"On the problem with key {self.instance.key} a method diverges; this is the one with key {key}."
        return [] if key == self.instance.key else [said]

    def _ratio(self, outcome: Outcome) -> statistics.Estimate:
        return statistics.ratio(traces.floors(outcome, "LocalSA"), traces.floors(outcome, "FedHSA"))


def _reached(error: np.ndarray) -> int:
    """Returns the first round at which the error counts as zero, or the last round."""
    return int(np.argmax(error <= DEEP)) if error.min() <= DEEP else len(error) - 1


def _decay(error: np.ndarray, until: int) -> float:
    """Returns the mean factor per round over the second half of the rounds up to `until`."""
    middle = until // 2
    return float((error[until] / error[middle]) ** (1 / (until - middle)))
