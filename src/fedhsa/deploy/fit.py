"""Whether a user's agents fit the number of parameters that a run was started with, before the first round."""

import contextlib
from typing import Any

import jax
import numpy as np

from ..problems._agents import check_operator

TRIED = 32
"""Up to how many parameters are tried, besides the sizes that occur in the agent's own arrays."""


class MismatchError(ValueError):
    """Agents and plan do not fit; the message has sizes only, and may be sent to other machines."""


def check_fits(agents: Any, dim: int, maker: str, o: Any = None) -> None:
    """Raises if the operator of these stacked agents is not one of `dim` parameters, naming the number that it is for.

    The message names the agents' `maker`. Agents that observe a stream need an example `o` of an observation.
    """
    try:
        check_operator(agents, np.zeros(dim), o)
    except Exception as error:
        sizes = {int(n) for leaf in jax.tree.leaves((agents, o)) for n in np.shape(leaf)}
        candidates = sorted({*range(1, TRIED + 1), *(n for n in sizes if n < 10**7)} - {dim})
        if fitting := [n for n in candidates if _fits(agents, n, o)]:
            names = " or ".join(f"`--dim {n}`" for n in fitting[:3])
            raise MismatchError(
                f"`dim` is {dim}, but the agents of {maker} have {' or '.join(map(str, fitting[:3]))} parameters: use "
                f"{names}."
            ) from error
        raise


def _fits(agents: Any, dim: int, o: Any) -> bool:
    with contextlib.suppress(Exception):  # the user's code, at a size that it may not be made for
        check_operator(agents, np.zeros(dim), o)
        return True
    return False
