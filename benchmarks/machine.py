"""The machine of a measurement, for the files that the measurement is written to."""

import json
import os
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("fedhsa", "jax", "jaxlib", "numpy", "numba")


def machine() -> dict:
    return {
        "processor": _processor(),
        "cores": cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES if find_spec(name) is not None},
        "load": load(),
    }


def write(script: str, out: Path, where: dict, report: dict, tables: dict[str, list[tuple[str, ...]]]) -> None:
    """Writes what a script has measured, and the tables for pages, whose first rows are headings.

    `python tests/update_docs.py --numbers benchmarks/results` brings the pages up to date.
    """
    out.mkdir(parents=True, exist_ok=True)
    found = {"machine": where | {"load_at_end": load()}} | report | {"tables": tables}
    path = out / f"{Path(script).stem}.json"
    path.write_text(json.dumps(found, indent=1, default=str) + "\n")
    print(f"Written: {path}")


def show(rows: list[tuple[str, ...]], console: Console) -> None:
    """Prints a table whose first row is its headings."""
    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """Returns the average number of processes that required a core during the last minute."""
    return os.getloadavg()[0]


def _processor() -> str:
    """Returns the processor's name; Linux on ARM reports the part number only."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return fields.get("model name") or f"{platform.machine()}, CPU part {fields.get('CPU part', 'unknown')}"
