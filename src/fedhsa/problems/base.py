"""Problems: heterogeneous agents, and the root of the average of their mean operators."""

import abc
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import kernels, tree
from .._arrays import is_shared, share
from .._types import Block, Observation, State, precision
from ..sources import IID, AbstractControlled, AbstractSource, AbstractStream, Replay, Silent
from ..sources.stream import LiveSource
from . import _agents, _regions, _roots
from ._live import Live, observing

SOLVE = "solve"
"""The default of `theta_star`: the root is computed."""
DEVICE_BYTES = 2**26
"""The most bytes of agents that are moved to the device together to evaluate their mean operators."""
PARTS_BYTES = 2**27
"""The largest size of the matrices of all agents that is cached with their problem."""
_PARTS: dict[int, tuple[np.ndarray, np.ndarray]] = {}
"""Cached matrices and vectors, by the `id` of the problem; an entry is removed with its problem."""


def identity(value: Any) -> Any:
    """Return the value unchanged.

    !!! example
        >>> identity(3.0)
        3.0
    """
    return value


class AbstractAgent(eqx.Module):
    r"""One agent: a source of observations and a noisy operator $G_i(\theta, o)$.

    Write the methods for one agent, one parameter and one observation: problems stack agents, and the engine batches
    them.

    !!! example
        >>> class Mean(AbstractAgent):                 # estimates the mean of a chain's values
        ...     source: AbstractSource
        ...     values: np.ndarray
        ...     def operator(self, theta, o):
        ...         return self.values[o] - theta
        >>> chain = fedhsa.sources.FiniteChain([[0.9, 0.1], [0.2, 0.8]])
        >>> agents = [Mean(chain, np.array([0.0, v])) for v in (3.0, 6.0)]
        >>> Problem(agents, like=0.0).theta_star
        array([1.5])
    """

    source: AbstractSource

    affine: ClassVar[bool] = False
    """Whether $G_i(\\theta, o) = A_i(o) \\theta - b_i(o)$. Exact laws require it."""

    should_be_monotone: ClassVar[bool] = True
    """Whether a problem warns if the average operator is not monotone in the Euclidean norm, as Assumption 2
    requires. False for methods that are stable in another norm, like Q-learning in the maximum norm."""

    @property
    def judged_by(self) -> str | None:
        """The recorder by which runs are judged if there is no root; None means the norm of the operator."""
        return None

    @property
    def learns_policy(self) -> bool:
        """Whether the parameter is a policy's, so that the agent is or wraps an `AbstractPolicyAgent`."""
        return False

    @abc.abstractmethod
    def operator(self, theta: Any, o: Observation, /) -> Any:
        r"""The noisy operator $G_i(\theta, o)$, shaped like `theta`."""

    def mean_operator(self, theta: Any, /) -> Any:
        r"""The mean operator $\bar G_i(\theta)$; by default the source's exact expectation of `operator`.

        Raises `UnknownLawError` if the source cannot compute expectations.
        """
        return self.source.expect(lambda o: self.operator(theta, o))

    def observe(self, theta: Any, o: Any, /) -> Observation:
        """The observation under this parameter, given one entry `o` of the block; called before `operator`.

        It is the entry itself, unless the chain depends on the parameter: then the chain takes its next step here.
        """
        return o

    def log_ratio(self, old: Any, new: Any, o: Observation, /) -> Any:
        r"""$\log p(o \mid \text{old}) - \log p(o \mid \text{new})$ for an observation `o`.

        Zero if the observations do not depend on the parameter. It is one number, or one for each part of an
        observation that has its own weight, like the episodes of a batch.
        """
        return jnp.zeros(())

    def weighted_operator(self, theta: Any, o: Observation, weights: Any, /) -> Any:
        """The operator with a weight for each part of the observation; `weights` has the shape of `log_ratio`."""
        return jax.tree.map(lambda g: weights.astype(g.dtype) * g, self.operator(theta, o))

    def project(self, theta: Any, /) -> Any:
        """The nearest parameter in the agent's region; called after each local step. By default `theta` itself."""
        return theta

    def form(self, block: Block, /) -> kernels.RankOne | kernels.Affine | None:
        """The operators of a block of observations in a form that has fused kernels; None if there is no such form.

        Only for agents with the default `observe` and `project`. One fused kernel then takes the local steps on
        devices that have it, with the same numbers up to rounding.
        """
        return None

    def lipschitz(self, o: Observation, /) -> Any:
        r"""The least $L$ with $|G_i(\theta, o) - G_i(\theta', o)| \le L |\theta - \theta'|$; None if it is unknown.

        `theory.constants` uses it. Override it if there is a formula: constants of affine operators are then computed
        faster (a matrix of rank one needs no singular values), and those of other operators exactly instead of from
        samples.
        """
        return None

    def recorders(self) -> dict[str, Callable[[], Callable]]:
        """Further recorders for `simulate(record=...)`, as functions that make them, by name; `self` is stacked.

        A recorder is a function of a `Snapshot`; one that needs arrays is an `equinox.Module`.
        """
        return {}


class AbstractControlledAgent(AbstractAgent):
    """An agent whose chain depends on the parameter: its source is an `AbstractControlled`.

    Algorithms treat it like any other agent: `observe` returns the observation made in `react`.
    """

    @abc.abstractmethod
    def react(self, theta: Any, state: State, bits: Any, /) -> tuple[State, Observation]:
        """The chain's next state and the observation of this step, under this parameter; `bits` are random."""


class AbstractPolicyAgent(AbstractControlledAgent):
    """An agent whose parameter is a policy's, with the further functions that policy optimisation requires."""

    @property
    def learns_policy(self):
        return True

    @abc.abstractmethod
    def fisher_product(self, theta: Any, o: Observation, vector: Any, /) -> Any:
        r"""$\hat F v$ with $\hat F$ the mean of $\psi \psi^T$ over the actions taken, $\psi$ the score at `theta`."""

    @abc.abstractmethod
    def kl(self, old: Any, new: Any, o: Observation, /, of: Callable = identity) -> Any:
        r"""The mean of $KL(\pi_\text{old} \,\|\, \pi_\text{new})$ over the visited states.

        With `of`, the mean of a function of the divergence, such as its square root.
        """

    @abc.abstractmethod
    def surrogate(self, theta: Any, old: Any, o: Observation, /, of: Callable = identity) -> Any:
        r"""The mean of $\pi_\theta / \pi_\text{old}$ times the advantage over the actions taken under `old`.

        With `of`, a function of the ratio, such as clipping, replaces the ratio.
        """


class AbstractAgentWrapper(AbstractPolicyAgent):
    """An agent that passes every call to another agent, except those that a subclass overrides.

    A call that the other agent does not support raises its error.
    """

    agent: Any

    def inward(self, theta: Any) -> Any:
        """The parameter, or another value shaped like it, as the other agent has it."""
        return theta

    def outward(self, value: Any) -> Any:
        """The inverse of `inward`."""
        return value

    @property
    def judged_by(self):
        return self.agent.judged_by

    @property
    def learns_policy(self):
        return self.agent.learns_policy

    def operator(self, theta, o, /):
        return self.outward(self.agent.operator(self.inward(theta), o))

    def mean_operator(self, theta, /):
        return self.outward(self.agent.mean_operator(self.inward(theta)))

    def observe(self, theta, o, /):
        return self.agent.observe(self.inward(theta), o)

    def log_ratio(self, old, new, o, /):
        return self.agent.log_ratio(self.inward(old), self.inward(new), o)

    def weighted_operator(self, theta, o, weights, /):
        return self.outward(self.agent.weighted_operator(self.inward(theta), o, weights))

    def project(self, theta, /):
        inner = self.inward(theta)
        projected = self.agent.project(inner)
        return theta if projected is inner else self.outward(projected)

    def react(self, theta, state, bits, /):
        return self.agent.react(self.inward(theta), state, bits)

    def fisher_product(self, theta, o, vector, /):
        return self.outward(self.agent.fisher_product(self.inward(theta), o, self.inward(vector)))

    def kl(self, old, new, o, /, of=identity):
        return self.agent.kl(self.inward(old), self.inward(new), o, of)

    def surrogate(self, theta, old, o, /, of=identity):
        return self.agent.surrogate(self.inward(theta), self.inward(old), o, of)

    def visited(self, o, /):
        """The coordinates that an observation updates, for agents that have this method."""
        return self.agent.visited(o)

    def lipschitz(self, o, /):
        return self.agent.lipschitz(o)

    def recorders(self):
        return self.agent.recorders()


class AffineAgent(AbstractAgent):
    r"""An agent without noise, $\bar G_i(\theta) = A_i \theta - b_i$ on flat vectors."""

    A: np.ndarray
    b: np.ndarray
    agent: AbstractAgent | None = None
    """The agent with this mean operator, whose recorders are used."""

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return self.mean_operator(theta)

    def mean_operator(self, theta, /):
        return tree.unravel_like(theta)(self.A @ tree.ravel(theta) - self.b)

    def recorders(self):
        return {} if self.agent is None else self.agent.recorders()


class MeanAgent(AbstractAgent):
    """Any agent without its noise: the operator is the mean operator."""

    agent: AbstractAgent

    @property
    def judged_by(self):
        return self.agent.judged_by

    def operator(self, theta, o, /):
        return self.agent.mean_operator(theta)

    def mean_operator(self, theta, /):
        return self.agent.mean_operator(theta)

    def project(self, theta, /):
        return self.agent.project(theta)

    def recorders(self):
        return self.agent.recorders()


class FlatAgent(AbstractAgentWrapper):
    """An agent whose parameter is any pytree, with flat vectors as its interface."""

    unravel: Callable = eqx.field(static=True)

    def inward(self, theta):
        return self.unravel(theta)

    def outward(self, value):
        return tree.ravel(value)


class ConstrainedAgent(AbstractAgentWrapper):
    """An agent that stays in a ball around 0 or in a box: it is projected after each local step."""

    radius: Any = None
    box: Any = None

    def project(self, theta, /):
        theta = self.agent.project(theta)
        return tree.unravel_like(theta)(_regions.nearest(tree.ravel(theta), self.radius, self.box))


class Problem(eqx.Module):
    r"""Agents $1, \dots, M$ and the root $\theta^\star$ of the average of their mean operators.

    **Arguments:**

    - `agents`: a list of agents of one class, or one agent whose arrays all carry a leading axis `M`. Or a list of
      `Live` agents, which observe running environments.
    - `like`: an example of the parameter, any pytree of arrays; the search for the root starts from its values.
    - `theta_star`: the root, if it is known. By default it is computed and certified by its residual. Pass None for a
      problem without a root or with several: runs then report the norm of the operator instead of the error. Live
      agents have no known root unless you pass it: their runs report returns if the streams measure them.
    - `start`: the default starting point of runs, shaped like the parameter. Default: zeros.
    - `names`: a name for each number of the parameter, in the order of the flat vector. Results and the files of a run
      use them.

    Raises `ValueError` if operators are not shaped like the parameter or if there is no unique root. Warns if the
    average operator is not monotone at the root.

    !!! example
        >>> agents = [AffineAgent(fedhsa.sources.Silent(), -np.eye(2), -b) for b in np.array([[1.0, 0.0], [3.0, 2.0]])]
        >>> Problem(agents, like=np.zeros(2)).theta_star
        array([2., 1.])
        >>> print(Problem(agents, like=np.zeros(2), theta_star=None).theta_star)
        None
    """

    agents: AbstractAgent
    theta_star: Any
    """The root as a flat vector, or None."""
    like: PyTree
    start: np.ndarray
    """The default starting point of runs, as a flat vector."""
    names: tuple[str, ...] | None = eqx.field(static=True)
    """The names of the parameter's numbers, or None."""

    def __init__(
        self,
        agents: AbstractAgent | Sequence[AbstractAgent | Live],
        like: Any = None,
        theta_star: Any = SOLVE,
        start: Any = None,
        names: Sequence[str] | None = None,
    ):
        self.agents = _agents.stack(observing(agents), AbstractAgent)
        solve = isinstance(theta_star, str) and theta_star == SOLVE
        if like is None and (solve or theta_star is None):
            raise ValueError("Give `like`, an example of the parameter (`like=np.zeros(3)`), or `theta_star`.")
        if solve and self.streams is not None:
            theta_star, solve = None, False
        self.like = jax.tree.map(lambda x: np.asarray(x, dtype=np.float64), theta_star if like is None else like)
        self.start = np.zeros(self.dim) if start is None else tree.ravel_like("start", start, self.like)
        self.names = None if names is None else _agents.check_names(names, self.dim)
        _agents.check_operator(self.agents, self.like, self.agents.source.like)
        self.theta_star = None
        if theta_star is not None:
            self.theta_star = _roots.find_root(self) if solve else tree.ravel_like("theta_star", theta_star, self.like)

    @property
    def root(self) -> np.ndarray:
        """`theta_star`; raises `ValueError` if the problem has none."""
        if self.theta_star is None and self.streams is not None:
            raise ValueError(
                "The agents of this problem observe running environments, whose law is not known, so there is no root "
                "and nothing to predict. `simulate`, `compare` and `sweep` judge methods by their returns; or pass "
                "`theta_star` to `Problem` if you know it."
            )
        if self.theta_star is None:
            raise ValueError(
                "This problem has no root (`theta_star=None`), but this function requires one. Pass `theta_star` to "
                "`Problem`, or omit it to solve for it."
            )
        return self.theta_star

    @property
    def num_agents(self) -> int:
        """$M$."""
        return tree.leading_axis(self.agents)

    @property
    def dim(self) -> int:
        """$d$, the number of parameters."""
        return tree.size(self.like)

    @property
    def flat_agents(self) -> AbstractAgent:
        """The agents with operators on flat vectors, which algorithms and engines use."""
        if jax.tree.structure(self.like) == jax.tree.structure(0) and np.ndim(self.like) == 1:
            return self.agents
        return FlatAgent(self.agents.source, self.agents, tree.unravel_like(self.like))

    def unravel(self, theta: np.ndarray) -> PyTree:
        """Reshape flat parameters `(..., d)` like `like`; leading axes, such as seeds or records, stay in front.

        !!! example
            >>> agents = AffineAgent(fedhsa.sources.Silent(), -np.eye(3)[None], np.zeros((1, 3)))
            >>> problem = Problem(agents, like={"slope": np.zeros(2), "level": 0.0})
            >>> {name: leaf.shape for name, leaf in problem.unravel(np.zeros((8, 3))).items()}     # 8 seeds
            {'level': (8,), 'slope': (8, 2)}
        """
        return tree.unravel_like(self.like)(theta if isinstance(theta, jax.Array) else np.asarray(theta))

    def mean_operators(self, theta: Any) -> np.ndarray:
        r"""$\bar G_i(\theta)$ for every agent, `(M, d)`; `theta` is a flat vector."""
        return _on_device(_mean_operators, self.flat_agents, theta)

    def mean_operator(self, theta: Any) -> np.ndarray:
        r"""$\bar G(\theta) = \frac1M \sum_i \bar G_i(\theta)$; zero at `theta_star`."""
        return _average(_mean_operators, self.flat_agents, theta)

    def mean_jacobian(self, theta: Any) -> np.ndarray:
        r"""$\partial \bar G / \partial \theta$, the average of `jacobians`, `(d, d)`."""
        return _average(_jacobians, self.flat_agents, theta)

    def jacobians(self, theta: Any) -> np.ndarray:
        r"""$\partial \bar G_i / \partial \theta$ for every agent, `(M, d, d)`."""
        return _on_device(_jacobians, self.flat_agents, theta)

    @property
    def controlled(self) -> bool:
        """Whether the agents' chains depend on the parameter."""
        return isinstance(self.agents.source, AbstractControlled)

    @property
    def streams(self) -> list[AbstractStream] | None:
        """The streams that live agents observe, one for each agent; None if the agents have sources."""
        source = self.agents.source
        return source.chosen() if isinstance(source, LiveSource) else None

    @property
    def judged_by(self) -> str | None:
        """The measure of runs if there is no root: a recorder of the agents, the returns of live agents, or the norm of
        the average operator; None if nothing can be measured."""
        if self.streams is not None:
            return self.streams[0].judged_by
        return self.agents.judged_by or ("operator_norm" if self.has_mean_operator else None)

    @property
    def has_mean_operator(self) -> bool:
        """Whether the mean operators can be computed exactly."""
        return _agents.mean_shapes(self.agents, self.like) is not None

    @property
    def affine(self) -> bool:
        """Whether every operator is affine in the parameter."""
        return type(self.agents).affine

    def affine_parts(self) -> tuple[np.ndarray, np.ndarray]:
        r"""$A_i$ `(M, d, d)` and $b_i$ `(M, d)` of the mean operators $\bar G_i(\theta) = A_i \theta - b_i$.

        Raises `TypeError` if the operators are not affine.
        """
        if not self.affine:
            raise TypeError(
                f"The operators of {type(self.agents).__name__} are not affine in the parameter, so they have no "
                "matrices. Use `jacobians(theta)` for their derivative at a point."
            )
        found = _PARTS.get(id(self))
        if found is None:
            origin = np.zeros(self.dim)
            found = self.jacobians(origin), -self.mean_operators(origin)
            if found[0].nbytes > PARTS_BYTES:
                return found
            _PARTS[id(self)] = found
            weakref.finalize(self, _PARTS.pop, id(self), None)
        return found[0].copy(), found[1].copy()  # the caller may change them

    @property
    def local_roots(self) -> np.ndarray:
        r"""The agents' own roots $\theta_i^\star$, `(M, d)`; a row is NaN if that agent alone has no unique root."""
        if self.affine:
            return _roots.affine_roots(*self.affine_parts())
        return np.stack([_local_root(self, i) for i in range(self.num_agents)])

    def take(self, indices: Sequence[int], theta_star: Any = SOLVE) -> "Problem":
        """The problem of a subset of the agents. Its root is computed unless `theta_star` is given.

        If the problem has no root, the new problem has none either.

        !!! example
            >>> fedhsa.problems.quadratic.random(num_agents=4, dim=2).take([0, 2]).num_agents
            2
        """
        some = tree.take(self.agents, np.asarray(indices))
        root = None if self.theta_star is None and theta_star is SOLVE else theta_star
        return Problem(some, self.like, root, self.start, self.names)

    def with_source(self, make: Callable[[AbstractSource], AbstractSource]) -> "Problem":
        """The same agents with the source `make(source)` instead of `source`; the root does not change."""
        agents = eqx.tree_at(lambda agents: agents.source, self.agents, make(self.agents.source))
        return Problem(agents, self.like, self.theta_star, self.start, self.names)

    def iid(self) -> "Problem":
        """The same agents with independent observations from their stationary distributions.

        Raises `ValueError` if the source cannot sample from its stationary distribution.

        !!! example
            >>> type(fedhsa.problems.quadratic.random(num_agents=2, dim=2).iid().agents.source).__name__
            'IID'
        """
        if type(self.agents.source).sample is AbstractSource.sample:
            raise ValueError(
                f"`iid`: {type(self.agents.source).__name__} cannot sample from its stationary distribution. "
                "Override `sample(key)` if this is your own source; a source that depends on the parameter or on its "
                "whole past has no such distribution."
            )
        return self.with_source(IID)

    def replay(self, observations: PyTree, wrap: bool = False) -> "Problem":
        """The same agents with recorded observations: arrays `(M, time, ...)`.

        The root and the mean operators do not change: they belong to the distribution of the observations.

        **Arguments:**

        - `observations`: a pytree of arrays with the leading axes agent and time.
        - `wrap`: if True, start again at the end of the record instead of raising an error.
        """
        return self.with_source(lambda source: Replay(observations, wrap, source))

    def within(self, *, radius: float | None = None, box: Any = None) -> "Problem":
        r"""The same agents, projected onto a ball around 0 or onto a box after each local step.

        `Projected` projects the server's parameter instead, after each round. The root does not change, even if it is
        outside the region.

        **Arguments:**

        - `radius`: the radius of the ball in the Euclidean norm.
        - `box`: instead of `radius`, the bounds `(low, high)`, numbers or one number for each coordinate.

        Raises `ValueError` unless exactly one of them is given.

        !!! example
            >>> problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2).within(radius=0.1)
            >>> result = fedhsa.simulate(problem, fedhsa.LocalSA(0.1, local_steps=20), rounds=50)
            >>> bool(np.linalg.norm(result.theta) <= 0.1 + 1e-12)
            True
        """
        box = _regions.as_box(box)
        _regions.check_region(radius, box)
        _regions.check_box_size(box, self.dim)
        per_agent = (None if part is None else np.stack([np.asarray(part)] * self.num_agents) for part in (radius, box))
        agents = ConstrainedAgent(self.agents.source, self.agents, *per_agent)
        return Problem(agents, self.like, self.theta_star, self.start, self.names)

    def noiseless(self) -> "Problem":
        r"""The same agents without noise: each operator is replaced by its mean $\bar G_i$.

        !!! example
            >>> quiet = fedhsa.problems.quadratic.random(num_agents=2, dim=2).noiseless()
            >>> result = fedhsa.simulate(quiet, fedhsa.FedHSA(0.1, local_steps=2), rounds=200)
            >>> bool(result.error[0, -1] < 1e-15)
            True
        """
        agents = MeanAgent(Silent(), self.agents)
        if self.affine:
            agents = AffineAgent(Silent(), *self.affine_parts(), self.agents)
        return Problem(agents, self.like, self.theta_star, self.start, self.names)


def _mean_operators(agents, theta):
    return tree.over_agents(lambda agent: agent.mean_operator(theta))(agents)


def _jacobians(agents, theta):
    return tree.over_agents(lambda agent: jax.jacfwd(agent.mean_operator)(theta))(agents)


def _on_device(function: Callable, agents: AbstractAgent, theta: Any) -> np.ndarray:
    """`function(agents, theta)`, an array with an entry per agent."""
    return np.concatenate(list(_pieces(function, agents, theta)))


def _average(function: Callable, agents: AbstractAgent, theta: Any) -> np.ndarray:
    """The average of `function(agents, theta)` over the agents, without storing the value of each agent."""
    sums = [piece.sum(0) for piece in _pieces(function, agents, theta)]
    return np.sum(sums, axis=0) / tree.leading_axis(agents)


def _pieces(function: Callable, agents: AbstractAgent, theta: Any) -> Iterator[np.ndarray]:
    """`function(agents, theta)` in pieces: large problems are moved to the device a few agents at a time."""
    M, leaves = tree.leading_axis(agents), jax.tree.leaves(agents)
    many = M
    if not all(map(is_shared, leaves)):
        size = sum(np.asarray(leaf).nbytes for leaf in leaves if not is_shared(leaf))
        many = max(1, min(M, M * DEVICE_BYTES // max(size, 1)))
    compiled = eqx.filter_jit(function)
    with precision():
        theta = tree.to_device(np.asarray(theta, dtype=np.float64), "float64")
        for start in range(0, M, many):
            some = tree.agents_to_device(tree.take(agents, slice(start, start + many)), "float64")
            found = np.asarray(compiled(some, theta))
            yield share(found[0], M) if len(found) == 1 else found


def _local_root(problem: Problem, agent: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a single agent need not be monotone; only the average must be
        try:
            return Problem(tree.take(problem.agents, [agent]), problem.like).theta_star
        except ValueError:
            return np.full(problem.dim, np.nan)
