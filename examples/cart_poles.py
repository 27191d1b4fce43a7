"""Cart poles with different gravity and pole lengths, live in Gymnasium: agents for `fedhsa deploy`.

    fedhsa deploy memory --agent examples/cart_poles.py:build --dim 16 --step-size 0.2 --rounds 200
    fedhsa deploy demo --agent examples/cart_poles.py:build --dim 16 --step-size 0.2 --rounds 3

Every agent balances its own pole by the same simple rule. Together the agents learn the discounted value function of
this rule, which measures how long the pole stays up on average.
"""

import pathlib
import tempfile

import numpy as np

from fedhsa import deploy
from fedhsa.environments.features import Fourier
from fedhsa.environments.gym import GymStream
from fedhsa.problems.experience import TDAgent

FEATURES = Fourier([-2.4, -3.0, -0.21, -3.0], [2.4, 3.0, 0.21, 3.0], order=1)
DISCOUNT = 0.9


def policy(seen: np.ndarray) -> np.ndarray:
    """Pushes more often towards the side to which the pole leans."""
    right = 1 / (1 + np.exp(-20 * seen[..., 2]))
    return np.stack([1 - right, right], axis=-1)


def physics(number: int, num_agents: int) -> dict[str, float]:
    """Returns the physics, from a light short pole on a small planet to a long pole on a large planet."""
    part = number / max(1, num_agents - 1)
    return {"gravity": 4.0 + 20.0 * part, "length": 0.2 + 0.8 * part}


def build(context: deploy.AgentContext) -> deploy.Live:
    """Returns the agent of this node and the environment that it observes."""
    own = physics(context.number, context.num_agents)
    stream = GymStream("CartPole-v1", features=FEATURES, policy=policy, discount=DISCOUNT, num_envs=8, physics=own)
    return deploy.Live(TDAgent(), stream)


def main() -> None:
    """Runs `FedHSA` and `LocalSA` in this process; prints the learned value of the start of an episode."""
    start = FEATURES(np.zeros(4))
    for algorithm in ("LocalSA", "FedHSA"):
        plan = deploy.Plan(
            num_agents=3, dim=16, agent=f"{__file__}:build", algorithm=algorithm, step_size=0.2, local_steps=10
        )
        with tempfile.TemporaryDirectory() as folder:
            server = deploy.in_memory(plan, pathlib.Path(folder))
            server.run(40)
            theta = np.asarray(server.progress.server.theta)[0]
        print(f"{algorithm:8s} value of an upright pole {start @ theta:.2f} of at most {1 / (1 - DISCOUNT):.0f}")


if __name__ == "__main__":
    main()
