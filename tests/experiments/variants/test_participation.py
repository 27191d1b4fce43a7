"""FedHSA with some of the agents."""

import functools

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.experiments.study import sampled as laws
from fedhsa.experiments.study.base import Outcome
from fedhsa.experiments.variants.participation import ALL, FED, Participation
from fedhsa.theory import predict
from theory import sets

STUDY = Participation(num_agents=3, counts=(1, 2))
AGENTS = laws.mean_operators(fh.problems.quadratic.random(num_agents=5, dim=2))


@functools.cache
def known() -> tuple[list, dict]:
    """All cases with their laws, and what these tend to."""
    problem = fh.problems.quadratic.random(num_agents=STUDY.num_agents, dim=STUDY.dim)
    agents = laws.mean_operators(problem)
    noisy = [case for sigma in STUDY.noise for case in STUDY._noisy(STUDY.with_noise(problem, sigma), sigma)]
    return [*STUDY._silent(problem.noiseless()), *noisy], STUDY._first_order(problem.noiseless(), agents)


def made(off: str = "", by: float = 1.5) -> Outcome:
    """An outcome in which floors are what the laws say, but those whose label has `off` in it are off by a factor."""
    cases, first_order = known()
    law = {label: floor for label, _, floor in cases if floor is not None}
    jitter = 1 + 0.01 * np.random.default_rng(0).normal(size=STUDY.seeds)
    arrays = {}
    facts = {"laws": law, "zero": {ALL: 1e-30, "SCAFFOLD": 1e-30}, "price": {}} | first_order
    for label, _, floor in cases:
        factor = by if off and off in label else 1.0
        arrays[label] = factor * jitter * (floor or 1.0)
        size = np.sqrt(factor * facts["bias of products"] / STUDY.dim)
        arrays[f"{label}/mean"] = size * jitter[:, None] * np.ones(STUDY.dim)
    for sigma in (STUDY.noise[0], STUDY.noise[-1]):
        decay = 100 * STUDY.target * 0.9 ** np.arange(60)
        rounds = float(np.log(25) / -np.log(0.9))
        facts["price"][f"{sigma:g}"] = {
            label: {"step": 0.01, "rounds": rounds, "bytes": cost, "evaluations": cost}
            for label, cost in ((FED, 1.0), (ALL, 1.5))
        }
        factor = by if off == "price" else 1.0
        arrays |= {f"price {sigma:g}/{FED}": jitter[:, None] * decay}
        arrays |= {f"price {sigma:g}/{ALL}": jitter[:, None] * np.where(decay < decay[0], factor**4, 1.0) * decay}
    return Outcome(arrays, facts)


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("field/participation: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


@pytest.mark.slow
def test_what_the_laws_say_passes():
    assert failing(made()) == set()


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        pytest.param("availability", {"availability"}, marks=pytest.mark.slow),
        pytest.param("Local SA/m 2", {"Local SA/m 2"}, marks=pytest.mark.slow),
        ("FedHSA/step 0.04", {"FedHSA/step 0.04", "slope, step"}),
        ("Horvitz-Thompson/step 0.005", {"Horvitz-Thompson/step 0.005", "products"}),
        ("price", {"bytes, noise 0.25", "bytes, noise 4"}),
    ],
)
def test_other_numbers_fail(off, expected):
    assert failing(made(off, by=1.5)) == expected


def test_a_method_that_stops_beside_the_root_fails():
    outcome = made()
    outcome.facts["zero"]["SCAFFOLD"] = 1e-6
    assert failing(outcome) == {"SCAFFOLD, root"}


@functools.cache
def floor(
    count: int, step: float, H: int, sigma: float = 0.0, *, method=fh.FedHSA, equal: bool = False, **kind
) -> float:
    problem = fh.problems.quadratic.from_arrays(-AGENTS.A, 0 * AGENTS.r if equal else AGENTS.r, noise_std=sigma or 1.0)
    half = fh.algorithms.sampling.UniformSampling(count, num_agents=5)
    return predict(problem if sigma else problem.noiseless(), fh.Partial(method(step, H), half, **kind)).floor


def test_a_set_of_one_is_local_sa_and_the_set_of_all_has_no_floor():
    assert floor(1, 0.02, 5) == pytest.approx(floor(1, 0.02, 5, method=fh.LocalSA), rel=1e-12)
    assert floor(5, 0.02, 5) < 1e-17


def test_sets_drawn_afresh_are_a_chain_too():
    there, chances = sets.independent_subsets(np.full(5, 0.4))
    law = sets.round_maps(AGENTS, sets.weights_of_present(there), 0.02, 5, noise_std=0.3)
    independent, mean = sets.independent_floor(law, chances)
    chain, same = sets.chain_floor(law, chances, np.tile(chances, (len(chances), 1)))
    assert chain == pytest.approx(independent, rel=1e-8)
    np.testing.assert_allclose(same, mean, rtol=1e-4)
    np.testing.assert_allclose(sets.availability_kernel(5, 0.4, 0.6), np.tile(chances, (len(chances), 1)), atol=1e-15)
    assert sets.expected_errors(law, chances, np.ones(2), 400)[-1] == pytest.approx(independent, rel=1e-8)


def test_laws_tend_to_their_first_orders():
    first = laws.first_order_floor(AGENTS, 5e-5, laws.sampling_factor(5, 2))
    assert floor(2, 1e-5, 5) == pytest.approx(first, rel=1e-3)
    assert laws.correlated_floor(AGENTS, 5e-5, 0.3, 0.8) == pytest.approx(
        9 * laws.first_order_floor(AGENTS, 5e-5, 0.3), rel=1e-2
    )
    p = np.linspace(0.3, 0.9, 5)
    there, chances = sets.independent_subsets(p)
    _, mean = sets.independent_floor(sets.round_maps(AGENTS, there / p / 5, 1e-6, 5), chances)
    np.testing.assert_allclose(mean, laws.product_bias(AGENTS, p), rtol=1e-4)
    small = sets.independent_floor(sets.round_maps(AGENTS, there / p / 5, 0.02, 5), chances)[0]
    assert laws.weighted_floor(AGENTS, p, 0.02, 5) == pytest.approx(small, rel=1e-10)


@pytest.mark.parametrize("all_answer", [False, True])
def test_with_noise_the_law_is_h_times_what_the_page_says(all_answer):
    """At small steps: 1/m of the noise among those present, (1 + (H - 2)(1 - m/M)) / m of it when everyone answers."""
    factor = (1 + (4 * 0.6 if all_answer else 0)) / 2
    noise = laws.MeanOperators(AGENTS.A, np.sqrt(5) * np.eye(5, 2))  # covariance I
    expected = laws.first_order_floor(noise, 1e-5, factor)
    found = floor(2, 1e-5, 6, 1.0, equal=True, all_answer_first=all_answer)
    assert found == pytest.approx(expected, rel=1e-3)


def test_figure_and_sentences_are_made_from_what_was_kept():
    outcome = made()
    assert len(STUDY.draw(outcome).axes) == 3
    assert "no smaller step removes" in STUDY.summary(outcome)[1]
    assert STUDY.notes()
