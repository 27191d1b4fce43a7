"""Recorders: functions of a snapshot of one seed, evaluated after each round."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .. import tree
from .._describe import IndescribableError, digest
from .._types import Theta
from ..problems import AbstractAgent, Problem
from ..problems.base import FlatAgent

Record = str | Sequence[str] | Mapping[str, str | Callable]


class Snapshot(NamedTuple):
    """The state of one seed after a round, as recorders see it."""

    theta: PyTree
    """The parameter, in the shape the problem gives it."""
    theta_star: PyTree
    """The root in the same shape, or None if the problem has none."""
    round: Any
    server: Any
    """The server's state, in which the parameter is a flat vector."""
    agents: AbstractAgent
    """All agents. Their arrays have a leading axis."""


def error(snapshot: Snapshot):
    r"""The squared distance to the root, $|\theta - \theta^\star|^2$."""
    away = jax.tree.map(lambda x, y: x - y, snapshot.theta, snapshot.theta_star)
    return jnp.sum(tree.ravel(away) ** 2)


def theta(snapshot: Snapshot):
    """The parameter itself, as a flat vector."""
    return snapshot.server.theta


def operator_norm(snapshot: Snapshot):
    r"""The norm of the average mean operator, $|\bar G(\theta)|$. It does not require a root."""
    values = jax.vmap(lambda agent: tree.ravel(agent.mean_operator(snapshot.theta)))(snapshot.agents)
    return jnp.linalg.norm(jnp.mean(values, axis=0))


RECORDERS: dict[str, Callable] = {"error": error, "theta": theta, "operator_norm": operator_norm}


class Returns(NamedTuple):
    """A recorder outside JAX for live environments: the mean return of each agent, or of all agents."""

    average: bool


class _SameCode:
    """A recorder that equals any other with the same code and values, so that compiled programs are reused."""

    def __init__(self, function: Callable):
        self.function, self.digest = function, digest(function, "record")

    def __call__(self, snapshot):
        return self.function(snapshot)

    def __eq__(self, other):
        return isinstance(other, _SameCode) and self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)


def resolve(record: Record, problem: Problem) -> dict[str, Callable]:
    """Returns the recorders by name, including the error.

    If the problem has no root, a recorder of the agents, such as returns, or the norm of the average operator is
    included instead.
    """
    if isinstance(record, str):
        record = (record,)
    if not isinstance(record, Mapping):
        record = {name: name for name in record}
    for name in record:
        if not isinstance(name, str):
            raise TypeError(f"`record`: a function needs a name, `record={{'mine': ...}}`, got {name!r}.")
    found = {name: _recorder(name, chosen, problem) for name, chosen in record.items()}
    if problem.theta_star is None:
        name = problem.judged_by
        return found if name is None or name in found else {name: _recorder(name, name, problem), **found}
    return {"error": error, **found}


def _recorder(name: str, chosen: str | Callable, problem: Problem) -> Any:
    if name in ("error", "operator_norm") and chosen != name:  # runs are judged by them
        raise ValueError(f"`record`: {name!r} is the name of a built-in recorder. Give yours another name.")
    if isinstance(chosen, str):
        known = {name: lambda name=name: RECORDERS[name] for name in RECORDERS} | problem.agents.recorders()
        if problem.streams is not None and problem.judged_by == "mean_return":
            known |= {"returns": lambda: Returns(False), "mean_return": lambda: Returns(True)}
        if chosen not in known:
            raise ValueError(
                f"`record` supports {', '.join(known)} here, got {chosen!r}. Pass your own as a dictionary, "
                "`record={'first': lambda snapshot: snapshot.theta[0]}`."
            )
        if chosen == "error" and problem.theta_star is None:
            raise ValueError("`record`: the problem has no root, so there is no error. Use 'operator_norm'.")
        return known[chosen]()
    if not callable(chosen):
        raise TypeError(f"`record`: {name!r} must be the name of a recorder or a function, got {chosen!r}.")
    try:
        return chosen if isinstance(chosen, eqx.Module) else _SameCode(chosen)  # a module's arrays are traced
    except IndescribableError:  # it is recompiled each time
        return chosen


def take_snapshot(
    agents: AbstractAgent, server: Any, index: Any, theta_star: Theta | None, record: dict[str, Callable]
) -> dict[str, Array]:
    """The recorders' values of the server's state, for one seed."""
    flat = isinstance(agents, FlatAgent)
    shape = agents.unravel if flat else lambda theta: theta
    root = None if theta_star is None else shape(theta_star)
    snapshot = Snapshot(shape(server.theta), root, index, server, agents.agent if flat else agents)
    values = {name: function(snapshot) for name, function in record.items()}
    for name, value in values.items():
        if jax.tree.structure(value) != jax.tree.structure(0):
            raise TypeError(f"`record`: {name!r} must return one number or array, got {type(value).__name__}.")
    return {name: jnp.asarray(value) for name, value in values.items()}


def is_float(value: Any) -> bool:
    """Whether the entries are real numbers, which can be infinite."""
    return jnp.issubdtype(value.dtype, jnp.floating)
