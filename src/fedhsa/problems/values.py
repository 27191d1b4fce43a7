"""How far value functions are off: recorders that compare with the exact ones."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ._processes import Process


class ValueDistance(eqx.Module):
    r"""The root-mean-square distance of $\phi_i(s)^T \theta$ from given values, over agents and states."""

    features: np.ndarray
    weights: np.ndarray
    values: np.ndarray

    def __call__(self, snapshot: Any) -> Any:
        d = self.features.shape[-1]  # further coordinates are auxiliary
        gap = self.features @ snapshot.theta[:d] - self.values
        return jnp.sqrt(jnp.mean(jnp.sum(self.weights * gap**2, axis=-1)))


def value_recorders(make: Callable[[], Process]) -> dict[str, Callable[[], Callable]]:
    r"""The recorders of policy evaluation, as functions that make them, by name.

    - `value_error`: relative to each agent's own values $V_i$, weighted by its stationary distribution;
    - `mean_value_error`: relative to the average $\frac1M \sum_i V_i$, which is the common goal; an agent's value is 0
      where its episode ends.
    """

    def distance(average: bool) -> ValueDistance:
        process = make()
        values = process.average_values() if average else process.values()
        return ValueDistance(process.features, process.chain.stationary, values)

    return {"value_error": lambda: distance(False), "mean_value_error": lambda: distance(True)}
