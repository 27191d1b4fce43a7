"""Methods for policies, on recorded episodes of softmax tables."""

import numpy as np

import fedhsa as fh
from cases import score
from contract import Method, World
from fedhsa.environments.rollouts import Episodes

STEP, DAMPING, RHO, INNER = 0.3, 0.05, 0.2, 3
LARGE, EPOCHS, KL_TARGET, DISTANCE_TARGET = 1.0, 3, 0.05, 0.3
"""FedKL takes large steps at a small price here: near the anchor the slope of the root magnifies rounding."""


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


def fed_kl(sigma: float, proximal: float):
    """Every gradient written out for softmax tables."""

    def chances(theta):
        weights = np.exp(theta.reshape(3, 2))
        return weights / weights.sum(1, keepdims=True)

    def divergences(old, new):
        """In every state."""
        return (chances(old) * np.log(chances(old) / chances(new))).sum(1)

    def mean_over_visits(o, per_state):
        return np.mean([per_state[o.seen[b, t]] for b, t in np.argwhere(o.alive)], axis=0)

    def gradient(theta, old, anchor, beta, sigma, o):
        steps, total = np.argwhere(o.alive), -proximal * (theta - anchor)
        far = divergences(anchor, theta)
        for b, t in steps:
            s, a = o.seen[b, t], o.action[b, t]
            ahead = sum(0.8**h * o.reward[b, h] * o.alive[b, h] for h in range(t, 5))
            ratio = chances(theta)[s, a] / chances(old)[s, a]
            ratio = ratio if 1e-8 < ratio < 10 else 0.0  # beyond the bounds it has no slope
            total = total + ratio * ahead * score(theta, s, a) / len(steps)
            for policy, weight in ((old, beta), (anchor, sigma / 2 / np.sqrt(far[s]) if far[s] > 1e-8 else 0.0)):
                slope = np.zeros((3, 2))
                slope[s] = chances(theta)[s] - chances(policy)[s]
                total = total - weight * slope.ravel() / len(steps)
        return total

    def adapted(penalty, distance, target, least):
        if distance < target / 1.1:
            penalty = penalty / 2
        elif distance > 1.1 * target:
            penalty = penalty * 2
        return min(max(penalty, least), 20.0)

    def run(world: World):
        theta, path = world.theta, [world.theta]
        penalties = [(1.0, sigma)] * world.num_agents
        for t in range(world.rounds):
            ends = []
            for i, seen in enumerate(world.observations):
                x, (beta, price) = theta, penalties[i]
                for o in seen[2 * t : 2 * t + 2]:
                    old = x
                    for _ in range(EPOCHS):
                        x = x + LARGE * gradient(x, old, theta, beta, price, o)
                    beta = adapted(beta, mean_over_visits(o, divergences(old, x)), KL_TARGET, 1e-8)
                    far = np.sqrt(np.maximum(divergences(theta, x), 1e-8))
                    price = adapted(price, mean_over_visits(o, far), DISTANCE_TARGET, sigma)
                ends.append(x)
                penalties[i] = (beta, price)
            theta = np.mean(ends, axis=0)
            path.append(theta)
        return path

    return run


def fed_kl_method(sigma: float, proximal: float) -> Method:
    method = fh.FedKL(LARGE, 2, EPOCHS, KL_TARGET, sigma, DISTANCE_TARGET, proximal=proximal)
    return Method(method, fed_kl(sigma, proximal), lambda d: fh.Cost(1, d, d, 2, 2 * EPOCHS), ("episodes",))


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
    "FedKL": fed_kl_method(sigma=0.002, proximal=0.0),
    "FedKL as FedProx": fed_kl_method(sigma=0.0, proximal=0.2),
}
