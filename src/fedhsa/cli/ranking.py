"""The output of `fedhsa compare`: figures, curves, the manifest, and the ranking on the screen."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import Console

from .. import _files, plots
from ..comparison import table
from ..comparison.contest import Contest, Entry
from ..comparison.table import of_contest
from ..engine.result import SIGNED
from ..outputs import named_theta, save_figure, write_manifest
from .settings import FIGURE_FORMATS, CompareSettings

CAPTION = table.CAPTION.removesuffix(").") + "; manifest.json has every p-value)."
LATEX = "compare.tex"


def write(settings: CompareSettings, found: Contest, manifest: Mapping[str, Any], title: str) -> None:
    """Writes all files atomically, and the manifest last, so that it describes only existing files."""
    folder, entries = settings.folder, found.entries
    _files.write_npz(folder / "compare.npz", _arrays(entries))
    columns = ("algorithm", "exchanges", "samples", "bytes", "mean", "low", "high")
    _files.write_csv(folder / "compare.csv", columns, _rows(entries))
    how = {**settings.drawing, "labels": {name: text for name, text in settings.renamed.items() if name in entries}}
    save_figure(found.plot(title=title, target=settings.target, **how), folder / "compare", settings.format)
    _files.write_text(folder / LATEX, of_contest(found, settings.renamed, CAPTION).latex() + "\n")
    tried = {name: e.tuning for name, e in entries.items() if e.tuning is not None}
    if tried:
        sign = -1 if found.quantity in SIGNED else 1
        trials = {n: ([t.step for t in t_n.trials], [sign * t.error for t in t_n.trials]) for n, t_n in tried.items()}
        chosen = {name: tuning.best.step for name, tuning in tried.items()}
        how["labels"] = {name: text for name, text in how["labels"].items() if name in tried}
        save_figure(
            plots.tuning(trials, chosen, quantity=found.quantity, title=title, **how),
            folder / "tuning",
            settings.format,
        )
    else:  # files of an earlier comparison do not belong to this one
        for suffix in FIGURE_FORMATS:
            (folder / f"tuning.{suffix}").unlink(missing_ok=True)
    algorithms = {name: _summary(entry) for name, entry in entries.items()}
    write_manifest(folder, {**manifest, "algorithms": algorithms, "ranking": found.ranking.to_dict()})


def show(console: Console, settings: CompareSettings, found: Contest) -> None:
    """Prints the ranking, its caveats and the files of the figures; LaTeX is printed alone on standard output."""
    ranking = of_contest(found, settings.renamed, CAPTION)
    if settings.latex:
        print(ranking.latex())
        console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    else:
        console.print(ranking.text(console.width), soft_wrap=True)
    for name, entry in found.entries.items():
        if sentence := _doubt(name, entry):
            console.print(sentence, soft_wrap=True)
    names = ("compare", "tuning") if any(e.tuning for e in found.entries.values()) else ("compare",)
    drawn = " and ".join(settings.figures(name)[0] for name in names)
    console.print(f"Figures: {drawn} in {settings.folder}", soft_wrap=True)
    if settings.latex:
        console.print(f"Table: {settings.folder / LATEX}", soft_wrap=True)


def _doubt(name: str, entry: Entry) -> str | None:
    """Returns the reason why a method might perform better than in this comparison, or None."""
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
        columns = {column: getattr(entry, column) for column in ("exchanges", "samples", "bytes", "score")}
        for column, values in ({entry.quantity: entry.values} | columns | named_theta(entry.result)).items():
            found[f"{name}/{column}"] = np.ascontiguousarray(values)
    return found


def _rows(entries: Mapping[str, Entry]) -> Iterator[tuple]:
    for name, entry in entries.items():
        spent = (entry.exchanges, entry.samples, entry.bytes)
        columns = (column.tolist() for column in (*spent, entry.result.mean(), *entry.result.interval()))
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
