"""One table of methods, one of problems: each method on each problem against its own loop."""

import numpy as np
import pytest

import fedhsa as fh
from cases import CASES, POLICIES, observed
from contract import World
from loops import channel, corrected, hostile, output, paper, policies, rules

TABLES = (paper, corrected, rules, output, channel, hostile, policies)
METHODS = {name: method for table in TABLES for name, method in table.METHODS.items()}
ROUNDS, KEY = 7, 5

SHOWN_BY_OTHERS = {
    "SCAFFLSA": "SCAFFLSA, schedule",
    "SCAFFOLD, option 2": "SCAFFOLD, schedule",
    "Scaffnew": "Scaffnew, schedule",
    "FedHSA, sign of differences": "LocalSA, random differences",
    "LocalSA, losses": "FedHSA, losses",
    "FedPGBR": "FedPGBR, filter, one agent flips signs",
    "FedHSA, over the air": "LocalSA, over the air",
    "LocalSA, random delays": "A3C",
    "FedNPGADMM": "FedNPGADMM, three iterations",
    "FedHSA, half of the agents": "FedHSA, half of the agents after all gave their operators",
    "Weighted(FedHSA)": "Weighted(LocalSA)",
    "ServerMomentum(LocalSA)": "ServerMomentum(FedHSA)",
    "Gossip(FedHSA)": "Gossip(FedHSA), varying graph",
    "Averaged(FedHSA)": "Averaged(LocalSA)",
    "RichardsonRomberg(LocalSA)": "RichardsonRomberg(FedHSA), three steps",
    "FedKL as FedProx": "FedKL",
    "LocalSA, trimmed mean, one agent adds noise": "FedHSA, median, one agent flips signs",
    "FedHSA, filters, random displacements": "FedPGBR, filter, one agent flips signs",
    "Gossip(LocalSA), combine first": "Gossip(FedHSA), varying graph",
    "Projected(LocalSA), ball": "Projected(FedHSA), box",
    "LocalSA, unequal chances": "LocalSA, agents that come and go",
    "LocalSA, adaptive to its delay": "A3C",
    "FedHSA, quantised": "LocalSA, random differences",
    "FedHSA, geometric median of those present, no numbers": "FedHSA, median, one agent flips signs",
    "LocalSA, two of three agents": "LocalSA, agents that come and go",
}
"""Entries with the parts of another, which runs with the fast tests; these run with the slow ones."""


def pairs():
    """Every method on up to three of the problems it runs on, in turn; all but one of them take long together."""
    for number, (name, method) in enumerate(METHODS.items()):
        count = len(method.cases)
        for turn, place in enumerate(dict.fromkeys((number + further) % count for further in (0, 1, 3))):
            fast = turn == 0 and name not in SHOWN_BY_OTHERS
            yield pytest.param(name, method.cases[place], marks=() if fast else pytest.mark.slow)


def test_entries_shown_by_others_are_of_the_table_and_so_are_the_others():
    assert SHOWN_BY_OTHERS.keys() | {*SHOWN_BY_OTHERS.values()} <= METHODS.keys()
    assert not SHOWN_BY_OTHERS.keys() & {*SHOWN_BY_OTHERS.values()}


@pytest.mark.parametrize(("name", "case"), [*pairs()])
def test_a_method_equals_its_loop_on_the_observations_of_its_key(name, case):
    method, (problem, G, _) = METHODS[name], (CASES | POLICIES)[case]()
    algorithm, theta = method.on(problem), np.linspace(-1, 1, problem.dim)
    result = fh.simulate(problem, algorithm, rounds=ROUNDS, seeds=2, key=KEY, theta=theta, record=("theta",))
    assert result.status.tolist() == ["ok", "ok"]
    assert result.cost == method.cost(problem.dim)
    for seed in range(2):
        path = method.loop(World(problem, G, observed(case, KEY, seed), theta, ROUNDS, KEY, seed))
        np.testing.assert_allclose(result.records["theta"][seed], path, rtol=1e-12, atol=1e-13)
