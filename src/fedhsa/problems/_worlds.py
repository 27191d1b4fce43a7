"""Shared parts of the random problems in environments: models by name, random features, and random policies."""

from typing import Any

import numpy as np

from .. import _check
from .._generate import blend
from .._random import host_generator
from .._types import SeedLike
from ..environments import Model, make


def world(environment: str, num_agents: int, heterogeneity: float, key: SeedLike, options: dict[str, Any]) -> Model:
    """Returns the model of an environment by its name."""
    common = {"num_agents": num_agents, "heterogeneity": heterogeneity, "key": key}
    return make(environment, common | options)


def random_features(rows: tuple[int, ...], dim: int | None, key: SeedLike) -> np.ndarray | None:
    """Returns this number of features, all between 0 and 1, with rows of norm 1; None for a table."""
    if dim is None:
        return None
    features = host_generator(key, "features").random((*rows, _check.count("dim", dim)))
    return features / np.linalg.norm(features, axis=-1, keepdims=True)


def random_policies(model: Model, name: str, key: SeedLike, heterogeneity: float = 0.0) -> np.ndarray:
    """Returns random positive probabilities of actions, from equal for all agents to independent: `(M, S, A)`."""
    ones = np.ones(model.num_actions)

    def draw(rng, count):
        return rng.dirichlet(ones, size=(count, model.num_states))

    drawn = blend(draw, name, model.num_agents, heterogeneity, key)
    return 0.5 * drawn + 0.5 / model.num_actions


def off_policy_world(
    environment: str, num_agents: int, dim: int | None, heterogeneity: float, key: SeedLike, options: dict[str, Any]
) -> tuple[Model, np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns a model, a policy to evaluate, a behaviour for each agent, and features of states."""
    model = world(environment, num_agents, heterogeneity, key, options)
    target = random_policies(model, "target", key)
    behaviour = random_policies(model, "behaviour", key, heterogeneity)
    return model, target, behaviour, random_features((model.num_states,), dim, key)
