"""FedSARSA in heterogeneous environments."""

import json

import numpy as np
import pytest

from fedhsa.experiments.rl.sarsa import GROUPS, Case, FedSARSA
from fedhsa.experiments.study.base import Outcome, Runner

STUDY = FedSARSA()
D = GROUPS**2


def made(power: float = -1.0, removed: float = 0.0, apart: float = 1000.0, drift: float = 1e-6) -> Outcome:
    """Noise that falls with N to this power; roots `apart` times the squared perturbation, squared, of which FedHSA
    removes a part; and this part of it is the predicted drift."""
    rng, arrays, rows = np.random.default_rng(0), {}, []
    for case in STUDY.cases():
        gap = apart * case.perturbation**2
        noise = 2.0 * case.num_agents ** (power / 2)
        for name in STUDY.methods(case):
            off = np.sqrt(gap / D) * (1 - removed * (name == "FedHSA"))
            theta = off + noise * rng.normal(size=(STUDY.seeds, 101, D))
            arrays[f"{case.label}/{name}/common"] = ((theta - off) ** 2).sum(-1)
            arrays[f"{case.label}/{name}/first"] = (theta**2).sum(-1)
            arrays[f"{case.label}/{name}/mean"] = theta[:, 75:].mean(1)
        rows.append({**case._asdict(), "label": case.label, "apart": gap, "drift": {"10": gap * drift}})
    return Outcome(arrays, {"rows": rows, "every": 20})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/sarsa: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_a_speed_up_and_a_distance_that_stays_pass():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"power": -0.6}, {"speed-up"}),
        ({"removed": 0.5}, {"N = 10, eps = 0.5, FedHSA", "N = 10, eps = 1, FedHSA"}),
        ({"drift": 0.1}, {"N = 10, eps = 0.5, drift", "N = 10, eps = 1, drift"}),
    ],
)
def test_other_outcomes_fail(changed, names):
    assert failing(made(**changed)) == names


def test_a_distance_that_does_not_grow_fails():
    outcome = made()
    for name in ("LocalSA", "FedHSA"):
        for kind in ("first", "common", "mean"):
            few, many = (f"N = 10, eps = {eps}/{name}/{kind}" for eps in ("0.1", "1"))
            outcome.arrays[many] = outcome.arrays[few]
    assert "grows with eps" in failing(outcome)


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 3
    assert "the roots: 1e+03 apart" in STUDY.summary(made())[1]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The average operator is not monotone")
def test_a_run_gives_what_is_kept_on_disk_and_the_first_agent_is_the_same_in_all_cases():
    sizes = {"num_states": 5, "num_actions": 5, "num_agents": 2, "agents": (1, 2), "perturbations": (0.5,)}
    tiny = FedSARSA(**sizes, samples=100, seeds=2, many_steps=(10,))
    outcome = tiny.run(Runner())
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
    assert outcome.arrays["N = 2, eps = 0.5/FedHSA/first"].shape == (2, 11)
    alone, two = tiny.problem(Case(1, 0.5)), tiny.problem(Case(2, 0.5))
    np.testing.assert_allclose(two.take([0]).theta_star, alone.theta_star, rtol=1e-8)
