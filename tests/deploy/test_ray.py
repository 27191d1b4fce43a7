"""Runs on Ray: the same numbers, whatever is killed, and nothing left behind."""

import contextlib
import importlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
from collections.abc import Iterator

import numpy as np
import pytest

import fedhsa
from fedhsa.deploy import FederationError, MemoryTransport, Missing, Plan, Server, Store
from fedhsa.deploy import ray as on_ray
from fedhsa.deploy.outcome import conduct
from fedhsa.deploy.ray import RayTransport, federate_on_ray

MORTAL = str(pathlib.Path(__file__).with_name("mortal.py"))
PLAN = Plan(problem="quadratic", num_agents=5, dim=3, algorithm="SCAFFLSA", step_size=0.05, local_steps=4, key=3)
OWN = Plan(num_agents=5, dim=3, agent=f"{MORTAL}:build", step_size=0.05, local_steps=4)
"""FedHSA with agents that a function builds."""


def in_memory(plan: Plan, rounds: int, actors: int, folder: pathlib.Path) -> np.ndarray:
    """The parameter after a run without faults, in this process, with the agents divided in the same way."""
    shards = np.array_split(np.arange(plan.num_agents), actors)

    def start(site):
        return plan.site(shards[site], Store(folder / f"{site}.state", sync=False), server.run_id)

    server = Server(plan.task, MemoryTransport(start, actors), shards)
    return conduct(server, rounds, plan.cost).theta


# Without Ray: what the transport does with actors that are not there.


class FakeError(Exception):
    pass


class FakeDiedError(FakeError):
    pass


class FakeRay:
    """As much of Ray as the transport uses; a call is a list that holds its outcome once there is one."""

    def __init__(self):
        self.exceptions = types.SimpleNamespace(RayError=FakeError, ActorDiedError=FakeDiedError)
        self.killed = []

    def wait(self, calls, num_returns, timeout):
        done = [call for call in calls if call.outcome][:num_returns]
        return done, [call for call in calls if call not in done]

    def get(self, call, timeout=None):
        if isinstance(call, list):
            return [self.get(one) for one in call]
        if not call.outcome:
            raise FakeError("it takes too long")
        (outcome,) = call.outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def kill(self, actor, no_restart):
        self.killed.append(actor)


class FakeActor:
    """Answers at once with what it was asked, unless told what else to do."""

    def __init__(self):
        self.outcomes = []
        self.ping = types.SimpleNamespace(remote=lambda: self._call(b""))
        self.answer = types.SimpleNamespace(remote=self._call)

    def _call(self, value):
        outcome = self.outcomes.pop(0) if self.outcomes else [value]
        return Call(outcome)


class Call:
    def __init__(self, outcome):
        self.outcome = outcome


@pytest.fixture
def fake(monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(on_ray, "import_ray", lambda: ray)
    return ray


def started(num_sites=2, **options):
    made = []

    def start(site):
        made.append(site)
        return FakeActor()

    transport = RayTransport(start, num_sites, **options)
    assert transport.present() == set(range(num_sites))
    return transport, made


def test_an_actor_that_dies_in_a_call_gives_no_reply_and_is_asked_again(fake):
    transport, made = started()
    transport.actors[0].outcomes = [[FakeError("worker killed")]]
    assert list(transport.exchange({0: b"a", 1: b"b"}, 1.0)) == [b"b"]
    assert "worker killed" in (transport.trouble(0) or "")
    assert transport.trouble(1) is None
    assert list(transport.exchange({0: b"a"}, 1.0)) == [b"a"]
    assert transport.trouble(0) is None
    assert made == [0, 1]


def test_an_actor_that_ended_for_good_is_started_again_after_a_while(fake, monkeypatch):
    transport, made = started()
    transport.actors[0].outcomes = [[FakeDiedError("no such file")]]
    assert list(transport.exchange({0: b"a", 1: b"b"}, 1.0)) == [b"b"]
    assert transport.present() == {1}
    assert list(transport.exchange({0: b"a"}, 1.0)) == []
    assert made == [0, 1]
    monkeypatch.setattr(on_ray, "AGAIN", 0.0)
    assert transport.present() == {1}
    assert made == [0, 1, 0]
    assert transport.present() == {0, 1}


def test_a_reply_that_comes_late_is_given_later_and_its_actor_is_not_present_before(fake):
    transport, _ = started()
    pending = []
    transport.actors[0].outcomes = [pending]
    assert list(transport.exchange({0: b"a", 1: b"b"}, 0.05)) == [b"b"]
    assert transport.present() == {1}
    assert list(transport.exchange({1: b"b"}, 0.05)) == [b"b"]
    pending.append(b"late")
    assert transport.present() == {0, 1}
    assert list(transport.exchange({1: b"c"}, 1.0)) == [b"late", b"c"]


def test_an_actor_that_cannot_be_made_stops_the_run_unless_it_may_be_skipped(fake):
    def start(site):
        actor = FakeActor()
        actor.outcomes = [[FakeDiedError("...\nFileNotFoundError: no data")]] if site else []
        return actor

    with pytest.raises(FederationError, match=r"actor 1 could not be made.*no data"):
        RayTransport(start, 2).present()
    assert RayTransport(start, 2, all_needed=False).present() == {0}


def test_closing_ends_the_actors(fake):
    transport, _ = started()
    actors = list(transport.actors.values())
    transport.close()
    assert fake.killed == actors


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedhsa\[ray\]'"):
        federate_on_ray(PLAN, rounds=1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"actors": 6}, "`actors` must be at most 5"),
        ({"actors": 0}, "`actors`"),
        ({"rounds": 0}, "`rounds`"),
        ({"resume": True}, "`resume=True` requires `folder`"),
        ({"address": "auto"}, "`address='auto'` requires `folder`"),
    ],
)
def test_impossible_settings_are_rejected_before_ray_starts(options, match, monkeypatch):
    monkeypatch.setattr(on_ray, "import_ray", lambda: pytest.fail("Ray was imported"))
    with pytest.raises(ValueError, match=match):
        federate_on_ray(PLAN, **{"rounds": 1} | options)


def test_a_run_is_not_resumed_with_another_number_of_actors(tmp_path, fake):
    shards = np.array_split(np.arange(5), 2)
    sites = {i: PLAN.site(shards[i], Store(tmp_path / f"{i}.state"), "run") for i in range(2)}
    Server(PLAN.task, MemoryTransport(sites.__getitem__, 2), shards, folder=tmp_path, run="run").run(1)
    with pytest.raises(ValueError, match="`actors` must be 2 to resume"):
        federate_on_ray(PLAN, rounds=2, actors=3, folder=tmp_path, resume=True)


def test_sockets_have_short_paths_and_files_whole_ones(monkeypatch, tmp_path):
    assert on_ray.short("/" + 60 * "x") == "/tmp"
    assert on_ray.short("/tmp/x") == "/tmp/x"
    monkeypatch.chdir(tmp_path)
    plan = Plan(agent="site.py:build", dim=1).with_whole_paths()
    assert plan.agent == f"{tmp_path}/site.py:build"
    assert PLAN.with_whole_paths() == PLAN


# With Ray.


@pytest.fixture(scope="module")
def ray():
    """A Ray that these tests share: starting one takes seconds."""
    pytest.importorskip("ray")
    with on_ray.private_ray(4):
        yield on_ray.import_ray()


@pytest.mark.slow
def test_another_process_without_the_token_runs_nothing_in_a_private_ray(ray, tmp_path):
    """Nor is the token written to a file, as Ray by itself does, where other users of the machine may read it."""
    token = "RAY_AUTH_TOKEN"
    assert token not in os.environ
    code = """
        import sys, ray
        import ray._private.ray_constants as constants
        constants.ENABLE_RAY_CLUSTER = False  # on loopback, like the one that is attacked
        ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
        print("ran as", ray.get(ray.remote(lambda: __import__("os").getuid()).remote(), timeout=10))
    """
    for mode in ("disabled", "token"):
        stranger = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RAY_AUTH_MODE": mode}
        if mode == "token":
            stranger[token] = "guessed"
        command = [sys.executable, "-c", textwrap.dedent(code), ray.get_runtime_context().gcs_address]
        process = subprocess.Popen(command, env=stranger, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            printed, errors = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:  # it tries for minutes
            process.kill()
            printed, errors = process.communicate()
        assert "ran as" not in printed
        assert "token" in errors.lower()


def workers() -> list:
    """The processes of this process's actors."""
    psutil = importlib.import_module("psutil")

    def is_worker(process):
        try:
            return process.name().startswith("ray::SiteActor")
        except psutil.Error:
            return False

    return [process for process in psutil.Process().children(recursive=True) if is_worker(process)]


def run(plan: Plan, rounds: int, folder: pathlib.Path, **options) -> fedhsa.Result:
    return federate_on_ray(plan, rounds=rounds, address="auto", folder=folder, **{"actors": 3} | options)


@pytest.mark.slow
def test_ray_gives_what_simulate_gives(ray, tmp_path):
    """With two exchanges in a round; what is killed below has memories, and other methods differ in the engine only."""
    plan = Plan(problem="quadratic", num_agents=7, dim=3, algorithm="FedHSA", step_size=0.05, local_steps=5, key=3)
    found = run(plan, 6, tmp_path)
    expected = fedhsa.simulate(plan.built_problem, plan.method, rounds=6, key=3)
    np.testing.assert_allclose(found.theta, expected.theta, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.error, expected.error, rtol=1e-9)
    assert found.settings["deploy"]["transport"] == "ray"
    assert ray.is_initialized()
    ended = time.monotonic() + 20
    while workers() and time.monotonic() < ended:
        time.sleep(0.1)
    assert not workers()


@pytest.mark.slow
def test_a_private_ray_listens_to_this_machine_only(ray):
    own = importlib.import_module("psutil").Process()
    sockets = [c for p in [own, *own.children(recursive=True)] for c in p.net_connections("inet")]
    listening = {socket.laddr.ip for socket in sockets if socket.status == "LISTEN"}
    assert listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.slow
def test_killing_a_process_in_any_phase_of_an_answer_changes_nothing(ray, tmp_path):
    deaths = [(0, "received", 1), (2, "saved", 3), (4, "computed", 2)]
    graves = tmp_path / "graves"
    graves.mkdir()
    config = {"deaths": deaths, "graves": str(graves)}
    found = run(OWN, 6, tmp_path, config=config)
    assert len(list(graves.iterdir())) == len(deaths)
    assert found.theta.tolist() == in_memory(OWN, 6, 3, tmp_path / "memory").tolist()


@pytest.mark.slow
def test_killing_processes_at_random_moments_changes_nothing(ray, tmp_path):
    chance, done, killed = random.Random(0), threading.Event(), []

    def kill():  # a limited number: on a busy machine an actor could else be killed before it has done anything
        while len(killed) < 3 and not done.wait(chance.uniform(0.0, 2.0)):
            if there := workers():
                os.kill(chance.choice(there).pid, signal.SIGKILL)
                killed.append(1)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = run(PLAN, 20, tmp_path, watch=lambda event: time.sleep(0.1))
    finally:
        done.set()
        killer.join()
    assert killed
    assert found.theta.tolist() == in_memory(PLAN, 20, 3, tmp_path / "memory").tolist()


@pytest.mark.slow
def test_live_agents_observe_their_streams_once_also_when_killed(ray, tmp_path):
    plan = Plan(num_agents=3, dim=3, agent=f"{MORTAL}:live", step_size=0.05, local_steps=4)
    expected = in_memory(plan, 8, 3, tmp_path / "memory").tolist()

    def kill(event):
        if event.get("event") == "round" and event["round"] in (2, 5):
            os.kill(workers()[0].pid, signal.SIGKILL)

    assert run(plan, 8, tmp_path / "run", watch=kill).theta.tolist() == expected


@pytest.mark.slow
def test_a_run_goes_on_without_an_actor_that_cannot_be_started_and_with_it_when_it_can(ray, tmp_path):
    needed = tmp_path / "data"
    needed.touch()
    absent = []

    def watch(event):
        if event["event"] != "round":
            return
        absent.append(event["absent"])
        if event["round"] == 3:
            needed.unlink()
            for worker in workers():
                os.kill(worker.pid, signal.SIGKILL)  # the first two come back by themselves
        if absent[-1] == [4]:
            needed.touch()
        time.sleep(0.1)

    config = {"needs": str(needed), "needing": [4]}
    result = run(OWN, 250, tmp_path / "run", missing=Missing("skip", patience=40), config=config, watch=watch)
    agents = result.records["agents"][0]
    assert agents[1:4].tolist() == [5, 5, 5]
    assert agents[4:].min() < 5
    assert agents[-1] == 5
    assert np.isfinite(result.theta).all()


@pytest.mark.slow
def test_an_agent_that_cannot_be_built_stops_the_run_at_once_with_its_reason(ray, tmp_path):
    config = {"needs": str(tmp_path / "nothing"), "needing": [4]}
    with pytest.raises(FederationError, match="the data are not there"):
        run(OWN, 2, tmp_path, config=config)


# In a process of its own, which starts its own Ray and ends in some way.

CHILD = """
import json, signal, sys, time
from fedhsa.deploy import Plan
from fedhsa.deploy.ray import federate_on_ray

def watch(event):
    if event["event"] == "round":
        print(event["round"], flush=True)
        if how == "error" and event["round"] == 3:
            raise ZeroDivisionError("on purpose")
        time.sleep(pause)

# Whoever runs the tests in the background may have these signals ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
how, plan, folder, pause, options = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), json.loads(sys.argv[5])
result = federate_on_ray(Plan.from_json(plan), folder=folder or None, watch=watch, **options)
print(json.dumps([result.complete, result.theta.tolist()]), flush=True)
"""


@pytest.fixture
def room():
    """A short folder for everything temporary, to see that nothing stays in it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as place:
        yield pathlib.Path(place)


@contextlib.contextmanager
def child(room, how="", plan=PLAN, folder="", pause=0.0, **options) -> Iterator[subprocess.Popen]:
    arguments = [how, plan.to_json(), str(folder), str(pause), json.dumps({"rounds": 4, "actors": 1} | options)]
    command = [sys.executable, "-W", "ignore", "-c", CHILD, *arguments]
    environment = os.environ | {"TMPDIR": str(room), "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=environment, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def descendants(process: subprocess.Popen) -> list:
    psutil = importlib.import_module("psutil")

    return psutil.Process(process.pid).children(recursive=True)


def assert_gone(processes: list, seconds: float = 5.0) -> None:
    ended = time.monotonic() + seconds
    while (alive := [p for p in processes if on_ray.is_alive(p)]) and time.monotonic() < ended:
        time.sleep(0.1)
    assert not alive


def until_round(process: subprocess.Popen, last: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == str(last):
            return
    pytest.fail(process.communicate()[1][-2000:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"),
    [("end", 0), ("error", 1), ("interrupt group", 0), ("terminate", 143), ("hang up", 129)],
)
def test_nothing_is_left_of_a_private_ray_however_the_run_ends(how, code, room):
    pytest.importorskip("ray")
    with child(room, how, pause=0.3, rounds=5 if how == "end" else 1000) as process:
        until_round(process, 2)
        processes = descendants(process)
        names = " ".join(p.name() for p in processes)
        assert all(name in names for name in ("gcs_server", "raylet", "ray::SiteActor"))
        match how:
            case "interrupt group":  # as Ctrl-C in a terminal
                os.killpg(process.pid, signal.SIGINT)
            case "terminate":
                os.kill(process.pid, signal.SIGTERM)
            case "hang up":
                os.kill(process.pid, signal.SIGHUP)
        out, err = process.communicate(timeout=120)
    assert process.returncode == code, err[-2000:]
    if how == "error":
        assert "on purpose" in err
    if how == "interrupt group":
        assert json.loads(out.splitlines()[-1])[0] is False
    assert_gone(processes)
    assert list(room.iterdir()) == []


@pytest.mark.slow
def test_killing_the_driver_and_resuming_gives_the_same_theta(room, tmp_path):
    pytest.importorskip("ray")
    folder, killed = tmp_path / "run", []
    with child(room, folder=folder, pause=0.1, rounds=1000) as process:
        until_round(process, 5)
        killed += descendants(process)
        process.kill()  # and a user resumes before all of its processes are gone
    saved = Store(folder / "server.state").load()
    assert saved is not None
    reached = saved.header["round"]
    with child(room, folder=folder, rounds=reached + 3, resume=True) as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-2000:]
    complete, theta = json.loads(out.splitlines()[-1])
    assert complete
    assert theta == in_memory(PLAN, reached + 3, 1, tmp_path / "memory").tolist()
    assert_gone(killed, 120.0)  # Ray's helpers look for their parent from time to time only
