"""Perturbed physics: constants of an environment by name, and the constants derived from them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import _check

FOLLOWS: dict[str, tuple[tuple[str, str], Callable[[Any, Any], Any]]] = {
    "total_mass": (("masscart", "masspole"), lambda cart, pole: cart + pole),
    "polemass_length": (("masspole", "length"), lambda mass, length: mass * length),
}
"""The constants that a cart pole derives from others when it is built, and that must follow a change."""


def complete(physics: Mapping[str, Any], now: Callable[[str], Any], known: Iterable[str], name: str) -> dict[str, Any]:
    """Returns the constants to set, with the constants derived from them.

    **Arguments:**

    - `physics`: the constants to change.
    - `now`: returns the current value of a constant by name.
    - `known`: the known names.
    - `name`: the name of the environment, for errors.
    """
    known = set(known)
    for constant in physics:
        if constant not in known:
            raise ValueError(
                f"`physics`: {name} has no constant {constant!r}.{_check.nearest(constant, known)} "
                f"It has {', '.join(sorted(known)) or 'none'}."
            )
    values = dict(physics)
    for constant, (parts, rule) in FOLLOWS.items():
        if constant in known and constant not in physics and any(part in physics for part in parts):
            values[constant] = rule(*(physics[part] if part in physics else now(part) for part in parts))
    return values
