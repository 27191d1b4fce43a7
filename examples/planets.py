"""Cart poles on three planets, in the compiled simulation: the error of the values that agents learn together.

The environments are gymnax's, with a different gravity and pole on each planet; the policy takes both actions with
equal probability. Run `python examples/planets.py`: the figure is written to the current folder.
"""

import gymnax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import fedhsa as fh
from fedhsa import plots, statistics
from fedhsa.environments import Fourier, perturbed
from fedhsa.problems import experience

PLANETS = ((3.0, 0.15), (9.8, 0.5), (25.0, 1.5))
"""The gravity and the length of the pole."""
FEATURES = Fourier([-0.5, -1.5, -0.21, -2.5], [0.5, 1.5, 0.21, 2.5], order=1)
STEP, LOCAL_STEPS, ROUNDS, BURN_IN, SEEDS = 0.2, 50, 200, 50, 8


def make_problem() -> fh.Problem:
    """Returns one agent on each planet, with 64 copies of its pole; the root is the solution of least-squares TD."""
    cart_pole, constants = gymnax.make("CartPole-v1")
    planets = [perturbed(constants, gravity=gravity, length=length) for gravity, length in PLANETS]
    options = {"features": FEATURES, "discount": 0.9, "num_envs": 64, "reference_steps": 400_000}
    return experience.from_environment(cart_pole, planets, **options)


class ErrorOfValues:
    """The squared error of values, averaged over the states that the agents visit."""

    def __init__(self, problem: fh.Problem):
        visited = experience.record(problem.agents, 100, key=1).features[:, 20:].reshape(-1, FEATURES.size)
        self.weight = visited.T @ visited / len(visited)

    def __call__(self, snapshot: fh.Snapshot):
        off = snapshot.theta - snapshot.theta_star
        return off @ jnp.asarray(self.weight, off.dtype) @ off


def main() -> None:
    """Runs both methods, with and without averaging, prints the results and draws the figure."""
    problem = make_problem()
    recorders, errors = {"values": ErrorOfValues(problem)}, {}
    for method in (fh.FedHSA(STEP, LOCAL_STEPS), fh.LocalSA(STEP, LOCAL_STEPS)):
        for algorithm in (method, fh.Averaged(method, burn_in=BURN_IN)):
            name = type(method).__name__ + (", averaged" if algorithm is not method else "")
            run = fh.simulate(problem, algorithm, rounds=ROUNDS, seeds=SEEDS, record=recorders)
            errors[name] = run.error, run.records["values"]
            distance, values = (error[:, -ROUNDS // 4 :].mean() for error in errors[name])
            print(f"{name:18s} distance {distance:.3g}, values {values:.3g}")
    draw(errors)


def draw(errors: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draws both errors against rounds; averages are dashed."""
    with plots.style():
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        for part, ax in enumerate(figure.subplots(1, 2)):
            for name, both in errors.items():
                first = BURN_IN if "averaged" in name else 0
                mean, low, high = (line[first:] for line in statistics.interval(both[part]))
                at, colour = np.arange(first, ROUNDS + 1), plots.COLOURS[name.partition(",")[0]]
                ax.plot(at, mean, "--" if first else "-", color=colour, label=name)
                ax.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
            ax.set(yscale="log", xlabel=r"round $t$", xlim=(0, ROUNDS))
            ax.set_ylabel(("squared distance to the root", "mean squared error of the values")[part])
            ax.grid(axis="y")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        title = rf"TD on cart poles, {len(PLANETS)} planets: $H = {LOCAL_STEPS}$, $\eta = {STEP:g}$"
        title += f"; means of {SEEDS} seeds, 95 % intervals; averages from round {BURN_IN} on"
        figure.legend(handles, labels, loc="outside upper center", ncols=4, title=title)
    plots.save(figure, "planets")


if __name__ == "__main__":
    main()
