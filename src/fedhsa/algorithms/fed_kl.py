"""FedKL: local policy optimisation that stays near the agent's last policy and the common policy."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import _check
from .demands import Demand
from .local import AbstractLocalSteps, Server
from .natural import check_policy
from .schedules import step_at

LEAST_KL = 1e-8
"""A lower bound on divergences, below which the slope of their root is not finite."""
LEAST_RATIO, MOST_RATIO = 1e-8, 10.0
LEAST_PENALTY, MARGIN = 1e-8, 1.1


class Penalties(NamedTuple):
    """The penalties on an agent's distance from its last policy and from the common policy."""

    beta: Any
    sigma: Any


class FedKL(AbstractLocalSteps):
    r"""Policy optimisation on each agent's own episodes, with a penalty on the distance from the common policy.

    From the common $\bar\theta$ agent $i$ repeats `local_steps` times: it plays a batch of episodes under its
    $\theta$, stores that as $\theta_{old}$, and takes `epochs` steps of size $\eta$ along the gradient of

    $$\frac1n \sum_t \frac{\pi_\theta(a_t \mid s_t)}{\pi_{old}(a_t \mid s_t)}\, A_t
      - \beta\, \frac1n \sum_t KL_t(\pi_{old} \,\|\, \pi_\theta)
      - \sigma\, \frac1n \sum_t \sqrt{\max(KL_t(\pi_{\bar\theta} \,\|\, \pi_\theta),\, 10^{-8})}
      - \tfrac\mu2 |\theta - \bar\theta|^2$$

    The mean is over the $n$ actions of the batch, ratios are at most 10, and the advantages $A_t$ are those of the
    problem's estimator. The server adds the mean displacement. Both penalties adapt after every batch and stay with the
    agent: $\beta$ halves if the mean $KL(\pi_{old} \,\|\, \pi_\theta)$ is below `kl_target` by more than a tenth, and
    doubles if it is above by more than a tenth; $\sigma$ does the same with the mean root and `distance_target`, but
    never falls below its initial value. Both are at most 20.

    Limiting cases: `sigma=0` is FedAvg, and `sigma=0` with `proximal=mu` is FedProx.

    Objective, distance and adaptation are those of the authors' public code. That code also bounds $\beta$ by the
    largest advantage divided by the divergence, fits a critic for the advantages (GAE), uses minibatches in its epochs,
    and weights agents by the steps they have played; here epochs use the whole batch, and agents count equally. The
    authors' initial $\beta$ is not known.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: the number of batches that each agent plays per round.
    - `epochs`: the number of gradient steps on each batch.
    - `kl_target`: the target of $KL(\pi_{old} \,\|\, \pi_\theta)$.
    - `sigma`, `beta`: the initial penalties.
    - `distance_target`: the target of the root of $KL(\pi_{\bar\theta} \,\|\, \pi_\theta)$.
    - `proximal`: $\mu$, at least 0.

    Raises `ValueError` if an argument is out of range, and `TypeError` if the problem's agents do not learn a policy.

    !!! example
        >>> problem = fedhsa.problems.policy_gradient.random(3, num_states=3, num_actions=2, horizon=20)
        >>> algorithm = FedKL(0.3, local_steps=2, epochs=5, kl_target=0.01)
        >>> result = fedhsa.simulate(problem, algorithm, rounds=30, record=["mean_return"])
        >>> bool(result.records["mean_return"][0, -1] > result.records["mean_return"][0, 0])
        True

    !!! cite "Xie, Song (2023), arXiv:2204.08125, FedKL; the form is that of the authors' public code"
    """

    epochs: int = eqx.field(static=True, default=10)
    kl_target: float = 2e-4
    sigma: float = 1e-3
    distance_target: float = 7e-2
    beta: float = 1.0
    proximal: float = 0.0

    max_penalty = 20.0

    demands = Demand.NOTHING

    def __check_init__(self):
        _check.count("epochs", self.epochs)
        for name in ("kl_target", "distance_target"):
            _check.scalar(name, getattr(self, name), above=0.0)
        for name in ("sigma", "beta", "proximal"):
            _check.scalar(name, getattr(self, name), least=0.0)

    def check(self, problem):
        check_policy(self, problem)

    def init(self, theta):
        start = (jnp.asarray(value, theta.dtype) for value in (self.beta, self.sigma))
        return Server(theta), Penalties(*start)

    def _local_steps(self, theta_bar, penalties, agent, block, round):
        eta = step_at(self.step_size, round.index)

        def one_batch(carry, o):
            old, penalties = carry
            o = agent.observe(old, o)

            def objective(theta):
                near = agent.kl(old, theta, o)
                far = agent.kl(theta_bar, theta, o, root)
                apart = self.proximal / 2 * jnp.sum((theta - theta_bar) ** 2)
                return agent.surrogate(theta, old, o, bounded) - penalties.beta * near - penalties.sigma * far - apart

            def epoch(theta, _):
                return agent.project(theta + eta * jax.grad(objective)(theta)), None

            theta, _ = jax.lax.scan(epoch, old, length=self.epochs)
            beta = adapted(penalties.beta, agent.kl(old, theta, o), self.kl_target)
            sigma = adapted(penalties.sigma, agent.kl(theta_bar, theta, o, root), self.distance_target)
            return (theta, Penalties(self._bounded(beta, LEAST_PENALTY), self._bounded(sigma, self.sigma))), None

        (theta, penalties), _ = jax.lax.scan(one_batch, (theta_bar, penalties), block, length=self.local_steps)
        return theta - theta_bar, penalties

    def _bounded(self, penalty, least):
        return jnp.clip(penalty, least, self.max_penalty)


def bounded(ratio: Any) -> Any:
    """The ratio of two probabilities, clipped so that its gradient vanishes when it is too large."""
    return jnp.clip(ratio, LEAST_RATIO, MOST_RATIO)


def root(kl: Any) -> Any:
    """The root of a divergence, bounded below so that its slope is finite."""
    return jnp.sqrt(jnp.maximum(kl, LEAST_KL))


def adapted(penalty: Any, distance: Any, target: Any) -> Any:
    """Halves the penalty if the distance is clearly below its target, and doubles it if it is clearly above."""
    factor = jnp.where(distance < target / MARGIN, 0.5, jnp.where(distance > target * MARGIN, 2.0, 1.0))
    return penalty * factor
