"""What a problem is: agents with unlike operators, and the root of the average of their means."""

import abc
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _check, tree
from .._types import Observation, State, precision
from ..sources import IID, AbstractControlled, AbstractSource, Replay, Silent, Transition

RESIDUAL_TOLERANCE = 1e-10
SINGULAR_TOLERANCE = 1e-12
NEWTON_STEPS = 50
DEVICE_BYTES = 2**28
"""How much of the agents is moved to the device at once to evaluate their mean operators."""


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

    other_norm: ClassVar[bool] = False
    """Whether the method is known to be stable in another norm than the Euclidean one of Assumption 2, like Q-learning
    in the largest coordinate: then a problem does not warn that the assumption fails."""

    @abc.abstractmethod
    def operator(self, theta: Any, o: Observation, /) -> Any:
        r"""The noisy operator $G_i(\theta, o)$, shaped like `theta`."""

    def mean_operator(self, theta: Any, /) -> Any:
        r"""The mean operator $\bar G_i(\theta)$. By default the source's exact expectation of the noisy one."""
        return self.source.expect(lambda o: self.operator(theta, o))

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
    """An agent whose chain goes where its parameter sends it: its source is an `AbstractControlled`.

    Algorithms meet it as any other agent, as long as they evaluate each observation once.
    """

    @abc.abstractmethod
    def react(self, theta: Any, state: State, words: Any, /) -> tuple[State, Observation]:
        """The chain's next state and the observation made on the way, under this parameter; `words` are random bits."""


class AffineAgent(AbstractAgent):
    r"""An agent without noise, $\bar G_i(\theta) = A_i \theta - b_i$."""

    source: AbstractSource
    A: np.ndarray
    b: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return self.A @ theta - self.b

    def mean_operator(self, theta, /):
        return self.A @ theta - self.b


class MeanAgent(AbstractAgent):
    """Any agent without its noise: the operator is the mean operator."""

    source: AbstractSource
    agent: AbstractAgent

    def operator(self, theta, o, /):
        return self.agent.mean_operator(theta)

    def mean_operator(self, theta, /):
        return self.agent.mean_operator(theta)

    def recorders(self):
        return self.agent.recorders()


class FlatAgent(AbstractControlledAgent):
    """An agent whose parameter is any pytree, seen through flat vectors."""

    source: AbstractSource
    agent: AbstractAgent
    unravel: Callable = eqx.field(static=True)

    def operator(self, theta, o, /):
        return tree.ravel_traced(self.agent.operator(self.unravel(theta), o))

    def react(self, theta, state, words, /):
        assert isinstance(self.agent, AbstractControlledAgent)
        return self.agent.react(self.unravel(theta), state, words)

    def mean_operator(self, theta, /):
        return tree.ravel_traced(self.agent.mean_operator(self.unravel(theta)))

    def lipschitz(self, o, /):
        return self.agent.lipschitz(o)

    def recorders(self):
        return self.agent.recorders()


class Problem(eqx.Module):
    r"""Agents $1, \dots, M$ and the root $\theta^\star$ of the average of their mean operators.

    **Arguments:**

    - `agents`: a list of agents of one class, or one agent whose arrays all carry a leading axis `M`.
    - `like`: an example of the parameter, any pytree of arrays; its values are where the search for the root starts.
    - `theta_star`: the root, where it is known. Otherwise it is solved for, and certified by its residual.

    Warns when the average operator is not monotone at the root; refuses one without a unique root.
    """

    agents: AbstractAgent
    theta_star: np.ndarray
    like: PyTree

    def __init__(self, agents: AbstractAgent | Sequence[AbstractAgent], like: Any = None, theta_star: Any = None):
        if like is None and theta_star is None:
            raise ValueError("Give `like`, an example of the parameter (`like=np.zeros(3)`), or `theta_star`.")
        self.agents = agents if isinstance(agents, AbstractAgent) else tree.stack(list(agents))
        self.like = jax.tree.map(lambda x: np.asarray(x, dtype=np.float64), theta_star if like is None else like)
        tree.leading_axis(self.agents)
        self.theta_star = _find_root(self) if theta_star is None else tree.ravel(theta_star)
        _check.array("theta_star", self.theta_star, (self.dim,))

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
        return FlatAgent(self.agents.source, self.agents, _Unravel(self.like))

    def unravel(self, theta: np.ndarray) -> PyTree:
        """A flat parameter in the shape of `like`."""
        return _Unravel(self.like)(np.asarray(theta))

    def mean_operators(self, theta: Any) -> np.ndarray:
        r"""$\bar G_i(\theta)$ for every agent, `(M, d)`; `theta` is a flat vector."""
        return _on_device(_mean_operators, self.flat_agents, theta)

    def mean_operator(self, theta: Any) -> np.ndarray:
        r"""$\bar G(\theta) = \frac1M \sum_i \bar G_i(\theta)$; zero at `theta_star`."""
        return self.mean_operators(theta).mean(0)

    def jacobians(self, theta: Any) -> np.ndarray:
        r"""$\partial \bar G_i / \partial \theta$ for every agent, `(M, d, d)`."""
        return _on_device(_jacobians, self.flat_agents, theta)

    @property
    def controlled(self) -> bool:
        """Whether the agents' chains depend on the parameter."""
        return isinstance(self.agents.source, AbstractControlled)

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
        origin = np.zeros(self.dim)
        return self.jacobians(origin), -self.mean_operators(origin)

    @property
    def local_roots(self) -> np.ndarray:
        r"""The agents' own roots $\theta_i^\star$, `(M, d)`; a row of NaN where an agent alone has no unique root."""
        if self.affine:
            return _affine_roots(*self.affine_parts())
        return np.stack([_local_root(self, i) for i in range(self.num_agents)])

    def take(self, indices: Sequence[int], theta_star: Any = None) -> "Problem":
        """The problem of some of the agents: its own root, unless `theta_star` says where to aim."""
        return Problem(tree.take(self.agents, np.asarray(indices)), like=self.like, theta_star=theta_star)

    def with_source(self, make: Callable[[AbstractSource], AbstractSource]) -> "Problem":
        """The same agents observing `make(source)` instead of `source`."""
        return eqx.tree_at(lambda p: p.agents.source, self, make(self.agents.source))

    def iid(self) -> "Problem":
        """The same agents with independent observations from their stationary laws."""
        if type(self.agents.source).sample is AbstractSource.sample:
            raise ValueError(
                f"`iid`: {type(self.agents.source).__name__} cannot draw from its stationary law. A source of your own "
                "can, override `sample(key)`; what depends on the parameter or on the whole past has none to draw from."
            )
        return self.with_source(IID)

    def replay(self, observations: PyTree, wrap: bool = False) -> "Problem":
        """The same agents fed recorded observations: arrays `(M, time, ...)`. The root stays what it was."""
        return self.with_source(lambda _: Replay(observations, wrap))

    def noiseless(self) -> "Problem":
        r"""The same agents, each giving its mean operator $\bar G_i$."""
        if self.affine:
            agents = AffineAgent(Silent(), *self.affine_parts())
            return Problem(agents, like=np.zeros(self.dim), theta_star=self.theta_star)
        return Problem(MeanAgent(Silent(), self.agents), like=self.like, theta_star=self.theta_star)


class _Unravel:
    """`tree.unravel_like`, equal to another one of the same shape so that compiled programs are found again."""

    def __init__(self, like: PyTree):
        self.shape = jax.tree.structure(like), tuple(np.shape(leaf) for leaf in jax.tree.leaves(like))
        self.unravel = tree.unravel_like(like)

    def __call__(self, theta):
        return self.unravel(theta)

    def __eq__(self, other):
        return isinstance(other, _Unravel) and self.shape == other.shape

    def __hash__(self):
        return hash(self.shape)


def _mean_operators(agents, theta):
    return jax.vmap(lambda agent: agent.mean_operator(theta))(agents)


def _jacobians(agents, theta):
    return jax.vmap(lambda agent: jax.jacfwd(agent.mean_operator)(theta))(agents)


def _on_device(function: Callable, agents: AbstractAgent, theta: Any) -> np.ndarray:
    """`function(agents, theta)`, an array with an entry per agent; very large problems go to the device by and by."""
    M = tree.leading_axis(agents)
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(agents))
    many = max(1, min(M, M * DEVICE_BYTES // max(size, 1)))
    compiled, values = eqx.filter_jit(function), []
    with precision():
        theta = tree.to_device(np.asarray(theta, dtype=np.float64), "float64")
        for start in range(0, M, many):
            some = tree.to_device(tree.take(agents, slice(start, start + many)), "float64")
            values.append(np.asarray(compiled(some, theta)))
    return np.concatenate(values)


def _affine_roots(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    regular = np.linalg.cond(A) < 1 / SINGULAR_TOLERANCE
    roots = np.full_like(b, np.nan)
    roots[regular] = np.linalg.solve(A[regular], b[regular][..., None])[..., 0]
    return roots


def _find_root(problem: Problem) -> np.ndarray:
    """The root of the average operator: one linear solve where it is affine, otherwise by Newton's method or beyond."""
    start = tree.ravel(problem.like)
    if problem.affine:
        A, b = problem.affine_parts()
        A_bar, b_bar = A.mean(0), b.mean(0)
        _check_jacobian(A_bar, type(problem.agents).other_norm)
        return np.linalg.solve(A_bar, b_bar)
    scale = 1 + np.abs(problem.mean_operators(start)).max()
    root = _newton(problem, start, RESIDUAL_TOLERANCE * scale)
    if root is None:
        root = _dogleg(problem, start)
    residual = np.abs(problem.mean_operator(root)).max()
    if not residual <= RESIDUAL_TOLERANCE * scale:
        raise ValueError(
            f"No root of the average operator was found from `like`: the residual is {residual:.3g}. "
            "Start closer with another `like`, or pass `theta_star`."
        )
    _check_jacobian(problem.jacobians(root).mean(0), type(problem.agents).other_norm)
    return root


def _newton(problem: Problem, theta: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Newton's method as long as it makes progress; None when it does not."""
    residual = problem.mean_operator(theta)
    for _ in range(NEWTON_STEPS):
        try:
            step = np.linalg.solve(problem.jacobians(theta).mean(0), residual)
        except np.linalg.LinAlgError:
            break
        following = problem.mean_operator(theta - step)
        if not np.abs(following).max() < np.abs(residual).max():
            break
        theta, residual = theta - step, following
    return theta if np.abs(residual).max() <= tolerance else None


def _dogleg(problem: Problem, start: np.ndarray) -> np.ndarray:
    """A slower search that goes further, by steps within a region in which it has learned to trust the operator."""
    import optimistix as optx  # here, since few problems need it and it takes long to load

    with precision():
        agents, theta = tree.to_device((problem.flat_agents, start), "float64")

        def average(theta, agents):
            return jax.vmap(lambda agent: agent.mean_operator(theta))(agents).mean(0)

        solver = optx.Dogleg(rtol=1e-12, atol=1e-12)
        return np.asarray(optx.root_find(average, solver, theta, agents, max_steps=1000, throw=False).value)


def _local_root(problem: Problem, agent: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an agent alone may well not be monotone; only the average must be
        try:
            return problem.take([agent]).theta_star
        except ValueError:
            return np.full(problem.dim, np.nan)


def _check_jacobian(J: np.ndarray, other_norm: bool) -> None:
    """Refuses an average operator without a unique root, and warns of one that is not monotone."""
    singular = np.linalg.svd(J, compute_uv=False)
    if not singular[-1] > SINGULAR_TOLERANCE * singular[0]:
        raise ValueError(
            "The average operator has no unique root: the smallest singular value of its Jacobian is "
            f"{singular[-1]:.3g}, the largest {singular[0]:.3g}. Remove redundant parameters, or regularise."
        )
    growth = np.linalg.eigvals(J).real.max()
    if growth >= 0:
        warnings.warn(
            f"The root is unstable: an eigenvalue of the average operator's Jacobian has real part {growth:.3g} >= 0, "
            "so theta + step_size * G moves away from it. Check the sign of the operator (for a loss, G = -gradient).",
            stacklevel=4,
        )
    elif not other_norm and (slope := np.linalg.eigvalsh((J + J.T) / 2)[-1]) >= 0:
        warnings.warn(
            f"The average operator is not monotone (largest eigenvalue of its symmetric part: {slope:.3g}), so "
            "Assumption 2 of the paper fails: small steps still converge, but its rates and bounds do not apply.",
            stacklevel=4,
        )
