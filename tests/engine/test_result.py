"""Results as tables, figures, files and lines of text; they are made by hand, and nothing is compiled."""

import dataclasses
import sys
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
import pytest

import fedhsa as fh
from fedhsa.engine import Result
from fedhsa.engine.sweep import Sweep

COST = fh.Cost(2, 4, 4, 2, 1)


def make(seeds: int = 3, **changes) -> Result:
    rng = np.random.default_rng(0)
    error = rng.uniform(1.0, 2.0, size=(seeds, 4))
    fields: dict[str, Any] = {
        "error": error,
        "theta": np.ones((seeds, 2)),
        "rounds": np.array([0, 2, 4, 6]),
        "records": {"error": error, "theta": rng.normal(size=(seeds, 4, 2))},
        "failed_round": np.full(seeds, -1),
        "cost": COST,
        "settings": {"algorithm": {"name": "Averaged", "algorithm": {"name": "FedHSA"}}},
        "timings": {"compile": 0.0, "run": 0.0},
    }
    return Result(**(fields | changes))


def with_error(error) -> Result:
    error = np.asarray(error, dtype=float)
    return make(len(error), error=error, records={"error": error}, rounds=np.arange(error.shape[1]))


def test_a_table_has_one_row_per_seed_and_record_and_one_column_per_number():
    result = make()
    table = result.to_pandas()
    assert list(table.columns) == ["seed", "round", "error", "theta[0]", "theta[1]"]
    row = table[(table["seed"] == 2) & (table["round"] == 4)]
    assert row["error"].tolist() == [result.error[2, 2]]
    assert row["theta[1]"].tolist() == [result.records["theta"][2, 2, 1]]
    assert len(table) == 12


def test_a_dataset_has_seed_and_round_and_the_axes_of_vectors():
    result = make()
    data = result.to_xarray()
    assert dict(data.sizes) == {"seed": 3, "round": 4, "theta_0": 2}
    assert float(data["theta"].sel(seed=1, round=6)[0]) == result.records["theta"][1, 3, 0]
    assert data["failed_round"].dims == ("seed",)
    assert data.attrs["algorithm"] == "Averaged(FedHSA)"


@pytest.mark.parametrize(("package", "method"), [("pandas", Result.to_pandas), ("xarray", Result.to_xarray)])
def test_a_missing_package_is_named_with_how_to_install_it(package, method, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"requires {package}.*pip install 'fedhsa\[data\]'"):
        method(make())


def test_mean_and_interval_are_over_seeds_and_of_any_record():
    """Of a quantity of either sign it is Student's: mean 0, standard error 1 / sqrt(3) * sqrt(2) / ..., by SciPy."""
    from scipy import stats

    result = make()
    np.testing.assert_allclose(result.mean(), result.error.mean(0))
    wide, narrow = result.interval(0.99), result.interval(0.5)
    assert (wide[0] < narrow[0]).all()
    assert (narrow[1] < wide[1]).all()
    values = result.records["theta"]
    low, high = result.interval(0.9, "theta")
    expected = stats.t.interval(0.9, 2, values.mean(0), stats.sem(values, axis=0))
    np.testing.assert_allclose([low, high], expected)
    with pytest.raises(ValueError, match=r"`quantity` must be one of the recorded quantities \(error, theta\)"):
        result.mean("norm")


def test_returns_have_students_interval_and_the_best_of_a_sweep_has_the_largest():
    from scipy import stats

    unknown, returns = np.full((3, 4), np.nan), np.random.default_rng(1).uniform(1.0, 9.0, size=(3, 4))
    good, bad = (make(error=unknown, records={"mean_return": shift + returns}) for shift in (2.0, 0.0))
    expected = stats.t.interval(0.9, 2, returns.mean(0), stats.sem(returns, axis=0))
    np.testing.assert_allclose(bad.interval(0.9), expected)
    sweep = Sweep(({"step_size": 0.1}, {"step_size": 0.2}, {"step_size": 0.3}), (bad, good, bad))
    assert sweep.best == {"step_size": 0.2}
    errors = tuple(with_error(np.full((3, 4), size)) for size in (3.0, np.inf, 2.0))
    assert Sweep(sweep.settings, errors).best == {"step_size": 0.3}


def test_the_cost_is_counted_when_it_is_first_asked_for_and_only_once():
    asked = []
    result = make(cost=lambda: asked.append(1) or COST)
    assert "FedHSA" in repr(result)
    assert not asked
    assert result.cost == result.cost == COST
    assert len(asked) == 1
    assert dataclasses.replace(result, cost=COST._replace(samples=7)).cost.samples == 7
    with pytest.raises(TypeError, match="cost"):
        Result(**{f.name: None for f in dataclasses.fields(Result) if f.name != "cost"})


def test_the_line_says_algorithm_error_seeds_rounds_and_what_went_wrong():
    assert repr(with_error([[2.0, 1e-3], [2.0, 3e-3]])) == "Averaged(FedHSA) error 2.0e-03   2 seeds, 1 round"
    failed = dataclasses.replace(make(), failed_round=np.array([-1, 3, -1]), complete=False)
    assert repr(failed).endswith("3 seeds, 6 rounds   1 of 3 seeds diverged   interrupted after round 6")
    rootless = make(error=np.full((3, 4), np.nan), records={"operator_norm": np.ones((3, 4))})
    assert "operator norm 1.0e+00" in repr(rootless)


@pytest.mark.parametrize(
    "error", [[[1.0]], [[1.0, np.nan]], [[np.nan, np.nan]], [[1.0, np.inf]], [[0.0, 0.0]], [[1.0, 1.0]], [[1.0, 0.1]]]
)
def test_notebooks_show_every_curve_however_degenerate(error):
    shown = with_error(error)._repr_html_()
    assert "Averaged(FedHSA)" in shown
    assert ("<svg" in shown) == (np.isfinite(error).sum() == 2 and min(error[0]) > 0)


def test_a_result_plots_itself():
    axes = make().plot(title="here").axes[0]
    assert axes.get_yscale() == "log"
    assert make(records={"norm": np.ones((3, 4))}).plot("norm").axes[0].get_ylabel() == "norm"


class Pair(NamedTuple):
    first: Any
    second: Any


class Module(eqx.Module):
    weight: Any


def test_parameters_of_any_structure_are_saved_and_those_of_containers_come_back_as_they_were(tmp_path):
    a, b = np.arange(6.0).reshape(3, 2), np.arange(3.0)
    cases = [
        (a, a),
        ({"w": [a, (b, None)]}, {"w": [a, (b, None)]}),
        (Pair(a, b), {"first": a, "second": b}),
        ([Module(a)], [{".weight": a}]),
    ]
    for theta, expected in cases:
        make(theta=theta, cost=lambda: COST).save(tmp_path / "result.npz")
        found = fh.load(tmp_path / "result.npz")
        assert eqx.tree_equal(found.theta, expected)
        assert found.cost == COST
