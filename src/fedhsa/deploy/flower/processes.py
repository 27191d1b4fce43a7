"""Flower's commands as processes of this machine, which are watched and end together with all their child processes."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from fedhsa import _files
from fedhsa._extras import install

from ..local import free_port

Value = str | int | float | bool
"""The types of a setting of a Flower app or node."""

_KEEPER = str(pathlib.Path(__file__).with_name("_keeper.py"))
POLL = 0.05
_NAME = "federation"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# Runs an app if there are arguments, and lists the run's status, with one start of Flower's command line; its
# `run` ends with 0 even if the app failed.
_FLWR = """
import pathlib, sys, time
from flwr.cli.app import app

def flwr(*arguments):
    try:
        app(arguments)
    except SystemExit as end:
        if end.code:
            raise

if sys.argv[1:]:
    flwr("run", *sys.argv[2:])
    print(sys.argv[1], flush=True)
flwr("list", "--limit", "1", "--format", "json")
"""
_STATUS, _UNDER_WAY = "-- status of the run --", re.compile(r'"status": "(pending|starting|running)')


def toml(settings: Mapping[str, Value]) -> str:
    """Settings as a TOML file, which can contain any text; Flower's `key=value` options cannot."""
    lines = []
    for name, value in settings.items():
        if not isinstance(value, Value):
            raise ValueError(f"`{name}` must be a text, number or truth value, got {type(value).__name__}: {value!r}.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        text = repr(value) if is_number else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        lines.append(f"{json.dumps(name)} = {text}\n")
    return "".join(lines)


class Processes:
    """The temporary folder, the environment and the processes of one federation, and the commands on it.

    **Arguments:**

    - `logs`: a folder for the log files, which is kept. Default: the log files are removed with everything else.
    - `patience`: seconds that a process may take to be ready.
    """

    def __init__(self, logs: str | os.PathLike | None = None, patience: float = 120.0):
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        if shutil.which("flower-superlink", path=path) is None:
            raise ModuleNotFoundError(
                f"Flower is not installed for {sys.executable}. Install it with {install('flower')}."
            )
        # Flower starts its own helpers by name, so they must be found even when no environment is activated.
        self._environment = os.environ | {"PATH": path}
        self._logs = None if logs is None else pathlib.Path(logs).absolute()
        self.patience = patience
        self._kept: list[Kept] = []

    def __enter__(self) -> Self:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fedhsa-"))  # mode 0700
        reading, self._life = os.pipe()
        # Ends, and removes the folder, when this process and all keepers have closed their end of the pipe.
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", _KEEPER, "remove", str(self.folder)],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reading)
        self._handler = None
        try:
            self.log("run").parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "tmp").mkdir()
            # A terminated process must unwind its blocks, as an interrupted one does.
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        """Starts the processes that run from the beginning of the block."""

    def __exit__(self, *_: object) -> None:
        """Ends every process and removes the folder. All keepers are notified before any is waited for."""
        for process in self._kept:
            process.let_go()
        left = [process.pid for process in self._kept if not process.gone()]
        os.close(self._life)
        if not left:
            self._janitor.wait()
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
        if left:
            raise RuntimeError(f"Could not end the Flower processes {left} and what they started; end them by hand.")

    def log(self, name: str) -> pathlib.Path:
        """The log file of `superlink`, `gate`, `node-0`, ..., or `run`."""
        return (self._logs or self.folder / "logs") / f"{name}.log"

    def environment(self, machine: str) -> dict[str, str]:
        """The environment of one machine of the federation: its own home folder, and no telemetry."""
        direct = ",".join(filter(None, [self._environment.get("NO_PROXY"), "127.0.0.1,localhost"]))
        return self._environment | {
            "FLWR_HOME": str(self.folder / machine),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": direct,
            "no_proxy": direct,
        }

    def start(
        self, name: str, arguments: Sequence[str], *, stream: bool = False, where: pathlib.Path | None = None
    ) -> "Kept":
        """Starts a command under a keeper, with its own folder and log file; `where` is another folder."""
        # All of Flower's commands on the SuperLink run on one machine.
        machine = name if name.startswith(("superlink", "gate", "node-")) else "user"
        home = self.folder / machine
        home.mkdir(exist_ok=True)
        process = Kept(arguments, self.log(name), self.environment(machine), where or home, self._life, stream)
        self._kept.append(process)
        return process

    def failed(self, name: str, what: str) -> RuntimeError:
        return RuntimeError(f"Flower's {name} {what}. The end of its log:\n{tail(self.log(name))}")

    def superlink(
        self, arguments: Sequence[str], authority: pathlib.Path, chosen: int | None = None
    ) -> tuple["Kept", int]:
        """Starts a SuperLink in the current folder, to which its runs write results; waits until it answers.

        Returns its process and its port, which is `chosen` or a free one.
        """
        for _ in range(5):
            port = chosen or free_port()
            command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(port), *arguments]
            command += ["--disable-runtime-dependency-installation"]
            process = self.start("superlink", command, where=pathlib.Path.cwd())
            deadline = time.monotonic() + self.patience
            while not (answered := _answers(port, authority)) and process.alive and time.monotonic() < deadline:
                time.sleep(POLL)
            if process.alive and answered:
                return process, port
            taken = "address already in use" in process.output()
            process.kill()
            if chosen is not None or not taken:
                hint = f": port {port} is taken, name another `port`" if taken else ""
                raise self.failed("superlink", f"did not start{hint}")
        raise self.failed("superlink", "found no free port")

    def point_to(self, address: str, authority: pathlib.Path | None) -> None:
        """Configures Flower's command line: the address of the SuperLink, and the authority of its certificate."""
        trust: dict[str, Value] = {"insecure": True} if authority is None else {"root-certificates": str(authority)}
        lines = f'[superlink]\ndefault = "{_NAME}"\n[superlink.{_NAME}]\n' + toml({"address": address, **trust})
        _files.write_text(self.folder / "user" / "config.toml", lines)

    def run(
        self,
        app: str | os.PathLike,
        config: Mapping[str, Value] | None = None,
        on_line: Callable[[str], object] | None = None,
    ) -> int:
        """Runs a Flower app on the federation and returns 0 only if Flower reports that it was completed.

        **Arguments:**

        - `app`: the folder with the app's `pyproject.toml`.
        - `config`: overrides of `[tool.flwr.app.config]`; its keys must be listed there.
        - `on_line`: a function that is called with each line of the server's output as it arrives.
        """
        app = pathlib.Path(app).absolute()
        if not (app / "pyproject.toml").is_file():
            raise FileNotFoundError(f"`app`: {str(app)!r} has no pyproject.toml. Name the folder of a Flower app.")
        command = [sys.executable, "-c", _FLWR, _STATUS, str(app), _NAME, "--stream"]
        if config:
            _files.write_text(self.folder / "run.toml", toml(config))
            command += ["--run-config", str(self.folder / "run.toml")]
        process = self.start("run", command, stream=True)
        lines = process.lines()
        try:
            for line in itertools.takewhile(lambda line: line != _STATUS, lines):
                if on_line is not None:
                    on_line(line)
            status = "\n".join(lines)
        finally:
            process.kill()
        # On an overloaded machine, Flower's stream of lines may end before the run does.
        while not process.returncode and _UNDER_WAY.search(status):
            time.sleep(5)
            process = self.start("status", [sys.executable, "-c", _FLWR], stream=True)
            status = "\n".join(process.lines())
            process.kill()
        return process.returncode or (0 if "finished:completed" in status else 1)


class Kept:
    """A command under a keeper; it and all its child processes end when the keeper is released or this process ends."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: pathlib.Path,
        environment: Mapping[str, str],
        folder: pathlib.Path,
        life: int,
        stream: bool,
    ):
        self._log = log
        self._begin = log.stat().st_size if log.exists() else 0
        reading, writing = os.pipe()
        try:
            with open(log, "ab") as file:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", _KEEPER, "run", str(writing), *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if stream else file,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=dict(environment),
                    pass_fds=(writing, life),
                    start_new_session=True,
                )
        finally:
            os.close(writing)
            with open(reading, "rb") as file:
                written = file.read()
        self.pid = int(written or self._keeper.pid)

    @property
    def alive(self) -> bool:
        return self._keeper.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._keeper.poll()

    def output(self) -> str:
        with open(self._log, "rb") as file:
            file.seek(self._begin)
            return file.read().decode(errors="replace")

    def lines(self) -> Iterator[str]:
        """The lines of its output as they arrive, without colours; they are also written to the log."""
        assert self._keeper.stdout is not None
        with open(self._log, "ab", buffering=0) as file:
            for line in self._keeper.stdout:
                file.write(line)
                yield _COLOUR.sub("", line.decode(errors="replace")).rstrip("\r\n")

    def let_go(self) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()

    def gone(self) -> bool:
        """Waits until all its child processes have ended; the keeper ends last."""
        try:
            self._keeper.wait(timeout=30)
        except subprocess.TimeoutExpired:
            return False
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()
        return True

    def kill(self) -> None:
        self.let_go()
        self.gone()

    def stop(self) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.write(b"stop\n")
            self._keeper.stdin.flush()
            self._keeper.wait(timeout=30)
        self.kill()


def tail(log: pathlib.Path, lines: int = 20) -> str:
    """The last lines of a log file."""
    if not log.exists():
        return "(no log)"
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
        text = _COLOUR.sub("", file.read().decode(errors="replace")).strip()
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "(empty)"


def _answers(port: int, authority: pathlib.Path) -> bool:
    """Whether a SuperLink answers on this port, with a certificate of this authority."""
    import httpx  # comes with Flower

    trust = ssl.create_default_context(cafile=str(authority))
    with contextlib.suppress(httpx.HTTPError):
        return (
            httpx.get(f"https://127.0.0.1:{port}/health", verify=trust, timeout=2, trust_env=False).status_code == 200
        )
    return False
