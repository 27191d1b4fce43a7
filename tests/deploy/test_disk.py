"""Disks that are full or cannot be written, clocks that jump, and two that want the same folder: nothing is lost."""

import datetime
import errno
import os
import pathlib

import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from federation import Federation, theta
from fedhsa import _files
from fedhsa.cli import main
from fedhsa.deploy import BusyError, FederationError, Missing, journal

ROUNDS = 3


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level("CRITICAL", "fedhsa.site")


@pytest.fixture(autouse=True)
def _short_tails(monkeypatch):
    monkeypatch.setattr("fedhsa.deploy.server.TAIL", 2)


@pytest.fixture
def disk(monkeypatch):
    """A disk on which a function of the file's name and the number of the write says which error it gives, or 0."""
    write, fails, count = os.write, [lambda name, number: 0], [0]

    def maybe(handle, data):
        name = pathlib.Path(os.readlink(f"/proc/self/fd/{handle}")).name
        count[0] += 1
        if code := fails[0](name, count[0]):
            if code == errno.ENOSPC and len(data) > 3:
                write(handle, data[:3])  # the last few bytes that there was room for
            raise OSError(code, os.strerror(code))
        return write(handle, data)

    monkeypatch.setattr(os, "write", maybe)

    def become(rule=lambda name, number: 0):
        fails[0], count[0] = rule, 0

    return become


@pytest.mark.skipif(not pathlib.Path("/proc/self/fd").is_dir(), reason="looks up names as Linux has them")
def test_a_server_whose_disk_is_full_or_cannot_be_written_stops_in_a_sentence_and_loses_nothing(disk, tmp_path):
    """At some writes to its folder: the records, the checkpoint, the log as it ends."""
    expected = theta(Federation(tmp_path / "whole").server().run(ROUNDS)).tobytes()
    stopped = []
    for place in (5, 6, 10):
        federation, seen = Federation(tmp_path / str(place)), []

        def full(name, number, seen=seen, place=place):
            ours = name.startswith(("server", "log"))
            seen.extend([name.removesuffix(".new")] * ours)
            return (errno.ENOSPC, errno.EROFS)[place % 2] if ours and len(seen) >= place else 0

        disk(full)
        with pytest.raises(FederationError, match=r"cannot be written: .*The run is kept up to round \d: mend that"):
            federation.server().run(ROUNDS)
        stopped.append(seen[place - 1])
        disk()
        server = federation.server()
        server.resume()
        assert theta(server.run(ROUNDS)).tobytes() == expected
    assert stopped == ["server.records", "server.state", "log.jsonl"]


@pytest.mark.skipif(not pathlib.Path("/proc/self/fd").is_dir(), reason="looks up names as Linux has them")
def test_a_site_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(disk, tmp_path):
    federation = Federation(tmp_path)
    server = federation.server(missing=Missing("wait", patience=60))
    disk(lambda name, number: errno.ENOSPC if name.startswith("1.state") and 20 < number < 40 else 0)
    progress = server.run(ROUNDS)
    assert {event["why"] for event in federation.named("rejected")} == {
        "agent 1: No space left on device; see the log of the site"
    }
    disk()
    assert theta(progress).tobytes() == theta(Federation(tmp_path / "whole").server().run(ROUNDS)).tobytes()


def test_clocks_that_jump_back_and_forth_change_nothing(tmp_path, monkeypatch, capsys):
    """Those of the log, and of the files that a site has saved."""
    ticks = iter(range(10**6))

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 1, tzinfo=tz) + (-1) ** (n := next(ticks)) * datetime.timedelta(days=400 * (n % 5))

    monkeypatch.setattr("fedhsa.deploy.journal.datetime.datetime", Clock)
    monkeypatch.setattr("time.time", lambda: 1e9 * (1 + next(ticks) % 3))
    federation = Federation(tmp_path)
    server = federation.server()

    def jump(name):
        for path in tmp_path.rglob("*.state"):
            os.utime(path, ns=(0, (next(ticks) % 3) * 10**18))

    server.phase = jump
    progress = server.run(ROUNDS)
    assert [record.attempts for record in progress.records] == [0, 1, 1, 1]
    assert all(0 <= record.seconds < 60 for record in progress.records)
    assert theta(progress).tobytes() == theta(Federation(tmp_path / "whole").server().run(ROUNDS)).tobytes()
    times = [event["time"] for event in journal.read(tmp_path)]
    assert times != sorted(times)
    assert main(["deploy", "status", str(tmp_path)]) == 0
    assert "finished" in capsys.readouterr().out


def test_a_second_simulation_on_the_same_checkpoint_ends_in_a_sentence_and_the_first_is_as_it_was(tmp_path):
    problem, method, path = CASES["td"]().problem, fh.FedHSA(0.05, 3), tmp_path / "state.npz"
    words = r"Another process is using '.*state.npz'. Wait for it, stop it, or choose another name"
    with _files.alone(path), pytest.raises(BusyError, match=words):
        fh.simulate(problem, method, rounds=20, checkpoint=path)
    assert not list(tmp_path.iterdir())  # neither a lock nor a checkpoint is left
    result = fh.simulate(problem, method, rounds=20, checkpoint=path)
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]
    again = fh.simulate(problem, method, rounds=20, checkpoint=path, resume=True)
    np.testing.assert_array_equal(again.theta, result.theta)


def test_a_second_run_in_the_same_folder_does_not_touch_the_checkpoints_of_the_first(tmp_path, capsys):
    (tmp_path / "checkpoints").mkdir()
    (kept := tmp_path / "checkpoints" / "FedHSA.npz").write_bytes(b"of the first")
    with _files.alone(tmp_path / "checkpoints"):
        assert main(["run", "--num-agents", "2", "--dim", "2", "--rounds", "2", "--out", str(tmp_path)]) == 1
    assert "Another process is using" in capsys.readouterr().err
    assert kept.read_bytes() == b"of the first"
