"""Figures obey the session, fit where they are put, and call and colour a method alike everywhere."""

import itertools
import logging
import pathlib
import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from fedhsa import plots
from fedhsa.plots import _style
from fedhsa.plots._style import PALETTE, STYLE, colours

WHITE, CSS = "#ffffff", pathlib.Path("src/fedhsa/experiments/page/page.css")
DARK = "#14171b"

# Machado, Oliveira and Fernandes (2009), severity 1: what the colour-blind see, in linear RGB.
VISION = {
    "all cones": np.eye(3),
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])


@pytest.fixture(autouse=True)
def _default_session():
    """Every test begins with Matplotlib's own settings and leaves none behind."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield
    plt.close("all")


def linear(colour) -> np.ndarray:
    channels = np.array(to_rgb(colour))
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(first, second) -> float:
    """As WCAG defines it."""
    lights = sorted(float(linear(colour) @ XYZ[1]) for colour in (first, second))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def lab(light: np.ndarray) -> np.ndarray:
    t = (np.clip(light, 0, 1) @ XYZ.T) / XYZ.sum(1)
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def curve(seeds=8, records=40, key=0, floor=0.02, every=1) -> plots.Curve:
    noise = np.random.default_rng(key).normal(size=(seeds, records))
    error = (np.exp(-np.arange(records) / 4) + floor) * np.exp(0.2 * noise)
    return plots.Curve(error, every * np.arange(records), np.full(seeds, -1))


def trace(**options) -> plots.Trace:
    error, rounds, _ = curve(**options)
    return plots.Trace(error, 2 * rounds, 10 * rounds, 160 * rounds)


SWEEP = [
    {"step_size": s, "local_steps": h, "error": s * h, "low": s * h / 2, "high": 2 * s * h, "diverged": 0}
    for s in (0.01, 0.1)
    for h in (1, 10)
]


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("colour", PALETTE)
def test_every_line_stands_out_from_white_paper_and_from_the_dark_page(colour):
    assert contrast(colour, WHITE) >= 3
    assert contrast(colour, DARK) >= 3
    assert contrast(_style.darker(colour), WHITE) >= 3  # theory; the page puts its figures on white


def test_the_dark_page_is_as_dark_as_these_tests_assume():
    assert f"--paper: {DARK}" in CSS.read_text()


@pytest.mark.parametrize("vision", VISION)
def test_the_colour_blind_can_tell_all_colours_apart(vision):
    """Distances in CIELAB, where about 2 can just be seen; 12 is what thin lines need."""
    seen = [lab(linear(colour) @ np.array(VISION[vision]).T) for colour in PALETTE]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) >= 12


def test_a_method_has_its_colour_in_every_kind_of_figure_whatever_the_order_and_the_words():
    names = {"Mine": "ours", "FedHSA": "theirs"}
    drawn = [
        plots.curves({name: curve() for name in names}, labels=names).axes[0].lines[0],
        plots.curves({name: curve() for name in [*names][::-1]}).axes[0].lines[1],
        plots.compare({"Mine": trace(), "Local SA": trace()}).axes[0].lines[0],
        plots.tuning({"Mine": ([0.1, 1.0], [1.0, 2.0])}, {"Mine": 0.1}).axes[0].lines[0],
        plots.sweep(SWEEP[::2], ["step_size"], algorithm="Mine").axes[0].lines[0],
    ]
    assert {to_hex(line.get_color()) for line in drawn} == {colours(["Mine"])["Mine"].lower()}
    assert colours(["Local SA"])["Local SA"] == colours(["LocalSA"])["LocalSA"] == plots.COLOURS["LocalSA"]


def test_the_colour_of_a_name_does_not_depend_on_the_process():
    """Python's own hash does; the sum here was worked out apart (CRC-32 of the three letters)."""
    assert colours(["abc"])["abc"] == _style.FALLBACK[0x352441C2 % 8]


def test_a_method_with_settings_has_the_colour_of_the_method_unless_that_is_there_too():
    alone = colours(["FedHSA(local_steps=50)", "LocalSA(0.1, 5)"])
    assert list(alone.values()) == [plots.COLOURS["FedHSA"], plots.COLOURS["LocalSA"]]
    both = colours(["FedHSA(local_steps=50)", "FedHSA"])
    assert both["FedHSA"] == plots.COLOURS["FedHSA"] != both["FedHSA(local_steps=50)"]


@pytest.mark.parametrize("key", range(20))
def test_no_two_of_twelve_names_have_the_same_colour(key):
    rng = np.random.default_rng(key)
    names = [*rng.choice(list(plots.COLOURS), 3, replace=False), *(f"method {n}" for n in rng.integers(10**6, size=9))]
    assert len(set(colours(names).values())) == 12


def test_a_colour_entered_by_the_user_counts_everywhere(monkeypatch):
    monkeypatch.setitem(plots.COLOURS, "Mine", "#123456")
    assert plots.curves({"Mine": curve()}).axes[0].lines[0].get_color() == "#123456"


def test_what_the_session_has_changed_wins_over_the_style_of_the_house():
    ours = plots.curves({"FedHSA": curve()})
    assert ours.axes[0].xaxis.label.get_size() == STYLE["axes.labelsize"]
    assert not ours.axes[0].spines["top"].get_visible()
    matplotlib.rcParams.update({"font.family": "serif", "lines.linewidth": 3.0, "axes.linewidth": 2.0})
    matplotlib.rcParams.update({"figure.figsize": (9, 4), "font.size": 20, "xtick.labelsize": 5})
    theirs = plots.curves({"FedHSA": curve()})
    ax = theirs.axes[0]
    assert ax.xaxis.label.get_family() == ["serif"]
    assert ax.xaxis.label.get_size() == 20  # Matplotlib's own, in proportion to the font
    assert ax.xaxis.get_ticklabels()[0].get_size() == 5
    assert ax.lines[0].get_linewidth() == 3.0
    assert ax.spines["left"].get_linewidth() == 2.0
    assert theirs.get_size_inches().tolist() == [9, 4]


def test_style_sheets_with_dark_paper_have_theory_and_grey_lines_that_are_seen():
    plt.style.use("dark_background")
    figure = plots.curves({"FedHSA": curve()}, theory={"FedHSA": 0.1})
    plots.compare({"FedHSA": trace()}, target=0.1)
    assert all(contrast(line.get_color(), "black") >= 3 for line in figure.axes[0].lines)


def test_the_colours_of_the_session_are_taken_and_stay_with_the_methods():
    matplotlib.rcParams["axes.prop_cycle"] = matplotlib.cycler(color=["#111111", "#222222", "#333333"])
    for names in (["FedHSA", "LocalSA"], ["LocalSA", "FedHSA"]):
        figure = plots.curves({name: curve() for name in names})
        found = dict(zip(names, (line.get_color() for line in figure.axes[0].lines), strict=True))
        assert found == {"FedHSA": "#111111", "LocalSA": "#222222"}


def test_a_figure_leaves_the_session_as_it_was():
    matplotlib.rcParams["font.size"] = 13
    before = dict(matplotlib.rcParams)
    plots.curves({"FedHSA": curve()})
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("width", [2.5, *(pytest.param(w, marks=pytest.mark.slow) for w in (3.25, 7.0))])
@pytest.mark.parametrize(
    "draw",
    [
        lambda **o: plots.curves(
            {"FedHSA": curve(), "Local SA with a name": curve(key=1)}, theory={"FedHSA": 0.1}, **o
        ),
        pytest.param(
            lambda **o: plots.compare({"FedHSA": trace(), "LocalSA": trace(key=1)}, target=0.1, **o),
            marks=pytest.mark.slow,
        ),
        lambda **o: plots.sweep(SWEEP, ["step_size", "local_steps"], seeds=8, **o),
    ],
    ids=["curves", "compare", "sweep"],
)
def test_a_figure_is_as_wide_as_asked_and_nothing_sticks_out(draw, width):
    figure = draw(width=width, title=r"quadratic: $M = 20$, $d = 10$, $H = 10$, $\eta = 0.01$")
    figure.draw_without_rendering()
    assert figure.get_size_inches()[0] == width
    extents = [figure.legends[0].get_window_extent(), *(ax.get_tightbbox() for ax in figure.axes)]
    for extent in extents:
        assert extent.x0 >= -1
        assert extent.x1 <= figure.bbox.x1 + 1
        assert extent.y0 >= -1
        assert extent.y1 <= figure.bbox.y1 + 1
    for one, other in itertools.combinations(extents, 2):
        assert not _overlap(one, other)


def _overlap(one, other) -> bool:
    return min(one.x1, other.x1) - max(one.x0, other.x0) > 2 and min(one.y1, other.y1) - max(one.y0, other.y0) > 2


@pytest.mark.parametrize("layout", [None, *(pytest.param(x, marks=pytest.mark.slow) for x in ("tight", "constrained"))])
def test_in_ordinary_subplots_no_label_is_cut_or_covered(layout):
    figure, axes = plt.subplots(2, 2, layout=layout)
    named = {"FedHSA": curve(), "LocalSA": curve(key=1, floor=0.05)}
    assert plots.curves(named, theory={"FedHSA": 0.1}, ax=axes[0, 0]) is figure
    plots.compare({"FedHSA": trace(), "LocalSA": trace(key=1)}, against="bytes", ax=axes[0, 1])
    plots.sweep(SWEEP, ["step_size", "local_steps"], seeds=8, ax=axes[1, 0])
    plots.tuning({"FedHSA": ([0.1, 1.0], [1.0, 2.0])}, {"FedHSA": 0.1}, ax=axes[1, 1])
    figure.draw_without_rendering()
    boxes = [ax.get_tightbbox() for ax in axes.ravel()]
    for box in boxes:
        assert min(box.x0, box.y0) >= -1
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1
    assert not any(_overlap(one, other) for one, other in itertools.combinations(boxes, 2))
    if layout is None:  # measured before the layout, elsewhere
        legend = axes[0, 0].get_legend().get_window_extent()
        points = [line.get_transform().transform(line.get_xydata()) for line in axes[0, 0].lines[:2]]
        assert not any(legend.contains(*point) for point in np.concatenate(points))


def test_axes_arranged_by_hand_stay_where_they_are():
    figure, axes = plt.subplots(1, 2)
    figure.subplots_adjust(left=0.3)
    plots.curves({"FedHSA": curve()}, ax=axes[0])
    assert figure.subplotpars.left == 0.3


def test_given_axes_keep_the_style_of_the_session_and_a_legend_can_be_left_out():
    _, ax = plt.subplots()
    plots.curves({"FedHSA": curve()}, ax=ax, legend=False)
    assert ax.xaxis.label.get_size() == 10
    assert ax.get_legend() is None
    plots.compare({"FedHSA": trace()}, against="samples", labels={"FedHSA": "ours"}, ax=ax, legend=False)
    assert ax.get_legend_handles_labels()[1] == ["FedHSA", "ours"]  # for a legend of one's own
    with pytest.raises(ValueError, match="`ax` holds one panel: pass `against`"):
        plots.compare({"FedHSA": trace()}, ax=ax)


def test_sizes_and_labels_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="`figsize` or `width`, not both"):
        plots.curves({"FedHSA": curve()}, figsize=(3, 2), width=3)
    with pytest.raises(ValueError, match=r"`figsize` must be a width and a height in inches.*got \(3,\)"):
        plots.curves({"FedHSA": curve()}, figsize=(3,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`labels` names 'LocalSA', which is not in the figure: FedHSA"):
        plots.curves({"FedHSA": curve()}, labels={"LocalSA": "x"})


def test_a_curve_below_another_is_wider_and_others_are_not():
    one, apart = curve(), curve(key=3, floor=5.0)
    widths = [line.get_linewidth() for line in plots.curves({"a": one, "b": one, "c": apart}).axes[0].lines]
    assert widths[0] > widths[1] == widths[2]
    assert _style.graded_widths([]) == []


@pytest.mark.parametrize(
    ("seeds", "note"), [(1, "1 seed: no interval"), (4, "mean of 4 seeds: too few"), (5, "mean of 5 seeds, 95 %")]
)
def test_few_seeds_have_no_band_and_the_legend_says_so(seeds, note):
    for figure in (plots.curves({"a": curve(seeds=seeds)}), plots.compare({"a": trace(seeds=seeds)})):
        assert bool(figure.axes[0].collections) == (seeds >= 5)
        assert labels(figure)[-1].startswith(note)


def test_there_is_no_half_round():
    for records in (2, 3, 5, 40):
        figure = plots.curves({"a": curve(records=records)})
        ticks = figure.axes[0].get_xticks()
        assert len(ticks) >= 2
        assert (ticks == ticks.round()).all()


def test_the_legend_says_whose_prediction_a_dashed_line_is_where_not_every_curve_has_one():
    figure = plots.curves({"a": curve(), "b": curve(key=1)}, theory={"b": 0.1}, theory_label="exact")
    assert labels(figure)[2] == "exact, b"
    assert figure.legends[0].get_lines()[2].get_color() == figure.axes[0].lines[-1].get_color()
    many = {name: curve() for name in "abcd"}
    assert labels(plots.curves(many, theory=dict.fromkeys(many, 0.1)))[4] == "predicted"


def test_a_name_may_have_an_ending_or_none(tmp_path):
    figure = Figure((1, 1))
    for name, suffixes, wanted in (
        ("a", None, ["a.png", "a.pdf"]),
        ("b.PNG", None, ["b.PNG"]),
        ("c.svg", ["pdf"], ["c.svg", "c.pdf"]),
        ("v1.2", ["eps"], ["v1.2.eps"]),
    ):
        found = plots.save(figure, tmp_path / name, suffixes)
        assert [path.name for path in found] == wanted
        assert all(path.stat().st_size for path in found)
    with pytest.raises(ValueError, match=r"`suffixes` must be among .png, .pdf, .svg, .eps, got '.bmp'"):
        plots.save(figure, tmp_path / "d", ["bmp"])


def test_eps_has_pale_bands_in_the_place_of_transparent_ones_and_no_date(tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(STYLE, "ps.fonttype", 3)  # the other kind takes seconds
    figure = plots.curves({"FedHSA": curve()})
    figure.axes[0].lines[0].set_alpha(0.5)
    (band,) = figure.axes[0].collections
    before = band.get_alpha(), band.get_facecolor().tolist()
    with caplog.at_level(logging.WARNING):
        plots.save(figure, tmp_path / "a.eps")
        plots.save(figure, tmp_path / "b.eps")
    assert not caplog.records  # Matplotlib warns of transparency that it cannot write
    assert (band.get_alpha(), band.get_facecolor().tolist()) == before
    assert figure.axes[0].lines[0].get_alpha() == 0.5
    text = (tmp_path / "a.eps").read_text()
    pale = 0.25 * np.array(to_rgb(plots.COLOURS["FedHSA"])) + 0.75
    fills = [tuple(map(float, found)) for found in re.findall(r"([\d.]+) ([\d.]+) ([\d.]+) setrgbcolor", text)]
    half = 0.5 * np.array(to_rgb(plots.COLOURS["FedHSA"])) + 0.5
    assert all(any(np.allclose(fill, wanted, atol=2e-3) for fill in fills) for wanted in (pale, half))
    assert text == (tmp_path / "b.eps").read_text()
    assert "CreationDate" not in text


def test_a_png_has_the_dots_that_the_session_asks_for(tmp_path):
    def pixels(name: str) -> int:
        (path,) = plots.save(Figure((1, 1)), tmp_path / name)
        return plt.imread(path).shape[0]

    assert pixels("ours.png") == 200
    matplotlib.rcParams["savefig.dpi"] = 50
    assert pixels("theirs.png") == 50


def test_with_tex_signs_that_mean_something_are_escaped_outside_formulas():
    assert _style.words("a_b, 95 %") == "a_b, 95 %"
    matplotlib.rcParams["text.usetex"] = True
    assert _style.words("a_b, 95 % of $x_1$") == r"a\_b, 95 \% of $x_1$"


def test_returns_have_a_linear_axis_in_comparisons():
    figure = plots.compare({"a": trace()._replace(error=-curve().error)}, quantity="mean_return")
    assert figure.axes[1].get_yscale() == "linear"
    assert figure.axes[0].get_ylabel() == "mean return"
    tuned = plots.tuning({"a": ([0.1, 1.0], [-1.0, -2.0])}, {"a": 0.1}, quantity="mean_return")
    assert tuned.axes[0].get_ylabel() == "mean return at the end"
