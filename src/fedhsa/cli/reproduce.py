"""The settings of `fedhsa reproduce`; the code that runs it is loaded only when it is needed."""

import dataclasses
import pathlib
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import tyro
from rich.console import Console

from ..experiments import PRESETS
from .errors import UsageError
from .parsing import parse_flags
from .settings import RayFlags, flag
from .usage import check_counts, check_name, named_values

DEVICES = ("cpu", "gpu", "tpu")


@dataclasses.dataclass(frozen=True)
class ReproduceSettings(RayFlags):
    """Reproduces the paper's experiments with many seeds and confidence intervals,
    checks each of its claims, and writes one page.

    Examples:
      fedhsa reproduce                          everything, about six minutes
      fedhsa reproduce --quick                  half of it, smaller, in about a minute
      fedhsa reproduce quadratic/markov         Figure 2b alone
      fedhsa reproduce 'td/*' --seeds 64        all of TD learning, more seeds
      fedhsa reproduce td/markov --option step_size=0.05 num_agents=50
      fedhsa reproduce --preset scripts         the authors' public scripts' numbers
      fedhsa reproduce field                    claims of related papers
      fedhsa reproduce rl                       claims on reinforcement learning
      fedhsa reproduce rl --quick               most of it, smaller, in two minutes
      fedhsa reproduce --ray                    on a Ray cluster, an experiment per core
      fedhsa reproduce --list                   the experiments and their settings

    The command writes report.html (open it in a browser; it needs no network),
    claims.json, and a folder for each experiment with the figure (SVG, PNG, PDF),
    its data (CSV, NPZ) and a manifest. Finished experiments are not run again unless
    their settings or the code have changed, so the same command continues after an
    interruption. The exit code is 1 if a claim fails. A claim is reported as not
    decided if the run was too short or had too few seeds.
    """

    command = "reproduce"

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], flag("NAME ...")] = ()
    """The experiments (see `--list`); `td` or 'td/*' selects several. Default: all except `field` and `rl`."""
    only: Annotated[tuple[str, ...], flag("NAME ...")] = ()
    """The experiments, as a flag."""
    preset: Annotated[str, tyro.conf.arg(metavar="|".join(PRESETS))] = "paper"
    """The source of the settings: the paper's text, or its authors' public scripts."""
    quick: bool = False
    """Fewer seeds, rounds, agents and figures; still all ten claims."""
    seeds: Annotated[int | None, flag("S", hint="(default: each experiment's own)")] = None
    """Independent runs, at least 2."""
    rounds: Annotated[int | None, flag("T", hint="(default: each experiment's own)")] = None
    """Rounds of the figures' experiments."""
    option: Annotated[dict[str, Any], named_values("option", "num_agents=5"), flag()] = dataclasses.field(
        default_factory=dict
    )
    """Any other setting of the experiments or of their problems, like step_size=0.002 (see `--list`)."""
    out: Annotated[pathlib.Path, tyro.conf.arg(metavar="DIR")] = pathlib.Path("results")
    """The folder for the page and the experiments."""
    device: Annotated[str | None, flag("|".join(DEVICES), hint="(default: JAX's)")] = None
    """The device for simulations."""
    workers: Annotated[int | None, flag("N", hint="(default: one per core)")] = None
    """Number of experiments in parallel, each in a process with its share of the cores; 1 uses this process."""
    again: bool = False
    """Rerun finished experiments too."""
    list_: Annotated[bool, tyro.conf.arg(name="list")] = False
    """Show the experiments with all their settings, and stop."""
    progress: bool = True
    """Show progress, when on a terminal."""
    cache: bool = True
    """Keep compiled programs in the user's cache folder, so that the next run like this one need not compile."""

    def __post_init__(self):
        try:
            check_name("preset", self.preset, PRESETS)
            check_counts(self, "seeds", least=2, most=1_000_000, remedy="Intervals need two.")
            check_counts(self, "rounds", least=4)
            check_counts(self, "workers")
            if self.device is not None:
                check_name("device", self.device, DEVICES)
                if self.ray or self.ray_address:
                    raise UsageError("`device` is where this process computes, and `ray` has others do it. Use one.")
        except ValueError as error:
            raise UsageError(str(error)) from error

    @property
    def folder(self) -> pathlib.Path:
        """The folder of the experiments; quick runs and other presets have their own folders."""
        folders = [self.preset] if self.preset != "paper" else []
        return self.out.joinpath(*folders, *(["quick"] if self.quick else []))

    def arguments(self, taken: Collection[str]) -> list[str]:
        """Returns the flags that determine the numbers of an experiment with these settings, as typed."""
        words = [] if self.preset == "paper" else ["--preset", self.preset]
        words += ["--quick"] if self.quick else []
        for name in ("seeds", "rounds", "device"):
            if getattr(self, name) is not None and name in (*taken, "device"):
                words += [f"--{name}", str(getattr(self, name))]
        options = [f"{name}={in_toml(value)}" for name, value in self.option.items() if name in taken]
        words += ["--option", *options] if options else []
        return words + ([] if self.out == pathlib.Path("results") else ["--out", str(self.out)])


def main(args: Sequence[str], console: Console) -> int:
    """Runs the command with these arguments and returns the exit code."""
    settings = parse_flags(ReproduceSettings, args, ReproduceSettings())
    from . import reproduction  # imports JAX, which help and wrong arguments do not need

    return reproduction.reproduce(settings, args, console)


def in_toml(value: Any) -> str:
    """Returns a value as the user would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)
