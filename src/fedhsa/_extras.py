"""Optional packages that only some commands need, and how to install them."""

import importlib.util


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
