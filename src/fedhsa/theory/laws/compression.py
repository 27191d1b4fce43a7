r"""Compressed FedHSA on affine operators without noise: the floors that its codecs cause.

With $g_i = r_i + A_i e$ a round is $e' = e + \frac1M \sum_i C(\eta S_i \hat g)$, $\hat g = \frac1M \sum_i C(g_i)$: it
has a fixed point only where $\hat g = 0$, while the $r_i$ themselves do not vanish.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.linalg import solve_continuous_lyapunov

from ..maps.rounds import local_powers
from .participation import MeanOperators

Code: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""A codec on the last axis."""


def top_k(count: int) -> Code:
    """Keeps the `count` entries of largest modulus.

    !!! example
        >>> top_k(1)(np.array([[3.0, -4.0]])).tolist()
        [[0.0, -4.0]]
    """

    def code(x: np.ndarray) -> np.ndarray:
        coded, largest = np.zeros_like(x), np.argsort(-abs(x), axis=-1)[..., :count]
        np.put_along_axis(coded, largest, np.take_along_axis(x, largest, -1), -1)
        return coded

    return code


def sign(x: np.ndarray) -> np.ndarray:
    """The signs of the entries times their mean absolute value.

    !!! example
        >>> sign(np.array([3.0, -1.0])).tolist()
        [2.0, -2.0]
    """
    return abs(x).mean(-1, keepdims=True) * np.where(x < 0, -1.0, 1.0)


def quantised(levels: int, rng: np.random.Generator) -> Code:
    """Rounds each entry to one of `levels` fractions of the norm, at random and without bias.

    !!! example
        >>> quantised(1, np.random.default_rng(0))(np.array([0.0, 2.0])).tolist()
        [0.0, 2.0]
    """

    def code(x: np.ndarray) -> np.ndarray:
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        heights = levels * abs(x) / np.where(norm == 0, 1, norm)
        return norm / levels * np.sign(x) * np.floor(heights + rng.random(x.shape))

    return code


def fixed_point(agents: MeanOperators, code: Code, *, scale: float = 0.002, rounds: int = 6000) -> np.ndarray:
    r"""The error that a contractive codec without memory tends to.

    It follows $e \leftarrow e + s\,C(\hat g)$ at a small scale $s = \eta H$. $\hat g$ jumps where an agent's choice of
    entries changes, and the point is one where it jumps over zero: the path is averaged over its last half.
    """
    A, r = agents
    e, path = np.zeros(r.shape[1]), []
    for _ in range(rounds):
        e = e + scale * code(code(r + A @ e).mean(0))
        path.append(e)
    return np.mean(path[rounds // 2 :], axis=0)


def unbiased_floor(agents: MeanOperators, code: Code, scale: float, draws: int = 4000) -> float:
    r"""The mean squared error of any unbiased codec at stationarity, to first order.

    It is the trace of $X$ in $\bar A X + X \bar A^T = -\eta H Q$, where $Q$ is the covariance of
    $\frac1M \sum_i C_i(\hat g)$, $\hat g = \frac1M \sum_j C_j(r_j)$, by sampling.
    """
    A, r = agents
    M, d = r.shape
    coded = code(np.broadcast_to(r, (draws, M, d))).mean(1)
    moved = code(np.broadcast_to(coded[:, None], (draws, M, d))).mean(1)
    return float(np.trace(solve_continuous_lyapunov(A.mean(0), -scale * moved.T @ moved / draws)))


def feedback_floor(agents: MeanOperators, code: Code, step: float, local_steps: int, rounds: int = 6000) -> float:
    r"""The floor of error feedback, to leading order.

    Let $E$ and $W$ be the means of what agents have left out of operators and of displacements. Then
    $z = e + W + \eta \bar S E$ obeys $z' = z + \eta \bar S \bar A e$: it moves slowly, and $e$ fluctuates as much as
    $W + \eta \bar S E$ does. That needs only the memories, fed with $r_i$ and $\eta S_i \hat g$. All agents code nearly
    the same displacement, but their memories drift apart by the little that $S_i$ differ, so each has its own.
    """
    A, r = agents
    moves = step * local_powers(A, step, local_steps).sum(0)
    operator_memory, displacement_memory, path = np.zeros_like(r), np.zeros_like(r), []
    for _ in range(rounds):
        message = operator_memory + r
        coded = code(message)
        operator_memory = message - coded
        message = displacement_memory + moves @ coded.mean(0)
        displacement_memory = message - code(message)
        path.append(moves.mean(0) @ operator_memory.mean(0) + displacement_memory.mean(0))
    return float(np.var(path[rounds // 6 :], axis=0).sum())
