"""Flags reach what they are for, and the estimate of memory grows as the arrays do; nothing is run here."""

import pathlib
import types

import pytest
from rich.console import Console

import fedhsa as fh
from fedhsa import deploy
from fedhsa.cli import compare, main, memory, sweep
from fedhsa.cli import run as run_module
from fedhsa.cli.deploy_settings import NodeSettings
from fedhsa.cli.settings import CompareSettings, RunSettings, SweepSettings
from fedhsa.deploy import Limits, Missing, Privacy, plan

SIMULATED = {"rounds": 6, "seeds": 3, "key": 5, "every": 2, "dtype": "float32"}


class Noted:
    """Takes the place of a function: notes the arguments, and ends the command."""

    def __init__(self):
        self.given = {}

    def __call__(self, *_, **given):
        self.given = given
        raise KeyboardInterrupt

    def of(self, names):
        return {name: self.given[name] for name in names}


def test_the_settings_of_a_simulation_reach_it(monkeypatch, tmp_path):
    noted = Noted()
    monkeypatch.setattr(run_module, "simulate", noted)
    none = types.SimpleNamespace(state=lambda name: None, asked=False, of=lambda name: None)
    settings = RunSettings(**SIMULATED)
    work = types.SimpleNamespace(settings=settings, problem=None, algorithms={"": None}, checkpoints=none, tracks=none)
    with pytest.raises(KeyboardInterrupt):
        run_module._Work.simulate_one(work, "")  # pyright: ignore[reportArgumentType]
    assert noted.of(SIMULATED) == SIMULATED
    monkeypatch.setattr(sweep, "sweep", noted)
    settings = SweepSettings(**SIMULATED, over={"step_size": [0.1, 0.2]}, out=tmp_path / "sweep")
    with pytest.raises(KeyboardInterrupt):
        sweep.main(settings, [], Console())
    assert noted.of(SIMULATED) == SIMULATED


def test_the_settings_of_a_comparison_reach_it():
    given = {"samples": 400, "seeds": 3, "grid": 5, "tuning_seeds": 2, "target": 0.5, "objective": "bytes", "key": 7}
    terms = compare._terms(CompareSettings(**given))
    assert {name: getattr(terms, name) for name in given} == given


def test_the_settings_of_a_federation_reach_its_server(monkeypatch, tmp_path):
    noted = Noted()
    monkeypatch.setattr(deploy, "in_memory", noted)
    policy = ["--missing", "skip", "--patience", "7", "--at-least", "2", "--reply-bound", "3"]
    own = ["--clip", "0.5", "--noise", "2", "--delta", "1e-6"]
    sizes = ["--num-agents", "3", "--dim", "2", "--out", str(tmp_path)]
    assert main(["deploy", "memory", *sizes, *policy, *own]) == 130
    assert noted.of(["missing", "reply_bound"]) == {"missing": Missing("skip", 7.0, 2), "reply_bound": 3.0}
    assert Privacy.from_config(noted.given["config"]) == Privacy(0.5, 2.0, None, 1e-6)


def test_the_protection_that_a_nodes_owner_chose_reaches_the_node():
    limits = {"max_rounds": 4, "max_restarts": 3, "exchanges": ("delta",)}
    noise = {"clip": 0.5, "noise": 2.0, "epsilon": 9.0, "delta": 1e-6, "noise_shared_by": 3}
    config = NodeSettings(**limits, **noise, minimum_cohort=2, secure_aggregation=True).config()
    assert Limits.from_config(config) == Limits(4, 3, ("delta",))
    assert Privacy.from_config(config) == Privacy(0.5, 2.0, 9.0, 1e-6, 3)
    assert (config["minimum_cohort"], plan._is_set(config, "secure_aggregation")) == (2, True)


def test_every_seed_has_records_and_every_agent_arrays_in_the_estimate_of_memory(monkeypatch):
    problem, method = fh.problems.quadratic.random(num_agents=2, dim=2), fh.FedHSA(0.1, 2)
    taken = {(s, r): memory.of_runs(problem, method, s, r) for s, r in ((3, 100), (3, 101), (6, 100))}
    assert taken[3, 101] - taken[3, 100] == 3 * 8  # one number of 8 bytes for each seed
    assert taken[6, 100] == 2 * taken[3, 100]
    monkeypatch.setattr(memory, "total", lambda: 2**30)
    # One matrix for each agent and a vector for all, fitted up to rounding; the root takes another 32 d^2.
    monkeypatch.setattr(memory, "_measure", lambda name, given: (8.0 * given["dim"] ** 2, 8.0 * given["dim"]))
    found = memory.estimate("quadratic", {"num_agents": 500, "dim": 400})
    assert found == pytest.approx(500 * 8 * 400**2 + 8 * 400 + 32 * 400**2, rel=1e-6)


def test_the_memory_of_a_container_is_that_of_this_machine_where_it_is_less(monkeypatch):
    monkeypatch.setattr(pathlib.Path, "read_text", lambda path: "1000\n")
    assert memory.total() == 1000
    monkeypatch.setattr(pathlib.Path, "read_text", lambda path: "max\n")
    assert memory.total() > 1000
