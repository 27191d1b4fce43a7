"""Tables lose nothing however narrow the page is, and are the same in text, HTML and LaTeX."""

import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

import fedhsa
from fedhsa._table import FIXED, Table, escape_latex
from fedhsa.algorithms import Cost
from fedhsa.cli import output, screen
from fedhsa.comparison.contest import Contest, Entry, Terms
from fedhsa.comparison.ranking import rank
from fedhsa.engine import Result

WIDTHS = (20, 40, 60, 80, 120)
NAMES = ["FedHSA", "Averaged(OneExchangeFedHSA(local_steps=50), burn_in=2000)", "my_method"]


def result(level: float = 1.0, lost: int = 0, seeds: int = 6) -> Result:
    error = level * np.exp(np.random.default_rng(0).normal(size=(seeds, 3)))
    failed = np.where(np.arange(seeds) < lost, 2, -1)
    error[failed >= 0, 2:] = np.inf
    return Result(
        error=error,
        theta=np.zeros((seeds, 2)),
        rounds=np.array([0, 500, 1000]),
        records={"error": error},
        failed_round=failed,
        cost=Cost(2, 123_456, 123_456, 1, 1),
        settings={"algorithm": {"name": "FedHSA"}},
        timings={"compile": 12.3, "run": 45.6},
    )


def contest(target: float | None = None) -> Contest:
    entries = {}
    for i, name in enumerate(NAMES):
        made, at = result(1e-4 * (1 + i), lost=2 * (i == 2)), np.array([0, 5_000, 10_000])
        entries[name] = Entry(fedhsa.FedHSA(0.1, 5), None, made, at, at, 1e5 * at, {}, made.error[:, -1])
    return Contest(entries, rank({n: e.score for n, e in entries.items()}), True, {}, Terms(target=target))


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def holds(text: str, table: Table) -> None:
    """Every cell is there, and every head but those of the names, which need none."""
    found = squeezed(text)
    heads = [head for i, head in enumerate(table.heads) if i not in (0, table.apart)]
    for words in (*heads, *(word for row in table.rows for word in row)):
        for part in words.split():
            assert squeezed(part) in found, words
    if table.caption:
        assert squeezed(table.caption) in found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["results", "contest", "contest with a target"])
def test_a_table_fits_its_width_and_loses_no_word(kind, width):
    if kind == "results":
        runs = {name: result(lost=2 * (i == 2)) for i, name in enumerate(NAMES)}
        table = output.table(runs)
        text = table.text(width)
        assert squeezed("2 of 6 diverged") in squeezed(text)
        assert squeezed("status") in squeezed(text)
    else:
        from fedhsa.comparison.table import of_contest

        table = of_contest(contest(1e-3 if "target" in kind else None))
        text = table.text(width)
    assert max(map(len, text.splitlines())) <= width
    if width >= 60:
        for interval in re.findall(r"\[\d[^]]*\]", " ".join(word for row in table.rows for word in row)):
            assert interval.replace(FIXED, " ") in text
    holds(text, table)


def test_rows_are_as_wide_as_they_need_where_there_is_room():
    table = Table(("name", "value"), [("a", "1"), ("bb", "22")], right=(1,))
    assert table.text(80) == "name  value\na         1\nbb       22"
    assert table.text(8) == "a\n  value\n    1\nbb\n  value\n    22"
    assert Table(("", ""), [("round", "7")]).text(80) == "round  7"


@pytest.mark.parametrize("width", [30, 80])
def test_a_console_gets_a_table_of_its_own_width(width):
    table = screen.PlainTable("agent", "what it last said to the server")
    table.add_row("1", "an error of 1.5 after 300 rounds")
    table.add_row("...", "")
    table.add_row("7")
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    assert squeezed("an error of 1.5 after 300 rounds") in squeezed(console.export_text())


class Cells(HTMLParser):
    """The words of a table, and whatever could run or fetch something."""

    def __init__(self):
        super().__init__()
        self.words: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.words.append(data)


def test_html_has_every_word_escaped_and_neither_scripts_nor_colours_of_its_own():
    found = contest().table("html", labels={"my_method": "<mine> & others"})
    cells = Cells()
    cells.feed(found)
    assert "<mine> & others, step as given" in cells.words
    assert cells.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "br"}
    assert "color:" not in found
    assert contest()._repr_html_() == contest().table("html")


def test_latex_is_a_booktabs_table_with_signs_escaped_and_powers_of_ten():
    lines = contest().table("latex", labels={"FedHSA": r"ours, $\eta_0$"}).splitlines()
    body = lines[lines.index(r"\toprule") :]
    assert lines[0].startswith("% ")
    assert r"\begin{tabular}{rlllrrl}" in lines
    assert body[0] == r"\toprule"
    assert body[2] == r"\midrule"
    assert body[-2:] == [r"\bottomrule", r"\end{tabular}"]
    rows = body[3:-2]
    assert len(rows) == 3
    assert all(row.endswith(r" \\") and len(re.findall(r"(?<!\\)&", row)) == 6 for row in rows)
    assert rows[0].startswith(r"1 & ours, $\eta_0$, step as given & $")
    assert r"\times 10^{-4}$" in rows[0]
    assert r"my\_method" in rows[2]
    assert r"95~\%~interval" in body[1]
    assert escape_latex(r"a_b & 50 % of {x} #1 ~ ^ \ <") == (
        r"a\_b \& 50 \% of \{x\} \#1 \textasciitilde{} \textasciicircum{} \textbackslash{} $<$"
    )


def test_another_format_is_refused_and_pandas_gets_numbers():
    with pytest.raises(ValueError, match="`format` must be one of 'text', 'html', 'latex', got 'word'"):
        contest().table("word")
    table = contest().to_pandas()
    assert table["method"].tolist() == NAMES
    assert np.isinf(table["value"].iloc[2])
    assert table["bytes"].tolist() == [1e9] * 3


def test_a_comparison_a_prediction_and_a_choice_show_themselves_in_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
    prediction = fedhsa.theory.predict(problem, fedhsa.LocalSA(0.02, local_steps=4))
    bias = 100 * float(prediction.bias @ prediction.bias) / prediction.floor
    shown = repr(prediction)
    assert "LocalSA(step_size=0.02, local_steps=4)" in shown
    assert f"mean-square error {prediction.floor:.3g}: {bias:.3g} % squared bias" in shown
    assert "exact law" in shown
    assert "array(" not in shown
    wild = repr(fedhsa.theory.predict(problem, fedhsa.LocalSA(5.0, local_steps=4)))
    assert "no: the error grows" in wild
    assert "floor" not in wild
    choice = fedhsa.theory.choose(problem, target=1e-3, algorithms=("LocalSA",), local_steps=(2,), schedules=False)
    assert "best  LocalSA(step_size=" in repr(choice)
    assert f"{choice.reach.rounds:,.0f}" in repr(choice)
    assert repr(contest()) == contest().table()
    for one in (prediction, choice, contest(), result()):
        lines = repr(one).splitlines()
        assert len(lines) < 20
        assert max(map(len, lines)) <= 80
        cells = Cells()
        cells.feed(one._repr_html_())
        assert not cells.tags & {"script", "style", "link", "img"}
        assert len(cells.words) > 3
