"""Writes the three files in `data`: hourly temperatures of three made-up rooms, which follow their past differently.

Run `python examples/private_series/make_data.py` to write them again, byte for byte.
"""

import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "data"
HOURS, WARM_UP = 24 * 41 + 3, 200
ROOMS = (
    # mean, noise, and coefficients of the last three values (minus the mean)
    (18.0, 1.5, (0.9, -0.2, 0.1)),
    (21.0, 2.0, (0.5, 0.3, -0.3)),
    (24.0, 1.0, (0.2, -0.2, 0.5)),
)


def series(rng: np.random.Generator, mean: float, noise: float, past: tuple[float, ...]) -> np.ndarray:
    """Returns an autoregressive series, after it has forgotten its start."""
    values = [0.0, 0.0, 0.0]
    for _ in range(WARM_UP + HOURS):
        values.append(float(np.dot(past, values[:-4:-1])) + noise * rng.normal())
    return mean + np.array(values[-HOURS:])


def main() -> None:
    """Writes the files."""
    rng = np.random.default_rng(0)
    FOLDER.mkdir(exist_ok=True)
    for number, room in enumerate(ROOMS):
        lines = (f"{hour},{value:.2f}\n" for hour, value in enumerate(series(rng, *room)))
        (FOLDER / f"{number}.csv").write_text("time,value\n" + "".join(lines))


if __name__ == "__main__":
    main()
