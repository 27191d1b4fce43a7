"""The constants of the paper's assumptions for a given problem, computed where possible and otherwise estimated."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from ... import _check
from ..._json import plain
from ..._linear import spectral_radius
from ..._types import SeedLike
from ...problems import Problem
from ...problems._roots import affine_roots
from ...sources import IID, VAR1, Replay, Silent
from ..laws.agents import check_exogenous, finite_law
from ..laws.first_order import long_run_of_var
from . import mixing
from .extremes import AtRoot, agents_at_root, extremes, observations, sample

__all__ = ["AutoregressiveNoise", "Constants", "constants"]


class AutoregressiveNoise(NamedTuple):
    """Properties of VAR(1) noise, which has neither a bound nor a finite chain; one entry per agent."""

    spectral_radius: np.ndarray
    """The spectral radius of $Q_i$, `(M,)`, which is the rate of mixing; 0 for independent observations."""
    covariance: np.ndarray
    """The stationary covariance of one observation, `(M, d, d)`."""
    long_run: np.ndarray
    r"""$(I - Q_i)^{-1} \\sigma^2 (I - Q_i)^{-T}$, `(M, d, d)`: the sum of all autocovariances."""


@dataclasses.dataclass(frozen=True)
class Constants:
    r"""The constants of Assumptions 1 to 3 and the heterogeneity of a problem's agents.

    NaN marks unknown constants and infinity marks unbounded ones; `notes` gives the reasons. Arrays are `(M,)`.
    """

    num_agents: int
    """The number of agents $M$."""
    sampling: str
    """The kind of observations: "markov", "independent", "none" (no noise), "recorded" or "unknown"."""
    lipschitz: np.ndarray
    r"""The Lipschitz constant $\max_o \mathrm{Lip}(G_i(\cdot, o))$ of each agent (Assumption 1)."""
    L: float
    r"""$L = \max(1, \max_i$ `lipschitz`$)$: the paper assumes one number for all agents, at least 1 (Assumption 1)."""
    mu: float
    r"""$\mu$ of the average operator (Assumption 2), which is not positive if the assumption fails. It may exceed 1;
    bounds then use 1, since the paper assumes $\mu \le 1$ and a smaller $\mu$ is also valid."""
    sigma_i: np.ndarray
    r"""$\max_o |G_i(0, o)| / L$, the smallest $\sigma_i$ with $|G_i(\theta, o)| \le L (|\theta| + \sigma_i)$."""
    sigma: float
    r"""$\sigma = \max(\max_i \sigma_i, |\theta^\star|, 1)$."""
    geometric: mixing.Geometric
    r"""$\rho_i$ and $c_i$ of the *observations* (Assumption 3). For TD these are pairs $(s_t, s_{t+1})$, which mix one
    step later than the chain: they have the same $\rho_i$, and $c_i / \rho_i$ instead of $c_i$."""
    mixing_times: np.ndarray
    r"""The exact mixing times: the first $t$ at which the observation is within 1/4 of stationarity in total variation,
    from any start."""
    root_distance: np.ndarray
    r"""$|\theta_i^\star - \theta^\star|$, the distances of the agents' roots from the common root."""
    operator_at_root: np.ndarray
    r"""$|\bar G_i(\theta^\star)|$, the norms of the agents' mean operators at the common root."""
    operator_spread: np.ndarray
    r"""$|A_i - \bar A|_2$, the distances of the agents' Jacobians at $\theta^\star$ from their average."""
    L_interval: tuple[float, float] | None = None
    """If $L$ was sampled: the largest sampled slope, which is a lower bound, and a 95 % upper limit."""
    mu_interval: tuple[float, float] | None = None
    r"""If $\mu$ was sampled: a 95 % lower limit, and the smallest sampled slope, which is an upper bound."""
    noise: AutoregressiveNoise | None = None
    """The properties of VAR(1) noise; None for other noise."""
    notes: tuple[str, ...] = ()
    """The constants that are missing or estimated, with the reasons, one sentence each."""

    @property
    def rho(self) -> float:
        r"""$\rho = \max_i \rho_i$."""
        return float(np.max(self.geometric.rho))

    def tau_i(self, eps: float) -> np.ndarray:
        r"""Returns $\tau_i(\varepsilon) = \min\{t : c_i \rho_i^t \le \varepsilon\}$, `(M,)`, in observations."""
        return np.asarray(self.geometric.tau(eps))

    def tau(self, eps: float) -> float:
        r"""Returns $\tau(\varepsilon) = \max_i \tau_i(\varepsilon)$, the mixing time of the slowest agent."""
        return float(np.max(self.tau_i(eps)))

    @property
    def slowest_agent(self) -> int | None:
        """The agent whose observations mix most slowly (largest mixing time, then largest rate); None if unknown."""
        known = np.nan_to_num(self.mixing_times, nan=-1.0)
        if known.max() < 0:
            return None
        return int(np.lexsort((self.geometric.rho, known))[-1])

    def rows(self) -> list[tuple[str, str, str]]:
        """Returns rows `(symbol, value, meaning)` for tables."""
        slowest = "" if self.slowest_agent is None else f", agent {self.slowest_agent}"
        return [
            ("M", str(self.num_agents), f"agents; sampling: {self.sampling}"),
            ("L", _show(self.L, self.L_interval), f"Lipschitz (agents: {_range(self.lipschitz)})"),
            ("mu", _show(self.mu, self.mu_interval), "monotonicity of the average operator"),
            ("sigma", _show(self.sigma), f"size of the operators at 0 (agents: {_range(self.sigma_i)})"),
            ("rho", _show(self.rho), f"mixing rate of the slowest (c up to {np.max(self.geometric.c):.4g})"),
            ("t_mix", _show(float(np.max(self.mixing_times))), f"total-variation mixing time{slowest}"),
            ("|theta_i* - theta*|", _range(self.root_distance), "local roots"),
            ("|G_i(theta*)|", _range(self.operator_at_root), "pull of the agents at the root"),
            ("|A_i - A|", _range(self.operator_spread), "spread of the Jacobians"),
        ]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[k]) for row in rows) for k in (0, 1)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: lists for arrays, null for NaN, and the word "infinity" for infinity."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        noise = values.pop("noise")
        values["noise"] = None if noise is None else {"spectral_radius": noise.spectral_radius}
        values["geometric"] = {"rho": self.geometric.rho, "c": self.geometric.c}
        return plain(values | {"rho": self.rho, "slowest_agent": self.slowest_agent})


def constants(problem: Problem, *, points: int = 64, key: SeedLike = 0) -> Constants:
    r"""Computes the constants of the paper's assumptions for `problem`.

    They are exact for affine operators on finite chains, whose outcomes are enumerated. For other operators, $L$
    (unless the agents define it, `AbstractAgent.lipschitz`) and $\mu$ are estimated at random points, with intervals.

    **Arguments:**

    - `problem`: any problem. Agents are processed in chunks, so that memory stays close to that of the problem.
    - `points`, `key`: the number of random points for estimated constants, and their key.

    **Returns:** a `Constants`, which prints as a table.

    !!! example
        >>> problem = fedhsa.problems.finite_sum.from_arrays(
        ...     A=[[[[1.0]], [[3.0]]]], b=[[[1.0], [1.0]]], P=[[[0.9, 0.1], [0.1, 0.9]]])
        >>> c = constants(problem)
        >>> c.L, c.mu, c.sigma, c.mixing_times             # slopes 1 and 3, their mean 2
        (3.0, 2.0, 1.0, array([4.]))
    """
    check_exogenous(problem)
    points = _check.count("points", points, least=2, remedy="An interval requires two points.")
    notes: list[str] = []
    slopes, agents, mixed = _slopes(problem, points, key, notes), _agents(problem, notes), _mixing(problem, notes)
    noise = _noise(problem, notes)
    sigma_i = slopes.origin / slopes.L
    if noise is not None:
        sigma_i = np.where(np.trace(noise.covariance, axis1=1, axis2=2) > 0, np.inf, sigma_i)
    average = agents.jacobians.mean(0)
    return Constants(
        num_agents=problem.num_agents,
        sampling=_sampling(problem),
        lipschitz=slopes.lipschitz,
        L=slopes.L,
        mu=float(np.linalg.eigvalsh(-(average + average.T) / 2)[0]) if slopes.mu is None else slopes.mu,
        sigma_i=sigma_i,
        sigma=_at_least_one(np.append(sigma_i, float(np.linalg.norm(problem.root)))),
        geometric=mixed.geometric,
        mixing_times=mixed.times,
        root_distance=np.linalg.norm(agents.roots - problem.root, axis=1),
        operator_at_root=np.linalg.norm(agents.at_root, axis=1),
        operator_spread=np.linalg.norm(agents.jacobians - average, 2, axis=(1, 2)),
        L_interval=slopes.L_interval,
        mu_interval=slopes.mu_interval,
        noise=noise,
        notes=tuple(notes),
    )


class _Slopes(NamedTuple):
    lipschitz: np.ndarray
    L: float
    origin: np.ndarray
    mu: float | None = None
    L_interval: tuple[float, float] | None = None
    mu_interval: tuple[float, float] | None = None


def _slopes(problem: Problem, points: int, key: SeedLike, notes: list[str]) -> _Slopes:
    every, unknown = observations(problem), np.full(problem.num_agents, np.nan)
    lipschitz, origin = (unknown, unknown) if every is None else extremes(problem, every)
    if every is None:
        notes.append(f"L is unknown: {type(problem.agents.source).__name__} does not list its observations.")
    if problem.affine:
        assert lipschitz is not None
        return _Slopes(lipschitz, _at_least_one(lipschitz), origin)
    found = sample(problem, every if lipschitz is None else None, points, key)
    notes.append(
        f"{'mu is' if lipschitz is not None else 'L and mu are'} sampled at {points} points: the largest sampled slope "
        "is only a lower bound of L, and the smallest one only an upper bound of mu."
    )
    lipschitz = found.lipschitz if lipschitz is None else lipschitz
    assert lipschitz is not None
    return _Slopes(lipschitz, _at_least_one(lipschitz), origin, found.mu, found.L_interval, found.mu_interval)


def _at_least_one(values: np.ndarray) -> float:
    return float(np.append(values, 1.0).max())  # NaN stays NaN


def _agents(problem: Problem, notes: list[str]) -> AtRoot:
    if problem.affine:
        A, b = problem.affine_parts()
        agents = AtRoot(A, A @ problem.root - b, affine_roots(A, b))
    else:
        agents = agents_at_root(problem)
    rootless = np.flatnonzero(np.isnan(agents.roots).any(1))
    if len(rootless):
        notes.append(f"Agents without a unique root: {len(rootless)}; the first is agent {rootless[0]}.")
    return agents


def _mixing(problem: Problem, notes: list[str]) -> mixing.MixingSpeeds:
    M, law = problem.num_agents, finite_law(problem.agents.source)
    if _sampling(problem) in ("independent", "none"):  # d(t) = 0 for all t >= 1
        return mixing.MixingSpeeds(mixing.Geometric(np.full(M, mixing.SMALLEST_RHO), np.ones(M)), np.ones(M))
    if law is None:
        return mixing.MixingSpeeds(mixing.Geometric(np.full(M, np.nan), np.full(M, np.nan)), np.full(M, np.nan))
    mixed = mixing.of_chains(law.chain.transition, law.chain.stationary)
    not_mixing = np.flatnonzero(mixed.geometric.rho == 1)
    if len(not_mixing):
        first, count = not_mixing[0], len(not_mixing)
        notes.append(f"Agents that do not mix (second eigenvalue 1): {count}; the first is agent {first}.")
    return mixing.MixingSpeeds(mixed.geometric.of_pairs(), mixed.times + 1) if law.pairs else mixed


def _noise(problem: Problem, notes: list[str]) -> AutoregressiveNoise | None:
    source = problem.agents.source
    inner = source.source if isinstance(source, IID) else source
    if not isinstance(inner, VAR1):
        return None
    notes.append(
        "VAR(1) noise is Gaussian, so no sigma bounds the operators (Assumption 1), and its states are not finite "
        "(Assumption 3); its spectral radius and covariances are in `noise`."
    )
    if inner is not source:
        return AutoregressiveNoise(np.zeros(problem.num_agents), inner.covariance, inner.covariance)
    return AutoregressiveNoise(spectral_radius(inner.transition), inner.covariance, long_run_of_var(inner))


def _sampling(problem: Problem) -> str:
    source = problem.agents.source
    if isinstance(source, Silent):
        return "none"
    if isinstance(source, Replay):
        return "recorded"
    if isinstance(source, IID):
        return "independent"
    return "markov" if isinstance(source, VAR1) or finite_law(source) is not None else "unknown"


def _show(value: float, interval: tuple[float, float] | None = None) -> str:
    return f"{value:.4g}" if interval is None else f"{value:.4g} [{interval[0]:.4g}, {interval[1]:.4g}]"


def _range(values: np.ndarray) -> str:
    known = values[~np.isnan(values)]
    return f"{known.min():.4g} to {known.max():.4g}" if len(known) else "unknown"
