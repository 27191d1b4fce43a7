"""What can be kept per round: functions of a snapshot, for one seed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._types import Theta
from ..problems import AbstractAgent


class Snapshot(NamedTuple):
    """What a recorder sees after a round, for one seed."""

    theta: Theta
    theta_star: Theta
    round: Any
    server: Any
    agents: AbstractAgent
    """All agents: arrays carry a leading axis."""


def error(snapshot: Snapshot):
    r"""The squared distance to the root, $|\theta - \theta^\star|^2$."""
    return jnp.sum((snapshot.theta - snapshot.theta_star) ** 2)


def theta(snapshot: Snapshot):
    """The parameter itself."""
    return snapshot.theta


def operator_norm(snapshot: Snapshot):
    r"""The norm of the average mean operator, $|\bar G(\theta)|$; needs no root."""
    values = jax.vmap(lambda agent: agent.mean_operator(snapshot.theta))(snapshot.agents)
    return jnp.linalg.norm(jnp.mean(values, axis=0))


RECORDERS: dict[str, Callable] = {"error": error, "theta": theta, "operator_norm": operator_norm}


def resolve(record: Sequence[str] | Mapping[str, Callable], agents: AbstractAgent) -> dict[str, Callable]:
    """The recorders by name, those of all problems and those of these agents; the error is always among them."""
    if isinstance(record, str):
        record = (record,)
    if not isinstance(record, Mapping):
        known = {name: lambda name=name: RECORDERS[name] for name in RECORDERS} | agents.recorders()
        unknown = [name for name in record if name not in known]
        if unknown:
            raise ValueError(
                f"`record` knows {', '.join(known)} here, got {unknown[0]!r}. Pass your own as a dictionary, "
                "`record={'first': lambda snapshot: snapshot.theta[0]}`."
            )
        record = {name: known[name]() for name in record}
    return {"error": error, **record}
