"""Lanes, each of which runs one experiment at a time: threads of this process, or processes with separate cores."""

import multiprocessing
import os
import pathlib
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import jax

from ... import _files
from ..._linear import available_cores
from ...engine.tasks import kept_programs

LOOK = 0.2
"""Seconds between two checks whether the parent process is still running."""
LAST = "data.npz"
"""The file whose presence shows that all other files are there."""


class ThreadLane:
    """A thread of this process. Its functions get the argument `stopped`, which says whether they should end."""

    def __init__(self) -> None:
        self._pool, self._stopped = ThreadPoolExecutor(1, thread_name_prefix="experiment"), threading.Event()

    def submit(self, function: Callable, /, *arguments: Any) -> Future:
        return self._pool.submit(function, *arguments, stopped=self._stopped.is_set)

    def stop(self) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


class ProcessLane:
    """A process that has these cores to itself.

    Each process has a separate interpreter lock and separate XLA threads: two processes take half the time of one, and
    two threads do not. The next experiment in the process reuses the programs that are compiled already. The process
    ends with this one, even if this one is killed.
    """

    def __init__(self, cores: Sequence[int] = ()) -> None:
        self._cores, self._pool = cores, ThreadPoolExecutor(1)
        self._start()

    def _start(self) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._pipe, other = spawned.Pipe()
        self._process = spawned.Process(target=_serve, args=(other, os.getpid(), kept_programs()), daemon=True)
        with _on(self._cores):  # the process inherits them, so that no library starts more threads than it has cores
            self._process.start()
        other.close()

    def submit(self, function: Callable, /, *arguments: Any) -> Future:
        return self._pool.submit(self._call, function, arguments)

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _call(self, function: Callable, arguments: tuple) -> Any:
        if not self._process.is_alive():  # it died during an earlier call
            self._start()
        try:
            self._pipe.send((function, arguments))
            value, error = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(1.0)
            raise MemoryError(
                f"The process that ran it ended (exit code {self._process.exitcode}), perhaps for want of memory."
            ) from error
        if error is not None:
            raise error
        return value


class ExecutorLane:
    """A worker of an executor, possibly on a machine without access to this machine's disk.

    It takes functions of a value and a folder; the function fills the folder.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, function: Callable, /, *arguments: Any) -> Future:
        what, folder, *others = arguments
        handle, mark = tempfile.mkstemp(prefix=".", dir=folder)
        os.close(handle)
        found: Future = Future()

        def take(answer: Future) -> None:
            pathlib.Path(mark).unlink(missing_ok=True)
            try:
                value, files = answer.result()
                for name, data in files.items():
                    with _files.atomic(folder / name) as file:
                        file.write(data)
                found.set_result(value)
            except BaseException as error:  # including a cancellation
                found.set_exception(error)

        self._running = self._executor.submit(fill, function, what, folder.absolute(), pathlib.Path(mark).name, others)
        self._running.add_done_callback(take)
        return found

    def stop(self) -> None:
        self._running.cancel()


def fill(
    function: Callable, what: Any, folder: pathlib.Path, mark: str, others: Sequence[Any]
) -> tuple[Any, dict[str, bytes]]:
    """Calls a function that fills a folder; returns its value, and the files if this machine cannot read the folder.

    A machine can read the folder if it finds the file `mark` in it.
    """
    if (folder / mark).exists():
        return function(what, folder, *others), {}
    with tempfile.TemporaryDirectory(prefix="fedhsa-") as home:
        place = pathlib.Path(home)
        value = function(what, place, *others)
        made = sorted(path for path in place.rglob("*") if path.is_file())
        made.sort(key=lambda path: path.name == LAST)
        return value, {path.relative_to(place).as_posix(): path.read_bytes() for path in made}


Lane: TypeAlias = ThreadLane | ProcessLane | ExecutorLane
"""A place that calls the submitted functions one after the other, and whose `stop` ends the call that is running."""


def places(executor: Executor, count: int) -> list[Lane]:
    """Returns `count` lanes, each a worker of the executor."""
    return [ExecutorLane(executor) for _ in range(count)]


def threads(count: int) -> list[Lane]:
    """Returns `count` lanes, each a thread."""
    return [ThreadLane() for _ in range(count)]


def processes(count: int) -> list[Lane]:
    """Returns `count` lanes, each a process; the cores that this process may use are divided among them."""
    cores = available_cores()
    return [ProcessLane(cores[k::count]) for k in range(count)]


@contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    """Restricts this thread to these cores, if any, on systems that support it."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _serve(pipe: Connection, parent: int, settings: dict[str, Any]) -> None:
    """Calls the functions that arrive through the pipe, with these settings of JAX, until the other end is closed."""
    for name, value in settings.items():
        jax.config.update(name, value)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    warnings.simplefilter("ignore")
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = function(*arguments), None
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = None, error
        pipe.send(answer)


def _end_with(parent: int) -> None:
    """Ends this process soon after its parent, even if the parent was killed."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)
