"""Round maps: what one round does to the error of an affine problem, read off the algorithm's own exchanges."""

from typing import Any, NamedTuple

import numpy as np

from .. import _check, _linear
from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from ._modes import error_of, radius_of
from .joint import Joint
from .joint import check_reach as check_reach
from .joint import check_schedule as check_schedule
from .joint import start_error as start_error


class RoundMap(NamedTuple):
    r"""One round as an affine map of the error, $e' = \Phi e + c + \sum_{i,l} K_{il} z_{il}$.

    `noise` is $K$ for additive noise, `(M, H, d, d)`, and None for agents without observations.
    """

    transition: np.ndarray
    offset: np.ndarray
    noise: np.ndarray | None


def round_map(problem: Problem, algorithm: AbstractAlgorithm) -> RoundMap:
    r"""The map of the server's parameter over one round of `algorithm`, exactly.

    The exchanges are differentiated, not re-derived, so the map is that of the code that runs. For FedHSA
    $\Phi = I + \alpha_g (\frac1M \sum_i [F_i^H + \eta S_i (\bar A - A_i)] - I)$ and $c = 0$; for Local SA
    $\Phi = I + \alpha_g (\frac1M \sum_i F_i^H - I)$ and $c = \alpha_g \eta \frac1M \sum_i S_i \bar G_i(\theta^\star)$,
    with $F_i = I + \eta A_i$ and $S_i = \sum_{k<H} F_i^k$.

    !!! example
        >>> problem = fedhsa.problems.quadratic.from_arrays(A=[[[1.0]], [[3.0]]], b=[[1.0], [1.0]])
        >>> round_map(problem, fedhsa.LocalSA(0.1, local_steps=1)).transition.round(3).tolist()  # 1 - 0.1 * 2
        [[0.8]]
    """
    joint = Joint(problem, algorithm)
    if joint.carries_more:
        raise TypeError(
            f"{type(algorithm).__name__} carries more than theta from round to round, or its rounds depend on a "
            "coin: the map of all of it on average is `theory.joint_map`."
        )
    map = joint.map()
    return RoundMap(map.transition, map.offset, joint.noise())


def spectral_radius(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """The factor by which the error shrinks per round in the long run; above 1 the method diverges.

    That of the joint map, as far as a run can excite it and the parameter shows it. For methods with a coin it is the
    factor of the mean.

    !!! example
        >>> A = -np.array([0.1, 1.0]).reshape(2, 1, 1)      # two agents, G_i = a_i theta with a = (-0.1, -1)
        >>> problem = fedhsa.problems.quadratic.from_arrays(-A, b=np.zeros((2, 1)))
        >>> [round(spectral_radius(problem, fedhsa.FedHSA(0.5, local_steps=H)), 2) for H in (5, 10, 20)]
        [0.11, 0.38, 1.04]
    """
    return radius_of(Joint(problem, algorithm))


def limit(problem: Problem, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""Where the method goes without noise: $\theta^\star + C (I - \Phi)^{-1} c$ with its joint map.

    For methods with a coin, where their mean goes.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> bool(np.allclose(limit(problem, fedhsa.FedHSA(0.1, local_steps=5)), problem.theta_star))
        True
        >>> bool(np.allclose(limit(problem, fedhsa.LocalSA(0.1, local_steps=5)), problem.theta_star))
        False
    """
    joint = Joint(problem, algorithm)
    require_stable(radius_of(joint), joint.name)
    return problem.root + error_of(joint)


def noiseless_error(problem: Problem, algorithm: AbstractAlgorithm, *, rounds: int, theta: Any = None) -> np.ndarray:
    r"""$|\bar\theta^{(t)} - \theta^\star|^2$ without noise for $t = 0, \dots$, `rounds`.

    For methods with a coin, that of the mean of $\bar\theta^{(t)}$. Rounds may differ from each other.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> law = noiseless_error(problem, fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> run = fedhsa.simulate(problem.noiseless(), fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> bool(np.allclose(run.error[0], law, rtol=1e-12))
        True
    """
    start = start_error(problem, theta) + problem.root
    path = Joint(problem, algorithm).parameters(_check.count("rounds", rounds), start)
    return ((path - problem.root) ** 2).sum(-1)


def limit_error(map: RoundMap, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""$(I - \Phi)^{-1} c$; raises if the method diverges."""
    require_stable(_linear.spectral_radius(map.transition), type(algorithm).__name__)
    return np.linalg.solve(np.eye(len(map.offset)) - map.transition, map.offset)


def require_stable(growth: float, name: str, *, mean_square: bool = False) -> None:
    """Raises if a round has the spectral radius `growth` of 1 or more, in the mean or in the mean square."""
    if growth < 1:
        return
    if mean_square:
        raise ValueError(
            f"{name} converges in the mean here, but its mean-square error grows without bound (by {growth:.4g} per "
            "round): the noise in the operators' matrices is too strong for this step. Use a smaller step."
        )
    raise ValueError(
        f"{name} diverges on this problem (spectral radius {growth:.4g}), so it has no limit. "
        "Use a smaller step or fewer local steps."
    )
