"""What a value is: settings as JSON has them, and digests that tell one value from another."""

import dataclasses
import functools
import json
import types
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from fedhsa._describe import IndescribableError, digest, plain_settings

SCALE = 2.0


class Decaying(fh.algorithms.AbstractSchedule):
    law: object = eqx.field(static=True)

    def __call__(self, round_index):
        return self.law(round_index)


def test_a_schedule_that_holds_a_function_can_be_written_to_a_manifest(tmp_path):
    algorithm = fh.FedHSA(Decaying(lambda t: jnp.where(t > 3, 0.05, 0.1)), local_steps=2)
    fh.simulate(fh.problems.quadratic.random(2, 2), algorithm, rounds=1).save(tmp_path / "result.npz")
    assert fh.load(tmp_path / "result.npz").settings["algorithm"]["step_size"]["name"] == "Decaying"
    json.dumps(plain_settings(algorithm))


def scaled(x):
    return SCALE * x


def test_digests_see_numbers_static_fields_code_closures_and_the_variables_that_code_refers_to(monkeypatch):
    def power(n):
        return lambda x: x**n

    values = [
        *(1, 1.0, True, "1", b"1", None, (1,), [1], {"a": 1}, {"a": 2}, {"b": 1}, {1, 2}),
        *(np.zeros(2), np.zeros(2, np.float32), np.zeros((2, 1)), jax.random.key(1), jax.random.key(2)),
        *(
            power(2),
            power(3),
            scaled,
            lambda x: x + 1,
            lambda x: x + 2,
            functools.partial(scaled, 1),
            jax.jit(power(4)),
        ),
        *(fh.problems.quadratic.random(2, 2, start=start) for start in ("zero", "stationary")),
        *(fh.FedHSA(0.1, 2), fh.FedHSA(0.1, 3), fh.FedHSA(0.2, 2), fh.LocalSA(0.1, 2)),
    ]
    found = [digest(value, "value") for value in values]
    assert len(set(found)) == len(values)
    assert found[17] == digest(power(2), "value")
    assert digest(jnp.zeros(2, np.float32), "value") == found[13]
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert digest(scaled, "value") != found[19]


def test_digests_see_modules_class_attributes_and_what_a_transform_was_made_with():
    module = types.ModuleType("settings_of_mine")
    space = {"settings_of_mine": module}
    exec("def double(x):\n    return settings_of_mine.scale * x", space)

    class Table:
        values: ClassVar[list] = [1.0]

        def look(self, x):
            return self.values[0] * x

    def f(x):
        return x + SCALE

    norm = jnp.linalg.norm
    found = [eqx.filter_vmap(f), eqx.filter_grad(f), jax.vmap(norm), jax.vmap(norm, in_axes=1), jax.vmap(f), norm]
    found += [eqx.filter_vmap(f, in_axes=1), jax.checkpoint(f), jax.nn.relu, jax.nn.silu]
    assert len({digest(value, "value") for value in found}) == len(found)
    module.scale = 1.0
    before = digest(space["double"], "value"), digest(Table(), "value")
    module.scale, Table.values = 2.0, [2.0]
    after = digest(space["double"], "value"), digest(Table(), "value")
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_a_class_of_the_users_counts_with_its_code():
    def agent(factor):
        class Mine(fh.AbstractAgent):
            source: fh.AbstractSource

            def operator(self, theta, o, /):
                return factor * theta

        return Mine(fh.sources.Silent())

    assert digest(agent(-1.0), "agent") == digest(agent(-1.0), "agent")
    assert digest(agent(-1.0), "agent") != digest(agent(-2.0), "agent")


def test_what_cannot_be_described_is_named_with_the_way_to_it():
    @dataclasses.dataclass
    class Holder:
        inner: object

    with pytest.raises(
        IndescribableError, match=r"`agent\[0\].inner\['x'\]` is a numpy.random.\S*Generator, which cannot"
    ):
        digest([Holder({"x": np.random.default_rng(0)})], "agent")
