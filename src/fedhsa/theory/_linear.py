"""Linear algebra that several laws need."""

import numpy as np

DOUBLINGS = 60
"""How often a sum of powers may be doubled: more terms than any chain or method of interest needs."""


def transpose(x: np.ndarray) -> np.ndarray:
    """The transpose of stacked matrices."""
    return np.swapaxes(x, -1, -2)


def stein_sum(left: np.ndarray, right: np.ndarray, C: np.ndarray) -> np.ndarray:
    r"""The solution of $X = L X R + C$, as $\sum_k L^k C R^k$ by doubling; stacked matrices are fine.

    Converges wherever the products of their powers vanish on $C$, and in as many steps as the logarithm of their time.
    """
    X = C
    for _ in range(DOUBLINGS):
        added = left @ X @ right
        X = X + added
        if not np.abs(added).max() > 1e-17 * np.abs(X).max():
            break
        left, right = left @ left, right @ right
    return X
