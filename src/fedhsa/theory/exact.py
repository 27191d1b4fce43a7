"""Exact results on affine problems, without Monte Carlo simulation: rounds without noise, and laws of the error."""

from typing import Any, NamedTuple

import numpy as np

from .. import _check, tree
from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from .laws.agents import mean_agents, noise_is_known
from .laws.coordinates import coordinates_of
from .laws.federation import Federation
from .laws.law import law_of
from .laws.levels import LinearLaw
from .laws.moments import AbstractLaw as AbstractLaw
from .laws.moments import Moments as Moments
from .laws.moments import Radius as Radius
from .laws.moments import TooLargeError
from .laws.pieces import derive
from .laws.played import parameters
from .rule import RoundMap as RoundMap
from .steps import check_schedule

__all__ = [
    "AbstractLaw",
    "JointMap",
    "Moments",
    "Radius",
    "RoundMap",
    "floor",
    "joint_map",
    "law",
    "limit",
    "mean_square_error",
    "noiseless_error",
    "round_map",
    "spectral_radius",
]

MOST_CARRIED = 4000
"""The largest size of what a method carries from round to round, for which its map is formed."""


class JointMap(NamedTuple):
    r"""One noiseless round as an affine map $y' = \Phi y + c$ of everything that later parameters depend on.

    $y$ is what server and agents carry, relative to a run at the root, in coordinates that a run can reach and that
    affect the parameter; the error is $C y$. A run from the error $e_0$ is at $y_1 = a + B e_0$ after its first round,
    which may differ. With a coin, the map is the average over it.
    """

    transition: np.ndarray
    r"""$\Phi$, `(n, n)`."""
    offset: np.ndarray
    r"""$c$, `(n,)`."""
    observe: np.ndarray
    r"""$C$, `(d, n)`."""
    first: np.ndarray
    r"""$a$, `(n,)`."""
    spread: np.ndarray
    r"""$B$, `(n, d)`."""


def quiet(problem: Problem, algorithm: AbstractAlgorithm) -> LinearLaw:
    """Returns the law of an affine method on the mean operators of affine agents, averaged over a coin.

    Raises `TypeError` if the rounds are not affine, are random, or depend on their number.
    """
    check_affine(problem)
    check_schedule(algorithm)
    algorithm.check(problem)
    M, d = problem.num_agents, problem.dim
    pieces = derive(algorithm.relative_to(problem.root), M, d, observed=False)
    if len((coordinates := coordinates_of([pieces], M)).into) * d > MOST_CARRIED:
        raise TooLargeError(
            f"{type(algorithm).__name__} carries {len(coordinates.into) * d:,} numbers from round to round on this "
            f"problem, too many for its map (at most {MOST_CARRIED:,}). Use fewer agents."
        )
    return LinearLaw(Federation(pieces, mean_agents(problem), type(algorithm).__name__, coordinates))


def joint_map(problem: Problem, algorithm: AbstractAlgorithm) -> JointMap:
    r"""Returns the map over one round of everything that a method carries, averaged over a shared coin.

    The map is derived from the algorithm's exchanges. Parts that never affect the parameter are omitted: for FedHSA and
    Local SA it is the map of the error alone, for SCAFFLSA that of the error and the agents' shifts, which add to zero.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: an algorithm with a constant step size.

    Raises `TypeError` if the problem or the rounds are not affine, or if rounds differ from each other.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> joint_map(problem, fedhsa.FedHSA(0.02, local_steps=5)).transition.shape
        (3, 3)
    """
    law = quiet(problem, algorithm)
    first = law.federation.beginning().mean_round()
    start = law.federation.start
    return JointMap(law.A, law.c, law.federation.show, first[:-1, -1], first[:-1, :-1] @ start)


def round_map(problem: Problem, algorithm: AbstractAlgorithm) -> RoundMap:
    r"""Returns the exact map of the server's parameter over one round of `algorithm`.

    The map is derived from the algorithm's exchanges, so it is that of the code that runs. For FedHSA
    $\Phi = I + \alpha_g (\frac1M \sum_i [F_i^H + \eta S_i (\bar A - A_i)] - I)$ and $c = 0$; for Local SA
    $\Phi = I + \alpha_g (\frac1M \sum_i F_i^H - I)$ and $c = \alpha_g \eta \frac1M \sum_i S_i \bar G_i(\theta^\star)$,
    with $F_i = I + \eta A_i$ and $S_i = \sum_{k<H} F_i^k$.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: an algorithm with a constant step size that carries only the parameter from round to round.

    Raises `TypeError` for other problems and algorithms.

    !!! example
        >>> problem = fedhsa.problems.quadratic.from_arrays(A=[[[1.0]], [[3.0]]], b=[[1.0], [1.0]])
        >>> round_map(problem, fedhsa.LocalSA(0.1, local_steps=1)).transition.round(3).tolist()  # 1 - 0.1 * 2
        [[0.8]]
    """
    law = quiet(problem, algorithm)
    if len(law.A) > problem.dim or len(law.federation.pieces.rounds) > 1:
        raise TypeError(
            f"{type(algorithm).__name__} carries more than theta from round to round, or its rounds depend on a "
            "coin. `theory.joint_map` returns the mean map of everything that it carries."
        )
    show = law.federation.show
    return RoundMap(show @ law.A @ np.linalg.inv(show), show @ law.c)


def spectral_radius(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """Returns the factor of the error per round in the long run. Above 1 the method diverges.

    It is the spectral radius of the joint map, restricted to modes that a run can excite and that affect the parameter.
    For methods with a coin it is the factor of the mean error.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: an algorithm with a constant step size.

    Raises `TypeError` if the problem or the rounds are not affine.

    !!! example
        >>> A = -np.array([0.1, 1.0]).reshape(2, 1, 1)      # two agents, G_i = a_i theta with a = (-0.1, -1)
        >>> problem = fedhsa.problems.quadratic.from_arrays(-A, b=np.zeros((2, 1)))
        >>> [round(spectral_radius(problem, fedhsa.FedHSA(0.5, local_steps=H)), 2) for H in (5, 10, 20)]
        [0.11, 0.38, 1.04]
    """
    return quiet(problem, algorithm).mean_radius()


def limit(problem: Problem, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""Returns the limit of the method without noise, $\theta^\star + C (I - \Phi)^{-1} c$ with its joint map.

    For methods with a coin it is the limit of the mean.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: an algorithm with a constant step size.

    Raises `ValueError` if the method diverges, and `TypeError` if the problem or the rounds are not affine.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> bool(np.allclose(limit(problem, fedhsa.FedHSA(0.1, local_steps=5)), problem.theta_star))
        True
        >>> bool(np.allclose(limit(problem, fedhsa.LocalSA(0.1, local_steps=5)), problem.theta_star))
        False
    """
    return problem.root + quiet(problem, algorithm).persistent_bias()


def noiseless_error(problem: Problem, algorithm: AbstractAlgorithm, *, rounds: int, theta: Any = None) -> np.ndarray:
    r"""Returns $|\bar\theta^{(t)} - \theta^\star|^2$ without noise for $t = 0, \dots$, `rounds`.

    For methods with a coin, $\bar\theta^{(t)}$ is replaced by its mean. Rounds may differ from each other.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: the algorithm.
    - `rounds`: the number of rounds.
    - `theta`: the initial parameter. Default: zeros.

    Raises `TypeError` if the problem is not affine.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> law = noiseless_error(problem, fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> run = fedhsa.simulate(problem.noiseless(), fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> bool(np.allclose(run.error[0], law, rtol=1e-12))
        True
    """
    check_affine(problem)
    start, rounds = start_error(problem, theta), _check.count("rounds", rounds)
    try:
        return quiet(problem, algorithm).errors(start, rounds)
    except TypeError:  # rounds that differ, or are not affine, are run
        path = parameters(problem, algorithm, problem.root + start, rounds)
        return ((path - problem.root) ** 2).sum(-1)


def law(problem: Problem, algorithm: AbstractAlgorithm) -> AbstractLaw:
    """Returns the exact law of the error.

    It exists without noise, under additive VAR(1) noise, for independent observations of finite chains, and for Markov
    chains whose product is small.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: the algorithm.

    Raises `TypeError` if there is no exact law; the message says which functions apply instead.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=4, dim=2)
        >>> stationary = law(problem.iid(), fedhsa.FedHSA(0.1, local_steps=5)).stationary()
        >>> bool(abs(stationary.mean).max() < 1e-12), bool(stationary.square > 0)
        (True, True)
    """
    check_affine(problem)
    check_schedule(algorithm)
    algorithm.check(problem)
    if not noise_is_known(problem):
        raise TypeError(
            f"There is no exact law for {type(problem.agents).__name__} observing "
            f"{type(problem.agents.source).__name__}: it requires no noise, additive VAR(1) noise "
            "(`problems.quadratic`), or finite chains. `noiseless_error` and `limit` hold for every affine problem; "
            "`theory.predict` estimates the rest from samples."
        )
    found = law_of(problem, algorithm)
    if found.basis != "exact":
        raise TooLargeError(
            f"The exact law of {problem.num_agents} agents in {problem.dim} dimensions on this problem would take "
            "long. `theory.predict` supports every size."
        )
    return found


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
    return law(problem, algorithm).errors(start_error(problem, theta), _check.count("rounds", rounds))


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


def check_affine(problem: Problem) -> None:
    """Raises if operators are not affine."""
    if not problem.affine:
        raise TypeError(
            f"Exact laws require operators that are affine in the parameter; {type(problem.agents).__name__} is not "
            "declared affine. Set `affine = True` on the agent class if it is."
        )


def start_error(problem: Problem, theta: Any) -> np.ndarray:
    """Returns the initial error of a run from `theta`."""
    start = problem.start if theta is None else tree.ravel_like("theta", theta, problem.like)
    return start - problem.root
