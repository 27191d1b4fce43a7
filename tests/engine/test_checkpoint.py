import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa import _files
from fedhsa.engine import run

RUN = """
import sys
sys.path.insert(0, {tests!r})
from cases import CASES
import fedhsa as fh
problem = CASES["td"]().problem
print("started", flush=True)
options = dict(seeds=3, every=1000, chunk=2, checkpoint={path!r}, checkpoint_every=2000)
fh.simulate(problem, fh.FedHSA(0.01, 4), rounds=10**7, **options)
"""


def same(first: fh.Result, second: fh.Result) -> None:
    assert np.array_equal(first.error, second.error)
    assert np.array_equal(first.theta, second.theta)


@pytest.mark.parametrize("case", ["td", pytest.param("quadratic", marks=pytest.mark.slow)])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(case, tmp_path):
    problem, algorithm, path = CASES[case]().problem, fh.FedHSA(0.05, 4), tmp_path / "run.npz"
    options = {"seeds": 3, "key": 4, "chunk": 2}
    whole = fh.simulate(problem, algorithm, rounds=40, **options)
    fh.simulate(problem, algorithm, rounds=17, checkpoint=path, **options)
    resumed = fh.simulate(problem, algorithm, rounds=40, checkpoint=path, resume=True, **options)
    same(whole, resumed)
    again = fh.simulate(problem, algorithm, rounds=40, checkpoint=path, resume=True, **options)
    same(whole, again)
    with pytest.raises(ValueError, match=r"`rounds` must be at least 40, the round of the checkpoint, got 30"):
        fh.simulate(problem, algorithm, rounds=30, checkpoint=path, resume=True, **options)


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_numbers(tmp_path):
    path = tmp_path / "run.npz"
    script = RUN.format(tests=os.path.dirname(os.path.dirname(__file__)), path=str(path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGKILL)
    with np.load(path, allow_pickle=False) as file:
        done = (file["record/error"].shape[1] - 1) * 1000
    problem, rounds = CASES["td"]().problem, done + 6000
    options = {"rounds": rounds, "seeds": 3, "every": 1000, "chunk": 2}
    resumed = fh.simulate(problem, fh.FedHSA(0.01, 4), checkpoint=path, resume=True, **options)
    same(fh.simulate(problem, fh.FedHSA(0.01, 4), **options), resumed)
    # What was being written when the process was killed may be left behind, under a hidden name.
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["run.npz"]


def test_ctrl_c_keeps_what_was_computed(tmp_path):
    problem, algorithm = CASES["quadratic"]().problem, fh.FedHSA(0.05, 4)
    full = fh.simulate(problem, algorithm, rounds=50, seeds=3)
    calls = []
    original = run.Run.advance

    def advance(self, records):
        calls.append(records)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, 2)

    run.Run.advance = advance
    try:
        with pytest.warns(UserWarning, match=r"Interrupted after round 4 of 50"):
            part = fh.simulate(problem, algorithm, rounds=50, seeds=3, checkpoint=tmp_path / "c.npz")
    finally:
        run.Run.advance = original
    assert not part.complete
    assert part.rounds[-1] == 4
    np.testing.assert_array_equal(part.error, full.error[:, :5])
    resumed = fh.simulate(problem, algorithm, rounds=50, seeds=3, checkpoint=tmp_path / "c.npz", resume=True)
    same(full, resumed)


def test_a_foreign_or_broken_checkpoint_is_refused(monkeypatch, tmp_path):
    problem, path = CASES["quadratic"]().problem, tmp_path / "run.npz"
    fh.simulate(problem, fh.FedHSA(0.05, 4), rounds=4, seeds=3, checkpoint=path)

    def resume(algorithm=fh.FedHSA(0.05, 4), key=0):  # noqa: B008
        fh.simulate(problem, algorithm, rounds=8, seeds=3, checkpoint=path, resume=True, key=key)

    monkeypatch.setattr(fh.engine.checkpoint, "LAYOUT", 3)
    with pytest.raises(ValueError, match=r"by another version of fedhsa"):
        resume()
    monkeypatch.undo()
    for other in ({"algorithm": fh.FedHSA(0.06, 4)}, {"algorithm": fh.LocalSA(0.05, 4)}, {"key": 1}):
        with pytest.raises(ValueError, match=r"belongs to another run"):
            resume(**other)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ValueError, match=r"is damaged: a part of it is missing or has been changed\. Leave out `resume` to"
    ):
        resume()
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"is damaged or was not written by fedhsa\. Leave out `resume`"):
        resume()
    fh.simulate(problem, fh.FedHSA(0.05, 4), rounds=4, seeds=3).save(path)
    with pytest.raises(ValueError, match=r"holds a fedhsa result, not a checkpoint"):
        resume()


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match=r"`checkpoint`: cannot write to .*file': .* Use another file"):
        fh.simulate(
            CASES["quadratic"]().problem, fh.FedHSA(0.05, 3), rounds=4, checkpoint=tmp_path / "file" / "run.npz"
        )


def test_a_result_survives_its_file(tmp_path):
    problem = CASES["quadratic"]().problem
    result = fh.simulate(problem, fh.FedHSA(0.05, 3), rounds=6, seeds=2, every=2, record=("theta",))
    result.save(tmp_path / "sub" / "result.npz")
    loaded = fh.load(tmp_path / "sub" / "result.npz")
    same(result, loaded)
    assert loaded.settings == result.settings
    assert loaded.cost == result.cost
    assert np.array_equal(loaded.records["theta"], result.records["theta"])
    assert repr(loaded) == repr(result)


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    with pytest.raises(TypeError), _files.atomic(tmp_path / "file.txt") as file:
        file.write("text where bytes belong")  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []


def test_only_the_same_run_resumes_down_to_static_fields_and_functions(tmp_path):
    path, method = tmp_path / "run.npz", fh.FedHSA(0.05, 2)
    make = fh.problems.quadratic.random

    def recorded(power):
        return {"x": lambda snapshot: snapshot.theta[0] ** power}

    def run(problem, record=None, **options):
        record = recorded(2) if record is None else record
        return fh.simulate(problem, method, rounds=3, record=record, checkpoint=path, **options)

    whole = run(make(2, 2, start="zero"))
    same(whole, run(make(2, 2, start="zero"), resume=True))
    for problem, record in (
        (make(2, 2, start="stationary"), None),
        (make(2, 2, start="zero"), recorded(3)),
        (make(2, 2, start="zero"), {"x": lambda snapshot: snapshot.theta[1] ** 2}),
        (make(2, 2, start="zero"), {"y": recorded(2)["x"]}),
    ):
        with pytest.raises(ValueError, match="belongs to another run"):
            run(problem, record, resume=True)
    for other in ({"theta": np.ones(2)}, {"key": 1}, {"seeds": 2}, {"every": 3}, {"dtype": "float32"}):
        with pytest.raises(ValueError, match="belongs to another run"):
            run(make(2, 2, start="zero"), resume=True, **other)


def test_what_cannot_be_described_is_named_before_the_run(tmp_path):
    file = open(os.devnull)  # noqa: SIM115
    problem, method = fh.problems.quadratic.random(2, 2), fh.FedHSA(0.05, 2)
    record = {"x": lambda snapshot: snapshot.theta[0] + file.fileno()}
    with file, pytest.raises(TypeError, match=r"`record\['x'\].*: file` is a _io.TextIOWrapper"):
        fh.simulate(problem, method, rounds=3, record=record, checkpoint=tmp_path / "run.npz")


def test_a_long_run_and_its_checkpoint_keep_what_was_asked_for_and_nothing_else(monkeypatch, tmp_path):
    """Per record and seed eight bytes, however many rounds and segments there were."""
    problem, path = CASES["quadratic"]().problem, tmp_path / "run.npz"
    monkeypatch.setattr(run, "CAPACITY", 5)
    sizes, kept = {}, []
    advance = run.Run.advance

    def watched(self, records):
        made = advance(self, records)
        kept.append(sum(v.nbytes for part in self.progress.records for v in part.values()) / (self.round // 10 + 1))
        return made

    monkeypatch.setattr(run.Run, "advance", watched)
    for rounds in (20, 2000):
        result = fh.simulate(problem, fh.FedHSA(0.05, 4), rounds=rounds, every=10, seeds=3, checkpoint=path)
        assert {name: v.shape for name, v in result.records.items()} == {"error": (3, rounds // 10 + 1)}
        sizes[rounds] = path.stat().st_size
    assert len(kept) > 40
    assert set(kept) == {3 * 8}
    assert 0 <= sizes[2000] - sizes[20] - 198 * 3 * 8 < 64  # rounds and seconds may have more digits


def test_more_observations_than_can_be_told_apart_are_refused():
    with pytest.raises(ValueError, match=r"`rounds` requires 4294967296 observations .* repeat after 4294967295"):
        fh.simulate(CASES["td"]().problem, fh.FedHSA(0.05, 4), rounds=2**30)
