"""FedHSA with one exchange."""

import numpy as np
import pytest

import fedhsa as fh
from fedhsa import theory
from fedhsa.experiments.study.base import Outcome
from fedhsa.experiments.variants.contraction import one_exchange_map
from fedhsa.experiments.variants.one_exchange import METHODS, ONE, TWO, OneExchange, first_order_bias

STUDY = OneExchange()


def made(
    growth: float = 0.0, floor: float = 1.0, late: float = 1.0, power: float = 2.0, bias: float = 1.0, like: float = 0.6
) -> Outcome:
    """An outcome in which all is as predicted, up to these factors."""
    rng, k = np.random.default_rng(0), len(STUDY.parts)
    shared = 1 + 0.02 * rng.normal(size=(k, 64))
    arrays = {"local_steps": np.array([1, 10]), f"{TWO}/boundary": np.array([1.0, 4.0])}
    arrays[f"{ONE}/boundary"] = np.array([1.0, 3.0])
    facts: dict = {"largest": 0.4, "floors": {}, "small": {}, "radius": {}, "exchanges": {}, "floats": {}}
    for name in METHODS:
        arrays[f"{name}/floor"] = shared * (floor if name == ONE else 1.0)
        arrays[f"{name}/error"] = np.tile(np.geomspace(10, 1, 10), (4, 1))
        arrays[f"{name}/law"] = np.geomspace(10, 1, 20 if late != 1 and name == ONE else 10)
        facts["floors"][name], facts["small"][name] = [1.0] * k, [1.0, 1.0]
        facts["radius"][name], facts["exchanges"][name] = 0.5, 2.0 if name == TWO else 1.0
        facts["floats"][name] = 16.0
    facts["small"][ONE] = [1 + 1e-6 * 0.5**power, 1 + 1e-6]
    for name, level in ((TWO, 1.0), (ONE, 2.5)):
        arrays[f"{name}/bias"] = np.sqrt(level) + 0.05 * shared[:2].T - 0.05
    arrays[f"{ONE}/bias"] *= np.sqrt(bias)
    facts["bias"] = {TWO: 2.0, ONE: 5.0}
    facts["scalars"] = {"H": [5, 20], "Q": [-1.0, -1.0], "P + Q": [-1.0, -1.0], "like": like}
    facts["rows"] = [
        {"method": name, "H": 10, "step": 0.1, "radius": radius, "growth": radius + growth}
        for name in (TWO, ONE)
        for radius in (0.98, 1.02)
    ]
    return Outcome(arrays, facts)


def failed(outcome: Outcome) -> list[str]:
    return [
        check.name.removeprefix("field/one-exchange: ") for check in STUDY.checks(outcome) if check.verdict != "pass"
    ]


def test_an_outcome_as_predicted_passes():
    assert failed(made()) == []


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({"growth": 0.01}, "boundary"),
        ({"floor": 1.03}, "ratio"),
        ({"late": 2.0}, "round trips"),
        ({"power": 1.0}, "power"),
        ({"bias": 0.4}, "bias"),
        ({"like": 1.0}, "like slopes"),
    ],
)
def test_what_is_off_fails(changed, failing):
    found = failed(made(**changed))
    assert found
    assert all(failing in name or (failing == "ratio" and "OneExchange" in name) for name in found)


def test_figure_sentences_and_table_are_made_from_what_was_kept():
    outcome = made()
    assert len(STUDY.draw(outcome).axes) == 3
    assert "0.75 times" in STUDY.summary(outcome)[0]
    assert {len(column) for column in STUDY.table(outcome).values()} == {len(METHODS) * len(STUDY.parts)}


@pytest.mark.slow
def test_the_closed_form_has_the_radius_of_the_exchanges():
    problem = STUDY.problem()
    for step in (0.05, 0.3):
        closed = abs(np.linalg.eigvals(one_exchange_map(problem.affine_parts()[0], step, 10))).max()
        assert theory.exact.spectral_radius(problem.noiseless(), METHODS[ONE](step, local_steps=10)) == pytest.approx(
            closed
        )


def test_for_one_parameter_small_steps_contract_faster_than_fedhsa_with_the_operators_of_this_round():
    A = -np.array([0.2, 1.0]).reshape(2, 1, 1)
    for step in (0.02, 0.05, 0.1):
        (F, B), _ = one_exchange_map(A, step, 10)
        assert F**2 > -4 * B  # two real roots
        assert abs(np.linalg.eigvals([[F, B], [1.0, 0.0]])).max() < F + B


@pytest.mark.slow
def test_the_late_bias_is_the_plain_one_without_what_the_correction_takes_off():
    problem = fh.problems.td.random(num_agents=3, num_states=4, dim=2, laziness=0.5)
    late = first_order_bias(problem, 0.1, 40, agents=3, late=True)  # forty steps are many mixing times
    np.testing.assert_allclose(late, theory.first_order_bias(problem, fh.LocalSA(0.1, local_steps=40)), rtol=1e-3)
