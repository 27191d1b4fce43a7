"""Rounds without noise that are run: methods whose rounds are not affine, or depend on their number."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import tree
from ..._random import fold_in
from ..._types import precision
from ...algorithms import AbstractAlgorithm, Round
from ...algorithms.play import one_seed, play, start
from ...problems import Problem
from .moments import AbstractLaw, LongRun, Moments

SETTLING = 4000
"""The number of rounds that are run; the second half counts as the long run."""
FAR = 1e12
"""A method diverges if its squared error exceeds the first one by this factor."""


class PlayedLaw(AbstractLaw):
    """The error of a deterministic method on agents without noise; its long-run moments are those over rounds.

    The long run is that of a run from the root. Other starts may have another limit.
    """

    basis = "played"

    def __init__(self, problem: Problem, algorithm: AbstractAlgorithm):
        self.problem, self.algorithm = problem, algorithm

    def path(self, start, rounds):
        nothing = np.zeros((len(start),) * 2)
        for theta in parameters(self.problem, self.algorithm, self.problem.root + start, rounds):
            yield Moments(theta - self.problem.root, nothing)

    @functools.cached_property
    def _settled(self) -> np.ndarray:
        root = self.problem.root
        errors = parameters(self.problem, self.algorithm, root, SETTLING) - root
        if not (np.isfinite(errors).all() and (errors**2).sum(1).max() < FAR * (1 + float(root @ root))):
            name = type(self.algorithm).__name__
            raise ValueError(f"{name} diverges on this problem: it has no limit. Use a smaller step size.")
        return errors[SETTLING // 2 :]

    def stationary(self):
        return Moments(self._settled.mean(0), np.atleast_2d(np.cov(self._settled.T, bias=True)))

    def stable(self):
        try:
            return self._settled is not None
        except ValueError:
            return False

    def long_run(self):
        mean, covariance = self.stationary()
        return LongRun.of_mean(mean, 0.0)._replace(covariance=covariance)

    def persistent_bias(self):
        return np.full(self.problem.dim, math.nan)

    def mean_radius(self):
        return math.nan

    @property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The difference of the squared errors of the two halves of the long run, relative to their mean."""
        halves = np.array([(half**2).sum(1).mean() for half in np.array_split(self._settled, 2)])
        return float(np.ptp(halves) / max(halves.mean(), np.finfo(float).tiny)) if halves.max() > 1e-20 else 0.0


def parameters(problem: Problem, algorithm: AbstractAlgorithm, theta: np.ndarray, rounds: int) -> np.ndarray:
    """Returns the parameter before the first round and after each of `rounds` without noise, `(rounds + 1, d)`.

    Raises `TypeError` if rounds draw random numbers, or cannot run without observations.
    """
    name = type(algorithm).__name__
    with precision():
        try:
            inputs = tree.to_device((problem.noiseless().agents, algorithm, theta), "float64")
            one, other = (np.asarray(_followed(*inputs, key, max(rounds, 1))) for key in (0, 1))
        except (TypeError, ValueError, IndexError) as error:
            raise TypeError(
                f"A round of {name} cannot run on mean operators without observations, possibly because the method "
                "uses observations directly."
            ) from error
    if not np.array_equal(one, other, equal_nan=True):
        raise TypeError(f"{name} draws random numbers, so that there is no single run without noise.")
    return np.concatenate([theta[None], one[:rounds]])


@eqx.filter_jit
def _followed(agents, algorithm, theta, key, rounds: int):
    count = tree.leading_axis(agents)

    def step(state, index):
        shared = Round(index, jax.random.fold_in(jax.random.key(key), index), num_agents=count)
        keys = fold_in(shared.key, jnp.arange(count))
        state = play(algorithm, one_seed(agents, (), shared, keys), *state)
        return state, state[0].theta

    return jax.lax.scan(step, start(algorithm, theta, count), jnp.arange(rounds))[1]
