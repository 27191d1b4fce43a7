"""Predictions for wrappers and for methods that carry state: against enumeration and simulation."""

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.problems import quadratic
from fedhsa.theory import exact, predict
from fedhsa.theory.maps.rounds import local_rule


class Cautious(fh.FedHSA):
    """FedHSA whose server moves half as far as it is told to."""

    def _move(self, server, replies, round):
        return self.with_theta(server, server.theta + 0.5 * self.server_step * replies.mean())


class Renamed(fh.FedHSA):
    """FedHSA by another name."""


def test_a_subclass_with_a_server_of_its_own_gets_its_own_law():
    problem = quadratic.random(num_agents=3, dim=2)
    found, half = predict(problem, Cautious(0.05, local_steps=4)), predict(problem, fh.FedHSA(0.05, 4, server_step=0.5))
    assert local_rule(Cautious(0.05, local_steps=4)) is None
    np.testing.assert_allclose(found.transition, half.transition, atol=1e-9)
    assert local_rule(Renamed(0.05, local_steps=4)) == local_rule(fh.FedHSA(0.05, local_steps=4))


def test_an_error_inside_an_exact_law_is_not_taken_for_a_problem_too_large(monkeypatch):
    def broken(*_):
        raise TypeError("a fault")

    monkeypatch.setattr(exact, "law", broken)
    with pytest.raises(TypeError, match="a fault"):
        predict(quadratic.random(num_agents=3, dim=2), fh.FedHSA(0.05, local_steps=4))
