"""Laws of reported parameters: averages over rounds."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..._linear import transpose
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...algorithms.output import AbstractAverage, RichardsonRomberg
from ...problems import Problem
from ..maps.rounds import local_rule
from ..prediction import Prediction
from .additive import AdditiveLaw, noise_on_chains
from .curvature import BentLaw
from .finite import finite_law
from .markov import sites_law
from .mean import MeanLaw
from .moments import AbstractLaw, AbstractSteppedLaw, Moments, NotDerivedError, TooLargeError
from .sites import SitesLaw

UNLIKE = 0.25
"""The share of the difference from the variance of additive noise that counts as a difference in correlation."""
FOREVER = 1e15
"""The number of rounds that counts as the long run."""


class AveragedLaw(AbstractLaw):
    r"""The running mean $a' = a + p_t (e' - a)$ of an error whose law is known.

    Its mean is the running mean of the means. For its covariance, the error is split into $C y$ with additive noise
    (`AdditiveLaw`), whose correlations over time are known, and a remainder that is correlated by $\Phi$ alone:

    $$\mathrm{cov}(y', a') = (1 - p)\,\bigl(\Phi\,\mathrm{cov}(y, a) + \sum_i \Psi_i\,\mathrm{cov}(u_i, a)\bigr)
      + p\,\mathrm{cov}(y')\, C^T .$$

    The law is exact for additive noise and for independent observations. On Markov chains there is no remainder: the
    whole error is assumed to be correlated as under additive noise, scaled to the variance of its law. With equal
    weights the covariance vanishes in the long run, and the bias remains.

    **Arguments:**

    - `inner`: the law of the error.
    - `average`: the reported average.
    - `known`: the law of additive noise, whose correlations errors of different rounds have.
    - `transition`: $\Phi$ of the remainder; None if there is none.
    """

    def __init__(
        self, inner: AbstractLaw, average: AbstractAverage, known: AdditiveLaw | None, transition: np.ndarray | None
    ):
        self.inner, self.average, self.known, self.transition = inner, average, known, transition
        self.basis, self.left_out = inner.basis, inner.left_out

    def path(self, start, rounds):
        V = np.zeros((len(start),) * 2)
        additive = None if self.known is None else _AdditiveMean(self.known)
        rest = None if self.transition is None else _RunningCovariance(self.transition)
        average = start
        yield Moments(start, V)
        for t, (mean, covariance) in enumerate(itertools.islice(self.inner.path(start, rounds), 1, None), start=1):
            part = self._part(t)
            average = average + part * (mean - average)
            if additive is not None:
                V, newest = additive.after(part)
                covariance = covariance - newest
            yield Moments(average, V if rest is None else V + rest.after(part, covariance))

    def stationary(self):
        mean, covariance = self.inner.stationary()
        if not self.forgets:
            return Moments(mean, np.zeros_like(covariance))
        part = self._part(FOREVER)
        keep, found = 1 - part, np.zeros_like(covariance)
        if (law := self.known) is not None:
            _, E, X, _, _ = law.settled()
            Y = np.linalg.solve(np.eye(X.shape[-1]) - keep * law.QH, part * transpose(X))
            driven = (law.Psi @ Y).sum(0)
            B = np.linalg.solve(np.eye(len(E)) - keep * law.Phi, keep * driven + part * E)
            found = _blended(E, law.Phi @ B + driven, part)
            covariance = covariance - E
        if (Phi := self.transition) is not None:
            B = np.linalg.solve(np.eye(len(mean)) - keep * Phi, part * covariance)
            found = found + _blended(covariance, Phi @ B, part)
        return Moments(mean, found)

    def mean_square_radius(self):
        return self.inner.mean_square_radius()

    @property
    def forgets(self) -> bool:
        """Whether late rounds have larger weights than early ones."""
        return self._part(FOREVER) > 1 / math.sqrt(FOREVER)

    def _part(self, rounds: float) -> float:
        return part_of(self.average, rounds)


class MeanOnChainsLaw(AbstractSteppedLaw):
    """The running mean of the error on finite chains, carried beside the state; exact if the law of the method is."""

    def __init__(self, inner: SitesLaw, average: AbstractAverage):
        self.inner, self.average = inner, average
        self.law = type(inner)(inner.federation.beside())
        self.basis, self.left_out = inner.basis, inner.left_out

    def family(self, algorithm, steps):
        inner = algorithm.layers[1]  # of which the average is the outermost layer
        return [MeanOnChainsLaw(law, self.average) for law in self.inner.family(inner, steps)]

    def enter(self, start):
        return 0, self.law.enter(start)

    def step(self, state):
        rounds, inner = state
        mixing = self.inner.federation.mixing_by(part_of(self.average, rounds + 1))
        return rounds + 1, _through(mixing, self.law.step(inner))

    def seen(self, state):
        return self.law.seen(state[1])

    def stationary(self):
        moments, part = self.inner.stationary(), part_of(self.average, FOREVER)
        if not part > 1 / math.sqrt(FOREVER):
            return Moments(moments.mean, np.zeros_like(moments.covariance))
        law = type(self.inner)(self.inner.federation.beside(part))
        return law.settled() if isinstance(law, SitesLaw) else law.stationary()

    def mean_square_radius(self):
        return self.inner.mean_square_radius()


def _through(map: np.ndarray, state: Any) -> Any:
    """Applies a map to all moments of a state from both sides."""
    if isinstance(state, np.ndarray):
        return map @ state @ map.T
    return type(state)(_through(map, part) for part in state) if isinstance(state, tuple | list) else state


def part_of(average: AbstractAverage, rounds: float) -> float:
    """Returns by which part of the way an average moves to the newest parameter after this number of rounds."""
    with precision():
        return float(average.part(jnp.asarray(rounds, float)))


class _RunningCovariance:
    r"""The covariance of a running mean of errors that are correlated by $\Phi$ and what drives them, by rounds."""

    def __init__(self, transition: np.ndarray):
        self.Phi = transition
        self.V = self.B = np.zeros_like(transition)

    def after(self, part: float, newest: np.ndarray, driven: Any = 0.0) -> np.ndarray:
        """Returns the covariance after one more round, in which the error has the covariance `newest`."""
        cross = self.Phi @ self.B + driven
        self.V = (1 - part) ** 2 * self.V + _mixed(cross, newest, part)
        self.B = (1 - part) * cross + part * newest
        return self.V


class _AdditiveMean:
    """The covariance of a running mean of errors with additive noise, round by round."""

    def __init__(self, law: AdditiveLaw):
        (M, d, s) = law.Psi.shape
        self.law, self.state, self.mean = law, law.enter(np.zeros(d)), _RunningCovariance(law.Phi)
        self.Y = np.zeros((M, s, d))

    def after(self, part: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the covariance of the mean, and that of the error, after one more round."""
        law, keep = self.law, 1 - part
        self.state = law.step(self.state)
        V = self.mean.after(part, self.state.E, (law.Psi @ self.Y).sum(0))
        self.Y = keep * law.QH @ self.Y + part * transpose(self.state.X)
        return V, self.state.E


def _mixed(cross: np.ndarray, newest: np.ndarray, part: float) -> np.ndarray:
    """Returns a round's addition to the covariance of a running mean; `cross` is its covariance with the new error."""
    return part * (1 - part) * (cross + cross.T) + part**2 * newest


def _blended(covariance: np.ndarray, cross: np.ndarray, part: float) -> np.ndarray:
    """Returns the long-run covariance of a running mean with a constant weight."""
    return _mixed(cross, covariance, part) / (1 - (1 - part) ** 2)


def predict_reported(
    problem: Problem, algorithm: AbstractAlgorithm, predict: Callable[[Problem, AbstractAlgorithm], Prediction]
) -> Prediction | None:
    """Predicts the reported parameter, with `predict` for the wrapped method; None if it is the last parameter."""
    average, method = _split(algorithm)
    if average is None:
        return None
    if isinstance(method, AbstractAverage):
        raise TypeError(
            f"{type(algorithm).__name__} reports a mean of means, for which no law is known. Use only one average."
        )
    inner = predict(problem, method)
    known = dataclasses.replace(inner, algorithm=algorithm, inner=inner, course="average")
    if not inner.stable:
        return known
    law = _law(problem, method, average, inner)
    # If only the mean is known, the contribution of noise is NaN and remains NaN.
    covariance = inner.covariance if np.isnan(inner.covariance).any() else law.stationary().covariance
    return dataclasses.replace(known, law=law, basis=law.basis, left_out=law.left_out, covariance=covariance)


def _law(problem: Problem, method: AbstractAlgorithm, average: AbstractAverage, inner: Prediction) -> AbstractLaw:
    """Returns the law of the average of a method that `inner` predicts."""
    law, rule, finite = inner.law, local_rule(method), finite_law(problem.agents.source)
    if (carried := _on_chains(problem, method, law)) is not None:
        found = MeanOnChainsLaw(carried, average)
        return law.around(found) if isinstance(law, BentLaw) else found
    if isinstance(law, MeanLaw | AdditiveLaw):
        return AveragedLaw(law, average, law if isinstance(law, AdditiveLaw) else None, None)
    if finite is None or finite.independent or rule is None or not problem.affine:
        return AveragedLaw(law, average, None, inner.transition)
    known = noise_on_chains(problem, rule)
    found = AveragedLaw(law, average, known, None if known else inner.transition)
    found.basis, scale = "additive noise", 1.0
    if known is not None and (additive := float(np.trace(known.stationary().covariance))) > 0:
        scale = inner.noise_variance / additive
        found.known = AdditiveLaw(
            known.Phi, known.offset, known.noise.through(math.sqrt(scale) * np.eye(problem.dim)), "", basis=""
        )
    if found.forgets:  # with equal weights only the bias remains, which correlations do not change
        found.left_out = law.left_out + UNLIKE * abs(scale - 1)
    return found


def _on_chains(problem: Problem, method: AbstractAlgorithm, law: AbstractLaw) -> SitesLaw | None:
    """Returns the law of a method's exchanges, if there is one that follows a mean quickly, or that has to."""
    finite, found = finite_law(problem.agents.source), law.affine
    if not isinstance(law, SitesLaw | BentLaw):
        if finite is None or finite.independent or not problem.affine or law.basis != "exact":
            return None
        try:
            found = sites_law(problem, method)
        except (NotDerivedError, TooLargeError):
            return None
    if not isinstance(found, SitesLaw):
        return None
    # Other laws of averages know the error alone, not all that a method carries.
    return found if found.dim > problem.dim or type(found)(found.federation.beside()).quick else None


def _split(algorithm: AbstractAlgorithm) -> tuple[AbstractAverage | None, AbstractAlgorithm]:
    """Splits an algorithm into the reported average and the averaged method.

    Averages over rounds and extrapolation are linear, so that their order does not matter.
    """
    if isinstance(algorithm, AbstractAverage):
        return algorithm, algorithm.algorithm
    if isinstance(algorithm, RichardsonRomberg) and isinstance(algorithm.algorithm, AbstractAverage):
        average = algorithm.algorithm
        return average, eqx.tree_at(lambda a: a.algorithm, algorithm, average.algorithm)
    return None, algorithm
