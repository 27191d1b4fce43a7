"""Maps of value functions: what is drawn in which cell, on which scale, and what is refused."""

import numpy as np
import pytest

from fedhsa import plots
from fedhsa.environments import Model
from fedhsa.environments.worlds import random, random_walk, windy_cliff

ARROWS = "←↓→↑"


def lake(cells="S.HG", num_agents=1):
    """Two rows and columns of sure moves; holes and the goal end the episode."""
    sure = np.eye(4)[[[0, 2, 1, 0], [0, 3, 1, 1], [2, 2, 3, 0], [2, 3, 3, 1]]]
    rows = [cells] * num_agents if isinstance(cells, str) else cells
    ends = [[letter in "GH" for letter in row] for row in rows]
    P = np.broadcast_to(sure, (len(rows), 4, 4, 4))
    return Model(P, np.zeros((len(rows), 4, 4)), 0.9, 0, ends, grid=(2, 2), actions=tuple(ARROWS), cells=rows)


def mesh(ax) -> np.ma.MaskedArray:
    return np.ma.asarray(ax.collections[0].get_array())


def marks(ax):
    """Where each kind of mark is: `{"hole": [(x, y)], ...}`."""
    found = {}
    for points in ax.collections[1:]:
        found.setdefault(points.get_gid(), []).append(tuple(points.get_offsets()[0]))
    return found


def numbers(ax):
    return {text.get_position(): text.get_text() for text in ax.texts}


def arrows(ax):
    """The arrow of each triangle, its cell, and its area."""
    result = []
    for patch in ax.patches:
        (ax_, ay), (bx, by), (cx, cy) = corners = patch.get_xy()[:3]
        middle = np.mean(corners, axis=0)
        area = abs((bx - ax_) * (cy - ay) - (by - ay) * (cx - ax_)) / 2
        result.append((patch.get_gid(), (int(middle[0]), int(middle[1])), area))
    return result


def test_cells_have_their_values_and_those_without_have_none():
    (ax, bar) = plots.value_map(lake(), [0.25, 0.5, 0.0, 0.0]).axes
    shown = mesh(ax)
    np.testing.assert_array_equal(shown.mask, [[False, False], [True, True]])
    assert shown[0].tolist() == [0.25, 0.5]
    assert numbers(ax) == {(0.5, 0.5): "0.25", (1.5, 0.5): "0.50"}
    assert ax.get_ylim() == (2, 0)  # the first row is above
    assert bar.get_ylabel() == "value"
    assert arrows(ax) == []


def test_start_hole_and_goal_are_marked_and_explained():
    figure = plots.value_map(lake(), np.arange(4.0))
    places = marks(figure.axes[0])
    assert places["hole"] == [(0.5, 1.5)]
    assert places["goal"] == [(1.5, 1.5)]
    ((x, y),) = places["start"]
    assert 0 < x < 0.5  # beside the number
    assert 0 < y < 0.5
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["start", "goal", "hole"]


def test_triangles_point_where_the_policy_goes_and_their_areas_are_its_chances():
    policy = np.zeros((4, 4))
    policy[:, 0] = 1.0
    policy[0], policy[1] = [0.0, 0.0, 1.0, 0.0], [0.2, 0.8, 0.0, 0.0]
    drawn = arrows(plots.value_map(lake(), np.arange(4.0), policy).axes[0])
    assert [(arrow, cell) for arrow, cell, _ in drawn] == [("→", (0, 0)), ("←", (1, 0)), ("↓", (1, 0))]  # none at ends
    whole, first, second = (area for *_, area in drawn)
    assert first / whole == pytest.approx(0.2)
    assert second / whole == pytest.approx(0.8)


@pytest.mark.parametrize(("action", "side"), [("←", (-1, 0)), ("↓", (0, 1)), ("→", (1, 0)), ("↑", (0, -1))])
def test_the_tip_of_a_triangle_is_at_the_side_it_points_to(action, side):
    model = lake()
    figure = plots.value_map(model, np.arange(4.0), np.full(4, model.actions.index(action)))
    corners = figure.axes[0].patches[0].get_xy()[:3] - 0.5
    ahead = corners @ side
    assert ahead[0] > ahead[1:].max() > 0.2
    assert abs(corners[0] @ side[::-1]) < 1e-12


def test_panels_share_one_scale_of_colours():
    figure = plots.value_map(lake(), {"low": [0.0, 1.0, 99.0, 99.0], "high": [2.0, 3.0, -99.0, 99.0]}, label="V")
    low, high, bar = figure.axes
    assert (low.get_title(), high.get_title(), bar.get_ylabel()) == ("low", "high", "V")
    for ax in (low, high):
        assert ax.collections[0].get_clim() == (0.0, 3.0)  # cells without a value do not count


def test_differences_have_zero_in_the_middle_of_their_scale():
    figure = plots.value_map(lake(), np.array([-0.5, 0.2, 9.0, 9.0]), signed=True)
    colours = figure.axes[0].collections[0]
    assert (colours.norm.vmin, colours.norm.vmax) == (-0.5, 0.5)  # holes and goals do not count
    below, middle, above = (colours.cmap(colours.norm(value))[:3] for value in (-0.5, 0.0, 0.5))
    assert below[2] > below[0]
    assert above[0] > above[2]
    assert min(middle) > 0.9


def test_an_agent_is_drawn_on_its_own_map():
    model = lake(["S.HG", "SH.G"])
    figure = plots.value_map(model, {"a": np.ones(4), "b": np.ones(4)}, agent={"b": 1})
    first, second = figure.axes[:2]
    assert marks(first)["hole"] == [(0.5, 1.5)]
    assert marks(second)["hole"] == [(1.5, 0.5)]
    assert len(plots.value_map(model, {"a": np.ones(4), "b": np.zeros(4)}, [1, 1, 1, 1]).axes[1].patches) == 2
    one = plots.value_map(model, {"a": np.ones(4), "b": np.zeros(4)}, {"b": [1, 1, 1, 1]})
    assert [len(ax.patches) for ax in one.axes[:2]] == [0, 2]


def test_panels_wrap_and_the_last_row_may_be_shorter():
    figure = plots.value_map(lake(), {str(i): np.arange(4.0) for i in range(5)}, columns=3)
    assert [ax.get_title() for ax in figure.axes[:5]] == ["0", "1", "2", "3", "4"]
    assert len(figure.axes) == 6
    figure.draw_without_rendering()
    heights = [ax.get_position().y0 for ax in figure.axes[:5]]
    assert heights[0] == heights[2] > heights[3] == heights[4]


def test_a_cliff_where_life_goes_on_has_values_and_a_mark_in_the_corner():
    model = windy_cliff(num_agents=1)
    ax = plots.value_map(model, model.values()[0]).axes[0]
    assert not np.ma.is_masked(mesh(ax))
    assert len(marks(ax)["cliff"]) == 2
    assert all(y < 3.5 for _, y in marks(ax)["cliff"])
    assert all("-" not in text for text in numbers(ax).values())
    assert any(text.startswith("\u2212") for text in numbers(ax).values())


def test_text_is_light_on_dark_and_dark_on_light():
    model = random_walk(num_agents=1)
    texts = plots.value_map(model, model.values()[0]).axes[0].texts
    assert texts[0].get_color() == "white"
    assert texts[-1].get_color() == "black"
    assert [text.get_text() for text in texts] == ["0.17", "0.33", "0.50", "0.67", "0.83"]


def test_small_cells_have_no_numbers():
    wide = Model(np.ones((40, 1, 40)) / 40, np.zeros((40, 1)), 0.9, grid=(1, 40))
    assert len(plots.value_map(wide, np.arange(40.0)).axes[0].texts) == 0


def test_equal_values_are_drawn():
    figure = plots.value_map(lake(), np.ones(4))
    figure.draw_without_rendering()
    assert figure.axes[0].collections[0].get_clim() == (1.0, 2.0)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (random(num_agents=1), {"values": np.zeros(10)}, "`model` must be a grid world"),
        (lake(), {"values": np.zeros(3)}, r"`values` must have shape \(4,\), got \(3,\)"),
        (lake(), {"values": {"a": np.zeros(3)}}, r"`values\['a'\]` must have shape"),
        (lake(), {"values": {}}, "`values` is empty"),
        (lake(), {"values": np.full(4, np.nan)}, "`values` must be finite"),
        (lake(), {"values": np.ones(4), "agent": 1}, "`agent` must be below 1, the number of agents, got 1"),
        (lake(), {"values": {"a": np.ones(4)}, "agent": {"b": 0}}, "`agent` names 'b', which is not among `values`: a"),
        (lake(), {"values": {"a": np.ones(4)}, "policy": {"b": None}}, "`policy` names 'b'"),
        (lake(), {"values": np.ones(4), "columns": 0}, "`columns` must be at least 1"),
        (random_walk(), {"values": np.ones(7), "policy": np.zeros(7, int)}, "none of the actions step is an arrow"),
    ],
)
def test_what_cannot_be_drawn_is_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.value_map(model, **arguments)
