"""Figures of comparisons: many methods stay apart, and what cannot be drawn as a curve is not lost."""

import numpy as np
import pytest

from fedhsa import plots
from fedhsa.plots._compare import Trace, styles

ROUNDS = np.arange(0, 101, 10)


def trace(level: float = 1.0, **changes) -> Trace:
    error = level * np.exp(-np.outer([1.0, 1.1, 0.9], ROUNDS / 30))
    return Trace(error, ROUNDS, 10 * ROUNDS, 160 * ROUNDS)._replace(**changes)


def test_sixteen_methods_all_look_different_and_the_known_ones_as_ever():
    names = ["FedHSA", "LocalSA", *(f"method {i}" for i in range(14))]
    found = styles(names)
    assert list(found) == names
    assert (found["FedHSA"]["color"], found["LocalSA"]["color"]) == (plots.COLOURS["FedHSA"], plots.COLOURS["LocalSA"])
    assert len({(str(look["color"]), str(look["linestyle"])) for look in found.values()}) == 16


def test_each_panel_shows_every_method_against_its_own_quantity():
    figure = plots.compare({"FedHSA": trace(), "LocalSA": trace(2.0)}, target=0.5)
    for ax, factor, first in zip(figure.axes, (1, 10, 160), (1, 0, 1), strict=True):
        for line, level in zip(ax.lines[:2], (1.0, 2.0), strict=True):
            np.testing.assert_array_equal(line.get_xdata(), factor * ROUNDS[first:])
            np.testing.assert_allclose(line.get_ydata(), trace(level).error.mean(0)[first:])
        assert ax.lines[2].get_ydata() == [0.5, 0.5]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "FedHSA",
        "LocalSA",
        "mean of 3 seeds: too few for an interval",
    ]


def test_a_method_that_sends_everything_at_once_is_a_point():
    once = np.full(len(ROUNDS), 64.0)
    figure = plots.compare({"OneShotAveraging": trace(exchanges=once / 64, bytes=once)})
    for ax, at in ((figure.axes[0], 1.0), (figure.axes[2], 64.0)):
        assert ax.lines[0].get_xdata() == [at]
        assert ax.lines[0].get_ydata() == [trace().error[:, -1].mean()]


def test_a_curve_that_diverges_neither_hides_the_others_nor_breaks_the_figure(tmp_path):
    error = trace().error.copy()
    error[:, 5:] = 10.0 ** np.arange(20, 26)
    lost = np.full_like(error, np.inf)
    lost[:, 0] = 1.0
    figure = plots.compare({"FedHSA": trace(), "wild": trace(error=error), "lost": trace(error=lost)})
    plots.save(figure, tmp_path / "compare.png")
    assert figure.axes[0].get_ylim()[1] <= 1e3


def test_tuning_marks_the_step_chosen_and_those_that_diverged(tmp_path):
    figure = plots.tuning({"FedHSA": ([0.1, 10.0, 0.01], [0.2, np.inf, 0.5])}, {"FedHSA": 0.1})
    plots.save(figure, tmp_path / "tuning.png")
    curve, ring, cross = figure.axes[0].lines
    np.testing.assert_array_equal(curve.get_xdata(), [0.01, 0.1, 10.0])
    np.testing.assert_array_equal(ring.get_xydata(), [[0.1, 0.2]])
    np.testing.assert_array_equal(cross.get_xdata(), [10.0])
    other = plots.tuning({"FedHSA": ([0.1, 0.01], [0.2, 0.5])}, {"FedHSA": 0.01})  # chosen by something else
    np.testing.assert_array_equal(other.axes[0].lines[1].get_xydata(), [[0.01, 0.5]])


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="`traces` is empty"):
        plots.compare({})
    with pytest.raises(ValueError, match="`trials` is empty"):
        plots.tuning({}, {})
