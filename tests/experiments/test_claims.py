"""Every study outside of the paper's panels, run again with a part of its seeds: its page says what the runs say."""

import dataclasses
import json

import pytest

import values
from fedhsa.experiments.run.presets import studies
from fedhsa.experiments.study.base import Runner

LONG = {"field/adversaries", "field/table1", "field/rounds", "rl/fed-pg-br", "rl/fast-fedpg"}
"""They take long with any number of seeds; their own tests run smaller ones."""
FEWER: dict[str, dict[str, tuple]] = {
    "field/boundary": {"parts": (0.25, 0.8, 1.25, 4.0), "others": (10, 1000)},
    "field/compressed": {"steps": (0.005, 0.02)},
    "field/extrapolation": {"copies": (1, 4, 64), "step_sweep": (0.05, 0.2)},
    "field/fixed-points": {"local_steps": (2, 10, 50)},
    "field/garnet": {"local_steps": (10, 1000, 10000)},
    "field/one-exchange": {"parts": (0.02, 0.1, 0.4)},
    "field/participation": {"counts": (1, 4), "local_steps": (2, 10), "noise": (0.25, 1.0, 4.0)},
    "field/replay": {"epsilons": (0.2, 0.05)},
    "field/scaffnew": {"condition_numbers": (25.0, 400.0, 1600.0), "multiples": (0.35, 0.7, 1.0, 4.0)},
    "field/speedup": {"equal_agents": (1, 10, 100), "heterogeneous_agents": (10, 100)},
    "rl/a3c": {"agents": (1, 4, 16)},
    "rl/fed-svrpg": {"agents": (1, 5, 20), "heterogeneity": (0.25, 1.0)},
    "rl/importance": {"sweep_agents": (20, 80)},
    "rl/pavg": {"kappas": (0.0, 0.4, 1.0), "local_steps": (1, 32)},
    "rl/sarsa": {"agents": (1, 20), "many_steps": (10, 1000)},
    "rl/two-phases": {"local_steps": (1, 20)},
}
"""Settings of studies in which a part of them shows the same."""
STUDIES = [name for name in values.files() if name.startswith(("field/", "rl/")) and name not in LONG]
"""Those of the paper are checked by the test of `fedhsa reproduce --quick`."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The average operator is not monotone")
@pytest.mark.filterwarnings("ignore:The floor of SA may be off")  # the study measures by how much
@pytest.mark.parametrize("name", STUDIES)
def test_an_eighth_of_the_seeds_contradicts_no_verdict_of_the_page(name):
    """Fewer seeds may leave a check undecided; what was a pass must not fail, nor a failure pass."""
    if name == "rl/fed-kl":
        pytest.importorskip("gymnax")
    study = studies()[name]
    fewer = dataclasses.replace(study, seeds=max(study.seeds // 8, min(study.seeds, 4)), **FEWER.get(name, {}))
    outcome, stated = fewer.run(Runner()), json.loads(values.files()[name].read_text())["checks"]
    contradicted = [
        check
        for check in fewer.checks(outcome)
        if {check.verdict, stated[check.name.removeprefix(f"{name}: ")]["verdict"]} == {"pass", "fail"}
    ]
    assert contradicted == []
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts  # what is kept on disk
    assert len({len(column) for column in fewer.table(outcome).values()}) <= 1
