"""Running many experiments: finished outcomes are reused, and stopping loses only the unfinished simulations."""

import concurrent.futures
import datetime
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from ..study.base import AbstractStudy, Outcome, Runner
from ..study.clock import clock, phase
from . import code, store
from .lanes import Lane, threads

LOOK = 0.2
"""Seconds between two status updates while experiments run."""


class Status(NamedTuple):
    """The progress of a reproduction."""

    finished: int
    total: int
    running: tuple[str, ...]
    left: float
    """The estimated seconds that remain."""


class Finished(NamedTuple):
    """An experiment that has ended."""

    experiment: AbstractStudy
    seconds: float
    """The run time in seconds; 0 if an earlier outcome was reused."""
    error: Exception | None
    """The reason why there is no outcome, if there is none."""


def run(
    experiments: Sequence[AbstractStudy],
    folder: pathlib.Path,
    *,
    manifest: Callable[[AbstractStudy], dict[str, Any]] = lambda _: {},
    again: bool = False,
    lanes: Callable[[int], Sequence[Lane]] = lambda _: threads(1),
    devices: Any = None,
    show: Callable[[Status], None] = lambda _: None,
) -> Iterator[Finished]:
    """Runs the experiments whose outcomes are not in `folder` yet, and yields each when it is finished.

    An outcome is on disk before it is yielded, and so is every finished simulation of an unfinished experiment, so that
    neither is computed twice. An exception in the caller (Ctrl-C) stops the running experiments.

    **Arguments:**

    - `manifest`: entries to write next to an outcome, in addition to its settings and its times.
    - `again`: whether to rerun finished experiments as well.
    - `lanes`: returns the lanes in which experiments run in parallel, given the number of experiments to run; it is not
      called if there is nothing to run. Default: one thread.
    - `devices`: the devices to simulate on. Default: all of JAX's devices.
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
    waiting = []
    for experiment in experiments:
        if not again and store.find(experiment, folder) is not None:
            yield Finished(experiment, 0.0, None)
        else:
            waiting.append(experiment)
            if again:
                shutil.rmtree(store.unfinished(experiment, folder), ignore_errors=True)
            # Once here, for all threads: Python 3.11 cannot parse code in several threads simultaneously.
            store.fingerprint(experiment)
            code.digest(type(experiment).__module__)
    if not waiting:
        return
    estimate, queue = _Clock(waiting), _Queue(waiting)
    idle, futures = list(lanes(len(waiting))), {}
    places = tuple(idle)
    try:
        while queue or futures:
            while queue and idle:
                lane = idle.pop(0)
                experiment = queue.take(lane)
                estimate.start(experiment)
                future = lane.submit(work, experiment, folder, manifest(experiment), devices)
                futures[future] = experiment, lane
            done, _ = concurrent.futures.wait(futures, LOOK, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                experiment, lane = futures.pop(future)
                idle.append(lane)
                estimate.finish(experiment)
                error = future.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield Finished(experiment, future.result() if error is None else 0.0, error)
            show(estimate.status())
    finally:
        for lane in places:
            lane.stop()


def work(
    experiment: AbstractStudy,
    folder: pathlib.Path,
    manifest: dict[str, Any],
    devices: Any = None,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> float:
    """Runs one experiment, stores and draws its outcome, and returns the seconds that it took; works in any process."""
    began = time.perf_counter()
    with clock() as spent:
        outcome = experiment.run(Runner(stopped, devices, store.unfinished(experiment, folder)))
        seconds = time.perf_counter() - began
        about = {
            "name": experiment.name,
            "source": experiment.source,
            "settings": store.settings(experiment),
            "seconds": seconds,
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        store.keep(experiment, outcome, about | manifest, folder)
        with phase("draw"), _DRAWING:
            store.present(experiment, outcome, folder)
    store.note(experiment, folder, timings=spent.timings())
    return seconds


_DRAWING = threading.Lock()
"""Matplotlib draws one figure at a time."""


def entry(experiment: AbstractStudy, folder: pathlib.Path) -> store.StoredStudy | None:
    """Returns a finished experiment from the store, and draws its figure if necessary; None if it is not there."""
    outcome: Outcome | None = store.find(experiment, folder)
    return None if outcome is None else store.present(experiment, outcome, folder)


class _Clock:
    """Estimates the time left from the experiments' own estimates, corrected by their errors so far."""

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
        # An experiment that runs longer than estimated counts as nearly done.
        running = {name: min(now - since, 0.95 * self.estimates[name]) for name, since in [*self.started.items()]}
        total = sum(self.estimates.values())
        done += sum(running.values())
        pace = (now - self.began) / done if self.finished else 1.0
        return Status(len(self.finished), len(self.estimates), tuple(running), pace * (total - done))


class _Queue:
    """Waiting experiments. Those that share programs run in one lane, and the longest run first, so that no long
    experiment runs alone at the end."""

    def __init__(self, experiments: Sequence[AbstractStudy]):
        self._waiting = sorted(experiments, key=lambda experiment: -experiment.seconds())
        self._last: dict[Lane, Hashable] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, lane: Lane) -> AbstractStudy:
        """Returns the next experiment for this lane: one whose programs it has compiled, or that no other lane has."""
        others = [programs for other, programs in self._last.items() if other is not lane]

        def worth(experiment: AbstractStudy) -> tuple[bool, bool, float]:
            programs = experiment.programs()
            left = sum(e.seconds() for e in self._waiting if e.programs() == programs)
            return programs == self._last.get(lane), programs not in others, left

        chosen = max(self._waiting, key=worth)
        self._waiting.remove(chosen)
        self._last[lane] = chosen.programs()
        return chosen
