"""The available problems, algorithms, wrappers and environments, read from a file so that help need not wait for JAX.

`make index` writes the file, `index.json`, from the tables of the package. Run it after a table has changed.
"""

import functools
import inspect
import json
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from .. import _files, _own

FILE = pathlib.Path(__file__).with_suffix(".json")
Index: TypeAlias = dict[str, dict[str, dict[str, str]]]
"""By kind (problems, algorithms, wrappers, environments) and name: a sentence, and the arguments as in Python."""
OFFERED = {"problems": "problem", "algorithms": "algorithm"}
"""The kinds that installed packages may add to, and the arguments that take their names."""


@functools.cache
def read() -> Index:
    """Returns the contents of the file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def names(*kinds: str, wanted: Any) -> Iterable[str]:
    """Returns all names of these kinds, read from the tables themselves if `wanted` is not in the file."""
    listed = [name for kind in kinds for name in read()[kind]]
    if wanted in listed:
        return listed
    offered = [name for kind in kinds if kind in OFFERED for name in _own.entry_points(OFFERED[kind])]
    return [*(name for kind in kinds for name in tables()[kind]), *offered]


def offered(kind: str) -> dict[str, dict[str, str]]:
    """Returns the entries that installed packages add to this kind; the packages are loaded to describe them."""
    found = {}
    for name, point in (_own.entry_points(OFFERED[kind]) if kind in OFFERED else {}).items():
        package = "another package" if point.dist is None else point.dist.name
        try:
            entry = _own.load_entry_point(OFFERED[kind], name)
            described = describe(entry, entry)
            found[name] = described | {"sentence": f"{described['sentence']} (from {package})".strip()}
        except (TypeError, ValueError) as error:
            found[name] = {"sentence": f"Not usable (from {package}).", "arguments": str(error)}
    return found


def tables() -> dict[str, dict[str, Callable[..., Any]]]:
    """Returns the tables of the package, with the entries that a program has added."""
    from ..algorithms import ALGORITHMS, WRAPPERS
    from ..environments import ENVIRONMENTS
    from ..problems import PROBLEMS

    return {"problems": PROBLEMS, "algorithms": ALGORITHMS, "wrappers": WRAPPERS, "environments": ENVIRONMENTS}


def make() -> Index:
    """Returns the index of the current tables."""
    return {
        kind: {
            # A problem's generator is in the module that describes the problem.
            name: describe(entry, inspect.getmodule(entry) if kind == "problems" else entry)
            for name, entry in table.items()
        }
        for kind, table in tables().items()
    }


def describe(entry: Callable[..., Any], described: Any) -> dict[str, str]:
    """Returns a sentence about an entry, and its arguments."""
    return {"sentence": first_sentence(described.__doc__), "arguments": arguments(entry)}


def first_sentence(text: str | None) -> str:
    """Returns the first sentence of a docstring, without its formula."""
    paragraph = " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
    paragraph = re.sub(r":?\s*\$[^$]*\$", "", paragraph)
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph)[0]


def arguments(entry: Callable[..., Any]) -> str:
    """Returns the arguments with their defaults, as typed in Python."""
    parameters = inspect.signature(entry).parameters.values()
    words = {p: p.name if p.default is p.empty else f"{p.name}={_short(p.default)}" for p in parameters}
    return ", ".join("and the environment's" if p.kind is p.VAR_KEYWORD else word for p, word in words.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    _files.write_text(FILE, json.dumps(make(), indent=1, ensure_ascii=False) + "\n")
