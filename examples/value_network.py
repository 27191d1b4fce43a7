"""Value networks: robots on heterogeneous rings train one small network by TD, without a convergence guarantee.

The operator is the semi-gradient (r + discount V(s') - V(s)) grad V(s) of an Equinox MLP, and the parameter is the
network's arrays, a pytree. This is the paper's third open question: the operator is not monotone, has many roots (the
hidden units can change places), and distance between parameters says little. So runs are compared by their value
functions: the root-mean-square distance to V_ref, which the same network learns without noise and with synchronised
steps, and to the mean of the true value functions, which differs from V_ref. V_ref's parameters replace the root.
Run `python examples/value_network.py`: the figure is written to the current folder.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy.special import stdtrit

import fedhsa as fh
from fedhsa import plots, tree
from fedhsa.sources import FiniteChain, Transitions

ROBOTS, STATES, DISCOUNT = 6, 12, 0.9
STEP, LOCAL_STEPS, ROUNDS, SEEDS = 0.02, 40, 150, 8
ANGLES = 2 * np.pi * np.arange(STATES) / STATES
INPUTS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)

NETWORK = eqx.nn.MLP(2, "scalar", width_size=12, depth=1, activation=jnp.tanh, key=jax.random.key(0))
START, SKELETON = eqx.partition(NETWORK, eqx.is_array)


class Robot(fh.AbstractAgent):
    """TD(0) with a network; `theta` holds its arrays."""

    source: fh.AbstractSource
    rewards: np.ndarray

    def operator(self, theta, o, /):
        inputs = jnp.asarray(INPUTS, self.rewards.dtype)
        value, slope = jax.value_and_grad(value_of)(theta, inputs[o.state])
        error = self.rewards[o.state] + DISCOUNT * value_of(theta, inputs[o.next_state]) - value
        return jax.tree.map(lambda leaf: error * leaf, slope)


def value_of(theta, x):
    """Returns the network's value of one state."""
    return eqx.combine(theta, SKELETON)(x)


def make_robots(rng: np.random.Generator) -> tuple[Robot, np.ndarray]:
    """Returns robots that drift around the ring at different speeds with different rewards, and their true values."""
    forward = rng.uniform(0.05, 0.85, size=ROBOTS)
    ahead = np.roll(np.eye(STATES), 1, axis=1)
    P = np.stack([0.1 * np.eye(STATES) + f * ahead + (0.9 - f) * ahead.T for f in forward])
    bump = np.cos(ANGLES - rng.uniform(0, 2 * np.pi, size=(ROBOTS, 1)))
    rewards = rng.uniform(0.2, 1.8, size=(ROBOTS, 1)) * bump + 0.3 * rng.normal(size=(ROBOTS, STATES))
    values = np.linalg.solve(np.eye(STATES) - DISCOUNT * P, rewards[..., None])[..., 0]
    return Robot(Transitions(FiniteChain(P)), rewards), values


def make_problem(robots: Robot) -> fh.Problem:
    """Returns the robots; the end of a long run without noise replaces the root."""
    start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), START)
    problem = fh.Problem(robots, like=start, theta_star=None)
    quiet = fh.simulate(problem.noiseless(), fh.SynchronisedSA(0.1), rounds=10_000, theta=start, every=10_000)
    return fh.Problem(robots, like=start, theta_star=tree.take(quiet.theta, 0))


def values(theta):
    """Returns the network's values of all states."""
    return jax.vmap(value_of, (None, 0))(theta, jnp.asarray(INPUTS, jax.tree.leaves(theta)[0].dtype))


def distance_to(target: np.ndarray) -> Callable:
    """Returns a recorder of the root-mean-square distance between the network's values and `target`."""
    return lambda snapshot: jnp.sqrt(jnp.mean((values(snapshot.theta) - jnp.asarray(target)) ** 2))


def spread(runs: np.ndarray) -> np.ndarray:
    """Returns half of the 95 % interval of the mean over seeds."""
    return stdtrit(len(runs) - 1, 0.975) * runs.std(0, ddof=1) / np.sqrt(len(runs))


def main() -> None:
    """Trains with both methods, without and with noise; prints the errors of the values, and draws the values."""
    robots, true = make_robots(np.random.default_rng(0))
    problem, goal = make_problem(robots), true.mean(0)
    with jax.enable_x64(True):
        reference = np.asarray(values(jax.tree.map(jnp.asarray, problem.unravel(problem.theta_star))))
    stillness = np.linalg.norm(problem.mean_operator(problem.theta_star))
    print(f"V_ref: operator {stillness:.0e}, to the mean value {np.sqrt(np.mean((reference - goal) ** 2)):.3f}")
    slopes = np.linalg.svd(problem.jacobians(problem.theta_star).mean(0), compute_uv=False)
    print(f"singular values of the Jacobian there: {slopes.max():.1g} to {slopes.min():.0e}")
    options = {"rounds": ROUNDS, "theta": problem.like, "every": ROUNDS // 10}
    options["record"] = {"to V_ref": distance_to(reference), "to the mean value": distance_to(goal)}
    results = {}
    for method in fh.FedHSA(STEP, LOCAL_STEPS), fh.LocalSA(STEP, LOCAL_STEPS):
        name = type(method).__name__
        quiet = fh.simulate(problem.noiseless(), method, **options)
        results[name] = fh.simulate(problem, method, seeds=SEEDS, **options)
        for quantity in options["record"]:
            runs = results[name].records[quantity][:, 5:].mean(1)
            print(f"{name:7s} {quantity}: {runs.mean():.3f} +- {spread(runs):.3f}", end=", ")
            print(f"without noise {quiet.records[quantity][0, -1]:.3f}")
    options |= {"rounds": LOCAL_STEPS, "theta": tree.take(quiet.theta, 0), "every": LOCAL_STEPS}
    options["record"] = {"values": lambda snapshot: values(snapshot.theta)}
    for robot in range(ROBOTS):
        alone = fh.simulate(problem.take([robot], theta_star=None).noiseless(), fh.SA(STEP), **options)
        before, after = np.sqrt(np.mean((alone.records["values"][0] - true[robot]) ** 2, axis=-1))
        print(f"robot {robot} after {name} without noise, to its own values: {before:.3f}, one round alone {after:.3f}")
    plots.save(draw(results, {"mean of the true values": goal, r"$V_{\mathrm{ref}}$": reference}), "value_network")


def draw(results: dict[str, fh.Result], others: dict[str, np.ndarray]) -> Figure:
    """Draws the values around the ring, with 95 % intervals over the seeds."""
    with plots.style():
        figure = Figure(figsize=(4.4, 3.1), layout="constrained")
        ax = figure.add_subplot(xlabel="state", ylabel="value")
        for (name, line), style in zip(others.items(), ("k-", "k--"), strict=True):
            ax.plot(line, style, label=name)
        for name, result in results.items():
            with jax.enable_x64(True):
                runs = np.asarray(jax.vmap(values)(jax.tree.map(jnp.asarray, result.theta)))
            mean, half, at = runs.mean(0), spread(runs), np.arange(STATES)
            ax.plot(mean, color=plots.COLOURS[name], label=f"{name}, mean of {SEEDS} seeds")
            ax.fill_between(at, mean - half, mean + half, color=plots.COLOURS[name], alpha=0.2, linewidth=0)
        ax.grid(axis="y")
        title = rf"A value network for all robots: $H = {LOCAL_STEPS}$, $\eta = {STEP:g}$, 95 % intervals"
        figure.legend(loc="outside upper center", ncols=2, title=title)
    return figure


if __name__ == "__main__":
    main()
