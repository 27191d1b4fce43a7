"""Helpers that the studies in reinforcement learning share."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def max_error(snapshot: Any) -> Any:
    r"""Returns the largest error of an entry, $\|Q - Q^\star\|_\infty$."""
    return jnp.max(abs(snapshot.theta - snapshot.theta_star))


def late(curves: np.ndarray, part: float = 0.25) -> np.ndarray:
    """Returns the mean over the last part of every curve, `(seeds,)`."""
    return curves[:, -max(1, round(part * curves.shape[1])) :].mean(1)


def reached(curve: np.ndarray, level: float) -> int | None:
    """Returns the first record at or below a level, or None."""
    below = np.flatnonzero(curve <= level)
    return int(below[0]) if len(below) else None
