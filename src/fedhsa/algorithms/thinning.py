"""Thinning: only every few observations are used, so that those used are less correlated."""

import equinox as eqx

from .. import _check, tree
from .base import AbstractAlgorithm
from .demands import Effect
from .wrapper import AbstractWrapper, with_blocks


class Thinned(AbstractWrapper):
    r"""The method uses only some observations of each agent, evenly spaced.

    It uses every $q$-th observation: $o_{i, (tH + \ell) q}$ instead of $o_{i, tH + \ell}$.

    With $q$ near the mixing time these are almost independent. The cost counts all $q H$ observations of a round; the
    operator is evaluated only at those used. `problem.iid()` is the limit as $q$ grows, without the cost.

    **Arguments:**

    - `algorithm`: the method.
    - `every`: $q$, at least 1.

    Raises `ValueError` if `every` is less than 1.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> cost = fedhsa.cost(problem, Thinned(fedhsa.FedHSA(0.02, local_steps=5), every=4))
        >>> cost.samples, cost.evaluations
        (20, 5)

    !!! cite "Mangold et al. (2024), arXiv:2402.04114: the variant of FedLSA for Markov data"
    """

    algorithm: AbstractAlgorithm
    every: int = eqx.field(static=True)

    effects = Effect.NOTHING

    def __check_init__(self):
        _check.count("every", self.every, remedy="Use `every=1` to use all observations.")

    @property
    def block_length(self):
        return self.every * self.algorithm.block_length

    def _around(self, exchange, number):
        return with_blocks(exchange, lambda block, round: tree.take(block, slice(None, None, self.every)))
