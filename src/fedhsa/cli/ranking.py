"""What `fedhsa compare` leaves behind: figures, curves, the manifest, and the ranking on the screen."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import Console

from .. import _files, plots, statistics
from ..comparison.contest import Contest, Entry
from ..comparison.ranking import Place, Ranking
from ..outputs import write_manifest
from ..statistics import Estimate
from .page import in_bytes
from .settings import CompareSettings

CAPTION = (
    "Intervals: 95 %. Same as: the ranks it cannot be told apart from, at 5 % for all pairs together (paired by seed, "
    "Holm's correction; manifest.json has every p-value)."
)
LARGE = 1e6
"""From here on it does not matter how many times worse a method is."""


def write(settings: CompareSettings, found: Contest, manifest: Mapping[str, Any], title: str) -> None:
    """Writes all files, each whole or not at all, the manifest last: it never describes what is not there."""
    folder, entries = settings.folder, found.entries
    _files.write_npz(folder / "compare.npz", _arrays(entries))
    columns = ("algorithm", "exchanges", "samples", "bytes", "mean", "low", "high")
    _files.write_csv(folder / "compare.csv", columns, _rows(entries))
    plots.save(found.plot(title=title, target=settings.target), folder / "compare")
    tried = {name: e.tuning for name, e in entries.items() if e.tuning is not None}
    if tried:
        trials = {n: ([t.step for t in tuning.trials], [t.error for t in tuning.trials]) for n, tuning in tried.items()}
        chosen = {name: tuning.best.step for name, tuning in tried.items()}
        plots.save(plots.tuning(trials, chosen, title=title), folder / "tuning")
    else:  # those of an earlier comparison would not belong to this one
        for suffix in (".png", ".pdf"):
            (folder / f"tuning{suffix}").unlink(missing_ok=True)
    algorithms = {name: _summary(entry) for name, entry in entries.items()}
    write_manifest(folder, {**manifest, "algorithms": algorithms, "ranking": found.ranking.to_dict()})


def show(console: Console, settings: CompareSettings, found: Contest) -> None:
    """Prints the ranking, what to doubt about it, and where the figures are."""
    for line in [*_lines(settings, found), CAPTION]:
        console.print(line, soft_wrap=True)
    for name, entry in found.entries.items():
        if sentence := _doubt(name, entry):
            console.print(sentence, soft_wrap=True)
    drawn = "compare.png and tuning.png" if any(e.tuning for e in found.entries.values()) else "compare.png"
    console.print(f"Figures: {drawn} in {settings.folder}", soft_wrap=True)


def _lines(settings: CompareSettings, found: Contest) -> list[str]:
    """Two lines for each method: what it is, which may be long, and how it did."""
    target = settings.target
    score = "error" if target is None else f"{settings.objective} to {target:g}"
    ranks = {place.name: str(place.rank) for place in found.ranking.places}
    lines = [_row("rank", f"{score} [95 % interval]", "times the best", "exchanges", "bytes", "same as")]
    for place in found.ranking.places:
        entry = found.entries[place.name]
        lines.append(f"{ranks[place.name]:>4}  {place.name}, {_step(entry)}")
        spent = f"{entry.exchanges[-1]:,.0f}", in_bytes(float(entry.bytes[-1]))
        ties = ", ".join(ranks[name] for name in place.ties) or "-"
        lines.append(_row("", _score(place, entry, target), _against_best(place, found.ranking), *spent, ties))
    return lines


def _row(rank: str, score: str, ratio: str, exchanges: str, traffic: str, ties: str) -> str:
    return f"{rank:>4}  {score:<31}{ratio:<22}{exchanges:>9}{traffic:>9}  {ties}"


def _step(entry: Entry) -> str:
    return "step as given" if entry.tuning is None else f"step {entry.tuning.best.step:.3g}"


def _score(place: Place, entry: Entry, target: float | None) -> str:
    seeds = len(entry.score)
    if place.failed and target is None:
        return f"infinite: {'every seed' if place.failed == seeds else f'{place.failed} of {seeds} seeds'} diverged"
    if place.failed:
        return f"{'no seed' if place.failed == seeds else f'{seeds - place.failed} of {seeds} seeds'} reached it"
    return _estimate(place.score, ".2e" if target is None else ",.4g")


def _against_best(place: Place, ranking: Ranking) -> str:
    best = ranking.places[0].name
    pair = next((pair for pair in ranking.pairs if (pair.better, pair.worse) == (best, place.name)), None)
    if pair is None:
        return "-"
    return f"over {LARGE:g}" if pair.ratio.low > LARGE else _estimate(pair.ratio, ".3g")


def _estimate(estimate: Estimate, form: str) -> str:
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def _doubt(name: str, entry: Entry) -> str | None:
    """Why a method might do better than it did here."""
    tuning = entry.tuning
    if tuning is None:
        return None
    steps = [trial.step for trial in tuning.trials]
    if not math.isfinite(tuning.best.error):
        return f"{name} diverged at every step tried, down to {min(steps):.2g}. Raise `--grid` to try smaller ones."
    if tuning.at_edge:
        end = "smallest" if tuning.best.step == min(steps) else "largest"
        return f"{name}: its best step is the {end} tried, and a better one may lie beyond. Raise `--grid`."
    return None


def _arrays(entries: Mapping[str, Entry]) -> dict[str, np.ndarray]:
    found = {}
    for name, entry in entries.items():
        columns = {column: getattr(entry, column) for column in ("error", "exchanges", "samples", "bytes", "score")}
        for column, values in (columns | {"theta": entry.result.theta}).items():
            found[f"{name}/{column}"] = np.ascontiguousarray(values)
    return found


def _rows(entries: Mapping[str, Entry]) -> Iterator[tuple]:
    for name, entry in entries.items():
        spent = (entry.exchanges, entry.samples, entry.bytes)
        columns = (column.tolist() for column in (*spent, *statistics.interval(entry.error)))
        yield from ((name, *row) for row in zip(*columns, strict=True))


def _summary(entry: Entry) -> dict[str, Any]:
    result, tuning = entry.result, entry.tuning
    return {
        "algorithm": result.settings["algorithm"],
        "tuning": None
        if tuning is None
        else {
            "step_size": tuning.best.step,
            "at_edge": tuning.at_edge,
            "trials": [trial._asdict() for trial in tuning.trials],
        },
        "exchanges": float(entry.exchanges[-1]),
        "samples": int(entry.samples[-1]),
        "bytes": float(entry.bytes[-1]),
        "cost": result.cost._asdict(),
        "score": entry.score,
        "reached": entry.reached,
        "failed_round": {str(seed): int(r) for seed, r in enumerate(result.failed_round) if r >= 0},
        "seconds": result.timings,
        "settings": result.settings,
    }
