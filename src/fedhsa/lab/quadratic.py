"""The numbers of the lab's first page: exact laws of several methods on the quadratic problem, in milliseconds.

`theory.predict` has the same laws for every method and problem. It derives them from a method's exchanges, which are
recompiled for each number of agents and of local steps. Here the rounds of six methods are written out, so that a
slider needs no compilation. The tests compare both.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _check
from .._linear import lyapunov, spectral_radius, transpose
from ..problems import quadratic as family
from ..theory.laws.additive import AdditiveLaw, HiddenNoise
from ..theory.maps.rounds import LocalRule
from ..theory.stability import Limit, first_crossing, largest_step

DIM = 2
"""The dimension of the page's problem: two, so that the agents can be drawn in the plane."""
HUGE = 1e100
"""A round map with larger entries is unstable, and its powers would overflow."""
FARTHEST = 2000
"""The largest number of rounds of a curve, if rounds of other methods take more observations."""
ROUNDING = 1e-24
"""A squared bias below this part of the problem's size is rounding error, and counts as zero."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings of the page's sliders.

    >>> Setting(num_agents=5).algorithm("LocalSA")
    LocalSA(step_size=0.05, local_steps=10, server_step=1.0)
    """

    num_agents: int = 10
    local_steps: int = 10
    step_size: float = 0.05
    b_level: float = 10.0
    """The heterogeneity of the agents' roots: the scale of the extra part of each $b_i$."""
    heterogeneity: float = 1.0
    noise_std: float = 0.3
    noise_radius: float = 0.8
    """The correlation of the noise: the spectral radius of each $Q_i$."""
    server_step: float = 1.0
    rounds: int = 60
    others: tuple[str, str] = ("SCAFFLSA", "SynchronisedSA")
    """The two methods that are shown next to FedHSA and LocalSA."""
    key: int = 0
    """The seed of the random problem."""

    def __post_init__(self):
        for name in self.others:
            _check.choice("others", name, OTHERS)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that are shown, each once."""
        return tuple(dict.fromkeys(("FedHSA", "LocalSA", *self.others)))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `problems.quadratic.random` for this setting."""
        names = ("heterogeneity", "b_level", "noise_std", "noise_radius", "key")
        return {"num_agents": self.num_agents, "dim": DIM} | {name: getattr(self, name) for name in names}

    def algorithm(self, name: str) -> Any:
        """Return the method of this name with the step sizes of this setting."""
        from .. import algorithms

        kind = getattr(algorithms, name)
        return kind(**{key: getattr(self, key) for key in METHODS[name].arguments})


class Problem(NamedTuple):
    """The arrays of a quadratic problem, equal to those of `problems.quadratic.random`."""

    A: np.ndarray
    """The Jacobians of the mean operators, minus the matrices of the losses, `(M, d, d)`."""
    b: np.ndarray
    Q: np.ndarray
    noise_std: float
    root: np.ndarray

    @property
    def residuals(self) -> np.ndarray:
        """The agents' mean operators at the root, `(M, d)`."""
        return self.b + self.A @ self.root

    @property
    def roots(self) -> np.ndarray:
        """The root of each agent alone, `(M, d)`."""
        return np.linalg.solve(-self.A, self.b[..., None])[..., 0]


@functools.lru_cache(maxsize=32)
def _problem(num_agents: int, dim: int, heterogeneity: float, b_level: float, noise_radius: float, key: int):
    A, b, Q = family.draw(num_agents, dim, heterogeneity, 1.0, b_level, noise_radius, True, key)
    return np.array(A), np.array(b), np.array(Q)


def problem(setting: Setting) -> Problem:
    """Return the problem of a setting.

    >>> problem(Setting(num_agents=3)).roots.shape
    (3, 2)
    """
    given = setting.arguments()
    noise_std = given.pop("noise_std")
    A, b, Q = _problem(**given)
    return Problem(-A, b, Q, noise_std, np.linalg.solve(A.mean(0), b.mean(0)))


class Round(NamedTuple):
    r"""One round as a star: the server's state $x$, a memory $m_i$ of each agent, and outputs $y_i$ that are averaged.

    $y_i = Y^x_i x + Y^m_i m_i + \sum_\ell Y^z_{i,\ell} z_{i,\ell} + y^0_i$, then $x' = X x + B \frac1M \sum_i y_i$ and
    $m_i' = U x + V m_i + W y_i$. The error is the first part of $x$. The matrices of outputs have a leading axis of
    step sizes, `(n, M, ...)`, so that many settings are computed together.
    """

    Yx: np.ndarray
    Ym: np.ndarray
    Yz: np.ndarray
    """`(n, M, H, o, d)`."""
    y0: np.ndarray
    X: np.ndarray
    B: np.ndarray
    U: np.ndarray
    V: np.ndarray
    W: np.ndarray
    server: np.ndarray
    """The map from the error to the server's state before the first round, `(p, d)`."""
    memory: np.ndarray
    """The map from the error to each agent's memory before the first round, `(q, d)`."""
    conserved: np.ndarray | None
    """A combination that rounds conserve and that is zero: the weights of $x$ and of each $m_i$, `(d, p + q)`."""


class Local(NamedTuple):
    r"""The local steps: $F_i^H - I$, $\eta S_i$ with $S_i = \sum_{k<H} F_i^k$, and $\eta F_i^{H-1-\ell}$."""

    moved: np.ndarray
    sums: np.ndarray
    noise: np.ndarray
    pulled: np.ndarray
    """$\\eta S_i r_i$: the displacement from the root."""


def _local(problem: Problem, steps: np.ndarray, H: int) -> Local:
    M, d = problem.b.shape
    eta = np.asarray(steps, float).reshape(-1, 1, 1, 1)
    powers = np.empty((len(eta), M, H, d, d))
    power = np.broadcast_to(np.eye(d), (len(eta), M, d, d))
    for k in range(H - 1, -1, -1):
        powers[:, :, k] = power
        power = power + eta * (problem.A @ power)
    sums = eta * powers.sum(2)
    return Local(power - np.eye(d), sums, eta[..., None] * powers, (sums @ problem.residuals[..., None])[..., 0])


def _stateless(outputs: tuple[np.ndarray, np.ndarray, np.ndarray], server_step: float) -> Round:
    """Return a round of a method whose only state is the parameter."""
    Yx, Yz, y0 = outputs
    one, none = np.eye(Yx.shape[-1]), np.zeros((0, Yx.shape[-1]))
    return Round(Yx, Yx[..., :0], Yz, y0, one, server_step * one, none, none[:, :0], none, one, none, None)


def _fed_hsa(problem: Problem, setting: Setting, steps: np.ndarray) -> Round:
    # The correction of step 0 is a sum over all agents; its part from each agent's noise is counted as that agent's.
    local = _local(problem, steps, setting.local_steps)
    noise = local.noise.copy()
    noise[:, :, 0] += local.sums.mean(1, keepdims=True) - local.sums
    return _stateless((local.sums @ problem.A.mean(0), noise, np.zeros_like(local.pulled)), setting.server_step)


def _local_sa(problem: Problem, setting: Setting, steps: np.ndarray) -> Round:
    local = _local(problem, steps, setting.local_steps)
    return _stateless((local.moved, local.noise, local.pulled), setting.server_step)


def _synchronised(problem: Problem, setting: Setting, steps: np.ndarray) -> Round:
    local = _local(problem, steps, 1)
    return _stateless((local.moved, local.noise, local.pulled), 1.0)


def _scafflsa(problem: Problem, setting: Setting, steps: np.ndarray) -> Round:
    # The memory is eta H times the shift, minus the agent's last parameter; outputs are the agents' parameters.
    (M, d), H = problem.b.shape, setting.local_steps
    moved, sums, noise, pulled = _local(problem, steps, H)
    sums = sums / (H * np.reshape(steps, (-1, 1, 1, 1)))
    one, zero = np.eye(d), np.zeros((d, d))
    conserved = np.concatenate([one, one / M], axis=1)
    return Round(moved + one + sums, sums, noise, pulled, zero, one, one, one, -one, one, -one, conserved)


def _scaffold(problem: Problem, setting: Setting, steps: np.ndarray) -> Round:
    # The server has the error and eta H c, the agents eta H c_i; outputs are displacements.
    (M, d), H = problem.b.shape, setting.local_steps
    moved, sums, noise, pulled = _local(problem, steps, H)
    sums = sums / (H * np.reshape(steps, (-1, 1, 1, 1)))
    one, zero, start = np.eye(d), np.zeros((d, d)), np.eye(2 * d)[:, :d]
    B = np.concatenate([setting.server_step * one, one])
    U = np.concatenate([zero, -one], axis=1)
    conserved = np.concatenate([zero, -one, one / M], axis=1)
    Yx = np.concatenate([moved, sums], axis=-1)
    return Round(Yx, -sums, noise, pulled, start @ start.T, B, U, one, one, start, zero, conserved)


def _one_exchange(problem: Problem, setting: Setting, steps: np.ndarray) -> Round:
    # The server has the error and the mean operator of the round before; outputs are displacements and operators.
    d = problem.b.shape[1]
    moved, sums, noise, pulled = _local(problem, steps, setting.local_steps)
    one, zero, start = np.eye(d), np.zeros((d, d)), np.eye(2 * d)[:, :d]
    nothing = np.zeros_like(moved)
    operators = np.concatenate([np.broadcast_to(problem.A, moved.shape), nothing], axis=-1)
    Yx = np.concatenate([np.concatenate([moved, sums], axis=-1), operators], axis=-2)
    seen = np.zeros_like(noise)
    seen[:, :, 0] = one
    y0 = np.concatenate([pulled, np.broadcast_to(problem.residuals, pulled.shape)], axis=-1)
    B = np.block([[setting.server_step * one, zero], [zero, one]])
    Ym, Yz = np.concatenate([-sums, nothing], axis=-2), np.concatenate([noise, seen], axis=-2)
    W = np.concatenate([zero, one], axis=1)
    return Round(Yx, Ym, Yz, y0, start @ start.T, B, np.zeros((d, 2 * d)), zero, W, start, zero, None)


class Method(NamedTuple):
    """A method of the page."""

    round: Callable[[Problem, Setting, np.ndarray], Round]
    arguments: tuple[str, ...]
    """The settings that the method takes."""
    exchanges: int
    """The number of exchanges in a round."""
    correction: float | None = None
    """The correction of `LocalRule`, for the methods that have a local rule."""


STEPS = ("step_size", "local_steps")
METHODS = {
    "FedHSA": Method(_fed_hsa, (*STEPS, "server_step"), 2, 1.0),
    "LocalSA": Method(_local_sa, (*STEPS, "server_step"), 1, 0.0),
    "SCAFFLSA": Method(_scafflsa, STEPS, 1),
    "SCAFFOLD": Method(_scaffold, (*STEPS, "server_step"), 1),
    "OneExchangeFedHSA": Method(_one_exchange, (*STEPS, "server_step"), 1),
    "SynchronisedSA": Method(_synchronised, STEPS[:1], 1, 0.0),
}
"""The methods of the page, all with exact laws."""
OTHERS = tuple(METHODS)[2:]


class Law:
    """The exact mean-square error of one method at one step size or several: round by round, and in the long run.

    >>> setting = Setting(num_agents=5)
    >>> law = Law(problem(setting), setting, "FedHSA")
    >>> law.stable, law.floor.bias_square, law.floor.noise > 0
    (True, 0.0, True)
    """

    def __init__(
        self, problem: Problem, setting: Setting, name: str, steps: Sequence[float] | np.ndarray | None = None
    ):
        self.problem, self.name = problem, name
        self.steps = np.asarray([setting.step_size] if steps is None else steps, float)
        with np.errstate(all="ignore"):
            self.round = METHODS[name].round(problem, setting, self.steps)
            self._meet_noise()

    def _meet_noise(self) -> None:
        """Compute the maps from the noise before a round to outputs and later noise, and the new noise's covariance."""
        Q, Yz = self.problem.Q, self.round.Yz
        n, M, H, o, d = Yz.shape
        J, power = np.zeros((n, M, o, d)), np.broadcast_to(np.eye(d), (n, M, d, d))
        fresh = np.zeros((n, M, o + d, o + d))
        for k in range(H - 1, -1, -1):
            both = np.concatenate([J, power], axis=-2)
            fresh += both @ transpose(both)
            J, power = Yz[:, :, k] + J @ Q, power @ Q
        self.Psi, self.QH, self.fresh = J, power, self.problem.noise_std**2 * fresh

    def errors(self, rounds: int) -> np.ndarray:
        """Return the mean-square error before the first round and after each of `rounds`, `(n, rounds + 1)`.

        The rounds are traced backwards from the error, which needs only small matrices.
        """
        r, (M, d) = self.round, self.problem.b.shape
        n, q = len(self.steps), len(r.V)
        x, m = r.server @ -self.problem.root, r.memory @ -self.problem.root
        Lx, Lm, Lz = np.tile(np.eye(d, len(r.X)), (n, 1, 1)), np.zeros((n, M, d, q)), np.zeros((n, M, d, d))
        mean, added, pushed = [Lx @ x], [np.zeros(n)], np.zeros((n, d))
        # The responses of outputs to all earlier inputs are concatenated, for one product in each round.
        into = np.concatenate([self.Psi, r.Yx, r.Ym, r.y0[..., None]], axis=-1)
        ends = np.cumsum([d, len(r.X), q])
        with np.errstate(all="ignore"):
            for _ in range(rounds):
                G = np.broadcast_to((Lx @ r.B / M)[:, None], (n, M, d, r.B.shape[1]))
                G = G + Lm @ r.W if q else G
                both = np.concatenate([G, Lz], axis=-1)
                added.append(np.einsum("nmab,nmab->n", both @ self.fresh, both))
                by_noise, by_server, by_memory, constant = np.split(G @ into, ends, axis=-1)
                pushed = pushed + constant[..., 0].sum(1)
                Lz = Lz @ self.QH + by_noise
                Lx = Lx @ r.X + by_server.sum(1)
                if q:
                    Lx, Lm = Lx + Lm.sum(1) @ r.U, Lm @ r.V + by_memory
                mean.append(Lx @ x + Lm.sum(1) @ m + pushed)
            found = (np.stack(mean, axis=1) ** 2).sum(-1) + np.cumsum(np.stack(added, axis=1), axis=1)
        return np.where(np.isfinite(found), found, np.inf)

    @functools.cached_property
    def maps(self) -> np.ndarray:
        """The map of the mean of the server's state and of all memories over a round, `(n, p + M q, p + M q)`."""
        r, (M, _), n = self.round, self.problem.b.shape, len(self.steps)
        p, q = len(r.X), len(r.V)
        found = np.zeros((n, p + M * q, p + M * q))
        with np.errstate(all="ignore"):
            found[:, :p, :p] = r.X + r.B @ r.Yx.mean(1)
            if q:
                found[:, :p, p:] = np.moveaxis(r.B @ r.Ym / M, 1, 2).reshape(n, p, M * q)
                found[:, p:, :p] = (r.U + r.W @ r.Yx).reshape(n, M * q, p)
                own = r.V + r.W @ r.Ym
                at = p + np.arange(M * q).reshape(M, q)
                found[:, at[:, :, None], at[:, None, :]] = own
        return found

    @functools.cached_property
    def _basis(self) -> np.ndarray:
        """Directions of server and memories that keep the conserved combination zero; all if nothing is conserved."""
        r, p, M = self.round, len(self.round.X), len(self.problem.b)
        if r.conserved is None:
            return np.eye(p + M * len(r.V))
        rows = np.concatenate([r.conserved[:, :p], np.tile(r.conserved[:, p:], (1, M))], axis=1)
        return np.linalg.qr(rows.T, mode="complete")[0][:, len(rows) :]

    def growth(self) -> np.ndarray:
        """The factor of the error per round in the long run, `(n,)`; from 1 on the method diverges."""
        maps = self.maps
        good = np.abs(maps).max((1, 2)) < HUGE
        maps = np.where(good[:, None, None], maps, 0.0)
        return np.where(good, spectral_radius(self._basis.T @ maps @ self._basis), HUGE)

    @functools.cached_property
    def stable(self) -> bool:
        """Whether the error stays bounded at the first step size."""
        return bool(self.growth()[0] < 1)

    @functools.cached_property
    def floor(self) -> "Floor":
        """The error in the long run at the first step size; infinite if the method diverges."""
        if not self.stable:
            return Floor(math.inf, math.inf)
        r, (M, d) = self.round, self.problem.b.shape
        p, q, o = len(r.X), len(r.V), r.B.shape[1]
        into = np.zeros((M, p + M * q, o))  # an agent's outputs enter the server's state and the agent's memory
        into[:, :p] = r.B / M
        for i in range(M):
            into[i, p + i * q : p + (i + 1) * q] = r.W
        basis = self._basis  # rounding errors in a conserved part would never decay
        transition, offset = basis.T @ self.maps[0] @ basis, basis.T @ np.einsum("iao,io->a", into, r.y0[0])
        into, fresh, QH = basis.T @ into, self.fresh[0], self.QH[0]
        noise = HiddenNoise(  # of a whole round
            QH,
            (into @ self.Psi[0])[:, None],
            hidden=fresh[:, o:, o:],
            seen=(into @ fresh[:, :o, :o] @ transpose(into)).sum(0)[None],
            both=(into @ fresh[:, :o, o:])[:, None],
            stationary=lyapunov(QH, fresh[:, o:, o:]),
            start=np.zeros((M, d, d)),
            start_mean=np.zeros((M, d)),
        )
        found = AdditiveLaw(transition, offset, noise, self.name, basis="exact").stationary()
        bias, covariance = basis[:d] @ found.mean, basis[:d] @ found.covariance @ basis[:d].T
        scale = float(self.problem.root @ self.problem.root) + float((self.problem.residuals**2).sum())
        square = float(bias @ bias)
        return Floor(square if square > ROUNDING * scale else 0.0, float(np.trace(covariance)))

    def max_step_size(self, setting: Setting) -> Limit:
        """Return the first step size at which the method diverges, with all other settings as in `setting`."""
        A, H = self.problem.A, setting.local_steps if "local_steps" in METHODS[self.name].arguments else 1
        if (correction := METHODS[self.name].correction) is not None:
            server_step = setting.server_step if "server_step" in METHODS[self.name].arguments else 1.0
            return largest_step(A, LocalRule(setting.step_size, H, server_step, correction))

        def excess(steps: np.ndarray) -> np.ndarray:
            return Law(self.problem, setting, self.name, steps).growth() - 1

        return first_crossing(excess, A, H, setting.step_size, each=2.0**40)


class Floor(NamedTuple):
    """The mean-square error in the long run, split into its two parts."""

    bias_square: float
    noise: float

    @property
    def total(self) -> float:
        return self.bias_square + self.noise


# The contents of the page: all methods together, the map of the best method, and the agents' paths.


class Seen(NamedTuple):
    """The results of one method on the page."""

    name: str
    errors: np.ndarray
    """The mean-square error before the first round and after each round."""
    stable: bool
    growth: float
    floor: Floor
    exchanges: int
    """Exchanges in a round."""
    observations: int
    """Observations of each agent in a round."""
    num_agents: int

    def spent(self, axis: str) -> int:
        """Return the cost of a round in `rounds` (one), `exchanges`, or `observations` of each agent."""
        return {"rounds": 1, "exchanges": self.exchanges, "observations": self.observations}[axis]

    @property
    def saturation_agents(self) -> float:
        """The number of agents at which noise and squared bias are equal: more agents help little beyond it."""
        bias, noise = self.floor
        if not self.stable:
            return math.nan
        return self.num_agents * noise / bias if bias > 0 else math.inf

    def floor_at(self, num_agents: Any) -> Any:
        """Return the floor with another number of similar agents, to leading order."""
        return self.floor.bias_square + self.floor.noise * self.num_agents / num_agents


@functools.lru_cache(maxsize=256)
def see(setting: Setting) -> dict[str, Seen]:
    """Return the exact curves and floors of the methods of a setting.

    >>> seen = see(Setting(num_agents=5))
    >>> seen["FedHSA"].floor.total < seen["LocalSA"].floor.total
    True
    """
    arrays, found = problem(setting), {}
    for name in setting.methods:
        law = Law(arrays, setting, name)
        found[name] = Seen(
            name,
            law.errors(setting.rounds)[0],
            stable=law.stable,
            growth=float(law.growth()[0]),
            floor=law.floor,
            exchanges=METHODS[name].exchanges,
            observations=law.round.Yz.shape[2],
            num_agents=setting.num_agents,
        )
    return found


@functools.lru_cache(maxsize=64)
def see_along(setting: Setting, axis: str) -> dict[str, Seen]:
    """Return `see(setting)` with curves as long as LocalSA's, in `rounds`, `exchanges` or `observations`.

    >>> seen = see_along(Setting(num_agents=3, rounds=20), "observations")
    >>> len(seen["SynchronisedSA"].errors) - 1  # one observation in a round, and LocalSA has ten
    200
    """
    found, arrays = see(setting), problem(setting)
    end = setting.rounds * found["LocalSA"].spent(axis)
    longer = {}
    for name, one in found.items():
        rounds = min(math.ceil(end / one.spent(axis)), FARTHEST)
        known = rounds <= setting.rounds
        longer[name] = one if known else one._replace(errors=Law(arrays, setting, name).errors(rounds)[0])
    return longer


def max_step_size(setting: Setting, name: str) -> float:
    """Return the largest stable step size of a method; the other settings are those of `setting`.

    >>> 0.1 < max_step_size(Setting(num_agents=5), "FedHSA") < 1
    True
    """
    return _max_step_size(dataclasses.replace(setting, step_size=0.01, rounds=1, noise_std=1.0, noise_radius=0.0), name)


@functools.lru_cache(maxsize=256)
def _max_step_size(setting: Setting, name: str) -> float:
    return float(Law(problem(setting), setting, name).max_step_size(setting))


class WinnerMap(NamedTuple):
    """The best method at each number of local steps and each step size."""

    local_steps: np.ndarray
    step_sizes: np.ndarray
    names: tuple[str, ...]
    errors: np.ndarray
    """`(methods, local steps, step sizes)`: the error after the budget. It is infinite for unstable methods, which may
    be ahead for a while, and for methods that end above the starting error."""

    @property
    def winners(self) -> np.ndarray:
        """The index of the best method in each cell, -1 if there is none, `(local steps, step sizes)`.

        Of methods that are equal up to one per cent, the first in `names` wins.
        """
        return np.where(np.isfinite(self.errors).any(0), self._near().argmax(0), -1)

    @property
    def tied(self) -> np.ndarray:
        """Whether more than one method is within one per cent of the best, `(local steps, step sizes)`."""
        return self._near().sum(0) > 1

    def _near(self) -> np.ndarray:
        return self.errors <= 1.01 * self.errors.min(0)


MAP_STEPS = (1, 2, 3, 5, 8, 12, 20, 30, 50)
MAP_SIZES = tuple(float(f"{10**k:.3g}") for k in np.linspace(-3, 0, 16))
"""The numbers of local steps and the step sizes of the map."""
UNITS = ("exchanges", "rounds")
"""The units of the budget of the map."""


def winners(setting: Setting, budget: int, unit: str = "exchanges") -> WinnerMap:
    """Return the map of the method with the smallest error after `budget` exchanges, or rounds, with the server.

    The number of local steps and the step size of `setting` do not matter.

    >>> found = winners(Setting(num_agents=3), 20)
    >>> found.winners.shape == (len(found.local_steps), len(found.step_sizes))
    True
    """
    _check.choice("unit", unit, UNITS)
    return _winners(dataclasses.replace(setting, local_steps=1, step_size=0.01, rounds=1), budget, unit)


@functools.lru_cache(maxsize=32)
def _winners(setting: Setting, budget: int, unit: str) -> WinnerMap:
    arrays, names = problem(setting), setting.methods
    errors = np.empty((len(names), len(MAP_STEPS), len(MAP_SIZES)))
    for i, name in enumerate(names):
        rounds = max(budget // METHODS[name].exchanges if unit == "exchanges" else budget, 1)
        for j, H in enumerate(MAP_STEPS):
            if j and "local_steps" not in METHODS[name].arguments:
                errors[i, j] = errors[i, 0]
                continue
            law = Law(arrays, dataclasses.replace(setting, local_steps=H), name, MAP_SIZES)
            errors[i, j] = np.where(law.growth() < 1, law.errors(rounds)[:, -1], np.inf)
    start = float(arrays.root @ arrays.root)
    return WinnerMap(np.array(MAP_STEPS), np.array(MAP_SIZES), names, np.where(errors < start, errors, np.inf))


class Paths(NamedTuple):
    """The parameters of all agents, local step by local step, over some rounds."""

    agents: np.ndarray
    """`(rounds, M, H + 1, d)`."""
    server: np.ndarray
    """`(rounds + 1, d)`: the common parameter before the first round and after each round."""


def paths(setting: Setting, name: str, rounds: int) -> Paths:
    """Return the paths of the agents in the plane under FedHSA or LocalSA, with one draw of the noise.

    >>> paths(Setting(num_agents=3, local_steps=4), "FedHSA", rounds=2).agents.shape
    (2, 3, 5, 2)
    """
    _check.choice("name", name, ("FedHSA", "LocalSA"))
    arrays, H, eta = problem(setting), setting.local_steps, setting.step_size
    rng = np.random.default_rng(setting.key)
    M, d = arrays.b.shape
    theta, z = np.zeros(d), np.zeros((M, d))
    agents, server = [], [theta]

    def operators(theta: np.ndarray, z: np.ndarray) -> np.ndarray:
        return (arrays.A @ theta[..., None])[..., 0] + arrays.b + z

    for _ in range(rounds):
        local = np.broadcast_to(theta, (M, d))
        anchor = operators(local, z)
        shift = anchor.mean(0) - anchor if name == "FedHSA" else 0.0
        path = [local]
        for _ in range(H):
            local = local + eta * (operators(local, z) + shift)
            path.append(local)
            z = (arrays.Q @ z[..., None])[..., 0] + rng.normal(size=(M, d)) * setting.noise_std
        theta = theta + setting.server_step * (local - theta).mean(0)
        agents.append(np.stack(path, axis=1))
        server.append(theta)
    return Paths(np.array(agents), np.array(server))


def simulated(setting: Setting, name: str, seeds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulate a method; return the mean of the error over seeds and its 95 % interval, one value per round.

    >>> mean, low, high = simulated(Setting(num_agents=3, rounds=5), "FedHSA", seeds=8)
    >>> mean.shape, bool((low <= mean).all())
    ((6,), True)
    """
    from ..engine import simulate
    from ..statistics import interval

    result = simulate(family.random(**setting.arguments()), setting.algorithm(name), rounds=setting.rounds, seeds=seeds)
    return interval(result.error, positive=True)


# Code that reproduces the numbers: the Python and the commands for a setting, and its link.


def python_code(setting: Setting) -> str:
    """Return the Python that prints the numbers on the page."""
    given = ", ".join(f"{name}={value!r}" for name, value in setting.arguments().items())
    methods = "\n".join(f"    fh.{setting.algorithm(name)!r}," for name in setting.methods)
    return f"""\
import fedhsa as fh

problem = fh.problems.quadratic.random({given})
for algorithm in (
{methods}
):
    prediction = fh.theory.predict(problem, algorithm)
    error = prediction.error_after({setting.rounds})
    print(f"{{type(algorithm).__name__:18}} error {{error:.4g}}, floor {{prediction.floor:.4g}}")"""


def command(setting: Setting, verb: str = "analyze", *, seeds: int | None = None) -> str:
    """Return the command with the numbers on the page: `analyze` predicts them, `run` simulates.

    >>> command(Setting(num_agents=5)).split(" --")[:2]
    ['fedhsa analyze quadratic', 'num-agents 5']
    """
    given = setting.arguments()
    options = " ".join(f"{name}={given[name]!r}" for name in ("b_level", "noise_std", "noise_radius"))
    words = [
        f"fedhsa {verb} quadratic --num-agents {setting.num_agents} --dim {DIM}",
        f"--heterogeneity {setting.heterogeneity!r} --option {options}",
        *([f"--problem-key {setting.key}"] if setting.key else []),
        f"--algorithm {' '.join(setting.methods)}",
        f"--step-size {setting.step_size!r} --local-steps {setting.local_steps}",
        *([f"--server-step {setting.server_step!r}"] if setting.server_step != 1 else []),
        *([f"--rounds {setting.rounds} --seeds {seeds}"] if verb == "run" else []),
    ]
    return " ".join(words)


LINKED = {
    "M": ("num_agents", 1, 50),
    "H": ("local_steps", 1, 50),
    "eta": ("step_size", 1e-3, 1.0),
    "b": ("b_level", 0.0, 50.0),
    "het": ("heterogeneity", 0.0, 1.0),
    "noise": ("noise_std", 0.0, 2.0),
    "sticky": ("noise_radius", 0.0, 0.99),
    "server": ("server_step", 0.25, 2.0),
    "rounds": ("rounds", 20, 400),
    "key": ("key", 0, 10**6),
}
"""The settings by their names in a link, each with the smallest and the largest value of its slider."""


def to_link(setting: Setting) -> dict[str, str]:
    """Return the query of a link that restores a setting; `from_link` reads it.

    >>> from_link(to_link(Setting(step_size=0.02))) == Setting(step_size=0.02)
    True
    """
    found = {short: f"{getattr(setting, name):g}" for short, (name, _, _) in LINKED.items()}
    return found | {"with": ",".join(setting.others)}


def from_link(words: Any) -> Setting:
    """Return the setting of a link; missing, unreadable and out-of-range values are those of `Setting()`."""
    given = numbers(Setting, words, LINKED)
    others = tuple(str(words.get("with") or "").split(","))
    if len(others) == 2 and all(name in OTHERS for name in others):
        given["others"] = others
    return Setting(**given)


def numbers(kind: Any, words: Any, linked: Mapping[str, tuple[str, float, float]]) -> dict[str, Any]:
    """Return the numbers of a link that fit the sliders of a page whose settings are of this `kind`, by name."""
    found: dict[str, Any] = {}
    for short, (name, least, most) in linked.items():
        try:
            value = float(words[short])
        except (KeyError, ValueError, TypeError):
            continue
        if least <= value <= most:
            found[name] = type(getattr(kind, name))(value)
    return found
