"""The progress of a run by messages, the contents of its checkpoint, and its result in the form of `simulate`."""

import contextlib
import dataclasses
import datetime
import itertools
import pathlib
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from .. import _files, _own
from .._version import versions
from ..algorithms import Cost
from ..engine import Result

if TYPE_CHECKING:
    from .plan import Plan
    from .server import Server

METRICS = "metrics.csv"
"""The file with the sites' measurements by round and agent; the figures metrics.png and metrics.pdf are next to it."""


class FederationError(RuntimeError):
    """The run cannot continue; everything up to the last finished round is kept."""


class Record(NamedTuple):
    """The record of one round; entry 0 is the state before the first round."""

    error: float
    operator_norm: float
    """The norm of the averaged operators at the round's initial parameter, with one observation of each agent;
    NaN for methods whose agents do not send them."""
    agents: int
    seconds: float
    bytes_down: int
    bytes_up: int
    attempts: int
    movement: float = float("nan")
    """The distance that the parameter moved in the round."""


class Progress(NamedTuple):
    """The contents of a checkpoint, with which a resumed run returns the same numbers."""

    round: int
    server: PyTree
    counted: np.ndarray
    """Per site, the last round that used its replies, or -1."""
    records: list[Record]
    failed_round: int


def record_rows(records: Sequence[Record]) -> np.ndarray:
    """Records as the rows of an array."""
    return np.fromiter(itertools.chain.from_iterable(records), float).reshape(-1, len(Record._fields))


def read_records(rows: np.ndarray) -> list[Record]:
    """The records in an array that `record_rows` made."""
    whole = ("agents", "bytes_down", "bytes_up", "attempts")
    records = [Record(*row) for row in rows.tolist()]  # files of earlier versions have no `movement`
    return [record._replace(**{name: int(getattr(record, name)) for name in whole}) for record in records]


def carry_out(
    plan: "Plan", server: "Server", rounds: int, folder: pathlib.Path, resume: bool = False, command: str = ""
) -> Result:
    """Runs the server and writes the files of the run to `folder`, even if the run stops early."""
    from .. import outputs  # imported here, so that nodes do not load figures and theory

    if resume and (server.store is None or server.store.load() is None):
        warnings.warn(f"No checkpoint in {str(folder)!r}: starting at round 0.", stacklevel=2)
        resume = False
    if not resume and server.store is not None:
        with server.store.alone(wait=False):  # only one server at a time may write them
            for name in (*outputs.FILES, METRICS, "metrics.png", "metrics.pdf"):
                (folder / name).unlink(missing_ok=True)
    began = datetime.datetime.now(datetime.UTC)
    try:
        found = conduct(server, rounds, plan.cost, resume)
    except FederationError:
        if not server.progress.round:
            raise  # there is nothing to write
        seconds = (datetime.datetime.now(datetime.UTC) - began).total_seconds()
        with contextlib.suppress(OSError):  # a full disk, for example, which the error may already report
            _write(plan, server, folder, result(server, plan.cost, seconds, complete=False), began, command)
        raise
    _write(plan, server, folder, found, began, command)
    return found


def _write(
    plan: "Plan", server: "Server", folder: pathlib.Path, found: Result, began: datetime.datetime, command: str
) -> None:
    from .. import outputs, plots

    manifest = outputs.manifest_head(command, found.complete, began, plan.key, dataclasses.asdict(plan))
    if names := found.settings["measured"]:
        weights = server.measurements.weights
        _files.write_csv(folder / METRICS, ("round", "agent", "weight", *names), _rows(found, names, weights))
        plots.save(plots.sites(found, title=plan.title), folder / "metrics")
        manifest["metrics"] = _final(found, names, weights)
    outputs.write(folder, {_own.labels([plan.algorithm])[0]: found}, manifest, title=plan.title)


def _rows(found: Result, names: list[str], weights: np.ndarray) -> Iterator[tuple]:
    """A row for every round and agent that measured anything, and one for their weighted average."""
    means = np.stack([found.records[name][0] for name in names], axis=-1)
    each = np.stack([found.records[f"{name}_by_agent"][0] for name in names], axis=-1)
    for round, mean, of_agents in zip(found.rounds.tolist(), means, each, strict=True):
        if np.isfinite(mean).any():
            yield (round, "average", float(weights.sum()), *mean.tolist())
            yield from ((round, i, float(weights[i]), *row.tolist()) for i, row in enumerate(of_agents))


def _final(found: Result, names: list[str], weights: np.ndarray) -> dict[str, Any]:
    """The last measurements, for the manifest."""
    known = np.flatnonzero(np.isfinite(found.records[names[0]][0]))
    last = int(known[-1]) if len(known) else 0
    each = {name: found.records[f"{name}_by_agent"][0, last] for name in names}
    metrics = {name: {"mean": found.records[name][0, last], "agents": values} for name, values in each.items()}
    return {"round": int(found.rounds[last]), "metrics": metrics, "weights": weights}


def conduct(server: "Server", rounds: int, cost: Cost, resume: bool = False) -> Result:
    """Runs the server, from its checkpoint if `resume` is true; after Ctrl-C, returns the complete rounds."""
    if resume:
        server.resume()
    began, complete = time.perf_counter(), True
    try:
        server.run(rounds)
    except KeyboardInterrupt:
        complete = False
        warnings.warn(f"Interrupted after round {server.progress.round} of {rounds}.", stacklevel=2)
    return result(server, cost, time.perf_counter() - began, complete, rounds)


def result(server: "Server", cost: Cost, seconds: float, complete: bool, rounds: int = 0) -> Result:
    """The result of the complete rounds; for a run that diverged, of all requested rounds."""
    progress, task = server.progress, server.task
    progress = progress._replace(records=progress.records[: progress.round + 1])
    if progress.failed_round >= 0 and progress.round < rounds:
        rest = [Record(float("inf"), float("inf"), 0, 0.0, 0, 0, 0, float("inf"))] * (rounds - progress.round)
        progress = progress._replace(round=rounds, records=[*progress.records, *rest])
    columns = {
        name: np.asarray(values)[None]
        for name, values in zip(Record._fields, zip(*progress.records, strict=True), strict=True)
    }
    columns |= server.measurements.columns(len(progress.records))
    settings = task.plain()
    missing = server.missing
    settings |= {
        "seeds": 1,
        "every": 1,
        "recorded": list(columns),
        "fingerprint": task.digest,
        "rounds": progress.round,
        "device": "sites",
        "measured": list(server.measurements.names),
        "deploy": {"transport": server.transport.name, "run": server.run_id, "sites": len(server.sites)}
        | {"missing": {"action": missing.action, "patience": missing.seconds, "at_least": missing.at_least}}
        | {"reply_bound": server.reply_bound},
        "versions": versions(),
    }
    return Result(
        error=columns["error"],
        theta=np.asarray(progress.server.theta),
        rounds=np.arange(len(progress.records)),
        records=columns,
        failed_round=np.array([progress.failed_round]),
        cost=cost,
        settings=settings,
        timings={"compile": 0.0, "run": seconds},
        complete=complete,
    )
