"""Checks when a problem is built: the agents can be stacked, and their operators have the shape of the parameter."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _own, tree
from .._types import precision
from ..sources import AbstractControlled
from ..sources.base import UnknownLawError


def stack(agents: Any, kind: type) -> Any:
    """Stacks a list of agents of one class into one agent whose arrays have a leading axis; accepts a stacked agent."""
    if isinstance(agents, type):
        raise TypeError(f"`agents` must be agents, got the class {agents.__name__}. Make one: {agents.__name__}(...).")
    if not isinstance(agents, kind):
        agents = list(agents) if isinstance(agents, Sequence) or hasattr(agents, "__iter__") else [agents]
        agents = _stack(agents, kind)
    if not jax.tree.leaves(agents):
        raise ValueError(
            f"`agents`: {type(agents).__name__} has no arrays, so it is not known how many agents there are. Give it "
            "a field with an entry for each agent, for instance `number=np.arange(M)`."
        )
    tree.leading_axis(agents)
    return tree.share_equal(agents)


def _stack(agents: list[Any], kind: type) -> Any:
    if not agents:
        raise ValueError("`agents` must list at least one agent, got none.")
    for i, agent in enumerate(agents):
        if isinstance(agent, type):
            raise TypeError(f"`agents[{i}]` must be an agent, got the class {agent.__name__}. Make one of it.")
        if not isinstance(agent, kind):
            raise TypeError(f"`agents[{i}]` must be an `AbstractAgent`, got {agent!r}.")
        difference = _difference(agents[0], agent)
        if difference:
            raise ValueError(
                f"`agents` may differ only in the numbers of their arrays: {difference}, for agents 0 and {i}. "
                "Heterogeneous agents are of one class and hold what differs in arrays of one shape."
            )
    return tree.stack(agents)


def _difference(first: Any, other: Any, name: str = "") -> str | None:
    """Describes a difference between two agents other than the values of their arrays."""
    at = f"`{name}`" if name else "the class"
    if type(first) is not type(other) and (isinstance(first, eqx.Module) or isinstance(other, eqx.Module)):
        return f"{at} is {type(first).__name__} and {type(other).__name__}"
    if isinstance(first, eqx.Module):
        for field in dataclasses.fields(first):  # pyright: ignore[reportArgumentType]
            values = getattr(first, field.name), getattr(other, field.name)
            path = f"{name}.{field.name}" if name else field.name
            if field.metadata.get("static", False):
                if values[0] != values[1]:
                    return f"`{path}`, which is static, is {values[0]!r} and {values[1]!r}"
            elif difference := _difference(*values, path):
                return difference
        return None
    if jax.tree.structure(first) != jax.tree.structure(other):
        return f"{at} has the structure {jax.tree.structure(first)} and {jax.tree.structure(other)}"
    for one, two in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
        if np.shape(one) != np.shape(two):
            return f"{at} has shape {np.shape(one)} and {np.shape(two)}"
    return None


def check_operator(agents: Any, like: PyTree, o: Any = None) -> None:
    """Raises if an agent's operator or mean operator does not have the shape of the parameter; only traces the code.

    The observation is from the agent's source, or is `o` for agents with another observation and an unknown mean.
    """

    def evaluate(agent: Any, theta: PyTree, key: Any) -> Any:
        return agent.operator(theta, _observation(agent, theta, key) if o is None else jax.tree.map(jnp.asarray, o))

    with precision():
        key = jax.eval_shape(lambda: jax.random.key(0))
        with _told(type(agents)):
            value = jax.eval_shape(evaluate, _shapes(agents, 1), _shapes(like), key)
        _check_value(type(agents), "operator(theta, o)", value, like)
        mean = mean_shapes(agents, like) if o is None else None
        if mean is not None:
            _check_value(type(agents), "mean_operator(theta)", mean, like)


def _told(kind: type) -> contextlib.AbstractContextManager:
    """Reports an exception of a user's operator in a sentence."""
    if not _own.is_own(kind):
        return contextlib.nullcontext()
    return _own.told(f"`{kind.__name__}.operator(theta, o)`{_own.place(kind.operator)} raised an error")


def mean_shapes(agents: Any, like: PyTree) -> PyTree | None:
    """Returns the shapes of an agent's mean operator; None if it is not known exactly."""
    with precision():
        try:
            return jax.eval_shape(lambda agent, theta: agent.mean_operator(theta), _shapes(agents, 1), _shapes(like))
        except UnknownLawError:
            return None


def _shapes(values: PyTree, leading: int = 0) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf)[leading:], leaf.dtype), values)


def _observation(agent: Any, theta: PyTree, key: Any) -> Any:
    """Returns one observation of an agent at the start of its chain."""
    state, seen = agent.source.step(key, agent.source.init(key))
    if isinstance(agent.source, AbstractControlled):
        _, seen = agent.react(theta, state, seen.bits)
    return seen


def _check_value(kind: type, call: str, value: PyTree, theta: PyTree) -> None:
    method = f"`{kind.__name__}.{call}`"
    if _own.is_own(kind):
        method += _own.place(getattr(kind, call.partition("(")[0]))
    structures = jax.tree.structure(value), jax.tree.structure(theta)
    shapes = [[tuple(leaf.shape) for leaf in jax.tree.leaves(part)] for part in (value, theta)]
    if structures[0] != structures[1]:
        came, expected = (str(structure).removeprefix("PyTreeDef") for structure in structures)
        raise ValueError(f"{method} must have the structure of `like`, {expected}, got {came}.")
    if shapes[0] != shapes[1]:
        came, expected = (found[0] if len(found) == 1 else found for found in shapes)
        raise ValueError(
            f"{method} must have the shape of `like`, {expected}, got {came}. Write it for one agent, "
            "one parameter and one observation, and return as many numbers as the parameter has."
        )
    for leaf in jax.tree.leaves(value):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"{method} must return floating-point numbers, got {leaf.dtype}.")


def check_names(names: Any, dim: int) -> tuple[str, ...]:
    """Returns the names of the parameter's entries; raises unless each entry has a different name."""
    found = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in found) or len(set(found)) < len(found) or len(found) != dim:
        raise ValueError(f"`names` must be {dim} different names, one for each number of the parameter, got {names!r}.")
    return found
