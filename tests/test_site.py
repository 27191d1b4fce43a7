"""The site: its map has every page, GitHub shows its formulas too, and its reference is exactly what is public."""

import importlib
import inspect
import json
import re
import types
from typing import Any

import equinox as eqx
import pytest

import docstrings
import make_site
import pages
from fedhsa import problems
from pages import PAGES, ROOT

NAMES = [pages.name(page) for page in PAGES]


def formulas(text: str) -> list[str]:
    """The formulas of a page: displays between `$$`, and the others between `$`, but none from code."""
    code_or_formula = r"^```.*?^```$|`[^`\n]*`|\$\$.+?\$\$|(?<![\\$\w])\$[^$]+\$"
    found = re.findall(code_or_formula, text, flags=re.DOTALL | re.MULTILINE)
    return [formula for formula in found if formula.startswith("$")]


def strips(formula: str) -> list[str]:
    r"""The places of a formula that GitHub reads as Markdown, not as mathematics.

    >>> strips(r"$a\,b$"), strips(r"$x\thinspace y < z$")
    (['\\,'], [])
    """
    return [
        *re.findall(r"\\[!-/:-@\[-`{-~]", formula),  # Markdown drops the backslash before punctuation
        *re.findall(r"<[A-Za-z/!?]", formula),  # begins an HTML tag
        *re.findall(r"[^\w\s]_[^\w\s]|\*", formula),  # may begin or end emphasis
        *re.findall(r"\n\s*(?:[-+=>#|]|\d+[.)] )", formula),  # begins a list, a heading, a quotation or a table
        *(re.findall(r"\n", formula) if not formula.startswith("$$") else []),
    ]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_formula_of_a_page_has_what_github_strips(page):
    assert {formula: found for formula in formulas(page.read_text()) if (found := strips(formula))} == {}


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page():
    listed = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    made = [f"reference/api/{name}.md" for name in make_site.api_pages()]
    assert sorted(listed) == sorted({*make_site.pages(), *made, "gallery/index.md"})


def public_names() -> dict[str, Any]:
    """Every path by which users reach something: what `__all__` lists, of the package and of modules listed there."""
    found, modules = {}, ["fedhsa"]
    for module in modules:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            if not isinstance(value, types.ModuleType):
                found[f"{module}.{name}"] = value
            elif value.__name__ not in modules:
                modules.append(value.__name__)
    return found


def test_the_reference_lists_exactly_what_is_public():
    text = "\n".join(make_site.api_pages().values())
    entries = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(entries) == len(set(entries))
    anchors = {*re.findall(r'<a id="(\S+)"></a>', text), *entries}
    names = {path: value for path, value in public_names().items() if not path.endswith("__version__")}
    assert {path for path in names if path not in anchors} == set()
    defined = {f"{value.__module__}.{value.__qualname__}" for value in names.values() if hasattr(value, "__qualname__")}
    assert anchors - set(names) - defined == set()


def called_by_users(value) -> bool:
    """Functions, and classes of which users make objects; agents are made by the functions of their problem."""
    if inspect.isclass(value):
        abstract = inspect.isabstract(value) or value.__name__.startswith("Abstract")
        return issubclass(value, eqx.Module) and not abstract and not issubclass(value, problems.AbstractAgent)
    return inspect.isfunction(value)


def test_every_public_name_has_a_docstring_and_what_users_call_has_an_example():
    ours = {path: value for path, value in public_names().items() if "fedhsa" in getattr(value, "__module__", "")}
    assert [path for path, value in ours.items() if not inspect.getdoc(value)] == []
    assert [path for path, value in ours.items() if called_by_users(value) and ">>>" not in (value.__doc__ or "")] == []


def test_doctests_of_a_docstring_are_code_on_the_site():
    text = docstrings.with_code_blocks("!!! example\n    >>> sum(\n    ...     [1, 2]\n    ... )\n    3\n\n    End.")
    shown = ["    ```pycon", "    >>> sum(", "    ...     [1, 2]", "    ... )", "    3", "    ```", "", "    End."]
    assert text.splitlines()[1:] == shown


def test_links_lead_to_pages_of_the_site_or_to_the_repository():
    page = ROOT / "docs" / "theory" / "predict.md"
    for target, there in (
        ("notation.md#sets", "notation.md#sets"),
        ("../../CONTRIBUTING.md", "../project/contributing.md"),
        ("../../examples", "../gallery/index.md"),
        ("../figures/readme.png", "../figures/readme.png"),
        ("../../src/fedhsa/theory/exact.py", f"{make_site.repository()}/blob/main/src/fedhsa/theory/exact.py"),
        ("../../tests", f"{make_site.repository()}/tree/main/tests"),
        ("https://arxiv.org", "https://arxiv.org"),
    ):
        assert make_site.site_link(target, page, "theory/predict.md") == there


def test_the_check_of_the_site_notices_dead_links_and_other_hosts(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a> <a href="https://example.org">2</a> <img src="c.svg">'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">B</h1>')
    (tmp_path / "c.svg").write_text("<svg/>")
    assert make_site.faults(tmp_path) == []
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a> <a href="d.html">2</a> <img src="d.svg"> <script src="https://cdn.example/x.js"></script>'
    )
    (tmp_path / "x.css").write_text("@font-face { src: url(https://fonts.example/x.woff) }")
    assert make_site.faults(tmp_path) == [
        "a.html loads d.svg, which does not exist",
        "a.html loads https://cdn.example/x.js",
        "a.html links to b.html#there, where there is no such place",
        "a.html links to d.html, which does not exist",
        "x.css loads from another host",
    ]


def test_the_gallery_shows_every_example():
    shown = {entry["path"] for entry in json.loads(make_site.GALLERY.read_text())}
    scripts = {*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.toml")}
    assert {str(path.relative_to(ROOT)) for path in scripts} <= shown
    assert [path for path in shown if not (ROOT / path).exists()] == []


def test_the_pictures_of_diagrams_belong_to_their_text():
    assert make_site.stale_diagrams() == [], "run `python docs/make_site.py diagrams`"
