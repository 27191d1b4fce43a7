"""Graphs for communication without a server, and the weights with which neighbours are averaged."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _check
from .._random import Stream, fold_in, host_generator, key_words
from .._types import SeedLike
from ..problems import Problem
from .base import Round, check_probability

__all__ = ["AbstractGraph", "Complete", "Grid", "Mixing", "RandomGraph", "Ring", "metropolis"]


class AbstractGraph(eqx.Module):
    """The base class of graphs, with symmetric weights that add up to one for each agent.

    !!! example
        >>> isinstance(Ring(4), AbstractGraph)
        True
    """

    num_agents: eqx.AbstractVar[Any]
    """The number of agents."""

    @abc.abstractmethod
    def weights(self, round: Round) -> Float[Array, "agents agents"]:
        """The weight that each agent (row) gives to each agent's parameter (column) in this round."""

    @property
    @abc.abstractmethod
    def degree(self) -> float:
        """The number of neighbours of an agent, on average over agents and rounds."""


def metropolis(edges: Any) -> Any:
    r"""The Metropolis weights $W_{ij} = 1 / (1 + \max(d_i, d_j))$ of neighbours, where $d_i$ is the degree of $i$.

    The rest of each row is $W_{ii}$. On every graph the matrix is symmetric, and its rows and columns add up to one.

    **Arguments:**

    - `edges`: a symmetric matrix of zeros and ones.

    **Returns:** the matrix $W$.

    !!! cite "Xiao, Boyd (2004)"

    !!! example
        >>> metropolis(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])).round(2).tolist()  # a path of three
        [[0.67, 0.33, 0.0], [0.33, 0.33, 0.33], [0.0, 0.33, 0.67]]
    """
    xp = jnp if isinstance(edges, jax.Array) else np
    degree = edges.sum(axis=0)
    W = edges / (1 + xp.maximum(degree[:, None], degree[None, :]))
    return W + xp.diag(1 - W.sum(axis=1))


class AbstractFixedGraph(AbstractGraph):
    """A graph that is the same in every round."""

    @abc.abstractmethod
    def edges(self) -> Float[np.ndarray, "agents agents"]:
        """1 for neighbours, 0 for all other pairs."""

    def weights(self, round):
        return jnp.asarray(metropolis(self.edges()))

    @property
    def degree(self):
        return float(self.edges().sum() / self.num_agents)


class Ring(AbstractFixedGraph):
    """Each agent communicates with the previous and the next one.

    **Arguments:**

    - `num_agents`: the number of agents.

    Raises `ValueError` if `num_agents` is less than 1.

    !!! example
        >>> Ring(4).edges()
        array([[0., 1., 0., 1.],
               [1., 0., 1., 0.],
               [0., 1., 0., 1.],
               [1., 0., 1., 0.]])
    """

    num_agents: int = eqx.field(static=True)

    def __check_init__(self):
        _check.count("num_agents", self.num_agents)

    def edges(self):
        after = np.roll(np.eye(self.num_agents), 1, axis=1)
        return np.maximum(after, after.T) * (1 - np.eye(self.num_agents))


class Grid(AbstractFixedGraph):
    """Agents in rows and columns; each communicates with those left, right, above and below. One row is a path.

    **Arguments:**

    - `rows`, `columns`: their numbers; agents are numbered row by row.

    Raises `ValueError` if `rows` or `columns` is less than 1.

    !!! example
        >>> Grid(2, 3).num_agents, round(Grid(2, 3).degree, 2)
        (6, 2.33)
    """

    rows: int = eqx.field(static=True)
    columns: int = eqx.field(static=True)

    def __check_init__(self):
        _check.count("rows", self.rows)
        _check.count("columns", self.columns)

    @property
    def num_agents(self):
        return self.rows * self.columns

    def edges(self):
        row, column = np.divmod(np.arange(self.num_agents), self.columns)
        distance = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
        return (distance == 1).astype(np.float64)


class Complete(AbstractFixedGraph):
    """Every agent communicates with every other agent, which replaces a server at a higher cost.

    **Arguments:**

    - `num_agents`: the number of agents.

    Raises `ValueError` if `num_agents` is less than 1.

    !!! example
        >>> Complete(5).degree
        4.0
    """

    num_agents: int = eqx.field(static=True)

    def __check_init__(self):
        _check.count("num_agents", self.num_agents)

    def edges(self):
        return 1 - np.eye(self.num_agents)


class RandomGraph(AbstractGraph):
    """Each pair of agents is linked with the same probability, independently (Erdős and Rényi).

    **Arguments:**

    - `num_agents`: the number of agents, at least 1.
    - `probability`: the probability of a link, in (0, 1].
    - `varying`: whether every round has a new graph, drawn from the round's key. Such a graph need not be connected,
      and an agent without neighbours then continues on its own. Otherwise one graph is drawn once, and must be
      connected.
    - `key`: the key of the graph if it does not vary.

    Raises `ValueError` if an argument is out of range or the graph that does not vary is not connected.

    !!! example
        >>> RandomGraph(11, 0.3).degree
        3.0
        >>> RandomGraph(11, 0.05, varying=False)
        Traceback (most recent call last):
        ValueError: The graph of `key=0` is not connected. Use another key or a larger `probability`, got 0.05.
    """

    num_agents: int = eqx.field(static=True)
    probability: float = eqx.field(static=True)
    varying: bool = eqx.field(static=True, default=True)
    key: SeedLike = eqx.field(
        static=True, default=0, converter=lambda key: key if isinstance(key, int) else tuple(key_words(key))
    )

    def __check_init__(self):
        _check.count("num_agents", self.num_agents)
        _check.not_traced("probability", self.probability, "It decides which agents are linked.")
        check_probability("probability", self.probability)
        if not self.varying and not _connected(self._drawn()):
            raise ValueError(
                f"The graph of `key={self.key}` is not connected. "
                f"Use another key or a larger `probability`, got {self.probability}."
            )

    def weights(self, round):
        if not self.varying:
            return jnp.asarray(metropolis(self._drawn()))
        upper = jnp.triu(jax.random.uniform(fold_in(round.key, Stream.GRAPH), self._shape) < self.probability, k=1)
        return metropolis((upper | upper.T).astype(float))

    @property
    def _shape(self):
        return self.num_agents, self.num_agents

    def _drawn(self):
        """The links of the graph that does not vary."""
        key = np.array(self.key, np.uint32) if isinstance(self.key, tuple) else self.key
        upper = np.triu(host_generator(key, "graph").uniform(size=self._shape) < self.probability, k=1)
        return (upper | upper.T).astype(np.float64)

    @property
    def degree(self):
        if not self.varying:
            return float(self._drawn().sum() / self.num_agents)
        return float(self.probability * (self.num_agents - 1))


class Mixing(AbstractGraph):
    """Weights given as a matrix.

    **Arguments:**

    - `matrix`: in each row, the weights that an agent gives to all agents' parameters. The entries must not be
      negative, and rows and columns must add up to one; otherwise some agents would count more than others in the long
      run.

    Raises `ValueError` if the matrix does not satisfy these conditions.

    !!! example
        >>> Mixing([[0.5, 0.5], [0.5, 0.5]]).degree
        1.0
        >>> Mixing([[0.5, 0.5], [0.0, 1.0]])
        Traceback (most recent call last):
        ValueError: `matrix` must have columns that add up to 1, got sums [0.5 1.5].
    """

    matrix: np.ndarray = eqx.field(converter=lambda matrix: _check.array("matrix", matrix, ("agents", "agents")))

    def __check_init__(self):
        _check.number("matrix", self.matrix, least=0.0)
        for axis, name in ((1, "rows"), (0, "columns")):
            sums = self.matrix.sum(axis=axis)
            if not _check.traced(sums) and not np.allclose(sums, 1, rtol=0, atol=1e-10):
                raise ValueError(f"`matrix` must have {name} that add up to 1, got sums {sums}.")

    @property
    def num_agents(self):
        return len(self.matrix)

    def weights(self, round):
        return jnp.asarray(self.matrix)

    @property
    def degree(self):
        return float(np.count_nonzero(self.matrix - np.diag(np.diag(self.matrix))) / self.num_agents)


def check_graph(graph: Any, problem: Problem | None = None) -> None:
    """Raises `ValueError` unless this is a graph, with as many agents as the problem."""
    if not isinstance(graph, AbstractGraph):
        raise ValueError(f"`graph` must be a graph, got {graph!r}. For instance `Ring(10)`.")
    if problem is not None and graph.num_agents != problem.num_agents:
        raise ValueError(
            f"`graph` has {graph.num_agents} agents but the problem has {problem.num_agents}. Make them agree."
        )


def _connected(edges: np.ndarray) -> bool:
    """Whether every agent can be reached from the first one."""
    reached = np.eye(len(edges))[0]
    for _ in edges:
        reached = reached + edges @ reached > 0
    return bool(reached.all())
