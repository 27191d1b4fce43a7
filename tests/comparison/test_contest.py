"""Comparisons on equal terms: the tuning finds what a brute search finds, and what counts is on fresh observations."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

import fedhsa
from fedhsa.comparison import contest
from fedhsa.comparison.contest import Terms, compare
from fedhsa.comparison.ranking import rank
from fedhsa.comparison.tuning import Trial, search
from fedhsa.engine import batch
from fedhsa.engine import run as engine_run

TERMS = Terms(samples=400, seeds=3, grid=6, tuning_seeds=2)


@pytest.fixture(scope="module")
def problem() -> fedhsa.Problem:
    return fedhsa.problems.quadratic.random(num_agents=2, dim=2)


def fed_hsa(step: float) -> fedhsa.FedHSA:
    return fedhsa.FedHSA(step, local_steps=4)


def local_sa(step: float) -> fedhsa.LocalSA:
    return fedhsa.LocalSA(step, local_steps=4)


@pytest.fixture(scope="module")
def found(problem) -> contest.Contest:
    return compare(problem, {"FedHSA": fed_hsa, "LocalSA": local_sa}, TERMS)


@pytest.mark.parametrize("best", np.geomspace(1e-3, 1e3, 9))
@pytest.mark.parametrize("trials", [3, 8, 13])
def test_a_search_takes_exactly_its_trials_and_closes_in_on_the_best(best, trials):
    tried = []

    def attempt(step: float) -> Trial:
        tried.append(step)
        return Trial(step, abs(np.log(step / best)))

    tuning = search(attempt, 1.0, trials)
    assert tried == [trial.step for trial in tuning.trials]
    assert len(set(tried)) == trials
    assert tuning.best.step == min(tried, key=lambda step: abs(np.log(step / best)))
    if trials == 13:  # seven coarse steps, up to two beyond, and the others halve the gaps beside the best
        assert not tuning.at_edge
        assert abs(np.log(tuning.best.step / best)) <= np.log(4) / 4


def test_after_a_search_the_true_best_lies_between_the_neighbours_of_the_best_tried():
    for best in np.geomspace(0.1, 10, 20):
        tuning = search(lambda step, best=best: Trial(step, abs(np.log(step / best))), 1.0, 9)
        steps = sorted(trial.step for trial in tuning.trials)
        place = steps.index(tuning.best.step)
        left, right = steps[place - 1], steps[place + 1]
        assert left < best < right
        assert right / left <= 4.0  # as far apart as two neighbours were at first


def test_where_everything_diverges_a_search_goes_to_smaller_steps():
    tuning = search(lambda step: Trial(step, np.inf), 1.0, 6)
    assert tuning.at_edge
    assert tuning.best.step == 4.0**-4


def test_with_a_target_the_cost_decides_and_the_error_only_between_equal_costs():
    outcomes = {0.25: (1.0, 50.0), 1.0: (0.1, 60.0), 4.0: (0.5, 50.0)}
    tuning = search(lambda step: Trial(step, *outcomes[step]), 1.0, 3)
    assert tuning.best.step == 4.0


def test_a_table_says_if_there_were_too_few_seeds_for_any_difference(problem, found):
    """Two methods require 6 seeds, with a smallest p-value of 2^-5; `found` has 3."""
    assert "With 3 seeds no difference can be significant: use at least 6" in found.table(width=1000)
    entries = {name: entry._replace(score=np.arange(6.0) + i) for i, (name, entry) in enumerate(found.entries.items())}
    enough = found._replace(entries=entries, ranking=rank({name: entry.score for name, entry in entries.items()}))
    assert "no difference can be" not in enough.table(width=1000)


@pytest.mark.slow
def test_the_step_is_that_of_a_loop_over_all_steps_tried(problem, found):
    key = jax.random.fold_in(jax.random.key(TERMS.key), 0x74756E65)
    for name, make in (("FedHSA", fed_hsa), ("LocalSA", local_sa)):
        tuning, errors = found.entries[name].tuning, []
        for trial in tuning.trials:
            result = fedhsa.simulate(problem, make(trial.step), rounds=100, seeds=2, key=key)
            errors.append(result.error[:, 91:].mean())  # the last tenth of a hundred rounds
        np.testing.assert_allclose([trial.error for trial in tuning.trials], errors, rtol=1e-12)
        assert tuning.best.step == tuning.trials[np.argmin(errors)].step
        assert len(tuning.trials) == TERMS.grid


def test_what_counts_is_a_run_on_the_key_itself_which_no_step_was_tuned_on(problem, found):
    entry = found.entries["LocalSA"]
    assert entry.tuning is not None
    result = fedhsa.simulate(problem, local_sa(entry.tuning.best.step), rounds=100, seeds=3, key=TERMS.key)
    np.testing.assert_allclose(entry.error, result.error, rtol=1e-12)
    np.testing.assert_allclose(entry.score, result.error[:, 91:].mean(1), rtol=1e-12)
    assert not np.isclose(entry.tuning.best.error, entry.score[:2].mean(), rtol=1e-3)


def test_bytes_are_those_of_all_agents_and_samples_those_of_one(found):
    for name, exchanges in (("FedHSA", 2), ("LocalSA", 1)):
        entry = found.entries[name]
        rounds = entry.result.rounds
        np.testing.assert_array_equal(entry.samples, 4 * rounds)
        np.testing.assert_array_equal(entry.exchanges, rounds * exchanges)
        np.testing.assert_array_equal(entry.bytes, rounds * 8 * 2 * exchanges * (2 + 2))


def test_a_method_whose_rounds_cost_nothing_sends_one_parameter_at_the_end(problem, found):
    result = found.entries["LocalSA"].result
    silent = dataclasses.replace(result, cost=result.cost._replace(exchanges=0, floats_up=0, floats_down=0))
    alone = fedhsa.OneShotAveraging(0.1, local_steps=4)
    np.testing.assert_array_equal(contest._bytes(problem, alone, silent), 8 * 2 * 2)
    np.testing.assert_array_equal(contest._bytes(problem, fedhsa.RichardsonRomberg(alone), silent), 2 * 8 * 2 * 2)
    np.testing.assert_array_equal(contest._exchanges(alone, silent), 1)


@pytest.mark.parametrize(
    ("algorithm", "per_round"),
    [
        (fedhsa.GappedSA(0.1, gaps=(1,) * 4), 4),
        (fedhsa.Partial(fed_hsa(0.1), fedhsa.sampling.UniformSampling(1, num_agents=4)), 2),
        (fedhsa.Averaged(fedhsa.LooplessSA(0.1, probability=0.25)), 0.25),
        (fedhsa.SSLocalSGD(0.1, local_steps=4, probability=0.5), 1.5),
    ],
)
def test_exchanges_count_whoever_takes_part_but_not_where_a_coin_leaves_them_out(found, algorithm, per_round):
    result = found.entries["FedHSA"].result
    np.testing.assert_array_equal(contest._exchanges(algorithm, result), per_round * result.rounds)


def test_a_step_of_a_whole_round_is_searched_for_around_that_of_its_observations(problem, found):
    entry = compare(problem, {"FedLin": lambda step: fedhsa.FedLin(step, local_steps=4)}, TERMS).entries["FedLin"]
    assert entry.tuning is not None
    assert found.entries["FedHSA"].tuning is not None
    same = found.entries[
        "FedHSA"
    ].tuning.trials  # FedLin with equal local steps is FedHSA with the step by their number
    np.testing.assert_allclose([t.step for t in entry.tuning.trials], [4 * t.step for t in same])
    np.testing.assert_allclose([t.error for t in entry.tuning.trials], [t.error for t in same], rtol=1e-9)


def test_a_method_is_compiled_once_for_all_its_steps(problem, monkeypatch):
    traces = []

    def counted(*arguments):
        traces.append(arguments)
        return batch.advance(*arguments)

    compiled = {batch.advance: eqx.filter_jit(counted)}
    monkeypatch.setattr(engine_run, "_compiled", lambda function, platform: compiled.get(function, function))
    compare(problem, {"FedHSA": fed_hsa}, TERMS)
    assert len(traces) == 1  # for the seeds that tune and those that count, in chunks of the same size


def test_every_method_gets_as_many_observations_whatever_its_rounds_are(problem):
    methods = {f"H = {H}": fedhsa.LocalSA(0.01, local_steps=H) for H in (1, 7)}
    entries = compare(problem, methods, Terms(samples=1000, seeds=2)).entries
    assert entries["H = 1"].samples[-1] == 1000
    assert 1000 - 7 < entries["H = 7"].samples[-1] <= 1000
    assert all(entry.tuning is None for entry in entries.values())
    assert all(len(entry.samples) <= contest.POINTS + 1 for entry in entries.values())


def test_with_a_target_what_counts_is_when_each_seed_first_gets_there(problem, found):
    error = found.entries["FedHSA"].error
    target = float(np.median(error[:, 50])) * (1 + 1e-6)  # not at an error, where rounding would decide
    terms = Terms(samples=400, seeds=3, target=target, objective="bytes")
    algorithm = found.entries["FedHSA"].algorithm
    entry = compare(problem, {"FedHSA": algorithm}, terms).entries["FedHSA"]
    first = [next((t for t, e in enumerate(row) if e <= target), np.inf) for row in error]
    np.testing.assert_array_equal(entry.reached["exchanges"], 2 * np.array(first))
    np.testing.assert_array_equal(entry.reached["samples"], 4 * np.array(first))
    np.testing.assert_array_equal(entry.score, np.array(first) * 8 * 2 * 8)


def test_errors_that_are_nothing_but_rounding_are_equal(problem):
    samples = np.arange(11)
    score = contest.tail(problem, np.array([[1.0] * 10 + [1e-30], [1.0] * 10 + [0.0]]), samples)
    assert score[0] == score[1] > 0


def test_an_interrupt_leaves_the_methods_that_are_done(problem):
    def progress(what: str, part: float) -> None:
        assert 0 <= part <= 1
        if what.startswith("second"):
            raise KeyboardInterrupt

    methods = {"first": fed_hsa(0.01), "second": local_sa, "third": local_sa}
    found = compare(problem, methods, TERMS, progress)
    assert list(found.entries) == ["first"]
    assert found.complete is False
    assert [place.name for place in found.ranking.places] == ["first"]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"samples": 3}, "`samples` must be at least 4, one round of FedHSA, got 3"),
        ({"target": 100.0}, "`target` must be below the error at the start"),
        ({"seeds": 1}, "`seeds` must be at least 2"),
        ({"grid": 0}, "`grid` must be at least 1"),
    ],
)
def test_terms_that_make_no_sense_are_refused(problem, terms, words):
    with pytest.raises(ValueError, match=words):
        compare(problem, {"FedHSA": fed_hsa}, Terms(**terms))
