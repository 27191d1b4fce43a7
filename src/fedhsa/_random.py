"""Keys: what users pass becomes a JAX key for the engine, or a NumPy generator for problem generators."""

from typing import Any

import jax
import numpy as np

from ._types import Key, SeedLike


def as_key(key: SeedLike) -> Key:
    """Turns an int or any JAX key into a threefry key, the only kind whose folded data are themselves random bits."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if key < 0:
            raise ValueError(f"`key` must not be negative, got {key}.")
        return jax.random.key(int(key), impl="threefry2x32")
    try:
        if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
            words = jax.random.key_data(key)
        elif key.dtype == np.uint32 and key.ndim == 1:
            words = key
        else:
            raise AttributeError
    except AttributeError:
        raise ValueError(f"`key` must be an int or one JAX key (`jax.random.key(0)`), got {key!r}.") from None
    return jax.random.wrap_key_data(words[-2:], impl="threefry2x32")


def key_words(key: SeedLike) -> list[int]:
    """The key as plain ints, for manifests and for `host_generator`."""
    return [int(word) for word in np.asarray(jax.random.key_data(as_key(key)))]


def host_generator(key: SeedLike, *path: Any) -> np.random.Generator:
    """A NumPy generator for this key and path, for instance `host_generator(key, "A", agent)`.

    Each path has its own stream, so drawing more agents leaves the earlier ones as they were.
    """
    words = [w for part in path for w in ([part] if isinstance(part, int) else part.encode())]
    return np.random.default_rng([*key_words(key), *words])
