"""`fedhsa deploy`: a run by messages, in one process, on Ray, or between real nodes over gRPC or on Flower."""

import contextlib
import dataclasses
import json
import pathlib
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from .. import _own, deploy
from .._extras import need
from .._version import versions
from ..deploy.journal import PREFIX, read
from ..deploy.outcome import carry_out
from ..deploy.privacy import Account, epsilon
from ..deploy.site import in_words, log_to
from ..engine import Result
from ..outputs import read_manifest
from . import node, programs, status
from .deploy_settings import (
    AbstractDeploySettings,
    DemoSettings,
    FlowerSettings,
    GrpcSettings,
    MemorySettings,
    RaySettings,
    StatusSettings,
)
from .errors import FailedRunError
from .output import INTERRUPTED, writable
from .parsing import parse, parse_flags
from .screen import chart
from .tracks import Tracks, watched
from .watching import Watch, watching


def main(args: Sequence[str], console: Console) -> int:
    """Runs the command whose name is the first argument and returns the exit code."""
    command, *rest = args
    commands: dict[str, Callable[[list[str], Console], int]] = {
        "demo": _demo,
        "memory": _memory,
        "ray": _ray,
        "grpc": _grpc,
        "flower": _flower,
        "superlink": node.superlink,
        "node": node.node,
        "status": _status,
    }
    try:
        return commands[command](rest, console)
    except deploy.FederationError as error:
        raise FailedRunError(str(error)) from error


def _memory(args: list[str], console: Console) -> int:
    settings = parse(MemorySettings, args)
    plan, folder = settings.plan(), settings.folder
    faults = deploy.Faults(settings.faults) if settings.faults else None
    with (
        programs.kept(settings.cache),
        writable(folder),
        _watching(settings, console) as watch,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(log_to(folder / "logs" / "sites.log"))
        server = deploy.in_memory(
            plan,
            folder,
            missing=settings.policy(),
            faults=faults,
            watch=watch,
            config=settings.config_of_sites(),
            reply_bound=settings.reply_bound,
        )
        result = carry_out(plan, server, settings.rounds, folder, settings.resume, _command(settings, args))
    if faults is not None:
        counts = {kind: faults.happened.count(kind) for kind in deploy.FAULTS}
        _print(console, "Survived: " + ", ".join(f"{n} x {kind}" for kind, n in counts.items() if n))
    return _finish(console, settings, result)


def _ray(args: list[str], console: Console) -> int:
    settings = parse(RaySettings, args)
    plan, folder = settings.plan(), settings.folder
    from ..deploy.ray import federate_on_ray

    if settings.address == "local":
        _rehearse(plan, settings)
    with programs.kept(settings.cache), writable(folder), _watching(settings, console) as watch:
        result = federate_on_ray(
            plan,
            address=settings.address,
            actors=settings.actors,
            folder=folder,
            watch=watch,
            config=settings.config_of_sites(),
            **_terms(settings, args),
        )
    return _finish(console, settings, result)


def _grpc(args: list[str], console: Console) -> int:
    settings = parse(GrpcSettings, args)
    need_grpc()
    with programs.kept(settings.cache), writable(settings.folder), _watching(settings, console) as watch:
        result = _serve_grpc(settings, settings.listen, settings.keys, watch, args, console)
    return _finish(console, settings, result)


def _serve_grpc(
    settings: AbstractDeploySettings, listen: str, keys: pathlib.Path, watch: Watch, args: list[str], console: Console
) -> Result:
    from ..deploy.grpc import federate_on_grpc

    return federate_on_grpc(
        settings.plan(),
        listen=listen,
        keys=keys,
        folder=settings.folder,
        watch=watch,
        say=lambda words: _print(console, words),
        sync=getattr(settings, "sync", True),
        **_terms(settings, args),
    )


def need_grpc() -> None:
    """Raises `ModuleNotFoundError` if the packages for gRPC are not installed."""
    need("gRPC", "grpc", "grpc")
    need("cryptography, which reads keys,", "cryptography", "grpc")


def _demo(args: list[str], console: Console) -> int:
    settings = parse(DemoSettings, args)
    return (_demo_on_flower if settings.transport == "flower" else _demo_over_grpc)(settings, args, console)


def _demo_over_grpc(settings: DemoSettings, args: list[str], console: Console) -> int:
    need_grpc()
    from ..deploy.local import LocalNodes, free_port

    plan, folder = settings.plan(), settings.folder.absolute()
    _rehearse(plan, settings)
    own, listen = _node_arguments(plan, settings), f"127.0.0.1:{free_port()}"
    with programs.kept(settings.cache), writable(folder):
        _print(console, f"Starting {plan.num_agents} nodes on this machine, with encryption and one key each ...")
        with (
            LocalNodes(
                plan.num_agents,
                listen,
                arguments=lambda number: [*own, "--state", str(folder / "sites" / f"node-{number}")],
                logs=None if settings.verbose else folder / "logs",
            ) as nodes,
            _watching(settings, console) as watch,
        ):
            result = _serve_grpc(settings, listen, nodes.keys / "server", watch, args, console)
    console.print("The nodes are stopped.")
    return _finish(console, settings, result)


def _demo_on_flower(settings: DemoSettings, args: list[str], console: Console) -> int:
    need("Flower", "flwr", "flower")
    from ..deploy.flower.network import Network

    plan, folder = settings.plan(), settings.folder.absolute()
    _rehearse(plan, settings)
    scratch = tempfile.TemporaryDirectory(prefix="fedhsa-app-")
    own = [] if settings.stock else _node_arguments(plan, settings)
    with programs.kept(settings.cache), writable(folder), scratch as home:
        kind = "SuperNodes" if settings.stock else "nodes"
        _print(console, f"Starting a SuperLink and {plan.num_agents} {kind}, with encryption and one key each ...")
        with Network(
            plan.num_agents,
            arguments=lambda node: [*own, "--state", str(folder / "sites" / f"node-{node}")],
            stock=settings.stock,
            logs=folder / "logs",
        ) as network:
            app = pathlib.Path(home, "app")
            _write(app, settings, folder, folder / "sites", args, network.keys / "server")
            slow = " Flower starts a process for every message: a round takes a while." if settings.stock else ""
            _print(console, f"All nodes are online.{slow}")
            with _watching(settings, console) as watch:
                code = network.run(app, on_line=_line_printer(console, watch, settings.verbose))
    console.print(f"The SuperLink and the {kind} are stopped.")
    _print_privacy(console, settings)
    return _finish_flower(console, folder, code)


def _node_arguments(plan: deploy.Plan, settings: AbstractDeploySettings) -> list[str]:
    """The arguments with which a node on this machine takes part in a plan."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.config_of_sites().items() if value]
    words = ["--release-metrics" if word.startswith("--release-metrics") else word for word in words]
    files: list[str] = []
    whole = plan.with_whole_paths()
    whole.replace(agent=None).with_files(lambda found: files.append(f"{found.path}:{found.name}") or str(found))
    agent = [] if whole.agent is None else ["--agent", whole.agent]
    if plan.secure_aggregation:
        words.append("--secure-aggregation")
    return [*words, *agent, *(["--allow", *files] if files else [])]


def _flower(args: list[str], console: Console) -> int:
    settings = parse(FlowerSettings, args)
    need("Flower", "flwr", "flower")
    if settings.write is not None:
        app = _write(settings.write, settings, settings.folder, settings.state, args)
        _print(console, f"Flower app: {app}")
        _print(console, f"Run it with `flwr run {app} SUPERLINK --stream`; its settings are in its pyproject.toml.")
        return 0
    from ..deploy.flower.network import run_on
    from ..deploy.flower.superlink import server_keys

    here = settings.keys is not None  # then the SuperLink is on this machine
    folder = settings.folder.absolute() if here else settings.folder
    with tempfile.TemporaryDirectory(prefix="fedhsa-app-") as home, _watching(settings, console) as watch:
        on_line = _line_printer(console, watch, settings.verbose)
        keys = "" if settings.keys is None else server_keys(settings.keys)
        app = _write(pathlib.Path(home, "app"), settings, folder, settings.state, args, keys)
        certificates = settings.root_certificates if settings.keys is None else settings.keys / "ca.crt"
        with writable(folder) if here else contextlib.nullcontext():
            code = run_on(str(settings.superlink), app, on_line=on_line, root_certificates=certificates)
    if here:
        return _finish_flower(console, folder, code)
    if code:
        raise FailedRunError("The run did not complete; `--verbose` shows the complete output of Flower.")
    _print(console, f"The results are on the SuperLink's machine, in {settings.folder}.")
    return 0


def _status(args: list[str], console: Console) -> int:
    settings = parse_flags(StatusSettings, args, StatusSettings())
    return status.show(settings.folder, settings.json, console)


def _write(
    folder: pathlib.Path, settings: AbstractDeploySettings, out: Any, state: Any, args: list[str], keys: Any = ""
) -> pathlib.Path:
    from ..deploy.flower.write import write_app

    return write_app(
        folder,
        settings.plan(),
        out=out,
        state=state,
        config=settings.config_of_sites(),
        events="words" if getattr(settings, "write", None) is not None else "json",
        keys=keys,
        **_terms(settings, args),
    )


def _rehearse(plan: deploy.Plan, settings: AbstractDeploySettings) -> None:
    """Builds an agent in this process first: in the processes of a federation an error takes a minute to appear."""
    if plan.agent is None:
        return
    try:
        plan.rehearse(settings.config_of_sites())
    except Exception as error:
        raise FailedRunError(f"Agent 0 could not be built: {in_words(error)}") from error


@contextlib.contextmanager
def _watching(settings: AbstractDeploySettings, console: Console) -> Iterator[Watch]:
    if settings.epsilon is not None and settings.noise is None:  # `--epsilon` implies the noise
        found = settings.config_of_sites()
        deviation = 2 * found["noise"] * found["clip"]
        _print(
            console,
            f"Privacy: epsilon {settings.epsilon:g} requires noise {found['noise']:.3g} at clip {found['clip']:g}, a "
            f"standard deviation of {deviation:.3g} in every number of a reply.",
        )
    tracks = Tracks(settings, settings.folder)
    tracks.take("curves.png", "metrics.png", "manifest.json")
    plan = dataclasses.asdict(settings.plan())
    told = watched(tracks, _own.labels(settings.algorithm)[0], {**plan, "versions": versions()})
    with tracks.open(), watching(console, settings.metrics, settings.progress) as shown:

        def watch(event: dict[str, Any]) -> None:
            shown(event)
            told(event)

        yield watch


def _print(console: Console, text: str) -> None:
    """Prints a sentence without wrapping it, so that paths and commands in it can be copied."""
    console.print(text, soft_wrap=True)


def _command(settings: AbstractDeploySettings, args: Sequence[str]) -> str:
    return shlex.join(["fedhsa", *settings.command.split(), *args])


def _terms(settings: AbstractDeploySettings, args: Sequence[str]) -> dict[str, Any]:
    """The arguments of a run that are the same on every transport."""
    terms = {"rounds": settings.rounds, "missing": settings.policy(), "resume": settings.resume}
    return {**terms, "reply_bound": settings.reply_bound, "command": _command(settings, args)}


def _line_printer(console: Console, watch: Watch, verbose: bool) -> Callable[[str], None]:
    """Returns a function for the lines of our server, which passes events to `watch` and prints sentences.

    With `verbose` it also prints the lines of Flower.
    """

    def show(line: str) -> None:
        if line.startswith(PREFIX):
            words = line.removeprefix(PREFIX)
            try:
                event = json.loads(words) if words.startswith("{") else None
            except ValueError:  # a line that was cut off on its way
                event = None
            if event is None:
                _print(console, words)
            else:
                watch(event)
        elif verbose:
            _print(console, line)

    return show


def _finish(console: Console, settings: AbstractDeploySettings, result: Result) -> int:
    _print_curve(console, settings.folder)
    _print_privacy(console, settings)
    if not result.complete:
        console.print("Interrupted: the finished rounds are saved. Continue with the same command and `--resume`.")
        return INTERRUPTED
    return 0


def _print_curve(console: Console, folder: pathlib.Path) -> None:
    """Prints the curve of the run in this folder, if there is one, and the path of its figure."""
    if (curves := folder / "curves.npz").exists():
        with np.load(curves) as arrays:
            name = next(iter(arrays.files))  # the main metric comes first
            console.print(chart(arrays[name][0], name.rpartition("/")[2].replace("_", " ")))
        _print(console, f"Figure: {folder / 'curves.png'}")
        if (figure := folder / "metrics.png").exists():
            _print(console, f"Measurements of each site: {figure}, {figure.with_suffix('.csv')}")


def _print_privacy(console: Console, settings: AbstractDeploySettings) -> None:
    """Prints the privacy spent, according to the accounts of the sites in this folder."""
    privacy = deploy.Privacy.from_config(settings.config_of_sites())
    if privacy is None:
        return
    spent: dict[str, tuple[float, int]] = {}
    for path in (settings.folder / "sites").rglob("privacy.account"):
        account = Account(deploy.Store(path), privacy, [])
        spent |= {agent: (epsilon(sent, privacy.delta), sum(sent.values())) for agent, sent in account.sent.items()}
    if spent:
        most, replies = max(spent.values())
        worth = f"epsilon {most:.3g} at delta {privacy.delta:g}"
        _print(console, f"Privacy: an agent has sent up to {replies} replies over all runs in this folder, {worth}.")


def _finish_flower(console: Console, folder: pathlib.Path, code: int) -> int:
    _print_curve(console, folder)
    if code or not read_manifest(folder).get("complete"):
        with contextlib.suppress(OSError):
            for event in read(folder):
                if event["event"] == "failed":
                    raise FailedRunError(event.get("why"))
        raise FailedRunError(
            f"The run did not complete. Its log is {folder / 'log.jsonl'}, and the logs of Flower are in "
            f"{folder / 'logs'}. Continue the run with `--resume`."
        )
    return 0
