"""Natural policy gradients: the server solves with the agents' Fisher matrices, or the agents use ADMM."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _check, tree
from .._linear import solve
from .._types import Theta
from ..problems import Problem
from .base import AbstractAlgorithm, Exchange
from .demands import Demand
from .local import AbstractMethod, Server, send_theta
from .schedules import step_at


def check_policy(algorithm: AbstractAlgorithm, problem: Problem) -> None:
    """Raises `TypeError` if the problem's parameter is not that of a policy."""
    if not problem.agents.learns_policy:
        raise TypeError(
            f"{type(algorithm).__name__} requires agents that learn a policy, got {type(problem.agents).__name__}. "
            "Use it on `problems.policy_gradient`, whose agents play episodes."
        )


class AbstractPolicyMethod(AbstractMethod):
    """A method in which each agent plays one batch of episodes per round."""

    @property
    def block_length(self):
        return 1

    def check(self, problem):
        check_policy(self, problem)


class FedNPG(AbstractPolicyMethod):
    r"""Natural policy gradients with the Fisher matrix of all agents.

    A reply has $d(d + 1)$ numbers. Every agent plays one batch of episodes under $\bar\theta$ and sends its gradient
    $g_i$ and its Fisher matrix $\hat F_i = \frac1n \sum_t \psi_t \psi_t^T$, the mean over the scores $\psi_t$ of the
    actions taken. The server moves by

    $$\bar\theta \leftarrow \bar\theta + \eta\, (\bar F + \delta I)^{-1} \bar g, \qquad
      \bar F = \tfrac1M \sum_i \hat F_i, \quad \bar g = \tfrac1M \sum_i g_i.$$

    The paper, whose text was not available for a check, compares `FedNPGADMM` with this method. The damping $\delta$ is
    added here, because $\bar F$ is singular for softmax policies and if there are fewer actions than parameters.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `damping`: $\delta$, which must be positive.

    Raises `ValueError` if an argument is not positive, and `TypeError` if the problem's agents do not learn a policy.

    !!! example
        >>> problem = fedhsa.problems.policy_gradient.random(3, num_states=3, num_actions=2, horizon=20)
        >>> fedhsa.cost(problem, FedNPG(0.1, damping=0.01)).floats_up == 6 * (6 + 1)
        True

    !!! cite "Lan, Wang, Anderson, Brinton, Aggarwal (2023), arXiv:2310.19807, FedNPG; Kakade (2001)"
    """

    damping: float = 1e-3

    demands = Demand.SERVER_LEARNS_FROM_THE_AVERAGE

    def __check_init__(self):
        _check.scalar("damping", self.damping, above=0.0)

    @property
    def exchanges(self):
        return (Exchange("gradient and matrix", send_theta, self._measure, self._solve, mean_suffices=True),)

    def _measure(self, theta, memory, agent, block, round):
        o = agent.observe(theta, tree.take(block, 0))
        return (agent.operator(theta, o), fisher_matrix(agent, theta, o)), memory

    def _solve(self, server, replies, round):
        g, F = replies.mean()
        direction = solve(F + self.damping * jnp.eye(len(g), dtype=g.dtype), g)
        return Server(server.theta + step_at(self.step_size, round.index) * direction)


class ADMMServer(NamedTuple):
    """The server's state: the parameter and the direction."""

    theta: Theta
    y: Theta


class ADMMMemory(NamedTuple):
    """The agent's direction, its multiplier, its gradient and, between exchanges, its Fisher matrix."""

    y: Theta
    multiplier: Theta
    g: Theta
    F: Float[Array, "d d"] | None


class FedNPGADMM(AbstractPolicyMethod):
    r"""Natural policy gradients whose direction the agents compute jointly by ADMM.

    A reply has $d$ numbers. The direction of `FedNPG` minimises
    $\sum_i \frac12 y_i^T (\hat F_i + \delta I) y_i - g_i^T y_i$ over equal $y_i = y$. An iteration of ADMM is an
    exchange:

    $$y_i = (\hat F_i + \delta I + \rho I)^{-1} (g_i - \lambda_i + \rho\, y), \qquad
      y \leftarrow \tfrac1M \sum_i \bigl(y_i + \lambda_i/\rho\bigr), \qquad
      \lambda_i \leftarrow \lambda_i + \rho\, (y_i - y)$$

    The agents solve by conjugate gradients on products with $\hat F_i$. After `inner` iterations
    $\bar\theta \leftarrow \bar\theta + \eta\, y$. The next round begins with the $y$ and $\lambda_i$ of the last one;
    with many inner iterations the direction converges to that of `FedNPG`.

    Only the abstract of the paper was available: ADMM replaces the exchange of matrices and sends $O(d)$ numbers in
    each iteration. The formulas are those of ADMM for this sum, derived here. It could not be checked whether the paper
    has one iteration per round (`inner=1`) and the warm start. With `inner` above 1 an agent stores $\hat F_i$ for a
    round.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `rho`: $\rho$, the penalty on differences between agents; about the size of the eigenvalues of $\hat F_i$.
    - `inner`: the number of ADMM iterations in each round.
    - `damping`: $\delta$, at least 0.
    - `solver_steps`: the steps of conjugate gradients; None for $d$, which is exact up to rounding.

    Raises `ValueError` if an argument is out of range, and `TypeError` if the problem's agents do not learn a policy.

    !!! example
        >>> problem = fedhsa.problems.policy_gradient.random(3, num_states=3, num_actions=2, horizon=20)
        >>> fedhsa.cost(problem, FedNPGADMM(0.1, rho=0.1, damping=0.01)).floats_up == 6
        True

    !!! cite "Lan, Wang, Anderson, Brinton, Aggarwal (2023), arXiv:2310.19807, FedNPG-ADMM"
    """

    rho: float
    inner: int = eqx.field(static=True, default=1)
    damping: float = 1e-3
    solver_steps: int | None = eqx.field(static=True, default=None)

    demands = Demand.SHIFTS_SUM_TO_ZERO

    def __check_init__(self):
        _check.scalar("rho", self.rho, above=0.0)
        _check.count("inner", self.inner)
        _check.scalar("damping", self.damping, least=0.0)
        if self.solver_steps is not None:
            _check.count("solver_steps", self.solver_steps)

    def init(self, theta):
        zero = jnp.zeros_like(theta)
        F = jnp.zeros((theta.size, theta.size), theta.dtype) if self.inner > 1 else None
        return ADMMServer(theta, zero), ADMMMemory(zero, zero, zero, F)

    @property
    def exchanges(self):
        parts = [(self._send_both, self._measure), *[(self._send_direction, self._iterate)] * (self.inner - 1)]
        return tuple(
            Exchange(f"direction {k}", send, local, self._average(moves=k == self.inner), mean_suffices=True)
            for k, (send, local) in enumerate(parts, start=1)
        )

    def _send_both(self, server, round):
        return server.theta, server.y

    def _send_direction(self, server, round):
        return server.y

    def _measure(self, message, memory, agent, block, round):
        theta, y = message
        o = agent.observe(theta, tree.take(block, 0))
        memory = memory._replace(g=agent.operator(theta, o))
        if self.inner > 1:
            memory = memory._replace(F=fisher_matrix(agent, theta, o))
            return self._iterate(y, memory, agent, block, round)
        return self._solve(y, memory, lambda v: agent.fisher_product(theta, o, v))

    def _iterate(self, y, memory, agent, block, round):
        return self._solve(y, memory, lambda v: memory.F @ v)

    def _solve(self, y, memory, product: Callable[[Theta], Theta]):
        # The multiplier needs the average of the last exchange, which arrives with this message.
        multiplier = memory.multiplier + self.rho * (memory.y - y)
        shift = self.damping + self.rho
        own = conjugate_gradients(
            lambda v: product(v) + shift * v, memory.g - multiplier + self.rho * y, self.solver_steps
        )
        return own + multiplier / self.rho, memory._replace(y=own, multiplier=multiplier)

    def _average(self, moves: bool):
        def average(server, replies, round):
            y = replies.mean()
            theta = server.theta + step_at(self.step_size, round.index) * y if moves else server.theta
            return ADMMServer(theta, y)

        return average


def fisher_matrix(agent: Any, theta: Theta, o: Any) -> Float[Array, "d d"]:
    r"""The Fisher matrix $\hat F$, column by column; it is symmetric."""
    return jax.vmap(lambda column: agent.fisher_product(theta, o, column))(jnp.eye(theta.size, dtype=theta.dtype))


def conjugate_gradients(product: Callable[[Theta], Theta], right: Theta, steps: int | None = None) -> Theta:
    """Solves a symmetric positive definite system, given by its products; exact after `steps = d`.

    !!! example
        >>> matrix = jnp.array([[2.0, 1.0], [1.0, 3.0]])
        >>> conjugate_gradients(lambda v: matrix @ v, jnp.array([3.0, 4.0])).round(5).tolist()
        [1.0, 1.0]
    """

    def step(carry, _):
        x, residual, direction, square = carry
        image = product(direction)
        curvature = direction @ image
        # If the residual is zero, the system is solved, and division must be avoided.
        length = jnp.where(square > 0, square / jnp.where(curvature > 0, curvature, 1), 0)
        x, residual = x + length * direction, residual - length * image
        following = residual @ residual
        turn = jnp.where(square > 0, following / jnp.where(square > 0, square, 1), 0)
        return (x, residual, residual + turn * direction, following), None

    start = (jnp.zeros_like(right), right, right, right @ right)
    return jax.lax.scan(step, start, length=right.size if steps is None else steps)[0][0]
