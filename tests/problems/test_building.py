"""What is checked when a problem is made, and what its variants keep."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.deploy import Plan
from fedhsa.problems import td
from fedhsa.problems.base import AffineAgent
from fedhsa.sources import AbstractControlled, FiniteChain, Silent

COIN = FiniteChain(np.full((2, 2), 0.5))


class Pull(fh.AbstractAgent):
    """Pulls the parameter to a target; `shape` spoils the answer."""

    source: fh.AbstractSource
    target: np.ndarray
    kind: str = eqx.field(static=True, default="right")

    def operator(self, theta, o, /):
        pull = self.target - theta
        spoilt = {"scalar": jnp.sum, "row": lambda x: x[None], "pair": lambda x: (x, x), "whole": jnp.isfinite}
        return spoilt.get(self.kind, lambda x: x)(pull)

    def mean_operator(self, theta, /):
        return self.operator(theta, 0) if self.kind != "mean" else jnp.sum(self.target - theta)


class Bare(fh.AbstractAgent):
    """Has no arrays."""

    source: fh.AbstractSource

    def operator(self, theta, o, /):
        return -theta


def pulls(*kinds, source=COIN):
    return [Pull(source, np.array([1.0, 2.0]), kind) for kind in kinds]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("scalar", r"`Pull.operator\(theta, o\)` .* must have the shape of `like`, \(2,\), got \(\)"),
        ("row", r"`Pull.operator\(theta, o\)` .* must have the shape of `like`, \(2,\), got \(1, 2\)"),
        ("pair", r"`Pull.operator\(theta, o\)` .* must have the structure of `like`, \(\*\), got \(\(\*, \*\)\)"),
        ("whole", r"`Pull.operator\(theta, o\)` .* must return floating-point numbers, got bool"),
        ("mean", r"`Pull.mean_operator\(theta\)` .* must have the shape of `like`, \(2,\), got \(\)"),
    ],
)
@pytest.mark.parametrize("theta_star", [None, np.array([1.0, 2.0])])
def test_an_operator_that_is_not_shaped_like_the_parameter_raises_when_the_problem_is_made(kind, message, theta_star):
    with pytest.raises(ValueError, match=message):
        fh.Problem(pulls(kind, kind), like=np.zeros(2), theta_star=theta_star)


def test_an_operator_on_a_chain_that_depends_on_the_parameter_is_checked_too():
    class Room(AbstractControlled):
        def init(self, key, /):
            return jnp.zeros(3)

    class Heating(fh.problems.AbstractControlledAgent):
        source: fh.AbstractSource
        goal: np.ndarray

        def react(self, theta, state, bits, /):
            return state + theta, {"temperature": state + theta}

        def operator(self, theta, o, /):
            return o["temperature"][: len(theta) - int(self.goal.ndim)] - self.goal

    like = np.zeros(3)
    with pytest.raises(ValueError, match=r"`Heating.operator.*must have the shape of `like`, \(3,\), got \(2,\)"):
        fh.Problem(Heating(Room(), np.zeros((2, 1))), like=like, theta_star=like)
    assert fh.Problem(Heating(Room(), np.zeros(2)), like=like, theta_star=like).controlled


def test_an_operator_of_a_site_is_checked_before_the_first_round(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "import numpy as np, fedhsa as fh\n"
        "class Own(fh.AbstractAgent):\n"
        "    source: fh.AbstractSource\n    target: np.ndarray\n"
        "    def operator(self, theta, o):\n        return (self.target - theta).sum()\n"
        "def build(place):\n    return Own(fh.sources.Silent(), np.ones(2))\n"
    )
    plan = Plan(agent=f"{file}:build", num_agents=2, dim=2)
    assert plan.theta_star is None
    with pytest.raises(ValueError, match=r"`Own.operator\(theta, o\)` .* must have the shape of `like`"):
        plan._agents([0], {})


@pytest.mark.parametrize(
    ("agents", "error", "message"),
    [
        ([], ValueError, r"`agents` must list at least one agent, got none"),
        (Pull, TypeError, r"`agents` must be agents, got the class Pull. Make one: Pull\(...\)"),
        ([*pulls("right"), Pull], TypeError, r"`agents\[1\]` must be an agent, got the class Pull"),
        ([3], TypeError, r"`agents\[0\]` must be an `AbstractAgent`, got 3"),
        (Bare(Silent()), ValueError, r"`agents`: Bare has no arrays, so it is not known how many agents there are"),
        ([Bare(Silent())] * 2, ValueError, r"`agents`: Bare has no arrays"),
        (pulls("right", "left"), ValueError, r"`kind`, which is static, is 'right' and 'left', for agents 0 and 1"),
        ([*pulls("right"), Bare(COIN)], ValueError, r"the class is Pull and Bare, for agents 0 and 1"),
        (
            [*pulls("right"), *pulls("right", source=Silent())],
            ValueError,
            r"`source` is FiniteChain and Silent, for agents 0 and 1",
        ),
        (
            [*pulls("right"), Pull(COIN, np.zeros(3))],
            ValueError,
            r"`target` has shape \(2,\) and \(3,\), for agents 0 and 1. Heterogeneous agents are of one class",
        ),
    ],
)
def test_agents_that_make_no_problem_raise_with_what_arrived_and_what_to_do(agents, error, message):
    with pytest.raises(error, match=message):
        fh.Problem(agents, like=np.zeros(2))


def test_a_problem_without_a_root_has_everything_but_the_root():
    agents = pulls("right", "right")
    problem = fh.Problem(agents, like=np.zeros(2), theta_star=None)
    others = problem.take([0]), problem.noiseless(), problem.iid(), problem.replay(np.zeros((2, 5), int))
    assert all(other.theta_star is None for other in (problem, *others))
    np.testing.assert_allclose(fh.Problem(agents, like=np.zeros(2)).theta_star, [1.0, 2.0])
    np.testing.assert_allclose(problem.local_roots, [[1.0, 2.0]] * 2)
    np.testing.assert_allclose(problem.jacobians(np.zeros(2)), -np.eye(2)[None].repeat(2, axis=0))
    np.testing.assert_allclose(problem.take([1], theta_star="solve").mean_operator(np.ones(2)), [0.0, 1.0])
    result = fh.simulate(problem, fh.LocalSA(0.1, 2), rounds=1)
    assert np.isnan(result.error).all()
    assert result.records["operator_norm"][0, 0] == pytest.approx(np.sqrt(5))
    for needs_one in (lambda p: p.root, fh.theory.constants, lambda p: fh.theory.predict(p, fh.LocalSA(0.1, 2))):
        with pytest.raises(ValueError, match=r"This problem has no root \(`theta_star=None`\)"):
            needs_one(problem)
    with pytest.raises(ValueError, match=r"Give `like`"):
        fh.Problem(agents, theta_star=None)


def test_unravel_keeps_the_axes_in_front():
    agent = AffineAgent(Silent(), -np.eye(5)[None], np.zeros((1, 5)))
    problem = fh.Problem(agent, like={"w": np.zeros((2, 2)), "b": 0.0})
    theta = np.arange(30.0).reshape(2, 3, 5)
    found = problem.unravel(theta)
    np.testing.assert_array_equal(found["b"], theta[..., 0])
    np.testing.assert_array_equal(found["w"], theta[..., 1:].reshape(2, 3, 2, 2))
    assert problem.unravel(theta[0, 0])["b"].shape == ()


class Line(fh.AbstractAgent):
    """Affine in a parameter that is a dictionary."""

    source: fh.AbstractSource
    level: np.ndarray

    affine = True

    def operator(self, theta, o, /):
        return {"b": self.level - theta["b"], "w": -2 * theta["w"] + theta["b"] + self.level * jnp.astype(o, float)}

    def recorders(self):
        return {"twice": lambda: lambda snapshot: 2 * snapshot.theta["w"]}


def test_a_root_of_another_shape_than_the_parameter_raises():
    agents = Line(FiniteChain(np.full((2, 2, 2), 0.5)), np.ones(2))
    like = {"b": 0.0, "w": np.zeros(2)}
    for root in ({"b": np.zeros(2), "w": 0.0}, {"a": 0.0, "w": np.zeros(2)}):
        with pytest.raises(ValueError, match="`theta_star` must be shaped like the parameter"):
            fh.Problem(agents, like=like, theta_star=root)


@pytest.mark.slow
def test_noiseless_problems_keep_the_parameters_structure_and_what_can_be_recorded():
    problem = fh.Problem(Line(FiniteChain(np.full((2, 2, 2), 0.5)), np.ones(2)), like={"b": 0.0, "w": np.zeros(2)})
    quiet = problem.noiseless()
    theta = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(quiet.unravel(theta)["w"], [2.0, 3.0])
    np.testing.assert_allclose(quiet.mean_operator(theta), [0.0, -2.5, -4.5])
    result = fh.simulate(quiet, fh.LocalSA(0.1, 2), rounds=1, record=["twice"])
    np.testing.assert_allclose(result.records["twice"][0, -1], 2 * result.theta["w"][0])
    run = fh.simulate(td.random(2, 4, 2).noiseless(), fh.LocalSA(0.1, 2), rounds=1, record=["value_error"])
    assert np.isfinite(run.records["value_error"]).all()


@pytest.mark.parametrize("case", ["logistic", "td", "quadratic"])
def test_replayed_observations_change_neither_the_root_nor_the_mean_operators(case):
    problem, _, record = CASES[case]()
    replayed = problem.replay(record(4, np.random.default_rng(0))[0])
    for theta in (problem.theta_star, np.ones(problem.dim)):
        np.testing.assert_array_equal(replayed.mean_operators(theta), problem.mean_operators(theta))
    again = replayed.replay(record(3, np.random.default_rng(1))[0])
    np.testing.assert_array_equal(again.mean_operator(problem.theta_star), problem.mean_operator(problem.theta_star))


def test_the_mean_operator_of_a_record_whose_law_is_unknown_raises():
    class Walk(fh.AbstractSource):
        step_size: np.ndarray

        def init(self, key, /):
            return jnp.zeros(())

        def step(self, key, state, /):
            return state + self.step_size, state

    class Mean(fh.AbstractAgent):
        source: fh.AbstractSource

        def operator(self, theta, o, /):
            return o - theta

    problem = fh.Problem(Mean(Walk(np.ones(2))), theta_star=0.0).replay(np.zeros((2, 3)))
    assert not problem.has_mean_operator
    with pytest.raises(TypeError, match=r"Walk has no exact stationary expectation"):
        problem.mean_operator(np.zeros(1))
