"""Checks of the user's input: names, numbers, and flags of the form NAME=VALUE."""

import contextlib
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

from tyro.constructors import PrimitiveConstructorSpec

from .. import _check, _own
from .._check import nearest
from .errors import UsageError


def check_name(argument: str, value: Any, known: Iterable[str]) -> None:
    """Raises `UsageError` if the name is unknown, and suggests the nearest known name."""
    if value not in tuple(known):
        raise UsageError(f"`{argument}` must be one of {', '.join(known)}, got {value!r}.{nearest(value, known)}")


def check_reference(argument: str, value: Any) -> None:
    """Raises if the text refers to a file that does not exist."""
    found = _own.references(value)
    for reference in found:
        _own.check(argument, reference)
    if not found and isinstance(value, str) and value.rstrip(":").endswith(".py"):
        raise UsageError(f"`{argument}` must say what to take from the file, like `{value.rstrip(':')}:NAME`.")


def check_number(name: str, value: Any, **bounds: Any) -> None:
    """Raises if the value is given and is not a number, for example a text, or is outside the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise UsageError(f"`{name}` must be a number, got {value!r}.")
    if value is not None and bounds:
        _check.number(name, value, **bounds)


def check_counts(settings: Any, *names: str, **limits: Any) -> None:
    """Raises `ValueError` if one of these settings is given and is not a whole number within the limits."""
    for name in names:
        if getattr(settings, name) is not None:
            _check.count(name, getattr(settings, name), **limits)


def parse_option(text: str, flag: str = "option", example: str = "noise_std=0.2") -> tuple[str, Any]:
    """Splits `NAME=VALUE`; the value is a TOML literal (0.5, true, [1, 10], "text") or a bare word."""
    name, equals, value = text.partition("=")
    name, value = name.strip().replace("-", "_"), value.strip()
    if not (name and equals and value):
        raise UsageError(f"`{flag}` must be NAME=VALUE, like `{example}`, got {text!r}.")
    with contextlib.suppress(tomllib.TOMLDecodeError):
        parsed = tomllib.loads(f"value = {value}")
        if parsed.keys() == {"value"}:
            return name, parsed["value"]
    with contextlib.suppress(ValueError):
        return name, float(value)
    return name, value


def named_values(flag: str, example: str) -> PrimitiveConstructorSpec[dict[str, Any]]:
    """Returns the tyro specification of a flag that is followed by any number of NAME=VALUE."""
    return _pairs(flag, "NAME=VALUE ...", lambda text: parse_option(text, flag, example))


def named_texts(flag: str, example: str) -> PrimitiveConstructorSpec[dict[str, str]]:
    """Returns the tyro specification of a flag with any number of NAME=TEXT; an = in brackets belongs to the name."""

    def split(text: str) -> tuple[str, str]:
        depths = [text[:at].count("(") - text[:at].count(")") for at in range(len(text))]
        at = next((i for i, letter in enumerate(text) if letter == "=" and depths[i] == 0), len(text))
        name, words = text[:at].strip(), text[at + 1 :].strip()
        if not (name and words):
            raise UsageError(f"`{flag}` must be NAME=TEXT, like `{example}`, got {text!r}.")
        return name, words

    return _pairs(flag, "NAME=TEXT ...", split)


def _pairs(
    flag: str, metavar: str, split: Callable[[str], tuple[str, Any]]
) -> PrimitiveConstructorSpec[dict[str, Any]]:
    """Returns the specification of a flag with any number of texts, each of which is split into a name and a value."""

    def parse(texts: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in map(split, texts):
            if name in found:
                raise UsageError(f"`{flag}` has two values for {name}. Keep one of them.")
            found[name] = value
        return found

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [f"{name}={text}" for name, text in value.items()],
    )
