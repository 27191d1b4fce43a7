"""What agents say of their operators' form is what their operators do."""

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


FAST = ("td", "quadratic")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in PROBLEMS])
def test_the_form_of_a_block_gives_the_operator_of_each_observation(name):
    problem = PROBLEMS[name]()
    with precision():
        agent = tree.take(tree.to_device(problem.agents, "float64"), 1)
        keys = jax.random.split(jax.random.key(1), 6)
        _, block = agent.source.draw(keys, agent.source.init(jax.random.key(2)))
        theta = jax.random.normal(jax.random.key(3), (problem.dim,), "float64")
        form = agent.form(block)
        assert form is not None
        for step in (0, 4):
            expected = agent.operator(theta, tree.take(block, step))
            if isinstance(form, Affine):
                # One step of size 1 without a shift goes as far as the operator says.
                moved = plain.affine_steps(theta, None, None, 1.0, *form, start=step, stop=step + 1) - theta
            else:
                rest = jax.tree.map(lambda x: x[step:] if x.ndim else x, tuple(form)[1:])  # noqa: B023
                moved = plain.rank_one_operator(theta, form.table, *rest)
            np.testing.assert_allclose(moved, expected, rtol=1e-12, atol=1e-12)
