"""Protects results in the output folder: a command does not silently replace results of other settings."""

import sys
from typing import Any

from .errors import UsageError
from .settings import ResultSettings


def check(settings: ResultSettings) -> None:
    """Raises if the command would replace results of other settings, unless the user has agreed or agrees now."""
    if settings.force or not (settings.folder / "manifest.json").exists():
        return
    from ..outputs import read_manifest  # this imports JAX, which a first run does not need here

    if not (found := _difference(settings, read_manifest(settings.folder))):
        return
    told = f"`out`: {str(settings.folder)!r} holds {found}."
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{told} Replace them? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
        raise UsageError("Nothing was run, and the results are still there. `--out` names another folder.")
    raise UsageError(f"{told} Add `--force` to replace them, or name another folder with `--out`.")


def _difference(settings: ResultSettings, manifest: dict[str, Any]) -> str:
    """Describes the settings of the manifest that differ from these settings; empty if there is no difference."""
    command = " ".join(str(manifest.get("command", "")).split()[:2])
    if command != f"fedhsa {settings.command}":
        return f"the results of `{command}`" if command else "results that this command did not write"
    before, now = manifest.get("settings", {}), settings.plain()
    other = settings.replaces(before)
    if not other:
        return ""
    shown = ", ".join(f"`{name}` {_word(before.get(name))} instead of {_word(now[name])}" for name in other[:2])
    more = f" and {len(other) - 2} more" if len(other) > 2 else ""
    return f"the results of other settings, with {shown}{more}"


def _word(value: Any) -> str:
    if value is None:
        return "the default"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
