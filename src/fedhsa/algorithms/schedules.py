"""Step sizes that change from round to round or from block to block, and that of the paper's corollary."""

import abc
import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _check


class AbstractSchedule(eqx.Module):
    """The base class of schedules: a step size for each round.

    !!! example
        >>> class Halving(AbstractSchedule):
        ...     def __call__(self, round_index):
        ...         return 0.5**round_index
        >>> fedhsa.LocalSA(Halving(), local_steps=5).step_size(2)
        0.25
    """

    @abc.abstractmethod
    def __call__(self, round_index) -> Float[Array, "*coordinates"]:
        """Returns the step size of this round, from 0: one number, or one for each coordinate of the parameter."""

    def check(self, dim: int) -> None:
        """Raises `ValueError` if the schedule does not fit a parameter with `dim` numbers."""


class Polynomial(AbstractSchedule):
    r"""The step size $c / (t + t_0)^p$ in round $t$.

    **Arguments:**

    - `scale`: $c$, which must be positive.
    - `offset`: $t_0$, which must be positive.
    - `power`: $p$, at least 0; between 1/2 and 1 the iterates converge without averaging.

    Raises `ValueError` if an argument is out of range.

    !!! example
        >>> round(float(Polynomial(scale=2.0, offset=4.0)(6)), 4)
        0.2
    """

    scale: float
    offset: float = 1.0
    power: float = 1.0

    def __check_init__(self):
        _check.scalar("scale", self.scale, above=0.0)
        _check.scalar("offset", self.offset, above=0.0)
        _check.scalar("power", self.power, least=0.0)

    def __call__(self, round_index):
        t = jnp.asarray(round_index, dtype=jnp.result_type(self.scale))
        return self.scale / (t + self.offset) ** self.power


class Stages(AbstractSchedule):
    r"""A piecewise constant step size: $\eta_k$ from round $t_k$ on, where $t_0 = 0$.

    **Arguments:**

    - `step_sizes`: $\eta_0, \eta_1, \dots$, which must be positive.
    - `begins`: $t_1, t_2, \dots$, the first rounds of the second stage, the third and so on, in increasing order.

    Raises `ValueError` if a step size is not positive or `begins` does not match.

    !!! example
        >>> halved = Stages(step_sizes=(0.2, 0.1, 0.05), begins=(10, 30))
        >>> [round(float(halved(t)), 2) for t in (0, 9, 10, 29, 30, 1000)]
        [0.2, 0.2, 0.1, 0.1, 0.05, 0.05]
    """

    step_sizes: tuple[float, ...] = eqx.field(converter=tuple)
    begins: tuple[int, ...] = eqx.field(converter=tuple, static=True)

    def __check_init__(self):
        for step in self.step_sizes:
            _check.scalar("step_sizes", step, above=0.0)
        if len(self.begins) != len(self.step_sizes) - 1:
            raise ValueError(
                f"`begins` must have a round for each of the {len(self.step_sizes) - 1} stages after the first, got "
                f"{self.begins}."
            )
        for before, begin in zip((0, *self.begins), self.begins, strict=False):
            _check.count("begins", begin, least=before + 1)

    def __call__(self, round_index):
        stage = sum((jnp.asarray(round_index >= begin, dtype=jnp.int32) for begin in self.begins), jnp.int32(0))
        return jnp.stack([jnp.asarray(step) for step in self.step_sizes])[stage]


class PerBlock(AbstractSchedule):
    r"""A separate step size for each part of the parameter, a number or a schedule: two time scales, for instance.

    A block is a range of the parameter as a flat vector. If the parameter is a pytree, its leaves come one after
    the other, and `sizes` has their sizes: `[leaf.size for leaf in jax.tree.leaves(problem.like)]`. On the command line
    this is the default.

    **Arguments:**

    - `step_sizes`: $\eta$ for each block.
    - `sizes`: the number of coordinates in each block.

    Raises `ValueError` if the two differ in length, a step size is not valid, or `sizes` does not fit the problem.

    !!! example
        >>> slow_and_fast = PerBlock((Polynomial(0.25, power=0.6), 0.5), sizes=(2, 1))
        >>> slow_and_fast(0).tolist()
        [0.25, 0.25, 0.5]
    """

    step_sizes: tuple[Any, ...] = eqx.field(converter=tuple)
    sizes: tuple[int, ...] = eqx.field(converter=_check.counts, static=True)

    def __check_init__(self):
        if not isinstance(self.sizes, tuple) or len(self.sizes) != len(self.step_sizes):
            raise ValueError(
                f"`sizes` must have a number for each of the {len(self.step_sizes)} blocks, got {self.sizes}."
            )
        for size in self.sizes:
            _check.count("sizes", size)
        for step in self.step_sizes:
            if isinstance(step, PerBlock):
                raise ValueError("`step_sizes` must be numbers or schedules of one number, got a nested `PerBlock`.")
            check_step_size("step_sizes", step)

    def __call__(self, round_index):
        blocks = zip(self.step_sizes, self.sizes, strict=True)
        return jnp.concatenate([jnp.broadcast_to(step_at(step, round_index), size) for step, size in blocks])

    def check(self, dim):
        if sum(self.sizes) != dim:
            raise ValueError(
                f"`sizes` must add up to the number of parameters, {dim}, got {self.sizes}. Use the sizes of the "
                "parameter's leaves: `[leaf.size for leaf in jax.tree.leaves(problem.like)]`."
            )


def check_step_size(name: str, value: Any) -> None:
    """Raises `ValueError` if the step size is neither a positive number nor a schedule.

    **Arguments:**

    - `name`: the name of the argument, for the message.
    - `value`: the step size.

    !!! example
        >>> check_step_size("step_size", -0.1)
        Traceback (most recent call last):
        ValueError: `step_size` must be greater than 0.0, got -0.1. Use a positive number or a schedule.
    """
    if not isinstance(value, AbstractSchedule):
        _check.scalar(name, value, above=0.0, remedy="Use a positive number or a schedule.")


def step_at(step_size: float | AbstractSchedule, round_index):
    """Returns the step size of a round, whether it is a number or a schedule.

    **Arguments:**

    - `step_size`: a number or a schedule.
    - `round_index`: the number of the round, from 0.

    !!! example
        >>> step_at(0.1, 7), float(step_at(Polynomial(2.0), 7))
        (0.1, 0.25)
    """
    return step_size(round_index) if isinstance(step_size, AbstractSchedule) else step_size


def corollary_step(mu: float, num_agents: int, local_steps: int, rounds: int) -> float:
    r"""The step size of the paper's Corollary 1, $\eta = 4 \log(MHT) / (\mu H T)$.

    **Arguments:**

    - `mu`: $\mu$, the strong monotonicity of the average operator.
    - `num_agents`, `local_steps`, `rounds`: $M$, $H$, $T$.

    Raises `ValueError` if `mu` is not positive or a count is less than 1.

    !!! example
        >>> round(corollary_step(mu=0.5, num_agents=20, local_steps=10, rounds=1000), 5)
        0.00976
    """
    _check.scalar("mu", mu, above=0.0)
    M, H = _check.count("num_agents", num_agents), _check.count("local_steps", local_steps)
    T = _check.count("rounds", rounds)
    return 4 * math.log(M * H * T) / (mu * H * T)
