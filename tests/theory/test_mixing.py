import numpy as np
import pytest

from fedhsa.sources import FiniteChain
from fedhsa.theory import mixing


def two_states(a, b):
    return np.array([[1 - a, a], [b, 1 - b]])


def complete_graph(n):
    return (1 - np.eye(n)) / (n - 1)


def lazy_cycle(n):
    return (2 * np.eye(n) + np.roll(np.eye(n), 1, 1) + np.roll(np.eye(n), -1, 1)) / 4


def random_kernel(S, key, power=1):
    P = np.random.default_rng(key).random((S, S)) ** power
    return P / P.sum(1, keepdims=True)


def defective():
    """Eigenvalues 1, 0.5, 0.5 with one eigenvector for the double one."""
    u, w = np.array([[1, -1, 0], [1, 1, -2]]), np.array([[1, -1, 0], [1, 1, -2]]) / np.array([[2], [6]])
    return np.full((3, 3), 1 / 3) + 0.5 * u.T @ w + 0.3 * np.outer(u[0], w[1])


def biased_walk(S):
    """Far from normal: it takes about S steps before anything is forgotten."""
    P = np.zeros((S, S))
    for s in range(S):
        P[s, max(s - 1, 0)] += 0.1
        P[s, s] += 0.1
        P[s, min(s + 1, S - 1)] += 0.8
    return P


def delay_line(S):
    """Slow stages in a row, a kernel with one eigenvector for many equal eigenvalues: d(t) / rho^t peaks at t = 141."""
    P = 0.95 * np.eye(S) + 0.05 * np.eye(S, k=1)
    P[-1, [0, -1]] = 1e-3, 1 - 1e-3
    return P


def with_transient_state():
    return np.array([[0.5, 0.25, 0.25], [0.0, 0.9, 0.1], [0.0, 0.3, 0.7]])


KERNELS = {
    "two states": two_states(0.1, 0.2),
    "alternating": two_states(0.9, 0.95),
    "complete graph": complete_graph(5),
    "lazy cycle": lazy_cycle(8),
    "random": random_kernel(12, key=0),
    "sparse": random_kernel(12, key=1, power=8),
    "slow": 0.98 * np.eye(6) + 0.02 * random_kernel(6, key=2),
    "defective": defective(),
    "biased walk": biased_walk(15),
    "rank one": np.tile(random_kernel(4, key=3)[0], (4, 1)),
    "delay line": delay_line(7),
    "transient": with_transient_state(),
}


def brute_distances(P, times):
    """d(1), ..., d(times) from the powers of P and the left eigenvector."""
    values, vectors = np.linalg.eig(P.T)
    pi = vectors[:, np.argmin(abs(values - 1))].real
    pi, power, distances = pi / pi.sum(), np.eye(len(P)), []
    for _ in range(times):
        power = power @ P
        distances.append(abs(power - pi).sum(1).max() / 2)
    return np.array(distances)


@pytest.mark.parametrize("name", KERNELS)
def test_distances_and_mixing_times_are_those_of_explicit_powers(name):
    P = KERNELS[name]
    distances = brute_distances(P, 400)
    for t in (1, 2, 7, 30):
        assert mixing.distance(P, t) == pytest.approx(distances[t - 1], abs=1e-13)
    for eps in (0.25, 0.1, 0.003):
        assert mixing.mixing_time(P, eps) == 1 + np.argmax(distances <= eps)


@pytest.mark.parametrize(("a", "b"), [(0.1, 0.2), (0.01, 0.001), (0.9, 0.95)])
def test_two_states_mix_as_their_closed_form_says(a, b):
    """d(t) = max(pi) |1 - a - b|^t."""
    P, largest, rate = two_states(a, b), max(a, b) / (a + b), abs(1 - a - b)
    assert mixing.distance(P, 5) == pytest.approx(largest * rate**5, rel=1e-9)
    assert mixing.mixing_time(P, 0.01) == np.ceil(np.log(0.01 / largest) / np.log(rate))


def test_the_complete_graph_mixes_as_its_closed_form_says():
    """d(t) = (1 - 1/n) (n - 1)^-t, far below rounding of the powers themselves."""
    for n in (3, 6, 11):
        assert mixing.distance(complete_graph(n), 40) == pytest.approx((1 - 1 / n) * (n - 1.0) ** -40, rel=1e-6)
        assert mixing.mixing_time(complete_graph(n)) == np.ceil(np.log(4 * (1 - 1 / n)) / np.log(n - 1))


def test_the_lazy_cycle_mixes_as_its_fourier_series_says():
    n, k = 30, np.arange(1, 30)
    eigenvalues, cosines = (1 + np.cos(2 * np.pi * k / n)) / 2, np.cos(2 * np.pi * np.outer(np.arange(n), k) / n)
    d = [abs(cosines @ eigenvalues**t / n).sum() / 2 for t in range(1, 400)]
    assert mixing.mixing_time(lazy_cycle(n)) == 1 + int(np.argmax(np.array(d) <= 0.25))
    assert mixing.distance(lazy_cycle(n), 100) == pytest.approx(d[99], rel=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_the_geometric_pair_bounds_the_distance_at_every_time(name):
    rho, c = mixing.geometric(KERNELS[name])
    times = np.arange(1, 401)
    assert 0 < rho < 1 <= c
    assert (brute_distances(KERNELS[name], 400) <= c * rho**times + 1e-13).all()


@pytest.mark.parametrize("name", ["two states", "complete graph", "lazy cycle", "random", "slow", "defective"])
def test_rho_lies_slightly_above_the_second_eigenvalue(name):
    """By some 5 per cent in the logarithm, and a little more for the defective kernel."""
    second = np.sort(abs(np.linalg.eigvals(KERNELS[name])))[-2]
    rho, c = mixing.geometric(KERNELS[name])
    assert second * (1 - 1e-7) <= rho <= second ** (0.9 if name == "defective" else 0.95)
    assert c < 10


def test_c_is_hardly_larger_than_it_has_to_be():
    for name in ("random", "slow", "biased walk"):
        rho, c = mixing.geometric(KERNELS[name])
        distances = brute_distances(KERNELS[name], 400)
        seen = distances > 1e-10  # beyond, the powers themselves are rounding
        needed = max(1.0, (distances / rho ** np.arange(1, 401))[seen].max())
        assert needed * (1 - 1e-9) <= c <= 1.2 * needed


def test_pairs_of_states_mix_one_step_later():
    """Against the chain of pairs itself, a kernel on S^2 states."""
    P, S = random_kernel(5, key=4), 5
    pairs = np.einsum("ab,bc->abc", np.ones((S, S)), P)  # (s, s') -> (s', s'')
    kernel = np.zeros((S, S, S, S))
    for a in range(S):
        for b in range(S):
            kernel[a, b, b] = pairs[a, b]
    distances = brute_distances(kernel.reshape(S * S, S * S), 12)
    np.testing.assert_allclose(distances[1:], brute_distances(P, 11), atol=1e-12)
    rho, c = mixing.geometric(P).of_pairs()
    assert (distances <= c * rho ** np.arange(1, 13) + 1e-13).all()


def test_tau_is_the_first_time_at_which_the_bound_is_met():
    for rho, c, eps in [(0.5, 2.0, 0.25), (0.9, 3.7, 1e-6), (0.1, 1.0, 2.0), (0.3, 1.0, 0.3**5)]:
        expected = next(t for t in range(10**4) if c * rho**t <= eps * (1 + 1e-12))
        assert mixing.Geometric(rho, c).tau(eps) == expected
    assert mixing.Geometric(1.0, 1.0).tau(0.1) == np.inf
    np.testing.assert_array_equal(mixing.Geometric(np.array([0.5, 0.9]), np.array([1.0, 1.0])).tau(0.5), [1, 7])


def test_a_chain_that_forgets_at_once_has_a_small_rate_and_c_1():
    assert mixing.geometric(KERNELS["rank one"]) == (0.001, 1.0)
    assert mixing.mixing_time(KERNELS["rank one"]) == 1


def test_a_very_slow_chain_is_followed_by_doubling():
    """A million steps in some forty products, and the closed form met to the step."""
    a, b = 1e-6, 2e-6
    assert mixing.mixing_time(two_states(a, b)) == np.ceil(np.log(0.25 / (2 / 3)) / np.log1p(-3e-6))
    rho, c = mixing.geometric(two_states(a, b))
    assert 3e-6 * 0.95 <= 1 - rho <= 3e-6 * (1 + 1e-9)
    assert c < 1.1


@pytest.mark.parametrize("function", [mixing.mixing_time, mixing.geometric])
def test_a_chain_that_hardly_mixes_is_refused_and_explained(function):
    stuck = np.stack([two_states(0.1, 0.2), two_states(1e-14, 1e-14)])
    with pytest.raises(ValueError, match=r"kernel of agent 1 hardly mixes.*second eigenvalue is 1 to within 6e-11"):
        function(stuck)


def test_for_constants_such_a_chain_has_rate_one_instead():
    P = np.stack([two_states(0.1, 0.2), two_states(1e-14, 1e-14)])
    pairs, times = mixing.of_chains(P, FiniteChain(P).stationary)
    assert pairs.rho[1] == 1
    assert times.tolist() == [3, np.inf]


def test_a_stack_of_kernels_gives_what_each_gives_alone():
    stack = np.stack([random_kernel(7, key=k, power=3) for k in range(3)])
    assert mixing.mixing_time(stack, 0.01).tolist() == [mixing.mixing_time(P, 0.01) for P in stack]
    assert mixing.distance(stack, 4).tolist() == [mixing.distance(P, 4) for P in stack]
    together = mixing.geometric(stack)
    for k, P in enumerate(stack):
        assert (together.rho[k], together.c[k]) == mixing.geometric(P)


def test_large_products_are_cut_into_strips_without_a_difference():
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 101, 101))
    np.testing.assert_allclose(mixing._product(A, B), A @ B, rtol=1e-12, atol=1e-12)


def test_bad_input_is_named():
    P = two_states(0.1, 0.2)
    with pytest.raises(ValueError, match=r"`eps` must be greater than 0.0, got -1"):
        mixing.mixing_time(P, -1)
    with pytest.raises(ValueError, match=r"`time` must be at least 0, got -2"):
        mixing.distance(P, -2)
    with pytest.raises(ValueError, match=r"periodic \(period 2\)"):
        mixing.mixing_time([[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match=r"`P` must have shape \(S, S\), got \(2,\)"):
        mixing.geometric([0.5, 0.5])
