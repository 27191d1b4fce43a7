"""A plan as a standard Flower app: a folder for `flwr run`."""

import os
import pathlib
import re
from collections.abc import Mapping

from ... import _files, _own
from ..missing import Missing
from ..plan import Plan
from ..privacy import SETTINGS
from .client import STATE
from .processes import Value, toml

PACKAGE = "federation"
OWN = "own"
"""The folder for the user's files."""

_SERVER = '''\
"""The server's side: the plan is in pyproject.toml, the algorithm in fedhsa."""

import fedhsa.deploy.flower.server

app = fedhsa.deploy.flower.server.app
'''


def write_app(
    folder: str | os.PathLike,
    plan: Plan,
    *,
    rounds: int,
    out: str | os.PathLike = "runs/flower",
    state: str | os.PathLike = STATE,
    config: Mapping[str, Value] | None = None,
    missing: Missing | None = None,
    resume: bool = False,
    command: str = "",
    events: str = "words",
    reply_bound: float | None = None,
    keys: str | os.PathLike = "",
) -> pathlib.Path:
    """Writes the app and returns its folder.

    Files with your own code (`agent="my_site.py:build"`, `problem="mine.py:build"`, `algorithm="mine.py:HalfHSA"`)
    are copied into the app, so that every node receives them with the app; the data that they read are not copied.
    Imports of such a file from its own folder are not supported: they raise an error.

    **Arguments:**

    - `folder`: a new or empty folder, or the folder of an earlier app, which is replaced.
    - `plan`: the plan.
    - `rounds`, `missing`, `resume`, `reply_bound`: the settings of the run; `flwr run --run-config` can replace them.
    - `out`: the folder for results, on the server's machine.
    - `events`: the form in which the server prints events: `"words"`, or `"json"` for a program.
    - `state`: the folder for the agents' states, on each node's machine.
    - `keys`: the server's folder with keys, on its machine, which signs requests and checks replies. fedhsa's nodes
      answer only signed requests. Default: no keys, which only stock SuperNodes accept.
    - `config`: settings for nodes that do not have their own: `data` for a user's function (`{number}`
      stands for the agent's number), `clip`, `noise`, `epsilon` and `delta` for `Privacy`.
    """
    folder, missing = pathlib.Path(folder), Missing() if missing is None else missing
    package = folder / PACKAGE
    if folder.exists() and any(folder.iterdir()) and not (package / "client.py").exists():
        raise FileExistsError(f"`folder`: {str(folder)!r} holds something else than an app. Name another folder.")
    missing.check(plan.method)  # raises if the algorithm does not fit, before anything is written
    shipped: dict[pathlib.Path, str] = {}

    def ship(found: _own.Reference) -> str:
        _own.check("agent", found)
        if beside := _own.neighbours(found.path):
            raise ValueError(
                f"{found.place} imports {', '.join(beside)} from its folder, which a Flower app does not carry. "
                "Put all of it into one file, or into a package that is installed on every node."
            )
        if found.path not in shipped:
            name = re.sub(r"\W|^(?=\d)", "_", found.path.stem)
            shipped[found.path] = f"{name}_{len(shipped)}" if name in shipped.values() else name
        return f"{PACKAGE}.{OWN}.{shipped[found.path]}:{found.name}"

    told, plan = plan.told(), plan.with_files(ship)
    settings: dict[str, Value] = {
        "plan": plan.to_json(),
        "told": told.to_json(),
        "rounds": rounds,
        "resume": resume,
        "out": os.fspath(out),
        "state": os.fspath(state),
        **dict.fromkeys(("data", *SETTINGS, "release_metrics"), ""),
        **{name: value if name == "data" else str(value) for name, value in (config or {}).items()},
        "missing": missing.action,
        "patience": missing.seconds,
        "at-least": missing.at_least,
        "reply-bound": 0.0 if reply_bound is None else reply_bound,
        "command": command,
        "events": events,
        "keys": os.fspath(keys),
    }
    package.mkdir(parents=True, exist_ok=True)
    for before in (package / OWN).glob("*.py"):
        before.unlink()
    for path, module in shipped.items():
        _files.write_text(package / OWN / f"{module}.py", path.read_text(encoding="utf-8"))
    if shipped:
        _files.write_text(package / OWN / "__init__.py", '"""The files that the plan names."""\n')
    _files.write_text(package / "__init__.py", '"""A run of fedhsa on Flower."""\n')
    _files.write_text(package / "server.py", _SERVER)
    _files.write_text(package / "client.py", _beside("client.py"))
    _files.write_text(folder / "pyproject.toml", _beside("app.toml") + toml(settings))
    return folder


def _beside(name: str) -> str:
    """The text of a file in this folder."""
    return pathlib.Path(__file__).with_name(name).read_text(encoding="utf-8")
