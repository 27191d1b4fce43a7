"""Environments by name, with arguments that are checked against the signature of their function."""

from collections.abc import Callable, Mapping
from typing import Any

from .. import _check
from . import toy_text, worlds
from .model import Model

ENVIRONMENTS: dict[str, Callable[..., Model]] = {
    "random": worlds.random,
    "garnet": worlds.garnet,
    "random-walk": worlds.random_walk,
    "windy-cliff": worlds.windy_cliff,
    "two-state": worlds.two_state,
    "fedsarsa": worlds.fedsarsa,
    "frozen-lake": toy_text.frozen_lake,
    "cliff-walking": toy_text.cliff_walking,
    "taxi": toy_text.taxi,
}
"""The models, by the name the command line uses."""
COMMON = ("num_agents", "discount", "heterogeneity", "key")
"""The arguments that all environments share."""


def make(name: str, arguments: Mapping[str, Any] | None = None) -> Model:
    """Make the model of an environment.

    **Arguments:**

    - `name`: a name from `ENVIRONMENTS`.
    - `arguments`: the arguments of its function.

    Raises `ValueError` if the name or an argument is unknown.

    !!! example
        >>> make("windy-cliff", {"num_agents": 3}).num_states
        16
        >>> make("windy-cliff", {"winds": 0.2})
        Traceback (most recent call last):
        ValueError: The environment windy-cliff has no argument `winds`. Did you mean 'wind'? ...
    """
    arguments = arguments or {}
    _check.arguments("environment", name, ENVIRONMENTS, arguments, common=COMMON)
    return ENVIRONMENTS[name](**arguments)
