"""The list of the commands of `fedhsa deploy` and their help, which does not import JAX."""

import importlib

from rich.console import Console

from .._check import nearest
from .deploy_settings import COMMANDS
from .errors import UsageError
from .parsing import parse_flags

HELP = """\
usage: fedhsa deploy COMMAND [OPTIONS]

Runs an algorithm by messages between a server and agents that keep their data.

commands:
  demo       run a real federation on this machine, for a first try (seconds)
  memory     run everything in one process, optionally with faults (seconds)
  ray        divide the agents among the processes of a cluster
  grpc       run the server of a federation over gRPC
  node       run a node of a federation, over gRPC or on Flower
  superlink  run Flower's SuperLink behind a gate, for a federation on Flower
  flower     start a run on a Flower federation, or write a Flower app
  keys       create, request, sign, renew, list and exclude certificates
  init       write files for docker compose, systemd and Kubernetes
  doctor     check whether this machine can take part, and suggest remedies
  status     show the progress of a run, during the run or afterwards

Every command explains its settings with `--help`. docs/deploy/index.md leads from
a laptop to three machines and to your own data.
"""

MODULES = ("keys", "init", "doctor")
"""The commands that have their own module, which parses their settings."""


def main(args: list[str], console: Console) -> int:
    """Runs the command with these arguments and returns the exit code."""
    if not args or args[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    command, *rest = args
    names = [*COMMANDS, *MODULES]
    if command not in names:
        near = nearest(command, names)
        raise UsageError(f"fedhsa deploy has the commands {', '.join(names)}, got {command!r}.{near}")
    if command in MODULES:
        return importlib.import_module(f".{command}", __package__).main(rest, console)
    if {"-h", "--help"} & {*rest}:
        parse_flags(COMMANDS[command], rest)  # shows it, and ends
    return importlib.import_module(".deploy", __package__).main(args, console)
