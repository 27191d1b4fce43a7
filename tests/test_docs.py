"""The pages of the documentation: their code runs, what they show is what it prints, and their links lead somewhere."""

import re

import pytest
from matplotlib.figure import Figure

import pages
from pages import PAGES, ROOT

NAMES = [pages.name(page) for page in PAGES]


LONG = (
    *("theory.md", "engine.md", "problems.md", "extrapolation.md", "participation.md", "compressed.md"),
    *("games.md", "live.md", "streams.md", "tutorial-grid-worlds.md", "tutorial-control.md"),
)
"""Pages whose code takes long; the examples in docstrings say the same of what they use, sooner."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in LONG else ()) for page in PAGES],
    ids=NAMES,
)
def test_every_page_runs_from_top_to_bottom_and_shows_what_it_prints(page, tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **settings: open(path, "wb").close())  # rendering is slow
    assert "\n".join(pages.stale(page, pages.run(page, tmp_path))) == ""


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_path_a_page_names_exists(page):
    """Names in backticks with a slash and a suffix are files, seen from the root or from the package."""
    known = ROOT, ROOT / "src", ROOT / "src" / "fedhsa"
    for name in re.findall(r"`([\w/]+/[\w/]+\.(?:py|md|toml|txt))`", page.read_text()):
        if not name.endswith(("least_squares.py", "minibatch_sa.py")):  # what the reader is about to write
            assert any((folder / name).exists() for folder in known), f"{page.name} names {name}"
