"""Round maps: what one round does to the error of an affine problem, read off the algorithm's own exchanges."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check, tree
from .._types import precision
from ..algorithms import AbstractAlgorithm, AbstractSchedule, Replies, Round
from ..problems import Problem
from ..problems.quadratic import QuadraticAgent


class RoundMap(NamedTuple):
    r"""One round as an affine map of the error, $e' = \Phi e + c + \sum_{i,l} K_{il} z_{il}$.

    `noise` is $K$ for additive noise, `(M, H, d, d)`, and None for agents without observations.
    """

    transition: np.ndarray
    offset: np.ndarray
    noise: np.ndarray | None


def round_map(problem: Problem, algorithm: AbstractAlgorithm) -> RoundMap:
    r"""The map of the server's parameter over one round of `algorithm`, exactly.

    The exchanges are differentiated, not re-derived, so the map is that of the code that runs. For FedHSA
    $\Phi = I + \alpha_g (\frac1M \sum_i [F_i^H + \eta S_i (\bar A - A_i)] - I)$ and $c = 0$; for Local SA
    $\Phi = I + \alpha_g (\frac1M \sum_i F_i^H - I)$ and $c = \alpha_g \eta \frac1M \sum_i S_i \bar G_i(\theta^\star)$,
    with $F_i = I + \eta A_i$ and $S_i = \sum_{k<H} F_i^k$.
    """
    check_reach(problem, algorithm)
    algorithm.check(problem)
    additive = isinstance(problem.agents, QuadraticAgent)
    problem = problem if additive else problem.noiseless()
    with precision():
        agents, device_algorithm, root = tree.to_device((problem.agents, algorithm, problem.theta_star), "float64")
        quiet = jnp.zeros((problem.num_agents, algorithm.block_length, problem.dim)) if additive else ()
        transition, offset, noise, memoryless = tree.to_host(_derivatives(agents, device_algorithm, root, quiet))
    if not memoryless:
        raise TypeError(
            f"{type(algorithm).__name__} carries more than theta from round to round; its exact law needs the joint "
            "map of theta and that state, which is not available."
        )
    return RoundMap(transition, offset, noise)


@eqx.filter_jit
def _derivatives(agents, algorithm, theta, block):
    """The round's Jacobians and offset, and whether it depends on nothing but theta."""

    def play(theta, block, leftover=0.0):
        """One round of one seed, from the exchanges; `leftover` is what state other than theta starts with."""
        shared = Round(jnp.zeros((), int), jax.random.key(0), jax.random.key(0))
        server, memory = jax.tree.map(lambda x: jnp.full_like(x, leftover), algorithm.init(theta))
        server = server._replace(theta=theta)
        memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (tree.leading_axis(agents), *x.shape)), memory)
        for exchange in algorithm.exchanges:
            message = exchange.send(server, shared)

            def local(memory, agent, block, exchange=exchange, message=message):
                return exchange.local(message, memory, agent, block, shared)

            replies, memory = jax.vmap(local)(memory, agents, block)
            server = exchange.aggregate(server, Replies(replies), shared)
        return server.theta

    additive = isinstance(block, jax.Array)
    noise = jnp.moveaxis(jax.jacrev(play, argnums=1)(theta, block), 0, 2) if additive else None
    after, other = play(theta, block), play(theta, block, leftover=1.0)
    return jax.jacfwd(play)(theta, block), after - theta, noise, jnp.array_equal(after, other)


def spectral_radius(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """The factor by which the error shrinks per round in the long run; above 1 the method diverges.

    !!! example
        >>> A = -np.array([0.1, 1.0]).reshape(2, 1, 1)      # two agents, G_i = a_i theta with a = (-0.1, -1)
        >>> problem = fedhsa.problems.quadratic.from_arrays(-A, b=np.zeros((2, 1)))
        >>> [round(spectral_radius(problem, fedhsa.FedHSA(0.5, local_steps=H)), 2) for H in (5, 10, 20)]
        [0.11, 0.38, 1.04]
    """
    return radius(round_map(problem, algorithm).transition)


def limit(problem: Problem, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""Where the method goes without noise: $\theta^\star + (I - \Phi)^{-1} c$."""
    return problem.theta_star + limit_error(round_map(problem, algorithm), algorithm)


def noiseless_error(problem: Problem, algorithm: AbstractAlgorithm, *, rounds: int, theta: Any = None) -> np.ndarray:
    r"""$|\bar\theta^{(t)} - \theta^\star|^2$ without noise for $t = 0, \dots$, `rounds`.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> law = noiseless_error(problem, fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> run = fedhsa.simulate(problem.noiseless(), fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> bool(np.allclose(run.error[0], law, rtol=1e-12))
        True
    """
    map, errors = round_map(problem, algorithm), [start_error(problem, theta)]
    for _ in range(_check.count("rounds", rounds)):
        errors.append(map.transition @ errors[-1] + map.offset)
    return (np.stack(errors) ** 2).sum(-1)


def radius(matrix: np.ndarray) -> float:
    """The largest modulus of an eigenvalue; infinite where entries overflowed."""
    if not np.isfinite(matrix).all():
        return float("inf")
    return float(abs(np.linalg.eigvals(matrix)).max())


def limit_error(map: RoundMap, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""$(I - \Phi)^{-1} c$, refused where the method diverges."""
    check_stable(map.transition, algorithm)
    return np.linalg.solve(np.eye(len(map.offset)) - map.transition, map.offset)


def check_stable(Phi: np.ndarray, algorithm: AbstractAlgorithm) -> None:
    """Refuses a round map that does not contract."""
    if (growth := radius(Phi)) >= 1:
        raise ValueError(
            f"{type(algorithm).__name__} diverges on this problem (spectral radius {growth:.4g}), so it has no limit. "
            "Use a smaller step or fewer local steps."
        )


def start_error(problem: Problem, theta: Any) -> np.ndarray:
    """The error a run from `theta` starts with."""
    theta = np.zeros(problem.dim) if theta is None else tree.ravel(theta)
    return _check.array("theta", theta, (problem.dim,)) - problem.theta_star


def check_reach(problem: Problem, algorithm: AbstractAlgorithm) -> None:
    """Refuses what has no round map: operators that are not affine, and steps that change."""
    if not problem.affine:
        raise TypeError(
            f"Exact laws need operators that are affine in the parameter; {type(problem.agents).__name__} is not "
            "marked so. Set `affine = True` on the agent class if it is."
        )
    check_schedule(algorithm)


def check_schedule(algorithm: AbstractAlgorithm) -> None:
    """Refuses steps that change."""
    if any(isinstance(v, AbstractSchedule) for v in vars(algorithm).values()):
        raise TypeError("Exact laws need a constant step size, got a schedule. Predict its first and its last step.")
