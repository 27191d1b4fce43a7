import json

import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.problems import finite_sum, quadratic, td
from fedhsa.theory import bounds, check, constants


@pytest.fixture(scope="module")
def known():
    problem = CASES["td"]().problem
    return problem, constants(problem)


def verdicts(report):
    return {line.name: line.verdict for line in report.lines}


def test_td_meets_all_four_assumptions_and_the_witnesses_are_named(known):
    problem, c = known
    report = check(problem, constants=c)
    assert [line.verdict for line in report.lines] == ["holds"] * 5
    assert (
        f"agent {int(np.argmax(c.lipschitz))} with {c.lipschitz.max():.4g}" in report["Assumption 1: Lipschitz"].reason
    )
    assert f"agent {c.slowest_agent}: mixing time {int(c.mixing_times.max())}" in report["Assumption 3"].reason
    assert report.failures == ()


def test_steps_are_judged_by_the_theorems_formulas(known):
    problem, c = known
    H = 3
    edge_1, edge_2 = bounds.theorem_1_step(H=H, L=c.L, mu=c.mu), bounds.largest_step(c, H)
    for eta, first, second, drift in [
        (0.99 * edge_2, "holds", "holds", "holds"),
        (1.01 * edge_2, "holds", "fails", "holds"),
        (1.01 * edge_1, "fails", "fails", "holds"),
        (1.01 / (c.L * H), "fails", "fails", "fails"),
    ]:
        found = verdicts(check(problem, fh.FedHSA(eta, H), constants=c))
        assert (found["Theorem 1: step"], found["Theorem 2: step"], found["Drift lemma: step"]) == (
            first,
            second,
            drift,
        )
    said = check(problem, fh.FedHSA(0.5, H), constants=c)["Theorem 1: step"].reason
    assert said == f"eta = 0.5 > mu/(2CL^2H) = {edge_1:.4g}."


def test_theorem_1_is_for_independent_sampling_only(known):
    problem, c = known
    assert check(problem, fh.FedHSA(0.1, 3), constants=c)["Theorem 1: i.i.d. sampling"].verdict == "fails"
    assert check(problem.iid(), fh.FedHSA(0.1, 3))["Theorem 1: i.i.d. sampling"].verdict == "holds"


def test_rounds_and_the_corollary_are_judged_when_rounds_are_given(known):
    problem, c = known
    H, T = 3, 10**7
    eta = fh.corollary_step(min(c.mu, 1), problem.num_agents, H, T)
    found = verdicts(check(problem, fh.FedHSA(eta, H), rounds=T, constants=c))
    assert found["Corollary 1: step"] == found["Theorem 2: rounds"] == "holds"
    tau_bar = c.tau((H * eta) ** 2)
    asked = bounds.corollary_1_rounds(T=T, M=3, H=H, L=c.L, mu=c.mu, rho=c.rho, tau_bar=tau_bar)
    assert found["Corollary 1: rounds"] == ("holds" if asked <= T else "fails")
    for rounds, verdict in ((2 * tau_bar - 1, "fails"), (2 * tau_bar, "holds")):
        report = check(problem, fh.FedHSA(eta, H), rounds=int(rounds), constants=c)
        assert report["Theorem 2: rounds"].verdict == verdict
    few = verdicts(check(problem, fh.FedHSA(0.001, H), rounds=5, constants=c))
    assert few["Theorem 2: rounds"] == few["Corollary 1: step"] == few["Corollary 1: rounds"] == "fails"


def test_another_server_step_is_outside_the_theorems(known):
    problem, c = known
    line = check(problem, fh.FedHSA(0.1, 3, 0.5), constants=c)["Theorems: server step"]
    assert (line.verdict, line.reason) == ("fails", "alpha_g = 0.5; the theorems require 1.")


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (fh.LocalSA(0.1, 2), "LocalSA is not covered. Heterogeneous agents bias it"),
        (fh.SynchronisedSA(0.1), "SynchronisedSA is not covered."),
        (fh.FedHSA(fh.Polynomial(1.0), 2), "schedules are not covered"),
    ],
    ids=str,
)
def test_what_the_theorems_do_not_cover_gets_no_number(known, algorithm, why):
    problem, c = known
    report = check(problem, algorithm, constants=c)
    for name in ("Theorem 1", "Theorem 2"):
        assert report[name].verdict == "unknown"
        assert why in report[name].reason


def test_gaussian_noise_breaks_the_growth_bound_and_the_finite_chain():
    report = check(CASES["quadratic"]().problem, fh.FedHSA(0.01, 2), rounds=100)
    found = verdicts(report)
    assert found["Assumption 1: Lipschitz"] == found["Assumption 2"] == "holds"
    assert found["Assumption 1: growth"] == found["Assumption 3"] == "fails"
    assert "radius 0.8333" in report["Assumption 3"].reason
    assert found["Theorem 2: step"] == found["Corollary 1: rounds"] == "unknown"


def test_an_operator_that_is_not_monotone_fails_assumption_2():
    """Eigenvalues 1 and 1, but far from normal: the symmetric part has the eigenvalue 1 - 2."""
    with pytest.warns(UserWarning, match="not monotone"):
        problem = quadratic.from_arrays(A=[[[1.0, 4.0], [0.0, 1.0]]], b=[[1.0, 1.0]])
    report = check(problem, fh.FedHSA(0.1, 2))
    assert report["Assumption 2"] == (
        "Assumption 2",
        "fails",
        "mu = -1: at some points the average operator does not point to the root.",
    )
    assert report["Theorem 1: step"].reason == "mu = -1 is not positive."


def test_transient_states_and_not_mixing_chains_fail_assumption_3():
    features = [np.eye(3)[:, 1:]]
    P = [[[0.5, 0.25, 0.25], [0.0, 0.9, 0.1], [0.0, 0.3, 0.7]]]
    line = check(td.from_arrays(P, np.ones((1, 3)), features, 0.5))["Assumption 3"]
    assert line.verdict == "fails"
    assert line.reason == "Agent 0 is not irreducible, with 1 transient states, but it mixes."
    not_mixing = [[[1 - 1e-14, 1e-14], [1e-14, 1 - 1e-14]]]
    line = check(finite_sum.from_arrays(np.ones((1, 2, 1, 1)), np.ones((1, 2, 1)), not_mixing))["Assumption 3"]
    assert (line.verdict, line.reason) == ("fails", "Agent 0 hardly mixes: its second eigenvalue is 1 to rounding.")


def test_a_report_prints_becomes_json_and_has_no_truth_value(known):
    problem, c = known
    report = check(problem, fh.FedHSA(0.1, 3), constants=c)
    assert str(report).splitlines()[2].startswith("Assumption 2                holds    mu = ")
    back = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert [line["name"] for line in back["lines"]] == [name for name, _, _ in report.rows()]
    assert {line.name for line in report.failures} <= set(verdicts(report))
    with pytest.raises(TypeError, match=r"has no truth value: use `failures`"):
        bool(report)
    with pytest.raises(KeyError, match=r"'Theorem 9' is not in this report; it has Assumption 1"):
        report["Theorem 9"]


def test_bad_input_is_named(known):
    _, c = known
    with pytest.raises(ValueError, match=r"`constants` must be those of this problem, got those of 3 agents"):
        check(td.random(2, 3, 1), constants=c)
    with pytest.raises(ValueError, match=r"`rounds` must be at least 1, got 0"):
        check(CASES["td"]().problem, rounds=0, constants=c)
