"""Ray itself: a private one that leaves nothing behind, or a cluster that is joined and left as it was."""

import contextlib
import importlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .._extras import install

PATIENCE = 5.0
"""Seconds in which the head of a cluster answers."""
LONGEST_FOLDER = 40
"""Characters: Ray keeps sockets in its folder, whose paths the system limits to about a hundred."""


def import_ray() -> Any:
    """Imports Ray; where it is missing, the error says how to install it."""
    # Ray asks for these when it is imported: not to report usage, and what it would else warn of.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"Ray is not installed. Install it with {install('ray')}.") from error


@contextlib.contextmanager
def cluster(address: str, log_to_driver: bool = True) -> Iterator[float]:
    """Joins a cluster and gives the number of its cores; leaves it as it was.

    With `log_to_driver` this process prints what those of the cluster print, and what Ray says of those that it lost.
    """
    ray = import_ray()
    joined = not ray.is_initialized()
    if joined:
        try:
            _check_there(address)
            ray.init(address=address, logging_level="ERROR", log_to_driver=log_to_driver)
        except (OSError, RuntimeError, ValueError) as error:
            raise ConnectionError(
                f"`address`: there is no Ray at {address!r} ({error}). Start one with `ray start --head`, or use "
                "'local'."
            ) from error
    try:
        yield ray.cluster_resources().get("CPU", 1.0)
    finally:
        if joined:
            ray.shutdown()


def started_here() -> str | None:
    """The address of what `ray start` has started on this machine; None for nothing, or what has ended since."""
    address = importlib.import_module("ray._private.services").find_bootstrap_address(None)
    try:
        _check_there(address or "")
    except OSError:
        return None
    return address


def _check_there(address: str) -> None:
    """Raises where nobody listens: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


@contextlib.contextmanager
def private_ray(cores: int, log_to_driver: bool = True) -> Iterator[float]:
    """A private Ray that leaves nothing behind: no process and no file; `log_to_driver` as for `cluster`."""
    ray = import_ray()
    if ray.is_initialized():
        raise ValueError("`address`: this process uses a Ray already. Say 'auto' to use it, or `ray.shutdown()` first.")
    with _end_by_exception() as armed:
        home = tempfile.mkdtemp(prefix="fr", dir=short(tempfile.gettempdir()))
        try:
            with warnings.catch_warnings(), _on_loopback():
                # JAX warns of every fork once it has been used; Ray's are followed by another program at once.
                warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
                quiet = {"logging_level": "ERROR", "log_to_driver": log_to_driver}
                ray.init(address="local", num_cpus=cores, include_dashboard=False, _temp_dir=home, **quiet)
            armed()  # Ray has put its own handlers in the place of ours
            yield float(cores)
        finally:
            with _undisturbed():
                processes = _processes(home)
                ray.shutdown()
                _end([*processes, *_processes(home)])  # also those that were only starting before
                _remove(home)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Within, Ray starts on the loopback device only.

    On Linux it would listen to the whole network, and run what anyone there sends it; `_node_ip_address` does not
    change that. What it does on other systems is the constant below.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def short(folder: str) -> str:
    """The folder, or one whose name is short enough for sockets in it."""
    return folder if len(folder) <= LONGEST_FOLDER or not os.path.isdir("/tmp") else "/tmp"


def _processes(home: str) -> list[Any]:
    """The processes of the Ray that works in this folder."""
    psutil = importlib.import_module("psutil")  # comes with Ray

    programs, found = os.path.dirname(import_ray().__file__), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if any(programs in word for word in words[:3]) and any(home in word for word in words):
                found += [process, *process.children(recursive=True)]
    return found


def _end(processes: list[Any]) -> None:
    """Waits a moment for processes to end, then kills them."""
    for seconds in (1.0, 5.0):
        deadline = time.monotonic() + seconds
        while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in alive:
            with contextlib.suppress(Exception):  # gone in the meantime
                process.kill()


def is_alive(process: Any) -> bool:
    """Whether a process does anything; one that has ended may be listed until its parent takes note."""
    psutil = importlib.import_module("psutil")
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _remove(home: str) -> None:
    """Removes a folder into which someone may still have been writing a moment ago."""
    for _ in range(50):
        shutil.rmtree(home, ignore_errors=True)
        if not os.path.exists(home):
            return
        time.sleep(0.1)


_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def _end_by_exception() -> Iterator[Callable[[], None]]:
    """Within, signals that would end the process at once end it by an exception, so that it can clean up."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGINT)}

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    def arm() -> None:
        for number, handler in before.items():
            signal.signal(number, leave if handler == signal.SIG_DFL else handler)

    arm()
    try:
        yield arm
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Within, signals are ignored: the process is ending already."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (*_SIGNALS, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
