"""The documentation: pages run, what they show is what they print, and links lead somewhere."""

import contextlib
import itertools
import json
import pathlib
import re
import shlex
import tomllib

import pytest

import names
import pages
import values
from fedhsa import cli
from fedhsa.cli import deploy, doctor, init, keys, lab, parsing, reproduce
from fedhsa.cli import node as staying
from fedhsa.experiments.run import presets
from pages import PAGES, ROOT

NAMES = [pages.name(page) for page in PAGES]
README = ROOT / "README.md"
LONG = {
    "CONTRIBUTING.md",
    "README.md",
    "docs/deploy/faults.md",
    "docs/deploy/index.md",
    "docs/deploy/privacy.md",
    "docs/deploy/secure-aggregation.md",
    "docs/get-started/core-ideas.md",
    "docs/get-started/first-result.md",
    "docs/how-to/compare.md",
    "docs/how-to/drawing.md",
    "docs/how-to/jax-programs.md",
    "docs/how-to/live-environments.md",
    "docs/how-to/own-algorithm.md",
    "docs/how-to/own-problem.md",
    "docs/how-to/own-recorder.md",
    "docs/how-to/own-wrapper.md",
    "docs/how-to/sweep.md",
    "docs/reference/command-line.md",
    "docs/reference/engine.md",
    "docs/reference/games.md",
    "docs/reference/methods.md",
    "docs/reference/problems.md",
    "docs/reference/reinforcement-learning.md",
    "docs/theory/adversaries.md",
    "docs/theory/compressed.md",
    "docs/theory/derivations.md",
    "docs/theory/extrapolation.md",
    "docs/theory/mixing.md",
    "docs/theory/one-exchange.md",
    "docs/theory/one-law.md",
    "docs/theory/participation.md",
    "docs/theory/predict.md",
    "docs/theory/step-sizes.md",
    "docs/theory/variants.md",
    "docs/tutorials/control.md",
    "docs/tutorials/for-a-class.md",
    "docs/tutorials/grid-worlds.md",
    "docs/tutorials/policies.md",
    "docs/tutorials/streams.md",
    "docs/tutorials/three-sites.md",
    "examples/pedestrians/README.md",
    "examples/private_series/README.md",
}
"""Pages whose code takes long; the examples in docstrings say the same of what they use, sooner."""
NOT_RUN = {
    "docs/deploy/clusters.md": 2,
    "docs/deploy/faults.md": 1,
    "docs/deploy/index.md": 2,
    "docs/get-started/lab.md": 2,
    "docs/tutorials/grid-worlds.md": 1,
    "docs/tutorials/three-sites.md": 2,
    "docs/how-to/live-environments.md": 1,
    "docs/deploy/several-machines.md": 1,
}
"""How many blocks of which pages are not run: those of a network or a server, or run elsewhere. The pages say why."""
LANGUAGES = ("python", "text", "toml", "console", "sh", "bash", "diff", "mermaid", "bibtex")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if pages.name(page) in LONG else ()) for page in PAGES],
    ids=NAMES,
)
def test_every_page_runs_from_top_to_bottom_and_shows_what_it_prints(page, tmp_path, unrendered):
    assert "\n".join(pages.stale(page, pages.run(page, tmp_path))) == ""


def test_the_readme_begins_with_a_short_program_that_draws_the_figure_beneath_it(tmp_path, monkeypatch, unrendered):
    text = README.read_text()
    code = pages.read(text)[0]
    assert code.line < 25
    assert len(code.text.splitlines()) <= 12
    beneath = re.search(r"!\[[^]]*\]\((\S+)\)", text[text.index(code.text) :])
    assert beneath
    monkeypatch.chdir(tmp_path)
    exec(code.text.replace("rounds=1000, seeds=32", "rounds=2, seeds=2"), {})  # the whole of it is a slow test
    assert [path.name for path in tmp_path.iterdir()] == [beneath[1].rpartition("/")[2]]


def test_the_readme_fits_on_a_few_screens():
    assert len(README.read_text().split()) <= 900


def test_every_block_of_a_page_is_run_compared_or_marked_with_the_reason_why_not():
    found = {name: pages.read(page.read_text()) for name, page in zip(NAMES, PAGES, strict=True)}
    assert {block.language for blocks in found.values() for block in blocks} <= set(LANGUAGES)
    assert list(itertools.chain.from_iterable(map(pages.unexplained, PAGES))) == []
    marked = {name: sum(block.not_run is not None for block in blocks) for name, blocks in found.items()}
    assert {name: number for name, number in marked.items() if number} == NOT_RUN


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("error 9.5e-03", "error   0.0095", True),
        ("error 9.5e-03", "error 9.6e-03", False),
        ("0.123456789", "0.123456788", True),
        ("7 rounds", "8 rounds", False),
        ("[0.12 0.  ]", "[0.12 0.  ]", True),
        ("[463. 278.]", "[463.2 278.]", False),
        ("a\n...\nb", "a\n1\n2\nb", True),
        ("a\n...\nb", "a\n1\n2\nc", False),
        ("error 8e-29", "error 3e-28", True),
        ("Conditions(root=-0.25)", "Conditions(root=0.25)", False),
        ("a\nb", "a b", False),
        ("1,000 MB", "1,000 MB", True),
    ],
)
def test_what_a_page_shows_agrees_with_what_is_printed_up_to_the_wildcards(shown, printed, same):
    assert pages.agree(shown, printed) is same


def test_a_page_that_is_out_of_date_is_noticed_and_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    code = "```python\nprint('one')\nprint(2)\n```\n"
    page.write_text(f"{code}\n```text\none\n3\n```\n\n{code}\nEnd.\n")
    (tmp_path / "examples").mkdir()
    blocks = pages.run(page, tmp_path)
    assert len(pages.stale(page, blocks)) == 2  # the number, and what is not shown
    assert pages.renew(page, blocks)
    assert page.read_text() == f"{code}\n```text\none\n2\n```\n\n{code}\n```text\none\n2\n```\n\nEnd.\n"
    assert pages.stale(page, pages.run(page, tmp_path)) == []
    code = "```python\nprint('alpha 1', 'beta 2', 'gamma 3', sep='\\n')\n```\n"
    page.write_text(f"{code}\n```text\n...\nbeta 9\n...\n```\n")
    assert pages.renew(page, pages.run(page, tmp_path))
    assert page.read_text() == f"{code}\n```text\n...\nbeta 2\n...\n```\n"  # what is left out stays out


WITH_VERSIONS = {"docs/get-started/install.md", "docs/project/comparison.md", "docs/theory/notation.md"}
"""Pages full of versions of programs and sections of the paper, which have no measurements."""


def test_the_numbers_of_studies_are_those_of_the_code_of_today():
    stale = values.out_of_date()
    assert stale == [], "Run these again, and write their numbers with tests/update_docs.py, which explains how."


def test_a_comparison_whose_numbers_are_quoted_is_one_that_a_page_shows():
    blocks = itertools.chain.from_iterable(pages.read(page.read_text()) for page in PAGES)
    shown = {shlex.join(words) for block in blocks if block.language in pages.SHELL for words in pages.commands(block)}
    stored = [path for name, path in values.files().items() if name.startswith("compare/")]
    assert {json.loads(path.read_text())["command"] for path in stored} <= shown


def test_another_setting_or_generator_makes_the_numbers_of_a_study_out_of_date(tmp_path, monkeypatch):
    name = "field/one-exchange"
    study, now, draws = values._studies()[name], values.digest(name), json.loads(values.DRAWS.read_text())
    with monkeypatch.context() as other:
        other.setattr(values, "_studies", lambda: {name: presets.change(study, "rounds", study.rounds + 1)})
        assert values.digest(name) != now
    monkeypatch.setattr(values, "DRAWS", tmp_path / "draws.json")
    for key, same in (("problem quadratic", False), ("problem lqr", True)):  # the study has no lqr
        values.DRAWS.write_text(json.dumps(draws | {key: "other numbers"}))
        values._draws.cache_clear()
        assert (values.digest(name) == now) is same
    values._draws.cache_clear()


def test_another_computation_in_an_example_makes_what_it_printed_out_of_date(tmp_path, monkeypatch):
    text, path = "from fedhsa.problems import quadratic\nprint(quadratic.random(4).theta_star)\n", tmp_path / "one.py"
    monkeypatch.setattr(values, "EXAMPLES", {"examples/one": path})
    path.write_text(text)
    now = values.digest("examples/one")
    for other, same in (("# said\n" + text, True), (text.replace("star)", "star[0])"), False)):
        path.write_text(other)
        assert (values.digest("examples/one") == now) is same
    path.write_text(text)
    monkeypatch.setattr(values, "_draws", lambda code: ["other problems"])
    assert values.digest("examples/one") != now


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_shows_the_numbers_that_the_studies_gave(page):
    text = page.read_text()
    assert values.renewed(text) == text, "Run `python tests/update_docs.py`, and read the sentences around the numbers."


@pytest.mark.parametrize("page", [p for p in PAGES if pages.name(p) not in WITH_VERSIONS], ids=pages.name)
def test_no_measured_number_is_typed_by_hand(page):
    assert values.typed_by_hand(page.read_text()) == [], "Mark where these come from, as tests/values.py explains."


NUMBERS = {
    "depends_on": "",
    "facts": {"rows": [3, 4]},
    "settings": {"step_size": 0.3, "rounds": 7},
    "table": {"M": [1, 2], "floor": [0.5, 0.25]},
    "checks": {
        "ratio, 0.8": {"measured": 2.404, "low": 2.314, "high": 2.476, "expected": 2.5, "verdict": "pass"},
    },
    "more": {"rounds": {"measured": 45398.0}},
}


PRINTED = ["Lakes, step 1: root 0.5", "FedHSA 3.25 +- 0.5, 2 rounds", "Cliffs", "FedHSA 4e-03 ±1e-03, error 2"]


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Pages whose studies are `field/one`, and `field/two`, which has printed lines."""
    (tmp_path / "field").mkdir()
    (tmp_path / "field" / "one.json").write_text(json.dumps(NUMBERS))
    (tmp_path / "field" / "two.json").write_text(json.dumps({"settings": {}, "printed": PRINTED}))
    monkeypatch.setattr(values, "NUMBERS", tmp_path)
    monkeypatch.setattr(values, "study", values.Study)
    return "`fedhsa reproduce field/one` measures it.\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('1.9<!-- = "ratio, 0.8" .2f -->', "2.40"),
        ('1.9 (1.8 to 2.0)<!-- = "ratio, 0.8" .2f -->', "2.40 (2.31 to 2.48)"),
        ('1.9 [1.8,\n2.0]<!-- = "ratio, 0.8" .2f -->', "2.40 [2.31,\n2.48]"),
        ('M = 1, 1.9<!-- = check["ratio, 0.8"].expected .1f -->', "M = 1, 2.5"),
        ('44 000<!-- = "rounds" ,.0f -->', "45 398"),
        ('4e4<!-- = check["rounds"] / 1e10 .1e -->', "4.5e-6"),
        ('1<!-- = row(M=2)["floor"] / facts["rows"][1] .4f -->', "0.0625"),
        ('1<!-- = max(checks("r*")) .0f -->', "45398"),
        ('1<!-- = study("field/one").check["ratio, 0.8"].high .1f -->', "2.5"),
        ('1 ± 3<!-- = "ratio, 0.8" .2f -->', "2.40 ± 0.08"),
        ('1e-3 (1 to 2)<!-- = "ratio, 0.8" .1e -->', "2.4e0 (2.3 to 2.5)"),
        ('1<!-- = study("field/two").check["FedHSA"] +.2f -->', "+3.25"),
        ('1 ± 2<!-- = study("field/two").check["Cliffs > FedHSA"] .0e -->', "4e-3 ± 1e-3"),
        ('1<!-- = study("field/two").printed("Lakes > FedHSA")[1] .0f -->', "2"),
        ('1<!-- = "field/two: Cliffs > error" .0f -->', "2"),
    ],
)
def test_a_marked_number_becomes_that_of_its_file(stored, before, after):
    comment = before[before.index("<!--") :]
    assert values.renewed(stored + before) == stored + after + comment


def test_a_mark_that_names_nothing_is_an_error_with_its_line(stored):
    with pytest.raises(ValueError, match='line 2: `"no such"`: KeyError'):
        values.renewed(stored + '1.9<!-- = "no such" .2f -->')


def test_a_page_shows_the_table_of_a_benchmark_with_its_machine(stored):
    """Text columns are to the left, numbers to the right; a second run with the same file changes nothing."""
    folder = values.NUMBERS / "benchmarks"
    folder.mkdir()
    rows = [["method", "seconds"], ["FedHSA", "0.25"], ["LocalSA", "1e-3"]]
    found = {"settings": {}, "machine": {"processor": "a processor", "cores": 2}, "tables": {"": rows, "two": rows[:2]}}
    (folder / "speed.json").write_text(json.dumps(found))
    text = values.renewed("Before.\n\n<!-- table: benchmarks/speed -->\n\nAfter.\n")
    table = "| method | seconds |\n| --- | ---: |\n| FedHSA | 0.25 |\n| LocalSA | 1e-3 |\n"
    said = "*Measured by `python benchmarks/speed.py` on a processor, 2 cores.*"
    assert text == f"Before.\n\n<!-- table: benchmarks/speed -->\n\n{table}\n{said}\n\nAfter.\n"
    assert values.renewed(text) == text
    assert values.typed_by_hand(text) == []
    assert "LocalSA" not in values.renewed("<!-- table: benchmarks/speed, two -->\n")
    other = text.replace("0.25", "0.5")
    assert values.renewed(other) == text


def test_stored_numbers_name_no_folder_of_the_machine_that_measured_them():
    named = {name: re.findall(r'"(/[^"]*/[^"]*)"', path.read_text()) for name, path in values.files().items()}
    assert {name: folders for name, folders in named.items() if folders} == {}


def test_numbers_that_nothing_gives_are_found(stored):
    given = (
        '2.40 (2.31 to 2.48)<!-- = "ratio, 0.8" .2f -->, 0.379<!-- quoted: the source -->, `0.7`, $0.2$ and 99.9 %, '
        "the step size 0.3, arXiv:2402.04114, Python 3.11, sections 6.1 and 6.2, "
        "7e-9<!-- tested: tests/test_docs.py -->\n\n```text\n0.9\n```\n\nmore than 0.9"
    )
    assert values.typed_by_hand(stored + given) == []
    assert values.typed_by_hand(stored + "0.31, 1e-5 and 7") == ["line 2: 0.31", "line 2: 1e-5"]
    assert values.typed_by_hand(stored + "1.5<!-- tested: tests/no_test.py -->") == ["line 2: 1.5"]


class Understood(BaseException):
    """The settings of a command, in the place of its run."""


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_on_a_page_is_understood(page, tmp_path, monkeypatch):
    def until_understood(parse):
        def stop(*arguments):
            raise Understood(parse(*arguments))

        return stop

    modules = (deploy, doctor, init, keys, lab, staying, parsing, reproduce)
    for module, name in itertools.product(modules, ("parse", "parse_flags")):
        if hasattr(module, name) and (module, name) != (parsing, "parse_flags"):  # which `parse` calls itself
            monkeypatch.setattr(module, name, until_understood(getattr(module, name)))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)  # `fedhsa new` writes files
    for block in pages.read(page.read_text()):
        for words in pages.commands(block) if block.language in (*pages.SHELL, "console") else ():
            if words[0] == "fedhsa":
                words = list(itertools.takewhile(lambda word: word != "|", words))
                with contextlib.suppress(Understood):
                    assert cli.main(words[1:]) == 0, f"{pages.name(page)}: {' '.join(words)}"


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = (re.sub(r"\]\([^)]*\)", "", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_to_a_file_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        if "://" not in target:
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_name_in_the_text_of_a_page_exists(page):
    assert names.unknown(page) == []


@pytest.mark.parametrize(
    ("span", "exists"),
    [
        ("FedHSA(0.1, local_steps=5)", True),
        ("FedHSA(0.1, steps=5)", False),
        ("Exchange(name, send, local, aggregate)", True),
        ("Exchange(name, send, local, receive)", False),
        ("fh.theory.predict", True),
        ("theory.predicts", False),
        ("NoSuchMethod", False),
        ("result.no_such_field", False),
        ("--step-size 0.1", True),
        ("--no-such-flag", False),
        ("fedhsa run --seeds 8", True),
        ("fedhsa runs", False),
        ("make pages", True),
        ("make nothing", False),
        ("algorithms/fed_hsa.py", True),
        ("algorithms/fed_hse.py", False),
        ("td/*", True),
        ("field/no-such-study", True),  # not decided: no folder of the repository has this name
        ("test_every_name_in_the_text_of_a_page_exists", True),
        ("test_no_such_thing", False),
        ("two words", True),
        ("x + 1", True),
    ],
)
def test_names_that_do_not_exist_are_found(span, exists):
    assert names.known(span) is exists


def test_the_picture_of_the_layers_shows_the_contract_that_lint_checks():
    shown = re.findall(r'L\d+\["(.+?)"\]', (ROOT / "ARCHITECTURE.md").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]["layers"]
    assert shown == [layer.replace("fedhsa.", "") for layer in contract]


def test_the_page_on_installing_names_every_extra():
    table = (ROOT / "docs" / "get-started" / "install.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    shown = {
        name for row in re.findall(r"^\| (`.+?) \|", table, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert shown == set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
