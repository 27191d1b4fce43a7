"""What sites measure: at which parameter, with which weights, who hears of it, and that it survives whatever dies."""

import pathlib

import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.deploy import Faults, MeasuredAgent, Missing, Plan, Server, Store, federate, in_memory
from fedhsa.deploy.fit import MismatchError
from fedhsa.deploy.measure import MOST, Measurements, Meter, SiteReport
from fedhsa.deploy.plan import with_keys
from fedhsa.deploy.site import failure_reply
from fedhsa.deploy.wire import RejectedError, unpack

METHODS = [fh.LocalSA(0.05, 3), fh.Averaged(fh.FedHSA(0.05, 3), burn_in=1)]
"""One whose first message is the server's parameter, and one whose result is another than what it sends."""


class Distance:
    """How far a parameter is from a place of the agent's own."""

    def __init__(self, number: int):
        self.place, self.weight, self.calls = np.full(4, float(number)), 1.0 + number, 0

    def __call__(self, theta):
        self.calls += 1
        return {"distance": float(np.abs(theta - self.place).sum()), "distance_naive": 7.0 + self.weight}


def expected(theta: np.ndarray) -> np.ndarray:
    """The distances of three agents from every row, worked out without the code under test."""
    return np.stack([np.abs(theta - number).sum(axis=1) for number in range(3)], axis=1)


def test_sites_measure_the_servers_parameter_of_every_round_and_the_last():
    problem, method = CASES["td"]().problem, METHODS[1]
    measures = [Distance(number) for number in range(3)]
    faults = Faults(0.3, seed=2)
    result = federate(problem, method, rounds=4, key=3, measures=measures, sites=[[0, 1], [2]], faults=faults)
    theta = fh.simulate(problem, method, rounds=4, key=3, record=("theta",)).records["theta"][0]
    np.testing.assert_allclose(result.records["distance_by_agent"][0], expected(theta), rtol=1e-9)
    weighted = expected(theta) @ np.array([1.0, 2.0, 3.0]) / 6
    np.testing.assert_allclose(result.records["distance"][0], weighted, rtol=1e-9)
    assert result.settings["measured"] == ["distance", "distance_naive"]
    assert result.quantity == "error"  # where the root is known, it says more


def test_a_run_is_the_same_whether_or_not_its_sites_measure_and_goes_on_with_what_they_did(tmp_path):
    problem, method = CASES["td"]().problem, METHODS[0]
    measures = [None, Distance(1), None]
    first = federate(problem, method, rounds=2, folder=tmp_path, measures=measures)
    again = federate(problem, method, rounds=3, folder=tmp_path, measures=measures, resume=True)
    assert again.theta.tobytes() == federate(problem, method, rounds=3).theta.tobytes()
    kept = again.records["distance_by_agent"][0]
    assert kept[:3].tobytes() == first.records["distance_by_agent"][0].tobytes()
    assert np.isfinite(kept[:, 1]).all()
    assert np.isnan(kept[:, [0, 2]]).all()
    np.testing.assert_array_equal(again.records["distance"][0], kept[:, 1])  # nobody else has a weight


AGENT = """
import numpy as np, fedhsa as fh
from fedhsa.deploy import MeasuredAgent

class Line(fh.AbstractAgent):
    source: fh.AbstractSource
    slope: np.ndarray

    def operator(self, theta, o, /):
        return self.slope * (o - theta)

def build(context):
    agent = Line(fh.sources.Replay(np.ones((5, 2)), wrap=True), np.array([1.0, 2.0]))
    return MeasuredAgent(agent, lambda theta: {"loss": float(theta @ theta)}, weight=3)
"""


def plan(folder: pathlib.Path, **more) -> Plan:
    (folder / "own.py").write_text(AGENT)
    given = {"agent": f"{folder}/own.py:build", "dim": 2, "num_agents": 2, "algorithm": "LocalSA", "local_steps": 2}
    return Plan(**given | more)


def run(server: Server, rounds: int = 2) -> list[dict]:
    events: list[dict] = []
    server.journal.watch = events.append
    server.run(rounds)
    return events


def test_noise_on_replies_keeps_metrics_at_the_site_unless_they_are_released(tmp_path):
    noise = {"clip": "1", "noise": "1"}
    events = run(in_memory(plan(tmp_path), tmp_path / "a", config=noise))
    assert [event["agents"] for event in events if event["event"] == "withheld"] == [[0], [1]]
    assert not any("measured" in event for event in events)
    assert b"loss" not in (tmp_path / "a" / "log.jsonl").read_bytes()
    events = run(in_memory(plan(tmp_path), tmp_path / "b", config={**noise, "release_metrics": "true"}))
    assert [event["measured"]["round"] for event in events if event["event"] == "round"] == [0, 1]
    assert events[-2]["metrics"]["loss"]["agents"][0] > 0
    assert events[-2]["weights"] == [3.0, 3.0]


def test_masks_on_replies_keep_metrics_at_the_site_unless_they_are_released(tmp_path):
    masked, store = plan(tmp_path).replace(secure_aggregation=True), Store(tmp_path / "run" / "0.state")
    keys = with_keys(masked, {}, tmp_path)
    sites = [masked.site([0], store, "run", keys | more) for more in ({}, {"release_metrics": "true"})]
    assert [site.withhold for site in sites] == [True, False]


def test_a_measure_that_fails_later_costs_its_number_and_not_the_run():
    problem, calls = CASES["td"]().problem, []

    def measure(theta):
        calls.append(theta)
        if len(calls) > 2:
            raise OSError("the file is gone")
        return {"loss": 1.0}

    result = federate(problem, METHODS[0], rounds=2, measures=[measure, None, None])
    assert result.records["loss"][0].tolist()[0] == 1.0
    assert np.isnan(result.records["loss"][0, 1:]).all()
    assert result.status.tolist() == ["ok"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3.0, "must give numbers by name"),
        ({}, "must give numbers by name"),
        ({"a b": 1.0}, "cannot be the name"),
        ({"error": 1.0}, "cannot be the name"),
        ({"loss": np.zeros(2)}, "must be one number"),
        ({f"n{i}": 0.0 for i in range(MOST + 1)}, f"at most {MOST}"),
    ],
)
def test_what_is_no_measure_is_told_before_the_first_round(given, words):
    with pytest.raises(ValueError, match=words):
        Meter([MeasuredAgent(None, lambda theta: given)], np.zeros(2))


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (None, np.zeros((1, 2))),
        (["loss"], np.zeros((2, 2))),
        (["loss", "loss"], np.zeros((1, 3))),
        (["../x"], np.zeros((1, 2))),
        (["loss"], np.array([[1.0, -1.0]])),
        (["loss"], np.array([[1.0, np.nan]])),
        (["loss"], np.zeros((1, 2), np.float32)),
    ],
)
def test_a_report_that_makes_no_sense_is_rejected(names, values):
    with pytest.raises(RejectedError):
        SiteReport.read(names, values, 1)


def test_averages_leave_out_what_is_not_finite_and_who_has_no_weight():
    kept = Measurements(4)
    kept.put(0, [0, 1, 2, 3], SiteReport(["x"], np.array([[1.0, 1.0], [4.0, 2.0], [np.nan, 5.0], [9.0, 0.0]])))
    assert kept.mean(kept.at(0)["x"]) == pytest.approx(3.0)
    again = Measurements.read(4, kept.arrays(), np.zeros((0, 6))).facts(0) or {}
    assert again["metrics"]["x"]["mean"] == pytest.approx(3.0)
    assert Measurements.read(4, {}, np.zeros((0, 6))).facts(0) is None
    assert np.isnan(kept.mean(np.array([np.nan, np.nan, np.nan, 9.0])))


# Agents that do not fit


def test_a_wrong_number_of_parameters_is_told_with_the_right_one_and_without_a_round(tmp_path):
    with pytest.raises(
        fh.deploy.FederationError, match=r"`dim` is 3, but the agents of .*have 2 parameters: use `--dim 2`"
    ):
        in_memory(plan(tmp_path, dim=3), tmp_path / "run").run(3)
    with pytest.raises(MismatchError) as wrong:
        plan(tmp_path, dim=3).rehearse({})
    said = unpack(failure_reply(b"", 1, wrong.value)).header
    assert (said["code"], "--dim 2" in said["reason"]) == ("mismatch", True)  # other machines may know sizes


def test_an_operator_that_fails_at_every_size_is_not_blamed_on_the_size(tmp_path):
    (tmp_path / "odd.py").write_text(
        AGENT.replace("return self.slope", "raise KeyError('odd')\n        return self.slope")
    )
    with pytest.raises(Exception, match="KeyError: 'odd'"):
        Plan(agent=f"{tmp_path}/odd.py:build", dim=3).rehearse({})


# Failures that come again


class Failing(fh.AbstractAgent):
    source: fh.AbstractSource
    number: np.ndarray

    def operator(self, theta, o, /):
        raise RuntimeError("always")


def failing(folder: pathlib.Path, action: str) -> tuple[Server, list[dict]]:
    task = fh.deploy.Task(METHODS[0], 2, np.zeros(2))
    good = fh.problems.quadratic.random(num_agents=2, dim=2).noiseless().flat_agents

    def start(site: int):
        agents = fh.tree.take(good, np.array([0])) if site == 0 else Failing(fh.sources.Silent(), np.zeros(1))
        return fh.deploy.Site(task, agents, [site], fh.deploy.Store(folder / f"{site}.state", sync=False), "test")

    events: list[dict] = []
    transport = fh.deploy.MemoryTransport(start, 2)
    return Server(task, transport, [[0], [1]], missing=Missing(action), watch=events.append, run="test"), events


def test_what_fails_the_same_way_twice_is_not_asked_again(tmp_path):
    server, events = failing(tmp_path, "wait")  # which would be ten minutes
    with pytest.raises(
        fh.deploy.FederationError, match=r"agent 1 cannot answer \(RuntimeError; see the log of the site\)"
    ):
        server.run(2)
    assert sum(event["event"] == "rejected" for event in events) == 2


def test_a_site_that_keeps_failing_is_asked_ever_less_often(tmp_path):
    server, events = failing(tmp_path, "skip")
    server.run(20)
    assert sum(event["event"] == "rejected" for event in events) == 4  # in rounds 1, 2, 6 and 14
