"""Server, graph, data and output wrappers around the paper's methods."""

import jax
import numpy as np

import fedhsa as fh
import naive
from contract import Method, World

STEP, H = 0.03, 4
LOCAL, CORRECTED = fh.LocalSA(STEP, H), fh.FedHSA(STEP, H)
WEIGHTS = np.array([0.5, 0.2, 0.3])
LINE = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
"""The Metropolis weights of three agents in a row."""


def deltas(world: World, t: int, thetas: list, weights: np.ndarray, corrected: bool = False) -> list:
    """What agents that stand at `thetas` reply in round t; agent i's correction averages with row i of `weights`."""
    M, out = world.num_agents, []
    first = [world.G(i, thetas[i], world.observations[i][t * H]) for i in range(M)]
    for i in range(M):
        correction = sum(weights[i, j] * first[j] for j in range(M)) - first[i] if corrected else 0.0
        theta = thetas[i]
        for o in world.observations[i][t * H : (t + 1) * H]:
            theta = theta + STEP * (world.G(i, theta, o) + correction)
        out.append(theta - thetas[i])
    return out


def with_server(world: World, finish, weights=None, corrected: bool = False) -> np.ndarray:
    """`finish(theta, moved)` says where the server goes that would have moved."""
    M, path = world.num_agents, [world.theta]
    weights = np.full(M, 1 / M) if weights is None else weights
    for t in range(world.rounds):
        replies = deltas(world, t, [path[-1]] * M, np.tile(weights, (M, 1)), corrected=corrected)
        path.append(finish(path[-1], path[-1] + weights @ np.array(replies)))
    return np.array(path)


def to_ball(theta, moved, radius=0.8):
    return moved if np.linalg.norm(moved) <= radius else radius * moved / np.linalg.norm(moved)


def to_box(theta, moved):
    return np.minimum(np.maximum(moved, -0.3), [0.2, 0.4, 0.6, 0.8])


def with_momentum(world: World, beta: float = 0.6, corrected: bool = False) -> np.ndarray:
    velocity = [np.zeros_like(world.theta)]

    def finish(theta, moved):
        velocity[0] = beta * velocity[0] + moved - theta
        return theta + velocity[0]

    return with_server(world, finish, corrected=corrected)


def metropolis(links: np.ndarray) -> np.ndarray:
    M, W = len(links), np.zeros(links.shape)
    for i in range(M):
        for j in range(M):
            if i != j and links[i, j]:
                W[i, j] = 1 / (1 + max(sum(links[i]), sum(links[j])))
        W[i, i] = 1 - sum(W[i])
    return W


def random_links(world: World, t: int, probability: float) -> np.ndarray:
    key = jax.random.fold_in(world.round_key(t), 2**31 - 20)
    with jax.enable_x64(True):
        numbers = np.asarray(jax.random.uniform(key, (world.num_agents,) * 2, dtype="float64"))
    links = np.zeros(numbers.shape, dtype=bool)
    for i in range(world.num_agents):
        for j in range(i + 1, world.num_agents):
            links[i, j] = links[j, i] = numbers[i, j] < probability
    return links


def without_server(world: World, weights_of, combine: str, corrected: bool = False) -> np.ndarray:
    M, thetas = world.num_agents, [world.theta] * world.num_agents
    path = [world.theta]
    for t in range(world.rounds):
        W = weights_of(t)
        replies = deltas(world, t, thetas, W, corrected=corrected)
        if combine == "last":
            thetas = [sum(W[i, j] * (thetas[j] + replies[j]) for j in range(M)) for i in range(M)]
        else:
            thetas = [sum(W[i, j] * thetas[j] for j in range(M)) + replies[i] for i in range(M)]
        path.append(np.mean(thetas, axis=0))
    return np.array(path)


def thinned(world: World, every: int = 3) -> np.ndarray:
    observations = [seen[::every] for seen in world.observations]
    options = {"step_size": STEP, "local_steps": H, "server_step": 1.0, "rounds": world.rounds}
    return naive.fed_hsa(world.G, observations, world.theta, **options)


def averaged(path: np.ndarray, weights_at) -> np.ndarray:
    """The weighted mean of all rounds up to each, `weights_at(t)` for rounds 1 to t."""
    means = [np.average(path[1 : t + 1], axis=0, weights=weights_at(t)) for t in range(1, len(path))]
    return np.array([path[0], *means])


def replayed(world: World) -> np.ndarray:
    """The corrected method on lists of observations picked, round by round, from the six that are new."""
    picked = []
    for i, seen in enumerate(world.observations):
        keys = (jax.random.fold_in(world.agent_key(i, t), 2**30 + 5) for t in range(world.rounds))
        with jax.enable_x64(True):
            places = [6 * t + np.asarray(jax.random.randint(key, (H,), 0, 6)) for t, key in enumerate(keys)]
        picked.append([seen[place] for place in np.concatenate(places)])
    return plain(world._replace(observations=picked), corrected=True)


def after_burn_in(t: int, burn_in: int = 3) -> list:
    return [float(s > burn_in) if t > burn_in else float(s == t) for s in range(1, t + 1)]


def extrapolated(world: World, factors=(1, 2), corrected: bool = False) -> np.ndarray:
    run = naive.fed_hsa if corrected else naive.local_sa
    options = {"local_steps": H, "server_step": 1.0, "rounds": world.rounds}
    total = np.zeros((world.rounds + 1, len(world.theta)))
    for f in factors:
        h = np.prod([g / (g - f) for g in factors if g != f])
        total = total + h * run(world.G, world.observations, world.theta, step_size=f * STEP, **options)
    return total


def plain(world: World, corrected: bool = False) -> np.ndarray:
    return with_server(world, lambda theta, moved: moved, corrected=corrected)


def rounded(world: World, weights: np.ndarray, bits: int) -> np.ndarray:
    """Corrected local steps whose every reply, times its weight, is rounded to so many bits behind the point."""
    M, path = world.num_agents, [world.theta]

    def mean(replies):
        return sum(np.rint(M * w * x * 2**bits) for w, x in zip(weights, replies, strict=True)) / 2**bits / M

    for t in range(world.rounds):
        blocks = [seen[t * H : (t + 1) * H] for seen in world.observations]
        first, replies = [world.G(i, path[-1], blocks[i][0]) for i in range(M)], []
        for i in range(M):
            theta = path[-1]
            for o in blocks[i]:
                theta = theta + STEP * (world.G(i, theta, o) + mean(first) - first[i])
            replies.append(theta - path[-1])
        path.append(path[-1] + mean(replies))
    return np.array(path)


def one(d: int) -> fh.Cost:
    return fh.Cost(1, d, d, H, H)


def two(d: int) -> fh.Cost:
    return fh.Cost(2, 2 * d, 2 * d, H, H)


BOX = (-0.3, [0.2, 0.4, 0.6, 0.8])
BOTH, TD, QUADRATIC = ("td", "quadratic"), ("td",), ("quadratic",)

METHODS = {
    "Weighted(LocalSA)": Method(
        fh.Weighted(LOCAL, 10 * WEIGHTS), lambda w: with_server(w, lambda old, new: new, WEIGHTS), one, TD
    ),
    "Weighted(FedHSA)": Method(
        fh.Weighted(CORRECTED, WEIGHTS), lambda w: with_server(w, lambda old, new: new, WEIGHTS, True), two, QUADRATIC
    ),
    "FixedPoint(Weighted(FedHSA))": Method(
        fh.FixedPoint(fh.Weighted(CORRECTED, 10 * WEIGHTS), bits=16), lambda w: rounded(w, WEIGHTS, 16), two, TD
    ),
    "Projected(LocalSA), ball": Method(fh.Projected(LOCAL, radius=0.8), lambda w: with_server(w, to_ball), one, BOTH),
    "Projected(FedHSA), box": Method(
        fh.Projected(CORRECTED, box=BOX), lambda w: with_server(w, to_box, corrected=True), two, TD
    ),
    "ServerMomentum(LocalSA)": Method(fh.ServerMomentum(LOCAL, 0.6), with_momentum, one, QUADRATIC),
    "ServerMomentum(FedHSA)": Method(
        fh.ServerMomentum(CORRECTED, 0.6), lambda w: with_momentum(w, corrected=True), two, TD
    ),
    "Gossip(LocalSA), combine first": Method(
        fh.Gossip(LOCAL, fh.graphs.Grid(1, 3), combine="first"),
        lambda w: without_server(w, lambda t: LINE, "first"),
        lambda d: fh.Cost(1, 0, 4 / 3 * d, H, H),
        BOTH,
    ),
    "Gossip(FedHSA)": Method(
        fh.Gossip(CORRECTED, fh.graphs.Mixing(LINE)),
        lambda w: without_server(w, lambda t: LINE, "last", corrected=True),
        lambda d: fh.Cost(2, 0, 4 / 3 * 2 * d, H, H),
        BOTH,
    ),
    "Gossip(FedHSA), varying graph": Method(
        fh.Gossip(CORRECTED, fh.graphs.RandomGraph(3, 0.5)),
        lambda w: without_server(w, lambda t: metropolis(random_links(w, t, 0.5)), "last", corrected=True),
        lambda d: fh.Cost(2, 0, 2 * d, H, H),
        TD,
    ),
    "Thinned(FedHSA)": Method(fh.Thinned(CORRECTED, 3), thinned, lambda d: two(d)._replace(samples=3 * H), BOTH),
    "Replayed(FedHSA)": Method(fh.Replayed(CORRECTED, 6), replayed, lambda d: two(d)._replace(samples=6), BOTH),
    "Averaged(LocalSA)": Method(
        fh.Averaged(LOCAL, burn_in=3), lambda w: averaged(plain(w), after_burn_in), one, QUADRATIC
    ),
    "Averaged(FedHSA)": Method(fh.Averaged(CORRECTED), lambda w: averaged(plain(w, True), np.ones), two, TD),
    "GeometricAverage(FedHSA)": Method(
        fh.GeometricAverage(CORRECTED, 0.7),
        lambda w: averaged(plain(w, True), lambda t: 0.7 ** -np.arange(1.0, t + 1)),
        two,
        TD,
    ),
    "RichardsonRomberg(LocalSA)": Method(
        fh.RichardsonRomberg(LOCAL), extrapolated, lambda d: fh.Cost(1, 2 * d, 2 * d, H, 2 * H), BOTH
    ),
    "RichardsonRomberg(FedHSA), three steps": Method(
        fh.RichardsonRomberg(CORRECTED, (1, 2, 0.5)),
        lambda w: extrapolated(w, (1, 2, 0.5), corrected=True),
        lambda d: fh.Cost(2, 6 * d, 6 * d, H, 3 * H),
        TD,
    ),
}
