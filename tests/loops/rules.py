"""Other local rules: batches, irregular gaps, no talk at all, variance reduction, momentum."""

import jax
import numpy as np

import fedhsa as fh
from contract import Method, World

STEP, H = 0.03, 4
GAPS = (2, 5, 3)
REFRESH, BETA, SIZE = 0.25, 0.3, 3
RECENTRING, REFINEMENTS, RANGE, SHRINK = (1, 3), 1, 0.5, 0.25
SAMPLES, BATCH, MAX_LEVEL = 24, 2, 2


def dissacc(world: World):
    theta, path = world.theta, [world.theta]
    for t in range(world.rounds):
        batch = range(t * H, (t + 1) * H)
        means = [
            np.mean([world.G(i, theta, world.observations[i][k]) for k in batch], axis=0)
            for i in range(world.num_agents)
        ]
        theta = theta + STEP * np.mean(means, axis=0)
        path.append(theta)
    return path


def gapped(world: World):
    """One clock for all; an average whenever it has passed the next of the times."""
    times = set(np.cumsum(GAPS * world.rounds))
    iterates, path = [world.theta] * world.num_agents, [world.theta]
    for k in range(sum(GAPS) * world.rounds):
        iterates = [x + STEP * world.G(i, x, world.observations[i][k]) for i, x in enumerate(iterates)]
        if k + 1 in times:
            iterates = [np.mean(iterates, axis=0)] * world.num_agents
        if (k + 1) % sum(GAPS) == 0:
            path.append(iterates[0])
    return path


def one_shot(world: World):
    iterates, path = [world.theta] * world.num_agents, [world.theta]
    for k in range(H * world.rounds):
        iterates = [x + STEP * world.G(i, x, world.observations[i][k]) for i, x in enumerate(iterates)]
        if (k + 1) % H == 0:
            path.append(np.mean(iterates, axis=0))
    return path


def local_svrg(world: World):
    theta, path = world.theta, [world.theta]
    y = g_bar = np.full_like(theta, np.nan)  # to be set in the first round
    for t in range(world.rounds):
        if t == 0 or world.coin(t, REFRESH):
            y = theta
            g_bar = np.mean([mean_operator(world, i, y) for i in range(world.num_agents)], axis=0)
        ends = []
        for i in range(world.num_agents):
            x = theta
            for o in world.observations[i][t * H : (t + 1) * H]:
                x = x + STEP * (world.G(i, x, o) - world.G(i, y, o) + g_bar)
            ends.append(x)
        theta = np.mean(ends, axis=0)
        path.append(theta)
    return path


def mc_sag(world: World):
    """With the average of the table formed anew at every step."""
    N = components(world.problem)
    theta, path = world.theta, [world.theta]
    h = np.zeros((world.num_agents, N, len(theta)))
    for t in range(world.rounds):
        ends = []
        for i in range(world.num_agents):
            x = theta
            for v in world.observations[i][t * H : (t + 1) * H]:
                h[i, v] = world.G(i, x, v)
                x = x + STEP * h[i].sum(0) / N
            ends.append(x)
        theta = np.mean(ends, axis=0)
        path.append(theta)
    return path


def multilevel(world: World):
    theta, path = world.theta, [world.theta]
    for t in range(world.rounds):
        ends = []
        for i in range(world.num_agents):
            words = np.asarray(jax.random.bits(world.agent_key(i, t), (SAMPLES,), dtype="uint32"))
            x, at, block = theta, 0, world.observations[i][t * SAMPLES : (t + 1) * SAMPLES]
            while at < SAMPLES:
                J = 33 - int(words[at]).bit_length()  # leading zeros of a 32-bit word, plus one
                fits = J <= MAX_LEVEL and at + 2**J * BATCH <= SAMPLES

                def g(j, x=x, at=at, i=i, block=block):
                    return np.mean([world.G(i, x, o) for o in block[at : at + 2**j * BATCH]], axis=0)

                x = x + STEP * (g(0) + 2**J * (g(J) - g(J - 1)) if fits else g(0))
                at += 2**J * BATCH if fits else BATCH
            ends.append(x)
        theta = np.mean(ends, axis=0)
        path.append(theta)
    return path


def momentum(world: World):
    theta, before, u, path = world.theta, world.theta, np.zeros_like(world.theta), [world.theta]
    for t in range(world.rounds):
        beta, ends = 1.0 if t == 0 else BETA, []
        for i in range(world.num_agents):
            x = theta
            for o in world.observations[i][t * H : (t + 1) * H]:
                g = world.G(i, x, o)
                x = x + STEP * (beta * g + (1 - beta) * (u + g - world.G(i, before, o)))
            ends.append(x)
        before, theta = theta, np.mean(ends, axis=0)
        u = (theta - before) / (STEP * H)
        path.append(theta)
    return path


def variance_reduced(world: World):
    """From the definition, written with gradients: the batch first, then steps that subtract the start's gradient."""
    theta, path, length = world.theta, [world.theta], SIZE + H
    for t in range(world.rounds):
        blocks = [seen[t * length : (t + 1) * length] for seen in world.observations]
        batch = np.mean([[world.G(i, theta, o) for o in block[:SIZE]] for i, block in enumerate(blocks)], axis=(0, 1))
        ends = []
        for i, block in enumerate(blocks):
            x = theta
            for o in block[SIZE:]:
                x = x + STEP * (world.G(i, x, o) - world.G(i, theta, o) + batch)
            ends.append(x)
        theta = np.mean(ends, axis=0)
        path.append(theta)
    return path


def extragradient(world: World):
    theta, path = world.theta, [world.theta]
    for t in range(world.rounds):
        ends = []
        for i in range(world.num_agents):
            x = theta
            for k in range(t * 2 * H, (t + 1) * 2 * H, 2):
                ahead = x + STEP * world.G(i, x, world.observations[i][k])
                x = x + STEP * world.G(i, ahead, world.observations[i][k + 1])
            ends.append(x)
        theta = theta + 0.8 * (np.mean(ends, axis=0) - theta)
        path.append(theta)
    return path


def personalised(world: World):
    own, path = [world.theta] * world.num_agents, [world.theta]
    for t in range(world.rounds):
        g = [world.G(i, x, world.observations[i][t]) for i, x in enumerate(own)]
        mixed = sum(g) / world.num_agents
        own = [x + STEP * BETA * g_i + STEP * (1 - BETA) * mixed for x, g_i in zip(own, g, strict=True)]
        path.append(np.mean(own, axis=0))
    return path


def mean_operator(world: World, i: int, theta: np.ndarray) -> np.ndarray:
    if world.problem.affine or not hasattr(world.problem.agents.source, "stationary"):
        return world.mean_operator(i, theta)
    law = world.problem.agents.source.stationary[i]
    return np.sum([p * world.G(i, theta, v) for v, p in enumerate(law)], axis=0)


def importance(world: World):
    theta, path = world.theta, [world.theta]
    for t in range(world.rounds):
        ends, counts = [], []
        for i in range(world.num_agents):
            x, seen = theta, np.zeros_like(theta)
            for o in world.observations[i][t * H : (t + 1) * H]:
                x = x + STEP * world.G(i, x, o)
                seen[o[0]] += 1
            ends.append(x)
            counts.append(seen)
        weights = (1 - STEP) ** -np.array(counts)
        theta = (weights * ends).sum(0) / weights.sum(0)
        path.append(theta)
    return path


def fed_dvr_q(world: World):
    """Epochs one after the other; observations are taken from the agents' streams as they are needed."""
    M, theta, path = world.num_agents, world.theta, [world.theta]
    streams, epoch = [iter(seen) for seen in world.observations], 0

    def batch(i):
        return [next(streams[i]) for _ in range(H)]

    def average(D, vectors):
        """What arrives on average, coded in eight levels, in the round that comes now."""
        spacing, total = 2 * D / 7, 0.0
        for i, x in enumerate(vectors):
            key = jax.random.fold_in(jax.random.fold_in(world.agent_key(i, len(path) - 1), 2**30), 0)
            with jax.enable_x64(True):
                u = np.asarray(jax.random.uniform(key, x.shape, "float64"))
            total = total + spacing * np.floor((np.clip(x, -D, D) + D) / spacing + u) - D
        return total / M

    while len(path) <= world.rounds:
        last = min(epoch, len(RECENTRING) - 1)
        n, D, y = RECENTRING[last], RANGE * SHRINK**last, theta
        path += [theta] * (n - 1)
        seen = [[o for _ in range(n) for o in batch(i)] for i in range(M)]
        g = average(D, [np.mean([world.G(i, y, o) for o in seen[i]], axis=0) for i in range(M)])
        path.append(theta)
        for _ in range(REFINEMENTS):
            replies = []
            for i in range(M):
                change = np.mean([world.G(i, theta, o) - world.G(i, y, o) for o in batch(i)], axis=0)
                replies.append(STEP * (change + g))
            theta = theta + average(D, replies)
            path.append(theta)
        epoch += 1
    return path[: world.rounds + 1]


def components(problem: fh.Problem) -> int:
    return problem.agents.source.transition.shape[-1]


def mc_sag_for(problem: fh.Problem) -> fh.AbstractAlgorithm:
    return fh.MCSAG(STEP, components(problem), H)


METHODS = {
    "DisSACC": Method(fh.DisSACC(STEP, H), dissacc, lambda d: fh.Cost(1, d, d, H, H)),
    "GappedSA": Method(fh.GappedSA(STEP, GAPS), gapped, lambda d: fh.Cost(3, 3 * d, 3 * d, 10, 10)),
    "OneShotAveraging": Method(fh.OneShotAveraging(STEP, H), one_shot, lambda d: fh.Cost(0, 0, 0, H, H)),
    "LocalSVRG": Method(
        fh.LocalSVRG(STEP, H, REFRESH),
        local_svrg,
        lambda d: fh.Cost(1 + REFRESH, (1 + REFRESH) * d, (1 + REFRESH) * d, H, 2 * H),
    ),
    "MCSAG": Method(mc_sag_for, mc_sag, lambda d: fh.Cost(1, d, d, H, H), ("finite-sum", "logistic")),
    "ImportanceAveraging": Method(
        fh.ImportanceAveraging(STEP, H), importance, lambda d: fh.Cost(1, d, 2 * d, H, H), ("q-learning",)
    ),
    "FedDVRQ": Method(
        fh.FedDVRQ(STEP, H, RECENTRING, REFINEMENTS, fh.codecs.Uniform(RANGE, 3), SHRINK),
        fed_dvr_q,
        # Of 6 rounds 4 communicate: 3 bits for each entry up, parameter and operator down.
        lambda d: fh.Cost(4 / 6, 8 / 6 * d, 4 / 6 * 3 * d / 64, H, 2 * H),
    ),
    "MultilevelSA": Method(
        fh.MultilevelSA(STEP, SAMPLES, BATCH, MAX_LEVEL), multilevel, lambda d: fh.Cost(1, d, d, SAMPLES, SAMPLES)
    ),
    "VarianceReducedSA": Method(
        fh.VarianceReducedSA(STEP, H, SIZE),
        variance_reduced,
        lambda d: fh.Cost(2, 2 * d, 2 * d, SIZE + H, SIZE + 2 * H),
    ),
    "ExtragradientSA": Method(
        fh.ExtragradientSA(STEP, H, server_step=0.8), extragradient, lambda d: fh.Cost(1, d, d, 2 * H, 2 * H)
    ),
    "PersonalisedSA": Method(
        lambda problem: fh.PersonalisedSA(STEP, BETA, problem.num_agents),
        personalised,
        lambda d: fh.Cost(1, d, d, 1, 1),
    ),
    "MomentumSA": Method(fh.MomentumSA(STEP, H, BETA), momentum, lambda d: fh.Cost(1, 2 * d, d, H, 2 * H)),
}
