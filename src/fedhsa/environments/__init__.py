"""Environments: finite models of decision processes with exact values, and adapters for live environments."""

from . import gym, toy_text, worlds
from .experience import Experience
from .features import Fourier, OneHot, Tiles
from .jax_env import JaxEnvironment, perturbed
from .make import ENVIRONMENTS, make
from .model import Chain, Model
from .parametric import AbstractParametricPolicy, Categorical, DirectTable, Gaussian, SoftmaxTable, mlp
from .policies import EpsilonGreedy, Softmax, Uniform

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
