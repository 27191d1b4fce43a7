"""The settings of each command: frozen dataclasses that define the flags, the TOML file and the manifest."""

import abc
import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import tyro

from .. import _check, _own
from .._check import DTYPES
from .._json import plain
from . import index
from .errors import UsageError
from .usage import check_counts, check_name, check_number, check_reference, named_texts, named_values

OBJECTIVES = ("rounds", "samples", "bytes")
EXPENSES = ("exchanges", "samples", "bytes")
"""The costs by which methods with different rounds can be compared."""
TRACKERS = ("jsonl", "tensorboard", "mlflow", "wandb")
FIGURE_FORMATS = ("png", "pdf", "svg", "eps")
WIDTHS = 1.0, 40.0
"""The narrowest and the widest figure, in inches."""
MOST_HOSTS = 1024
"""The largest number of processes that one machine may start; more are taken for a mistake."""
_PROBLEMS_OWN = "(default: the problem's own)"


def flag(metavar: str | None = None, *, hint: str = "", name: str | None = None) -> Any:
    """A flag whose help has this hint, such as what happens by default, instead of the default value."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint, name=name)


def out_folder(default: str) -> Any:
    """The flag for the output folder; its help states the default."""
    return flag("DIR", hint=f"(default: {default})")


@dataclasses.dataclass(frozen=True)
class AbstractFlags(abc.ABC):
    """The settings of a command: every field is a flag. The docstring of the class is the first part of its help."""

    command: ClassVar[str]
    files: ClassVar[str] = ""
    """The paragraphs about output files that the help of several commands has after the docstring."""


@dataclasses.dataclass(frozen=True)
class RayFlags(AbstractFlags):
    """The settings that run a command's work on Ray; `output.executor` applies them."""

    ray: bool = False
    """Compute on Ray with a task for each core, on the cluster of RAY_ADDRESS or `ray start`, or on a new one."""
    ray_address: Annotated[str | None, flag("HOST:PORT")] = None
    """Compute on the Ray cluster at this address; `local` always starts a new one on this machine."""


@dataclasses.dataclass(frozen=True)
class TrackFlags(AbstractFlags):
    """The settings that send a run to an experiment-tracking tool; `tracks.Tracks` applies them."""

    track: Annotated[str | None, flag("|".join(TRACKERS))] = None
    """Log the run with this tool. Every tool except jsonl needs the extra of the same name."""
    track_to: Annotated[str | None, flag("FOLDER|URI")] = None
    """The folder for the logs (default: the output folder), or the address of an MLflow server."""

    def _check_track(self) -> None:
        if self.track is not None:
            check_name("track", self.track, TRACKERS)
        if self.track_to is not None and self.track is None:
            raise UsageError("`track_to` needs `track`, the tool to use. Add `--track jsonl`, for example.")
        if self.track_to is not None and not isinstance(self.track_to, str):
            raise UsageError(f"`track_to` must be a folder or an address, got {self.track_to!r}.")


@dataclasses.dataclass(frozen=True)
class AbstractSettings(AbstractFlags):
    """A problem and algorithms: the settings of the commands that compute on a problem."""

    steps_optional: ClassVar[bool] = False
    """Whether the command finds step sizes by itself."""
    subfolder: ClassVar[str] = ""
    """The subfolder of runs/PROBLEM for the results, so that no command overwrites the results of another."""

    problem: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PROBLEM")] = "quadratic"
    """A family of problems (see `fedhsa list`) or your own problem, like mine.py:build; `--problem` may precede it."""
    algorithm: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("FedHSA", "LocalSA")
    """The algorithms, like FedHSA, 'Averaged(FedHSA(local_steps=5))' or mine.py:HalfHSA (see `fedhsa list`)."""
    num_agents: Annotated[int | None, flag("M", hint=_PROBLEMS_OWN)] = None
    """Number of agents."""
    dim: Annotated[int | None, flag("D", hint=_PROBLEMS_OWN)] = None
    """Number of parameters."""
    heterogeneity: Annotated[float | None, flag("0..1", hint=_PROBLEMS_OWN)] = None
    """How much the agents differ, from 0 (equal agents) to 1 (independent draws)."""
    problem_key: int = 0
    """The seed of the random problem."""
    option: Annotated[dict[str, Any], named_values("option", "noise_std=0.2"), flag()] = dataclasses.field(
        default_factory=dict
    )
    """Other arguments of the problem, like noise_std=0.2 (see `fedhsa list`). In TOML: a table [option]."""
    noiseless: bool = False
    """Replace the noisy operator of every agent by its mean operator."""
    iid: bool = False
    """Draw independent observations from the stationary distributions instead of Markov chains."""
    step_size: Annotated[tuple[float, ...], tyro.conf.arg(metavar="ETA ...")] = (0.01,)
    """One step size for all algorithms, or one for each."""
    local_steps: Annotated[int, tyro.conf.arg(metavar="H")] = 10
    """Local steps per round, for algorithms that have them."""
    server_step: Annotated[float, tyro.conf.arg(metavar="ALPHA")] = 1.0
    """The server's step size, for algorithms that have one."""
    key: int = 0
    """The seed of the random observations."""
    out: Annotated[pathlib.Path | None, out_folder("runs/PROBLEM")] = None
    """The folder for the results."""
    label: Annotated[dict[str, str], named_texts("label", "FedHSA=ours"), flag()] = dataclasses.field(
        default_factory=dict
    )
    """Names of algorithms in figures and tables, like FedHSA=ours 'LocalSA=Local SA'. In TOML: a table [label]."""
    width: Annotated[float | None, flag("INCHES")] = None
    """The width of the figures, such as 3.25 for a journal's column."""
    format: Annotated[tuple[str, ...], tyro.conf.arg(metavar="|".join(FIGURE_FORMATS) + " ...")] = ("png", "pdf")
    """The formats of the figures."""
    config: Annotated[pathlib.Path | None, flag("FILE.toml")] = None
    """A TOML file with settings."""
    from_: Annotated[pathlib.Path | None, flag("MANIFEST.json", name="from")] = None
    """Use the settings of an earlier run, read from its manifest or folder; other flags override them."""
    progress: bool = True
    """Show the progress if the output is a terminal."""
    cache: bool = True
    """Keep compiled programs in the user's cache folder, so that similar runs need not compile again."""

    def __post_init__(self):
        try:
            self._check_common()
            self._check_own()
        except ValueError as error:  # tyro would add its own text to a ValueError
            raise UsageError(str(error)) from error

    @abc.abstractmethod
    def _check_own(self) -> None:
        """Raises `ValueError` if a setting that only this command has is wrong."""

    def _check_common(self) -> None:
        if not self.algorithm:
            raise UsageError(f"`algorithm` must name at least one of {', '.join(index.read()['algorithms'])}.")
        check_reference("problem", self.problem)
        if _own.reference(self.problem) is None:
            check_name("problem", self.problem, index.names("problems", wanted=self.problem))
        for name in self.algorithm:
            if isinstance(name, str) and name in index.read()["problems"]:
                raise UsageError(
                    f"`algorithm`: {name} is a problem. Write it first: `fedhsa {self.command} {name} ...`."
                )
            check_reference("algorithm", name)
            if not isinstance(name, str) or name.isidentifier():  # arguments are read once there is a problem
                check_name("algorithm", name, index.names("algorithms", "wrappers", wanted=name))
            if self.algorithm.count(name) > 1:
                raise UsageError(f"`algorithm` names {name} twice. Run it again into another `out` folder.")
        check_counts(self, "num_agents", "dim", "local_steps")
        check_counts(self, "problem_key", "key", least=0, most=2**64 - 1)
        if self.noiseless and self.iid:
            raise UsageError(
                "`noiseless` and `iid` cannot be combined: agents without noise observe nothing. Omit one of them."
            )
        check_number("server_step", self.server_step, above=0.0)
        for size in self.step_size:
            check_number("step_size", size, above=0.0)
        check_number("target", getattr(self, "target", None), above=0.0)
        check_number("heterogeneity", self.heterogeneity)
        several = f"one for each of the {len(self.algorithm)} algorithms, got {len(self.step_size)}"
        if (self.step_size or not self.steps_optional) and len(self.step_size) not in (1, len(self.algorithm)):
            raise UsageError(f"`step_size` must be one number, or {several}.")
        self._check_figures()
        for field in dataclasses.fields(self):
            if field.type is bool and not isinstance(getattr(self, field.name), bool):
                raise UsageError(f"`{field.name}` must be true or false, got {getattr(self, field.name)!r}.")

    def _check_figures(self) -> None:
        if not self.format:
            raise UsageError(f"`format` must name at least one of {', '.join(FIGURE_FORMATS)}.")
        for name in self.format:
            check_name("format", name, FIGURE_FORMATS)
        check_number("width", self.width)
        if self.width is not None and not WIDTHS[0] <= self.width <= WIDTHS[1]:
            least, most = WIDTHS
            raise UsageError(f"`width` must be between {least:g} and {most:g} inches, got {self.width:g}.")
        for name, text in self.label.items():
            if not isinstance(text, str):
                raise UsageError(f"`label` must be a text for {name}, got {text!r}.")

    def check_complete(self) -> None:
        """Raises `UsageError` if the command cannot run; called once flags, file and defaults have been merged."""
        for name in self.label:
            check_name("label", name, dict.fromkeys((*self.labels, *self.algorithm)))
        names = [self.renamed.get(name, name) for name in self.labels]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"`label` leaves two algorithms with the name {name!r}. Give each a different one.")

    @property
    def drawing(self) -> dict[str, Any]:
        """The arguments of the figures: their width and the names of the algorithms."""
        return {"labels": self.renamed, "width": self.width}

    @property
    def renamed(self) -> dict[str, str]:
        """The names that the user gave to algorithms, by their default names (see `labels`)."""
        names = zip(self.labels, self.algorithm, strict=True)
        found = {name: self.label.get(text, self.label.get(name)) for name, text in names}
        return {name: text for name, text in found.items() if text is not None}

    def figures(self, name: str) -> list[str]:
        """The file names of a figure, one for each format."""
        return [f"{name}.{suffix}" for suffix in self.format]

    @property
    def folder(self) -> pathlib.Path:
        """The folder for the results."""
        return pathlib.Path("runs", _own.title(self.problem), self.subfolder) if self.out is None else self.out

    @property
    def labels(self) -> tuple[str, ...]:
        """The default names of the algorithms in tables, figures and files."""
        return _own.labels(self.algorithm)

    def plain(self) -> dict[str, Any]:
        found = dataclasses.asdict(self)
        found |= {name: str(value) for name, value in found.items() if isinstance(value, pathlib.Path)}
        return found | {name: list(value) for name, value in found.items() if isinstance(value, tuple)}


@dataclasses.dataclass(frozen=True)
class ResultSettings(TrackFlags, AbstractSettings):
    """The settings of the commands that write results together with the settings that determined them."""

    elsewhere: ClassVar[tuple[str, ...]] = (
        *("out", "force", "config", "from_", "progress", "cache", "checkpoint", "resume"),
        *("hosts", "host_index", "host_timeout", "ray", "ray_address", "label", "width", "format", "latex"),
        *("track", "track_to"),
    )
    """The settings that do not change the numbers."""

    force: bool = False
    """Overwrite results of other settings in the output folder."""

    def _check_common(self) -> None:
        super()._check_common()
        self._check_track()

    def numbers(self) -> dict[str, Any]:
        """The settings that determine the numbers: commands with equal values give the same results."""
        found = {name: value for name, value in self.plain().items() if name not in self.elsewhere}
        files = _own.digests(self.problem, *self.algorithm)  # the same name in a changed file is a different run
        return found | {"files": files or None}

    def replaces(self, before: Mapping[str, Any]) -> list[str]:
        """The names of the settings that differ from `before`, the settings of earlier results.

        A setting that did not exist then counts as its default. Only the names of files are compared, not their
        contents, because users rerun a method while they edit it.
        """
        now = json.loads(json.dumps(plain(self.plain()), default=str))
        known = {**plain(type(self)().plain()), **before}
        return [name for name, value in now.items() if name not in self.elsewhere and known[name] != value]


@dataclasses.dataclass(frozen=True)
class AbstractSimulationSettings(ResultSettings):
    """The settings of the commands that simulate a given number of rounds."""

    rounds: Annotated[int, tyro.conf.arg(metavar="T")] = 1000
    """Number of rounds."""
    seeds: int = 8
    """Number of independent runs."""
    every: int = 1
    """The number of rounds between recorded errors."""
    dtype: Annotated[str, tyro.conf.arg(metavar="|".join(DTYPES))] = DTYPES[0]
    """The floating-point precision."""

    def _check_own(self) -> None:
        check_counts(self, "rounds", "seeds", "every")
        if self.rounds % self.every:
            raise UsageError(f"`rounds` must be a multiple of `every`, got {self.rounds} and {self.every}.")
        check_name("dtype", self.dtype, DTYPES)


@dataclasses.dataclass(frozen=True)
class RunSettings(AbstractSimulationSettings):
    """Runs algorithms on a random problem with many seeds, and plots their errors.

    Examples:
      fedhsa run
      fedhsa run td --num-agents 20 --step-size 0.05 --rounds 500
      fedhsa run --step-size 0.001 0.002 --option noise_std=0.2 convex=false
      fedhsa run mine.py:build --algorithm FedHSA 'mine.py:HalfHSA(local_steps=5)'
      fedhsa run --config examples/quadratic.toml --seeds 8
      fedhsa run --target 1e-4
      fedhsa run --from runs/quadratic/manifest.json --out again --seeds 16
      fedhsa run --rounds 2000 --resume          (continues a run of 1000 rounds)

    The command writes these files to the output folder: curves.png and curves.pdf
    (the figure), curves.csv (mean and 95 % confidence interval per round, and the
    prediction), curves.npz (every seed), theta.csv (the final parameter),
    manifest.json (settings, versions, timings, status) and a folder with the
    states from which `--resume` continues. `fedhsa.load` opens the folder in
    Python. A TOML file has the same settings as the flags (num_agents = 20);
    flags override the file.

    If the theory can predict it within a second or two, the command first warns
    about algorithms that will diverge or cannot reach the target.

    Several processes can share a run; the numbers are those of a single process:
      fedhsa run --hosts 2                      two processes on this machine
      fedhsa run --hosts node0:7654,node1       the same command on both machines;
                                                the port must be free on the first
      srun fedhsa run --hosts auto              in a SLURM job; mpirun works too

    The first process writes the files. A run with --checkpoint can be resumed by
    any number of processes.
    """

    command = "run"
    elsewhere = (*ResultSettings.elsewhere, "target")

    target: Annotated[float | None, flag("ERROR")] = None
    """A mean-square error to reach: reports the cost of reaching it, and whether it can be reached at all."""
    checkpoint: bool = False
    """Save the state to the output folder regularly; by default only at the end, unless it is large."""
    resume: bool = False
    """Continue an interrupted run, or a finished run with more rounds; implies `--checkpoint`."""
    hosts: Annotated[str | None, flag("N|NAME,...|auto")] = None
    """Share the run: N processes here, one on each named machine, or as set by SLURM, Open MPI or Kubernetes."""
    host_index: Annotated[int | None, flag("I")] = None
    """The index of this machine in `--hosts`, from 0, if its name does not identify it."""
    host_timeout: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 120.0
    """The time to wait for the other processes at the start."""

    def _check_own(self) -> None:
        super()._check_own()
        check_number("host_timeout", self.host_timeout, above=0.0)
        hosts = self.hosts
        if hosts is not None and (not isinstance(hosts, str) or not all(hosts.split(",")) or hosts.strip("0") == ""):
            raise UsageError(f"`hosts` must be a text like '2', 'node0,node1' or 'auto', got {hosts!r}.")
        if hosts is not None and hosts.isdecimal() and int(hosts) > MOST_HOSTS:
            raise UsageError(f"`hosts` must be at most {MOST_HOSTS} processes on this machine, got {hosts}.")
        check_counts(self, "host_index", least=0)
        if self.host_index is not None and (hosts is None or hosts == "auto" or hosts.isdecimal()):
            raise UsageError("`host_index` needs `hosts` with a name for every process, like node0,node1.")

    def replaces(self, before: Mapping[str, Any]) -> list[str]:
        other = super().replaces(before)
        if not self.resume:
            return other
        return [] if other == ["rounds"] and before["rounds"] < self.rounds else other


def _check_objective(settings: "AnalyzeSettings | CompareSettings", known: tuple[str, ...]) -> None:
    check_name("objective", settings.objective, known)
    if settings.target is None and settings.objective != type(settings).objective:
        raise UsageError(f"`objective` {settings.objective} needs `target`, an error to reach. Add `--target`.")


@dataclasses.dataclass(frozen=True)
class AnalyzeSettings(AbstractSettings):
    """Predicts the behaviour of algorithms on a random problem without running them.

    Examples:
      fedhsa analyze
      fedhsa analyze td --num-agents 20 --dim 5 --option num_states=10
      fedhsa analyze quadratic --step-size 0.05 --local-steps 20 --algorithm FedHSA
      fedhsa analyze quadratic --target 1e-4 --objective bytes
      fedhsa analyze quadratic --json --no-plot | jq '.algorithms.FedHSA.floor'

    The command prints one page: the problem's constants, the paper's assumptions
    that hold and, for each algorithm, its stability, its rate, its floor with the
    causes (heterogeneity, Markov sampling, noise) and the number of agents beyond
    which more do not help. With `--target`, it also prints the cost of reaching
    the target, and the settings that reach it at the lowest cost. The figure is
    saved as analyze.png and analyze.pdf in the output folder. A TOML file for
    `fedhsa run` works here too.
    """

    command = "analyze"

    target: Annotated[float | None, flag("ERROR")] = None
    """A mean-square error to reach: reports the cost of reaching it, and whether it can be reached at all."""
    objective: Annotated[str, tyro.conf.arg(metavar="|".join(OBJECTIVES))] = OBJECTIVES[0]
    """The cost to minimise; needs a target."""
    samples: int = 20_000
    """Observations per agent for estimates, used if the noise can only be sampled."""
    json: bool = False
    """Print one JSON document instead of the page."""
    plot: bool = True
    """Draw the figure."""

    def _check_own(self) -> None:
        _check_objective(self, OBJECTIVES)
        check_counts(self, "samples")


@dataclasses.dataclass(frozen=True)
class CompareSettings(RayFlags, ResultSettings):
    """Compares algorithms on equal terms: each is tuned, then run on fresh seeds.

    Examples:
      fedhsa compare
      fedhsa compare td --num-agents 100 --algorithm FedHSA LocalSA
      fedhsa compare --algorithm FedHSA 'FedHSA(local_steps=50)' SynchronisedSA
      fedhsa compare --algorithm FedHSA mine.py:HalfHSA    (your own method)
      fedhsa compare --target 1e-3 --objective bytes
      fedhsa compare --step-size 0.01                      (no tuning)
      fedhsa compare --ray                                 (a method on each core)

    All methods get the same problem and start, the same observations for each
    seed, and `--samples` observations of each agent, however long their rounds
    are. Each method tries `--grid` step sizes with `--tuning-seeds` runs each, all
    as long as the final runs. Half of the step sizes are a factor of 4 apart; the
    rest extend the grid if the best is at its edge, or refine it around the best.
    The best step size then runs on `--seeds` fresh seeds. A step size given with
    an algorithm, as in 'FedHSA(0.1, 10)', is not tuned. Only the step size is
    tuned: list other settings as separate algorithms, like
    'FedHSA(local_steps=50)'.

    Methods are ranked by the mean error over the last tenth of the run or, with
    `--target`, by the cost of reaching the target. Differences are tested in
    pairs, by flipping the signs of the seeds' differences, and p-values are
    corrected for the number of pairs (Holm). The significance level is 5 % for all
    pairs together, and at least 6 seeds are required to find any difference.

    The command writes these files to the output folder: compare.png and .pdf
    (error against exchanges, observations and bytes), tuning.png and .pdf (error
    against step size), compare.tex (the ranking), compare.csv (mean and 95 %
    confidence interval), compare.npz (every seed) and manifest.json (settings,
    versions, every step size tried, ranking, every pair). Ctrl-C keeps the methods
    that are done.
    """

    command = "compare"
    steps_optional = True
    subfolder = "compare"

    algorithm: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("FedHSA", "LocalSA", "SynchronisedSA")
    """The algorithms, like FedHSA, 'Averaged(FedHSA(local_steps=5))' or mine.py:HalfHSA (see `fedhsa list`)."""
    step_size: Annotated[tuple[float, ...], flag("ETA ...", hint="(default: tuned)")] = ()
    """One step size for all algorithms, or one for each, instead of tuning."""
    samples: Annotated[int, tyro.conf.arg(metavar="N")] = 10_000
    """Observations of each agent in a run."""
    seeds: int = 16
    """Number of independent runs for the ranking."""
    grid: int = 8
    """Number of step sizes that each algorithm tries."""
    tuning_seeds: int = 4
    """Number of independent runs for each step size."""
    objective: Annotated[str, tyro.conf.arg(metavar="|".join(EXPENSES))] = "samples"
    """The cost to minimise; needs a target."""
    target: Annotated[float | None, flag("ERROR")] = None
    """A squared error to reach: the methods are tuned and ranked by the cost of reaching it."""
    out: Annotated[pathlib.Path | None, out_folder("runs/PROBLEM/compare")] = None
    """The folder for the results."""
    latex: bool = False
    """Print the ranking as a LaTeX table for the package booktabs, as in compare.tex."""

    def _check_own(self) -> None:
        _check_objective(self, EXPENSES)
        check_counts(self, "samples", "tuning_seeds")
        check_counts(self, "seeds", least=2)
        _check.grid(self.grid)


@dataclasses.dataclass(frozen=True)
class SweepSettings(RayFlags, AbstractSimulationSettings):
    """Runs one algorithm with many settings, on the same observations.

    Examples:
      fedhsa sweep --over 'step_size=[0.005,0.01,0.02]'
      fedhsa sweep td --over 'step_size=[0.01,0.1]' 'local_steps=[1,10]'
      fedhsa sweep --over 'num_agents=[1,10,100]' 'heterogeneity=[0.0,1.0]'
      fedhsa sweep --algorithm 'Averaged(FedHSA)' --over 'burn_in=[0,100,500]'
      fedhsa sweep --config examples/quadratic.toml --algorithm FedHSA
      fedhsa sweep --ray-address head:6379 --over 'step_size=[0.01,0.02,0.05,0.1]'

    The command runs every combination of the values. Arguments of the problem can
    be varied too. It prints a table with the mean final error over seeds, its 95 %
    confidence interval and, where it is quick to compute, the prediction. It
    writes these files to the output folder: sweep.png and .pdf (the final error
    against the setting with the most values), sweep.csv (the table), sweep.npz
    (every seed and round) and manifest.json. In a TOML file the values are in a
    table: [over], step_size = [0.01, 0.1]. Ctrl-C keeps the combinations that are
    done.
    """

    command = "sweep"
    subfolder = "sweep"

    algorithm: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("FedHSA",)
    """One algorithm, like FedHSA, 'Averaged(FedHSA)' or mine.py:HalfHSA (see `fedhsa list`)."""
    over: Annotated[dict[str, Any], named_values("over", "step_size=[0.01,0.1]")] = dataclasses.field(
        default_factory=lambda: {"step_size": [0.0025, 0.005, 0.01, 0.02, 0.04]}
    )
    """Arguments of algorithm or problem to vary: step_size=[0.01,0.1] num_agents=[1,10]. In TOML: a table [over]."""
    out: Annotated[pathlib.Path | None, out_folder("runs/PROBLEM/sweep")] = None
    """The folder for the results."""

    def _check_own(self) -> None:
        super()._check_own()
        for name, values in self.over.items():
            if not isinstance(values, list) or not values:
                raise UsageError(f"`over`: {name} must have a list of values, like {name}=[0.01,0.1], got {values!r}.")

    def check_complete(self) -> None:
        super().check_complete()
        if len(self.algorithm) != 1:
            names = ", ".join(self.algorithm)
            raise UsageError(f"`algorithm` must be a single algorithm, got {names}. Choose one with `--algorithm`.")


COMMANDS = {kind.command: kind for kind in (RunSettings, AnalyzeSettings, CompareSettings, SweepSettings)}
"""The settings of the commands that can share a TOML file."""
