"""Packages that only some commands need: how to install what is missing."""

import importlib.util


def install(extra: str) -> str:
    """What to type for an extra, which also works in a clone that no package index knows.

    >>> install("ray")
    "`pip install '.[ray]'` in a clone of fedhsa, elsewhere `pip install 'fedhsa[ray]'`"
    """
    return f"`pip install '.[{extra}]'` in a clone of fedhsa, elsewhere `pip install 'fedhsa[{extra}]'`"


def need(what: str, package: str, extra: str) -> None:
    """Raises if a package is not installed, saying which extra has it."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"{what} is not installed. Install it with {install(extra)}.", name=package)
