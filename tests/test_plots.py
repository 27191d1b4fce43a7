"""Figures and the interval that figure, table and file share."""

import copy
import dataclasses

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import fedhsa
from fedhsa import plots, statistics
from fedhsa.algorithms import Cost
from fedhsa.engine import Result
from fedhsa.theory import Prediction


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
    _, low, high = statistics.interval(rng.chisquare(5, size=(8, 20_000)))
    assert abs(np.mean((low < 5) & (high > 5)) - 0.95) < 0.015


def test_the_interval_is_positive_and_symmetric_for_the_logarithm():
    mean, low, high = statistics.interval([[1e-6, 1.0], [5.0, 2.0], [0.1, 3.0]])
    assert (low > 0).all()
    np.testing.assert_allclose(low * high, mean**2)


def test_equal_seeds_have_an_interval_of_no_width():
    mean, low, high = statistics.interval(np.full((3, 2), 0.5))
    np.testing.assert_array_equal([mean, low, high], 0.5)


def test_zeros_infinities_and_nans_have_an_interval():
    mean, low, high = statistics.interval([[0.0, np.inf, np.nan, 1.0], [0.0, 1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(mean, [0.0, np.inf, np.inf, 1.0])
    np.testing.assert_array_equal(low, mean)
    np.testing.assert_array_equal(high, mean)


def test_tiny_and_huge_errors_neither_overflow_nor_warn():
    mean, low, high = statistics.interval([[1e-300, 1e200], [3e-300, 3e200]])
    assert (low > 0).all()
    assert (low < mean).all()
    assert (mean < high).all()
    assert np.isfinite(high).all()


def test_one_seed_has_a_mean_but_no_interval():
    mean, low, high = statistics.interval([[1.0, 2.0]])
    np.testing.assert_array_equal(mean, [1.0, 2.0])
    assert np.isnan(low).all()
    assert np.isnan(high).all()


@pytest.mark.parametrize("error", [[1.0, 2.0], [[]], np.zeros((0, 3))])
def test_the_interval_refuses_what_is_not_seeds_by_records(error):
    with pytest.raises(ValueError, match=r"`error` must have shape \(seeds, records\), got"):
        statistics.interval(error)


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
    failed = np.array([57, 55, -1])
    error = np.exp(np.arange(60.0))[None] * np.ones((3, 1))
    error[(failed[:, None] >= 0) & (np.arange(60) >= failed[:, None])] = np.inf
    figure = plots.curves({"FedHSA": make(falling(3, 60)), "LocalSA": make(error, failed)})
    assert np.isfinite(np.asarray(figure.axes[0].lines[1].get_ydata())).sum() == 55  # up to the first seed that failed
    assert "LocalSA (diverged, round 55)" in labels(figure)
    assert figure.axes[0].get_ylim()[1] < 1e5


def test_an_error_of_exactly_zero_is_named():
    error = np.where(np.arange(40) < 20, np.exp(-np.arange(40.0)), 0.0)[None]
    figure = plots.curves({"FedHSA": make(error)})
    assert labels(figure)[0] == "FedHSA (reaches 0)"
    assert np.isfinite(np.asarray(figure.axes[0].lines[0].get_ydata())).sum() == 20  # which a logarithm cannot show


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_a_figure_without_a_positive_finite_error_is_still_a_figure(tmp_path, value):
    result = make(np.full((2, 3), value), [0, 0] if np.isinf(value) else None)
    plots.save(plots.curves({"FedHSA": result}), tmp_path / "nothing.png")
    assert (tmp_path / "nothing.png").stat().st_size > 0


def test_the_band_is_symmetric_around_the_mean_for_the_logarithm_or_on_the_linear_axis_of_returns():
    error = np.random.default_rng(0).chisquare(1, size=(6, 9))
    result = dataclasses.replace(make(error), records={"error": error, "mean_return": error})
    for quantity, scale in (("error", np.log), ("mean_return", np.asarray)):
        (shade,) = plots.curves({"FedHSA": result}, quantity=quantity).axes[0].collections
        edge = np.asarray(shade.get_paths()[0].vertices)
        for record, mean in enumerate(error.mean(0)):
            ends = scale(np.unique(edge[edge[:, 0] == record, 1]))
            assert ends[[0, -1]].mean() == pytest.approx(scale(mean), rel=1e-12)


def test_the_bars_of_a_sweep_are_its_intervals():
    rows = [{"step_size": s, "error": s, "low": s / 2, "high": 3 * s, "diverged": 0} for s in (0.1, 1.0)]
    bars = plots.sweep(rows, ["step_size"]).axes[0].collections[0].get_segments()
    np.testing.assert_allclose(bars, [[[0.1, 0.05], [0.1, 0.3]], [[1.0, 0.5], [1.0, 3.0]]])


def test_one_record_is_a_dot():
    line = plots.curves({"FedHSA": make([[1.0]])}).axes[0].lines[0]
    assert line.get_marker() == "o"


@pytest.mark.parametrize("values", [np.ones(6), np.ones(51), 0.5], ids=["per record", "per round", "number"])
def test_theory_is_dashed_and_in_the_legend(values):
    figure = plots.curves({"FedHSA": make(falling(records=6), every=10)}, theory={"FedHSA": values})
    dashed = figure.axes[0].lines[-1]
    assert dashed.is_dashed()
    assert np.ndim(values) == 0 or np.asarray(dashed.get_xdata()).tolist() == np.linspace(0, 50, len(values)).tolist()
    assert labels(figure)[1] == "predicted"


def with_basis(prediction, basis):
    law = copy.copy(prediction.law)
    law.basis = basis
    return dataclasses.replace(prediction, law=law)


def test_results_and_predictions_in_lists_are_named_after_their_algorithms_and_exact_ones_are_called_so():
    problem, method = quadratic(), fedhsa.FedHSA(0.02, local_steps=4)
    results = [fedhsa.simulate(problem, method, rounds=10, seeds=2)]
    prediction = predict(0.02)
    figure = plots.curves(results, theory=[prediction])
    assert labels(figure)[:2] == ["FedHSA", "exact"]
    np.testing.assert_allclose(figure.axes[0].lines[-1].get_ydata(), prediction.error(10))
    assert labels(plots.curves(results, theory=[with_basis(prediction, "pairs")]))[1] == "predicted"
    for undrawn in (predict(2.0), with_basis(prediction, "mean")):  # of which the second is not a mean-square error
        assert len(plots.curves(results, theory=[undrawn]).axes[0].lines) == 1
    with pytest.raises(ValueError, match="`results` has FedHSA twice: pass a mapping with a name for each"):
        plots.curves([*results, *results])
    with pytest.raises(TypeError, match=r"`theory` must be a mapping.*got a list of float"):
        plots.curves(results, theory=[0.5])  # pyright: ignore[reportArgumentType]


def test_theory_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"`theory\['FedHSA'\]`.*6.*51.*got shape \(7,\)"):
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


def quadratic(**options) -> fedhsa.Problem:
    return fedhsa.problems.quadratic.random(num_agents=3, dim=2, **options)


def predict(step: float, H: int = 4, method=fedhsa.FedHSA, problem: fedhsa.Problem | None = None) -> Prediction:
    return fedhsa.theory.predict(problem or quadratic(), method(step, local_steps=H))


def line(axes: Axes, name: str) -> Line2D:
    return next(line for line in axes.lines if line.get_label() == name)


def test_the_predicted_error_falls_to_the_floor_whose_parts_are_drawn():
    prediction = predict(0.02, method=fedhsa.LocalSA)
    axes = plots.decay({"LocalSA": prediction}).axes[0]
    curve = np.asarray(line(axes, "LocalSA").get_ydata())
    root = quadratic().theta_star
    assert curve[0] == pytest.approx(root @ root)
    assert curve.min() <= 1.05 * prediction.floor  # where it may dip below: the mean passes its limit on the way
    assert curve[-1] == pytest.approx(prediction.error_after(int(np.asarray(line(axes, "LocalSA").get_xdata())[-1])))
    levels = [np.asarray(line.get_ydata())[0] for line in axes.lines if len(np.asarray(line.get_ydata())) == 2]
    bias = prediction.bias @ prediction.bias
    np.testing.assert_allclose(levels, [prediction.floor, bias, prediction.noise_variance])
    assert levels[0] == pytest.approx(levels[1] + levels[2])
    assert axes.get_yscale() == "log"


def test_more_agents_divide_the_noise_and_leave_the_bias():
    prediction = predict(0.02, method=fedhsa.LocalSA)
    axes = plots.speedup({"LocalSA": prediction}).axes[0]
    curve = line(axes, "LocalSA")
    agents, floors = np.asarray(curve.get_xdata()), np.asarray(curve.get_ydata())
    bias = prediction.heterogeneity_bias @ prediction.heterogeneity_bias
    np.testing.assert_allclose(floors, bias + prediction.noise_variance * 3 / agents, rtol=1e-9)
    marks = {line.get_marker(): line for line in axes.lines if len(np.asarray(line.get_xdata())) == 1}
    assert np.asarray(marks["o"].get_xdata()).item() == 3
    assert np.asarray(marks["D"].get_ydata()).item() == pytest.approx(2 * bias)


def test_floors_are_drawn_up_to_the_last_stable_value():
    sweep = [predict(step) for step in (0.1, 0.3, 0.5)]
    axes = plots.floors({"FedHSA": sweep}, "step_size", current={"FedHSA": sweep[1]}).axes[0]
    np.testing.assert_array_equal(line(axes, "FedHSA").get_xdata(), [0.1, 0.3, 0.5])
    np.testing.assert_allclose(line(axes, "FedHSA").get_ydata(), [p.floor for p in sweep])
    verticals = [x for entry in axes.lines for x in [np.asarray(entry.get_xdata())] if len(x) == 2 and x[0] == x[1]]
    assert [x[0] for x in verticals] == [pytest.approx(sweep[0].max_step_size)]


def test_a_method_without_local_steps_is_a_level():
    alone = fedhsa.theory.predict(quadratic(), fedhsa.SynchronisedSA(0.02))
    sweeps = {"FedHSA": [predict(0.02, H) for H in (1, 2, 4)], "SynchronisedSA": [alone]}
    axes = plots.floors(sweeps, "local_steps").axes[0]
    assert set(np.asarray(line(axes, "SynchronisedSA").get_ydata())) == {alone.floor}
    assert axes.get_xlabel() == "local steps $H$"


@pytest.mark.slow
def test_the_analysis_has_four_panels_and_one_legend_outside_them(tmp_path):
    predictions = {"FedHSA": predict(0.02), "LocalSA": predict(0.02, method=fedhsa.LocalSA)}
    sweeps = {
        "step_size": {"FedHSA": [predict(step) for step in (0.01, 0.02)]},
        "local_steps": {"FedHSA": [predict(0.02, H) for H in (1, 4)]},
    }
    figure = plots.analysis(predictions, sweeps, target=1e-3, title="a title")
    wanted = ["round $t$", "number of agents $M$", "local steps $H$", r"step size $\eta$"]
    assert [axes.get_xlabel() for axes in figure.axes] == wanted
    assert str(line(figure.axes[0], "LocalSA").get_color()) == plots.COLOURS["LocalSA"]
    assert {"FedHSA", "LocalSA", "floor", "target"} <= set(labels(figure))
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1
    assert all(legend.y0 >= axes.get_window_extent().y1 for axes in figure.axes)
    plots.save(figure, tmp_path / "analysis")
    assert (tmp_path / "analysis.png").stat().st_size > 10_000


def test_a_panel_that_was_left_out_and_a_method_that_diverges_say_so():
    figure = plots.analysis({"FedHSA": predict(5.0)}, {}, absent="too dear")
    texts = [axes.texts[0].get_text() for axes in figure.axes]
    assert texts == ["every method diverges here"] * 2 + ["too dear"] * 2
    assert "FedHSA (diverges)" in labels(figure)


def test_without_noise_there_is_no_floor_to_draw():
    silent = predict(0.02, problem=quadratic().noiseless())
    figure = plots.analysis({"FedHSA": silent}, {"step_size": {"FedHSA": [silent]}})
    assert figure.axes[0].get_ylim()[0] > 1e-20
    figure.draw_without_rendering()


@pytest.mark.parametrize("draw", [plots.decay, plots.speedup, plots.floors, lambda _: plots.analysis({}, {})])
def test_no_predictions_are_refused(draw):
    with pytest.raises(ValueError, match="is empty"):
        draw({})
