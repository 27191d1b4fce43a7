"""Relations between laws that hold whatever their values are: what changes nothing, and what gives them a factor."""

import itertools
import warnings

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.problems import finite_sum
from fedhsa.theory import PredictionWarning, predict
from fedhsa.theory.laws import levels
from fedhsa.theory.laws.agents import Agents
from fedhsa.theory.laws.federation import Federation
from fedhsa.theory.laws.levels import EachSiteLaw, EverySiteLaw, TwoSitesLaw
from fedhsa.theory.laws.pieces import pieces_of
from theory.enumeration import stationary

LAWS = (EachSiteLaw, TwoSitesLaw, EverySiteLaw)
START, ROUNDS = np.array([1.0, -2.0]), 6
METHODS = [fh.LocalSA(0.2, 3), fh.FedHSA(0.2, 3, 0.8), fh.SCAFFLSA(0.2, 3)]


@pytest.fixture(autouse=True)
def _solved_to_all_digits(monkeypatch):
    monkeypatch.setattr(levels, "LOOSE", 1e-11)


def arrays_of(M, S=2):
    """Matrices and vectors of each transition, and the transitions, of unlike agents in two dimensions."""
    rng = np.random.default_rng([M, S])
    A = np.eye(2) + 0.4 * rng.standard_normal((M, S, S, 2, 2))
    return A, rng.standard_normal((M, S, S, 2)), 0.5 * np.eye(S) + 0.5 * rng.dirichlet(np.full(S, 2.0), (M, S))


def laws_of(arrays, method, kinds=LAWS):
    """The laws of a method on these agents that follow one agent, pairs of agents, and all of them."""
    A, b, P = arrays
    pi = np.array([stationary(p) for p in P])
    root = np.linalg.solve(*(np.einsum("is,ist,ist...->...", pi, P, x) for x in (A, b)))
    agents = Agents(P, pi, pi, P, np.concatenate([-A, (b - A @ root)[..., None]], axis=-1))
    federation = Federation(pieces_of(method, len(P), 2), agents, "It")
    return [kind(federation) for kind in kinds[: 1 if len(P) == 1 else None]]


def assert_equal_laws(one, other, start=START, unit=1.0):
    """Errors, moments of the long run, radii and what is neglected; the second law has errors `unit` times as large."""
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(unit**2 * a.errors(start, ROUNDS), b.errors(unit * start, ROUNDS), rtol=1e-9)
        (mean, covariance), found = a.stationary(), b.stationary()
        np.testing.assert_allclose(found.mean, unit * mean, rtol=1e-7, atol=1e-9 * unit)
        np.testing.assert_allclose(found.covariance, unit**2 * covariance, rtol=1e-7, atol=1e-9 * unit**2)
        assert b.mean_radius() == pytest.approx(a.mean_radius(), rel=1e-9)
        assert b.mean_square_radius().value == pytest.approx(a.mean_square_radius().value, rel=1e-6)
        assert b.neglected == pytest.approx(a.neglected, rel=1e-5, abs=1e-9)


# Methods that are the same.


class Halved(fh.LocalSA):
    """Local SA whose server moves half as far, written by a user."""

    def _move(self, server, replies, round):
        return self.with_theta(server, server.theta + 0.5 * replies.mean())


@pytest.mark.parametrize(
    ("one", "other", "M"),
    [
        (Halved(0.2, 3), fh.LocalSA(0.2, 3, 0.5), 3),
        (fh.LocalSA(0.2, 1, 0.5), fh.SynchronisedSA(0.1), 3),
        (fh.LocalSA(0.2, 3), fh.SCAFFLSA(0.2, 3), 1),
        (fh.FedHSA(0.2, 3, 0.8), fh.SCAFFOLD(0.2, 3, 0.8), 1),
        (fh.LocalSA(0.2, 1), fh.SA(0.2), 1),
        (fh.SCAFFOLD(0.2, 3), fh.SCAFFLSA(0.2, 3), 3),
        (fh.OneExchangeFedHSA(0.2, 3, 0.8), fh.SCAFFOLD(0.2, 3, 0.8, option=1), 3),
    ],
    ids=[
        "half a server step",
        "half a server step is half a step",
        "SCAFFLSA alone",
        "a correction alone",
        "one step alone",
        "SCAFFOLD",
        "one exchange",
    ],
)
def test_methods_that_are_the_same_have_the_same_laws(one, other, M):
    assert_equal_laws(*(laws_of(arrays_of(M), method) for method in (one, other)))


@pytest.mark.parametrize("method", [fh.SCAFFLSA(0.2, 3), fh.FedHSA(0.2, 3), fh.LocalSA(0.2, 3)])
def test_a_round_of_one_agent_is_three_rounds_of_one_step(method):
    ((rounds,), (steps,)) = (laws_of(arrays_of(1), algorithm) for algorithm in (method, fh.SA(0.2)))
    np.testing.assert_allclose(rounds.errors(START, ROUNDS), steps.errors(START, 3 * ROUNDS)[::3], rtol=1e-9)
    np.testing.assert_allclose(rounds.stationary().covariance, steps.stationary().covariance, rtol=1e-8)
    assert rounds.mean_square_radius().value == pytest.approx(steps.mean_square_radius().value ** 3, rel=1e-8)


def test_half_a_server_step_goes_half_the_way():
    """The mean moves by half of what a round changes, to the same fixed point."""
    (whole,), (half,) = (laws_of(arrays_of(3), fh.LocalSA(0.2, 3, step), [EachSiteLaw]) for step in (1.0, 0.5))
    rounds = [next(itertools.islice(law.path(START, 1), 1, None)).mean for law in (whole, half)]
    np.testing.assert_allclose(rounds[1], (START + rounds[0]) / 2, rtol=1e-12)
    np.testing.assert_allclose(half.persistent_bias(), whole.persistent_bias(), rtol=1e-10)


# Agents and states under other names.


@pytest.mark.parametrize("method", METHODS)
def test_permuted_agents_and_relabelled_states_change_nothing(method):
    arrays = arrays_of(3)
    others = [x[[2, 0, 1], ::-1, ::-1] for x in arrays]
    assert_equal_laws(*(laws_of(given, method) for given in (arrays, others)))


@pytest.mark.parametrize("method", METHODS)
def test_a_state_that_is_split_in_two_changes_nothing(method):
    """The chain enters its halves with chances of .3 and .7, and they do the same."""
    A, b, P = arrays_of(2)
    which, share = np.array([0, 1, 1]), np.array([1.0, 0.3, 0.7])
    halves = [x[:, which][:, :, which] for x in (A, b, P)]
    assert_equal_laws(laws_of((A, b, P), method), laws_of((*halves[:2], halves[2] * share), method))


# Other units.


@pytest.mark.parametrize("method", METHODS)
def test_the_unit_of_the_parameter_is_that_of_errors(method):
    A, b, P = arrays_of(3)
    assert_equal_laws(laws_of((A, b, P), method), laws_of((A, 10 * b, P), method), unit=10.0)


@pytest.mark.parametrize("kind", [fh.LocalSA, fh.FedHSA, fh.SCAFFLSA])
def test_operators_that_are_twice_as_large_need_half_the_step(kind):
    A, b, P = arrays_of(3)
    assert_equal_laws(laws_of((A, b, P), kind(0.2, 3)), laws_of((2 * A, 2 * b, P), kind(0.1, 3)))


def test_a_rotation_of_the_parameter_rotates_its_moments():
    A, b, P = arrays_of(3)
    T = np.array([[0.6, -0.8], [0.8, 0.6]])
    for method in METHODS:
        for one, other in zip(laws_of((A, b, P), method), laws_of((T @ A @ T.T, b @ T.T, P), method), strict=True):
            (mean, covariance), found = one.stationary(), other.stationary()
            np.testing.assert_allclose(found.mean, T @ mean, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(found.covariance, T @ covariance @ T.T, rtol=1e-7, atol=1e-9)


# More of the same agents.


@pytest.mark.parametrize("method", [fh.SCAFFOLD(0.2, 3), fh.LocalSA(0.2, 3), fh.FedHSA(0.2, 3)])
def test_two_copies_of_each_agent_halve_the_variance_of_additive_noise_and_leave_the_bias(method):
    """Slopes differ between agents but not in time, so that the bias of LocalSA is that of heterogeneity alone."""
    A, b, P = arrays_of(2)
    A = np.broadcast_to(A[:, :1, :1], A.shape)
    once, twice = (laws_of([np.repeat(x, n, axis=0) for x in (A, b, P)], method) for n in (1, 2))
    for one, other in zip(once, twice, strict=True):
        (mean, covariance), (same, half) = one.stationary(), other.stationary()
        np.testing.assert_allclose(same, mean, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(half, covariance / 2, rtol=1e-8)
        assert other.mean_square_radius().value == pytest.approx(one.mean_square_radius().value, rel=1e-7)


@pytest.mark.parametrize(
    ("M", "method"),
    [
        (2, fh.FedHSA),
        (3, fh.FedHSA),
        (6, fh.LocalSA),
        (12, fh.FedHSA),
        (12, fh.SCAFFLSA),
        (20, fh.LocalSA),
        (20, fh.SCAFFLSA),
    ],
)
def test_agents_that_differ_by_rounding_are_predicted_as_equal_agents(M, method):
    A, b, P = (
        np.repeat(x, M, axis=0)
        for x in (np.array([[[[1.8]], [[0.2]]]]), np.array([[[1.0], [-1.0]]]), 0.6 * np.eye(2)[None] + 0.2)
    )
    nearly = A + 1e-9 * np.random.default_rng(0).standard_normal(A.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PredictionWarning)
        equal, other = (predict(finite_sum.from_arrays(x, b, P), method(0.2, 3)) for x in (A, nearly))
    assert other.stable is equal.stable is True
    assert other.floor == pytest.approx(equal.floor, rel=1e-7)
    assert other.left_out == pytest.approx(equal.left_out, abs=1e-7)
