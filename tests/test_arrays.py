"""Arrays of many agents: drawn one after another, worked on in parts, stored once where shared, safe from changes."""

import jax
import numpy as np
import pytest

from fedhsa import FedHSA, _arrays, simulate, tree
from fedhsa._generate import balanced
from fedhsa._linear import by_parts
from fedhsa.problems import finite_sum, games, quadratic, td


def test_a_function_of_all_agents_is_the_same_in_parts(monkeypatch):
    A, b = np.random.default_rng(0).normal(size=(7, 3, 3)), np.arange(7.0)

    def function(pair):
        A, b = pair
        return {"solution": np.linalg.solve(A, np.ones((len(A), 3, 1))), "index": b.astype(int)}

    whole = function((A, b))
    monkeypatch.setattr(_arrays, "CHUNK", 18)
    parts = by_parts(function, (A, b), size=9)
    np.testing.assert_array_equal(parts["solution"], whole["solution"])
    np.testing.assert_array_equal(parts["index"], whole["index"])
    assert parts["index"].dtype == int


def test_what_all_agents_share_is_computed_and_stored_once():
    sizes = []

    def function(A):
        sizes.append(len(A))
        return A + 1

    found = by_parts(function, _arrays.share(np.eye(2), 1000), size=4)
    assert sizes == [1]
    assert found.shape == (1000, 2, 2)
    assert _arrays.is_shared(found)
    np.testing.assert_array_equal(found[999], np.eye(2) + 1)
    constant_rows = np.broadcast_to(np.arange(3.0)[:, None], (3, 4))  # which differ between agents
    assert not _arrays.is_shared(constant_rows)
    assert not _arrays.is_shared(np.eye(2)[:1])


def test_an_array_is_copied_once_and_then_never_again():
    given = np.arange(6.0).reshape(2, 3)
    view = np.broadcast_to(given, (5, 2, 3))
    kept, shared = _arrays.own(given), _arrays.own(view)
    given[:] = -1.0
    np.testing.assert_array_equal(kept, np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(shared[4], kept)
    assert _arrays.own(kept) is kept
    assert _arrays.own(shared) is shared
    assert _arrays.is_shared(shared)
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_other_numbers_become_float64(dtype):
    np.testing.assert_array_equal(_arrays.own(np.ones((2, 2), dtype)), np.ones((2, 2)), strict=True)


def test_a_balanced_matrix_is_the_limit_of_sinkhorns_sweeps_also_where_these_take_for_ever():
    rng = np.random.default_rng(0)
    R = rng.random((3, 6, 6))
    swept = P = R + np.swapaxes(R, 1, 2)
    for _ in range(300):
        swept = swept / swept.sum(2, keepdims=True)
        swept = swept / swept.sum(1, keepdims=True)
    np.testing.assert_allclose(balanced(P), swept, atol=1e-13)
    a, b, c = np.array([1.0, 1.9, 1e-6, 2.0]), np.array([1e-9, 1e-3, 1.0, 2.0]), np.array([2.0, 1e-5, 1e-6, 2.0])
    pairs = np.moveaxis(np.array([[a, b], [b, c]]), 2, 0)
    stay = np.sqrt(a * c) / (np.sqrt(a * c) + b)  # by hand: both columns keep the ratio ac / b^2
    np.testing.assert_allclose(balanced(pairs)[:, 0, 0], stay, atol=1e-13)
    R = rng.random((200, 4, 4)) ** 9  # from hardly anything to 1
    assert abs(balanced(R + np.swapaxes(R, 1, 2)).sum(2) - 1).max() < 1e-12


BUILDERS = {
    "quadratic": lambda M, **options: quadratic.random(M, 3, b_level=0.5, **options),
    "indefinite": lambda M, **options: quadratic.random(M, 3, convex=False, **options),
    "td": lambda M, **options: td.random(M, 4, 2, **options),
    "finite sum": lambda M, **options: finite_sum.random(M, 3, 2, **options),
    "scripts' finite sum": lambda M, **options: finite_sum.random(M, 3, 2, min_eigenvalue=1.0, **options),
    "game": lambda M, **options: games.random(M, 3, **options),
}


@pytest.mark.parametrize("heterogeneity", [0.3, 1.0])
@pytest.mark.parametrize("name", BUILDERS)
def test_agents_are_the_same_whatever_their_number_and_however_many_are_drawn_at_a_time(
    monkeypatch, name, heterogeneity
):
    few = BUILDERS[name](3, heterogeneity=heterogeneity).agents
    monkeypatch.setattr(_arrays, "CHUNK", 1)  # each agent by itself
    many = BUILDERS[name](5, heterogeneity=heterogeneity).agents
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:3]), few, many)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "indefinite"])
def test_equal_agents_store_their_tables_once(name):
    problem = BUILDERS[name](50, heterogeneity=0.0)
    large = [leaf for leaf in jax.tree.leaves(problem.agents) if leaf.ndim > 2]
    assert len(large) >= 2
    assert all(map(_arrays.is_shared, large))


@pytest.mark.parametrize(
    ("name", "seeds"), [("quadratic", 1), pytest.param("td", 9, marks=pytest.mark.slow)]
)  # at once, and in groups of agents
def test_agents_that_share_tables_are_simulated_from_one_copy_with_the_same_numbers(monkeypatch, name, seeds):
    problem = BUILDERS[name](600, heterogeneity=0.0)

    def run():
        return simulate(problem, FedHSA(0.05, local_steps=3), rounds=2, seeds=seeds, record=("operator_norm",))

    copied = run()
    monkeypatch.setattr(tree, "SHARED_BYTES", 0)
    on_device = tree.agents_to_device(problem.agents, "float64")
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(on_device)) < 20_000
    shared = run()
    for quantity in ("error", "operator_norm"):
        np.testing.assert_allclose(shared.records[quantity], copied.records[quantity], rtol=1e-12)


def test_large_tables_that_are_equal_become_one(monkeypatch):
    monkeypatch.setattr(tree, "SHARED_BYTES", 0)
    P, features = np.full((2, 2), 0.5), np.eye(2)
    R = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    agents = td.from_arrays([P] * 3, R, [features] * 3, 0.5).agents
    assert _arrays.is_shared(agents.source.chain._step_table)
    assert _arrays.is_shared(agents.features)
    assert not _arrays.is_shared(agents.rewards)  # the first and the last are equal, the second is not
    np.testing.assert_array_equal(agents.rewards, R)
