"""The run time of `fedhsa reproduce`: CPU seconds of every experiment by phase, from its own manifests."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from machine import RESULTS, load, machine

PHASES = ("build", "predict", "simulate", "draw", "other")


@dataclass(frozen=True)
class Settings:
    """Runs `fedhsa reproduce` without compiled programs, shows its time by phase and writes reproduce.json."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """the experiments to run; by default those of the paper"""
    quick: bool = False
    """its quick version"""
    folder: Path | None = None
    """only show an earlier run from this folder, such as results"""
    out: Path = RESULTS
    """the folder to write to"""


def run(settings: Settings, folder: str) -> dict[str, float]:
    """Runs the command; returns its wall-clock time and the processor time of all its processes, in seconds."""
    command = [str(Path(sys.executable).with_name("fedhsa")), "reproduce", *settings.names, "--out", folder]
    command += ["--quick"] * settings.quick
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run(command, check=True, env=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.perf_counter() - began, "cpu": cpu}


def read(folder: Path) -> dict[str, dict]:
    """Returns the times of every experiment under a folder, the longest first."""
    manifests = [json.loads(path.read_text()) for path in folder.rglob("manifest.json")]
    found = {manifest["name"]: manifest["timings"] for manifest in manifests if "timings" in manifest}
    return dict(sorted(found.items(), key=lambda entry: -sum(entry[1]["cpu"].values())))


def show(console: Console, timings: dict[str, dict], total: dict[str, float] | None) -> None:
    table = Table("CPU seconds", *PHASES, "all", "programs compiled")
    rows = {name: [of["cpu"].get(phase, 0.0) for phase in PHASES] for name, of in timings.items()}
    for name, row in rows.items():
        table.add_row(name, *(f"{s:.1f}" for s in (*row, sum(row))), str(timings[name]["programs"]))
    sums = [sum(column) for column in zip(*rows.values(), strict=True)]
    programs = sum(of["programs"] for of in timings.values())
    table.add_row("all", *(f"{s:.1f}" for s in (*sums, sum(sums))), str(programs), style="bold")
    console.print(table)
    if total is not None:
        console.print(f"{total['wall']:.0f} s in all, {total['cpu']:.0f} s of CPU")


def main(settings: Settings) -> None:
    console, where = Console(), machine()
    with contextlib.ExitStack() as stack:
        folder = settings.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        total = run(settings, str(folder)) if settings.folder is None else None
        timings = read(folder)
    show(console, timings, total)
    report = {"machine": where | {"load_at_end": load()}, "seconds": total, "experiments": timings}
    out = settings.out / "quick" if settings.quick else settings.out
    out.mkdir(parents=True, exist_ok=True)
    (out / "reproduce.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Settings))
