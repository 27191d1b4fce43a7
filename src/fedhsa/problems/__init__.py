"""Problems: heterogeneous agents, each family with `from_arrays(...)` and `random(...)`."""

from . import actor_critic as actor_critic
from . import average_reward_td as average_reward_td
from . import evaluation as evaluation
from . import experience as experience
from . import finite_sum as finite_sum
from . import games as games
from . import garnet as garnet
from . import gradient_td as gradient_td
from . import logistic as logistic
from . import lqr as lqr
from . import n_step_td as n_step_td
from . import off_policy_td as off_policy_td
from . import policy_gradient as policy_gradient
from . import q_learning as q_learning
from . import quadratic as quadratic
from . import sarsa as sarsa
from . import streams as streams
from . import td as td
from . import td_lambda as td_lambda
from ._live import Live as Live
from .base import AbstractAgent as AbstractAgent
from .base import AbstractControlledAgent as AbstractControlledAgent
from .base import AbstractPolicyAgent as AbstractPolicyAgent
from .base import Problem as Problem
from .make import PROBLEMS as PROBLEMS
from .make import make as make

__all__ = [
    "PROBLEMS",
    "AbstractAgent",
    "AbstractControlledAgent",
    "AbstractPolicyAgent",
    "Live",
    "Problem",
    "actor_critic",
    "average_reward_td",
    "evaluation",
    "experience",
    "finite_sum",
    "games",
    "garnet",
    "gradient_td",
    "logistic",
    "lqr",
    "make",
    "n_step_td",
    "off_policy_td",
    "policy_gradient",
    "q_learning",
    "quadratic",
    "sarsa",
    "streams",
    "td",
    "td_lambda",
]
