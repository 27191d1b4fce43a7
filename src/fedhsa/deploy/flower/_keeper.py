"""Runs a command so that all its processes end with it and with the caller. Standard library only.

    python -I _keeper.py run PID_FD COMMAND ARGUMENT ...    keeps a command
    python -I _keeper.py remove FOLDER                      removes a folder when standard input ends

The keeper is the parent of the command and, on Linux, adopts every orphan below it: a process that moved to a separate
session or whose parent died is still found. It ends the whole tree when the command ends, when its standard input ends
(that is, when the process with the other end of the pipe ends for any reason), or when that process is no longer its
parent. A line `stop` on standard input asks the command to end by itself first.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

PATIENCE = 5.0
"""Seconds a command may take to end by itself after `stop`."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    """Adopts orphans, on Linux only; on other systems, only the process group is ended."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """The ids of all processes below `root`; empty where there is no `/proc`."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            # A process may end during the search. A name may contain spaces and brackets, so the fields after the last
            # one count.
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _childless() -> bool:
    """Collects all children that have ended; returns whether no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _end_all(command: subprocess.Popen) -> None:
    """Kills until no child is left; a process that loses its parent meanwhile becomes a child of this process."""
    if sys.platform != "linux":
        with contextlib.suppress(OSError):
            os.killpg(command.pid, signal.SIGKILL)
    command.kill()
    command.wait()
    while not _childless():
        for process in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def run(pid_fd: int, arguments: list[str]) -> int:
    """Keeps a command until it ends or its caller has ended; returns its exit code."""
    owner = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.append(1))
    # The command is killed with the keeper: this process has one thread, so the thread's end is the keeper's end.
    command = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    os.write(pid_fd, f"{command.pid}\n".encode())
    os.close(pid_fd)
    deadline = None
    while command.poll() is None and not ended and os.getppid() == owner:
        if select.select([0], [], [], 0.1)[0]:
            said = os.read(0, 100)
            if not said:
                break
            command.terminate()
            deadline = time.monotonic() + PATIENCE
        if deadline is not None and time.monotonic() > deadline:
            break
    _end_all(command)
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


def remove(folder: str) -> None:
    """Waits until all processes with the pipe on standard input have ended, then removes the folder."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    for _ in range(100):  # a process killed a moment ago may still be writing
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(run(int(sys.argv[2]), sys.argv[3:]))
    remove(sys.argv[2])
