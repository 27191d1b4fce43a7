"""Wrappers for the server's update: weights, projection, momentum."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .. import _check
from .._types import Theta
from ..problems._regions import as_box, check_box_size, check_region, nearest
from .base import Replies, checked_init
from .demands import Effect
from .wrapper import AbstractWrapper, on_inner_server


class Weighted(AbstractWrapper):
    r"""Agents with unequal weights: every average over agents uses weights, which are normalised to add up to one.

    The method then converges to the root of $\sum_i w_i \bar G_i$, which is a different point unless all agents agree.
    The error is still relative to the problem's `theta_star`; to measure it relative to the weighted root, give that
    root to the problem: `problem.take(range(M), theta_star=...)`.

    Methods whose shifts must add to zero are supported: with $\bar\theta = \sum_i w_i \theta_i$ the weighted sum stays
    zero, and the weighted operator vanishes at the limit. Channels and other wrappers of the server go inside,
    `Weighted(Compressed(...), ...)`.

    **Arguments:**

    - `algorithm`: the method.
    - `weights`: one positive number per agent.

    Raises `ValueError` if a weight is not positive or their number differs from that of the problem's agents.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2).noiseless()
        >>> A, b = problem.affine_parts()
        >>> weights = np.array([0.5, 0.3, 0.2])
        >>> root = np.linalg.solve(np.tensordot(weights, A, 1), weights @ b)
        >>> result = fedhsa.simulate(problem, Weighted(fedhsa.FedHSA(0.02, local_steps=5), weights), rounds=500)
        >>> bool(np.allclose(result.theta[0], root))
        True

    !!! cite "McMahan et al. (2017): weights in proportion to the agents' data"
    """

    weights: np.ndarray = eqx.field(converter=lambda weights: _check.array("weights", weights, ("agents",)))

    effects = Effect.WEIGHS_AGENTS

    def __check_init__(self):
        _check.number("weights", self.weights, above=0.0, remedy="Use `problem.take(...)` to leave an agent out.")

    def _around(self, exchange, number):
        def aggregate(server, replies, round):
            if replies.pooled is not None:  # the mean has been taken with these weights
                return exchange.aggregate(server, replies, round)
            weights: Any = self.weights if replies.weights is None else self.weights * replies.weights
            return exchange.aggregate(server, Replies(replies.values, weights), round)

        return exchange._replace(aggregate=aggregate, mean_weights=self.weights)

    def check(self, problem):
        self.algorithm.check(problem)
        if len(self.weights) != problem.num_agents:
            raise ValueError(f"`weights` must have one entry per agent, {problem.num_agents}, got {len(self.weights)}.")


class Projected(AbstractWrapper):
    r"""At the end of each round the server projects its parameter onto a ball around 0 or onto a box.

    With `LocalSA` this is FedTD of Wang et al. If the root is outside the set, the limit is a different point.

    Methods whose shifts must add to zero are not supported: their agents add $\bar\theta - \theta_i$ to the shifts,
    whose sum is no longer zero if $\bar\theta$ is not the mean.

    **Arguments:**

    - `algorithm`: the method.
    - `radius`: the radius of the ball, in the Euclidean norm.
    - `box`: instead of `radius`, `(low, high)`, each a number or one for each coordinate.
    - `part`: the coordinates to project, `(begin, end)` without the end; the others do not change. Default: all.

    Raises `ValueError` unless exactly one of `radius` and `box` is given and both fit the problem, and `TypeError` if
    the method does not support it.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> result = fedhsa.simulate(problem, Projected(fedhsa.LocalSA(0.02, local_steps=5), radius=0.1), rounds=50)
        >>> bool(np.linalg.norm(result.theta) <= 0.1 + 1e-12)
        True

    !!! cite "Wang et al. (2023), arXiv:2302.02212"
    """

    radius: float | None = None
    box: np.ndarray | None = eqx.field(converter=as_box, default=None)
    part: tuple[int, int] | None = eqx.field(converter=_check.counts, default=None, static=True)

    effects = Effect.MOVES_THETA

    def __check_init__(self):
        check_region(self.radius, self.box)
        if self.part is not None and not (len(self.part) == 2 and 0 <= self.part[0] < self.part[1]):
            raise ValueError(f"`part` must be `(begin, end)` with 0 <= begin < end, got {self.part}.")

    def check(self, problem):
        self.algorithm.check(problem)
        begin, end = self.part or (0, problem.dim)
        if end > problem.dim:
            raise ValueError(f"`part` must end at most at the number of parameters, {problem.dim}, got {self.part}.")
        check_box_size(self.box, end - begin)

    @property
    def exchanges(self):
        *early, last = self.algorithm.exchanges

        def aggregate(server, replies, round):
            server = last.aggregate(server, replies, round)
            return self.algorithm.with_theta(server, self._project(server.theta))

        return *early, last._replace(aggregate=aggregate)

    def _project(self, theta: Theta) -> Theta:
        if self.part is None:
            return nearest(theta, self.radius, self.box)
        some = slice(*self.part)
        return theta.at[some].set(nearest(theta[some], self.radius, self.box))


class MomentumServer(NamedTuple):
    """The parameter at the end of the last round, the method's own state, and the velocity of the parameter."""

    theta: Theta
    inner: Any
    velocity: Theta


class ServerMomentum(AbstractWrapper):
    r"""Heavy-ball momentum on the server: a round adds a fraction of the last move to the method's own move.

    $$v_{t+1} = \beta v_t + (\theta^+_{t+1} - \theta_t), \qquad \theta_{t+1} = \theta_t + v_{t+1}$$

    Here $\theta^+_{t+1}$ is the parameter to which the method alone would move. In the long run every displacement
    counts $1 / (1 - \beta)$ times: compare with the method alone at a step size larger by this factor. The fixed point
    is that of the method, with its bias.

    Methods whose shifts must add to zero are not supported: the shifts would sum to $\beta$ times the total
    displacement.

    **Arguments:**

    - `algorithm`: the method.
    - `beta`: $\beta$, at least 0 and below 1.

    Raises `ValueError` if `beta` is out of range, and `TypeError` if the method does not support it.

    !!! example
        >>> ServerMomentum(fedhsa.FedHSA(0.005, local_steps=5), beta=0.75).block_length      # moves as FedHSA(0.02, 5)
        5

    !!! cite "After the server's rule of Hsu, Qi, Brown (2019), FedAvgM; Reddi et al. (2021)"
    """

    beta: float

    effects = Effect.MOVES_THETA

    def __check_init__(self):
        _check.scalar("beta", self.beta, least=0.0, below=1.0, remedy="At 1 the velocity would never decay.")

    def init(self, theta):
        inner, memory = checked_init(self.algorithm, theta)
        return MomentumServer(theta, inner, jnp.zeros_like(theta)), memory

    @property
    def exchanges(self):
        return on_inner_server(self.algorithm.exchanges, self._roll)

    def _roll(self, server, inner, round):
        velocity = self.beta * server.velocity + (inner.theta - server.theta)
        theta = server.theta + velocity
        return MomentumServer(theta, self.algorithm.with_theta(inner, theta), velocity)

    def with_theta(self, server, theta):
        return server._replace(theta=theta, inner=self.algorithm.with_theta(server.inner, theta))
