"""The settings of `fedhsa run`: one frozen dataclass that is the flags, the TOML file and the manifest."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import pathlib
import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from .. import _check
from .._types import DTYPES
from ..algorithms import ALGORITHMS
from ..problems import PROBLEMS

DESCRIPTION = """\
Runs algorithms on a random problem, many seeds at once, and draws their errors.

Examples:
  fedhsa run
  fedhsa run --problem td --num-agents 20 --step-size 0.05 --rounds 500
  fedhsa run --step-size 0.001 0.002 --option noise_std=0.2 convex=false
  fedhsa run --config examples/quadratic.toml --seeds 8

The output folder gets curves.png and curves.pdf (the figure), curves.csv (mean
and 95 % interval per round), curves.npz (every seed) and manifest.json
(settings, versions, timings, status). A TOML file holds the same settings as
the flags (num_agents = 20); flags win over the file.
"""


class UsageError(Exception):
    """What the user typed cannot be used; the message says why and what to type instead."""


def parse_option(text: str) -> tuple[str, Any]:
    """Splits `NAME=VALUE`; the value is a TOML literal (0.5, true, [1, 10], "text") or a bare word."""
    name, equals, value = text.partition("=")
    name, value = name.strip().replace("-", "_"), value.strip()
    if not (name and equals and value):
        raise UsageError(f"`option` must be NAME=VALUE, like `noise_std=0.2`, got {text!r}.")
    with contextlib.suppress(tomllib.TOMLDecodeError):
        parsed = tomllib.loads(f"value = {value}")
        if parsed.keys() == {"value"}:
            return name, parsed["value"]
    with contextlib.suppress(ValueError):
        return name, float(value)
    return name, value


_OPTION = PrimitiveConstructorSpec(
    nargs="*",
    metavar="NAME=VALUE ...",
    instance_from_str=lambda texts: dict(map(parse_option, texts)),
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [f"{name}={v}" for name, v in value.items()],
)
_PROBLEMS_OWN = "(default: the problem's own)"


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that `fedhsa run` can be told."""

    problem: Annotated[str, tyro.conf.arg(metavar="NAME")] = "quadratic"
    """The family of problems; `fedhsa list` shows them."""
    algorithm: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("FedHSA", "LocalSA")
    """One algorithm or several; `fedhsa list` shows them."""
    num_agents: Annotated[int | None, tyro.conf.arg(metavar="M", help_behavior_hint=_PROBLEMS_OWN)] = None
    """Number of agents."""
    dim: Annotated[int | None, tyro.conf.arg(metavar="D", help_behavior_hint=_PROBLEMS_OWN)] = None
    """Number of parameters."""
    heterogeneity: Annotated[float | None, tyro.conf.arg(metavar="0..1", help_behavior_hint=_PROBLEMS_OWN)] = None
    """From 0, equal agents, to 1, independent draws."""
    problem_key: int = 0
    """Which random problem."""
    option: Annotated[dict[str, Any], _OPTION] = dataclasses.field(default_factory=dict)
    """Other arguments of the problem, like noise_std=0.2 (see `fedhsa list`). In TOML: a table [option]."""
    noiseless: bool = False
    """Give every agent its mean operator."""
    iid: bool = False
    """Independent observations from the stationary laws instead of Markov chains."""
    step_size: Annotated[tuple[float, ...], tyro.conf.arg(metavar="ETA ...")] = (0.01,)
    """One step size for all algorithms, or one for each."""
    local_steps: Annotated[int, tyro.conf.arg(metavar="H")] = 10
    """Local steps per round, for algorithms that have them."""
    server_step: Annotated[float, tyro.conf.arg(metavar="ALPHA")] = 1.0
    """The server's step, for algorithms that have one."""
    rounds: Annotated[int, tyro.conf.arg(metavar="T")] = 1000
    """Number of rounds."""
    seeds: int = 8
    """Number of independent runs."""
    key: int = 0
    """Which random observations."""
    every: int = 1
    """Record the error every so many rounds."""
    dtype: Annotated[str, tyro.conf.arg(metavar="|".join(DTYPES))] = DTYPES[0]
    """The precision."""
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: runs/PROBLEM)")] = (
        None
    )
    """The folder for the results."""
    config: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="FILE.toml", help_behavior_hint="")] = None
    """A file with settings."""
    checkpoint: bool = False
    """Save the state to the output folder now and then."""
    resume: bool = False
    """Continue the same run from its checkpoints after a kill or Ctrl-C, and keep saving them."""
    progress: bool = True
    """A progress bar, when on a terminal."""

    def __post_init__(self):
        try:
            self._check()
        except ValueError as error:  # tyro would wrap it into its own words
            raise UsageError(str(error)) from error

    def _check(self) -> None:
        if not self.algorithm:
            raise UsageError(f"`algorithm` must name at least one of {', '.join(ALGORITHMS)}.")
        check_name("problem", self.problem, PROBLEMS)
        for name in self.algorithm:
            check_name("algorithm", name, ALGORITHMS)
            if self.algorithm.count(name) > 1:
                raise UsageError(f"`algorithm` names {name} twice. Run it again into another `out` folder.")
        for name in ("num_agents", "dim", "local_steps", "rounds", "seeds", "every"):
            if getattr(self, name) is not None:
                _check.count(name, getattr(self, name))
        for name in ("problem_key", "key"):
            _check.count(name, getattr(self, name), least=0)
        for name, values in (("step_size", self.step_size), ("server_step", (self.server_step,))):
            for value in values:
                _number(name, value)
                _check.number(name, value, above=0.0)
        if self.heterogeneity is not None:
            _number("heterogeneity", self.heterogeneity)
        for name in ("noiseless", "iid", "checkpoint", "resume", "progress"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"`{name}` must be true or false, got {getattr(self, name)!r}.")
        if len(self.step_size) not in (1, len(self.algorithm)):
            raise UsageError(
                f"`step_size` must be one number, or one for each of the {len(self.algorithm)} algorithms, "
                f"got {len(self.step_size)}."
            )
        if self.rounds % self.every:
            raise UsageError(f"`rounds` must be a multiple of `every`, got {self.rounds} and {self.every}.")
        check_name("dtype", self.dtype, DTYPES)

    @property
    def folder(self) -> pathlib.Path:
        """Where the results go."""
        return pathlib.Path("runs", self.problem) if self.out is None else self.out

    def plain(self) -> dict[str, Any]:
        """The settings as JSON values."""
        values = dataclasses.asdict(self)
        return {name: str(v) if isinstance(v, pathlib.Path) else _listed(v) for name, v in values.items()}

    def numbers(self) -> dict[str, Any]:
        """The settings that determine the numbers: two runs that agree in them give the same curves."""
        elsewhere = ("out", "config", "checkpoint", "resume", "progress")
        return {name: value for name, value in self.plain().items() if name not in elsewhere}


def parse(args: Sequence[str]) -> Settings:
    """The settings of a command line: flags over the file that `--config` names over the defaults."""
    flags = _parse(args, Settings())
    if flags.config is None:
        return flags
    file = read(flags.config)
    settings = _parse(args, file)
    return dataclasses.replace(settings, option={**file.option, **settings.option})


def read(path: pathlib.Path) -> Settings:
    """The settings of a TOML file, checked key by key."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"`config`: cannot read {str(path)!r}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"`config`: {str(path)!r} is not a TOML file: {error}.") from error
    names = [field.name for field in dataclasses.fields(Settings) if field.name != "config"]
    values = {name.replace("-", "_"): value for name, value in values.items()}
    for name in values:
        if name not in names:
            raise UsageError(f"{str(path)!r}: unknown key `{name}`.{nearest(name, names)} Keys: {', '.join(names)}.")
    for name in {"algorithm", "step_size"} & values.keys():
        values[name] = tuple(values[name]) if isinstance(values[name], list) else (values[name],)
    if "out" in values:
        if not isinstance(values["out"], str):
            raise UsageError(f"{str(path)!r}: `out` must be the name of a folder, got {values['out']!r}.")
        values["out"] = pathlib.Path(values["out"])
    if not isinstance(values.get("option", {}), dict):
        raise UsageError(f"{str(path)!r}: `option` must be a table, got {values['option']!r}.")
    try:
        return Settings(**values)
    except UsageError as error:
        raise UsageError(f"{str(path)!r}: {error}") from error


def check_name(argument: str, value: Any, known: Iterable[str]) -> None:
    """Refuses an unknown name, suggesting the nearest known one."""
    if value not in tuple(known):
        raise UsageError(f"`{argument}` must be one of {', '.join(known)}, got {value!r}.{nearest(value, known)}")


def nearest(name: Any, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known name, or nothing."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return f" Did you mean {by_lower[found[0]]!r}?" if found else ""


def _parse(args: Sequence[str], default: Settings) -> Settings:
    """One pass of tyro, whose framed messages become one sentence."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            settings, unknown = tyro.cli(
                Settings,
                prog="fedhsa run",
                description=DESCRIPTION,
                args=args,
                default=default,
                return_unknown_args=True,
                registry=_registry(),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(_unframed(stderr.getvalue())) from None
    if unknown:
        flags = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(Settings)]
        hint = nearest(unknown[0].partition("=")[0], flags) or " See `fedhsa run --help`."
        raise UsageError(f"fedhsa run does not know the argument {unknown[0]!r}.{hint}")
    return settings


def _registry() -> ConstructorRegistry:
    """What is not a number stays text, for `Settings` to refuse in the same words as that of a file."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type not in (int, float):
            return None

        def parse(texts: list[str]) -> Any:
            try:
                return info.type(texts[0])
            except ValueError:
                return texts[0]

        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT" if info.type is int else "FLOAT",
            instance_from_str=parse,
            is_instance=lambda value: isinstance(value, int | float) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _unframed(box: str) -> str:
    """The first paragraph below the title of one of tyro's framed messages."""
    rows = [row.strip(" │") for row in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]]
    rows = [row if set(row) - set("─-╰╯") else "" for row in rows]
    paragraph = itertools.takewhile(bool, itertools.dropwhile(lambda row: not row, rows))
    return " ".join([*paragraph, "See `fedhsa run --help`."])


def _number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"`{name}` must be a number, got {value!r}.")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
