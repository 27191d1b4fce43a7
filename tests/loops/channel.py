"""Channels and partial participation, around Local SA and FedHSA."""

import math

import jax
import numpy as np

import fedhsa as fh
from contract import Method, World

STEP, H = 0.03, 4
COMPRESSED, DELAYED, OVER_THE_AIR, LOSSY, PARTIAL = range(5)


def key_of(key, stage, exchange=0):
    """What a stage of the channel draws from, in one exchange of the round with this key."""
    return jax.random.fold_in(jax.random.fold_in(key, 2**30 + stage), exchange)


def drawn(draw, *arguments, **options):
    """Random numbers in double precision."""
    with jax.enable_x64(True):
        return np.asarray(draw(*arguments, **options))


def uniform(world, agent, t, stage, exchange=0):
    return float(drawn(jax.random.uniform, key_of(world.agent_key(agent, t), stage, exchange), dtype="float64"))


def average(t, exchange, sent):
    """The mean over all agents; `sent[i]` is None where agent i has not answered."""
    return sum(sent) / len(sent)


def average_of_those_present(t, exchange, sent):
    present = [x for x in sent if x is not None]
    return sum(present) / len(present) if present else 0.0


def everything(i, t, exchange, x):
    return x


def local_sa(world: World, reply=everything, mean=average):
    """Local SA whose displacement x of agent i arrives as `reply(i, t, 0, x)`."""
    theta, path = world.theta.copy(), [world.theta.copy()]
    for t in range(world.rounds):
        sent = []
        for i in range(world.num_agents):
            x = theta.copy()
            for step in range(H):
                x = x + STEP * world.G(i, x, world.observations[i][t * H + step])
            sent.append(reply(i, t, 0, x - theta))
        theta = theta + mean(t, 0, sent)
        path.append(theta.copy())
    return np.array(path)


def fed_hsa(world: World, reply=everything, mean=average):
    """FedHSA whose anchor of agent i arrives as `reply(i, t, 0, g)` and whose displacement as `reply(i, t, 1, x)`."""
    M, theta, path = world.num_agents, world.theta.copy(), [world.theta.copy()]
    for t in range(world.rounds):
        anchors = [world.G(i, theta, world.observations[i][t * H]) for i in range(M)]
        g_bar = mean(t, 0, [reply(i, t, 0, anchors[i]) for i in range(M)])
        sent = []
        for i in range(M):
            x = theta.copy()
            for step in range(H):
                x = x + STEP * (world.G(i, x, world.observations[i][t * H + step]) + g_bar - anchors[i])
            sent.append(reply(i, t, 1, x - theta))
        theta = theta + mean(t, 1, sent)
        path.append(theta.copy())
    return np.array(path)


def top_half(key, x):
    largest = np.argsort(-np.abs(x), kind="stable")[: len(x) // 2]
    return np.where(np.isin(np.arange(len(x)), largest), x, 0.0)


def random_half(key, x):
    return np.where(drawn(jax.random.permutation, key, len(x)) < len(x) // 2, 2 * x, 0.0)


def sign(key, x):
    return np.abs(x).mean() * np.where(x < 0, -1.0, 1.0)


def three_levels(key, x):
    norm = np.sqrt(x @ x)
    return norm / 3 * np.sign(x) * np.floor(3 * np.abs(x) / norm + drawn(jax.random.uniform, key, x.shape, "float64"))


def compressed(loop, codec, feedback, pace=1.0):
    def run(world: World):
        kept = {}

        def reply(i, t, exchange, x):
            key = jax.random.fold_in(key_of(world.agent_key(i, t), COMPRESSED, exchange), 0)
            memory = kept.get((i, exchange), np.zeros_like(x))
            if feedback == "none":
                return codec(key, x)
            if feedback == "error":
                h = codec(key, memory + x)
                kept[i, exchange] = memory + x - h
                return h
            h = codec(key, x - memory)
            kept[i, exchange] = memory + pace * h
            return memory + h

        return loop(world, reply)

    return run


def lossy(loop, loss, scale):
    def run(world: World):
        def reply(i, t, exchange, x):
            return 0 * x if uniform(world, i, t, LOSSY, exchange) < loss else scale * x

        return loop(world, reply)

    return run


def over_the_air(loop, gain_std, noise_std):
    def run(world: World):
        variance = np.log(1 + gain_std**2)

        def normal(key, shape=()):
            return drawn(jax.random.normal, key, shape, "float64")

        def reply(i, t, exchange, x):
            z = normal(key_of(world.agent_key(i, t), OVER_THE_AIR, exchange))
            return np.exp(np.sqrt(variance) * z - variance / 2) * x

        def mean(t, exchange, sent):
            key = jax.random.fold_in(key_of(world.round_key(t), OVER_THE_AIR, exchange), 0)
            noise = noise_std * normal(key, (1, len(sent[0])))[0]
            return (sum(sent) + noise) / len(sent)

        return loop(world, reply, mean)

    return run


def delayed(max_delay, threshold=np.inf, random=True):
    def run(world: World):
        theta, before = world.theta.copy(), []
        for t in range(world.rounds):
            displacements = []
            for i in range(world.num_agents):
                x = theta.copy()
                for step in range(H):
                    x = x + STEP * world.G(i, x, world.observations[i][t * H + step])
                displacements.append(x - theta)
            before.append((theta, displacements))
            arrived = 0.0
            for i in range(world.num_agents):
                key = key_of(world.agent_key(i, t), DELAYED)
                tau = int(drawn(jax.random.randint, key, (), 1, max_delay + 1)) if random else max_delay
                if tau <= t and np.linalg.norm(theta - before[t - tau][0]) <= threshold:
                    arrived = arrived + before[t - tau][1][i] / world.num_agents
            theta = theta + arrived
        return np.array([*(theta for theta, _ in before), theta])

    return run


def a3c(max_delay, radius):
    """An actor and a critic with steps of their own: late operators move both, and the critic stays in a ball."""

    def run(world: World):
        path, computed = [world.theta], []
        for t in range(world.rounds):
            computed.append([world.G(i, path[t], world.observations[i][t]) for i in range(world.num_agents)])
            move = np.zeros_like(world.theta)
            for i in range(world.num_agents):
                tau = int(drawn(jax.random.randint, key_of(world.agent_key(i, t), DELAYED), (), 1, max_delay + 1))
                move = move + (computed[t - tau][i] if tau <= t else 0.0) / world.num_agents
            actor, critic = path[t][:1] + 0.1 / (t + 1) ** 0.6 * move[:1], path[t][1:] + 0.2 * move[1:]
            path.append(np.concatenate([actor, critic * min(1, radius / np.linalg.norm(critic))]))
        return np.array(path)

    return run


def partial(loop, there, mean=average_of_those_present, all_answer=None):
    """`there(world, i, t)`; in exchange `all_answer` everyone counts."""

    def run(world: World):
        def reply(i, t, exchange, x):
            return x if exchange == all_answer or there(world, i, t) else None

        return loop(world, reply, mean)

    return run


def two_of_three(world, i, t):
    return drawn(jax.random.permutation, key_of(world.round_key(t), PARTIAL), 3)[i] < 2


def half_of_the_time(world, i, t):
    return uniform(world, i, t, PARTIAL) < 0.5


def comes_and_goes(world, i, t):
    draws = [uniform(world, i, s, PARTIAL) for s in range(t + 1)]
    there = draws[0] < 0.4 / (0.4 + 0.2)
    for draw in draws[1:]:
        there = draw >= 0.2 if there else draw < 0.4
    return there


CHANCES = (0.3, 0.6, 0.9)


def by_chances(world, i, t):
    return uniform(world, i, t, PARTIAL) < CHANCES[i]


def horvitz_thompson(t, exchange, sent):
    return sum(x / p for x, p in zip(sent, CHANCES, strict=True) if x is not None) / len(sent)


def usual(d):
    return fh.Cost(2, 2 * d, 2 * d, H, H)


def once(d):
    return fh.Cost(1, d, d, H, H)


def coded(exchanges, bits):
    """The cost with as many bits for each vector up."""
    return lambda d: fh.Cost(exchanges, exchanges * d, exchanges * bits(d) / 64, H, H)


def part(share, cost):
    return lambda d: fh.Cost(*(share * x for x in cost(d)))


LOCAL, HSA = fh.LocalSA(STEP, H), fh.FedHSA(STEP, H)
TOP, RANDOM = fh.codecs.TopK(0.5), fh.codecs.RandK(0.5)
CHAINS, NOISY = ("td",), ("quadratic",)

METHODS = {
    "FedHSA, top-k, error feedback": Method(
        fh.Compressed(HSA, TOP),
        compressed(fed_hsa, top_half, "error"),
        coded(2, lambda d: (d // 2) * (64 + math.ceil(math.log2(d)))),
    ),
    "FedHSA, sign of differences": Method(
        fh.Compressed(HSA, fh.codecs.Sign(), "difference"),
        compressed(fed_hsa, sign, "difference"),
        coded(2, lambda d: 64 + d),
        NOISY,
    ),
    "FedHSA, quantised": Method(
        fh.Compressed(HSA, fh.codecs.Quantised(3)),
        compressed(fed_hsa, three_levels, "none"),
        coded(2, lambda d: 64 + 3 * d),
        CHAINS,
    ),
    "LocalSA, random differences": Method(
        fh.Compressed(LOCAL, RANDOM, "difference"),
        compressed(local_sa, random_half, "difference", pace=0.5),
        coded(1, lambda d: (d // 2) * 64),
        CHAINS,
    ),
    "LocalSA, losses": Method(fh.Lossy(LOCAL, 0.3, rescale=False), lossy(local_sa, 0.3, 1.0), once, CHAINS),
    "FedHSA, losses": Method(fh.Lossy(HSA, 0.3), lossy(fed_hsa, 0.3, 1 / 0.7), usual, NOISY),
    "LocalSA, over the air": Method(fh.OverTheAir(LOCAL, 0.3, 0.2), over_the_air(local_sa, 0.3, 0.2), once, NOISY),
    "FedHSA, over the air": Method(fh.OverTheAir(HSA, 0.3, 0.2), over_the_air(fed_hsa, 0.3, 0.2), usual, CHAINS),
    "LocalSA, random delays": Method(fh.Delayed(LOCAL, 3), delayed(3), once, CHAINS),
    "LocalSA, adaptive to its delay": Method(
        fh.Delayed(LOCAL, 2, threshold=0.2, random=False), delayed(2, 0.2, random=False), once, NOISY
    ),
    "A3C": Method(
        lambda problem: fh.Delayed(
            fh.Projected(
                fh.SynchronisedSA(fh.PerBlock((fh.Polynomial(0.1, power=0.6), 0.2), (1, problem.dim - 1))),
                radius=0.9,
                part=(1, problem.dim),
            ),
            max_delay=3,
        ),
        a3c(3, 0.9),
        lambda d: fh.Cost(1, d, d, 1, 1),
        CHAINS,
    ),
    "LocalSA, two of three agents": Method(
        fh.Partial(LOCAL, fh.sampling.UniformSampling(2, num_agents=3)),
        partial(local_sa, two_of_three),
        part(2 / 3, once),
        CHAINS,
    ),
    "FedHSA, half of the agents": Method(
        fh.Partial(HSA, fh.sampling.Bernoulli(0.5)), partial(fed_hsa, half_of_the_time), part(0.5, usual), CHAINS
    ),
    "FedHSA, half of the agents after all gave their operators": Method(
        fh.Partial(HSA, fh.sampling.Bernoulli(0.5), all_answer_first=True),
        partial(fed_hsa, half_of_the_time, all_answer=0),
        lambda d: fh.Cost(1.5, 1.5 * d, 1.5 * d, 1 + 0.5 * (H - 1), 1 + 0.5 * (H - 1)),
        NOISY,
    ),
    "LocalSA, agents that come and go": Method(
        fh.Partial(LOCAL, fh.sampling.Availability(up=0.4, down=0.2)),
        partial(local_sa, comes_and_goes),
        part(0.4 / (0.4 + 0.2), once),
        NOISY,
    ),
    "LocalSA, unequal chances": Method(
        fh.Partial(LOCAL, fh.sampling.WeightedSampling(CHANCES)),
        partial(local_sa, by_chances, horvitz_thompson),
        part(0.6, once),
        NOISY,
    ),
}
