"""Feature maps: the inputs of a linear value function for an observation."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check


class Fourier(eqx.Module):
    r"""The cosine basis of a box, $\phi_c(x) = \cos(\pi\, c^T \bar x)$ for all $c \in \{0, \dots, n\}^k$.

    $\bar x$ is the observation scaled to $[0, 1]^k$; outside the box it is clipped to the edge.

    **Arguments:**

    - `low`, `high`: the corners of the box, $k$ numbers each.
    - `order`: $n$; there are $(n + 1)^k$ features, of which the first is constant.

    NumPy arrays may have leading axes, which the features then have too.

    !!! example
        >>> Fourier([0.0], [2.0], order=2)(np.array([1.0])).round(3) + 0.0
        array([ 1.,  0., -1.])

    !!! cite "Konidaris, Osentoski, Thomas (2011), Value function approximation using the Fourier basis"
    """

    low: np.ndarray
    high: np.ndarray
    frequencies: np.ndarray

    def __init__(self, low: Any, high: Any, order: int):
        self.low, self.high = _box(low, high)
        _check.count("order", order)
        grid = itertools.product(range(order + 1), repeat=len(self.low))
        self.frequencies = np.array(list(grid), dtype=np.float64)

    @property
    def size(self) -> int:
        """The number of features."""
        return self.frequencies.shape[-2]

    def __call__(self, observation: Any) -> Any:
        """The features of an observation."""
        xp = _library(observation)
        scaled = _scaled(xp, observation, self.low, self.high)
        return xp.cos(np.pi * (scaled @ xp.asarray(self.frequencies).T))


class Tiles(eqx.Module):
    """Tile coding: several grids over a box, each shifted; a feature is 1 in its tile and 0 elsewhere.

    Grid $t$ of $T$ is shifted by $(t, 3t, 5t, ...) / T$ tiles, modulo one tile, which spreads the edges evenly. A
    shifted grid needs one more tile in each direction. Observations outside the box are clipped to its edge.

    **Arguments:**

    - `low`, `high`: the corners of the box.
    - `tiles`: the number of tiles of an unshifted grid in each direction; one number or one for each.
    - `tilings`: $T$, the number of grids. For each observation $T$ features are 1, so divide the step size by $T$.

    The features of two grids are linearly dependent (each grid's features sum to 1), so the root of TD is not unique
    unless its agents have a positive `regularisation`.

    !!! example
        >>> Tiles([0.0], [2.0], tiles=2, tilings=2)(np.array([0.6]))     # two grids of three tiles
        array([1., 0., 0., 0., 1., 0.])

    !!! cite "Sutton, Barto (2018), Reinforcement learning, section 9.5.4"
    """

    low: np.ndarray
    high: np.ndarray
    tiles: tuple[int, ...] = eqx.field(static=True)
    tilings: int = eqx.field(static=True)

    def __init__(self, low: Any, high: Any, tiles: Any, tilings: int):
        self.low, self.high = _box(low, high)
        self.tilings = _check.count("tilings", tilings)
        each = (tiles,) * len(self.low) if np.ndim(tiles) == 0 else tuple(tiles)
        self.tiles = tuple(_check.count("tiles", number) for number in each)
        if len(self.tiles) != len(self.low):
            raise ValueError(
                f"`tiles` must be one number, or one for each of the {len(self.low)} directions, got {tiles}."
            )

    @property
    def size(self) -> int:
        """The number of features."""
        return self.tilings * int(np.prod([number + 1 for number in self.tiles]))

    def __call__(self, observation: Any) -> Any:
        """The features of an observation."""
        xp = _library(observation)
        scaled = _scaled(xp, observation, self.low, self.high)
        tiles = xp.asarray(np.array(self.tiles), dtype=scaled.dtype)
        directions = np.arange(len(self.tiles))
        offsets = (np.arange(self.tilings)[:, None] * (2 * directions + 1) % self.tilings) / self.tilings
        # On the upper edge an observation belongs to the last tile that ends there.
        place = xp.minimum(scaled * tiles, xp.nextafter(tiles, xp.zeros_like(tiles)))[..., None, :]
        shifted = place + xp.asarray(offsets, dtype=scaled.dtype).reshape(*[1] * (place.ndim - 2), *offsets.shape)
        cells = xp.floor(shifted).astype(np.int32)
        number = xp.zeros(cells.shape[:-1], np.int32)
        for direction, count in enumerate(self.tiles):
            number = number * (count + 1) + cells[..., direction]
        per_tiling = self.size // self.tilings
        chosen = number[..., None] == xp.arange(per_tiling, dtype=np.int32).reshape(*[1] * number.ndim, -1)
        return chosen.astype(scaled.dtype).reshape(*number.shape[:-1], self.size)


class OneHot(eqx.Module):
    """A feature for each of `size` states, numbered from 0, which makes a linear value function a table.

    !!! example
        >>> OneHot(3)(np.array(1))
        array([0., 1., 0.])
    """

    size: int = eqx.field(static=True)

    def __check_init__(self):
        _check.count("size", self.size)

    def __call__(self, observation: Any) -> Any:
        """The features of a state."""
        if isinstance(observation, jax.Array):
            return jax.nn.one_hot(observation, self.size, dtype=float)
        return np.eye(self.size)[np.asarray(observation)]


class Function(eqx.Module):
    """A plain function as a part of a pytree: the same for all agents, and without arrays."""

    function: Any = eqx.field(static=True)

    def __call__(self, observation: Any) -> Any:
        """The function's value."""
        return self.function(observation)


def as_module(function: Any) -> Any:
    """Modules as they are, plain functions wrapped, so that agents that hold them can be stacked."""
    return function if isinstance(function, eqx.Module) else Function(function)


def _library(observation: Any) -> Any:
    return jnp if isinstance(observation, jax.Array) else np


def _box(low: Any, high: Any) -> tuple[np.ndarray, np.ndarray]:
    sizes: dict[str, int] = {}
    low, high = _check.array("low", low, ("k",), sizes), _check.array("high", high, ("k",), sizes)
    if not (low < high).all():
        k = int(np.argmin(low < high))
        raise ValueError(f"`high` must be above `low`, got {high[k]} and {low[k]} in direction {k}.")
    return low, high


def _scaled(xp: Any, observation: Any, low: Any, high: Any) -> Any:
    if np.shape(observation)[-1:] != np.shape(low)[-1:]:
        raise ValueError(
            f"`observation` must have {np.shape(low)[-1]} entries, as many as `low`, got shape {np.shape(observation)}."
        )
    low, high = xp.asarray(low), xp.asarray(high)
    return xp.clip((xp.asarray(observation, dtype=low.dtype) - low) / (high - low), 0.0, 1.0)
