"""The files of a run: with the root known they show the error, without it the norm of the average operator."""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from fedhsa import outputs, plots, statistics
from fedhsa.algorithms import Cost
from fedhsa.cli.output import show
from fedhsa.engine import Result

NAMES = ("FedHSA", "LocalSA")


def make(seed: int) -> Result:
    values = np.random.default_rng(seed).uniform(1.0, 2.0, size=(2, 3, 4))
    return Result(
        error=values[0],
        theta=np.zeros((3, 2)),
        rounds=np.array([0, 2, 4, 6]),
        records={"error": values[0], "operator_norm": values[1]},
        failed_round=np.full(3, -1),
        cost=Cost(2, 4, 4, 2, 1),
        settings={"algorithm": {"name": NAMES[seed]}},
        timings={"compile": 0.0, "run": 0.0},
    )


@pytest.fixture
def known():
    """Results that know both their error and the norm of the operator."""
    return {name: make(seed) for seed, name in enumerate(NAMES)}


@pytest.fixture
def rootless(known):
    """The same results as seen by somebody who does not know the root."""
    return {name: forget(result) for name, result in known.items()}


def forget(result):
    unknown = np.full_like(result.error, np.nan)
    return dataclasses.replace(result, error=unknown, records={**result.records, "error": unknown})


def with_norm(result, norm):
    return dataclasses.replace(result, records={**result.records, "operator_norm": norm})


def table(folder) -> list[dict[str, str]]:
    with (folder / "curves.csv").open() as file:
        return list(csv.DictReader(file))


def entries(folder) -> dict:
    return outputs.read_manifest(folder)["algorithms"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures, kept instead of written, which takes long."""
    kept = []
    monkeypatch.setattr(outputs.plots, "save", lambda figure, *_: kept.append(figure))
    return kept


def test_all_files_are_written_and_nothing_else(tmp_path, rootless):
    outputs.write(tmp_path, rootless, {"command": "x"})
    assert {path.name for path in tmp_path.iterdir()} == set(outputs.FILES)
    assert outputs.read_manifest(tmp_path)["command"] == "x"


def test_a_known_root_shows_the_error_even_where_the_norm_was_recorded(tmp_path, known, drawn):
    outputs.write(tmp_path, known, {})
    assert drawn[0].axes[0].get_ylabel().startswith("$E_t")
    mean = [float(line["mean"]) for line in table(tmp_path) if line["algorithm"] == "FedHSA"]
    np.testing.assert_allclose(mean, known["FedHSA"].error.mean(0))
    with np.load(tmp_path / "curves.npz", allow_pickle=False) as arrays:
        assert set(arrays.files) == {f"{name}/{part}" for name in NAMES for part in ("error", "rounds", "theta")}
    assert entries(tmp_path)["LocalSA"]["final_error"]["mean"] == pytest.approx(known["LocalSA"].error[:, -1].mean())
    assert "final_operator_norm" not in entries(tmp_path)["LocalSA"]


def test_without_a_root_figure_table_and_arrays_show_the_operator_norm(tmp_path, rootless, drawn):
    outputs.write(tmp_path, rootless, {})
    (axes,) = drawn[0].axes
    assert axes.get_ylabel() == r"$\|\bar G(\bar\theta^{(t)})\|$"
    for name, line in zip(NAMES, axes.lines, strict=True):
        norm = rootless[name].records["operator_norm"]
        np.testing.assert_allclose(line.get_ydata(), norm.mean(0))
        rows = [row for row in table(tmp_path) if row["algorithm"] == name]
        assert [int(row["round"]) for row in rows] == [0, 2, 4, 6]
        for column, values in zip(("mean", "low", "high"), statistics.interval(norm), strict=True):
            np.testing.assert_allclose([float(row[column]) for row in rows], values)
        with np.load(tmp_path / "curves.npz", allow_pickle=False) as arrays:
            np.testing.assert_array_equal(arrays[f"{name}/operator_norm"], norm)
            assert f"{name}/error" not in arrays.files


def test_without_a_root_the_manifest_has_no_error_and_the_final_norm(tmp_path, rootless, drawn):
    outputs.write(tmp_path, rootless, {})
    for name, entry in entries(tmp_path).items():
        mean, low, high = statistics.interval(rootless[name].records["operator_norm"][:, -1:])
        assert entry["final_error"] is None
        assert entry["final_operator_norm"] == pytest.approx({"mean": mean[0], "low": low[0], "high": high[0]})
        assert entry["status"] == "ok"


def test_an_unknown_root_without_the_norm_still_shows_the_error(known):
    bare = forget(known["FedHSA"])
    bare.records.pop("operator_norm")
    assert outputs.quantity({"FedHSA": bare}) == "error"
    assert outputs.quantity({"FedHSA": forget(known["FedHSA"])}) == "operator_norm"


def test_one_error_that_is_known_keeps_the_error_on_the_axis(known, rootless):
    assert outputs.quantity({"FedHSA": known["FedHSA"], "LocalSA": rootless["LocalSA"]}) == "error"


def test_the_manifest_names_the_seeds_that_diverged_and_when(tmp_path, known, drawn):
    failed = dataclasses.replace(known["FedHSA"], failed_round=np.array([-1, 3, -1]))
    outputs.write(tmp_path, {"FedHSA": failed, "LocalSA": known["LocalSA"]}, {})
    assert [entries(tmp_path)[name]["failed_round"] for name in NAMES] == [{"1": 3}, {}]
    assert [entries(tmp_path)[name]["status"] for name in NAMES] == ["1 of 3 diverged", "ok"]


def test_a_norm_that_was_not_measured_is_missing_and_not_infinite(tmp_path, rootless, drawn):
    norm = np.array([[3.0, 2.0, np.inf, np.nan]] * 3)
    outputs.write(tmp_path, {"FedHSA": with_norm(rootless["FedHSA"], norm)}, {})
    assert [row["mean"] for row in table(tmp_path)] == ["3.0", "2.0", "inf", "nan"]
    assert entries(tmp_path)["FedHSA"]["final_operator_norm"] == {"mean": None, "low": None, "high": None}


def test_theory_and_predictions_stand_where_they_were_given(tmp_path, known, drawn):
    curve = np.array([4.0, 3.0, 2.0, 1.0])
    outputs.write(
        tmp_path,
        known,
        {},
        theory={"FedHSA": curve},
        theory_label="a guess",
        predictions={"LocalSA": {"floor": np.inf}},
    )
    assert "a guess, FedHSA" in [text.get_text() for text in drawn[0].legends[0].get_texts()]
    by_name = {name: [row["theory"] for row in table(tmp_path) if row["algorithm"] == name] for name in NAMES}
    assert by_name == {"FedHSA": ["4.0", "3.0", "2.0", "1.0"], "LocalSA": [""] * 4}
    assert entries(tmp_path)["FedHSA"]["prediction"] is None
    assert entries(tmp_path)["LocalSA"]["prediction"] == {"floor": "infinity"}


def test_the_manifest_comes_last(tmp_path, known, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(outputs.plots, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        outputs.write(tmp_path, known, {})
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_manifest_that_cannot_be_read_is_empty(tmp_path, text):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    assert outputs.read_manifest(tmp_path) == {}


def test_the_manifest_is_plain_json(tmp_path):
    outputs.write_manifest(tmp_path, {"a": np.float64(np.nan), "b": np.arange(2)})
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"a": None, "b": [0, 1]}


def test_a_quantity_that_was_not_recorded_cannot_be_drawn(known):
    bare = dataclasses.replace(known["FedHSA"], records={"error": known["FedHSA"].error})
    with pytest.raises(ValueError, match=r"got 'operator_norm', which FedHSA did not record"):
        plots.curves({"FedHSA": bare}, quantity="operator_norm")
    with pytest.raises(ValueError, match=r"got 'loss', which FedHSA did not record"):
        plots.curves(known, quantity="loss")


def test_the_table_on_the_screen_names_what_it_shows(known, rootless):
    unmeasured = with_norm(rootless["LocalSA"], np.full((3, 4), np.nan))
    for results, wanted in ((known, "final error"), (rootless, "final operator norm")):
        assert wanted in screen(results)
    assert f"{rootless['FedHSA'].records['operator_norm'][:, -1].mean():.2e}" in screen(rootless)
    assert "not measured" in screen({"LocalSA": unmeasured})


def screen(results) -> str:
    console = Console(file=io.StringIO(), width=120)
    show(console, results)
    return console.file.getvalue()
