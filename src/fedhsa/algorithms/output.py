"""Reported parameters other than the last iterate: averages over rounds, and extrapolation to step size zero."""

import abc
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _check
from .._types import Theta
from .base import AbstractAlgorithm, Coded, Exchange, PerAgent, checked_init
from .demands import Effect
from .schedules import AbstractSchedule
from .wrapper import AbstractWrapper, on_inner_server

Algorithm = TypeVar("Algorithm", bound=AbstractAlgorithm)


class Server(NamedTuple):
    """The reported parameter, and the state of the method inside."""

    theta: Theta
    inner: Any


class AbstractAverage(AbstractWrapper):
    """A running mean of the server's parameter: each round moves it a fraction of the way to the new parameter."""

    effects = Effect.REPORTS_ANOTHER_THETA

    def init(self, theta):
        inner, memory = checked_init(self.algorithm, theta)
        return Server(theta, inner), memory

    @property
    def exchanges(self):
        return on_inner_server(self.algorithm.exchanges, self._average)

    def _average(self, server, inner, round):
        part = self.part((round.index + 1).astype(inner.theta.dtype))
        return Server(server.theta + part * (inner.theta - server.theta), inner)

    @abc.abstractmethod
    def part(self, rounds: Any) -> Any:
        """The fraction of the way to the newest parameter, after this number of rounds."""


class Averaged(AbstractAverage):
    r"""Reports the mean of the parameters after rounds `burn_in` + 1, `burn_in` + 2, ... up to now (Polyak, Ruppert).

    Before that it reports the last parameter. At a constant step size the noise of the mean falls with the number of
    rounds, but its bias does not: `RichardsonRomberg` reduces the bias, and `RichardsonRomberg(Averaged(...))` both.

    **Arguments:**

    - `algorithm`: the method.
    - `burn_in`: the number of initial rounds that are left out of the mean.

    Raises `ValueError` if `burn_in` is negative.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> mean = Averaged(fedhsa.FedHSA(0.02, local_steps=5), burn_in=200)
        >>> last = {"last": lambda snapshot: snapshot.server.inner.theta}
        >>> result = fedhsa.simulate(problem, mean, rounds=2000, record=last)
        >>> bool(result.error[0, -1] < np.sum((result.records["last"][0, -1] - problem.theta_star) ** 2))
        True

    !!! cite "Polyak, Juditsky (1992); Ruppert (1988)"
    """

    burn_in: int = 0

    def __check_init__(self):
        _check.count("burn_in", self.burn_in, least=0)

    def part(self, rounds):
        counted = rounds - jnp.asarray(self.burn_in, rounds.dtype)
        return 1 / jnp.maximum(counted, 1)


class GeometricAverage(AbstractAverage):
    r"""Reports a weighted mean of the parameters of all rounds, in which late parameters count most.

    After $t$ rounds, the parameter of round $s$ has the weight $c^{-s}$, $s = 1, \dots, t$.
    FedSAM reports one parameter drawn with these probabilities; this is the mean of that draw, whose squared error is
    at most the mean squared error of the draw. About the last $1/(1-c)$ rounds count.

    **Arguments:**

    - `algorithm`: the method.
    - `decay`: $c$, between 0 and 1. (FedSAM's theorems use $1 - \alpha\varphi/2$ for a step size $\alpha$, one factor
      for each local step; its equation (5), which requires $c > 1$, would put the weight on the start.)

    Raises `ValueError` if `decay` is not between 0 and 1.

    !!! example
        >>> mean = GeometricAverage(fedhsa.FedHSA(0.02, local_steps=5), decay=0.5)
        >>> [round(float(mean.part(t)), 3) for t in (1.0, 2.0, 3.0)]          # weights 1; 1, 2; 1, 2, 4
        [1.0, 0.667, 0.571]

    !!! cite "Khodadadian et al. (2022), arXiv:2206.10185"
    """

    decay: float

    def __check_init__(self):
        _check.scalar("decay", self.decay, above=0.0, below=1.0, remedy="For equal weights use `Averaged`.")

    def part(self, rounds):
        # c^{-t} / (c^{-1} + ... + c^{-t})
        return (1 - self.decay) / -jnp.expm1(rounds * jnp.log(self.decay))


class ScaledSchedule(AbstractSchedule):
    """A schedule multiplied by a number."""

    schedule: AbstractSchedule
    factor: Any

    def __call__(self, round_index):
        return self.factor * self.schedule(round_index)

    def check(self, dim):
        self.schedule.check(dim)


def scaled(algorithm: Algorithm, factor: Any) -> Algorithm:
    """Returns the same method with its step size multiplied by `factor`, also inside wrappers.

    **Arguments:**

    - `algorithm`: the method, with its wrappers.
    - `factor`: a positive number.

    Raises `TypeError` if the method has no `step_size`.

    !!! example
        >>> scaled(fedhsa.LocalSA(0.1, local_steps=5), 2.0).step_size
        0.2
    """
    if isinstance(algorithm, AbstractWrapper):
        return eqx.tree_at(lambda a: a.algorithm, algorithm, scaled(algorithm.algorithm, factor))
    step_size = getattr(algorithm, "step_size", None)
    if step_size is None:
        raise TypeError(
            f"{type(algorithm).__name__} has no `step_size` to scale. Use a method with one, such as FedHSA."
        )
    is_schedule = isinstance(step_size, AbstractSchedule)
    changed = ScaledSchedule(step_size, factor) if is_schedule else step_size * factor
    return eqx.tree_at(lambda a: a.step_size, algorithm, changed)


class RichardsonRomberg(AbstractWrapper):
    r"""Runs the method at several step sizes on the same observations, and extrapolates to step size zero.

    $$\hat\theta = \sum_m h_m \theta^{(f_m \eta)}, \qquad h_m = \prod_{l \ne m} \frac{f_l}{f_l - f_m}.$$

    For the factors 1 and 2 this is $2\theta^{(\eta)} - \theta^{(2\eta)}$. A bias with an expansion in powers of the
    step size, like that of Local SA on heterogeneous agents or of Markov data, loses its leading term for each factor
    beyond the first. The copies also share the random choices of the method and of its wrappers.

    The noise of the last iterate is not removed, but it does not grow either, because the copies share it: to first
    order in the step size its variance is 2/3 of the plain one if the average operator's Jacobian is symmetric. It is
    larger only if the Jacobian rotates, with imaginary parts above 0.77 times the real ones.
    `RichardsonRomberg(Averaged(...))` leaves little bias and little noise. The largest step size must be stable.
    Messages and operator evaluations are needed for each copy, observations only once.

    **Arguments:**

    - `algorithm`: the method; its `step_size` is $\eta$ or a schedule.
    - `factors`: $f_m$, at least two positive numbers, all different.

    Raises `ValueError` if `factors` is not valid, and `TypeError` if the method has no `step_size`.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2).noiseless()
        >>> both = RichardsonRomberg(fedhsa.LocalSA(0.01, local_steps=5))
        >>> copies = {"copies": lambda snapshot: snapshot.server.inner.theta}
        >>> result = fedhsa.simulate(problem, both, rounds=500, record=copies)
        >>> apart = np.sum((result.records["copies"][0, -1] - problem.theta_star) ** 2, axis=1)
        >>> [f"{error:.0e}" for error in (*apart, result.error[0, -1])]
        ['3e-05', '1e-04', '1e-08']

    !!! cite "Huo, Chen, Xie (2023), arXiv:2210.00953: Richardson-Romberg on one Markovian trajectory"
    """

    factors: np.ndarray = eqx.field(
        converter=lambda factors: _check.array("factors", factors, ("copies",)), default=(1.0, 2.0)
    )

    effects = Effect.REPORTS_ANOTHER_THETA

    def __check_init__(self):
        _check.number("factors", self.factors, above=0.0)
        same = not _check.traced(self.factors) and len(np.unique(self.factors)) < len(self.factors)
        if len(self.factors) < 2 or same:
            raise ValueError(f"`factors` must be at least two different numbers, got {self.factors}.")
        if isinstance(self.algorithm, AbstractAlgorithm):  # anything else is refused elsewhere
            scaled(self.algorithm, 1.0)

    def init(self, theta):
        inner, memory = jax.vmap(lambda factor: scaled(self.algorithm, factor).init(theta))(self.factors)
        return Server(theta, inner), memory

    def _around(self, exchange, number):
        # States, messages and replies have a leading axis, one entry per copy.
        copies = len(self.factors)

        def of(factor) -> Exchange:
            return scaled(self.algorithm, factor).exchanges[number]

        def send(server, round):
            message = jax.vmap(lambda f, s: of(f).send(s, round))(self.factors, server.inner)
            return _together(message, copies)

        def local(message, memory, agent, block, round):
            message = _apart(message, copies)
            reply, memory = jax.vmap(lambda f, m, own: of(f).local(m, own, agent, block, round))(
                self.factors, message, memory
            )
            return _together(reply, copies), memory

        def aggregate(server, replies, round):
            inner = jax.vmap(
                lambda f, s, values: of(f).aggregate(s, replies._replace(values=values), round), in_axes=(0, 0, 1)
            )(self.factors, server.inner, _apart(replies.values, copies))
            return Server(jnp.tensordot(self.coefficients(), inner.theta, axes=1), inner)

        return exchange._replace(send=send, local=local, aggregate=aggregate)

    def coefficients(self):
        """The coefficients $h_m$."""
        f = jnp.asarray(self.factors)
        others = ~np.eye(len(self.factors), dtype=bool)
        ratios = f[None, :] / jnp.where(others, f[None, :] - f[:, None], 1)
        return jnp.prod(jnp.where(others, ratios, 1), axis=1)

    def average_cost(self, cost):
        cost = self.algorithm.average_cost(cost)
        return cost._replace(evaluations=len(self.factors) * cost.evaluations)


def _together(message: PyTree, copies: int) -> PyTree:
    """Joins the messages of all copies: the axis of agents comes before that of copies, and bits add up."""

    def join(part):
        if isinstance(part, PerAgent):
            return PerAgent(_together(jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), part.values), copies))
        return Coded(part.values, part.bits * copies) if isinstance(part, Coded) else part

    return jax.tree.map(join, message, is_leaf=lambda x: isinstance(x, PerAgent | Coded))


def _apart(message: PyTree, copies: int) -> PyTree:
    """Splits a joint message into one for each copy, with the bits of one."""
    return jax.tree.map(
        lambda part: Coded(part.values, part.bits / copies) if isinstance(part, Coded) else part,
        message,
        is_leaf=lambda x: isinstance(x, Coded),
    )
