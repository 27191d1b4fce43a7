"""Codecs: ways of writing a vector of a message in fewer bits, with bounds on the error."""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _check
from .._types import Key

__all__ = ["AbstractCodec", "Quantised", "RandK", "Sign", "TopK", "Uniform"]

WORD = 64
"""The bits of an uncoded number."""


class CodeMoments(NamedTuple):
    r"""The moments of the decoded vector $\hat x$ of $x$ if it is linear in $x$: $E\,\hat x = m\,x$ and $E\,\hat x \hat
    x^T = s\, x x^T + t\, \mathrm{diag}(x x^T)$."""

    mean: float
    """$m$."""
    square: float
    """$s$."""
    entries: float
    """$t$."""


class AbstractCodec(eqx.Module):
    r"""A map $C$ from vectors to vectors that take fewer bits, with $E|C(x) - x|^2 \le c\,|x|^2$.

    A codec is either unbiased, $E\,C(x) = x$, or contractive, $c < 1$; RandK can be either.

    !!! example
        >>> codec = TopK(0.5)
        >>> codec.unbiased, codec.error(4)
        (False, 0.5)
    """

    @property
    @abc.abstractmethod
    def unbiased(self) -> bool:
        """Whether the decoded vector equals the original on average."""

    @abc.abstractmethod
    def error(self, size: int) -> float:
        r"""The smallest known $c$ for vectors of this size.

        It is $\zeta$ for unbiased codecs and $1 - 1/\delta$ for contractive ones.
        """

    @abc.abstractmethod
    def bits(self, size: int) -> float:
        """The number of bits for a vector of this size."""

    def moments(self, size: int) -> CodeMoments | None:
        """The moments of the decoded vector of this size, if the codec is linear; else None."""
        return None

    def scaled(self, factor: Any) -> "AbstractCodec":
        """The codec for vectors that are `factor` times as large; itself if it adapts to the vector."""
        return self

    @abc.abstractmethod
    def __call__(self, key: Key, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Returns the decoded vector."""


class TopK(AbstractCodec):
    r"""The $k$ entries largest in absolute value, zero elsewhere; contractive, $c = 1 - k/d$.

    It takes the values, and $\lceil\log_2 d\rceil$ bits for the position of each.

    **Arguments:**

    - `fraction`: $k/d$ in (0, 1]; $k$ is rounded and at least 1.

    Raises `ValueError` if `fraction` is out of range.

    !!! example
        >>> codec = TopK(0.5)
        >>> codec(jax.random.key(0), jnp.array([3.0, -4.0, 1.0, 0.5])).tolist()
        [3.0, -4.0, 0.0, 0.0]
        >>> codec.error(4), codec.bits(4)
        (0.5, 132)

    !!! cite "Stich, Cordonnier, Jaggi (2018), Sparsified SGD with memory"
    """

    fraction: float = eqx.field(static=True)

    def __check_init__(self):
        _check_fraction(self.fraction)

    @property
    def unbiased(self):
        return False

    def error(self, size):
        return 1 - _kept(self.fraction, size) / size

    def bits(self, size):
        return _kept(self.fraction, size) * (WORD + math.ceil(math.log2(size)))

    def __call__(self, key, x):
        _, largest = jax.lax.top_k(jnp.abs(x), _kept(self.fraction, x.size))
        return jnp.zeros_like(x).at[largest].set(x[largest])


class RandK(AbstractCodec):
    r"""$k$ entries chosen at random, zero elsewhere.

    Multiplied by $d/k$ they are unbiased, $c = d/k - 1$; unscaled they are contractive, $c = 1 - k/d$. The positions
    follow from a seed that both ends share, so only the values are sent.

    **Arguments:**

    - `fraction`: $k/d$ in (0, 1]; $k$ is rounded and at least 1.
    - `rescale`: whether the entries are multiplied by $d/k$.

    Raises `ValueError` if `fraction` is out of range.

    !!! example
        >>> RandK(0.25).error(8), RandK(0.25, rescale=False).error(8), RandK(0.25).bits(8)
        (3.0, 0.75, 128)

    !!! cite "Stich, Cordonnier, Jaggi (2018), Sparsified SGD with memory"
    """

    fraction: float = eqx.field(static=True)
    rescale: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        _check_fraction(self.fraction)

    @property
    def unbiased(self):
        return self.rescale

    def error(self, size):
        k = _kept(self.fraction, size)
        return size / k - 1 if self.rescale else 1 - k / size

    def bits(self, size):
        return _kept(self.fraction, size) * WORD

    def moments(self, size):
        k = _kept(self.fraction, size)
        mean = 1.0 if self.rescale else k / size
        pairs = (k - 1) / (size - 1) if size > 1 else 0.0  # the probability of an entry, given another
        return CodeMoments(mean, mean**2 * size / k * pairs, mean**2 * size / k * (1 - pairs))

    def __call__(self, key, x):
        k = _kept(self.fraction, x.size)
        chosen = jax.random.permutation(key, x.size) < k
        return jnp.where(chosen, x * (x.size / k) if self.rescale else x, 0)


class Sign(AbstractCodec):
    r"""The sign of every entry times the mean absolute value; contractive.

    $|C(x) - x|^2 = |x|^2 - |x|_1^2/d$, so $c = 1 - 1/d$. It takes one bit for each entry, and the scale.

    !!! example
        >>> Sign()(jax.random.key(0), jnp.array([3.0, -1.0])).tolist(), Sign().bits(100)
        ([2.0, -2.0], 164)

    !!! cite "Karimireddy, Rebjock, Stich, Jaggi (2019), Error feedback fixes SignSGD"
    """

    @property
    def unbiased(self):
        return False

    def error(self, size):
        return 1 - 1 / size

    def bits(self, size):
        return size + WORD

    def __call__(self, key, x):
        return jnp.mean(jnp.abs(x)) * jnp.where(x < 0, -1, 1).astype(x.dtype)


class Quantised(AbstractCodec):
    r"""Every entry rounded at random to one of $s$ levels of the norm, without bias.

    $C(x)_j = |x|\,\mathrm{sign}(x_j)\,\xi_j / s$, where $\xi_j$ is $s|x_j|/|x|$ rounded up or down; unbiased, with
    $c = \min(d/s^2, \sqrt d/s)$. It takes the norm, and a sign and a level for each entry.

    This is QSGD's quantiser. QFedTD allows every unbiased codec with such a bound, including this one.

    **Arguments:**

    - `levels`: $s$, at least 1.

    Raises `ValueError` if `levels` is less than 1.

    !!! example
        >>> codec = Quantised(levels=4)
        >>> codec(jax.random.key(0), jnp.array([3.0, 4.0])).tolist()     # multiples of 5/4
        [3.75, 5.0]
        >>> codec.error(4), codec.bits(4)
        (0.25, 80)

    !!! cite "Alistarh et al. (2017), QSGD, Section 3.1; Dal Fabbro, Mitra, Pappas (2023), arXiv:2305.08104"
    """

    levels: int = eqx.field(static=True)

    def __check_init__(self):
        _check.count("levels", self.levels)

    @property
    def unbiased(self):
        return True

    def error(self, size):
        return min(size / self.levels**2, math.sqrt(size) / self.levels)

    def bits(self, size):
        return WORD + size * (1 + math.ceil(math.log2(self.levels + 1)))

    def __call__(self, key, x):
        norm = jnp.linalg.norm(x)
        heights = self.levels * jnp.abs(x) / jnp.where(norm == 0, 1, norm)
        rounded = jnp.floor(heights + jax.random.uniform(key, x.shape, x.dtype))
        return norm / self.levels * jnp.sign(x) * rounded


class Uniform(AbstractCodec):
    r"""Every entry rounded at random to one of $2^J$ evenly spaced levels on $[-D, D]$, without bias.

    With the spacing $\delta = 2D / (2^J - 1)$, an entry becomes the level below or above it, with the probabilities
    that make it unbiased; its error is at most $\delta$ and its variance at most $\delta^2/4$. It takes $J$ bits for
    each entry and nothing else, because both ends have $D$ beforehand. Unlike the other codecs it does not adapt to the
    vector: entries outside the range are clipped to $\pm D$, and the error does not shrink with the vector, so there is
    no bound relative to its norm (`error` is infinite). Methods whose messages shrink use a range that shrinks with
    them (`FedDVRQ`).

    **Arguments:**

    - `range`: $D$, which must be positive.
    - `num_bits`: $J$, the number of bits for each entry.

    Raises `ValueError` if `range` is not positive or `num_bits` is less than 1.

    !!! example
        >>> codec = Uniform(range=3.0, num_bits=2)     # the levels -3, -1, 1 and 3
        >>> codec(jax.random.key(0), jnp.array([3.0, -1.0, 7.0])).tolist(), codec.bits(3)
        ([3.0, -1.0, 3.0], 6)
        >>> codec.scaled(0.5).range
        1.5

    !!! cite "Salgia, Chi (2024), arXiv:2408.16981, whose text was not available for a check"
    """

    range: float
    num_bits: int = eqx.field(static=True)

    def __check_init__(self):
        _check.scalar("range", self.range, above=0.0, remedy="Entries between -range and range are coded.")
        _check.count("num_bits", self.num_bits)

    @property
    def unbiased(self):
        return True

    def error(self, size):
        return math.inf

    def bits(self, size):
        return size * self.num_bits

    def scaled(self, factor):
        return Uniform(self.range * factor, self.num_bits)

    def __call__(self, key, x):
        spacing = 2 * self.range / (2**self.num_bits - 1)
        heights = (jnp.clip(x, -self.range, self.range) + self.range) / spacing
        return spacing * jnp.floor(heights + jax.random.uniform(key, x.shape, x.dtype)) - self.range


def _kept(fraction: float, size: int) -> int:
    return max(1, round(fraction * size))


def _check_fraction(fraction: float) -> None:
    _check.not_traced("fraction", fraction, "It decides how many numbers are sent.")
    _check.scalar("fraction", fraction, above=0.0, most=1.0, remedy="It is the share of the entries that are sent.")
