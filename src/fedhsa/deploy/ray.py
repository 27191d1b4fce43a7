"""Runs on Ray: the agents are in long-lived processes, on this machine or on a trusted cluster."""

import contextlib
import importlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _check
from .._extras import need
from ..engine import Result
from ..engine.placement import count_cores
from .missing import Missing
from .outcome import carry_out, conduct
from .plan import Plan, with_keys
from .server import FederationError, server_of
from .site import Site, log_to
from .store import Store
from .transport import AbstractTransport, Refusals

STARTING = 600.0
"""Seconds that all actors may take to start."""
AGAIN = 2.0
"""Seconds before an actor that ended permanently is restarted; doubled each time that it fails in the same way."""
PATIENCE = 5.0
"""Seconds in which the head of a cluster must answer."""
LONGEST_FOLDER = 40
"""The largest path length in characters: Ray has sockets in its folder, whose paths are limited to about a hundred."""


class SiteActor:
    """A site in a process of Ray. If the process is killed, Ray starts another, which continues from the saved state.

    It is given JSON with the plan, the numbers of the agents, the file of their state, and the run.
    """

    def __init__(self, given: bytes):
        flags = os.environ.get("XLA_FLAGS", "")
        if "xla_cpu_multi_thread_eigen" not in flags:  # the other actors use the other cores
            one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
            os.environ["XLA_FLAGS"] = f"{flags} {one}".strip()
        facts = json.loads(given)
        state = pathlib.Path(facts["state"])
        if not state.parent.is_dir():
            raise FileNotFoundError(f"`folder`: no {str(state.parent)!r} on this node. Use one that all nodes share.")
        sys.path += [entry for entry in facts["path"] if entry not in sys.path]
        numbers = range(facts["first"], facts["first"] + facts["count"])
        log_to(state.with_suffix(".log"))
        # Ray's processes may end at any moment, but machines rarely lose power, so there is no need to wait for the
        # disk.
        store = Store(state, sync=False)
        self.site: Site = Plan.from_json(facts["plan"]).site(numbers, store, facts["run"], facts["config"])

    def answer(self, message: bytes) -> bytes:
        return self.site.answer(message)

    def ping(self) -> bytes:
        """Returns nothing; the return shows that the actor runs."""
        return b""


class RayTransport(AbstractTransport):
    """Carries messages to actors, one for each site.

    Messages and replies are `bytes`, which Ray carries unchanged: its `SerializationContext.serialize` pickles
    everything else. Ray does pickle the actor's class, and errors that it reports; and a `ray://` address pickles
    everything once more on its way through Ray's proxy.

    **Arguments:**

    - `start`: a function that starts a site's actor.
    - `num_sites`: the number of sites.
    - `all_needed`: whether to stop if an actor cannot be started at the beginning.
    """

    name = "ray"
    pause = 0.1

    def __init__(self, start: Callable[[int], Any], num_sites: int, all_needed: bool = True):
        self._ray = import_ray()
        self.start, self.num_sites, self.all_needed = start, num_sites, all_needed
        self.actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}  # the pending calls, and their sites
        self._away: dict[int, str] = {}  # sites whose last call failed, and the reason
        self._ended: dict[int, float] = {}  # the time at which an actor was found to have ended permanently
        self._failures = Refusals()  # the failures of such actors
        self._late: list[bytes] = []

    def present(self) -> set[int]:
        self._begin()
        awaited = -1
        while awaited != len(self._calls):
            awaited = len(self._calls)
            self._late += self._finished(0.0)
        for site in self._away:
            self._call(site, None)
        return set(range(self.num_sites)) - self._away.keys() - set(self._calls.values())

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[bytes]:
        deadline = time.monotonic() + seconds
        self._begin()
        asked = [call for site, message in messages.items() if (call := self._call(site, message)) is not None]
        late, self._late = self._late, []
        yield from late
        yield from self._together(asked, deadline)
        while self._calls.keys() & asked:
            awaited = len(self._calls)
            yield from self._finished(max(0.0, deadline - time.monotonic()))
            if len(self._calls) == awaited:
                return

    def trouble(self, site: int) -> str | None:
        return self._away.get(site)

    def hopeless(self, site: int) -> str | None:
        return self._failures.lasting(site)

    def close(self) -> None:
        for actor in self.actors.values():
            with contextlib.suppress(Exception):  # the actor or Ray itself has already ended
                self._ray.kill(actor, no_restart=True)
        self.actors, self._calls = {}, {}

    def _begin(self) -> None:
        """Starts all actors that have not been started, and waits for them."""
        if self.actors:
            return
        deadline = time.monotonic() + STARTING
        self.actors = {site: self.start(site) for site in range(self.num_sites)}
        for site in self.actors:
            self._call(site, None)
        while self._calls:
            if time.monotonic() > deadline:
                late = sorted(self._calls.values())
                raise FederationError(f"The actors {late} did not start within {STARTING:g} s. Is the cluster full?")
            self._finished(1.0)
            if self._ended and self.all_needed:
                site = min(self._ended)
                raise FederationError(f"The agents of actor {site} could not be made: {self._away[site]}")

    def _call(self, site: int, message: bytes | None) -> Any:
        """Sends the site a message, or a ping if there is none; returns None if the site has no actor now."""
        if site in self._ended:
            failed = self._failures.get(site)
            pause = AGAIN if failed is None else AGAIN * 2 ** min(failed.times - 1, 5)
            if time.monotonic() < self._ended[site] + pause:
                return None
            self.actors[site] = self.start(site)
            del self._ended[site]
        if message is None and site in self._calls.values():
            return None
        actor = self.actors[site]
        call = actor.ping.remote() if message is None else actor.answer.remote(message)
        self._calls[call] = site
        return call

    def _together(self, asked: list[Any], deadline: float) -> list[bytes]:
        """The replies to all calls, if no other call is pending and none fails; this is faster than one at a time."""
        if not asked or len(asked) != len(self._calls):
            return []
        try:
            replies = self._ray.get(asked, timeout=max(0.0, deadline - time.monotonic()))
        except self._ray.exceptions.RayError:  # includes a timeout
            return []
        for site in self._calls.values():
            self._found(site)
        self._calls = {}
        return replies

    def _finished(self, seconds: float) -> list[bytes]:
        """The reply that arrives first; none if it answers a ping, or its actor has ended."""
        if not self._calls:
            return []
        first, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=seconds)
        replies = []
        for call in first:
            site = self._calls.pop(call)
            try:
                reply = self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                self._lose(site, error)
                continue
            self._found(site)
            if reply:
                replies.append(reply)
        return replies

    def _found(self, site: int) -> None:
        self._away.pop(site, None)
        self._failures.pop(site, None)

    def _lose(self, site: int, error: Exception) -> None:
        """Records that a site is absent; Ray restarts its actor, unless the restart failed."""
        gone = isinstance(error, self._ray.exceptions.ActorDiedError)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = lines[-1][:300]
        self._away[site] = f"its process ended: {reason}"
        if gone:
            self._failures.note(site, reason, "mismatch" if "MismatchError" in reason else "")
            self._ended[site] = time.monotonic()


def federate_on_ray(
    plan: Plan,
    *,
    rounds: int,
    address: str = "local",
    actors: int | None = None,
    num_cpus: float | None = None,
    missing: Missing | None = None,
    folder: str | os.PathLike | None = None,
    resume: bool = False,
    watch: Callable[[dict[str, Any]], None] | None = None,
    config: Mapping[str, Any] | None = None,
    command: str = "",
    reply_bound: float | None = None,
) -> Result:
    """Runs a plan with its agents distributed over Ray actors.

    The results equal those of `simulate` with one seed. Killing actors does not change them: Ray restarts the actors,
    and they continue from their saved states in `folder`.

    **Arguments:**

    - `plan`: the plan.
    - `rounds`: the total number of rounds.
    - `address`: `"local"` starts Ray for this run only, on the loopback device, and removes it afterwards; `"auto"`,
      `"host:port"` or `"ray://host:port"` uses a cluster, which continues to run afterwards.
    - `actors`: the number of processes among which the agents are divided. Default: the number of cores.
    - `num_cpus`: the number of cores that each process reserves. Default: at most one, so that all processes fit.
    - `missing`, `watch`, `reply_bound`: as for `Server`.
    - `folder`: the folder for the states of server and actors and for the server's log. A cluster requires one, on a
      file system that all nodes share. Default: a temporary folder.
    - `resume`: whether to continue the run in `folder`; `rounds` may be larger than before.
    - `config`: the JSON values that the plan's `agent` function receives.
    - `command`: the command that the manifest in `folder` records.
    """
    _check.count("rounds", rounds)
    if folder is None and (resume or address != "local"):
        what = "`resume=True`" if resume else f"`address={address!r}`"
        raise ValueError(f"{what} requires `folder`" + (", that of the run." if resume else " on a shared disk."))
    if actors is not None and _check.count("actors", actors) > plan.num_agents:
        raise ValueError(f"`actors` must be at most {plan.num_agents}, the number of agents, got {actors}.")
    import_ray()
    kept = None if folder is None else pathlib.Path(folder).resolve()
    if resume and kept is not None:
        actors = _actors_before(kept, actors)
    with (
        tempfile.TemporaryDirectory(prefix="fedhsa-") if kept is None else contextlib.nullcontext(kept) as home,
        private_ray(actors or min(plan.num_agents, count_cores())) if address == "local" else cluster(address) as cores,
    ):
        actors = actors or min(plan.num_agents, max(1, int(cores)))
        shards = [numbers.tolist() for numbers in np.array_split(np.arange(plan.num_agents), actors)]
        share = min(1.0, int(1e4 * cores / actors) / 1e4) if num_cpus is None else num_cpus
        sites = pathlib.Path(home) / "sites"
        config = with_keys(plan, config, home)

        def start(site: int) -> Any:
            states = sites / server.run_id
            states.mkdir(parents=True, exist_ok=True)
            # On the same machine, actors can import the same modules as this process.
            path = [entry for entry in sys.path if entry] if address == "local" else []
            return start_actor(plan, shards[site], states / f"{site}.state", server.run_id, share, config, path)

        policy = Missing() if missing is None else missing
        transport = RayTransport(start, actors, all_needed=policy.action != "skip")
        options = {"missing": policy, "folder": kept, "watch": watch, "reply_bound": reply_bound}
        server = server_of(plan, transport, shards, **options)
        if server.store is not None:
            server.store.sync = False  # a loss of power would also remove the actors' states
        try:
            if kept is None:
                return conduct(server, rounds, plan.cost, resume)
            return carry_out(plan, server, rounds, kept, resume, command)
        finally:
            transport.close()


def start_actor(
    plan: Plan,
    numbers: Sequence[int],
    state: pathlib.Path,
    run: str,
    num_cpus: float = 1.0,
    config: Mapping[str, Any] | None = None,
    path: Sequence[str] = (),
    kind: type[SiteActor] = SiteActor,
) -> Any:
    """Starts an actor for consecutive agents of a plan, with its state in a file and more folders to import from."""
    given = {
        "plan": plan.with_whole_paths().to_json(),
        "first": numbers[0],
        "count": len(numbers),
        "state": str(state),
        "run": run,
        "config": dict(config or {}),
        "path": list(path),
    }
    actor = import_ray().remote(num_cpus=num_cpus, max_restarts=-1, scheduling_strategy="SPREAD")(kind)
    return actor.remote(json.dumps(given).encode())


def _actors_before(folder: pathlib.Path, actors: int | None) -> int | None:
    """The number of actors of the earlier run, since each continues from its saved state."""
    packet = Store(folder / "server.state").load()
    if packet is None:
        return actors  # the server reports the missing files
    before = len(packet.arrays.get("counted", ()))
    if actors not in (None, before):
        raise ValueError(f"`actors` must be {before} to resume, as when the run was started, got {actors}.")
    return before


# Ray itself: a private instance that leaves nothing behind, or a cluster that is not changed.


def import_ray() -> Any:
    """Imports Ray; if it is missing, the error states how to install it."""
    # Ray reads these variables on import: they turn off its usage reports and some warnings.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    need("Ray", "ray", "ray")
    return importlib.import_module("ray")


@contextlib.contextmanager
def cluster(address: str, log_to_driver: bool = True) -> Iterator[float]:
    """Joins a cluster and returns the number of its cores; does not change the cluster.

    With `log_to_driver`, this process prints the output of the cluster's processes, and Ray's reports of lost ones.
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
    """The address of the instance that `ray start` started on this machine; None if there is none, or it has ended."""
    address = importlib.import_module("ray._private.services").find_bootstrap_address(None)
    try:
        _check_there(address or "")
    except OSError:
        return None
    return address


def _check_there(address: str) -> None:
    """Raises if no process listens at the address; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


@contextlib.contextmanager
def private_ray(cores: int, log_to_driver: bool = True) -> Iterator[float]:
    """A private Ray instance that leaves no process and no file behind; `log_to_driver` as for `cluster`."""
    ray = import_ray()
    if ray.is_initialized():
        raise ValueError("`address`: this process uses a Ray already. Say 'auto' to use it, or `ray.shutdown()` first.")
    # A process that is told to end cleans up first, and is not disturbed while it does.
    with _handling(lambda handler: _leave if handler == signal.SIG_DFL else handler) as armed:
        home = tempfile.mkdtemp(prefix="fr", dir=short(tempfile.gettempdir()))
        try:
            with warnings.catch_warnings(), _on_loopback(), _with_token():
                # JAX warns of every fork after its first use; Ray's forks are immediately followed by an exec.
                warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
                quiet = {"logging_level": "ERROR", "log_to_driver": log_to_driver}
                ray.init(address="local", num_cpus=cores, include_dashboard=False, _temp_dir=home, **quiet)
            armed()  # Ray has replaced our signal handlers
            yield float(cores)
        finally:
            with _handling(lambda handler: signal.SIG_IGN):
                processes = _processes(home)
                ray.shutdown()
                _end([*processes, *_processes(home)])  # includes processes that were starting before
                _remove(home)


@contextlib.contextmanager
def _with_token() -> Iterator[None]:
    """Inside this context, Ray starts with a separate token, unless the user has chosen one.

    Without the token, other users of the machine cannot run code on this instance; otherwise every user could. By
    default, Ray writes the token to a file in the home folder, which other users can read if they can enter that
    folder, and does not remove it. (Before Ray 2.52 there were no tokens, and nothing keeps a machine's other users
    out.)
    """
    if any(name in os.environ for name in ("RAY_AUTH_MODE", _TOKEN, f"{_TOKEN}_PATH")):
        yield
        return
    os.environ[_TOKEN] = secrets.token_hex(32)
    loader = getattr(importlib.import_module("ray._raylet"), "AuthenticationTokenLoader", None)
    try:
        if loader is not None:
            loader.instance().reset_cache()  # of an earlier token
        yield
    finally:
        del os.environ[_TOKEN]  # Ray's processes have the token, and others do not need it
        os.environ.pop("RAY_AUTH_MODE", None)


_TOKEN = "RAY_AUTH_TOKEN"


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Inside this context, Ray starts on the loopback device only.

    On Linux, Ray would listen to the whole network and run any code sent to it; `_node_ip_address` does not change
    that. The constant below is Ray's behaviour on other systems.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def short(folder: str) -> str:
    """The folder, or another one whose path is short enough for sockets."""
    return folder if len(folder) <= LONGEST_FOLDER or not os.path.isdir("/tmp") else "/tmp"


def _processes(home: str) -> list[Any]:
    """The processes of the Ray instance that uses this folder."""
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
            with contextlib.suppress(Exception):  # it has ended in the meantime
                process.kill()


def is_alive(process: Any) -> bool:
    """Whether a process runs; a process that has ended may be listed until its parent collects it."""
    psutil = importlib.import_module("psutil")
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _remove(home: str) -> None:
    """Removes a folder to which a process may have been writing a moment ago."""
    for _ in range(50):
        shutil.rmtree(home, ignore_errors=True)
        if not os.path.exists(home):
            return
        time.sleep(0.1)


_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _handling(new: Callable[[Any], Any]) -> Iterator[Callable[[], None]]:
    """Inside this context, signals that would end the process have the handler `new(earlier handler)`.

    Yields a function that sets these handlers again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGINT)}

    def arm() -> None:
        for number, handler in before.items():
            signal.signal(number, new(handler))

    arm()
    try:
        yield arm
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
