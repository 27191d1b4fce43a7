"""Prints a run's distance from the fit to all files in one place, and its forecast errors at every counter.

Run `python examples/pedestrians/judge.py DATA RUN ...` with the folder of the files and the output folders of runs.
"""

import pathlib
import runpy
import sys

import numpy as np

read = runpy.run_path(str(pathlib.Path(__file__).with_name("site.py")))["read"]


def main(data: str, runs: list[str]) -> None:
    """Prints the common fit and the result of each run, with the test error at every counter."""
    made = [read(str(path)) for path in sorted(pathlib.Path(data).glob("*.csv"))]
    A, b = (np.concatenate(parts) for parts in zip(*(each.problem.affine_parts() for each in made), strict=True))
    ways = {"all in one place": np.linalg.solve(A.mean(0), b.mean(0))}
    for folder in runs:
        with np.load(pathlib.Path(folder, "curves.npz")) as arrays:
            (ways[folder],) = next(arrays[name] for name in arrays.files if name.endswith("/theta"))
    common = next(iter(ways.values()))
    for name, theta in ways.items():
        errors = " ".join(f"{each.test_error(theta)[0]:.0f}" for each in made)
        print(f"{name}: {theta.round(3)}, {np.linalg.norm(theta - common):.3f} away, RMS errors {errors}")
    print("each alone:", " ".join(f"{each.test_error(each.problem.theta_star)[0]:.0f}" for each in made))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
