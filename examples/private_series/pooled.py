"""Prints a run's distance from the fit to all data in one place, which requires access to all files.

Run `python examples/private_series/pooled.py FOLDER ...` with the output folders of runs.
"""

import csv
import pathlib
import sys

import numpy as np

DATA = pathlib.Path(__file__).parent / "data"


def pairs(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the constant and the last three values of each hour, and the value; independent of `site.py`."""
    with open(path, newline="") as file:
        scaled = [(float(row["value"]) - 20.0) / 5.0 for row in csv.DictReader(file)]
    hours = range(3, len(scaled))
    return np.array([[1.0, scaled[t - 1], scaled[t - 2], scaled[t - 3]] for t in hours]), np.array(scaled[3:])


def fit() -> np.ndarray:
    """Returns the least-squares fit over all files, each with the same total weight."""
    rooms = [pairs(path) for path in sorted(DATA.glob("*.csv"))]
    inputs = np.concatenate([x / np.sqrt(len(x)) for x, _ in rooms])
    targets = np.concatenate([y / np.sqrt(len(y)) for _, y in rooms])
    return np.linalg.lstsq(inputs, targets, rcond=None)[0]


def main(folders: list[str]) -> None:
    """Prints the fit and the result of each run."""
    pooled = fit()
    print("all data in one place:", pooled.round(3))
    for folder in folders:
        with np.load(pathlib.Path(folder, "curves.npz")) as arrays:
            (found,) = next(arrays[name] for name in arrays.files if name.endswith("/theta"))
        print(f"{folder}: {found.round(3)}, {np.linalg.norm(found - pooled):.4f} away")


if __name__ == "__main__":
    main(sys.argv[1:])
