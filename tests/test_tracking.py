"""Trackers: they get the numbers of the result, change nothing, and continue where a run continues."""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.cli import main
from fedhsa.deploy.journal import read
from fedhsa.tracking.track import POINTS, Track

PROBLEM = fh.problems.quadratic.random(num_agents=3, dim=2)
METHOD = fh.FedHSA(0.05, local_steps=2)
FEW = ["quadratic", "--num-agents", "3", "--dim", "2", "--seeds", "2", "--no-progress", "--no-cache"]


class Kept(fh.tracking.AbstractTracker):
    """Remembers what it is told; raises in the call with this name."""

    def __init__(self, fails: str = "", interrupts_after: int | None = None):
        self.rows, self.ended, self.settings, self.after = {}, [], {}, "not begun"
        self.fails, self.interrupts_after = fails, interrupts_after

    def begin(self, settings, after=None):
        self._called("begin")
        self.settings, self.after = settings, after
        return -1 if after is None else max(self.rows, default=-1)

    def log(self, values, step):
        self._called("log")
        assert step not in self.rows
        self.rows[step] = dict(values)
        if step == self.interrupts_after:
            raise KeyboardInterrupt

    def flush(self):
        self._called("flush")

    def end(self, status, summary, files=()):
        self._called("end")
        self.ended.append((status, summary))

    def _called(self, name):
        if name == self.fails:
            raise OSError("the disk is full")


def simulated(**options):
    return fh.simulate(PROBLEM, METHOD, rounds=options.pop("rounds", 30), seeds=2, key=1, **options)


def test_a_tracker_gets_the_means_of_the_result_and_the_result_is_the_same_without_it():
    tracker = Kept()
    result = simulated(tracker=tracker, record=["operator_norm", "theta"], every=3)
    plain = simulated(record=["operator_norm", "theta"], every=3)
    np.testing.assert_array_equal(result.theta, plain.theta)
    assert list(tracker.rows) == result.rounds.tolist()
    for name in ("error", "operator_norm"):  # vectors are not logged
        np.testing.assert_array_equal([row[name] for row in tracker.rows.values()], result.mean(name))
    assert {name for row in tracker.rows.values() for name in row} == {"error", "operator_norm"}
    ((status, summary),) = tracker.ended
    assert status == "finished"
    assert summary["final"]["error"] == result.mean()[-1]
    assert summary["cost"]["exchanges"] == result.cost.exchanges
    assert summary["parameters"]["theta[1]"] == pytest.approx(result.theta[:, 1].mean())
    assert tracker.settings["rounds"] == 30
    later = Kept()
    plain.track(later)
    assert later.rows == tracker.rows


def test_long_runs_are_thinned_and_their_ends_are_kept():
    track = Track(Kept(), rounds=10 * POINTS + 7)
    logged = [round for round in range(10 * POINTS + 8) if track.wants(round)]
    assert logged[0] == 0
    assert logged[-1] == 10 * POINTS + 7
    assert POINTS / 2 < len(logged) <= POINTS + 2


@pytest.mark.parametrize("call", ["begin", "log", "flush", "end"])
def test_a_tracker_that_fails_costs_one_warning_and_no_result(call):
    with pytest.warns(UserWarning, match="Kept failed, and the run goes on without it: OSError: the disk is full") as w:
        result = simulated(tracker=Kept(call))
    assert len(w) == 1
    np.testing.assert_array_equal(result.theta, simulated().theta)


def test_what_is_no_tracker_is_refused_before_anything_runs():
    with pytest.raises(TypeError, match="`tracker` must be a tracker"):
        simulated(tracker="run.jsonl")


def test_an_interrupted_run_ends_its_track_as_such_and_a_resumed_one_continues_it(tmp_path):
    state = tmp_path / "state.npz"
    tracker = Kept(interrupts_after=5)
    with pytest.warns(UserWarning, match="Interrupted"):
        part = simulated(tracker=tracker, checkpoint=state, checkpoint_every=2)
    assert not part.complete
    assert tracker.ended[-1][0] == "interrupted"
    tracker.interrupts_after = None
    whole = simulated(tracker=tracker, checkpoint=state, resume=True)
    assert tracker.after == part.rounds[-1]
    assert [row["error"] for row in tracker.rows.values()] == whole.mean().tolist()
    assert [status for status, _ in tracker.ended] == ["interrupted", "finished"]


def test_an_error_in_the_run_ends_the_track_as_failed():
    def refuse(done):
        raise RuntimeError("no more")

    tracker = Kept()
    with pytest.raises(RuntimeError, match="no more"):
        simulated(tracker=tracker, progress=refuse)
    assert tracker.ended == [("failed", {})]


def test_json_lines_have_every_round_and_a_resumed_run_continues_the_file(tmp_path):
    path, state = tmp_path / "run.jsonl", tmp_path / "state.npz"
    tracker = fh.tracking.JSONLines(path)
    simulated(rounds=10, tracker=tracker, checkpoint=state)
    with open(path, "ab") as file:  # a process that was killed logged more than its checkpoint has, and half a line
        file.write(b'{"event": "round", "round": 11, "error": 9.0}\n{"event": "rou')
    result = simulated(rounds=20, tracker=fh.tracking.JSONLines(path), checkpoint=state, resume=True)
    events = list(read(tmp_path, "run.jsonl"))
    assert len(events) == len(path.read_bytes().splitlines())
    assert [e["event"] for e in events if e["event"] != "round"] == ["started", "finished", "resumed", "finished"]
    rows = {event["round"]: event["error"] for event in events if event["event"] == "round"}
    assert list(rows.values()) == result.mean().tolist()
    simulated(rounds=10, tracker=tracker)
    assert [e["event"] for e in read(tmp_path, "run.jsonl")].count("started") == 1, "a new run replaces the file"


def test_infinite_numbers_are_valid_json(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = tmp_path / "run.jsonl"
        method = fh.LocalSA(1e6, local_steps=2)
        fh.simulate(PROBLEM, method, rounds=20, tracker=fh.tracking.JSONLines(path))
    last = [json.loads(line) for line in path.read_text().splitlines()][-2:]
    assert last[0]["error"] == "infinity"
    assert last[1]["diverged"] == 1


@pytest.mark.slow
def test_commands_write_a_track_for_each_run(tmp_path, monkeypatch, capsys, unrendered):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *FEW, "--algorithm", "LocalSA", "--rounds", "8", "--track", "jsonl"]) == 0
    found = fh.load("runs/quadratic")
    rows = [e["error"] for e in read(tmp_path / "runs/quadratic/track", "LocalSA.jsonl") if e["event"] == "round"]
    assert rows == found["LocalSA"].mean().tolist()
    assert main(["run", *FEW, "--algorithm", "LocalSA", "--rounds", "12", "--track", "jsonl", "--resume"]) == 0
    events = [e["event"] for e in read(tmp_path / "runs/quadratic/track", "LocalSA.jsonl")]
    assert events.count("round") == 13
    assert "resumed" in events
    assert main(["run", *FEW, "--track-to", "x"]) == 2
    assert main(["run", *FEW, "--track", "jsonll"]) == 2
    assert "one of jsonl, tensorboard, mlflow, wandb" in capsys.readouterr().err


@pytest.mark.slow
def test_sweeps_and_comparisons_track_every_combination_and_method_when_it_is_done(tmp_path, monkeypatch, unrendered):
    monkeypatch.chdir(tmp_path)
    over = ["--over", "step_size=[0.01,0.02]", "--rounds", "4", "--track", "jsonl", "--track-to", "tracks"]
    assert main(["sweep", *FEW, *over]) == 0
    assert sorted(os.listdir("tracks")) == ["step_size=0.01.jsonl", "step_size=0.02.jsonl"]
    terms = ["--samples", "100", "--step-size", "0.05", "--algorithm", "FedHSA", "LocalSA(local_steps=2)"]
    assert main(["compare", *FEW, *terms, "--track", "tensorboard"]) == 0
    assert sorted(os.listdir("runs/quadratic/compare/tensorboard")) == ["FedHSA", "LocalSA-local_steps=2"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = fh.load("runs/quadratic/compare").entries["FedHSA"].result
    scalars = EventAccumulator("runs/quadratic/compare/tensorboard/FedHSA").Reload().Scalars("error")
    np.testing.assert_allclose([scalar.value for scalar in scalars], found.mean(), rtol=1e-6)


@pytest.mark.slow
def test_a_federation_is_tracked_round_by_round(tmp_path, monkeypatch, capsys, unrendered):
    monkeypatch.chdir(tmp_path)
    few = ["deploy", "memory", "--dim", "2", "--out", "here", "--track", "jsonl", "--no-cache"]
    assert main([*few, "--rounds", "3"]) == 0
    assert main([*few, "--rounds", "5", "--resume"]) == 0
    events = list(read(tmp_path / "here/track", "FedHSA.jsonl"))
    assert [e["event"] for e in events if e["event"] != "round"] == ["started", "finished", "resumed", "finished"]
    rows = [event for event in events if event["event"] == "round"]
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    with np.load("here/curves.npz") as curves:
        assert [row["error"] for row in rows] == curves["FedHSA/error"][0, 1:].tolist()
    assert rows[0]["bytes_up"] > 0


@pytest.mark.slow
def test_tensorboard_reads_the_track_and_a_resumed_run_replaces_what_its_checkpoint_does_not_have(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    figure, state = tmp_path / "curves.png", tmp_path / "state.npz"
    first = simulated(rounds=10, tracker=fh.tracking.TensorBoard(tmp_path / "tb"), checkpoint=state)
    late = fh.tracking.TensorBoard(tmp_path / "tb")  # as a killed process leaves it: later than the checkpoint
    late.begin({}, after=10)
    late.log({"error": 9.0}, 11)
    late.flush()
    result = simulated(rounds=20, tracker=fh.tracking.TensorBoard(tmp_path / "tb"), checkpoint=state, resume=True)
    read_back = EventAccumulator(str(tmp_path / "tb")).Reload()
    scalars = read_back.Scalars("error")
    assert [scalar.step for scalar in scalars] == list(range(21))
    np.testing.assert_allclose([scalar.value for scalar in scalars], result.mean(), rtol=1e-6)
    assert sorted(read_back.Tags()["tensors"]) == ["settings", "summary"]
    first.plot().savefig(figure)
    drawn = fh.tracking.TensorBoard(tmp_path / "drawn")
    drawn.begin({})
    drawn.end("finished", {}, [figure])
    read_back = EventAccumulator(str(tmp_path / "drawn")).Reload()
    (image,) = read_back.Images("curves")
    assert (image.width, image.height) == struct.unpack(">II", figure.read_bytes()[16:24])


@pytest.mark.slow
def test_mlflow_reads_the_track_and_a_resumed_run_continues_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    uri, state = f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "state.npz"
    where = {"uri": uri, "artifacts_folder": tmp_path / "artifacts"}
    simulated(rounds=10, tracker=fh.tracking.MLflow(**where), checkpoint=state)
    result = simulated(rounds=20, tracker=fh.tracking.MLflow(**where), checkpoint=state, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("fedhsa")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        history = sorted(client.get_metric_history(run.info.run_id, "error"), key=lambda metric: metric.step)
        assert [metric.step for metric in history] == list(range(21))
        assert [metric.value for metric in history] == result.mean().tolist()
        assert run.info.status == "FINISHED"
        assert run.info.run_name == "FedHSA"
        assert run.data.params["algorithm.step_size"] == "0.05"
        assert run.data.metrics["summary.final.error"] == result.mean()[-1]
        assert run.data.metrics["summary.parameters.theta_0"] == pytest.approx(result.theta[:, 0].mean())
        (artifact,) = client.list_artifacts(run.info.run_id)
        assert artifact.path == "result.npz"
        saved = fh.load(client.download_artifacts(run.info.run_id, "result.npz", str(tmp_path)))
        np.testing.assert_array_equal(saved.theta, result.theta)
        # What is interrupted is marked as killed.
        tracker = fh.tracking.MLflow(**where, name="cut")
        tracker.begin({"algorithm": {"name": "x"}})
        tracker.end("interrupted", {})
        (cut,) = client.search_runs([run.info.experiment_id], "attributes.run_name = 'cut'")
        assert cut.info.status == "KILLED"


def records_of_wandb(path):
    """The records of a .wandb file: LevelDB's log format, blocks of 32 KiB, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(part)
            part = b""


@pytest.mark.slow
def test_wandb_writes_its_files_offline_and_a_resumed_run_has_the_same_name(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    state = tmp_path / "state.npz"
    tracker = fh.tracking.WandB("mine", folder=tmp_path)
    simulated(rounds=10, tracker=tracker, checkpoint=state)
    result = simulated(rounds=20, tracker=tracker, checkpoint=state, resume=True)
    paths = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    runs, rows, ends, summary = [], [], [], {}
    for path in paths:
        for record in records_of_wandb(path):
            if record.HasField("run"):
                runs.append((record.run.run_id, record.run.project, record.run.display_name))
            if record.HasField("history"):
                row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}
                rows.append((row["round"], row["error"]))
            if record.HasField("summary"):
                summary |= {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.summary.update}
            if record.HasField("exit"):
                ends.append(record.exit.exit_code)
    assert len({run for run, _, _ in runs}) == 1
    assert runs[0][1:] == ("mine", "FedHSA")
    assert rows == list(enumerate(result.mean().tolist()))
    assert ends == [0, 0]
    assert summary["status"] == "finished"
    assert any(path.name == "result.npz" for path in (tmp_path / "wandb").rglob("*"))


@pytest.mark.slow
def test_a_long_run_can_be_watched_while_it_goes_on_and_ctrl_c_is_marked(tmp_path):
    words = "run quadratic --num-agents 3 --dim 2 --seeds 2 --rounds 3000000 --every 1000 --algorithm FedHSA"
    code = "import sys; from fedhsa.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *words.split(), "--track", "jsonl", "--out", str(tmp_path / "out")]
    path = tmp_path / "out/track/FedHSA.jsonl"
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for _ in range(600):
            if path.exists() and path.read_bytes().count(b'"round":') > 2:
                break
            time.sleep(0.1)
        seen = path.read_bytes().count(b'"round":')
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert seen > 2
    events = list(read(path.parent, path.name))
    assert events[-1]["event"] == "interrupted"


def test_a_tool_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for kind, extra in (("TensorBoard", "tensorboard"), ("MLflow", "mlflow"), ("WandB", "wandb")):
        arguments = (pathlib.Path("logs"),) if kind == "TensorBoard" else ()
        with pytest.raises(ModuleNotFoundError, match=rf"fedhsa\[{extra}\]"):
            getattr(fh.tracking, kind)(*arguments)
