"""A site that lies and does not say so: its replies are changed on the way, and its settings look honest."""

import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from federation import Federation, theta
from fedhsa import tree
from fedhsa.deploy import FederationError, MemoryTransport, Missing, Plan, Task, in_memory, journal
from fedhsa.deploy.wire import pack, unpack

ROUNDS = 3
MEDIAN = fh.Robust(fh.FedHSA(0.05, 3), fh.rules.CoordinateMedian())
PATIENCE = 0.2


class Hostile(MemoryTransport):
    """The last site replies what `lie` makes of its arrays, or says that it has diverged where that is None."""

    lie = staticmethod(lambda x: x)
    whose: list[int] | None = None
    code = "diverged"

    def _ask(self, site, message):
        header, arrays = unpack(super()._ask(site, message))
        if site == self.num_sites - 1 and header["kind"] == "reply":
            if self.lie is None:
                return pack(
                    header | {"kind": "rejection", "code": self.code, "reason": "so it says", "diverged": self.whose},
                    {},
                )
            arrays = {name: self.lie(a) for name, a in arrays.items()}
        return pack(header, arrays)


def run(tmp_path, lie, algorithm=MEDIAN, missing=None, **options):
    problem = CASES["td"]().problem
    task = Task(algorithm, 3, np.linspace(-1, 1, problem.dim), key=3, example=tree.take(problem.flat_agents, 0))
    found = Federation(tmp_path, task=task, problem=problem)
    server = found.server(kind=Hostile, missing=missing or Missing("fail", patience=PATIENCE), **options)
    server.transport.lie = lie
    return found, server.run(ROUNDS)


@pytest.mark.parametrize(
    ("attack", "lie"),
    [
        (fh.attacks.NotFinite(), lambda x: np.full_like(x, np.nan)),
        pytest.param(fh.attacks.SignFlip(1e200), lambda x: -1e200 * x, marks=pytest.mark.slow),
    ],
    ids=["no numbers", "huge numbers"],
)
def test_a_median_on_the_server_bears_one_site_of_three_that_lies(tmp_path, attack, lie):
    """The run is that of the engine with an agent that is hostile in the same way."""
    found, progress = run(tmp_path, lie)
    start = np.linspace(-1, 1, found.problem.dim)
    expected = fh.simulate(found.problem, fh.Byzantine(MEDIAN, (2,), attack), rounds=ROUNDS, key=3, theta=start)
    assert progress.failed_round < 0
    np.testing.assert_allclose(theta(progress), expected.theta[0], rtol=1e-12)


RULES = (
    fh.rules.TrimmedMean(0.34),
    fh.rules.MedianOfMeans(3),
    fh.rules.GeometricMedian(),
    fh.rules.ConcentrationFilter(sigma=2.0),
)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("method", [fh.FedHSA(0.05, 3), fh.LocalSA(0.05, 3)], ids=["FedHSA", "LocalSA"])
def test_every_rule_by_messages_is_that_of_the_engine_also_with_a_site_that_lies(tmp_path, method, rule):
    algorithm = fh.Robust(method, rule)
    found, progress = run(tmp_path, lambda x: x + 3.0, algorithm)
    attacked = fh.Byzantine(algorithm, (2,), fh.attacks.Shift(3.0))
    start = np.linspace(-1, 1, found.problem.dim)
    expected = fh.simulate(found.problem, attacked, rounds=ROUNDS, key=3, theta=start)
    np.testing.assert_allclose(theta(progress), expected.theta[0], rtol=1e-12)


def without_the_last(tmp_path, rounds=ROUNDS):
    """The parameter of a run in which the last site is never there."""
    problem = CASES["td"]().problem
    task = Task(
        fh.FedHSA(0.05, 3), 3, np.linspace(-1, 1, problem.dim), key=3, example=tree.take(problem.flat_agents, 0)
    )
    server = Federation(tmp_path / "without", task=task, problem=problem).server(missing=Missing("skip", patience=0.05))
    server.transport.absent = {2}
    return theta(server.run(rounds))


LIES = {
    "not finite": lambda x: np.full_like(x, np.inf),
    "finite and huge": lambda x: np.full_like(x, 1e308),
    "of a divergence": None,
}


@pytest.mark.parametrize("lie", [*list(LIES)[:2], pytest.param("of a divergence", marks=pytest.mark.slow)])
def test_a_site_whose_replies_are_no_use_is_left_out_or_named_and_does_not_end_the_run_of_the_others(tmp_path, lie):
    found, progress = run(tmp_path / "skip", LIES[lie], fh.FedHSA(0.05, 3), Missing("skip", patience=PATIENCE))
    assert (progress.failed_round, progress.round) == (-1, ROUNDS)
    assert theta(progress).tobytes() == without_the_last(tmp_path).tobytes()
    assert found.named("missing")[0]["agents"] == [2]
    said = [journal.sentence(event) or "" for event in found.events]
    assert any("agent 2" in words for words in said)
    for action in ("wait", "fail"):
        with pytest.raises(FederationError, match=r"Round 1 stopped: agent 2 (cannot|did not) answer"):
            run(tmp_path / action, LIES[lie], fh.FedHSA(0.05, 3), Missing(action, patience=PATIENCE))


LINE = """
import fedhsa as fh
import jax.numpy as jnp
import numpy as np


class Line(fh.AbstractAgent):
    source: fh.AbstractSource

    def operator(self, theta, o, /):
        x, y = o
        return (y - theta[0] - theta[1] * x) * jnp.stack([jnp.ones_like(x), x])


def build(context):
    return Line(fh.sources.Replay(tuple(np.loadtxt(context.config["data"], delimiter=",", unpack=True)), wrap=True))
"""


def test_a_missing_value_in_one_file_names_its_agent_and_the_run_goes_on_once_the_file_is_mended(tmp_path):
    (tmp_path / "line.py").write_text(LINE)
    rows = np.random.default_rng(0).normal(size=(3, 40, 2))
    for i in range(3):
        np.savetxt(tmp_path / f"{i}.csv", rows[i], delimiter=",")
    config = {"data": str(tmp_path / "{number}.csv")}
    plan = Plan(agent=f"{tmp_path}/line.py:build", dim=2, step_size=0.05, local_steps=5)
    whole = in_memory(plan, tmp_path / "whole", config=config).run(4)
    value, rows[1, 12, 1] = rows[1, 12, 1], np.nan
    np.savetxt(tmp_path / "1.csv", rows[1], delimiter=",")
    said = []
    teller = journal.Teller(said.append)
    with pytest.raises(FederationError, match=r"Round 3 stopped: agent 1 cannot answer \(its reply .* not finite"):
        in_memory(plan, tmp_path / "run", config=config, watch=teller).run(4)
    assert said[-1].startswith("No usable answer from agent 1 in round 3: its reply has numbers that are not finite")
    assert [e["agents"] for e in journal.read(tmp_path / "run") if e["event"] == "missing"] == [[1]]
    skipped = in_memory(plan, tmp_path / "skip", config=config, missing=Missing("skip", patience=30)).run(4)
    assert [record.agents for record in skipped.records] == [0, 3, 3, 2, 3]
    rows[1, 12, 1] = value
    np.savetxt(tmp_path / "1.csv", rows[1], delimiter=",")
    server = in_memory(plan, tmp_path / "run", config=config)
    server.resume()
    assert theta(server.run(4)).tobytes() == theta(whole).tobytes()


def test_a_reply_beyond_the_bound_is_its_agents_failure_also_where_the_rule_would_bear_it(tmp_path):
    for algorithm in (fh.FedHSA(0.05, 3), MEDIAN):
        with pytest.raises(
            FederationError, match=r"agent 2 cannot answer \(its reply has norm .*, beyond 50 \(`reply_b"
        ):
            run(tmp_path / type(algorithm).__name__, lambda x: x + 100, algorithm, reply_bound=50.0)
    honest = run(tmp_path / "honest", lambda x: x, fh.FedHSA(0.05, 3))[1]
    skip = Missing("skip", patience=PATIENCE)
    found, bounded = run(tmp_path / "bounded", lambda x: x, fh.FedHSA(0.05, 3), skip, reply_bound=50.0)
    assert theta(bounded).tobytes() == theta(honest).tobytes()
    assert not found.named("missing")
    with pytest.raises(ValueError, match="`reply_bound` must be"):
        run(tmp_path, None, reply_bound=-1.0)


def test_where_most_agents_diverge_the_run_has_diverged_and_where_few_do_they_are_named(tmp_path):
    """Two sites: the second has two agents, of which one says that it has diverged."""
    problem = CASES["td"]().problem
    task = Task(fh.FedHSA(0.05, 3), 3, np.zeros(problem.dim), example=tree.take(problem.flat_agents, 0))
    for whose, words in (([2], "agents 1, 2 cannot answer"), ([1, 2], "")):
        found = Federation(tmp_path / str(len(whose)), task=task, problem=problem, sites=((0,), (1, 2)))
        server = found.server(kind=Hostile)
        server.transport.lie, server.transport.whose = None, whose
        if words:
            with pytest.raises(FederationError, match=words):
                server.run(2)
            assert server.progress.failed_round < 0
        else:
            assert server.run(2).failed_round == 1


def test_a_site_that_has_every_round_begun_again_is_named_before_the_others_have_had_enough(tmp_path):
    """Honest sites begin a round again 100 times at most."""
    found = Federation(tmp_path)
    server = found.server(kind=Hostile, missing=Missing("skip", patience=60))
    server.transport.code = "missed"
    server.transport.lie = None
    progress = server.run(3)
    assert [record.agents for record in progress.records] == [0, 2, 2, 2]
    assert progress.records[1].attempts == 21
    assert found.named("missing")[0]["agents"] == [2]


def test_a_site_does_not_fill_the_servers_log(tmp_path, monkeypatch):
    monkeypatch.setattr("fedhsa.deploy.server._REJECTED", 5)
    found = Federation(tmp_path)
    server = found.server()
    exchange = server.transport.exchange

    def noisy(messages, seconds):
        yield from [b"noise"] * 50
        yield from exchange(messages, seconds)

    server.transport.exchange = noisy
    server.run(1)
    assert len(found.named("rejected")) == 5
    assert "the last of 5 that are written down" in found.named("rejected")[-1]["why"]


def test_a_median_goes_on_without_a_site_that_says_it_diverged(tmp_path):
    found, progress = run(tmp_path / "median", None, missing=Missing("skip", patience=PATIENCE))
    assert (progress.failed_round, progress.round) == (-1, ROUNDS)
    assert [event["absent"] for event in found.named("round")] == [[2]] * ROUNDS
