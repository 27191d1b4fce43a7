"""Exact laws of the error on affine problems, without Monte Carlo simulation."""

from typing import Any

import numpy as np

from .. import _check, _linear
from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from ..sources import Silent
from .laws.additive import gaussian_law
from .laws.finite import finite_law
from .laws.first_order import noise_is_known
from .laws.markov import exact_law
from .laws.moments import AbstractLaw as AbstractLaw
from .laws.moments import AbstractSteppedLaw
from .laws.moments import Moments as Moments
from .laws.moments import Radius as Radius
from .maps.rounds import RoundMap as RoundMap
from .maps.rounds import check_reach, local_rule, require_stable, start_error
from .maps.rounds import limit as limit
from .maps.rounds import noiseless_error as noiseless_error
from .maps.rounds import round_map as round_map
from .maps.rounds import spectral_radius as spectral_radius

__all__ = [
    "AbstractLaw",
    "Moments",
    "Radius",
    "RoundMap",
    "floor",
    "law",
    "limit",
    "mean_square_error",
    "noiseless_error",
    "round_map",
    "spectral_radius",
]


class NoiselessLaw(AbstractSteppedLaw):
    r"""The error without noise, $e' = \Phi e + c$."""

    additive = True

    def __init__(self, map: RoundMap, name: str):
        self.map, self.name = map, name

    def enter(self, start):
        return start

    def step(self, state):
        return self.map.transition @ state + self.map.offset

    def seen(self, state):
        return Moments(state, np.zeros_like(self.map.transition))

    def stationary(self):
        require_stable(_linear.spectral_radius(self.map.transition), self.name)
        return Moments(self.map.limit_error(), np.zeros_like(self.map.transition))

    def mean_square_radius(self):
        return Radius(_linear.spectral_radius(self.map.transition) ** 2, "exact")


def law(problem: Problem, algorithm: AbstractAlgorithm, map: RoundMap | None = None) -> AbstractLaw:
    """Returns the exact law of the error.

    It exists without noise, under additive VAR(1) noise, for independent observations of finite chains, and for Markov
    chains whose product is small. Methods without a local rule must not be too large.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: the algorithm.
    - `map`: the round map, if it is already computed.

    Raises `TypeError` if there is no exact law; the message says which functions apply instead.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=4, dim=2)
        >>> stationary = law(problem.iid(), fedhsa.FedHSA(0.1, local_steps=5)).stationary()
        >>> bool(abs(stationary.mean).max() < 1e-12), bool(stationary.square > 0)
        (True, True)
    """
    check_reach(problem, algorithm)
    algorithm.check(problem)
    source, rule = problem.agents.source, local_rule(algorithm)
    if not noise_is_known(problem):
        raise TypeError(
            f"There is no exact law for {type(problem.agents).__name__} observing {type(source).__name__}: it requires "
            "no noise, additive VAR(1) noise (`problems.quadratic`), or finite chains. `noiseless_error` and `limit` "
            "hold for every affine problem; `theory.predict` estimates the rest from samples."
        )
    if rule is None or finite_law(source) is not None:
        return exact_law(problem, algorithm)
    A, b = problem.affine_parts()
    map = map or rule.round_map(A, A @ problem.root - b)
    name = type(algorithm).__name__
    return NoiselessLaw(map, name) if isinstance(source, Silent) else gaussian_law(problem, map, name)


def mean_square_error(problem: Problem, algorithm: AbstractAlgorithm, *, rounds: int, theta: Any = None) -> np.ndarray:
    r"""Returns the exact mean-square error $E|\bar\theta^{(t)} - \theta^\star|^2$ for $t = 0, \dots$, `rounds`.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: the algorithm.
    - `rounds`: the number of rounds.
    - `theta`: the initial parameter. Default: zeros.

    Raises `TypeError` if there is no exact law (see `law`).

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> law = mean_square_error(problem, fedhsa.FedHSA(0.05, local_steps=4), rounds=50)
        >>> runs = fedhsa.simulate(problem, fedhsa.FedHSA(0.05, local_steps=4), rounds=50, seeds=4000)
        >>> bool(abs(runs.error[:, -1].mean() / law[-1] - 1) < 0.05)
        True
    """
    path = law(problem, algorithm).path(start_error(problem, theta), _check.count("rounds", rounds))
    return np.array([moments.square for moments in path])


def floor(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """Returns the limit of `mean_square_error`, by solving the stationary equations.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: the algorithm.

    Raises `TypeError` if there is no exact law (see `law`), and `ValueError` if the method diverges.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> local, corrected = (floor(problem, kind(0.1, local_steps=5)) for kind in (fedhsa.LocalSA, fedhsa.FedHSA))
        >>> corrected < local
        True
    """
    return law(problem, algorithm).stationary().square
