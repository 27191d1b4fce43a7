"""Agents on finite chains as arrays: the hidden kernel, and the operators on each of its edges."""

from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import tree
from ..._types import Observation, precision
from ...problems import AbstractAgent, Problem
from ...problems.quadratic import QuadraticAgent
from ...sources import IID, VAR1, AbstractSource, FiniteChain, Transition, Transitions

FIRST, SEED = 2, 0
"""The number of random combinations of operators with which the search for their directions begins, and its seed."""
RANK = 1e-10
"""The relative size below which a direction of operators is rounding."""


class FiniteLaw(NamedTuple):
    """The observations of agents on finite chains: states or transitions, in sequence or independent."""

    chain: FiniteChain
    """The agents' chains; arrays have a leading axis of agents."""
    pairs: bool
    """Whether an observation is a transition $(s_t, s_{t+1})$; otherwise it is the state $s_t$."""
    independent: bool
    """Whether observations are independent samples of the stationary distribution."""

    @property
    def num_states(self) -> int:
        """$S$."""
        return self.chain.stationary.shape[-1]

    @property
    def num_outcomes(self) -> int:
        """The number of different observations."""
        return self.num_states ** (2 if self.pairs else 1)

    def outcomes(self) -> Observation:
        """Returns all observations; transitions `(s, s')` are in the order of `s * S + s'`."""
        S = self.num_states
        return Transition(*jnp.divmod(jnp.arange(S * S), S)) if self.pairs else jnp.arange(S)

    def weights(self) -> np.ndarray:
        """Returns the stationary probabilities of `outcomes`, `(M, outcomes)`."""
        pi = self.chain.stationary
        return (pi[..., None] * self.chain.transition).reshape(len(pi), -1) if self.pairs else pi


def kinds_of(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Returns a number for each agent, the same for agents whose arrays are equal; axis 0 is agents."""
    rows = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1) + 0.0  # there is only one zero
    seen: dict[bytes, int] = {}  # much faster than sorting the rows
    return np.array([seen.setdefault(row.tobytes(), len(seen)) for row in rows])


def check_exogenous(problem: Problem) -> None:
    """Raises if the chains depend on the parameter, since their distribution then changes with it."""
    if problem.controlled:
        raise TypeError(
            f"The chains of {type(problem.agents).__name__}, and so their noise, depend on the parameter; no law is "
            "known for this case. Use `problem.noiseless()` or `--noiseless` for stability, rate and noiseless bias."
        )


def finite_law(source: AbstractSource) -> FiniteLaw | None:
    """Returns the finite law of a problem's `agents.source`, or None if the source is not a finite chain."""
    independent = isinstance(source, IID)
    inner = source.source if isinstance(source, IID) else source
    pairs = isinstance(inner, Transitions)
    chain = inner.chain if isinstance(inner, Transitions) else inner
    return FiniteLaw(chain, pairs, independent) if isinstance(chain, FiniteChain) else None


def additive_noise(problem: Problem) -> VAR1 | None:
    """Returns the autoregressive source of additive noise, sequential or independent; None for any other noise."""
    source = problem.agents.source
    inner = source.source if isinstance(source, IID) else source
    return inner if isinstance(problem.agents, QuadraticAgent) and isinstance(inner, VAR1) else None


class AddedNoise(NamedTuple):
    r"""Noise $z$ that is added to operators, with $z' = Q z + \epsilon$ at the next observation; axis 0 is agents."""

    Q: np.ndarray
    """`(M, d, d)`."""
    fresh: np.ndarray
    r"""The covariance of $\epsilon$."""
    stationary: np.ndarray
    """The covariance of $z$ in the long run."""
    start: np.ndarray
    """The covariance of $z$ at the start of a run."""


def added_noise(source: AbstractSource) -> AddedNoise:
    """Returns the noise of an autoregressive source, sequential or independent."""
    inner = source.source if isinstance(source, IID) else source
    assert isinstance(inner, VAR1)
    Q, covariance = inner.transition, inner.covariance
    if isinstance(source, IID):
        return AddedNoise(np.zeros_like(Q), covariance, covariance, covariance)
    fresh = inner.noise_std[:, None, None] ** 2 * np.eye(Q.shape[-1])
    return AddedNoise(Q, fresh, covariance, covariance if inner.start == "stationary" else np.zeros_like(covariance))


def chain_of(agent: AbstractAgent) -> FiniteChain:
    """Returns the chain behind one agent's observations."""
    law = finite_law(agent.source)
    assert law is not None
    return law.chain


class AffineOperators(NamedTuple):
    r"""All operators $G_i(\theta, o) = A_i(o) (\theta - \theta^\star) + g_i(o)$ of affine agents on finite chains."""

    A: np.ndarray
    """`(M, outcomes, d, d)`."""
    g: np.ndarray
    """`(M, outcomes, d)`."""


def affine_operators(problem: Problem, law: FiniteLaw) -> AffineOperators:
    """Returns the operators of all outcomes, for small problems."""
    with precision():
        agents, root = tree.to_device((problem.flat_agents, problem.root), "float64")
        return AffineOperators(*tree.to_host(_affine_operators(agents, law.outcomes(), root)))


@eqx.filter_jit
def _affine_operators(agents, outcomes, root):
    def one(agent, o):
        return jax.jacfwd(lambda theta: agent.operator(theta, o))(root), agent.operator(root, o)

    return jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(agents, outcomes)


def directions(problem: Problem, law: FiniteLaw) -> np.ndarray:
    """Returns orthonormal directions that span an agent's operators on all transitions from each state, `(M, S, K, d)`.

    Those of TD are multiples of the features of the state, for example, and a law takes a time that grows with $K$. The
    directions are found from random combinations of the operators, of which there must be more than directions.
    """
    d, S, rng, number = problem.dim, law.num_states, np.random.default_rng(SEED), FIRST
    with precision():
        agents, root = tree.to_device((problem.flat_agents, problem.root), "float64")
        while True:
            drawn = rng.standard_normal((number, S)), rng.standard_normal((number, S, d))
            found = tree.to_host(_combined(agents, root, *drawn))
            _, sizes, vectors = np.linalg.svd(found, full_matrices=False)
            rank = max(1, int((sizes > RANK * sizes[..., :1]).sum(-1).max()))
            if rank < number:
                return vectors[..., :rank, :]
            number = min(2 * number, d + 1)


@eqx.filter_jit
def _combined(agents, root, weights, shifts):
    states = jnp.arange(weights.shape[1])

    def one(agent, s, weights, shifts):
        values = jax.vmap(lambda t, shift: agent.operator(root + shift, Transition(s, t)))(states, shifts)
        return weights @ values

    over = jax.vmap(jax.vmap(one, in_axes=(None, None, 0, 0)), in_axes=(None, 0, None, None))
    return jax.lax.map(lambda agent: over(agent, states, weights, shifts), agents)
