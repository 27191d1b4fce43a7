"""Gymnasium's toy-text environments as exact models, read from the transition tables of the games."""

from typing import Any, NamedTuple

import numpy as np

from .. import _check
from .._extras import install
from .._generate import per_agent
from .._random import Stream, host_generator
from .._types import SeedLike
from .model import ARROWS, DOWN, LEFT, RIGHT, UP, Model
from .worlds import vary

__all__ = ["cliff_walking", "frozen_lake", "taxi"]

ATTEMPTS = 1000
"""The largest number of mixtures of two maps that are drawn to find one with a path to the goal."""
SLIPPERY = 2 / 3
"""The probability with which Gymnasium's slippery floor moves an agent sideways."""
LAYOUTS = ("4x4", "8x8", "random", "own")


def frozen_lake(
    num_agents: int = 10,
    layout: str = "4x4",
    *,
    slipperiness: float = SLIPPERY,
    slip_spread: float = 1 / 3,
    reward_spread: float = 0.0,
    size: int = 4,
    frozen: float = 0.8,
    discount: float = 0.95,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Model:
    r"""Gymnasium's FrozenLake: a walk over slippery ice to the goal, around the holes.

    **Arguments:**

    - `layout`: Gymnasium's `"4x4"` or `"8x8"`, `"random"` for one random map, or `"own"` for one per agent.
    - `slipperiness`: the chance to move sideways instead of ahead; Gymnasium's ice has 2/3.
    - `slip_spread`: agents' slipperiness is uniform up to `heterogeneity * slip_spread` away from the common one.
    - `reward_spread`: each agent multiplies each reward of the game by a factor, uniform up to
      `heterogeneity * reward_spread` away from 1.
    - `size`, `frozen`: rows and columns of random maps, and the chance that a cell is frozen.
    - `heterogeneity`: 0 makes all agents equal. With `"own"`, it is the part of each map that is random
      for each agent; the rest is common.

    !!! example
        >>> model = frozen_lake(num_agents=2, heterogeneity=0.0)
        >>> model.grid, model.cells[0]
        ((4, 4), 'S....H.H...HH..G')
        >>> model.optimal()[0, 0].max().round(3)         # the discounted probability of reaching the goal
        np.float64(0.18)
    """
    toy = _toy_text()
    _check.choice("layout", layout, LAYOUTS)
    slip = vary(("slipperiness", slipperiness), ("slip_spread", slip_spread), "slip", num_agents, heterogeneity, key)
    maps = _maps(toy, layout, num_agents, size, frozen, heterogeneity, key)
    tables = {
        rows: (_table(toy.FrozenLakeEnv(desc=rows, is_slippery=False)), _table(toy.FrozenLakeEnv(desc=rows)))
        for rows in set(maps)
    }
    mixed = [_between(*tables[rows], chance / SLIPPERY) for rows, chance in zip(maps, slip, strict=True)]
    cells = ["".join(rows).replace("F", ".") for rows in maps]
    grid = len(maps[0]), len(maps[0][0])
    return _model(mixed, reward_spread, heterogeneity, key, discount, grid=grid, actions=ARROWS, cells=cells)


def cliff_walking(
    num_agents: int = 10,
    *,
    wind: float = 0.1,
    wind_spread: float = 0.1,
    slipperiness: float = 0.0,
    slip_spread: float = 0.0,
    reward_spread: float = 0.0,
    discount: float = 0.95,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Model:
    r"""Gymnasium's CliffWalking with wind: a walk along a cliff to the goal; a fall leads back to the start.

    The cells of the cliff are states that are never entered. Where a move and a fall both lead to the start, the reward
    of that transition is their mean.

    **Arguments:**

    - `wind`: the chance that the wind turns an action into a move down. Gymnasium's game has none.
    - `wind_spread`: agents' wind is uniform up to `heterogeneity * wind_spread` away from the common one.
    - `slipperiness`: the chance to move sideways instead of ahead; Gymnasium's slippery version has 2/3.
    - `slip_spread`, `reward_spread`: as for `frozen_lake`.

    !!! example
        >>> calm = cliff_walking(num_agents=1, wind=0.0, heterogeneity=0.0)
        >>> calm.returns(calm.greedy(calm.optimal())).round(2)         # 13 steps along the edge
        array([-9.73])
    """
    toy = _toy_text()
    slip = vary(("slipperiness", slipperiness), ("slip_spread", slip_spread), "slip", num_agents, heterogeneity, key)
    blows = vary(("wind", wind), ("wind_spread", wind_spread), "wind", num_agents, heterogeneity, key)
    sure, slippery = (_table(toy.CliffWalkingEnv(is_slippery=slips)) for slips in (False, True))
    actions = (UP, RIGHT, DOWN, LEFT)
    down = [actions.index(DOWN)] * 4
    pushed = sure._replace(chances=sure.chances[:, :, down])
    walked = [_between(sure, slippery, chance / SLIPPERY) for chance in slip]
    mixed = [_between(table, pushed, strength) for table, strength in zip(walked, blows, strict=True)]
    cells = "." * 36 + "S" + "C" * 10 + "G"
    return _model(mixed, reward_spread, heterogeneity, key, discount, grid=(4, 12), actions=actions, cells=cells)


def taxi(
    num_agents: int = 4,
    *,
    rain: float = 0.2,
    rain_spread: float = 0.2,
    reward_spread: float = 0.0,
    discount: float = 0.95,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Model:
    r"""Gymnasium's Taxi: fetch passengers and drive them to their destinations.

    Episodes visit 404 of its 500 states. In the others the passenger is at the destination before the ride; only in
    these states the model ends an episode that the game would continue. Each agent takes 12 MB.

    **Arguments:**

    - `rain`: the chance to be driven sideways instead of ahead; Gymnasium's rainy version has 0.2, its dry one none.
    - `rain_spread`: agents' rain is uniform up to `heterogeneity * rain_spread` away from the common one.
    - `reward_spread`: as for `frozen_lake`.

    !!! example
        >>> dry = taxi(num_agents=1, rain=0.0, heterogeneity=0.0)
        >>> dry.optimal()[0].max()         # about to drop the passenger off
        np.float64(20.0)
    """
    toy = _toy_text()
    wet = vary(("rain", rain), ("rain_spread", rain_spread), "rain", num_agents, heterogeneity, key)
    dry, rainy = (_table(toy.TaxiEnv(is_rainy=rains)) for rains in (False, True))
    # The effect of rain is read from the table: heading south from the upper right corner.
    full = 1 - rainy.chances.sum(0)[80, 0, 180]
    mixed = [_between(dry, rainy, chance / full) for chance in wet]
    actions = ("south", "north", "east", "west", "pick up", "drop off")
    return _model(mixed, reward_spread, heterogeneity, key, discount, actions=actions, on_actions=True)


class _Table(NamedTuple):
    """A game: the probabilities of the rewards and next states after an action."""

    rewards: np.ndarray
    """`(K,)`, all possible rewards."""
    chances: np.ndarray
    """`(K, S, A, S)`."""
    start: np.ndarray
    """`(S,)`."""
    ends: np.ndarray
    """`(S,)`."""


def _table(game: Any) -> _Table:
    outcomes = [
        (float(reward), state, action, int(new), chance, ended)
        for state, row in game.P.items()
        for action, outcomes in row.items()
        for chance, new, reward, ended in outcomes
    ]
    rewards, which = np.unique([outcome[0] for outcome in outcomes], return_inverse=True)
    S, A = len(game.P), len(game.P[0])
    chances, ends = np.zeros((len(rewards), S, A, S)), np.zeros(S, dtype=bool)
    for k, (_, state, action, new, chance, ended) in zip(which, outcomes, strict=True):
        chances[k, state, action, new] += chance
        ends[new] |= ended
    return _Table(rewards, chances, game.initial_state_distrib, ends)


def _between(first: _Table, second: _Table, part: float) -> _Table:
    """Returns a mixture of two games, with weight `part` on the second.

    Probabilities are affine in the slipperiness, so `part` may exceed 1 as long as no probability becomes negative.
    """
    chances = (1 - part) * first.chances + part * second.chances
    return first._replace(chances=np.where(chances < 1e-12, 0.0, chances))  # rounding errors become exactly 0


def _model(
    games: list[_Table],
    reward_spread: float,
    heterogeneity: float,
    key: SeedLike,
    discount: float,
    *,
    on_actions: bool = False,
    **details: Any,
) -> Model:
    """Returns a model with a game and rewards for each agent; rewards are per action if only the action decides."""
    _check.number("reward_spread", reward_spread, least=0.0)
    reach = heterogeneity * reward_spread
    shape = games[0].rewards.shape
    factors = 1 + reach * per_agent(lambda rng, count: rng.uniform(-1, 1, (count, *shape)), "reward", len(games), key)
    P = np.stack([game.chances.sum(0) for game in games])
    earned = np.stack(
        [np.tensordot(own * game.rewards, game.chances, 1) for own, game in zip(factors, games, strict=True)]
    )
    R = earned.sum(-1) if on_actions else earned / np.where(P > 0, P, 1.0)
    start, ends = np.stack([game.start for game in games]), np.stack([game.ends for game in games])
    return Model(P, R, discount, start, ends, **details)


def _maps(
    toy: Any, layout: str, num_agents: int, size: int, frozen: float, heterogeneity: float, key: SeedLike
) -> list[tuple[str, ...]]:
    """Returns the map of each agent: Gymnasium's map, a random map, or a map that is partly random for each agent."""
    lake = toy.frozen_lake
    _check.count("size", size, least=2)
    _check.number("frozen", frozen, above=0.0, most=1.0)
    if layout in lake.MAPS:
        return [tuple(lake.MAPS[layout])] * num_agents

    def draw(agent: int) -> np.ndarray:
        seed = int(host_generator(key, "map", agent).integers(2**31))
        return np.array([list(row) for row in lake.generate_random_map(size, frozen, seed)])

    common = draw(Stream.COMMON)
    if layout == "random":
        return [tuple("".join(row) for row in common)] * num_agents
    maps = []
    for agent in range(num_agents):
        rng, own = host_generator(key, "mixture", agent), draw(agent)
        for _ in range(ATTEMPTS):
            mixture = np.where(rng.random(own.shape) < heterogeneity, own, common)
            if lake.is_valid(mixture.tolist(), size):
                break
        else:
            raise ValueError(f"`frozen` must be higher, got {frozen}: no mixture of two maps has a way to the goal.")
        maps.append(tuple("".join(row) for row in mixture))
    return maps


def _toy_text() -> Any:
    try:
        from gymnasium.envs import toy_text
    except ImportError as error:
        raise ImportError(f"This environment comes from Gymnasium: {install('gym')}.") from error
    return toy_text
