"""Replies as whole numbers, and what exchanges declare of how much of the replies they need."""

import jax
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES, POLICIES
from fedhsa.algorithms.base import Replies, Round
from fedhsa.algorithms.trace import exchange_shapes
from loops import channel, corrected, hostile, output, paper, policies, rules

TABLES = (paper, corrected, rules, output, channel, hostile, policies)
METHODS = {name: method for table in TABLES for name, method in table.METHODS.items()}
FAST = {"FedHSA", "Weighted(LocalSA)", "Gossip(FedHSA)"}
M = 3


def moved(server, exchange, values, round):
    return [np.asarray(x) for x in jax.tree.leaves(exchange.aggregate(server, Replies(values), round))]


def test_numbers_are_rounded_to_the_nearest_unit_and_refused_beyond_the_range():
    """With two bits the unit is 1/4. With 60 bits and two agents the range is 2^62 / 2^60 / 2 = 2, so that sums fit."""
    with jax.enable_x64(True):
        method = fh.FixedPoint(fh.LocalSA(0.1, 2), 2)
        whole = method._whole(jax.numpy.array([0.3, -0.3, 0.37, 0.38, -0.38]), 2)
        assert whole.tolist() == [1, -1, 1, 2, -2]
        fine = fh.FixedPoint(fh.LocalSA(0.1, 2), 60)
        assert fine.largest(2) == 2.0
        whole = fine._whole(jax.numpy.array([2.0, -2.0, 2.001, np.nan]), 2)
    assert whole.tolist() == [2**61, -(2**61), -(2**63), -(2**63)]
    assert 2 * 2**61 < 2**63


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_an_exchange_says_truly_whether_it_needs_only_the_mean(name):
    """Replies are changed so that their (weighted) mean stays: where it suffices, the server notices nothing."""
    problem = (CASES | POLICIES)[METHODS[name].cases[0]]().problem
    algorithm = METHODS[name].on(problem)
    generator = np.random.default_rng(0)
    with jax.enable_x64(True):
        agents = fh.tree.to_device(problem.flat_agents, "float64")
        algorithm = fh.tree.to_device(algorithm, "float64")
        theta = jax.numpy.linspace(-1, 1, problem.dim)
        shapes = exchange_shapes(algorithm, theta, M, fh.tree.take(agents, 0))
        server, _ = algorithm.init(theta)
        round = Round(jax.numpy.asarray(3), jax.random.key(0), num_agents=M)
        needs_more = []
        for exchange, (_, reply) in zip(algorithm.exchanges, shapes, strict=True):
            assert exchange.sum_bits is None or name.startswith("FixedPoint")
            weights = np.ones(M) if exchange.mean_weights is None else np.asarray(exchange.mean_weights)
            whole = exchange.sum_bits is not None

            def draw(shape, whole=whole):
                values = generator.uniform(0.5, 1.5, (M, *shape.shape))
                return np.round(2**12 * values).astype(np.int64) if whole else values

            def change(x, far, weights=weights, whole=whole):
                away = far * draw(jax.ShapeDtypeStruct(x.shape[1:], x.dtype))
                if whole:
                    return x + away - away[[1, 2, 0]]
                return x + away - np.tensordot(weights, away, 1) / weights.sum()

            def unnoticed(size, far, exchange=exchange, reply=reply):
                values = jax.tree.map(lambda shape: (draw(shape) * size).astype(draw(shape).dtype), reply)
                changed = jax.tree.map(lambda x: change(x, far), values)
                before, after = (moved(server, exchange, v, round) for v in (values, changed))
                return all(np.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in zip(before, after, strict=True))

            # A rule that leaves out what is far away needs the replies one by one, but not at every distance.
            if not all(unnoticed(size, far) for size, far in ((1, 1), (0.01, 1), (100, 1), (1, 100))):
                assert not exchange.mean_suffices, exchange.name
                needs_more.append(exchange.name)
        declared = [exchange.name for exchange in algorithm.exchanges if not exchange.mean_suffices]
        assert needs_more == declared


def test_a_sum_of_whole_numbers_is_near_the_plain_run_and_nearer_with_more_bits():
    problem, method = CASES["td"]().problem, fh.FedHSA(0.05, 3)
    plain = fh.simulate(problem, method, rounds=20).theta
    for bits, near in ((48, 1e-13), (20, 1e-4)):
        found = fh.simulate(problem, fh.FixedPoint(method, bits), rounds=20).theta
        assert 0 < np.abs(found - plain).max() < near


def test_a_number_beyond_the_range_is_not_clipped_but_ends_the_run():
    problem = fh.problems.quadratic.random(num_agents=2, dim=2).noiseless()
    method = fh.FixedPoint(fh.LocalSA(0.1, 2), bits=60)
    assert method.largest(2) == 2.0
    assert fh.simulate(problem, method, rounds=3, theta=np.full(2, 1e3)).status.tolist() == ["diverged"]
    assert fh.simulate(problem, method, rounds=3, theta=problem.theta_star).status.tolist() == ["ok"]


def test_what_does_not_add_up_is_refused_with_the_reason():
    method = fh.LocalSA(0.1, 2)
    for inner, exchange in (
        (fh.Robust(method, fh.rules.CoordinateMedian()), "delta"),
        (fh.ImportanceAveraging(0.1, 2), "delta"),
    ):
        with pytest.raises(
            TypeError, match=f"in its exchange '{exchange}' the server needs the agents' individual replies"
        ):
            fh.FixedPoint(inner)
    with pytest.raises(TypeError, match=r"Lossy cannot wrap FixedPoint: .* the server receives only their sum"):
        fh.Lossy(fh.FixedPoint(method), 0.1)
    with pytest.raises(TypeError, match="Put FixedPoint outside, and only once"):
        fh.Weighted(fh.FixedPoint(method), np.ones(2))
    with pytest.raises(ValueError, match="`bits` must be at most 60"):
        fh.FixedPoint(method, 61)
    with pytest.raises(ValueError, match="`dtype` must be 'float64' with FixedPoint"):
        fh.simulate(CASES["td"]().problem, fh.FixedPoint(method), rounds=1, dtype="float32")
