"""A key gives the same problem and the same observations in every version: all draws equal those in `draws.json`.

`python tests/test_draws.py` adds the draws that the file does not have yet, and leaves the others alone.
"""

import json
import pathlib
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

import fedhsa as fh
from fedhsa import _random, sources, tree
from fedhsa._types import precision
from fedhsa.algorithms.codecs import RandK
from fedhsa.algorithms.sampling import UniformSampling
from fedhsa.environments import ENVIRONMENTS
from fedhsa.problems.make import PROBLEMS

FILE = pathlib.Path(__file__).with_name("draws.json")
RULE = (
    "{name} differs from tests/draws.json: the same key gave other numbers in earlier versions. If no generator was "
    "meant to change, this is a mistake. Whoever changes a generator gives it a new version number, keeps the old one "
    "reachable, and says so in the changelog (see Add a problem in CONTRIBUTING.md)."
)
SMALL = {"num_agents": 2, "heterogeneity": 0.5, "key": 2**40 + 7}
PROBLEM_SETTINGS: dict[str, dict[str, Any]] = {
    "quadratic": {"dim": 3},
    "quadratic, not convex": {"dim": 3, "convex": False},
    "td": {"num_states": 4, "dim": 2},
    "garnet": {"num_states": 5, "dim": 2},
    "finite-sum": {"dim": 3},
    "finite-sum, indefinite": {"dim": 3, "min_eigenvalue": 0.5},
    "logistic": {"num_examples": 4, "dim": 2},
    "n-step-td": {"num_states": 4, "dim": 2},
    "td-lambda": {"num_states": 4, "dim": 2},
    "average-reward-td": {"num_states": 4, "dim": 2},
    "off-policy-td": {"num_states": 4, "dim": 2},
    "gradient-td": {"num_states": 4, "dim": 2},
    "q-learning": {"num_states": 4},
    "sarsa": {"num_states": 4, "dim": 2},
    "actor-critic": {"num_states": 4},
    "policy-gradient": {"num_states": 4},
    "game": {"dim": 4, "num_states": 3},
    "saddle": {"dim": 4, "num_states": 3},
}
ENVIRONMENT_SETTINGS: dict[str, dict[str, Any]] = {
    "random": {"num_states": 4},
    "garnet": {"num_states": 5},
    "fedsarsa": {"num_states": 4, "num_actions": 3},
    "frozen-lake, own maps": {"layout": "own", "reward_spread": 0.5},
    "cliff-walking": {"reward_spread": 0.5},
    "taxi": {"reward_spread": 0.5},
}
"""Small sizes, and after a comma further cases for which a generator draws something else."""


def numbers(value: Any) -> dict[str, list]:
    """Each array as its shape and its product with a fixed vector; what a source computes for itself is left out."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(value)
    arrays = {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves if isinstance(x, np.ndarray)}
    return {
        place: [*x.shape, float(x.ravel() @ np.cos(np.arange(x.size)))]
        for place, x in arrays.items()
        if "._" not in place
    }


def problem(name: str) -> dict[str, list]:
    make = PROBLEMS[name.split(",")[0]]
    with mock.patch("fedhsa.problems._roots.find_root", return_value=None):  # the root is no draw, and is compiled
        found = make(**SMALL, **PROBLEM_SETTINGS.get(name, {}))
    return numbers({"agents": found.agents, "start": found.start})


def environment(name: str) -> dict[str, list]:
    model = ENVIRONMENTS[name.split(",")[0]](**SMALL, **ENVIRONMENT_SETTINGS.get(name, {}))
    return numbers({key: value for key, value in vars(model).items() if isinstance(value, np.ndarray)})


def keys() -> dict[str, list]:
    """Hashes of keys on the host, and the generator of each path. (`test_random.py` has those of the device.)"""
    words = np.array(_random.key_words(2**40 + 7), dtype=np.uint32)
    streams = [[int(stream), *_random.fold_in_words(words, int(stream)).tolist()] for stream in _random.Stream]
    drawn = _random.host_generator(2**40 + 7, "A", 3, _random.Stream.COMMON).normal(size=3)
    return {"words": words.tolist(), "streams": np.ravel(streams).tolist(), "host": drawn.tolist()}


def observations(*names: str) -> dict[str, list]:
    """The state at position 0 and five observations of these sources, or of all, in one compiled program."""
    P = np.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.25, 0.5, 0.25]])
    moves, start, A = np.stack([P, P[::-1]], axis=1), np.array([0.2, 0.3, 0.5]), np.array([[0.5, 0.2], [0.0, -0.4]])
    chain = sources.FiniteChain(P, start)
    every = {
        "FiniteChain": chain,
        "Transitions": sources.Transitions(chain),
        "Windows": sources.Windows(chain, 2),
        "Traces": sources.Traces(chain, np.arange(6.0).reshape(3, 2), np.array([0.5, 0.2, 0.4])),
        "VAR1": sources.VAR1(A, 0.5),
        "VAR1, stationary": sources.VAR1(A, 0.5, start="stationary"),
        "LinearGaussian": sources.LinearGaussian(A, np.diag([1.0, 2.0])),
        "Generative": sources.Generative(P),
        "Decisions": sources.Decisions(moves, start),
        "Restarts": sources.Restarts(moves, start),
        "IID of FiniteChain": sources.IID(chain),
        "IID of VAR1": sources.IID(sources.VAR1(A, 0.5)),
        "Replay": sources.Replay(np.arange(4), wrap=True),
    }

    @jax.jit
    def seen(words):
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        found = {}
        for name in names or every:
            on_device = tree.to_device(every[name], "float64")
            first = on_device.init(_random.fold_in(key, 0))
            found[name] = first, on_device.draw(_random.fold_in(key, np.arange(1, 6)), first)
        return found

    with precision():
        found = jax.tree.map(np.asarray, seen(np.array([3, 11], dtype=np.uint32)))
    return {name: np.hstack([x.ravel() for x in jax.tree.leaves(of)]).tolist() for name, of in found.items()}


def path() -> dict[str, list]:
    """Three rounds of a method with every kind of key: of sources, of the server, and of agents."""
    found = fh.problems.td.random(num_states=4, dim=2, **SMALL)
    method = fh.Partial(fh.Compressed(fh.FedHSA(0.1, local_steps=2), RandK(1)), UniformSampling(1, num_agents=2))
    result = fh.simulate(found, method, rounds=3, seeds=2, key=2**40 + 7)
    return {"error": result.error.ravel().tolist(), "theta": np.ravel(result.theta).tolist()}


DRAWS = {
    **{f"problem {name}": (problem, name) for name in PROBLEMS | PROBLEM_SETTINGS},
    **{f"environment {name}": (environment, name) for name in ENVIRONMENTS | ENVIRONMENT_SETTINGS},
    "keys": (keys,),
    "observations": (observations, "FiniteChain", "VAR1, stationary"),
    "observations of all sources": (observations,),
    "path": (path,),
}
SLOW = ("environment taxi", "observations of all sources", "path")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in DRAWS])
def test_a_key_gives_what_it_has_always_given(name):
    """Integers have to be equal; other processors and libraries may round differently."""
    expected = json.loads(FILE.read_text()).get(name)
    assert expected is not None, f"{name} is not in tests/draws.json. `python tests/test_draws.py` adds it."
    if name.endswith(("frozen-lake", "own maps", "cliff-walking", "taxi")):
        pytest.importorskip("gymnasium")
    function, *arguments = DRAWS[name]
    found = function(*arguments)
    assert list(found) == list(expected), RULE.format(name=name)
    for place, values in found.items():
        message = RULE.format(name=f"{place} of {name}")
        exact = all(isinstance(value, int) for value in expected[place])
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-9, "atol": 1e-11}
        np.testing.assert_allclose(values, expected[place], **tolerance, err_msg=message)


if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known = {name: known.get(name) or function(*arguments) for name, (function, *arguments) in DRAWS.items()}
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in known.items()) + "\n}\n")
