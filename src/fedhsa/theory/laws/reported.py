"""Laws of reported parameters: averages over rounds, and extrapolation to step size zero."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ... import _check
from ..._linear import transpose
from ..._types import precision
from ...algorithms import AbstractAlgorithm
from ...algorithms.output import AbstractAverage, RichardsonRomberg, scaled
from ...problems import Problem
from ..maps.joint import Joint, start_error
from ..maps.linearise import linearised
from ..prediction import Prediction, known_of
from .additive import AdditiveLaw
from .carried import CarriedLaw, CarriedNoiseLaw, ErrorsOverTime, noise_law
from .finite import finite_law
from .first_order import noise_is_known
from .markov import sites_law
from .moments import AbstractLaw, AbstractSteppedLaw, Moments, NotDerivedError, TooLargeError
from .sites import SitesLaw

UNLIKE = 0.25
"""The share of the difference from the variance of additive noise that counts as a difference in correlation."""
FOREVER = 1e15
"""The number of rounds that counts as the long run."""
MOST_AVERAGED = 20_000
"""The number of rounds for which an average is followed to a target; beyond it the error decays like 1/n."""


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
    - `correlations`: the correlations of errors of different rounds under additive noise, if known.
    - `transition`: $\Phi$.
    - `rest`: whether there is a remainder beyond `correlations`.
    """

    def __init__(
        self,
        inner: AbstractLaw,
        average: AbstractAverage,
        correlations: Callable[[], ErrorsOverTime | None],
        transition: np.ndarray | None,
        *,
        rest: bool,
    ):
        self.inner, self.average, self.correlations, self.transition = inner, average, correlations, transition
        self.rest, self.basis, self.left_out = rest, inner.basis, inner.left_out

    def path(self, start, rounds):
        known, V = self.correlations(), np.zeros((len(start),) * 2)
        additive = None if known is None else _AdditiveMean(known.law, known.observe)
        rest = None if (Phi := self._by_itself(known)) is None else _RestOfMean(Phi)
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
        if (known := self.correlations()) is not None:
            law, C = known.settling, known.observe_settling
            _, E, X, _, _ = law.settled()
            Y = np.linalg.solve(np.eye(X.shape[-1]) - keep * law.QH, part * transpose(C @ X))
            driven = (law.Psi @ Y).sum(0)
            B = np.linalg.solve(np.eye(len(E)) - keep * law.Phi, keep * driven + part * E @ C.T)
            found = _blended(C @ E @ C.T, C @ (law.Phi @ B + driven), part)
            covariance = covariance - C @ E @ C.T
        if (Phi := self._by_itself(known)) is not None:
            B = np.linalg.solve(np.eye(len(mean)) - keep * Phi, part * covariance)
            found = found + _blended(covariance, Phi @ B, part)
        return Moments(mean, found)

    def mean_square_radius(self):
        return self.inner.mean_square_radius()

    @property
    def forgets(self) -> bool:
        """Whether late rounds have larger weights than early ones."""
        return self._part(FOREVER) > 1 / math.sqrt(FOREVER)

    def unlike(self) -> float:
        """The relative difference between the variance of the error and that of additive noise."""
        known = self.correlations()
        return 0.0 if known is None else abs(known.scale**2 - 1)

    def _by_itself(self, known: ErrorsOverTime | None) -> np.ndarray | None:
        """Returns the transition of the remainder, which `known` does not describe; None if there is no remainder."""
        return self.transition if self.rest or known is None else None

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


class _AdditiveMean:
    """The covariance of a running mean of $C y$, round by round."""

    def __init__(self, law: AdditiveLaw, C: np.ndarray):
        (M, n, s), d = law.Psi.shape, len(C)
        self.law, self.C = law, C
        self.state = next(law.states(np.zeros(n), 0))
        self.V, self.B, self.Y = np.zeros((d, d)), np.zeros((n, d)), np.zeros((M, s, d))

    def after(self, part: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns the covariance of the mean, and that of $C y$, after one more round."""
        law, C, keep = self.law, self.C, 1 - part
        self.state = law.step(self.state)
        cross, newest = law.Phi @ self.B + (law.Psi @ self.Y).sum(0), C @ self.state.E @ C.T
        self.V = keep**2 * self.V + _mixed(C @ cross, newest, part)
        self.B = keep * cross + part * self.state.E @ C.T
        self.Y = keep * law.QH @ self.Y + part * transpose(C @ self.state.X)
        return self.V, newest


class _RestOfMean:
    r"""The covariance of a running mean of errors that are correlated by $\Phi$ alone, round by round."""

    def __init__(self, transition: np.ndarray):
        self.Phi = transition
        self.V = self.B = np.zeros_like(transition)

    def after(self, part: float, newest: np.ndarray) -> np.ndarray:
        """Returns the covariance after one more round, in which the error has the covariance `newest`."""
        cross = self.Phi @ self.B
        self.V = (1 - part) ** 2 * self.V + _mixed(cross, newest, part)
        self.B = (1 - part) * cross + part * newest
        return self.V


def _mixed(cross: np.ndarray, newest: np.ndarray, part: float) -> np.ndarray:
    """Returns a round's addition to the covariance of a running mean; `cross` is its covariance with the new error."""
    return part * (1 - part) * (cross + cross.T) + part**2 * newest


def _blended(covariance: np.ndarray, cross: np.ndarray, part: float) -> np.ndarray:
    """Returns the long-run covariance of a running mean with a constant weight."""
    return _mixed(cross, covariance, part) / (1 - (1 - part) ** 2)


class ExtrapolatedLaw(AbstractLaw):
    r"""The error $\sum_m h_m e_m$ of copies of a method with several step sizes on the same observations.

    Its mean is that of the copies. The covariances between copies are those of additive noise, scaled so that each copy
    has the root mean square of its own law, by the factor $s_m$.
    """

    basis = "additive noise"

    def __init__(self, copies: Sequence[AbstractLaw], coefficients: np.ndarray, noise: CarriedNoiseLaw):
        self.copies, self.coefficients, self.noise = copies, coefficients, noise
        joint = noise.joint
        each = joint.observing(lambda server: server.inner.theta)  # (copies, d, n)
        C, E = each @ noise.modes.project.T, noise.state.E
        additive = np.trace(C @ E @ np.swapaxes(C, -1, -2), axis1=-2, axis2=-1)
        own = np.array([np.trace(law.stationary().covariance) for law in copies])
        scales = np.sqrt(np.where(additive > 0, own / np.where(additive > 0, additive, 1), 1.0))
        self.observe = np.einsum("m,mdn->dn", coefficients * scales, each)
        self.left_out = float(np.max([*(law.left_out for law in copies), *UNLIKE * np.abs(scales**2 - 1)]))

    def correlations(self) -> ErrorsOverTime:
        """Returns the correlations of the reported error over time."""
        found = self.noise.correlations()
        C = self.observe
        return found._replace(observe=C, observe_settling=C @ self.noise.modes.project.T)

    def path(self, start, rounds):
        law, C = self.correlations()[:2]
        each = zip(*(copy.path(start, rounds) for copy in self.copies), strict=True)
        for moments, (_, covariance) in zip(each, law.path(np.zeros(C.shape[1]), rounds), strict=True):
            yield Moments(self._combined(moments), C @ covariance @ C.T)

    def stationary(self):
        _, _, law, C, _ = self.correlations()
        return Moments(self._combined([copy.stationary() for copy in self.copies]), C @ law.settled().E @ C.T)

    def _combined(self, moments: Sequence[Moments]) -> np.ndarray:
        return self.coefficients @ np.stack([copy.mean for copy in moments])


@dataclasses.dataclass(frozen=True, repr=False)
class ReportedPrediction(Prediction):
    """A prediction for the reported parameter; stability and limits are those of the wrapped method."""

    inner: Prediction = dataclasses.field(repr=False)

    @property
    def spectral_radius(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the wrapped method."""
        return self.inner.spectral_radius

    @property
    def max_step_size(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the wrapped method."""
        return self.inner.max_step_size

    @property
    def max_local_steps(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """The value of the wrapped method."""
        return self.inner.max_local_steps

    def rounds_to(self, target: float, theta: Any = None) -> float:
        """Returns the number of rounds until the reported error is at most `target`, or infinity.

        It is followed for 20,000 rounds; beyond that, the excess over the floor is assumed to decay like 1/rounds.
        """
        _check.number("target", target, above=0.0)
        error = math.inf
        for t, moments in enumerate(self.law.path(start_error(self.problem, theta), MOST_AVERAGED)):
            if (error := moments.square) <= target:
                return t
        if not self.floor < target:
            return math.inf
        return math.ceil(MOST_AVERAGED * (error - self.floor) / (target - self.floor))


def predict_reported(
    problem: Problem, algorithm: AbstractAlgorithm, predict: Callable[[Problem, AbstractAlgorithm], Prediction]
) -> Prediction | None:
    """Predicts the reported parameter, with `predict` for the wrapped method; None if it is the last parameter."""
    average, method = _split(algorithm)
    if average is None:
        return _extrapolated(problem, method, predict) if isinstance(method, RichardsonRomberg) else None
    if isinstance(method, AbstractAverage):
        raise TypeError(
            f"{type(algorithm).__name__} reports a mean of means, for which no law is known. Use only one average."
        )
    inner = predict(problem, method)
    if not inner.stable:
        return dataclasses.replace(inner, algorithm=algorithm)
    law = inner.law
    if (chains := _on_chains(problem, method, law)) is not None:
        found = MeanOnChainsLaw(chains, average)
    elif isinstance(law, CarriedNoiseLaw | ExtrapolatedLaw):
        found = AveragedLaw(law, average, law.correlations, None, rest=False)
    else:
        finite = finite_law(problem.agents.source)
        # The memories of a method correlate its errors over time even if observations are independent.
        markov = finite is not None and (not finite.independent or isinstance(law, SitesLaw))
        known = functools.cache(lambda: _correlations(problem, method, inner.noise_variance if markov else None))
        transition = None if isinstance(law, CarriedLaw) else inner.transition
        found = AveragedLaw(law, average, known, transition, rest=not markov)
        if markov:
            known()  # raises `TypeError` here if there are none, and not when a curve is drawn
            found.basis = "additive noise"
            # With equal weights only the bias remains, which correlations do not change.
            found.left_out = law.left_out + (UNLIKE * found.unlike() if found.forgets else 0.0)
    # If only the mean is known, the contribution of noise is NaN and remains NaN.
    covariance = inner.covariance if np.isnan(inner.covariance).any() else found.stationary().covariance
    return _reported(inner, algorithm=algorithm, law=found, covariance=covariance, **_words(found))


def _on_chains(problem: Problem, method: AbstractAlgorithm, law: AbstractLaw) -> SitesLaw | None:
    """Returns the law of a method's exchanges on finite chains, if there is one that follows a mean quickly."""
    finite, found = finite_law(problem.agents.source), law
    if not isinstance(law, SitesLaw):
        if finite is None or finite.independent or not problem.affine or law.basis != "exact":
            return None
        try:
            found = sites_law(problem, method)
        except (NotDerivedError, TooLargeError):
            return None
    return found if isinstance(found, SitesLaw) and type(found)(found.federation.beside()).quick else None


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


def _correlations(problem: Problem, method: AbstractAlgorithm, variance: float | None) -> ErrorsOverTime | None:
    """Returns the correlations of additive noise, scaled to the given variance of the error."""
    law = noise_law(Joint(linearised(problem), method)) if noise_is_known(problem) else None
    if law is None:
        return None
    found, additive = law.correlations(), float(np.trace(law.stationary().covariance))
    scale = 1.0 if variance is None or not additive > 0 else math.sqrt(variance / additive)
    C, settling = scale * found.observe, scale * found.observe_settling
    return found._replace(observe=C, observe_settling=settling, scale=scale)


def _extrapolated(
    problem: Problem, algorithm: RichardsonRomberg, predict: Callable[[Problem, AbstractAlgorithm], Prediction]
) -> Prediction | None:
    """Combines the copies' biases and covariances; None if the joint map of all copies is exact."""
    if finite_law(problem.agents.source) is None:
        return None
    copies = [predict(problem, scaled(algorithm.algorithm, float(factor))) for factor in algorithm.factors]
    slowest = copies[int(np.argmax(algorithm.factors))]
    for copy in copies:
        if not copy.stable:
            return dataclasses.replace(copy, algorithm=algorithm)
    noise = noise_law(Joint(linearised(problem), algorithm))
    if noise is None:
        return None
    with precision():
        h = np.asarray(algorithm.coefficients())
    law = ExtrapolatedLaw([copy.law for copy in copies], h, noise)
    names = ("heterogeneity_bias", "markov_bias", "curvature_bias", "persistent_bias")
    combined: dict[str, Any] = {name: h @ np.stack([getattr(copy, name) for copy in copies]) for name in names}
    covariance = law.stationary().covariance
    return _reported(slowest, algorithm=algorithm, law=law, covariance=covariance, **_words(law), **combined)


def _words(law: AbstractLaw) -> dict[str, Any]:
    return {"basis": law.basis, "left_out": law.left_out}


def _reported(inner: Prediction, **changes: Any) -> ReportedPrediction:
    known = known_of(inner)
    return ReportedPrediction(**known | changes, inner=inner)
