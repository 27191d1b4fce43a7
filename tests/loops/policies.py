"""Methods for policies, on recorded episodes of softmax tables."""

import numpy as np

import fedhsa as fh
from cases import score
from contract import Method, World
from fedhsa.environments.rollouts import Episodes

STEP, DAMPING, RHO, INNER = 0.3, 0.05, 0.2, 3


def fisher(theta: np.ndarray, o: Episodes) -> np.ndarray:
    """The mean of the outer squares of the scores, over all actions that were taken."""
    scores = np.array([score(theta, o.seen[b, t], o.action[b, t]) for b, t in np.argwhere(o.alive)])
    return scores.T @ scores / len(scores)


def fed_npg(world: World):
    theta, path = world.theta, [world.theta]
    for t in range(world.rounds):
        seen = [own[t] for own in world.observations]
        F = np.mean([fisher(theta, o) for o in seen], axis=0)
        g = np.mean([world.G(i, theta, o) for i, o in enumerate(seen)], axis=0)
        theta = theta + STEP * np.linalg.solve(F + DAMPING * np.eye(6), g)
        path.append(theta)
    return path


def admm(inner: int):
    def run(world: World):
        M, theta, path = world.num_agents, world.theta, [world.theta]
        y, multipliers = np.zeros(6), [np.zeros(6)] * M
        for t in range(world.rounds):
            g = [world.G(i, theta, world.observations[i][t]) for i in range(M)]
            F = [fisher(theta, world.observations[i][t]) + DAMPING * np.eye(6) for i in range(M)]
            for _ in range(inner):
                own = [np.linalg.solve(F[i] + RHO * np.eye(6), g[i] - multipliers[i] + RHO * y) for i in range(M)]
                y = np.mean([own[i] + multipliers[i] / RHO for i in range(M)], axis=0)
                multipliers = [multipliers[i] + RHO * (own[i] - y) for i in range(M)]
            theta = theta + STEP * y
            path.append(theta)
        return path

    return run


METHODS = {
    "FedNPG": Method(fh.FedNPG(STEP, DAMPING), fed_npg, lambda d: fh.Cost(1, d, d * (d + 1), 1, 1), ("episodes",)),
    "FedNPGADMM": Method(
        fh.FedNPGADMM(STEP, RHO, damping=DAMPING), admm(1), lambda d: fh.Cost(1, 2 * d, d, 1, 1), ("episodes",)
    ),
    "FedNPGADMM, three iterations": Method(
        fh.FedNPGADMM(STEP, RHO, INNER, DAMPING),
        admm(INNER),
        lambda d: fh.Cost(INNER, (1 + INNER) * d, INNER * d, 1, 1),
        ("episodes",),
    ),
}
