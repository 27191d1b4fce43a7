"""What the user typed: the error that refuses it, suggestions, and options of the form NAME=VALUE."""

import contextlib
import tomllib
from collections.abc import Iterable
from typing import Any

from tyro.constructors import PrimitiveConstructorSpec

from .._check import nearest


class UsageError(Exception):
    """What the user typed cannot be used; the message says why and what to type instead."""


def check_name(argument: str, value: Any, known: Iterable[str]) -> None:
    """Refuses an unknown name, suggesting the nearest known one."""
    if value not in tuple(known):
        raise UsageError(f"`{argument}` must be one of {', '.join(known)}, got {value!r}.{nearest(value, known)}")


def check_number(name: str, value: Any) -> None:
    """Refuses what is not a number, such as the text that stood in its place."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"`{name}` must be a number, got {value!r}.")


def parse_option(text: str) -> tuple[str, Any]:
    """Splits `NAME=VALUE`; the value is a TOML literal (0.5, true, [1, 10], "text") or a bare word."""
    name, equals, value = text.partition("=")
    name, value = name.strip().replace("-", "_"), value.strip()
    if not (name and equals and value):
        raise UsageError(f"`option` must be NAME=VALUE, like `noise_std=0.2`, got {text!r}.")
    with contextlib.suppress(tomllib.TOMLDecodeError):
        parsed = tomllib.loads(f"value = {value}")
        if parsed.keys() == {"value"}:
            return name, parsed["value"]
    with contextlib.suppress(ValueError):
        return name, float(value)
    return name, value


OPTION = PrimitiveConstructorSpec(
    nargs="*",
    metavar="NAME=VALUE ...",
    instance_from_str=lambda texts: dict(map(parse_option, texts)),
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [f"{name}={v}" for name, v in value.items()],
)
"""How tyro reads options."""
