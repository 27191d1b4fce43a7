"""What agents say of their operators' form is what their operators do."""

import equinox as eqx
import jax
import numpy as np
import pytest

from fedhsa import problems, tree
from fedhsa._types import precision
from fedhsa.environments import make
from fedhsa.kernels import Affine, plain


def with_rewards_of_transitions(kind, **options):
    """Rewards and discounts that depend on the state entered, as episodes have them."""
    model = make("garnet", {"num_agents": 2, "num_states": 5, "num_actions": 2})
    return kind.from_model(model, **options)


PROBLEMS = {
    "td": lambda: problems.td.random(2, 5, 3),
    "td of a model": lambda: with_rewards_of_transitions(problems.td),
    "td, iid": lambda: problems.td.random(2, 5, 3).iid(),
    "n-step td": lambda: problems.n_step_td.random(2, 5, 3, steps=3),
    "off-policy td": lambda: problems.off_policy_td.random(2, num_states=4),
    "off-policy n-step td": lambda: problems.off_policy_td.random(2, num_states=4, steps=3),
    "quadratic": lambda: problems.quadratic.random(2, 3),
    "finite sum": lambda: problems.finite_sum.random(2, 3, 2),
}


FAST = ("td", "off-policy n-step td", "quadratic")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in PROBLEMS])
def test_the_form_of_a_block_gives_the_operator_of_each_observation(name):
    problem = PROBLEMS[name]()
    with precision():
        agent = tree.take(tree.to_device(problem.agents, "float64"), 1)
        theta = jax.random.normal(jax.random.key(3), (problem.dim,), "float64")
        for expected, moved in each_way(agent, theta):
            np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-12)


@eqx.filter_jit  # one program, which takes less time than its operations one by one
def each_way(agent, theta):
    """The operators of the first and the fifth observation, and how far their form moves the parameter."""
    keys = jax.random.split(jax.random.key(1), 6)
    _, block = agent.source.draw(keys, agent.source.init(jax.random.key(2)))
    form, found = agent.form(block), []
    assert form is not None
    for step in (0, 4):
        if isinstance(form, Affine):
            # One step of size 1 without a shift goes as far as the operator says.
            moved = plain.affine_steps(theta, None, None, 1.0, *form, start=step, stop=step + 1) - theta
        else:
            rest = jax.tree.map(lambda x, step=step: x[step:] if x.ndim else x, tuple(form)[1:])
            moved = plain.rank_one_operator(theta, form.table, *rest)
        found.append((agent.operator(theta, tree.take(block, step)), moved))
    return found
