"""The drift-corrected methods, as their papers write them, in the sign of operators."""

import numpy as np

import fedhsa as fh
from contract import Method, World

STEP, H = 0.03, 4
LINE = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
"""The Metropolis weights of three agents in a row."""
UNEQUAL = (4, 1, 3)
SCHEDULE = fh.Polynomial(0.2, offset=3.0)


def constant(t):
    return STEP


def decaying(t):
    return 0.2 / (t + 3.0)


def scafflsa(world: World, eta=constant):
    """The shift is updated at the end of the round, by the drift that the round made."""
    M = world.num_agents
    theta_bar, path = world.theta, [world.theta]
    xi = [np.zeros_like(theta_bar) for _ in range(M)]
    for t in range(world.rounds):
        last = []
        for i in range(M):
            theta = theta_bar
            for o in world.observations[i][t * H : (t + 1) * H]:
                theta = theta + eta(t) * (world.G(i, theta, o) + xi[i])
            last.append(theta)
        theta_bar = sum(last) / M
        for i in range(M):
            xi[i] = xi[i] + (theta_bar - last[i]) / (eta(t) * H)
        path.append(theta_bar)
    return np.array(path)


def scaffold(world: World, option: int, server_step: float, eta=constant):
    """With gradients g = -G and the paper's signs throughout."""
    M = world.num_agents
    x, path = world.theta, [world.theta]
    c, c_i = np.zeros_like(x), [np.zeros_like(x) for _ in range(M)]
    for t in range(world.rounds):
        moves, changes = [], []
        for i in range(M):
            block = world.observations[i][t * H : (t + 1) * H]
            y = x
            for o in block:
                y = y - eta(t) * (-world.G(i, y, o) - c_i[i] + c)
            new = -world.G(i, x, block[0]) if option == 1 else c_i[i] - c + (x - y) / (H * eta(t))
            moves.append(y - x)
            changes.append(new - c_i[i])
            c_i[i] = new
        x = x + server_step / M * sum(moves)
        c = c + sum(changes) / M
        path.append(x)
    return np.array(path)


def one_exchange(world: World):
    """FedHSA's loop, with the anchors of the round before."""
    M = world.num_agents
    theta_bar, path = world.theta, [world.theta]
    before = [np.zeros_like(theta_bar) for _ in range(M)]
    for t in range(world.rounds):
        blocks = [world.observations[i][t * H : (t + 1) * H] for i in range(M)]
        anchors = [world.G(i, theta_bar, blocks[i][0]) for i in range(M)]
        deltas = []
        for i in range(M):
            theta = theta_bar
            for o in blocks[i]:
                theta = theta + STEP * (world.G(i, theta, o) + sum(before) / M - before[i])
            deltas.append(theta - theta_bar)
        theta_bar, before = theta_bar + 0.8 * sum(deltas) / M, anchors
        path.append(theta_bar)
    return np.array(path)


def loopless(world: World, probability: float, learn: float, eta=constant):
    """A step, then the coin; the coin of the next round is the one that falls after this step."""
    M = world.num_agents
    x = [world.theta for _ in range(M)]
    h = [np.zeros_like(world.theta) for _ in range(M)]
    path = [world.theta]
    for t in range(world.rounds):
        hat = [x[i] + eta(t) * (world.G(i, x[i], world.observations[i][t]) + h[i]) for i in range(M)]
        mean = sum(hat) / M
        x = [mean] * M if world.coin(t + 1, probability) else hat
        h = [h[i] + learn * probability / eta(t) * (x[i] - hat[i]) for i in range(M)]
        path.append(mean)
    return np.array(path)


def decentralised(world: World, probability: float, mixing: float):
    """As `loopless`, three agents in a row instead of a server."""
    M = world.num_agents
    x, h, path = [world.theta] * M, [np.zeros_like(world.theta)] * M, [world.theta]
    for t in range(world.rounds):
        hat = [x[i] + STEP * (world.G(i, x[i], world.observations[i][t]) + h[i]) for i in range(M)]
        near = [sum(LINE[i, j] * hat[j] for j in range(M)) for i in range(M)]
        x = [(1 - mixing) * a + mixing * b for a, b in zip(hat, near, strict=True)]
        x = x if world.coin(t + 1, probability) else hat
        h = [h[i] + probability / STEP * (x[i] - hat[i]) for i in range(M)]
        path.append(sum(hat) / M)
    return np.array(path)


def fed_lin(world: World):
    M, longest = world.num_agents, max(UNEQUAL)
    x, path = world.theta, [world.theta]
    for t in range(world.rounds):
        start = t * longest
        gradients = [-world.G(i, x, world.observations[i][start]) for i in range(M)]
        ends = []
        for i, tau in enumerate(UNEQUAL):
            y = x
            for step in range(tau):
                g = -world.G(i, y, world.observations[i][start + step])
                y = y - 4 * STEP / tau * (g - gradients[i] + sum(gradients) / M)
            ends.append(y)
        x = sum(ends) / M
        path.append(x)
    return np.array(path)


def ss_local_sgd(world: World):
    M = world.num_agents
    x, path = world.theta, [world.theta]
    anchors = []
    for t in range(world.rounds):
        blocks = [world.observations[i][t * H : (t + 1) * H] for i in range(M)]
        if t == 0 or world.coin(t, 0.5):
            anchors = [world.G(i, x, blocks[i][0]) for i in range(M)]
        ends = []
        for i in range(M):
            y = x
            for o in blocks[i]:
                y = y + STEP * (world.G(i, y, o) - anchors[i] + sum(anchors) / M)
            ends.append(y)
        x = sum(ends) / M
        path.append(x)
    return np.array(path)


def oracle_shift(world: World):
    M = world.num_agents
    shifts = -world.problem.mean_operators(world.problem.theta_star)
    theta_bar, path = world.theta, [world.theta]
    for t in range(world.rounds):
        ends = []
        for i in range(M):
            theta = theta_bar
            for o in world.observations[i][t * H : (t + 1) * H]:
                theta = theta + STEP * (world.G(i, theta, o) + shifts[i])
            ends.append(theta)
        theta_bar = sum(ends) / M
        path.append(theta_bar)
    return np.array(path)


ONE = ("quadratic",)

METHODS = {
    "SCAFFLSA": Method(fh.SCAFFLSA(STEP, H), scafflsa, lambda d: fh.Cost(1, d, d, H, H)),
    "SCAFFLSA, schedule": Method(
        fh.SCAFFLSA(SCHEDULE, H), lambda world: scafflsa(world, decaying), lambda d: fh.Cost(1, d, d, H, H), ONE
    ),
    "SCAFFOLD, option 1": Method(
        fh.SCAFFOLD(STEP, H, server_step=0.8, option=1),
        lambda world: scaffold(world, 1, 0.8),
        lambda d: fh.Cost(1, 2 * d, 2 * d, H, H),
    ),
    "SCAFFOLD, option 2": Method(
        fh.SCAFFOLD(STEP, H, server_step=0.8),
        lambda world: scaffold(world, 2, 0.8),
        lambda d: fh.Cost(1, 2 * d, 2 * d, H, H),
    ),
    "SCAFFOLD, schedule": Method(
        fh.SCAFFOLD(SCHEDULE, H),
        lambda world: scaffold(world, 2, 1.0, decaying),
        lambda d: fh.Cost(1, 2 * d, 2 * d, H, H),
        ONE,
    ),
    "OneExchangeFedHSA": Method(
        fh.OneExchangeFedHSA(STEP, H, server_step=0.8), one_exchange, lambda d: fh.Cost(1, 2 * d, 2 * d, H, H)
    ),
    "LooplessSA": Method(
        fh.LooplessSA(STEP, 0.25),
        lambda world: loopless(world, 0.25, 0.0),
        lambda d: fh.Cost(0.25, d / 4, d / 4, 1, 1),
    ),
    "Scaffnew": Method(
        fh.Scaffnew(STEP, 0.25),
        lambda world: loopless(world, 0.25, 1.0),
        lambda d: fh.Cost(0.25, d / 4, d / 4, 1, 1),
    ),
    "Scaffnew, schedule": Method(
        fh.Scaffnew(SCHEDULE, 0.5),
        lambda world: loopless(world, 0.5, 1.0, decaying),
        lambda d: fh.Cost(0.5, d / 2, d / 2, 1, 1),
        ONE,
    ),
    "DecentralisedScaffnew": Method(
        fh.DecentralisedScaffnew(STEP, 0.4, fh.graphs.Mixing(LINE), mixing=0.7),
        lambda world: decentralised(world, 0.4, 0.7),
        lambda d: fh.Cost(0.4, 0, 0.4 * 4 / 3 * d, 1, 1),
    ),
    "FedLin": Method(
        fh.FedLin(4 * STEP, UNEQUAL), fed_lin, lambda d: fh.Cost(2, 2 * d, 2 * d, max(UNEQUAL), sum(UNEQUAL) / 3)
    ),
    "SSLocalSGD": Method(fh.SSLocalSGD(STEP, H, 0.5), ss_local_sgd, lambda d: fh.Cost(1.5, 1.5 * d, 1.5 * d, H, H)),
    "OracleShift": Method(
        lambda problem: fh.OracleShift(STEP, H, problem.theta_star), oracle_shift, lambda d: fh.Cost(1, d, d, H, H)
    ),
}
