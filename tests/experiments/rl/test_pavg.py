"""PAvg in heterogeneous environments, and the loop of its public code."""

import numpy as np
import pytest
import scipy.special

import fedhsa as fh
from fedhsa.experiments.rl.pavg import SETTINGS, PAvg, complementary
from fedhsa.experiments.study.base import Outcome

STUDY = PAvg()


def made(lost: float = 0.1, end: float = 1.0, early: float = 1.0, best: float = 0.0) -> Outcome:
    """Returns that fall by `lost` at kappa = 1; the most local steps end at `end` times the limit, with `early` times
    the way left at the first record; and so much below the best return at kappa = 0."""
    rng, arrays = np.random.default_rng(0), {}
    wobble = 1 + 0.02 * rng.normal(size=STUDY.seeds)
    for world in STUDY.worlds:
        arrays[f"{world}, best"] = 8 * wobble
        for method in STUDY.methods:
            for kappa in STUDY.kappas:
                value = 8 * wobble * (1 - best) - (0.001 + lost * kappa) * wobble**2
                arrays |= {f"{world}, {method}, {kappa:g}, centre": value, f"{world}, {method}, {kappa:g}, mean": value}
    for method in STUDY.methods:
        records = SETTINGS["random", method].iterations // 32 + 1
        for E in STUDY.local_steps:
            most = max(STUDY.local_steps) == E
            left = 3 * 0.5 ** np.arange(records) * (early if most else 1.0)
            arrays[f"{method}, E = {E}"] = (8 - left) * wobble[:, None] * (end if most else 1.0)
    return Outcome(arrays, {})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("rl/pavg: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_one_limit_that_earns_less_with_more_heterogeneity_passes():
    assert not failing(made())


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"lost": 0.0}, {"SoftPAvg, kappa", "ProjPAvg, kappa"}),
        ({"early": 1.5}, {"SoftPAvg, speed", "ProjPAvg, speed"}),
        ({"end": 0.98}, {"SoftPAvg, one limit", "ProjPAvg, one limit"}),
        ({"best": 0.01}, {"best policy, random", "best policy, cliffs"}),
    ],
)
def test_other_limits_fail(changed, names):
    assert failing(made(**changed)) == names


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 3
    assert "times 1.0000" in STUDY.summary(made())[1]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_other_kernels_lead_where_the_nominal_one_never_does():
    P = complementary(3, 1.0, key=0, cohort=0).transitions
    assert not ((P[0] > 0) & (P[1:] > 0)).any()
    assert ((P[0] > 0) | (P[1] > 0)).all()
    half = complementary(3, 0.5, key=0, cohort=0).transitions
    np.testing.assert_allclose(half[1], (P[0] + P[1]) / 2)
    np.testing.assert_array_equal(half[0], P[0])


def public_loop(model, logits, E, iterations, rate, decay):
    """SoftPAvg as in the source's public code: the logits at the end, the rate of each round, and mean returns."""
    M, gamma, rates, objectives = model.num_agents, model.discount[0], [], []
    for turn in range(iterations // E):
        if turn > 2 and objectives[-1] - objectives[-2] < 1e-3 * objectives[-2]:
            rate *= decay
        objectives.append(model.returns(np.repeat(scipy.special.softmax(logits, 1)[None], M, 0)).mean())
        rates.append(rate)
        agents = []
        for i in range(M):
            own, P, R = logits.copy(), model.transitions[i], model.rewards[i]
            for _ in range(E):
                pi = scipy.special.softmax(own, axis=1)
                V = np.linalg.solve(np.eye(len(P)) - gamma * np.einsum("sa,sat->st", pi, P), (pi * R).sum(1))
                own += rate * (R + gamma * P @ V - V[:, None]) / (1 - gamma)
            agents.append(own)
        logits = sum(agents) / M
    return logits, rates, objectives


@pytest.mark.parametrize("E", [1, *(pytest.param(E, marks=pytest.mark.slow) for E in (4, 16))])
def test_soft_pavg_is_the_loop_of_the_public_code_with_its_falling_rate(E):
    model = STUDY.model("cliffs", 0.8, cohort=0)
    start = STUDY.start("SoftPAvg", model, cohort=0)
    iterations = 12 * E
    expected, rates, _ = public_loop(model, start, E, iterations, rate=0.1, decay=0.4)
    changes = [t for t in range(1, len(rates)) if rates[t] != rates[t - 1]]
    step = fh.Stages([rates[t] for t in (0, *changes)], changes)
    problem = STUDY.problem("SoftPAvg", model)
    result = fh.simulate(problem, fh.LocalSA(step, local_steps=E), rounds=len(rates), theta=start)
    np.testing.assert_allclose(result.theta[0], expected, atol=1e-10 * abs(expected).max())


def test_the_public_rule_stops_few_local_steps_on_the_way():
    model = complementary(5, 1.0, key=0, cohort=0)
    start = STUDY.start("SoftPAvg", model, cohort=0)
    ends = [public_loop(model, start, E, 256, rate=0.05, decay=0.9)[2][-1] for E in (1, 32)]
    steady = [public_loop(model, start, E, 256, rate=0.05, decay=1.0)[2][-1] for E in (1, 32)]
    assert ends[0] < ends[1] - 0.02
    assert abs(steady[0] - steady[1]) < 0.02
