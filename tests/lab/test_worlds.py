"""The numbers, maps and sentences of the lab's grid worlds, against plain loops, the problems and the theory."""

import dataclasses
import importlib.util
import math
import shlex

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.cli import main
from fedhsa.lab import maps, telling, world_figures, worlds
from fedhsa.lab.quadratic import on
from fedhsa.lab.worlds import Setting, predicted, solve
from fedhsa.theory.laws.law import federation_of
from fedhsa.theory.laws.levels import EachSiteLaw
from fedhsa.theory.laws.moments import Moments
from fedhsa.theory.sketch import Along

SMALL = Setting(num_agents=2, local_steps=3, rounds=20)
CONTROL = dataclasses.replace(SMALL, task="control")
CLIFF = Setting(num_agents=2, local_steps=3, rounds=20, world="cliff", policy="uniform")


@pytest.mark.parametrize("setting", [SMALL, CLIFF, pytest.param(CONTROL, marks=pytest.mark.slow)])
def test_the_root_and_the_agents_own_solutions_are_those_of_the_problem(setting):
    found, problem = solve(setting), setting.problem()
    np.testing.assert_allclose(found.root[found.active].ravel(), problem.theta_star, rtol=1e-9, atol=1e-9)
    for agent in range(setting.num_agents):
        alone = solve(dataclasses.replace(setting, num_agents=agent + 1))  # more agents extend the worlds
        np.testing.assert_allclose(alone.own[agent], found.own[agent], atol=1e-12)
        operator = found.bellman.operators(found.own)[agent]
        np.testing.assert_allclose(operator, 0, atol=1e-9 * (1 + abs(found.own).max()))


def by_hand(found, setting, correction, rounds):
    """The rounds of FedHSA or LocalSA without noise, entry by entry."""
    visits, rewards, onward = found.bellman
    M, S, A = visits.shape
    server = np.zeros((S, A))

    def operator(i, table):
        out = np.zeros((S, A))
        for s in range(S):
            for a in range(A):
                ahead = sum(onward[i, s, a, t] * max(table[t]) for t in range(S))
                out[s, a] = visits[i, s, a] * (rewards[i, s, a] + ahead - table[s, a])
        return out

    for _ in range(rounds):
        first = [operator(i, server) for i in range(M)]
        ends = []
        for i in range(M):
            table = server.copy()
            for _ in range(setting.local_steps):
                table = table + setting.step_size * (operator(i, table) + correction * (sum(first) / M - first[i]))
            ends.append(table)
        server = sum(ends) / M
    return server


@pytest.mark.parametrize("task", worlds.TASKS)
def test_a_round_without_noise_is_that_of_a_plain_loop(task):
    setting = dataclasses.replace(SMALL, task=task, step_size=0.5, sampling="none")
    found = solve(setting)
    for name, correction in (("FedHSA", 1.0), ("LocalSA", 0.0)):
        table = by_hand(found, setting, correction, 2)
        np.testing.assert_allclose(
            found.curves[name].quiet[2], ((table - found.root)[found.bellman.active] ** 2).sum(), rtol=1e-10
        )


@pytest.mark.parametrize("task", worlds.TASKS)
def test_the_limits_are_fixed_points_of_the_rounds_and_that_of_fedhsa_is_the_root(task):
    setting = dataclasses.replace(SMALL, task=task, step_size=0.5, local_steps=40, num_agents=3)
    found = solve(setting)
    for name, method in setting.methods.items():
        limit = found.curves[name].limit
        np.testing.assert_allclose(found.bellman.play(limit, method), limit, atol=1e-9)
    np.testing.assert_allclose(found.curves["FedHSA"].limit, found.root, atol=1e-9)
    assert found.curves["LocalSA"].bias > 1e-3


def test_the_average_operator_vanishes_at_the_root_of_control():
    found = solve(CONTROL)
    tables = np.broadcast_to(found.root, found.bellman.visits.shape)
    np.testing.assert_allclose(found.bellman.operators(tables).mean(0), 0, atol=1e-15)


@pytest.mark.parametrize("sampling", ["trajectories", "independent"])
def test_the_law_on_the_page_is_that_of_the_problem(sampling):
    setting = dataclasses.replace(SMALL, step_size=0.5, sampling=sampling)
    problem = setting.problem()
    for method in setting.methods.values():
        ours = EachSiteLaw(on(worlds._agents(setting), method))
        theirs = EachSiteLaw(federation_of(problem, method))
        np.testing.assert_allclose(ours.errors(-problem.root, 3), theirs.errors(-problem.root, 3), rtol=1e-11)


def test_the_floor_is_that_of_the_law_of_the_problem():
    setting = dataclasses.replace(SMALL, step_size=0.5)
    for name, curve in predicted(solve(setting)).curves.items():
        law = EachSiteLaw(federation_of(setting.problem(), setting.methods[name]))
        assert curve.floor == pytest.approx(law.settled().square, rel=0.01)


def test_floors_between_known_step_sizes_are_those_of_the_law():
    setting, steps = dataclasses.replace(SMALL, world="lake"), [0.02, 0.05, 0.1, 0.2, 0.3]
    worlds.prepare(setting, steps).join()
    along = worlds._long_run(setting.family, "FedHSA")
    quick = [step for step in (0.03, 0.07, 0.15) if along.between(step) is not None]
    assert quick
    for step in quick:
        solved, found = along.settled(step, True), along.at(step)
        assert solved
        assert found
        assert found.square == pytest.approx(solved.square, rel=along.tolerance)
        assert step not in along.known


def test_a_floor_that_bends_between_known_step_sizes_is_not_interpolated():
    def settled(step, stable):
        return Moments(np.zeros(1), np.array([[step if step < 0.1 else 3 * step]]))

    along = Along(settled)
    for step in (0.02, 0.05, 0.2, 0.3):
        along.at(step)
    assert along.between(0.1) is None
    found = along.at(0.1)
    assert found
    assert found.square == pytest.approx(0.3)


def test_fedhsa_and_localsa_are_one_method_for_one_agent_and_for_one_local_step(monkeypatch):
    monkeypatch.setattr(worlds, "ROUGH", 1e-12)
    for setting in (dataclasses.replace(SMALL, num_agents=1), dataclasses.replace(SMALL, local_steps=1)):
        ours, local = predicted(solve(setting)).curves.values()
        np.testing.assert_allclose(ours.error, local.error, rtol=1e-9)


@pytest.mark.slow
def test_the_copied_python_and_the_copied_command_give_the_numbers_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for setting in (SMALL, dataclasses.replace(CLIFF, sampling="independent", seeds=5)):
        simulated = worlds.simulate(setting)
        (tmp_path / "grid_world.py").write_text(setting.python().replace("print(fh.theory", "0 and print(fh.theory"))
        exec(compile((tmp_path / "grid_world.py").read_text(), "grid_world.py", "exec"), {"__name__": "__main__"})
        printed = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
        assert printed == [errors[:, -1].mean() for errors in simulated.errors.values()]
        words = shlex.split(setting.command().replace("\\\n", " "))
        assert main([*words[1:], "--out", f"run-{setting.world}"]) == 0
        capsys.readouterr()
        for name, result in fh.load(tmp_path / f"run-{setting.world}").items():
            np.testing.assert_allclose(result.error, simulated.errors[name], rtol=1e-9)


def test_the_copied_python_builds_the_problem_of_the_page():
    for setting in (CLIFF, dataclasses.replace(CLIFF, policy="goal")):
        namespace: dict = {"__name__": "copied"}
        exec(setting.python(), namespace)
        np.testing.assert_allclose(namespace["build"]().theta_star, setting.problem().theta_star)


def test_a_link_restores_every_setting_and_ignores_what_does_not_fit():
    other = Setting("control", "cliff", "uniform", 3, 0.2, 0.5, 0.9, 0.5, 20, "none", 50, 8, 7)
    assert Setting.restored(other.restores) == other
    assert Setting().restores == {}
    assert Setting.restored({"num_agents": "1000", "step_size": "nan", "world": "moon", "x": "1"}) == Setting()


def test_returns_of_the_own_tables_are_the_best_and_arrows_point_along_them():
    found = solve(dataclasses.replace(SMALL, task="control"))
    best = found.model.returns(found.model.greedy(found.own))
    assert (found.returns(found.root) <= best + 1e-12).all()
    for agent in range(2):
        assert found.returns(found.own[agent])[agent] == pytest.approx(best[agent])


def test_a_map_has_a_cell_for_each_state_an_arrow_for_each_best_action_and_grey_where_no_agent_goes():
    values = np.array([0.0, 0.5, 1.0, 2.0])
    policy = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]])
    drawn = maps.grid(
        (2, 2),
        values,
        maps.Colours(0.0, 1.0),
        label="A map.",
        cells="S.HG",
        hidden=np.array([False, False, True, False]),
        policy=policy,
        actions=("→", "up"),
    )
    assert drawn.count("<title>") == 4
    assert drawn.count("fh-nowhere") == 1
    assert drawn.count("fh-arrow") == 2  # only arrows are drawn, and none in the grey cell
    assert "row 2, column 1, hole</title>" in drawn
    assert "row 1, column 2: 0.50" in drawn


def test_a_signed_scale_is_white_at_zero_and_ink_is_readable_on_every_colour():
    scale = maps.Colours(-0.5, 2.0, signed=True)
    assert (scale.low, scale.high) == (-2.0, 2.0)
    assert min(scale.rgb(0.0)) > 0.95
    for colours in (scale, maps.Colours(0.0, 1.0)):
        for value in np.linspace(colours.low, colours.high, 21):
            light = float(np.dot(np.array(colours.rgb(value)) ** 2.2, (0.2126, 0.7152, 0.0722)))
            contrast = (light + 0.05) / 0.05 if colours.ink(value) == "#000" else 1.05 / (light + 0.05)
            assert contrast > 4.5


def test_sentences_name_a_method_that_diverges_equal_agents_and_floors_that_may_be_wrong():
    wild = solve(dataclasses.replace(SMALL, num_agents=3, step_size=1.0, local_steps=200))
    assert wild.curves["FedHSA"].limit is None
    assert "**FedHSA** diverges: a round multiplies" in telling.about_limits(wild)
    assert math.isinf(wild.curves["FedHSA"].floor)
    assert "fh-curve" in world_figures.curves(wild)
    noisy = predicted(solve(dataclasses.replace(SMALL, step_size=1.0, local_steps=50)))
    assert noisy.curves["FedHSA"].limit is not None
    assert any("**FedHSA** grows without bound" in text for text in telling.doubts(noisy))
    equal = solve(dataclasses.replace(SMALL, heterogeneity=0.0))
    assert "The agents are equal" in telling.about_root(equal)
    quiet = solve(dataclasses.replace(SMALL, sampling="none"))
    assert not any("floor" in text for text in telling.doubts(quiet))
    assert "<b>FedHSA</b>" in telling.says(telling.about_limits(quiet))


def test_without_gymnasium_the_cliff_remains(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert list(worlds.available()) == ["cliff"]
