"""Every algorithm inside every wrapper: the two compose, or are refused with the reason."""

import functools

import numpy as np
import pytest

import fedhsa as fh
from cases import POLICIES

PROBLEM = functools.cache(lambda: fh.problems.finite_sum.random(num_agents=4, num_components=3, dim=2))
TABLE = functools.cache(lambda: fh.problems.q_learning.random(num_agents=4, num_states=3, num_actions=2))
POLICY = functools.cache(lambda: POLICIES["episodes"](4).problem)
ELSEWHERE = {"ImportanceAveraging": TABLE, "FedNPG": POLICY, "FedNPGADMM": POLICY, "FedKL": POLICY}
"""For methods that only run on tables, or for policies."""
ALGORITHMS = {name: name for name in fh.ALGORITHMS if name != "SA"} | {
    "MomentumSA": "MomentumSA(beta=0.5)",
    "FedNPGADMM": "FedNPGADMM(rho=0.1)",
    "FedDVRQ": "FedDVRQ(recentring=(1, 2), refinements=3, codec=Uniform(1.0, 4))",
    "VarianceReducedSA": "VarianceReducedSA(batch=3)",
    "PersonalisedSA": "PersonalisedSA(beta=0.5)",
    "DecentralisedScaffnew": "DecentralisedScaffnew(graph=Ring)",
    "SCAFFOLD, option 1": "SCAFFOLD(option=1)",
    "SynchronisedSA, schedule": "SynchronisedSA(Polynomial(0.1, offset=5.0))",
}
WRAPPERS = {
    "Weighted": "Weighted({}, (0.4, 0.3, 0.2, 0.1))",
    "Projected": "Projected({}, radius=10.0)",
    "ServerMomentum": "ServerMomentum({}, beta=0.5)",
    "Gossip": "Gossip({}, Ring)",
    "Gossip, first": "Gossip({}, Complete, combine='first')",
    "Thinned": "Thinned({}, every=2)",
    "Replayed": "Replayed({}, buffer=5)",
    "Averaged": "Averaged({}, burn_in=3)",
    "GeometricAverage": "GeometricAverage({}, decay=0.9)",
    "RichardsonRomberg": "RichardsonRomberg({})",
    "Robust": "Robust({}, CoordinateMedian)",
    "Byzantine": "Byzantine({}, (1, 3), Shift)",
    "Compressed": "Compressed({}, TopK(0.5))",
    "Compressed, differences": "Compressed({}, RandK(0.5), feedback='difference')",
    "Delayed": "Delayed({}, max_delay=3, threshold=0.1)",
    "OverTheAir": "OverTheAir({}, gain_std=0.3, noise_std=0.1)",
    "Lossy": "Lossy({}, loss=0.2)",
    "Partial": "Partial({}, UniformSampling(2))",
    "Partial, availability": "Partial({}, Availability(0.5, 0.2))",
    "FixedPoint": "FixedPoint({}, bits=40)",
    "Partial, weighted": "Partial({}, WeightedSampling((0.5, 0.9, 0.9, 0.7)))",
}
ALWAYS = ("Thinned", "Replayed", "Averaged", "GeometricAverage", "RichardsonRomberg")
"""What changes no reply and moves no parameter goes around everything."""
AROUND_EVERYTHING_ELSE = ("LocalSA", "SynchronisedSA", "DisSACC")
"""What has one exchange, no memory and no coin goes into everything."""


def attempt(text: str) -> tuple[fh.AbstractAlgorithm | None, str]:
    """The pair, or why there is none."""
    try:
        return fh.algorithms.parse(text, PROBLEM(), step_size=0.05, local_steps=4), ""
    except TypeError as refusal:
        return None, str(refusal)


def test_the_table_has_every_algorithm_and_every_wrapper():
    assert {name.partition(",")[0] for name in WRAPPERS} == set(fh.WRAPPERS)
    assert {name.partition(",")[0] for name in ALGORITHMS} | {"SA"} == set(fh.ALGORITHMS)


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_pair_composes_or_is_refused_with_the_reason(wrapper):
    for name, algorithm in ALGORITHMS.items():
        pair, reason = attempt(WRAPPERS[wrapper].format(algorithm))
        if pair is None:
            assert wrapper not in ALWAYS, (name, reason)
            assert name not in AROUND_EVERYTHING_ELSE, (wrapper, reason)
            assert "cannot" in reason, (name, reason)
            assert reason.rstrip().endswith("."), (name, reason)
            continue
        problem = ELSEWHERE.get(name, PROBLEM)()
        pair.check(problem)
        cost = fh.cost(problem, pair)  # plays a round, without running it
        assert all(np.isfinite(part) and part >= 0 for part in cost), (name, cost)
        assert cost.evaluations > 0, name
