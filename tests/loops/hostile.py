"""Hostile agents and servers that do not trust them, around Local SA and FedHSA."""

import math

import jax
import numpy as np

import fedhsa as fh
from contract import Method, World
from loops.channel import (
    CHAINS,
    HSA,
    LOCAL,
    NOISY,
    drawn,
    fed_hsa,
    half_of_the_time,
    key_of,
    local_sa,
    once,
    part,
    usual,
)

ATTACK = -1
"""Where the attack's random numbers are, counted from the first stage of the channel."""


def median(rows):
    found = []
    for column in np.transpose(rows):
        ordered = sorted(column)
        n = len(ordered)
        found.append(ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2)
    return np.array(found)


def trimmed_mean(share):
    def rule(rows):
        cut = math.floor(share * len(rows) + 1e-9)
        return np.array([np.mean(sorted(column)[cut : len(rows) - cut]) for column in np.transpose(rows)])

    return rule


def median_of_means(buckets):
    return lambda rows: median([np.mean(rows[b::buckets], axis=0) for b in range(min(buckets, len(rows)))])


def geometric_median(iterations):
    def rule(rows):
        z = median(rows)
        for _ in range(iterations):
            at = [x for x in rows if np.array_equal(x, z)]
            others = [x for x in rows if not np.array_equal(x, z)]
            if not others:
                return z
            pulls = [1 / np.sqrt(np.sum((x - z) ** 2)) for x in others]
            mean = sum(p * x for p, x in zip(pulls, others, strict=True)) / sum(pulls)
            force = np.linalg.norm(sum(p * (x - z) for p, x in zip(pulls, others, strict=True)))
            if force > len(at):
                z = z + (1 - len(at) / force) * (mean - z)
        return z

    return rule


def concentration_filter(sigma, batch, share, delta):
    def rule(rows):
        M = len(rows)

        def kept(radius):
            dense = [x for x in rows if sum(np.linalg.norm(x - y) <= radius for y in rows) > M / 2]
            if not dense:
                return []
            mean = np.mean(dense, axis=0)
            centre = min(dense, key=lambda x: np.linalg.norm(x - mean))
            return [x for x in rows if np.linalg.norm(x - centre) <= radius]

        good = kept(2 * sigma * np.sqrt(2 * np.log(2 * M / delta) / batch))
        good = good if len(good) >= (1 - share) * M else kept(2 * sigma)
        return np.mean(good, axis=0) if good else np.zeros_like(rows[0])

    return rule


def defended(loop, rules, hostile=(), attacks=(None, None), there=None):
    """The loop in which the `hostile` reply as `attacks[exchange](key, x)` says and the server takes `rules`."""

    def run(world: World):
        operator = [0.0]  # the average of the last round in which there was one

        def reply(i, t, exchange, x):
            if there is not None and not there(world, i, t):
                return None
            if i in hostile and attacks[exchange] is not None:
                key = jax.random.fold_in(key_of(world.agent_key(i, t), ATTACK, exchange), 0)
                return attacks[exchange](key, x)
            return x

        def mean(t, exchange, sent):
            rows = [x for x in sent if x is not None and np.isfinite(x).all()]
            if rows and exchange == 0:
                operator[0] = rules[0](rows)
            if exchange == 0 and loop is fed_hsa:
                return operator[0]
            return rules[exchange](rows) if rows else 0.0

        return loop(world, reply, mean)

    return run


def normal(key, x):
    return drawn(jax.random.normal, key, x.shape, "float64")


INNER = 6
"""Where the number of inner steps is drawn from, counted from the first stage of the channel."""
BATCHES, MAX_INNER, STEP = 3, 4, 0.04


def fed_pg_br(rule, hostile=()):
    """The `hostile` flip what they send; agent 0 takes the steps of the second exchange."""

    def run(world: World):
        M, theta, path = world.num_agents, world.theta, [world.theta]
        for t in range(world.rounds):
            first, start = t * (BATCHES + MAX_INNER), theta
            sent = []
            for i in range(M):
                mean = np.mean([world.G(i, start, world.observations[i][first + k]) for k in range(BATCHES)], axis=0)
                sent.append(-2.5 * mean if i in hostile else mean)
            mu = rule(sent)
            draw = float(
                drawn(jax.random.uniform, jax.random.fold_in(world.round_key(t), 2**30 + INNER), dtype="float64")
            )
            N = 1
            while N < MAX_INNER and 1 - draw < (BATCHES / (BATCHES + 1)) ** N:
                N += 1
            for n in range(N):
                o = world.observations[0][first + BATCHES + n]
                correction = mu - world.G(0, start, o) if mu.any() else 0.0
                theta = theta + STEP * (world.G(0, theta, o) + correction)
            path.append(theta)
        return np.array(path)

    return run


def leading(d):
    """What agent 0 pays."""
    return fh.Cost(2, 2 * d, 2 * d, BATCHES + MAX_INNER, BATCHES + 2 * MAX_INNER)


FLIP, NOISE = fh.attacks.SignFlip(2.5), fh.attacks.Noise(2.0, relative=True)
OPERATORS, DELTAS = fh.rules.ConcentrationFilter(0.4, 2), fh.rules.ConcentrationFilter(0.02, share=0.0, delta=0.1)

METHODS = {
    "FedPGBR": Method(fh.FedPGBR(STEP, BATCHES, MAX_INNER), fed_pg_br(lambda rows: np.mean(rows, axis=0)), leading),
    "FedPGBR, filter, one agent flips signs": Method(
        fh.Byzantine(fh.FedPGBR(STEP, BATCHES, MAX_INNER, rule=fh.rules.ConcentrationFilter(0.5, 3)), (2,), FLIP),
        fed_pg_br(concentration_filter(0.5, 3, 0.3, 0.6), (2,)),
        leading,
        NOISY,
    ),
    "FedHSA, median, one agent flips signs": Method(
        fh.Byzantine(fh.Robust(HSA, fh.rules.CoordinateMedian()), 1 / 3, FLIP),
        defended(fed_hsa, (median, median), (2,), 2 * (lambda key, x: -2.5 * x,)),
        usual,
    ),
    "LocalSA, trimmed mean, one agent adds noise": Method(
        fh.Byzantine(fh.Robust(LOCAL, fh.rules.TrimmedMean(0.4)), (0,), NOISE),
        defended(local_sa, (trimmed_mean(0.4),), (0,), (lambda key, x: x + 2 * (x.max() - x.min()) * normal(key, x),)),
        once,
        NOISY,
    ),
    "FedHSA, geometric median of those present, no numbers": Method(
        fh.Partial(
            fh.Byzantine(
                fh.Robust(HSA, fh.rules.GeometricMedian(20)), (1,), (fh.attacks.NotFinite(), fh.attacks.Shift(0.3))
            ),
            fh.sampling.Bernoulli(0.5),
        ),
        defended(
            fed_hsa,
            2 * (geometric_median(20),),
            (1,),
            (lambda key, x: np.full_like(x, np.nan), lambda key, x: x + 0.3),
            half_of_the_time,
        ),
        part(0.5, usual),
        CHAINS,
    ),
    "FedHSA, filters, random displacements": Method(
        fh.Byzantine(fh.Robust(HSA, (OPERATORS, DELTAS)), (1,), (None, fh.attacks.Random(0.5))),
        defended(
            fed_hsa,
            (concentration_filter(0.4, 2, 0.3, 0.6), concentration_filter(0.02, 1, 0.0, 0.1)),
            (1,),
            (None, lambda key, x: 0.5 * normal(key, x)),
        ),
        usual,
        CHAINS,
    ),
}
