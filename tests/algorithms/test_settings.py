"""Settings: what they are made of, that JAX may trace them, and that they fit into a manifest."""

import inspect
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES, quadratic

FLOATS = {
    **{name: 0.3 for name in ("step_size", "probability", "beta", "server_step", "loss", "gain_std", "noise_std")},
    **{name: 0.3 for name in ("decay", "radius", "threshold", "up", "down", "scale", "offset", "power", "mixing")},
    **{"weights": (0.5, 0.2, 0.3), "factors": (1.0, 2.0), "probabilities": (0.5, 0.6, 0.7), "box": (-1.0, 1.0)},
    **{name: 0.3 for name in ("range", "shrink", "rho", "damping")},
    **{name: 0.3 for name in ("kl_target", "sigma", "distance_target", "proximal")},
    **{"theta_star": (0.0, 1.0), "matrix": ((0.5, 0.5), (0.5, 0.5))},
}
"""All settings that are real numbers, each with a value."""
OTHERS = {
    **{
        "local_steps": 4,
        "gaps": (2, 3),
        "samples": 4,
        "num_components": 3,
        "every": 2,
        "max_delay": 2,
        "num_agents": 3,
        "batch": 2,
        "buffer": 5,
    },
    **{"algorithm": fh.LocalSA(0.1, 4), "codec": fh.codecs.Quantised(3), "graph": fh.graphs.Ring(3), "count": 2},
    **{"sampling": fh.sampling.Bernoulli(0.5), "rows": 1, "columns": 3, "fraction": 0.5, "levels": 3},
    **{"recentring": (1, 2), "refinements": 2, "num_bits": 3, "inner": 2, "epochs": 2},
    **{"rule": fh.rules.CoordinateMedian(), "share": (0,), "attack": fh.attacks.SignFlip()},
}


def parts():
    """Everything with settings."""
    yield from (*fh.ALGORITHMS.values(), *fh.WRAPPERS.values(), fh.Polynomial)
    for module in (fh.codecs, fh.graphs, fh.sampling):
        for part in vars(module).values():
            if inspect.isclass(part) and issubclass(part, eqx.Module) and part.__module__ == module.__name__:
                yield from () if inspect.isabstract(part) else (part,)


def made(part, values):
    known, needed = OTHERS | values, inspect.signature(part).parameters
    if part is fh.graphs.RandomGraph:
        known = OTHERS | {"probability": 0.3}  # who is linked is decided before anything is traced
    # A projection is onto a ball or onto a box.
    names = [name for name in needed if name in known and not (part is fh.Projected and name == "box")]
    return part(**{name: known[name] for name in names})


def test_every_setting_that_is_a_real_number_may_be_traced():
    def make(values):
        return [made(part, values) for part in parts()] + [fh.Projected(fh.LocalSA(0.1, 4), box=values["box"])]

    arrays = {name: np.asarray(value) for name, value in FLOATS.items()}
    inside = jax.eval_shape(make, arrays)
    assert len(inside) == len(make(FLOATS)) > 40
    for part in make(FLOATS)[:-1]:
        names = set(inspect.signature(type(part)).parameters) - FLOATS.keys() - OTHERS.keys()
        assert not any(isinstance(getattr(part, name, None), float) for name in names), (part, names)


def test_a_traced_step_size_gives_the_run_of_the_number():
    def one_step(step_size):
        algorithm = fh.Projected(fh.LocalSA(step_size, 2), radius=step_size)
        server, _ = algorithm.init(jnp.ones(2))
        (exchange,) = algorithm.exchanges
        round = fh.Round(jnp.asarray(0), jax.random.key(0), num_agents=3)
        return exchange.aggregate(server, fh.Replies(jnp.ones((3, 2))), round).theta

    with jax.enable_x64(True):
        for step in (0.1, 0.5):
            np.testing.assert_allclose(jax.jit(one_step)(step), one_step(step), rtol=1e-15)
            assert jax.grad(lambda s: one_step(s)[0])(step) > 0


@pytest.mark.parametrize("make", [lambda s: fh.FedHSA(s, 4), fh.SA, lambda s: fh.LocalSA(0.1, 4, server_step=s)])
def test_a_step_size_is_one_number(make):
    for many in (np.full(4, 0.1), [0.1, 0.2], jnp.ones((1,))):
        with pytest.raises(ValueError, match=r"must be one number, got an array of shape \(\d,\)"):
            make(many)
    with pytest.raises(ValueError, match=r"must be one number, got an array of shape \(2,\)"):
        jax.eval_shape(make, jnp.ones(2))
    make(np.float32(0.1))
    make(jnp.asarray(0.1))


def test_a_count_of_agents_is_a_whole_number_of_at_most_all():
    with pytest.raises(ValueError, match=r"`count` must be a whole number, got 2\.5"):
        fh.sampling.UniformSampling(2.5, num_agents=4)
    with pytest.raises(ValueError, match="`count` must be at most 4, got 5"):
        fh.sampling.UniformSampling(5, num_agents=4)
    assert fh.sampling.UniformSampling(np.int64(2), num_agents=4).share == 0.5


@pytest.mark.parametrize(
    "algorithm",
    [
        fh.FedLin(0.05, tuple(np.array([1, 2, 3]))),
        fh.FedLin(0.05, np.array([1, 2, 3])),
        fh.FedLin(np.float32(0.05), [1, 2, 3]),
        fh.GappedSA(0.05, tuple(np.array([1, 2]))),
        fh.Gossip(fh.LocalSA(0.05, 2), fh.graphs.RandomGraph(3, 0.9, varying=False, key=jax.random.key(1))),
    ],
    ids=["tuple", "array", "list", "gaps", "key"],
)
def test_settings_of_numpy_and_jax_are_kept_as_plain_numbers(algorithm):
    result = fh.simulate(quadratic().problem, algorithm, rounds=1)
    json.dumps(result.settings["algorithm"])


def test_a_graph_of_a_jax_key_is_that_of_its_number():
    one, same = (fh.graphs.RandomGraph(6, 0.9, varying=False, key=key) for key in (3, jax.random.key(3)))
    np.testing.assert_array_equal(one._drawn(), same._drawn())
    hash(same.key)


def test_momentum_has_a_server_step_of_its_own():
    """The server moves by lambda times the mean direction, which is lambda / (eta H) times the mean displacement."""
    problem, theta = CASES["quadratic"]().problem, np.ones(4)
    options = {"rounds": 1, "theta": theta}
    plain, half = (fh.simulate(problem, fh.MomentumSA(0.03, 4, 0.5, s), **options).theta for s in (1.0, 0.5))
    np.testing.assert_allclose(half - theta, 0.5 * (plain - theta), rtol=1e-12)
    np.testing.assert_array_equal(plain, fh.simulate(problem, fh.MomentumSA(0.03, 4, 0.5), **options).theta)
