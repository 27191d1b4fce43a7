"""Writes one file for each of Melbourne's four counters of pedestrians, as if each kept its own file: 0.csv to 3.csv.

Run `python examples/pedestrians/make_data.py FOLDER` (it needs `pip install "fedhsa[data]"`).
"""

import pathlib
import sys

from tsdata import fpp3


def main(folder: str) -> None:
    """Writes the files and prints the counter of each file."""
    target = pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for number, (sensor, rows) in enumerate(fpp3.pedestrian.groupby("Sensor")):
        path = target / f"{number}.csv"
        rows[["Date_Time", "Count"]].to_csv(path, index=False)
        print(f"{path}: {sensor}, {len(rows)} hours")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Say which folder to write to: python make_data.py FOLDER")
    main(sys.argv[1])
