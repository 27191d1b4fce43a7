"""Command lines that a person in a hurry might type: none ends in a traceback, hangs, or passes as nonsense."""

import contextlib
import dataclasses
import importlib
import io
import pathlib
import random
import signal
from collections.abc import Iterator

import pytest

from fedhsa.cli import index, main, memory, programs
from fedhsa.cli.deploy_settings import COMMANDS as DEPLOY
from fedhsa.cli.settings import COMMANDS, AbstractFlags

COUNT = 1200
SECONDS = 60
"""What a command line may take; most are refused within milliseconds."""
SMALL = {"--num-agents": "2", "--dim": "2", "--seeds": "2", "--local-steps": "2"}
OF = {
    "run": {"--rounds": "2"},
    "sweep": {"--rounds": "2", "--over": "step_size=[0.01]"},
    "compare": {"--samples": "8", "--grid": "1", "--tuning-seeds": "1"},
    "analyze": {"--samples": "10"},
}
NUMBERS = (
    *("0", "-1", "1", "2", "3", "1.5", "0.1", "-0.1", "1e-3", "1e400", "-1e400", "nan", "inf", "-inf", "1_0", "0x10"),
    *("", " ", "x", "ten", "True", "none", "None", "[1]", "1,2", "9" * 30, "1000000000", "--", "-"),
)
WORDS = (
    *("td", "quadratic", "tdd", "FedHSA", "fedhsa", "FedHSA(", "FedHSA)", "FedHSA()", "FedHSA(0.1", "Averaged(FedHSA)"),
    *("Averaged", "Averaged(Averaged)", "FedHSA(local_steps=0)", "FedHSA(step_size='x')", "Lossy(FedHSA, 2)", "SA"),
    *("FedHSA(0.1, 2, 3, 4)", "FedHSA(stepsize=1)", "__import__('os')", "1", "", "*", "no.py:build", "os:getcwd"),
    *("math:pi", "a:b:c", "FedHSA(0.1, 2); LocalSA", "FedHSA(10**9)", "(FedHSA)", "FedHSA, LocalSA", "\u00e9", "-h"),
    *("Partial(FedHSA, UniformSampling(9))", "Compressed(FedHSA, TopK(0))", "Gossip(LocalSA, Ring)", "LocalSA(-1, 1)"),
)
PAIRS = (
    *("noise_std=0.2", "noise_std=-1", "noise_std=nan", "noise_std=", "=1", "noise_std", "noise_std=x", "noise-std=1"),
    *("b_level=inf", "noise_radius=2", "convex=maybe", "start=zero", "start=middle", "num_states=3", "num_states=0"),
    *(
        "environment=frozen-lake",
        "environment=no-such",
        "size=-1",
        "key=1",
        "dim=3",
        "min_eigenvalue=[1]",
        "x={",
        "y=[",
    ),
    *("step_size=[0.1]", "step_size=[]", "step_size=0.1", "local_steps=[1,0]", "num_agents=[0]", "num_agents=[1,2]"),
    *("local_steps=[[1,2]]", "heterogeneity=[0.5,2]", "burn_in=[1]", "step_size=['a']", "step_size=[nan]"),
)
PATHS = ("/proc/nope", "", "nowhere.toml", "bad.toml", "good.toml", "folder", "/dev/null", "a\x01b", "x" * 300)
TAKES_PAIRS, TAKES_WORDS = ("--option", "--over"), ("--algorithm", "--problem")
TAKES_PATHS = ("--out", "--config", "--from", "--data", "--root-certificates", "--write", "--agent", "--label")
LONG_WORK = ("demo", "ray", "grpc", "node", "superlink", "flower")
"""Commands of `deploy` that start other programs: they are only asked for help here, and given mistakes."""


def flags(kind: type[AbstractFlags]) -> list[str]:
    """The flags of a command, as a user would read them in its help."""
    return ["--" + field.name.rstrip("_").replace("_", "-") for field in dataclasses.fields(kind)]


def value(flag: str, chance: random.Random) -> list[str]:
    """What somebody puts after a flag: of the right kind or not, several, or nothing."""
    pool = NUMBERS
    for names, words in ((TAKES_PAIRS, PAIRS), (TAKES_WORDS, WORDS), (TAKES_PATHS, PATHS)):
        pool = words if flag in names else pool
    pool = chance.choice((pool, pool, pool, pool, NUMBERS + WORDS + PAIRS + PATHS))
    return chance.choices(pool, k=chance.choice((0, 1, 1, 1, 1, 1, 1, 2, 3)))


def command_line(chance: random.Random) -> list[str]:
    """One command with small sizes, and one to three flags more, most of them wrong."""
    command = chance.choice(
        (*COMMANDS, *COMMANDS, *COMMANDS, "deploy", "deploy", "reproduce", "list", "rnu", "--x", "")
    )
    words, kind, sizes = [command], COMMANDS.get(command), dict(SMALL)
    if command == "deploy":
        name = chance.choice((*DEPLOY, "nope"))
        words, kind = ["deploy", name], DEPLOY.get(name)
        sizes |= {"--rounds": "2"}
        if name in LONG_WORK:
            return [*words, chance.choice(("--help", "--rounds=0", "--nope", "--algorithm=x", "--step-size=-1", "-x"))]
    if command == "reproduce":
        return [*words, *chance.choice((["--list"], ["nope"], ["--seeds", "1"], ["td/*", "--seeds", "x"], ["--nope"]))]
    if kind is None:
        return [*words, *chance.choices((*NUMBERS, *WORDS, "problems", "--help"), k=chance.randrange(3))]
    known = flags(kind)
    sizes = {flag: size for flag, size in (sizes | OF.get(command, {})).items() if flag in known}
    added: list[str] = []
    for flag in chance.choices([*known, "--nope", "-z"], k=chance.choice((1, 1, 2, 3))):
        flag = flag if chance.random() < 0.95 else flag[:-1]
        sizes.pop(flag, None)
        given = value(flag, chance)
        joined = [f"{flag}={given[0]}", *given[1:]] if given and chance.random() < 0.2 else [flag, *given]
        added += joined
    first = chance.choices((*index.read()["problems"], *WORDS), k=1) if chance.random() < 0.2 else []
    if "--out" in known and "--out" not in added:
        sizes["--out"] = "out"
    shared = [part for pair in sizes.items() for part in pair]
    return [*words, *first, *shared, *added] if chance.random() < 0.8 else [*words, *first, *added, *shared]


class LateError(BaseException):
    """A command line that takes too long; nothing in between may catch it."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def late(*_):
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Computed(Exception):  # noqa: N818
    """Everything was understood, and the computation would begin."""


@pytest.fixture
def refused_or_understood(tmp_path, monkeypatch):
    """A folder with files of both kinds, and commands that stop where they would begin to compile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("rounds = = 1")
    (tmp_path / "good.toml").write_text("rounds = 3\n[option]\nnoise_std = 0.1\n")
    (tmp_path / "folder").mkdir()

    def begin(*_, **__):
        raise Computed

    modules = {
        "simulate": ("cli.run", "engine.sweep", "comparison.contest"),
        **{"analyse": ("cli.analyze",), "start": ("cli.hosts",), "join_processes": ("cli.hosts",)},
        "in_memory": ("deploy",),
    }
    for name, module in ((name, module) for name, found in modules.items() for module in found):
        monkeypatch.setattr(importlib.import_module(f"fedhsa.{module}"), name, begin)
    monkeypatch.setattr("fedhsa.cli.forecast.Forecast.announce", lambda *_: [])
    monkeypatch.setattr(programs, "kept", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(memory, "total", lambda: 16 * 2**30)  # larger machines begin with larger problems
    return tmp_path


def outcome(words: list[str]) -> tuple[int | None, str, str]:
    """The exit code, None where the computation would begin, and what was printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), limited(SECONDS):
        try:
            code = main(words)
        except Computed:
            code = None
    return code, out.getvalue(), err.getvalue()


def complaint(words: list[str]) -> str:
    """What is wrong with the answer to a command line; nothing if it is as it should be."""
    try:
        code, out, err = outcome(words)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"
    said = [line for line in err.splitlines() if not line.startswith("Warning: ")]
    if "Traceback" in out + err:
        return "a traceback was printed"
    if code in (1, 2) and (len(said) != 1 or not said[0].startswith("fedhsa: ") or len(said[0]) < 20):
        return f"it failed without one sentence: {said}"
    if code not in (None, 0, 1, 2):
        return f"exit code {code}"
    helps = {"--help", "-h", "list", "--list", "status"} & {*words}
    if code == 0 and not helps and words[0] not in ("list", "analyze", "deploy") and words != [""]:
        return "exit code 0, and nothing was computed"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_no_command_line_ends_in_a_traceback_or_hangs_or_passes_as_nonsense(part, refused_or_understood):
    chance = random.Random(part)
    failed = []
    for _ in range(COUNT // 6):
        words = command_line(chance)
        if found := complaint(words):
            failed.append(f"{words}: {found}")
        for folder in (pathlib.Path("out"), pathlib.Path("runs")):
            assert not folder.is_file()
    assert "\n".join(failed) == ""


NONSENSE = [
    *(["run", "--rounds", number] for number in ("0", "-1", "1.5", "nan", "ten", "", "9" * 30)),
    *(["run", "--step-size", number] for number in ("0", "-1", "nan", "inf", "x", "1e400")),
    *(["run", "--heterogeneity", number] for number in ("-0.1", "1.1", "nan", "x")),
    *([command, *words] for command in COMMANDS for words in (["nope"], ["--nope"], ["--num-agents", "0"])),
    *([command, "--option", pair] for command in COMMANDS for pair in ("noise_std=nan", "nope=1", "x")),
    ["sweep", "--over", "step_size=[nan]"],
    ["sweep", "--over", "step_size=['a']"],
    ["sweep", "--over", "local_steps=[1,0]"],
    ["compare", "--target", "0"],
]


@pytest.mark.slow
@pytest.mark.parametrize("words", NONSENSE, ids=" ".join)
def test_nonsense_is_refused(words, refused_or_understood):
    assert outcome(words)[0] == 2
