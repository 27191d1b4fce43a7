"""From a run by messages to the result that `simulate` gives."""

import platform
import time
import warnings
from typing import Any

import jax
import numpy as np

from .._version import __version__
from ..algorithms import Cost
from ..engine import Result
from .server import Record, Server


def conduct(
    server: Server, rounds: int, cost: Cost, resume: bool = False, problem: dict[str, Any] | None = None
) -> Result:
    """Runs the server, from its checkpoint if `resume` says so; Ctrl-C gives what there is."""
    if resume:
        server.resume()
    began, complete = time.perf_counter(), True
    try:
        server.run(rounds)
    except KeyboardInterrupt:
        complete = False
        warnings.warn(f"Interrupted after round {server.progress.round} of {rounds}.", stacklevel=2)
    return result(server, cost, time.perf_counter() - began, complete, problem)


def result(server: Server, cost: Cost, seconds: float, complete: bool, problem: dict[str, Any] | None = None) -> Result:
    """The result of the rounds that are done."""
    progress, task = server.progress, server.task
    columns = {
        name: np.asarray(values)[None]
        for name, values in zip(Record._fields, zip(*progress.records, strict=True), strict=True)
    }
    settings = task.plain()
    settings["problem"] |= problem or {}
    policy = {"action": server.missing.action, "patience": server.missing.seconds, "at_least": server.missing.at_least}
    settings |= {
        "seeds": 1,
        "every": 1,
        "recorded": list(columns),
        "fingerprint": task.digest,
        "rounds": progress.round,
        "device": "sites",
        "deploy": {
            "transport": server.transport.name,
            "run": server.run_id,
            "sites": len(server.sites),
            "missing": policy,
        },
        "versions": {
            "fedhsa": __version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
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
