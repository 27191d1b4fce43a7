"""A first look at fedhsa: predict what two methods will do, run them, and compare."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="fedhsa quickstart")


@app.cell(hide_code=True)
def _():
    import marimo as mo

    return (mo,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # Quickstart

    Several agents look for one parameter together. Agent $i$ observes its own Markov chain $o_{i,t}$ and holds a
    noisy operator $G_i(\theta, o)$; its mean over the stationary distribution of the chain is $\bar G_i(\theta)$.
    The agents talk to a server only once in $H$ steps, and they want the root $\theta^\star$ of the average
    operator,

    $$\frac1M \sum_{i=1}^M \bar G_i(\theta^\star) = 0 .$$

    Stochastic gradient descent, TD learning and Q-learning are all of this form. This notebook predicts what two
    methods do on a small problem, then runs them, and compares the two.
    """)
    return


@app.cell
def _():
    import matplotlib.pyplot as plt  # Jupyter shows figures once this is imported
    import numpy as np

    import fedhsa as fh
    from fedhsa import plots

    return fh, np, plots, plt


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## A problem

    Ten agents have quadratic losses with different minimisers. Their gradients carry noise that is correlated in
    time: each noise is a first-order autoregression. The problem knows its root exactly, and it knows where each
    agent would go alone.
    """)
    return


@app.cell
def _(fh, np):
    problem = fh.problems.quadratic.random(num_agents=10, dim=4, b_level=3.0)
    print("the common root:    ", problem.theta_star.round(2))
    print("agent 0 alone:      ", problem.local_roots[0].round(2))
    spread = np.linalg.norm(problem.local_roots - problem.theta_star, axis=1)
    print(f"distance of the agents' own roots to the common one: {spread.min():.2f} to {spread.max():.2f}")
    return (problem,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Two methods

    Both methods take $H = 20$ local steps of size $\eta$ between two exchanges. `LocalSA` averages the agents'
    parameters at the end of a round. In the meantime each agent drifts towards its own root, and the average of
    these drifts is not zero. `FedHSA` asks every agent for its operator at the start of the round and corrects each
    local step by the difference to the average,

    $$\theta_i \leftarrow \theta_i + \eta \bigl( G_i(\theta_i, o_{i,\ell}) - G_i(\bar\theta, o_{i,0})
      + \tfrac1M \textstyle\sum_j G_j(\bar\theta, o_{j,0}) \bigr).$$

    ## Predict first

    For this problem the first two moments of the error are known in closed form. `theory.predict` computes them
    without drawing a single random number.
    """)
    return


@app.cell
def _(fh, problem):
    methods = {"FedHSA": fh.FedHSA(0.01, local_steps=20), "LocalSA": fh.LocalSA(0.01, local_steps=20)}
    predictions = {name: fh.theory.predict(problem, method) for name, method in methods.items()}
    predictions["LocalSA"]
    return methods, predictions


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    The long-run error has two parts: the squared bias, which no number of rounds and no number of agents removes,
    and the variance of the noise, which falls with the number of agents.
    """)
    return


@app.cell
def _(predictions):
    for _name, _p in predictions.items():
        print(f"{_name:8} floor {_p.floor:.2e} = squared bias {_p.bias @ _p.bias:.2e} + noise {_p.noise_variance:.2e}")
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Then run

    `simulate` compiles all rounds, agents and seeds into one program. Both methods see the same observations,
    because they have the same key.
    """)
    return


@app.cell
def _(fh, methods, problem):
    results = {name: fh.simulate(problem, method, rounds=100, seeds=16) for name, method in methods.items()}
    for _result in results.values():
        print(_result)
    return (results,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    The dashed curves are the predictions. They are not fitted: they were computed before the run.
    """)
    return


@app.cell
def _(plots, predictions, results):
    plots.curves(results, theory=predictions, width=5.5)
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## How many local steps?

    More local steps save exchanges. The bias of `LocalSA` grows with them, while `FedHSA` has none. A prediction
    takes milliseconds, so that a question like this one needs no runs. All points of this figure are exact.
    """)
    return


@app.cell
def _(fh, plots, plt, problem):
    local_steps = [1, 2, 5, 10, 20, 50, 100]
    floors = {
        _kind.__name__: [fh.theory.predict(problem, _kind(0.01, local_steps=_H)).floor for _H in local_steps]
        for _kind in (fh.FedHSA, fh.LocalSA)
    }
    with plots.style():
        figure, _ax = plt.subplots(figsize=(5.0, 2.8), layout="constrained")
        for _name, _floor in floors.items():
            _ax.loglog(local_steps, _floor, "o-", color=plots.COLOURS[_name], label=_name, markersize=3)
        _ax.set(xlabel="local steps $H$", ylabel="mean-square error in the long run")
        _ax.legend(frameon=False)
        plt.close(figure)
    figure
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Which setting reaches a target?

    `theory.choose` looks for the method, the step size and the number of local steps that bring the mean-square
    error below a target in the fewest rounds, and `verify` checks the choice by a simulation.
    """)
    return


@app.cell
def _(fh, problem):
    choice = fh.theory.choose(problem, target=1e-3, local_steps=(1, 5, 20), verify=True)
    choice
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Next

    - The notebook `own_problem` writes a new problem in ten lines.
    - The notebook `grid_worlds` does reinforcement learning in frozen lakes that differ from agent to agent.
    - `fedhsa lab` shows this problem with sliders.
    """)
    return


if __name__ == "__main__":
    app.run()
