"""What a problem is: heterogeneous agents, and the root of the average of their mean operators."""

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
from ..sources import IID, AbstractControlled, AbstractSource, AbstractStream, Replay, Silent, Transition
from ..sources.stream import LiveSource
from . import _agents, _regions, _roots
from ._live import Live, observing

SOLVE = "solve"
"""What `theta_star` is by default: the root is searched for."""
DEVICE_BYTES = 2**26
"""How much of the agents is moved to the device at once to evaluate their mean operators."""
PARTS_BYTES = 2**27
"""How large the matrices of all agents may be to be kept with their problem."""
_PARTS: dict[int, tuple[np.ndarray, np.ndarray]] = {}
"""Matrices and vectors of problems that have been asked for them, by the identity of the problem, while it lives."""


def identity(value: Any) -> Any:
    """The value itself.

    !!! example
        >>> identity(3.0)
        3.0
    """
    return value


class AbstractAgent(eqx.Module):
    r"""One agent: a source of observations and a noisy operator $G_i(\theta, o)$.

    Write it for one agent, one parameter and one observation; problems stack agents and the engine batches them.

    !!! example
        >>> class Mean(AbstractAgent):                 # finds the mean of a chain's values
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
    """Whether $G_i(\\theta, o) = A_i(o) \\theta - b_i(o)$; exact laws need to know."""

    should_be_monotone: ClassVar[bool] = True
    """Whether a problem warns if the average operator is not monotone in the Euclidean norm, as Assumption 2 asks.
    False for methods that are stable in another norm, like Q-learning in the maximum norm."""

    @property
    def judged_by(self) -> str | None:
        """Which of its recorders runs are judged by where there is no root; None for the norm of the operator."""
        return None

    @property
    def learns_policy(self) -> bool:
        """Whether the parameter is that of a policy, so that the agent is or wraps an `AbstractPolicyAgent`."""
        return False

    @abc.abstractmethod
    def operator(self, theta: Any, o: Observation, /) -> Any:
        r"""The noisy operator $G_i(\theta, o)$, shaped like `theta`."""

    def mean_operator(self, theta: Any, /) -> Any:
        r"""The mean operator $\bar G_i(\theta)$. By default the source's exact expectation of the noisy one."""
        return self.source.expect(lambda o: self.operator(theta, o))

    def observe(self, theta: Any, o: Any, /) -> Observation:
        """What the agent sees under this parameter, for one entry `o` of its block; algorithms ask before `operator`.

        That entry itself, unless the chain depends on the parameter: then the chain takes its next step here.
        """
        return o

    def log_ratio(self, old: Any, new: Any, o: Observation, /) -> Any:
        r"""$\log p(o \mid \text{old}) - \log p(o \mid \text{new})$, of what was seen.

        Zero where the observations do not depend on the parameter. One number, or one for each part of an observation
        that counts by itself, like the episodes of a batch.
        """
        return jnp.zeros(())

    def weighted_operator(self, theta: Any, o: Observation, weights: Any, /) -> Any:
        """The operator with each part of the observation weighted; `weights` are shaped like `log_ratio`."""
        return jax.tree.map(lambda g: weights.astype(g.dtype) * g, self.operator(theta, o))

    def project(self, theta: Any, /) -> Any:
        """The nearest parameter that the agent may stand at; algorithms ask after each local step. By default all."""
        return theta

    def form(self, block: Block, /) -> kernels.RankOne | kernels.Affine | None:
        """What the operators of a block of observations are, where they have a form that has kernels; None elsewhere.

        Only for agents with the default `observe` and `project`. Local steps are then taken by one fused kernel on
        devices that have it, with the same numbers up to rounding.
        """
        return None

    def lipschitz(self, o: Observation, /) -> Any:
        r"""The least $L$ with $|G_i(\theta, o) - G_i(\theta', o)| \le L |\theta - \theta'|$; None where it is unknown.

        `theory.constants` asks for it. Override it where there is a formula: what is affine is then computed faster (a
        matrix of rank one needs no singular values), and what is not affine exactly instead of from samples.
        """
        return None

    def transition_operators(self, theta: Any, state: Any, next_states: Any, /) -> tuple[Any, Any]:
        r"""$G_i(\theta, (s, s'))$ for one $s$ and many $s'$, as coefficients `(S, k)` times directions `(k, d)`.

        Theory uses it for agents that observe transitions. Override it where these operators share few directions:
        TD's are all multiples of the features of $s$, which makes predictions cheaper by a factor of $d$.
        """
        values = jax.vmap(lambda next_state: self.operator(theta, Transition(state, next_state)))(next_states)
        return values, jnp.eye(values.shape[-1], dtype=values.dtype)

    def recorders(self) -> dict[str, Callable[[], Callable]]:
        """What `simulate(record=...)` can keep of these agents, stacked, besides what it can of all: by name, a maker.

        A recorder is a function of a `Snapshot`; one that needs arrays is an `equinox.Module`.
        """
        return {}


class AbstractControlledAgent(AbstractAgent):
    """An agent whose chain depends on the parameter: its source is an `AbstractControlled`.

    Algorithms treat it as any other agent: what they get from `observe` is what `react` saw.
    """

    @abc.abstractmethod
    def react(self, theta: Any, state: State, bits: Any, /) -> tuple[State, Observation]:
        """The chain's next state and the observation made on the way, under this parameter; `bits` are random."""


class AbstractPolicyAgent(AbstractControlledAgent):
    """An agent whose parameter is that of a policy; methods made for policies ask for more than its operator."""

    @property
    def learns_policy(self):
        return True

    @abc.abstractmethod
    def fisher_product(self, theta: Any, o: Observation, vector: Any, /) -> Any:
        r"""$\hat F v$ with $\hat F$ the mean of $\psi \psi^T$ over the actions taken, $\psi$ the score at `theta`."""

    @abc.abstractmethod
    def kl(self, old: Any, new: Any, o: Observation, /, of: Callable = identity) -> Any:
        r"""The mean of $KL(\pi_\text{old} \,\|\, \pi_\text{new})$ over the states that were visited.

        Or that of a function `of` it, such as its root.
        """

    @abc.abstractmethod
    def surrogate(self, theta: Any, old: Any, o: Observation, /, of: Callable = identity) -> Any:
        r"""The mean of $\pi_\theta / \pi_\text{old}$ times the advantage over the actions taken under `old`.

        Or with a function `of` that ratio, such as one that bounds it.
        """


class AbstractAgentWrapper(AbstractPolicyAgent):
    """An agent that is another one but for what it overrides: whatever it is asked, it asks the other.

    What only some agents can be asked raises as the other would.
    """

    agent: eqx.AbstractVar[Any]

    @property
    def judged_by(self):
        return self.agent.judged_by

    @property
    def learns_policy(self):
        return self.agent.learns_policy

    def operator(self, theta, o, /):
        return self.agent.operator(theta, o)

    def mean_operator(self, theta, /):
        return self.agent.mean_operator(theta)

    def observe(self, theta, o, /):
        return self.agent.observe(theta, o)

    def log_ratio(self, old, new, o, /):
        return self.agent.log_ratio(old, new, o)

    def weighted_operator(self, theta, o, weights, /):
        return self.agent.weighted_operator(theta, o, weights)

    def project(self, theta, /):
        return self.agent.project(theta)

    def react(self, theta, state, bits, /):
        return self.agent.react(theta, state, bits)

    def fisher_product(self, theta, o, vector, /):
        return self.agent.fisher_product(theta, o, vector)

    def kl(self, old, new, o, /, of=identity):
        return self.agent.kl(old, new, o, of)

    def surrogate(self, theta, old, o, /, of=identity):
        return self.agent.surrogate(theta, old, o, of)

    def visited(self, o, /):
        """Which coordinates an observation is about, of agents that tell."""
        return self.agent.visited(o)

    def lipschitz(self, o, /):
        return self.agent.lipschitz(o)

    def recorders(self):
        return self.agent.recorders()


class AffineAgent(AbstractAgent):
    r"""An agent without noise, $\bar G_i(\theta) = A_i \theta - b_i$ on flat vectors."""

    source: AbstractSource
    A: np.ndarray
    b: np.ndarray
    agent: AbstractAgent | None = None
    """The agent whose mean operator this is, for what can be recorded of it."""

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return self.mean_operator(theta)

    def mean_operator(self, theta, /):
        return tree.unravel_like(theta)(self.A @ tree.ravel(theta) - self.b)

    def recorders(self):
        return {} if self.agent is None else self.agent.recorders()


class MeanAgent(AbstractAgent):
    """Any agent without its noise: the operator is the mean operator."""

    source: AbstractSource
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
    """An agent whose parameter is any pytree, seen through flat vectors."""

    source: AbstractSource
    agent: Any
    unravel: Callable = eqx.field(static=True)

    def operator(self, theta, o, /):
        return tree.ravel(self.agent.operator(self.unravel(theta), o))

    def mean_operator(self, theta, /):
        return tree.ravel(self.agent.mean_operator(self.unravel(theta)))

    def observe(self, theta, o, /):
        return self.agent.observe(self.unravel(theta), o)

    def log_ratio(self, old, new, o, /):
        return self.agent.log_ratio(self.unravel(old), self.unravel(new), o)

    def weighted_operator(self, theta, o, weights, /):
        return tree.ravel(self.agent.weighted_operator(self.unravel(theta), o, weights))

    def project(self, theta, /):
        shaped = self.unravel(theta)
        projected = self.agent.project(shaped)
        return theta if projected is shaped else tree.ravel(projected)

    def react(self, theta, state, bits, /):
        return self.agent.react(self.unravel(theta), state, bits)

    def fisher_product(self, theta, o, vector, /):
        return tree.ravel(self.agent.fisher_product(self.unravel(theta), o, self.unravel(vector)))

    def kl(self, old, new, o, /, of=identity):
        return self.agent.kl(self.unravel(old), self.unravel(new), o, of)

    def surrogate(self, theta, old, o, /, of=identity):
        return self.agent.surrogate(self.unravel(theta), self.unravel(old), o, of)


class ConstrainedAgent(AbstractAgentWrapper):
    """An agent that stays in a ball around 0 or in a box: it goes to the nearest point there after each local step."""

    source: AbstractSource
    agent: Any
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
    - `like`: an example of the parameter, any pytree of arrays; its values are where the search for the root starts.
    - `theta_star`: the root, where it is known. By default it is solved for, and certified by its residual. None for a
      problem without a root, or with many: runs then report the norm of the operator instead of the error. Of live
      agents no root is known unless it is given: runs report returns where their streams measure them.
    - `start`: where runs start unless they are told otherwise, shaped like the parameter. Default: zeros.
    - `names`: what the numbers of the parameter are called, one name for each, in the order of the flat vector. Results
      and the files of a run use them.

    Raises if operators are not shaped like the parameter or if there is no unique root; warns if the average operator
    is not monotone at the root.

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
    """Where runs start unless they are told otherwise, as a flat vector."""
    names: tuple[str, ...] | None = eqx.field(static=True)
    """What the numbers of the parameter are called, or None."""

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
        """`theta_star`; raises if the problem has none."""
        if self.theta_star is None and self.streams is not None:
            raise ValueError(
                "The agents of this problem observe running environments, whose law is not known, so there is no root "
                "and nothing to predict. `simulate`, `compare` and `sweep` judge methods by their returns; or pass "
                "`theta_star` to `Problem` where you know it."
            )
        if self.theta_star is None:
            raise ValueError(
                "This problem has no root (`theta_star=None`), and what was asked for needs one. Pass `theta_star` to "
                "`Problem`, or leave it out to solve for it."
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
        """The agents with operators on flat vectors: what algorithms and engines use."""
        if jax.tree.structure(self.like) == jax.tree.structure(0) and np.ndim(self.like) == 1:
            return self.agents
        return FlatAgent(self.agents.source, self.agents, tree.unravel_like(self.like))

    def unravel(self, theta: np.ndarray) -> PyTree:
        """Flat parameters `(..., d)` in the shape of `like`; axes in front, of seeds or records, stay in front.

        !!! example
            >>> agents = AffineAgent(fedhsa.sources.Silent(), -np.eye(3)[None], np.zeros((1, 3)))
            >>> problem = Problem(agents, like={"slope": np.zeros(2), "level": 0.0})
            >>> {name: leaf.shape for name, leaf in problem.unravel(np.zeros((8, 3))).items()}     # of 8 seeds
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
        """The streams that live agents observe, one for each; None where agents have sources."""
        source = self.agents.source
        return source.chosen() if isinstance(source, LiveSource) else None

    @property
    def judged_by(self) -> str | None:
        """What runs are judged by where there is no root: a recorder of the agents, the returns of live agents, or the
        norm of the average operator; None where nothing can be measured."""
        if self.streams is not None:
            return self.streams[0].judged_by
        return self.agents.judged_by or ("operator_norm" if self.has_mean_operator else None)

    @property
    def has_mean_operator(self) -> bool:
        """Whether the mean operators are known exactly."""
        return _agents.mean_shapes(self.agents, self.like) is not None

    @property
    def affine(self) -> bool:
        """Whether every operator is affine in the parameter."""
        return type(self.agents).affine

    def affine_parts(self) -> tuple[np.ndarray, np.ndarray]:
        r"""$A_i$ `(M, d, d)` and $b_i$ `(M, d)` of the mean operators $\bar G_i(\theta) = A_i \theta - b_i$."""
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
        return found[0].copy(), found[1].copy()  # whoever asked may change them

    @property
    def local_roots(self) -> np.ndarray:
        r"""The agents' own roots $\theta_i^\star$, `(M, d)`; a row of NaN where an agent alone has no unique root."""
        if self.affine:
            return _roots.affine_roots(*self.affine_parts())
        return np.stack([_local_root(self, i) for i in range(self.num_agents)])

    def take(self, indices: Sequence[int], theta_star: Any = SOLVE) -> "Problem":
        """The problem of some of the agents, which has a root of its own unless `theta_star` gives another.

        Without a root, the part has none either.
        """
        some = tree.take(self.agents, np.asarray(indices))
        root = None if self.theta_star is None and theta_star is SOLVE else theta_star
        return Problem(some, self.like, root, self.start, self.names)

    def with_source(self, make: Callable[[AbstractSource], AbstractSource]) -> "Problem":
        """The same agents observing `make(source)` instead of `source`; the root stays what it was."""
        agents = eqx.tree_at(lambda agents: agents.source, self.agents, make(self.agents.source))
        return Problem(agents, self.like, self.theta_star, self.start, self.names)

    def iid(self) -> "Problem":
        """The same agents with independent observations from their stationary laws."""
        if type(self.agents.source).sample is AbstractSource.sample:
            raise ValueError(
                f"`iid`: {type(self.agents.source).__name__} cannot draw from its stationary law. A source of your own "
                "can, override `sample(key)`; what depends on the parameter or on the whole past has no such law."
            )
        return self.with_source(IID)

    def replay(self, observations: PyTree, wrap: bool = False) -> "Problem":
        """The same agents fed recorded observations: arrays `(M, time, ...)`.

        The root and the mean operators stay what they were, those of the law that the observations were drawn from.
        """
        return self.with_source(lambda source: Replay(observations, wrap, source))

    def within(self, *, radius: float | None = None, box: Any = None) -> "Problem":
        r"""The same agents, staying in a ball around 0 or in a box: each goes to its nearest point after a local step.

        `Projected` moves the server instead, after each round. The root stays what it was, inside or not.

        **Arguments:**

        - `radius`: that of the ball, in the Euclidean norm.
        - `box`: instead of it, `(low, high)`, numbers or one for each coordinate.

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
        r"""The same agents, each giving its mean operator $\bar G_i$.

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
    """The average of `function(agents, theta)` over the agents, without keeping what it is for each of them."""
    sums = [piece.sum(0) for piece in _pieces(function, agents, theta)]
    return np.sum(sums, axis=0) / tree.leading_axis(agents)


def _pieces(function: Callable, agents: AbstractAgent, theta: Any) -> Iterator[np.ndarray]:
    """`function(agents, theta)` of some agents after others: large problems go to the device piece by piece."""
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
        warnings.simplefilter("ignore")  # an agent alone may well not be monotone; only the average must be
        try:
            return Problem(tree.take(problem.agents, [agent]), problem.like).theta_star
        except ValueError:
            return np.full(problem.dim, np.nan)
