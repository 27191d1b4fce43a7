"""Policy evaluation across heterogeneous grid worlds: six lakes, each with its own holes and ice.

`FedHSA` and `LocalSA` each learn one common value function. The maps show the values of every agent's world, the
learned values and their errors; the curves show that the error of `LocalSA` is the predicted bias.
Run `python examples/grid_worlds.py`: the figures are written to the current folder.
"""

import numpy as np
from matplotlib.figure import Figure
from scipy.special import stdtrit

import fedhsa as fh
from fedhsa import plots, theory
from fedhsa.environments import Model, make
from fedhsa.problems import td

AGENTS, STEP, LOCAL_STEPS = 6, 0.05, 200
ROUNDS, BURN_IN, SEEDS = 400, 100, 16
POLICY = np.tile([0.0, 0.5, 0.5, 0.0], (16, 1))  # down or right with equal probability
METHODS = fh.FedHSA(STEP, LOCAL_STEPS), fh.LocalSA(STEP, LOCAL_STEPS)


def make_lakes() -> Model:
    """Returns six lakes with different maps, and probabilities of slipping from 0 to 2/3."""
    return make("frozen-lake", {"num_agents": AGENTS, "layout": "own", "slipperiness": 1 / 3})


def half_interval(runs: np.ndarray) -> np.ndarray:
    """Returns half of the 95 % interval of the mean over seeds."""
    return stdtrit(len(runs) - 1, 0.975) * runs.std(0, ddof=1) / np.sqrt(len(runs))


def on_grid(lakes: Model, theta: np.ndarray) -> np.ndarray:
    """Returns the values of all cells, 0 in terminal cells."""
    values = np.zeros(lakes.num_states)
    values[lakes.decision_states] = theta
    return values


def alone(lakes: Model) -> tuple[np.ndarray, np.ndarray]:
    """Returns each agent's RMS errors after learning alone: relative to its own values, and to the average."""
    errors, average = [], lakes.values(POLICY).mean(0)
    for agent in range(AGENTS):
        own = lakes.take(agent)
        problem = td.from_model(own, POLICY)
        method = fh.Averaged(fh.SA(STEP), burn_in=BURN_IN * LOCAL_STEPS)
        options = {"rounds": ROUNDS * LOCAL_STEPS, "every": ROUNDS * LOCAL_STEPS, "record": ("value_error",)}
        run = fh.simulate(problem, method, seeds=SEEDS, **options)
        chain = own.chain(POLICY)  # a new episode starts where an episode ends
        visits = np.bincount(chain.states[0], fh.sources.FiniteChain(chain.transition).stationary[0], own.num_states)
        far = np.sqrt((run.theta - average[own.decision_states]) ** 2 @ visits[own.decision_states])
        errors.append((run.records["value_error"][:, -1], far))
    return tuple(np.sqrt(np.mean(np.square(each), axis=0)) for each in zip(*errors, strict=True))


def main() -> None:
    """Runs both methods, compares them with theory, prints the results and draws the figures."""
    lakes = make_lakes()
    problem, true = td.from_model(lakes, POLICY), lakes.values(POLICY)
    predictions = {type(method).__name__: theory.predict(problem, method) for method in METHODS}
    record = ("value_error", "mean_value_error")
    options = {"rounds": ROUNDS, "seeds": SEEDS, "record": record}
    last, mean = {}, {}
    for method in METHODS:
        name = type(method).__name__
        last[name] = fh.simulate(problem, method, **options)
        mean[name] = fh.simulate(problem, fh.Averaged(method, burn_in=BURN_IN), **options)

    towards = predictions["LocalSA"].bias / np.linalg.norm(predictions["LocalSA"].bias)
    print(f"values at the start: {true[:, 0].round(3)}, mean {true[:, 0].mean():.3f}, root {problem.theta_star[0]:.3f}")
    for name, prediction in predictions.items():
        off = (mean[name].theta - problem.theta_star) @ towards
        print(
            f"{name:7} bias towards Local SA's limit: predicted {prediction.bias @ towards:.4f}, "
            f"measured {off.mean():.4f} +- {half_interval(off):.4f}"
        )
    for name, prediction in predictions.items():
        single, averaged = last[name].error[:, BURN_IN + 1 :].mean(1), mean[name].error[:, -1]
        print(
            f"{name:7} squared error: single rounds {single.mean():.4f} +- {half_interval(single):.4f} "
            f"(predicted {prediction.floor:.4f}), averaged {averaged.mean():.5f} +- {half_interval(averaged):.5f}"
        )
    rows = {name: [result.records[quantity][:, -1] for quantity in record] for name, result in mean.items()}
    rows["alone"] = list(alone(lakes))
    for name, (own, average) in rows.items():
        print(
            f"{name:7} RMS error: own values {own.mean():.3f} +- {half_interval(own):.3f}, "
            f"mean of values {average.mean():.3f} +- {half_interval(average):.3f}"
        )
    draw_maps(lakes, problem, mean, predictions["LocalSA"])
    plots.save(draw_curves(last, mean, predictions), "grid_worlds_curves")


def draw_maps(lakes: Model, problem: fh.Problem, mean: dict, prediction: theory.Prediction) -> None:
    """Draws the worlds' values, the learned values, and their errors."""
    true = lakes.values(POLICY)
    slips = [make_slip(lakes, agent) for agent in range(AGENTS)]
    titles = [f"agent {agent}, slips {slip:.0%}" for agent, slip in enumerate(slips)]
    worlds = plots.value_map(
        lakes, dict(zip(titles, true, strict=True)), agent={t: i for i, t in enumerate(titles)}, columns=3
    )
    plots.save(worlds, "grid_worlds")

    ice = make("frozen-lake", {"num_agents": 1, "layout": "random", "frozen": 1.0})  # the common parts: start and goal
    learned = {name: on_grid(lakes, result.theta.mean(0)) for name, result in mean.items()}
    root = on_grid(lakes, problem.theta_star)
    values = {
        "mean of the six agents": true.mean(0),
        "root": root,
        "FedHSA": learned["FedHSA"],
        "LocalSA": learned["LocalSA"],
    }
    plots.save(plots.value_map(ice, values), "grid_worlds_learned")
    errors = {
        "FedHSA": learned["FedHSA"] - root,
        "LocalSA": learned["LocalSA"] - root,
        "LocalSA, predicted": on_grid(lakes, prediction.bias),
    }
    plots.save(plots.value_map(ice, errors, label="value minus root", columns=3, signed=True), "grid_worlds_errors")


def make_slip(lakes: Model, agent: int) -> float:
    """Returns an agent's probability of slipping, from a step right at the start: it stays at the wall or goes down."""
    return 2 * lakes.transitions[agent, 0, 2, 0]


def draw_curves(last: dict, mean: dict, predictions: dict) -> Figure:
    """Draws the squared distance from the root against rounds: of single rounds with the floor, and of the average."""
    with plots.style():
        figure = Figure(figsize=(7.0, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        plots.curves(last, theory={name: p.floor for name, p in predictions.items()}, ax=left, legend=False)
        plots.curves(mean, theory={name: p.bias @ p.bias for name, p in predictions.items()}, ax=right, legend=False)
        left.set_title("single rounds\ndashed: predicted floor")
        right.set_title(f"average of the rounds from {BURN_IN} on\ndashed: predicted squared bias")
        right.set_ylabel("")
        for ax in (left, right):
            ax.grid(axis="y")
        handles, labels = left.get_legend_handles_labels()
        title = rf"TD on frozen lakes: $M = {AGENTS}$, $H = {LOCAL_STEPS}$, $\eta = {STEP:g}$"
        title += f"; means of {SEEDS} seeds, 95 % intervals"
        figure.legend(handles, labels, loc="outside upper center", ncols=2, title=title)
    return figure


if __name__ == "__main__":
    main()
