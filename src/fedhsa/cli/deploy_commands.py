"""The commands of `fedhsa deploy`: which there are and what they say of themselves, without waiting for JAX."""

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
  demo       a real federation on this machine, to try: seconds
  memory     everything in one process, optionally with faults: seconds
  ray        agents divided among the processes of a cluster: thousands of rounds
  grpc       a run between sites over gRPC: this is its server
  node       a node of a federation, over gRPC or on Flower, which stays
  superlink  Flower's SuperLink behind a gate, for a federation on Flower
  flower     a run on such a federation, or a Flower app to run yourself
  keys       certificates and keys: make, request, sign, renew, list, exclude
  init       files for docker compose, systemd and Kubernetes, server and site
  doctor     what keeps this machine from taking part, and what to do
  status     how far a run is, while it runs or afterwards

Every command explains its settings with `--help`. docs/deploy/index.md leads from a
laptop to three machines and to your own data.
"""

MODULES = ("keys", "init", "doctor")
"""The commands with a module of their own, which reads their settings."""


def main(args: list[str], console: Console) -> int:
    """Runs the command with these arguments; gives the exit code."""
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
