"""User-supplied code, named as `file.py:NAME`, `package.module:NAME`, or by an entry point.

Nothing here loads JAX, so that the command line can check names before it does.
"""

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any, NamedTuple

from . import _check

GROUPS = {"algorithm": "fedhsa.algorithms", "problem": "fedhsa.problems"}
"""The entry-point groups for packages, by the argument that takes their names."""
PREFIX = "fedhsa_own_"
"""The prefix of modules made from files: a file may have the name of a Python module, such as `site`."""
HINTS = {
    "TracerBoolConversionError": " Use `jnp.where` or `jax.lax.cond` instead of `if`.",
    "NonConcreteBooleanIndexError": " Use `jnp.where`: shapes may not depend on values.",
    "TracerArrayConversionError": " Use `jax.numpy` instead of NumPy.",
}
"""Advice for the most common errors of code that is compiled for the first time."""
_REFERENCE = re.compile(r"""(?P<quoted>"[^"]*"|'[^']*')|(?P<place>[^,()=\[\]{}'"]+):(?P<name>[^\W\d]\w*)""")
_LOADED: dict[pathlib.Path, tuple[str, types.ModuleType]] = {}
"""For each file, its digest when it was loaded, and the module made from it."""


class Reference(NamedTuple):
    """The place of user-supplied code, and its name there."""

    place: str
    """A file that ends in `.py`, or a module."""
    name: str
    """The name in that file or module."""

    @property
    def is_file(self) -> bool:
        """Whether the place is a file rather than a module."""
        return self.place.endswith(".py")

    @property
    def path(self) -> pathlib.Path:
        """The absolute path of the file."""
        return pathlib.Path(self.place).expanduser().resolve()

    @property
    def title(self) -> str:
        """The file and the name as one word, such as `mine-build`, for folders and figures."""
        home = self.path.stem if self.is_file else self.place.rpartition(".")[2]
        return f"{home}-{self.name}"

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"


def reference(text: Any) -> Reference | None:
    """Returns the reference if the whole text is one; else None.

    !!! example
        >>> reference("mine.py:build")
        Reference(place='mine.py', name='build')
        >>> reference("td") is None
        True
    """
    found = _REFERENCE.fullmatch(text.strip()) if isinstance(text, str) else None
    return None if found is None or found["quoted"] else Reference(found["place"].strip(), found["name"])


def references(*texts: Any) -> list[Reference]:
    """All references in these texts, some of which may be None.

    !!! example
        >>> references("Averaged(mine.py:HalfHSA(0.1))", None)
        [Reference(place='mine.py', name='HalfHSA')]
    """
    found = (match for text in texts if isinstance(text, str) for match in _REFERENCE.finditer(text))
    return [Reference(match["place"].strip(), match["name"]) for match in found if not match["quoted"]]


def replace(text: str, new: Any) -> str:
    """Returns the text with every reference replaced by `new(reference)`.

    !!! example
        >>> replace("Averaged(mine.py:HalfHSA(0.1))", lambda reference: reference.name)
        'Averaged(HalfHSA(0.1))'
    """

    def word(match: re.Match) -> str:
        if match["quoted"]:
            return match[0]
        gap = match["place"][: len(match["place"]) - len(match["place"].lstrip())]
        return f"{gap}{new(Reference(match['place'].strip(), match['name']))}"

    return _REFERENCE.sub(word, text)


def absolute(text: str) -> str:
    """Returns the text with absolute paths of files, for a process that works in another folder."""
    return replace(text, lambda found: f"{found.path}:{found.name}" if found.is_file else str(found))


def labels(texts: Iterable[str]) -> tuple[str, ...]:
    """Names of algorithms for tables and figures, without their files if the names remain distinct.

    !!! example
        >>> labels(["FedHSA", "mine.py:HalfHSA(0.1)"])
        ('FedHSA', 'HalfHSA(0.1)')
        >>> labels(["a.py:Half", "b.py:Half"])
        ('a.py:Half', 'b.py:Half')
    """
    texts = tuple(texts)
    short = [replace(text, lambda found: found.name) if isinstance(text, str) else text for text in texts]
    return tuple(name if short.count(name) == 1 else text for text, name in zip(texts, short, strict=True))


def title(problem: str) -> str:
    """The name of a problem for figures and folders.

    !!! example
        >>> title("td"), title("studies/mine.py:build")
        ('td', 'mine-build')
    """
    found = reference(problem)
    return problem if found is None else found.title


def check(what: str, found: Reference) -> None:
    """Raises `ValueError` if the file does not exist; a module is looked up only when it is loaded."""
    if found.is_file and not found.path.is_file():
        raise ValueError(f"`{what}`: there is no file {found.place!r}. The path is relative to {os.getcwd()!r}.")
    if not found.is_file and not all(part.isidentifier() for part in found.place.split(".")):
        raise ValueError(
            f"`{what}` must be FILE.py:NAME or PACKAGE.MODULE:NAME, like `mine.py:{found.name}`, got {str(found)!r}."
        )


def load(what: str, found: Reference) -> Any:
    """Loads the object that the argument `what` refers to; raises `ValueError` in one sentence if there is none."""
    check(what, found)
    module = _module(what, found)
    try:
        return getattr(module, found.name)
    except AttributeError:
        names = [name for name in vars(module) if not name.startswith("_")]
        near = _check.nearest(found.name, names)
        raise ValueError(f"`{what}`: {found.place} has no {found.name!r}.{near}") from None


def _module(what: str, found: Reference) -> types.ModuleType:
    top = found.place.partition(".")[0]
    if not found.is_file and top not in sys.modules and importlib.util.find_spec(top) is None:
        file = f"{found.place.replace('.', '/')}.py"
        hint = f" For the file, write `{file}:{found.name}`." if pathlib.Path(file).is_file() else ""
        raise ValueError(f"`{what}`: there is no module {found.place!r} that Python can import.{hint}")
    with told(f"`{what}`: {found.place} cannot be loaded"):
        return load_file(found.path) if found.is_file else importlib.import_module(found.place)


def load_file(path: pathlib.Path) -> types.ModuleType:
    """Loads the file as a module, again if it has changed. It can import from its own folder."""
    path = path.resolve()
    content = path.read_bytes()
    now = hashlib.sha256(content).hexdigest()
    digest, module = _LOADED.get(path, ("", None))
    if module is not None and digest == now:
        return module
    if module is None:
        name = PREFIX + path.stem
        taken = sum(other.stem == path.stem for other in _LOADED)
        name += f"_{taken}" if taken else ""
    else:
        name = module.__name__
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module, before = importlib.util.module_from_spec(spec), sys.modules.get(name)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        # Compiled here: a cache by modification time would miss changes within a second.
        exec(compile(content, str(path), "exec"), vars(module))
    except BaseException:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        raise
    _LOADED[path] = now, module
    return module


def neighbours(path: pathlib.Path) -> list[str]:
    """The modules in the same folder that a file imports, which are not sent with it."""
    with told(f"{shown(path)} cannot be read"):
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    tops = {name.partition(".")[0] for name in names} - {""}
    return sorted(name for name in tops if _is_beside(path, name))


def _is_beside(path: pathlib.Path, module: str) -> bool:
    """Whether a file finds this module in its own folder, which is searched last."""
    if not ((path.parent / f"{module}.py").is_file() or (path.parent / module / "__init__.py").is_file()):
        return False
    spec = importlib.util.find_spec(module)
    return spec is None or spec.origin is None or pathlib.Path(spec.origin).is_relative_to(path.parent)


def file_of(module: str) -> tuple[pathlib.Path, str] | None:
    """The file that `load_file` made a module from, with its fingerprint at that time; None for other modules."""
    if not module.startswith(PREFIX):
        return None
    return next(((path, found[0]) for path, found in _LOADED.items() if found[1].__name__ == module), None)


def digest(path: pathlib.Path) -> str:
    """A fingerprint of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(*texts: Any) -> dict[str, str]:
    """The files, also those of modules, that these texts refer to, with their fingerprints, for manifests."""
    found = {}
    for one in references(*texts):
        path = one.path if one.is_file else _file_of_module(one.place)
        if path is not None and path.is_file():
            found[one.place] = f"sha256:{digest(path)}"
    return found


def _file_of_module(name: str) -> pathlib.Path | None:
    with contextlib.suppress(Exception):  # this loads a package that contains it, which may fail
        spec = importlib.util.find_spec(name)
        return None if spec is None or spec.origin is None else pathlib.Path(spec.origin)
    return None


@functools.cache
def entry_points(what: str) -> dict[str, metadata.EntryPoint]:
    """The entry points that installed packages provide for the argument `what`, by name."""
    return {point.name: point for point in metadata.entry_points(group=GROUPS[what])}


def load_entry_point(what: str, name: str) -> Any:
    """Loads the entry point of this name; raises `ValueError` in one sentence if it cannot be loaded."""
    point = entry_points(what)[name]
    package = "a package" if point.dist is None else point.dist.name
    with told(f"`{what}`: {name} of {package} ({point.value}) cannot be loaded"):
        return point.load()


class OwnCodeError(ValueError):
    """Raised for an error in user-supplied code; the message states the error and its line, and has it as its cause."""


@contextlib.contextmanager
def told(sentence: str, *, checked: bool = False) -> Iterator[None]:
    """Reports an error in user-supplied code in one sentence, with the line where it was raised.

    With `checked`, errors from this package's own argument checks are raised unchanged.
    """
    try:
        yield
    except OwnCodeError:
        raise
    except (Exception, SystemExit) as error:  # a file may be a script that ends with `sys.exit`
        if checked and traceback.extract_tb(error.__traceback__)[-1].filename == _check.__file__:
            raise
        raise OwnCodeError(f"{sentence}: {where(error)}") from error


def where(error: BaseException) -> str:
    """Describes an error and, if it was raised in the user's code, its line, as the end of a sentence."""
    text = str(error)
    if type(error).__module__.startswith("jax"):  # the rest is advice on JAX and links
        text = text.strip().partition("\n")[0]
    words = " ".join(text.split()) or "without a message"
    words = f"{words[:500]}..." if len(words) > 500 else words
    words = f"{type(error).__name__}: {words}" + ("" if words.endswith((".", "!", "?")) else ".")
    words += HINTS.get(type(error).__name__, "")
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{shown(error.filename)}, line {error.lineno}: {type(error).__name__}: {error.msg}."
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if not frames:
        return words
    last = frames[-1]
    inside = f", in `{last.name}`" if last.name.isidentifier() else ""
    return f"{shown(last.filename)}, line {last.lineno}{inside}: {words}"


def is_own(value: Any) -> bool:
    """Whether a class or a function is not part of this package."""
    return getattr(value, "__module__", None) is not None and value.__module__.partition(".")[0] != "fedhsa"


def function(value: Any) -> types.FunctionType | None:
    """The function behind a method, a partial application or a JAX transformation; None if there is none."""
    while not isinstance(value, types.FunctionType):
        inner = (getattr(value, name, None) for name in ("__func__", "func", "__wrapped__"))
        value = next((found for found in inner if callable(found)), None)
        if value is None:
            return None
    return value


def place(value: Any) -> str:
    """The place in parentheses where the user's class or function is defined; an empty string if it is not known."""
    try:
        if not isinstance(value, type) and (code := getattr(function(value), "__code__", None)) is not None:
            return f" ({shown(code.co_filename)}, line {code.co_firstlineno})"
        file = inspect.getsourcefile(value)
    except (OSError, TypeError):
        return ""
    return "" if file is None else f" ({shown(file)})"


def named(value: type) -> str:
    """The name and file of a class."""
    return f"{value.__name__}{place(value)}"


def in_words(value: Any) -> str:
    """Describes a value that was given instead of another: a class by its name."""
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)


def shown(path: str | os.PathLike) -> str:
    """A path as the user would write it: relative to the current folder if it is inside."""
    path, here = pathlib.Path(path), pathlib.Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _is_users(file: str) -> bool:
    return not file.startswith(("<frozen", "<string>", *_libraries()))  # dataclasses compile code from strings


@functools.cache
def _libraries() -> tuple[str, ...]:
    """The folders of Python, of installed packages, and of this package."""
    found = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return (*(str(path) for path in found), str(pathlib.Path(__file__).parent))
