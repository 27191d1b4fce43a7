"""Off-policy evaluation that can be made stable with any features: GTD2 and TDC, on two time scales."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .. import _check
from .._types import SeedLike
from ..environments import Model
from ..sources import Transitions
from ._evaluation import AbstractEvaluator, evaluation_problem, projected
from ._worlds import off_policy_world
from .base import Problem
from .off_policy_td import off_policy_process

__all__ = ["GradientTDAgent", "from_model", "random"]

METHODS = ("TDC", "GTD2")


class GradientTDAgent(AbstractEvaluator):
    r"""Two parameters in one vector, $\theta$ and $w$, with step sizes that differ by the factor $\kappa$:

    $$w: \kappa\,(\rho\,\delta - \phi^T w)\,\phi, \qquad
      \theta: \rho\,(\delta\,\phi - \gamma\,\phi'\,\phi^T w) \ \text{(TDC)}, \quad
      \rho\,(\phi - \gamma\,\phi')\,\phi^T w \ \text{(GTD2)}$$
    """

    ratios: np.ndarray
    step_ratio: np.ndarray
    method: str = eqx.field(static=True)

    should_be_monotone: ClassVar[bool] = False  # stable, but not monotone in the Euclidean norm

    def operator(self, theta, o, /):
        theta, w = jnp.split(theta, 2)
        rho, phi = self.ratios[o.state], self.features[o.state]
        following = self.discounts(o.next_state) * self.features[o.next_state]
        error, guess = self.error(theta, o.state, o.next_state), phi @ w
        slow = error * phi - following * guess if self.method == "TDC" else (phi - following) * guess
        return jnp.concatenate([rho * slow, self.step_ratio * (rho * error - guess) * phi])


def from_model(
    model: Model,
    policy: Any = None,
    behaviour: Any = None,
    features: Any = None,
    *,
    method: str = "TDC",
    step_ratio: float = 1.0,
    start: str = "stationary",
) -> Problem:
    r"""Make the problem of off-policy evaluation by GTD2 (always stable) or TDC (stable for a large `step_ratio`).

    The parameter is $(\theta, w)$, `(2 d,)`; at the root $w$ solves $\mathbb E[\phi \phi^T] w = \mathbb E[\rho \delta
    \phi]$ on average over the agents, so that it is zero, and $\theta$ is the root of off-policy TD. Value errors use
    only $\theta$.

    **Arguments:**

    - `model`, `policy`, `behaviour`, `features`, `start`: as for `off_policy_td.from_model`.
    - `method`: `"TDC"` or `"GTD2"`.
    - `step_ratio`: $\kappa$, the step size of $w$ relative to that of $\theta$. Increase it if the problem warns that
      TDC is unstable.

    Raises `ValueError` if the behaviour never takes an action of the policy.

    !!! example
        >>> model = fedhsa.environments.Model([[[0, 1], [0, 1]], [[0, 0], [0, 0]]], [[1.0, 3.0], [0.0, 0.0]], 0.9,
        ...                                   start=0, ends=[False, True])
        >>> from_model(model, policy=[1, 0]).theta_star.round(12) + 0.0
        array([3., 0.])

    !!! cite "Sutton et al. (2009), fast gradient-descent methods for TD with linear function approximation"
    """
    _check.choice("method", method, METHODS)
    _check.number("step_ratio", step_ratio, above=0.0)
    process, ratios = off_policy_process(model, policy, behaviour, features, start)
    E, e = process.errors()
    A_td, b_td = projected(process, ratios[..., None] * E, ratios * e)
    weighted = process.weighted_features()
    C, C_rho = weighted @ process.features, weighted @ (ratios[..., None] * process.features)
    transposed = np.swapaxes(A_td, 1, 2)
    if method == "TDC":
        top, b_top = [A_td, -(transposed + C_rho)], b_td
    else:
        top, b_top = [np.zeros_like(C), -transposed], np.zeros_like(b_td)
    A = np.block([top, [step_ratio * A_td, -step_ratio * C]])
    b = np.concatenate([b_top, step_ratio * b_td], axis=-1)
    own = {"ratios": ratios, "step_ratio": np.full(model.num_agents, float(step_ratio)), "method": method}
    return evaluation_problem(GradientTDAgent, Transitions(process.chain), process, A, b, **own)


def random(
    num_agents: int = 10,
    dim: int | None = None,
    *,
    environment: str = "random",
    method: str = "TDC",
    step_ratio: float = 1.0,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
    **options: Any,
) -> Problem:
    r"""Make the problem of evaluating a random policy from other random behaviours, in the agents' environments.

    **Arguments:**

    - `dim`: the number of random features. Default: a coordinate for each state.
    - `environment`: a name from `fedhsa list environments`; further arguments are passed to the environment.
    - `method`, `step_ratio`: as for `from_model`.

    !!! example
        >>> random(num_agents=3, num_states=5).dim
        10
    """
    drawn = off_policy_world(environment, num_agents, dim, heterogeneity, key, options)
    return from_model(*drawn, method=method, step_ratio=step_ratio)
