"""Estimates of a problem's Jacobians and correlations from samples, for sources that only provide a stream."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ... import _check, tree
from ..._random import as_key, fold_in, fold_in_words, host_generator
from ..._types import Block, Key, SeedLike, Theta, precision
from ...problems import AbstractAgent, Problem
from ...sources import AbstractSource, Replay
from ..laws.agents import check_exogenous
from . import long_run
from .long_run import Interval, jackknife

DEFAULT_SAMPLES = 10_000
REPLICATIONS, FEW = 8, 3
"""The numbers of replications, and of pieces of a record that is too short for as many."""
BURN_IN = 1 / 10  # of the samples, if a source cannot start in its stationary distribution
ARRAYS = ("theta", "jacobians", "residuals", "long_run", "lagged", "slopes")
CHUNK = 1024
"""The number of steps whose derivatives are in memory at a time."""


@dataclasses.dataclass(frozen=True)
class Estimates:
    r"""Properties of each agent near the root $\theta^\star$, estimated from samples, as returned by `estimate`.

    Here $\epsilon_i(o) = G_i(\theta^\star, o) - r_i$ and
    $\tilde A_i(o) = \partial_\theta G_i(\theta^\star, o) - A_i$.
    """

    theta: np.ndarray
    r"""$\theta^\star$, `(d,)`, the point of all estimates."""
    jacobians: np.ndarray
    r"""$A_i = E\,\partial_\theta G_i(\theta^\star, o)$, `(M, d, d)`."""
    residuals: np.ndarray
    r"""$r_i = E\,G_i(\theta^\star, o)$, `(M, d)`."""
    long_run: np.ndarray
    r"""$\Gamma_i = C_0 + \sum_{k \ge 1} (C_k + C_k^T)$, $C_k = E\,\epsilon_i(o_0) \epsilon_i(o_k)^T$, `(M, d, d)`."""
    lagged: np.ndarray
    r"""$E\,\tilde A_i(o_k)\, \epsilon_i(o_0)$ for $k = 0, \dots, K$, `(M, K + 1, d)`; 0 beyond the agent's limit."""
    slopes: np.ndarray
    r"""`long_run` of $\tilde A_i(o)\, u$ instead of $\epsilon_i(o)$, with a random unit vector $u$, `(M, d, d)`."""
    bandwidth: np.ndarray
    r"""The bandwidth of $\Gamma_i$, `(M,)`; by default half of it is the limit of the lags."""
    effective_samples: np.ndarray
    """The number of independent samples that would estimate $r_i$ with the same accuracy, `(M,)`."""
    samples: int = 0
    """The number of observations of each agent in all replications."""
    each: "Estimates | None" = None
    """The estimates of each replication, for `replications` and `interval`."""

    @property
    def replications(self) -> "Estimates":
        """The first six fields from each replication, with a leading axis."""
        if self.each is None:
            raise ValueError("A single replication has no interval. Use the object that `estimate` returned.")
        return self.each

    def interval(self, function: Callable[["Estimates"], Any], level: float = 0.95) -> Interval:
        r"""Returns `function(estimates)`, a number or an array, with a confidence interval for each of its entries.

        Each replication is an independent repetition of the whole estimation, so the values of the function on all but
        one of them give its standard error (the jackknife): $s^2 = \frac{R-1}{R} \sum_r (f_{-r} - \bar f_-)^2$. The
        interval is $f \pm t_{R-1} s$, which for a linear function is Student's interval.

        It does not include errors common to all replications: the kernel may underestimate slow correlations under fast
        noise in `long_run`, and the pieces of a record are independent only if they are long.

        **Arguments:**

        - `function`: a function of an `Estimates`.
        - `level`: the level of the interval.

        !!! example
            >>> problem = fedhsa.problems.finite_sum.random(num_agents=2, num_components=3, dim=2)
            >>> noise = lambda estimates: np.trace(estimates.long_run.mean(0))
            >>> value, low, high = estimate(problem, samples=2000).interval(noise)
            >>> bool(low < value < high)
            True
        """
        every = range(len(self.replications.theta))
        others = [function(self.replications._mean([s for s in every if s != r])) for r in every]
        return jackknife(function(self), others, level)

    def _mean(self, kept: Sequence[int]) -> "Estimates":
        """Returns the estimates from some of the replications; `self` contains all of them."""
        return dataclasses.replace(self, **{name: getattr(self, name)[kept].mean(0) for name in ARRAYS})


class _Plan(NamedTuple):
    """The settings of the sampling, on which the compiled functions depend."""

    samples: int
    replications: int
    burn_in: int
    stationary: bool
    record: bool


class _Stream(NamedTuple):
    """Agents, the keys of their trajectories `(M, R)`, and the direction of their recorded derivatives."""

    agents: AbstractAgent
    keys: Key
    direction: Array
    plan: _Plan


def estimate(
    problem: Problem,
    *,
    samples: int | None = None,
    replications: int | None = None,
    key: SeedLike = 0,
    theta: Any = None,
    lags: int | None = None,
    burn_in: int | None = None,
) -> Estimates:
    r"""Estimates $A_i$, $r_i$, $\Gamma_i$ and the lagged products of every agent from its observations alone.

    Results are means over independent trajectories, or over contiguous pieces of a record (a source with a `length`).

    **Arguments:**

    - `problem`: the problem.
    - `samples`: the number of observations per agent and replication. Default: 10 000, or the whole record.
    - `replications`: the number of independent repetitions, at least 2. Default: 8, or 3 for a record of fewer than 800
      observations, of which more pieces gave intervals that were too short.
    - `key`: an int or a JAX key. The observations differ from those of `simulate` with the same key.
    - `theta`: None estimates at `problem.theta_star`, taken as the root. A parameter of the same shape starts Newton's
      method, and each replication finds the root of its own sample average. Pass it if the root is unknown, so that the
      intervals include its error.
    - `lags`: $K$, for all agents. Default: half of each agent's bandwidth, rounded up.
    - `burn_in`: the number of steps discarded after `init`. Default: 0 for a record or if the source can start in its
      stationary distribution (`sample`), otherwise a tenth of `samples`.

    The bandwidth is `long_run.choose_bandwidth` of the noise $\epsilon_i$ together with $\tilde A_i u$ in a random
    direction $u$, over all replications, since the noise alone may be uncorrelated although the chain mixes slowly.

    Raises `ValueError` if a record has fewer than 100 observations or an operator is not finite. Warns if a trajectory
    is worth fewer than 50 independent samples.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=2, num_states=5, dim=2)
        >>> estimates = estimate(problem, samples=2000)
        >>> bool(np.allclose(estimates.jacobians, problem.jacobians(problem.theta_star), atol=0.05))
        True
    """
    check_exogenous(problem)
    with precision():
        stream = _open(problem, _plan(tree.take(problem.agents.source, 0), samples, replications, burn_in), key)
        R = stream.plan.replications
        if lags is not None:
            _check.number("lags", _check.count("lags", lags, least=0), most=stream.plan.samples - 1)
        start = problem.root if theta is None else tree.ravel_like("theta", theta, problem.like)
        thetas = np.tile(start, (R, 1)) if theta is None else _find_roots(stream, np.tile(start, (R, 1)))
        parts = [_one_agent(stream, i, thetas, lags) for i in range(problem.num_agents)]
    bandwidth, effective = (np.stack([getattr(p, name) for p in parts]) for name in ("bandwidth", "effective_samples"))
    long_run.warn_if_short("agent", stream.plan.samples, bandwidth, effective)
    shares = {name: [getattr(p, name) for p in parts] for name in ARRAYS[1:]}
    most = max(p.lagged.shape[1] for p in parts)
    shares["lagged"] = [np.pad(p.lagged, ((0, 0), (0, most - p.lagged.shape[1]), (0, 0))) for p in parts]
    stacked = {name: np.stack(share, axis=1) for name, share in shares.items()}
    numbers = {"effective_samples": effective * R, "samples": stream.plan.samples * R}
    each = dataclasses.replace(parts[0], **stacked, bandwidth=bandwidth, **numbers)
    return dataclasses.replace(each._mean(range(R)), each=each)


def estimates_of(problem: Problem, samples: "int | Estimates | None", key: SeedLike) -> Estimates:
    """Returns `samples` if they are estimates; otherwise estimates from this number of samples."""
    return samples if isinstance(samples, Estimates) else estimate(problem, samples=samples, key=key)


def _open(problem: Problem, plan: _Plan, key: SeedLike) -> _Stream:
    # The engine uses branches 0 and 1 of a seed's key. Another branch makes estimates independent of runs.
    words = fold_in_words(np.asarray(jax.random.key_data(as_key(key))), np.arange(plan.replications))
    words = fold_in_words(fold_in_words(words, 2), np.arange(problem.num_agents)[:, None])
    keys = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    direction = jnp.asarray(host_generator(key, "direction").normal(size=problem.dim))
    return _Stream(tree.to_device(problem.flat_agents, "float64"), keys, direction, plan)


def _plan(source: AbstractSource, samples: int | None, replications: int | None, burn_in: int | None) -> _Plan:
    least = long_run.LEAST_SAMPLES
    if replications is not None:
        _check.count("replications", replications, least=2, remedy="Intervals require repetitions.")
    if burn_in is not None:
        _check.count("burn_in", burn_in, least=0)
    # A record that repeats has no end, but it contains no further information.
    length = tree.leading_axis(source.observations) if isinstance(source, Replay) else source.length
    if samples is not None:
        fewest = least if length is None else least // FEW
        _check.count("samples", samples, least=fewest, remedy="Correlations cannot be estimated from fewer.")
    if length is None:
        samples = DEFAULT_SAMPLES if samples is None else samples
        stationary = burn_in is None and type(source).sample is not AbstractSource.sample
        burn_in = (0 if stationary else math.ceil(BURN_IN * samples)) if burn_in is None else burn_in
        return _Plan(samples, replications or REPLICATIONS, burn_in, stationary, record=False)
    left = length - (burn_in or 0)
    if left < least:
        raise ValueError(
            f"The record has {length} observations per agent"
            + (f", of which `burn_in` discards {burn_in}. At least" if burn_in else ", and at least")
            + f" {least} are needed to estimate correlations. Use a longer record."
        )
    pieces = replications or (REPLICATIONS if left >= REPLICATIONS * least else FEW)
    samples = left // pieces if samples is None else samples
    if samples * pieces > left or samples < least // FEW:
        raise ValueError(
            f"The record has {length} observations per agent, too few for {pieces} pieces of "
            f"{max(samples, least // FEW)}. Use fewer `replications`, fewer `samples` or a longer record."
        )
    return _Plan(samples, pieces, burn_in or 0, stationary=False, record=True)


def _one_agent(stream: _Stream, i: int, thetas: np.ndarray, lags: int | None) -> Estimates:
    """Returns one agent's estimates from each replication, and its bandwidth."""
    index, points = jnp.asarray(i), jnp.asarray(thetas)
    block, *seen = _observe(stream, index, points)
    values, probe, jacobian = tree.to_host(seen)
    long_run.check_finite(f"agent {i}", values, jacobian)
    noise = long_run.centred(values)
    bandwidth = long_run.choose_bandwidth(np.concatenate([values, probe], axis=-1))
    covariance = long_run.smooth_covariance(noise, bandwidth)
    K = math.ceil(bandwidth / 2) if lags is None else lags
    room = 1 << K.bit_length()  # compiled for powers of two, run for the actual number of lags
    sums = _lagged_sums(stream.agents, index, points, jnp.asarray(noise), jnp.asarray(K), block, room)
    lagged = long_run.lagged_means(np.asarray(sums)[:, : K + 1], jacobian.mean(0), noise)
    slopes = long_run.smooth_covariance(long_run.centred(probe), bandwidth) / float(jnp.sum(stream.direction**2))
    common = np.asarray(bandwidth), np.asarray(long_run.effective_samples(noise, covariance))
    return Estimates(thetas, jacobian, values.mean(1), covariance, lagged, slopes, *common)


@eqx.filter_jit
def _observe(stream: _Stream, i: Array, thetas: Float[Array, "R d"]) -> tuple[Block, Array, Array, Array]:
    """Returns observations, operator values, their derivative along one direction, and the mean Jacobian."""
    agent, n = tree.take(stream.agents, i), stream.plan.samples
    block = _draw(agent.source, stream.keys[i], stream.plan)

    def of_replication(arguments):
        theta, block = arguments
        basis = jnp.eye(theta.shape[0])

        def chunk(total, times):
            value, push = _linearise(agent, theta, block, times, n)
            inside = (times < n)[:, None]
            columns = jax.lax.map(lambda u: jnp.sum(push(jnp.where(inside, u[None], 0.0)), axis=0), basis, batch_size=8)
            return total + columns.T, (value, push(jnp.broadcast_to(stream.direction, value.shape)))

        total, (values, probe) = jax.lax.scan(chunk, jnp.zeros_like(basis), _times(n))
        values, probe = (x.reshape(-1, x.shape[-1])[:n] for x in (values, probe))
        return values, probe, total / n

    return block, *jax.lax.map(of_replication, (thetas, block))


@eqx.filter_jit
def _lagged_sums(agents, i: Array, thetas: Array, noise: Float[Array, "R n d"], K: Array, block: Block, room: int):
    r"""Returns $\sum_{t \ge k} \partial_\theta G_i(\theta, o_t)\, \epsilon_{t-k}$ for $0 \le k \le K$, `(R, room, d)`.

    The derivative is applied to vectors, one block of times and one lag at a time, so that no Jacobians are stored.
    """
    agent = tree.take(agents, i)

    def of_replication(arguments):
        theta, block, noise = arguments
        n, d = noise.shape
        padded = jnp.pad(noise, ((room, CHUNK), (0, 0)))

        def chunk(total, times):
            _, push = _linearise(agent, theta, block, times, n)

            def lag(k, total):
                earlier = jax.lax.dynamic_slice_in_dim(padded, times[0] - k + room, times.shape[0])
                return total.at[k].add(jnp.sum(push(jnp.where((times < n)[:, None], earlier, 0.0)), axis=0))

            return jax.lax.fori_loop(0, K + 1, lag, total), None

        return jax.lax.scan(chunk, jnp.zeros((room, d)), _times(n))[0]

    return jax.lax.map(of_replication, (thetas, block, noise))


def _draw(source: AbstractSource, keys: Key, plan: _Plan) -> Block:
    """Samples the observations of one agent, `(replications, samples, ...)`."""
    start = source.sample if plan.stationary else source.init

    def trajectory(key, length):
        own = fold_in(key, jnp.arange(1 + plan.burn_in + length))
        state = start(own[0])
        if plan.burn_in:
            state, _ = source.draw(own[1 : 1 + plan.burn_in], state)
        return source.draw(own[1 + plan.burn_in :], state)[1]

    if plan.record:
        whole = trajectory(keys[0], plan.replications * plan.samples)
        return jax.tree.map(lambda x: x.reshape(plan.replications, plan.samples, *x.shape[1:]), whole)
    return jax.vmap(lambda key: trajectory(key, plan.samples))(keys)


def _linearise(agent: AbstractAgent, theta: Theta, block: Block, times: Array, n: int) -> tuple[Array, Callable]:
    """Returns the operator at some times, and the map that applies its derivatives to one vector for each time."""
    o = tree.take(block, jnp.minimum(times, n - 1))
    thetas = jnp.broadcast_to(theta, (times.shape[0], *theta.shape))
    return jax.linearize(lambda thetas: jax.vmap(agent.operator)(thetas, o), thetas)


def _times(n: int) -> Array:
    """Returns times 0, 1, ... in rows of equal length; the last row may exceed the end, where vectors must be zero."""
    chunks = math.ceil(n / CHUNK)
    return jnp.arange(chunks * math.ceil(n / chunks)).reshape(chunks, -1)


def _find_roots(stream: _Stream, start: np.ndarray) -> np.ndarray:
    """Finds the root of each replication's sample average over time and agents, `(R, d)`."""

    def average(thetas):
        M, G, J = len(stream.keys), np.zeros_like(thetas), np.zeros((*thetas.shape, thetas.shape[-1]))
        for i in range(M):
            _, *seen = _observe(stream, jnp.asarray(i), jnp.asarray(thetas))
            values, _, jacobian = tree.to_host(seen)
            if thetas is start:  # later trials may go too far
                long_run.check_finite(f"agent {i}", values, jacobian)
            G, J = G + values.mean(1) / M, J + jacobian / M
        return G, J

    return long_run.sample_roots(average, start)
