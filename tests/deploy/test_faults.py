"""What can go wrong, and that it changes nothing: with `wait` a run's numbers are those without faults, bit for bit.

Tried one by one, for FedHSA (two exchanges) and SCAFFLSA (agents with memory): each kind of fault on each message, also
a site killed in each phase of its answer; the server killed in each phase of each round, its sites with it or not.
Then, with LocalSA too, schedules by hypothesis that mix all of it: per message one of `FAULTS` or nothing, any order of
replies, up to four ends of the server, of each whether the sites ended with it.
"""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedhsa as fh
from federation import Federation, survive, theta
from fedhsa.deploy import FAULTS, Faults

METHODS = ("FedHSA", "LocalSA", "SCAFFLSA")
EXCHANGES = {"FedHSA": 2, "LocalSA": 1, "SCAFFLSA": 1}


SLOW = [pytest.param(name, 3, marks=pytest.mark.slow) for name in METHODS]


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level("CRITICAL", "fedhsa.site")


@functools.cache
def without_faults(name, rounds):
    """Theta, errors and what the sites have saved at the end of a run in which nothing happens."""
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder), name)
        progress = federation.server().run(rounds)
        return theta(progress), [record.error for record in progress.records], federation.saved()


def check(name, rounds, folder, faults, kills=()):
    federation = Federation(folder, name)
    progress = survive(federation, rounds, faults, kills)
    expected, errors, saved = without_faults(name, rounds)
    assert theta(progress).tobytes() == expected.tobytes()
    assert [record.error for record in progress.records] == errors
    assert federation.saved() == saved  # chains, memories and the number of blocks: nobody moved twice
    assert [header["blocks"] for header, _ in saved] == [rounds] * 3
    return federation


@pytest.mark.parametrize("name", METHODS)
def test_a_run_without_faults_is_that_of_the_engine(name, tmp_path):
    problem, task = (federation := Federation(tmp_path, name)).problem, federation.task
    expected = fh.simulate(problem, task.algorithm, rounds=4, key=3, theta=task.theta)
    found, errors, _ = without_faults(name, 4)
    np.testing.assert_allclose(found, expected.theta[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(errors, expected.error[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "rounds"), [("FedHSA", 2), pytest.param("SCAFFLSA", 2, marks=pytest.mark.slow), *SLOW]
)
@pytest.mark.parametrize("fault", FAULTS)
def test_any_fault_of_any_message_changes_nothing(name, rounds, fault, tmp_path):
    for place in range(rounds * EXCHANGES[name] * 3):
        faults = Faults(schedule=[None] * place + [fault], seed=place)
        check(name, rounds, tmp_path / str(place), faults)
        assert faults.happened == [fault]


@pytest.mark.parametrize(("name", "rounds"), [("FedHSA", 2), ("SCAFFLSA", 2), *SLOW])
@pytest.mark.parametrize("with_sites", [False, True])
def test_a_server_killed_at_any_point_continues_as_if_nothing_had_been(name, rounds, with_sites, tmp_path):
    points = rounds * (2 * EXCHANGES[name] + 2)  # each exchange is sent and collected, each round counted and saved
    for place in range(points + 1):
        federation = check(name, rounds, tmp_path / str(place), Faults(schedule=[]), [(place, with_sites)])
        assert len(federation.named("resumed")) == (place < points)


@pytest.mark.parametrize("name", METHODS)
def test_a_server_killed_again_and_again_comes_to_its_end(name, tmp_path):
    check(name, 3, tmp_path, Faults(schedule=[]), [(place, True) for place in (0, 1, 2, 3, 4, 5, 0, 2)])


def schedules(most):
    faults = st.lists(st.one_of(st.none(), st.none(), st.sampled_from(FAULTS)), max_size=most)
    kills = st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=4)
    return st.tuples(st.sampled_from(METHODS), faults, kills, st.integers(0, 2**32), st.booleans())


def check_schedule(drawn):
    name, schedule, kills, seed, reorder = drawn
    with tempfile.TemporaryDirectory() as folder:
        check(name, 3, Path(folder), Faults(schedule=schedule, seed=seed, reorder=reorder), kills)


OPTIONS = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
}


@settings(max_examples=20, **OPTIONS)
@given(schedules(40))
def test_schedules_of_faults_change_nothing(drawn):
    """40 schedules of up to 40 faults and 4 ends of the server."""
    check_schedule(drawn)


@pytest.mark.slow
@settings(max_examples=250, **OPTIONS)
@given(schedules(120))
def test_long_schedules_of_faults_change_nothing(drawn):
    """250 schedules of up to 120 faults and 4 ends of the server."""
    check_schedule(drawn)


@pytest.mark.slow
def test_chance_on_every_message_changes_nothing(tmp_path):
    """100 runs in which something happens to every other message for as long as the run takes."""
    for seed in range(100):
        check(METHODS[seed % 3], 3, tmp_path / str(seed), Faults(0.5, seed=seed), [(seed % 11, bool(seed % 2))])
