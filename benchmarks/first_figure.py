"""Waiting times of a new user: for help, the lists, the package, a compiled program and the first figure.

Everything is measured in separate processes, in turns. The benchmark reports medians of the processor time and of the
wall-clock time; other programs on the machine change the wall-clock time much more.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from machine import RESULTS, machine, write

COMMAND = str(Path(sys.executable).with_name("fedhsa"))
RUN = ("run", "--problem", "quadratic", "--algorithm", "FedHSA", "LocalSA", "--rounds", "200", "--seeds", "4", "--out")
FIGURES = (".png", ".pdf", ".svg")
COMPILE = """
import json, time
import fedhsa
problem = fedhsa.problems.td.random({sizes})
began = time.process_time()
result = fedhsa.simulate(problem, fedhsa.FedHSA(0.03, local_steps=10), rounds=10, every=10, progress=False)
print(json.dumps({{"cpu": time.process_time() - began, "wall": result.timings["compile"]}}))
"""


@dataclass(frozen=True)
class Settings:
    """Measures a user's waiting times in fresh processes and writes first_figure.json."""

    repetitions: int = 3
    """the number of measurements; medians are reported"""
    quick: bool = False
    """one measurement, with a small problem to compile"""
    out: Path = RESULTS
    """the folder to write to"""


def measure(words: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Returns the processor time and the wall-clock time of a process, in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(f"`{' '.join(words)}` failed:\n{process.stdout}{process.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(process.stdout) if "json.dumps" in words[-1] else {"cpu": cpu, "wall": wall}


def run(cache: Path | None, environment: dict[str, str]) -> dict[str, float]:
    """Runs `fedhsa run` into a separate folder, with compiled programs stored in `cache` or not stored."""
    with tempfile.TemporaryDirectory() as folder:
        extra = ["--no-cache"] if cache is None else []
        found = measure([COMMAND, *RUN, folder, *extra], environment | {"XDG_CACHE_HOME": str(cache or folder)})
        if not any(path.suffix in FIGURES for path in Path(folder).rglob("*")):
            raise SystemExit(f"`fedhsa {' '.join(RUN)} {folder}` ended without a figure.")
    return found


def once(cache: Path, quick: bool) -> dict[str, dict[str, float]]:
    """Measures everything once. Users have compiled Python files, and none of our settings."""
    drop = ("PYTHONDONTWRITEBYTECODE", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {name: value for name, value in os.environ.items() if name not in drop}

    def python(code: str) -> dict[str, float]:
        return measure([sys.executable, "-c", code], environment)

    def command(*words: str) -> dict[str, float]:
        return measure([COMMAND, *words], environment)

    return {
        "import jax, by itself": python("import jax"),
        "import fedhsa": python("import fedhsa"),
        "import fedhsa, and what simulate needs": python("import fedhsa; fedhsa.simulate"),
        "fedhsa --help": command("--help"),
        "fedhsa list": command("list"),
        "fedhsa run --help": command("run", "--help"),
        "compiling FedHSA on TD": python(COMPILE.format(sizes="8, 10, 4" if quick else "200, 100, 50")),
        "first figure, nothing kept": run(None, environment),
        "first figure, programs kept": run(cache, environment),
    }


def main(settings: Settings) -> None:
    console, where = Console(), machine()
    with tempfile.TemporaryDirectory() as folder:
        once(Path(folder), settings.quick)  # compiles Python files, fills the cache
        repetitions = 1 if settings.quick else settings.repetitions
        rounds = [once(Path(folder), settings.quick) for _ in range(repetitions)]
    seconds = {name: {clock: [r[name][clock] for r in rounds] for clock in ("cpu", "wall")} for name in rounds[0]}
    medians = {name: {c: statistics.median(v) for c, v in clocks.items()} for name, clocks in seconds.items()}
    rows = [("seconds", "processor", "clock")]
    rows += [(name, f"{clocks['cpu']:.2f}", f"{clocks['wall']:.2f}") for name, clocks in medians.items()]
    table = Table(*rows[0], box=None)
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    out = settings.out / "quick" if settings.quick else settings.out
    report = {"figure": " ".join(["fedhsa", *RUN, "DIR"]), "median_seconds": medians, "all_seconds": seconds}
    write(__file__, out, where, report, {"": rows})


if __name__ == "__main__":
    main(tyro.cli(Settings))
