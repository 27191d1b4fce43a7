"""An inverse problem by alternating minimisation: laboratories estimate one object under unknown lights.

Frame n of a laboratory is a matrix Y = x v^T + noise: the object x under the light v, and neither is known. From a
guess x, alternating minimisation of |Y - x v^T|^2 + a (|x|^2 + |v|^2) solves for the light, then again for the object,

    v = Y^T x / (|x|^2 + a),    T(x) = Y v / (|v|^2 + a),

a map that contracts near its fixed point. The laboratories look for the fixed point of the average of their maps, the
root of mean_i E[T_i(x)] - x. Frames come in the order of a Markov chain, and each laboratory distorts the object in its
own way. Run `python examples/inverse_problem.py`: the figure is written to the current folder.
"""

import numpy as np

import fedhsa as fh
from fedhsa import plots

LABORATORIES, FRAMES, PIXELS, LIGHTS, REGULARISATION = 10, 20, 12, 6, 0.3


class Laboratory(fh.AbstractAgent):
    """G(x, n) = T_n(x) - x for the current frame n of the chain."""

    source: fh.AbstractSource
    frames: np.ndarray

    def operator(self, theta, o, /):
        Y = self.frames[o]
        light = Y.T @ theta / (theta @ theta + REGULARISATION)
        return Y @ light / (light @ light + REGULARISATION) - theta


def make_problem(rng: np.random.Generator) -> tuple[fh.Problem, np.ndarray]:
    """Returns the laboratories and the object: a bump that each sees in its own light, with its own distortion."""
    true = np.exp(-(np.linspace(-2, 2, PIXELS) ** 2)) * np.sqrt(PIXELS) / 2
    seen = true + 0.8 * rng.normal(size=(LABORATORIES, PIXELS))
    lights = rng.uniform(0.2, 1.2, size=(LABORATORIES, 1)) * rng.normal(size=(LABORATORIES, LIGHTS))
    noise = 0.2 * rng.normal(size=(LABORATORIES, FRAMES, PIXELS, LIGHTS))
    frames = np.einsum("mp,ml->mpl", seen, lights)[:, None] + noise
    kernels = 0.8 * np.eye(FRAMES) + 0.2 * rng.dirichlet(np.ones(FRAMES), size=(LABORATORIES, FRAMES))
    laboratories = Laboratory(fh.sources.FiniteChain(kernels), frames)
    return fh.Problem(laboratories, like=np.ones(PIXELS)), true


def main() -> None:
    """Prints the map's contraction factor and the errors of both methods; draws the errors."""
    problem, true = make_problem(np.random.default_rng(1))
    contraction = abs(np.linalg.eigvals(problem.jacobians(problem.theta_star).mean(0) + np.eye(PIXELS))).max()
    print(f"the average map contracts by {contraction:.2f} at its fixed point")

    def likeness(x):
        return x @ true / np.linalg.norm(x) / np.linalg.norm(true)

    print(f"likeness of the fixed point to the object: {likeness(problem.theta_star):.3f}")
    algorithms = fh.FedHSA(0.05, local_steps=20), fh.LocalSA(0.05, local_steps=20)
    results = {
        type(a).__name__: fh.simulate(problem, a, rounds=100, seeds=16, theta=np.ones(PIXELS)) for a in algorithms
    }
    for name, result in results.items():
        print(f"{name:8s} error {result.error[:, 50:].mean():.2e}")
    title = r"Alternating minimisation: $M = 10$ laboratories, $H = 20$, $\eta = 0.05$"
    plots.save(plots.curves(results, title=title, width=4.4), "inverse_problem")


if __name__ == "__main__":
    main()
