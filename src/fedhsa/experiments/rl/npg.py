"""FedNPG-ADMM: natural policy gradients that send d numbers per iteration instead of d (d + 1)."""

from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ..._random import host_generator
from ...algorithms import AbstractAlgorithm, FedNPG, FedNPGADMM, SynchronisedSA
from ...environments import Model
from ...problems import Problem, policy_gradient
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, second_half

LOOKS = {"FedNPG": "#000000", "FedNPG-ADMM": "#009E73", "policy gradient": figures.COLOURS["LocalSA"]}
EVERY = 2


class NaturalGradients(AbstractStudy):
    """Softmax tables learned from episodes, in one environment with different rewards for each agent."""

    name: str = "rl/npg"
    title: str = "FedNPG-ADMM"
    source: str = "The claims of Lan, Wang, Anderson, Brinton and Aggarwal on FedNPG-ADMM"
    seeds: int = 24
    step_size: float = 0.2
    damping: float = 0.02
    rho: float = 0.1
    rounds: int = 100
    plain_step: float | None = 1.0
    """The step size of plain policy gradients, for comparison; None omits them."""
    num_agents: int = 8
    num_states: int = 5
    num_actions: int = 3
    discount: float = 0.8
    horizon: int = 25
    batch: int = 8
    """The number of episodes of each agent per iteration."""
    problem_key: int = 0

    claim: ClassVar[int] = 41
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.8)
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 16, "rounds": 60, "plain_step": None}

    def seconds(self) -> float:
        steps = self.rounds * self.seeds * self.num_agents * self.batch * self.horizon
        return len(self.methods()) * (8.0 + 1.5e-6 * steps)

    def problem(self) -> Problem:
        """Returns a problem with common sparse random transitions and separate rewards for each agent."""
        S, A, rng = self.num_states, self.num_actions, host_generator(self.problem_key, "npg")
        P = rng.dirichlet(np.full(S, 0.3), size=(1, S, A))
        model = Model(P.repeat(self.num_agents, 0), rng.random((self.num_agents, S, A)), self.discount)
        return policy_gradient.from_model(model, horizon=self.horizon, batch=self.batch, baseline="mean")

    def methods(self) -> dict[str, AbstractAlgorithm]:
        """Returns the methods in the order of the legend."""
        found: dict[str, AbstractAlgorithm] = {
            "FedNPG": FedNPG(self.step_size, damping=self.damping),
            "FedNPG-ADMM": FedNPGADMM(self.step_size, rho=self.rho, damping=self.damping),
        }
        return found if self.plain_step is None else found | {"policy gradient": SynchronisedSA(self.plain_step)}

    def run(self, runner: Runner) -> Outcome:
        problem, arrays, floats = self.problem(), {}, {}
        settings: dict[str, Any] = {"seeds": self.seeds, "key": self.key, "record": ("gap",), "every": EVERY}
        for name, algorithm in self.methods().items():
            result = runner.simulate(problem, algorithm, rounds=self.rounds, **settings)
            arrays[name], floats[name] = result.records["gap"], float(result.cost.floats_up)
        return Outcome(arrays, {"floats": floats, "dim": problem.dim})

    def by_npg(self, outcome: Outcome, name: str = "FedNPG-ADMM") -> Estimate:
        """Returns the gap over the second half of the iterations relative to FedNPG's gap."""
        return statistics.ratio(second_half(outcome.arrays[name]), second_half(outcome.arrays["FedNPG"]))

    def floats(self, outcome: Outcome) -> float:
        """Returns the traffic of FedNPG relative to the traffic of FedNPG-ADMM."""
        return outcome.facts["floats"]["FedNPG"] / outcome.facts["floats"]["FedNPG-ADMM"]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        statement = "Gap to the best policy over the second half of the iterations, FedNPG-ADMM by FedNPG"
        checks.equals("same curve", statement, self.by_npg(outcome), 1.0, slack=0.1)
        learned = statistics.ratio(outcome.arrays["FedNPG-ADMM"][:, 0], outcome.arrays["FedNPG-ADMM"][:, -1])
        checks.above("learns", "Gap of FedNPG-ADMM at the start by that at the end", learned, 5.0)
        expected = outcome.facts["dim"] + 1
        statement = "Numbers that an agent sends per iteration, FedNPG by FedNPG-ADMM: d + 1"
        checks.near("numbers", statement, self.floats(outcome), expected, tolerance=0.0)

    def summary(self, outcome: Outcome) -> list[str]:
        ends = {name: outcome.arrays[name][:, -1].mean() for name in self.methods()}
        said = ", ".join(f"{end:.3g} with {name}" for name, end in ends.items())
        found = [
            f"After {self.rounds} iterations the gap to the best policy, {outcome.arrays['FedNPG'][:, 0].mean():.3g} "
            f"at the start, is {said}.",
            f"Over the second half FedNPG-ADMM's gap is {self.by_npg(outcome):.2f} times FedNPG's, and it sends "
            f"{outcome.facts['floats']['FedNPG-ADMM']:g} numbers per agent and iteration instead of "
            f"{outcome.facts['floats']['FedNPG']:g}.",
        ]
        if self.plain_step is not None:
            ratio = self.by_npg(outcome, "policy gradient")
            found.append(f"Policy gradients at the step {self.plain_step:g} stay at {ratio:.2f} times FedNPG's gap.")
        return found

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for name in self.methods():
            for at in (0, outcome.arrays[name].shape[1] // 2, -1):
                found = statistics.mean(outcome.arrays[name][:, at], level=0.95)
                rounds = EVERY * (at % outcome.arrays[name].shape[1])
                rows.append((name, rounds, rounds * outcome.facts["floats"][name], *found))
        return columns(("method", "iterations", "numbers sent", "gap", "low", "high"), rows)

    def notes(self) -> list[str]:
        return [
            "Lan, Wang, Anderson, Brinton and Aggarwal, Improved communication efficiency in federated natural policy "
            "gradient via ADMM-based gradient updates, NeurIPS 2023, arXiv:2310.19807. Only its abstract could be "
            "read: MuJoCo environments, the same reward as FedNPG, O(d) numbers an iteration instead of O(d^2). The "
            "formulas of ADMM are derived, with one iteration of it per policy iteration and a warm start.",
            f"Ours is a random process with {self.num_states} states and {self.num_actions} actions, whose best policy "
            f"for the mean of the {self.num_agents} agents' rewards is known exactly; {self.batch} episodes of "
            f"{self.horizon} steps of each agent per iteration, and both methods at the same step and damping.",
            "Step, damping, rho and the step of policy gradients were chosen after a first look at a few of each. The "
            "range of 10 % around equal curves was set before.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for name in self.methods():
            curves = outcome.arrays[name]
            at = EVERY * np.arange(curves.shape[1])
            style = {"linestyle": figures.DASHES} if name == "FedNPG-ADMM" else {}
            figures.band(left, at, curves, LOOKS[name], label=name, **style)
            sent = outcome.facts["floats"][name] * at[1:]
            figures.band(right, sent, curves[:, 1:], LOOKS[name], **style)
        left.set(yscale="log", xlabel="iteration", ylabel=r"gap to the best return, $J^\star - J(\theta)$")
        right.set(xscale="log", xlabel="numbers sent by each agent")
        figures.panel_legend(left)
        figures.grid(left, right)
        figures.heading(figure, f"{self.num_agents} agents: means of {self.seeds} seeds, 95 % intervals")
