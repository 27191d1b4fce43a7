"""Makes the figures of the documentation and knows which of them are out of date.

`make figures` makes those that are missing or out of date, `make figures ONLY=name` one of them, and `make figures
AGAIN=1` all of them. Each picture is recorded in `made.json` as soon as it is there, so an interrupted command
continues where it was. Outcomes of studies are kept in `results/`, and are used again while the study computes the same
thing.

A picture is out of date when the code that computes or draws it has changed: the study with its settings, the script or
the blocks of a page, and the modules of `fedhsa.plots` that it draws with. Comments, docstrings, messages and printed
lines do not count, and neither does the code of the engine and the theory, whose numbers are held fixed by the tests.
"""

import argparse
import ast
import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "src" / "fedhsa"
RECORD = HERE / "made.json"
PICTURES = (".png", ".gif", ".svg")
DIAGRAM = "diagram-"
"""How the names of pictures begin that `docs/make_site.py diagrams` draws from the Mermaid text of pages."""

sys.path += [str(ROOT / "src"), str(ROOT / "tests")]
import pages  # noqa: E402


class Recipe:
    """How some pictures are made."""

    pictures: Mapping[str, str]
    """The name of each picture, and that of the file it is a copy of."""

    def code(self) -> str:
        """What the pictures depend on besides `fedhsa.plots`, as text."""
        raise NotImplementedError

    def draws_with(self) -> Iterable[str]:
        """The names in the code, of which some are functions of `fedhsa.plots`."""
        raise NotImplementedError

    def run(self, folder: pathlib.Path, again: bool) -> float | None:
        """Writes the files into the folder; returns the seconds that were saved by earlier results."""
        raise NotImplementedError

    def digest(self) -> str:
        """A fingerprint of everything that the pictures depend on."""
        parts = [self.code(), *(canonical(path.read_text()) for path in drawing_modules(self.draws_with()))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Study(Recipe):
    """The figure of one study of `fedhsa reproduce`."""

    name: str
    picture: str

    @property
    def pictures(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {self.picture: "figure.png"}

    def __str__(self) -> str:
        return f"fedhsa reproduce {self.name}"

    @functools.cached_property
    def study(self) -> Any:
        """The study, with its settings."""
        from fedhsa.experiments.run.presets import studies

        return studies()[self.name]

    def _module(self) -> str:
        return pathlib.Path(sys.modules[type(self.study).__module__].__file__ or "").read_text()

    def code(self) -> str:
        return self._settings() + reached(self._module(), ("run", "draw", "plot", "figure_size"))

    def numbers(self) -> str:
        """A fingerprint of what computes the outcome."""
        return hashlib.sha256((self._settings() + reached(self._module(), ("run",))).encode()).hexdigest()[:16]

    def draws_with(self) -> Iterable[str]:
        return [*names_in(self._module()), "study.figures"]

    def _settings(self) -> str:
        from fedhsa.experiments.run import store

        words = ("title", "source", "choices")
        return json.dumps({k: v for k, v in store.settings(self.study).items() if k not in words}, sort_keys=True)

    def run(self, folder: pathlib.Path, again: bool) -> float | None:
        from fedhsa import _files, plots
        from fedhsa.experiments.run import reproduce, store
        from fedhsa.experiments.study.base import Outcome

        kept = ROOT / "results"
        path, manifest = kept / self.name / "data.npz", kept / self.name / "manifest.json"
        about = json.loads(manifest.read_text()) if manifest.exists() and path.exists() else {}
        saved = about.get("seconds", 0.0)
        if again or about.get("figure numbers") != self.numbers():
            reproduce.work(self.study, kept, {"figure numbers": self.numbers()})
            saved = 0.0
        arrays, header = _files.read_arrays(path, store.KIND)
        plots.save(self.study.draw(Outcome(arrays, header["facts"])), folder / "figure.png")
        return saved


@dataclasses.dataclass(frozen=True)
class Script(Recipe):
    """The files that a script leaves in the folder in which it is run."""

    path: str
    pictures: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Other files that the pictures depend on."""

    def __str__(self) -> str:
        return " ".join(("python", self.path, *self.arguments))

    def code(self) -> str:
        texts = [canonical((ROOT / self.path).read_text()), *((ROOT / path).read_text() for path in self.also)]
        return "\n".join([*self.arguments, *texts])

    def draws_with(self) -> Iterable[str]:
        return names_in((ROOT / self.path).read_text())

    def run(self, folder: pathlib.Path, again: bool) -> None:
        subprocess.run([sys.executable, str(ROOT / self.path), *self.arguments], cwd=folder, check=True)


@dataclasses.dataclass(frozen=True)
class Page(Recipe):
    """The files that the code of a page leaves, or some of its commands."""

    path: str
    pictures: Mapping[str, str]
    commands: tuple[str, ...] = ()
    """How the commands to run begin. Default: all blocks up to the last one that names a file."""

    def __str__(self) -> str:
        return " && ".join(self.commands) or f"the code of {self.path}"

    def _blocks(self) -> list[pages.Block]:
        found = [
            block
            for block in pages.read((ROOT / self.path).read_text())
            if block.language in ("python", "console", *pages.SHELL) and not block.not_run
        ]
        if self.commands:
            lines = [
                shlex.join(words) for block in found if block.language != "python" for words in pages.commands(block)
            ]
            chosen = [next(line for line in lines if line.startswith(text)) for text in self.commands]
            return [pages.Block("sh", line, 0, None) for line in chosen]
        stems = [f'"{pathlib.PurePath(file).stem}' for file in self.pictures.values()]
        last = [at for at, block in enumerate(found) if any(stem in block.text for stem in stems)]
        if not last:
            raise ValueError(f"No block of {self.path} writes {' or '.join(self.pictures.values())}.")
        return found[: last[-1] + 1]

    def code(self) -> str:
        return "\n".join(
            canonical(block.text) if block.language == "python" else str(pages.commands(block))
            for block in self._blocks()
        )

    def draws_with(self) -> Iterable[str]:
        for block in self._blocks():
            if block.language == "python":
                yield from names_in(block.text)
            else:
                yield from (word for words in pages.commands(block) for word in words)

    def run(self, folder: pathlib.Path, again: bool) -> None:
        (folder / "examples").symlink_to(ROOT / "examples")
        pages.run_blocks(self._blocks(), ROOT / self.path, folder)


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


RL = ("importance", "one-shot", "qavg", "sarsa", "two-phases", "fed-dvr-q", "npg", "fed-kl", "a3c", "pavg")
VARIANTS = ("adversaries", "compressed", "extrapolation", "one-exchange", "participation")

RECIPES: tuple[Recipe, ...] = (
    Page("README.md", _same("readme.png")),
    Script("docs/figures/architecture.py", _same("architecture.svg")),
    Script("docs/figures/round.py", _same("round.png")),
    Script("docs/figures/terminal.py", _same("terminal.svg")),
    Script(
        "docs/figures/lab.py",
        _same("lab.gif"),
        also=("src/fedhsa/lab/app.py", "src/fedhsa/lab/figures.py", "src/fedhsa/lab/look.css"),
    ),
    Page("docs/get-started/first-result.md", _same("first_result.png")),
    Page("docs/how-to/drawing.md", _same("drawing.png")),
    Page("docs/how-to/live-environments.md", _same("live-policy.png")),
    Page("docs/reference/environments.md", _same("lakes.png")),
    Page("docs/theory/mixing.md", _same("mixing.png")),
    Page("docs/theory/one-law.md", _same("one_law.png")),
    Page("docs/theory/step-sizes.md", _same("step_sizes.png")),
    Page("docs/tutorials/for-a-class.md", _same("for_a_class.png")),
    Page(
        "docs/reference/command-line.md",
        {"analyze.png": "runs/quadratic/analyze.png"},
        ("fedhsa analyze quadratic --option",),
    ),
    Page(
        "docs/how-to/compare.md",
        {"compare.png": "runs/td/compare/compare.png"},
        ("fedhsa compare td --num-agents 20 --algorithm",),
    ),
    Page("docs/how-to/own-algorithm.md", {"own-algorithm.png": "runs/field/compare.png"}, ("fedhsa compare examples",)),
    Page(
        "docs/tutorials/three-sites.md",
        {"three-sites.png": "runs/three/metrics.png"},
        ("python examples", "fedhsa deploy memory"),
    ),
    Script("examples/control.py", _same("control_policies.png", "control_returns.png", "control_curves.png")),
    Script("examples/employment.py", _same("employment.png")),
    Script("examples/fading_channel.py", _same("fading_channel.png")),
    Script(
        "examples/grid_worlds.py",
        _same("grid_worlds.png", "grid_worlds_curves.png", "grid_worlds_errors.png", "grid_worlds_learned.png"),
    ),
    Script("examples/inverse_problem.py", _same("inverse_problem.png")),
    Script("examples/learn_cart_pole.py", _same("learn_cart_pole.png", "learn_cart_pole.gif")),
    Script("examples/own_problem.py", _same("own_problem.png")),
    Script("examples/one_slow_agent.py", _same("one_slow_agent.png")),
    Script("examples/pedestrians.py", _same("pedestrians.png")),
    Script("examples/planets.py", {"live.png": "planets.png"}),
    Script("examples/value_network.py", _same("value_network.png")),
    Script("benchmarks/scaling.py", _same("scaling.png"), ("--out", ".", "--seconds", "0.3")),
    Study("quadratic/markov", "quadratic.png"),
    Study("quadratic/agents", "agents.png"),
    *(Study(f"field/{name}", f"{name.replace('-', '_')}.png") for name in VARIANTS),
    *(
        Study(f"rl/{name}", f"rl_{name.replace('-', '_')}.png")
        for name in (*RL, "fast-fedpg", "fed-svrpg", "fed-pg-br")
    ),
)
"""Every figure of the documentation."""


def main() -> None:
    """Makes the figures that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="names of pictures, with or without their endings")
    parser.add_argument("--again", action="store_true", help="also those that are up to date, from new simulations")
    parser.add_argument(
        "--list", action="store_true", help="say how each picture is made, and whether it is up to date"
    )
    parser.add_argument(
        "--accept", action="store_true", help="record that the named pictures are up to date as they are"
    )
    settings = parser.parse_args()
    wanted = [recipe for recipe in RECIPES if not settings.only or _is_named(recipe, settings.only)]
    if not wanted or (settings.accept and not settings.only):
        known = ", ".join(sorted(pathlib.PurePath(name).stem for name in made_by()))
        raise SystemExit(f"Name one or several figures of {known}; got {' '.join(settings.only) or 'none'}.")
    waiting = [recipe for recipe in wanted if settings.again or settings.only or why_stale(recipe)]
    if settings.list:
        for recipe in wanted:
            print(f"{', '.join(recipe.pictures)}: {recipe}; {'; '.join(why_stale(recipe)) or 'up to date'}")
        return
    total = sum(entry.get("seconds", 0) for entry in _by_recipe(record()))
    print(f"{len(waiting)} of {len(RECIPES)} recipes to run; all together took {total / 60:.0f} minutes.", flush=True)
    if not settings.only and not settings.accept:
        subprocess.run([sys.executable, str(ROOT / "docs" / "make_site.py"), "diagrams"], check=True)
    failed = []
    for count, recipe in enumerate(waiting, 1):
        print(f"[{count}/{len(waiting)}] {', '.join(recipe.pictures)}: {recipe}", flush=True)
        try:
            _remember(recipe, None) if settings.accept else make(recipe, settings.again)
        except Exception as error:  # the others can still be made
            failed.append(f"{', '.join(recipe.pictures)}: {type(error).__name__}: {error}")
            print(f"    failed: {failed[-1]}", flush=True)
    if failed:
        raise SystemExit("\n".join([f"{len(failed)} of {len(waiting)} failed:", *failed]))


def make(recipe: Recipe, again: bool = False) -> None:
    """Makes the pictures of one recipe and records that they are up to date."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        saved = recipe.run(folder, again) or 0.0
        for picture, file in recipe.pictures.items():
            shutil.copyfile(folder / file, HERE / picture)
    _remember(recipe, saved + time.perf_counter() - began)


def _remember(recipe: Recipe, seconds: float | None) -> None:
    entries = record()
    for picture in recipe.pictures:
        earlier = entries.get(picture, {}).get("seconds", 0)
        entries[picture] = {
            "made_by": str(recipe),
            "code": recipe.digest(),
            "picture": _picture_digest(picture),
            "seconds": earlier if seconds is None else round(seconds),
        }
    kept = {picture: entries[picture] for picture in sorted(entries) if picture in made_by()}
    whole = RECORD.with_suffix(".new")
    whole.write_text(json.dumps(kept, indent=1) + "\n")
    whole.replace(RECORD)


def _by_recipe(entries: Mapping[str, dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return {entry["made_by"]: entry for entry in entries.values()}.values()


def _is_named(recipe: Recipe, names: Iterable[str]) -> bool:
    return any(name in (picture, pathlib.PurePath(picture).stem) for name in names for picture in recipe.pictures)


def made_by() -> dict[str, Recipe]:
    """The recipe of every picture."""
    return {picture: recipe for recipe in RECIPES for picture in recipe.pictures}


def record() -> dict[str, dict[str, Any]]:
    """What `made.json` says about each picture."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def _picture_digest(picture: str) -> str:
    return hashlib.sha256((HERE / picture).read_bytes()).hexdigest()[:16]


def why_stale(recipe: Recipe) -> list[str]:
    """The reasons why the pictures of a recipe should be made again; none where they are up to date."""
    entries, found = record(), []
    for picture in recipe.pictures:
        if not (HERE / picture).exists():
            found.append(f"{picture} is missing")
        elif picture not in entries:
            found.append(f"{picture} was never recorded")
        elif entries[picture]["picture"] != _picture_digest(picture):
            found.append(f"{picture} is not the file that was made")
        else:
            found += _code_changed(recipe, picture, entries[picture]["code"])
    return found


def _code_changed(recipe: Recipe, picture: str, recorded: str) -> list[str]:
    try:
        return [] if recipe.digest() == recorded else [f"the code behind {picture} has changed"]
    except (OSError, ValueError, StopIteration, KeyError) as error:
        return [f"{picture} can no longer be made by {recipe}: {error}"]


def problems() -> list[str]:
    """Everything that is wrong with the figures: pictures out of date, without a recipe, or shown on no page."""
    found = [reason for recipe in RECIPES for reason in why_stale(recipe)]
    shown, known = referenced(), made_by()
    for path in sorted(HERE.iterdir()):
        if path.suffix in PICTURES and path.name not in known and not path.name.startswith(DIAGRAM):
            found.append(f"{path.name} has no recipe in docs/figures/make.py")
    found += [
        f"{name} is shown on no page: show it, or delete it and its recipe" for name in known if name not in shown
    ]
    return found + [f"{name} is shown on a page and has no recipe" for name in sorted(shown) if name not in known]


def referenced() -> set[str]:
    """The pictures of this folder that the README, the pages and the gallery show."""
    texts = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/README.md")]
    texts += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    pattern = re.compile(r"figures/([\w.-]+\.(?:png|gif|svg))")
    shown = {name for path in texts if path.exists() for name in pattern.findall(path.read_text())}
    return shown | {example["figure"] for example in json.loads((HERE.parent / "gallery.json").read_text())} - {None}


# Code as text that does not change with comments, docstrings, messages and printed lines.


class _Plain(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> Any:
        call = node.value.func if isinstance(node.value, ast.Call) else None
        printed = getattr(call, "id", None) == "print" or getattr(call, "attr", None) == "print"
        return ast.Pass() if isinstance(node.value, ast.Constant) or printed else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> Any:
        return ast.Raise(ast.Name("error"), None)


def _dumped(node: ast.AST) -> str:
    """The same text on every Python: 3.12 adds the parameters of types, and 3.13 leaves empty lists out."""
    options: Any = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    return ast.dump(_Plain().visit(node), **options).replace(", type_params=[]", "")


@functools.cache
def canonical(text: str) -> str:
    """Code as its syntax tree, without what does not matter."""
    return _dumped(ast.parse(text))


@functools.cache
def names_in(text: str) -> set[str]:
    """All names and attributes in code."""
    return {name for node in ast.walk(ast.parse(text)) for name in _name(node)}


def _name(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr


def reached(text: str, roots: Iterable[str]) -> str:
    """The definitions of a module that functions of these names use, directly or through others, as syntax trees."""
    defined: dict[str, list[ast.AST]] = {}
    for node in ast.parse(text).body:
        methods = isinstance(node, ast.ClassDef) and {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        inside = (
            node.body if isinstance(node, ast.ClassDef) and methods and methods & {"run", "draw", "plot"} else [node]
        )
        for one in inside:
            for name in _defines(one):
                defined.setdefault(name, []).append(one)
    waiting, found = list(roots), {}
    while waiting:
        name = waiting.pop()
        if name in defined and name not in found:
            found[name] = defined[name]
            waiting += [other for node in defined[name] for part in ast.walk(node) for other in _name(part)]
    return "\n".join(_dumped(node) for name in sorted(found) for node in found[name])


def _defines(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))


COMMANDS = {"analyze": "analysis", "compare": "compare", "run": "curves", "deploy": "sites", "plot": "sweep"}
"""The functions of `fedhsa.plots` behind commands and methods."""


def drawing_modules(names: Iterable[str]) -> list[pathlib.Path]:
    """The files that draw for code with these names in it: modules of `fedhsa.plots` and those they import there."""
    names = {COMMANDS.get(name, name) for name in names} | {"save"}
    public = _imports(PACKAGE / "plots" / "__init__.py")
    found, waiting = set(), {public[name] for name in names & public.keys()}
    while waiting:
        module = waiting.pop()
        found.add(module)
        waiting |= set(_imports(PACKAGE / "plots" / f"{module}.py").values()) - found
    shared = [PACKAGE / "experiments" / "study" / "figures.py"] if "study.figures" in names else []
    return [*shared, *(PACKAGE / "plots" / f"{module}.py" for module in sorted(found))]


@functools.cache
def _imports(path: pathlib.Path) -> dict[str, str]:
    """The names that a module of `fedhsa.plots` imports from another one."""
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module]
    return {alias.name: str(node.module) for node in nodes for alias in node.names}


if __name__ == "__main__":
    main()
