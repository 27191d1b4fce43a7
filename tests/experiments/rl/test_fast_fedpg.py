"""Fast-FedPG."""

import json

import numpy as np
import pytest

from fedhsa.experiments.rl.fast_fedpg import EVERY, METHODS, MOST_AGENTS, FastFedPG
from fedhsa.experiments.study.base import Outcome, Runner

STUDY = FastFedPG()


def made(
    end: float = 1e-13,
    stuck: float = 1e-3,
    decay: float = -1.0,
    power: float = -1.0,
    gain: float = 4.0,
    norm: float = 1e-11,
) -> Outcome:
    """Gaps that fall from 1 to `end` with Fast-FedPG and to `stuck` with FedPG, with a floor to this power of N, and
    FedPG's floor `gain` times as high in large batches."""
    rng = np.random.default_rng(0)
    at = EVERY * np.arange(STUDY.iterations // EVERY + 1)
    arrays = {}
    for H in STUDY.local_steps:
        for h in STUDY.heterogeneity:
            arrays[f"exact, FedHSA, H = {H}, h = {h:g}"] = (np.exp(-at / 30) + end)[None]
            arrays[f"exact, LocalSA, H = {H}, h = {h:g}"] = (np.exp(-at / 30) + stuck * h)[None]
    longer = np.arange(STUDY.longer * STUDY.iterations // EVERY + 1)
    arrays["no entropy"] = ((1 + longer) ** decay)[None]
    arrays |= {"kernels, FedHSA": np.array([[1.0, norm]]), "kernels, LocalSA": np.array([[1.0, 0.01]])}

    def floor(size):
        return size * (1 + 0.02 * rng.normal(size=(STUDY.seeds, 51)))

    for N in STUDY.agents:
        arrays[f"played, FedHSA, N = {N}, h = 0, B = {STUDY.batch}"] = floor(1e-3 * N**power)
    for h, batch in STUDY.noisy:
        for name in METHODS:
            times = gain if (name, batch) == ("LocalSA", STUDY.noisy[-1][1]) else 1.0
            size = times * 1e-3 * max(STUDY.agents) ** power
            arrays[f"played, {name}, N = {max(STUDY.agents)}, h = {h:g}, B = {batch}"] = floor(size)
    return Outcome(arrays, {})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/fast-fedpg: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_linear_convergence_and_a_floor_that_falls_with_the_agents_pass():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"end": 3e-10}, {"optimum", "linear, H = 5", "linear, H = 20"}),
        ({"stuck": 1e-7}, {"FedPG stops, H = 5", "FedPG stops, H = 20"}),
        ({"decay": -0.5}, {"without entropy"}),
        ({"power": -0.5}, {"speed-up"}),
        ({"gain": 0.9}, {"larger batches"}),
        ({"norm": 1e-4}, {"kernels"}),
    ],
)
def test_other_curves_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 3
    assert "to the power -1.00" in STUDY.summary(made())[1]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_the_mean_reward_does_not_depend_on_heterogeneity():
    models = [STUDY.model(MOST_AGENTS, h) for h in (0.0, 0.5, 1.0)]
    for model in models[1:]:
        np.testing.assert_allclose(model.rewards.mean(0), models[0].rewards[0], atol=1e-12)
    assert (STUDY.model(2, 1.0, kernels=True).transitions[0] != models[0].transitions[0]).any()


@pytest.mark.slow
def test_a_run_gives_what_is_kept_on_disk():
    sizes = {"local_steps": (20,), "heterogeneity": (1.0,), "iterations": 40, "noisy_iterations": 40, "longer": 2}
    tiny = FastFedPG(seeds=2, agents=(1,), noisy=((1.0, 2),), horizon=3, **sizes)
    outcome = tiny.run(Runner())
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
    assert outcome.arrays["played, LocalSA, N = 1, h = 1, B = 2"].shape == (2, 3)
    assert outcome.arrays["no entropy"].shape == (1, 5)
