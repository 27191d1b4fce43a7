"""Numbers in the text of pages: where each comes from, and how it is brought up to date.

`python tests/update_docs.py --numbers results` writes the numbers of the studies that `fedhsa reproduce` has run into
`docs/numbers/`, one file each. On a page, such a number is followed by a comment, which readers do not see:

    The floor is 2.40 (2.31 to 2.48)<!-- = "ratio, 0.8" .2f --> times FedHSA's.

Between `=` and the format stands a Python expression. A string is the check of that name, or the value that
`docs/numbers/more.py` adds under it, of the study that the row of a table names, or `fedhsa reproduce` last before it.
`check["ratio, 0.8"].expected` is what the check expects; `facts`, `table` and `settings` are those of the study, and
`study("td/slow")` is another one. Whether the interval is shown, and how, is decided by what stands there already:
`2.40 ± 0.08`, `2.40 (2.31 to 2.48)`, or `2.4e-6 (2.3 to 2.5)`, in units of the same power of ten.

Two more commands leave numbers. `python tests/update_docs.py examples/control.py` runs an example and keeps what it
prints, in `docs/numbers/examples/`. A string is then what stands before the number: `"SARSA > FedHSA, 10 local steps"`
is the first number after these words, of which the second come after the first, and `printed("SARSA > FedHSA")[1]` the
next one in that line. It belongs to the example that the page has named last.
`fedhsa compare ... --out runs/compare/NAME` leaves a comparison, which `--numbers runs` writes into
`docs/numbers/compare/`: `"compare/NAME: FedHSA"` is the score of a method, and `facts["step_size"]["FedHSA"]` its step
size after tuning.

`python benchmarks/NAME.py` leaves tables, which `--numbers benchmarks/results` writes into `docs/numbers/benchmarks/`.
A page shows one after `<!-- table: benchmarks/NAME, TITLE -->`, with the machine on which it was measured.

A number that a test asserts, a tolerance for instance, names the test: `1e-12<!-- tested: tests/test_docs.py -->`.
Numbers of others are marked with their source, `0.379<!-- quoted: Mangold et al. -->`, and those that no study gives
with the reason, `0.95<!-- kept: a first attempt on another problem -->`.
"""

import fnmatch
import functools
import hashlib
import importlib.util
import inspect
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pages

NUMBERS = pages.ROOT / "docs" / "numbers"
DRAWS = pages.ROOT / "tests" / "draws.json"
"""Small draws of every generator; one that gives other problems changes this file."""
EXAMPLES = {f"examples/{path.stem}": path for path in sorted((pages.ROOT / "examples").glob("*.py"))}
DIGITS = 8
LONGEST = 120
"""Lists of facts that are longer are curves, which no sentence quotes."""

N = r"[-+]?(?:\d{1,3}(?: \d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?(?![\d.])"
ENDS = rf"(?P<open>\s+[(\[]){N}(?P<between>\s+to\s+|,\s+){N}(?P<close>[)\]])"
SHOWN = rf"(?P<value>{N})(?P<rest>{ENDS}|(?P<plus>\s+±\s+){N})?"
MARKED = re.compile(rf"(?<![\w.]){SHOWN}<!--\s+=\s+(?P<what>.+?)\s+(?P<form>[#,+]?\.\d+[efg])\s+-->", re.DOTALL)
TYPED = re.compile(rf"{SHOWN}<!--\s+(?:quoted: .+?|kept: .+?|tested: (?P<test>\S+))\s+-->", re.DOTALL)
NAMED = re.compile(r"(?:fedhsa\s+reproduce\s+|runs/(?=compare/)|(?=examples/))([\w-]+(?:/[\w-]+)?)")
PRINTED = re.compile(r"(?<![\w.])([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*(?:±|\+-)\s*(\d+(?:\.\d+)?(?:e[-+]?\d+)?))?")
IN_A_ROW = re.compile(r"`([\w-]+(?:/[\w-]+)?)`")


class Value(float):
    """What a check measured, with its interval and what was expected."""

    low: float
    high: float
    expected: Any
    verdict: str | None

    @property
    def half(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


def _maker() -> Any:
    """`docs/figures/make.py`, which knows the code that a study depends on."""
    return _load(pages.ROOT / "docs" / "figures" / "make.py")


def _more(name: str) -> Any:
    """The function that adds values of a study, or None."""
    return _load(NUMBERS / "more.py").MORE.get(name)


@functools.cache
def _load(path: pathlib.Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@functools.cache
def _studies() -> dict[str, Any]:
    from fedhsa.experiments.run.presets import studies

    return studies()


@functools.cache
def _code_of(module: str | pathlib.Path, roots: tuple[str, ...] = ("run", "check", "table")) -> str:
    """What computes the outcome, the checks and the table of a study: its own code, and the statistics that it uses."""
    maker, text = _maker(), pathlib.Path(module).read_text()
    estimates = (maker.PACKAGE / "statistics" / "estimates.py").read_text()
    return maker.reached(text, roots) + maker.reached(estimates, sorted(maker.names_in(text)))


@functools.cache
def _draws(code: str) -> list[str]:
    """The draws of the generators that code names, and of the random numbers themselves."""
    words = {word.replace("-", "_") for word in re.findall(r"[\w-]+", code)}
    draws = json.loads(DRAWS.read_text())
    named = {key: key.removeprefix("problem ").removeprefix("environment ") for key in draws}
    used = {key for key, name in named.items() if name == key or name.partition(",")[0].replace("-", "_") in words}
    return [f"{key} {draws[key]}" for key in draws if key in used]


def digest(name: str) -> str:
    """A fingerprint of what the numbers of a study depend on: settings, its own code, statistics and random problems.

    The code of the engine and of the theory does not count: tests hold its numbers fixed.
    """
    kinds = {"benchmarks": _benchmark, "compare": _comparison, "examples": _example}
    parts = kinds.get(name.partition("/")[0], _study)(name)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _benchmark(name: str) -> list[str]:
    return [_maker().canonical((pages.ROOT / f"{name}.py").read_text())]


def _example(name: str) -> list[str]:
    code = _maker().canonical(EXAMPLES[name].read_text().replace("print(", "shown("))  # `canonical` leaves prints out
    return [code, *_draws(code)]


def _comparison(name: str) -> list[str]:
    from fedhsa.cli.parsing import parse
    from fedhsa.cli.settings import CompareSettings

    command = json.loads((NUMBERS / f"{name}.json").read_text())["command"]
    settings = json.dumps(parse(CompareSettings, shlex.split(command)[2:]).numbers(), sort_keys=True, default=str)
    folder = _maker().PACKAGE / "comparison"
    roots = {"contest": ("compare",), "tuning": ("search", "starting_step"), "ranking": ("rank",)}
    return [settings, *(_code_of(folder / f"{file}.py", names) for file, names in roots.items()), *_draws(settings)]


def _study(name: str) -> list[str]:
    from fedhsa.experiments.run import store

    maker, experiment = _maker(), _studies()[name]
    words = ("title", "source", "choices")
    settings = {key: value for key, value in store.settings(experiment).items() if key not in words}
    parts = [json.dumps(settings, sort_keys=True), _code_of(sys.modules[type(experiment).__module__].__file__ or "")]
    parts += _draws(parts[1]) + _draws(parts[0])
    return parts + ([] if _more(name) is None else [maker.canonical(inspect.getsource(_more(name)))])


def write(name: str, results: pathlib.Path, as_they_are: bool = False) -> str:
    """Writes the numbers of one study or comparison from what it has left; returns what was done, as a sentence."""
    from fedhsa import _files
    from fedhsa._json import plain
    from fedhsa.experiments.run import code, store
    from fedhsa.experiments.study.base import Outcome

    if name.startswith("benchmarks/"):
        found = json.loads((results / f"{name.partition('/')[2]}.json").read_text())
        known = {key: found.get(key, {}) for key in ("machine", "settings", "tables")}
        known["settings"].pop("out", None)  # a folder of the machine
        return _store(name, {"command": f"python {name}.py", "depends_on": digest(name)} | known)
    if name.startswith("compare/"):
        return _write_comparison(name, json.loads((results / name / "manifest.json").read_text()))
    experiment = _studies()[name]
    try:
        arrays, header = _files.read_arrays(results / name / "data.npz", store.KIND)
        manifest = json.loads((results / name / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        return f"{name}: {error}"
    run = manifest["settings"], manifest["drawn"][1]  # with any version of JAX: its rounding is not in these digits
    if run != (store.settings(experiment), code.digest(type(experiment).__module__)) and not as_they_are:
        return f"{name}: {results} has other settings or code; run `fedhsa reproduce {name} --out {results}`"
    outcome = Outcome(arrays, header["facts"])
    found = {
        "command": f"fedhsa reproduce {name}",
        "versions": manifest["versions"],
        "depends_on": digest(name),
        "settings": store.settings(experiment),
        "checks": {
            check.name.removeprefix(f"{name}: "): _entry(check.measured, check.interval)
            | {"expected": check.expected, "verdict": check.verdict}
            for check in experiment.checks(outcome)
        },
        "more": {key: _entry(*entry) for key, entry in _added(experiment, outcome)},
        "facts": outcome.facts,
        "table": {column: list(entries) for column, entries in experiment.table(outcome).items()},
    }
    return _store(name, _short(plain(found)))


def _write_comparison(name: str, manifest: dict[str, Any]) -> str:
    scores, methods = {place["name"]: place["score"] for place in manifest["ranking"]["places"]}, manifest["algorithms"]
    found = {key: manifest[key] for key in ("command", "versions", "settings")}
    found["checks"] = {key: _entry(score["value"], (score["low"], score["high"])) for key, score in scores.items()}
    found["facts"] = {"step_size": {key: e["tuning"] and e["tuning"]["step_size"] for key, e in methods.items()}}
    _store(name, _short(found))  # what they depend on is read from the command in the file
    return _store(name, _short(found | {"depends_on": digest(name)}))


def write_example(name: str) -> str:
    """Runs an example, compiled as users have it, and writes what it prints; returns what was done, as a sentence."""
    from fedhsa.outputs import versions

    found = {"command": f"python {name}.py", "versions": versions(), "depends_on": digest(name)}
    usual = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(EXAMPLES[name])]
        done = subprocess.run(command, cwd=folder, env=usual, stdout=subprocess.PIPE, text=True, check=True)
    return _store(name, found | {"printed": lines(done.stdout)})


def lines(printed: str) -> list[str]:
    """The lines that an example prints, with single spaces."""
    return [" ".join(line.split()) for line in printed.splitlines() if line.strip()]


def _store(name: str, found: dict[str, Any]) -> str:
    from fedhsa import _files

    path = NUMBERS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _files.write_text(path, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return f"{name}: written"


def _entry(measured: float, interval: tuple[float, float] | None) -> dict[str, Any]:
    return {"measured": measured} | ({} if interval is None else {"low": interval[0], "high": interval[1]})


def _added(experiment: Any, outcome: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The further values of a study: numbers, and estimates with their intervals."""
    more = _more(experiment.name)
    for key, value in (more(experiment, outcome) if more else {}).items():
        if value is not None:
            yield key, (value.value, value.interval) if hasattr(value, "interval") else (value, None)


def _short(value: Any) -> Any:
    """Fewer digits than the machine has, and without curves."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        short = {key: _short(entry) for key, entry in value.items()}
        return {key: entry for key, entry in short.items() if entry is not None or value[key] is None}
    if isinstance(value, list):
        return [_short(entry) for entry in value] if len(value) <= LONGEST else None
    return value


def files() -> dict[str, pathlib.Path]:
    """The file of every study that has one."""
    return {str(path.relative_to(NUMBERS).with_suffix("")): path for path in sorted(NUMBERS.rglob("*.json"))}


def out_of_date() -> list[str]:
    """The files whose numbers today's code may not give any more."""
    return [name for name, path in files().items() if json.loads(path.read_text())["depends_on"] != digest(name)]


class Checks(dict[str, Value]):
    """Checks by name; `td/slow: order` is that of another study."""

    def __missing__(self, key: str) -> Value:
        name, found, rest = key.partition(": ")
        if not found:
            raise KeyError(key)
        return study(name).check[rest]


class Printed(Checks):
    """What an example printed: the number after some words."""

    def __init__(self, text: str):
        self.text = text

    def __call__(self, words: str) -> list[Value]:
        """All numbers after the words, in the line of the last of them."""
        at = 0
        for part in words.split(" > "):
            at = self.text.find(part, at) + len(part)
            if at < len(part):
                raise KeyError(words)
        return numbers(self.text[at:].partition("\n")[0])

    def __missing__(self, key: str) -> Value:
        return self(key)[0]


def numbers(line: str) -> list[Value]:
    """The numbers in a line of text, with the intervals that follow `±`.

    >>> [(number, number.half) for number in numbers("M = 4, error 3.5 +- 0.5")]
    [(4.0, 0.0), (3.5, 0.5)]
    """
    found = [(float(number), float(half or 0)) for number, half in PRINTED.findall(line)]
    return [_value(_entry(number, (number - half, number + half))) for number, half in found]


class Study:
    """The numbers of one study, comparison or example, as expressions see them."""

    def __init__(self, name: str):
        path = NUMBERS / f"{name}.json"
        if not path.exists():
            raise KeyError(f"{path.relative_to(pages.ROOT)} does not exist")
        found = json.loads(path.read_text())
        self.tables, self.machine = (found.get(key, {}) for key in ("tables", "machine"))
        self.facts, self.table = (found.get(key, {}) for key in ("facts", "table"))
        self.printed = Printed("\n".join(found.get("printed", ())))
        self.settings = found["settings"] if "settings" in found else {"code": EXAMPLES[name].read_text()}
        checks = found.get("checks", {}) | found.get("more", {})
        self.check = Checks({key: _value(e) for key, e in checks.items()}) if checks else self.printed

    def checks(self, pattern: str) -> list[Value]:
        """The checks whose names match a pattern, as in `max(checks("slope*"))`."""
        return [value for key, value in self.check.items() if fnmatch.fnmatchcase(key, pattern)]

    def rows(self, **values: Any) -> list[dict[str, Any]]:
        """The rows of the table that have these values."""
        keys = list(self.table)
        rows = [dict(zip(keys, row, strict=True)) for row in zip(*self.table.values(), strict=True)]
        return [row for row in rows if all(row[key] == value for key, value in values.items())]

    def row(self, **values: Any) -> dict[str, Any]:
        """The one row of the table that has these values."""
        (found,) = self.rows(**values)
        return found


def _value(entry: dict[str, Any]) -> Value:
    value = Value(_number(entry["measured"]))
    value.low, value.high = (_number(entry.get(end, entry["measured"])) for end in ("low", "high"))
    value.expected, value.verdict = entry.get("expected"), entry.get("verdict")
    return value


def _number(entry: Any) -> float:
    return math.nan if entry is None else float(entry)


study = functools.cache(Study)

FUNCTIONS = {f.__name__: f for f in (min, max, abs, sum, len, float, zip, range, sorted, math.sqrt, math.log)}


def evaluate(what: str, name: str | None) -> Any:
    """The value of an expression on a page whose last study before it is `name`."""
    there: dict[str, Any] = {"study": study, "check": Checks(), "__builtins__": FUNCTIONS}
    if name is not None:
        one = study(name)
        there |= {key: getattr(one, key) for key in dir(one) if not key.startswith("_")}
    found = eval(what, there)  # the pages are ours
    return there["check"][found] if isinstance(found, str) else found


def shown(number: float, form: str) -> str:
    """A number as pages write it: 45 398 and 6.2e-6.

    >>> shown(45398.2, ",.0f"), shown(6.2e-6, ".1e"), shown(0.25, ".2f")
    ('45 398', '6.2e-6', '0.25')
    """
    text = f"{number:{form}}".replace(",", " ").removesuffix(".")  # "#.3g" keeps zeros, and a point at the end
    return re.sub(r"e([-+])0*(\d)", lambda e: f"e{e[1].strip('+')}{e[2]}", text)


def named(text: str, position: int) -> str | None:
    """The study that a number belongs to: the one that its row of a table names, or the last command before it."""
    row = text[text.rfind("\n", 0, position) + 1 : position]
    names = IN_A_ROW.findall(row) if row.startswith("|") else []
    for name in [*reversed(names), *reversed(NAMED.findall(text, 0, position))]:
        if (NUMBERS / f"{name}.json").exists():
            return name
    return None


def _interval(found: re.Match[str], value: Value) -> str:
    """The interval of a value, as one stands there already."""
    form = found["form"].lstrip("+")
    if found["plus"]:
        return found["plus"] + shown(value.half, form)
    if not found["rest"]:
        return ""
    power = shown(value, form).partition("e")[2] if "e" not in found["rest"] else ""  # then it is that of the value
    low, high = (
        shown(end / 10 ** int(power), form.replace("e", "f")) if power else shown(end, form)
        for end in (value.low, value.high)
    )
    return f"{found['open']}{low}{found['between']}{high}{found['close']}"


TABLE = re.compile(r"<!-- table: (?P<name>[\w/]+)(?:, (?P<title>\w+))? -->\n(?:\n(?:\|.*\n)+\n\*Measured .*\n)?")


def tabulated(found: re.Match[str]) -> str:
    """A table as its file has it, with its marker before it, and where it was measured."""
    measured, where = study(found["name"]), study(found["name"]).machine
    headings, *rows = measured.tables[found["title"] or ""]
    numeric = [all(re.fullmatch(r"[-+\d.,e %]*", row[k]) for row in rows) for k in range(len(headings))]
    lines = [headings, ["---:" if number else "---" for number in numeric], *rows]
    marker = found[0].partition("\n")[0]
    said = f"*Measured by `python {found['name']}.py` on {where['processor']}, {where['cores']} cores.*"
    return "\n".join([marker, "", *("| " + " | ".join(line) + " |" for line in lines), "", said, ""])


def renewed(text: str, problems: list[str] | None = None) -> str:
    """A page with every marked number as its file has it; numbers that have none stay, and are told in `problems`."""

    def write_one(found: re.Match[str]) -> str:
        what = " ".join(found["what"].split())
        try:
            value = evaluate(what, named(text, found.start()))
            new = shown(value, found["form"]) + _interval(found, value)
        except Exception as error:
            line = text.count("\n", 0, found.start()) + 1
            problem = f"line {line}: `{what}`: {type(error).__name__}: {error}"
            if problems is None:
                raise ValueError(problem) from error
            problems.append(problem)
            return found[0]
        return new + text[found.end("rest" if found["rest"] else "value") : found.end()]

    return TABLE.sub(tabulated, MARKED.sub(write_one, text))


NAMED_SO = re.compile(
    r"""\b(?:Python|JAX|Ray|TensorBoard|MLflow|W&B|gymnax|version|[Ss]ections?|Theorem|Example)\s
    \d+(?:\.\d+)+(?:(?:,|\sand)\s\d+\.\d+)*""",
    re.VERBOSE,
)
"""Versions of programs, and places in papers."""
LEVELS = {0.999, 0.99, 0.95, 99.9}
"""Levels of intervals, and 99.9 %."""
WITH_A_POINT = re.compile(r"(?<![\w.:/-])-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)(?![\w.]*\w)")


def typed_by_hand(text: str) -> list[str]:
    """The numbers with a point or an exponent in the text of a page that nothing gives.

    What the code of the page contains or prints is compared when the page runs, and settings belong to the study.
    """
    known = LEVELS | {float(n) for block in pages.read(text) for n in WITH_A_POINT.findall(block.text)}
    known |= {float(n) for code in re.findall(r"`[^`\n]+`", text) for n in WITH_A_POINT.findall(code)}

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"\S", " ", found[0])

    plain = re.sub(r"^```.*?^```$", blank, text, flags=re.DOTALL | re.MULTILINE)
    plain = TYPED.sub(lambda found: blank(found) if _tested(found) else found[0], plain)
    for left_out in (TABLE, MARKED, NAMED_SO, re.compile(r"<!--.*?-->", re.DOTALL)):
        plain = left_out.sub(blank, plain)
    plain = re.sub(r"\$\$.+?\$\$|\$[^$\n]+\$|`[^`\n]+`|\]\([^)]*\)", blank, plain, flags=re.DOTALL)
    found = []
    for number in WITH_A_POINT.finditer(plain):
        name = named(text, number.start())
        settings = _leaves(study(name).settings) if name else set()
        if abs(float(number[0])) not in {abs(entry) for entry in known | settings}:
            found.append(f"line {plain.count(chr(10), 0, number.start()) + 1}: {number[0]}")
    return found


def _tested(found: re.Match[str]) -> bool:
    """Whether the test that a number names contains it."""
    if found["test"] is None:
        return True
    test = pages.ROOT / found["test"]
    return test.is_file() and float(found["value"]) in {float(n) for n in WITH_A_POINT.findall(test.read_text())}


def _leaves(value: Any) -> set[float]:
    """All numbers in nested settings."""
    if isinstance(value, dict | list):
        return set().union(*map(_leaves, value.values() if isinstance(value, dict) else value), set())
    if isinstance(value, str):  # what was chosen, in words
        return {float(number) for number in WITH_A_POINT.findall(value)}
    return {float(value)} if isinstance(value, int | float) else set()
