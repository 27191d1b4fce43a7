"""The site: mathematics that GitHub shows too, and a reference of exactly what is public."""

import re

import pytest

import pages
from pages import PAGES

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
