"""Figures and the interval that figure, table and file share."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedhsa import plots
from fedhsa.engine import Cost, Result


def make(error, failed=None, every=1) -> Result:
    error = np.asarray(error, dtype=float)
    seeds, records = error.shape
    return Result(
        error=error,
        theta=np.zeros((seeds, 2)),
        rounds=np.arange(records) * every,
        records={"error": error},
        failed_round=np.full(seeds, -1) if failed is None else np.asarray(failed),
        cost=Cost(1, 2, 2, 1, 1),
        settings={"algorithm": {"name": "FedHSA"}},
        timings={"compile": 0.0, "run": 0.0},
    )


def falling(seeds=4, records=50, floor=1e-3) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.exp(-0.2 * np.arange(records)) + floor * rng.chisquare(3, size=(seeds, records))


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def colour(figure: Figure, name: str) -> str:
    return next(str(line.get_color()) for line in figure.axes[0].lines if line.get_label() == name)


def test_the_interval_contains_the_mean_about_95_percent_of_the_time():
    rng = np.random.default_rng(1)
    _, low, high = plots.interval(rng.chisquare(5, size=(8, 20_000)))
    assert abs(np.mean((low < 5) & (high > 5)) - 0.95) < 0.015


def test_the_interval_is_positive_and_symmetric_for_the_logarithm():
    mean, low, high = plots.interval([[1e-6, 1.0], [5.0, 2.0], [0.1, 3.0]])
    assert (low > 0).all()
    np.testing.assert_allclose(low * high, mean**2)


def test_equal_seeds_have_an_interval_of_no_width():
    mean, low, high = plots.interval(np.full((3, 2), 0.5))
    np.testing.assert_array_equal([mean, low, high], 0.5)


def test_zeros_infinities_and_nans_have_an_interval():
    mean, low, high = plots.interval([[0.0, np.inf, np.nan, 1.0], [0.0, 1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(mean, [0.0, np.inf, np.inf, 1.0])
    np.testing.assert_array_equal(low, mean)
    np.testing.assert_array_equal(high, mean)


def test_tiny_and_huge_errors_neither_overflow_nor_warn():
    mean, low, high = plots.interval([[1e-300, 1e200], [3e-300, 3e200]])
    assert (low > 0).all()
    assert (low < mean).all()
    assert (mean < high).all()
    assert np.isfinite(high).all()


def test_one_seed_has_a_mean_but_no_interval():
    mean, low, high = plots.interval([[1.0, 2.0]])
    np.testing.assert_array_equal(mean, [1.0, 2.0])
    assert np.isnan(low).all()
    assert np.isnan(high).all()


@pytest.mark.parametrize("error", [[1.0, 2.0], [[]], np.zeros((0, 3))])
def test_the_interval_refuses_what_is_not_seeds_by_records(error):
    with pytest.raises(ValueError, match=r"`error` must have shape \(seeds, records\), got"):
        plots.interval(error)


def test_an_algorithm_has_the_same_colour_in_every_figure():
    result = make(falling())
    together = plots.curves({"Mine": result, "LocalSA": result, "FedHSA": result})
    alone = plots.curves({"LocalSA": result})
    assert colour(together, "LocalSA") == colour(alone, "LocalSA") == plots.COLOURS["LocalSA"]


def test_unknown_names_get_colours_that_differ():
    names = ["FedHSA", "LocalSA", "SynchronisedSA", "SA", *"abcd"]
    figure = plots.curves({name: make(falling(1)) for name in names})
    assert len({colour(figure, name) for name in names}) == len(names)


def test_axes_are_labelled_with_symbols_and_the_error_axis_is_logarithmic():
    axes = plots.curves({"FedHSA": make(falling())}).axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_xlabel() == "round $t$"
    assert axes.get_ylabel().startswith("$E_t = ")


def test_rounds_are_those_recorded():
    figure = plots.curves({"FedHSA": make(falling(records=11), every=10)})
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), np.arange(0, 101, 10))


def test_long_curves_are_thinned_and_keep_their_ends():
    figure = plots.curves({"FedHSA": make(falling(records=20_001))})
    rounds = np.asarray(figure.axes[0].lines[0].get_xdata())
    assert len(rounds) <= plots.POINTS
    assert (rounds[0], rounds[-1]) == (0, 20_000)


def test_a_diverged_curve_ends_is_named_and_does_not_stretch_the_axis():
    error = np.exp(np.arange(60.0))[None] * np.ones((3, 1))
    error[:, 55:] = np.inf
    figure = plots.curves({"FedHSA": make(falling(3, 60)), "LocalSA": make(error, [55] * 3)})
    assert "LocalSA (diverged, round 55)" in labels(figure)
    assert figure.axes[0].get_ylim()[1] < 1e5


def test_an_error_of_exactly_zero_is_named():
    error = np.where(np.arange(40) < 20, np.exp(-np.arange(40.0)), 0.0)[None]
    assert labels(plots.curves({"FedHSA": make(error)})) == ["FedHSA (reaches 0)"]


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_a_figure_without_a_positive_finite_error_is_still_a_figure(tmp_path, value):
    result = make(np.full((2, 3), value), [0, 0] if np.isinf(value) else None)
    plots.save(plots.curves({"FedHSA": result}), tmp_path / "nothing")
    assert (tmp_path / "nothing.png").stat().st_size > 0


def test_one_record_is_a_dot():
    line = plots.curves({"FedHSA": make([[1.0]])}).axes[0].lines[0]
    assert line.get_marker() == "o"


@pytest.mark.parametrize("values", [np.ones(6), np.ones(51), 0.5], ids=["per record", "per round", "number"])
def test_theory_is_dashed_and_in_the_legend(values):
    figure = plots.curves({"FedHSA": make(falling(records=6), every=10)}, theory={"FedHSA": values})
    assert figure.axes[0].lines[-1].is_dashed()
    assert "theory" in labels(figure)


def test_theory_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"`theory\['FedHSA'\]`.*6.*51.*got \(7,\)"):
        plots.curves({"FedHSA": make(falling(records=6), every=10)}, theory={"FedHSA": np.ones(7)})


def test_no_results_are_refused():
    with pytest.raises(ValueError, match="`results` is empty"):
        plots.curves({})


def test_the_legend_does_not_cover_the_axes():
    names = ["FedHSA", "LocalSA", "SynchronisedSA", "a rather long name of a method"]
    figure = plots.curves({name: make(falling()) for name in names}, title="a title")
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.y0 >= figure.axes[0].get_window_extent().y1
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1


def test_curves_are_drawn_into_given_axes():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plots.curves({"FedHSA": make(falling())}, ax=right, title="right") is figure
    assert len(right.lines) == 1
    assert not left.lines
    assert right.get_legend().get_title().get_text() == "right"


def test_save_writes_png_and_pdf_and_the_same_bytes_each_time(tmp_path):
    for name in ("a.1", "b.1"):  # a dot in the name is not a suffix
        plots.save(plots.curves({"FedHSA": make(falling())}), tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.1.pdf", "a.1.png", "b.1.pdf", "b.1.png"]
    for suffix in (".png", ".pdf"):
        assert (tmp_path / f"a.1{suffix}").read_bytes() == (tmp_path / f"b.1{suffix}").read_bytes()
