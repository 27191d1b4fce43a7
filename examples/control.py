"""Control in heterogeneous environments: `FedHSA`, `LocalSA` and importance averaging, compared by their returns.

Five agents walk along a cliff, each in a different wind, and learn one table of action values together. The example
compares the greedy policy's return in each agent's environment. The correction of `FedHSA` removes the drift of local
steps: without noise `FedHSA` finds the root and `LocalSA` does not; with samples, the noise of the correction decides.
Run `python examples/control.py`: the figures are written to the current folder.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.special import stdtrit

import fedhsa as fh
from fedhsa import plots
from fedhsa.environments import Model, make
from fedhsa.problems import q_learning, sarsa

STEP, STEPS, SEEDS = 0.1, 40_000, 8
LAKES = 2, 7, 10  # the keys below twelve for whose maps the drift of `LocalSA` costs a tenth or more: see `maps`
LONG_ROUNDS = 100
RETURNS = ("error", "returns", "mean_return")


def half_interval(runs: np.ndarray) -> np.ndarray:
    """Returns half of the 95 % interval of the mean over seeds."""
    return stdtrit(len(runs) - 1, 0.975) * runs.std(0, ddof=1) / np.sqrt(len(runs))


def table(model: Model, theta: np.ndarray) -> np.ndarray:
    """Returns the action values `(S, A)` from the parameter, 0 in terminal states."""
    Q = np.zeros((model.num_states, model.num_actions))
    Q[model.decision_states] = theta.reshape(-1, model.num_actions)
    return Q


def learn(problem: fh.Problem, method: fh.AbstractAlgorithm, rounds: int, seeds: int = SEEDS) -> fh.Result:
    """Runs a method and records returns twenty times."""
    return fh.simulate(problem, method, rounds=rounds, seeds=seeds, record=RETURNS, every=max(1, rounds // 20))


def tell(name: str, runs: np.ndarray) -> None:
    """Prints one line: a name, and the mean of runs with its interval."""
    if np.isfinite(runs).all():
        print(f"  {name:36} {runs.mean():8.3f} +- {half_interval(runs):.3f}")
    else:
        print(f"  {name:36} diverged in {np.sum(~np.isfinite(runs))} of {len(runs)} runs")


def cliffs() -> None:
    """Runs Q-learning with a table in five winds."""
    model = make("windy-cliff", {"num_agents": 5})
    problem = q_learning.from_model(model)
    best = model.greedy(model.optimal())
    own, common = model.returns(best), model.returns(model.greedy(table(model, problem.theta_star)))
    print("Q-learning along windy cliffs, mean return over the agents:")
    print(f"  each its own best policy {own.mean():.3f}, the root's policy {common.mean():.3f}")
    each = np.array([model.returns(policy) for policy in best])
    print(f"  one agent's best policy for all: {each.mean(1).round(1)}")
    rows = {"own best": own[None], "root": common[None]}
    for local_steps in 20, LONG_ROUNDS:
        for method in fh.FedHSA(STEP, local_steps), fh.LocalSA(STEP, local_steps):
            run = learn(problem, method, STEPS // local_steps)
            name = f"{type(method).__name__}, {local_steps} local steps"
            rows[name] = run.records["returns"][:, -5:].mean(1)  # the last quarter
            tell(name, rows[name].mean(1))
    alone = [learn(q_learning.from_model(model.take(i)), fh.SA(STEP), STEPS).theta for i in range(model.num_agents)]
    elsewhere = np.array([[model.returns(model.greedy(table(model, t))) for t in agent] for agent in alone])
    rows["alone, at home"] = np.stack([elsewhere[i, :, i] for i in range(model.num_agents)], axis=1)
    tell("alone, at home", rows["alone, at home"].mean(1))
    tell("alone, in all environments", elsewhere.mean((0, 2)))
    plots.save(draw_returns(rows), "control_returns")
    Q, learned = model.optimal(), table(model, problem.theta_star)
    calm, windy = own.argmax(), own.argmin()
    panels = {
        "calmest agent, own best policy": Q[calm],
        "windiest agent, own best policy": Q[windy],
        "policy of the root, for all": learned,
    }
    policies = {name: model.greedy(values)[0] for name, values in panels.items()}
    values = {name: values.max(-1) for name, values in panels.items()}
    plots.save(plots.value_map(model, values, policies, columns=3), "control_policies")


def own_lakes(key: int) -> Model:
    """Returns five lakes with different maps."""
    return make("frozen-lake", {"num_agents": 5, "layout": "own", "slipperiness": 1 / 3, "key": key})


def maps() -> None:
    """Shows that the cost of the drift of `LocalSA`, relative to the root's return, depends on the maps."""
    print("Heterogeneous lakes without noise, 20 local steps; return of the root's policy, of Local SA's:")
    for key in range(12):
        model = own_lakes(key)
        problem = q_learning.from_model(model, synchronous=True).noiseless()
        common = model.returns(model.greedy(table(model, problem.theta_star))).mean()
        drifted = learn(problem, fh.LocalSA(STEP, 20), 60, seeds=1).records["mean_return"][0, -1]
        print(f"  key {key:2} {common:8.3f} {drifted:8.3f}")


def lakes(key: int) -> None:
    """Shows the effect of the correction without noise and with samples, on lakes with different maps."""
    model = own_lakes(key)
    problem = q_learning.from_model(model, synchronous=True)
    own, common = (model.returns(model.greedy(Q)).mean() for Q in (model.optimal(), table(model, problem.theta_star)))
    print(f"Lakes of key {key}, all pairs in every step; own best {own:.3f}, root {common:.3f}:")
    for local_steps in 5, 20:
        for method in fh.FedHSA(STEP, local_steps), fh.LocalSA(STEP, local_steps):
            name = f"{type(method).__name__}, {local_steps} local steps"
            rounds = 1200 // local_steps
            quiet = learn(problem.noiseless(), method, rounds, seeds=1)
            print(f"  {name + ', exact':36} {quiet.records['mean_return'][0, -1]:8.3f}, error {quiet.error[0, -1]:.1e}")
            run = learn(problem, fh.Averaged(method, burn_in=rounds // 2), rounds)
            tell(f"{name}, sampled", run.records["mean_return"][:, -1])


def coverage() -> dict[str, fh.Result]:
    """Runs agents that each try mostly one action: the agents that observed a pair should determine its value."""
    model = make("frozen-lake", {"num_agents": 8, "slipperiness": 0.3, "slip_spread": 0.3})
    behaviour = np.full((8, 16, 4), 0.05)
    behaviour[np.arange(8), :, np.arange(8) % 4] = 0.85
    problem = q_learning.from_model(model, behaviour)
    methods = fh.ImportanceAveraging(0.2, 50), fh.LocalSA(0.2, 50), fh.FedHSA(0.2, 5)
    runs = {}
    for method in methods:
        rounds = 20_000 // method.local_steps
        runs[type(method).__name__] = learn(problem, method, rounds)
    common = model.returns(model.greedy(table(model, problem.theta_star))).mean()
    print(f"Agents that each try mostly one action, on slippery lakes; root {common:.3f}:")
    for name, run in runs.items():
        tell(f"{name}, return at the end", run.records["mean_return"][:, -5:].mean(1))
        tell(f"{name}, error at a third", run.error[:, 7])
        tell(f"{name}, error at the end", run.error[:, -1])
    return runs


def softmax() -> dict[str, fh.Result]:
    """Runs SARSA: agents follow the policies that they improve."""
    model = make("windy-cliff", {"num_agents": 5})
    problem, runs = sarsa.from_model(model, inverse_temperature=0.02), {}
    values = 0.02 * table(model, problem.theta_star)
    policy = np.exp(values - values.max(-1, keepdims=True))
    common = model.returns(policy / policy.sum(-1, keepdims=True)).mean()
    print(f"SARSA along windy cliffs; all actions alike {model.returns().mean():.1f}, root {common:.1f}, ", end="")
    print(f"whose largest value is {abs(problem.theta_star).max():.0f}:")
    for local_steps in 10, LONG_ROUNDS:
        for method in fh.FedHSA(STEP, local_steps), fh.LocalSA(STEP, local_steps):
            name = f"{type(method).__name__}, {local_steps} local steps"
            runs[name] = learn(problem, method, 20_000 // local_steps)
            tell(name, runs[name].records["mean_return"][:, -5:].mean(1))
            print("    largest value of each run:", *(f"{size:.3g}" for size in np.sort(abs(runs[name].theta).max(1))))
            print("    squared distance to the root:", *(f"{error:.3g}" for error in np.sort(runs[name].error[:, -1])))
    return runs


def main() -> None:
    """Runs all parts, prints the results and draws the figures."""
    cliffs()
    maps()
    for key in LAKES:
        lakes(key)
    plots.save(draw_curves(coverage(), softmax()), "control_curves")


def draw_returns(rows: dict[str, np.ndarray]) -> Figure:
    """Draws the return of each policy in each agent's environment, with intervals."""
    references = {"own best": ("each agent's own best policy", "0.2"), "root": ("policy of the root", "0.6")}
    names = {"alone, at home": "SA alone, in its own environment"}
    with plots.style():
        figure = Figure(figsize=(7.0, 2.9), layout="constrained")
        ax = figure.add_subplot(xlabel="environment of agent", ylabel="return of the policy")
        for name, (label, colour) in references.items():
            ends = np.arange(rows[name].shape[1]) + np.array([[-0.4], [0.4]])
            ax.plot(ends, np.repeat(rows[name], 2, 0), color=colour, linestyle="-" if name == "root" else ":")
            ax.plot([], [], color=colour, linestyle="-" if name == "root" else ":", label=label)
        learned = {name: runs[np.isfinite(runs).all(1)] for name, runs in rows.items() if name not in references}
        for place, (name, kept) in enumerate((name, kept) for name, kept in learned.items() if len(kept)):
            colour = plots.COLOURS.get(name.split(",")[0], plots.COLOURS["SA"])
            style: dict[str, Any] = {"color": colour, "label": names.get(name, name), "marker": "o", "markersize": 4}
            style |= {"markerfacecolor": "white"} if str(LONG_ROUNDS) in name else {}
            at = np.arange(kept.shape[1]) + 0.13 * (place - (len(learned) - 1) / 2)
            reach = half_interval(kept) if len(kept) > 1 else None
            ax.errorbar(at, kept.mean(0), reach, linestyle="", linewidth=1.0, capsize=2, **style)
        ax.set_xticks(range(rows["root"].shape[1]))
        ax.grid(axis="y")
        title = rf"Q-learning along windy cliffs: $M = 5$, $\eta = {STEP:g}$; means of {SEEDS} seeds, 95 % intervals"
        figure.legend(loc="outside upper center", ncols=3, title=title)
    return figure


def draw_curves(covered: dict[str, fh.Result], improved: dict[str, fh.Result]) -> Figure:
    """Draws mean returns against observations, with 95 % intervals."""
    titles = r"Q-learning on lakes: $M = 8$, $\eta = 0.2$", rf"SARSA along cliffs: $M = 5$, $\eta = {STEP:g}$"
    notes = "each agent tries mostly one action", "softmax policies"
    with plots.style():
        figure = Figure(figsize=(7.0, 3.1), layout="constrained")
        for ax, runs, title, note in zip(figure.subplots(1, 2), (covered, improved), titles, notes, strict=True):
            for name, run in runs.items():
                returns, kind = run.records["mean_return"], name.split(",")[0]
                kept = np.isfinite(returns).all(0)  # a curve ends where the first seed diverges
                returns, observations = returns[:, kept], 20 * np.linspace(0, 1, len(run.rounds))[kept]
                colour = plots.COLOURS.get(kind, plots.COLOURS["SynchronisedSA"])
                mean, reach = returns.mean(0), half_interval(returns)
                label = name if "," in name else f"{name}, {run.settings['algorithm']['local_steps']} local steps"
                label += "" if kept.all() else " (diverges)"
                ax.plot(observations, mean, color=colour, label=label, linestyle="--" if ", 100" in name else "-")
                ax.fill_between(observations, mean - reach, mean + reach, color=colour, alpha=0.15, linewidth=0)
            ax.set_title(f"{title}\n{note}")
            ax.set_xlabel("observations of each agent, in thousands")
            ax.set_ylabel("mean return over the agents")
            ax.set_xlim(0, 20)
            ax.set_xticks(range(0, 21, 5))
            ax.grid(axis="y")
            ax.legend(loc="lower right", title=f"means of {SEEDS} seeds, 95 % intervals", title_fontsize=8)
    return figure


if __name__ == "__main__":
    main()
