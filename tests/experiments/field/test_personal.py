"""A root for every agent."""

import numpy as np

from fedhsa.experiments.field.personal import ALONE, RECORDS, TOGETHER, Personal
from fedhsa.experiments.study.base import Outcome

STUDY = Personal()


def made(floor: float = 0.95, common: float = 5.0, rest: float = 0.5, slope: float = -1.0) -> Outcome:
    """Curves that fall geometrically to a floor of one, with these factors between them."""
    t, noise = np.arange(RECORDS + 1), 1 + 0.01 * np.random.default_rng(0).normal(size=(STUDY.seeds, 1))
    speeds, arrays = np.geomspace(common, rest, len(STUDY.heterogeneities)), {}
    for h, speed in zip(STUDY.heterogeneities, speeds, strict=True):
        arrays[f"{h:g}/{ALONE}"] = (1 + 1e3 * 0.8**t) * noise
        arrays[f"{h:g}/{TOGETHER}"] = (floor + 1e3 * 0.8 ** (t * speed)) * noise
    arrays["floors"] = (np.array(STUDY.equal_agents, dtype=float) ** slope)[:, None] * noise[:, 0]
    return Outcome(arrays, {})


def failed(outcome: Outcome) -> set[str]:
    found = [check.name for check in STUDY.checks(outcome) if check.verdict != "pass"]
    return {name.removeprefix("field/personal: ").split(",")[0] for name in found}


def test_theory_passes_and_other_factors_fail():
    assert failed(made()) == set()
    assert failed(made(floor=2.0)) == {"floor"}
    assert failed(made(common=1.0)) == {"time"}
    assert failed(made(slope=-0.5)) == {"slope"}


def test_figure_sentences_and_table_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == len(STUDY.heterogeneities)
    assert "where theory says 0.95" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_equal_environments_have_equal_roots_and_others_do_not():
    assert np.ptp(STUDY.cohort(0.0).local_roots, axis=0).max() < 1e-9
    assert np.ptp(STUDY.cohort(1.0).local_roots, axis=0).min() > 1
