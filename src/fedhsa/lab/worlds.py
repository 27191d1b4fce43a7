"""The numbers of the lab's grid worlds: each agent's solution, the root, the limits of the methods, and their errors.

The errors are the laws of the package itself, for agents that are made from arrays, so that a slider compiles nothing.
A table has a row for each cell and a column for each action; the values of a fixed policy are a table with one column.
"""

import dataclasses
import functools
import importlib.util
import itertools
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _check
from .._linear import spectral_radius
from ..algorithms import FedHSA, LocalSA
from ..engine import simulate as run
from ..environments import Model, make
from ..environments.model import DOWN, RIGHT, UP
from ..problems import Problem, q_learning, td
from ..sources.finite import stationary_law
from ..theory.laws.agents import Agents
from ..theory.laws.levels import EachSiteLaw, LinearLaw
from ..theory.laws.moments import Moments
from ..theory.sketch import Along
from .quadratic import numbers, on

TASKS = {"evaluation": "the values of a policy", "control": "the best actions"}
WORLDS = {"lakes": "frozen lakes, each with its own holes", "lake": "one frozen lake", "cliff": "a windy cliff"}
POLICIES = {"goal": "mostly towards the goal", "uniform": "every direction equally often"}
SAMPLINGS = {
    "trajectories": "one trajectory per agent",
    "independent": "independent transitions",
    "none": "no noise: the mean operators",
}
CHOICES = {"task": TASKS, "world": WORLDS, "policy": POLICIES, "sampling": SAMPLINGS}
RANGES: dict[str, tuple[float, float]] = {
    "num_agents": (1, 12),
    "difficulty": (0.0, 0.6),
    "heterogeneity": (0.0, 1.0),
    "discount": (0.5, 0.99),
    "step_size": (0.005, 1.0),
    "local_steps": (1, 200),
    "rounds": (20, 1000),
    "seeds": (5, 64),
    "key": (0, 999),
}
"""The ends of the sliders."""
METHODS: dict[str, type[FedHSA] | type[LocalSA]] = {"FedHSA": FedHSA, "LocalSA": LocalSA}
LAYOUTS = {"lakes": "own", "lake": "4x4"}
TOWARDS = {"lakes": {DOWN: 0.5, RIGHT: 0.5}, "cliff": {UP: 0.45, RIGHT: 0.45, DOWN: 0.1}}
"""The probabilities of the actions that lead towards the goal: on all lakes, and along the cliff."""
NEVER = 1e-14
"""Visits below this probability are rounding errors of zero."""
ROUGH = 1e-3
"""The relative accuracy of floors, which are drawn."""
STEPS = 3000
"""The largest number of local steps of control that are computed one after the other for one curve."""
NEWTON, CLOSE, NEAR = 30, 1e-11, 1e-6
"""The number of Newton steps that may be taken to a limit, the distance at which it counts as found, and the size of
the differences that give the slopes of a round, which is piecewise affine."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """The setting of the page.

    **Arguments:**

    - `task`: a key of `TASKS`. Evaluation is TD(0) with a table, control is Q-learning under the uniform behaviour.
    - `world`: a key of `WORLDS`.
    - `policy`: a key of `POLICIES`, the policy that is evaluated. Control ignores it.
    - `num_agents`: the number of agents.
    - `difficulty`: the mean probability of slipping on a lake; the strength of the wind along the cliff.
    - `heterogeneity`: from 0, equal agents, to 1.
    - `discount`: the discount factor.
    - `step_size`, `local_steps`: the step size and the local steps of `FedHSA` and `LocalSA`.
    - `sampling`: a key of `SAMPLINGS`.
    - `rounds`, `seeds`: the length of the curves, and the number of simulated runs.
    - `key`: the seed of the random worlds.

    !!! example
        >>> setting = Setting(num_agents=3, heterogeneity=0.0)
        >>> found = solve(setting)
        >>> bool(np.allclose(found.root, found.own))        # equal agents share their solution
        True
    """

    task: str = "evaluation"
    world: str = "lakes"
    policy: str = "goal"
    num_agents: int = 6
    difficulty: float = 0.3
    heterogeneity: float = 1.0
    discount: float = 0.95
    step_size: float = 0.1
    local_steps: int = 50
    sampling: str = "trajectories"
    rounds: int = 200
    seeds: int = 16
    key: int = 0

    def __post_init__(self):
        for name, known in CHOICES.items():
            _check.choice(name, getattr(self, name), tuple(known))

    @property
    def environment(self) -> str:
        """The name of the environment, as in `fedhsa list environments`."""
        return "windy-cliff" if self.world == "cliff" else "frozen-lake"

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the environment other than the agents, their heterogeneity and the key."""
        if self.world == "cliff":
            return {"wind": self.difficulty, "discount": self.discount}
        spread = math.floor(100 * min(self.difficulty, 1 - self.difficulty) + 1e-9) / 100  # stays in [0, 1]
        slips = {"slipperiness": self.difficulty, "slip_spread": spread}
        return {"layout": LAYOUTS[self.world], **slips, "discount": self.discount}

    @property
    def _agents(self) -> dict[str, Any]:
        """The arguments that all environments have."""
        return {"num_agents": self.num_agents, "heterogeneity": self.heterogeneity, "key": self.key}

    @property
    def noisy(self) -> bool:
        """Whether there is noise whose law is known: TD(0) is affine, and Q-learning is not."""
        return self.task == "evaluation" and self.sampling != "none"

    @property
    def family(self) -> "Setting":
        """The same with the step size, the rounds and the seeds of all settings."""
        return dataclasses.replace(self, step_size=1.0, rounds=1, seeds=1)

    @property
    def methods(self) -> dict[str, FedHSA | LocalSA]:
        return {name: kind(self.step_size, self.local_steps) for name, kind in METHODS.items()}

    def model(self) -> Model:
        """Return the decision processes of the agents."""
        return make(self.environment, self._agents | self.options)

    def chances(self, model: Model) -> np.ndarray:
        """Return the policy that the agents follow, `(S, A)`."""
        if self.task == "control" or self.policy == "uniform":
            return np.full((model.num_states, model.num_actions), 1 / model.num_actions)
        towards = TOWARDS["cliff" if self.world == "cliff" else "lakes"]
        return np.tile([towards.get(action, 0.0) for action in model.actions], (model.num_states, 1))

    def problem(self) -> Problem:
        model = self.model()
        control = self.task == "control"
        problem = q_learning.from_model(model) if control else td.from_model(model, self.chances(model))
        return {"trajectories": problem, "independent": problem.iid(), "none": problem.noiseless()}[self.sampling]

    @property
    def restores(self) -> dict[str, str]:
        """The settings that differ from the defaults, as the query of an address."""
        return {
            field.name: f"{getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }

    @classmethod
    def restored(cls, query: Mapping[str, Any]) -> "Setting":
        """Return the setting of a query; unknown entries are ignored, and invalid values are replaced by defaults.

        !!! example
            >>> Setting.restored(Setting(num_agents=3, world="cliff").restores) == Setting(num_agents=3, world="cliff")
            True
            >>> Setting.restored({"num_agents": "many", "colour": "blue"}) == Setting()
            True
        """
        chosen = {name: query[name] for name, known in CHOICES.items() if query.get(name) in known}
        return cls(**chosen, **numbers(cls, query, {name: (name, *ends) for name, ends in RANGES.items()}))

    def python(self) -> str:
        """Return the Python that simulates and predicts this setting, a whole script."""
        imports, policy, made = "", "", "td.from_model(model)"
        if self.task == "control":
            made = "q_learning.from_model(model)"
        elif self._needs_policy:
            model = self.model()
            chances = self.chances(model)[0].tolist()
            imports, made = "import numpy as np\n\n", "td.from_model(model, policy)"
            policy = f"    policy = np.tile({chances}, (model.num_states, 1))  # {' '.join(model.actions)}\n"
        made += {"trajectories": "", "independent": ".iid()", "none": ".noiseless()"}[self.sampling]
        arguments = f"{self.step_size}, local_steps={self.local_steps}"
        predicted = "        print(fh.theory.predict(problem, method))  # may take a minute\n"
        return f"""\
{imports}import fedhsa as fh


def build():
    options = {_literal(self._agents)}
    options |= {_literal(self.options)}
    model = fh.environments.make("{self.environment}", options)
{policy}    return fh.problems.{made}


if __name__ == "__main__":
    problem = build()
    for method in fh.FedHSA({arguments}), fh.LocalSA({arguments}):
        result = fh.simulate(problem, method, rounds={self.rounds}, seeds={self.seeds})
        print(type(method).__name__, "simulated:", result.error[:, -1].mean())
{predicted if self.task == "evaluation" else ""}"""

    def command(self) -> str:
        """Return the command that simulates this setting; it may need the Python, saved as `grid_world.py`."""
        family = "q-learning" if self.task == "control" else "evaluation"
        words = [f"fedhsa run {'grid_world.py:build' if self._needs_policy else family}"]
        if not self._needs_policy:
            words += [f"--num-agents {self.num_agents} --heterogeneity {self.heterogeneity} --problem-key {self.key}"]
            given = {"environment": self.environment, **self.options}
            words += ["--option " + " ".join(f"{name}={value}" for name, value in given.items())]
        words += [f"--step-size {self.step_size} --local-steps {self.local_steps}"]
        words += [f"--rounds {self.rounds} --seeds {self.seeds}"]
        if not self._needs_policy:  # otherwise the Python contains it
            words += {"trajectories": [], "independent": ["--iid"], "none": ["--noiseless"]}[self.sampling]
        return " \\\n  ".join(words)

    @property
    def _needs_policy(self) -> bool:
        """Whether the policy must be written out, because the command line evaluates the uniform policy."""
        return self.task == "evaluation" and self.policy != "uniform"


def _literal(options: Mapping[str, Any]) -> str:
    quoted = {name: f'"{value}"' if isinstance(value, str) else repr(value) for name, value in options.items()}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in quoted.items()) + "}"


class Bellman(NamedTuple):
    r"""The agents' mean operators on tables: visits times $r + \gamma P \max_a T - T$."""

    visits: np.ndarray
    """`(M, S, A)`: the long-run frequency of each pair."""
    rewards: np.ndarray
    """`(M, S, A)`."""
    onward: np.ndarray
    """`(M, S, A, S)`: discounted transitions, 0 into cells where an episode ends."""

    @property
    def active(self) -> np.ndarray:
        """`(S, A)`: the pairs that some agent visits."""
        return self.visits.sum(0) > NEVER

    def operators(self, tables: np.ndarray) -> np.ndarray:
        """Return each agent's mean operator at its table; `tables` and the result are `(..., M, S, A)`."""
        M, S, A = self.visits.shape
        ahead = self.onward.reshape(M, S * A, S) @ tables.max(-1)[..., None]
        return self.visits * (self.rewards + ahead.reshape(tables.shape) - tables)

    def root(self) -> np.ndarray:
        """Return the root of the average operator, `(S, A)`.

        It is the solution of one decision process, in which every pair has the agents' transitions and rewards,
        averaged with their visits. Policy iteration finds it, exactly.
        """
        total = self.visits.sum(0)
        weights = np.where(total > NEVER, self.visits / np.where(total > NEVER, total, 1.0), 0.0)
        rewards = (weights * self.rewards).sum(0)
        onward = (weights[..., None] * self.onward).sum(0)
        S = len(rewards)
        best = np.zeros(S, dtype=int)
        while True:
            rows = np.arange(S), best
            values = np.linalg.solve(np.eye(S) - onward[rows], rewards[rows])
            table = rewards + onward @ values
            better = table.max(-1) > table[rows] + 1e-12 * (1 + abs(table).max())
            if not better.any():
                return table
            best = np.where(better, table.argmax(-1), best)

    def jacobians(self) -> np.ndarray:
        """Return $A_i$ of tables with one column, whose operators are affine, `(M, S, S)`."""
        return self.visits * (self.onward[:, :, 0] - np.eye(self.visits.shape[1]))

    def play(self, table: np.ndarray, method: FedHSA | LocalSA) -> np.ndarray:
        """Return the server's table `(..., S, A)` after one round without noise."""
        tables, eta = np.repeat(table[..., None, :, :], len(self.visits), axis=-3), cast(float, method.step_size)
        steer = np.zeros(())
        with np.errstate(over="ignore", invalid="ignore"):
            if isinstance(method, FedHSA):
                first = self.operators(tables)
                steer = first.mean(-3, keepdims=True) - first
            for _ in range(method.local_steps):
                tables += eta * (self.operators(tables) + steer)
            return tables.mean(-3)

    def limit(self, method: FedHSA | LocalSA) -> np.ndarray | None:
        """Return the fixed point of the rounds without noise, `(S, A)`, or None if Newton's method finds none."""
        table, active = self.root(), self.active
        for _ in range(NEWTON):
            gap = (self.play(table, method) - table)[active]
            if not np.isfinite(gap).all():
                return None
            if abs(gap).max() <= CLOSE * (1 + abs(table).max()):
                return table
            try:
                table[active] += np.linalg.solve(np.eye(len(gap)) - self.slopes(table, method), gap)
            except np.linalg.LinAlgError:
                return None
        return None

    def slopes(self, table: np.ndarray, method: FedHSA | LocalSA) -> np.ndarray:
        """Return the Jacobian of a round without noise on the active pairs, which are moved one by one."""
        active, step = self.active, NEAR * (1 + abs(table).max())
        moves = np.zeros((active.sum(), *active.shape))
        moves[:, active] = step * np.eye(len(moves))
        return (self.play(table + moves, method) - self.play(table, method))[:, active].T / step


class Curve(NamedTuple):
    """The error of a method by rounds."""

    limit: np.ndarray | None
    """`(S, A)`: the table that the method reaches without noise; None if it diverges or none was found."""
    quiet: np.ndarray
    """The squared distance to the root after each round without noise."""
    bias: float
    """The distance of the limit without noise to the root."""
    radius: float
    """The factor of the mean error per round: a method with 1 or more diverges."""
    error: np.ndarray
    """The mean square of the distance to the root after each round; `quiet` where no law of the noise is known."""
    floor: float
    """The value that `error` settles at; infinite for a method that diverges."""


class Solution(NamedTuple):
    """The tables of a setting, and the errors of the methods."""

    setting: Setting
    model: Model
    bellman: Bellman
    own: np.ndarray
    """`(M, S, A)`: each agent's own solution."""
    root: np.ndarray
    """`(S, A)`: the root of the average operator."""
    curves: dict[str, Curve]

    @property
    def active(self) -> np.ndarray:
        """`(S,)`: the cells in which some agent acts."""
        return np.asarray(self.bellman.active.any(-1))

    @property
    def visits(self) -> np.ndarray:
        """`(M, S)`: the part of its time that each agent spends in each cell."""
        return self.bellman.visits.sum(-1)

    def gap(self, table: np.ndarray) -> np.ndarray:
        """Return the difference to the root in each cell, for the action with the largest difference, `(S,)`."""
        gap = np.where(self.active[:, None], table - self.root, 0.0)
        return np.take_along_axis(gap, abs(gap).argmax(-1)[:, None], axis=1)[:, 0]

    def greedy(self, table: np.ndarray, agent: int) -> np.ndarray:
        """Return the best actions `(S, A)` by a table; for evaluation, look one step ahead in the agent's world."""
        if self.setting.task == "evaluation":
            one = self.model.take(agent)
            going = np.where(one.ends[0], 0.0, table[:, 0])
            ahead = one.action_rewards()[0] + one.discount[0] * one.transitions[0] @ going
            return one.greedy(ahead)[0]
        return self.model.greedy(table)[agent]

    def returns(self, table: np.ndarray) -> np.ndarray:
        """Return the return of each agent, `(M,)`, that follows the best actions of one table in its own world."""
        policies = np.stack([self.greedy(table, agent) for agent in range(self.model.num_agents)])
        return self.model.returns(policies)


def solve(setting: Setting) -> Solution:
    """Compute all tables of a setting, and the errors of the methods without noise.

    Raises `ImportError` if the world is a lake and Gymnasium is not installed.
    """
    found = _tables(setting.family)._replace(setting=setting, curves={})
    for name, method in setting.methods.items():
        found.curves[name] = _control(found, method) if setting.task == "control" else _evaluation(found, method)
    return found


@functools.lru_cache(maxsize=16)
def _tables(setting: Setting) -> Solution:
    model = setting.model()
    chances = setting.chances(model)
    bellman = _bellman(setting, model, chances, *_chain(model, chances))
    own = model.optimal() if setting.task == "control" else model.values(chances)[..., None]
    return Solution(setting, model, bellman, own, bellman.root(), {})


def predicted(found: Solution) -> Solution:
    """Return the same with the errors of evaluation under noise, by the law of the noise."""
    if not found.setting.noisy:
        return found
    curves = {}
    for name, curve in found.curves.items():
        settled = _long_run(found.setting.family, name).at(found.setting.step_size) if curve.radius < 1 else None
        if settled is None:
            curves[name] = curve._replace(floor=math.inf)
            continue
        quiet = LinearLaw(on(_mean_agents(found), found.setting.methods[name]))
        show, start = quiet.federation.show, -found.root[found.active, 0]
        errors = relaxing(show @ quiet.A @ np.linalg.inv(show), settled, start, found.setting.rounds)
        curves[name] = curve._replace(error=errors, floor=settled.square)
    return found._replace(curves=curves)


def relaxing(Phi: np.ndarray, settled: Moments, start: np.ndarray, rounds: int) -> np.ndarray:
    r"""Return mean-square errors whose mean and covariance go to those of the long run by a map.

    $E e_t = m + \Phi^t (e_0 - m)$ and $\mathrm{cov}(e_t) = \Sigma - \Phi^t \Sigma (\Phi^t)^T$.
    """
    mean, covariance, errors = start, np.zeros_like(settled.covariance), []
    for _ in range(rounds + 1):
        errors.append(Moments(mean, covariance).square)
        mean = settled.mean + Phi @ (mean - settled.mean)
        covariance = settled.covariance + Phi @ (covariance - settled.covariance) @ Phi.T
    return np.array(errors)


@functools.lru_cache(maxsize=64)
def _long_run(family: Setting, name: str) -> Along:
    """Return the long run of a method by the step size, from laws that are solved when they are needed."""
    agents = _agents(family)

    def settled(step_size: float, stable: bool) -> Moments:
        law = EachSiteLaw(on(agents, dataclasses.replace(family, step_size=step_size).methods[name]))
        law.accuracy = ROUGH, ROUGH
        return law.settled() if stable else law.stationary()

    return Along(settled)


_wanted: list[Setting] = []


def prepare(setting: Setting, step_sizes: Sequence[float]) -> threading.Thread:
    """Solve laws in the background until those of these step sizes are quick, or other settings are prepared."""
    _wanted[:] = [setting.family]

    def work() -> None:
        for k, name in itertools.product(spread(len(step_sizes)), METHODS):
            if _wanted != [setting.family]:
                return
            _long_run(setting.family, name).at(step_sizes[k])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def spread(count: int) -> list[int]:
    """Return the numbers below `count`, those at the ends and in the middle first.

    >>> spread(5)
    [0, 4, 2, 1, 3]
    """
    found, parts = [0, count - 1], 1
    while len(set(found)) < count:
        parts *= 2
        found += [round(k * (count - 1) / parts) for k in range(1, parts)]
    return list(dict.fromkeys(found))


def available() -> dict[str, str]:
    """Return the worlds that are available: the lakes need Gymnasium."""
    gymnasium = importlib.util.find_spec("gymnasium") is not None
    return {name: words for name, words in WORLDS.items() if gymnasium or name == "cliff"}


def _chain(model: Model, chances: np.ndarray) -> tuple[Any, np.ndarray]:
    chain = model.chain(chances)
    return chain, stationary_law(chain.transition)


def _bellman(setting: Setting, model: Model, chances: np.ndarray, chain: Any, stationary: np.ndarray) -> Bellman:
    S = model.num_states
    # A cell that ends an episode represents the start of the next episode.
    visits = np.stack([np.bincount(own, pi, S) for own, pi in zip(chain.states, stationary, strict=True)])
    onward, rewards = model.going_on(), model.action_rewards()
    visits = np.where(visits > NEVER, visits, 0.0)
    if setting.task == "control":
        return Bellman(visits[..., None] * chances, rewards, onward)
    rewards, onward = (rewards * chances).sum(-1), np.einsum("sa,msat->mst", chances, onward)
    return Bellman(visits[..., None], rewards[..., None], onward[:, :, None])


def _control(found: Solution, method: FedHSA | LocalSA) -> Curve:
    """Return the errors of Q-learning without noise, round by round."""
    bellman, table, errors = found.bellman, np.zeros_like(found.root), []
    for _ in range(min(found.setting.rounds, max(STEPS // method.local_steps, 20)) + 1):
        errors.append(float(((table - found.root)[bellman.active] ** 2).sum()))
        if not errors[-1] < 1e30:
            break
        table = bellman.play(table, method)
    limit, quiet = bellman.limit(method), np.array(errors)
    radius = math.nan if limit is None else spectral_radius(bellman.slopes(limit, method))
    if limit is None or radius >= 1:
        return Curve(None, quiet, math.nan, radius, quiet, math.inf if radius >= 1 else math.nan)
    bias = float(np.linalg.norm((limit - found.root)[bellman.active]))
    return Curve(limit, quiet, bias, radius, quiet, bias**2)


def _mean_agents(found: Solution) -> Agents:
    """Return the agents of evaluation with their mean operators, relative to the root."""
    kept, one = found.active, np.ones((found.model.num_agents, 1))
    residuals = found.bellman.operators(np.broadcast_to(found.root, found.own.shape))[:, kept]
    W = np.concatenate([found.bellman.jacobians()[:, kept][:, :, kept], residuals], axis=-1)
    return Agents(one[..., None], one, one, one[..., None], W[:, None, None])


def _evaluation(found: Solution, method: FedHSA | LocalSA) -> Curve:
    """Return the errors of TD(0) without noise."""
    law, kept = LinearLaw(on(_mean_agents(found), method)), found.active
    radius = law.mean_radius() if np.isfinite(law.A).all() else math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        quiet = law.errors(-found.root[kept, 0], found.setting.rounds)
    if not radius < 1:
        return Curve(None, quiet, math.inf, radius, quiet, math.inf)
    gap, limit = law.stationary().mean, found.root.copy()
    limit[kept, 0] += gap
    bias = float(np.linalg.norm(gap))
    return Curve(limit, quiet, bias, radius, quiet, bias**2)


def _agents(setting: Setting) -> Agents:
    """Return the agents of evaluation on their chains, relative to the root."""
    model = setting.model()
    chances = setting.chances(model)
    chain, pi = _chain(model, chances)
    bellman = _bellman(setting, model, chances, chain, pi)
    kept, P = np.flatnonzero(bellman.active[:, 0]), chain.transition
    place = np.full(model.num_states + 1, -1)  # the last one stands for states of a chain that are in no cell
    place[kept] = np.arange(len(kept))
    here = (place[chain.states][..., None] == np.arange(len(kept))).astype(float)
    slopes = chain.discount[:, None, :, None] * here[:, None] - here[:, :, None]
    errors = chain.rewards + slopes @ bellman.root()[kept, 0]
    W = np.concatenate([slopes, errors[..., None]], axis=-1)[:, :, :, None]
    if setting.sampling == "trajectories":
        return Agents(P, pi, pi, P, W, here[:, :, None])
    likely, one = ((weights := pi[..., None] * P) > NEVER).any(0), np.ones((len(P), 1))
    W = (here[:, :, None, :, None] * W)[:, likely]
    return Agents(one[..., None], one, one, weights[:, likely][:, None], W[:, None])


class Simulated(NamedTuple):
    """Runs of both methods."""

    errors: dict[str, np.ndarray]
    """`(seeds, rounds + 1)`: squared distances to the root."""
    tables: dict[str, np.ndarray]
    """`(S, A)`: the mean over the seeds of the last rounds' tables."""


@functools.lru_cache(maxsize=8)
def simulate(setting: Setting) -> Simulated:
    """Simulate both methods; the same setting gives the same numbers, also on the command line."""
    problem, model = setting.problem(), setting.model()
    columns = model.num_actions if setting.task == "control" else 1
    errors, tables = {}, {}
    for name, method in setting.methods.items():
        result = run(problem, method, rounds=setting.rounds, seeds=setting.seeds)
        table = np.zeros((model.num_states, columns))
        table[model.decision_states] = result.theta.mean(0).reshape(-1, columns)
        errors[name], tables[name] = result.error, table
    return Simulated(errors, tables)
