"""The numbers of the lab's first page: exact laws of several methods on the quadratic problem, in milliseconds.

They are the laws of the package itself, for agents that are made from arrays, so that a slider compiles nothing. A step
size is the step size 1 on operators that are as many times as large, so that what is derived from the code of a method
serves all step sizes.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import _check, algorithms
from .._linear import spectral_radius
from ..algorithms import AbstractAlgorithm
from ..engine import simulate
from ..problems import quadratic as family
from ..sources import VAR1
from ..statistics import interval
from ..theory.laws.agents import AddedNoise, Agents, added_noise
from ..theory.laws.federation import Federation
from ..theory.laws.levels import LinearLaw
from ..theory.laws.pieces import scaled_pieces
from ..theory.rule import local_rule
from ..theory.stability import first_crossing, largest_step

DIM = 2
"""The dimension of the page's problem: two, so that the agents can be drawn in the plane."""
METHODS = ("FedHSA", "LocalSA", "SCAFFLSA", "SCAFFOLD", "OneExchangeFedHSA", "SynchronisedSA")
"""The methods of the page, all with exact laws."""
OTHERS = METHODS[2:]
HUGE = 1e100
"""The largest growth that is told from overflow."""
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

    def algorithm(self, name: str) -> AbstractAlgorithm:
        """Return the method of this name with the step sizes of this setting."""
        kind = getattr(algorithms, name)
        known = [field.name for field in dataclasses.fields(kind) if hasattr(self, field.name)]
        return kind(**{key: getattr(self, key) for key in known})


class Problem(NamedTuple):
    """The arrays of a quadratic problem, equal to those of `problems.quadratic.random`."""

    A: np.ndarray
    """The Jacobians of the mean operators, minus the matrices of the losses, `(M, d, d)`."""
    b: np.ndarray
    noise: AddedNoise
    root: np.ndarray

    @property
    def residuals(self) -> np.ndarray:
        """The agents' mean operators at the root, `(M, d)`."""
        return self.b + self.A @ self.root

    @property
    def roots(self) -> np.ndarray:
        """The root of each agent alone, `(M, d)`."""
        return np.linalg.solve(-self.A, self.b[..., None])[..., 0]

    @property
    def agents(self) -> Agents:
        one, W = np.ones((len(self.b), 1)), np.concatenate([self.A, self.residuals[..., None]], axis=-1)
        return Agents(one[..., None], one, one, one[..., None], W[:, None, None], noise=self.noise)


def problem(setting: Setting) -> Problem:
    """Return the problem of a setting.

    >>> problem(Setting(num_agents=3)).roots.shape
    (3, 2)
    """
    return _problem(**setting.arguments())


@functools.lru_cache(maxsize=32)
def _problem(
    num_agents: int, dim: int, heterogeneity: float, b_level: float, noise_std: float, noise_radius: float, key: int
) -> Problem:
    A, b, Q = family.draw(num_agents, dim, heterogeneity, 1.0, b_level, noise_radius, True, key)
    return Problem(-A, b, added_noise(VAR1(Q, noise_std)), np.linalg.solve(A.mean(0), b.mean(0)))


def on(agents: Agents, algorithm: Any) -> Federation:
    """Return a method on agents that are made from arrays."""
    pieces, scale = scaled_pieces(algorithm, len(agents.P), agents.dim)
    return Federation(pieces, agents.scaled(scale), type(algorithm).__name__)


def federation(setting: Setting, name: str) -> Federation:
    """Return a method on the agents of a setting."""
    return on(problem(setting).agents, setting.algorithm(name))


class Floor(NamedTuple):
    """The mean-square error in the long run, split into its two parts."""

    bias_square: float
    noise: float

    @property
    def total(self) -> float:
        return self.bias_square + self.noise


class Law:
    """The exact law of one method's error: round by round, and in the long run.

    >>> law = Law(Setting(num_agents=5), "FedHSA")
    >>> law.growth < 1, law.floor.bias_square, law.floor.noise > 0
    (True, 0.0, True)
    """

    def __init__(self, setting: Setting, name: str):
        self.problem = problem(setting)
        with np.errstate(all="ignore"):
            self.exact = LinearLaw(federation(setting, name))
        self.growth = min(self.exact.mean_radius(), HUGE)
        """The factor of the mean error per round in the long run; from 1 on the method diverges."""

    def errors(self, rounds: int) -> np.ndarray:
        """Return the mean-square error before the first round and after each of `rounds`."""
        with np.errstate(all="ignore"):
            found = self.exact.errors(-self.problem.root, rounds)
        return np.where(np.isfinite(found), found, np.inf)

    @property
    def floor(self) -> Floor:
        """The error in the long run; infinite if the method diverges."""
        if not self.growth < 1:
            return Floor(math.inf, math.inf)
        (bias, covariance), (root, residuals) = self.exact.stationary(), (self.problem.root, self.problem.residuals)
        square, scale = float(bias @ bias), float(root @ root + (residuals**2).sum())
        return Floor(square if square > ROUNDING * scale else 0.0, float(np.trace(covariance)))


# The contents of the page: all methods together, the map of the best method, and the agents' paths.


class Seen(NamedTuple):
    """The results of one method on the page."""

    name: str
    errors: np.ndarray
    """The mean-square error before the first round and after each round."""
    growth: float
    """The factor of the mean error per round in the long run."""
    floor: Floor
    exchanges: int
    """Exchanges in a round."""
    observations: int
    """Observations of each agent in a round."""
    num_agents: int

    @property
    def stable(self) -> bool:
        """Whether the error stays bounded."""
        return self.growth < 1

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
    found = {}
    for name in setting.methods:
        law, algorithm = Law(setting, name), setting.algorithm(name)
        spent = len(algorithm.exchanges), algorithm.block_length
        found[name] = Seen(name, law.errors(setting.rounds), law.growth, law.floor, *spent, setting.num_agents)
    return found


@functools.lru_cache(maxsize=64)
def see_along(setting: Setting, axis: str) -> dict[str, Seen]:
    """Return `see(setting)` with curves as long as LocalSA's, in `rounds`, `exchanges` or `observations`.

    >>> seen = see_along(Setting(num_agents=3, rounds=20), "observations")
    >>> len(seen["SynchronisedSA"].errors) - 1  # one observation in a round, and LocalSA has ten
    200
    """
    found = dict(see(setting))
    end = setting.rounds * found["LocalSA"].spent(axis)
    for name, one in found.items():
        if (rounds := min(math.ceil(end / one.spent(axis)), FARTHEST)) > setting.rounds:
            found[name] = one._replace(errors=Law(setting, name).errors(rounds))
    return found


def max_step_size(setting: Setting, name: str) -> float:
    """Return the largest stable step size of a method; the other settings are those of `setting`.

    >>> 0.1 < max_step_size(Setting(num_agents=5), "FedHSA") < 1
    True
    """
    return _max_step_size(dataclasses.replace(setting, step_size=0.01, rounds=1, noise_std=1.0, noise_radius=0.0), name)


@functools.lru_cache(maxsize=256)
def _max_step_size(setting: Setting, name: str) -> float:
    A, algorithm = problem(setting).A, setting.algorithm(name)
    if (rule := local_rule(algorithm)) is not None:
        return float(largest_step(A, rule))

    def excess(step_size: float) -> float:
        with np.errstate(all="ignore"):
            quiet = federation(dataclasses.replace(setting, step_size=step_size), name).noiseless()
            return min(spectral_radius(quiet.mean_round()[:-1, :-1]), HUGE) - 1

    def every(step_sizes: np.ndarray) -> np.ndarray:
        return np.array([excess(float(step_size)) for step_size in step_sizes])

    return float(first_crossing(every, A, setting.local_steps, setting.step_size, each=2.0**40))


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
    root, names = problem(setting).root, setting.methods
    errors = np.full((len(names), len(MAP_STEPS), len(MAP_SIZES)), np.inf)
    for i, j, k in np.ndindex(errors.shape):
        here = dataclasses.replace(setting, local_steps=MAP_STEPS[j], step_size=MAP_SIZES[k])
        algorithm = here.algorithm(names[i])
        if j and algorithm.block_length != MAP_STEPS[j]:  # it has no local steps
            errors[i, j, k] = errors[i, 0, k]
        elif (law := Law(here, names[i])).growth < 1:
            rounds = budget // len(algorithm.exchanges) if unit == "exchanges" else budget
            errors[i, j, k] = law.errors(max(rounds, 1))[-1]
    return WinnerMap(np.array(MAP_STEPS), np.array(MAP_SIZES), names, np.where(errors < root @ root, errors, np.inf))


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
            z = (arrays.noise.Q @ z[..., None])[..., 0] + rng.normal(size=(M, d)) * setting.noise_std
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
