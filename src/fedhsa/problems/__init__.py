"""Problems: agents with unlike operators, each family with `from_arrays(...)` and `random(...)`."""

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
from .make import PROBLEMS as PROBLEMS
from .make import make as make
