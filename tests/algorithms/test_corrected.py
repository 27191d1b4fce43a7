"""What the drift-corrected methods have in common, and where they part."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
import naive
from cases import CASES
from fedhsa.algorithms import AbstractWrapper
from fedhsa.algorithms.scaffold import Server as ScaffoldServer

ETA, H = 0.03, 4


class CoinEvery(AbstractWrapper):
    """A loopless method whose coin falls for averaging before every `gap`-th step."""

    algorithm: fh.AbstractAlgorithm
    gap: int = eqx.field(static=True)

    effects = fh.Effect.NOTHING

    @property
    def exchanges(self):
        def fixed(local):
            return lambda m, memory, agent, block, round: local(
                m, memory, agent, block, round._replace(coin=round.index % self.gap == 0)
            )

        return tuple(e._replace(local=fixed(e.local)) for e in self.algorithm.exchanges)


class OpenServer(NamedTuple):
    theta: Any
    inner: Any
    memory: Any


class OpenMemory(AbstractWrapper):
    """A method of one exchange whose agents also tell what they remember, for tests to look at."""

    algorithm: fh.AbstractAlgorithm
    num_agents: int = eqx.field(static=True)

    effects = fh.Effect.NOTHING

    def init(self, theta):
        server, memory = self.algorithm.init(theta)
        shown = memory if isinstance(memory, tuple) else (memory,)
        return OpenServer(theta, server, tuple(jnp.stack([x] * self.num_agents) for x in shown)), memory

    @property
    def exchanges(self):
        (exchange,) = self.algorithm.exchanges

        def local(message, memory, agent, block, round):
            reply, memory = exchange.local(message, memory, agent, block, round)
            return (reply, tuple(memory) if isinstance(memory, tuple) else (memory,)), memory

        def aggregate(server, replies, round):
            inner = exchange.aggregate(server.inner, replies._replace(values=replies.values[0]), round)
            return OpenServer(inner.theta, inner, replies.values[1])

        return (fh.Exchange("open", lambda s, r: exchange.send(s.inner, r), local, aggregate),)


def path(problem, algorithm, rounds=7, **options):
    """Parameters after every round; two seeds, as in the contract, so that compiled programs are found again."""
    options = {"seeds": 2, "key": 5, "theta": np.ones(problem.dim), "record": ("theta",)} | options
    return fh.simulate(problem, algorithm, rounds=rounds, **options).records["theta"]


def scalar_problem(a=(0.1, 1.0)):
    """G_i = -a_i theta + b_i: with these slopes FedHSA diverges for many local steps."""
    return fh.problems.quadratic.from_arrays(np.reshape(a, (-1, 1, 1)), [[1.0], [-1.0]])


def equal(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_scaffold_with_option_2_is_scafflsa():
    problem = CASES["quadratic"]().problem
    equal(path(problem, fh.SCAFFOLD(ETA, H)), path(problem, fh.SCAFFLSA(ETA, H)))


@pytest.mark.slow
def test_fed_hsa_with_one_exchange_is_scaffold_with_option_1():
    problem = CASES["quadratic"]().problem
    for server_step in (1.0, 0.8):
        one = path(problem, fh.OneExchangeFedHSA(ETA, H, server_step))
        equal(one, path(problem, fh.SCAFFOLD(ETA, H, server_step, option=1)))


@pytest.mark.slow
def test_relatives_of_fed_hsa_become_fed_hsa():
    problem = CASES["quadratic"]().problem
    hsa = path(problem, fh.FedHSA(ETA, H))
    for algorithm in fh.FedLin(H * ETA, H), fh.SSLocalSGD(ETA, H, 1.0):
        equal(path(problem, algorithm), hsa)
    once = path(problem, fh.SSLocalSGD(ETA, H, 1e-9))
    equal(once[:, :2], hsa[:, :2])  # the first round always has anchors of its own
    assert abs(once[:, 2:] - hsa[:, 2:]).max() > 1e-6


@pytest.mark.slow
def test_fed_lin_whose_agents_all_take_as_many_steps_is_fed_hsa():
    problem = CASES["quadratic"]().problem
    equal(path(problem, fh.FedLin(H * ETA, (H, H, H))), path(problem, fh.FedHSA(ETA, H)))


def test_scaffnew_that_averages_every_few_steps_is_scafflsa():
    problem = CASES["quadratic"]().problem
    scaffnew = path(problem, CoinEvery(fh.Scaffnew(ETA, 1 / H), H), rounds=7 * H, every=H)
    equal(scaffnew, path(problem, fh.SCAFFLSA(ETA, H)))


@pytest.mark.slow
def test_loopless_sa_that_averages_every_few_steps_is_local_sa():
    problem = CASES["quadratic"]().problem
    loopless = path(problem, CoinEvery(fh.LooplessSA(ETA, 1 / H), H), rounds=7 * H, every=H)
    equal(loopless, path(problem, fh.LocalSA(ETA, H)))


@pytest.mark.slow
def test_one_local_step_makes_all_methods_synchronised_sa():
    problem = CASES["quadratic"]().problem
    synchronised = path(problem, fh.SynchronisedSA(ETA))
    for algorithm in (
        fh.SCAFFLSA(ETA, 1),
        fh.OneExchangeFedHSA(ETA, 1),
        fh.FedLin(ETA, (1, 1, 1)),
        fh.SSLocalSGD(ETA, 1, 0.5),
        fh.OracleShift(ETA, 1, problem.theta_star),
        fh.Scaffnew(ETA, 1.0),
    ):
        equal(path(problem, algorithm), synchronised)


@pytest.mark.slow
def test_one_agent_makes_all_methods_plain_sa():
    problem = CASES["quadratic"](1).problem
    alone = path(problem, fh.SA(ETA), rounds=7 * H)
    for algorithm in fh.SCAFFLSA(ETA, H), fh.OneExchangeFedHSA(ETA, H), fh.SSLocalSGD(ETA, H, 0.5):
        equal(path(problem, algorithm), alone[:, ::H])
    equal(path(problem, fh.Scaffnew(ETA, 0.5), rounds=7 * H), alone)


@pytest.mark.parametrize(
    "algorithm",
    [
        fh.SCAFFLSA(0.5, 20),
        *(pytest.param(a, marks=pytest.mark.slow) for a in (fh.SCAFFOLD(0.5, 20), fh.Scaffnew(0.5, 0.05))),
    ],
    ids=lambda a: type(a).__name__,
)
def test_accumulated_drift_converges_to_the_root_where_fed_hsa_diverges(algorithm):
    problem = scalar_problem()
    rounds = 4000 // algorithm.block_length * 4
    open_memory = OpenMemory(algorithm, problem.num_agents)
    record = {"memory": lambda snapshot: snapshot.server.memory[-1]}
    options = {"rounds": rounds, "every": rounds // 20, "theta": np.ones(1)}
    result = fh.simulate(problem.noiseless(), open_memory, record=record, **options)
    assert result.error[0, -1] < 1e-20
    learned, residuals = result.records["memory"][0], problem.mean_operators(problem.theta_star)
    if isinstance(algorithm, fh.SCAFFOLD):
        np.testing.assert_allclose(learned[-1], residuals, atol=1e-9)
    else:
        np.testing.assert_allclose(learned[-1], -residuals, atol=1e-9)
        np.testing.assert_allclose(learned.sum(1), 0, atol=1e-12)


@pytest.mark.slow
def test_the_oracle_converges_there_and_the_other_anchored_methods_diverge_with_fed_hsa():
    problem = scalar_problem()
    fates = {}
    for algorithm in (
        fh.SCAFFOLD(0.5, 20, option=1),
        fh.OneExchangeFedHSA(0.5, 20),
        fh.FedLin(10.0, 20),
        fh.OracleShift(0.5, 20, problem.theta_star),
    ):
        result = fh.simulate(problem.noiseless(), algorithm, rounds=2000, every=2000, theta=np.ones(1))
        fates[type(algorithm).__name__] = "root" if result.error[0, -1] < 1e-20 else str(result.status[0])
    diverged = dict.fromkeys(("SCAFFOLD", "OneExchangeFedHSA", "FedLin"), "diverged")
    assert fates == diverged | {"OracleShift": "root"}


@pytest.mark.parametrize(
    "algorithm",
    [fh.SCAFFLSA(0.1, H), pytest.param(fh.Scaffnew(0.1, 0.25), marks=pytest.mark.slow)],
    ids=lambda a: type(a).__name__,
)
def test_shifts_add_to_zero_with_noise_too(algorithm):
    record = {"shift": lambda snapshot: snapshot.server.memory[1]}
    options = {"rounds": 200, "every": 10, "seeds": 2, "record": record}
    shift = fh.simulate(CASES["td"]().problem, OpenMemory(algorithm, 3), **options).records["shift"]
    assert abs(shift[:, -1]).min() > 1e-6
    np.testing.assert_allclose(shift.sum(2), 0, atol=1e-12 * abs(shift).max())


def powers_and_sums(A, eta, H):
    F = [np.linalg.matrix_power(np.eye(A.shape[-1]) + eta * a, H) for a in A]
    S = [sum(np.linalg.matrix_power(np.eye(A.shape[-1]) + eta * a, k) for k in range(H)) for a in A]
    return np.array(F), np.array(S)


def test_without_noise_scafflsa_follows_its_closed_form():
    problem = CASES["quadratic"]().problem
    A, _ = problem.affine_parts()
    M, d = A.shape[:2]
    F, S = powers_and_sums(A, 0.05, 6)
    r = problem.mean_operators(problem.theta_star)
    e, xi, errors = -problem.theta_star, np.zeros((M, d)), []
    for _ in range(40):
        ends = np.array([F[i] @ e + 0.05 * S[i] @ (r[i] + xi[i]) for i in range(M)])
        e = ends.mean(0)
        xi = xi + (e - ends) / (0.05 * 6)
        errors.append(e @ e)
    result = fh.simulate(problem.noiseless(), fh.SCAFFLSA(0.05, 6), rounds=40)
    np.testing.assert_allclose(result.error[0, 1:], errors, rtol=1e-9, atol=1e-18)


def test_without_noise_one_exchange_follows_its_recursion_of_two_rounds():
    problem = CASES["quadratic"]().problem
    A, _ = problem.affine_parts()
    F, S = powers_and_sums(A, 0.05, 6)
    B = 0.05 * (S @ (A.mean(0) - A)).mean(0)
    result = fh.simulate(problem.noiseless(), fh.OneExchangeFedHSA(0.05, 6), rounds=40, record=("theta",))
    e = result.records["theta"][0] - problem.theta_star
    np.testing.assert_allclose(e[2:], e[1:-1] @ F.mean(0).T + e[:-2] @ B.T, rtol=1e-9, atol=1e-13)


def test_the_late_anchor_costs_stability():
    """With the step 0.5 and 17 local steps FedHSA contracts by 0.875 a round; one round late it does not."""
    problem = scalar_problem()
    A, _ = problem.affine_parts()
    assert naive.fed_hsa_contraction(A, 0.5, 17)[0, 0] == pytest.approx(-0.8752, abs=1e-4)
    for H, status in ((15, "ok"), (17, "diverged")):
        late = fh.simulate(problem.noiseless(), fh.OneExchangeFedHSA(0.5, H), rounds=2000, every=2000, theta=np.ones(1))
        assert late.status[0] == status


def test_the_variate_of_scaffold_counts_absent_agents_as_unchanged():
    delta, change = jnp.array([[1.0], [10.0], [4.0]]), jnp.array([[3.0], [70.0], [9.0]])
    replies = fh.Replies((delta, change), weights=jnp.array([1.0, 0.0, 1.0]))
    algorithm = fh.SCAFFOLD(0.1, 2, server_step=2.0)
    server = algorithm.exchanges[0].aggregate(ScaffoldServer(jnp.zeros(1), jnp.ones(1)), replies, None)
    np.testing.assert_allclose(server.theta, 2.0 * 2.5, rtol=1e-6)
    np.testing.assert_allclose(server.variate, 1 + 12 / 3, rtol=1e-6)


@pytest.mark.slow
def test_one_local_step_runs_in_the_clear_mode_too():
    problem = scalar_problem()
    for algorithm in fh.OneExchangeFedHSA(0.1, 1), fh.FedLin(0.1, 1):
        assert fh.simulate(problem, algorithm, rounds=1, debug=True).status[0] == "ok"


def test_what_cannot_be_is_refused_with_the_reason():
    problem = CASES["quadratic"]().problem
    with pytest.raises(ValueError, match="each of the 3 agents, got 2"):
        fh.simulate(problem, fh.FedLin(0.1, (1, 2)), rounds=1)
    with pytest.raises(ValueError, match="`local_steps` must be at least 1, got 0"):
        fh.FedLin(0.1, (1, 0, 2))
    with pytest.raises(ValueError, match="empty"):
        fh.FedLin(0.1, ())
    with pytest.raises(ValueError, match=r"`option` must be 1 .* got 3"):
        fh.SCAFFOLD(0.1, 2, option=3)
    with pytest.raises(ValueError, match="`probability`"):
        fh.Scaffnew(0.1, 1.5)
    with pytest.raises(ValueError, match=r"`theta_star` must have shape \(4,\), got \(2,\)"):
        fh.simulate(problem, fh.OracleShift(0.1, 2, np.zeros(2)), rounds=1)


def test_the_oracle_refuses_agents_without_a_mean_operator():
    class Coin(fh.AbstractSource):
        def init(self, key, /):
            return jnp.zeros(())

        def step(self, key, state, /):
            return state, state

    class Agent(fh.AbstractAgent):
        source: fh.AbstractSource
        b: np.ndarray

        def operator(self, theta, o, /):
            return self.b + o - theta

    problem = fh.Problem([Agent(Coin(), np.ones(2)), Agent(Coin(), np.zeros(2))], theta_star=np.full(2, 0.5))
    with pytest.raises(TypeError, match="OracleShift needs the mean operator of each agent, and Agent has none: Coin"):
        fh.simulate(problem, fh.OracleShift(0.1, 2, problem.theta_star), rounds=1)


@pytest.mark.parametrize("algorithm", [fh.SCAFFLSA(0.1, 2), fh.Scaffnew(0.1, 0.5), fh.LooplessSA(0.1, 0.5)])
def test_methods_that_need_every_reply_say_why(algorithm):
    with pytest.raises(TypeError, match=r"cannot wrap .* Use "):
        fh.Lossy(algorithm, 0.1)
