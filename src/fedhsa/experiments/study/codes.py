r"""Compressed FedHSA on affine operators without noise: the floors that its codecs cause.

With $g_i = r_i + A_i e$ a round is $e' = e + \frac1M \sum_i C(\eta S_i \hat g)$, $\hat g = \frac1M \sum_i C(g_i)$. It
has a fixed point only if $\hat g = 0$, although the individual $r_i$ do not vanish.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.linalg import solve_continuous_lyapunov

from ...theory.rule import local_powers
from .sampled import MeanOperators

Code: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""A codec that acts on the last axis."""


def top_k(count: int) -> Code:
    """Returns a codec that keeps the `count` entries of largest modulus.

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
    """Returns the signs of the entries times their mean absolute value.

    !!! example
        >>> sign(np.array([3.0, -1.0])).tolist()
        [2.0, -2.0]
    """
    return abs(x).mean(-1, keepdims=True) * np.where(x < 0, -1.0, 1.0)


def quantised(levels: int, rng: np.random.Generator) -> Code:
    """Returns a codec that rounds each entry to one of `levels` fractions of the norm, randomly and without bias.

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
    r"""Returns the limit of the error under a contractive codec without memory.

    It follows $e \leftarrow e + s\,C(\hat g)$ at a small scale $s = \eta H$. $\hat g$ jumps where an agent's choice of
    entries changes, and at the limit it jumps over zero. So the path is averaged over its last half.
    """
    A, r = agents
    e, path = np.zeros(r.shape[1]), []
    for _ in range(rounds):
        e = e + scale * code(code(r + A @ e).mean(0))
        path.append(e)
    return np.mean(path[rounds // 2 :], axis=0)


def unbiased_floor(agents: MeanOperators, code: Code, scale: float, draws: int = 4000) -> float:
    r"""Returns the stationary mean-square error of an unbiased codec, to first order.

    It is the trace of $X$ in $\bar A X + X \bar A^T = -\eta H Q$, where $Q$ is the covariance of
    $\frac1M \sum_i C_i(\hat g)$, $\hat g = \frac1M \sum_j C_j(r_j)$, estimated from samples.
    """
    A, r = agents
    M, d = r.shape
    coded = code(np.broadcast_to(r, (draws, M, d))).mean(1)
    moved = code(np.broadcast_to(coded[:, None], (draws, M, d))).mean(1)
    return float(np.trace(solve_continuous_lyapunov(A.mean(0), -scale * moved.T @ moved / draws)))


def feedback_floor(agents: MeanOperators, code: Code, step: float, local_steps: int, rounds: int = 6000) -> float:
    r"""Returns the floor of error feedback, to leading order.

    Let $E$ and $W$ be the means of the agents' memories of operators and of displacements. Then
    $z = e + W + \eta \bar S E$ obeys $z' = z + \eta \bar S \bar A e$: it moves slowly, and $e$ fluctuates as much as
    $W + \eta \bar S E$. So only the memories are simulated, with inputs $r_i$ and $\eta S_i \hat g$. All agents encode
    nearly the same displacement, but their memories diverge slowly because the $S_i$ differ, so each agent has its own.
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
