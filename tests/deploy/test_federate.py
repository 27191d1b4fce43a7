"""The run by messages is the run of the engine: every method, however the agents are divided among sites."""

import itertools

import jax
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES, POLICIES
from fedhsa.deploy import Faults, federate
from loops import channel, corrected, hostile, output, paper, policies, rules

ROUNDS, KEY = 4, 5
TABLES = (paper, corrected, rules, output, channel, hostile, policies)
METHODS = {name: method for table in TABLES for name, method in table.METHODS.items()}
FAST = ("Gossip(FedHSA)",)
"""Messages that differ per agent; plain ones are tested below."""


def both(problem, algorithm, **options):
    options = {"rounds": ROUNDS, "key": KEY} | options
    engine = {name: value for name, value in options.items() if name not in ("sites", "faults")}
    return federate(problem, algorithm, **options), fh.simulate(problem, algorithm, **engine)


def check(found, expected, tolerance=1e-12):
    assert found.status.tolist() == expected.status.tolist() == ["ok"]
    np.testing.assert_allclose(
        fh.tree.ravel(found.theta), fh.tree.ravel(expected.theta), rtol=tolerance, atol=tolerance
    )
    np.testing.assert_allclose(found.error, expected.error, rtol=tolerance, atol=tolerance)
    assert found.cost == expected.cost


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_every_method_gives_what_the_engine_gives(name):
    method = METHODS[name]
    problem = (CASES | POLICIES)[method.cases[0]]().problem
    start = np.linspace(-1, 1, problem.dim)
    check(*both(problem, method.on(problem), theta=start, sites=[[0], [1, 2]], faults=Faults(0.3, seed=1)))


def test_every_method_of_the_library_is_in_the_table():
    def names(algorithm):
        inner = getattr(algorithm, "algorithm", None)
        return {type(algorithm).__name__} | (set() if inner is None else names(inner))

    tried = set()
    for method in METHODS.values():
        tried |= names(method.on((CASES | POLICIES)[method.cases[0]]().problem))
    assert tried >= (fh.ALGORITHMS.keys() | fh.WRAPPERS.keys()) - {"SA"}  # which is LocalSA with one agent


PAPER = itertools.product(("FedHSA", "LocalSA", "SCAFFLSA"), ("float64", "float32"))


@pytest.mark.parametrize(
    ("name", "dtype", "fast"),
    [("FedHSA", "float64", True), *(pytest.param(*pair, False, marks=pytest.mark.slow) for pair in PAPER)],
)
def test_how_agents_are_divided_among_sites_does_not_matter(name, dtype, fast):
    problem, algorithm = CASES["td"](4).problem, METHODS[name].algorithm
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    _, expected = both(problem, algorithm, dtype=dtype)
    for sites in ([[0], [1, 2, 3]], [[0], [1], [2], [3]], [[0, 1], [2, 3]], [[0, 1, 2, 3]])[: 1 if fast else None]:
        found = federate(problem, algorithm, rounds=ROUNDS, key=KEY, dtype=dtype, sites=sites)
        check(found, expected, tolerance)
        assert found.theta.dtype == dtype
        assert found.settings["deploy"]["sites"] == len(sites)


def test_single_precision_is_that_of_the_engine():
    check(*both(CASES["td"]().problem, fh.LocalSA(0.05, 3), dtype="float32"), tolerance=1e-5)


class Line(fh.AbstractAgent):
    """Fits a line to points: its parameter has a slope and an intercept."""

    source: fh.AbstractSource

    def operator(self, theta, o, /):
        x, y = o[0], o[1]
        miss = y - theta["slope"] @ x[None] - theta["intercept"]
        return {"slope": miss * x[None], "intercept": miss}


def test_a_parameter_of_any_shape_travels_as_a_vector():
    points = np.random.default_rng(0).normal(size=(3, 40, 2))
    like = {"slope": np.zeros(1), "intercept": np.zeros(())}
    problem = fh.Problem(Line(fh.sources.Replay(points)), like=like, theta_star={"slope": [0.1], "intercept": 0.2})
    start = {"slope": np.array([3.0]), "intercept": np.array(-2.0)}
    found, expected = both(problem, fh.FedHSA(0.1, 3), theta=start)
    check(found, expected)
    assert found.error[0, 0] == pytest.approx(2.9**2 + 2.2**2)


def test_a_jax_key_and_the_number_it_was_made_from_give_the_same_run():
    problem, algorithm = CASES["td"]().problem, fh.LocalSA(0.05, 3)
    number, key = (federate(problem, algorithm, rounds=2, key=k).theta for k in (7, jax.random.key(7)))
    assert number.tobytes() == key.tobytes()


def test_a_record_that_is_too_short_is_rejected_before_the_first_round():
    problem = CASES["quadratic"]().problem.replay(np.zeros((3, 10, 4)))
    with pytest.raises(ValueError, match="requires 12 observations of each agent, but the source has 10"):
        federate(problem, fh.FedHSA(0.1, 3), rounds=4)


def test_a_run_is_kept_and_continued_in_its_folder(tmp_path):
    problem, algorithm = CASES["td"]().problem, fh.LocalSA(0.05, 3)
    federate(problem, algorithm, rounds=2, folder=tmp_path, faults=Faults(0.4, seed=2))
    found = federate(problem, algorithm, rounds=4, folder=tmp_path, resume=True)
    check(found, fh.simulate(problem, algorithm, rounds=4))
    assert found.rounds.tolist() == [0, 1, 2, 3, 4]
    assert found.complete
    with pytest.raises(ValueError, match="requires `folder`"):
        federate(problem, algorithm, rounds=4, resume=True)


def test_an_interrupted_run_gives_what_there_is_and_goes_on(tmp_path):
    problem, algorithm = CASES["td"]().problem, fh.LocalSA(0.05, 3)

    def interrupt(event):
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="Interrupted after round 2 of 4"):
        part = federate(problem, algorithm, rounds=4, folder=tmp_path, watch=interrupt)
    assert (part.complete, part.error.shape) == (False, (1, 3))
    whole = federate(problem, algorithm, rounds=4, folder=tmp_path, resume=True)
    check(whole, fh.simulate(problem, algorithm, rounds=4))


def test_the_norm_of_the_operator_is_recorded_by_what_an_exchange_declares_and_not_by_its_name():
    class Renamed(fh.FedHSA):
        @property
        def exchanges(self):
            operator, delta = super().exchanges
            return operator._replace(name="g"), delta

    problem = fh.problems.quadratic.random(2, 2)
    norms = [federate(problem, kind(0.1, 2), rounds=2).records["operator_norm"] for kind in (fh.FedHSA, Renamed)]
    np.testing.assert_array_equal(*norms)


def test_the_result_can_be_saved_and_read(tmp_path):
    result = federate(CASES["td"]().problem, fh.LocalSA(0.05, 3), rounds=2)
    result.save(tmp_path / "result.npz")
    again = fh.load(tmp_path / "result.npz")
    assert again.theta.tobytes() == result.theta.tobytes()
    assert again.settings["deploy"]["transport"] == "memory"
    assert again.records["bytes_up"][0, 1] > 3 * 4 * 8
    assert np.isfinite(again.records["movement"][0, 1])
    assert np.isnan(again.records["operator_norm"]).all()  # Local SA sends displacements, which are not operators
