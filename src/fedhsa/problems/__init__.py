"""Problems: agents with unlike operators, each family with `from_arrays(...)` and `random(...)`."""

from collections.abc import Callable

from . import (
    finite_sum as finite_sum,
)
from . import (
    garnet as garnet,
)
from . import (
    logistic as logistic,
)
from . import (
    quadratic as quadratic,
)
from . import (
    td as td,
)
from .base import AbstractAgent as AbstractAgent
from .base import Problem as Problem

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "quadratic": quadratic.random,
    "td": td.random,
    "garnet": garnet.random,
    "finite-sum": finite_sum.random,
    "logistic": logistic.random,
}
"""The random problem of each family, by the name the command line uses."""
