"""The result of `predict`: stability, rate, limit and floor, and quantities derived from them."""

import dataclasses
import functools
import math
from typing import Any, Literal, NamedTuple, final

import numpy as np

from .. import _check
from .._json import plain
from .._table import FIXED, Table
from ..algorithms import AbstractAlgorithm, Cost, cost
from ..problems import Problem
from .exact import start_error
from .laws.levels import LinearLaw, SitesLaw
from .laws.moments import AbstractLaw, LongRun, Radius
from .rule import local_rule
from .stability import KINDS, Limit, largest_local_steps, largest_mean_square_step, largest_mean_step, largest_step

FLOAT_BYTES = 8
FIRST_LOOK, LONGEST = 64, 4096
"""The initial and the largest number of rounds that are followed to find the round that reaches a target."""
MOST_AVERAGED = 20_000
"""The number of rounds for which an average is followed to a target; beyond it the error decays like 1/n."""
VERDICTS = {True: "yes", False: "no: the error grows", None: "unknown: too close to the edge of stability"}
UNLIMITED = 1e12
"""A speed-up that lasts up to this number of agents counts as unlimited."""


def quietly() -> np.errstate:
    """Returns a context in which nothing is said of overflow: far beyond the stable step sizes moments grow fast."""
    return np.errstate(over="ignore", invalid="ignore")


class Reach(NamedTuple):
    """The cost of reducing the mean-square error to a target. All entries are infinite if it is never reached."""

    rounds: float
    """The number of rounds."""
    samples: float
    """The number of observations, of all agents together."""
    bytes: float
    """The number of bytes sent in both directions, of all agents together, at 8 bytes per number."""


@final
@dataclasses.dataclass(frozen=True, repr=False)
class Prediction:
    r"""The predicted behaviour of an algorithm on a problem, as returned by `predict`.

    In the long run the error has the mean `heterogeneity_bias + markov_bias + curvature_bias` and the covariance
    `covariance`. The `floor` is the squared norm of the mean plus the trace of the covariance. If the method diverges,
    bias, covariance and floor are infinite.

    If the step size settles, error curves cover all rounds, and the long run is that of the last step size. If it
    changes for ever there is no floor, and `stable` refers to a small step size: that after about a million rounds, or
    about a ten-thousandth of the first one if that is reached before.
    """

    problem: Problem
    """The problem."""
    algorithm: AbstractAlgorithm
    """The algorithm."""
    law: AbstractLaw
    """The law behind the numbers."""
    inner: "Prediction | None" = None
    """The prediction whose limits these are: of the method before its average, or with a constant step size."""
    course: Literal["geometric", "average", "changing"] = "geometric"
    """How the error goes to its limit: like a power, as an average over rounds, or as the step size, for ever."""

    @property
    def basis(self) -> str:
        """The kind of law behind the numbers.

        It is an `exact` law; for Markov chains the laws of `pairs` of agents, of each agent alone (`one site`) or of
        `many agents`; estimates from `samples`; or the `mean` alone. With `mean`, the rate is that of the mean error,
        `error` is the squared norm of the mean error, and quantities that depend on the noise are NaN.
        """
        return self.law.basis

    @functools.cached_property
    def stable(self) -> bool | None:
        """Whether the error stays bounded, in the mean and, if that is known, in the mean square (see `stability`).

        It is None if that is unknown, near the edge of stability; then the floor is NaN.
        """
        with quietly():
            return self.law.stable()

    @functools.cached_property
    def _long_run(self) -> LongRun:
        if self.course == "changing" or self.stable is None:
            return LongRun.of_mean(np.full(self.problem.dim, math.nan), math.nan)
        if not self.stable:
            nowhere, nothing = np.full(self.problem.dim, np.inf), np.zeros(self.problem.dim)
            return LongRun(nowhere, nothing, nothing, np.diag(nowhere))
        with quietly():
            return self.law.long_run()

    @property
    def heterogeneity_bias(self) -> np.ndarray:
        """The limit of the method without noise, minus the root, `(d,)`."""
        return self._long_run.heterogeneity

    @property
    def markov_bias(self) -> np.ndarray:
        """The bias that the correlation of observations in time adds, `(d,)`."""
        return self._long_run.markov

    @property
    def curvature_bias(self) -> np.ndarray:
        """The bias that noise adds because the operators are nonlinear, `(d,)`; zero for affine operators."""
        return self._long_run.curvature

    @property
    def covariance(self) -> np.ndarray:
        """The covariance of the error in the long run, `(d, d)`."""
        return self._long_run.covariance

    @functools.cached_property
    def persistent_bias(self) -> np.ndarray:
        """The part of the bias that remains with any number of similar agents, `(d,)`; NaN if it is unknown."""
        if self.course == "changing" or not self.stable:
            return self.heterogeneity_bias
        with quietly():
            return self.law.persistent_bias()

    @property
    def interval(self) -> tuple[float, float] | None:
        """A 95 % confidence interval of the floor if it is estimated from samples; otherwise None."""
        return self.law.interval if self.stable and self.course != "changing" else None

    @functools.cached_property
    def left_out(self) -> float:
        """The estimated relative error of the floor due to terms that the law neglects: 0 if the law is exact, NaN if
        the error is unknown."""
        with quietly():
            return self.law.left_out if self.stable or self.basis == "exact" else math.nan

    @functools.cached_property
    def spectral_radius(self) -> float:
        """The factor of the mean error per round; NaN if the step size changes for ever.

        The method diverges if it is 1 or more.
        """
        with quietly():
            return math.nan if self.course == "changing" else self.law.mean_radius()

    @functools.cached_property
    def _radius(self) -> Radius | None:
        with quietly():
            return self.law.mean_square_radius()

    @property
    def mean_square_radius(self) -> float | None:
        """The factor of the mean-square error per round, including multiplicative noise; None if it is unknown."""
        return None if self._radius is None else self._radius.value

    @property
    def stability(self) -> str:
        """The meaning of `stable`: `"mean square"`, exact, estimated or bounded, or `"mean only"`."""
        return "mean only" if self._radius is None else KINDS[self._radius.kind]

    @property
    def rate(self) -> float:
        """The factor of the root-mean-square error per round, while it is far above the floor.

        NaN if the step size changes for ever.
        """
        if self.course == "changing":
            return math.nan
        square = self.mean_square_radius
        return self.spectral_radius if square is None else math.sqrt(square)

    @property
    def jacobians(self) -> np.ndarray:
        """The Jacobians of the agents' mean operators at the root, `(M, d, d)`."""
        return self.problem.jacobians(self.problem.root) if self.law.jacobians is None else self.law.jacobians

    @functools.cached_property
    def max_step_size(self) -> Limit:
        """The smallest step size at which the method diverges, with its number of local steps.

        The attribute `kind` of the result states whether it refers to the mean or to the mean square. It is NaN if it
        is unknown, or if the method has no single step size. If that changes, the limit is that of a constant one; if
        there is one for each block, that of the largest of them, for the same ratios.
        """
        if self.inner is not None:
            return self.inner.max_step_size
        law, rule = self.law.affine, local_rule(self.algorithm)
        if rule is not None:
            mean = largest_step(self.jacobians, rule)
        elif isinstance(law, SitesLaw | LinearLaw):
            mean = largest_mean_step(law.quiet, self.algorithm, self.jacobians)
        else:
            mean = Limit(math.nan, "mean", "no step at all")
        if self._radius is None:
            return mean
        if law.additive or math.isnan(mean):
            return Limit(mean, self.stability, mean.scanned)
        return largest_mean_square_step(self.algorithm, law.radius_at, mean)

    @functools.cached_property
    def max_local_steps(self) -> Limit | None:
        """The largest number of local steps before the mean diverges, at this step size, or at the last one.

        None for methods without local steps, and if it is unknown.
        """
        if self.inner is not None:
            return self.inner.max_local_steps
        rule = local_rule(self.algorithm)
        if rule is None or not hasattr(self.algorithm, "local_steps"):
            return None
        return largest_local_steps(self.jacobians, rule)

    @property
    def bias(self) -> np.ndarray:
        """The mean of the error in the long run, `(d,)`."""
        return self.heterogeneity_bias + self.markov_bias + self.curvature_bias

    @property
    def noise_variance(self) -> float:
        """The trace of the covariance."""
        return max(float(np.trace(self.covariance)), 0.0)  # rounding may make it slightly negative without noise

    @property
    def floor(self) -> float:
        """The mean-square error in the long run."""
        return float(self.bias @ self.bias) + self.noise_variance

    @property
    def saturation_agents(self) -> float:
        """The number of agents at which the variance equals the squared bias that more agents do not remove.

        It is infinite without this bias, 0 without variance, and NaN if it is unknown.
        """
        persistent = float(self.persistent_bias @ self.persistent_bias)
        if math.isnan(persistent):
            return math.nan
        agents = self.problem.num_agents * self.noise_variance / persistent if 0 < persistent < math.inf else math.inf
        return math.inf if agents >= UNLIMITED else agents

    @functools.cached_property
    def cost(self) -> Cost:
        """The cost per round and agent."""
        return cost(self.problem, self.algorithm)

    def floor_at(self, num_agents: float) -> float:
        """Returns the floor with another number of similar agents, to leading order in the inverse of that number.

        The variance and a part of the bias are proportional to the inverse.
        """
        _check.number("num_agents", num_agents, above=0.0)
        if not self.stable:
            return math.nan if self.stable is None else math.inf
        share = self.problem.num_agents / num_agents
        bias = self.persistent_bias + share * (self.bias - self.persistent_bias)
        return float(bias @ bias + share * self.noise_variance)

    def error(self, rounds: int, theta: Any = None) -> np.ndarray:
        """Returns the predicted mean-square error before the first round and after each of `rounds`.

        **Arguments:**

        - `rounds`: the number of rounds.
        - `theta`: the initial parameter. Default: zeros.
        """
        with quietly():
            return self.law.errors(start_error(self.problem, theta), _check.count("rounds", rounds, least=0))

    def error_after(self, rounds: int, theta: Any = None) -> float:
        """Returns the predicted mean-square error after `rounds`, starting from `theta`."""
        return float(self.error(rounds, theta)[-1])

    def reach(self, target: float, theta: Any = None) -> Reach:
        """Returns the rounds, samples and bytes until the mean-square error is at most `target`.

        **Arguments:**

        - `target`: the mean-square error to reach.
        - `theta`: the initial parameter. Default: zeros.
        """
        return total_cost(self.rounds_to(target, theta), self.cost, self.problem.num_agents)

    def rounds_to(self, target: float, theta: Any = None) -> float:
        """Returns the first round after which the predicted error is at most `target`; infinity if there is none.

        It is NaN if it is unknown whether the method is stable. An average is followed for 20,000 rounds; beyond that,
        the excess over the floor is assumed to decay like 1/rounds. A step size that changes for ever is followed for
        4,096 rounds, and NaN if that is not enough.
        """
        _check.number("target", target, above=0.0)
        if self.course != "geometric":
            return self._followed_to(target, theta)
        if self.stable is None:
            return math.nan
        floor = float(self.heterogeneity_bias @ self.heterogeneity_bias) if self.basis == "mean" else self.floor
        rounds = FIRST_LOOK
        while True:
            errors = self.error(rounds, theta)
            if (errors <= target).any():
                return int(np.argmax(errors <= target))
            if not self.stable or floor >= target:
                return math.inf
            left = math.log((errors[-1] - floor) / (target - floor)) / (-2 * math.log(self.rate))
            if rounds >= LONGEST:  # extrapolate at the asymptotic rate
                return rounds + math.ceil(left)
            rounds = min(LONGEST, rounds + max(math.ceil(1.2 * left), FIRST_LOOK))

    def _followed_to(self, target: float, theta: Any) -> float:
        longest, error = MOST_AVERAGED if self.course == "average" else LONGEST, math.inf
        for t, moments in enumerate(self.law.path(start_error(self.problem, theta), longest)):
            if (error := moments.square) <= target:
                return t
        if self.course == "changing":
            return math.nan
        return math.ceil(longest * (error - self.floor) / (target - self.floor)) if self.floor < target else math.inf

    def _table(self) -> Table:
        """Returns the main numbers in words, without computing anything further."""
        problem, known = self.problem, "exact law" if self.basis == "exact" else self.basis
        rows = [
            ("algorithm", repr(self.algorithm)),
            ("problem", f"{problem.num_agents:,} agents, {problem.dim:,} parameters"),
            ("stable", f"{VERDICTS[self.stable]} ({self.stability})"),
        ]
        if self.stable:
            rows += [
                ("r.m.s. error", self._rate_in_words()),
                ("floor", self._floor_in_words()),
                ("agents that help", _agents_in_words(self.saturation_agents)),
            ]
        off = 100 * self.left_out
        doubt = f", may be off by {f'{off:.2g}' if off < 10 else f'{off:.0f}'}{FIXED}%" if off > 0 else ""
        return Table(("", ""), [*rows, ("known by", f"{known}{doubt}")])

    def _rate_in_words(self) -> str:
        if self.course == "changing":
            return "decreases with the step size"
        return f"times {self.rate:.4g} per round, far above the floor"

    def _floor_in_words(self) -> str:
        if self.course == "changing":
            return "none: the step size keeps changing; see `error(rounds)`"
        if math.isnan(self.floor):
            return "unknown: only the mean is predicted"
        if self.floor == 0:
            return "none: the error goes to 0"
        bias = 100 * float(self.bias @ self.bias) / self.floor
        parts = f"{bias:.3g}{FIXED}% squared bias, {100 - bias:.3g}{FIXED}% noise"
        within = "" if self.interval is None else " (95{}% interval {:.3g} to {:.3g})".format(FIXED, *self.interval)
        return f"mean-square error {self.floor:.3g}{within}: {parts}"

    def __repr__(self):
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def to_dict(self, limits: bool = True) -> dict[str, Any]:
        """Returns the numbers as JSON values; infinity becomes the word "infinity".

        **Arguments:**

        - `limits`: whether to include the largest stable step size and number of local steps, which take a search.
        """
        names = ("basis", "stable", "spectral_radius", "mean_square_radius", "stability")
        names += ("max_step_size", "max_local_steps") if limits else ()
        names += ("rate", "heterogeneity_bias", "markov_bias", "curvature_bias", "noise_variance")
        names += ("floor", "left_out", "saturation_agents", "interval")
        return {"algorithm": type(self.algorithm).__name__} | {name: plain(getattr(self, name)) for name in names}


def total_cost(rounds: float, cost: Cost, num_agents: int) -> Reach:
    """Returns the cost of a number of rounds, of all agents together."""
    floats = cost.floats_up + cost.floats_down
    return Reach(rounds, rounds * num_agents * cost.samples, rounds * num_agents * FLOAT_BYTES * floats)


def _agents_in_words(agents: float) -> str:
    if math.isnan(agents):
        return "unknown"
    if math.isinf(agents):
        return "any number: the floor is proportional to 1/M"
    if agents < 1:
        return "one is enough: there is little or no noise"
    rough = float(f"{agents:.1e}")
    return f"up to about {rough:,.0f}; beyond that, only bias remains"
