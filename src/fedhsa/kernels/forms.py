"""The forms of operators that kernels support, on each of the observations of a block."""

from typing import Any, NamedTuple

from jaxtyping import Float, Int


class RankOne(NamedTuple):
    r"""$G(\theta, o_\ell) = \bigl(c_\ell + \sum_j w_{j \ell}\, U[i_{j \ell}]^T \theta\bigr)\, U[i_{0 \ell}]$.

    All kinds of temporal differences with features in a table have this form: only the look-ups depend on the
    observation.

    !!! example
        >>> form = RankOne(np.eye(2), rows=(np.array([0, 1]),), weights=(np.array(-1.0),), constant=np.ones(2))
        >>> len(form.rows)
        1
    """

    table: Float[Any, "S d"]
    """$U$, the table of features."""
    rows: tuple[Int[Any, " H"], ...]
    """$i_j$, the rows of the table."""
    weights: tuple[Float[Any, "*H"], ...]
    """$w_j$, each a number or one for each observation."""
    constant: Float[Any, " H"]
    """$c$, one for each observation."""


class Affine(NamedTuple):
    r"""$G(\theta, o_\ell) = b_{c_\ell} - A_{c_\ell} \theta + z_\ell$.

    !!! example
        >>> Affine(np.eye(2)[None], np.ones((1, 2))).component is None
        True
    """

    A: Float[Any, "N d d"]
    """$A$, one matrix for each component."""
    b: Float[Any, "N d"]
    """$b$, one vector for each component."""
    component: Int[Any, " H"] | None = None
    """$c$; None if there is only one component."""
    noise: Float[Any, "H d"] | None = None
    """$z$; None if there is no noise."""
