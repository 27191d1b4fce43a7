"""The drift of agents within a round: its slopes in the step size and in the local steps, and the bound of Lemma 1."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ... import statistics, tree
from ..._random import as_key, fold_in
from ..._types import Key, Theta, precision
from ...engine.batch import make_keys
from ...problems import AbstractAgent, Problem
from ...theory import constants
from ...theory.paper.bounds import DRIFT
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, columns, figures

SLOPES = (1.9, 2.1)
"""The range of slopes that counts as 2."""
SMALL = 0.1
r"""The largest $\eta L H$ at which slopes in the step size are measured."""
AXES = {"step": "step size", "local_steps": "local steps"}


class Drift(AbstractStudy):
    r"""The largest $|\theta_{i,\ell} - \bar\theta|^2$ over agents and local steps of one round of FedHSA.

    The path of a round does not depend on its length, so one round with the most local steps contains all shorter ones.
    """

    name: str = "drift"
    title: str = "Drift within a round"
    source: str = "Lemma 1"
    seeds: int = 128
    """The number of independent rounds."""
    families: tuple[str, ...] = ("quadratic", "nonconvex", "td", "finite-sum")
    num_agents: int = 8
    dim: int = 4
    num_states: int = 8
    num_components: int = 4
    laziness: float = 0.5
    """The probability with which TD's chains stay in place."""
    problem_key: int = 0
    distances: tuple[float, ...] = (0.0, 1.0, 10.0)
    """The distances of the starting points from the root."""
    reaches: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    r"""The values of $\eta L H$ at the most local steps; the lemma requires at most 1."""
    local_steps: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    constant: float = 4.0
    """The constant C of the bound, the same for all problems."""

    claim: ClassVar[int] = 7
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.4)
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 112}

    def seconds(self) -> float:
        work = self.seeds * len(self.distances) * len(self.reaches) * self.local_steps[-1]
        return 2.0 + len(self.families) * (1.0 + 1e-6 * work)

    def instance(self, family: str) -> Instance:
        """Returns the problem of one family; all noise starts from its stationary distribution."""
        own: dict[str, dict[str, Any]] = {
            "quadratic": {"start": "stationary"},
            "nonconvex": {"start": "stationary"},
            "td": {"num_states": self.num_states, "laziness": self.laziness},
            "finite-sum": {"num_components": self.num_components},
        }
        return Instance.of_family(family, self.num_agents, {"dim": self.dim} | own[family], self.problem_key)

    def run(self, runner: Runner) -> Outcome:
        arrays, facts = {}, {}
        for family in self.families:
            runner.stop_if_asked()
            problem = self.instance(family).build()
            known = constants(problem)
            steps = np.array(self.reaches) / (known.L * self.local_steps[-1])
            found = [
                self._measure(problem, steps, known.L, None if np.isinf(known.sigma) else known.sigma, distance)
                for distance in self.distances
            ]
            drift, sigma, needed = (np.stack(parts) for parts in zip(*found, strict=True))
            arrays |= {f"{family}/drift": drift, f"{family}/sigma": sigma[0], f"{family}/needed": needed}
            facts[family] = {"L": known.L, "bounded": bool(np.isfinite(known.sigma)), "steps": steps.tolist()}
        return Outcome(arrays, facts)

    def _measure(
        self, problem: Problem, steps: np.ndarray, L: float, sigma: float | None, distance: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns drifts `(steps, local steps, seeds)`, sigma of every seed, and the constant needed per step size."""
        H = self.local_steps[-1]
        theta = problem.theta_star + distance * np.ones(problem.dim) / np.sqrt(problem.dim)
        squares, origin = local_paths(problem, theta, steps, H, seeds=self.seeds, key=self.key)
        drift = np.maximum.accumulate(squares.max(2), axis=-1)
        realised = np.maximum.accumulate(origin.max(1), axis=-1) / L
        least = max(1.0, float(np.linalg.norm(problem.theta_star)))
        sizes = np.maximum(realised, least) if sigma is None else np.full_like(realised, sigma)
        scale = (steps[:, None] * L * np.arange(1, H + 1)) ** 2
        needed = (drift / scale[:, None] / (distance**2 + sizes**2)).max((1, 2))
        return drift[..., np.array(self.local_steps) - 1].swapaxes(1, 2), sizes[:, -1], needed

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, right = figure.subplots(1, 2)
        reaches, H = np.array(self.reaches), np.array(self.local_steps)
        for family in self.families:
            look, sigma = figures.LOOKS[family], outcome.arrays[f"{family}/sigma"]
            for start, face in ((0, "white"), (-1, look.colour)):
                drift = outcome.arrays[f"{family}/drift"][start] / (self.distances[start] ** 2 + sigma**2)
                for ax, at, samples in ((left, reaches, drift[:, -1]), (right, H, drift[0])):
                    found = figures.means(samples)
                    figures.points(ax, at, found, markerfacecolor=face, zorder=4, **look.style)
                    guide = found[0].value * (at / at[0]) ** 2
                    figures.theory(ax, at, guide, look.colour, linewidth=0.8, zorder=2)
        for ax, at, reach in ((left, reaches, reaches), (right, H, reaches[0] * H / H[-1])):
            ax.plot(at, self.constant * reach**2, color="black", linewidth=1.0)
            ax.set(xscale="log", yscale="log")
        figures.grid(left, right)
        left.set(xlabel=rf"$\eta L H$, at $H$ = {H[-1]}", ylabel=r"largest squared drift $/\,(|e|^2 + \sigma^2)$")
        right.set_xlabel(rf"local steps $H$, at $\eta L$ = {reaches[0]:g} / {H[-1]}")
        figures.ticks(right, H)
        entries = {figures.LOOKS[family].name: figures.LOOKS[family].style for family in self.families}
        entries[f"start at distance {self.distances[-1]:g}"] = figures.dots("0.3", size=4.5)
        entries["start at the root"] = figures.dots("0.3", size=4.5, face="white")
        entries |= {"slope 2": figures.dashed(), f"bound, $C$ = {self.constant:g}": {"color": "black"}}
        figures.legend(figure, entries, 4)

    def summary(self, outcome: Outcome) -> list[str]:
        ranges = {}
        for axis in AXES:
            found = [slope.value for family in self.families for slope in self._slopes(outcome, family, axis)]
            ranges[axis] = f"{min(found):.3f} and {max(found):.3f}"
        needed = {family: float(outcome.arrays[f"{family}/needed"].max()) for family in self.families}
        worst = max(needed, key=lambda family: needed[family])
        return [
            "The largest squared drift of any agent within a round of FedHSA grows with the square of the step and of "
            f"the local steps: over all families and {len(self.distances)} starts the slopes on logarithmic axes "
            f"lie between {ranges['step']} in the step, and between {ranges['local_steps']} in the local steps.",
            f"It stays below $C (eta L H)^2 (|e|^2 + sigma^2)$ with $C = {self.constant:g}$ in every round run, on "
            f"every problem up to $eta L H = {max(self.reaches):g}$; the most that any round needed is "
            f"{needed[worst]:.2f} ({figures.LOOKS[worst].name}). "
            f"The paper's own proof gives $C = 45 e^2 = {DRIFT:.0f}$.",
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for family in self.families:
            for axis, words in AXES.items():
                slopes = self._slopes(outcome, family, axis)
                worst = int(np.argmax([max(abs(end - 2) for end in slope.interval) for slope in slopes]))
                statement = (
                    f"Slope of log(largest squared drift) against log({words}), {figures.LOOKS[family].name}, from the "
                    f"start where it is farthest from 2 (distance {self.distances[worst]:g} from the root)"
                )
                name = f"{family}, slope in the {words}"
                checks.inside(name, statement, slopes[worst], *SLOPES)
            needed = float(outcome.arrays[f"{family}/needed"].max())
            statement = (
                f"Least $C$ with a squared drift of at most $C (eta L H)^2 (|e|^2 + sigma^2)$, "
                f"{figures.LOOKS[family].name}: largest over "
                f"{self.seeds} random rounds from each of {len(self.distances)} starts at {len(self.reaches)} steps"
            )
            checks.at_most(f"{family}, bound", statement, needed, self.constant)

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for family in self.families:
            steps, sigma = outcome.facts[family]["steps"], outcome.arrays[f"{family}/sigma"]
            for (s, k, h), row in _entries(outcome.arrays[f"{family}/drift"]):
                setting = (family, self.distances[s], steps[k], self.local_steps[h])
                rows.append((*setting, *statistics.mean(row, level=0.95), outcome.facts[family]["L"], sigma.mean()))
        names = ("family", "distance", "step_size", "local_steps", "drift", "low", "high", "L", "sigma")
        return columns(names, rows)

    def notes(self) -> list[str]:
        return [
            "Drift is taken after every local step, the last included, over one round from stationary observations; "
            "starts lie at distances "
            f"{', '.join(f'{d:g}' for d in self.distances)} from the root, so that both |e|^2 and sigma^2 count.",
            f"Slopes in the step are taken up to $eta L H = {SMALL:g}$; those in the local steps at the smallest step.",
            "Gaussian noise has no bound, so for the two quadratic families sigma is that of the round itself: the "
            "largest operator at 0 that any agent has seen in it, over L. For the others it is the constant of "
            "Assumption 1.",
            "At the root noise alone moves the agents: the correction keeps the noise of the first observation for the "
            "whole round, which makes the drift grow linearly, and the rest is a random walk that is soon left behind.",
        ]

    def _slopes(self, outcome: Outcome, family: str, axis: str) -> list[statistics.Estimate]:
        """Returns the slopes for every starting distance."""
        drift = outcome.arrays[f"{family}/drift"]
        if axis == "local_steps":
            return [statistics.slope(self.local_steps, of_start[0]) for of_start in drift]
        small = [k for k, reach in enumerate(self.reaches) if reach <= SMALL]
        return [statistics.slope(np.array(self.reaches)[small], of_start[small, -1]) for of_start in drift]


def local_paths(
    problem: Problem, theta: np.ndarray, steps: np.ndarray, length: int, *, seeds: int, key: Any = 0
) -> tuple[np.ndarray, np.ndarray]:
    r"""Runs the first round of FedHSA from `theta`, as `simulate` does, for several step sizes.

    Returns $|\theta_{i,\ell} - \bar\theta|^2$ for $\ell$ = 1 to `length`, `(steps, seeds, M, length)`, and
    $|G_i(0, o_{i,\ell})|$, `(seeds, M, length)`.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=2, num_states=4, dim=2)
        >>> squares, _ = local_paths(problem, np.zeros(2), np.array([0.1]), 5, seeds=3)
        >>> squares.shape
        (1, 3, 2, 5)
    """
    with precision():
        agents = tree.to_device(problem.flat_agents, "float64")
        keys = make_keys(as_key(key), np.arange(seeds), np.arange(problem.num_agents)).source
        found = _paths(agents, keys, jnp.asarray(theta), jnp.asarray(steps, dtype=float), length)
        return np.asarray(found[0]), np.asarray(found[1])


@eqx.filter_jit
def _paths(
    agents: AbstractAgent, keys: Key, theta: Theta, steps: Float[Array, " steps"], length: int
) -> tuple[Array, Array]:
    """Runs the rounds of all seeds; `keys` are `(agents, seeds)`."""

    def draw(agent, key):
        state = agent.source.init(fold_in(key, 0))
        return agent.source.draw(fold_in(key, 1 + jnp.arange(length)), state)[1]

    def of_seed(blocks, step):
        first = jax.vmap(lambda agent, block: agent.operator(theta, jax.tree.map(lambda o: o[0], block)))
        g = first(agents, blocks)
        g_bar = jnp.mean(g, axis=0)

        def walk(agent, block, g):
            def move(local, o):
                local = local + step * (agent.operator(local, o) + g_bar - g)
                return local, jnp.sum((local - theta) ** 2)

            return jax.lax.scan(move, theta, block, length=length)[1]

        return jax.vmap(walk)(agents, blocks, g)

    def size(agent, o):
        return jnp.linalg.norm(agent.operator(jnp.zeros_like(theta), o))

    blocks = jax.vmap(jax.vmap(draw, (None, 0), out_axes=0), out_axes=1)(agents, keys)  # (seeds, agents, length)
    squares = jax.vmap(jax.vmap(of_seed, (0, None)), (None, 0))(blocks, steps)
    of_agents = jax.vmap(jax.vmap(size, (None, 0)))
    return squares, jax.vmap(lambda blocks: of_agents(agents, blocks))(blocks)


def _entries(drift: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
    return [(index, drift[index]) for index in np.ndindex(*drift.shape[:-1])]
