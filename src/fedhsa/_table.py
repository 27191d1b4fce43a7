"""Tables of words and numbers: as text that fits the available width, as HTML, and as LaTeX."""

import html
import re
import shutil
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

GAP = 2
"""Spaces between columns."""
FIXED = "\xa0"
"""A space at which lines are not broken."""
TEX = {character: "\\" + character for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "∞": r"$\infty$",
    FIXED: "~",
}


class Table(NamedTuple):
    """Heads and rows of words, where `\\n` is a possible line break and `FIXED` a space without a break.

    !!! example
        >>> table = Table(("method", "error"), [("Local_SA", "1.5e-03")], right=(1,))
        >>> print(table.text(40))
        method      error
        Local_SA  1.5e-03
        >>> print(table.text(15))
        Local_SA
          error 1.5e-03
        >>> print(table.latex())
        \\begin{tabular}{lr}
        \\toprule
        method & error \\\\
        \\midrule
        Local\\_SA & $1.5 \\times 10^{-3}$ \\\\
        \\bottomrule
        \\end{tabular}
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[int] = ()
    """The columns that are aligned to the right."""
    caption: str = ""
    apart: int | None = None
    """A column of long names: in text, each name has a separate line above the rest of its row."""

    def text(self, width: int | None = None) -> str:
        """The table in lines of at most `width` characters. Default: the width of the terminal.

        If it is too wide, cells and heads are broken between words; if that does not suffice, every row becomes a
        paragraph with a line for each column. Nothing is left out.
        """
        width = shutil.get_terminal_size().columns if width is None else width
        widths = self._widths(width)
        lines = [*(self._stacked(width) if widths is None else self._grid(widths, width))]
        if self.caption:
            lines += textwrap.wrap(self.caption, width)
        return "\n".join(line.rstrip().replace(FIXED, " ") for line in lines)

    def html(self) -> str:
        """The table as HTML that takes its colours from the surrounding page."""

        def cell(tag: str, column: int, words: str) -> str:
            side = "right" if column in self.right else "left"
            style = f"text-align: {side}; vertical-align: top; padding: 0.15em 0.8em 0.15em 0"
            return f'<{tag} style="{style}">{html.escape(words).replace(chr(10), "<br>")}</{tag}>'

        head = "".join(cell("th", i, name) for i, name in enumerate(self.heads))
        body = "".join(f"<tr>{''.join(cell('td', i, word) for i, word in enumerate(row))}</tr>" for row in self.rows)
        below = "caption-side: bottom; text-align: left; max-width: 60em; opacity: 0.8"
        caption = f'<caption style="{below}">{html.escape(self.caption)}</caption>' if self.caption else ""
        top = f"<thead><tr>{head}</tr></thead>" if any(self.heads) else ""
        return f'<table style="border-collapse: collapse">{caption}{top}<tbody>{body}</tbody></table>'

    def latex(self) -> str:
        """The table as LaTeX, for a document that uses the package `booktabs`."""
        sides = "".join("r" if i in self.right else "l" for i in range(len(self.heads)))
        comment = [f"% {line}" for line in textwrap.wrap(self.caption.replace(FIXED, " "), 100)]
        rows = [" & ".join(map(_latex_cell, row)) + r" \\" for row in (self.heads, *self.rows)]
        body = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"]
        return "\n".join([*comment, *body, r"\end{tabular}"])

    def _columns(self) -> list[int]:
        return [i for i in range(len(self.heads)) if i != self.apart]

    def _widths(self, width: int) -> dict[int, int] | None:
        """The width of each column, or None if even their longest words do not fit next to each other."""
        natural, least = {}, {}
        for i in self._columns():
            lines = [line for words in (self.heads[i], *(row[i] for row in self.rows)) for line in words.split("\n")]
            natural[i] = max(map(len, lines))
            least[i] = max(len(word) for line in lines for word in line.split(" "))
        room = width - GAP * (len(natural) - 1)
        if sum(least.values()) > room:
            return None
        while sum(natural.values()) > room:
            natural[max(natural, key=lambda i: (natural[i] > least[i], natural[i]))] -= 1
        return natural

    def _grid(self, widths: dict[int, int], width: int) -> Iterator[str]:
        first = min(widths)
        if any(self.heads):
            yield from self._row(self.heads, widths)
        for row in self.rows:
            if self.apart is not None:
                margin = f"{row[first]:>{widths[first]}}" + " " * GAP
                yield from textwrap.wrap(
                    row[self.apart], width, initial_indent=margin, subsequent_indent=" " * len(margin)
                )
                row = ["" if i == first else words for i, words in enumerate(row)]
            yield from self._row(row, widths)

    def _row(self, row: Sequence[str], widths: dict[int, int]) -> Iterator[str]:
        cells = {i: [part for line in row[i].split("\n") for part in _wrap(line, widths[i])] for i in widths}
        for at in range(max(map(len, cells.values()))):
            parts = [(i, cells[i][at] if at < len(cells[i]) else "") for i in widths]
            yield (" " * GAP).join(f"{p:>{widths[i]}}" if i in self.right else f"{p:<{widths[i]}}" for i, p in parts)

    def _stacked(self, width: int) -> Iterator[str]:
        named = [i for i in (0, self.apart) if i is not None]
        heads = {i: " ".join(self.heads[i].split()) for i in range(len(self.heads)) if i not in named}
        column = max(map(len, heads.values()), default=0)
        for row in self.rows:
            yield from textwrap.wrap("  ".join(row[i] for i in dict.fromkeys(named)), width, subsequent_indent="    ")
            for i, head in heads.items():
                words = " ".join(row[i].split("\n"))
                margin = f"  {head:<{column}} "
                if max(map(len, words.split(" "))) + len(margin) > width:  # below its head, where there is more space
                    yield from _indented(head, width, "  ")
                    margin = "    "
                yield from _indented(words, width, margin)


def _indented(words: str, width: int, margin: str) -> list[str]:
    return textwrap.wrap(
        words, width, initial_indent=margin, subsequent_indent=" " * len(margin), break_on_hyphens=False
    )


def _wrap(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]


def escape_latex(text: str) -> str:
    """Escapes text for LaTeX, except for formulas between two dollar signs.

    !!! example
        >>> print(escape_latex(r"my_method, 95 % at $\\eta_0$"))
        my\\_method, 95 \\% at $\\eta_0$
    """
    parts = re.split(r"(\$[^$]+\$)", text)
    return "".join(part if i % 2 else "".join(TEX.get(c, c) for c in part) for i, part in enumerate(parts))


def _latex_cell(words: str) -> str:
    """The words of a cell, with numbers in scientific notation."""
    text = escape_latex(" ".join(words.split("\n")))
    text = re.sub(
        r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]?)0*(\d+)(?!\w)",
        lambda m: rf"${m[1]} \times 10^{{{m[2].strip('+')}{m[3]}}}$",
        text,
    )
    return "--" if text == "-" else text
