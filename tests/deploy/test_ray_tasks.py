"""Sweeps, comparisons and reproductions by an executor on Ray: the same files, whatever is killed."""

import concurrent.futures
import contextlib
import functools
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types

import equinox as eqx
import jax
import numpy as np
import pytest

import fedhsa as fh
from fedhsa.cli import main
from fedhsa.deploy import ray as on_ray
from fedhsa.deploy import ray_tasks
from fedhsa.deploy.parcels import pack, unpack
from fedhsa.engine import placement, tasks
from fedhsa.experiments.run import lanes, presets

PROBLEM = fh.problems.quadratic.random(2, 2)
METHOD = fh.FedHSA(0.5, 2)
OVER = {"step_size": [0.01, 0.02, 0.04]}
OPTIONS = {"rounds": 4, "seeds": 2, "key": 3}


# Without Ray.


def test_studies_methods_and_problems_arrive_as_they_were_sent():
    for study in [*presets.studies().values(), *presets.studies("scripts").values()]:
        assert unpack(pack(study)) == study
    problem = fh.problems.td.random(2, 3, 2).iid()
    words = "Partial(Compressed(FedHSA(Polynomial(0.1, 0.5), 3), TopK(0.5)), UniformSampling(1))"
    method = fh.algorithms.parse(words, problem)
    for value in (problem, method):
        found = unpack(pack(value))
        assert jax.tree.structure(found) == jax.tree.structure(value)
        assert eqx.tree_equal(found, value, typematch=True)


def test_numbers_keys_and_bytes_survive_and_an_array_is_sent_once():
    array = np.arange(3.0)
    value = {
        "a": [array, array],
        2: (1e-300, np.inf, np.float32(0.1), None, True),
        "b": b"\0\1",
        "k": jax.random.key(7),
    }
    parcel = pack(value)
    json.loads(parcel.text)
    found = unpack(parcel)
    assert len(parcel.arrays) == 4
    assert found["a"][0] is found["a"][1]
    assert found[2] == value[2]
    assert type(found[2][2]) is np.float32
    assert found["b"] == b"\0\1"
    np.testing.assert_array_equal(jax.random.key_data(found["k"]), jax.random.key_data(value["k"]))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"f": lambda x: x}, r"`value\['f'\]` is .*<lambda>, which another process cannot import"),
        (functools.partial(tasks.sentence, threading.Lock()), "`error` is a _thread.lock, which is not sent"),
        ([np.array([None])], r"`value\[0\]` is an array of Python objects"),
    ],
)
def test_what_cannot_be_sent_is_named(value, words):
    with pytest.raises(TypeError, match=words):
        pack(value)


class LostError(Exception):
    pass


class FakeRay:
    """As much of Ray as the executor uses: a thread for each core, and as many tasks lost as it is told."""

    def __init__(self, cores=2):
        self.exceptions = types.SimpleNamespace(RayError=LostError)
        self.pool, self.cancelled, self.losses = concurrent.futures.ThreadPoolExecutor(cores), [], 0

    def remote(self, **options):
        assert options["num_cpus"] == 1
        return lambda function: types.SimpleNamespace(remote=functools.partial(self._call, function))

    def _call(self, function, *arguments):
        self.losses -= 1
        future = self.pool.submit(self._lose if self.losses >= 0 else function, *arguments)
        return types.SimpleNamespace(future=lambda: future)

    def _lose(self, *arguments):
        raise LostError("The worker died.\nOut of memory.\n")

    def put(self, array):
        return array

    def cancel(self, call, force):
        self.cancelled.append(call)
        call.future().cancel()


@pytest.fixture
def fake(monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(ray_tasks, "import_ray", lambda: ray)
    monkeypatch.setattr(placement, "_as_on", None)  # what tasks set is undone
    return ray


def test_a_sweep_by_an_executor_is_the_same_and_what_fails_is_named_while_the_rest_is_finished(fake):
    expected = fh.sweep(PROBLEM, METHOD, OVER, **OPTIONS)
    executor = ray_tasks.RayExecutor(2)
    found = fh.sweep(PROBLEM, METHOD, OVER, executor=executor, **OPTIONS)
    assert found.complete
    assert found.rows() == expected.rows()
    for one, other in zip(found.results, expected.results, strict=True):
        np.testing.assert_array_equal(one.records["error"], other.records["error"])
        assert one.cost == other.cost
        assert one.settings == other.settings
    fake.losses = 1  # the task of the first two
    with pytest.warns(
        UserWarning, match=r"step_size 0.0[12]: RemoteError: its process was lost 5 times.*Out of memory"
    ):
        found = fh.sweep(PROBLEM, METHOD, OVER, executor=executor, **OPTIONS)
    assert not found.complete
    assert [len(found.failures), len(found.results)] in ([1, 2], [2, 1])
    assert found.best == {"step_size": 0.04} or len(found.results) == 2


@pytest.mark.slow
def test_a_comparison_by_an_executor_is_the_same_and_a_method_that_fails_is_named(fake):
    terms = {"samples": 8, "seeds": 2, "grid": 2, "tuning_seeds": 2}
    methods = [METHOD, fh.LocalSA(0.1, 2)]
    expected = fh.compare(PROBLEM, methods, **terms)
    executor = ray_tasks.RayExecutor(2)
    found = fh.compare(PROBLEM, methods, executor=executor, **terms)
    assert found.ranking == expected.ranking
    assert list(found.entries) == list(expected.entries)
    assert found.entries["FedHSA"].tuning == expected.entries["FedHSA"].tuning
    fake.losses = 1
    with pytest.warns(UserWarning, match="FedHSA: RemoteError: its process was lost"):
        found = fh.compare(PROBLEM, methods, executor=executor, **terms)
    assert (list(found.failures), list(found.entries), found.complete) == (["FedHSA"], ["LocalSA"], False)


def test_errors_come_back_as_they_were_with_the_traceback_as_a_note(fake):
    executor = ray_tasks.RayExecutor(1)
    error = executor.submit(json.loads, "[").exception()
    assert isinstance(error, ray_tasks.RemoteError)
    assert "JSONDecodeError: Expecting value" in str(error)
    assert "Traceback" in error.__notes__[0]
    assert isinstance(executor.submit(int, "x").exception(), ValueError)
    with pytest.raises(TypeError, match="another process cannot import"):
        executor.submit(lambda: 0)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(int, "3")


def test_a_task_can_be_cancelled_while_it_runs(fake):
    executor = ray_tasks.RayExecutor(1)
    first, second = executor.submit(time.sleep, 0.2), executor.submit(time.sleep, 0.2)
    assert (first.running(), second.running()) == (True, False)
    executor.shutdown(wait=True, cancel_futures=True)
    assert len(fake.cancelled) == 2
    assert second.cancelled()
    assert isinstance(first.exception(), concurrent.futures.CancelledError)


def test_a_node_with_other_code_or_versions_says_so(fake, monkeypatch):
    executor = ray_tasks.RayExecutor(1)
    monkeypatch.setattr(ray_tasks, "_facts", lambda: executor._about["facts"] | {"jax": "0.1"})
    with pytest.raises(ray_tasks.RemoteError, match=r"the node \S+ has jax 0.1 instead of .*Install the same"):
        executor.submit(abs, -1).result()


def test_a_process_of_one_core_divides_seeds_as_it_is_told(monkeypatch):
    monkeypatch.setattr(placement, "_as_on", None)
    placement.compute_as_on(5)
    assert (placement.parallel_chunks(jax.devices()), placement.threads(jax.devices())) == (5, 1)


def test_a_lane_brings_files_home_where_the_folder_is_not_seen(tmp_path, monkeypatch):
    def write(what, folder, words):
        (folder / what).mkdir()
        (folder / what / "data.npz").write_text(words)
        return folder == tmp_path

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        (lane,) = lanes.places(pool, 1)
        assert lane.submit(write, "near", tmp_path, "same disk").result() is True
        monkeypatch.setattr(lanes, "fill", lambda f, what, folder, mark, others: FILL(f, what, folder, "none", others))
        assert lane.submit(write, "far", tmp_path, "other disk").result() is False
    assert (tmp_path / "far" / "data.npz").read_text() == "other disk"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "near"]


FILL = lanes.fill


# With Ray.


@pytest.fixture(scope="module")
def ray():
    """A Ray that these tests share: starting one takes seconds."""
    pytest.importorskip("ray")
    with on_ray.private_ray(2):
        yield on_ray.import_ray()


SWEEP = ["--num-agents", "3", "--dim", "5", "--seeds", "4", "--over", "step_size=[0.01,0.02]", "local_steps=[1,4]"]


def files(folder: pathlib.Path, *without: str) -> dict[str, bytes]:
    """All files but the manifests, which have times, and figures that have them too."""
    left = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".pdf", ".html")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in left if p.name not in ("manifest.json", *without)}


@contextlib.contextmanager
def killing(times: int):
    """Kills a process of a task, now and then."""
    psutil, killed, done = importlib.import_module("psutil"), [], threading.Event()

    def kill():
        while len(killed) < times and not done.wait(0.3):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if process.name().startswith("ray::perform") and process.pid not in killed:
                        os.kill(process.pid, signal.SIGKILL)
                        killed.append(process.pid)
                        break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
def test_a_sweep_on_ray_leaves_the_same_files_also_when_a_process_is_killed(ray, tmp_path, capsys):
    here, there = tmp_path / "here", tmp_path / "there"
    assert main(["sweep", *SWEEP, "--rounds", "3000", "--out", str(here)]) == 0
    with killing(1) as killed:
        assert main(["sweep", *SWEEP, "--rounds", "3000", "--ray", "--out", str(there)]) == 0
    assert len(killed) == 1
    assert "Ray: 2 cores" in capsys.readouterr().out
    assert files(there) == files(here)


@pytest.mark.slow
def test_a_comparison_on_ray_leaves_the_same_files(ray, tmp_path):
    arguments = ["--num-agents", "3", "--dim", "5", "--samples", "400", "--seeds", "3", "--grid", "3"]
    arguments += ["--algorithm", "FedHSA", "SCAFFLSA", "LocalSA"]
    for folder, flag in ((tmp_path / "here", []), (tmp_path / "there", ["--ray"])):
        assert main(["compare", *arguments, *flag, "--out", str(folder)]) == 0
    assert files(tmp_path / "there") == files(tmp_path / "here")


@pytest.mark.slow
def test_a_reproduction_on_ray_leaves_the_same_files_and_says_what_failed(ray, tmp_path, capsys):
    options = ["--rounds", "150", "--option", "num_agents=3", "dim=2"]
    names, here, there = ["quadratic/noiseless", "nonconvex/noiseless"], tmp_path / "here", tmp_path / "there"
    code = main(["reproduce", *names, *options, "step_size=0.02", "--workers", "2", "--out", str(here)])
    for _ in range(2):
        assert main(["reproduce", *names, *options, "step_size=0.02", "--ray", "--out", str(there)]) == code
    assert capsys.readouterr().out.count("reused") == 2
    assert files(there) == files(here)
    assert main(["reproduce", *names, *options, "step_size=5.0", "--ray", "--out", str(tmp_path / "bad")]) == 1
    assert capsys.readouterr().err.count("Use a smaller `step_size`") == 2


@pytest.mark.slow
def test_a_setting_that_cannot_be_run_is_named_and_the_others_are_written(ray, tmp_path, capsys):
    arguments = ["--num-agents", "3", "--dim", "2", "--rounds", "10", "--algorithm", "Thinned(FedHSA, every=1)"]
    over = ["--over", "every=[1,1000000000000]"]
    assert main(["sweep", *arguments, *over, "--ray", "--out", str(tmp_path)]) == 1
    assert "every 1000000000000: " in capsys.readouterr().err
    with np.load(tmp_path / "sweep.npz") as arrays:
        assert arrays["every"].tolist() == [1]


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_leaves_nothing_of_a_private_ray(tmp_path):
    pytest.importorskip("ray")
    psutil = importlib.import_module("psutil")
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from fedhsa.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["reproduce", "quadratic/noiseless", "quadratic/markov", "nonconvex/noiseless"]
    arguments += ["--rounds", "150", "--option", "num_agents=3", "dim=2", "step_size=0.02"]
    command = [sys.executable, "-c", program, *arguments, "--ray-address", "local", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("*/*/data.npz")) and time.monotonic() < deadline:
            time.sleep(0.1)
        children = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err[-2000:]
    assert "The same command continues." in out
    ended = time.monotonic() + 10
    while (alive := [p for p in children if on_ray.is_alive(p)]) and time.monotonic() < ended:
        time.sleep(0.1)
    assert not alive
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    done = list(tmp_path.glob("*/*/data.npz"))
    assert 0 < len(done) < 3
