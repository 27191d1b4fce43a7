"""How long a newcomer waits: seconds from starting `fedhsa run` in a fresh process to its figure on the disk."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from machine import RESULTS, load, machine

PROBLEM = ("--problem", "quadratic", "--algorithm", "FedHSA", "LocalSA")
ARGUMENTS = ("run", *PROBLEM, "--rounds", "200", "--seeds", "4", "--out")
FIGURES = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class Settings:
    """Times a small `fedhsa run` in fresh processes and writes first_figure.json."""

    repetitions: int = 3
    """how often the run is made; the median is reported"""
    quick: bool = False
    """one run only"""
    out: Path = RESULTS
    """the folder to write to"""


def seconds_to_figure() -> float:
    """Runs the command line in a folder of its own and waits for its end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("fedhsa")), *ARGUMENTS, folder]
        began = time.perf_counter()
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        if process.returncode:
            raise SystemExit(f"`{' '.join(command)}` failed:\n{process.stdout}{process.stderr}")
        if not any(path.suffix in FIGURES for path in Path(folder).rglob("*")):
            raise SystemExit(f"`{' '.join(command)}` ended without a figure in {folder}:\n{process.stdout}")
    return seconds


def main(settings: Settings) -> None:
    console, where = Console(), machine()
    seconds = [seconds_to_figure() for _ in range(1 if settings.quick else settings.repetitions)]
    median = statistics.median(seconds)
    console.print(f"first figure after {median:.2f} s ({', '.join(f'{s:.2f}' for s in seconds)})")
    out = settings.out / "quick" if settings.quick else settings.out
    out.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": where | {"load_at_end": load()},
        "command": " ".join(["fedhsa", *ARGUMENTS, "DIR"]),
        "median_seconds": median,
        "all_seconds": seconds,
    }
    (out / "first_figure.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Settings))
