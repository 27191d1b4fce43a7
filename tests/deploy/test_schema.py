"""What a message may look like."""

from typing import NamedTuple

import jax
import numpy as np
import pytest

import fedhsa as fh
from fedhsa.algorithms import PerAgent
from fedhsa.deploy import RejectedError, Schema, Task
from fedhsa.deploy.schema import for_agents, is_finite


class Pair(NamedTuple):
    theta: np.ndarray
    rest: dict


VALUES = Pair(np.arange(3.0), {"n": np.array(2), "bits": (np.array([True]), np.zeros((2, 2), np.float32))})


def test_a_pytree_goes_by_the_names_of_its_parts_and_comes_back():
    schema = Schema(VALUES)
    assert [leaf.name for leaf in schema.leaves] == ["theta", "rest.bits.0", "rest.bits.1", "rest.n"]
    assert schema.num_bytes == 24 + 8 + 1 + 16
    back = schema.join(dict(reversed(schema.split(VALUES).items())))
    assert isinstance(back, Pair)
    assert jax.tree.all(jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), back, VALUES))


def test_parts_that_would_share_a_name_get_numbers():
    schema = Schema({"a.b": np.zeros(1), "a": {"b": np.ones(1)}})
    assert len({leaf.name for leaf in schema.leaves}) == 2
    assert schema.join(schema.split({"a.b": np.zeros(1), "a": {"b": np.ones(1)}}))["a"]["b"].tolist() == [1]


@pytest.mark.parametrize(
    ("name", "array", "code", "words"),
    [
        ("theta", None, "malformed", "the arrays are"),
        ("more", np.zeros(1), "malformed", "the arrays are"),
        ("theta", np.zeros(4), "malformed", r"'theta' is float64 of shape \(4,\), expected float64 \(3,\)"),
        ("theta", np.zeros(3, np.float32), "malformed", "'theta' is float32"),
        ("rest.n", np.array(2.0), "malformed", "'rest.n' is float64"),
        ("theta", np.array([0, np.nan, 0]), "non-finite", "'theta' has numbers that are not finite"),
        ("theta", np.array([0, 0, -np.inf]), "non-finite", "'theta' has numbers that are not finite"),
    ],
)
def test_arrays_that_are_not_exactly_those_are_rejected(name, array, code, words):
    schema = Schema(VALUES)
    arrays = schema.split(VALUES) | {name: array}
    with pytest.raises(RejectedError, match=words) as rejected:
        schema.join({n: a for n, a in arrays.items() if a is not None})
    assert rejected.value.code == code


def test_only_what_is_an_agents_own_is_cut_down():
    message = {"all": np.arange(3.0), "own": PerAgent(np.arange(6.0).reshape(3, 2))}
    cut = for_agents(message, np.array([1, 2]))
    assert cut["all"].tolist() == [0, 1, 2]
    assert cut["own"].values.tolist() == [[2, 3], [4, 5]]


def test_whole_numbers_and_truth_values_are_finite():
    assert is_finite(VALUES)
    assert not is_finite((VALUES, np.array(np.inf)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_task_knows_its_messages_whatever_the_precision_around_it(dtype):
    for outside in (False, True):
        with jax.enable_x64(outside):
            task = Task(fh.FedHSA(0.1, 5), num_agents=3, theta=np.zeros(2), dtype=dtype)
            assert [[sent.plain(), reply.plain()] for _, sent, reply in task.schemas(2)] == [
                [[["value", [2], dtype]], [["value", [2, 2], dtype]]]
            ] * 2


def test_tasks_that_differ_in_anything_that_matters_have_other_digests():
    def digest(algorithm=None, num_agents=3, theta=(0.0, 0.0), **options):
        return Task(algorithm or fh.FedHSA(0.1, 5), num_agents, np.array(theta), **options).digest

    assert digest() == digest(fh.FedHSA(np.float64(0.1), 5), key=jax.random.key(0))
    others = [
        digest(fh.FedHSA(0.2, 5)),
        digest(fh.FedHSA(0.1, 6)),
        digest(fh.LocalSA(0.1, 5)),
        digest(fh.Averaged(fh.FedHSA(0.1, 5))),
        digest(num_agents=4),
        digest(theta=(0.0, 1.0)),
        digest(theta=(0.0, 0.0, 0.0)),
        digest(key=1),
        digest(dtype="float32"),
    ]
    assert len({digest(), *others}) == len(others) + 1
