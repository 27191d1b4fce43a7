"""The numbers of the lab's first page, against naive loops, the theory and the command line."""

import dataclasses
import itertools
import json
import math
import shlex
from types import SimpleNamespace

import numpy as np
import pytest

import fedhsa as fh
import naive
from fedhsa.cli import main
from fedhsa.lab import figures
from fedhsa.lab import quadratic as lab
from loops import corrected

LOOPED = lab.Setting(num_agents=2, local_steps=corrected.H, step_size=corrected.STEP, server_step=0.8, rounds=3)
"""The step sizes that the loops have; SCAFFLSA and SynchronisedSA have no server step size."""


def follow(name, observations):
    """One run of a naive loop; `observations[agent][time]` is the noise."""
    arrays = lab.problem(LOOPED)

    def G(i, theta, z):
        return arrays.A[i] @ theta + arrays.b[i] + z

    world = SimpleNamespace(G=G, observations=observations, theta=np.zeros(2), rounds=LOOPED.rounds, num_agents=2)
    options = {"step_size": corrected.STEP, "local_steps": corrected.H, "server_step": 0.8, "rounds": LOOPED.rounds}
    if name == "SynchronisedSA":
        options |= {"local_steps": 1, "server_step": 1.0}
    loops = {
        "FedHSA": lambda: naive.fed_hsa(G, observations, np.zeros(2), **options),
        "LocalSA": lambda: naive.local_sa(G, observations, np.zeros(2), **options),
        "SynchronisedSA": lambda: naive.local_sa(G, observations, np.zeros(2), **options),
        "SCAFFLSA": lambda: corrected.scafflsa(world),
        "SCAFFOLD": lambda: corrected.scaffold(world, 2, 0.8),
        "OneExchangeFedHSA": lambda: corrected.one_exchange(world),
    }
    return loops[name]()


@pytest.mark.parametrize("name", lab.METHODS)
def test_the_error_is_that_of_a_loop_and_its_responses_to_every_shock(name):
    """Rounds are affine in the noise, so the variance is a sum of squared responses to one unit shock at a time."""
    arrays, length = lab.problem(LOOPED), LOOPED.rounds * corrected.H
    quiet = np.zeros((2, length, 2))
    base = follow(name, quiet)
    expected = ((base - arrays.root) ** 2).sum(-1)
    for agent in range(2):
        for time in range(1, length):
            for axis in range(2):
                shocked, z = quiet.copy(), np.eye(2)[axis]
                for t in range(time, length):
                    shocked[agent, t], z = z, arrays.noise.Q[agent] @ z
                expected += LOOPED.noise_std**2 * ((follow(name, shocked) - base) ** 2).sum(-1)
    found = lab.Law(LOOPED, name).errors(LOOPED.rounds)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("name", ["FedHSA", "LocalSA", pytest.param("SCAFFLSA", marks=pytest.mark.slow)])
def test_curve_floor_and_largest_step_are_those_of_the_theory(name):
    setting = lab.Setting(num_agents=3, local_steps=4, step_size=0.07, server_step=0.9, heterogeneity=0.8)
    prediction = fh.theory.predict(fh.problems.quadratic.random(**setting.arguments()), setting.algorithm(name))
    law = lab.Law(setting, name)
    np.testing.assert_allclose(law.errors(30), prediction.error(30), rtol=1e-11)
    np.testing.assert_allclose(law.floor.total, prediction.floor, rtol=1e-11)
    # Memories that are divided by the step size leave rounding errors of some 1e-13 in a bias.
    np.testing.assert_allclose(law.floor.bias_square, prediction.bias @ prediction.bias, rtol=1e-9, atol=1e-24)
    np.testing.assert_allclose(lab.max_step_size(setting, name), prediction.max_step_size, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SCAFFOLD", "OneExchangeFedHSA", "SynchronisedSA"])
def test_curve_floor_and_largest_step_of_the_other_methods_are_those_of_the_theory(name):
    test_curve_floor_and_largest_step_are_those_of_the_theory(name)


@pytest.mark.parametrize("name", lab.METHODS)
def test_the_floor_is_where_the_curve_ends(name):
    setting = lab.Setting(num_agents=4, local_steps=5, step_size=0.1)
    law = lab.Law(setting, name)
    np.testing.assert_allclose(law.errors(500)[-1], law.floor.total, rtol=1e-9)


@pytest.mark.parametrize("name", ["FedHSA", "SCAFFLSA", "SCAFFOLD", "OneExchangeFedHSA"])
def test_the_growth_is_the_rate_of_the_curve_without_noise(name):
    setting = lab.Setting(num_agents=4, local_steps=5, step_size=0.05, noise_std=0.0)
    law = lab.Law(setting, name)
    errors = law.errors(40)
    np.testing.assert_allclose(law.growth, (errors[40] / errors[20]) ** (1 / 40), rtol=1e-5)


@pytest.mark.parametrize("name", ["FedHSA", "LocalSA", "SCAFFLSA", "OneExchangeFedHSA"])
def test_a_method_diverges_just_above_its_largest_step_and_the_page_warns(name):
    setting = lab.Setting(num_agents=3, local_steps=5, others=("SCAFFLSA", "OneExchangeFedHSA"))
    limit = lab.max_step_size(setting, name)
    for factor, stable in (0.99, True), (1.01, False):
        at = dataclasses.replace(setting, step_size=factor * limit)
        seen = lab.see(at)
        assert seen[name].stable == stable
        assert math.isinf(seen[name].floor.total) == (not stable)
        warnings = [text for kind, text in figures.sentences(at, seen, {name: limit}) if kind == "warning"]
        assert any(text.startswith(f"{name} diverges") for text in warnings) == (not stable)


def test_noise_and_squared_bias_are_equal_at_the_number_of_agents_that_is_named():
    one = lab.see(lab.Setting(num_agents=4, b_level=0.5, step_size=0.02))["LocalSA"]
    at = one.saturation_agents
    np.testing.assert_allclose(one.floor_at(at), 2 * one.floor.bias_square, rtol=1e-12)
    assert math.isinf(lab.see(lab.Setting(num_agents=4))["FedHSA"].saturation_agents)


def test_the_paths_without_noise_are_those_of_the_loops():
    setting = dataclasses.replace(LOOPED, noise_std=0.0)
    quiet = np.zeros((2, LOOPED.rounds * corrected.H, 2))
    for name in ("FedHSA", "LocalSA"):
        found = lab.paths(setting, name, LOOPED.rounds)
        np.testing.assert_allclose(found.server, follow(name, quiet), rtol=1e-12)
        moved = (found.agents[:, :, -1] - found.agents[:, :, 0]).mean(1)
        np.testing.assert_allclose(np.diff(found.server, axis=0), 0.8 * moved, rtol=1e-10, atol=1e-12)


MAPPED = lab.Setting(num_agents=3, server_step=2.0, others=("SCAFFOLD", "OneExchangeFedHSA"))


def test_the_map_has_the_method_with_the_smallest_error_in_every_cell():
    found = lab.winners(MAPPED, 12)
    assert set(found.winners.ravel()) == {-1, 0, 1, 2, 3}  # some cells have no winner
    for j, k in [(0, 3), (4, 8), (8, 4)]:
        here = dataclasses.replace(MAPPED, local_steps=int(found.local_steps[j]), step_size=float(found.step_sizes[k]))
        errors = []
        for name in found.names:
            rounds = 6 if name == "FedHSA" else 12
            law = lab.Law(here, name)
            errors.append(law.errors(rounds)[-1] if law.growth < 1 else np.inf)
        np.testing.assert_allclose(found.errors[:, j, k], errors, rtol=1e-12)
        assert errors[found.winners[j, k]] <= 1.01 * min(errors)


def test_a_method_that_is_ahead_for_a_while_and_then_diverges_does_not_win():
    found, root, ahead = lab.winners(MAPPED, 12), lab.problem(MAPPED).root, 0
    for i, j, k in itertools.product(range(len(found.names)), (0, 4, 8), range(0, 16, 2)):
        here = dataclasses.replace(MAPPED, local_steps=int(found.local_steps[j]), step_size=float(found.step_sizes[k]))
        law = lab.Law(here, found.names[i])
        if law.growth >= 1:
            assert np.isinf(found.errors[i, j, k])
            ahead += law.errors(6)[-1] < root @ root
    assert ahead


def test_of_methods_within_one_per_cent_the_first_wins_and_further_apart_the_better():
    errors = np.array([[[1.009, 1.011, np.inf]], [[1.0, 1.0, np.inf]]])
    found = lab.WinnerMap(np.array([1]), np.array([0.1, 0.2, 0.3]), ("FedHSA", "LocalSA"), errors)
    assert found.winners.tolist() == [[0, 1, -1]]
    assert found.tied.tolist()[0][:2] == [True, False]


def test_curves_are_drawn_as_far_as_that_of_local_sa_whatever_the_axis():
    """FedHSA has two exchanges in a round; SynchronisedSA has one observation, and the others three."""
    setting = lab.Setting(num_agents=2, local_steps=3, rounds=4)
    expected = {"rounds": [4, 4, 4, 4], "exchanges": [4, 4, 4, 4], "observations": [4, 4, 4, 12]}
    for axis, rounds in expected.items():
        seen = lab.see_along(setting, axis)
        assert [len(one.errors) - 1 for one in seen.values()] == rounds


def test_a_link_restores_every_setting_and_nonsense_in_it_changes_nothing():
    setting = lab.Setting(7, 3, 0.02, 5.0, 0.3, 0.5, 0.9, 1.5, 100, ("SCAFFOLD", "OneExchangeFedHSA"), 4)
    assert lab.from_link(lab.to_link(setting)) == setting
    assert lab.from_link({"M": "many", "eta": "", "with": "FedAvg,SCAFFOLD", "other": "1"}) == lab.Setting()
    for bad in ({"M": "-3"}, {"M": "1e9"}, {"eta": "0"}, {"sticky": "2"}, {"H": "nan"}, {"noise": "inf"}):
        assert lab.from_link(bad) == lab.Setting()


def test_the_command_and_the_python_on_the_page_give_its_numbers(capsys):
    setting = lab.Setting(num_agents=3, local_steps=4, server_step=0.8, key=2, others=("SynchronisedSA",) * 2)
    seen = lab.see(setting)
    assert main([*shlex.split(lab.command(setting))[1:], "--json", "--no-plot"]) == 0
    told = json.loads(capsys.readouterr().out)["algorithms"]
    assert list(told) == list(seen)
    for name, one in seen.items():
        np.testing.assert_allclose(told[name]["floor"], one.floor.total, rtol=1e-9)
    exec(lab.python_code(setting), {})
    for line, one in zip(capsys.readouterr().out.splitlines(), seen.values(), strict=True):
        assert line.split()[0] == one.name
        assert f"error {one.errors[-1]:.4g}, floor {one.floor.total:.4g}" in line


@pytest.mark.slow
def test_simulated_errors_lie_around_the_exact_curve():
    """The mean of 200 seeds is within six standard errors of the law; the interval has about two on each side."""
    setting = lab.Setting(num_agents=3, local_steps=3, rounds=10)
    mean, low, high = lab.simulated(setting, "FedHSA", 200)
    exact = lab.see(setting)["FedHSA"].errors
    assert (np.abs(mean - exact) <= 3 * (high - low) / 2 * 1.1 + 1e-12).all()


def test_pictures_show_every_method_and_say_in_words_what_they_show():
    setting = lab.Setting(num_agents=3, step_size=0.9, others=("SCAFFLSA", "SynchronisedSA"))
    seen = lab.see(setting)
    assert (seen["FedHSA"].stable, seen["SynchronisedSA"].stable) == (False, True)
    drawn = figures.curves(seen)
    assert "FedHSA (diverges)" in drawn
    assert 'role="img"' in drawn
    assert "nan" not in drawn
    assert "diverges: there is no floor" in figures.floor_bars(seen)
    assert "falls like 1/M" in figures.agents_in_words(seen)
    won = lab.winners(MAPPED, 12)
    assert figures.winner_map(won, MAPPED, 12, "exchanges").count("<rect") > won.winners.size
    both = {name: lab.paths(lab.Setting(), name, 2) for name in ("LocalSA", "FedHSA")}
    assert figures.drift(lab.Setting(), both).count("data-from") == 2 * 2 * 10
    assert "&lt;script&gt;" in figures.code("<script>", "a name")
