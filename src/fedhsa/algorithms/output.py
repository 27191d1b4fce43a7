"""What to report instead of the last iterate: averages over rounds, and extrapolation to step size zero."""

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
    """The parameter that is reported, and the state of the method inside."""

    theta: Theta
    inner: Any


class AbstractAverage(AbstractWrapper):
    """A running mean of the server's parameter: each round moves it part of the way to the new one."""

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
        """The part of the way to the newest parameter, after so many rounds."""


class Averaged(AbstractAverage):
    r"""Reports the mean of the parameters after rounds `burn_in` + 1, `burn_in` + 2, ... up to now (Polyak, Ruppert).

    Before that, the last one. The mean's noise falls with the number of rounds at any constant step, its bias does
    not: that is what `RichardsonRomberg` is for, and `RichardsonRomberg(Averaged(...))` for both.

    **Arguments:**

    - `algorithm`: the method.
    - `burn_in`: how many rounds do not count.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> mean = Averaged(fedhsa.FedHSA(0.02, local_steps=5), burn_in=200)
        >>> last = {"last": lambda snapshot: snapshot.server.inner.theta}
        >>> result = fedhsa.simulate(problem, mean, rounds=2000, record=last)
        >>> bool(result.error[0, -1] < np.sum((result.records["last"][0, -1] - problem.theta_star) ** 2))
        True

    !!! cite "Polyak, Juditsky (1992); Ruppert (1988)"
    """

    algorithm: AbstractAlgorithm
    burn_in: int = 0

    def __check_init__(self):
        _check.count("burn_in", self.burn_in, least=0)

    def part(self, rounds):
        counted = rounds - jnp.asarray(self.burn_in, rounds.dtype)
        return 1 / jnp.maximum(counted, 1)


class GeometricAverage(AbstractAverage):
    r"""Reports the mean over rounds $1, \dots, t$ with weights $c^{-s}$: late parameters count most.

    FedSAM reports one parameter drawn with these probabilities; this is its mean, whose squared error is at most the
    mean one of the draw. It forgets at the rate $c$: about the last $1/(1-c)$ rounds count.

    **Arguments:**

    - `algorithm`: the method.
    - `decay`: $c$, between 0 and 1. (FedSAM's theorems take $1 - \alpha\varphi/2$ for a step $\alpha$, one factor for
      each local step; its equation (5), which asks for $c > 1$, would weight the start.)

    !!! example
        >>> mean = GeometricAverage(fedhsa.FedHSA(0.02, local_steps=5), decay=0.5)
        >>> [round(float(mean.part(t)), 3) for t in (1.0, 2.0, 3.0)]          # weights 1; 1, 2; 1, 2, 4
        [1.0, 0.667, 0.571]

    !!! cite "Khodadadian et al. (2022), arXiv:2206.10185"
    """

    algorithm: AbstractAlgorithm
    decay: float

    def __check_init__(self):
        _check.scalar("decay", self.decay, above=0.0, below=1.0, remedy="For equal weights use `Averaged`.")

    def part(self, rounds):
        # c^{-t} / (c^{-1} + ... + c^{-t})
        return (1 - self.decay) / -jnp.expm1(rounds * jnp.log(self.decay))


class ScaledSchedule(AbstractSchedule):
    """A schedule times a number."""

    schedule: AbstractSchedule
    factor: Any

    def __call__(self, round_index):
        return self.factor * self.schedule(round_index)

    def check(self, dim):
        self.schedule.check(dim)


def scaled(algorithm: Algorithm, factor: Any) -> Algorithm:
    """The same method with its step size times `factor`, inside wrappers too.

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

    $$\hat\theta = \sum_m h_m \theta^{(f_m \eta)}, \qquad h_m = \prod_{l \ne m} \frac{f_l}{f_l - f_m};$$

    for factors 1 and 2, $2\theta^{(\eta)} - \theta^{(2\eta)}$. A bias with an expansion in powers of the step, like
    that of Local SA on heterogeneous agents or of Markov data, loses its first term for each factor beyond the first.
    The copies also share the coins of the method and the erasures, quantisers and so on of its wrappers.

    The noise of the last iterate is not removed, but since the copies share it, it does not grow either: to first order
    in the step its variance is 2/3 of the plain one where the average operator's Jacobian is symmetric (and larger than
    it only where that rotates, by imaginary parts above 0.77 times the real ones). `RichardsonRomberg(Averaged(...))`
    leaves little of bias and noise. The largest step must be stable. Messages and operator evaluations are paid for
    each copy, observations once.

    **Arguments:**

    - `algorithm`: the method; its `step_size` is $\eta$ or a schedule.
    - `factors`: $f_m$, positive and all different.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2).noiseless()
        >>> both = RichardsonRomberg(fedhsa.LocalSA(0.01, local_steps=5))
        >>> copies = {"copies": lambda snapshot: snapshot.server.inner.theta}
        >>> result = fedhsa.simulate(problem, both, rounds=500, record=copies)
        >>> apart = np.sum((result.records["copies"][0, -1] - problem.theta_star) ** 2, axis=1)
        >>> [f"{error:.0e}" for error in (*apart, result.error[0, -1])]
        ['1e-05', '4e-05', '1e-09']

    !!! cite "Huo, Chen, Xie (2023), arXiv:2210.00953: Richardson-Romberg on one Markovian trajectory"
    """

    algorithm: AbstractAlgorithm
    factors: np.ndarray = eqx.field(
        converter=lambda factors: _check.array("factors", factors, ("copies",)), default=(1.0, 2.0)
    )

    effects = Effect.REPORTS_ANOTHER_THETA

    def __check_init__(self):
        _check.number("factors", self.factors, above=0.0)
        same = not _check.traced(self.factors) and len(np.unique(self.factors)) < len(self.factors)
        if len(self.factors) < 2 or same:
            raise ValueError(f"`factors` must be at least two different numbers, got {self.factors}.")
        if isinstance(self.algorithm, AbstractAlgorithm):  # which is checked elsewhere
            scaled(self.algorithm, 1.0)

    def init(self, theta):
        inner, memory = jax.vmap(lambda factor: scaled(self.algorithm, factor).init(theta))(self.factors)
        return Server(theta, inner), memory

    @property
    def exchanges(self):
        return tuple(self._of_copies(k) for k in range(len(self.algorithm.exchanges)))

    def _of_copies(self, number: int) -> Exchange:
        """An exchange of all copies at once: states, messages and replies have a leading axis, one entry per copy."""
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

        return self.algorithm.exchanges[number]._replace(send=send, local=local, aggregate=aggregate)

    def coefficients(self):
        """$h_m$."""
        f = jnp.asarray(self.factors)
        others = ~np.eye(len(self.factors), dtype=bool)
        ratios = f[None, :] / jnp.where(others, f[None, :] - f[:, None], 1)
        return jnp.prod(jnp.where(others, ratios, 1), axis=1)

    def average_cost(self, cost):
        cost = self.algorithm.average_cost(cost)
        return cost._replace(evaluations=len(self.factors) * cost.evaluations)


def _together(message: PyTree, copies: int) -> PyTree:
    """The messages of all copies as one: the axis of agents comes before that of copies, and bits add up."""

    def join(part):
        if isinstance(part, PerAgent):
            return PerAgent(_together(jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), part.values), copies))
        return Coded(part.values, part.bits * copies) if isinstance(part, Coded) else part

    return jax.tree.map(join, message, is_leaf=lambda x: isinstance(x, PerAgent | Coded))


def _apart(message: PyTree, copies: int) -> PyTree:
    """A joint message as each copy knows it, with the bits of one."""
    return jax.tree.map(
        lambda part: Coded(part.values, part.bits / copies) if isinstance(part, Coded) else part,
        message,
        is_leaf=lambda x: isinstance(x, Coded),
    )
