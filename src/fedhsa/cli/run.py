"""`fedhsa run`: runs several algorithms on one problem, and writes files and a table."""

import datetime
import functools
import shlex
import threading
from collections.abc import Mapping, Sequence

from rich.console import Console

from .. import plots
from .._describe import IndescribableError
from ..algorithms import AbstractAlgorithm, cost
from ..engine import Result, simulate
from ..engine.peers import Peers
from ..engine.progress import ShowProgress
from ..outputs import FILES, manifest_head, read_manifest, write
from ..problems import Problem
from . import forecast, hosts, memory, pace, parameters
from .build import make_algorithms, make_problem, title
from .checkpoints import Checkpoints
from .errors import FailedRunError
from .output import INTERRUPTED, fits_in_memory, show, writable
from .settings import RunSettings
from .tracks import Tracks


def main(
    settings: RunSettings, args: Sequence[str], console: Console, member: tuple[str, int, int] | None = None
) -> int:
    """Runs the command with these arguments and returns the exit code.

    A process that `--hosts N` has started receives its place as `member`.
    """
    command = shlex.join(["fedhsa", "run", *args])
    where = hosts.Place(*member, local_device=member[2]) if member else hosts.place(settings)
    if isinstance(where, int):
        return hosts.start(where, args)
    with hosts.together(where, settings, command) as peers:
        hosts.check_files(settings, peers)
        if peers.first:
            return _run(settings, command, console, peers)
        _help(settings, peers)
        return 0


def _run(settings: RunSettings, command: str, console: Console, peers: Peers) -> int:
    """Runs the whole command in the process that writes and shows the results."""
    if settings.resume and _already_done(settings):
        peers.from_first(lambda: ([], []))
        console.print(f"This run is complete already: {settings.folder / settings.figures('curves')[0]}")
        return 0
    problem = make_problem(settings)
    algorithms = make_algorithms(settings, problem)
    memory.check_runs(problem, algorithms.values(), settings.seeds, settings.rounds // settings.every)
    predicted = forecast.Forecast(problem, algorithms)
    for sentence in predicted.announce(settings):
        console.print(sentence, soft_wrap=True)
    started = datetime.datetime.now(datetime.UTC)
    work = _Work(settings, problem, algorithms)
    checkpoints, tracks = work.checkpoints, work.tracks
    with writable(settings.folder), checkpoints.started(settings.resume), tracks.open():
        rehearsal = threading.Thread(target=plots.rehearse, daemon=True)
        rehearsal.start()  # Python has time for this while XLA compiles
        results = work.simulate(peers)
        complete = len(results) == len(algorithms) and all(result.complete for result in results.values())
        if results:
            rehearsal.join()
            manifest = manifest_head(command, complete, started, settings.key, settings.plain())
            predictions = predicted.predictions()
            theory, label = forecast.curves(predictions, results)
            write(
                settings.folder,
                results,
                manifest,
                title=title(settings, problem),
                theory=theory,
                theory_label=label,
                predictions=forecast.for_manifest(predictions),
                formats=settings.format,
                **settings.drawing,
            )
            tracks.take(*settings.figures("curves"), "curves.csv", "manifest.json")
            if checkpoints.kept:
                checkpoints.sign()
    _report(console, settings, results)
    if not complete:
        again = f" Continue with `{command}{'' if settings.resume else ' --resume'}`."
        again = again if checkpoints.kept and (results or checkpoints.asked) else ""
        written = "what is done was written" if results else "nothing was written"
        console.print(f"Interrupted: {written}.{again}", soft_wrap=True)
        return INTERRUPTED
    return 0


def _help(settings: RunSettings, peers: Peers) -> None:
    """Runs the other processes, which simulate together with the first process; it sends them the remaining work."""
    problem = make_problem(settings)
    work = _Work(settings, problem, make_algorithms(settings, problem))
    left, _ = peers.from_first(lambda: (None, []))
    for name in left:
        if not work.simulate_one(name).complete:
            break


class _Work:
    """The simulations of a run, with their checkpoints and tracks."""

    def __init__(self, settings: RunSettings, problem: Problem, algorithms: Mapping[str, AbstractAlgorithm]):
        self.settings, self.problem, self.algorithms = settings, problem, algorithms
        self.checkpoints, self.tracks = Checkpoints(settings, problem), Tracks(settings, settings.folder)

    def simulate(self, peers: Peers) -> dict[str, Result]:
        """Runs the algorithms one after the other; Ctrl-C ends the list early."""
        results: dict[str, Result] = {}
        told, count = pace.lines(self.settings.progress), len(self.algorithms)
        found = {name: self._finished(name) for name in self.algorithms}
        peers.from_first(lambda: ([name for name, result in found.items() if result is None], []))
        try:
            for number, name in enumerate(self.algorithms):

                def say(done: int, name: str = name, number: int = number) -> None:
                    if told is not None:
                        told(name, (number + done / self.settings.rounds) / count)

                progress = say if told is not None else None if self.settings.progress else False
                result = found[name] or self.simulate_one(name, progress)
                if result.complete or result.rounds[-1] > 0:
                    results[name] = result
                if not result.complete:
                    break
        except KeyboardInterrupt:
            pass
        return results

    def _finished(self, name: str) -> Result | None:
        """Returns the result of an algorithm that an earlier run has finished, if this run continues it."""
        price = functools.partial(cost, self.problem, self.algorithms[name])
        return self.checkpoints.finished(name, price) if self.settings.resume else None

    def simulate_one(self, name: str, progress: ShowProgress = False) -> Result:
        """Runs one algorithm, from its checkpoint if there is one."""
        settings, state = self.settings, self.checkpoints.state(name)
        resuming = state is not None and state.exists()
        run = functools.partial(
            simulate,
            self.problem,
            self.algorithms[name],
            rounds=settings.rounds,
            seeds=settings.seeds,
            key=settings.key,
            every=settings.every,
            dtype=settings.dtype,
            progress=progress,
            tracker=self.tracks.of(name),
        )
        # By default, a state is saved only at the end. Without a state to resume from, the run starts.
        often = None if self.checkpoints.asked else settings.rounds
        try:
            with fits_in_memory(name):
                return run(checkpoint=state, checkpoint_every=often, resume=state is not None)
        except IndescribableError:  # the settings of the state cannot be described
            if self.checkpoints.asked:
                raise
            with fits_in_memory(name):
                return run()
        except ValueError as error:
            if resuming:  # all other arguments were checked before
                raise FailedRunError(str(error)) from error
            raise


def _already_done(settings: RunSettings) -> bool:
    manifest = read_manifest(settings.folder)
    found = {**manifest.get("settings", {}), "files": manifest.get("files")}
    same = all(found.get(name) == value for name, value in settings.numbers().items())
    drawn = found.get("label", {}) == settings.label and found.get("width") == settings.width
    files = [name for name in FILES if not name.endswith((".png", ".pdf"))]
    there = all((settings.folder / name).exists() for name in (*files, *settings.figures("curves")))
    return manifest.get("complete") is True and same and drawn and there


def _report(console: Console, settings: RunSettings, results: Mapping[str, Result]) -> None:
    if not results:
        return
    show(console, results, settings.renamed)
    for name, result in results.items():
        if (result.failed_round >= 0).all():
            console.print(
                f"{name} diverged in every seed, first in round {result.failed_round.min()}: its step is too "
                "large for this problem. Try a smaller `--step-size` or fewer `--local-steps`.",
                soft_wrap=True,
            )
    named = {settings.renamed.get(name, name): result for name, result in results.items()}
    parameters.show(console, named, settings.folder)
    console.print(f"Figure: {settings.folder / settings.figures('curves')[0]}", soft_wrap=True)
