"""What the random problems in environments share: the model by name, features by number, policies by chance."""

from typing import Any

import numpy as np

from .. import _check
from .._generate import blend
from .._random import host_generator
from .._types import SeedLike
from ..environments import Model, make


def world(environment: str, num_agents: int, heterogeneity: float, key: SeedLike, options: dict[str, Any]) -> Model:
    """The model of an environment, by its name."""
    common = {"num_agents": num_agents, "heterogeneity": heterogeneity, "key": key}
    return make(environment, common | options)


def random_features(rows: tuple[int, ...], dim: int | None, key: SeedLike) -> np.ndarray | None:
    """Features of that number, all between 0 and 1 and of length 1 for each row; None for a table."""
    if dim is None:
        return None
    features = host_generator(key, "features").random((*rows, _check.count("dim", dim)))
    return features / np.linalg.norm(features, axis=-1, keepdims=True)


def random_policies(model: Model, name: str, key: SeedLike, heterogeneity: float = 0.0) -> np.ndarray:
    """Chances of actions, all different and none zero, from the same for all to each agent's own: `(M, S, A)`."""
    ones = np.ones(model.num_actions)

    def draw(rng, count):
        return rng.dirichlet(ones, size=(count, model.num_states))

    drawn = blend(draw, name, model.num_agents, heterogeneity, key)
    return 0.5 * drawn + 0.5 / model.num_actions


def off_policy_world(
    environment: str, num_agents: int, dim: int | None, heterogeneity: float, key: SeedLike, options: dict[str, Any]
) -> tuple[Model, np.ndarray, np.ndarray, np.ndarray | None]:
    """A model, a policy to evaluate, behaviours of the agents' own, and features of states."""
    model = world(environment, num_agents, heterogeneity, key, options)
    target = random_policies(model, "target", key)
    behaviour = random_policies(model, "behaviour", key, heterogeneity)
    return model, target, behaviour, random_features((model.num_states,), dim, key)
