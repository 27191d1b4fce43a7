"""Channels: what compression leaves of the error, how stages compose, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.algorithms.delay import Sent

HSA, LOCAL = fh.FedHSA(0.03, 4), fh.LocalSA(0.03, 4)


@functools.cache
def floor(algorithm: str, step: float, feedback: str) -> float:
    """The squared error that is left without noise, averaged over the last quarter of the rounds."""
    inner = {"FedHSA": fh.FedHSA(step, 4), "SynchronisedSA": fh.SynchronisedSA(4 * step)}[algorithm]
    problem = CASES["quadratic"]().problem.noiseless()
    rounds = round(30 / step)
    result = fh.simulate(problem, fh.Compressed(inner, fh.codecs.Sign(), feedback), rounds=rounds)
    return result.error[0, -rounds // 4 :].mean()


@pytest.mark.parametrize("algorithm", ["FedHSA", "SynchronisedSA"])
@pytest.mark.slow
def test_without_memory_a_biased_codec_stalls_error_feedback_comes_near_and_differences_arrive(algorithm):
    assert floor(algorithm, 0.02, "none") > 1e-2
    assert 1e-8 < floor(algorithm, 0.02, "error") < floor(algorithm, 0.02, "none") / 10
    assert floor(algorithm, 0.02, "difference") < 1e-20


def test_noise_on_the_air_is_divided_by_the_number_of_those_who_sent():
    """The server receives the sum of the senders' replies plus one noise, and divides by their number."""
    (exchange,) = fh.OverTheAir(LOCAL, 0.0, 0.3).exchanges
    round, values = fh.Round(0, jax.random.key(0), num_agents=4), jnp.ones((4, 2))

    @jax.jit
    def received(weights):
        return exchange.aggregate(LOCAL.init(jnp.zeros(2))[0], fh.Replies(values, weights), round).theta

    senders = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]], np.float32)
    noises = [np.asarray(received(weights)) - 1 for weights in senders]
    np.testing.assert_allclose(noises[1], 2 * noises[0], rtol=1e-4)
    np.testing.assert_allclose(noises[2], 4 * noises[0], rtol=1e-4)
    assert np.abs(noises[0]).min() > 1e-3


def test_a_late_reply_counts_only_if_the_parameter_has_not_moved_farther_than_the_threshold():
    """In round 2 the replies of rounds 0 and 1 are 5 and 7, computed at 0 and 3. With a delay of 2, 5 arrives."""
    queue = Sent(jnp.array([[7.0], [5.0]]), jnp.array([[3.0], [0.0]]))
    round = fh.Round(jnp.asarray(2), jax.random.key(0))

    @jax.jit
    def arriving(at, threshold):
        method = fh.Delayed(LOCAL, 2, threshold, random=False)
        return method._arriving(queue, fh.algorithms.Coded(jnp.asarray(at)[None], 0.0), round)[0]

    assert [float(arriving(*at)) for at in ((0.5, 1.0), (-1.5, 1.0), (-1.5, 2.0))] == [5.0, 0.0, 5.0]


def test_the_floor_of_error_feedback_is_of_second_order_in_the_step():
    assert 2.5 < floor("FedHSA", 0.02, "error") / floor("FedHSA", 0.01, "error") < 6


def test_error_feedback_arrives_where_the_operators_themselves_vanish():
    alone = CASES["quadratic"]().problem.noiseless().take([0])
    result = fh.simulate(alone, fh.Compressed(fh.SA(0.05), fh.codecs.Sign()), rounds=2000, every=2000)
    assert result.error[0, -1] < 1e-20


@pytest.mark.parametrize(
    "algorithm",
    [
        fh.Partial(
            fh.Lossy(fh.Compressed(HSA, fh.codecs.TopK(0.5)), 0.2),
            fh.sampling.Availability(0.5, 0.3),
            all_answer_first=True,
        ),
        fh.Partial(
            fh.Delayed(fh.Compressed(LOCAL, fh.codecs.Quantised(2)), 2, threshold=0.5),
            fh.sampling.UniformSampling(2, 3),
        ),
    ],
    ids=["losses", "delays"],
)
@pytest.mark.slow
def test_wrapped_wrappers_run_alike_in_both_engines(algorithm):
    problem = CASES["td"]().problem
    fast = fh.simulate(problem, algorithm, rounds=3, key=3, theta=np.ones(problem.dim), record=("theta",))
    slow = fh.simulate(problem, algorithm, rounds=3, key=3, theta=np.ones(problem.dim), record=("theta",), debug=True)
    assert np.diff(fast.records["theta"][0], axis=0).any()
    np.testing.assert_allclose(fast.records["theta"], slow.records["theta"], rtol=1e-12, atol=1e-14)


REFUSED = {
    "order": (
        lambda: fh.Compressed(fh.Lossy(HSA, 0.1), fh.codecs.Sign()),
        "from the inside out, the order is Robust, Byzantine, Compressed, Del",
    ),
    "twice": (
        lambda: fh.Lossy(fh.Averaged(fh.Lossy(HSA, 0.1)), 0.1),
        "Lossy cannot wrap Lossy: .* each may appear once",
    ),
    "shifts": (lambda: fh.Lossy(fh.SCAFFLSA(0.03, 4), 0.1), "shifts add to zero"),
    "references": (
        lambda: fh.Lossy(fh.Compressed(HSA, fh.codecs.Sign(), "difference"), 0.1),
        "keep equal references",
    ),
    "codes in the air": (
        lambda: fh.OverTheAir(fh.Compressed(HSA, fh.codecs.Sign()), 0.1, 0.1),
        "codes do not",
    ),
    "two exchanges": (lambda: fh.Delayed(HSA, 3), "several exchanges, and each needs the result of the previous one"),
    "skipped": (
        lambda: fh.Compressed(fh.SSLocalSGD(0.03, 4, 0.5), fh.codecs.Sign()),
        "with feedback cannot .* as sent",
    ),
    "coin": (
        lambda: fh.Compressed(fh.LocalSVRG(0.03, 4, 0.5), fh.codecs.Sign(), "difference"),
        "some rounds skip an exchange",
    ),
    "variates": (lambda: fh.Lossy(fh.SCAFFOLD(0.03, 4), 0.1), "adds the agents' changes, .* arrives exactly once"),
    "no sum": (
        lambda: fh.Compressed(fh.SCAFFOLD(0.03, 4), fh.codecs.Quantised(3)),
        "arrives exactly once and unchanged",
    ),
}


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_together_is_refused_with_the_reason(make, reason):
    with pytest.raises(TypeError, match=reason):
        make()


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"`loss` must be below 1\.0, got 1\.0"):
        fh.Lossy(HSA, 1.0)
    with pytest.raises(ValueError, match=r"`codec` must be a codec, got 0\.1"):
        fh.Compressed(HSA, 0.1)
    with pytest.raises(ValueError, match="`feedback` must be one of"):
        fh.Compressed(HSA, fh.codecs.Sign(), "memory")
    with pytest.raises(ValueError, match="error on 4 numbers is below 1, got 3 from RandK"):
        fh.Compressed(HSA, fh.codecs.RandK(0.25), "error").init(np.zeros(4))
