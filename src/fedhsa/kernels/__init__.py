"""Fused operations: the steps of a whole round, for all agents and seeds, as one kernel if the device has one.

Problems and algorithms are written for one agent. A source or an agent whose steps have one of the forms below declares
it, and `walk` and `take_steps` execute them: step by step or, inside `using(backend)`, in one call of that backend.
The engine decides which backend a device has; everything else in the package, including theory and deployment, runs the
plain steps, which are also the reference that tests compare the kernels with.
"""

from .backend import backend_of as backend_of
from .backend import in_use as in_use
from .backend import kernel_for as kernel_for
from .backend import using as using
from .backend import without
from .forms import Affine, RankOne
from .fused import first_operator as first_operator
from .fused import linear_walk as linear_walk
from .fused import normal_walk as normal_walk
from .fused import take_steps as take_steps
from .fused import walk as walk
from .plain import alias_draw as alias_draw
from .products import component_product as component_product

__all__ = ["Affine", "RankOne", "without"]
