"""Drift within a round."""

import json

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.experiments.paper.drift import Drift, local_paths
from fedhsa.experiments.study.base import Outcome, Runner
from fedhsa.theory import bounds, constants, measure

STUDY = Drift()


def made(in_step: float = 2.0, in_local_steps: float = 2.0, needed: float = 1.0) -> Outcome:
    """An outcome in which drift has these slopes and needs this constant, on every family."""
    reach, H = np.array(STUDY.reaches), np.array(STUDY.local_steps)
    noise = 1 + 0.1 * np.random.default_rng(0).normal(size=(len(STUDY.distances), len(reach), len(H), 64))
    drift = (reach**in_step)[:, None, None] * (H**in_local_steps)[:, None] * noise
    arrays, facts = {}, {}
    for family in STUDY.families:
        sizes = np.full((len(STUDY.distances), len(reach)), needed)
        arrays |= {f"{family}/drift": drift, f"{family}/sigma": np.ones(64), f"{family}/needed": sizes}
        facts[family] = {"L": 1.0, "bounded": True, "steps": (reach / H[-1]).tolist()}
    return Outcome(arrays, facts)


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {check.name: check.verdict for check in STUDY.checks(outcome)}


def compare_with_fedhsa(family: str) -> None:
    """The mean over agents and local steps, which FedHSA itself can be made to report."""
    problem, H, step = STUDY.instance(family).build(), 6, 0.03
    theta = problem.theta_star + 1.0
    squares, _ = local_paths(problem, theta, np.array([step]), H, seeds=3, key=5)
    algorithm = measure.Measured(fh.FedHSA(step, local_steps=H))
    record = {"drift": measure.drift}
    run = fh.simulate(problem, algorithm, rounds=1, seeds=3, key=5, theta=theta, record=record)
    mean = squares[0, :, :, :-1].sum((1, 2)) / (H * problem.num_agents)  # step 0 is the start, the last is not in it
    np.testing.assert_allclose(mean, run.records["drift"][:, 1], rtol=1e-12)


@pytest.mark.slow
def test_the_path_is_that_of_fedhsa():
    compare_with_fedhsa("td")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["quadratic", "nonconvex", "finite-sum"])
def test_the_path_is_that_of_fedhsa_on_the_other_families(family):
    compare_with_fedhsa(family)


@pytest.mark.slow
def test_a_longer_round_begins_like_a_shorter_one():
    problem = STUDY.instance("td").build()
    long, short = (local_paths(problem, problem.theta_star, np.array([0.1]), H, seeds=3)[0] for H in (6, 4))
    np.testing.assert_allclose(long[..., :4], short, rtol=1e-12)


def test_a_run_gives_what_is_kept_on_disk_and_stays_below_the_proved_bound():
    study = Drift(families=("td",), num_agents=2, dim=2, num_states=4, local_steps=(2, 4), reaches=(0.1, 1.0), seeds=4)
    outcome = study.run(Runner())
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
    drift, known = outcome.arrays["td/drift"], constants(study.instance("td").build())
    assert drift.shape == (3, 2, 2, 4)
    for k, distance in enumerate(study.distances):
        step = outcome.facts["td"]["steps"][-1]
        symbols = {"H": 4, "eta": step, "L": known.L, "sigma": known.sigma}
        bound = bounds.drift(error=distance**2, **symbols, constant=outcome.arrays["td/needed"].max())
        assert drift[k, -1, -1].max() <= bound * (1 + 1e-12)
    assert outcome.arrays["td/needed"].max() < bounds.drift(error=1.0, H=1, eta=1.0, L=1.0, sigma=0.0)


def test_gaussian_noise_is_bounded_by_what_was_seen():
    study = Drift(families=("quadratic",), local_steps=(2, 4), reaches=(0.1,), seeds=4)
    outcome = study.run(Runner())
    assert not outcome.facts["quadratic"]["bounded"]
    assert len(set(outcome.arrays["quadratic/sigma"])) > 1
    assert (outcome.arrays["quadratic/sigma"] >= 1).all()


def test_slope_2_and_a_small_constant_pass():
    found = verdicts(made())
    assert len(found) == 12
    assert set(found.values()) == {"pass"}


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({"in_step": 1.8}, "step size"),
        ({"in_step": 2.2}, "step size"),
        ({"in_local_steps": 1.8}, "local steps"),
        ({"in_local_steps": 2.2}, "local steps"),
        ({"needed": 4.1}, "bound"),
    ],
)
def test_other_slopes_and_larger_constants_fail(changed, failing):
    found = verdicts(made(**changed))
    assert {name for name, verdict in found.items() if verdict != "pass"} == {n for n in found if n.endswith(failing)}


def test_one_start_off_is_enough_to_fail():
    outcome = made()
    outcome.arrays["td/drift"] = outcome.arrays["td/drift"].copy()
    outcome.arrays["td/drift"][1] *= (np.array(STUDY.local_steps) ** 0.3)[:, None]
    assert verdicts(outcome)["drift: td, slope in the local steps"] == "fail"
    assert verdicts(outcome)["drift: finite-sum, slope in the local steps"] == "pass"


def test_figure_sentences_and_table_are_made_from_what_was_kept():
    outcome = made()
    assert len(STUDY.draw(outcome).axes) == 2
    assert "333" in STUDY.summary(outcome)[-1]
    rows = len(STUDY.families) * len(STUDY.distances) * len(STUDY.reaches) * len(STUDY.local_steps)
    assert {len(column) for column in STUDY.table(outcome).values()} == {rows}
