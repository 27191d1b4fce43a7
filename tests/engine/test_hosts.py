"""One simulation in several processes, which find each other on this machine."""

import json
import pathlib
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.engine import hosts
from fedhsa.engine.placement import share_out

PROCESS = pathlib.Path(__file__).with_name("one_of_several.py")
HALF = fh.sampling.UniformSampling(3, num_agents=5)
METHODS = {
    "FedHSA on TD": ("td", fh.FedHSA(0.05, 3)),
    "memories": ("quadratic", fh.SCAFFLSA(0.02, 3)),
    "sampling": ("td", fh.Partial(fh.FedHSA(0.05, 3), HALF)),
    "messages to each": ("quadratic", fh.DecentralisedScaffnew(0.02, 0.5, fh.graphs.Ring(5))),
}


def problem(name: str) -> fh.Problem:
    if name == "td":
        return fh.problems.td.random(num_agents=5, num_states=6, dim=3)  # five do not divide among two or three
    return fh.problems.quadratic.random(num_agents=5, dim=3)


def together(count: int, folder: pathlib.Path, tasks: list[dict], timeout: float = 280) -> None:
    """Lets `count` processes do these tasks; their results go to the folder."""
    (folder / "tasks.json").write_text(json.dumps(tasks))
    where = f"localhost:{hosts.free_port()}"
    command = [sys.executable, str(PROCESS), str(folder), where, str(count)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [subprocess.Popen([*command, str(index)], **options) for index in range(count)]
    try:
        printed = [process.communicate(timeout=timeout)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(printed)


def task(method: str, seeds: int, rounds: int = 12, **options) -> dict:
    return {"method": method, "seeds": seeds, "rounds": rounds, **options}


def do(method: str, seeds: int, rounds: int, **options) -> fh.Result:
    """One task, in this process."""
    name, algorithm = METHODS[method]
    return fh.simulate(problem(name), algorithm, rounds=rounds, seeds=seeds, key=3, record=("theta",), **options)


def equal(folder: pathlib.Path, count: int, number: int, expected: fh.Result) -> None:
    """Every process has the numbers of one alone."""
    for index in range(count):
        result = fh.load(folder / f"{number}-{index}.npz")
        assert f"{count} processes" in result.settings["device"]
        np.testing.assert_allclose(result.error, expected.error, rtol=1e-12)
        np.testing.assert_allclose(result.theta, expected.theta, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(result.records["theta"], expected.records["theta"], rtol=1e-12, atol=1e-13)
        assert result.complete
        assert np.array_equal(result.rounds, expected.rounds)


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one_and_it_goes_on_from_their_checkpoint(tmp_path):
    saved = task("FedHSA on TD", 3, checkpoint=str(tmp_path / "run.npz"), checkpoint_every=6)
    together(2, tmp_path, [saved])
    equal(tmp_path, 2, 0, do("FedHSA on TD", 3, 12))
    resumed = do("FedHSA on TD", 3, 20, checkpoint=tmp_path / "run.npz", resume=True)
    np.testing.assert_allclose(resumed.error, do("FedHSA on TD", 3, 20).error, rtol=1e-12)


@pytest.mark.slow
def test_seeds_and_agents_that_do_not_divide_give_the_same_numbers(tmp_path):
    tasks = [task(method, seeds) for method, seeds in zip(METHODS, (2, 1, 1, 2), strict=True)]
    together(3, tmp_path, tasks)
    for number, one in enumerate(tasks):
        equal(tmp_path, 3, number, do(**one))


@pytest.mark.slow
def test_any_number_of_processes_resumes_a_checkpoint(tmp_path):
    def on(rounds, **options):
        return [task(m, s, rounds, checkpoint=str(tmp_path / f"{m}-{s}"), **options) for m, s in kinds]

    kinds = [("memories", 1), ("sampling", 3)]
    together(2, tmp_path, on(6))
    for one in on(9, resume=True):
        do(**one)
    together(3, tmp_path, on(13, resume=True))
    for number, (method, seeds) in enumerate(kinds):
        equal(tmp_path, 3, number, do(method, seeds, 13))


@pytest.mark.slow
def test_a_run_of_which_every_seed_diverges_ends_in_all_processes(tmp_path):
    far = {"theta": [1e11, 1e11, 1e11]}
    together(2, tmp_path, [task("FedHSA on TD", 2, 12, step_size=40.0, **far)])
    expected = fh.simulate(problem("td"), fh.FedHSA(40.0, 3), rounds=12, seeds=2, key=3, record=("theta",), **far)
    assert (expected.failed_round >= 0).all()
    for index in range(2):
        result = fh.load(tmp_path / f"0-{index}.npz")
        assert np.array_equal(result.failed_round, expected.failed_round)
        assert np.array_equal(np.isinf(result.error), np.isinf(expected.error))


class Device:
    def __init__(self, process_index):
        self.process_index = process_index


@pytest.mark.parametrize(("seeds", "processes"), [(8, 2), (5, 2), (3, 4), (1, 4), (2, 5), (4, 4)])
def test_every_seed_belongs_to_one_share_and_every_process_works(seeds, processes):
    devices = [Device(i) for i in range(processes) for _ in range(2)]
    shares = share_out(seeds, devices)
    assert [seed for share in shares for seed in share.seeds] == list(range(seeds))
    assert [i for share in shares for i in share.processes] == list(range(processes))
    assert [d for share in shares for d in share.devices] == devices
    assert all(len(share.processes) == 1 or len(share.seeds) == 1 for share in shares)
    assert max(len(share.seeds) for share in shares) == max(1, -(-seeds // processes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("node0:1",), "`num_processes` and `index` must be given too"),
        (("node0:1", 2, 2), "`index` must be below `num_processes`, 2, got 2"),
        (("node0:port", 2, 0), "`coordinator` must be a host and a port, like 'node0:7654', got 'node0:port'"),
    ],
)
def test_wrong_arguments_are_named_before_anybody_is_called(arguments, message):
    with pytest.raises(ValueError, match=message):
        fh.join_processes(*arguments)


def call(port: int, count: int, index: int, timeout: float = 0.4) -> str | None:
    """What one process is told at the roll call, None if all is well."""
    try:
        hosts._roll_call("localhost", port, count, index, timeout)
    except fh.LostProcessError as error:
        return str(error)
    return None


def all_call(*calls: tuple[int, int]) -> list[str | None]:
    """What processes, each with a number of them and an index, are told that call at the same time."""
    port, told = hosts.free_port(), {}

    def one(i, count, index):
        told[i] = call(port, count, index)

    threads = [threading.Thread(target=one, args=(i, *arguments)) for i, arguments in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [told[i] for i in range(len(calls))]


def test_processes_that_agree_find_each_other():
    assert all_call((3, 0), (3, 1), (3, 2)) == [None, None, None]
    assert all_call((1, 0)) == [None]


def test_all_processes_are_told_in_a_sentence_what_is_wrong():
    assert all_call((3, 0), (3, 2)) == ["Of 3 processes, 1 did not report within 0.4 seconds."] * 2
    assert all_call((2, 0), (3, 1)) == ["Process 0 expects 2 processes, and process 1 expects 3."] * 2
    twice = "Two processes have index 1. Each process needs its own index."
    assert all_call((3, 0), (3, 1), (3, 1)) == [twice] * 3
    (alone,) = all_call((2, 1))
    assert alone is not None
    assert "Process 1 could not reach process 0 at localhost" in alone


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on port {port} of this machine" in str(call(port, 2, 0))


def test_a_stranger_at_the_door_is_ignored():
    port = hosts.free_port()
    told = []
    waiting = threading.Thread(target=lambda: told.append(call(port, 2, 0, 5.0)))
    waiting.start()
    while True:
        try:
            with socket.create_connection(("localhost", port), timeout=1) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\n")
            break
        except OSError:
            continue
    assert call(port, 2, 1, 5.0) is None
    waiting.join()
    assert told == [None]
