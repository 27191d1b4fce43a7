"""The figure of what sites measured, and axes on which flat noise looks flat."""

import dataclasses

import numpy as np
import pytest

import fedhsa as fh
from fedhsa import plots


@pytest.fixture(scope="module")
def measured():
    """Two sites whose numbers stay within a factor of two, with a reference each."""
    problem = fh.problems.quadratic.random(num_agents=2, dim=2)
    result = fh.simulate(problem, fh.FedHSA(0.05, 2), rounds=4)
    each = np.array([[2.0, 4.0], [1.9, 3.0], [2.1, 3.1], [np.nan, 3.0], [2.0, 2.9]])[None]
    records = {"mae_by_agent": each, "mae": np.nanmean(each, axis=2)}
    records |= {"mae_naive_by_agent": np.full((1, 5, 2), 3.5), "mae_naive": np.full((1, 5), 3.5)}
    settings = {**result.settings, "measured": ["mae", "mae_naive"]}
    return dataclasses.replace(result, records=records, error=np.full((1, 5), np.nan), settings=settings)


def test_the_figure_has_a_curve_for_each_site_their_average_and_their_references(measured):
    (ax,) = plots.sites(measured).axes
    each = measured.records["mae_by_agent"][0]
    drawn = [np.asarray(line.get_ydata(), float) for line in ax.lines]
    for wanted in (each[:, 0], each[:, 1], measured.records["mae"][0]):
        assert any(len(line) == 5 and np.array_equal(line, wanted, equal_nan=True) for line in drawn)
    assert sum(len(line) == 2 and line.tolist() == [3.5, 3.5] for line in drawn) == 2
    colours = [line.get_color() for line in ax.lines if len(np.asarray(line.get_ydata())) == 5]
    assert len(set(colours)) == 3


def test_flat_noise_is_drawn_on_a_linear_axis_from_zero_and_what_spans_a_large_factor_is_not(measured):
    (ax,) = plots.sites(measured).axes
    assert ax.get_yscale() == "linear"
    assert ax.get_ylim()[0] == 0
    assert ax.get_ylim()[1] > 4
    assert measured.quantity == "mae"  # there is no error to be judged by
    (curve,) = measured.plot().axes
    assert (curve.get_yscale(), curve.get_ylim()[0]) == ("linear", 0)
    wide = dataclasses.replace(measured, records={**measured.records, "mae": np.array([[100.0, 9, 3, 1, 0.1]])})
    assert wide.plot().axes[0].get_yscale() == "log"
    below = dataclasses.replace(measured, records={**measured.records, "mae": np.array([[-5.0, -4, -3, -3, -3]])})
    assert below.plot().axes[0].get_ylim()[0] < -5


def test_a_result_without_measurements_or_the_wrong_name_is_told(measured):
    with pytest.raises(ValueError, match="`metric` must be one of mae, mae_naive, got 'rmse'"):
        plots.sites(measured, "rmse")
    with pytest.raises(ValueError, match=r"`deploy.MeasuredAgent`"):
        plots.sites(dataclasses.replace(measured, settings={**measured.settings, "measured": []}))
