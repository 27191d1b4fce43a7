"""The task of a federation, on which server and agents must agree before the first message."""

import dataclasses
import functools
import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _check, tree
from .._describe import plain_settings
from .._random import as_key, key_words
from .._types import SeedLike, precision
from ..algorithms import AbstractAlgorithm
from ..algorithms.base import PerAgent
from ..algorithms.controlled import as_written
from ..algorithms.trace import exchange_shapes
from ..engine import batch
from ..problems import AbstractAgent
from .schema import Schema


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """An algorithm, its initial parameter and the number of agents: everything that determines a run except the data.

    **Arguments:**

    - `algorithm`: the algorithm.
    - `num_agents`: the number $M$ of agents.
    - `theta`: the initial parameter, a flat vector.
    - `key`: the random key; `simulate` with the same key and one seed makes the same run.
    - `dtype`: `"float64"` or `"float32"`.
    - `example`: any of the agents, for methods that use more of an agent than its operators.
    - `problem`: a text that identifies the problem; sites and checkpoints with a different text are rejected.
    - `names`: the names of the parameter's entries, if they have names.
    - `secure`: whether replies are masked, so that the server learns only their sums.

    !!! example
        >>> task = Task(fedhsa.FedHSA(0.1, local_steps=5), num_agents=3, theta=np.zeros(2))
        >>> [name for name, _, _ in task.schemas(1)]
        ['operator', 'delta']
    """

    algorithm: AbstractAlgorithm
    num_agents: int
    theta: np.ndarray
    key: SeedLike = 0
    dtype: str = "float64"
    example: AbstractAgent | None = None
    problem: str = ""
    names: tuple[str, ...] | None = None
    secure: bool = False
    _schemas: dict[int, list[tuple[str, Schema, Schema]]] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self):
        _check.count("num_agents", self.num_agents)
        object.__setattr__(self, "theta", _check.array("theta", self.theta, ("d",)))

    @functools.cached_property
    def settings(self) -> AbstractAlgorithm:
        """The algorithm with its numbers on the device."""
        with precision(self.dtype):
            return tree.to_device(self.algorithm, self.dtype)

    @functools.cached_property
    def shapes(self) -> list[tuple[PyTree, PyTree]]:
        """The shapes of the message to all agents and of one agent's reply, for each exchange."""
        with precision(self.dtype):
            example = None if self.example is None else tree.to_device(self.example, self.dtype)
            theta = jnp.asarray(self.theta, self.dtype)
            return exchange_shapes(self.settings, theta, self.num_agents, example)

    def schemas(self, num_agents: int) -> list[tuple[str, Schema, Schema]]:
        """The name, the message to a site with `num_agents` agents, and the site's reply, for each exchange."""
        if num_agents in self._schemas:  # most sites have the same size
            return self._schemas[num_agents]

        def rows(of_one: PyTree) -> PyTree:  # without JAX, whose precision differs outside `precision`
            return jax.tree.map(lambda s: jax.ShapeDtypeStruct((num_agents, *s.shape), s.dtype), of_one)

        def to_site(leaf: Any) -> Any:
            if not isinstance(leaf, PerAgent):
                return leaf
            return PerAgent(rows(jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), leaf.values)))

        found = []
        for exchange, (message, reply) in zip(self.algorithm.exchanges, self.shapes, strict=True):
            sent = jax.tree.map(to_site, message, is_leaf=lambda x: isinstance(x, PerAgent))
            found.append((exchange.name, Schema(sent), Schema(rows(reply))))
        self._schemas[num_agents] = found
        return found

    def keys(self, numbers: np.ndarray) -> batch.Keys:
        """The keys of these agents, and the keys that all agents share."""
        with precision(self.dtype):
            return batch.make_keys(as_key(self.key), np.arange(1), numbers)

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the task; two sides with equal digests agree on all of it."""
        schemas = [[name, sent.plain(), reply.plain()] for name, sent, reply in self.schemas(1)]
        settings = plain_settings(as_written(self.algorithm))
        own = [settings, self.problem, self.num_agents, key_words(self.key), self.dtype]
        text = json.dumps([*own, *(["secure"] if self.secure else []), schemas])
        return hashlib.sha256(text.encode() + self.theta.tobytes()).hexdigest()[:32]

    def plain(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return {
            "algorithm": plain_settings(as_written(self.algorithm)),
            "problem": {"num_agents": self.num_agents, "dim": len(self.theta)}
            | ({} if self.names is None else {"names": list(self.names)}),
            "key": key_words(self.key),
            "dtype": self.dtype,
            **({"secure_aggregation": True} if self.secure else {}),
        }
