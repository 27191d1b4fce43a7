"""The results of `fedhsa analyze`: constants, assumptions, predictions, a proposal, or the reason for their absence."""

import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from .. import _own, theory
from .._json import plain
from ..algorithms import AbstractAlgorithm, AbstractSchedule, PerBlock, Stages
from ..problems import Problem
from ..theory import Choice, Constants, Estimates, Prediction
from ..theory.choice import LOCAL_STEPS
from ..theory.laws.agents import finite_law, noise_is_known
from ..theory.paper.assumptions import Line
from . import effort
from .settings import AnalyzeSettings

LONGEST_CHOICE = 90.0
"""Seconds that the search for settings may take, by estimate."""
PER_WAY = 1
"""The number of predictions that the search makes for each method and number of local steps; most are approximate."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Analysis:
    """All results of an analysis. A missing result is replaced by a text that states the reason."""

    settings: AnalyzeSettings
    problem: Problem
    constants: Constants | str
    assumptions: tuple[Line, ...]
    conditions: Mapping[str, tuple[Line, ...]]
    """The conditions of the paper's theorems, by algorithm."""
    predictions: Mapping[str, Prediction | str]
    choice: Choice | str | None
    """The settings that reach the target, or None if there is no target."""
    samples: Estimates | int | None
    """The estimates that all predictions share, if the noise is known from samples only."""

    @property
    def available(self) -> dict[str, Prediction]:
        return {name: p for name, p in self.predictions.items() if isinstance(p, Prediction)}

    @property
    def num_states(self) -> int | None:
        """The number of states $S$, if the chains are finite."""
        law = finite_law(self.problem.agents.source)
        return None if law is None else law.num_states

    def to_dict(self) -> dict[str, Any]:
        """Returns plain JSON values: `"infinity"` for infinite values, null for unknown values."""
        constants, choice = self.constants, self.choice
        if isinstance(choice, Choice):
            chosen = choice.to_dict() | {"command": run_command(self, choice)}
        else:
            chosen = choice and {"unavailable": choice}
        return plain(
            {
                "settings": self.settings.plain(),
                "problem": {
                    "name": self.settings.problem,
                    "num_agents": self.problem.num_agents,
                    "dim": self.problem.dim,
                    "num_states": self.num_states,
                },
                "constants": {"unavailable": constants} if isinstance(constants, str) else constants.to_dict(),
                "assumptions": [line._asdict() for line in self.assumptions],
                "algorithms": {name: self._algorithm(name, p) for name, p in self.predictions.items()},
                "choice": chosen,
            }
        )

    def _algorithm(self, name: str, prediction: Prediction | str) -> dict[str, Any]:
        conditions = [line._asdict() for line in self.conditions.get(name, ())]
        if isinstance(prediction, str):
            return {"unavailable": prediction, "conditions": conditions}
        target = self.settings.target
        return {
            "settings": arguments(prediction.algorithm),
            **prediction.to_dict(),
            "rounds_per_tenth": rounds_per_tenth(prediction),
            "reach": None if target is None else prediction.reach(target)._asdict(),
            "conditions": conditions,
        }


def analyse(
    settings: AnalyzeSettings,
    problem: Problem,
    algorithms: Mapping[str, AbstractAlgorithm],
    progress: Callable[[str], None] = lambda what: None,
) -> Analysis:
    """Computes everything except the figure; `progress` is called with the name of each computation."""
    progress("constants and assumptions")
    constants = result_or_reason(lambda: theory.constants(problem, key=settings.key))
    conditions: dict[str, tuple[Line, ...]] = {}
    assumptions: tuple[Line, ...] = ()
    if not isinstance(constants, str):
        assumptions = theory.check(problem, constants=constants).lines
        for name, algorithm in algorithms.items():
            conditions[name] = theory.check(problem, algorithm, constants=constants).lines[len(assumptions) :]
    samples, predictions = settings.samples, {}
    if not noise_is_known(problem) and not problem.controlled:
        progress("samples of the noise")
        estimated = result_or_reason(lambda: theory.estimate(problem, samples=settings.samples, key=settings.key))
        samples = settings.samples if isinstance(estimated, str) else estimated
    for name, algorithm in algorithms.items():
        progress(f"prediction of {name}")
        predictions[name] = result_or_reason(lambda a=algorithm: predicted(problem, a, samples, settings.key))
    choice = None
    if settings.target is not None:
        progress(f"settings that reach {settings.target:g}")
        choice = result_or_reason(lambda: _choose(settings, problem, algorithms))
    return Analysis(settings, problem, constants, assumptions, conditions, predictions, choice, samples)


def result_or_reason(compute: Callable[[], T]) -> T | str:
    """Returns the result, or a sentence that states why there is none."""
    try:
        with np.errstate(all="ignore"):  # numbers overflow far beyond the largest stable step size
            return compute()
    except (TypeError, ValueError) as error:
        return str(error)


def arguments(algorithm: AbstractAlgorithm) -> dict[str, Any]:
    """Returns the settings of an algorithm by name."""
    return {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}  # pyright: ignore[reportArgumentType]


def run_command(analysis: Analysis, choice: Choice) -> list[str]:
    """Returns the command that runs a proposal, as a list of words."""
    settings, chosen = analysis.settings, arguments(choice.algorithm)
    words = ["fedhsa", "run", "--problem", settings.problem]
    for name in ("num_agents", "dim", "heterogeneity", "problem_key"):
        if getattr(settings, name) != getattr(AnalyzeSettings, name):
            words += ["--" + name.replace("_", "-"), str(getattr(settings, name))]
    if settings.option:
        words += ["--option", *(f"{name}={json.dumps(value)}" for name, value in settings.option.items())]
    words += [f"--{name}" for name in ("noiseless", "iid") if getattr(settings, name)]
    name, step = type(choice.algorithm).__name__, chosen["step_size"]
    name = next((str(own) for own in _own.references(*settings.algorithm) if own.name == name), name)
    if isinstance(step, Stages):
        steps = ", ".join(f"{one:.4g}" for one in step.step_sizes)
        begins = "".join(f"{begin}, " for begin in step.begins).rstrip()
        words += ["--algorithm", f"{name}(Stages(({steps}), ({begins})))"]
    else:
        words += ["--algorithm", name, "--step-size", f"{step:.4g}"]
    if "local_steps" in chosen:
        words += ["--local-steps", str(chosen["local_steps"])]
    if chosen.get("server_step", 1.0) != 1:
        words += ["--server-step", f"{chosen['server_step']:g}"]
    return [*words, "--rounds", f"{choice.reach.rounds:.0f}", "--target", f"{settings.target:g}"]


def step_in_words(step: float | AbstractSchedule) -> str:
    """Returns a step size, or the first and the following step sizes, as text."""
    if isinstance(step, PerBlock):
        return "; ".join(step_in_words(one) for one in step.step_sizes)
    if not isinstance(step, Stages):
        return f"from {float(step(0)):.3g}" if isinstance(step, AbstractSchedule) else f"{step:.3g}"
    later = zip(step.step_sizes[1:], step.begins, strict=True)
    return ", ".join([f"{step.step_sizes[0]:.3g}", *(f"{one:.3g} from {begin}" for one, begin in later)])


def rounds_per_tenth(prediction: Prediction) -> float:
    """Returns the rounds in which an error far above the floor falls to a tenth; infinite if it does not fall."""
    rate = prediction.rate
    if not rate > 0:
        return math.nan if math.isnan(rate) else 0.0
    return math.inf if rate >= 1 else math.log(10) / (-2 * math.log(rate))


def predicted(
    problem: Problem, algorithm: AbstractAlgorithm, samples: Estimates | int | None = None, key: int = 0
) -> Prediction:
    """Predicts without a warning, because the page and the figure state the possible error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", theory.PredictionWarning)
        return theory.predict(problem, algorithm, samples=samples, key=key)


def _choose(settings: AnalyzeSettings, problem: Problem, algorithms: Mapping[str, AbstractAlgorithm]) -> Choice:
    assert settings.target is not None
    wait = 0.0
    for algorithm in algorithms.values():
        tried = LOCAL_STEPS if hasattr(algorithm, "local_steps") else (1,)
        one = effort.seconds(problem, algorithm) / algorithm.block_length
        wait += PER_WAY * sum(one * H for H in tried)
    if wait > LONGEST_CHOICE:
        raise ValueError(
            f"The search for settings would take about {wait / 60:.0f} minutes on this problem and was left out. "
            "Use fewer agents, or `fedhsa.theory.choose` with a few `local_steps`."
        )
    return theory.choose(problem, target=settings.target, objective=settings.objective, algorithms=settings.algorithm)
