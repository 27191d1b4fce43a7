"""Step sizes that change from round to round, and the constant one of the paper's corollary."""

import abc
import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _check


class AbstractSchedule(eqx.Module):
    """A step size for each round."""

    @abc.abstractmethod
    def __call__(self, round_index) -> Float[Array, ""]:
        """The step size of this round, counted from 0."""


class Polynomial(AbstractSchedule):
    r"""The step size $c / (t + t_0)^p$ in round $t$.

    **Arguments:**

    - `scale`: $c$.
    - `offset`: $t_0$.
    - `power`: $p$; between 1/2 and 1 the iterates converge without averaging.

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
    r"""Constant steps one after the other: $\eta_k$ from round $t_k$ on, where $t_0 = 0$.

    **Arguments:**

    - `step_sizes`: $\eta_0, \eta_1, \dots$
    - `begins`: $t_1, t_2, \dots$, the rounds with which the second stage begins, the third and so on.

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
                f"`begins` must have a round for every stage but the first, {len(self.step_sizes) - 1} of them, got "
                f"{self.begins}."
            )
        for before, begin in zip((0, *self.begins), self.begins, strict=False):
            _check.count("begins", begin, least=before + 1)

    def __call__(self, round_index):
        stage = sum((jnp.asarray(round_index >= begin, dtype=jnp.int32) for begin in self.begins), jnp.int32(0))
        return jnp.stack([jnp.asarray(step) for step in self.step_sizes])[stage]


def step_at(step_size: float | AbstractSchedule, round_index):
    """The step size of a round, whether it is a number or a schedule."""
    return step_size(round_index) if isinstance(step_size, AbstractSchedule) else step_size


def corollary_step(mu: float, num_agents: int, local_steps: int, rounds: int) -> float:
    r"""The step of the paper's Corollary 1, $\eta = 4 \log(MHT) / (\mu H T)$.

    **Arguments:**

    - `mu`: $\mu$, the strong monotonicity of the average operator.
    - `num_agents`, `local_steps`, `rounds`: $M$, $H$, $T$.

    !!! example
        >>> round(corollary_step(mu=0.5, num_agents=20, local_steps=10, rounds=1000), 5)
        0.00976
    """
    _check.scalar("mu", mu, above=0.0)
    M, H = _check.count("num_agents", num_agents), _check.count("local_steps", local_steps)
    T = _check.count("rounds", rounds)
    return 4 * math.log(M * H * T) / (mu * H * T)
