"""Finite models of decision processes, one for each agent, with exact values of policies."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from .. import _check
from ..sources.finite import start_law

ROW_SUM_TOLERANCE = 1e-9
GREEDY_TOLERANCE = 1e-10
"""Actions whose values differ by less, relative to the largest, are equally good."""
LEFT, DOWN, RIGHT, UP = ARROWS = ("\u2190", "\u2193", "\u2192", "\u2191")
"""Names of the actions that move on a grid; pictures draw them as arrows."""
CELLS = {"S": "start", "G": "goal", "H": "hole", "C": "cliff", "E": "end", ".": ""}
"""What the letters of `Model.cells` stand for."""


class Chain(NamedTuple):
    """A model under a policy, as a chain in which a new episode begins when one has ended."""

    transition: np.ndarray
    """`(M, N, N)`, over states or over pairs of state and action, the action running faster."""
    rewards: np.ndarray
    """`(M, N, N)`, on a transition."""
    discount: np.ndarray
    """`(M, N)`, on entering: 0 where an episode ends."""
    start: np.ndarray
    """`(M, N)`, the distribution of the first entry."""
    states: np.ndarray
    """`(M, N)`, the state whose value and actions count there; -1 where there are none, between two episodes."""


class ContinuingModel(NamedTuple):
    """A model as a continuing task, in which episodes follow each other."""

    transitions: np.ndarray
    """`(M, S, A, S)`."""
    rewards: np.ndarray
    """`(M, S, A, S)`."""
    discount: np.ndarray
    """`(M, S)`, on entering: 0 where an episode ends."""
    states: np.ndarray
    """`(M, S)`, the state whose values and actions count there; -1 where there are none, between two episodes."""


class Model(eqx.Module):
    r"""Decision processes with $S$ states and $A$ actions, one for each of $M$ agents.

    **Arguments:**

    - `transitions`: $P(s' \mid s, a)$, `(M, S, A, S)`, or `(S, A, S)` for one agent. Rows of states that end an
      episode are not used.
    - `rewards`: on an action, `(M, S, A)`, or on a transition, `(M, S, A, S)`.
    - `discount`: $\gamma$ in [0, 1], one number or `(M,)`; 1 only if every episode ends.
    - `start`: the first state of an episode, or its distribution `(S,)` or `(M, S)`. Default: uniform over the states
      that do not end an episode.
    - `ends`: states that end an episode, `(S,)` or `(M, S)`, true or false. Default: none.
    - `grid`: rows and columns for pictures, if the states are the cells of a grid.
    - `actions`: names of the actions. Those in `ARROWS` are moves on the grid.
    - `cells`: what the states of an agent are, one letter of `CELLS` each, for pictures: one string, or one per agent.
      Default: `E` where an episode ends, `S` where all episodes begin, and nothing elsewhere.

    Raises `ValueError` if an array has a wrong shape, a row of `transitions` does not sum to 1, or a discount is 1 for
    an agent whose episodes may not end.

    !!! example
        >>> stay, move = np.eye(2), np.eye(2)[::-1]
        >>> model = Model(np.stack([stay, move], axis=1), rewards=[[0.0, 0.0], [1.0, 0.0]], discount=0.9)
        >>> model.optimal()[0].round(2)         # move to the second state, stay there
        array([[ 8.1,  9. ],
               [10. ,  8.1]])
    """

    transitions: np.ndarray
    rewards: np.ndarray
    discount: np.ndarray
    start: np.ndarray
    ends: np.ndarray
    grid: tuple[int, int] | None = eqx.field(static=True)
    actions: tuple[str, ...] = eqx.field(static=True)
    cells: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        transitions: Any,
        rewards: Any,
        discount: Any,
        start: Any = None,
        ends: Any = None,
        grid: tuple[int, int] | None = None,
        actions: Sequence[str] | None = None,
        cells: str | Sequence[str] | None = None,
    ):
        if np.ndim(transitions) == 3:
            transitions, rewards = np.asarray(transitions)[None], np.asarray(rewards)[None]
        sizes: dict[str, int] = {}
        self.transitions = _check.array("transitions", transitions, ("M", "S", "A", "S"), sizes)
        on_action = np.ndim(rewards) == 3
        self.rewards = _check.array("rewards", rewards, ("M", "S", "A") if on_action else ("M", "S", "A", "S"), sizes)
        M, S, A = self.transitions.shape[:3]
        self.discount = _per_agent("discount", np.asarray(discount, dtype=np.float64), (M,))
        _check.number("discount", self.discount, least=0.0, most=1.0)
        self.ends = _per_agent("ends", np.zeros(S, bool) if ends is None else np.asarray(ends, dtype=bool), (M, S))
        if self.ends.all(-1).any():
            raise ValueError("`ends` must leave a state in which an agent can act.")
        self.start = _start(start, self.ends)
        self.grid = None if grid is None else (int(grid[0]), int(grid[1]))
        self.actions = tuple(actions or (str(a) for a in range(A)))
        self.cells = _cells(cells, self.ends, self.start)
        _check_model(self)

    @property
    def num_agents(self) -> int:
        """$M$."""
        return len(self.transitions)

    @property
    def num_states(self) -> int:
        """$S$."""
        return self.transitions.shape[1]

    @property
    def num_actions(self) -> int:
        """$A$."""
        return self.transitions.shape[2]

    @property
    def decision_states(self) -> np.ndarray:
        """The states in which some agent takes an action, reachable from where its episodes begin."""
        leads = self.transitions.any(2) & ~self.ends[..., None]
        reached = self.start > 0
        while (more := reached | (reached[..., None] & leads).any(1)).sum() > reached.sum():
            reached = more
        return np.flatnonzero((reached & ~self.ends).any(0))

    def take(self, agents: Any) -> "Model":
        """The model of a subset of the agents."""
        agents = np.arange(self.num_agents)[np.atleast_1d(agents)]
        P, R, discount, start, ends = (
            array[agents] for array in (self.transitions, self.rewards, self.discount, self.start, self.ends)
        )
        return Model(P, R, discount, start, ends, self.grid, self.actions, [self.cells[i] for i in agents])

    def average(self) -> "Model":
        r"""One model: the averaged transitions, and rewards whose mean on every action is the average.

        Raises `ValueError` unless all agents have the same discount, start and ends.
        """
        for name in ("discount", "start", "ends"):
            if (getattr(self, name) != getattr(self, name)[:1]).any():
                raise ValueError(f"The models cannot be averaged: agents differ in `{name}`.")
        same = (self.discount[:1], self.start[:1], self.ends[:1], self.grid, self.actions, self.cells[:1])
        return Model(self.transitions.mean(0)[None], self.action_rewards().mean(0)[None], *same)

    def uniform(self) -> np.ndarray:
        """The uniform policy, `(M, S, A)`."""
        return np.full(self.transitions.shape[:3], 1 / self.num_actions)

    def policy(self, policy: Any = None) -> np.ndarray:
        """A policy as `(M, S, A)`: from one for all agents `(S, A)`, or from actions `(S,)`; by default uniform."""
        if policy is None:
            return self.uniform()
        S, A = self.num_states, self.num_actions
        if np.ndim(policy) == 1:
            chosen = np.asarray(policy)
            if chosen.shape != (S,) or not np.isin(chosen, np.arange(A)).all():
                raise ValueError(f"`policy` must give one of the actions 0 to {A - 1} for each of {S} states.")
            policy = np.eye(A)[chosen.astype(int)]
        policy = _per_agent("policy", np.asarray(policy, dtype=np.float64), (self.num_agents, S, A))
        if (policy < 0).any() or (abs(policy.sum(-1) - 1) > ROW_SUM_TOLERANCE).any():
            raise ValueError(f"`policy` must be chances of the {A} actions that add up to 1 in every state.")
        return policy

    def action_rewards(self) -> np.ndarray:
        """The mean reward of every action, `(M, S, A)`."""
        return self.rewards if self.rewards.ndim == 3 else (self.transitions * self.rewards).sum(-1)

    def values(self, policy: Any = None) -> np.ndarray:
        r"""$V^\pi$, `(M, S)`; 0 where an episode has ended."""
        policy = self.policy(policy)
        rewards = np.where(self.ends, 0.0, (policy * self.action_rewards()).sum(-1))
        kernel = np.einsum("msa,msat->mst", policy, self.going_on())
        return np.linalg.solve(np.eye(self.num_states) - kernel, rewards[..., None])[..., 0]

    def action_values(self, policy: Any = None) -> np.ndarray:
        r"""$Q^\pi$, `(M, S, A)`."""
        ahead = self.action_rewards() + np.einsum("msat,mt->msa", self.going_on(), self.values(policy))
        return np.where(self.ends[..., None], 0.0, ahead)

    def optimal(self) -> np.ndarray:
        r"""$Q^\star$, `(M, S, A)`, by policy iteration, which ends with the exact solution."""
        policy = self.uniform()
        while True:
            Q = self.action_values(policy)
            better = Q.max(-1) > (policy * Q).sum(-1) + GREEDY_TOLERANCE * (1 + abs(Q).max())
            if not better.any():
                return Q
            policy = np.where(better[..., None], np.eye(self.num_actions)[Q.argmax(-1)], policy)

    def greedy(self, Q: Any) -> np.ndarray:
        """The policy `(M, S, A)` that takes the best actions of a table `(S, A)` or `(M, S, A)`; ties share equally."""
        Q = _per_agent("Q", np.asarray(Q, dtype=np.float64), self.transitions.shape[:3])
        slack = GREEDY_TOLERANCE * (1 + abs(Q).max())
        best = Q + slack >= Q.max(-1, keepdims=True)
        return best / best.sum(-1, keepdims=True)

    def returns(self, policy: Any = None) -> np.ndarray:
        """The expected discounted return of an episode, or of an endless run, in each model, `(M,)`."""
        return (self.start * self.values(policy)).sum(-1)

    def continuing(self) -> ContinuingModel:
        """The model as a continuing task: a new episode begins when one has ended.

        If all episodes begin in the same state, the state that ends an episode is the first of the next, so that no
        step is lost; otherwise one step, with any action, leads from it to the start of the next episode.
        """
        rows, certain = np.arange(self.num_agents)[:, None], (self.start == 1).any(-1, keepdims=True)
        first = np.where(certain, self.start.argmax(-1)[:, None], -1)
        states = np.where(self.ends, first, np.arange(self.num_states))
        own, idle = np.where(states < 0, 0, states), (states < 0)[..., None, None]
        P = np.where(idle, self.start[:, None, None, :], self.transitions[rows, own])
        rewards = self.rewards if self.rewards.ndim == 4 else np.broadcast_to(self.rewards[..., None], P.shape)
        discount = np.where(self.ends, 0.0, self.discount[:, None])
        return ContinuingModel(P, np.where(idle, 0.0, rewards[rows, own]), discount, states)

    def chain(self, policy: Any = None, *, pairs: bool = False) -> Chain:
        """The chain of an agent that follows the policy, over states or over pairs of state and action."""
        policy, (P, R, discount, states) = self.policy(policy), self.continuing()
        M, S, A = policy.shape
        policy = at_states(policy, states, 1 / A)
        if pairs:
            # Into (s', a') with the chance of s' times that of a' there.
            kernel = (P[..., None] * policy[:, None, None]).reshape(M, S * A, S * A)
            rewards = np.repeat(R.reshape(M, S * A, S), A, axis=-1)
            first = (self.start[..., None] * policy).reshape(M, S * A)
            return Chain(kernel, rewards, np.repeat(discount, A, axis=-1), first, np.repeat(states, A, axis=-1))
        kernel = np.einsum("msa,msat->mst", policy, P)
        with np.errstate(invalid="ignore"):
            rewards = np.einsum("msa,msat->mst", policy, P * R) / kernel
        return Chain(kernel, np.where(kernel > 0, rewards, 0.0), discount, self.start, states)

    def going_on(self) -> np.ndarray:
        """Discounted transitions within an episode, `(M, S, A, S)`."""
        going = self.discount[:, None, None, None] * self.transitions
        return np.where(self.ends[:, :, None, None] | self.ends[:, None, None, :], 0.0, going)


def at_states(values: np.ndarray, states: np.ndarray, nowhere: float) -> np.ndarray:
    """Values of the states `(M, S, ...)` along a chain with these states `(M, N)`, and `nowhere` where they are -1."""
    own = values[np.arange(len(values))[:, None], np.where(states < 0, 0, states)]
    return np.where((states < 0).reshape(*states.shape, *[1] * (own.ndim - 2)), nowhere, own)


def _per_agent(name: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A value for each agent, or one for all of them, as a new array with the agents first."""
    if value.shape not in (shape, shape[1:], (1, *shape[1:])):
        raise ValueError(f"`{name}` must have shape {shape[1:]}, or {shape} for each agent, got {value.shape}.")
    return np.broadcast_to(value, shape).copy()


def _cells(cells: str | Sequence[str] | None, ends: np.ndarray, start: np.ndarray) -> tuple[str, ...]:
    M, S = ends.shape
    if cells is None:
        letters = np.where(ends, "E", np.where(start == 1, "S", "."))
        return tuple("".join(row) for row in letters)
    rows = (cells,) * M if isinstance(cells, str) else tuple(cells)
    if len(rows) != M or any(len(row) != S or set(row) - set(CELLS) for row in rows):
        raise ValueError(
            f"`cells` must be {S} letters of {', '.join(CELLS)}: one string, or one for each of {M} agents, "
            f"got {cells}."
        )
    return rows


def _start(start: Any, ends: np.ndarray) -> np.ndarray:
    M, S = ends.shape
    if start is None:
        law = (~ends).astype(float)
        return law / law.sum(-1, keepdims=True)
    if not isinstance(start, int | np.integer):
        start = _per_agent("start", np.asarray(start, dtype=np.float64), (M, S))
    law = start_law(start, (M, S)).copy()
    if (law[ends] > 0).any():
        raise ValueError(
            f"`start` must not put an agent where its episode ends: states {np.unique(np.nonzero(ends)[1])}."
        )
    return law


def _check_model(model: Model) -> None:
    P, S = model.transitions, model.num_states
    if (P < 0).any():
        raise ValueError(f"`transitions` must not be negative, got {P.min():.3g}.")
    sums = np.where(model.ends[..., None], 1.0, P.sum(-1))
    wrong = np.argwhere(abs(sums - 1) > ROW_SUM_TOLERANCE)
    if len(wrong):
        agent, state, action = wrong[0]
        raise ValueError(
            f"Each row of `transitions` must sum to 1, got {sums[agent, state, action]:.9g} for agent {agent}, "
            f"state {state}, action {action}."
        )
    if model.grid is not None and model.grid[0] * model.grid[1] != S:
        raise ValueError(f"`grid` must have as many cells as there are states, {S}, got {model.grid}.")
    if len(model.actions) != model.num_actions:
        raise ValueError(f"`actions` must name {model.num_actions} actions, got {model.actions}.")
    for agent in np.flatnonzero(model.discount == 1):
        if not _always_ends(model, int(agent)):
            raise ValueError(f"`discount` must be below 1 for agent {agent}: not every policy ends its episodes.")


def _always_ends(model: Model, agent: int) -> bool:
    """Whether the end is reached from every state whatever the actions: no set of other states can be kept to."""
    reaches = model.transitions[agent] > 0
    safe = ~model.ends[agent]
    while safe.any():
        # Safe is who has an action that leads to safe states only.
        still = safe & (~reaches[:, :, ~safe].any(-1)).any(-1)
        if (still == safe).all():
            return False
        safe = still
    return True
