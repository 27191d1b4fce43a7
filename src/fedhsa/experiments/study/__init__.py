"""The interface of a study, with its outcome and its checks of claims, and the helpers that all studies share."""

from ...statistics import Estimate as Estimate
from . import figures as figures
from .base import AbstractStudy as AbstractStudy
from .base import Outcome as Outcome
from .base import Runner as Runner
from .base import Table as Table
from .base import columns as columns
from .base import late as late
from .base import max_error as max_error
from .base import reached as reached
from .base import rows_of as rows_of
from .base import second_half as second_half
from .checks import Checks as Checks
from .instance import Instance as Instance
from .instance import repeated as repeated
