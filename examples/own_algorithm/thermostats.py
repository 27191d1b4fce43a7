"""Thermostats that learn one policy together, each in its own house: a Gymnasium environment, and a problem.

    fedhsa run --problem examples/own_algorithm/thermostats.py:build --algorithm FedHSA LocalSA --step-size 0.02

Houses differ in how fast they cool down and in how strong their heaters are, so that the thermostats would learn
different policies alone.
"""

import functools
import math

import equinox as eqx
import gymnasium
import jax
import numpy as np

import fedhsa as fh
from fedhsa.environments import Categorical
from fedhsa.problems import policy_gradient

WISH, COLD, SWING = 20.0, 4.0, 5.0
"""Degrees: the desired temperature, the mean outdoor temperature, and its rise by day."""
HOURS, STEP = 24.0, 1.0
"""The hours of an episode, and of one step."""
FUEL = 0.1
"""The cost of full heating for an hour; a deviation of one degree costs 0.2."""


class House(gymnasium.Env):
    """One day in a house: every hour the heater is set to off, half or full.

    **Arguments:**

    - `hours`: the time in which the house loses 63 % of the temperature difference to outdoors.
    - `heater`: degrees that full heating adds in an hour.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, hours: float, heater: float):
        self.hours, self.heater = hours, heater

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.inside = 0.0, WISH + 3 * self.np_random.normal()
        return self._seen(), {}

    def step(self, action):
        outdoors = COLD - SWING * math.cos(2 * math.pi * self.time / 24)
        gain = self.heater * action / 2 - (self.inside - outdoors) / self.hours
        self.inside += STEP * gain + 0.3 * self.np_random.normal()
        self.time += STEP
        reward = 1 - 0.2 * abs(self.inside - WISH) - FUEL * action / 2
        return self._seen(), reward, self.time >= HOURS, False, {}

    def _seen(self):
        """Returns the excess temperature in units of 5 degrees, and the position of the sun."""
        turn = 2 * math.pi * self.time / 24
        return np.array([(self.inside - WISH) / 5, math.sin(turn), math.cos(turn)])


def build(num_agents: int = 4, batch: int = 8, evaluation_episodes: int = 16) -> fh.Problem:
    """Returns houses from a hut with a strong stove to a thick-walled house with a weak stove; they share one softmax
    policy, linear in the observation."""
    part = np.linspace(0, 1, num_agents)
    makers = [
        functools.partial(House, hours, heater) for hours, heater in zip(4 + 16 * part, 10 - 8 * part, strict=True)
    ]
    linear = eqx.nn.Linear(3, 3, key=jax.random.key(0))
    policy = Categorical(jax.tree.map(np.zeros_like, linear))  # initially all actions have equal probability
    return policy_gradient.from_gymnasium(
        makers, policy, horizon=round(HOURS / STEP), batch=batch, evaluation_episodes=evaluation_episodes
    )
