"""Compressed FedHSA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from fedhsa._types import precision
from fedhsa.experiments.study import codes as laws
from fedhsa.experiments.study.base import Outcome
from fedhsa.experiments.study.sampled import mean_operators
from fedhsa.experiments.variants.compressed import FEEDBACK, NOISY, PLAIN, CompressedStudy
from fedhsa.theory import predict

STUDY = CompressedStudy()
PROBLEM = fh.problems.quadratic.random(num_agents=4, dim=4)
AGENTS = mean_operators(PROBLEM)
KNOWN = {"TopK": 0, "RandK": 1, "Quantised": 1, "TopK, error": 2, "Sign, error": 2}


def made(off: str = "", by: float = 1.5) -> Outcome:
    """An outcome of the derived orders, but what has `off` in its label is off by a factor."""
    jitter = 1 + 0.01 * np.random.default_rng(0).normal(size=STUDY.seeds)
    known = {label: [(5 * step) ** order for step in STUDY.steps] for label, order in KNOWN.items()}
    arrays, averaged = {}, {}
    for label, values in known.items():
        for step, value in zip(STUDY.steps, values, strict=True):
            key = f"{label}/step {step:g}"
            arrays[key] = (by if off and off in key else 1.0) * value * jitter
            averaged[key] = (0.02 if off == "mean" else 0.001) * value
    for label in NOISY:
        for step in STUDY.steps:
            late = 100 * step if label in FEEDBACK else 0.0
            floor = step * (1 + (0.5 if off == "late" and late else late))
            floor *= by if off == f"{label}/noise {step:g}" else 1.0
            rate = 4 * step / (by if off == "slow" and label != PLAIN else 1.0)
            errors = floor + 90 * np.exp(-rate * np.arange(0, 2001, 5))
            arrays[f"{label}/noise {step:g}"] = jitter[:, None] * errors
        gain = STUDY.copies / (by if off == f"{label}, speed-up" else 1.0)
        arrays[f"{label}/many"] = arrays[f"{label}/noise {STUDY.middle:g}"][:, 200:].mean(1) / gain
    sent = {label: {"up": 160.0 if label == PLAIN else 40.0, "down": 160.0} for label in NOISY}
    zero = {label: 1e-5 if off == "zero" else 1e-30 for label in NOISY if label.endswith("difference")}
    floor = STUDY.middle * (by if off == "plain" else 1.0)
    return Outcome(arrays, {"laws": known, "averaged": averaged, "zero": zero, "bytes": sent, "plain floor": floor})


def failing(outcome: Outcome) -> set[str]:
    return {c.name.removeprefix("field/compressed: ") for c in STUDY.checks(outcome) if c.verdict != "pass"}


def test_the_derived_orders_pass():
    assert failing(made()) == set()


@pytest.mark.parametrize(
    ("off", "by", "expected"),
    [
        ("TopK/step 0.02", 1.5, {"TopK, any step"}),
        ("TopK/step", 1.5, {"TopK, point"}),
        ("RandK/step 0.01", 1.5, {"RandK, step 0.01"}),
        ("Quantised/step", 1.5, {"Quantised, floor"}),
        ("Quantised/step 0.02", 3.0, {"Quantised, slope"}),
        ("Sign, error/step", 1.5, {"Sign, error, floor"}),
        ("Sign, error/step 0.02", 3.0, {"Sign, error, slope"}),
        ("mean", 1.0, {"TopK, error, mean", "Sign, error, mean"}),
        ("zero", 1.0, {"TopK, difference, root", "RandK, difference, root"}),
        ("plain", 1.5, {"uncompressed"}),
        ("RandK, speed-up", 1.5, {"RandK, speed-up"}),
        ("late", 1.0, {"TopK, error, noise", "Sign, error, noise"}),
        ("Quantised/noise 0.0025", 1.5, {"Quantised, noise"}),
    ],
)
def test_other_numbers_fail(off, by, expected):
    assert failing(made(off, by)) == expected


def test_prices_are_those_of_the_best_steps():
    price = STUDY.price(made(), "RandK", STUDY.targets[0])
    assert price is not None
    assert price.value == pytest.approx(0.25)
    assert STUDY.price(made(), "RandK", 1e-9) is None
    both = STUDY.price(made(), "RandK", STUDY.targets[0], ("up", "down"))
    assert both is not None
    assert both.value == pytest.approx(200 / 320)


def test_the_numpy_codecs_are_the_packages():
    x = np.random.default_rng(0).normal(size=10)
    with precision("float64"):
        top, sign = (
            np.asarray(codec(jax.random.key(0), jnp.asarray(x))) for codec in (fh.codecs.TopK(0.3), fh.codecs.Sign())
        )
    np.testing.assert_allclose(laws.top_k(3)(x), top, rtol=1e-12)
    np.testing.assert_allclose(laws.sign(x), sign, rtol=1e-12)


def randk_floor(count: int, step: float, H: int) -> float:
    algorithm = fh.Compressed(fh.FedHSA(step, local_steps=H), fh.codecs.RandK(count / 4))
    return predict(PROBLEM.noiseless(), algorithm).floor


def test_the_law_of_randk_is_that_of_a_loop():
    """A loop of compressed FedHSA in NumPy, 2000 chains: the standard error of the floor is below 2 %."""
    step, H, count, rng = 0.05, 3, 2, np.random.default_rng(0)
    A, r = AGENTS
    d = r.shape[1]
    S = sum(np.linalg.matrix_power(np.eye(d) + step * A, k) for k in range(H))

    def code(x: np.ndarray) -> np.ndarray:
        chosen = np.argsort(rng.random(x.shape), axis=-1) < count
        return d / count * np.where(chosen, x, 0)

    e = np.zeros((2000, d))
    for _ in range(80):
        g = code(r + np.einsum("mij,nj->nmi", A, e)).mean(1)
        e = e + code(step * np.einsum("mij,nj->nmi", S, g)).mean(1)
    assert (e**2).sum(1).mean() == pytest.approx(randk_floor(count, step, H), rel=0.08)


def test_randk_that_sends_everything_has_no_floor_and_both_laws_agree_at_small_steps():
    assert abs(randk_floor(4, 0.02, 3)) < 1e-15
    rng = np.random.default_rng(0)

    def code(x: np.ndarray) -> np.ndarray:
        return 2 * np.where(np.argsort(rng.random(x.shape), axis=-1) < 2, x, 0)

    first = laws.unbiased_floor(AGENTS, code, 3e-4, draws=20_000)
    assert randk_floor(2, 1e-4, 3) == pytest.approx(first, rel=0.03)


def test_codecs_that_leave_nothing_out_leave_no_error():
    everything = laws.top_k(4)
    assert laws.feedback_floor(AGENTS, everything, 0.02, 3, rounds=60) < 1e-25
    assert np.linalg.norm(laws.fixed_point(AGENTS, everything, scale=0.02, rounds=400)) < 1e-12


def test_figure_sentences_and_table_are_made_from_what_was_kept():
    outcome = made()
    assert len(STUDY.draw(outcome).axes) == 3
    assert "never" not in STUDY.summary(outcome)[2]
    rows = len(STUDY.steps) * (len(KNOWN) + len(NOISY))
    assert {len(column) for column in STUDY.table(outcome).values()} == {rows}
