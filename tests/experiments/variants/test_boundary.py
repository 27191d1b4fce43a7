"""Too many local steps."""

import numpy as np
import pytest

from fedhsa.experiments.study.base import Outcome
from fedhsa.experiments.variants.boundary import NAMES, Boundary
from fedhsa.experiments.variants.contraction import fed_hsa_boundary, one_exchange_boundary
from fedhsa.statistics import growth

STUDY = Boundary()
SLOPES = -np.array([0.1, 1.0]).reshape(2, 1, 1)


def made(off: float = 0.0, late: float = 0.0, scafflsa: float = 0.9, floor: float = 1.0, diverged: float = 1.0):
    """An outcome as theory has it, but for these."""
    noise = np.random.default_rng(0).normal(size=64)
    rows, noisy, arrays = [], [], {}
    for name in NAMES:
        for radius in (0.97, 1.03):
            common = {"problem": name, "H": 10, "step": 0.1, "near": True, "radius": radius}
            rows.append(common | {"method": "FedHSA", "growth": radius + off})
            rows.append(common | {"method": "OneExchangeFedHSA", "growth": radius + late})
        rows.append(common | {"method": "SCAFFLSA", "radius": None, "growth": scafflsa})
        noisy.append(_noisy(name, "below", floor=1.0))
        noisy.append(_noisy(name, "between" if name == "td" else "above", diverged=diverged))
        arrays |= {f"{name}/floor": floor * (1 + 0.1 * noise), f"{name}/local_steps": np.array([1, 100])}
        arrays |= {f"{name}/FedHSA": np.array([1.0, 2.0]), f"{name}/OneExchangeFedHSA": np.array([1.0, 1.5])}
    reaches = {name: {"reach": 2.0} for name in NAMES}
    return Outcome(arrays, {"rows": rows, "noisy": noisy, "even": 0.125, **reaches})


def _noisy(name: str, where: str, floor: float | None = None, **more):
    numbers = {"H": 10, "step": 0.1, "radius": 0.9, "mean_square_radius": 0.9}
    return {"problem": name, "where": where, "floor": floor, **numbers, **more}


def failing(outcome: Outcome) -> set[str]:
    return {c.name.split(", ", 1)[1] for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_what_theory_says_passes():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"off": 0.01}, {"FedHSA, factor"}),
        ({"off": 0.05}, {"FedHSA, factor", "boundary"}),
        ({"off": -0.05}, {"FedHSA, factor", "boundary"}),
        ({"late": 0.01}, {"OneExchangeFedHSA, factor"}),
        ({"scafflsa": 1.01}, {"SCAFFLSA"}),
        ({"floor": 1.2}, {"floor with noise"}),
        ({"diverged": 0.9}, {"above with noise", "between with noise"}),
    ],
)
def test_anything_else_fails(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 4
    assert "0.75, 0.75, 0.75" in STUDY.summary(made())[1]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_the_factor_of_a_run_is_read_before_overflow_and_rounding():
    t = np.arange(400.0)
    assert growth(np.where(t < 300, 1.1**t, np.inf)) == pytest.approx(1.1**0.5, rel=1e-9)
    assert growth(0.5**t + 1e-25) == pytest.approx(0.5**0.5, rel=1e-4)
    assert growth(0.9**t * (1.5 + np.cos(t))) == pytest.approx(0.9**0.5, rel=1e-3)
    assert growth(np.array([1.0, np.inf, np.inf])) > 1e100


def test_two_scalars_have_their_boundaries_where_formulas_put_them():
    # FedHSA: eta mean(S_i) mean(a) = 2 with eta S_i = (1 - (1 - eta a_i)^H) / a_i; one exchange: B = -1.
    a, H = -SLOPES.ravel(), 50
    step = fed_hsa_boundary(SLOPES, H)
    S = (1 - (1 - step * a) ** H) / a
    assert S.mean() * a.mean() == pytest.approx(2, rel=1e-9)
    step = one_exchange_boundary(SLOPES, H)
    S = (1 - (1 - step * a) ** H) / a
    assert (S * (a - a.mean())).mean() == pytest.approx(-1, rel=1e-9)
