import pathlib
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def own_problem(printed: str, folder: pathlib.Path) -> None:
    """Local SA drifts, FedHSA does not: it ends several times nearer to the root; and there is a figure of it."""
    lines = [line.split() for line in printed.splitlines() if " error " in line]
    errors = {name: float(value) for name, _, value, *_ in lines}
    assert errors["FedHSA"] < errors["LocalSA"] / 3
    assert {path.name for path in folder.iterdir()} == {"own_problem.png", "own_problem.pdf"}


def one_slow_agent(printed: str, folder: pathlib.Path) -> None:
    """The floor grows with the average agent, the bound with the slowest; and there is a figure of it."""
    *floors, last = printed.splitlines()
    predicted, simulated = (np.array([float(line.split()[-i].strip(",")) for line in floors]) for i in (3, 1))
    np.testing.assert_allclose(simulated, predicted, rtol=0.15)
    assert float(last.split()[6].strip(",")) < 10 < 1000 < float(last.split()[-1])
    assert {path.name for path in folder.iterdir()} == {"one_slow_agent.png", "one_slow_agent.pdf"}


CHECKS = {"one_slow_agent.py": one_slow_agent, "own_problem.py": own_problem}
"""What a script must have done besides running, by its name."""


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_runs_and_does_what_it_says(script, tmp_path):
    command = [sys.executable, "-W", "error", str(EXAMPLES / script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    CHECKS.get(script, lambda printed, folder: None)(done.stdout, tmp_path)
