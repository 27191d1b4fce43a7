"""`fedhsa new`: writes a first file for an algorithm, a problem or a study, and its test against a naive loop."""

import importlib.util
import keyword
import pathlib
import re
import sys

from rich.console import Console

from .. import _files
from .._check import nearest
from .errors import UsageError

KINDS = {
    "algorithm": (
        "fedhsa run --algorithm {file}.py:{name} FedHSA",
        "fedhsa compare td --algorithm {file}.py:{name} FedHSA LocalSA",
    ),
    "problem": (
        "fedhsa run {file}.py:build --num-agents 10 --option num_examples=50",
        "fedhsa analyze {file}.py:build",
    ),
    "study": ("python {file}.py", "fedhsa compare {file}.py:build"),
}
"""The kinds of skeletons, each with the commands to type after the test."""
HELP = """\
usage: fedhsa new algorithm|problem|study NAME

Writes NAME's file to the current folder, commented and running, and a test that
compares it with a loop in plain NumPy.

  fedhsa new algorithm HalfHSA      half_hsa.py and test_half_hsa.py: a method
  fedhsa new problem Waiting        waiting.py and test_waiting.py: agents and
                                    their operators, on data of your own
  fedhsa new study Question         question.py and test_question.py: methods on
                                    a problem, with a table and a figure

Every command takes them by their files, `half_hsa.py:HalfHSA` where the name of
an algorithm may stand, `waiting.py:build` where that of a problem may:
  fedhsa compare waiting.py:build --algorithm FedHSA half_hsa.py:HalfHSA
Files that exist are not overwritten.
"""
SKELETONS = pathlib.Path(__file__).with_name("skeletons")


def main(arguments: list[str], console: Console) -> int:
    """Runs `fedhsa new` and returns the exit code."""
    kind, *rest = arguments
    if kind not in KINDS:
        raise UsageError(f"fedhsa new makes one of {', '.join(KINDS)}, got {kind!r}.{nearest(kind, KINDS)}")
    if len(rest) != 1:
        got = " ".join(rest) or "none"
        raise UsageError(f"fedhsa new {kind} needs one name, like `fedhsa new {kind} HalfHSA`, got {got}.")
    name, file = names(rest[0])
    texts = {f"{file}.py": kind, f"test_{file}.py": f"{kind}_test"}
    for path in texts:
        if pathlib.Path(path).exists():
            raise UsageError(f"{path!r} exists and is not overwritten. Choose another name, or another folder.")
    for path, skeleton in texts.items():
        text = (SKELETONS / f"{skeleton}.txt").read_text(encoding="utf-8")
        _files.write_text(pathlib.Path(path), text.replace("@NAME@", name).replace("@FILE@", file))
    console.print(f"Wrote {' and '.join(texts)}. Next:", soft_wrap=True)
    for command in ("python test_{file}.py", *KINDS[kind]):
        console.print(f"  {command.format(file=file, name=name)}", soft_wrap=True)
    return 0


def names(text: str) -> tuple[str, str]:
    """Returns the names of the class and of the file without its suffix; raises if they are not valid names.

    !!! example
        >>> names("HalfHSA"), names("waiting_times")
        (('HalfHSA', 'half_hsa'), ('WaitingTimes', 'waiting_times'))
    """
    file = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text).lower()
    if not (text.isascii() and text.isidentifier()) or keyword.iskeyword(text) or keyword.iskeyword(file):
        raise UsageError(f"`NAME` must be a name as Python has them, like HalfHSA or waiting_times, got {text!r}.")
    if file in sys.stdlib_module_names or _is_installed(file):
        raise UsageError(f"`NAME`: a file {file}.py would hide the module {file} from Python. Choose another name.")
    capitals = text if text[0].isupper() else "".join(part.capitalize() for part in text.split("_"))
    return capitals, file


def _is_installed(module: str) -> bool:
    """Returns whether Python finds a module of this name outside the current folder."""
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None and pathlib.Path(found.origin).parent != pathlib.Path.cwd()
