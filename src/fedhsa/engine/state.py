"""`init` and `step` for one seed, with which JAX programs run, map and differentiate an algorithm."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import PyTree

from .. import tree
from .._random import as_key, fold_in
from .._types import SeedLike, Theta
from ..algorithms import AbstractAlgorithm, Round, adapt
from ..algorithms.play import one_seed, play, start
from ..problems import AbstractAgent, Problem
from .batch import Keys, keys_of_seed, positions


class State(NamedTuple):
    """The state of one seed between two rounds."""

    server: PyTree
    memory: PyTree
    """The memories of the agents, with a leading axis."""
    source: PyTree
    """The states of the agents' chains, with a leading axis."""
    keys: Keys
    round: Any
    """The number of completed rounds."""

    @property
    def theta(self) -> Theta:
        """The parameter as a flat vector; `problem.unravel` gives it its shape."""
        return self.server.theta


def init(
    problem: Problem, algorithm: AbstractAlgorithm, theta: Any = None, key: SeedLike = 0, *, seed: Any = 0
) -> State:
    r"""Returns the state before the first round, for one seed.

    Together with `step` this is `simulate` as two pure functions. They can be compiled, mapped over keys, seeds and
    settings, and differentiated if no chain depends on the parameter. They compute in JAX's current precision, which is
    float32 unless `jax_enable_x64` is set.

    **Arguments:**

    - `problem`, `algorithm`: as for `simulate`.
    - `theta`: the initial parameter, with the shape of the problem's parameter. Defaults to zeros.
    - `key`: an int or a JAX key. Only a JAX key can be mapped over.
    - `seed`: the index of the seed in `simulate`, an integer that can be mapped over. The same key and seed give the
      same observations.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3).noiseless()
        >>> import jax
        >>> @jax.jit
        ... def error(step_size):
        ...     algorithm = fedhsa.FedHSA(step_size, local_steps=5)
        ...     state = fedhsa.init(problem, algorithm)
        ...     state, _ = jax.lax.scan(lambda s, _: (fedhsa.step(problem, algorithm, s), None), state, length=20)
        ...     return jnp.sum((state.theta - problem.theta_star) ** 2)
        >>> errors = jax.vmap(error)(jnp.linspace(0.001, 0.02, 100))       # a hundred step sizes at once
        >>> bool(errors[-1] < errors[0]), bool(jax.grad(error)(0.001) < 0)
        (True, True)
    """
    adapted, agents = _on_device(problem, adapt(algorithm, problem))
    theta = jnp.asarray(problem.start if theta is None else tree.ravel_like("theta", theta, problem.like))
    keys = keys_of_seed(as_key(key), seed, problem.num_agents)
    source = tree.over_agents(lambda agent, key: agent.source.init(fold_in(key, 0)))(agents, keys.source)
    server, memory = start(adapted, theta.astype(_float()), problem.num_agents)
    return State(server, memory, source, keys, jnp.zeros((), int))


def step(problem: Problem, algorithm: AbstractAlgorithm, state: State) -> State:
    """Returns the state after one more round, for one seed.

    **Arguments:**

    - `problem`, `algorithm`: the arguments of `init`. Numbers among their settings may change from step to step.
    - `state`: the state that `init` or the last `step` returned.

    Recorded observations (`problem.replay`) start over at their end, where `simulate` raises.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=5, dim=2)
        >>> algorithm = fedhsa.FedHSA(0.1, local_steps=5)
        >>> state = fedhsa.step(problem, algorithm, fedhsa.init(problem, algorithm, key=1))
        >>> int(state.round), state.theta.shape
        (1, (2,))
    """
    adapted, agents = _on_device(problem, adapt(algorithm, problem, check=False))
    keys, at = state.keys, positions(state.round, adapted.block_length)

    def draw(agent, key, state):
        return agent.source.draw(fold_in(key, at), state)

    source, block = tree.over_agents(draw)(agents, keys.source, state.source)
    shared = Round(state.round, fold_in(keys.server, state.round), num_agents=problem.num_agents)
    driver = one_seed(agents, block, shared, fold_in(keys.agent, state.round))
    server, memory = play(adapted, driver, state.server, state.memory)
    return State(server, memory, source, keys, state.round + 1)


def _float() -> str:
    return jnp.zeros(()).dtype.name


def _on_device(problem: Problem, algorithm: AbstractAlgorithm) -> tuple[AbstractAlgorithm, AbstractAgent]:
    return tree.to_device(algorithm, _float()), tree.agents_to_device(problem.flat_agents, _float())
