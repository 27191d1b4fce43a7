"""Observations from outside JAX: a running environment, a sensor, or any other Python code."""

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
    """The base class of streams: one agent's observations, produced by ordinary Python code.

    A site draws a block once per round and saves it, so a block is never drawn twice, even if the process is killed.
    `save` returns the state that the stream needs to continue, as arrays. `simulate` gives every seed its own `fresh`
    stream.

    !!! example
        >>> class Coins(AbstractStream):
        ...     like = np.zeros(())
        ...     def draw(self, generator, length):
        ...         return generator.integers(2, size=length).astype(float)
        >>> Coins().draw(np.random.default_rng(0), 3).tolist()
        [1.0, 1.0, 1.0]
    """

    @property
    @abc.abstractmethod
    def like(self) -> Observation:
        """An example of one observation; only its shape matters."""

    @property
    def controlled(self) -> bool:
        """Whether observations depend on the parameter, as they do if it determines the actions."""
        return False

    @property
    def judged_by(self) -> str | None:
        """`"mean_return"` if `returns_together` measures the performance of the parameter; otherwise None."""
        return None

    @property
    def resumable(self) -> bool:
        """Whether `save` returns everything that the stream needs to continue."""
        return True

    @abc.abstractmethod
    def draw(self, generator: np.random.Generator, length: int) -> Block:
        """Returns the next `length` observations: arrays with a leading axis.

        The generator depends on the run's key, the agent and the round. A stream that is `controlled` receives a third
        argument, the parameter at the start of the round.
        """

    def save(self) -> dict[str, np.ndarray]:
        """Returns the state that the stream needs to continue in another process."""
        return {}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Restores the state that `save` returned."""
        del saved

    def fresh(self) -> Self:
        """Returns a new stream with the same settings, at its start. By default it copies this stream as it is now."""
        return copy.deepcopy(self)

    @classmethod
    def draw_together(
        cls,
        streams: Sequence[Self],
        generators: Sequence[np.random.Generator],
        length: int,
        thetas: Sequence[np.ndarray],
    ) -> list[Block]:
        """Returns the next block of each stream, which has its own generator and parameter.

        The blocks must equal those of `draw`; override it if many streams can be advanced faster together.
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
        """The mean return of each stream's environment under its parameter, from separate evaluation episodes."""
        raise TypeError(f"{cls.__name__} does not measure returns: override `judged_by` and `returns_together`.")


class LiveSource(AbstractSource):
    """The source of live agents: one stream each, from which drivers draw outside JAX.

    **Arguments:**

    - `streams`: the streams of all agents.
    - `number`: the index of the agent's stream; stacked, one entry per agent.
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
        """The streams of the agents stacked here, in their order."""
        return [self.streams[number] for number in np.asarray(self.number).reshape(-1)]


_OUTSIDE = (
    "Live agents observe running environments, whose law is not known: there is no mean operator, no prediction "
    "and no exact law. `simulate`, `compare`, `sweep` and `deploy.federate` run them."
)


def check_streams(streams: Sequence[AbstractStream]) -> None:
    """Raises an error unless the streams have one class and observations of one shape."""
    for i, stream in enumerate(streams):
        if not isinstance(stream, AbstractStream):
            raise TypeError(f"`agents[{i}].stream` must be an `AbstractStream`, got {stream!r}.")
        if type(stream) is not type(streams[0]):
            kinds = type(streams[0]).__name__, type(stream).__name__
            raise ValueError(f"`agents`: streams must be of one class, got {kinds[0]} and {kinds[1]}.")
        shapes = jax.tree.map(np.shape, (streams[0].like, stream.like))
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"`agents`: streams must have observations of one shape, got {shapes[0]} for agent 0 and {shapes[1]} "
                f"for agent {i}."
            )


def check_block(block: PyTree, like: PyTree, length: int) -> PyTree:
    """Returns a copy of a stream's block, because streams may reuse their buffers.

    Raises `ValueError` if it does not hold `length` observations like the example.
    """
    shapes = jax.tree.map(lambda x: (length, *np.shape(x)), like)
    found = jax.tree.map(np.shape, block)
    if found != shapes:
        raise ValueError(f"`draw` must return {length} observations of shapes {shapes}, got {found}.")
    return jax.tree.map(np.array, block)
