"""Local SA's limit without noise, against closed forms."""

import dataclasses
import json

import numpy as np
import pytest

from fedhsa.experiments.paper.proposition import Proposition
from fedhsa.experiments.study.base import Outcome, Runner
from fedhsa.theory.paper.bounds import local_sa_bias, proposition_1

TINY = Proposition(
    num_agents=4, dim=3, num_states=6, local_steps=(2, 5), indefinite_steps=2, sweep=(0.01, 0.05), td_step=0.2
)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return TINY.run(Runner())


def random_parts(agents: int = 5, dim: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    A = rng.normal(size=(agents, dim, dim))
    return -(A @ np.swapaxes(A, 1, 2)) - np.eye(dim), rng.normal(size=(agents, dim))


def test_the_closed_form_is_the_papers_at_two_local_steps():
    A, b = random_parts()
    np.testing.assert_allclose(local_sa_bias(A, b, 0.03, 2), proposition_1(A, b, 0.03), rtol=1e-12)


@pytest.mark.parametrize("H", [1, 3, 10])
def test_the_closed_form_is_where_plain_iteration_stops(H):
    A, b = random_parts()
    root = np.linalg.solve(A.mean(0), b.mean(0))
    theta = np.zeros(3)
    for _ in range(3000):
        ends = []
        for A_i, b_i in zip(A, b, strict=True):
            local = theta
            for _ in range(H):
                local = local + 0.02 * (A_i @ local - b_i)
            ends.append(local)
        theta = np.mean(ends, axis=0)
    np.testing.assert_allclose(local_sa_bias(A, b, 0.02, H), theta - root, rtol=1e-9, atol=1e-13)


def test_ever_more_local_steps_lead_to_the_average_of_the_agents_roots():
    A, b = random_parts()
    own = np.linalg.solve(A, b[..., None])[..., 0].mean(0)
    np.testing.assert_allclose(local_sa_bias(A, b, 0.02, 3000), own - np.linalg.solve(A.mean(0), b.mean(0)), rtol=1e-9)


@pytest.mark.slow
def test_simulations_stop_where_the_closed_forms_say(outcome):
    checks = TINY.checks(outcome)
    assert [check.verdict for check in checks] == ["pass"] * 8
    assert {check.claim for check in checks} == {1}
    assert max(check.measured for check in checks) < 1e-9
    assert min(row["measured"] for row in outcome.facts["rows"]) > 1e-5  # there is a bias to speak of


@pytest.mark.slow
def test_agents_with_negative_curvature_are_followed_for_few_local_steps_only(outcome):
    followed = {row["local_steps"] for row in outcome.facts["rows"] if row["family"] == "nonconvex"}
    assert followed == {2}
    assert set(outcome.facts["ends"]) == {"quadratic", "td", "finite-sum"}


def test_facts_survive_the_disk(outcome):
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts


def test_a_limit_that_is_off_by_a_millionth_fails(outcome):
    rows = [dict(row) for row in outcome.facts["rows"]]
    rows[0]["off_paper"] = 1e-6
    rows[-1]["off"] = 1e-6
    doctored = Outcome(outcome.arrays, outcome.facts | {"rows": rows})
    failed = [check.name for check in TINY.checks(doctored) if check.verdict != "pass"]
    assert failed == ["proposition: quadratic, H = 2", "proposition: quadratic, any H"]


def test_a_step_without_a_limit_is_refused():
    with pytest.raises(ValueError, match=r"no limit at H = 2, eta = 5.0: its round has spectral radius"):
        dataclasses.replace(TINY, quadratic_step=5.0).run(Runner())


def test_everything_simulated_is_drawn_told_and_tabulated(outcome):
    left, right = TINY.draw(outcome).axes
    assert left.get_xlabel() == "local steps $H$"
    assert "step size" in right.get_xlabel()
    table = TINY.table(outcome)
    assert len(table["measured"]) == 2 + 1 + 2 + 2 + 2
    assert table["family"][0] == "quadratic"
    assert f"In all {len(table['measured'])} cases" in " ".join(TINY.summary(outcome))


@pytest.mark.slow
def test_proposition_1_and_its_extension_hold_to_eight_digits():
    study = Proposition()
    checks = study.checks(study.run(Runner()))
    assert [check.verdict for check in checks] == ["pass"] * 8
