"""Random decision processes, and the small examples of papers and textbooks."""

import numpy as np

from .. import _check
from .._generate import blend, lazy, normalised, per_agent
from .._random import Stream, host_generator
from .._types import SeedLike
from ._garnet import garnet as garnet
from .model import DOWN, LEFT, RIGHT, UP, Model

__all__ = ["fedsarsa", "garnet", "one_action_each", "random", "random_walk", "two_state", "windy_cliff"]

MOVES = {LEFT: (0, -1), DOWN: (1, 0), RIGHT: (0, 1), UP: (-1, 0)}
"""The numbers of rows and columns by which each action moves."""


def random(
    num_agents: int = 10,
    num_states: int = 10,
    num_actions: int = 3,
    *,
    discount: float = 0.9,
    laziness: float = 0.0,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Model:
    r"""Dense random decision processes: an action can lead anywhere.

    Rows of transitions are uniform numbers divided by their sum, and rewards of actions are $U[0, 1]$. Such processes
    mix almost immediately; `laziness` is the probability that an action does not change the state, which slows them
    down by `1 / (1 - laziness)`.

    **Arguments:**

    - `num_agents`: more agents with the same key extend the model instead of changing it.
    - `heterogeneity`: 0 makes all agents equal, 1 independent; in between, transitions and rewards are mixed with
      common ones.

    !!! example
        >>> random(num_agents=2, heterogeneity=0.0).optimal().std(0).max()
        np.float64(0.0)
    """
    shape = _check.count("num_states", num_states), _check.count("num_actions", num_actions)
    P = blend(
        lambda rng, count: normalised(rng.random((count, *shape, num_states))), "kernel", num_agents, heterogeneity, key
    )
    R = blend(lambda rng, count: rng.random((count, *shape)), "reward", num_agents, heterogeneity, key)
    return Model(lazy(P.swapaxes(1, 2), laziness).swapaxes(1, 2), R, discount)


def random_walk(
    num_agents: int = 10,
    num_states: int = 5,
    *,
    spread: float = 0.0,
    discount: float = 1.0,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Model:
    r"""The random walk of Sutton and Barto's Example 6.2: left or right with equal chances until an end is reached.

    Episodes begin in the middle; the right end gives the reward 1. There is one action. The states are those of the
    walk and an end on either side, `num_states + 2` in total.

    **Arguments:**

    - `spread`: agent $i$ goes right with probability $1/2 + \delta_i$, where $\delta_i$ is uniform between
      `-heterogeneity * spread` and `heterogeneity * spread`. The book's walk has no spread.

    !!! example
        >>> (6 * random_walk(num_agents=1).values()[0]).round(9)
        array([0., 1., 2., 3., 4., 5., 0.])
    """
    S = _check.count("num_states", num_states) + 2
    right = vary(("chance", 0.5), ("spread", spread), "walk", num_agents, heterogeneity, key)
    P, R = np.zeros((num_agents, S, 1, S)), np.zeros((num_agents, S, 1, S))
    inner = np.arange(1, S - 1)
    P[:, inner, 0, inner + 1] = right[:, None]
    P[:, inner, 0, inner - 1] = 1 - right[:, None]
    R[:, S - 2, 0, S - 1] = 1.0
    ends, middle = np.isin(np.arange(S), (0, S - 1)), S // 2
    cells = "E" + "".join("S" if s == middle else "." for s in inner) + "G"
    return Model(P, R, discount, middle, ends, grid=(1, S), actions=("step",), cells=cells)


def windy_cliff(
    num_agents: int = 5,
    rows: int = 4,
    columns: int = 4,
    *,
    wind: float = 0.5,
    discount: float = 0.95,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Model:
    r"""A path along a cliff, in a wind that pushes down, with another strength for each agent.

    The path leads from the lower left corner to the goal in the lower right corner; the cells between them are the
    cliff. With probability $w_i / 3$ the wind turns an action of agent $i$ into a move down. The reward depends on the
    cell in which an action is taken: 100 at the goal, -100 on the cliff, -1 elsewhere. From the goal and from the
    cliff every action leads back to the start, without ending an episode. This follows the paper's public code, which
    also gives agent 0 the common wind.

    **Arguments:**

    - `wind`: the common strength, in [0, 1].
    - `heterogeneity`: the paper's $\kappa$: $w_i = (1 - \kappa) w + \kappa u_i$ with $u_i \sim U[0, 1]$.

    !!! example
        >>> windy_cliff(num_agents=1, heterogeneity=0.0).optimal()[0, 12].max().round(2)
        np.float64(133.97)

    !!! cite "Jin et al. (2022), Federated reinforcement learning with environment heterogeneity, AISTATS"
    """
    if _check.count("rows", rows) < 2 or _check.count("columns", columns) < 2:
        raise ValueError(f"`rows` and `columns` must be at least 2, got {rows} and {columns}.")
    _check.number("wind", wind, least=0.0, most=1.0)
    _check.number("heterogeneity", heterogeneity, least=0.0, most=1.0)
    actions = (UP, DOWN, LEFT, RIGHT)
    sure, fall = (_grid_moves(rows, columns, some) for some in (actions, (DOWN,) * 4))
    own = per_agent(lambda rng, count: rng.random(count), "wind", num_agents, key)
    strength = (1 - heterogeneity) * wind + heterogeneity * own
    P = sure + strength[:, None, None, None] / 3 * (fall - sure)
    start, goal = (rows - 1) * columns, rows * columns - 1
    P[:, start + 1 :] = np.eye(rows * columns)[start]
    worth = np.full(rows * columns, -1.0)
    worth[start + 1 : goal], worth[goal] = -100.0, 100.0
    R = np.broadcast_to(worth[:, None], (num_agents, rows * columns, 4))
    cells = "." * start + "S" + "C" * (columns - 2) + "G"
    return Model(P, R, discount, start, grid=(rows, columns), actions=actions, cells=cells)


def two_state(
    num_agents: int = 20,
    num_actions: int = 20,
    *,
    stay: tuple[float, float] = (0.4, 0.6),
    discount: float = 0.9,
    heterogeneity: float = 0.0,
    key: SeedLike = 0,
) -> Model:
    r"""Two states and many actions that differ in how likely they stay; being in the second is worth 1 a step.

    By default the process is the same for all agents, as in the paper. There, agents differ in their behaviour: each
    takes only one action (see `one_action_each`).

    **Arguments:**

    - `stay`: the probabilities of staying in a state under an action are uniform between these two numbers.

    !!! example
        >>> model = two_state(num_agents=20)
        >>> model.action_rewards()[0, :, 0]
        array([0., 1.])

    !!! cite "Woo, Joshi, Chi (2023), The blessing of heterogeneity in federated Q-learning, ICML, appendix A"
    """
    _check.count("num_actions", num_actions)
    _check.number("stay", stay, least=0.0, most=1.0)
    low, high = stay
    if low > high:
        raise ValueError(f"`stay` must give the lower chance first, got {stay}.")
    stays = blend(
        lambda rng, count: rng.uniform(low, high, (count, 2, num_actions)), "stay", num_agents, heterogeneity, key
    )
    here, there = np.eye(2)[:, None], np.eye(2)[::-1][:, None]
    P = stays[..., None] * here + (1 - stays[..., None]) * there
    R = np.zeros((num_agents, 2, num_actions))
    R[:, 1] = 1.0
    return Model(P, R, discount)


def one_action_each(model: Model) -> np.ndarray:
    """The policy `(M, S, A)` in which agent `i` always takes action `i` modulo the number of actions.

    !!! example
        >>> one_action_each(two_state(num_agents=2, num_actions=3))[:, 0]
        array([[1., 0., 0.],
               [0., 1., 0.]])
    """
    taken = np.eye(model.num_actions)[np.arange(model.num_agents) % model.num_actions]
    return np.repeat(taken[:, None], model.num_states, axis=1)


def fedsarsa(
    num_agents: int = 10,
    num_states: int = 100,
    num_actions: int = 100,
    *,
    perturbation: float = 0.1,
    reward_perturbation: float = 0.1,
    max_reward: float = 100.0,
    discount: float = 0.2,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
) -> Model:
    r"""Copies of one dense random process, every transition and every reward perturbed in proportion to itself.

    The first agent has the unperturbed process: rows of uniform numbers divided by their sum, and rewards of
    states $U[0, 1]$ times `max_reward`. Action $a$ moves from state $s$ as action 0 does from $s - a$, counted around,
    as in the paper's public code. The others have $P (1 + \epsilon_p u)$, divided by its sums, with
    $u \sim U[-1, 1]$, and $R (1 + \epsilon_r z)$ with $z \sim N(0, 1)$; where $\epsilon_p > 1$, factors below 0
    count as 0.

    **Arguments:**

    - `perturbation`, `reward_perturbation`: $\epsilon_p$ and $\epsilon_r$, which `heterogeneity` multiplies.

    !!! example
        >>> model = fedsarsa(num_agents=2, num_states=5, num_actions=3)
        >>> bool((model.transitions[0, 3, 2] == model.transitions[0, 1, 0]).all())
        True

    !!! cite "Zhang, Wang, Mitra, Anderson (2024), Finite-time analysis of on-policy heterogeneous federated
    reinforcement learning, ICLR, arXiv:2401.15273"
    """
    M, S, A = (
        _check.count(name, value)
        for name, value in (("num_agents", num_agents), ("num_states", num_states), ("num_actions", num_actions))
    )
    _check.number("heterogeneity", heterogeneity, least=0.0, most=1.0)
    _check.number("perturbation", perturbation, least=0.0)
    _check.number("reward_perturbation", reward_perturbation, least=0.0)
    rng = host_generator(key, "fedsarsa", Stream.COMMON)
    weights, reward = rng.random((S, S)), max_reward * rng.random(S)
    change = per_agent(lambda rng, count: rng.uniform(-1, 1, (count, S, S)), "fedsarsa kernel", M, key)
    noise = per_agent(lambda rng, count: rng.standard_normal((count, S)), "fedsarsa reward", M, key)
    change[0], noise[0] = 0.0, 0.0  # the first agent has the unperturbed process
    P = normalised(weights * (1 + heterogeneity * perturbation * change).clip(min=0))
    R = reward * (1 + heterogeneity * reward_perturbation * noise)
    behind = (np.arange(S)[:, None] - np.arange(A)) % S
    return Model(P[:, behind], np.repeat(R[..., None], A, axis=-1), discount)


def vary(
    chance: tuple[str, float],
    spread: tuple[str, float],
    path: str,
    num_agents: int,
    heterogeneity: float,
    key: SeedLike,
) -> np.ndarray:
    """Returns a probability for each agent, uniform within `heterogeneity * spread` of a common value, `(M,)`.

    The probability and the spread are passed with their names, for errors.
    """
    common, (name, most) = chance[1], spread
    _check.number(*chance, least=0.0, most=1.0)
    _check.number("heterogeneity", heterogeneity, least=0.0, most=1.0)
    _check.number(name, most, least=0.0)
    reach = heterogeneity * most
    if not 0 <= common - reach <= common + reach <= 1:
        raise ValueError(
            f"`{name}` must keep chances between 0 and 1, but `{chance[0]}` {common:.3g} plus or minus {reach:.3g} "
            f"does not. Lower `{name}`."
        )
    return common + reach * per_agent(lambda rng, count: rng.uniform(-1, 1, count), path, num_agents, key)


def _grid_moves(rows: int, columns: int, actions: tuple[str, ...]) -> np.ndarray:
    """Returns deterministic moves on a grid `(S, A, S)`; a move that would leave the grid has no effect."""
    place = np.stack(np.divmod(np.arange(rows * columns), columns), axis=-1)
    moves = np.array([MOVES[action] for action in actions])
    row, column = np.moveaxis((place[:, None] + moves).clip(0, (rows - 1, columns - 1)), -1, 0)
    return np.eye(rows * columns)[row * columns + column]
