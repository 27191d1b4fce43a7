"""The pages of the documentation: their Python runs, and what they link to is there."""

import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def python_of(text: str) -> str:
    """The blocks marked ```python, every line where it stands on the page, so that errors point there."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines)


LONG = (
    *("theory.md", "engine.md", "problems.md", "extrapolation.md", "participation.md", "compressed.md"),
    *("games.md", "live.md", "streams.md", "tutorial-grid-worlds.md", "tutorial-control.md"),
)
"""Pages whose Python takes long; the examples in docstrings say the same of what they use, sooner."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in LONG else ()) for page in PAGES],
    ids=NAMES,
)
def test_the_python_of_every_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(compile(python_of(page.read_text()), str(page), "exec"), {"__name__": page.stem})


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
