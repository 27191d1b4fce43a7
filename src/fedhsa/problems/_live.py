"""Agents that learn from observations made outside JAX, such as those of a running environment."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from ..sources import AbstractSource
from ..sources.stream import AbstractStream, LiveSource, check_streams


class Live(NamedTuple):
    """An agent that observes a stream: only the agent's operator is used, not its source.

    `Problem([Live(...), ...], like=...)` builds a problem from such agents. `simulate` gives every seed fresh copies of
    the streams.

    !!! example
        >>> from fedhsa.deploy import GymStream
        >>> from fedhsa.problems.experience import TDAgent
        >>> agents = [Live(TDAgent(), GymStream("CartPole-v1", features=np.asarray, physics={"gravity": g}))
        ...           for g in (5.0, 10.0)]
        >>> problem = fedhsa.Problem(agents, like=np.zeros(4))
        >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.1, local_steps=5), rounds=3, seeds=2)
        >>> result.theta.shape
        (2, 4)
    """

    agent: Any
    stream: AbstractStream


def split_live(agents: Sequence[Any]) -> tuple[list[Any], list[AbstractStream] | None]:
    """Returns the agents, and their streams if they observe streams; raises if only some of them do."""
    live = [agent for agent in agents if isinstance(agent, Live)]
    if live and len(live) < len(agents):
        raise ValueError("The agents of one problem or site must all be `Live`, or none of them.")
    if not live:
        return list(agents), None
    streams = [one.stream for one in live]
    check_streams(streams)
    return [one.agent for one in live], streams


def observing(agents: Any) -> Any:
    """Returns live agents as agents whose source is their streams, and all other agents unchanged."""
    if isinstance(agents, Live):
        agents = [agents]
    if isinstance(agents, eqx.Module | type) or not hasattr(agents, "__iter__"):
        return agents
    found, streams = split_live(list(agents))
    if streams is None:
        return found
    return [with_source(agent, LiveSource(tuple(streams), np.asarray(i))) for i, agent in enumerate(found)]


def with_source(agents: Any, source: AbstractSource) -> Any:
    """Returns the agents with another source, also inside wrapped agents."""
    if isinstance(getattr(agents, "agent", None), eqx.Module):
        agents = _set(agents, "agent", with_source(agents.agent, source))
    return _set(agents, "source", source)


def _set(module: Any, name: str, value: Any) -> Any:
    """Returns a copy with another field; `equinox.tree_at` cannot replace a part without arrays."""
    changed = object.__new__(type(module))
    for field, kept in vars(module).items():
        object.__setattr__(changed, field, value if field == name else kept)
    return changed
