"""Balls around 0 and boxes, to which a parameter is confined."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import _check
from .._types import Theta


def as_box(box: Any) -> Any:
    """Returns `(low, high)` as an array `(2,)` or `(2, d)`; None stays None."""
    if box is None:
        return None
    if _check.traced(box):
        return jnp.stack(jnp.broadcast_arrays(*box))
    try:
        low, high = np.broadcast_arrays(*(np.asarray(bound, dtype=np.float64) for bound in box))
    except (TypeError, ValueError) as error:
        raise ValueError(f"`box` must be `(low, high)`, numbers or vectors of one length, got {box!r}.") from error
    return _check.array("box", np.stack([low, high]), (2,) if low.ndim == 0 else (2, "d"))


def check_region(radius: Any, box: Any) -> None:
    """Raises unless exactly one of the two arguments is given and describes a region."""
    if (radius is None) == (box is None):
        raise ValueError(
            f"Give either `radius` or `box`, got radius={radius} and box={box}. "
            "For instance `radius=10.0`, or `box=(-1.0, 1.0)`."
        )
    if radius is not None:
        _check.scalar("radius", radius, above=0.0)
    if box is not None and not _check.traced(box) and not (box[0] < box[1]).all():
        raise ValueError(f"`box` must be `(low, high)` with low below high, got {box.tolist()}.")


def check_box_size(box: Any, dim: int) -> None:
    """Raises unless a box has one entry for each coordinate, or one entry for all."""
    if box is not None and box.shape not in ((2,), (2, dim)):
        raise ValueError(f"`box` must have one entry per coordinate, {dim}, got {box.shape[1]}.")


def nearest(theta: Theta, radius: Any, box: Any) -> Theta:
    """Returns the nearest point of the box, or of the ball of this radius."""
    if box is not None:
        low, high = (jnp.broadcast_to(bound, theta.shape) for bound in box)
        return jnp.clip(theta, low, high)
    norm = jnp.linalg.norm(theta)
    return theta * jnp.where(norm > radius, radius / norm, 1)
