"""FedPG-BR on CartPole."""

import json

import jax
import numpy as np
import pytest

from fedhsa.experiments.rl.fed_pg_br import ATTACKS, BR, NOBODY, PLAIN, RobustGradients
from fedhsa.experiments.study.base import Outcome, Runner

STUDY = RobustGradients()


def made(slow: float = 1.0, held: float = 450.0, spoilt: float = 40.0) -> Outcome:
    """Returns rise to 500, one agent's twice as slowly, and end at `held` under attacks, GPOMDP's at `spoilt`."""
    arrays = {}
    for K in STUDY.agents:
        length = STUDY.rounds if max(STUDY.agents) == K else 2 * STUDY.rounds
        for attack in STUDY.attacks if max(STUDY.agents) == K else (NOBODY,):
            pace = 10 * slow if max(STUDY.agents) == K else 20
            rise = np.minimum(20 + 480 * np.arange(length + 1) / pace, 500.0 if attack == NOBODY else held)
            arrays[f"{BR}/{attack}/{K}"] = np.stack([rise + seed for seed in range(STUDY.seeds)])
    for attack in STUDY.attacks:
        end = 480.0 if attack == NOBODY else spoilt
        arrays[f"{PLAIN}/{attack}/{max(STUDY.agents)}"] = np.full((STUDY.seeds, STUDY.rounds + 1), end)
    per_round = {f"{method}/{K}": STUDY.per_round(method, K) for method in (BR, PLAIN) for K in STUDY.agents}
    return Outcome(arrays, {"per round": per_round})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/fed-pg-br: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def of_each(name: str) -> set[str]:
    return {name.format(attack) for attack in STUDY.attacks[1:]}


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, set()),
        ({"slow": 4.0}, {"speed-up"}),
        ({"held": 300.0}, of_each(f"{BR}, {{}}")),
        ({"spoilt": 470.0}, of_each(f"{BR} against {PLAIN}, {{}}")),
    ],
)
def test_what_the_source_claims_passes_and_other_outcomes_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    outcome = made()
    assert len(STUDY.draw(outcome).axes) == 3
    assert "0 of 4 seeds never" in STUDY.summary(outcome)[0]
    assert len({len(column) for column in STUDY.table(outcome).values()}) == 1


def test_trajectories_are_counted_as_they_are_played():
    """With m = 4, b = 4 and at most four steps, N is 1 + 0.8 + 0.8^2 + 0.8^3 on average."""
    assert STUDY.per_round(BR, 1) == pytest.approx(16 + 4 * 2.952)
    assert STUDY.per_round(BR, 10) == pytest.approx(16 + 4 * 2.952 / 10)
    assert STUDY.per_round(PLAIN, 10) == 16


def test_the_lies_are_those_of_the_source():
    with jax.enable_x64(True):
        x = jax.numpy.array([1.0, -3.0, 0.5])
        flipped, honest = (ATTACKS[name](jax.random.key(0), x) for name in ("sign flip", NOBODY))
        noisy = [ATTACKS["random noise"](jax.random.key(i), x) - x for i in range(400)]
    np.testing.assert_allclose(flipped, [-2.5, 7.5, -1.25])
    np.testing.assert_allclose(honest, x)
    # Uniform noise on 3 times the range, 4, has the variance (3 * 4)^2 / 3; 1200 draws, 3 standard errors are 12 %.
    assert np.var(np.array(noisy)) == pytest.approx(48.0, rel=0.12)


@pytest.mark.slow
def test_a_run_gives_what_is_kept_on_disk():
    study = RobustGradients(seeds=2, agents=(1, 4), attacks=(NOBODY,), rounds=4, hostile=1, horizon=10, max_inner=1)
    outcome = study.run(Runner())
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
    assert outcome.arrays[f"{BR}/{NOBODY}/4"].shape == (2, 5)
    assert outcome.arrays[f"{BR}/{NOBODY}/1"].shape == (2, 9)
