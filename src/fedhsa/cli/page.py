"""The page that `fedhsa analyze` prints: constants, assumptions, a column per algorithm, and sentences."""

import math
import shlex
from collections.abc import Callable, Iterable

import numpy as np
from rich.console import Console

from .. import _own
from .._numbers import plain, traffic
from ..algorithms import AbstractSchedule, FedHSA
from ..theory import Choice, Constants, Prediction
from .analysis import Analysis, arguments, rounds_per_tenth, run_command, step_in_words
from .screen import PlainTable
from .words import negligible, percent, rough, sentences

UNKNOWN = "not known"

BASES = {
    "pairs": "the law of each agent's chain and of every pair of them",
    "one site": "the law of each agent's chain among the averages of the others",
    "many agents": "the law of each agent's chain among the averages of the others, for large problems",
    "linearised": "laws of agents' chains, with nonlinear operators averaged over the long run",
    "additive noise": "noise as it is on the path without noise",
    "samples": "to first order in the step, from samples",
}
"""The basis of predictions in words, if its name alone is not clear."""


def show(console: Console, analysis: Analysis) -> None:
    """Prints the page, without the line about the figure."""
    _heading(console, analysis)
    _constants(console, analysis.constants)
    if analysis.assumptions:
        _lines(console, "The paper's assumptions", analysis.assumptions)
    for name, p in analysis.predictions.items():
        covered = isinstance(p, Prediction) and isinstance(p.algorithm, FedHSA)
        if covered and analysis.conditions.get(name):
            _lines(console, f"Conditions of its theorems, {name}", analysis.conditions[name])
    _predictions(console, analysis)
    if said := sentences(analysis):
        _lines(console, "In words", [("-", sentence) for sentence in said])
    if analysis.choice is not None:
        _choice(console, analysis, analysis.choice)
    console.print()


def _heading(console: Console, analysis: Analysis) -> None:
    sizes = [f"M = {analysis.problem.num_agents} agents", f"d = {analysis.problem.dim} parameters"]
    if analysis.num_states is not None:
        sizes.append(f"S = {analysis.num_states} states")
    if isinstance(analysis.constants, Constants):
        words = {"none": "no noise", "markov": "Markov sampling", "independent": "independent sampling"}
        sizes.append(words.get(analysis.constants.sampling, f"{analysis.constants.sampling} sampling"))
    console.print(f"{_own.title(analysis.settings.problem)}: {', '.join(sizes)}")


def _constants(console: Console, constants: Constants | str) -> None:
    _title(console, "Constants")
    if isinstance(constants, str):
        console.print(constants)
        return
    table = PlainTable()
    for symbol, value, meaning in constants.rows()[1:]:  # M is in the heading
        if value != "nan":  # the notes state the reason
            value = "infinite" if value == "inf" else value
            table.add_row(symbol, value, meaning.replace("inf to inf", "infinite"))
    if constants.noise is not None:
        radius = constants.noise.spectral_radius
        table.add_row("|Q_i|", f"{radius.max():.4g}", f"memory of the noise, slowest agent {int(np.argmax(radius))}")
    console.print(table)
    for note in constants.notes:
        console.print(f"({note})")


def _lines(console: Console, title: str, lines: Iterable[tuple[str, ...]]) -> None:
    _title(console, title)
    table = PlainTable()
    for line in lines:
        table.add_row(*line)
    console.print(table)


def _predictions(console: Console, analysis: Analysis) -> None:
    _title(console, "Predictions")
    for name, p in analysis.predictions.items():
        if isinstance(p, str):
            console.print(f"{name}: {p}")
    found = analysis.available
    if not found:
        return
    table = PlainTable("", *found, right=True)
    for label, value in _rows(analysis):
        values = [value(p) for p in found.values()]
        if any(values):
            table.add_row(label, *values)
    console.print(table)
    if any(p.basis == "mean" for p in found.values()):
        console.print("(mean: without the noise around it; rounds are those of the mean)")
    for basis in dict.fromkeys(p.basis for p in found.values()):
        if basis in BASES:
            console.print(f"({basis}: {BASES[basis]})")


def _rows(analysis: Analysis) -> list[tuple[str, Callable[[Prediction], str]]]:
    """Returns the rows of the table; a row that is empty for every algorithm is not shown."""
    rows: list[tuple[str, Callable[[Prediction], str]]] = [
        ("step size", lambda p: _given(p, "step_size")),
        ("local steps H", lambda p: _given(p, "local_steps")),
        ("stable", lambda p: {True: "yes", False: "NO", None: UNKNOWN}[p.stable]),
        ("   judged by the", lambda p: p.stability),
        ("factor of the mean error per round", lambda p: _factor(p.spectral_radius)),
        ("largest stable step at this H", _largest_step),
        ("largest stable H at this step", _most_local_steps),
        ("factor of the r.m.s. error per round", lambda p: _factor(p.rate)),
        ("rounds to a tenth of the error", lambda p: plain(rounds_per_tenth(p), unknown=UNKNOWN, infinite="never")),
        ("bias from heterogeneity", lambda p: _norm(p.heterogeneity_bias, p)),
        ("bias from Markov sampling", lambda p: _norm(p.markov_bias, p)),
        ("bias from curvature", lambda p: "" if p.problem.affine else _norm(p.curvature_bias, p)),
        ("variance from noise", lambda p: _square(p.noise_variance, p)),
        ("floor: bias squared + variance", lambda p: _square(p.floor, p)),
        ("   95 % interval", lambda p: "" if p.interval is None else f"[{p.interval[0]:.2e}, {p.interval[1]:.2e}]"),
        ("   of which bias", _bias_part),
        ("known by", lambda p: "exact law" if p.basis == "exact" else p.basis),
        ("   and may be off by", _left_out),
        ("agents at which more stop helping", _saturation),
    ]
    target = analysis.settings.target
    if target is not None:
        reach = {id(p): p.reach(target) for p in analysis.available.values()}
        rows += [
            (f"rounds to {target:g}", lambda p: plain(reach[id(p)].rounds, infinite="never")),
            ("   observations, all agents", lambda p: plain(reach[id(p)].samples, infinite="never")),
            ("   traffic, all agents", lambda p: traffic(reach[id(p)].bytes)),
        ]
    return rows


def _choice(console: Console, analysis: Analysis, choice: Choice | str) -> None:
    target, objective = analysis.settings.target, analysis.settings.objective
    _title(console, f"Settings that reach {target:g} with the fewest {objective}")
    if isinstance(choice, str):
        console.print(choice)
        return
    console.print(f"{plain(choice.reach.rounds, infinite='never')} rounds and {traffic(choice.reach.bytes)} in all:")
    console.print("  " + shlex.join(run_command(analysis, choice)), soft_wrap=True)
    console.print("What no other way beats in rounds, observations and bytes alike:")
    columns = ("algorithm", "step size", "local steps", "server step", "rounds", "observations", "traffic", "ends at")
    table = PlainTable(*columns)
    for algorithm, p, reach, _ in choice.frontier:
        given = arguments(algorithm)
        table.add_row(
            type(algorithm).__name__,
            step_in_words(given["step_size"]),
            str(given.get("local_steps", "-")),
            f"{given['server_step']:g}" if "server_step" in given else "-",
            plain(reach.rounds, infinite="never"),
            plain(reach.samples, infinite="never"),
            traffic(reach.bytes),
            f"{p.floor:.2e}",
        )
    console.print(table)
    for name, reason in choice.unknown:
        console.print(f"{name} was not compared with them. {reason}")


def _title(console: Console, title: str) -> None:
    console.print(f"\n{title}", style="bold")


def _given(p: Prediction, name: str) -> str:
    value = arguments(p.algorithm).get(name)
    if isinstance(value, AbstractSchedule):
        return step_in_words(value)
    return "" if value is None else f"{value:g}"


def _factor(value: float) -> str:
    return "changes" if math.isnan(value) else f"{value:.4g}"


def _largest_step(p: Prediction) -> str:
    """Returns the limit; that of the mean says so, since that of the mean square may be far smaller."""
    limit = p.max_step_size
    known = limit.kind.startswith("mean square") or math.isnan(limit)
    return plain(limit, unknown=UNKNOWN, infinite="any") + ("" if known else " (mean)")


def _most_local_steps(p: Prediction) -> str:
    return "" if p.max_local_steps is None else plain(p.max_local_steps, unknown=UNKNOWN, infinite="any")


def _bias_part(p: Prediction) -> str:
    if math.isnan(p.floor):
        return UNKNOWN
    return "-" if not p.stable or negligible(p.floor, p) else percent(float(p.bias @ p.bias) / p.floor)


def _left_out(p: Prediction) -> str:
    if not p.stable or p.left_out == 0:
        return ""
    return UNKNOWN if math.isnan(p.left_out) else "< 0.1 %" if p.left_out < 1e-3 else f"{p.left_out:.1%}"


def _saturation(p: Prediction) -> str:
    if not p.stable or negligible(p.noise_variance, p):
        return "-"
    if math.isnan(p.saturation_agents):
        return UNKNOWN
    return "never" if math.isinf(p.saturation_agents) else rough(p.saturation_agents)


def _norm(bias: np.ndarray, p: Prediction) -> str:
    return _square(float(bias @ bias), p, root=True)


def _square(value: float, p: Prediction, *, root: bool = False) -> str:
    if p.stable is False:
        return "-"
    if math.isnan(value):
        return UNKNOWN
    if negligible(value, p):
        return "0"
    return f"{math.sqrt(value) if root else value:.2e}"
