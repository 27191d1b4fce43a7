"""The command line: `fedhsa run`, `fedhsa compare` and the other commands that `fedhsa --help` lists."""

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from .._version import __version__

HELP = """\
usage: fedhsa COMMAND [OPTIONS]

Federated stochastic approximation with Markovian data and heterogeneous agents.

commands:
  run        run algorithms on a problem with many seeds, and plot their errors
  compare    tune algorithms with equal effort, run them on fresh seeds, rank them
  sweep      run one algorithm with many settings, and plot its final error
  analyze    predict stability, rate, bias and noise floor without a simulation
  reproduce  make every figure of the paper and check its claims, on one page
  deploy     run on a real federation (gRPC, Flower) or a cluster (Ray)
  lab        open an interactive page with sliders in the browser
  new        write a starting file for your own algorithm, problem or study
  list       list problems, algorithms, wrappers, environments and their arguments
  examples   list the examples in the package, and copy them
  completion print a script that makes the shell complete commands and flags

options:
  --version  show the version
  -h, --help

examples:
  FedHSA and LocalSA on the paper's quadratic problem:
    fedhsa run
  the same algorithms on temporal-difference learning:
    fedhsa run td --num-agents 20 --step-size 0.05
  settings from a file, with one of them replaced:
    fedhsa examples copy quadratic
    fedhsa run --config examples/quadratic.toml --seeds 8
  a ranking of three methods on temporal-difference learning:
    fedhsa compare td --algorithm FedHSA LocalSA SynchronisedSA
  the final error for several step sizes and numbers of local steps:
    fedhsa sweep --over 'step_size=[0.005,0.01,0.02]' 'local_steps=[1,10]'
  a prediction, and settings that reach an error of 1e-4:
    fedhsa analyze quadratic --target 1e-4
  the paper's claims, checked in one minute instead of five:
    fedhsa reproduce --quick
  a federation of three nodes on this machine:
    fedhsa deploy demo
  the environments in which agents can learn:
    fedhsa list environments
  your own method in the file half_hsa.py with a test, and compared with others:
    fedhsa new algorithm HalfHSA
    fedhsa compare --algorithm half_hsa.py:HalfHSA FedHSA LocalSA

`fedhsa run` writes a figure (PNG, PDF), the curves (CSV, NPZ) and a manifest
(JSON) to runs/PROBLEM or to `--out`; `fedhsa compare` writes to
runs/PROBLEM/compare. `fedhsa analyze` prints a page and saves a figure.
`fedhsa reproduce` writes results/report.html. `fedhsa COMMAND --help`
explains the settings of a command.
"""
COMPUTING = ("run", "compare", "sweep", "analyze")
COMMANDS = {name: name for name in (*COMPUTING, "reproduce", "deploy", "lab", "new", "list", "examples", "completion")}
COMMANDS |= {"deploy": "deploy_commands", "list": "listing"}
"""The commands and the modules that run them; only the requested module is loaded."""
WORDED = ("new", "examples", "completion")
"""The commands that take words and show the text `HELP` of their modules without any."""


def main(argv: Sequence[str] | None = None, **options: Any) -> int:
    """Runs the command line and returns the exit code: 0 success, 1 failure, 2 wrong arguments, 130 interrupted.

    `options` are passed on to the command; a process that starts another one uses them.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *where: _say(f"Warning: {message}", 0)
        try:
            return _dispatch(arguments, options)
        except KeyboardInterrupt:
            return _say("Interrupted.", 130)
        except SystemExit as stop:  # tyro's, after `--help`
            return int(stop.code or 0)


def _dispatch(arguments: list[str], options: dict[str, Any]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if arguments[0] == "--version":
        print(f"fedhsa {__version__}")
        return 0
    from rich.console import Console

    from .._check import nearest
    from .._files import BusyError
    from .errors import FailedRunError, UsageError

    command, *rest = arguments
    console = Console(markup=False, highlight=False, emoji=False)
    try:
        if command not in COMMANDS:
            near = nearest(command, COMMANDS)
            raise UsageError(f"fedhsa has the commands {', '.join(COMMANDS)}, got {command!r}.{near}")
        if command in COMPUTING:
            return _compute(command, rest, console, options)
        module = importlib.import_module(f".{COMMANDS[command]}", __name__)
        if command in WORDED and (not rest or {"-h", "--help"} & {*rest}):
            print(module.HELP, end="")
            return 0
        return module.main(rest, console)
    except (UsageError, ValueError) as error:
        return _say(f"fedhsa: {error}", 2)
    except (FailedRunError, BusyError, ImportError) as error:  # ImportError: a package that only some commands need
        return _say(f"fedhsa: {error}", 1)
    except MemoryError as error:
        return _say(f"fedhsa: This does not fit in memory: {error}. Use fewer agents, seeds or parameters.", 1)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f" ({error.filename!r})" if error.filename else ""
        return _say(f"fedhsa: {str(error.strerror or error).rstrip('.')}{where}.", 1)


def _compute(command: str, arguments: list[str], console: Any, options: dict[str, Any]) -> int:
    """Runs a command on a problem; help and wrong arguments are handled before JAX is imported."""
    from . import earlier, parsing, programs, settings

    given = parsing.parse(settings.COMMANDS[command], arguments)
    if isinstance(given, settings.ResultSettings) and not options:  # otherwise another process started this one
        earlier.check(given)
    with programs.kept(given.cache):
        return importlib.import_module(f".{command}", __name__).main(given, arguments, console, **options)


def _say(message: object, code: int) -> int:
    print(" ".join(str(message).split()), file=sys.stderr)
    return code
