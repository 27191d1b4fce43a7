"""Environments: finite models of decision processes with exact values, and adapters for live environments."""

from . import gym as gym
from . import toy_text as toy_text
from . import worlds as worlds
from .experience import Experience as Experience
from .features import Fourier as Fourier
from .features import OneHot as OneHot
from .features import Tiles as Tiles
from .jax_env import JaxEnvironment as JaxEnvironment
from .jax_env import perturbed as perturbed
from .make import ENVIRONMENTS as ENVIRONMENTS
from .make import make as make
from .model import Chain as Chain
from .model import Model as Model
from .parametric import AbstractParametricPolicy as AbstractParametricPolicy
from .parametric import Categorical as Categorical
from .parametric import DirectTable as DirectTable
from .parametric import Gaussian as Gaussian
from .parametric import SoftmaxTable as SoftmaxTable
from .parametric import mlp as mlp
from .policies import EpsilonGreedy as EpsilonGreedy
from .policies import Softmax as Softmax
from .policies import Uniform as Uniform

__all__ = [
    "ENVIRONMENTS",
    "AbstractParametricPolicy",
    "Categorical",
    "Chain",
    "DirectTable",
    "EpsilonGreedy",
    "Experience",
    "Fourier",
    "Gaussian",
    "JaxEnvironment",
    "Model",
    "OneHot",
    "Softmax",
    "SoftmaxTable",
    "Tiles",
    "Uniform",
    "gym",
    "make",
    "mlp",
    "perturbed",
    "toy_text",
    "worlds",
]
