"""Logistic regression in a loop of its own, and what it says of nonlinear federations in the long run.

`python -m theory.logistic_runs` in `tests/` simulates them anew and writes `logistic.json`: a minute on a GPU.
"""

import functools
import itertools
import json
import os
import pathlib
from typing import NamedTuple

import numpy as np

RECORDED = pathlib.Path(__file__).with_name("logistic.json")
N, DIM, REGULARISATION = 8, 3, 0.1
STAY = {"iid": 0.0, "fast": 0.0, "lazy": 0.7, "sticky": 0.9}
SEEDS = {1: 4096, 16: 4096, 256: 1024}
SETTINGS = [(0.02, 50), (0.05, 20), (0.1, 10), (0.1, 20), (0.2, 10), (0.2, 20), (0.5, 1), (0.5, 5), (0.5, 20)]


class Case(NamedTuple):
    M: int
    sampling: str
    method: str
    step_size: float
    H: int

    def __str__(self):
        return f"M={self.M} {self.sampling} {self.method}({self.step_size}, {self.H})"


CASES = [
    Case(M, sampling, method, *setting)
    for M, sampling, method, setting in itertools.product(SEEDS, STAY, ("FedHSA", "LocalSA"), SETTINGS)
]


def recorded():
    """By the name of a case: `mean` and `floor` of the error, with their standard errors."""
    return json.loads(RECORDED.read_text())


def arrays(M, stay):
    """Inputs, labels and kernels of `M` heterogeneous agents."""
    rng = np.random.default_rng(0)
    inputs, planes = rng.normal(size=(M, N, DIM)), rng.normal(size=(M, DIM))
    labels = np.where(np.einsum("mnd,md->mn", inputs, planes) + rng.logistic(size=(M, N)) > 0, 1.0, -1.0)
    P = rng.random((M, N, N))
    return inputs, labels, stay * np.eye(N) + (1 - stay) * P / P.sum(-1, keepdims=True)


def root_of(inputs, labels, pi):
    """By Newton's method."""
    theta = np.zeros(DIM)
    for _ in range(50):
        chance = 1 / (1 + np.exp(labels * (inputs @ theta)))
        value = np.einsum("mn,mnd->d", pi * chance * labels, inputs) / len(inputs) - REGULARISATION * theta
        slope = np.einsum("mn,mna,mnb->ab", pi * chance * (1 - chance), inputs, inputs) / len(inputs)
        theta = theta + np.linalg.solve(slope + REGULARISATION * np.eye(DIM), value)
    return theta


def stationary(P):
    return np.linalg.matrix_power(P, 4096)[:, 0]


def main():
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    @functools.partial(jax.jit, static_argnames="seeds")
    def simulate(inputs, labels, first, P, root, eta, H, kappa, burn_in, rounds, key, seeds):
        M = len(inputs)
        agents, cumulative = jnp.arange(M), jnp.cumsum(P, -1)[..., :-1]

        def operator(theta, s):
            x, y = inputs[agents, s], labels[agents, s]
            return (jax.nn.sigmoid(-y * (x * theta).sum(-1)) * y)[..., None] * x - REGULARISATION * theta

        def drawn(key, cumulative):
            return (jax.random.uniform(key, (seeds, M, 1)) > cumulative).sum(-1)

        def round(t, carry):
            theta, s, mean, square = carry
            start = jnp.broadcast_to(theta[:, None], (seeds, M, DIM))
            g = operator(start, s)
            correction = kappa * (g.mean(1, keepdims=True) - g)

            def step(k, carry):
                theta, s = carry
                own = jax.random.fold_in(jax.random.fold_in(key, t), k)
                return theta + eta * (operator(theta, s) + correction), drawn(own, cumulative[agents, s])

            local, s = jax.lax.fori_loop(0, H, step, (start, s))
            theta = local.mean(1)
            e, weight = theta - root, (t >= burn_in) / rounds
            return theta, s, mean + weight * e, square + weight * (e**2).sum(-1)

        s = drawn(jax.random.fold_in(key, 10**9), jnp.cumsum(first, -1)[None, :, :-1])
        nothing = jnp.zeros((seeds, DIM)), jnp.zeros(seeds)
        carry = (jnp.broadcast_to(root, (seeds, DIM)), s, *nothing)
        return jax.lax.fori_loop(0, burn_in + rounds, round, carry)[2:]

    found = {}
    for number, case in enumerate(CASES):
        inputs, labels, P = arrays(case.M, STAY[case.sampling])
        pi = stationary(P)
        root, kappa = root_of(inputs, labels, pi), float(case.method == "FedHSA")
        if case.sampling == "iid":
            P = np.repeat(pi[:, None], N, axis=1)
        burn_in, seeds = int(40 / case.step_size / case.H) + 10, SEEDS[case.M]
        run = simulate(
            inputs, labels, pi, P, root, case.step_size, case.H, kappa, burn_in, 2 * burn_in,
            jax.random.key(number), seeds=seeds,
        )  # fmt: skip
        (mean, mean_se), (floor, floor_se) = ((np.mean(x, 0), np.std(x, 0, ddof=1) / seeds**0.5) for x in run)
        values = {"mean": mean, "mean_se": mean_se, "floor": floor, "floor_se": floor_se}
        found[str(case)] = {name: [float(f"{x:.6g}") for x in np.ravel(value)] for name, value in values.items()}
    lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    path = pathlib.Path(os.environ.get("OUT", RECORDED.parent)) / RECORDED.name
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
