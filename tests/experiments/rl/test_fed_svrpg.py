"""FedSVRPG-M."""

import numpy as np
import pytest

from fedhsa.experiments.rl.fed_svrpg import ALL, FedSVRPG, drift_label
from fedhsa.experiments.study.base import Outcome

STUDY = FedSVRPG()


def made(
    power: float = -1.0,
    less: float = 3.0,
    early: float = 2.0,
    kept: float = 1.0,
    same: float = 1.0,
    small: float = 0.01,
) -> Outcome:
    """Floors to this power of N; FedPG's `less` times as high; all weights `early` times worse in the beginning; in
    the long run `kept` times; and exact limits with momentum `same` times those without."""
    rng, arrays = np.random.default_rng(0), {}

    def curves(label, size, begin=1.0):
        found = size * (1 + 0.02 * rng.normal(size=(STUDY.seeds, 51)))
        found[:, :6] *= begin
        arrays[label] = arrays[f"{label}, gap"] = found

    for N in STUDY.agents:
        curves(f"N = {N}", 1e-5 * float(N) ** power)
    for step in STUDY.step_sizes:
        curves(f"FedPG, step {step:g}", 1e-5 * less)
        for clip in STUDY.clips:
            curves(f"at most {clip:g}, step {step:g}", 1e-5 * (kept if clip == ALL else 1), early if clip == ALL else 1)
    for h in STUDY.heterogeneity:
        for beta in (STUDY.beta, 1.0):
            for parts in (1.0, STUDY.smaller):
                end = 1e-4 * h**4 * (small if parts > 1 else 1.0) * (same if beta < 1 else 1.0)
                arrays[drift_label(h, beta, parts)] = np.array([[1.0, end]])
    return Outcome(arrays, {})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/fed-svrpg: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_a_speed_up_less_noise_and_the_drift_of_local_steps_pass():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"power": -0.5}, {"speed-up"}),
        ({"less": 0.9}, {"less noise, step 0.5", "less noise, step 5"}),
        ({"early": 0.9}, {"clipping, early"}),
        ({"kept": 1.3}, {"clipping, in the long run"}),
        ({"same": 0.5}, {f"same drift, h = {h:g}" for h in STUDY.heterogeneity}),
        ({"small": 0.5}, {"smaller local steps"}),
    ],
)
def test_other_outcomes_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 3
    assert "to the power -1.00" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1
