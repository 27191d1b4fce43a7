"""The numbers of the lab's grid worlds: each agent's solution, the root, the limits of the methods, and their errors.

Everything except `simulate` is linear algebra in NumPy, which is fast enough for a slider without compilation. A table
has a row for each cell and a column for each action; the values of a fixed policy are a table with one column.
"""

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import _check
from .._linear import spectral_radius, transpose
from ..algorithms import AbstractAlgorithm, FedHSA, LocalSA
from ..engine import simulate as run
from ..environments import Model, make
from ..environments.model import DOWN, RIGHT, UP
from ..problems import Problem, q_learning, td
from ..sources.finite import FiniteChain, stationary_law
from ..theory.laws.additive import AdditiveLaw, chain_noise
from ..theory.laws.finite import FiniteLaw
from ..theory.laws.first_order import bias_of
from ..theory.maps.rounds import LocalRule
from .quadratic import numbers

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
MUCH = 0.03
"""The estimated relative error from which a floor carries a warning, as in `theory.predict`."""
STEPS = 3000
"""The largest number of local steps of control that are computed one after the other for one curve."""
NEWTON, CLOSE = 30, 1e-11
"""The number of Newton steps that may be taken to a limit, and the distance at which it counts as found."""


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
    def methods(self) -> dict[str, AbstractAlgorithm]:
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
        """Return each agent's mean operator at its table; `tables` and the result are `(M, S, A)`."""
        M, S, A = self.visits.shape
        ahead = self.onward.reshape(M, S * A, S) @ tables.max(-1)[..., None]
        return self.visits * (self.rewards + ahead.reshape(M, S, A) - tables)

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

    def play(self, table: np.ndarray, step_size: float, local_steps: int, correction: float) -> np.ndarray:
        """Return the server's table after one round without noise; `correction` is 1 for FedHSA, 0 for LocalSA."""
        tables = np.broadcast_to(table, self.visits.shape).copy()
        first = self.operators(tables)
        steer = correction * (first.mean(0) - first)
        for _ in range(local_steps):
            tables += step_size * (self.operators(tables) + steer)
        return tables.mean(0)

    def limit(self, step_size: float, local_steps: int, correction: float) -> np.ndarray | None:
        """Return the fixed point of the rounds without noise, `(S, A)`, or None if Newton's method finds none."""
        table, active = self.root(), self.active
        for _ in range(NEWTON):
            new, slopes = self._round_and_slopes(table, step_size, local_steps, correction)
            gap = (new - table)[active]
            if not np.isfinite(gap).all():
                return None
            if abs(gap).max() <= CLOSE * (1 + abs(table).max()):
                return table
            try:
                move = np.linalg.solve(np.eye(active.sum()) - slopes[np.ix_(active.ravel(), active.ravel())], gap)
            except np.linalg.LinAlgError:
                return None
            table = table.copy()
            table[active] += move
        return None

    def slopes(self, table: np.ndarray, step_size: float, local_steps: int, correction: float) -> np.ndarray:
        """Return the Jacobian of a round without noise on the active pairs."""
        kept = self.active.ravel()
        return self._round_and_slopes(table, step_size, local_steps, correction)[1][np.ix_(kept, kept)]

    def _round_and_slopes(self, table, step_size, local_steps, correction) -> tuple[np.ndarray, np.ndarray]:
        M, S, A = self.visits.shape
        onward, visits = self.onward.reshape(M, S * A, S), self.visits.reshape(M, S * A, 1)
        tables = np.broadcast_to(table, self.visits.shape).copy()
        J = np.broadcast_to(np.eye(S * A), (M, S * A, S * A)).copy()

        def push(J: np.ndarray) -> np.ndarray:
            chosen = np.arange(S) * A + tables.argmax(-1)
            return visits * (onward @ np.take_along_axis(J, chosen[..., None], axis=1) - J)

        with np.errstate(over="ignore", invalid="ignore"):
            first, pushed = self.operators(tables), push(J)
            steer, steered = (correction * (x.mean(0) - x) for x in (first, pushed))
            for _ in range(local_steps):
                J += step_size * (push(J) + steered)
                tables += step_size * (self.operators(tables) + steer)
            return tables.mean(0), J.mean(0)


class Curve(NamedTuple):
    """The predicted error of a method by rounds."""

    limit: np.ndarray | None
    """`(S, A)`: the table that the method reaches without noise; None if it diverges or none was found."""
    error: np.ndarray
    """The squared distance to the root after each round: mean squares if the noise is known, and without noise
    otherwise."""
    quiet: np.ndarray
    """The squared distance to the root after each round without noise."""
    floor: float
    """The value that `error` settles at; infinite for a method that diverges."""
    bias: float
    """The distance of the limit without noise to the root."""
    radius: float
    """The factor of the mean error per round: a method with 1 or more diverges."""
    left_out: float
    """The estimated relative error of the floor, because the noise of the matrices is left out; NaN if not known."""


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
    """Compute all tables and curves of a setting, without a simulation.

    Raises `ImportError` if the world is a lake and Gymnasium is not installed.
    """
    model = setting.model()
    chances = setting.chances(model)
    chain = model.chain(chances)
    stationary = stationary_law(chain.transition)
    bellman = _bellman(setting, model, chances, chain, stationary)
    own = model.optimal() if setting.task == "control" else model.values(chances)[..., None]
    found = Solution(setting, model, bellman, own, bellman.root(), {})
    noise = None
    if setting.task == "evaluation" and setting.sampling != "none":
        noise = WorldNoise(chain, stationary, bellman, independent=setting.sampling == "independent")
    for name in METHODS:
        found.curves[name] = _curve(found, name, noise)
    return found


def available() -> dict[str, str]:
    """Return the worlds that are available: the lakes need Gymnasium."""
    gymnasium = importlib.util.find_spec("gymnasium") is not None
    return {name: words for name, words in WORLDS.items() if gymnasium or name == "cliff"}


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


def _curve(found: Solution, name: str, noise: "WorldNoise | None") -> Curve:
    setting, bellman, root = found.setting, found.bellman, found.root
    rule = LocalRule(setting.step_size, setting.local_steps, 1.0, 1.0 if name == "FedHSA" else 0.0)
    numbers = rule.step_size, rule.local_steps, rule.correction
    if setting.task == "control":
        limit = bellman.limit(*numbers)
        errors = _played_path(found, rule)
        radius = math.nan if limit is None else spectral_radius(bellman.slopes(limit, *numbers))
        if limit is None or radius >= 1:
            return Curve(None, errors, errors, math.inf if radius >= 1 else math.nan, math.nan, radius, math.nan)
        bias = float(np.linalg.norm((limit - root)[bellman.active]))
        known = 0.0 if setting.sampling == "none" else math.nan
        return Curve(limit, errors, errors, bias**2, bias, radius, known)
    kept = bellman.active[:, 0]
    A = bellman.jacobians()[:, kept][:, :, kept]
    residuals = bellman.operators(np.broadcast_to(root, bellman.visits.shape))[:, kept, 0]
    map = rule.mean_map(A, residuals)
    radius = spectral_radius(map.transition) if np.isfinite(map.transition).all() else math.inf
    start = -root[kept, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        quiet = _affine_path(map.transition, map.offset, start, setting.rounds)
    if not radius < 1:
        return Curve(None, quiet, quiet, math.inf, math.inf, radius, math.nan)
    gap = map.limit_error()
    limit, bias = root.copy(), float(np.linalg.norm(gap))
    limit[kept, 0] += gap
    if noise is None:
        return Curve(limit, quiet, quiet, bias**2, bias, radius, 0.0)
    law, left_out = noise.law(rule, map.transition, map.offset, A, limit)
    settled = law.stationary()
    errors = np.array([moments.square for moments in law.path(start, setting.rounds)])
    return Curve(limit, errors, quiet, settled.square, bias, radius, left_out)


def _played_path(found: Solution, rule: LocalRule) -> np.ndarray:
    """Return the squared distances to the root by rounds without noise, which are computed step by step."""
    bellman, table, errors = found.bellman, np.zeros_like(found.root), []
    for _ in range(min(found.setting.rounds, max(STEPS // rule.local_steps, 20)) + 1):
        errors.append(float(((table - found.root)[bellman.active] ** 2).sum()))
        if not errors[-1] < 1e30:
            break
        with np.errstate(over="ignore", invalid="ignore"):
            table = bellman.play(table, rule.step_size, rule.local_steps, rule.correction)
    return np.array(errors)


def _affine_path(transition: np.ndarray, offset: np.ndarray, error: np.ndarray, rounds: int) -> np.ndarray:
    errors = [error @ error]
    for _ in range(rounds):
        error = transition @ error + offset
        errors.append(error @ error)
    return np.array(errors)


class WorldNoise:
    r"""The noise of TD(0) on the agents' chains, around the rounds without noise.

    A transition from $s$ to $t$ changes only coordinate $s$, so that the noise of a step is $K_{i,\ell}$ times a vector
    with one entry. The covariance is that of additive noise; the Markov bias is of first order in the step size.
    """

    def __init__(self, chain: Any, stationary: np.ndarray, bellman: Bellman, *, independent: bool):
        self.chain, self.pi, self.bellman, self.independent = chain, stationary, bellman, independent
        kept = np.flatnonzero(bellman.active[:, 0])
        place = np.full(bellman.visits.shape[1] + 1, -1)
        place[kept] = np.arange(len(kept))
        self.at = place[chain.states]  # the coordinate of each state of the chain, -1 where there is none
        self.dim, self.kept = len(kept), kept
        self.one_hot = (self.at[..., None] == np.arange(self.dim)).astype(float)  # (M, N, d)
        self.next = chain.discount[..., None] * self.one_hot  # the row of V that counts on entering a state

    def errors(self, theta: np.ndarray) -> np.ndarray:
        """Return the TD errors of all transitions, `(M, ..., N, N)`, at parameters `(M, ..., d)`."""
        here = np.einsum("msd,m...d->m...s", self.one_hot, theta)
        ahead = np.einsum("mtd,m...d->m...t", self.next, theta)
        rewards = self.chain.rewards.reshape(len(self.pi), *(1,) * (theta.ndim - 2), *self.chain.rewards.shape[1:])
        return rewards + ahead[..., None, :] - here[..., :, None]

    def law(self, rule: LocalRule, transition, offset, A: np.ndarray, limit: np.ndarray) -> tuple[AdditiveLaw, float]:
        """Return the law of the error, and the estimated relative error of its floor."""
        M, P, pi = len(A), self.chain.transition, self.pi
        theta = limit[self.kept, 0]
        path = self._path(rule, A, theta)
        errors = self.errors(path)  # (M, H, N, N)
        K = rule.round_map(A, np.zeros((M, self.dim))).noise
        assert K is not None
        rows, leaving, means = self._given_and_leaving(errors)
        spread = np.einsum("msd,ms,mst,mhst->mhd", self.one_hot, pi, P, errors**2, optimize=True)
        if not self.independent:
            spread -= np.einsum("ms,mhds->mhd", pi, (rows + means[..., None]) ** 2)
        seen = np.einsum("mhab,mhb,mhcb->hac", K, spread, K, optimize=True)
        noise = chain_noise(FiniteLaw(FiniteChain(P, pi), pairs=False, independent=self.independent), K @ rows)
        if self.independent:
            centre = np.einsum("mhab,mhb->mha", K, means)
            noise = noise._replace(seen=seen - np.einsum("mha,mhc->hac", centre, centre))
        else:
            noise = noise._replace(seen=seen, both=K @ (leaving - (rows * pi[:, None, None]) @ P[:, None]))
        push = (np.eye(len(transition)) - transition) @ self.markov_bias(rule, A, theta)
        law = AdditiveLaw(transition, offset + push, noise, "The method", basis="additive noise")
        own = len(A) * law.added()
        return law, self.strength(law.stationary().covariance + own, theta)

    def _given_and_leaving(self, fields: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return fields, `(M, k, N, N)`, given a state and on the event of the next, both centred, and their means."""
        P, pi, place = self.chain.transition, self.pi, np.swapaxes(self.one_hot, 1, 2)[:, None]
        given = place * np.einsum("mst,mkst->mks", P, fields)[:, :, None]
        leaving = place @ ((pi[:, :, None] * P)[:, None] * fields)
        mean = np.einsum("mkds,ms->mkd", given, pi)
        return given - mean[..., None], leaving - mean[..., None] * pi[:, None, None], mean

    def _path(self, rule: LocalRule, A: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Return the agents' parameters before each local step of a round without noise from `theta`, `(M, H, d)`."""
        b = np.einsum("msd,ms,mst,mst->md", self.one_hot, self.pi, self.chain.transition, self.chain.rewards)
        first = A @ theta + b
        steer = rule.correction * (first.mean(0) - first)
        now, path = np.broadcast_to(theta, first.shape), []
        for _ in range(rule.local_steps):
            path.append(now)
            now = now + rule.step_size * ((A @ now[..., None])[..., 0] + b + steer)
        return np.stack(path, axis=1)

    def correlations(self, theta: np.ndarray, lags: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        r"""Return the fields of `theory.correlations` at `theta`: $\Gamma_i$, $c_{i,k}$ for each lag, and their sum."""
        M, P, pi = len(self.pi), self.chain.transition, self.pi
        errors = self.errors(np.broadcast_to(theta, (M, self.dim)))
        given, leaving, mean = (part[:, 0] for part in self._given_and_leaving(errors[:, None]))
        diagonal = np.einsum("msd,ms,mst,mst->md", self.one_hot, pi, P, errors**2, optimize=True)
        square = diagonal[..., None] * np.eye(self.dim) - mean[:, :, None] * mean[:, None, :]
        if self.independent:
            return square, np.zeros((M, lags, self.dim)), np.zeros((M, self.dim))
        solved = np.linalg.solve(transpose(np.eye(P.shape[1]) - P + pi[:, None, :]), transpose(leaving))
        summed = transpose(solved)
        cross = summed @ transpose(given)
        lagged, now = [], leaving
        for _ in range(lags):
            lagged.append(self._multiplied(now))
            now = now @ P
        return square + cross + transpose(cross), np.stack(lagged, axis=1), self._multiplied(summed)

    def _multiplied(self, D: np.ndarray) -> np.ndarray:
        """Return the mean of an observation's matrix times the error, whose mean on the event of each state is `D`."""
        ahead = np.einsum("mst,mtd,mds->ms", self.chain.transition, self.next, D, optimize=True)
        here = np.einsum("msd,mds->ms", self.one_hot, D)
        return np.einsum("msd,ms->md", self.one_hot, ahead - here)

    def markov_bias(self, rule: LocalRule, A: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Return the bias from correlated observations, to first order in the step size."""
        if self.independent:
            return np.zeros(self.dim)
        _, lagged, total = self.correlations(theta, max(rule.local_steps - 1, 1))
        return bias_of(A.mean(0), lagged, total, rule, 1 / len(A))

    def strength(self, covariance: np.ndarray, theta: np.ndarray) -> float:
        """Return the noise of the matrices for errors of this covariance, relative to that of the vectors."""
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(values.clip(min=0.0))
        M, d = len(self.pi), self.dim
        columns = self.errors(np.broadcast_to(root.T, (M, d, d))) - self.chain.rewards[:, None]  # (M, k, N, N)
        vector = self.errors(np.broadcast_to(theta, (M, 1, d)))
        return self._long_run(columns) / max(self._long_run(vector), np.finfo(float).tiny)

    def _long_run(self, fields: np.ndarray) -> float:
        """Return the correlations of noise along the transitions' coordinates, summed over agents, fields and lags."""
        P, pi = self.chain.transition, self.pi
        given, leaving, mean = self._given_and_leaving(fields)
        square = np.einsum("ms,mst,mkst->", pi, P, fields**2, optimize=True) - (mean**2).sum()
        if self.independent:
            return float(square)
        Z = np.linalg.inv(np.eye(P.shape[1]) - P + pi[:, None, :])
        later = np.einsum("mst,mkdt->mkds", Z, given)
        return float(square + 2 * np.einsum("mkds,mkds->", leaving, later))


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
