"""`load`, which opens the files that the package and its commands write."""

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import _files
from .algorithms import Cost
from .comparison.contest import Contest, Entry
from .comparison.ranking import rank
from .comparison.tuning import Trial, Tuning
from .engine import Result, Sweep
from .engine.result import SIGNED, unknown_cost, unpack
from .outputs import read_manifest

MADE = ("curves.npz", "compare.npz", "sweep.npz", "data.npz")
"""The files by which a folder is opened: those of `run` and `deploy`, `compare`, `sweep`, and `reproduce`."""
OPENS = (
    "`load` opens what `Result.save`, `simulate(checkpoint=...)` and the commands have written: .npz files, "
    "manifest.json, and output folders."
)


def load(path: str | os.PathLike) -> Any:
    """Opens a file or folder that the package has written.

    **Arguments:**

    - `path`: a file of `Result.save`, a checkpoint, or a file or output folder of a command.

    **Returns:** an object that depends on the file:

    - a file of `Result.save`: the `Result`;
    - a checkpoint of `simulate` or of `fedhsa run --checkpoint`: the `Result` so far;
    - `curves.npz`, of `fedhsa run` and `fedhsa deploy`: a dictionary of `Result`s by the name of the algorithm;
    - `compare.npz`: the `Contest` that `compare` returned; `sweep.npz`: the `Sweep`;
    - `data.npz`, of an experiment of `fedhsa reproduce`: an `Outcome` with `arrays` and `facts`;
    - a `manifest.json` or an output folder: the contents of that folder.

    The files of commands contain the arrays that the commands show; costs, settings and times come from the manifest in
    the same folder. In files of `Result.save`, a parameter that consists of dictionaries, lists and tuples keeps its
    structure, a named tuple becomes a dictionary of its fields, and any other structure (such as an Equinox module)
    becomes a dictionary from the path of each array to the array.

    Raises `FileNotFoundError` if there is no such file, and `ValueError` if it was not written by fedhsa.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=10).save("result.npz")
        >>> fedhsa.load("result.npz").error.shape
        (1, 11)
        >>> fedhsa.load("nowhere.npz")
        Traceback (most recent call last):
        FileNotFoundError: There is no file 'nowhere.npz'.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")
    if path.name == "manifest.json":
        return _open_folder(path.parent)
    with path.open("rb") as file:
        archive = file.read(2) == b"PK"
    if not archive:
        raise ValueError(_not_ours(path))
    arrays, header = _files.read_npz(path)
    kind: Any = header.get("kind") or _kind(arrays)
    if kind in _KINDS:
        return _KINDS[kind](arrays, header, read_manifest(path.parent))
    names = ", ".join(sorted(arrays)[:4]) + (", ..." if len(arrays) > 4 else "")
    raise ValueError(
        f"{str(path)!r} was not written by fedhsa: it holds the arrays {names}. `numpy.load` opens it. {OPENS}"
    )


def _open_folder(folder: pathlib.Path) -> Any:
    """Opens the output in a folder, or its checkpoints if the run is not finished."""
    there = [name for name in MADE if (folder / name).is_file()]
    command = str(read_manifest(folder).get("command")).split()[1:2]
    if command and f"{command[0]}.npz" in there:  # several commands may have written to one folder
        return load(folder / f"{command[0]}.npz")
    if there:
        return load(folder / there[0])
    kept = folder if folder.name == "checkpoints" else folder / "checkpoints"
    if found := sorted(kept.glob("*.npz")):
        return {path.stem: load(path) for path in found}
    inside = sorted(str(path.parent) for path in folder.glob("**/manifest.json"))
    hint = f" There are results in {', '.join(inside[:4])}." if inside else f" {OPENS}"
    raise ValueError(f"{str(folder)!r} holds no results.{hint}")


def _not_ours(path: pathlib.Path) -> str:
    """Says why a file that is not an archive cannot be opened, and what can be opened instead."""
    beside = [name for name in MADE if (path.parent / name).is_file() and name != path.name]
    hint = f"Open {str(path.parent / beside[0])!r} instead." if beside else OPENS
    if path.suffix == ".npz":
        return f"{str(path)!r} is damaged or was not written by fedhsa: it is not an .npz file. {hint}"
    return f"{str(path)!r} is not a file of results. {hint}"


def _open_result(arrays: dict[str, np.ndarray], header: dict[str, Any], manifest: Any) -> Result:
    if "theta" not in header:
        raise ValueError(
            "This checkpoint was written by an earlier version: only `simulate(..., resume=True)` can read it."
        )
    if "rounds" not in arrays:
        arrays["rounds"] = np.arange(0, header["settings"]["rounds"] + 1, header["settings"]["every"])
    return unpack(arrays, header)


def _open_outcome(arrays: dict[str, np.ndarray], header: dict[str, Any], manifest: Any) -> Any:
    from .experiments.study.base import Outcome  # imported here because it imports all studies

    return Outcome(arrays, header["facts"])


def _open_curves(arrays: dict[str, np.ndarray], header: Any, manifest: dict[str, Any]) -> dict[str, Result]:
    found = {}
    for name in _names(arrays, "/rounds"):
        columns, theta = _without_theta(_columns(arrays, name))
        rounds = columns.pop("rounds")
        found[name] = _result(columns, rounds, theta, _about(manifest, name))
    return found


def _open_contest(arrays: dict[str, np.ndarray], header: Any, manifest: dict[str, Any]) -> Contest:
    entries = {}
    for name in _names(arrays, "/score"):
        (records, theta), about = _without_theta(_columns(arrays, name)), _about(manifest, name)
        score = records.pop("score")
        spent = {column: records.pop(column) for column in ("exchanges", "samples", "bytes")}
        settings = about.get("settings") or {}
        rounds = np.linspace(0, settings.get("rounds") or 1, len(spent["samples"])).round().astype(int)
        result = _result(records, rounds, theta, about)
        tuning = about.get("tuning")
        tried = tuning and Tuning(tuple(Trial(*(_number(x) for x in t.values())) for t in tuning["trials"]))
        reached = {column: np.array([_number(x) for x in of]) for column, of in (about.get("reached") or {}).items()}
        entries[name] = Entry(None, tried, result, **spent, reached=reached, score=score)
    scores = {name: entry.score for name, entry in entries.items()}
    signed = all(entry.quantity in SIGNED and not entry.reached for entry in entries.values())
    return Contest(entries, rank(scores, signed=signed), bool(manifest.get("complete", True)))


def _open_sweep(arrays: dict[str, np.ndarray], header: Any, manifest: dict[str, Any]) -> Sweep:
    rounds, quantity = arrays["rounds"], next(name for name, a in arrays.items() if a.ndim == 3)
    names = [name for name in arrays if name not in ("rounds", "theory", quantity)]
    settings = tuple({name: arrays[name][i].item() for name in names} for i in range(len(arrays[quantity])))
    algorithm, *_ = manifest.get("settings", {}).get("algorithm") or ["algorithm"]
    about = {"settings": {"algorithm": {"name": algorithm}}}
    results = tuple(_result({quantity: values}, rounds, None, about) for values in arrays[quantity])
    theory = tuple(arrays["theory"].tolist()) if "theory" in arrays else None
    return Sweep(settings, results, bool(manifest.get("complete", True)), theory=theory)


_KINDS: Mapping[str, Callable[..., Any]] = {
    "result": _open_result,
    "checkpoint": _open_result,
    "experiment": _open_outcome,
    "contest": _open_contest,
    "curves": _open_curves,
    "sweep": _open_sweep,
}


def _kind(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Infers the kind of a file without a header from the names of its arrays."""
    if "rounds" in arrays and any(a.ndim == 3 for a in arrays.values()):
        return "sweep"
    return next((kind for kind, end in (("contest", "/score"), ("curves", "/rounds")) if _names(arrays, end)), None)


def _names(arrays: Mapping[str, np.ndarray], ending: str) -> list[str]:
    return [name.removesuffix(ending) for name in arrays if name.endswith(ending)]


def _columns(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(f"{name}/"): a for key, a in arrays.items() if key.startswith(f"{name}/")}


def _without_theta(columns: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], Any]:
    """Separates the columns of curves from the parameter, which is one vector or arrays by their paths."""
    thetas = {column.removeprefix("theta"): a for column, a in columns.items() if column.startswith("theta")}
    return {column: a for column, a in columns.items() if not column.startswith("theta")}, thetas.get("", thetas)


def _about(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the manifest's entry for an algorithm, or its name if there is none."""
    return manifest.get("algorithms", {}).get(name) or {"settings": {"algorithm": {"name": name}}}


def _result(records: dict[str, np.ndarray], rounds: np.ndarray, theta: Any, about: Mapping[str, Any]) -> Result:
    shown = next(iter(records.values()))
    diverged = np.isinf(shown)
    first = np.where(diverged.any(1), rounds[diverged.argmax(1)], -1)
    for seed, round in (about.get("failed_round") or {}).items():  # the curves resolve it only to a record
        first[int(seed)] = round
    return Result(
        error=records.get("error", np.full(shown.shape, np.nan)),
        theta=theta,
        rounds=rounds,
        records=records,
        failed_round=first,
        cost=Cost(**about["cost"]) if "cost" in about else unknown_cost,
        settings=about.get("settings") or {},
        timings=about.get("seconds") or {},
        complete=bool(about.get("complete", True)),
    )


def _number(value: Any) -> float:
    """Converts a number of a manifest, where infinities and NaN are words."""
    return float("nan") if value is None else float(value)
