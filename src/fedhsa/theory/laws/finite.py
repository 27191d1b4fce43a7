"""Agents on finite chains, laid open: the hidden kernel, and what is observed on each of its edges."""

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


class FiniteLaw(NamedTuple):
    """How an agent's observations come about: a chain, seen by states or by transitions, in order or independently."""

    chain: FiniteChain
    """The agents' chains: arrays carry a leading axis."""
    pairs: bool
    """Whether an observation is a transition $(s_t, s_{t+1})$; otherwise it is the state $s_t$."""
    independent: bool
    """Whether observations are independent draws from the stationary law."""

    @property
    def num_states(self) -> int:
        """$S$."""
        return self.chain.stationary.shape[-1]

    @property
    def num_outcomes(self) -> int:
        """How many different observations there are."""
        return self.num_states ** (2 if self.pairs else 1)

    def outcomes(self) -> Observation:
        """All observations: of transitions, `(s, s')` in the order of `s * S + s'`."""
        S = self.num_states
        return Transition(*jnp.divmod(jnp.arange(S * S), S)) if self.pairs else jnp.arange(S)

    def weights(self) -> np.ndarray:
        """The stationary probabilities of `outcomes`, `(M, outcomes)`."""
        pi = self.chain.stationary
        return (pi[..., None] * self.chain.transition).reshape(len(pi), -1) if self.pairs else pi


def check_exogenous(problem: Problem) -> None:
    """Raises if the chains depend on the parameter, since their law then changes with it."""
    if problem.controlled:
        raise TypeError(
            f"The chains of {type(problem.agents).__name__} depend on the parameter, and the noise with them; no law "
            "is known for that. Stability, rate and bias without noise: `problem.noiseless()`, `--noiseless`."
        )


def finite_law(source: AbstractSource) -> FiniteLaw | None:
    """The finite law behind a problem's `agents.source`, or None if the source is not a finite chain."""
    independent = isinstance(source, IID)
    inner = source.source if isinstance(source, IID) else source
    pairs = isinstance(inner, Transitions)
    chain = inner.chain if isinstance(inner, Transitions) else inner
    return FiniteLaw(chain, pairs, independent) if isinstance(chain, FiniteChain) else None


def additive_noise(problem: Problem) -> VAR1 | None:
    """The autoregressive source of additive noise, in order or drawn independently; None for any other noise."""
    source = problem.agents.source
    inner = source.source if isinstance(source, IID) else source
    return inner if isinstance(problem.agents, QuadraticAgent) and isinstance(inner, VAR1) else None


def chain_of(agent: AbstractAgent) -> FiniteChain:
    """The chain behind one agent's observations."""
    law = finite_law(agent.source)
    assert law is not None
    return law.chain


class AffineOperators(NamedTuple):
    r"""Every operator $G_i(\theta, o) = A_i(o) (\theta - \theta^\star) + g_i(o)$ of affine agents on finite chains."""

    A: np.ndarray
    """`(M, outcomes, d, d)`."""
    g: np.ndarray
    """`(M, outcomes, d)`."""


def affine_operators(problem: Problem, law: FiniteLaw) -> AffineOperators:
    """The operators of all outcomes at once, for small problems."""
    with precision():
        agents, root = tree.to_device((problem.flat_agents, problem.root), "float64")
        return AffineOperators(*tree.to_host(_affine_operators(agents, law.outcomes(), root)))


@eqx.filter_jit
def _affine_operators(agents, outcomes, root):
    def one(agent, o):
        return jax.jacfwd(lambda theta: agent.operator(theta, o))(root), agent.operator(root, o)

    return jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(agents, outcomes)
