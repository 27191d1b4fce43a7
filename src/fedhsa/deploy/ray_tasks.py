"""Many independent computations on a Ray: an executor like those of `concurrent.futures`, a core for each task.

What is sent is a function by its name and its arguments as a `Parcel`, what comes back another one or the words of an
error: JSON and plain arrays. (Ray puts these into envelopes of its own, and carries large arrays as they are.)
"""

import builtins
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import socket
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from .._version import versions
from ..engine.placement import compute_as_on, count_cores
from ..engine.tasks import kept_programs
from ..kernels.backend import backend_of
from .parcels import Parcel, pack, unpack
from .ray import cluster, import_ray, private_ray, started_here

RETRIES = 4
"""How often a task is done again whose process was killed or whose machine was lost."""
SHARED_BYTES = 100_000
"""From which size on an array is handed to Ray once, for all tasks that take it."""
PACKAGE = pathlib.Path(__file__).parents[1]


class RemoteError(RuntimeError):
    """Raised if a task failed with an error of a type that this process does not have, or its process was lost."""


class RayExecutor(concurrent.futures.Executor):
    """An executor that runs functions in processes of the Ray to which this process is connected.

    `ray_executor` makes one. A task whose process is killed or whose machine is lost is repeated elsewhere. If a task
    raises an error, its future raises it, with the traceback of the other process as a note.

    **Arguments:**

    - `cores`: the number of tasks that run simultaneously.
    - `where`: a description of the place where they run.
    - `as_on`: tasks divide their seeds as on a machine with this number of cores, which affects the last digits.
      Default: the number of cores of this machine.
    - `environment`: environment variables for the processes of the tasks, in addition to those that affect results.

    Raises `ValueError` if this process computes on a device other than a CPU.
    """

    def __init__(
        self, cores: float, where: str = "", as_on: int | None = None, environment: dict[str, str] | None = None
    ):
        if jax.default_backend() != "cpu":
            raise ValueError(
                "`ray`: tasks compute on CPU cores, but this process computes on another device, whose last digits "
                "differ. Set JAX_PLATFORMS=cpu to use Ray."
            )
        self.cores, self.where = max(1, int(cores)), where
        self._ray = import_ray()
        # What changes last digits here changes them there. That each has one core is no setting of XLA's: with its own
        # for one thread it makes other programs, which round otherwise.
        variables = {name: value for name, value in os.environ.items() if name.startswith(("FEDHSA_", "JAX_", "XLA_"))}
        variables |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        options = {"num_cpus": 1, "max_retries": RETRIES, "runtime_env": {"env_vars": variables | (environment or {})}}
        self._task = self._ray.remote(**options)(perform)
        self._about = {"facts": _facts(), "cores": as_on or count_cores()}
        self._shared: dict[int, tuple[np.ndarray, Any]] = {}
        self._futures: set[_RayFuture] = set()
        self._waiting: deque[_RayFuture] = deque()
        self._lock = threading.RLock()
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Runs a function that can be imported in another process; `pack` must support its arguments."""
        parcel = pack(functools.partial(fn, *args, **kwargs), getattr(fn, "__name__", "function"))
        with self._lock:
            if self._closed:
                raise RuntimeError("This executor is shut down.")
            head = json.dumps({**self._about, "text": parcel.text}).encode()
            call = self._task.remote(head, *map(self._carried, parcel.arrays))
            future = _RayFuture(functools.partial(self._ray.cancel, call, force=True))
            self._futures.add(future)
            self._waiting.append(future)
            self._mark_running()
        call.future().add_done_callback(functools.partial(self._settle, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._closed = True
            futures = list(self._futures)
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            concurrent.futures.wait(futures)

    def _carried(self, array: np.ndarray) -> Any:
        """The array, or where Ray keeps it."""
        if array.nbytes < SHARED_BYTES:
            return array
        if id(array) not in self._shared:
            self._shared[id(array)] = array, self._ray.put(array)
        return self._shared[id(array)][1]

    def _mark_running(self) -> None:
        """Ray starts tasks in their order, about, as many as there are cores."""
        running = sum(future.running() for future in self._futures)
        while self._waiting and running < self.cores:
            running += self._waiting.popleft().set_running_or_notify_cancel()

    def _settle(self, future: "_RayFuture", call: concurrent.futures.Future) -> None:
        """Gives a future what came back, or the reason why nothing did."""
        with self._lock:
            self._futures.discard(future)
            if future in self._waiting:
                self._waiting.remove(future)
                future.set_running_or_notify_cancel()
            self._mark_running()
        try:
            future.set_result(_opened(call.result()))
        except concurrent.futures.InvalidStateError:  # it was cancelled
            return
        except self._ray.exceptions.RayError as error:
            reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            _fail(future, RemoteError(f"its process was lost {RETRIES + 1} times, at last because: {reason.strip()}"))
        except Exception as error:
            _fail(future, error)


class _RayFuture(concurrent.futures.Future):
    """A future that can be cancelled also while it runs."""

    def __init__(self, end: Callable[[], None]):
        super().__init__()
        self._end = end

    def cancel(self) -> bool:
        if self.done():
            return self.cancelled()
        with contextlib.suppress(Exception):  # Ray itself may be gone
            self._end()
        if not super().cancel():
            _fail(self, concurrent.futures.CancelledError())
        return True


def _fail(future: concurrent.futures.Future, error: BaseException) -> None:
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        future.set_exception(error)


@contextlib.contextmanager
def ray_executor(address: str | None = None, as_on: int | None = None) -> Iterator[RayExecutor]:
    """Yields an executor on Ray; tasks that are not finished when the block ends are cancelled.

    **Arguments:**

    - `address`: the address of a cluster (`"host:port"` or `"auto"`), which is left running; or `"local"` for a private
      Ray, which is started on this machine and stopped at the end. Default: the cluster that `RAY_ADDRESS` names or
      that `ray start` has started on this machine, and otherwise a private Ray.
    - `as_on`: as for `RayExecutor`.

    **Returns:** a context manager that yields a `RayExecutor`.

    !!! example
        >>> def best_step(problem, method):  # starting a Ray takes a few seconds
        ...     with fedhsa.deploy.ray_executor() as executor:
        ...         found = fedhsa.sweep(problem, method, {"step_size": [0.1, 0.2]}, rounds=9, executor=executor)
        ...     return found.best
    """
    with contextlib.ExitStack() as stack:
        environment = {}
        address = address or os.environ.get("RAY_ADDRESS")
        if address is None:
            address = "auto" if import_ray().is_initialized() else started_here()
        if address not in (None, "local"):
            cores = stack.enter_context(cluster(address, log_to_driver=False))
            where = f"of the cluster at {import_ray().get_runtime_context().gcs_address}"
        else:
            cores, where = stack.enter_context(private_ray(count_cores(), log_to_driver=False)), "of this machine"
            # What can be imported here can be imported there.
            environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
            environment |= {name.upper(): str(value) for name, value in kept_programs().items()}
        executor = RayExecutor(cores, where, as_on, environment)
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        yield executor


def perform(head: bytes, *arrays: np.ndarray) -> tuple[Any, ...]:
    """What a process of Ray does: computes what it is sent; gives True and a parcel, or False and the reason."""
    try:
        given = json.loads(head)
        _check_same(given["facts"])
        compute_as_on(given["cores"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pack(unpack(Parcel(given["text"], arrays))(), "result")
        return True, found.text, *found.arrays
    except Exception as error:
        failed = {"type": type(error).__name__, "words": str(error), "traceback": traceback.format_exc()}
        return False, json.dumps(failed)


def _opened(answer: tuple[Any, ...]) -> Any:
    """The value that `perform` gave, or its error, raised."""
    well, text, *arrays = answer
    if well:
        return unpack(Parcel(text, tuple(arrays)))
    failed = json.loads(text)
    kind: Any = getattr(builtins, failed["type"], None)
    known = isinstance(kind, type) and issubclass(kind, Exception)
    error = kind(failed["words"]) if known else RemoteError(f"{failed['type']}: {failed['words']}")
    error.add_note(failed["traceback"])
    raise error


def _check_same(facts: dict[str, str]) -> None:
    """Raises if numbers could come out otherwise here than where they were asked for."""
    for name, here in _facts().items():
        if (there := facts[name]) != here:
            what = "other code of fedhsa" if name == "code" else f"{name} {here} instead of {there}"
            raise RemoteError(f"the node {socket.gethostname()} has {what}. Install the same on all nodes.")


def _facts() -> dict[str, str]:
    """What numbers depend on: versions, who takes the local steps, and the code of this package."""
    return {**versions(), "kernels": backend_of("cpu") or "off", "code": _code()}


@functools.cache
def _code() -> str:
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        found.update(str(path.relative_to(PACKAGE)).encode() + b"\0")
        found.update(path.read_bytes())
    return found.hexdigest()
