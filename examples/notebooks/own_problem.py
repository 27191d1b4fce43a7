"""Your own problem: clinics fit one line for their long waiting times, and no patient's record leaves its clinic."""

# pyright: reportInvalidTypeForm=false
# A cell takes the modules of other cells as arguments, so that types from them are variables to a checker.

import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="Your own problem")


@app.cell(hide_code=True)
def _():
    import marimo as mo

    return (mo,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # Your own problem

    Ten clinics want to know how long the *long* waits are when many patients come. Each has its own patients, in an
    order that is not random: a busy hour follows a busy hour. This notebook writes the problem down as an operator,
    checks it, predicts what two methods do, and runs them.

    ## From a question to an operator

    A line $x^\top \theta$, with $x = (1, \text{load})$, is the $\tau$-*expectile* of the waits $y$ if it minimises
    the asymmetric squares

    $$\tfrac12 \, w \, (y - x^\top \theta)^2, \qquad w = \tau \text{ above the line, } 1 - \tau \text{ below it.}$$

    For $\tau = 0.9$ a wait above the line counts nine times as much as one below. The negative gradient is the
    operator,

    $$G_i(\theta, o) = w \, (y_o - x_o^\top \theta) \, x_o .$$

    Updates *add* the operator, so a loss enters with its negative gradient.
    """)
    return


@app.cell
def _():
    import jax.numpy as jnp
    import matplotlib.pyplot as plt  # Jupyter shows figures once this is imported
    import numpy as np

    import fedhsa as fh
    from fedhsa import plots

    return fh, jnp, np, plots, plt


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    An agent is a class with a source of observations, arrays, and the operator of *one* agent for *one* parameter and
    *one* observation. The package maps it over agents and seeds.
    """)
    return


@app.cell
def _(fh, jnp, np):
    LEVEL = 0.9

    class Expectile(fh.AbstractAgent):
        source: fh.AbstractSource
        inputs: np.ndarray
        waits: np.ndarray

        def operator(self, theta, o, /):
            x = self.inputs[o]
            residual = self.waits[o] - x @ theta
            return jnp.where(residual > 0, LEVEL, 1 - LEVEL) * residual * x

    return (Expectile,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## The data

    Here the clinics are drawn at random. Each has its own line. Its patients come in the order of a Markov chain that
    stays with the same kind of patient at least half of the time. All arrays have the clinics as their first axis.
    """)
    return


@app.cell
def _(Expectile, fh, np):
    CLINICS, PATIENTS = 10, 12
    rng = np.random.default_rng(0)
    load = rng.uniform(-1, 1, size=(CLINICS, PATIENTS))
    inputs = np.stack([np.ones_like(load), load], axis=-1)
    lines = np.array([3.0, 1.0]) + rng.normal(size=(CLINICS, 2))
    waits = np.einsum("mnd,md->mn", inputs, lines) + rng.exponential(0.3, size=load.shape)
    kernels = 0.5 * np.eye(PATIENTS) + 0.5 * rng.dirichlet(np.ones(PATIENTS), size=(CLINICS, PATIENTS))

    problem = fh.Problem(Expectile(fh.sources.FiniteChain(kernels), inputs, waits), like=np.zeros(2))
    print(f"{problem.num_agents} agents, {problem.dim} parameters")
    return load, problem, waits


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## The root

    The operator is not affine, so `Problem` finds the root by Newton's method and checks it. The mean operator at
    the root is zero up to rounding. The clinics' own lines are far from the common one: these agents are
    heterogeneous.
    """)
    return


@app.cell
def _(np, problem):
    print("common line:", problem.theta_star.round(3))
    print("mean operator below 1e-12 there:", bool(np.abs(problem.mean_operator(problem.theta_star)).max() < 1e-12))
    print("own lines of three clinics:", *problem.local_roots[:3].round(2))
    return


@app.cell
def _(load, np, plots, plt, problem, waits):
    with plots.style():
        figure, _ax = plt.subplots(figsize=(4.5, 2.8), layout="constrained")
        _at = np.array([-1.0, 1.0])
        _ax.scatter(load, waits, s=2, color="0.7", label="patients")
        for _i, (_a, _b) in enumerate(problem.local_roots):
            _ax.plot(_at, _a + _b * _at, color="0.55", linewidth=0.5, label="line of one clinic" if _i == 0 else None)
        _a, _b = problem.theta_star
        _ax.plot(_at, _a + _b * _at, color=plots.COLOURS["FedHSA"], linewidth=2, label="common line, the root")
        _ax.set(xlabel="load", ylabel="waiting time")
        _ax.legend(frameon=False)
        plt.close(figure)
    figure
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Predict and run

    With 60 local steps per round, `theory.predict` linearises the operators and accounts for the noise, for its
    correlation in time and for the curvature. For operators that are not affine the prediction is approximate; it
    would carry a warning if it might be off by more than 10 %.
    """)
    return


@app.cell
def _(fh, problem):
    methods = {"FedHSA": fh.FedHSA(0.01, local_steps=60), "LocalSA": fh.LocalSA(0.01, local_steps=60)}
    predictions = {name: fh.theory.predict(problem, method) for name, method in methods.items()}
    results = {name: fh.simulate(problem, method, rounds=150, seeds=16) for name, method in methods.items()}
    for _name in methods:
        _late = results[_name].error[:, 100:].mean()
        print(f"{_name:8} predicted floor {predictions[_name].floor:.2e}, simulated after round 100: {_late:.2e}")
    return predictions, results


@app.cell
def _(plots, predictions, results):
    plots.curves(results, theory={name: p.floor for name, p in predictions.items()}, width=5.5)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## The same problem on the command line

    A function in a file that returns a `Problem` is a problem for every command. `fedhsa new problem Waiting`
    writes such a file, with a test that compares the operator with a plain loop:

    ```console
    $ fedhsa new problem Waiting
    $ fedhsa run waiting.py:build --num-agents 10
    $ fedhsa compare waiting.py:build --algorithm FedHSA SCAFFLSA LocalSA
    ```

    Tables of data become agents with `fedhsa.problems.streams.from_dataframe`; no class is needed for least squares.
    """)
    return


if __name__ == "__main__":
    app.run()
