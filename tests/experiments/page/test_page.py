"""The page of a reproduction: complete, self-contained, well-formed and honest."""

import base64
import html.parser
import pathlib
import re
import xml.etree.ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedhsa import experiments
from fedhsa.experiments.page.formulas import mathml
from fedhsa.experiments.page.render import render
from fedhsa.experiments.page.report import Report
from fedhsa.experiments.page.sections import title_of
from fedhsa.experiments.run.store import StoredStudy
from fedhsa.experiments.study.base import AbstractStudy, Outcome
from fedhsa.experiments.study.checks import Check
from fedhsa.experiments.study.claims import CLAIMS
from fedhsa.plots import save
from fedhsa.plots._style import COLOURS
from fedhsa.statistics import Estimate

ODD = "a < b & \"c\" 'd' <script>alert(1)</script>"
VOID = {"meta", "img", "wbr", "link"}


class Fake(AbstractStudy):
    """Draws a line and checks what it is told to."""

    claim: int = 3  # pyright: ignore[reportIncompatibleVariableOverride]
    good: bool = True

    def seconds(self):
        return 0.0

    def run(self, runner):
        return Outcome({}, {})

    def draw(self, outcome):
        figure = Figure((3.5, 2.5), layout="constrained")
        figure.subplots().plot([1, 2, 3])
        return figure

    def summary(self, outcome):
        return [f"It stops at 1.5e-05, {ODD}", "Use `eta <= 0.1`."]

    def check(self, outcome, checks):
        checks.equals("floor", f"The floor, {ODD}", Estimate(2e-5, 1.9e-5, 2.1e-5), 2e-5 if self.good else 1e-5)
        checks.above("order", "Above 1.", Estimate(2.0, 1.5, 2.5))
        checks.claim = 1
        checks.at_most("limit", "Near.", 0.0, 1e-8)

    def table(self, outcome):
        return {"x": [1]}

    def notes(self):
        return [f"The paper gives no step: 0.03 {ODD}"]


class Page(html.parser.HTMLParser):
    """Reads a page strictly: every tag closed in its turn, identifiers unique."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open
        ids = [attributes["id"] for _, attributes in self.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        self.ids = set(ids)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())

    def all(self, tag, attribute):
        return [attributes[attribute] for found, attributes in self.tags if found == tag and attribute in attributes]


def entry(folder, name, *, claim=3, good=True, facts=None, manifest=None, source="Figure 2b"):
    experiment = Fake(name, f"Title of {name} & more", source, claim=claim, good=good)
    outcome = Outcome({}, facts or {})
    save(experiment.draw(outcome), folder / name / "figure", suffixes=(".svg",))
    return StoredStudy(experiment, outcome, manifest or {}, folder / name)


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    assumptions = [["Assumption 2", "holds", "mu = 0.1"], ["Theorem 2: step", "fails", "eta = 1e-03 > 1e-05"]]
    facts = {"assumptions": assumptions, "constants": {"L": 1.5, "mu": 0.1, "sigma": None, "rho": "infinity"}}
    full = {
        "settings": {"name": "x", "seeds": 32, "agents": [1, 5], "problem.b_level": 1e-05, "odd": ODD},
        "seconds": 75.0,
        "finished": "2025-01-02T03:04:05+00:00",
        "machine": "elsewhere",
        "command": f"fedhsa reproduce td/slow {ODD}",
        "figures": ["figure.svg", "figure.png", "figure.pdf"],
        "data": ["data.csv", "data.npz"],
    }
    return [
        entry(folder, "quadratic/markov", facts=facts),
        entry(folder, "quadratic/agents", claim=4, good=False),
        entry(folder, "td/slow", manifest=full),
        entry(folder, "drift", claim=7, source=""),
    ]


def report(entries, **settings):
    how = {"command": "fedhsa reproduce", "quick": False, "preset": "paper", "seconds": 100.0} | settings
    return Report(entries, **how)


@pytest.fixture(scope="module")
def text(entries):
    return render(report(entries))


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_page_is_well_formed_with_one_title_and_no_skipped_heading(text, page):
    assert text.startswith("<!DOCTYPE html>")
    assert ("html", {"lang": "en"}) in page.tags
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert max(np.diff(levels)) == 1


def test_it_loads_nothing_from_anywhere_and_its_one_script_comes_last(text, page):
    assert all(source.startswith("data:") for source in page.all("img", "src"))
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]
    assert page.tags[-1][0] == "script"
    assert not page.all("link", "href")
    assert "url(" not in text
    assert "@import" not in text
    assert {link for link in page.all("a", "href") if "://" in link} == {"https://arxiv.org/abs/2504.11645"}


def test_every_link_within_the_page_leads_somewhere(page):
    inner = [link[1:] for link in page.all("a", "href") if link.startswith("#")]
    assert set(inner) <= page.ids
    assert {"check-3-1", "check-4-2", "check-1-4", "contents"} <= set(inner)


def test_figures_are_within_it_sized_and_described(entries, page):
    figures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(figures) == len(entries) + 2
    for attributes in figures:
        assert attributes["src"].startswith("data:image/svg+xml;base64,")
        svg = base64.b64decode(attributes["src"].partition(",")[2])
        assert xml.etree.ElementTree.fromstring(svg).tag.endswith("svg")
        assert int(attributes["width"]) > int(attributes["height"]) > 100
        assert "It stops at 1.5\u00a0\u00d7\u00a010⁻⁵" in attributes["alt"]


def test_files_are_linked_relative_to_the_page(page):
    links = page.all("a", "href")
    for suffix in "svg", "png", "pdf":
        assert f"quadratic/markov/figure.{suffix}" in links
    assert {"td/slow/data.csv", "td/slow/data.npz", "drift/manifest.json"} <= set(links)


def test_all_ten_claims_are_listed_with_verdicts_in_words(page):
    for number, (title, statement) in CLAIMS.items():
        assert f"claim-{number}" in page.ids
        assert page.text.count(title) >= 2
        assert statement.partition("$")[0] in page.text  # what follows is a formula
    assert "3 of the 10 claims pass, 1 fails, 6 were not checked. Of 12 checks 11 pass." in page.text


def test_a_claim_that_fails_is_named_at_the_very_top(entries, page):
    top = page.text[: page.text.index("Verdicts")]
    assert "✗ 1 claim fails: 4, Linear speed-up." in top
    fine = Page(render(report([entries[0]])))
    assert "fail:" not in fine.text
    assert "claim fails" not in fine.text


def test_the_quick_version_and_what_is_missing_are_said_before_anything_else(entries, page):
    assert "quick version" not in page.text
    told = Page(render(report(entries, quick=True, unfinished=("td/markov",), preset="scripts"))).text
    top = told[: told.index("Verdicts")]
    assert "This is the quick version, with fewer figures, seeds, rounds and agents" in top
    assert "Missing: td/markov." in top
    assert "public scripts" in top


def test_odd_characters_are_text_and_not_markup(text, page):
    assert "alert(1)" in page.text
    assert "<script>alert" not in text
    assert page.text.count(" ".join(ODD.split())) >= 10


def test_numbers_are_set_for_humans(page):
    assert "[1.9, 2.1] \u00d7 10⁻⁵" in page.text
    assert "≤ 10⁻⁸" in page.text
    assert page.text.count("e-05") == 1  # the setting, as one would type it
    assert "1 min 15 s" in page.text


def test_assumptions_are_shown_with_the_experiment_and_side_by_side(page):
    assert "Assumptions of the theory on each problem" in page.text
    assert "✗ fails" in page.text
    assert "\u03b7 = 0.001 > 10⁻⁵" in page.text
    assert "∞" in page.text


def test_the_number_of_intervals_and_their_joint_chance_are_stated(page):
    assert "There are 8 of them here: if each has its nominal level" in page.text
    assert "a chance of at least 99.2 %" in page.text


def test_a_page_without_experiments_still_has_its_claims():
    assert "0 of the 10 claims pass, 10 were not checked." in Page(render(report([]))).text


def test_verdicts_have_a_number_in_words(page):
    row = page.text[page.text.index("Lower floor") :]
    assert row.index("2 times lower floor (quadratic/markov)") < row.index("Linear speed-up")
    ten = Page(render(report([]))).text
    assert "times lower" not in ten


def test_names_of_checks_are_words_and_lead_to_their_experiment(page):
    assert "Whose floor is lower" in page.text
    assert page.all("a", "href").count("#quadratic-markov") >= 3  # contents, headline, and the claims' tables
    found = Check(10, "communication: finite-sum LocalSA, price at 20 x", "", 1.0, 1.0, None, "", "pass")
    assert title_of(found) == "Finite sum Local SA, price at 20 times"


def test_what_is_read_second_is_folded_unless_it_does_not_pass(text):
    parts = {part.partition('"')[0]: part for part in text.split('id="claim-')[1:]}
    assert "<details>" in parts["3"]
    assert "<details open>" in parts["4"]
    assert "<details" not in parts["5"]
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert "<img" in shown
    assert "Title of quadratic/markov" in shown
    assert "b_level" not in shown


def test_the_two_run_times_say_what_they_mean(page):
    assert re.search(r"This command took\s*1 min 40 s, by the clock: what it computed, the figures", page.text)
    assert re.search(r"All experiments took\s*1 min 15 s, added up, each when it was computed", page.text)


def test_formulas_are_mathml_that_a_parser_accepts(text):
    found = re.findall(r"<math>.*?</math>", text)
    assert len(found) > 5
    for formula in found:
        xml.etree.ElementTree.fromstring(formula)
    drift = next(formula for formula in found if formula.count("<msup>") == 3)
    assert "".join(xml.etree.ElementTree.fromstring(drift).itertext()) == "(\u03b7HL)2(|e|2+\u03c32)"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("x^2", "<msup><mi>x</mi><mn>2</mn></msup>"),
        ("a_i^(t+1)", "<msubsup><mi>a</mi><mi>i</mi><mrow><mi>t</mi><mo>+</mo><mn>1</mn></mrow></msubsup>"),
        ("theta_bar", '<mover accent="true"><mi>θ</mi><mo>¯</mo></mover>'),
        ("theta*", "<msup><mi>θ</mi><mo>⋆</mo></msup>"),
        ("sqrt(mu/L)", "<msqrt><mi>μ</mi><mo>/</mo><mi>L</mi></msqrt>"),
        ("MHT", "<mi>M</mi><mi>H</mi><mi>T</mi>"),
        ("M^-1", "<msup><mi>M</mi><mrow><mo>\u2212</mo><mn>1</mn></mrow></msup>"),
        ("a < b & c", "<mi>a</mi><mo>&lt;</mo><mi>b</mi><mo>&amp;</mo><mi>c</mi>"),
        ("log T", "<mi>log</mi><mi>T</mi>"),
        ("mean F_i", "<mi>mean</mi><msub><mi>F</mi><mi>i</mi></msub>"),
    ],
)
def test_a_formula_as_one_types_it_becomes_mathml(typed, expected):
    assert mathml(typed) == f"<math>{expected}</math>"


@pytest.mark.parametrize(
    "typed", ["", "(", ")", "a)) b", "^", "x^", "_", "|", "|a", "x^(", "sqrt(", "((a|b)", "a_bar_bar"]
)
def test_an_unfinished_formula_is_still_well_formed(typed):
    xml.etree.ElementTree.fromstring(mathml(typed))


def contrast(one, other):
    """The ratio that the Web Content Accessibility Guidelines define."""

    def luminance(colour):
        wide = "".join(2 * digit for digit in colour) if len(colour) == 3 else colour
        parts = [int(wide[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_and_lines_stand_out_from_the_page_by_day_and_by_night(text):
    assert contrast("000", "ffffff") == pytest.approx(21)
    day, night = (
        dict(re.findall(r"--([\w-]+): #(\w+)", block)) for block in re.findall(r":root {(.*?)}", text, re.S)[:2]
    )
    for colours in (day, night):
        assert all(contrast(colours[name], colours["paper"]) > 4.5 for name in ("ink", "soft", "link", "warn"))
        assert contrast(colours["line"], colours["paper"]) >= 3
        for name in ("good", "bad", "open", "warn"):
            assert contrast(colours[name], colours[f"{name}-wash"]) > 4.5


def test_every_line_of_the_figures_stands_out_from_white_paper():
    """The figures lie on white by day and by night; bands and grids, which are paler, are no lines to be read."""
    colours = {*COLOURS.values()}
    for path in pathlib.Path(experiments.__file__).parent.rglob("*.py"):
        for row in path.read_text().splitlines():
            if not re.search("grid|axvspan", row):
                colours |= {f"#{found}" for found in re.findall(r'"#([0-9A-Fa-f]{6})"', row)}
                colours |= {"#" + 3 * f"{round(255 * float(grey)):02x}" for grey in re.findall(r'"(0\.\d+)"', row)}
    assert len(colours) > 15
    assert {colour for colour in colours if contrast(colour[1:], "ffffff") < 3} == set()
