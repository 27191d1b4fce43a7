"""Floors under unbiased codecs whose noise depends on the message, from samples of the codec."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from ..._types import precision
from ...algorithms import AbstractAlgorithm, Compressed, Effect
from ...algorithms.base import Arrival
from ...problems import Problem
from ..maps.rounds import local_rule
from ..prediction import Prediction
from .finite import finite_law
from .first_order import noise_is_known
from .moments import Moments, RelaxationLaw
from .replies import RepliesLaw
from .weights import EqualChances

DRAWS = 4000
"""The number of sampled rounds, which determines the variance to about 2 %."""
SWEEPS = 4
"""The number of iterations between the covariance of the error and the coding noise that it causes."""


def predict_unbiased(
    problem: Problem, algorithm: AbstractAlgorithm, predict: Callable[[Problem, AbstractAlgorithm], Prediction]
) -> Prediction | None:
    r"""Returns the prediction for unbiased codecs without memory; None for other algorithms.

    The mean of a round is that without codecs. To first order the covariance is $\Sigma_0 + X$, with $\Sigma_0$ that
    without codecs and $X = \Phi X \Phi^T + Q$. $Q$ is the covariance of the coding noise in a round at errors with the
    covariance $\Sigma_0 + X$, estimated from samples with a fixed key.
    """
    if not isinstance(algorithm, Compressed) or Effect.REMEMBERS_REPLIES in algorithm.effects:
        return None
    rule, finite = local_rule(algorithm.algorithm), finite_law(problem.agents.source)
    if rule is None or not algorithm.codec.unbiased or not problem.affine or not noise_is_known(problem):
        return None
    if finite is not None and finite.independent:
        return None
    plain, M = predict(problem, algorithm.algorithm), problem.num_agents
    known = dataclasses.replace(plain, algorithm=algorithm, radius_at=lambda algorithm: None, basis="first order")
    if not plain.stable:
        return known
    law = RepliesLaw(problem, rule, Arrival(), EqualChances(np.eye(M + 1)[M]), name=type(algorithm).__name__)
    rng = np.random.default_rng(0)
    first, moved = _own_noise(law, rng)
    spread, Phi, covariance = rng.standard_normal((DRAWS, problem.dim)), plain.transition, plain.covariance
    for _ in range(SWEEPS):
        errors = plain.bias + spread @ _root(covariance).T
        g = np.einsum("iak,nk->nia", law.G, np.append(errors, np.ones((DRAWS, 1)), axis=1)) + first
        added = rule.server_step * _coding_noise(algorithm.codec, g, law.S, moved, bool(rule.correction))
        covariance = plain.covariance + solve_discrete_lyapunov(Phi, added.T @ added / DRAWS)
    found = RelaxationLaw(Phi, Moments(plain.bias, covariance), basis="first order")
    return dataclasses.replace(known, covariance=covariance, law=found, left_out=found.left_out)


def _own_noise(law: RepliesLaw, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Samples the noise of first operators and of displacements, `(draws, M, d)` each."""
    n, d = law.noise, law.d
    both = np.concatenate([n.first, n.moved], axis=1)
    covariance = both @ n.hidden @ np.swapaxes(both, 1, 2)
    covariance[:, :d, :d] += n.fresh_first
    covariance[:, d:, d:] += n.fresh_moved
    covariance[:, d:, :d] += n.fresh_both
    covariance[:, :d, d:] += np.swapaxes(n.fresh_both, 1, 2)
    roots = np.stack([_root(c) for c in covariance])
    drawn = np.einsum("iab,nib->nia", roots, rng.standard_normal((DRAWS, law.M, 2 * d)))
    return drawn[..., :d], drawn[..., d:]


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(values.clip(min=0.0))


def _coding_noise(codec: Any, g: np.ndarray, S: np.ndarray, moved: np.ndarray, corrected: bool) -> np.ndarray:
    """Returns the difference between a round with codecs and the same round without, `(draws, d)`."""

    def rounds(g_sent):
        steered = jnp.broadcast_to(g_sent.mean(1, keepdims=True), g.shape) if corrected else g_sent
        return jnp.einsum("iab,nib->nia", S, steered) + moved

    with precision():
        first, second = jax.random.split(jax.random.key(0))
        wanted = jnp.asarray(g)
        sent = _coded(codec, first, wanted) if corrected else wanted
        coded = _coded(codec, second, rounds(sent))
        return np.asarray(coded.mean(1) - rounds(wanted).mean(1))


@eqx.filter_jit
def _coded(codec, key, x):
    keys = jax.random.split(key, x.shape[:2])
    return jax.vmap(jax.vmap(codec))(keys, x)
