"""The speed-up of two processes with one core each over one process with one core, for seeds and for agents."""

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tyro
from rich.console import Console

from machine import RESULTS, load, machine

EVERY = 10
"""The number of rounds between two records; a different number would be a different program."""


@dataclass(frozen=True)
class Settings:
    """Runs the same simulations alone and in two processes, in turns, and writes hosts.json."""

    seconds: float = 3.0
    """the duration of each measurement for one process, in processor time"""
    repetitions: int = 7
    """the number of repetitions; the best of each side counts, as others may be using the machine"""
    only: tuple[str, ...] = ()
    """the names of the simulations to run; by default all"""
    quick: bool = False
    """tiny problems and short measurements, to check that everything works"""
    out: Path = RESULTS
    """the folder to write to"""


@dataclass(frozen=True)
class Work:
    """One simulation: TD with twice as many states as features, as in the paper."""

    name: str
    num_agents: int
    dim: int
    seeds: int
    local_steps: int = 10
    each: bool = False
    """Whether each process has this number of seeds, or all processes together."""


WORK = [
    Work("seeds, 32 each", num_agents=200, dim=50, seeds=32, each=True),
    Work("seeds, 32 in all", num_agents=200, dim=50, seeds=32),
    Work("agents, 1000", num_agents=1000, dim=50, seeds=1),
    Work("agents, 50", num_agents=50, dim=10, seeds=1),
]
QUICK = [Work("seeds each", 4, 3, 2, 2, each=True), Work("seeds", 4, 3, 4, 2), Work("agents", 5, 3, 1, 2)]


class Team:
    """Processes that wait for work, each on a separate core."""

    def __init__(self, count: int, cores: list[int]):
        from fedhsa.engine.hosts import free_port

        where = f"localhost:{free_port()}"
        command = [sys.executable, __file__, "--member", where, str(count)]
        self.members = [
            subprocess.Popen(
                [*command, str(i), str(cores[i])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for i in range(count)
        ]

    def do(self, work: Work, rounds: int) -> dict[str, float]:
        """Returns the seconds of the slowest process, and the processor seconds of all together."""
        for member in self.members:
            print(json.dumps([asdict(work), rounds]), file=member.stdin, flush=True)
        lines = [next(line for line in member.stdout or () if line.startswith("{")) for member in self.members]
        said = [json.loads(line) for line in lines]
        return {"wall": max(s["wall"] for s in said), "cpu": sum(s["cpu"] for s in said)}

    def end(self) -> None:
        for member in self.members:
            if member.stdin:
                member.stdin.close()
        for member in self.members:
            member.wait()


def member(where: str, count: int, index: int, core: int) -> None:
    """Runs in each process: simulates the requested work and reports its run time."""
    os.sched_setaffinity(0, [core])
    import fedhsa

    if count > 1:
        fedhsa.join_processes(where, count, index)
    problems = {}
    for line in sys.stdin:
        fields, rounds = json.loads(line)
        work = Work(**fields)
        if work not in problems:
            problems[work] = fedhsa.problems.td.random(work.num_agents, 2 * work.dim, work.dim)
        algorithm = fedhsa.FedHSA(1e-4, local_steps=work.local_steps)
        before, began = _processor_seconds(), time.perf_counter()
        seeds = work.seeds * count if work.each else work.seeds
        fedhsa.simulate(problems[work], algorithm, rounds=rounds, every=EVERY, seeds=seeds, progress=False)
        said = {"wall": time.perf_counter() - began, "cpu": _processor_seconds() - before}
        print(json.dumps(said), flush=True)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(work: Work, teams: dict[str, Team], settings: Settings) -> dict:
    rounds, seconds = EVERY, 0.0
    for team in teams.values():
        team.do(work, rounds)  # compiles
    while seconds < settings.seconds / 4:
        rounds *= 2
        seconds = teams["one"].do(work, rounds)["cpu"]
    rounds = EVERY * max(1, round(rounds * settings.seconds / seconds / EVERY))
    for team in teams.values():
        team.do(work, rounds)
    taken = [{name: team.do(work, rounds) for name, team in teams.items()} for _ in range(settings.repetitions)]
    best = {name: {kind: min(t[name][kind] for t in taken) for kind in ("wall", "cpu")} for name in teams}
    gain = 2 if work.each else 1
    return {
        "work": asdict(work),
        "rounds": rounds,
        "efficiency": gain * best["one"]["wall"] / (2 * best["two"]["wall"]),
        "processor_efficiency": gain * best["one"]["cpu"] / best["two"]["cpu"],
        "best": best,
        "all": taken,
    }


def main(settings: Settings) -> None:
    if settings.quick:
        settings = replace(settings, seconds=0.1, repetitions=2, out=settings.out / "quick")
    console, where = Console(), machine()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("Two processes with a core each need two cores.")
    if where["load"] > 0.5:
        console.print(f"Something else is running (load {where['load']:.1f}): expect noise.", style="yellow")
    teams = {"one": Team(1, cores), "two": Team(2, cores)}
    measured = []
    for work in QUICK if settings.quick else WORK:
        if settings.only and work.name not in settings.only:
            continue
        measured.append(m := measure(work, teams, settings))
        console.print(
            f"{m['work']['name']:17s} one {m['best']['one']['wall']:.2f} s, two {m['best']['two']['wall']:.2f} s: "
            f"efficiency {m['efficiency']:.0%}; by processor time {m['processor_efficiency']:.0%}"
        )
    for team in teams.values():
        team.end()
    settings.out.mkdir(parents=True, exist_ok=True)
    report = {"machine": where | {"load_at_end": load()}, "settings": asdict(settings), "measured": measured}
    (settings.out / "hosts.json").write_text(json.dumps(report, indent=2, default=str) + "\n")
    console.print(f"Written: {settings.out / 'hosts.json'}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        member(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        main(tyro.cli(Settings))
