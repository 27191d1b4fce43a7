"""The cost of theory: seconds and peak memory of constants, predictions and analyses, each in a fresh process."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from fedhsa.problems.make import PROBLEMS
from machine import RESULTS, machine, show, write

SCRIPT = """
import json, resource, time
import fedhsa as fh

def timed(function):
    began = time.perf_counter()
    result = function()
    return result, time.perf_counter() - began

def predicted(method):
    prediction = fh.theory.predict(problem, method)
    prediction.floor  # computed when it is asked for
    return prediction

problem, build = timed(lambda: fh.problems.td.random({M}, {S}, {d}))
_, constants = timed(lambda: fh.theory.constants(problem))
seconds = {{"build": build, "constants": constants}}
for method in (fh.FedHSA, fh.LocalSA):
    prediction, first = timed(lambda: predicted(method(0.01, 10)))
    _, limits = timed(lambda: (prediction.max_step_size, prediction.max_local_steps))
    _, again = timed(lambda: predicted(method(0.02, 10)))
    name = method.__name__
    seconds |= {{f"{{name}}": first, f"{{name}}, stability limits": limits, f"{{name}}, another step": again}}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({{"seconds": seconds, "peak_gib": peak}}))
"""
METHODS = (
    "FedHSA(0.02, 5)",
    "LocalSA(0.02, 5)",
    "SCAFFLSA(0.02, 5)",
    "SCAFFOLD(0.02, 5)",
    "OneExchangeFedHSA(0.02, 5)",
    "FedLin(0.02, 5)",
    "Scaffnew(0.02, 0.2)",
    "PersonalisedSA(0.02, 0.2)",
    "Partial(LocalSA(0.02, 5), Bernoulli(0.5))",
    "ServerMomentum(FedHSA(0.02, 5), 0.5)",
)
SMALL = """
import json, time, warnings
import fedhsa as fh
from fedhsa.theory.steps import step_of, with_step

warnings.simplefilter("ignore")

def timed(function):
    began = time.perf_counter()
    result = function()
    return result, time.perf_counter() - began

def predicted(method):
    prediction = fh.theory.predict(problem, method)
    prediction.floor  # computed when it is asked for
    return prediction

problem = fh.problems.td.random(8, 4, 2)
fh.theory.predict(problem, fh.FedHSA(0.05, 3))  # the process is warm
found = {{}}
for words in {methods}:
    method = fh.algorithms.parse(words, problem)
    prediction, first = timed(lambda: predicted(method))
    other = with_step(method, 0.9 * step_of(method))
    _, again = timed(lambda: predicted(other))
    _, largest = timed(lambda: prediction.max_step_size)
    found[words] = {{"first": first, "another step": again, "largest step": largest, "known by": prediction.basis}}
print(json.dumps(found))
"""
"""Predictions of many methods on a TD problem of eight agents with four states and two parameters."""
SIZES = {"the paper's TD problem": (200, 100, 50), "a thousand agents": (1000, 200, 50)}


@dataclass(frozen=True)
class Settings:
    """Times constants and predictions on TD problems and `fedhsa analyze` on all; writes predictions.json."""

    quick: bool = False
    """the first size and the first problem only"""
    out: Path = RESULTS
    """the folder to write to"""


def measure(M: int, S: int, d: int) -> dict:
    """Returns the seconds per part and the peak memory of one fresh process."""
    script = SCRIPT.format(M=M, S=S, d=d)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def methods() -> dict:
    """Returns the seconds of predictions for many methods on a small problem."""
    script = SMALL.format(methods=METHODS)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def analysis(problem: str) -> dict:
    """Returns the seconds of `fedhsa analyze` on a problem with its defaults, and those of all cores together."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fedhsa", "analyze", problem, "--out", folder]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return {"seconds": time.perf_counter() - began, "user": used}


def main(settings: Settings) -> None:
    console, where = Console(), machine()
    small = methods()
    rows: list[tuple[str, ...]] = [("method", "first", "another step", "largest step", "known by")]
    for name, found in small.items():
        rows.append((name, *(x if isinstance(x, str) else f"{x:.2f}" for x in found.values())))
    show(rows, console)
    sizes = dict(list(SIZES.items())[:1]) if settings.quick else SIZES
    report = {name: measure(*size) for name, size in sizes.items()}
    large = [("seconds", *("M={}, S={}, d={}".format(*sizes[name]) for name in report))]
    for part in next(iter(report.values()))["seconds"]:
        large.append((part, *(f"{found['seconds'][part]:.2f}" for found in report.values())))
    large.append(("peak memory, GiB", *(f"{found['peak_gib']:.2f}" for found in report.values())))
    show(large, console)
    analyses = {name: analysis(name) for name in list(PROBLEMS)[: 1 if settings.quick else None]}
    commands: list[tuple[str, ...]] = [("fedhsa analyze", "seconds", "user seconds")]
    commands += [(name, *(f"{x:.1f}" for x in found.values())) for name, found in analyses.items()]
    show(commands, console)
    out = settings.out / "quick" if settings.quick else settings.out
    tables = {"methods": rows, "sizes": large, "analyses": commands}
    write(__file__, out, where, {"methods": small, "analyses": analyses} | report, tables)


if __name__ == "__main__":
    main(tyro.cli(Settings))
