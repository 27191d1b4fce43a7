"""From a run by messages to the result that `simulate` gives."""

import dataclasses
import datetime
import pathlib
import time
import warnings

import numpy as np

from .. import outputs
from .._version import versions
from ..algorithms import Cost
from ..engine import Result
from .plan import Plan
from .progress import Record
from .server import FederationError, Server


def carry_out(
    plan: Plan, server: Server, rounds: int, folder: pathlib.Path, resume: bool = False, command: str = ""
) -> Result:
    """Runs the server, and writes the files of a run to `folder`, also if it stops early."""
    if resume and (server.store is None or server.store.load() is None):
        warnings.warn(f"No checkpoint in {str(folder)!r}: starting at round 0.", stacklevel=2)
        resume = False
    if not resume and server.store is not None:
        with server.store.alone(wait=False):  # not while another server writes them
            for name in outputs.FILES:
                (folder / name).unlink(missing_ok=True)
    began = datetime.datetime.now(datetime.UTC)
    try:
        found = conduct(server, rounds, plan.cost, resume)
    except FederationError:
        if not server.progress.round:
            raise  # there is nothing to write
        seconds = (datetime.datetime.now(datetime.UTC) - began).total_seconds()
        _write(plan, folder, result(server, plan.cost, seconds, complete=False), began, command)
        raise
    _write(plan, folder, found, began, command)
    return found


def _write(plan: Plan, folder: pathlib.Path, found: Result, began: datetime.datetime, command: str) -> None:
    manifest = outputs.manifest_head(command, found.complete, began, plan.key, dataclasses.asdict(plan))
    outputs.write(folder, {plan.algorithm: found}, manifest, title=plan.title)


def conduct(server: Server, rounds: int, cost: Cost, resume: bool = False) -> Result:
    """Runs the server, from its checkpoint if `resume` says so; Ctrl-C gives the rounds that are done."""
    if resume:
        server.resume()
    began, complete = time.perf_counter(), True
    try:
        server.run(rounds)
    except KeyboardInterrupt:
        complete = False
        warnings.warn(f"Interrupted after round {server.progress.round} of {rounds}.", stacklevel=2)
    return result(server, cost, time.perf_counter() - began, complete, rounds)


def result(server: Server, cost: Cost, seconds: float, complete: bool, rounds: int = 0) -> Result:
    """The result of the rounds that are done; of a run that diverged also of those that were asked for."""
    progress, task = server.progress, server.task
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
        | {"missing": {"action": missing.action, "patience": missing.seconds, "at_least": missing.at_least}},
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
