"""Small pieces of the page: numbers, sentences, verdicts, tables and pictures as HTML."""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ..._numbers import MINUS, SPACE, SUPERSCRIPTS, typeset
from ..study.checks import FAIL, PASS, UNDECIDED
from .formulas import GREEK, mathml

MACRON = "\u0304"
LETTERS = "|".join(name for name in GREEK if name not in ("pi", "xi", "delta", "lambda", "beta", "kappa"))
"""Greek letters whose names are replaced everywhere; the names of the others are replaced in formulas only."""
GREEK_WORDS = rf"\b({LETTERS})(_bar)?(?=_[a-z]{{1,2}}\b|\b)"
"""Matches these names as whole words, also before `_bar` or an index."""
INDEX, POWER = r"(?:_bar)?_(?:[a-z]{1,2}|\d)", r"\^(?:-?\w{1,3}|\([^()]*\))"
SIGNS = re.compile(
    rf"(?<![\w/.\\-])(?:(?:{LETTERS})(?:_bar)?(?:{INDEX})?\*?(?:{POWER})?|[A-Za-z]{INDEX}(?:{POWER})?|[A-Za-z]{POWER})(?![\w/])"
)
"""A letter in a sentence that is itself a formula: a Greek letter, or a letter with an index or a power."""
CHIPS = {
    PASS: ("good", "✓ pass"),
    FAIL: ("bad", "✗ fail"),
    UNDECIDED: ("open", "? not decided"),
    None: ("open", "○ not checked"),
    "holds": ("good", "✓ holds"),
    "fails": ("bad", "✗ fails"),
    "unknown": ("open", "? unknown"),
}
"""The CSS class and the words of each verdict; colour alone is not accessible to everyone."""
ENLARGED = 1.4
"""The enlargement on the screen: figures are drawn for print, where 8-point text is read from a shorter distance."""


def plain_words(text: str) -> str:
    """Returns a sentence with typographic powers of ten, signs and Greek letters.

    !!! example
        >>> plain_words("It falls to 1.5e-20 <= 1e-08, by -3 %, for eta = mu/L^2.")
        'It falls to 1.5\xa0×\xa010⁻²⁰ ≤ 10⁻⁸, by −3\xa0%, for η = μ/L².'
    """
    text = re.sub(r"(?<![\w.])(-?\d+(?:\.\d+)?)e([+-]?\d+)(?!\w)", lambda f: typeset(float(f[0])), text)
    text = re.sub(r"(?<![\w.)-])-(?=\d)", MINUS, text)
    text = re.sub(GREEK_WORDS, lambda f: GREEK[f[1]] + (MACRON if f[2] else ""), text)
    text = re.sub(r"(?<=[\w)|])\^(\d+)", lambda f: f[1].translate(SUPERSCRIPTS), text)
    return re.sub(r"(?<=\d) %", f"{SPACE}%", text).replace("<=", "≤").replace(">=", "≥").replace("$", "")


def words(text: Any) -> str:
    """Returns a sentence as escaped HTML: code between backticks, formulas between dollars, the rest as `plain_words`.

    !!! example
        >>> words("`a < b` & $1 / L$")
        '<code>a &lt; b</code> &amp; <math><mn>1</mn><mo>/</mo><mi>L</mi></math>'
        >>> words("a step of eta")
        'a step of <math><mi>η</mi></math>'
    """
    return "".join(
        f"<code>{escape(part)}</code>" if i % 2 else _with_formulas(part) for i, part in enumerate(_pairs(text, "`"))
    )


def _with_formulas(text: str) -> str:
    return "".join(mathml(part) if i % 2 else _typeset(part) for i, part in enumerate(_pairs(text, "$")))


def _pairs(text: Any, mark: str) -> list[str]:
    """Returns the parts that pairs of the mark separate; an unpaired mark is an ordinary character."""
    parts = str(text).split(mark)
    return parts if len(parts) % 2 else [str(text)]


def _typeset(text: str) -> str:
    found, at = "", 0
    for sign in SIGNS.finditer(text):
        found, at = found + _printed(text[at : sign.start()]) + mathml(sign[0]), sign.end()
    return found + _printed(text[at:])


def _printed(text: str) -> str:
    return re.sub(r"\^(\u2212?\w{1,3}|\([^()]*\))", r"<sup>\1</sup>", escape(plain_words(text)))


def setting(value: Any) -> str:
    """Returns the value of a setting as HTML, unrounded, as a user would type it."""
    if isinstance(value, list | tuple):
        return ", ".join(setting(entry) for entry in value) or "none"
    return escape(value if isinstance(value, str) else json.dumps(value, default=str))


def chip(verdict: str | None) -> str:
    """Returns a verdict as a small label."""
    kind, label = CHIPS.get(verdict, ("open", str(verdict)))
    return f'<span class="chip {kind}">{escape(label)}</span>'


def items(entries: Iterable[str]) -> str:
    """Returns a list of HTML fragments; an empty string if there are no fragments."""
    rows = "".join(f"<li>{entry}</li>\n" for entry in entries)
    return f"<ul>\n{rows}</ul>\n" if rows else ""


def attribute(name: str, value: str) -> str:
    """Returns an attribute of a tag; an empty string if its value is empty."""
    return f' {name}="{escape(value)}"' if value else ""


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "", ids: Sequence[str] = ()
) -> str:
    """Returns a table of HTML fragments that scrolls in its own box on narrow screens; `<th` marks a row's name."""
    head = "".join(f'<th scope="col">{name}</th>' for name in header)
    body = ""
    for i, row in enumerate(rows):
        cells = "".join(cell if cell.startswith("<th") else f"<td>{cell}</td>" for cell in row)
        body += f"<tr{attribute('id', ids[i] if ids else '')}>{cells}</tr>\n"
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">\n'
        f"<table{attribute('class', kind)}>\n<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>\n</div>\n"
    )


def chapter(anchor: str, title: str, inner: str) -> str:
    """Returns a part of the page with its heading, which has this anchor."""
    return f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{title}</h2>\n{inner}</section>\n'


def heading(text: str) -> str:
    """Returns the cell that names its row."""
    return f'<th scope="row">{text}</th>'


def picture(svg: str, alt: str) -> str:
    """Returns the figure as an embedded image, since several inline drawings would share identifiers."""
    size = shape(svg)
    sides = f' width="{size[0]}" height="{size[1]}"' if size else ""  # so the page does not jump
    data = base64.b64encode(_compact(svg).encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(alt)}"{sides}>'


def shape(svg: str) -> tuple[int, int] | None:
    """Returns the width and height on the screen."""
    found = re.search(r'<svg[^>]*?\swidth="([\d.]+)pt"[^>]*?\sheight="([\d.]+)pt"', svg) or re.search(
        r'<svg[^>]*?\sviewBox="[\d.-]+ [\d.-]+ ([\d.]+) ([\d.]+)"', svg
    )
    if not found:
        return None
    width, height = (round(float(side) * 4 / 3 * ENLARGED) for side in found.groups())
    return width, height


def slug(name: str) -> str:
    """Returns the anchor of a heading."""
    return re.sub(r"\W+", "-", name.lower())


def day(moment: Any) -> str:
    """Returns the date of an ISO time."""
    return f"<time>{escape(str(moment)[:10])}</time>"


def _compact(svg: str) -> str:
    """Rounds paths to an invisible hundredth of a point and removes white space, which halves the size."""

    def path(found: re.Match[str]) -> str:
        return re.sub(r"\s*([A-Za-df-z])\s*", r"\1", re.sub(r"(\.\d\d)\d+", r"\1", found[1]))

    return re.sub(r'(?<= d=")([^"]*)', path, svg)
