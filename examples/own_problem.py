"""Your own problem: clinics fit one line for their long waiting times together, without sharing a patient.

Each clinic sees its patients in the order of a Markov chain, and would find a different line alone. The operator is not
affine: it is the gradient of asymmetric squares, which finds expectiles (smooth relatives of quantiles).
Run `python examples/own_problem.py`: the figure is written to the current folder.
"""

import jax.numpy as jnp
import numpy as np

import fedhsa as fh
from fedhsa import plots

CLINICS, PATIENTS, LEVEL = 20, 30, 0.9


class Expectile(fh.AbstractAgent):
    """One clinic: a wait above the line pulls it with weight 0.9, a wait below with weight 0.1."""

    source: fh.AbstractSource
    inputs: np.ndarray
    waits: np.ndarray

    def operator(self, theta, o, /):
        x = self.inputs[o]
        residual = self.waits[o] - x @ theta
        return jnp.where(residual > 0, LEVEL, 1 - LEVEL) * residual * x


def make_problem(rng: np.random.Generator) -> fh.Problem:
    """Returns clinics with different lines and chains; at least half of the patients resemble the previous patient."""
    load = rng.uniform(-1, 1, size=(CLINICS, PATIENTS))
    inputs = np.stack([np.ones_like(load), load], axis=-1)
    lines = np.array([3.0, 1.0]) + rng.normal(size=(CLINICS, 2))
    waits = np.einsum("mnd,md->mn", inputs, lines) + rng.exponential(0.3, size=load.shape)
    kernels = 0.5 * np.eye(PATIENTS) + 0.5 * rng.dirichlet(np.ones(PATIENTS), size=(CLINICS, PATIENTS))
    return fh.Problem(Expectile(fh.sources.FiniteChain(kernels), inputs, waits), like=np.zeros(2))


def main() -> None:
    """Prints both results and draws them."""
    problem = make_problem(np.random.default_rng(0))
    algorithms = fh.FedHSA(0.02, local_steps=20), fh.LocalSA(0.02, local_steps=20)
    results = {type(a).__name__: fh.simulate(problem, a, rounds=300, seeds=16) for a in algorithms}
    print(f"the common line: {problem.theta_star[0]:.3f} + {problem.theta_star[1]:.3f} load")
    for result in results.values():
        print(result)
    title = r"Waiting times in 20 clinics: $H = 20$, $\eta = 0.02$"
    plots.save(plots.curves(results, title=title, width=4.4), "own_problem")


if __name__ == "__main__":
    main()
