"""FedHSA extrapolated."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from fedhsa.experiments.study.base import Outcome
from fedhsa.experiments.variants.extrapolation import TURN, Extrapolation, variance_ratio
from fedhsa.theory import predict

STUDY = Extrapolation()


def made(kept: float = 0.0, variance: float = 2 / 3, power: float = 4.0, plain: float = 1.0) -> Outcome:
    """An outcome with squared bias `plain` times (step / 0.1)^2, of which extrapolation leaves the part `kept`."""
    rng, runs = np.random.default_rng(0), STUDY.runs()
    noise = 1 + 0.05 * rng.normal(size=(len(runs), 1, STUDY.seeds))
    level = np.array([[1.0, 1e-3]]) * np.array([[(run.step / 0.1) ** 2] for run in runs])
    spread = np.array([[1.0, 2 / 3]]) * np.array([[20 * run.step / 0.1 / run.M] for run in runs])
    seen = level * plain
    seen[:, 1] += kept * level[:, 0]
    means = np.sqrt(seen)[:, :, None, None] + 0.01 * rng.normal(size=(len(runs), 2, STUDY.seeds, 1))
    arrays = {"last": (seen + spread)[:, :, None] * noise, "bias": means}
    arrays["tail"] = (seen + 0.01 * spread)[:, :, None] * noise
    arrays |= {"agents": np.array([4.0, 256.0]), "curve": (level + spread)[[0, 3]]}
    facts = {"levels": level.tolist(), "floors": (level + spread).tolist(), "saturation_agents": 20.0}
    facts |= {"doubts": [0.001] * len(runs), "level_doubts": [[0.001, 0.001]] * len(runs)}
    facts |= {"variance": {"symmetric": variance, "rotating": variance_ratio(-TURN, np.eye(2))}, "powers": [2.0, power]}
    return Outcome(arrays, facts)


def failed(outcome: Outcome) -> list[str]:
    return [check.name for check in STUDY.checks(outcome) if check.verdict != "pass"]


def test_an_outcome_as_predicted_passes():
    assert failed(made()) == []


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({"kept": 0.3}, "extrapolated"),
        ({"kept": 0.3}, "tail averages"),
        ({"variance": 0.75}, "variance"),
        ({"power": 3.0}, "power at small steps"),
        ({"plain": 0.5}, "FedHSA, M = 256"),
        ({"plain": 0.5}, "bias"),
    ],
)
def test_what_is_off_fails(changed, failing):
    assert any(failing in name for name in failed(made(**changed)))


def test_figure_sentences_and_table_are_made_from_what_was_kept():
    outcome = made()
    assert len(STUDY.draw(outcome).axes) == 2
    assert "M = 256" in STUDY.summary(outcome)[0]
    assert {len(column) for column in STUDY.table(outcome).values()} == {2 * len(STUDY.runs())}


@pytest.mark.parametrize("rotation", [0.0, 0.5, 2.0])
def test_the_variance_of_rotating_operators_has_a_closed_form(rotation):
    A = -np.array([[1.0, rotation], [-rotation, 1.0]])
    assert variance_ratio(A, np.diag([1.0, 3.0])) == pytest.approx(6 - 48 / (9 + rotation**2))


@pytest.mark.slow
def test_the_ratio_is_the_small_step_limit_of_the_exact_law():
    problem = fh.problems.quadratic.random(num_agents=4, dim=2, start="stationary")
    off = []
    for step in (0.0005, 0.001):
        plain = fh.FedHSA(step, local_steps=5)
        laws = [predict(problem, algorithm) for algorithm in (fh.RichardsonRomberg(plain), plain)]
        assert laws[0].basis == "exact"
        off.append(laws[0].noise_variance / laws[1].noise_variance - 2 / 3)
    assert off[1] / off[0] == pytest.approx(2, rel=0.05)


class Kinked(fh.AbstractAgent):
    source: fh.sources.AbstractSource

    def operator(self, theta, noise, /):
        return noise - jnp.where(theta > 0, 3.0, 1.0) * theta


@pytest.mark.slow
def test_of_the_bias_of_an_operator_with_a_kink_more_than_half_is_left():
    source = fh.sources.VAR1(np.zeros((2, 1, 1)), np.ones(2))
    problem = fh.Problem(Kinked(source), theta_star=np.zeros(1))
    both, record = fh.RichardsonRomberg(fh.FedHSA(0.02, local_steps=2)), {"copies": lambda s: s.server.inner.theta}
    run = fh.simulate(problem, both, rounds=3000, seeds=100, record=record)
    means = run.records["copies"][:, 500:, :, 0].mean(1)
    left = (2 * means[:, 0] - means[:, 1]) / means[:, 0].mean()
    # of the order of the square root of the step: 2 - sqrt(2) of it is left, up to the next order in the step
    assert left.mean() == pytest.approx(2 - np.sqrt(2), abs=3 * left.std() / 10 + 0.03)
    assert left.std() / 10 < 0.05
