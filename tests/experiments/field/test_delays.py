"""Late updates."""

import numpy as np
import pytest

from fedhsa.experiments.field.delays import Delays
from fedhsa.experiments.study.base import Outcome

STUDY = Delays()


def made(none: float = 1.0, adaptive: float = 1.2, vanilla: float = 3.0, beyond: float = 100.0) -> Outcome:
    """An outcome with these floors, from an error of 4 at the start; `beyond` with the largest delays."""
    noise = 1 + 0.05 * np.random.default_rng(0).normal(size=(64, 1))
    arrays = {"none": none}
    for most in STUDY.max_delays:
        arrays |= {f"adaptive {most}": adaptive, f"vanilla {most}": beyond if most > 300 else vanilla}
    curves = {label: np.where(np.arange(101) < 5, 4.0, floor * noise) for label, floor in arrays.items()}
    return Outcome(curves, {"every": 10, "fastest": 0.058, "start": 4.0})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("field/delays: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_the_order_of_the_source_passes():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"adaptive": 0.9}, {"adaptive 200 by none"}),
        ({"vanilla": 1.1}, {"vanilla 200 by adaptive 200"}),
        ({"beyond": 3.0}, {"vanilla, delays up to 400"}),
        ({"adaptive": 2.5}, {f"adaptive, delays up to {most}" for most in STUDY.max_delays}),
    ],
)
def test_other_orders_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 2
    assert "after 50 rounds without delays, after 50" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_a_run_that_never_gets_there_says_so():
    assert "never with vanilla ones" in STUDY.summary(made())[0]


def test_uniform_delays_lose_stability_where_the_formula_says():
    # x+ = x - k mean of the last delays: the roots of z = 1 - k mean(z^-tau) leave the unit circle at k tau = pi^2 / 2.
    def largest(k: float, most: int) -> float:
        polynomial = np.zeros(most + 2)
        polynomial[:2], polynomial[2:] = (1, -1), k / most
        return abs(np.roots(polynomial)).max()

    for part, stable in ((0.95, True), (1.05, False)):
        assert (largest(part * np.pi**2 / 2 / 200, 200) < 1) == stable
