"""Keys and random numbers: counter-based, so that any part of any trajectory can be computed separately.

JAX's own functions give the same folded keys, but compile to loops over whole arrays; written out, the hash is one
fused pass, which runs faster on a CPU and compiles faster.
"""

import enum
import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, UInt32

from ._types import Key, SeedLike


class Stream(enum.IntEnum):
    """The positions in a key for each purpose, far beyond the numbers of agents, exchanges and leaves."""

    RULE = 2**30 - 2
    ATTACK = 2**30 - 1
    CODING = 2**30
    DELAY = 2**30 + 1
    AIR = 2**30 + 2
    LOSS = 2**30 + 3
    PARTICIPATION = 2**30 + 4
    REPLAY = 2**30 + 5
    INNER = 2**30 + 6
    GRAPH = 2**31 - 20
    COIN = 2**31 - 1
    """The coin in the round's key that the server and all agents share."""
    COMMON = 2**31
    """The common agent towards which `heterogeneity` blends the others."""
    TUNING = 0x74756E65
    """The runs that tune a method, separate from those that are reported."""


def as_key(key: SeedLike) -> Key:
    """Converts an int or any JAX key to a threefry key, the only kind whose folded data are themselves random bits."""
    if isinstance(key, bool):
        raise ValueError(f"`key` must be an int or one JAX key (`jax.random.key(0)`), got {key!r}.")
    if isinstance(key, int | np.integer):
        if not 0 <= key < 2**64:
            raise ValueError(f"`key` must be an int from 0 to 2^64 - 1, got {key}.")
        # The words are computed here: JAX keeps only the lower one if 64 bits are not enabled.
        words = np.array([int(key) >> 32, int(key) & 0xFFFFFFFF], dtype=np.uint32)
        return jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")
    try:
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
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
    with jax.ensure_compile_time_eval():
        return [int(word) for word in np.asarray(jax.random.key_data(as_key(key)))]


def host_generator(key: SeedLike, *path: Any) -> np.random.Generator:
    """A NumPy generator for this key and path, such as `host_generator(key, "A")`; each path has its own stream."""
    path = tuple(int(part) if isinstance(part, Stream) else part for part in path)
    name = repr((key_words(key), path)).encode()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name).digest()))


def fold_in(key: Key, data: Any) -> Key:
    """The same key as `jax.random.fold_in(key, data)`; an array `data` gives an array of keys."""
    data = int(data) if isinstance(data, Stream) else data
    words, data = jax.random.key_data(key), jnp.asarray(data).astype(jnp.uint32)
    key_0, key_1, data = jnp.broadcast_arrays(words[..., 0], words[..., 1], data)
    first, second = _hash(key_0, key_1, jnp.zeros_like(data), data)
    if jax.config.read("jax_enable_x64"):  # as one 64-bit word; otherwise XLA would compute the hash for each half
        packed = first.astype(jnp.uint64) | (second.astype(jnp.uint64) << 32)
        folded = jax.lax.bitcast_convert_type(packed, jnp.uint32)
    else:
        folded = jnp.stack([first, second], axis=-1)
    return jax.random.wrap_key_data(folded, impl="threefry2x32")


def fold_in_words(words: np.ndarray, data: Any) -> np.ndarray:
    """`fold_in` on the host, for key data `(..., 2)`, without compilation."""
    key_0, key_1, data = np.broadcast_arrays(words[..., 0], words[..., 1], np.asarray(data, dtype=np.uint32))
    with np.errstate(over="ignore"):  # the hash is arithmetic modulo 2^32
        return np.stack(_threefry(key_0, key_1, np.zeros_like(data), data), axis=-1)


def complex_normal(key: Key, count: int, dtype: Any) -> Complex[Array, " count"]:
    """Complex numbers whose real and imaginary parts are independent standard normals, by the Box-Muller transform.

    Radius and angle have 32 random bits each, so no part is larger than 6.7.
    """
    words = jax.random.key_data(key)
    counter = jnp.arange(count, dtype=jnp.uint32)
    first, second = _hash(words[0], words[1], jnp.ones_like(counter), counter)
    radius = jnp.sqrt(-2 * jnp.log((first.astype(dtype) + 0.5) * 2.0**-32))
    # A direction in the first quadrant from 30 bits, and a sign from each of the other two.
    cosine, sine = _quarter_turn((second >> 2).astype(dtype) * 2.0**-30)
    real, imaginary = radius * cosine, radius * sine
    return jax.lax.complex(jnp.where(second & 1 == 0, real, -real), jnp.where(second & 2 == 0, imaginary, -imaginary))


@jax.jit
def _quarter_turn(part: Array) -> tuple[Array, Array]:
    """Cosine and sine of the given part of a right angle, by their power series.

    They are exact up to rounding for parts in [0, 1), at half the cost of XLA's functions, which reduce any angle
    first.
    """
    angle = part * (np.pi / 2)
    square = angle * angle
    cosine, sine = jnp.zeros_like(part), jnp.zeros_like(part)
    for k in range(10, -1, -1):
        cosine = cosine * square + (-1) ** k / math.factorial(2 * k)
        sine = sine * square + (-1) ** k / math.factorial(2 * k + 1)
    return cosine, angle * sine


def real_parts(numbers: Complex[Array, " half"], count: int) -> Float[Array, " count"]:
    """The first `count` of the real and imaginary parts."""
    return jnp.concatenate([numbers.real, numbers.imag])[:count]


def _threefry(key_0, key_1, x_0, x_1) -> tuple[UInt32[Array, "*batch"], UInt32[Array, "*batch"]]:
    """Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw, 2011)."""
    schedule = (key_0, key_1, key_0 ^ key_1 ^ np.uint32(0x1BD11BDA))
    x_0, x_1 = x_0 + schedule[0], x_1 + schedule[1]
    for block in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x_0 = x_0 + x_1
            x_1 = x_0 ^ ((x_1 << np.uint32(distance)) | (x_1 >> np.uint32(32 - distance)))
        x_0 = x_0 + schedule[(block + 1) % 3]
        x_1 = x_1 + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return x_0, x_1


_hash = jax.jit(_threefry)
"""Traced once for each shape instead of at each of its many calls, which reduces compile time by about a quarter."""
