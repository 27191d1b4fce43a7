"""Several devices: run in a process of its own, where the host pretends to have four."""

import subprocess
import sys

import pytest

SCRIPT = """
import jax
jax.config.update("jax_num_cpu_devices", 4)
import numpy as np
import fedhsa as fh
from fedhsa import tree
from fedhsa.engine import placement

assert len(jax.devices()) == 4
problem = fh.problems.td.random(num_agents=6, num_states=5, dim=3)
for seeds, shape in ((4, (1, 4)), (2, (2, 2)), (3, (1, 3)), (1, (3, 1)), (8, (1, 4))):
    mesh = placement.make_mesh(6, seeds, jax.devices())
    assert mesh.devices.shape == shape, (seeds, mesh.devices.shape)
# Over agents, over both, over seeds: compiling takes all the time, so each with one of the two methods.
for seeds, algorithm in ((1, fh.FedHSA(0.05, 3)), (2, fh.FedHSA(0.05, 3)), (4, fh.LocalSA(0.05, 3))):
    many = fh.simulate(problem, algorithm, rounds=20, seeds=seeds)
    one = fh.simulate(problem, algorithm, rounds=20, seeds=seeds, devices=jax.devices()[:1])
    np.testing.assert_allclose(many.error, one.error, rtol=1e-12)
# What all agents share is on every device.
tree.SHARED_BYTES = 0
alike = fh.problems.td.random(num_agents=6, num_states=5, dim=3, heterogeneity=0.0)
runs = [fh.simulate(alike, fh.FedHSA(0.05, 3), rounds=20, devices=d) for d in (jax.devices(), jax.devices()[:1])]
np.testing.assert_allclose(runs[0].error, runs[1].error, rtol=1e-12)
assert "4 x cpu" in many.settings["device"]
print("sharded runs agree")
"""


@pytest.mark.slow
def test_agents_and_seeds_spread_over_devices_give_the_same_numbers():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "sharded runs agree" in done.stdout
