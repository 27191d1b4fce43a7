"""Agents for `deploy.py` whose work and memory grow like $d$, not $d^2$."""

import numpy as np

from fedhsa.problems import AbstractAgent
from fedhsa.sources import AbstractSource, FiniteChain


class DiagonalAgent(AbstractAgent):
    r"""$G_i(\theta, o) = b_i - a_i \theta + o$ with a diagonal $a_i$ and the noise of a chain with two states."""

    source: AbstractSource
    scale: np.ndarray
    shift: np.ndarray
    noise: np.ndarray

    def operator(self, theta, o, /):
        return self.shift - self.scale * theta + self.noise[o]


def small(context):
    """An agent with 10 parameters."""
    return _diagonal(context.number, 10)


def large(context):
    """An agent with 10,000 parameters."""
    return _diagonal(context.number, 10_000)


def _diagonal(number: int, dim: int) -> DiagonalAgent:
    generator = np.random.default_rng([number, dim])
    source = FiniteChain([[0.9, 0.1], [0.2, 0.8]])
    return DiagonalAgent(source, generator.uniform(0.5, 1.5, dim), generator.normal(size=dim), np.array([-1.0, 1.0]))
