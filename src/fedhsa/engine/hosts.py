"""How several processes, on one machine or many, find each other to run one simulation."""

import atexit
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax

from .. import _check
from .._version import versions
from .peers import LostProcessError

PORT = 7654
"""The default port on which the first process waits for the others."""
HEARTBEAT_SECONDS = 60
"""A process that is silent for this long is considered lost; one that exits is noticed immediately."""


def join_processes(
    coordinator: str | None = None,
    num_processes: int | None = None,
    index: int | None = None,
    *,
    timeout: float = 120.0,
    local_device: int | None = None,
) -> None:
    """Makes this process one of several that run every `simulate` together, on one machine or on many.

    Every process calls this before it computes anything, and then calls the same functions with the same arguments. All
    of them get the same results. Seeds are divided among the processes, and so are agents if there are more processes
    than seeds. In a SLURM, Open MPI or Kubernetes job no arguments are needed. An error that ends one process ends all.

    **Arguments:**

    - `coordinator`: the address of process 0, like `"node0:7654"`. Any free port will do.
    - `num_processes`: the number of processes.
    - `index`: the index of this process, from 0.
    - `timeout`: the number of seconds to wait for the others.
    - `local_device`: the index of the GPU of this machine that this process uses. Defaults to all GPUs, or to one per
      process if SLURM or Open MPI started several processes on a machine.

    Raises `ValueError` if an argument is wrong, and `LostProcessError` if the processes do not find each other.

    !!! example
        >>> fedhsa.join_processes("localhost:7654", num_processes=1, index=0)  # doctest: +SKIP
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=10, seeds=2)
    """
    given = {"coordinator": coordinator, "num_processes": num_processes, "index": index}
    missing = [f"`{name}`" for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise ValueError(f"{' and '.join(missing)} must be given too, or `coordinator` and the others left out.")
    _check.number("timeout", timeout, above=0.0)
    if coordinator is not None and num_processes is not None and index is not None:
        _check.count("num_processes", num_processes)
        _check.count("index", index, least=0)
        if not index < num_processes:
            raise ValueError(f"`index` must be below `num_processes`, {num_processes}, got {index}.")
        _roll_call(*address(coordinator), num_processes, index, timeout)
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            index,
            None if local_device is None else [local_device],
            initialization_timeout=max(1, int(timeout)),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except ValueError as error:
        if coordinator is not None:
            raise
        raise ValueError(
            "The environment shows no SLURM, Open MPI or Kubernetes job. Start the processes with `srun` or "
            f"`mpirun`, or give `coordinator`, `num_processes` and `index`. ({error})"
        ) from error
    except RuntimeError as error:
        if "must be called before" in str(error):
            raise ValueError("`join_processes` must be called before JAX computes anything, and only once.") from error
        raise LostProcessError(f"The processes did not find each other: {error}") from error
    _end_others_on_errors()


def address(text: str) -> tuple[str, int]:
    """The host and the port of an address like `node0:7654`."""
    host, colon, port = str(text).rpartition(":")
    if not colon:
        host, port = str(text), str(PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"`coordinator` must be a host and a port, like 'node0:{PORT}', got {text!r}.")
    return host.strip("[]"), int(port)


def _roll_call(host: str, port: int, count: int, index: int, timeout: float) -> None:
    """Waits until all processes have connected and agree on their number.

    JAX would notice disagreement too, but it ends the program with a page of addresses instead of a sentence.
    """
    hello = {"count": count, "index": index, "versions": versions()}
    deadline = time.monotonic() + timeout
    problem = _receive(port, hello, deadline, timeout) if index == 0 else _report(host, port, hello, deadline, timeout)
    if problem:
        raise LostProcessError(problem)


def _receive(port: int, hello: dict, deadline: float, timeout: float) -> str:
    """Process 0: receives the reports of the others and sends the outcome to all. Returns the problem, or nothing."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        return f"`coordinator`: cannot listen on port {port} of this machine: {error.strerror}. Choose another port."
    there: dict[int, socket.socket] = {}
    problem, count = "", hello["count"]
    with server, contextlib.ExitStack() as open_sockets:
        while len(there) < count - 1 and not problem:
            server.settimeout(max(0.0, deadline - time.monotonic()) or 1e-3)
            try:
                connection, _ = server.accept()
            except TimeoutError:
                absent = [str(i) for i in range(1, count) if i not in there]
                problem = f"Of {count} processes, {', '.join(absent)} did not report within {timeout:g} seconds."
                break
            open_sockets.enter_context(connection)
            said = _hear(connection, min(deadline, time.monotonic() + 5.0))
            if not (isinstance(said, dict) and hello.keys() == said.keys()):
                continue  # not one of our processes
            there_already = said["index"] in there or said["index"] == 0
            there.setdefault(said["index"], connection)
            if there_already:
                problem = f"Two processes have index {said['index']}. Each process needs its own index."
                _say(connection, problem)
            elif said["count"] != count:
                problem = f"Process 0 expects {count} processes, and process {said['index']} expects {said['count']}."
            elif said["versions"] != hello["versions"]:
                pairs = {name: (value, said["versions"].get(name)) for name, value in hello["versions"].items()}
                differ = [f"{name} {mine} and {theirs}" for name, (mine, theirs) in pairs.items() if mine != theirs]
                problem = f"Processes 0 and {said['index']} have different versions: {', '.join(differ)}."
        for connection in there.values():
            _say(connection, problem)
        for connection in there.values():  # they close first, so that the port is free immediately
            with contextlib.suppress(OSError):
                connection.settimeout(1.0)
                connection.recv(1)
    return problem


def _report(host: str, port: int, hello: dict, deadline: float, timeout: float) -> str:
    """Other processes: report to process 0 and wait for its answer. Returns the problem, or nothing."""
    reason = "nobody answered"
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            me = hello["index"]
            return f"Process {me} could not reach process 0 at {host}:{port} within {timeout:g} seconds: {reason}."
        try:
            with socket.create_connection((host, port), timeout=min(left, 5.0)) as connection:
                _say(connection, hello)
                answer = _hear(connection, deadline + 5.0)
                if answer is not None:
                    return str(answer)
                reason = "the program that answered there is not fedhsa, or it gave up"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(0.1)


def _say(connection: socket.socket, what: Any) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(what).encode() + b"\n")


def _hear(connection: socket.socket, deadline: float) -> Any:
    """Reads one line of JSON. Returns None if none arrives."""
    with contextlib.suppress(OSError, ValueError):
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        with connection.makefile("rb") as lines:
            line = lines.readline(2**16)
        return json.loads(line) if line.endswith(b"\n") else None
    return None


def leave_at_once(code: int) -> None:
    """Makes this process exit without waiting for the others, which notice this and exit too."""

    def leave():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    atexit.register(leave)  # runs before JAX's own exit function, which waits for minutes


def _end_others_on_errors() -> None:
    report = sys.excepthook

    def hook(kind, error, trace):
        report(kind, error, trace)
        leave_at_once(1)

    sys.excepthook = hook


def this_machine(names: Sequence[str]) -> list[int]:
    """The indices of the names that belong to this machine. Only the first part of a domain name counts."""
    own = {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.gethostname().partition(".")[0]}
    with contextlib.suppress(OSError):
        own |= {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)}
    return [i for i, name in enumerate(names) if name in own or name.partition(".")[0] in own]


def free_port() -> int:
    """A port of this machine that is currently free."""
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


def job_size() -> int:
    """The number of processes in the current SLURM or Open MPI job, or 1 outside a job."""
    steps = {"SLURM_NTASKS": "SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK"}
    return next((int(os.environ[n]) for n, also in steps.items() if n in os.environ and also in os.environ), 1)
