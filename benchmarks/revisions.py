"""The speed of `simulate` relative to another revision, and the cost of chains that depend on the parameter."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from machine import RESULTS, load, machine

ROOT = Path(__file__).parents[1]
WORKER = """
import hashlib, re, sys
import equinox as eqx
import numpy as np
import fedhsa
import fedhsa.engine.batch, fedhsa.engine.run
engine = fedhsa.engine
problems = {
    "td": lambda: fedhsa.problems.td.random(100, 100, 50),
    "quadratic": lambda: fedhsa.problems.quadratic.random(100, 10),
    "finite-sum": lambda: fedhsa.problems.finite_sum.random(100, 2, 20),
    "logistic": lambda: fedhsa.problems.logistic.random(50, 50, 10),
}
def worlds(controlled):
    from fedhsa.environments import worlds
    model = worlds.random(20, 30, 4)
    if controlled:
        return fedhsa.problems.sarsa.from_model(model, inverse_temperature=0.5)
    chain, table = model.chain(pairs=True), np.broadcast_to(np.eye(120), (20, 120, 120))
    return fedhsa.problems.td.from_arrays(chain.transition, chain.rewards, table, chain.discount)
problems["table, fixed policy"] = lambda: worlds(False)
problems["table, own policy"] = lambda: worlds(True)
def program(problem):
    # The optimised program without the names and lines of the source.
    kept = []
    def lower(*arguments):
        text = eqx.filter_jit(engine.batch.advance).lower(*arguments).compile().compiled.as_text()
        names = r"metadata=\\{[^}]*\\}|^HloModule[^,]*,|^(File|Function|Stack).*|^[0-9]+ .*"
        text = re.sub(names, "", text, flags=re.MULTILINE)
        kept.append(hashlib.sha256(" ".join(text.split()).encode()).hexdigest())
        raise KeyboardInterrupt
    compiled, engine.run._compiled = engine.run._compiled, lambda platform: lower
    try:
        fedhsa.simulate(problem, fedhsa.FedHSA(1e-3, local_steps=10), rounds=2, seeds=8, every=2)
    except BaseException:
        pass
    engine.run._compiled = compiled
    return kept[0]
made = {}
for line in sys.stdin:
    name, rounds, step = line.strip().split("|")
    if name not in made:
        made[name] = problems[name]()
    if rounds == "0":
        print(program(made[name]), flush=True)
        continue
    method = fedhsa.FedHSA(float(step), local_steps=10)
    result = fedhsa.simulate(made[name], method, rounds=int(rounds), seeds=8, every=int(rounds))
    print(result.timings["run"], flush=True)
"""
"""Reads a problem's name, rounds and a step size; prints the seconds of `simulate`, or for 0 rounds its program."""


@dataclass(frozen=True)
class Settings:
    """Times FedHSA on exogenous chains with this revision and another in turns, and writes revisions.json."""

    against: str = "6d814bc"
    """the other revision; it becomes a worktree in a temporary folder"""
    source: Path | None = None
    """instead, the other revision's `src` folder"""
    turns: int = 9
    """the number of measurements; the ratio of medians and its spread over the turns are reported"""
    seconds: float = 1.5
    """the duration of one measurement"""
    out: Path = RESULTS
    """the folder to write to"""


class Worker:
    """A process with one revision of the package."""

    def __init__(self, source: Path):
        env = os.environ | {"PYTHONPATH": str(source), "JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def time(self, name: str, rounds: int, step: float) -> float:
        """Returns the seconds of a run."""
        return float(self._ask(f"{name}|{rounds}|{step}"))

    def program(self, name: str) -> str:
        """Returns a digest of the compiled program."""
        return self._ask(f"{name}|0|0")

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()


@contextlib.contextmanager
def other(settings: Settings):
    """Yields the folder of the other revision's package."""
    if settings.source is not None:
        yield settings.source
        return
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", f"{folder}/old", settings.against], check=True)
        try:
            yield Path(folder) / "old" / "src"
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/old"], check=True)


def main(settings: Settings) -> None:
    console = Console()
    before = load()
    with other(settings) as old:
        new_worker, old_worker = Worker(ROOT / "src"), Worker(old)
        rows = [
            measure(name, new_worker, old_worker, settings) for name in ("td", "quadratic", "finite-sum", "logistic")
        ]
        walking = measure("table, own policy", new_worker, new_worker, settings, "table, fixed policy")
    columns = ("problem", "program", "now, s", "then, s", "now / then", "range over turns")
    table = Table(*columns, title=f"Against {settings.against}")
    for row in rows:
        low, high = row["range"]
        times = [f"{row[k]:.3f}" for k in ("now", "then", "ratio")]
        same = "the same" if row["same_program"] else "another"
        table.add_row(row["problem"], same, *times, f"{low:.3f} to {high:.3f}")
    console.print(table)
    console.print(f"A chain that depends on the parameter, by a fixed one: {walking['ratio']:.2f}")
    found = {"against": settings.against, "machine": machine(), "load": [before, load()], "rows": [*rows, walking]}
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "revisions.json").write_text(json.dumps(found, indent=2) + "\n")


def measure(name: str, new: Worker, old: Worker, settings: Settings, other_name: str | None = None) -> dict:
    """Returns the medians of both sides, measured in turns; each turn has a new step size, which compiles nothing."""
    then_name = other_name or name
    same = new.program(name) == old.program(then_name)
    rounds = 10
    while (took := min(new.time(name, rounds, 1e-3) for _ in range(2))) < settings.seconds / 2:
        rounds = max(rounds * 2, int(rounds * settings.seconds / max(took, 1e-3)) if took > 0.05 else rounds * 2)
    old.time(then_name, rounds, 1e-3)
    now, then = [], []
    for turn in track(range(settings.turns), name):
        step = 1e-3 * (1 + turn / 100)
        sides = [(now, new, name), (then, old, then_name)]
        for times, worker, which in sides if turn % 2 else sides[::-1]:
            times.append(worker.time(which, rounds, step))
    ratios = sorted(a / b for a, b in zip(now, then, strict=True))
    return {
        "problem": name,
        "same_program": same,
        "now": statistics.median(now),
        "then": statistics.median(then),
        "ratio": statistics.median(ratios),
        "range": [ratios[0], ratios[-1]],
    }


if __name__ == "__main__":
    main(tyro.cli(Settings))
