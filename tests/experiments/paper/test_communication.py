"""The price of an error, on curves whose prices are known in closed form."""

import numpy as np
import pytest

from fedhsa.experiments.paper.communication import Communication
from fedhsa.experiments.study.base import Outcome

ROUNDS, FLOOR_FED, FLOOR_LOCAL = 400, 1e-4, 1e-2
COST = {"exchanges": 2, "floats_up": 20, "floats_down": 20, "samples": 10, "evaluations": 10}


def outcome(rate=0.9, floor_local=FLOOR_LOCAL):
    """Both methods fall by the same factor per round, each to its floor; seeds differ by a factor of their own."""
    seeds = np.exp(0.01 * np.random.default_rng(0).normal(size=(16, 1)))
    arrays, curves = {}, {}
    for family in ("quadratic", "td"):
        for method, floor, share in (("FedHSA", FLOOR_FED, 1.0), ("LocalSA", floor_local, 0.5)):
            predicted = 100 * rate ** np.arange(ROUNDS + 1) + floor
            label = f"{family} {method}"
            arrays |= {f"{label}/error": seeds * predicted, f"{label}/predicted": predicted}
            cost = COST | {name: int(share * COST[name]) for name in ("floats_up", "floats_down")}
            curves[label] = {"predicted_floor": floor, "settled": 200, "cost": cost}
    return Outcome(arrays, {"agents": {"quadratic": 20, "td": 50}, "curves": curves})


def test_the_price_of_an_error_is_twice_the_bytes_times_the_ratio_of_rounds():
    # 100 q^t + floor = k * floor_local is passed at log((k floor_local - floor) / 100) / log q.
    found = {check.name: check for check in Communication().checks(outcome())}
    for above in (2, 5, 20):
        rounds = [np.log((above * FLOOR_LOCAL - floor) / 100) for floor in (FLOOR_FED, FLOOR_LOCAL)]
        check = found[f"communication: quadratic, price at {above} x"]
        assert check.measured == pytest.approx(2 * rounds[0] / rounds[1], rel=2e-3)
        low, high = check.interval or (0.0, 0.0)
        assert low < check.measured < high
    assert {check.verdict for check in found.values()} == {"pass"}


def test_methods_with_the_same_floor_do_not_show_that_only_one_gets_further():
    found = {check.name: check.verdict for check in Communication().checks(outcome(floor_local=FLOOR_FED))}
    assert found["communication: quadratic LocalSA, floor"] == "not decided"


def test_sentences_table_and_figure_come_from_the_outcome_alone():
    experiment, found = Communication(), outcome()
    assert any("at any price" in sentence for sentence in experiment.summary(found))
    assert len({len(column) for column in experiment.table(found).values()}) == 1
    assert len(experiment.draw(found).axes) == 6
