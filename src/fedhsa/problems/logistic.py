"""Regularised logistic regression on a Markov stream of examples: a nonlinear problem that is not in the paper."""

from typing import Any

import jax
import numpy as np

from .. import _check
from .._generate import blend, dense_kernel, lazy
from .._types import SeedLike
from ..sources import FiniteChain
from .base import AbstractAgent, Problem

__all__ = ["LogisticAgent", "from_arrays", "random"]


class LogisticAgent(AbstractAgent):
    r"""$G_i(\theta, n) = \sigma(-y_n x_n^T \theta)\, y_n x_n - \lambda \theta$ for the chain's example $n$."""

    inputs: np.ndarray
    labels: np.ndarray
    regularisation: np.ndarray

    def operator(self, theta, o, /):
        x, y = self.inputs[o], self.labels[o]
        return jax.nn.sigmoid(-y * (x @ theta)) * y * x - self.regularisation * theta


def from_arrays(inputs: Any, labels: Any, P: Any, regularisation: float = 0.1, *, start: Any = None) -> Problem:
    r"""Make the problem of logistic regression by `M` agents, whose examples follow Markov chains.

    **Arguments:**

    - `inputs`, `labels`: $x$ `(M, N, d)` and $y \in \{-1, 1\}$ `(M, N)`.
    - `P`: kernels over the examples, `(M, N, N)`.
    - `regularisation`: $\lambda > 0$.
    - `start`: the distribution of the first example, or its index. Default: stationary.

    The root has no closed form: it is computed by Newton's method and certified by its residual. Raises `ValueError` if
    an array is invalid.

    !!! example
        >>> inputs, labels = np.array([[[1.0], [2.0]]]), np.array([[1.0, -1.0]])
        >>> problem = from_arrays(inputs, labels, P=np.full((1, 2, 2), 0.5))
        >>> bool(problem.theta_star[0] < 0)  # the larger input has the label -1
        True
    """
    sizes: dict[str, int] = {}
    inputs = _check.array("inputs", inputs, ("M", "N", "d"), sizes)
    labels = _check.array("labels", labels, ("M", "N"), sizes)
    P = _check.array("P", P, ("M", "N", "N"), sizes)
    if not np.isin(labels, (-1, 1)).all():
        raise ValueError(f"`labels` must be -1 or 1, got {np.unique(labels)[:5]}.")
    _check.number("regularisation", regularisation, above=0.0)
    agents = LogisticAgent(FiniteChain(P, start), inputs, labels, np.full(sizes["M"], float(regularisation)))
    return Problem(agents, like=np.zeros(sizes["d"]))


def random(
    num_agents: int = 20,
    num_examples: int = 50,
    dim: int = 10,
    *,
    heterogeneity: float = 1.0,
    regularisation: float = 0.1,
    laziness: float = 0.0,
    key: SeedLike = 0,
) -> Problem:
    r"""Make a random logistic regression problem.

    Inputs are Gaussian, each agent's labels come from a random direction, and kernels have normalised uniform rows.

    **Arguments:**

    - `num_agents`, `num_examples`, `dim`: $M$, $N$ and $d$. More agents with the same key extend the problem.
    - `heterogeneity`: 0 makes all agents equal (examples, labels and kernel), 1 makes them independent draws.
    - `regularisation`: $\lambda$.
    - `laziness`: the probability of staying at the same example.

    !!! example
        >>> problem = random(num_agents=3, num_examples=5, dim=2)
        >>> bool(abs(problem.mean_operator(problem.theta_star)).max() < 1e-10)
        True
    """
    N = _check.count("num_examples", num_examples)
    _check.count("dim", dim)
    inputs = blend(lambda rng, count: rng.normal(size=(count, N, dim)), "inputs", num_agents, heterogeneity, key)
    directions = blend(lambda rng, count: rng.normal(size=(count, dim)), "directions", num_agents, heterogeneity, key)
    noise = blend(lambda rng, count: rng.logistic(size=(count, N)), "noise", num_agents, heterogeneity, key)
    labels = np.where(np.einsum("mnd,md->mn", inputs, directions) + noise > 0, 1.0, -1.0)
    P = blend(dense_kernel(N), "P", num_agents, heterogeneity, key)
    return from_arrays(inputs, labels, lazy(P, laziness), regularisation)
