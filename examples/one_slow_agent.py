"""One slow chain among many fast ones: does the error follow the slowest agent, or the average?

The paper's bounds grow with the mixing time of the slowest chain, and it asks whether they can be refined. Here 19
agents draw independently and the last agent's chain becomes slower. Theory predicts that the floor follows the
*mean* of the agents' long-run covariances; simulation agrees, and the bound's factor is drawn next to them.
"""

import numpy as np
from matplotlib.figure import Figure

import fedhsa as fh
from fedhsa import plots, theory

AGENTS, STATES, STEP, LOCAL_STEPS = 20, 4, 0.005, 5
ROUNDS, SEEDS = 500, 60


def problem_with(stay: float) -> fh.Problem:
    """Returns equal agents with noise of the same law; the last chain keeps its state with probability `stay`."""
    P = np.full((AGENTS, STATES, STATES), 1 / STATES)
    P[-1] = stay * np.eye(STATES) + (1 - stay) / STATES
    A = np.broadcast_to(np.eye(2), (AGENTS, STATES, 2, 2))
    b = np.broadcast_to(np.random.default_rng(0).normal(size=(STATES, 2)), (AGENTS, STATES, 2))
    return fh.problems.finite_sum.from_arrays(A, b, P)


algorithm = fh.FedHSA(STEP, LOCAL_STEPS)
alpha = STEP * LOCAL_STEPS
slowness, predicted, simulated, spread, bound = [], [], [], [], []
for stay in (0.0, 0.5, 0.8, 0.9, 0.95, 0.98):
    problem = problem_with(stay)
    run = fh.simulate(problem, algorithm, rounds=ROUNDS, seeds=SEEDS, theta=problem.theta_star, every=10)
    floors = run.error[:, run.rounds >= 100].mean(1)
    c = theory.constants(problem)
    slowness.append(1 / (1 - stay))
    predicted.append(theory.predict(problem, algorithm).floor)
    simulated.append(floors.mean())
    spread.append(2 * floors.std(ddof=1) / np.sqrt(SEEDS))
    bound.append(c.tau(alpha**2) / (1 - c.rho))
    print(f"slow agent {slowness[-1]:5.1f} x   floor: predicted {predicted[-1]:.3e}, simulated {simulated[-1]:.3e}")

predicted, simulated, spread, bound = map(np.array, (predicted, simulated, spread, bound))
print(f"from fast to slow: floor x {simulated[-1] / simulated[0]:.1f}, bound x {bound[-1] / bound[0]:.0f}")

with plots.style():
    figure = Figure(figsize=(4.4, 3.1), layout="constrained")
    ax = figure.add_subplot(xscale="log", yscale="log", xlabel="slowdown of the slow agent's chain")
    unit, blue = predicted[0], plots.COLOURS["FedHSA"]
    ax.plot(slowness, bound / bound[0], ":", color="0.4", label=r"factor $\bar\tau / (1 - \rho)$ of the bound")
    ax.errorbar(
        slowness, simulated / unit, spread / unit, fmt="o", ms=4, capsize=2, color=blue, label=f"mean of {SEEDS} seeds"
    )
    ax.plot(slowness, predicted / unit, "--", color="0.2", label="predicted: mean of the long-run covariances")
    ax.set_ylabel("floor of FedHSA, relative to equal agents")
    ax.set_xticks(slowness, [f"{slow:.0f}" for slow in slowness])
    ax.grid(axis="y")
    ax.set_title(rf"One slow agent of $M = {AGENTS}$: $H = {LOCAL_STEPS}$, $\eta = {STEP:g}$")
    ax.legend(loc="upper left")
plots.save(figure, "one_slow_agent")
