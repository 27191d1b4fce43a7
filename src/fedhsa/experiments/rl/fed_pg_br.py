"""FedPG-BR on CartPole: trajectories against agents, and three Byzantine agents among ten (claim 46)."""

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ... import statistics, tree
from ..._types import precision
from ...algorithms import AbstractAlgorithm, Byzantine, FedPGBR, SynchronisedSA
from ...algorithms.attacks import AbstractAttack, ActsAtRandom
from ...algorithms.rules import ConcentrationFilter
from ...environments import Categorical, mlp
from ...environments.rollouts import play
from ...problems import Problem, policy_gradient
from ...problems.base import AbstractAgentWrapper
from ...sources import AbstractSource
from ..study import AbstractStudy, Checks, Outcome, Runner, Table, columns, figures, late

BR, PLAIN = "FedPG-BR", "GPOMDP"
NOBODY = "nobody"
BEST = 500
"""The largest return of CartPole-v1."""
SMOOTH = 5
"""The number of records that a point of a curve averages over."""


class MeanOverSteps(AbstractAgentWrapper):
    """An agent whose gradient is a mean over the steps of all episodes of a batch, as in the public code."""

    source: AbstractSource
    agent: Any

    should_be_monotone: ClassVar[bool] = False

    def operator(self, theta, o, /):
        return self._per_step(o, self.agent.operator(theta, o))

    def weighted_operator(self, theta, o, weights, /):
        return self._per_step(o, self.agent.weighted_operator(theta, o, weights))

    def _per_step(self, o: Any, gradient: Any) -> Any:
        length = jnp.sum(o.alive) / o.alive.shape[0]
        return jax.tree.map(lambda g: g / length, gradient)


class Lie(AbstractAttack):
    """All attacks of the study in one program: $c x + s z$ with $s$ in units of the range, and random actions."""

    scale: float
    std: float
    at_random: bool

    needs_policy = True

    def __call__(self, key, x):
        return self.scale * x + self.std * (jnp.max(x) - jnp.min(x)) * jax.random.normal(key, x.shape, x.dtype)

    def agent(self, agent, hostile):
        return ActsAtRandom(agent.source, agent, hostile & self.at_random)


ATTACKS = {
    NOBODY: Lie(1.0, 0.0, False),
    "random noise": Lie(1.0, np.sqrt(3.0), False),
    "sign flip": Lie(-2.5, 0.0, False),
    "random action": Lie(1.0, 0.0, True),
}


class RobustGradients(AbstractStudy):
    """Equal cart poles, as in the source: the benefit of more agents, and the effect of three attackers of ten."""

    name: str = "rl/fed-pg-br"
    title: str = "FedPG-BR on CartPole"
    source: str = "Figures 1 and 2 of Fan et al. on Byzantine-resilient federated policy gradients"
    seeds: int = 4
    agents: tuple[int, ...] = (1, 3, 10)
    attacks: tuple[str, ...] = tuple(ATTACKS)
    hostile: int = 3
    step_size: float = 4.0
    plain_step: float = 6.0
    """The step size of GPOMDP, which takes one step per round; FedPG-BR takes about three."""
    batch: int = 4
    """The number of episodes in an observation, b."""
    batches: int = 4
    """The number of observations in a reply; B = 16."""
    max_inner: int = 4
    rounds: int = 40
    """The number of rounds with all agents; runs with fewer agents have twice this number."""
    sigma: float = 0.06
    horizon: int = 500
    discount: float = 0.999
    target: float = 450.0
    episodes: int = 16
    """The number of episodes for a record of the return."""

    claim: ClassVar[int] = 46
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.2)
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 2,
        "agents": (1, 10),
        "attacks": (NOBODY, "sign flip"),
        "rounds": 12,
    }

    def seconds(self) -> float:
        return 30.0 * len(self.agents) + 0.3 * self.rounds * (len(self.agents) + 2 * len(self.attacks))

    def problem(self, num_agents: int, batch: int) -> Problem:
        """Returns `num_agents` equal cart poles, whose observations consist of `batch` episodes."""
        import gymnax  # here, since gymnax is optional

        cart_pole, constants = gymnax.make("CartPole-v1")
        how: dict[str, Any] = {"horizon": self.horizon, "batch": batch, "discount": self.discount, "baseline": "whiten"}
        policy = Categorical(mlp(4, 2, width=16))
        played = policy_gradient.from_environment(cart_pole, [constants] * num_agents, policy, **how)
        agents = MeanOverSteps(played.agents.source, played.agents)
        return Problem(agents, like=policy.start, theta_star=None, start=policy.start)

    def _cases(self) -> Iterator[tuple[str, str, int, AbstractAlgorithm, Problem, int]]:
        """Yields method, attack, agents, algorithm, problem and rounds."""
        many = max(self.agents)
        for K in self.agents:
            rule = ConcentrationFilter(self.sigma, self.batch * self.batches, share=self.hostile / many)
            method = FedPGBR(self.step_size, self.batches, self.max_inner, rule, max_weight=1.5, max_log_weight=0.5)
            problem = self.problem(K, self.batch)
            for attack in self.attacks if many == K else (NOBODY,):
                rounds = self.rounds if many == K else 2 * self.rounds
                yield BR, attack, K, self._attacked(method, attack, K), problem, rounds
        problem = self.problem(many, self.batch * self.batches)
        for attack in self.attacks:
            plain = self._attacked(SynchronisedSA(self.plain_step), attack, many)
            yield PLAIN, attack, many, plain, problem, self.rounds

    def _attacked(self, method: AbstractAlgorithm, attack: str, num_agents: int) -> AbstractAlgorithm:
        many = num_agents == max(self.agents) and num_agents > self.hostile
        return Byzantine(method, self.hostile / num_agents, ATTACKS[attack]) if many else method

    def run(self, runner: Runner) -> Outcome:
        arrays = {}
        for method, attack, K, algorithm, problem, rounds in self._cases():
            how: dict[str, Any] = {"seeds": self.seeds, "key": self.key, "dtype": "float32", "record": ("theta",)}
            found = runner.simulate(problem, algorithm, rounds=rounds, **how)
            arrays[f"{method}/{attack}/{K}"] = self.returns(np.asarray(found.records["theta"]))
        return Outcome(
            arrays, {"per round": {f"{m}/{K}": self.per_round(m, K) for m in (BR, PLAIN) for K in self.agents}}
        )

    def per_round(self, method: str, num_agents: int) -> float:
        """Returns the average number of trajectories per agent in a round."""
        B, m = self.batch * self.batches, self.batches
        inner = sum((m / (m + 1)) ** n for n in range(self.max_inner))  # the mean of N
        return B if method == PLAIN else B + self.batch * inner / num_agents

    def returns(self, thetas: np.ndarray) -> np.ndarray:
        """Returns undiscounted returns of policies, `(seeds, records)`, from separate episodes."""
        problem = self.problem(1, self.batch)
        flat = thetas.reshape(-1, thetas.shape[-1])
        with precision("float32"):
            wrapper: Any = tree.take(problem.agents, 0)
            agent = tree.to_device(wrapper.agent, "float32")
            keys = jax.random.split(jax.random.key(self.key, impl="threefry2x32"), len(flat))
            one = functools.partial(_played, tree.unravel_like(problem.like), self.episodes)
            found = eqx.filter_jit(jax.vmap(one, (None, 0, 0)))(agent, jnp.asarray(flat, "float32"), keys)
        return np.asarray(found, dtype=float).reshape(thetas.shape[:-1])

    def trajectories(self, outcome: Outcome, method: str, num_agents: int) -> np.ndarray:
        """Returns each seed's trajectories per agent until its return reaches the target; all if it does not."""
        curves = outcome.arrays[f"{method}/{NOBODY}/{num_agents}"]
        reached = [_first(curve, self.target) for curve in curves]
        return np.array(reached) * outcome.facts["per round"][f"{method}/{num_agents}"]

    def missed(self, outcome: Outcome, method: str, num_agents: int) -> int:
        """Returns the number of seeds that do not reach the target."""
        return sum(curve.max() < self.target for curve in outcome.arrays[f"{method}/{NOBODY}/{num_agents}"])

    def end(self, outcome: Outcome, method: str, attack: str) -> np.ndarray:
        """Returns each seed's return over the last quarter of its rounds, with all agents."""
        return late(outcome.arrays[f"{method}/{attack}/{max(self.agents)}"])

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        agents, robust, plain = figure.subplots(1, 3, sharey=True)
        palette = figures.shades(self.agents)
        for K in self.agents:
            self._curve(agents, outcome, BR, NOBODY, K, palette[K])
        many = max(self.agents)
        self._curve(agents, outcome, PLAIN, NOBODY, many, palette[many], linestyle=figures.DOTS)
        known = ("0.3", *(figures.COLOURS[name] for name in ("FedHSA", "LocalSA", "SA", "SynchronisedSA")))
        colours = dict(zip(self.attacks, known, strict=False))
        for ax, method in ((robust, BR), (plain, PLAIN)):
            for attack in self.attacks:
                self._curve(ax, outcome, method, attack, max(self.agents), colours[attack])
            ax.set_title(f"{method}, {self.hostile} of {max(self.agents)} attack")
        for ax in (agents, robust, plain):
            ax.axhline(self.target, color="0.55", linewidth=0.8)
            # Intervals of four seeds exceed the largest return by far where only some of them have learnt.
            ax.set(xlabel="trajectories of each agent", ylim=(0, 1.2 * BEST))
        agents.set(ylabel="return", xscale="log", title="no attack")
        entries = {f"{BR}, $K$ = {K}": {"color": palette[K]} for K in self.agents}
        entries |= {f"{PLAIN}, $K$ = {many}": {"color": palette[many], "linestyle": figures.DOTS}}
        words = {NOBODY: "no attack"}
        entries |= {words.get(attack, attack): {"color": colours[attack]} for attack in self.attacks}
        figures.grid(agents, robust, plain)
        title = f"CartPole, $K$ agents; {self.seeds} seeds, 95 % intervals; line: return {self.target:g}"
        figures.legend(figure, entries, 4, title)

    def _curve(self, ax: figures.Axes, outcome: Outcome, method: str, attack: str, K: int, colour: str, **style: Any):
        curves = outcome.arrays[f"{method}/{attack}/{K}"]
        smooth = np.apply_along_axis(lambda c: np.convolve(c, np.ones(SMOOTH) / SMOOTH, "valid"), 1, curves)
        x = (SMOOTH + np.arange(smooth.shape[1])) * outcome.facts["per round"][f"{method}/{K}"]
        figures.band(ax, x, smooth, colour, linewidth=1.0, **style)

    def notes(self) -> list[str]:
        return [
            "The source: CartPole-v1, discount 0.999, two hidden layers of 16, B from 12 to 20, b = 4, Adam with "
            "0.001, delta = 0.6, sigma = 0.06, 5000 trajectories; returns are whitened within an episode, here within "
            "an observation of b. As in its public code gradients are means over steps, so that sigma is the same.",
            f"Ours: plain steps of {self.step_size:g}, b = {self.batch}, B = {self.batch * self.batches}, at most "
            f"{self.max_inner} inner steps, which end when the mean |log w| is above 0.5; weights of whole episodes, "
            f"at most 1.5. GPOMDP is the mean of all agents' gradients and one step of {self.plain_step:g}.",
            f"With {self.seeds} seeds, for the time it takes, checks compare means, or the worst seed of one method "
            "with the best of the other.",
            "Chosen after a first look: the steps, the bounds of weights and the rounds. With gradients that are sums "
            "over the steps of an episode, and so grow with its length, plain steps made policies collapse.",
            "Attacks as in the source: noise of three times the range of the gradient's entries (there uniform and "
            "for each layer, here normal with the same variance and for all), -2.5 times the gradient, and random "
            "actions (in the public code always the first one).",
            "Trajectories are those of an agent on average; agent 0 plays the server's part besides its own.",
        ]

    def summary(self, outcome: Outcome) -> list[str]:
        reached = ", ".join(
            f"{self.trajectories(outcome, BR, K).mean():.0f} for K = {K} ({self.missed(outcome, BR, K)} of "
            f"{self.seeds} seeds never)"
            for K in self.agents
        )
        many = max(self.agents)
        ends = {
            method: ", ".join(
                f"{statistics.mean(self.end(outcome, method, attack), 0.95):.0f} ({attack})" for attack in self.attacks
            )
            for method in (BR, PLAIN)
        }
        return [
            f"Trajectories of each agent to a return of {self.target:g} by FedPG-BR: {reached}; by GPOMDP "
            f"{self.trajectories(outcome, PLAIN, many).mean():.0f} for K = {many}.",
            f"With {self.hostile} of {many} agents hostile the return at the end is {ends[BR]} with the filter, and "
            f"{ends[PLAIN]} with GPOMDP's mean.",
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        many = max(self.agents)
        if self.missed(outcome, BR, many) == 0:  # short runs do not reach it
            statement = "More agents reach the target with fewer trajectories each: those of many by those of one."
            fewer = self.trajectories(outcome, BR, many).mean() / self.trajectories(outcome, BR, 1).mean()
            checks.at_most("speed-up", statement, fewer, 1.0)
        for attack in self.attacks[1:]:
            statement = "FedPG-BR learns as if nobody were hostile: by how much its return at the end is lower."
            lost = 1 - self.end(outcome, BR, attack).mean() / self.end(outcome, BR, NOBODY).mean()
            checks.at_most(f"{BR}, {attack}", statement, lost, 0.25)
            statement = "GPOMDP does not: its best seed at the end in parts of FedPG-BR's worst, under the same attack."
            ratio = self.end(outcome, PLAIN, attack).max() / self.end(outcome, BR, attack).min()
            checks.at_most(f"{BR} against {PLAIN}, {attack}", statement, ratio, 1.0)

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for label, curves in outcome.arrays.items():
            method, attack, K = label.split("/")
            end = statistics.mean(late(curves), 0.95)
            rows.append([method, attack, int(K), curves.shape[1] - 1, end.value, end.low, end.high])
        return columns(["method", "attack", "agents", "rounds", "return at the end", "low", "high"], rows)


def _played(unravel: Any, episodes: int, agent: Any, theta: Any, key: Any) -> Any:
    seen = play(agent.world, agent.policy, unravel(theta), key, episodes, agent.horizon)
    return jnp.mean(jnp.sum(seen.reward, axis=1))


def _first(curve: np.ndarray, target: float) -> int:
    """Returns the first record that reaches the target, or else the last record."""
    found = np.flatnonzero(curve >= target)
    return int(found[0]) if len(found) else len(curve) - 1
