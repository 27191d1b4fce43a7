import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def own_problem(printed: str, folder: pathlib.Path) -> None:
    """Local SA drifts, FedHSA does not: it ends several times nearer to the root; and there is a figure of it."""
    lines = [line.split() for line in printed.splitlines() if " error " in line]
    errors = {name: float(value) for name, _, value, *_ in lines}
    assert errors["FedHSA"] < errors["LocalSA"] / 3
    assert {path.name for path in folder.iterdir()} == {"own_problem.png", "own_problem.pdf"}


CHECKS = {"own_problem.py": own_problem}
"""What a script must have done besides running, by its name."""


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_runs_and_does_what_it_says(script, tmp_path):
    command = [sys.executable, "-W", "error", str(EXAMPLES / script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    CHECKS.get(script, lambda printed, folder: None)(done.stdout, tmp_path)
