"""Noise on what leaves a node: how it is made, and what it is worth."""

import re

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import fedhsa
from fedhsa.cli import main
from fedhsa.deploy import FederationError, Plan, Privacy, RejectedError, Schema, Store, in_memory
from fedhsa.deploy.privacy import Account, epsilon

pytest.importorskip("dp_accounting")


def closed_form(multipliers: dict[float, int], delta: float) -> float:
    """Gaussian mechanisms compose to one whose squared signal-to-noise ratio is the sum (Balle and Wang, 2018)."""
    mu = np.sqrt(sum(count / noise**2 for noise, count in multipliers.items()))

    def excess(e: float) -> float:
        return norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta

    return float(brentq(excess, 0, 500))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("sent", [{1.0: 1}, {20.0: 100}, {5.0: 10, 8.0: 30}, {50.0: 2000}])
def test_what_is_spent_is_that_of_the_closed_form_for_gaussian_noise(sent):
    assert epsilon(sent, 1e-5) == pytest.approx(closed_form(sent, 1e-5), rel=1e-4)


def test_replies_are_shortened_and_have_noise_of_twice_the_clip_times_the_multiplier():
    privacy, rows = Privacy(clip=0.5, noise=2.0), 4000
    arrays = {"g": np.tile([3.0, 0.0, 0.0], (rows, 1)), "h": np.tile([4.0], (rows, 1))}
    noisy = privacy.apply(arrays)
    values = np.concatenate([noisy["g"], noisy["h"]], axis=1)
    std = 2 * 0.5 * 2.0
    # Four standard errors, of means std / sqrt(rows), of standard deviations std / sqrt(2 rows).
    np.testing.assert_allclose(values.mean(0), [0.3, 0, 0, 0.4], atol=4 * std / np.sqrt(rows))
    np.testing.assert_allclose(values.std(0), std, atol=4 * std / np.sqrt(2 * rows))
    assert np.abs(np.corrcoef(values.T)[~np.eye(4, dtype=bool)]).max() < 4 / np.sqrt(rows)


def test_short_replies_keep_their_length_and_infinite_ones_say_nothing():
    replies = np.array([[1e5, 2e5], [np.inf, 1e5], [np.nan, 0.0]])
    noisy = np.mean([Privacy(clip=3e5, noise=0.1).apply({"g": replies})["g"] for _ in range(4000)], axis=0)
    np.testing.assert_allclose(noisy, [[1e5, 2e5], [0, 0], [0, 0]], atol=5 * 6e4 / np.sqrt(4000))


def test_noise_is_new_every_time_and_does_not_come_from_the_runs_key():
    privacy = Privacy(clip=1.0, noise=1.0)
    first, second = (privacy.apply({"g": np.zeros((1, 8))})["g"] for _ in range(2))
    assert not np.isin(first, second).any()


def test_replies_with_a_part_that_could_have_no_noise_are_rejected():
    with pytest.raises(ValueError, match="also sends 'age', which is int64"):
        Privacy(1.0, 1.0).check(fedhsa.LocalSA(0.1, 2), Schema({"g": np.zeros(2), "age": np.zeros((), np.int64)}))


@pytest.mark.parametrize("algorithm", ["SCAFFOLD", "SCAFFLSA", "Scaffnew", "Partial(FedHSA, Bernoulli(0.5))"])
def test_methods_that_need_their_replies_as_they_are_do_not_go_with_noise(algorithm, tmp_path):
    plan = Plan(num_agents=2, dim=2, local_steps=3, algorithm=algorithm)
    with pytest.raises(ValueError, match="`noise` is not supported with"):
        plan.site([0], Store(tmp_path / "run" / "0.state"), "run1", {"clip": 1.0, "noise": 1.0})


def test_an_account_counts_all_runs_and_rejects_what_would_cost_too_much(tmp_path):
    limit = closed_form({4.0: 3}, 1e-5)
    account = Account(Store(tmp_path / "account"), Privacy(1.0, 4.0, epsilon=limit * 1.001), [0])
    for _ in range(3):
        account.charge()
    with pytest.raises(RejectedError, match="is spent"):
        account.charge()
    later = Account(Store(tmp_path / "account"), Privacy(1.0, 8.0, epsilon=100.0), [0, 1])  # another run and sharding
    later.charge()
    assert later.sent == {"0": {4.0: 3, 8.0: 1}, "1": {8.0: 1}}
    assert later.spent == pytest.approx(closed_form({4.0: 3, 8.0: 1}, 1e-5), rel=1e-4)  # of the agent that spent most
    same = Account(Store(tmp_path / "account"), Privacy(1.0, 8.0, epsilon=limit * 1.001), [0])
    with pytest.raises(RejectedError, match="is spent"):  # by replies with another noise
        same.charge()


def test_a_node_that_protects_itself_is_not_told_how_by_the_run():
    pytest.importorskip("flwr")
    from fedhsa.deploy.flower.client import own_settings

    run = {"plan": "", "state": "a", "data": "", "clip": "9", "noise": "0.1", "epsilon": "", "delta": "0.1"}
    found = Privacy.from_config(own_settings(run, {"clip": 1.0, "noise": 2.0, "epsilon": 3.0}))
    assert found == Privacy(1.0, 2.0, 3.0, 1e-5)
    assert own_settings(run, {"clip": 1.0, "noise": 2.0})["state"] != "a"  # where the account is
    assert Privacy.from_config(own_settings(run, {})) == Privacy(9.0, 0.1, None, 0.1)


def test_no_privacy_at_all_is_not_taken_for_any_amount():
    with pytest.raises(ValueError, match="`epsilon` must be greater than 0"):
        Privacy.from_config({"clip": 1, "noise": 1, "epsilon": 0})


def test_a_run_stops_when_an_agent_has_spent_its_privacy_and_the_rounds_before_are_kept(tmp_path):
    plan = Plan(num_agents=2, dim=2, local_steps=3, step_size=0.05, algorithm="LocalSA")
    limit = closed_form({4.0: 3}, 1e-5) * 1.001
    config = {"clip": 1.0, "noise": 4.0, "epsilon": limit, "delta": 1e-5}
    server = in_memory(plan, tmp_path, config=config)
    with pytest.raises(FederationError, match="privacy"):
        server.run(10)
    assert server.progress.round == 3


def test_epsilon_alone_takes_the_noise_that_all_rounds_need_and_the_command_says_what_was_spent(
    tmp_path, capsys, unrendered
):
    small = ["--num-agents", "2", "--dim", "2", "--local-steps", "3", "--rounds", "3", "--step-size", "0.05"]
    assert main(["deploy", "memory", *small, "--out", str(tmp_path), "--epsilon", "4"]) == 0
    said = capsys.readouterr().out
    noise = float(re.findall(r"epsilon 4 requires noise (\S+) at clip 1,", said)[0])
    # Three rounds of two exchanges and a tenth more, rounded up: seven replies may be sent, and six were.
    assert closed_form({noise: 7}, 1e-5) == pytest.approx(4, rel=0.01)
    spent = float(re.findall(r"6 replies over all runs in this folder, epsilon (\S+) at", said)[0])
    assert spent == pytest.approx(closed_form({noise: 6}, 1e-5), rel=0.01)
    plan = Plan(num_agents=2, dim=2, local_steps=3, step_size=0.05)
    plain = fedhsa.simulate(plan.built_problem, plan.method, rounds=3).theta
    assert np.abs(np.load(tmp_path / "curves.npz")["FedHSA/theta"] - plain).min() > 0


@pytest.mark.parametrize("given", [["--clip", "1"], ["--noise", "1"], ["--clip", "1", "--noise", "-1"]])
def test_noise_without_a_clip_and_what_is_not_positive_is_rejected(given, capsys):
    assert main(["deploy", "memory", *given]) == 2
    assert "noise" in capsys.readouterr().err


def test_noise_is_calibrated_so_that_all_replies_cost_what_may_be_spent():
    for limit, replies in ((0.5, 1), (3.0, 40), (8.0, 1000)):
        privacy = Privacy.calibrated(limit, replies, clip=2.0, delta=1e-6)
        assert closed_form({privacy.noise: replies}, 1e-6) == pytest.approx(limit, rel=1e-5)
        assert privacy.spent(replies) <= limit < privacy.spent(replies + 1)
    with pytest.raises(ValueError, match="protects nothing"):
        Privacy.calibrated(1e9, 1)
