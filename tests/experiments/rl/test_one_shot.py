"""One average at the end."""

import numpy as np
import pytest

from fedhsa.experiments.rl.one_shot import NUM_STATES, START, OneShot, label
from fedhsa.experiments.study.base import Outcome

STUDY = OneShot()


def made(power: float = -1.0, early: float = -1.0, law: float = 1.0, bias: float = 1.0) -> Outcome:
    """Values whose variance falls with n to these powers, at the large and at the small step, and to `law` times the
    predicted floor; at the small step they stay where they began, many agents by this part nearer."""
    rng, arrays = np.random.default_rng(0), {}
    start = START - np.arange(1, 6) / 6
    for trace in STUDY.traces:
        for n in STUDY.agents:
            noise = rng.normal(size=(STUDY.seeds, 101, NUM_STATES))
            arrays[label(trace, n, STUDY.large_step)] = 0.05 * n ** (power / 2) * noise * np.sqrt(law)
            begun = start * (1 if n == 1 else np.sqrt(bias))
            arrays[label(trace, n, STUDY.step_size)] = begun + 0.01 * n ** (early / 2) * noise
    predicted = {f"{trace:g}": [0.0, NUM_STATES * 0.05**2] for trace in STUDY.traces}
    return Outcome(arrays, {"predicted": predicted})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.split("), ")[1] for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_an_nth_of_the_variance_passes():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"power": -0.5}, {"power", "variance, step 0.05", "law, n = 8"}),
        ({"early": 0.0}, {"variance, step 0.001"}),
        ({"law": 1.3}, {"law, n = 1", "law, n = 8"}),
        ({"bias": 0.8}, {"as the source"}),
    ],
)
def test_other_laws_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 3
    assert "at the source's step 0.001" in STUDY.summary(made())[1].lower()
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1
