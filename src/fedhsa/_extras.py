"""Optional packages that only some commands need, and how to install them."""

import importlib
import importlib.util
from typing import Any


def install(extra: str) -> str:
    """The command that installs an extra, also for a clone that is not on a package index.

    >>> install("ray")
    "`pip install '.[ray]'` in a clone of fedhsa, elsewhere `pip install 'fedhsa[ray]'`"
    """
    return f"`pip install '.[{extra}]'` in a clone of fedhsa, elsewhere `pip install 'fedhsa[{extra}]'`"


def need(what: str, package: str, extra: str) -> None:
    """Raises `ModuleNotFoundError` if a package is not installed, and names the extra that contains it."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"{what} is not installed. Install it with {install(extra)}.", name=package)


def load(what: str, module: str, extra: str) -> Any:
    """Imports a module of an optional package; if it is missing, the error is `what`, and names the extra."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{what}. Install it with {install(extra)}.") from error
