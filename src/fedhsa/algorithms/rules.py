r"""Robust aggregation rules for `Robust`, which replace the mean of the replies.

A rule receives the replies $x_1, \dots, x_M$ of all agents and a mask of those that count; the others are arbitrary.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _check

__all__ = ["AbstractRule", "ConcentrationFilter", "CoordinateMedian", "GeometricMedian", "MedianOfMeans", "TrimmedMean"]

ROUNDING = 1e-9
"""The tolerance for a share of a number: 0.29 of 100 is 29, not the 28.999... of floating point."""


class AbstractRule(eqx.Module):
    """The base class of rules: a map from the vectors of all agents to one vector.

    !!! example
        >>> class Largest(AbstractRule):
        ...     def __call__(self, x, counts):
        ...         return jnp.max(jnp.where(counts[:, None], x, -jnp.inf), axis=0)
        >>> Largest()(jnp.array([[1.0], [5.0], [2.0]]), jnp.array([True, False, True])).tolist()
        [2.0]
    """

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "agents d"], counts: Bool[Array, " agents"]) -> Float[Array, " d"]:
        """Returns the vector; zero if no agent counts. Rows of `x` that do not count are zero."""


class CoordinateMedian(AbstractRule):
    """The median of each entry.

    Fewer than half of the agents cannot move an entry beyond those of the others. With heterogeneous agents it differs
    from the mean even if no agent is Byzantine.

    !!! example
        >>> x = jnp.array([[0.0, 1.0], [1.0, 2.0], [100.0, -50.0]])
        >>> CoordinateMedian()(x, jnp.array([True, True, True])).tolist()
        [1.0, 1.0]

    !!! cite "Yin, Chen, Ramchandran, Bartlett (2018), arXiv:1803.01498"
    """

    def __call__(self, x, counts):
        x, n = _sorted(x, counts)
        low, high = x[jnp.maximum(n - 1, 0) // 2], x[n // 2]
        return jnp.where(n > 0, low / 2 + high / 2, 0)


class TrimmedMean(AbstractRule):
    r"""The mean of each entry without its smallest and its largest values.

    **Arguments:**

    - `share`: the share of the counting agents that is left out at either end, at least 0 and below 1/2, rounded down.
      It must be at least the share of Byzantine agents.

    Raises `ValueError` if `share` is out of range.

    !!! example
        >>> x = jnp.array([[0.0], [1.0], [3.0], [100.0]])
        >>> TrimmedMean(0.25)(x, jnp.full(4, True)).tolist()
        [2.0]

    !!! cite "Yin, Chen, Ramchandran, Bartlett (2018), arXiv:1803.01498"
    """

    share: float = 0.1

    def __check_init__(self):
        _check.scalar(
            "share", self.share, least=0.0, below=0.5, remedy="At 1/2 no reply remains: use CoordinateMedian."
        )

    def __call__(self, x, counts):
        x, n = _sorted(x, counts)
        cut = jnp.floor(self.share * n.astype(x.dtype) + ROUNDING).astype(n.dtype)
        place = jnp.arange(len(x), dtype=n.dtype)
        return _mean(x, (place >= cut) & (place < n - cut))


class MedianOfMeans(AbstractRule):
    r"""The median of bucket means, entry by entry, where agents are dealt into the buckets in turn.

    It has less noise than the median of all replies, and tolerates Byzantine agents in fewer than half of the buckets.
    Robust Fed-Q is `Robust(DisSACC(alpha, H), MedianOfMeans(P))` on `q_learning` with `synchronous=True`, with $P$ of
    the order of the number of Byzantine agents and the logarithm of the table's size.

    **Arguments:**

    - `buckets`: $P$, more than twice the number of Byzantine agents; 1 gives the mean, and the number of agents gives
      the median.

    Raises `ValueError` if `buckets` is less than 1.

    !!! example
        >>> x = jnp.array([[0.0], [1.0], [3.0], [100.0], [2.0], [4.0]])
        >>> MedianOfMeans(3)(x, jnp.full(6, True)).tolist()     # the median of 50, 1.5 and 3.5
        [3.5]

    !!! cite "As a rule for servers: Maity, Mitra, Robust Fed-Q, checked against the first author's description"
    """

    buckets: int = eqx.field(static=True)

    def __check_init__(self):
        _check.count("buckets", self.buckets)

    def __call__(self, x, counts):
        dealt = (jnp.cumsum(counts) - 1) % self.buckets
        inside = counts[None, :] & (dealt[None, :] == jnp.arange(self.buckets)[:, None])
        return CoordinateMedian()(jax.vmap(lambda these: _mean(x, these))(inside), jnp.any(inside, axis=1))


class GeometricMedian(AbstractRule):
    r"""The point with the smallest sum of distances, $\arg\min_z \sum_i |x_i - z|$.

    It is computed by Weiszfeld steps from the coordinate median: $z$ becomes the mean with weights $1 / |x_i - z|$. If
    $z$ is itself one of the replies, it stays if the pull of the others is at most that of the replies there; otherwise
    it moves as Vardi and Zhang propose.

    **Arguments:**

    - `iterations`: the number of steps. They converge geometrically, but slowly if the minimum is one of the replies.

    Raises `ValueError` if `iterations` is less than 1.

    !!! example
        >>> x = jnp.array([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 2.0], [1.0, 1.0], [1e9, 1e9]])
        >>> GeometricMedian()(x, jnp.array([True] * 5 + [False])).tolist()
        [1.0, 1.0]

    !!! cite "As a rule Pillutla, Kakade, Harchaoui (2022), arXiv:1912.13445; as a method Vardi, Zhang (2000), PNAS 97"
        Neither text was available for a check; a test against a general optimiser shows that the point is the minimum.
    """

    iterations: int = eqx.field(static=True, default=60)

    def __check_init__(self):
        _check.count("iterations", self.iterations)

    def __call__(self, x, counts):
        def step(z, _):
            away, distance = x - z[None], _distances(x, z)
            here = counts & (distance == 0)
            pull = jnp.where(counts & ~here, 1 / jnp.where(distance == 0, 1, distance), 0)
            total = jnp.sum(pull)
            force = pull @ away
            held = jnp.sum(here.astype(x.dtype)) / jnp.maximum(jnp.sqrt(jnp.sum(force**2)), jnp.finfo(x.dtype).tiny)
            move = force / jnp.where(total == 0, 1, total)
            return z + jnp.maximum(1 - held, 0) * move, None

        return jax.lax.scan(step, CoordinateMedian()(x, counts), length=self.iterations)[0]


class ConcentrationFilter(AbstractRule):
    r"""The mean of the replies near the point where most of them are: FedPG-BR's filter.

    The radius is $r = 2 \sigma \sqrt{V / B}$ with $V = 2 \log(2 M / \delta)$. $S$ is the set of replies with more than
    half of all replies within $r$; the member of $S$ nearest to the mean of $S$ is the centre, and the result is the
    mean of the replies within $r$ of the centre. If these are fewer than $(1 - \alpha) M$, the radius is $2 \sigma$
    instead. If no reply has a majority around it even then, the result is zero. $M$ is the number of agents that count.

    The radius is an absolute length: a more distant reply is left out even if its agent is honest. Operators and
    displacements require different radii.

    **Arguments:**

    - `sigma`: $\sigma$, a bound on the distance between the reply of one observation and its mean.
    - `batch`: $B$, the number of observations that a reply averages over.
    - `share`: $\alpha$, the largest share of Byzantine agents, below 1/2.
    - `delta`: $\delta$ in (0, 1), the probability that an honest reply is left out.

    Raises `ValueError` if an argument is out of range.

    !!! example
        >>> x = jnp.array([[0.0], [1.0], [2.0], [100.0]])
        >>> ConcentrationFilter(sigma=1.0, batch=8)(x, jnp.full(4, True)).tolist()
        [1.0]

    !!! cite "Fan et al. (2021), arXiv:2110.14074, FedPG-Aggregate; the form is that of the authors' public code"
    """

    sigma: float
    batch: int = eqx.field(static=True, default=1)
    share: float = 0.3
    delta: float = 0.6

    def __check_init__(self):
        _check.scalar("sigma", self.sigma, above=0.0)
        _check.count("batch", self.batch)
        _check.scalar("share", self.share, least=0.0, below=0.5)
        _check.scalar("delta", self.delta, above=0.0, below=1.0)

    def __call__(self, x, counts):
        return _mean(x, self.kept(x, counts))

    def kept(self, x: Float[Array, "agents d"], counts: Bool[Array, " agents"]) -> Bool[Array, " agents"]:
        """The mask of the replies that the mean is over."""
        n = jnp.sum(counts).astype(x.dtype)
        radius = 2 * self.sigma * jnp.sqrt(2 * jnp.log(2 * jnp.maximum(n, 1) / self.delta) / self.batch)
        near = self._near(x, counts, n, radius)
        few = jnp.sum(near.astype(x.dtype)) < (1 - self.share) * n - ROUNDING
        return jnp.where(few, self._near(x, counts, n, 2 * self.sigma), near)

    def _near(self, x: Any, counts: Any, n: Any, radius: Any) -> Any:
        """The mask of the replies within the radius of the centre, if there is a centre."""
        within = jax.lax.map(lambda y: (_distances(x, y) <= radius) & counts, x)  # one row at a time, to save memory
        dense = counts & (jnp.sum(within.astype(x.dtype), axis=1) > n / 2)
        centre = jnp.argmin(jnp.where(dense, _distances(x, _mean(x, dense)), jnp.inf))
        return within[centre] & jnp.any(dense)


def _distances(x: Any, y: Any) -> Any:
    return jnp.sqrt(jnp.sum((x - y[None]) ** 2, axis=1))


def _mean(x: Any, counts: Any) -> Any:
    return jnp.sum(jnp.where(counts[:, None], x, 0), axis=0) / jnp.maximum(jnp.sum(counts.astype(x.dtype)), 1)


def _sorted(x: Any, counts: Any) -> tuple[Any, Any]:
    """Sorts each entry, with agents that do not count last; also returns the number of agents that count."""
    return jnp.sort(jnp.where(counts[:, None], x, jnp.inf), axis=0), jnp.sum(counts)
