"""Ten cart poles on ten planets learn one policy together, by simulation and live in Gymnasium.

    python examples/learn_cart_pole.py
    fedhsa deploy demo --agent examples/learn_cart_pole.py:build --dim 10 --step-size 0.02 --local-steps 2 --rounds 3

Every agent has a different pole length and a different gravity. All agents improve one softmax policy by policy
gradients: each plays episodes, and only parameters and gradients are sent. The first part simulates `FedHSA`, `LocalSA`
and one agent alone in JAX; the second runs `FedHSA` by messages on live Gymnasium environments. The example draws the
returns, the policy, and an animation of a pole that it balances on the planet with the strongest gravity.
"""

import pathlib
import tempfile

import equinox as eqx
import gymnax
import jax
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure

import fedhsa as fh
from fedhsa import deploy, plots
from fedhsa.environments import Categorical, perturbed
from fedhsa.environments.gym import returns
from fedhsa.environments.rollouts import play
from fedhsa.problems import policy_gradient

AGENTS, LIVE_AGENTS = 10, 3
HORIZON, BATCH, DISCOUNT = 200, 4, 0.99
STEP, LOCAL_STEPS, ROUNDS, SEEDS, EVERY = 0.01, 5, 30, 4, 2
LIVE_STEP, LIVE_LOCAL_STEPS, LIVE_ROUNDS, LIVE_BATCH = 0.02, 2, 30, 8
"""Fewer local steps and more episodes, since live episodes are played with the parameter at the start of a round."""

POLICY = Categorical(eqx.nn.Linear(4, 2, key=jax.random.key(0)))
"""Logits that are linear in the cart's position and speed and the pole's angle and turning speed."""
DIM = fh.tree.size(POLICY.start)


def physics(number: int, num_agents: int) -> dict[str, float]:
    """Returns the physics, from a short pole on a small planet to a long pole on a large planet."""
    part = number / max(1, num_agents - 1)
    return {"gravity": 4.0 + 16.0 * part, "length": 0.2 + 0.8 * part}


def make_problem(num_agents: int = AGENTS) -> fh.Problem:
    """Returns the agents, in an environment written in JAX."""
    cart_pole, constants = gymnax.make("CartPole-v1")
    planets = [perturbed(constants, **physics(i, num_agents)) for i in range(num_agents)]
    settings = {"horizon": HORIZON, "batch": BATCH, "discount": DISCOUNT}
    return policy_gradient.from_environment(cart_pole, planets, POLICY, **settings)


def simulated(problem: fh.Problem) -> dict[str, fh.Result]:
    """Runs all agents with and without correction, and the first agent alone; all are evaluated on all planets."""
    local, corrected = fh.LocalSA(STEP, LOCAL_STEPS), fh.FedHSA(STEP, LOCAL_STEPS)
    runs = {"FedHSA": (problem, corrected), "LocalSA": (problem, local), "one alone": (problem.take([0]), local)}
    everywhere = {name: problem.agents.recorders()[name]() for name in ("mean_return", "returns")}
    start = np.zeros(DIM)  # the policy that acts at random
    options = {"rounds": ROUNDS, "seeds": SEEDS, "every": EVERY, "theta": start, "record": everywhere}
    return {name: fh.simulate(where, method, **options) for name, (where, method) in runs.items()}


def build(context: deploy.AgentContext) -> deploy.Live:
    """Returns the live agent of this node: its environment, and the gradient from its episodes."""
    own = physics(context.number, context.num_agents)
    stream = deploy.GymEpisodes("CartPole-v1", POLICY, horizon=HORIZON, batch=LIVE_BATCH, physics=own)
    agent = policy_gradient.live_agent(POLICY, horizon=HORIZON, batch=LIVE_BATCH, discount=DISCOUNT)
    return deploy.Live(agent, stream)


def live() -> tuple[np.ndarray, np.ndarray]:
    """Runs the agents by messages on Gymnasium; returns the rounds and the agents' mean returns after them."""
    plan = deploy.Plan(
        num_agents=LIVE_AGENTS,
        dim=DIM,
        agent=f"{__file__}:build",
        algorithm="FedHSA",
        step_size=LIVE_STEP,
        local_steps=LIVE_LOCAL_STEPS,
    )
    rounds, means = [0], [live_return(np.zeros(DIM))]
    with tempfile.TemporaryDirectory() as folder:
        server = deploy.in_memory(plan, pathlib.Path(folder))
        for done in range(5, LIVE_ROUNDS + 1, 5):
            server.run(done)
            rounds.append(done)
            means.append(live_return(np.asarray(server.progress.server.theta)[0]))
    return np.array(rounds), np.array(means)


def live_return(theta: np.ndarray) -> float:
    """Returns the mean return of the policy on the live agents' planets."""
    options = {"max_episode_steps": HORIZON}

    def chances(seen: np.ndarray) -> np.ndarray:
        return probabilities(theta, seen)

    own = [physics(i, LIVE_AGENTS) for i in range(LIVE_AGENTS)]
    return float(np.mean([returns("CartPole-v1", chances, episodes=5, physics=p, options=options) for p in own]))


def probabilities(theta: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Returns the policy's probabilities of pushing left and right, `(..., 2)`."""
    network = fh.tree.unravel_like(POLICY.start)(theta)
    logits = seen @ np.asarray(network.weight).T + np.asarray(network.bias)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def draw(runs: dict[str, fh.Result], live_runs: tuple[np.ndarray, np.ndarray], theta: np.ndarray) -> Figure:
    """Draws returns against rounds, each planet's return, and the policy."""
    with plots.style():
        figure = Figure(figsize=(9.0, 2.9), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        plots.curves(runs, quantity="mean_return", ax=left, legend=False)
        left.plot(*live_runs, "k^", markersize=4, label=f"FedHSA live, {LIVE_AGENTS} agents, 1 seed")
        left.set_ylim(0, HORIZON + 10)
        left.set_title(f"return over all planets, mean of {SEEDS} seeds")
        gravity = [physics(i, AGENTS)["gravity"] for i in range(AGENTS)]
        for (_name, run), line in zip(runs.items(), left.get_lines(), strict=False):
            last = run.records["returns"][:, -1].mean(0)
            middle.plot(gravity, last, "o-", markersize=3, color=line.get_color())
        middle.set(xlabel="gravity of the agent's planet", ylabel="return", title="return after the last round")
        for ax in (left, middle):
            ax.grid(axis="y")
        angle, turning = np.meshgrid(np.linspace(-0.2, 0.2, 101), np.linspace(-2, 2, 101))
        still = np.zeros_like(angle)
        push = probabilities(theta, np.stack([still, still, angle, turning], -1))[..., 1]
        shown = right.pcolormesh(angle, turning, push, cmap="RdBu", vmin=0, vmax=1, rasterized=True)
        right.set(xlabel="angle of the pole", ylabel="angular velocity", title="probability of pushing right, FedHSA")
        figure.colorbar(shown, ax=right)
        handles, labels = left.get_legend_handles_labels()
        title = rf"Cart poles on {AGENTS} planets: policy gradient, $H = {LOCAL_STEPS}$, $\eta = {STEP:g}$"
        figure.legend(handles, labels, loc="outside upper center", ncols=4, title=title)
    return figure


def animate(problem: fh.Problem, theta: np.ndarray, path: pathlib.Path, steps: int = 150) -> None:
    """Draws one episode on the last planet as an animation."""
    agent = fh.tree.to_device(fh.tree.take(problem.agents, -1), "float32")
    shaped = fh.tree.to_device(fh.tree.unravel_like(POLICY.start)(theta), "float32")
    seen = np.asarray(play(agent.world, agent.policy, shaped, jax.random.key(0), 1, steps).seen[0])
    figure = Figure(figsize=(4, 2.2))
    ax = figure.add_subplot(xlim=(-2.4, 2.4), ylim=(-0.4, 2.4), yticks=[], title="balanced on the heaviest planet")
    (cart,), (pole,) = ax.plot([], [], "s", markersize=14, color="0.3"), ax.plot([], [], color="#D55E00", linewidth=4)
    ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)

    def frame(t: int):
        x, _, angle, _ = seen[t]
        cart.set_data([x], [0.0])
        pole.set_data([x, x + 2 * np.sin(angle)], [0.0, 2 * np.cos(angle)])
        return cart, pole

    FuncAnimation(figure, frame, frames=range(0, steps, 3)).save(path, writer=PillowWriter(fps=17))


def main() -> None:
    """Learns, prints the results, and writes the figure and the animation to the current folder."""
    problem = make_problem()
    runs = simulated(problem)
    for name, run in runs.items():
        low, high = run.interval(quantity="mean_return")
        print(f"{name:10s} mean return {run.mean('mean_return')[-1]:.0f} of {HORIZON} [{low[-1]:.0f}, {high[-1]:.0f}]")
    live_runs = live()
    print(f"live       mean return {live_runs[1][-1]:.0f} after {LIVE_ROUNDS} rounds, from {live_runs[1][0]:.0f}")
    theta = fh.tree.ravel(fh.tree.take(runs["FedHSA"].theta, 0))
    plots.save(draw(runs, live_runs, theta), "learn_cart_pole.png")
    animate(problem, theta, pathlib.Path("learn_cart_pole.gif"))
    print("Figure: learn_cart_pole.png, animation: learn_cart_pole.gif")


if __name__ == "__main__":
    main()
