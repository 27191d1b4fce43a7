"""The noise of independent observations of finite chains, at a random point."""

from typing import Any

import numpy as np

from ..._linear import transpose
from ...problems import Problem
from .finite import affine_operators, finite_law
from .moments import TooLargeError

LARGEST = 2**26
"""The largest size of the fourth-order noise tensors, half a gigabyte."""


class IndependentNoise:
    r"""The covariance of independent operators of finite chains at a random point.

    $N_i(Y, y) = E[\tilde A Y \tilde A^T + \tilde A y \tilde g^T + \tilde g y^T \tilde A^T + \tilde g \tilde g^T]$ for
    $G_i(\theta^\star + y, o) = A_i y + r_i + \tilde A_i(o) y + \tilde g_i(o)$, with noise of mean zero.
    """

    def __init__(self, problem: Problem):
        law = finite_law(problem.agents.source)
        assert law is not None
        M, d = problem.num_agents, problem.dim
        size = M * max(d**4, law.num_outcomes * d**2)
        if size > LARGEST:
            raise TooLargeError(
                f"The law of altered replies of {M} agents in {d} dimensions requires {size:.2g} numbers, more than "
                f"{LARGEST:.2g}. Use fewer agents or parameters, or simulate."
            )
        weights, (A, g) = law.weights(), affine_operators(problem, law)
        self.A, self.r = np.einsum("io,ioab->iab", weights, A), np.einsum("io,ioa->ia", weights, g)
        A, g = A - self.A[:, None], g - self.r[:, None]
        self.AA = np.einsum("io,ioab,iocd->iacbd", weights, A, A, optimize=True).reshape(M, d * d, d * d)
        self.Ag = np.einsum("io,ioab,ioc->iacb", weights, A, g, optimize=True)
        self.gg = np.einsum("io,ioa,ioc->iac", weights, g, g, optimize=True)

    def covariance(self, Y: np.ndarray, y: np.ndarray, one: Any = 1.0) -> np.ndarray:
        """Returns $N_i(Y, y)$ for every agent; for moments of weighted points, `one` is the mean of the weights."""
        quadratic = (self.AA @ Y.reshape(len(Y), -1, 1)).reshape(Y.shape)
        linear = np.einsum("iacb,ib->iac", self.Ag, y)
        return quadratic + linear + transpose(linear) + np.reshape(one, (-1, 1, 1)) * self.gg
