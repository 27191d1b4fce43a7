"""Laws of reported parameters: averages over rounds."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...algorithms.output import AbstractAverage, RichardsonRomberg
from .levels import LinearLaw, SitesLaw
from .moments import AbstractLaw, AbstractSteppedLaw, Moments
from .nonlinear import NonlinearLaw

FOREVER = 1e15
"""The number of rounds that counts as the long run."""


class AbstractAverageLaw(AbstractLaw):
    """The law of a running mean of the error of a method, which has the law `inner`."""

    inner: Any
    average: AbstractAverage

    @property
    def basis(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.basis

    @property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.left_out

    @property
    def bend(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.bend

    @property
    def affine(self):
        return self.inner.affine

    @property
    def interval(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """As wide as that of the inner error, relative to the floor."""
        if self.inner.interval is None or not self.inner.stationary().square > 0:
            return None
        low, high = np.array(self.inner.interval) * self.stationary().square / self.inner.stationary().square
        return float(low), float(high)

    def leaves_out_more_than(self, share):
        return self.inner.leaves_out_more_than(share)

    def stable(self):
        return self.inner.stable()

    def long_run(self):
        found = self.inner.long_run()
        known = not np.isnan(found.covariance).any()  # otherwise only the mean is known
        return found._replace(covariance=self.stationary().covariance) if known else found

    def persistent_bias(self):
        return self.inner.persistent_bias()

    def mean_radius(self):
        return self.inner.mean_radius()

    def mean_square_radius(self):
        return self.inner.mean_square_radius()


class CarriedAverage(AbstractAverageLaw, AbstractSteppedLaw):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The running mean of the error, carried beside the state; exact if the law of the method is."""

    def __init__(self, inner: Any, average: AbstractAverage):
        self.inner, self.average = inner, average
        self.law = type(inner)(inner.federation.beside())

    def family(self, algorithm, steps):
        inner = algorithm.layers[1]  # of which the average is the outermost layer
        return [CarriedAverage(law, self.average) for law in self.inner.family(inner, steps)]

    def enter(self, start):
        return 0, self.law.enter(start)

    def step(self, state):
        rounds, inner = state
        return rounds + 1, self.law.mixed(self.law.step(inner), part_of(self.average, rounds + 1))

    def seen(self, state):
        return self.law.seen(state[1])

    def stationary(self):
        moments, part = self.inner.stationary(), part_of(self.average, FOREVER)
        if not forgets(self.average):
            return Moments(moments.mean, np.zeros_like(moments.covariance))
        law = type(self.inner)(self.inner.federation.beside(part))
        return law.settled() if isinstance(law, SitesLaw) else law.stationary()


class RelaxingAverage(AbstractAverageLaw):
    r"""The running mean of errors that are correlated by the mean map $\Phi$ alone: $\mathrm{cov}(e', a) = \Phi\,
    \mathrm{cov}(e, a)$."""

    def __init__(self, inner: AbstractLaw, average: AbstractAverage, transition: np.ndarray):
        self.inner, self.average, self.Phi = inner, average, transition

    def path(self, start, rounds):
        found, V = start, np.zeros((len(start),) * 2)
        cross = V
        for t, (mean, covariance) in enumerate(self.inner.path(start, rounds)):
            if t:
                part, moved = part_of(self.average, t), self.Phi @ cross
                found = found + part * (mean - found)
                V = (1 - part) ** 2 * V + part * (1 - part) * (moved + moved.T) + part**2 * covariance
                cross = (1 - part) * moved + part * covariance
            yield Moments(found, V)

    def stationary(self):
        mean, covariance = self.inner.stationary()
        if not forgets(self.average):
            return Moments(mean, np.zeros_like(covariance))
        part = part_of(self.average, FOREVER)
        cross = np.linalg.solve(np.eye(len(mean)) - (1 - part) * self.Phi, part * covariance)
        moved = self.Phi @ cross
        mixed = part * (1 - part) * (moved + moved.T) + part**2 * covariance
        return Moments(mean, mixed / (1 - (1 - part) ** 2))


class NonlinearAverage(AbstractAverageLaw):
    """The running mean of errors of a nonlinear problem: their mean is averaged, spread as in the affine problem."""

    def __init__(self, inner: NonlinearLaw, average: AbstractAverage, spread: AbstractLaw):
        self.inner, self.average, self.spread = inner, average, spread

    def path(self, start, rounds):
        found, spread = start, self.spread.path(start - self.inner.shift, rounds)
        for t, (inner, own) in enumerate(zip(self.inner.path(start, rounds), spread, strict=True)):
            found = found + (part_of(self.average, t) * (inner.mean - found) if t else 0.0)
            yield Moments(found, own.covariance)

    def stationary(self):
        return Moments(self.inner.stationary().mean, self.spread.stationary().covariance)


def average_of(inner: AbstractLaw, average: AbstractAverage) -> AbstractLaw:
    """Returns the law of an average of errors that have a law."""
    if isinstance(inner, NonlinearLaw):
        return NonlinearAverage(inner, average, average_of(inner.law, average))
    if not isinstance(inner, SitesLaw | LinearLaw):  # rounds that are run, without noise
        return RelaxingAverage(inner, average, np.zeros((len(inner.stationary().mean),) * 2))
    if inner.federation.standing is not None:
        show = inner.federation.show
        return RelaxingAverage(inner, average, show @ inner.quiet.A @ np.linalg.pinv(show))
    return CarriedAverage(inner, average)


def forgets(average: AbstractAverage) -> bool:
    """Returns whether late rounds have larger weights than early ones."""
    return part_of(average, FOREVER) > 1 / math.sqrt(FOREVER)


def part_of(average: AbstractAverage, rounds: float) -> float:
    """Returns by which part of the way an average moves to the newest parameter after this number of rounds."""
    with precision():
        return float(average.part(jnp.asarray(rounds, float)))


def split(algorithm: AbstractAlgorithm) -> tuple[AbstractAverage | None, AbstractAlgorithm]:
    """Splits an algorithm into the reported average and the averaged method.

    Averages over rounds and extrapolation are linear, so that their order does not matter.
    """
    if isinstance(algorithm, AbstractAverage):
        if isinstance(algorithm.algorithm, AbstractAverage):
            raise TypeError(
                f"{type(algorithm).__name__} reports a mean of means, for which no law is known. Use only one average."
            )
        return algorithm, algorithm.algorithm
    if isinstance(algorithm, RichardsonRomberg) and isinstance(algorithm.algorithm, AbstractAverage):
        average = algorithm.algorithm
        return average, eqx.tree_at(lambda a: a.algorithm, algorithm, average.algorithm)
    return None, algorithm
