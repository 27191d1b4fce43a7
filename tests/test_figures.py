"""The figures of the documentation: each has a recipe, is up to date and is shown somewhere."""

import importlib.util
import json
import sys

import pytest

import pages

PATH = pages.ROOT / "docs" / "figures" / "make.py"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_figures", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_figures"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_figure_has_a_recipe_is_up_to_date_and_is_shown_on_a_page(maker):
    problems = maker.problems()
    assert not problems, "\n".join([*problems, "Run `make figures`, look at what has changed, and commit it."])


STUDY = '''
LIMIT = 3
WORDS = "as printed"
class Some(AbstractStudy):
    """Settings."""
    def run(self, runner):
        # a comment
        return shared(LIMIT)
    def plot(self, figure, outcome):
        figure.set(xlabel="round")
    def check(self, outcome, checks):
        checks.at_most(WORDS)
def shared(limit):
    """Says what it does."""
    if limit < 0:
        raise ValueError("negative")
    print("so many", limit)
    return limit + 1
'''
WORDING = [
    ("# a comment", "# another comment"),
    ('"""Says what it does."""', '"""Returns one more."""'),
    ('"negative"', '"`limit` must not be negative."'),
    ('"so many"', '"this many"'),
    ('WORDS = "as printed"', 'WORDS = "as it is printed"'),
    ("checks.at_most(WORDS)", "checks.above(WORDS)"),
]
CHANGES = [
    ("limit + 1", "limit + 2"),
    ("LIMIT = 3", "LIMIT = 4"),
    ("figure.set", "figure.put"),
    ('"round"', '"rounds"'),
]


@pytest.mark.parametrize(("before", "after"), WORDING)
def test_comments_messages_and_checks_do_not_make_a_figure_of_a_study_out_of_date(maker, before, after):
    assert before in STUDY
    changed = STUDY.replace(before, after)
    assert maker.reached(changed, ("run", "plot")) == maker.reached(STUDY, ("run", "plot"))


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_other_numbers_and_another_drawing_make_it_out_of_date(maker, before, after):
    changed = STUDY.replace(before, after)
    assert maker.reached(changed, ("run", "plot")) != maker.reached(STUDY, ("run", "plot"))
    drawing = "figure" in before or "round" in before
    assert (maker.reached(changed, ("run",)) == maker.reached(STUDY, ("run",))) == drawing


def test_a_figure_depends_on_the_modules_that_draw_it_and_on_no_others(maker):
    assert [path.name for path in maker.drawing_modules({"value_map", "x"})] == ["_maps.py", "_style.py"]
    assert "_curves.py" in [path.name for path in maker.drawing_modules({"run"})]
    assert [path.name for path in maker.drawing_modules({"study.figures"})] == ["figures.py", "_style.py"]


def test_a_picture_that_is_missing_or_was_changed_by_hand_is_found(maker, tmp_path, monkeypatch):
    recipe = maker.Script("examples/employment.py", {"a.png": "a.png"})
    monkeypatch.setattr(maker, "HERE", tmp_path)
    monkeypatch.setattr(maker, "RECORD", tmp_path / "made.json")
    monkeypatch.setattr(maker, "RECIPES", (recipe,))
    assert maker.why_stale(recipe) == ["a.png is missing"]
    (tmp_path / "a.png").write_bytes(b"first")
    assert maker.why_stale(recipe) == ["a.png was never recorded"]
    maker._remember(recipe, 12.3)
    assert maker.why_stale(recipe) == []
    assert json.loads((tmp_path / "made.json").read_text())["a.png"]["seconds"] == 12
    (tmp_path / "a.png").write_bytes(b"second")
    assert maker.why_stale(recipe) == ["a.png is not the file that was made"]
    monkeypatch.setattr(maker, "referenced", lambda: {"b.png"})
    (tmp_path / "c.png").write_bytes(b"third")
    first, second, third, fourth = maker.problems()
    assert first == "a.png is not the file that was made"
    assert second.startswith("c.png has no recipe")
    assert third.startswith("a.png is shown on no page")
    assert fourth == "b.png is shown on a page and has no recipe"
