"""The paper's methods."""

import fedhsa as fh
import naive
from contract import Method, World

STEP, H = 0.03, 4


def fed_hsa(world: World):
    options = {"step_size": STEP, "local_steps": H, "server_step": 0.8, "rounds": world.rounds}
    return naive.fed_hsa(world.G, world.observations, world.theta, **options)


def local_sa(world: World):
    options = {"step_size": STEP, "local_steps": H, "server_step": 1.3, "rounds": world.rounds}
    return naive.local_sa(world.G, world.observations, world.theta, **options)


def synchronised_sa(world: World):
    options = {"step_size": STEP, "local_steps": 1, "server_step": 1.0, "rounds": world.rounds}
    return naive.local_sa(world.G, world.observations, world.theta, **options)


METHODS = {
    "FedHSA": Method(fh.FedHSA(STEP, H, server_step=0.8), fed_hsa, lambda d: fh.Cost(2, 2 * d, 2 * d, H, H)),
    "LocalSA": Method(fh.LocalSA(STEP, H, server_step=1.3), local_sa, lambda d: fh.Cost(1, d, d, H, H)),
    "SynchronisedSA": Method(fh.SynchronisedSA(STEP), synchronised_sa, lambda d: fh.Cost(1, d, d, 1, 1)),
}
