"""Observations from outside: a running environment, a sensor, anything that is not a JAX source."""

import abc
import copy
from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from .._types import Block, Observation
from .base import AbstractSource, UnknownLawError


class AbstractStream(abc.ABC):
    """One agent's observations, made by ordinary Python code.

    A site draws a block once per round and saves it, so that a block is never drawn twice however often its process
    is killed. What the stream itself needs to continue, `save` gives as arrays. `simulate` gives every seed a `fresh`
    stream of its own.
    """

    @property
    @abc.abstractmethod
    def like(self) -> Observation:
        """An example of one observation; only its shape matters."""

    @property
    def controlled(self) -> bool:
        """Whether observations depend on the parameter, as when actions follow what was learned."""
        return False

    @property
    def judged_by(self) -> str | None:
        """`"mean_return"` where `returns_together` measures how well the parameter does; None where nothing does."""
        return None

    @property
    def resumable(self) -> bool:
        """Whether `save` gives all that the stream needs to continue."""
        return True

    @abc.abstractmethod
    def draw(self, generator: np.random.Generator, length: int) -> Block:
        """The next `length` observations: arrays with a leading axis.

        The generator depends on the run's key, the agent and the round. A stream that is `controlled` gets a third
        argument, the parameter with which the round begins.
        """

    def save(self) -> dict[str, np.ndarray]:
        """What the stream needs to continue in another process."""
        return {}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Continues where `save` was called."""
        del saved

    def fresh(self) -> Self:
        """Another stream of the same settings, at its start; by default a copy of this one, drawn from or not."""
        return copy.deepcopy(self)

    @classmethod
    def draw_together(
        cls,
        streams: Sequence[Self],
        generators: Sequence[np.random.Generator],
        length: int,
        thetas: Sequence[np.ndarray],
    ) -> list[Block]:
        """The next block of each stream, which has a generator and a parameter of its own.

        The same blocks as by `draw`; override it where many streams can be moved on faster together.
        """
        found = []
        for stream, generator, theta in zip(streams, generators, thetas, strict=True):
            draw: Any = stream.draw
            found.append(draw(generator, length, theta) if stream.controlled else draw(generator, length))
        return found

    @classmethod
    def returns_together(
        cls, streams: Sequence[Self], generators: Sequence[np.random.Generator], thetas: Sequence[np.ndarray]
    ) -> np.ndarray:
        """The mean return of each stream's environment under its parameter, by episodes played for that alone."""
        raise TypeError(f"{cls.__name__} measures no returns: override `judged_by` and `returns_together`.")


class LiveSource(AbstractSource):
    """What live agents have in the place of a source: a stream each, which drivers draw from outside of JAX.

    **Arguments:**

    - `streams`: the streams of all agents.
    - `number`: which of them is the agent's; stacked, one entry per agent.
    """

    streams: tuple[AbstractStream, ...] = eqx.field(static=True)
    number: np.ndarray

    @property
    def like(self):
        return self.streams[0].like

    def init(self, key, /):
        raise UnknownLawError(_OUTSIDE)

    def step(self, key, state, /):
        raise UnknownLawError(_OUTSIDE)

    def expect(self, function, /):
        raise UnknownLawError(_OUTSIDE)

    def chosen(self) -> list[AbstractStream]:
        """The streams of the agents that are stacked here, in their order."""
        return [self.streams[number] for number in np.asarray(self.number).reshape(-1)]


_OUTSIDE = (
    "Live agents observe running environments, whose law is not known: there is no mean operator, no prediction and no "
    "exact law. `simulate`, `compare`, `sweep` and `deploy.federate` run them."
)


def check_streams(streams: Sequence[AbstractStream]) -> None:
    """Raises unless the streams are of one class and give observations of one shape."""
    for i, stream in enumerate(streams):
        if not isinstance(stream, AbstractStream):
            raise TypeError(f"`agents[{i}].stream` must be an `AbstractStream`, got {stream!r}.")
        if type(stream) is not type(streams[0]):
            kinds = type(streams[0]).__name__, type(stream).__name__
            raise ValueError(f"`agents`: streams must be of one class, got {kinds[0]} and {kinds[1]}.")
        shapes = jax.tree.map(np.shape, (streams[0].like, stream.like))
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"`agents`: streams must give observations of one shape, got {shapes[0]} of agent 0 and {shapes[1]} of "
                f"agent {i}."
            )


def check_block(block: PyTree, like: PyTree, length: int) -> PyTree:
    """A copy of a stream's block, since streams may use their buffers again.

    Raises if it is not `length` observations like the example.
    """
    shapes = jax.tree.map(lambda x: (length, *np.shape(x)), like)
    found = jax.tree.map(np.shape, block)
    if found != shapes:
        raise ValueError(f"`draw` must give {length} observations of shapes {shapes}, got {found}.")
    return jax.tree.map(np.array, block)
