"""Agents without a server: graphs, consensus, and the bias that a constant step leaves."""

import jax
import numpy as np
import pytest

import fedhsa as fh
from cases import quadratic
from fedhsa.algorithms import Round

GRAPHS = {
    "ring": fh.graphs.Ring(6),
    "grid": fh.graphs.Grid(2, 3),
    "complete": fh.graphs.Complete(6),
    "random": fh.graphs.RandomGraph(6, 0.3),
    "drawn once": fh.graphs.RandomGraph(6, 0.6, varying=False),
    "two": fh.graphs.Ring(2),
    "one": fh.graphs.Ring(1),
}


def weights_of(graph, seed: int = 0) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(graph.weights(Round(0, jax.random.key(seed))))


@pytest.mark.parametrize("name", GRAPHS)
def test_weights_are_symmetric_and_add_up_to_one(name):
    W = weights_of(GRAPHS[name])
    np.testing.assert_allclose(W, W.T, atol=1e-15)
    np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-15)
    assert (W >= 0).all()
    assert (np.diag(W) > 0).all()


def test_agents_combine_before_or_after_their_own_step():
    """Parameters 0 and 4, displacements 1 and 2, weights 3/4 and 1/4.

    First: 0.25 * 4 + 1 = 2 and 0.75 * 4 + 2 = 5. Last: 0.75 * 1 + 0.25 * 6 = 2.25 and 0.25 * 1 + 0.75 * 6 = 4.75.
    """
    graph, round = fh.graphs.Mixing([[0.75, 0.25], [0.25, 0.75]]), Round(0, jax.random.key(0), num_agents=2)
    with jax.enable_x64(True):
        for combine, expected in (("first", [2.0, 5.0]), ("last", [2.25, 4.75])):
            method = fh.Gossip(fh.LocalSA(0.1, 2), graph, combine)
            server = method.init(jax.numpy.zeros(1))[0]
            apart = server._replace(servers=server.servers._replace(theta=jax.numpy.array([[0.0], [4.0]])))
            moved = method.exchanges[0].aggregate(apart, fh.Replies(jax.numpy.array([[1.0], [2.0]])), round)
            np.testing.assert_allclose(moved.servers.theta[:, 0], expected, rtol=1e-15)
            np.testing.assert_allclose(moved.theta, [3.5], rtol=1e-15)


def test_neighbours_are_those_of_the_graph():
    ring, grid = weights_of(fh.graphs.Ring(6)), weights_of(fh.graphs.Grid(2, 3))
    np.testing.assert_allclose(ring[0], [1 / 3, 1 / 3, 0, 0, 0, 1 / 3])
    assert set(np.flatnonzero(grid[0])) == {0, 1, 3}
    assert set(np.flatnonzero(grid[4])) == {1, 3, 4, 5}
    np.testing.assert_allclose(weights_of(fh.graphs.Complete(6)), 1 / 6)
    assert (
        fh.graphs.Ring(6).degree,
        fh.graphs.Ring(2).degree,
        fh.graphs.Ring(1).degree,
        fh.graphs.Complete(6).degree,
    ) == (2, 1, 0, 5)


def test_a_varying_graph_has_the_asked_number_of_links_and_another_every_round():
    graph = fh.graphs.RandomGraph(6, 0.3)
    links = np.array([np.count_nonzero(np.triu(weights_of(graph, seed), k=1)) for seed in range(300)])
    standard_error = np.sqrt(15 * 0.3 * 0.7 / 300)
    assert abs(links.mean() - 15 * 0.3) < 4 * standard_error
    assert len(np.unique(links)) > 3
    assert graph.degree == pytest.approx(15 * 0.3 * 2 / 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [fh.FedHSA(0.03, 4), pytest.param(fh.LocalSA(0.03, 4, server_step=1.3), marks=pytest.mark.slow)],
    ids=["FedHSA", "LocalSA"],
)
def test_on_a_complete_graph_it_is_the_method_with_a_server(algorithm):
    problem, options = quadratic().problem, {"rounds": 7, "seeds": 2, "record": ("theta",)}
    server = fh.simulate(problem, algorithm, **options)
    graph = fh.simulate(problem, fh.Gossip(algorithm, fh.graphs.Complete(3)), **options)
    np.testing.assert_allclose(graph.records["theta"], server.records["theta"], rtol=1e-12, atol=1e-14)


def resting_place(A, b, W, eta, H, combine):
    """The fixed point of all agents' Local SA at once, G_i = A_i theta - b_i, as one linear system."""
    M, d = b.shape
    powers = [np.linalg.matrix_power(np.eye(d) + eta * A[i], H) for i in range(M)]
    constants = [(powers[i] - np.eye(d)) @ np.linalg.solve(A[i], -b[i]) for i in range(M)]
    local, mix, c = np.zeros((M * d, M * d)), np.kron(W, np.eye(d)), np.concatenate(constants)
    for i in range(M):
        local[i * d : (i + 1) * d, i * d : (i + 1) * d] = powers[i]
    if combine == "last":
        system, right = mix @ local, mix @ c
    else:
        system, right = mix + local - np.eye(M * d), c
    return np.linalg.solve(np.eye(M * d) - system, right).reshape(M, d).mean(axis=0)


@pytest.mark.parametrize("combine", ["last", "first"])
@pytest.mark.slow
def test_local_sa_on_a_graph_rests_where_the_stacked_linear_system_says(combine):
    problem = fh.problems.quadratic.random(4, 3).noiseless()
    A, b = problem.affine_parts()
    graph, distances = fh.graphs.Ring(4), []
    for eta in (0.04, 0.02, 0.01):
        algorithm = fh.Gossip(fh.LocalSA(eta, 1), graph, combine=combine)
        result = fh.simulate(problem, algorithm, rounds=8000, every=8000)
        expected = resting_place(A, b, weights_of(graph), eta, 1, combine)
        np.testing.assert_allclose(result.theta[0], expected, atol=1e-10)
        distances.append(np.linalg.norm(expected - problem.theta_star))
    # With one local step there is no drift: all that is left is the consensus bias, of first order in the step.
    assert distances[0] > 1e-3
    np.testing.assert_allclose(np.divide(distances[:-1], distances[1:]), 2, atol=0.3)


def test_the_correction_of_fed_hsa_leaves_the_consensus_bias_of_first_order():
    problem = fh.problems.quadratic.random(4, 3).noiseless()
    error = [
        fh.simulate(problem, fh.Gossip(fh.FedHSA(eta, 4), fh.graphs.Ring(4)), rounds=4000, every=4000).error[0, -1]
        for eta in (0.02, 0.01, 0.005)
    ]
    assert error[0] > 1e-8
    np.testing.assert_allclose(np.sqrt(np.divide(error[:-1], error[1:])), 2, atol=0.4)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: fh.Gossip(fh.SCAFFLSA(0.1, 2), fh.graphs.Ring(3)), TypeError, "shifts add to zero"),
        (lambda: fh.Gossip(fh.Averaged(fh.LocalSA(0.1, 2)), fh.graphs.Ring(3)), TypeError, "cannot wrap Averaged"),
        (lambda: fh.Gossip(fh.LocalSA(0.1, 2), np.eye(3)), ValueError, "`graph` must be a graph"),
        (
            lambda: fh.Gossip(fh.LocalSA(0.1, 2), fh.graphs.Ring(3), combine="middle"),
            ValueError,
            "`combine` must be one of",
        ),
        (
            lambda: fh.Gossip(fh.SCAFFOLD(0.1, 2), fh.graphs.Ring(3), "first"),
            TypeError,
            "cannot wrap SCAFFOLD: no reply is av",
        ),
        (
            lambda: fh.Gossip(fh.OneExchangeFedHSA(0.1, 2), fh.graphs.Ring(3), "first"),
            TypeError,
            "for more than the displacement",
        ),
        (lambda: fh.Gossip(fh.MomentumSA(0.1, 2, 0.5), fh.graphs.Ring(3), "first"), TypeError, "Use `combine='last'`"),
        (lambda: fh.graphs.RandomGraph(6, 0.05, varying=False), ValueError, "not connected"),
        (lambda: fh.graphs.RandomGraph(6, 1.5), ValueError, "`probability` must be at most 1.0, got 1.5"),
        (lambda: fh.graphs.Ring(0), ValueError, "`num_agents` must be at least 1"),
        (lambda: fh.graphs.Mixing([[1.5, -0.5], [-0.5, 1.5]]), ValueError, "`matrix` must be at least 0"),
        (lambda: fh.graphs.Mixing([[0.5, 0.4], [0.5, 0.6]]), ValueError, "rows that add up to 1"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_a_graph_of_another_number_of_agents_is_refused():
    with pytest.raises(ValueError, match="`graph` has 4 agents but the problem has 3"):
        fh.simulate(quadratic().problem, fh.Gossip(fh.LocalSA(0.1, 2), fh.graphs.Ring(4)), rounds=1)
