"""Quadratic games whose data follow a Markov chain: Nash equilibria and saddle points as federated roots."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import _check
from .._generate import Draw, blend, dense_kernel, lazy
from .._types import SeedLike
from ..kernels import component_product
from ..sources import FiniteChain
from .base import AbstractAgent, Problem, identity

__all__ = ["GameAgent", "from_arrays", "random", "random_saddle", "saddle_from_arrays"]

SYMMETRY_TOLERANCE = 1e-9


class GameAgent(AbstractAgent):
    r"""$G_i(\theta, s) = -(J_{is} \theta + z_{is})$: every player descends the gradient of its own cost.

    $\theta$ contains the actions of all players, and $s$ is the state of the chain. Row block $k$ of
    $J_{is} \theta + z_{is}$ is the derivative of player $k$'s cost in its own action; together they are the
    pseudo-gradient of the game.
    """

    J: np.ndarray
    z: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return -(component_product(self.J, o, theta) + self.z[o])


def from_arrays(J: Any, z: Any, P: Any, players: Sequence[int] | None = None, *, start: Any = None) -> Problem:
    r"""Make the problem of the Nash equilibrium of the average of `M` games, each observed by one agent.

    Agent $i$ has a Markov chain; in its state $s$, player $k$ pays

    $$\frac12 \theta_k^T J_{is}^{kk} \theta_k + \theta_k^T \Bigl(\sum_{j \ne k} J_{is}^{kj} \theta_j + z_{is}^k\Bigr).$$

    At the root, no player can lower its cost, averaged over agents and their chains, by changing only its own action.

    **Arguments:**

    - `J`: curvatures of the players' own costs in the diagonal blocks, couplings in the others, `(M, S, d, d)`.
    - `z`: the linear terms, `(M, S, d)`.
    - `P`: kernels over the states, `(M, S, S)`.
    - `players`: the number of entries of the parameter that each player has. Default: every entry is a player.
    - `start`: the distribution of the first state, or its index. Default: stationary.

    Raises `ValueError` if an array is invalid or a player's average cost has no minimum.

    !!! example "Two firms sell at the price 12 - (u_1 + u_2), with unit costs 3 and 0"
        >>> from_arrays(J=[[[[2.0, 1.0], [1.0, 2.0]]]], z=[[[3.0 - 12.0, -12.0]]], P=[[[1.0]]]).theta_star
        array([2., 5.])
    """
    sizes: dict[str, int] = {}
    J = _check.array("J", J, ("M", "S", "d", "d"), sizes)
    z = _check.array("z", z, ("M", "S", "d"), sizes)
    P = _check.array("P", P, ("M", "S", "S"), sizes)
    d = sizes["d"]
    entries = [1] * d if players is None else [_check.count("players", k) for k in players]
    if sum(entries) != d:
        raise ValueError(f"`players` must add up to the {d} entries of the parameter, got {entries}.")
    chain = FiniteChain(P, start)
    average = np.einsum("ms,msjk->jk", chain.stationary, J) / sizes["M"]
    ends = np.cumsum(entries)
    for k, (begin, end) in enumerate(zip(ends - entries, ends, strict=True)):
        _check_player(k, J[..., begin:end, begin:end], average[begin:end, begin:end])
    return Problem(GameAgent(chain, J, z), like=np.zeros(d))


def saddle_from_arrays(A: Any, B: Any, C: Any, p: Any, q: Any, P: Any, *, start: Any = None) -> Problem:
    r"""Make the problem of the saddle point $\min_x \max_y$ of the average of `M` functions, one for each agent.

    In state $s$ of its chain, agent $i$ has

    $$f_{is}(x, y) = \frac12 x^T A_{is} x + x^T B_{is} y - \frac12 y^T C_{is} y + p_{is}^T x + q_{is}^T y,$$

    the parameter is $\theta = (x, y)$, and $G_{is} = (-\nabla_x f_{is}, \nabla_y f_{is})$. It is strongly monotone
    if $A$ and $C$ are positive definite on average, for any $B$.

    **Arguments:**

    - `A`, `B`, `C`: `(M, S, n, n)`, `(M, S, n, m)` and `(M, S, m, m)`, the first and the last symmetric.
    - `p`, `q`: `(M, S, n)` and `(M, S, m)`.
    - `P`: kernels over the states, `(M, S, S)`.
    - `start`: the distribution of the first state, or its index. Default: stationary.

    !!! example "x^2/2 + x y - y^2/2 - 2 x"
        >>> saddle_from_arrays([[[[1.0]]]], [[[[1.0]]]], [[[[1.0]]]], [[[-2.0]]], [[[0.0]]], [[[1.0]]]).theta_star
        array([1., 1.])
    """
    sizes: dict[str, int] = {}
    A = _check.array("A", A, ("M", "S", "n", "n"), sizes)
    B = _check.array("B", B, ("M", "S", "n", "m"), sizes)
    C = _check.array("C", C, ("M", "S", "m", "m"), sizes)
    p = _check.array("p", p, ("M", "S", "n"), sizes)
    q = _check.array("q", q, ("M", "S", "m"), sizes)
    # The second player pays -f, so this is an ordinary game.
    rows = np.concatenate([A, B], axis=-1), np.concatenate([-np.swapaxes(B, -1, -2), C], axis=-1)
    z = np.concatenate([p, -q], axis=-1)
    return from_arrays(np.concatenate(rows, axis=-2), z, P, (sizes["n"], sizes["m"]), start=start)


def random(
    num_agents: int = 20,
    dim: int = 6,
    *,
    num_players: int = 2,
    num_states: int = 5,
    variation: float = 0.3,
    coupling: float = 1.0,
    min_eigenvalue: float = 1.0,
    heterogeneity: float = 1.0,
    laziness: float = 0.0,
    key: SeedLike = 0,
) -> Problem:
    r"""Make random strongly monotone games of several players.

    Curvatures are $R^T R / n_k$, couplings and linear terms Gaussian; the diagonal of $J_{is}$ is then shifted until
    the smallest eigenvalue of its symmetric part is `min_eigenvalue`. Kernels are rows of normalised uniform numbers.

    **Arguments:**

    - `num_agents`, `dim`: $M$ and $d$, the actions of all players. More agents with the same key extend the problem.
    - `num_players`: the number of players, who share the `dim` entries as equally as possible.
    - `num_states`: $S$, the states of each agent's chain.
    - `variation`: how much the data change with the state, from 0 (not at all) to 1 (independent draws).
    - `coupling`: the standard deviation of the couplings is this over $\sqrt d$.
    - `heterogeneity`: 0 makes all agents equal (costs and kernel), 1 makes them independent draws.
    - `laziness`: the probability of staying in the same state.

    !!! example
        >>> random(num_agents=3, dim=4, num_players=2).theta_star.shape
        (4,)
    """
    S, d = _check.count("num_states", num_states), _check.count("dim", dim)
    if _check.count("num_players", num_players) > d:
        raise ValueError(f"`num_players` must be at most `dim`, got {num_players} > {d}: each player needs an action.")
    _check.number("coupling", coupling, least=0.0)
    _check.number("min_eigenvalue", min_eigenvalue, above=0.0)
    actions = np.array_split(np.arange(d), num_players)

    def make_J(R):
        J = coupling / np.sqrt(d) * R
        for own in actions:
            J[..., own[:, None], own] = _gram(R[..., own[:, None], own])
        return _shifted(J, min_eigenvalue)

    J = blend(_varied(make_J, (S, d, d), variation), "J", num_agents, heterogeneity, key)
    z = blend(_varied(identity, (S, d), variation), "z", num_agents, heterogeneity, key)
    P = blend(dense_kernel(S), "P", num_agents, heterogeneity, key)
    return from_arrays(J, z, lazy(P, laziness), [len(own) for own in actions])


def random_saddle(
    num_agents: int = 20,
    dim: int = 6,
    *,
    num_states: int = 5,
    variation: float = 0.3,
    coupling: float = 1.0,
    min_eigenvalue: float = 1.0,
    heterogeneity: float = 1.0,
    laziness: float = 0.0,
    key: SeedLike = 0,
) -> Problem:
    r"""Make random strongly monotone saddle-point problems; if `dim` is odd, $x$ has one entry more than $y$.

    $A_{is}$ and $C_{is}$ are $R^T R / n$ shifted to the smallest eigenvalue `min_eigenvalue`, $B_{is}$ is Gaussian
    with standard deviation `coupling` $/ \sqrt n$, linear terms and kernels as in `random`.

    The arguments are those of `random` without `num_players`. A large `coupling` makes the operator rotate rather than
    contract.

    !!! example
        >>> random_saddle(num_agents=3, dim=5).theta_star.shape
        (5,)
    """
    S = _check.count("num_states", num_states)
    _check.count("dim", dim, least=2, remedy="One entry minimises, the other maximises.")
    _check.number("coupling", coupling, least=0.0)
    _check.number("min_eigenvalue", min_eigenvalue, above=0.0)
    n, m = (dim + 1) // 2, dim // 2

    def curvature(R):
        return _shifted(_gram(R), min_eigenvalue)

    draws = {
        "A": _varied(curvature, (S, n, n), variation),
        "B": _varied(lambda R: coupling / np.sqrt(n) * R, (S, n, m), variation),
        "C": _varied(curvature, (S, m, m), variation),
        "p": _varied(identity, (S, n), variation),
        "q": _varied(identity, (S, m), variation),
    }
    arrays = {name: blend(draw, name, num_agents, heterogeneity, key) for name, draw in draws.items()}
    P = blend(dense_kernel(S), "P", num_agents, heterogeneity, key)
    return saddle_from_arrays(**arrays, P=lazy(P, laziness))


def _varied(make: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], variation: float) -> Draw:
    """A draw of `make(normal)` for Gaussian numbers of this shape, `(S, ...)`, with one entry for each state.

    The draw of a state is mixed with a common draw of the agent by `variation`, as `blend` mixes agents.
    """
    _check.number("variation", variation, least=0.0, most=1.0)
    states, *rest = shape

    def mixed(rng, count):
        drawn = make(rng.normal(size=(count, states + 1, *rest)))
        return (1 - variation) * drawn[:, :1] + variation * drawn[:, 1:]

    return mixed


def _gram(R: np.ndarray) -> np.ndarray:
    return np.swapaxes(R, -1, -2) @ R / R.shape[-1]


def _shifted(J: np.ndarray, min_eigenvalue: float) -> np.ndarray:
    """`J` plus a multiple of the identity that makes this the smallest eigenvalue of its symmetric part."""
    smallest = np.linalg.eigvalsh((J + np.swapaxes(J, -1, -2)) / 2)[..., 0]
    return J + (min_eigenvalue - smallest)[..., None, None] * np.eye(J.shape[-1])


def _check_player(k: int, own: np.ndarray, average: np.ndarray) -> None:
    """Raises if a player's own block is not symmetric, or if its average cost has no minimum."""
    uneven = abs(own - np.swapaxes(own, -1, -2)).max((-1, -2))
    if (uneven > SYMMETRY_TOLERANCE * (1 + abs(own).max())).any():
        agent, state = np.argwhere(uneven > SYMMETRY_TOLERANCE * (1 + abs(own).max()))[0]
        raise ValueError(
            f"The curvature of player {k} (counted from 0) must be symmetric, but for agent {agent} in state {state} "
            f"its entries differ by {uneven[agent, state]:.3g}. Use (R + R^T) / 2, which gives the same cost."
        )
    smallest = np.linalg.eigvalsh(average)[0]
    if smallest <= 0:
        raise ValueError(
            f"The average curvature of player {k} (counted from 0) must be positive definite, but its smallest "
            f"eigenvalue is {smallest:.3g}: its average cost has no minimum. Add a multiple of the identity, or drop "
            "agents."
        )
