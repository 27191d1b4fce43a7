"""A site that lies and does not say so: its replies are changed on the way, and its settings look honest."""

import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from federation import Federation, theta
from fedhsa import tree
from fedhsa.deploy import FederationError, MemoryTransport, Missing, Task
from fedhsa.deploy.wire import pack, unpack

ROUNDS = 3
MEDIAN = fh.Robust(fh.FedHSA(0.05, 3), fh.rules.CoordinateMedian())
PATIENCE = 0.2


class Hostile(MemoryTransport):
    """The last site replies what `lie` makes of its arrays, or says that it has diverged where that is None."""

    lie = staticmethod(lambda x: x)

    def _ask(self, site, message):
        header, arrays = unpack(super()._ask(site, message))
        if site == self.num_sites - 1 and header["kind"] == "reply":
            if self.lie is None:
                return pack(header | {"kind": "rejection", "code": "diverged", "reason": "so it says"}, {})
            arrays = {name: self.lie(a) for name, a in arrays.items()}
        return pack(header, arrays)


def run(tmp_path, lie, algorithm=MEDIAN, missing=None):
    problem = CASES["td"]().problem
    task = Task(algorithm, 3, np.linspace(-1, 1, problem.dim), key=3, example=tree.take(problem.flat_agents, 0))
    found = Federation(tmp_path, task=task, problem=problem)
    server = found.server(kind=Hostile, missing=missing or Missing("fail", patience=PATIENCE))
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


def test_a_mean_takes_no_reply_without_numbers_and_a_site_that_sends_them_is_absent(tmp_path):
    with pytest.raises(FederationError, match="agent 2 did not answer"):
        run(tmp_path, lambda x: np.full_like(x, np.inf), fh.FedHSA(0.05, 3))


def test_a_site_that_says_it_diverged_ends_a_run_of_means_and_not_one_of_medians(tmp_path):
    skip = Missing("skip", patience=PATIENCE)
    _, progress = run(tmp_path / "mean", None, fh.FedHSA(0.05, 3), skip)
    assert progress.failed_round == 1
    found, progress = run(tmp_path / "median", None, missing=skip)
    assert progress.failed_round < 0
    assert progress.round == ROUNDS
    assert [event["absent"] for event in found.named("round")] == [[2]] * ROUNDS
