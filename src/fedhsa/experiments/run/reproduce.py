"""Running many experiments: what is finished already is reused, and stopping loses only what is under way."""

import concurrent.futures
import datetime
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..study.base import AbstractStudy, Outcome, Runner
from . import store

LOOK = 0.2
"""Seconds between looks at the clock while experiments run."""


class Status(NamedTuple):
    """Where a reproduction stands."""

    finished: int
    total: int
    running: tuple[str, ...]
    left: float
    """Seconds, estimated."""


class Finished(NamedTuple):
    """An experiment that has come to its end."""

    experiment: AbstractStudy
    seconds: float
    """0 where an earlier outcome was reused."""
    error: Exception | None
    """Why it has no outcome."""


def run(
    experiments: Sequence[AbstractStudy],
    folder: pathlib.Path,
    *,
    manifest: Callable[[AbstractStudy], dict[str, Any]] = lambda _: {},
    again: bool = False,
    workers: int = 2,
    devices: Any = None,
    show: Callable[[Status], None] = lambda _: None,
) -> Iterator[Finished]:
    """Runs the experiments that `folder` does not hold yet, and says of each when it is finished.

    An outcome is on disk before it is announced, and so is every simulation of an experiment under way: whatever
    happens, they are not computed twice. An exception in the caller (Ctrl-C) stops simulations within a second, and
    predictions when they are done.

    **Arguments:**

    - `manifest`: what to write beside an outcome, besides its settings and its time.
    - `again`: whether to run also what is finished.
    - `workers`: how many experiments run at once: each uses all cores for its simulations, but only one of them for
      its compilations.
    - `devices`: where to simulate. Default: all of JAX's.
    - `show`: called a few times a second.

    !!! example
        >>> from fedhsa.experiments.run.presets import change, studies
        >>> tiny = change(change(studies()["quadratic/noiseless"], "num_agents", 3), "dim", 2)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = [finished.error for finished in run([tiny], pathlib.Path(folder))]
        ...     second = [finished.seconds for finished in run([tiny], pathlib.Path(folder))]
        >>> first, second
        ([None], [0.0])
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting, unfinished = [], {}
    for experiment in experiments:
        if not again and store.find(experiment, folder) is not None:
            yield Finished(experiment, 0.0, None)
        else:
            waiting.append(experiment)
            # Named here and not by the workers: Python 3.11 cannot parse code in several threads at once.
            unfinished[experiment.name] = store.unfinished(experiment, folder)
            if again:
                shutil.rmtree(unfinished[experiment.name], ignore_errors=True)
    waiting.sort(key=lambda experiment: -experiment.seconds())  # so that no long one is left to run alone
    stopped, clock = threading.Event(), _Clock(waiting)

    def work(experiment: AbstractStudy) -> Finished:
        clock.start(experiment)
        began = time.perf_counter()
        outcome = experiment.run(Runner(stopped.is_set, devices, unfinished[experiment.name]))
        seconds = time.perf_counter() - began
        about = {
            "name": experiment.name,
            "source": experiment.source,
            "settings": store.settings(experiment),
            "seconds": seconds,
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        store.keep(experiment, outcome, about | manifest(experiment), folder)
        return Finished(experiment, seconds, None)

    pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="experiment")
    try:
        futures = {pool.submit(work, experiment): experiment for experiment in waiting}
        while futures:
            done, _ = concurrent.futures.wait(futures, LOOK, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                experiment = futures.pop(future)
                clock.finish(experiment)
                error = future.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield future.result() if error is None else Finished(experiment, 0.0, error)
            show(clock.status())
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)


def entry(experiment: AbstractStudy, folder: pathlib.Path) -> store.StoredStudy | None:
    """What a finished experiment left behind, drawn if it is not yet; None where there is nothing."""
    outcome: Outcome | None = store.find(experiment, folder)
    return None if outcome is None else store.present(experiment, outcome, folder)


class _Clock:
    """Guesses the time left: by the experiments' own estimates, corrected by how wrong they have been so far."""

    def __init__(self, experiments: Sequence[AbstractStudy]):
        self.estimates = {experiment.name: max(experiment.seconds(), 0.1) for experiment in experiments}
        self.started: dict[str, float] = {}
        self.finished: list[str] = []
        self.began = time.perf_counter()

    def start(self, experiment: AbstractStudy) -> None:
        self.started[experiment.name] = time.perf_counter()

    def finish(self, experiment: AbstractStudy) -> None:
        self.started.pop(experiment.name, None)
        self.finished.append(experiment.name)

    def status(self) -> Status:
        now = time.perf_counter()
        done = sum(self.estimates[name] for name in self.finished)
        # What runs longer than estimated counts as nearly done.
        running = {name: min(now - since, 0.95 * self.estimates[name]) for name, since in [*self.started.items()]}
        total = sum(self.estimates.values())
        done += sum(running.values())
        pace = (now - self.began) / done if self.finished else 1.0
        return Status(len(self.finished), len(self.estimates), tuple(running), pace * (total - done))
