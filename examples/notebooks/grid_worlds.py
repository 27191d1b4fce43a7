"""Reinforcement learning in grid worlds: agents on different frozen lakes learn one table together."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="Grid worlds")


@app.cell(hide_code=True)
def _():
    import marimo as mo

    return (mo,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # Grid worlds

    Six agents cross six frozen lakes. The holes are in different places, and the ice is more slippery on some lakes
    than on others. The agents learn one value function together without sending a single transition. This notebook
    looks at what the common answer means, where `LocalSA` ends and why `FedHSA` does not end there, and when it is
    better to learn alone. The lakes are Gymnasium's: `pip install "fedhsa[gym]"`.
    """)
    return


@app.cell
def _():
    import matplotlib.pyplot as plt  # noqa: F401  # Jupyter shows figures once this is imported
    import numpy as np

    import fedhsa as fh
    from fedhsa import plots
    from fedhsa.environments import make
    from fedhsa.problems import q_learning, td

    return fh, make, np, plots, q_learning, td


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Six worlds

    All agents follow the same policy: down or right, each with probability one half. The value $V_i(s)$ of a cell
    is the expected discounted reward of agent $i$ from there. A `Model` knows the transition probabilities, so that
    these values are the solution of a linear system.
    """)
    return


@app.cell
def _(make, np):
    lakes = make("frozen-lake", {"num_agents": 6, "layout": "own", "slipperiness": 1 / 3})
    policy = np.tile([0.0, 0.5, 0.5, 0.0], (16, 1))  # left, down, right, up
    values = lakes.values(policy)
    print("value of the start for each agent:", values[:, 0].round(3))
    return lakes, policy, values


@app.cell
def _(lakes, plots, values):
    _names = [f"agent {_i}" for _i in range(6)]
    plots.value_map(
        lakes,
        dict(zip(_names, values, strict=True)),
        agent={_name: _i for _i, _name in enumerate(_names)},
        columns=3,
    )
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## The common answer

    TD(0) with a table has the mean operators $\bar G_i(\theta) = D_i (r_i + \gamma P_i \theta - \theta)$, where
    $D_i$ holds the frequencies with which agent $i$ visits the cells. The root of their average is **not** the
    average of the six value functions: an agent counts in a cell as often as it visits the cell, and an agent with
    a hole there does not count.
    """)
    return


@app.cell
def _(lakes, make, np, plots, policy, td, values):
    problem = td.from_model(lakes, policy)

    def on_grid(theta):
        found = np.zeros(lakes.num_states)
        found[lakes.decision_states] = theta
        return found

    # The common values belong to no single lake, so that their maps show no holes.
    ice = make("frozen-lake", {"num_agents": 1, "layout": "random", "frozen": 1.0})
    plots.value_map(ice, {"mean of the values": values.mean(0), "root": on_grid(problem.theta_star)})
    return ice, on_grid, problem


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Where the methods go

    Between two exchanges each agent takes $H = 200$ steps of size $\eta = 0.05$. With $A_i$ the matrix of agent
    $i$'s mean operator and $F_i = I + \eta A_i$, one round of `LocalSA` without noise is the affine map

    $$e \mapsto \frac1M \sum_i F_i^H e + \frac{\eta}{M} \sum_i \sum_{k < H} F_i^k \, \bar G_i(\theta^\star)$$

    of the error $e = \theta - \theta^\star$. Its fixed point is not zero. A round of `FedHSA` has no constant term,
    because the correction replaces every $\bar G_i(\theta^\star)$ by the average, which is zero.
    """)
    return


@app.cell
def _(fh, np, problem):
    step, H = 0.05, 200
    limit = fh.theory.exact.limit(problem, fh.LocalSA(step, H)) - problem.theta_star

    A, b = problem.affine_parts()  # the same fixed point, written out
    F = np.eye(problem.dim) + step * A
    S = sum(np.linalg.matrix_power(F, _k) for _k in range(H))
    drift = step * (S @ (A @ problem.theta_star - b)[..., None])[..., 0].mean(0)
    by_hand = np.linalg.solve(np.eye(problem.dim) - np.linalg.matrix_power(F, H).mean(0), drift)
    print(
        f"distance of LocalSA's limit to the root: {np.linalg.norm(limit):.4f}, by hand {np.linalg.norm(by_hand):.4f}"
    )
    return H, limit, step


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    Now both methods run on trajectories, with noise. The average over the rounds after the hundredth removes most
    of the noise and leaves the bias.
    """)
    return


@app.cell
def _(H, fh, limit, np, problem, step):
    learned = {}
    for _method in (fh.FedHSA(step, H), fh.LocalSA(step, H)):
        _result = fh.simulate(problem, fh.Averaged(_method, burn_in=100), rounds=400, seeds=8, every=400)
        _name = type(_method).__name__
        learned[_name] = _result.theta.mean(0) - problem.theta_star
        _along = (_result.theta - problem.theta_star) @ limit / np.linalg.norm(limit)
        print(f"{_name:8} along LocalSA's predicted bias: {_along.mean():+.4f}")
    return (learned,)


@app.cell
def _(ice, learned, limit, on_grid, plots):
    plots.value_map(
        ice,
        {
            "FedHSA, simulated": on_grid(learned["FedHSA"]),
            "LocalSA, simulated": on_grid(learned["LocalSA"]),
            "LocalSA, exact without noise": on_grid(limit),
        },
        label="value minus root",
        columns=3,
        signed=True,
    )
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    `LocalSA` misses most in the upper right corner, which few agents visit.

    ## From values to actions

    Q-learning looks for the best actions. Its operator has a maximum in it and is not affine; `problem.theta_star`
    is the fixed point of the Bellman operators averaged with the agents' visits. The common table gives one policy
    for all agents. How good is this policy for each of them?
    """)
    return


@app.cell
def _(lakes, np, q_learning):
    control = q_learning.from_model(lakes)
    table = np.zeros((lakes.num_states, lakes.num_actions))
    table[lakes.decision_states] = control.theta_star.reshape(-1, lakes.num_actions)
    print("own lake known:", lakes.returns(lakes.greedy(lakes.optimal())).round(2))
    print("common table:  ", lakes.returns(lakes.greedy(table)).round(2))
    return (table,)


@app.cell
def _(lakes, plots, table):
    _own = lakes.optimal()
    plots.value_map(
        lakes,
        {"agent 5, its own best actions": _own[5].max(-1), "agent 5, common table": table.max(-1)},
        {"agent 5, its own best actions": lakes.greedy(_own), "agent 5, common table": lakes.greedy(table)},
        agent=5,
    )
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    The first row is the return of each agent that knows its own lake, the second its return with the common table.
    These lakes differ on purpose. A common table pays off where the worlds are alike, or where experience is short.

    `fedhsa lab grid-worlds` shows all this with sliders.
    """)
    return


if __name__ == "__main__":
    app.run()
