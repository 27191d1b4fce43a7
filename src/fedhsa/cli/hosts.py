"""`fedhsa run --hosts`: processes that run one command together, started here or on each of several machines."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence

import jax

from ..engine import LostProcessError, join_processes
from ..engine.hosts import address, free_port, job_size, leave_at_once, this_machine
from ..engine.peers import Peers
from .errors import FailedRunError, UsageError
from .output import on_signals
from .settings import RunSettings

GRACE = 20.0
"""Seconds that the other processes have to end on their own after one process has failed."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of this process among several processes."""

    coordinator: str | None
    """None if the job's environment determines it."""
    count: int | None
    index: int | None
    local_device: int | None = None


def place(settings: RunSettings) -> Place | int | None:
    """Reads `--hosts`: returns the place of this process, the number of processes to start here, or None."""
    text = settings.hosts
    if text is None:
        if (tasks := job_size()) > 1:
            warnings.warn(
                f"This is one of {tasks} tasks of a job, and all of them run the same command by themselves. To share "
                "the work, add `--hosts auto`.",
                stacklevel=2,
            )
        return None
    if text == "auto":
        return Place(None, None, None)
    if text.isdecimal():
        return int(text)
    names = text.split(",")
    host, port = address(names[0])
    index = settings.host_index
    if index is None:
        own = this_machine([host, *names[1:]])
        if len(own) != 1:
            found = "none" if not own else "several"
            raise UsageError(f"`hosts`: {found} of {', '.join(names)} is this machine. Give each its `--host-index`.")
        index = own[0]
    if index >= len(names):
        raise UsageError(
            f"`host_index` counts from 0 and must be below {len(names)}, the number of hosts, got {index}."
        )
    return Place(f"{host}:{port}", len(names), index)


@contextlib.contextmanager
def together(where: Place | None, settings: RunSettings, command: str) -> Iterator[Peers]:
    """Joins the other processes; an error in one process ends all processes, each with a sentence."""
    if where is None:
        yield Peers(jax.local_devices())
        return
    _silence_native_code()
    try:
        job = where.coordinator, where.count, where.index
        join_processes(*job, timeout=settings.host_timeout, local_device=where.local_device)
        peers = Peers(jax.devices())
        with peers.stop_together():
            yield peers
    except LostProcessError as error:
        leave_at_once(1)
        again = f"{command}{'' if settings.resume else ' --resume'}"
        remedy = f" Continue with `{again}`, on any number of hosts." if settings.checkpoint or settings.resume else ""
        raise FailedRunError(f"{error}{remedy}") from error
    except BaseException as error:
        leave_at_once(2 if isinstance(error, ValueError | UsageError) else 1)
        raise


def check_files(settings: RunSettings, peers: Peers) -> None:
    """Raises if problems or algorithms come from files that differ between machines."""
    if files := settings.numbers()["files"]:
        try:
            peers.same(files)
        except ValueError as error:
            raise UsageError(f"`hosts`: {', '.join(files)} must be the same on all machines. Copy it there.") from error


def _silence_native_code() -> None:
    """Lets only Python print to standard output, because the library that joins processes also prints there."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def start(count: int, arguments: Sequence[str]) -> int:
    """Starts the processes on this machine, each with its own cores, waits for them and returns the exit code."""
    where = f"localhost:{free_port()}"
    with contextlib.ExitStack() as files:
        heard = [files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        own = [sys.executable, "-m", "fedhsa.cli.member", where, str(count)]
        outputs = [{}, *({"stdout": subprocess.DEVNULL, "stderr": file} for file in heard[1:])]
        processes = [  # they read their standard input to detect that this process has ended
            subprocess.Popen([*own, str(i), *arguments], stdin=subprocess.PIPE, **output)
            for i, output in enumerate(outputs)
        ]
        try:
            with on_signals(lambda number, _: _send(processes, number)):
                failed = _wait(processes)
        finally:
            _send(processes, signal.SIGKILL)
            for process in processes:
                process.wait()
        if failed is None:
            return 0
        code = processes[failed].returncode
        if code < 0:
            print(f"fedhsa: process {failed} of {count} was ended by {signal.Signals(-code).name}.", file=sys.stderr)
        elif failed > 0 and code != 130:  # the output of process 0 is already on the screen
            heard[failed].seek(0)
            last = heard[failed].read().decode(errors="replace").strip().splitlines()[-1:]
            print(f"fedhsa: process {failed} of {count} failed: {''.join(last)}", file=sys.stderr)
        return 128 - code if code < 0 else code


def _send(processes: Sequence[subprocess.Popen], number: int) -> None:
    for process in processes:
        process.send_signal(number)  # has no effect on a process that has ended


def _wait(processes: Sequence[subprocess.Popen]) -> int | None:
    """Waits for all processes; returns the first that failed, after which the others have some time to end."""
    failed, deadline = None, float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
        ended = [i for i, process in enumerate(processes) if process.poll()]
        if ended and failed is None:
            # A killed process is the reason why the others failed, although their failures may be noticed first.
            failed, deadline = min(ended, key=lambda i: processes[i].returncode), time.monotonic() + GRACE
    codes = [process.poll() for process in processes]
    return failed if failed is not None else next((i for i, code in enumerate(codes) if code), None)
