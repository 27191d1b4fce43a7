"""`fedhsa examples`: lists the examples that come with the package, and copies them."""

import ast
import pathlib
import shutil

from rich.console import Console

from .._check import nearest
from .errors import FailedRunError, UsageError
from .screen import PlainTable

HELP = """\
usage: fedhsa examples list
       fedhsa examples copy [NAME ...] [--to FOLDER] [--force]

The examples and the files with settings that the documentation uses come with
the package. `copy` puts them into ./examples, or into another folder:

  fedhsa examples copy                     all of them
  fedhsa examples copy quadratic           examples/quadratic.toml
  fedhsa examples copy pedestrians --to .  ./pedestrians.py and ./pedestrians

Files that exist and differ are not overwritten without `--force`.
"""
SKIPPED = ("__pycache__", "runs", ".*")
"""The names of files and folders that an example writes when it runs."""


def folder() -> pathlib.Path:
    """Returns the folder of the examples: inside the installed package, or in the repository."""
    package = pathlib.Path(__file__).parents[1]
    places = (package / "examples", package.parents[1] / "examples")
    for place in places:
        if (place / "quadratic.toml").exists():
            return place
    raise FailedRunError(f"The examples are missing: neither {str(places[0])!r} nor {str(places[1])!r} has them.")


def names() -> dict[str, str]:
    """Returns the examples with one sentence about each; a file and a folder of the same name are one example."""
    found: dict[str, str] = {}
    for path in sorted(folder().iterdir(), key=lambda path: (path.stem, path.is_dir())):
        if not any(path.match(pattern) for pattern in SKIPPED):
            found.setdefault(path.stem, _sentence(path))
    return found


def main(arguments: list[str], console: Console) -> int:
    """Runs `fedhsa examples`; returns the exit code."""
    command, *rest = arguments
    if command == "list" and not rest:
        table = PlainTable("example", "shows")
        for name, sentence in names().items():
            table.add_row(name, sentence)
        console.print(table)
        console.print("\n`fedhsa examples copy NAME` copies one of them to ./examples.")
        return 0
    if command != "copy":
        near = nearest(command, ("list", "copy"))
        raise UsageError(f"fedhsa examples takes `list` or `copy`, got {' '.join(arguments)!r}.{near}")
    return _copy(rest, console)


def _copy(arguments: list[str], console: Console) -> int:
    chosen, target, force = [], "examples", False
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == "--to":
            target = value if equals else next(words, "")
            if not target:
                raise UsageError("`--to` needs the name of a folder, like `--to .`.")
        elif word == "--force":
            force = True
        elif word.startswith("-"):
            raise UsageError(f"fedhsa examples copy has the flags --to and --force, got {word!r}.")
        else:
            chosen.append(word)
    files = _files_of(chosen)
    copies = {path: pathlib.Path(target, path.relative_to(folder())) for path in files}
    changed = [str(copy) for path, copy in copies.items() if copy.exists() and copy.read_bytes() != path.read_bytes()]
    if changed and not force:
        raise FailedRunError(
            f"{', '.join(changed)} would be overwritten, but was changed. Use `--force` to overwrite it, or another "
            "folder: `--to FOLDER`."
        )
    for path, copy in copies.items():
        if not copy.exists() or str(copy) in changed:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    for name in dict.fromkeys(path.relative_to(folder()).parts[0] for path in files):
        console.print(str(pathlib.Path(target, name)), soft_wrap=True)
    return 0


def _files_of(chosen: list[str]) -> list[pathlib.Path]:
    """Returns the files of these examples, or of all examples."""
    known = names()
    for name in chosen:
        if pathlib.PurePath(name).stem not in known:
            raise UsageError(f"There is no example {name!r}.{nearest(name, known)} `fedhsa examples list` shows them.")
    stems = {pathlib.PurePath(name).stem for name in chosen} or {*known}
    files = [path for path in sorted(folder().rglob("*")) if path.is_file()]
    relative = {path: path.relative_to(folder()) for path in files}
    return [
        path
        for path, inside in relative.items()
        if pathlib.PurePath(inside.parts[0]).stem in stems
        and not any(pathlib.PurePath(part).match(pattern) for part in inside.parts for pattern in SKIPPED)
    ]


def _sentence(path: pathlib.Path) -> str:
    if path.suffix == ".py":
        text = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    else:
        readme = path / "README.md" if path.is_dir() else path
        inside = readme if readme.exists() else min(inner for inner in path.iterdir() if inner.is_file())
        text = inside.read_text(encoding="utf-8").splitlines() if inside.suffix != ".py" else [_sentence(inside)]
        text = [line.lstrip("# ") for line in text if line.startswith("#") and not line.startswith("#!")] or text
    return text[0] if text else ""
