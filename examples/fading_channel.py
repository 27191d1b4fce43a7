"""One equaliser for many receivers: each receives the same kind of pilots through its own fading channel.

A receiver sees samples y_t = sum_l h_l(t) x_{t-l} + noise of known symbols x = +-1; its taps h(t) fade about a mean
like a Gauss-Markov process, so its samples are correlated over the coherence time. Together the receivers find the
linear equaliser w with the smallest average E[(x_{t-delay} - w . y)^2], for use in all receivers.
Run `python examples/fading_channel.py`: the figure is written to the current folder.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedhsa as fh
from fedhsa import plots

RECEIVERS, TAPS, WINDOW, DELAY = 12, 3, 5, 3
FADING, NOISE = 0.15, 0.1
"""Standard deviations of each tap about its mean, and of the noise in a sample."""


class Pilots(NamedTuple):
    """The last samples, newest first, and the symbol to be estimated from them."""

    samples: jax.Array
    symbol: jax.Array


class FadingChannel(fh.AbstractSource):
    """A Markov chain of random inputs (fading taps, the next symbol, noise) and the last symbols and samples."""

    mean_taps: np.ndarray
    moving: fh.sources.VAR1
    fading: np.ndarray

    def init(self, key, /):
        moving = self.moving.init(key)
        return moving, jnp.zeros(WINDOW + TAPS, moving.dtype), jnp.zeros(WINDOW, moving.dtype)  # no symbol was sent yet

    def step(self, key, state, /):
        moving, normal = self.moving.step(key, state[0])
        return self._observe(moving, normal, state)

    def draw(self, keys, state, /):
        # Drawing all random numbers together is faster.
        last, normals = self.moving.draw(keys, state[0])
        state, block = jax.lax.scan(lambda state, normal: self._observe(state[0], normal, state), state, normals)
        return (last, *state[1:]), block

    def _observe(self, moving, normal, state):
        _, symbols, samples = state
        symbols = jnp.append(jnp.sign(normal[TAPS]), symbols[:-1])
        sample = (self.mean_taps + self.fading * normal[:TAPS]) @ symbols[:TAPS] + NOISE * normal[TAPS + 1]
        samples = jnp.append(sample, samples[:-1])
        return (moving, symbols, samples), Pilots(samples, symbols[DELAY])


class Receiver(fh.AbstractAgent):
    """Least mean squares, (x - w . y) y; its mean is r - R w with known moments."""

    source: fh.AbstractSource
    R: np.ndarray
    r: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return (o.symbol - o.samples @ theta) * o.samples

    def mean_operator(self, theta, /):
        return self.r - self.R @ theta


def moments(taps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns E[y y^T] and E[x y]: white symbols pass the mean channel, and fading at any speed adds to the noise."""
    heard = np.zeros((WINDOW, WINDOW + TAPS))  # sample k is sum_l taps_l x_{t-k-l}
    for k in range(WINDOW):
        heard[k, k : k + TAPS] = taps
    return heard @ heard.T + (TAPS * FADING**2 + NOISE**2) * np.eye(WINDOW), heard[:, DELAY]


def make_problem(coherence: float) -> fh.Problem:
    """Returns receivers in different places; `coherence` is the correlation time of a tap in symbols."""
    rng = np.random.default_rng(0)
    taps = np.array([0.5, 1.0, 0.4]) * rng.uniform(0.2, 1.8, size=(RECEIVERS, TAPS))
    R, r = (np.stack(part) for part in zip(*map(moments, taps), strict=True))
    memory = np.exp(-1 / coherence)
    Q = np.diag([memory] * TAPS + [0.0, 0.0])[None].repeat(RECEIVERS, axis=0)
    moving = fh.sources.VAR1(Q, start="stationary")  # taps of variance 1 / (1 - memory^2), and two white numbers
    fading = np.full(RECEIVERS, FADING * np.sqrt(1 - memory**2))
    return fh.Problem(Receiver(FadingChannel(taps, moving, fading), R, r), like=np.zeros(WINDOW))


def misses(problem: fh.Problem, w: np.ndarray) -> float:
    """Returns the mean of E[(x - w . y)^2] over the receivers."""
    R, r = problem.agents.R.mean(0), problem.agents.r.mean(0)  # pyright: ignore[reportAttributeAccessIssue]
    return float(1 - 2 * r @ w + w @ R @ w)


def error_of_last(snapshot) -> jax.Array:
    """Returns the error of the last parameter in runs that report an average."""
    return jnp.sum((snapshot.server.inner.theta - snapshot.theta_star) ** 2)


def main() -> None:
    """Prints the errors of both methods in slow and in fast fading, for the last parameter and for the average."""
    algorithms = fh.FedHSA(0.01, local_steps=50), fh.LocalSA(0.01, local_steps=50)
    for name, coherence in ("slow", 100), ("fast", 2):
        problem, results = make_problem(coherence), {}
        for algorithm in algorithms:
            mean = fh.Averaged(algorithm, burn_in=30)
            result = fh.simulate(problem, mean, rounds=120, seeds=8, record={"last": error_of_last})
            results[type(algorithm).__name__] = result
            errors = f"last {result.records['last'][:, 60:].mean():.2e}, mean {result.error[:, -1].mean():.2e}"
            loss = misses(problem, result.theta.mean(0)) / misses(problem, problem.theta_star) - 1
            print(f"{name} fading, {type(algorithm).__name__:7s} error {errors}, misses {loss:.2%} over the best")
    title = r"One equaliser for 12 receivers: $H = 50$, $\eta = 0.01$, fast fading, average of the rounds from 30 on"
    plots.save(plots.curves(results, title=title, width=4.4), "fading_channel")


if __name__ == "__main__":
    main()
