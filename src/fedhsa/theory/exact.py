"""Exact error laws of affine problems, read off the algorithm's own exchanges: no Monte Carlo."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from .. import _check, tree
from .._types import precision
from ..algorithms import AbstractAlgorithm, AbstractSchedule, Replies, Round
from ..problems import Problem
from ..problems.quadratic import QuadraticAgent
from ..sources import VAR1, Silent


class RoundMap(NamedTuple):
    r"""One round as an affine map of the error, $e' = \Phi e + c + \sum_{i,l} K_{il} z_{il}$.

    `noise` is $K$ for additive noise, `(M, H, d, d)`, and None for agents without observations.
    """

    transition: np.ndarray
    offset: np.ndarray
    noise: np.ndarray | None


def round_map(problem: Problem, algorithm: AbstractAlgorithm) -> RoundMap:
    r"""The map of the server's parameter over one round of `algorithm`, exactly.

    The exchanges are differentiated, not re-derived, so the map is that of the code that runs. For FedHSA
    $\Phi = I + \alpha_g (\frac1M \sum_i [F_i^H + \eta S_i (\bar A - A_i)] - I)$ and $c = 0$; for Local SA
    $\Phi = I + \alpha_g (\frac1M \sum_i F_i^H - I)$ and $c = \alpha_g \eta \frac1M \sum_i S_i \bar G_i(\theta^\star)$,
    with $F_i = I + \eta A_i$ and $S_i = \sum_{k<H} F_i^k$.
    """
    _check_reach(problem, algorithm)
    algorithm.check(problem)
    additive = isinstance(problem.agents, QuadraticAgent)
    problem = problem if additive else problem.noiseless()
    with precision():
        agents, device_algorithm, root = tree.to_device((problem.agents, algorithm, problem.theta_star), "float64")
        quiet = jnp.zeros((problem.num_agents, algorithm.block_length, problem.dim)) if additive else ()
        transition, offset, noise, memoryless = tree.to_host(_derivatives(agents, device_algorithm, root, quiet))
    if not memoryless:
        raise TypeError(
            f"{type(algorithm).__name__} carries more than theta from round to round; its exact law needs the joint "
            "map of theta and that state, which is not available."
        )
    return RoundMap(transition, offset, noise)


@eqx.filter_jit
def _derivatives(agents, algorithm, theta, block):
    """The round's Jacobians and offset, and whether it depends on nothing but theta."""

    def play(theta, block, leftover=0.0):
        """One round of one seed, from the exchanges; `leftover` is what state other than theta starts with."""
        shared = Round(jnp.zeros((), int), jax.random.key(0), jax.random.key(0))
        server, memory = jax.tree.map(lambda x: jnp.full_like(x, leftover), algorithm.init(theta))
        server = server._replace(theta=theta)
        memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (tree.leading_axis(agents), *x.shape)), memory)
        for exchange in algorithm.exchanges:
            message = exchange.send(server, shared)

            def local(memory, agent, block, exchange=exchange, message=message):
                return exchange.local(message, memory, agent, block, shared)

            replies, memory = jax.vmap(local)(memory, agents, block)
            server = exchange.aggregate(server, Replies(replies), shared)
        return server.theta

    additive = isinstance(block, jax.Array)
    noise = jnp.moveaxis(jax.jacrev(play, argnums=1)(theta, block), 0, 2) if additive else None
    after, other = play(theta, block), play(theta, block, leftover=1.0)
    return jax.jacfwd(play)(theta, block), after - theta, noise, jnp.array_equal(after, other)


def spectral_radius(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """The factor by which the error shrinks per round in the long run; above 1 the method diverges.

    !!! example
        >>> A = -np.array([0.1, 1.0]).reshape(2, 1, 1)      # two agents, G_i = a_i theta with a = (-0.1, -1)
        >>> problem = fedhsa.problems.quadratic.from_arrays(-A, b=np.zeros((2, 1)))
        >>> [round(spectral_radius(problem, fedhsa.FedHSA(0.5, local_steps=H)), 2) for H in (5, 10, 20)]
        [0.11, 0.38, 1.04]
    """
    return _radius(round_map(problem, algorithm).transition)


def limit(problem: Problem, algorithm: AbstractAlgorithm) -> np.ndarray:
    r"""Where the method goes without noise: $\theta^\star + (I - \Phi)^{-1} c$."""
    return problem.theta_star + _limit_error(round_map(problem, algorithm), algorithm)


def noiseless_error(problem: Problem, algorithm: AbstractAlgorithm, *, rounds: int, theta: Any = None) -> np.ndarray:
    r"""$|\bar\theta^{(t)} - \theta^\star|^2$ without noise for $t = 0, \dots$, `rounds`.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> law = noiseless_error(problem, fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> run = fedhsa.simulate(problem.noiseless(), fedhsa.LocalSA(0.05, local_steps=4), rounds=5)
        >>> bool(np.allclose(run.error[0], law, rtol=1e-12))
        True
    """
    return _noiseless_path(round_map(problem, algorithm), _start_error(problem, theta), rounds)


def curve(problem: Problem, algorithm: AbstractAlgorithm, *, rounds: int, theta: Any = None) -> np.ndarray | None:
    """The exact mean-square error per round where there is a law for it, and None elsewhere or where it diverges."""
    source = problem.agents.source
    if not isinstance(source, Silent | VAR1):
        return None
    try:
        map = round_map(problem, algorithm)
    except TypeError:
        return None
    if _radius(map.transition) > 1:
        return None
    start = _start_error(problem, theta)
    if isinstance(source, Silent):
        return _noiseless_path(map, start, rounds)
    return _noisy_path(_law(source, map), source, start, rounds)


class _Law(NamedTuple):
    """The linear-Gaussian system of the error and the agents' noise, over one round."""

    Phi: np.ndarray
    c: np.ndarray
    Psi: np.ndarray
    """Response of the parameter to each agent's noise at the start of the round, `(M, d, d)`."""
    fresh: np.ndarray
    """Covariance that the fresh noise of one round adds to the parameter, `(d, d)`."""
    cross: np.ndarray
    """The same between parameter and each agent's noise, `(M, d, d)`."""
    QH: np.ndarray
    added: np.ndarray
    """What the noise adds to its own covariance, `(M, d, d)`."""


class _Moments(NamedTuple):
    mean: np.ndarray
    E: np.ndarray
    X: np.ndarray
    Z: np.ndarray


def mean_square_error(problem: Problem, algorithm: AbstractAlgorithm, *, rounds: int, theta: Any = None) -> np.ndarray:
    r"""$E|\bar\theta^{(t)} - \theta^\star|^2$ for $t = 0, \dots$, `rounds` under additive VAR(1) noise, exactly.

    Error and noise form a linear-Gaussian system. With $E = \mathrm{cov}(e)$, $X_i = \mathrm{cov}(e, z_i)$ and
    $Z_i = \mathrm{cov}(z_i)$ at the start of a round,

    $$E' = \Phi E \Phi^T + \sum_i (\Phi X_i \Psi_i^T + \Psi_i X_i^T \Phi^T + \Psi_i Z_i \Psi_i^T) + N,$$

    and likewise for $X_i$ and $Z_i$: $O(M d^3)$ a round.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> law = mean_square_error(problem, fedhsa.FedHSA(0.05, local_steps=4), rounds=50)
        >>> runs = fedhsa.simulate(problem, fedhsa.FedHSA(0.05, local_steps=4), rounds=50, seeds=4000)
        >>> bool(abs(runs.error[:, -1].mean() / law[-1] - 1) < 0.05)
        True
    """
    source = _noise(problem)
    return _noisy_path(_law(source, round_map(problem, algorithm)), source, _start_error(problem, theta), rounds)


def floor(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    r"""The limit of `mean_square_error`, by solving the stationary equations."""
    source, map = _noise(problem), round_map(problem, algorithm)
    mean, law, Z = _limit_error(map, algorithm), _law(source, map), source.covariance
    # X = Phi X QH^T + (Psi Z QH^T + cross), one Sylvester equation per agent
    X = np.stack(
        [
            _solve_stein(law.Phi, QH, Psi @ Zi @ QH.T + cross)
            for QH, Psi, Zi, cross in zip(law.QH, law.Psi, Z, law.cross, strict=True)
        ]
    )
    mixed = np.einsum("ab,ibc,idc->ad", law.Phi, X, law.Psi)
    driven = np.einsum("iab,ibc,idc->ad", law.Psi, Z, law.Psi)
    E = solve_discrete_lyapunov(law.Phi, mixed + mixed.T + driven + law.fresh)
    return float(mean @ mean + np.trace(E))


def _radius(matrix: np.ndarray) -> float:
    return float(abs(np.linalg.eigvals(matrix)).max())


def _limit_error(map: RoundMap, algorithm: AbstractAlgorithm) -> np.ndarray:
    Phi, c, _ = map
    if (radius := _radius(Phi)) >= 1:
        raise ValueError(
            f"{type(algorithm).__name__} diverges on this problem (spectral radius {radius:.4g}), so it has no limit. "
            "Use a smaller step or fewer local steps."
        )
    return np.linalg.solve(np.eye(len(c)) - Phi, c)


def _noiseless_path(map: RoundMap, e: np.ndarray, rounds: int) -> np.ndarray:
    errors = [e]
    for _ in range(_check.count("rounds", rounds)):
        errors.append(map.transition @ errors[-1] + map.offset)
    return (np.stack(errors) ** 2).sum(-1)


def _noisy_path(law: _Law, source: VAR1, e: np.ndarray, rounds: int) -> np.ndarray:
    M, d = len(law.Psi), len(law.c)
    start = source.covariance if source.start == "stationary" else np.zeros((M, d, d))
    moments = _Moments(e, np.zeros((d, d)), np.zeros((M, d, d)), start)
    errors = [_square(moments)]
    for _ in range(_check.count("rounds", rounds)):
        moments = _next(law, moments)
        errors.append(_square(moments))
    return np.array(errors)


def _law(source: VAR1, map: RoundMap) -> _Law:
    Phi, c, K = map
    assert K is not None
    Q, variance = source.transition, source.noise_std**2
    M, H, d, _ = K.shape
    powers = [np.broadcast_to(np.eye(d), (M, d, d))]
    for _ in range(H):
        powers.append(powers[-1] @ Q)
    Psi = sum(K[:, step] @ powers[step] for step in range(H))
    fresh, cross, added = np.zeros((d, d)), np.zeros((M, d, d)), np.zeros((M, d, d))
    for k in range(H):  # the noise eps_k enters z_step for step > k as Q^(step-1-k) eps_k
        J = sum((K[:, step] @ powers[step - 1 - k] for step in range(k + 1, H)), np.zeros((M, d, d)))
        out = powers[H - 1 - k]
        fresh += np.einsum("i,iab,icb->ac", variance, J, J)
        cross += variance[:, None, None] * (J @ np.swapaxes(out, 1, 2))
        added += variance[:, None, None] * (out @ np.swapaxes(out, 1, 2))
    return _Law(Phi, c, np.asarray(Psi), fresh, cross, powers[H], added)


def _noise(problem: Problem) -> VAR1:
    source = problem.agents.source
    if isinstance(problem.agents, QuadraticAgent) and isinstance(source, VAR1):
        return source
    raise TypeError(
        f"The exact law needs additive VAR(1) noise (`problems.quadratic`), got {type(problem.agents).__name__} "
        f"observing {type(source).__name__}. Without noise, `noiseless_error` and `limit` hold for affine problems."
    )


def _next(law: _Law, now: _Moments) -> _Moments:
    QHT = np.swapaxes(law.QH, 1, 2)
    mixed = np.einsum("ab,ibc,idc->ad", law.Phi, now.X, law.Psi)
    driven = np.einsum("iab,ibc,idc->ad", law.Psi, now.Z, law.Psi)
    return _Moments(
        mean=law.Phi @ now.mean + law.c,
        E=law.Phi @ now.E @ law.Phi.T + mixed + mixed.T + driven + law.fresh,
        X=(law.Phi @ now.X + law.Psi @ now.Z) @ QHT + law.cross,
        Z=law.QH @ now.Z @ QHT + law.added,
    )


def _square(moments: _Moments) -> float:
    return float(moments.mean @ moments.mean + np.trace(moments.E))


def _solve_stein(A: np.ndarray, B: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Solves $X = A X B^T + C$ in the eigenbasis-free way: as one linear system of size d^2."""
    d = len(A)
    return np.linalg.solve(np.eye(d * d) - np.kron(A, B), C.ravel()).reshape(d, d)


def _start_error(problem: Problem, theta: Any) -> np.ndarray:
    theta = np.zeros(problem.dim) if theta is None else tree.ravel(theta)
    return _check.array("theta", theta, (problem.dim,)) - problem.theta_star


def _check_reach(problem: Problem, algorithm: AbstractAlgorithm) -> None:
    if not problem.affine:
        raise TypeError(
            f"Exact laws need operators that are affine in the parameter; {type(problem.agents).__name__} is not "
            "marked so. Set `affine = True` on the agent class if it is."
        )
    if any(isinstance(v, AbstractSchedule) for v in vars(algorithm).values()):
        raise TypeError("Exact laws need a constant step size, got a schedule.")
