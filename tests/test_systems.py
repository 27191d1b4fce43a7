"""The page of all systems that the paper names: its commands run, and what it says checks them is there."""

import itertools
import re
import shlex

import numpy as np
import pytest

import fedhsa as fh
from algorithms.test_contract import METHODS
from fedhsa import _check, cli
from fedhsa.cli import parsing
from fedhsa.cli.settings import RunSettings
from fedhsa.experiments.run import presets
from fedhsa.problems import PROBLEMS
from fedhsa.problems.make import COMMON
from pages import ROOT

PAGE = (ROOT / "docs" / "reproductions" / "systems.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| system |")
]
COMMANDS = [shlex.split(command) for command in re.findall(r"`(fedhsa [^`]+)`", "".join(row[2] for row in ROWS))]
RUNS = [words[2:] for words in COMMANDS if words[1] == "run"]
REFERENCES = 56
"""How many the paper has."""
GIVEN = {"step_size": 0.1, "local_steps": 10, "num_agents": 5, "num_components": 3}
GIVEN |= {"theta_star": np.zeros(2), "sizes": (2, 3)}
"""What the algorithms of a command may need of flags and problem."""


def test_every_reference_of_the_paper_has_a_row_or_is_said_to_name_no_system():
    found = {int(number) for number in re.findall(r"\[(\d+)\](?!\()", PAGE)}
    assert found == set(range(1, REFERENCES + 1))


def test_every_row_has_a_command_and_a_check_or_a_reason():
    assert len(ROWS) > 50
    for system, here, command, checked in ROWS:
        assert here, system
        assert (command == "-") == (checked == "-") == here.startswith("no: "), system
        assert command == "-" or command.startswith("`fedhsa "), system


def test_every_command_of_a_row_is_understood():
    assert {words[1] for words in COMMANDS} <= {"run", "deploy"}
    for words in RUNS:
        settings = parsing.parse(RunSettings, words)
        for text in settings.algorithm:
            assert isinstance(fh.algorithms.parse(text, **GIVEN), fh.AbstractAlgorithm)
        given = {name: getattr(settings, name) for name in ("num_agents", "dim") if getattr(settings, name) is not None}
        _check.arguments("problem", settings.problem, PROBLEMS, given | settings.option, common=COMMON)


def test_what_is_said_to_check_a_system_is_there():
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in itertools.chain.from_iterable(re.findall(r"`([^`]+)`", row[3]) for row in ROWS):
        known = f"def {name}(" in written if name.startswith("test_") else name in METHODS or name in presets.studies()
        assert known, name


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_of_a_row_runs(words, tmp_path, monkeypatch, unrendered):
    monkeypatch.chdir(tmp_path)
    small = ["--rounds", "2", "--seeds", "2", "--no-progress"] if words[1] == "run" else []
    assert cli.main([*words[1:], *small]) == 0
