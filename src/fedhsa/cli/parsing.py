"""Parses the command line: flags override the file that `--config` or `--from` names, which overrides the defaults."""

import contextlib
import dataclasses
import inspect
import io
import itertools
import json
import pathlib
import platform
import re
import textwrap
import tomllib
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Any, TypeVar, get_args, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from .. import _own
from .._check import nearest
from .errors import UsageError
from .settings import COMMANDS, AbstractFlags, AbstractSettings, ResultSettings

S = TypeVar("S", bound=AbstractSettings)
F = TypeVar("F", bound=AbstractFlags)

FILES = ("config", "from")
"""The flags that name a file with settings."""


def parse(kind: type[S], args: Sequence[str]) -> S:
    """Returns the settings: flags override the file of `--config` or `--from`, which overrides the defaults."""
    args = _problem_first(kind, args)
    settings = parse_flags(kind, args)
    if settings.config is not None and settings.from_ is not None:
        raise UsageError("`--config` and `--from` both name a file with the settings. Give one of them.")
    file = None if settings.config is None else read(kind, settings.config)
    file = file if settings.from_ is None else read_manifest(kind, settings.from_)
    if file is not None:
        settings = parse_flags(kind, args, file)
        settings = dataclasses.replace(settings, option={**file.option, **settings.option})
    settings.check_complete()
    return settings


def read(kind: type[S], path: pathlib.Path) -> S:
    """Returns the settings of a TOML file, checked key by key. All commands can share one file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"`config`: cannot read {str(path)!r}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"`config`: {str(path)!r} is not a TOML file: {error}.") from error
    own = [name for name in _names(kind) if name not in FILES]
    names = [*own, *(name for other in COMMANDS.values() for name in _names(other) if name not in (*own, *FILES))]
    values = {name.replace("-", "_"): value for name, value in values.items()}
    for name in values:
        if name not in names:
            raise UsageError(f"{str(path)!r}: unknown key `{name}`.{nearest(name, names)} Keys: {', '.join(names)}.")
    return _from_values(kind, path, {name: value for name, value in values.items() if name in own})


def read_manifest(kind: type[S], path: pathlib.Path) -> S:
    """Returns all settings that determined the numbers of an earlier run; reports different versions of packages."""
    path = path / "manifest.json" if path.is_dir() else path
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        values = dict(manifest["settings"])
    except OSError as error:
        raise UsageError(f"`from`: cannot read {str(path)!r}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"`from`: {str(path)!r} is not the manifest of a run: it has no settings.") from error
    # Settings of that call alone, like `--resume`.
    passing = {*ResultSettings.elsewhere} - {"out", "label", "width", "format"}
    own = [field.name for field in dataclasses.fields(kind) if field.name not in passing]
    settings = _from_values(kind, path, {name: values[name] for name in own if values.get(name) is not None})
    changed = [
        f"{name} {then} (now {now})"
        for name, then in dict(manifest.get("versions") or {}).items()
        if (now := _version(name)) not in (then, None)
    ]
    then, now = dict(manifest.get("files") or {}), _own.digests(settings.problem, *settings.algorithm)
    changed += [f"another {file}" for file in now if then.get(file) != now[file]]
    if changed:
        warnings.warn(f"{str(path)!r} was made with {', '.join(changed)}: the numbers may differ.", stacklevel=2)
    return settings


def _version(package: str) -> str | None:
    if package == "python":
        return platform.python_version()
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _from_values(kind: type[S], path: pathlib.Path, values: dict[str, Any]) -> S:
    """Returns the settings with these values of TOML or JSON."""
    for name in {"algorithm", "step_size", "format"} & values.keys():
        values[name] = tuple(values[name]) if isinstance(values[name], list) else (values[name],)
    if "out" in values:
        if not isinstance(values["out"], str):
            raise UsageError(f"{str(path)!r}: `out` must be the name of a folder, got {values['out']!r}.")
        values["out"] = pathlib.Path(values["out"])
    for name in ("option", "over", "label"):
        if not isinstance(values.get(name, {}), dict):
            raise UsageError(f"{str(path)!r}: `{name}` must be a table, got {values[name]!r}.")
    try:
        return kind(**values)
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from error


def _names(kind: type[AbstractFlags]) -> list[str]:
    return [field.name.rstrip("_") for field in dataclasses.fields(kind)]


def parse_flags(kind: type[F], args: Sequence[str], default: F | None = None) -> F:
    """Parses with tyro, whose framed messages become one sentence; without `default`, each field has its default."""
    _check_flags(kind, args)
    stderr, prog = io.StringIO(), f"fedhsa {kind.command}"
    text = "\n\n".join(filter(None, (inspect.getdoc(kind), kind.files))) + "\n"
    try:
        with contextlib.redirect_stderr(stderr):
            settings, unknown = tyro.cli(
                kind,
                prog=prog,
                description=textwrap.indent(text, " "),  # tyro would join lines that begin with a letter
                args=args,
                default=tyro.MISSING_NONPROP if default is None else default,  # help does not need checked settings
                return_unknown_args=True,
                registry=_registry(),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(f"{_unframed(stderr.getvalue())} See `{prog} --help`.") from None
    if unknown:
        raise _unknown(kind, unknown[0])
    return settings


def _check_flags(kind: type[AbstractFlags], args: Sequence[str]) -> None:
    """Raises if a flag is unknown, before tyro parses it and reports an error about the problem instead."""
    names = _names(kind)
    known = {"help", *names, *(f"no_{name}" for name in names)}
    alone = [name for name, hint in get_type_hints(kind, include_extras=True).items() if _is_positional(hint)]
    lists = {field.name for field in dataclasses.fields(kind) if isinstance(field.default, tuple)}
    seen = set()
    for word in args:
        if not word.startswith("--"):
            continue
        flag = word.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        if name in alone:
            raise UsageError(f"fedhsa {kind.command} takes the {name} without a flag: leave `{flag}` out.")
        if name not in known:
            raise _unknown(kind, word)
        pairs = name in ("option", "over", "label")
        if name in seen and (pairs or name in lists):  # the second flag would replace the first
            words = "FIRST=... SECOND=..." if pairs else "FIRST SECOND"
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"`{flag}` was given twice. Put everything after one: `{flag} {words}`.")
        seen.add(name)


def _is_positional(hint: Any) -> bool:
    (marker,) = get_args(tyro.conf.Positional[int])[1:]
    return marker in get_args(hint)[1:]


def _problem_first(kind: type[AbstractSettings], args: Sequence[str]) -> list[str]:
    """Returns the arguments with the value of `--problem` in front, where the flag is optional."""
    words, named = [], []
    rest = iter(args)
    for word in rest:
        flag, _, value = word.partition("=")
        if flag != "--problem":
            words.append(word)
            continue
        named.append(value or next(rest, "--"))
        if named[-1].startswith("--"):
            raise UsageError("`--problem` needs a name, like `--problem td`; `fedhsa list problems` shows them.")
    alone = [words[0]] if words and not words[0].startswith("-") else []
    if len({*named, *alone}) > 1:
        got = " and ".join(map(repr, [*alone, *named]))
        raise UsageError(f"fedhsa {kind.command} takes one problem, got {got}. Keep one.")
    return words if alone else [*named[:1], *words]


def _unknown(kind: type[AbstractFlags], word: str) -> UsageError:
    flags = ["--" + name.replace("_", "-") for name in _names(kind)]
    hint = nearest(word.partition("=")[0], flags) or f" See `fedhsa {kind.command} --help`."
    return UsageError(f"fedhsa {kind.command} does not know the argument {word!r}.{hint}")


def _registry() -> ConstructorRegistry:
    """Returns a registry that keeps wrong numbers as text, so that settings reject them as they do in a file."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type not in (int, float):
            return None

        def parse(texts: list[str]) -> Any:
            try:
                return info.type(texts[0])
            except ValueError:
                return texts[0]

        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT" if info.type is int else "FLOAT",
            instance_from_str=parse,
            is_instance=lambda value: isinstance(value, int | float) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _unframed(box: str) -> str:
    """Returns the first paragraph below the title of a framed message of tyro."""
    rows = [row.strip(" │") for row in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]]
    rows = [row if set(row) - set("─-╰╯") else "" for row in rows]
    return " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda row: not row, rows)))
