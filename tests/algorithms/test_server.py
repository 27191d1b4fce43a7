"""Weights, projection and momentum on the server, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import observed, quadratic
from contract import World
from fedhsa.problems._regions import nearest
from loops import output

LOCAL = fh.LocalSA(0.03, 4)
WEIGHTS = np.array([0.5, 0.2, 0.3])


def test_shifts_that_must_add_to_zero_find_the_weighted_root():
    """The weighted sum of SCAFFLSA's shifts stays zero when the average is weighted."""
    problem = quadratic().problem.noiseless()
    A, b = problem.affine_parts()
    root = np.linalg.solve(np.tensordot(WEIGHTS, A, 1), WEIGHTS @ b)
    assert np.linalg.norm(root - problem.theta_star) > 1e-2
    result = fh.simulate(problem, fh.Weighted(fh.SCAFFLSA(0.05, 4), WEIGHTS), rounds=2000, every=2000)
    np.testing.assert_allclose(result.theta[0], root, atol=1e-10)


def test_the_nearest_point_of_a_ball_or_a_box():
    with jax.enable_x64(True):
        theta = jnp.array([3.0, -4.0])
        np.testing.assert_allclose(nearest(theta, 10.0, None), [3.0, -4.0], rtol=1e-15)
        np.testing.assert_allclose(nearest(theta, 2.0, None), [1.2, -1.6], rtol=1e-15)
        np.testing.assert_allclose(nearest(theta, None, np.array([-1.0, 5.0])), [3.0, -1.0], rtol=1e-15)


@pytest.mark.slow
def test_a_projection_reaches_through_momentum():
    case = quadratic()
    theta = np.linspace(-1, 1, 4)
    algorithm = fh.Projected(fh.ServerMomentum(LOCAL, 0.6), radius=0.5)
    result = fh.simulate(case.problem, algorithm, rounds=7, key=5, theta=theta, record=("theta",))
    velocity = [np.zeros(4)]

    def finish(theta, moved):
        velocity[0] = 0.6 * velocity[0] + moved - theta
        return output.to_ball(theta, theta + velocity[0], radius=0.5)

    world = World(case.problem, case.G, observed("quadratic", 5, 0), theta, 7, 5, 0)
    path = output.with_server(world, finish)
    np.testing.assert_allclose(result.records["theta"][0], path, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(np.linalg.norm(path[1:], axis=1).max(), 0.5)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: fh.Weighted(LOCAL, [1.0, 0.0]), ValueError, "`weights` must be greater than 0"),
        (lambda: fh.Weighted(0.1, [1.0]), ValueError, "`algorithm` must be an algorithm"),
        (lambda: fh.Projected(LOCAL), ValueError, "either `radius` or `box`"),
        (lambda: fh.Projected(LOCAL, radius=0.0), ValueError, "`radius` must be greater than 0"),
        (lambda: fh.Projected(LOCAL, box=(1.0, 0.0)), ValueError, "low below high"),
        (lambda: fh.Projected(LOCAL, box=(0.0, 1.0, 2.0)), ValueError, "`box` must be `\\(low, high\\)`"),
        (lambda: fh.ServerMomentum(LOCAL, 1.0), ValueError, "`beta` must be below 1"),
        (lambda: fh.ServerMomentum(LOCAL, -0.1), ValueError, "`beta` must be at least 0"),
        (lambda: fh.ServerMomentum(fh.SCAFFLSA(0.1, 2), 0.5), TypeError, "shifts add to zero"),
        (lambda: fh.Projected(fh.SCAFFLSA(0.1, 2), radius=1.0), TypeError, "shifts add to zero"),
        (lambda: fh.Projected(fh.Averaged(LOCAL), radius=1.0), TypeError, "Swap them: `Averaged\\(Projected"),
        (
            lambda: fh.ServerMomentum(fh.Thinned(fh.Gossip(LOCAL, fh.graphs.Ring(3)), 2), 0.5),
            TypeError,
            "whole parameters",
        ),
        (lambda: fh.Projected(fh.Weighted(LOCAL, [1.0]), radius=1.0), TypeError, "Put Weighted outside"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_settings_that_do_not_fit_the_problem_are_refused():
    problem = quadratic().problem
    with pytest.raises(ValueError, match="`weights` must have one entry per agent, 3, got 2"):
        fh.simulate(problem, fh.Weighted(LOCAL, [1.0, 2.0]), rounds=1)
    with pytest.raises(ValueError, match="`box` must have one entry per coordinate, 4, got 2"):
        fh.simulate(problem, fh.Projected(LOCAL, box=(-1.0, [1.0, 2.0])), rounds=1)
    with pytest.raises(ValueError, match=r"`part` must end at most at the number of parameters, 4, got \(2, 6\)"):
        fh.simulate(problem, fh.Projected(LOCAL, radius=1.0, part=(2, 6)), rounds=1)
    with pytest.raises(ValueError, match=r"`sizes` must add up to the number of parameters, 4, got \(1, 2\)"):
        fh.simulate(problem, fh.Averaged(fh.SynchronisedSA(fh.PerBlock((0.1, 0.2), (1, 2)))), rounds=1)
