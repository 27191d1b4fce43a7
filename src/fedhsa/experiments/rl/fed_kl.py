"""FedKL: costs and benefits of keeping local policies near the common policy, next to FedProx and FedAvg."""

import math
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ...algorithms import FedKL
from ...environments import Gaussian, mlp, perturbed
from ...problems import Problem, policy_gradient
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures

LOOKS = {"FedKL": "#009E73", "FedProx": "#CC79A7", "FedAvg": figures.COLOURS["LocalSA"]}
ROOTS = 5.0
"""The target distance from the common policy, in units of the root of the target divergence; near the authors'."""


class KLPenalties(AbstractStudy):
    """A pendulum whose motor has a different offset for each agent, kept upright by a small Gaussian network."""

    name: str = "rl/fed-kl"
    title: str = "FedKL"
    source: str = "The ordering that Xie and Song find for FedKL, FedProx and FedAvg"
    seeds: int = 16
    steps: tuple[float, ...] = (0.01, 0.03)
    """The step sizes, which are also the targets of the divergence from the previous policy."""
    epochs: int = 5
    sigma: float = 1e-3
    proximal: float = 0.01
    """FedProx's penalty."""
    local_steps: int = 100
    """The number of batches between two averages."""
    rounds: int = 5
    num_agents: int = 4
    offset: float = 2.0
    """The largest offset, which equals the largest torque."""
    mass: float = 0.2
    horizon: int = 40
    batch: int = 8
    discount: float = 0.9
    width: int = 16

    claim: ClassVar[int] = 42
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.8)
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 8, "rounds": 6, "local_steps": 40, "steps": (0.01,)}

    def seconds(self) -> float:
        played = self.rounds * self.local_steps * self.seeds * self.num_agents * self.batch * self.horizon
        return 12.0 + len(self.steps) * len(LOOKS) * 2e-7 * (1 + self.epochs) * played

    def problem(self) -> Problem:
        """Returns agents that differ in the offset that the motor adds to every torque."""
        import gymnax  # here, since gymnax is optional

        pendulum, constants = gymnax.make("Pendulum-v1")
        offsets = np.linspace(-self.offset, self.offset, self.num_agents)[:, None]
        policy = Gaussian(mlp(3, 1, width=self.width, depth=1), 1, log_std=-0.5)
        params = [perturbed(constants, m=self.mass)] * self.num_agents
        sizes = {"horizon": self.horizon, "batch": self.batch, "discount": self.discount}
        return policy_gradient.from_environment(
            pendulum, params, policy, **sizes, baseline="mean", shifts=offsets, evaluation_episodes=32
        )

    def methods(self, step: float) -> dict[str, FedKL]:
        """Returns FedKL and its special cases."""
        own: dict[str, dict[str, float]] = {
            "FedKL": {"sigma": self.sigma, "distance_target": ROOTS * math.sqrt(step)},
            "FedProx": {"sigma": 0.0, "proximal": self.proximal},
            "FedAvg": {"sigma": 0.0},
        }
        return {
            name: FedKL(step, self.local_steps, epochs=self.epochs, kl_target=step, **more)
            for name, more in own.items()
        }

    def run(self, runner: Runner) -> Outcome:
        problem, arrays = self.problem(), {}
        settings: dict[str, Any] = {"seeds": self.seeds, "key": self.key, "record": ("mean_return",)}
        for step in self.steps:
            for name, algorithm in self.methods(step).items():
                result = runner.simulate(problem, algorithm, rounds=self.rounds, dtype="float32", **settings)
                arrays[f"{name}, {step:g}"] = -result.records["mean_return"]
        return Outcome(arrays, {"dim": problem.dim})

    def by_fed_kl(self, outcome: Outcome, name: str, step: float) -> Estimate:
        """Returns the cost of an episode after the last round relative to FedKL's cost."""
        other, own = (outcome.arrays[f"{n}, {step:g}"][:, -1] for n in (name, "FedKL"))
        return statistics.ratio(other, own)

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for step in self.steps:
            curve = outcome.arrays[f"FedKL, {step:g}"]
            statement = f"Step {step:g}: cost of FedKL at the start by that at the end"
            checks.above(f"learns, {step:g}", statement, statistics.ratio(curve[:, 0], curve[:, -1]), 2.0)
            for name in ("FedProx", "FedAvg"):
                statement = f"Step {step:g}: cost at the end, {name} by FedKL"
                checks.above(f"{name}, {step:g}", statement, self.by_fed_kl(outcome, name, step))

    def summary(self, outcome: Outcome) -> list[str]:
        found = []
        for step in self.steps:
            last = {name: outcome.arrays[f"{name}, {step:g}"][:, -1] for name in LOOKS}
            costs = [f"{cost.mean():.0f} with {name} (the worst run {cost.max():.0f})" for name, cost in last.items()]
            prox, avg = (self.by_fed_kl(outcome, name, step) for name in ("FedProx", "FedAvg"))
            found.append(
                f"At the step {step:g} an episode costs {', '.join(costs)} after {self.rounds} rounds. FedProx costs "
                f"{prox:.2f} times as much as FedKL, FedAvg {avg:.2f} times."
            )
        return found

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for step in self.steps:
            for name in LOOKS:
                costs = outcome.arrays[f"{name}, {step:g}"][:, -1]
                rows.append((name, step, *statistics.mean(costs, level=0.95), np.median(costs), costs.max()))
        return columns(("method", "step", "cost at the end", "low", "high", "median", "worst"), rows)

    def notes(self) -> list[str]:
        return [
            "Xie and Song, FedKL: tackling data heterogeneity in federated reinforcement learning by penalizing KL "
            "divergence, JSAC 2023, arXiv:2204.08125. Its environments are Reacher, HalfCheetah, MountainCarContinuous "
            "and a traffic simulator, with a critic; its numbers were not available to us, and the ordering is that "
            "of its abstract. Its command has 50 local iterations, the step 0.01, a target of 2e-4 for the "
            "divergence and 0.07 for the distance, five roots of the first, as here.",
            f"Ours is gymnax's Pendulum with the mass {self.mass:g} instead of 1, so that the motor can lift it and "
            f"gradients without a critic learn it in seconds, over {self.horizon} steps; agents' motors have offsets "
            f"from {-self.offset:g} to {self.offset:g}. Costs are returns with the opposite sign, of episodes played "
            "by the common policy in all agents' environments.",
            "The steps, the local batches and FedProx's coefficient were chosen after a first look, in which larger "
            "coefficients of FedProx were slower. All three methods are one algorithm with other penalties, on the "
            "same keys.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        axes = np.atleast_1d(figure.subplots(1, len(self.steps), sharey=True))
        for ax, step in zip(axes, self.steps, strict=True):
            for name, colour in LOOKS.items():
                curves = outcome.arrays[f"{name}, {step:g}"]
                ax.plot(curves.T, color=colour, linewidth=0.4, alpha=0.4)
                ax.plot(np.median(curves, axis=0), color=colour, linewidth=1.8, label=name)
            ax.set(yscale="log", xlabel="round", title=rf"$\eta = {step:g}$")
            ax.xaxis.get_major_locator().set_params(integer=True)
        axes[0].set_ylabel("cost of an episode")
        figures.grid(*axes)
        title = (
            f"{self.num_agents} agents, {self.local_steps} local steps; bold: median of {self.seeds} seeds, thin: each"
        )
        figures.legend(figure, {name: {"color": colour, "linewidth": 1.8} for name, colour in LOOKS.items()}, 3, title)
