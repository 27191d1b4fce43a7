"""Docstrings as the site shows them: doctests as code, and the arguments that classes take from their fields."""

import dataclasses
import enum
import importlib
import inspect
import re
from typing import Any, cast

import griffe


def with_code_blocks(text: str) -> str:
    r"""A docstring whose doctests stand in fences, which Markdown would otherwise read as quotations.

    >>> print(with_code_blocks("!!! example\n    >>> 1 + 1\n    2\n\n    More."))
    !!! example
        ```pycon
        >>> 1 + 1
        2
        ```
    <BLANKLINE>
        More.
    """
    fence = "`" * 3
    return re.sub(
        r"^(?P<indent> *)>>> .*(?:\n(?P=indent)(?=\S| +\S).*)*",
        lambda found: f"{found['indent']}{fence}pycon\n{found[0]}\n{found['indent']}{fence}",
        text,
        flags=re.MULTILINE,
    )


def with_links(text: str) -> str:
    """A docstring that links to the pages it names.

    >>> with_links("See docs/theory/mixing.md.")
    'See [docs/theory/mixing.md](../../theory/mixing.html).'
    """
    return re.sub(r"`?(docs/([\w/-]+)\.md)`?", r"[\1](../../\2.html)", text)


class Docstrings(griffe.Extension):
    """Prepares every docstring of the package for the site."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Puts doctests into fences, and the arguments of a class into its signature."""
        if obj.docstring and not obj.is_alias:
            obj.docstring.value = with_links(with_code_blocks(obj.docstring.value))
        if isinstance(obj, griffe.Class) and "__init__" not in obj.members and (parameters := _parameters(obj)):
            obj.set_member("__init__", griffe.Function("__init__", parameters=parameters))


def _parameters(cls: griffe.Class) -> griffe.Parameters | None:
    """What a class that gets its `__init__` from its fields takes: names and defaults as Python has them."""
    try:
        found: Any = getattr(importlib.import_module(cls.module.path), cls.name)
    except (ImportError, AttributeError):  # a package that is not installed, or a class within a class
        return None
    made = dataclasses.is_dataclass(found) or hasattr(found, "_fields")  # the latter: a named tuple
    if not made or isinstance(found, enum.EnumMeta):
        return None
    given = inspect.signature(cast(type, found)).parameters.values()
    annotations: dict[str, Any] = {}
    for base in [*reversed(cls.mro()), cls]:
        annotations |= {name: getattr(member, "annotation", None) for name, member in base.members.items()}
    return griffe.Parameters(
        griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword),
        *(
            griffe.Parameter(
                argument.name,
                annotation=annotations.get(argument.name),
                kind=getattr(griffe.ParameterKind, argument.kind.name.lower()),
                default=None if argument.default is argument.empty else _shown(argument.default),
            )
            for argument in given
        ),
    )


def _shown(default: Any) -> str:
    """A default as one writes it, and dots where that is nothing that one would write."""
    text = getattr(default, "__qualname__", None) or repr(default)
    return "..." if re.search(r"^_| object at |factory|<", text) else text
