"""`fedhsa analyze`: predicts the behaviour of algorithms on a problem, as a page or as JSON, and as a figure."""

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Callable, Sequence

from rich.console import Console

from .. import plots
from .._numbers import about
from ..outputs import save_figure
from . import effort, pace, page
from .analysis import Analysis, analyse
from .build import make_algorithms, make_problem, title
from .output import writable
from .panels import sweeps
from .settings import AnalyzeSettings
from .words import sentences

FIGURE = "analyze"


def main(settings: AnalyzeSettings, args: Sequence[str], console: Console) -> int:
    """Runs the command with these arguments and returns the exit code."""
    problem = make_problem(settings)
    algorithms = make_algorithms(settings, problem)
    wait = effort.total(problem, algorithms.values()) + len(algorithms) * effort.stability(problem)
    if wait > pace.LONG:
        warnings.warn(
            f"This problem is large: its analysis takes about {about(wait)}. It is faster with fewer agents, "
            "`--num-agents`, or parameters, `--dim`.",
            stacklevel=2,
        )
    with contextlib.ExitStack() as stack:
        if settings.plot:
            stack.enter_context(writable(settings.folder))
        progress = stack.enter_context(pace.steps(settings.progress))
        analysis = analyse(settings, problem, algorithms, progress)
        drawn = bool(analysis.available) and settings.plot
        absent = _draw(analysis, progress) if drawn else None
    figure = settings.folder / settings.figures(FIGURE)[0] if drawn else None
    if settings.json:
        words = {"sentences": sentences(analysis), "figure": None if figure is None else str(figure)}
        print(json.dumps(analysis.to_dict() | words, indent=2, allow_nan=False))
        return 0
    page.show(console, _renamed(analysis))
    if absent:
        console.print(absent)
    if figure is not None:
        console.print(f"Figure: {figure}", soft_wrap=True)
    return 0


def _renamed(analysis: Analysis) -> Analysis:
    """Returns the analysis with the user's names of the algorithms."""
    names = analysis.settings.renamed
    predictions = {names.get(name, name): prediction for name, prediction in analysis.predictions.items()}
    conditions = {names.get(name, name): lines for name, lines in analysis.conditions.items()}
    return dataclasses.replace(analysis, predictions=predictions, conditions=conditions)


def _draw(analysis: Analysis, progress: Callable[[str], None]) -> str | None:
    """Writes the figure; returns a sentence about the omitted panels, or None."""
    found = sweeps(analysis, progress)
    progress("figure")
    missing = [setting for setting in ("local_steps", "step_size") if setting not in found]
    figure = plots.analysis(
        analysis.available,
        found,
        target=analysis.settings.target,
        title=title(analysis.settings, analysis.problem),
        absent="left out: it does not apply,\nor would take too long",
        labels={name: label for name, label in analysis.settings.renamed.items() if name in analysis.available},
        width=analysis.settings.width,
    )
    save_figure(figure, analysis.settings.folder / FIGURE, analysis.settings.format)
    if not missing:
        return None
    panels = " and ".join(name.replace("_", " ") for name in missing)
    return f"The figure leaves out other values of {panels}: they do not apply to these methods or would take too long."
