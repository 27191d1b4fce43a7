"""The code that a study depends on: every module that it imports, directly or not, found without running it."""

import ast
import functools
import hashlib
import pathlib
from collections.abc import Iterator

PACKAGE = pathlib.Path(__file__).parents[2]
"""The folder of `fedhsa`."""


@functools.cache
def digest(module: str, without: tuple[str, ...] = (), package: pathlib.Path = PACKAGE) -> str:
    """Returns a fingerprint of the files of `closure`, which changes when one of the files changes."""
    found = hashlib.sha256()
    for name in sorted(closure(module, without, package)):
        found.update(name.encode())
        found.update(_files(package)[name].read_bytes())
    return found.hexdigest()


def closure(module: str, without: tuple[str, ...] = (), package: pathlib.Path = PACKAGE) -> set[str]:
    """Returns the modules of the package that a module needs, including the module itself.

    **Arguments:**

    - `without`: modules that are not followed, or packages of which no module is followed.

    !!! example
        >>> found = closure("fedhsa.sources.finite")
        >>> "fedhsa._check" in found, "fedhsa.deploy.wire" in found
        (True, False)
    """
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in found or any(name == other or name.startswith(f"{other}.") for other in without):
            continue
        found.add(name)
        waiting += _needed(name, package)
    return found


@functools.cache
def _needed(module: str, package: pathlib.Path) -> list[str]:
    """Returns the imports anywhere in the file of one module, and the packages whose `__init__` runs with it."""
    files = _files(package)
    path = files[module]
    is_package = path.name == "__init__.py"
    named = _named(path.read_text(encoding="utf-8"), module if is_package else module.rpartition(".")[0])
    if is_package and f"{module}.__getattr__" in named:
        named = named | {name for name in files if name.startswith(f"{module}.")}  # any may be imported later
    needed = set()
    for name in named:
        while name and name not in files:  # a function or a class of a module
            name = name.rpartition(".")[0]
        needed.add(name)
    # The package's own `__init__` runs as well, but imports everything: it counts only where it is named.
    parents = {name.rpartition(".")[0] for name in (*needed, module)}
    return sorted((needed | {parent for parent in parents if "." in parent}) - {""})


@functools.cache
def _named(text: str, here: str) -> frozenset[str]:
    """Returns the full names that a file imports, and `__getattr__` of a module that imports on demand."""
    tree = ast.parse(text)
    found = {name for node in ast.walk(tree) for name in _imported(node, here)}
    if any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
        found.add(f"{here}.__getattr__")
    return frozenset(found)


def _imported(node: ast.AST, here: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        above = here.split(".")[: len(here.split(".")) - node.level + 1] if node.level else []
        start = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{start}.{alias.name}" for alias in node.names)


@functools.cache
def _files(package: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the file of every module."""
    found = {}
    for path in package.rglob("*.py"):
        words = [package.name, *path.relative_to(package).with_suffix("").parts]
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found
