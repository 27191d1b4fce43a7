"""`load` opens whatever was written, says what anything else is, and never advises to delete it."""

import json
import re

import numpy as np
import pandas as pd
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.cli import main
from fedhsa.problems.streams import from_dataframe

SMALL = ["--num-agents", "2", "--dim", "2", "--seeds", "3", "--local-steps", "4"]
RUN = ["run", *SMALL, "--algorithm", "FedHSA", "FedHSA(0.02)", "--rounds", "20", "--every", "5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What three commands wrote; of a run also what it would be in Python."""
    out = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fh.plots, "save", lambda *_: None)
        assert main([*RUN, "--out", str(out / "run")]) == 0
        again = ["--samples", "80", "--grid", "3", "--tuning-seeds", "3", "--algorithm", "FedHSA", "FedHSA(0.02)"]
        assert main(["compare", *SMALL, *again, "--out", str(out / "compare")]) == 0
        over = ["--over", "step_size=[0.01,0.02]", "--rounds", "5"]
        assert main(["sweep", *SMALL, *over, "--out", str(out / "sweep")]) == 0
    return out


def test_the_curves_of_a_run_come_back_as_results_by_name_with_what_the_manifest_says(folder):
    problem = fh.problems.quadratic.random(num_agents=2, dim=2)
    result = fh.simulate(problem, fh.FedHSA(0.01, local_steps=4), rounds=20, seeds=3, every=5)
    for path in ("run/curves.npz", "run/manifest.json", "run"):
        found = fh.load(folder / path)
        assert list(found) == ["FedHSA", "FedHSA(0.02)"]
        loaded = found["FedHSA"]
        for name in ("error", "theta", "rounds", "failed_round"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(result, name))
        assert loaded.cost == result.cost
        assert repr(loaded) == repr(result)
        assert loaded.settings["algorithm"] == result.settings["algorithm"]
        assert loaded.timings.keys() == result.timings.keys()
    manifest = json.loads((folder / "run" / "manifest.json").read_text())
    assert [entry["rounds"] for entry in manifest["algorithms"].values()] == [20, 20]  # and not the 5 records


def test_without_the_manifest_the_curves_are_still_results(folder, tmp_path):
    (tmp_path / "alone.npz").write_bytes((folder / "run" / "curves.npz").read_bytes())
    found = fh.load(tmp_path / "alone.npz")
    assert [result.algorithm for result in found.values()] == ["FedHSA", "FedHSA(0.02)"]
    with pytest.raises(ValueError, match=r"does not contain the cost of a round. Count it with `fedhsa.cost"):
        found["FedHSA"].cost  # noqa: B018


def test_what_only_the_manifest_knows_is_taken_from_it(tmp_path):
    """The round of a divergence between two records, an interruption, and which of two commands was the last."""
    curve = {"FedHSA/error": np.array([[1.0, np.inf, np.inf]]), "FedHSA/rounds": np.array([0, 10, 20])}
    np.savez(tmp_path / "curves.npz", **curve)
    assert fh.load(tmp_path)["FedHSA"].failed_round.tolist() == [10]
    entry = {"failed_round": {"0": 3}, "complete": False}
    manifest = {"command": "fedhsa run", "algorithms": {"FedHSA": entry}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = fh.load(tmp_path)["FedHSA"]
    assert (found.failed_round.tolist(), found.complete) == ([3], False)
    np.savez(tmp_path / "sweep.npz", rounds=np.arange(2), step_size=np.array([0.5]), error=np.ones((1, 1, 2)))
    assert list(fh.load(tmp_path)) == ["FedHSA"]
    (tmp_path / "manifest.json").write_text(json.dumps({"command": "fedhsa sweep quadratic"}))
    assert fh.load(tmp_path).settings == ({"step_size": 0.5},)


def test_a_comparison_and_a_sweep_come_back_as_what_the_functions_give(folder):
    contest = fh.load(folder / "compare")
    manifest = json.loads((folder / "compare" / "manifest.json").read_text())
    assert [place.name for place in contest.ranking.places] == [p["name"] for p in manifest["ranking"]["places"]]
    entry = contest.entries["FedHSA"]
    assert entry.samples[-1] == 80
    assert entry.result.rounds[-1] == 20
    assert entry.tuning.best.step == manifest["algorithms"]["FedHSA"]["tuning"]["step_size"]
    assert contest.plot().axes
    sweep = fh.load(folder / "sweep" / "sweep.npz")
    assert sweep.settings == ({"step_size": 0.01}, {"step_size": 0.02})
    problem = fh.problems.quadratic.random(num_agents=2, dim=2)
    expected = fh.sweep(problem, fh.FedHSA(0.01, 4), {"step_size": [0.01, 0.02]}, rounds=5, seeds=3)
    rows = [{**row, "theory": found["theory"]} for row, found in zip(expected.rows(), sweep.rows(), strict=True)]
    assert sweep.rows() == rows  # the command adds what theory says


def test_a_checkpoint_is_the_result_so_far(tmp_path):
    problem, path = CASES["td"]().problem, tmp_path / "run.npz"
    seen = []

    def look(done):
        if path.exists():
            seen.append(fh.load(path))

    whole = fh.simulate(
        problem, fh.FedHSA(0.05, 4), rounds=8, seeds=3, checkpoint=path, checkpoint_every=2, progress=look
    )
    first, last = seen[0], fh.load(path)
    assert not first.complete
    assert first.rounds.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(first.error, whole.error[:, :3])
    short = fh.simulate(problem, fh.FedHSA(0.05, 4), rounds=2, seeds=3)
    np.testing.assert_array_equal(first.theta, short.theta)
    assert last.complete
    np.testing.assert_array_equal(last.theta, whole.theta)


def test_a_killed_run_has_its_checkpoints_to_show(folder, tmp_path):
    states = tmp_path / "checkpoints"
    states.mkdir()
    (states / "FedHSA.npz").write_bytes((folder / "run" / "checkpoints" / "FedHSA.npz").read_bytes())
    assert fh.load(tmp_path)["FedHSA"].rounds[-1] == 20


def test_anything_else_is_told_what_it_is_and_what_could_be_opened(folder, tmp_path):
    whole = (folder / "run" / "curves.npz").read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.npz").write_text("half a file")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez(tmp_path / "other.npz", weights=np.ones(3), rounds=np.ones(2))
    cases = [
        (tmp_path / "half.npz", "is damaged: a part of it is missing or has been changed."),
        (tmp_path / "text.npz", "is damaged or was not written by fedhsa"),
        (tmp_path / "empty.npz", "is damaged or was not written by fedhsa"),
        (tmp_path / "other.npz", "it holds the arrays rounds, weights. `numpy.load` opens it."),
        (folder / "run" / "curves.csv", "curves.npz' instead."),
        (tmp_path, "holds no results. `load` opens what `Result.save`"),
        (folder, f"There are results in {folder / 'compare'}, {folder / 'run'}, {folder / 'sweep'}."),
    ]
    for path, words in cases:
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            fh.load(path)
        assert not re.search("delete|pickle", str(caught.value))


def test_a_finished_run_is_extended_to_the_same_bytes_as_one_long_run(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fh.plots, "save", lambda *_: None)
    longer = ["--rounds", "40", "--out", str(tmp_path / "whole")]
    assert main([*RUN, *longer]) == 0
    short = [*RUN, "--out", str(tmp_path / "short")]
    assert main(short) == 0
    assert main([*short, "--rounds", "40", "--resume"]) == 0
    one, other = ((tmp_path / name / "curves.npz").read_bytes() for name in ("whole", "short"))
    assert one == other
    assert fh.load(tmp_path / "short")["FedHSA"].rounds[-1] == 40
    capsys.readouterr()
    assert main([*short, "--resume"]) == 2
    assert "with `rounds` 40 instead of 20" in capsys.readouterr().err


def test_a_run_is_made_again_from_its_manifest_with_what_flags_replace(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fh.plots, "save", lambda *_: None)
    manifest = folder / "run" / "manifest.json"
    assert main(["run", "--from", str(manifest), "--out", str(tmp_path / "same")]) == 0
    assert (tmp_path / "same" / "curves.npz").read_bytes() == (folder / "run" / "curves.npz").read_bytes()
    told = json.loads(manifest.read_text())
    (tmp_path / "old.json").write_text(json.dumps({**told, "versions": {"numpy": "1.0", "gone": "2"}}))
    capsys.readouterr()
    assert main(["run", "--from", str(tmp_path / "old.json"), "--out", str(tmp_path / "two"), "--seeds", "2"]) == 0
    assert f"was made with numpy 1.0 (now {np.__version__}): the numbers may differ" in capsys.readouterr().err
    assert fh.load(tmp_path / "two")["FedHSA"].error.shape == (2, 5)
    for arguments, words in (
        ([str(folder / "run" / "curves.csv")], "is not the manifest of a run"),
        (["nowhere.json"], "`from`: cannot read 'nowhere.json': No such file"),
        ([str(manifest), "--config", "x.toml"], "Give one of them"),
    ):
        assert main(["run", "--from", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_a_state_that_is_large_is_kept_only_where_it_was_asked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fh.plots, "save", lambda *_: None)
    monkeypatch.setattr("fedhsa.cli.checkpoints.SMALL", 100)
    run = [*RUN, "--out", str(tmp_path)]
    assert main(run) == 0
    assert not (tmp_path / "checkpoints").exists()
    assert main([*run, "--rounds", "40", "--resume"]) == 0
    assert "the finished run there was large and kept no state: starting at round 0" in capsys.readouterr().err
    assert (tmp_path / "checkpoints").exists()


def test_parameters_have_the_names_of_the_columns_in_results_files_and_after_loading(tmp_path):
    values = np.sin(np.arange(100.0) ** 1.5)
    table = pd.DataFrame({"site": ["a"] * 50 + ["b"] * 50, "load": values, "hour": np.arange(100) % 24.0})
    streams = from_dataframe(table, agent="site", target="load", lags=1, inputs=["hour"])
    named = ["constant", "load 1 before", "hour"]
    assert list(streams.problem.names or ()) == named
    assert streams.problem.noiseless().names == streams.problem.take([0]).names == tuple(named)
    result = fh.simulate(streams.problem, fh.FedHSA(0.05, 5), rounds=4, seeds=3)
    found = result.parameters()
    assert list(found) == named
    assert [end.value for end in found.values()] == pytest.approx(result.theta.mean(0))
    result.save(tmp_path / "result.npz")
    assert fh.load(tmp_path / "result.npz").parameters() == found
    assert list(fh.deploy.federate(streams.problem, fh.FedHSA(0.05, 5), rounds=1).parameters()) == named
    with pytest.raises(ValueError, match=r"`names` must be 3 different names"):
        fh.Problem(streams.problem.agents, like=np.zeros(3), names=["a", "b", "b"])
