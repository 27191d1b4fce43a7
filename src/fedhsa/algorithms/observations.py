"""Wrappers that change which observations are used: evenly spaced ones, or random ones of a round's."""

import equinox as eqx
import jax

from .. import _check, tree
from .._random import Stream, fold_in
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

    every: int = eqx.field(static=True)

    effects = Effect.NOTHING

    def __check_init__(self):
        _check.count("every", self.every, remedy="Use `every=1` to use all observations.")

    @property
    def block_length(self):
        return self.every * self.algorithm.block_length

    def _around(self, exchange, number):
        return with_blocks(exchange, lambda block, round: tree.take(block, slice(None, None, self.every)))


class Replayed(AbstractWrapper):
    r"""The method uses random observations from a buffer instead of consecutive ones.

    In each round an agent stores $B$ new observations, and each of the $H$ that the method uses is one of them, drawn
    uniformly with replacement. Consecutive observations are then rarely used one after the other. With $B = H$ this is
    SGD with experience replay: it takes as many steps as observations, of which about 37 % are never used. The cost
    counts all $B$.

    Chains that depend on the parameter are not supported: the replayed observations were made under another parameter.

    **Arguments:**

    - `algorithm`: the method.
    - `buffer`: $B$, the number of observations that each agent stores, from one round at a time.

    Raises `ValueError` if `buffer` is less than 1, and `TypeError` if the problem's chains depend on the parameter.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> cost = fedhsa.cost(problem, Replayed(fedhsa.LocalSA(0.02, local_steps=5), buffer=20))
        >>> cost.samples, cost.evaluations
        (20, 5)

    !!! cite "Nagaraj, Wu, Bresler, Jain, Netrapalli (2020), SGD-ER, checked against the authors' script"
        Their analysis also leaves a gap between buffers, which their script does not.
    """

    buffer: int = eqx.field(static=True)

    effects = Effect.NOTHING

    def __check_init__(self):
        _check.count("buffer", self.buffer, remedy="Use at least the number of observations of a round.")

    @property
    def block_length(self):
        return self.buffer

    def check(self, problem):
        self.algorithm.check(problem)
        if problem.controlled:
            raise TypeError(
                f"Replayed cannot run on {type(problem.agents).__name__}, whose chains depend on the parameter: the "
                "replayed observations were made under another parameter. Use the method without Replayed."
            )

    def _around(self, exchange, number):
        def drawn(block, round):
            # Every exchange of a round draws the same observations.
            key, used = fold_in(round.agent_key, Stream.REPLAY), (self.algorithm.block_length,)
            return tree.take(block, jax.random.randint(key, used, 0, self.buffer))

        return with_blocks(exchange, drawn)
