r"""Measurements of the quantities in the paper's proof while FedHSA runs: the bias, drift and noise of each round.

`Measured(FedHSA(...))` runs FedHSA's own exchanges, and every agent also reports these quantities; recorders read them
from the server's state. Entry $t + 1$ of a record belongs to round $t$, and entry 0 is 0.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._types import Theta
from ...algorithms import AbstractAlgorithm, Exchange, FedHSA, Replies
from ...algorithms.schedules import step_at
from .bounds import evaluate, markov_bias
from .constants import Constants

__all__ = ["Measured", "MeasuredBias", "bias", "compare_bias", "drift", "variance"]


class Measurement(NamedTuple):
    """The quantities that an agent reports in addition to its displacement, averaged over its local steps."""

    noise: Theta
    r"""$\frac1H \sum_\ell (G_i(\theta_{i,\ell}, o_{i,\ell}) - \bar G_i(\theta_{i,\ell}))$."""
    drift: Any
    r"""$\frac1H \sum_\ell |\theta_{i,\ell} - \bar\theta|^2$."""


class Server(NamedTuple):
    """FedHSA's state, and the measurements of the last round."""

    theta: Theta
    inner: Any
    start: Theta
    r"""$\bar\theta^{(t)}$, the parameter at the start of the round."""
    push: Theta
    r"""$\frac{2\alpha}{MH} \sum_{i,\ell} (G_i - \bar G_i)(\theta_{i,\ell}^{(t)})$."""
    drift: Any
    r"""$\frac1{MH} \sum_{i,\ell} |\theta_{i,\ell}^{(t)} - \bar\theta^{(t)}|^2$."""


class Measured(AbstractAlgorithm):
    r"""FedHSA that also measures the terms of its convergence proof. The parameter is the same as without measurement.

    **Arguments:**

    - `algorithm`: the `FedHSA` to run, with a constant step size or a schedule.

    Raises `TypeError` if `algorithm` is not a `FedHSA`.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=2, num_states=4, dim=2)
        >>> record = {"bias": bias, "drift": drift}
        >>> run = fedhsa.simulate(problem, Measured(fedhsa.FedHSA(0.1, local_steps=3)), rounds=5, record=record)
        >>> run.records["bias"].shape
        (1, 6)
    """

    algorithm: FedHSA

    def __check_init__(self):
        if not isinstance(self.algorithm, FedHSA):
            raise TypeError(f"`algorithm` must be a FedHSA, whose proof is measured, got {self.algorithm!r}.")

    @property
    def block_length(self):
        return self.algorithm.block_length

    def init(self, theta):
        inner, memory = self.algorithm.init(theta)
        return Server(theta, inner, theta, jnp.zeros_like(theta), jnp.zeros_like(theta[0])), memory

    @property
    def exchanges(self):
        operator, delta = self.algorithm.exchanges

        def ask(server, round):
            return operator.send(server.inner, round)

        def average(server, replies, round):
            return server._replace(inner=operator.aggregate(server.inner, replies, round), start=server.theta)

        def send(server, round):
            return delta.send(server.inner, round)

        def local(g_bar, memory, agent, block, round):
            reply, after = delta.local(g_bar, memory, agent, block, round)
            return (reply, self._report(g_bar, memory, agent, block, round)), after

        def move(server, replies, round):
            displacements, reports = replies.values
            inner = delta.aggregate(server.inner, Replies(displacements, replies.weights), round)
            report = Replies(reports, replies.weights).mean()
            eta = step_at(self.algorithm.step_size, round.index)
            alpha = self.algorithm.local_steps * eta * self.algorithm.server_step
            return Server(inner.theta, inner, server.start, 2 * alpha * report.noise, report.drift)

        return (Exchange(operator.name, ask, operator.local, average), Exchange(delta.name, send, local, move))

    def _report(self, g_bar, memory, agent, block, round):
        """Repeats the local steps and returns their measurements."""
        eta, H = step_at(self.algorithm.step_size, round.index), self.algorithm.local_steps

        def step(theta, o):
            g = agent.operator(theta, o)
            seen = Measurement(g - agent.mean_operator(theta), jnp.sum((theta - memory.theta) ** 2))
            return theta + eta * (g + g_bar - memory.g), seen

        _, seen = jax.lax.scan(step, memory.theta, block, length=H)
        return jax.tree.map(lambda values: jnp.mean(values, axis=0), seen)


def bias(snapshot: Any) -> Any:
    r"""Records $\langle \bar\theta^{(t)} - \theta^\star, \text{push}\rangle$ of one run, whose mean is $T_{bias}$.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=2, num_states=3, dim=2)
        >>> method = Measured(fedhsa.FedHSA(0.05, local_steps=2))
        >>> fedhsa.simulate(problem, method, rounds=3, record={"bias": bias}).records["bias"].shape
        (1, 4)
    """
    return jnp.sum((snapshot.server.start - snapshot.theta_star) * snapshot.server.push)


def drift(snapshot: Any) -> Any:
    r"""Records the drift of the round, $\frac1{MH} \sum_{i,\ell} |\theta_{i,\ell}^{(t)} - \bar\theta^{(t)}|^2$.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=2, num_states=3, dim=2)
        >>> method = Measured(fedhsa.FedHSA(0.05, local_steps=2))
        >>> fedhsa.simulate(problem, method, rounds=3, record={"drift": drift}).records["drift"].shape
        (1, 4)
    """
    return snapshot.server.drift


def variance(snapshot: Any) -> Any:
    r"""Records $|\text{push}|^2 / 2$ of one run, whose mean the variance reduction lemma bounds.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=2, num_states=3, dim=2)
        >>> method = Measured(fedhsa.FedHSA(0.05, local_steps=2))
        >>> fedhsa.simulate(problem, method, rounds=3, record={"variance": variance}).records["variance"].shape
        (1, 4)
    """
    return jnp.sum(snapshot.server.push**2) / 2


class MeasuredBias(NamedTuple):
    """The measured bias of every round and its bound; arrays with one entry per round."""

    bias: np.ndarray
    """The mean over seeds."""
    standard_error: np.ndarray
    """The standard error of the mean."""
    bound: np.ndarray
    r"""`markov_bias` at the measured error; it is claimed for rounds $t \ge 2 \bar\tau$."""


def compare_bias(result: Any, constants: Constants, algorithm: FedHSA, *, constant: float = 1.0) -> MeasuredBias:
    r"""Returns the measured $T_{bias}$ of each round, its standard error over seeds, and the bound of its lemma.

    **Arguments:**

    - `result`: a simulation of `Measured(algorithm)` that recorded `{"bias": measure.bias}` in every round.
    - `constants`: the constants of the problem.
    - `algorithm`: the measured `FedHSA`.
    - `constant`: the factor hidden in the lemma's $O(\cdot)$.

    Raises `ValueError` if the bias was not recorded in every round.

    !!! example
        >>> problem, algorithm = fedhsa.problems.td.random(3, 6, 2), fedhsa.FedHSA(0.01, local_steps=5)
        >>> run = fedhsa.simulate(problem, Measured(algorithm), rounds=50, seeds=20, record={"bias": bias})
        >>> measured = compare_bias(run, fedhsa.theory.constants(problem), algorithm)
        >>> bool((measured.bias <= measured.bound).all())
        True
    """
    if "bias" not in result.records or result.records["bias"].shape[1] != result.error.shape[1]:
        raise ValueError("`result` has no bias of every round. Simulate with `record={'bias': measure.bias}`.")
    samples = result.records["bias"][:, 1:]
    error = result.error[:, :-1].mean(0)
    spread = samples.std(0, ddof=1) if len(samples) > 1 else np.full(samples.shape[1], np.nan)
    bound = evaluate(markov_bias, constants, algorithm, error=error, constant=constant)
    return MeasuredBias(samples.mean(0), spread / np.sqrt(len(samples)), bound)
