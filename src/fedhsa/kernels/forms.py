"""The forms of an operator that kernels know: what it is on each of the observations of a block."""

from typing import Any, NamedTuple

from jaxtyping import Float, Int


class RankOne(NamedTuple):
    r"""$G(\theta, o_\ell) = \bigl(c_\ell + \sum_j w_{j \ell}\, U[i_{j \ell}]^T \theta\bigr)\, U[i_{0 \ell}]$.

    Temporal differences of all kinds with features in a table: the look-ups are all that depends on the observation.
    """

    table: Float[Any, "S d"]
    """$U$."""
    rows: tuple[Int[Any, " H"], ...]
    """$i_j$."""
    weights: tuple[Float[Any, "*H"], ...]
    """$w_j$, each one number or one for each observation."""
    constant: Float[Any, " H"]
    """$c$."""


class Affine(NamedTuple):
    r"""$G(\theta, o_\ell) = b_{c_\ell} - A_{c_\ell} \theta + z_\ell$."""

    A: Float[Any, "N d d"]
    b: Float[Any, "N d"]
    component: Int[Any, " H"] | None = None
    """$c$; None where there is one component."""
    noise: Float[Any, "H d"] | None = None
    """$z$; None where there is none."""
