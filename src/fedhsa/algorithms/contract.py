"""Checks that a user's method keeps the contract of `base.py`, by tracing one round without compiling it.

The methods of this package are tested for it. For a user's method, a violation is reported before a run begins, with
the name of the method and its line, instead of a compiler error about the carry of a loop.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _own, tree
from .._types import precision
from ..problems import Problem
from .base import AbstractAlgorithm, Exchange, Replies, Round, checked_init, split


def check_contract(
    algorithm: AbstractAlgorithm, problem: Problem, adapted: Callable[[AbstractAlgorithm], AbstractAlgorithm]
) -> None:
    """Raises an error if a user's method cannot play a round; `adapted` turns a layer into what drivers run."""
    own = [layer for layer in algorithm.layers if _own.is_own(type(layer))]
    with precision():
        for layer in reversed(own):  # the innermost is to blame
            _check_fields(layer)
            _Rehearsal(adapted(layer), layer, problem).play()
        if own and own[0] is not algorithm:
            _Rehearsal(adapted(algorithm), own[0], problem).play()


def _check_fields(layer: AbstractAlgorithm) -> None:
    """Raises `TypeError` if a setting is neither a number nor static."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(layer):
        if not isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array):
            field = jax.tree_util.keystr(path).lstrip(".")
            raise TypeError(
                f"`{field}` of {_own.named(type(layer))} is {leaf!r}, which is not a number. Use a number, or declare "
                f"it as a setting that shapes the program: `{field}: {type(leaf).__name__} = eqx.field(static=True)`."
            )


class _Rehearsal:
    """One round in which only shapes are computed and the results of the user's functions are checked."""

    def __init__(self, algorithm: AbstractAlgorithm, own: AbstractAlgorithm, problem: Problem):
        self.class_name, self.num_agents, self.kind = type(own).__name__, problem.num_agents, type(own)
        with self.told("block_length"):
            length = algorithm.block_length
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
            raise ValueError(
                f"`block_length` of {_own.named(self.kind)} must be a whole number of at least 1, the number of "
                f"observations that a round uses from each agent, got {length!r}."
            )
        self.advice = ""
        if problem.controlled:
            self.advice = " (the chains depend on the parameter: `o = agent.observe(theta, o)` comes before "
            self.advice += "`agent.operator(theta, o)`)"
        agent, self.settings = tree.to_device((tree.take(problem.flat_agents, 0), algorithm), "float64")
        key = jax.random.key(0)
        self.block = jax.eval_shape(lambda agent: agent.source.example(key, length), agent)
        self.agent, self.theta = agent, jnp.zeros(problem.dim)
        self.round = Round(jnp.zeros((), int), key, key, jnp.zeros((), int))

    def told(self, what: str):
        """Reports an error that this property of the user's class raises."""
        return _own.told(f"`{what}` of {_own.named(self.kind)} raised an error")

    def play(self) -> None:
        """Plays the round."""
        server, memory = self.start()
        with self.told("exchanges"):
            exchanges = self.settings.exchanges
        if not (isinstance(exchanges, tuple) and exchanges and all(isinstance(e, Exchange) for e in exchanges)):
            raise TypeError(
                f"`exchanges` of {_own.named(self.kind)} must be a tuple with at least one `Exchange`, got "
                f"{type(exchanges).__name__}. A tuple of one needs a comma: `return (Exchange(...),)`."
            )
        before, kept = server, memory
        blamed: dict[str, str] = {}  # for each changed state, the function that changed it last
        for i, exchange in enumerate(exchanges):
            message = self.call(i, "send", server)
            entries, deliver = split(message)
            message = deliver(jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), entries))
            reply, new_memory = self.answer(i, message, memory)
            replies = jax.tree.map(lambda s: jax.ShapeDtypeStruct((self.num_agents, *s.shape), s.dtype), reply)
            new_server = self.call(i, "aggregate", server, replies)
            if _difference(new_memory, memory):
                blamed["memory"] = self.name(exchange, "local")
            if _difference(new_server, server):
                blamed["server"] = self.name(exchange, "aggregate")
            server, memory = new_server, new_memory
        begins = f"with the structure that `{self.class_name}.init` gives it, because the next round begins with it"
        if difference := _difference(server, before):
            raise TypeError(f"{blamed['server']} must return the server's state {begins}: {difference}.")
        if self.settings.memory_lasts and (difference := _difference(memory, kept)):
            raise TypeError(f"{blamed['memory']} must return the agent's memory {begins}: {difference}.")

    def start(self) -> tuple[PyTree, PyTree]:
        """The shapes of the server's state and of an agent's memory before the first round."""

        method = f"`{self.class_name}.init`{_own.place(self.kind.init)}"

        def init(settings, theta):
            with _own.told(f"{method} raised an error"):
                made = settings.init(theta)
            if not (isinstance(made, tuple) and len(made) == 2):
                raise TypeError(
                    f"{method} must return two values, the server's state and an agent's memory, got {_words(made)}. "
                    "Return `server, ()` if the agents have no memory."
                )
            for path, leaf in jax.tree_util.tree_leaves_with_path(made):
                if not hasattr(leaf, "shape"):
                    raise TypeError(
                        f"{method} must return arrays, got {leaf!r} at `{jax.tree_util.keystr(path)}`. Write "
                        "`jnp.asarray(...)` around it."
                    )
            return checked_init(settings, theta)

        return jax.eval_shape(init, self.settings, self.theta)

    def answer(self, i: int, message: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
        """The shapes of one agent's reply and of its memory."""
        found = self.call(i, "local", message, memory)
        exchange = self.settings.exchanges[i]
        if type(found) is not tuple or len(found) != 2:
            raise TypeError(
                f"{self.name(exchange, 'local')} must return two values, a reply and the agent's memory, got "
                f"{_words(found)}. Return `reply, memory`."
            )
        return found

    def call(self, i: int, part: str, *arguments: Any) -> Any:
        """The shapes that this part of exchange number `i` returns."""

        def evaluate(settings, agent, block, round, *arguments):
            exchange: Exchange = settings.exchanges[i]
            function: Callable[..., Any] = getattr(exchange, part)
            round = round._replace(num_agents=self.num_agents)
            advice = self.advice if part == "local" else ""
            with _own.told(f"{self.name(exchange, part)} raised an error{advice}"):
                if part == "local":
                    return function(*arguments, agent, block, round)
                round = round._replace(agent_key=None, agent=None)
                if part == "send":
                    return function(*arguments, round)
                return function(arguments[0], Replies(arguments[1]), round)

        round = self.round._replace(num_agents=None)  # pyright: ignore[reportArgumentType]
        return jax.eval_shape(evaluate, self.settings, self.agent, self.block, round, *arguments)

    def name(self, exchange: Exchange, part: str) -> str:
        """A name for a function of an exchange: its own name if the user wrote it, else its part in the method."""
        function = _own.function(getattr(exchange, part))
        if function is not None and _own.is_own(function):
            return f"`{function.__qualname__}`{_own.place(function)}"
        return f"`{part}` of the exchange {exchange.name!r} of {_own.named(self.kind)}"


def _words(value: Any) -> str:
    """Describes a value of which only the shapes are known."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(value) if hasattr(leaf, "shape")]
    if hasattr(value, "shape"):
        return f"an array of shape {value.shape}"
    return f"{type(value).__name__} with arrays of shapes {shapes}" if shapes else repr(value)


def _difference(new: PyTree, old: PyTree) -> str | None:
    """Describes how two states differ in structure, shapes or types; None if they do not."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        return f"it is {_words(new)} instead of {_words(old)}"
    leaves = zip(jax.tree_util.tree_leaves_with_path(new), jax.tree.leaves(old), strict=True)
    for (path, one), two in leaves:
        name = f"`{jax.tree_util.keystr(path).lstrip('.')}`" if path else "it"
        if one.shape != two.shape:
            return f"{name} has shape {one.shape} instead of {two.shape}"
        if one.dtype != two.dtype:
            return f"{name} has dtype {one.dtype} instead of {two.dtype}"
    return None
