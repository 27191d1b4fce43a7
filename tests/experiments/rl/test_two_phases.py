"""The two phases of federated Q-learning."""

import numpy as np
import pytest

from fedhsa.experiments.rl.two_phases import TwoPhases, label, mazes
from fedhsa.experiments.study.base import Outcome

STUDY = TwoPhases()


def made(
    bounce: float = 3.0, growth: float = 5.0, by_step: float = 2.0, corrected: float = 1e-3, gathered: float = 0.6
) -> Outcome:
    """Errors that fall to a low and stay `bounce` times above it, `growth` times as high with the most local steps."""
    noise = 1 + 0.02 * np.random.default_rng(0).normal(size=(STUDY.seeds, 1))
    fall = np.concatenate([np.geomspace(80, 1, 50), np.linspace(1, bounce, 50), np.full(100, bounce)])
    arrays, rows = {}, []
    for E in STUDY.local_steps:
        for step in (*STUDY.step_sizes, 0.0):
            for name in STUDY.methods(step or STUDY.corrected_step, E):
                size = (growth if max(STUDY.local_steps) == E else 1) * (by_step if step == 0.5 else 1)
                curve = size * fall * noise * (gathered if name == "SCAFFLSA" else 1)
                arrays[label(name, E, step)] = curve if step else curve[:1] * (corrected if name == "FedHSA" else 1)
                rows.append({"method": name, "E": E, "step": step, "every": 1})
    return Outcome(arrays, {"rows": rows, "scale": 80.0})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/two-phases: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_a_fall_a_bounce_and_a_plateau_pass():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"bounce": 1.0}, {"bounce, step 0.2", "bounce, step 0.5"}),
        ({"growth": 1.0}, {"growth with E, step 0.2", "growth with E, step 0.5"}),
        ({"by_step": 0.8}, {"growth with the step"}),
        ({"corrected": 0.5}, {"correction without noise"}),
        ({"gathered": 1.1}, {"SCAFFLSA with noise"}),
    ],
)
def test_other_curves_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 3
    assert "falls to 5 and up to 15 again at step 0.2" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_mazes_without_walls_are_the_open_grid_and_walls_stop_both_ways():
    free = mazes(1, 3, wall=0.0, slip=0.0, reward=0.5, discount=0.9, key=0).transitions[0]
    assert [free[4, action].argmax() for action in range(4)] == [3, 1, 5, 7]  # left, up, right, down from the middle
    assert [free[0, action].argmax() for action in range(4)] == [0, 0, 1, 3]
    some = mazes(1, 4, wall=0.5, slip=0.0, reward=0.5, discount=0.9, key=1).transitions[0]
    there = some.sum(1) > 0
    np.testing.assert_array_equal(there | np.eye(16, dtype=bool), there.T | np.eye(16, dtype=bool))


def test_mazes_differ_in_walls_and_share_rewards():
    model = mazes(3, 5, wall=0.3, slip=0.5, reward=0.1, discount=0.99, key=0)
    assert (model.transitions[0] != model.transitions[1]).any()
    assert (model.rewards == model.rewards[:1]).all()
    assert set(np.unique(model.rewards)) == {0.0, 1.0}
