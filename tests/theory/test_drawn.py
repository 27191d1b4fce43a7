"""The law of methods that draw: absent agents, losses, gains, noise and delays, against sums over all outcomes."""

import itertools

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.stats import binom

import fedhsa as fh
from fedhsa.algorithms import AbstractWrapper, Effect
from fedhsa.theory import predict
from fedhsa.theory.laws.agents import agents_of
from fedhsa.theory.laws.averages import CarriedAverage
from fedhsa.theory.laws.draws import _nodes
from fedhsa.theory.laws.federation import Federation
from fedhsa.theory.laws.law import law_of
from fedhsa.theory.laws.levels import EachSiteLaw, EverySiteLaw, LinearLaw, TwoSitesLaw
from fedhsa.theory.laws.moments import NotDerivedError
from fedhsa.theory.laws.occupancies import OccupancyLaw
from fedhsa.theory.laws.pieces import derive
from theory.enumeration import stationary

ETA, H, STAY = 0.2, 2, 0.8
P = np.array([[STAY, 1 - STAY], [1 - STAY, STAY]])
SLOPES, CONSTANTS = -np.array([[1.5, -0.3], [0.7, 0.4], [1.1, 0.2]]), np.array([[1.0, -1.0], [0.5, 2.0], [-1.0, 0.4]])


def problem_of(M):
    """Scalar agents on two-state chains, whose operators are `SLOPES * theta + CONSTANTS`."""
    return fh.problems.finite_sum.from_arrays(
        -SLOPES[:M, :, None, None], CONSTANTS[:M, :, None], np.broadcast_to(P, (M, 2, 2))
    )


def by_outcomes(M, size, draws, play, started=(0,)):
    """The mean-square errors from the error 1, in NumPy: a sum over all joint trajectories and all that is drawn.

    `play(rows, G, outcome)` returns the rows of the carried state, the error first, one round later; `G(i, step, y)` is
    agent i's operator at the point `y`. All are rows of coefficients of the state before the round and of 1. `draws`
    are the `(probability, outcome)` of all rounds, or those of each; entries `started` of the state begin at 1.
    """
    each_round = draws if isinstance(draws[0], list) else [draws] * 4
    x = np.eye(size + 1)[[*started, size]].sum(0)
    Y = {s: np.prod(stationary(P)[list(s)]) * np.outer(x, x) for s in itertools.product(range(2), repeat=M)}
    found, maps = [1.0], {}
    for now in each_round:
        if id(now) not in maps:
            maps[id(now)] = _maps(M, size, now, play)
        after = {s: np.zeros_like(moments) for s, moments in Y.items()}
        for joint, chance, map in maps[id(now)]:
            after[tuple(p[-1] for p in joint)] += chance * map @ Y[tuple(p[0] for p in joint)] @ map.T
        Y = after
        found.append(sum(moments[0, 0] for moments in Y.values()))
    return np.array(found)


def _maps(M, size, draws, play):
    root = -CONSTANTS[:M].mean() / SLOPES[:M].mean()
    paths = list(itertools.product(range(2), repeat=H + 1))
    one, maps = np.eye(size + 1)[-1], []
    for joint in itertools.product(paths, repeat=M):
        seen = np.prod([P[s, t] for path in joint for s, t in itertools.pairwise(path)])

        def G(i, step, y, joint=joint):
            s = joint[i][step]
            return SLOPES[i, s] * y + (CONSTANTS[i, s] + SLOPES[i, s] * root) * one

        for chance, outcome in draws:
            after = play(np.eye(size + 1)[:-1], G, outcome)
            maps.append((joint, seen * chance, np.array([*after, one])))
    return maps


def moved(G, i, e, correction=0.0):
    """Agent i's displacement after all local steps."""
    y = e
    for step in range(H):
        y = y + ETA * (G(i, step, y) + correction)
    return y - e


def local_sa(weights, add=0.0):
    """A round of Local SA in which agent i's displacement has the weight `weights[i]`."""

    def play(rows, G, outcome):
        (e,) = rows
        one = np.eye(len(e))[-1]
        return [e + sum(w * moved(G, i, e) for i, w in enumerate(weights(outcome))) + add * outcome[-1] * one]

    return play


def fed_hsa(first, last):
    """A round of FedHSA in which agent i's operator and its displacement have the weights `first[i]`, `last[i]`."""

    def play(rows, G, outcome):
        (e,) = rows
        g_bar = sum(w * G(i, 0, e) for i, w in enumerate(first(outcome)))
        return [e + sum(w * moved(G, i, e, g_bar - G(i, 0, e)) for i, w in enumerate(last(outcome)) if w)]

    return play


def late(delays):
    """Local SA whose state also has each agent's last two displacements; `delays(outcome)[i]` is 1 or 2."""

    def play(rows, G, outcome):
        e, queues = rows[0], rows[1:].reshape(-1, 2, rows.shape[1])
        M = len(queues)
        after = [e + sum(queue[delay - 1] for queue, delay in zip(queues, delays(outcome), strict=True)) / M]
        for i, queue in enumerate(queues):
            after += [moved(G, i, e), queue[0]]
        return after

    return play


def each(values, chances, times):
    """All outcomes of independent draws, with their probabilities."""
    both = itertools.product(zip(values, chances, strict=True), repeat=times)
    return [(float(np.prod([p for _, p in way])), tuple(v for v, _ in way)) for way in both]


def present(outcome):
    return np.array(outcome) / max(sum(outcome), 1)


def equal(outcome):
    return np.full(len(outcome), 1 / len(outcome))


LOCAL, HSA = fh.LocalSA(ETA, H), fh.FedHSA(ETA, H)
HALF, SOME = each((0, 1), (0.4, 0.6), 2), [(1 / 3, tuple(row)) for row in 1 - np.eye(3, dtype=int)]
KEPT = each((0, 1 / 0.7), (0.3, 0.7), 4)  # both replies of two agents
GAIN = [1 - 0.3 * 3**0.5, 1, 1 + 0.3 * 3**0.5], [1 / 6, 2 / 3, 1 / 6]  # another distribution with these two moments
AIR = [(p * q, (*gains, noise[0])) for p, gains in each(*GAIN, 2) for q, noise in each((-1, 1), (0.5, 0.5), 1)]
CASES = {
    "absent": (2, fh.Partial(LOCAL, fh.sampling.Bernoulli(0.6)), 1, HALF, local_sa(present)),
    "absent from both exchanges": (2, fh.Partial(HSA, fh.sampling.Bernoulli(0.6)), 1, HALF, fed_hsa(present, present)),
    "all answer first": (
        3, fh.Partial(HSA, fh.sampling.UniformSampling(2, 3), all_answer_first=True), 1, SOME, fed_hsa(equal, present)
    ),
    "unequal chances": (
        2, fh.Partial(LOCAL, fh.sampling.WeightedSampling([0.6, 0.6])), 1, HALF,
        local_sa(lambda there: np.array(there) / 0.6 / 2),
    ),
    "losses": (2, fh.Lossy(HSA, 0.3), 1, KEPT, fed_hsa(lambda f: np.array(f[:2]) / 2, lambda f: np.array(f[2:]) / 2)),
    "over the air": (2, fh.OverTheAir(LOCAL, 0.3, 0.1), 1, AIR, local_sa(lambda h: np.array(h[:2]) / 2, 0.1 / 2)),
    "random delays": (2, fh.Delayed(LOCAL, 2), 5, each((1, 2), (0.5, 0.5), 2), late(lambda outcome: outcome)),
    "fixed delays": (2, fh.Delayed(LOCAL, 2, random=False), 5, [(1.0, ())], late(lambda _: (2, 2))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_agents_draw_is_summed_over_all_outcomes(case):
    M, algorithm, size, draws, play = CASES[case]
    law = law_of(problem_of(M), algorithm)
    assert isinstance(law, EverySiteLaw)
    np.testing.assert_allclose(law.errors(np.ones(1), 4), by_outcomes(M, size, draws, play), rtol=1e-11)


@pytest.mark.parametrize("case", ["absent from both exchanges", "losses", "over the air"])
def test_laws_of_few_sites_contain_what_each_agent_draws(case):
    M, algorithm, *_ = CASES[case]
    alone = problem_of(1)
    if not isinstance(algorithm, fh.Partial):
        federation = Federation(derive(algorithm, 1, 1), agents_of(alone), case)
        assert EachSiteLaw(federation).stationary().square == pytest.approx(
            EverySiteLaw(federation).stationary().square
        )
    federation = Federation(derive(algorithm, M, 1), agents_of(problem_of(M)), case)
    exact, pairs = EverySiteLaw(federation).stationary(), TwoSitesLaw(federation).stationary()
    assert pairs.square == pytest.approx(exact.square, rel=1e-9)
    assert EachSiteLaw(federation).stationary().square == pytest.approx(exact.square, rel=0.05)


class Sleepy(AbstractWrapper):
    """Agents that sleep through a round with some probability, written by a user."""

    algorithm: fh.AbstractAlgorithm
    probability: float
    own_key: bool = False
    effects = Effect.LOSES_REPLIES | Effect.COUNTS_LOST_AS_ZERO

    @property
    def exchanges(self):
        return tuple(e._replace(local=self._asleep(e)) for e in self.algorithm.exchanges)

    def _asleep(self, exchange):
        def local(message, memory, agent, block, round):
            reply, memory = exchange.local(message, memory, agent, block, round)
            sleeps = round.happens_to_agent(self.probability, 7)
            if self.own_key:
                sleeps = jax.random.uniform(round.agent_key) < self.probability
            return jax.tree.map(lambda x: jax.numpy.where(sleeps, 0, x), reply), memory

        return local


@pytest.mark.parametrize(
    "method", [fh.Lossy(fh.LocalSA(ETA, H), 0.3), fh.OverTheAir(fh.SynchronisedSA(ETA), 0.2, 0.3)], ids=["lost", "air"]
)
def test_equal_agents_whose_replies_are_altered_have_the_law_of_their_occupancies(method):
    problem = fh.problems.finite_sum.from_arrays(
        -np.tile(SLOPES[0, :, None, None], (3, 1, 1, 1)),
        np.tile(CONSTANTS[0, :, None], (3, 1, 1)),
        np.tile(P, (3, 1, 1)),
    )
    parts = Federation(derive(method, 3, 1), agents_of(problem), "")
    assert OccupancyLaw.number(parts) == 4
    joint, occupied = (law(parts).errors(np.ones(1), 5) for law in (EverySiteLaw, OccupancyLaw))
    np.testing.assert_allclose(occupied, joint, rtol=1e-11)


def test_a_wrapper_of_a_user_that_draws_through_the_round_has_an_exact_law():
    own, ours = Sleepy(LOCAL, 0.3), fh.Lossy(LOCAL, 0.3, rescale=False)
    found, expected = predict(problem_of(2), own), predict(problem_of(2), ours)
    assert found.basis == expected.basis == "exact"
    assert found.floor == pytest.approx(expected.floor, rel=1e-12)


def test_an_agent_that_sleeps_through_two_exchanges_sleeps_through_both():
    """Ways of single exchanges would draw twice."""
    there = each((0, 1), (0.3, 0.7), 2)
    expected = by_outcomes(2, 1, there, fed_hsa(lambda x: np.array(x) / 2, lambda x: np.array(x) / 2))
    np.testing.assert_allclose(law_of(problem_of(2), Sleepy(HSA, 0.3)).errors(np.ones(1), 4), expected, rtol=1e-11)


def test_numbers_from_a_key_of_ones_own_are_noticed():
    with pytest.raises(NotDerivedError, match="Sleepy draws random numbers in addition to"):
        derive(Sleepy(LOCAL, 0.3, own_key=True), 2, 1)


class Faded(Sleepy):
    """Gains of a user, of each exchange or of the whole round, with an exponent."""

    exponent: int = 1
    once: bool = False

    @property
    def exchanges(self):
        return tuple(e._replace(local=self._faded(e, k)) for k, e in enumerate(self.algorithm.exchanges))

    def _faded(self, exchange, number):
        def local(message, memory, agent, block, round):
            reply, memory = exchange.local(message, memory, agent, block, round)
            gain = round.gain_of_agent(self.probability, 7, 0 if self.once else number) ** self.exponent
            return jax.tree.map(lambda x: gain * x, reply), memory

        return local


def test_gains_of_a_user_have_the_law_of_a_fading_channel():
    own, ours = Faded(HSA, 0.3), fh.OverTheAir(HSA, 0.3, 0.0)
    found, expected = (law_of(problem_of(2), method).stationary().square for method in (own, ours))
    assert found == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [(Faded(LOCAL, 0.3, exponent=2), "not linear in a random gain"), (Faded(HSA, 0.3, once=True), "several exchanges")],
)
def test_gains_that_need_more_than_a_variance_are_refused(method, sentence):
    with pytest.raises(NotDerivedError, match=sentence):
        derive(method, 2, 1)


def test_losses_among_absent_agents_are_ways_of_the_agents():
    """Joint outcomes of sets and losses would be 8 * 64."""
    method = fh.Partial(fh.Lossy(HSA, 0.3), fh.sampling.Bernoulli(0.6))
    pieces = derive(method, 3, 1)
    assert len(pieces.rounds) == 8
    assert {len(ways) for step in pieces.rounds[-1] for ways in step.parts} == {2}
    present_and_kept = [(p * q, (there, kept)) for p, there in HALF for q, kept in each((0, 1 / 0.7), (0.3, 0.7), 4)]
    both = (lambda o, k=k: present(o[0]) * np.array(o[1][k : k + 2]) for k in (0, 2))
    expected = by_outcomes(2, 1, present_and_kept, fed_hsa(*both))
    np.testing.assert_allclose(law_of(problem_of(2), method).errors(np.ones(1), 4), expected, rtol=1e-11)


@pytest.mark.parametrize(
    ("average", "parts"),
    [
        (fh.Averaged(HSA, burn_in=1), [1, 1, 1 / 2, 1 / 3]),
        (fh.GeometricAverage(HSA, 0.7), [0.3 / (1 - 0.7**t) for t in (1, 2, 3, 4)]),
    ],
)
def test_a_running_mean_is_summed_over_all_trajectories(average, parts):
    """The state is the mean of the errors so far, and the error; what is drawn is the weight of the newest error."""
    found = predict(problem_of(2), average)
    assert found.basis == "exact"

    def play(rows, G, outcome):
        after = fed_hsa(equal, equal)(rows[1:], G, (0, 0))[0]
        return [(1 - outcome) * rows[0] + outcome * after, after]

    expected = by_outcomes(2, 2, [[(1.0, part)] for part in parts], play, started=(0, 1))
    np.testing.assert_allclose(found.error(4, np.asarray(problem_of(2).root) + 1), expected, rtol=1e-10)


class Asking(Sleepy):
    """A wrapper of a user that asks its round in a way of which the law knows nothing, or too little."""

    kind: str = eqx.field(static=True, default="")

    @property
    def exchanges(self):
        inner = self.algorithm.exchanges
        return tuple(e._replace(local=self._asking(e), aggregate=self._noisy(e)) for e in inner)

    def _asking(self, exchange):
        def local(message, memory, agent, block, round):
            reply, memory = exchange.local(message, memory, agent, block, round)
            chance = {
                "late": jax.numpy.where(round.index > 5, 0.9, 0.1),
                "step size": getattr(self.algorithm, "step_size", 0.0),
                "reply": jax.numpy.tanh(jax.numpy.sum(reply) ** 2),
                "agent": jax.numpy.asarray([0.0, 0.3])[round.agent],
            }.get(self.kind, self.probability)
            if self.kind in ("late", "step size", "reply", "twice", "agent"):
                lost = round.happens_to_agent(chance, 7)
                lost = lost | round.happens_to_agent(0.5, 7) if self.kind == "twice" else lost
                reply = jax.tree.map(lambda x: jax.numpy.where(lost, 0, x), reply)
            if self.kind == "cut":
                gain = round.gain_of_agent(0.3, 7)
                reply = jax.tree.map(lambda x: jax.numpy.where(gain > 0.65, gain, 0) * x, reply)
            return reply, memory

        return local

    def _noisy(self, exchange):
        def aggregate(server, replies, round):
            if self.kind == "noise":
                replies = replies._replace(values=replies.values + round.noise((1, 1), float, 7))
            return exchange.aggregate(server, replies, round)

        return aggregate


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("late", "depend on the number of the round"),
        ("step size", "depend on its step size"),
        ("reply", "depend on its step size, its replies"),
        ("twice", "draws twice with the same stage and number"),
        ("cut", "not linear in a random gain"),
        ("noise", "adds the same noise twice"),
    ],
)
def test_what_a_wrapper_asks_in_other_ways_is_refused(kind, sentence):
    with pytest.raises(NotDerivedError, match=sentence):
        derive(Asking(HSA if kind == "noise" else LOCAL, 0.3, kind=kind), 2, 1)


def test_what_happens_to_some_agents_alone_makes_them_of_another_kind():
    federation = Federation(derive(Asking(LOCAL, 0.3, kind="agent"), 2, 1), agents_of(problem_of(2)), "Asking")
    assert len(set(federation.kinds.tolist())) == 2


@pytest.mark.parametrize("method", [fh.ServerMomentum(LOCAL, 0.5), fh.Delayed(LOCAL, 2)])
def test_wrapped_methods_with_independent_observations_have_the_exact_law(method):
    found = predict(problem_of(2).iid(), method)
    assert found.basis == "exact"
    assert found.stability == "mean square, exact"


def test_a_few_numbers_of_present_agents_have_the_moments_of_all_of_them():
    for M, p in ((12, 0.3), (40, 0.6), (500, 0.1)):
        numbers, weights = _nodes(M, p)
        assert len(numbers) <= 10
        for power in range(5):
            expected = binom(M, p).expect(lambda n, M=M, power=power: (n / M) ** power)
            assert weights @ (np.array(numbers) / M) ** power == pytest.approx(expected, rel=1e-8)


def test_noise_of_the_server_alone_adds_up_over_rounds():
    """Two scalar agents without noise, and unit noise on their replies: the error is an autoregression."""
    quiet = fh.problems.quadratic.from_arrays(np.full((2, 1, 1), 0.5), np.ones((2, 1)))
    law = law_of(quiet, Asking(fh.LocalSA(0.4, 1), 0.0, kind="noise"))
    assert isinstance(law, LinearLaw)
    assert law.stationary().square == pytest.approx(1 / (1 - 0.8**2), rel=1e-9)


def test_very_many_outcomes_are_refused():
    """Those of agents that remember whether they were present; others are present, or absent."""
    with pytest.raises(NotDerivedError, match="Presence that lasts is predicted for at most 8 agents, got 10"):
        derive(fh.Partial(LOCAL, fh.sampling.Availability(0.5, 0.3)), 10, 1)


def test_losses_may_make_the_mean_square_diverge_though_the_mean_converges():
    """Deterministic agents e' = e - b s e, b of mean 1 and mean square 1 / 0.3: the radius is 1 - 2 s + s^2 / 0.3."""
    quiet = fh.problems.finite_sum.from_arrays(np.ones((1, 2, 1, 1)), np.ones((1, 2, 1)), P[None])
    for step in (0.5, 0.7):
        found = predict(quiet, fh.Lossy(fh.SynchronisedSA(step), 0.7))
        assert found.stable is (step < 0.6)
        assert found.mean_square_radius == pytest.approx(1 - 2 * step + step**2 / 0.3, abs=1e-12)
    assert found.max_step_size == pytest.approx(0.6, rel=1e-4)


@pytest.mark.parametrize("average", [fh.Averaged, lambda method: fh.GeometricAverage(method, 0.8)])
def test_the_long_run_of_a_mean_is_where_its_path_ends(average):
    """Also with few sites, and around agents that are absent at random."""
    method = average(fh.Partial(LOCAL, fh.sampling.Bernoulli(0.6)))
    found = predict(problem_of(2), method)
    assert found.basis == "exact"
    above = found.error(1000)[[500, 1000]] - found.floor
    if average is fh.Averaged:  # what is above the floor decays like 1/n
        assert above[0] / above[1] == pytest.approx(2, rel=0.1)
    else:
        assert abs(above[1]) < 1e-6 * found.floor
    federation = Federation(derive(LOCAL, 2, 1), agents_of(problem_of(2)), "LocalSA")
    pairs, exact = (CarriedAverage(kind(federation), method) for kind in (TwoSitesLaw, EverySiteLaw))
    assert pairs.stationary().square == pytest.approx(exact.stationary().square, rel=1e-9)
    np.testing.assert_allclose(pairs.errors(np.ones(1), 3), exact.errors(np.ones(1), 3), rtol=1e-9)


def test_a_mean_over_nonlinear_rounds_begins_as_the_method_and_ends_at_its_bias():
    problem = fh.problems.logistic.random(2, num_examples=2, dim=1)
    plain = predict(problem, fh.SCAFFOLD(0.1, 2))
    mean = predict(problem, fh.Averaged(fh.SCAFFOLD(0.1, 2)))
    np.testing.assert_allclose(mean.error(1), plain.error(1), rtol=1e-12)
    assert mean.error(2)[2] != plain.error(2)[2]
    (_, first, second), (*_, both) = (found.law.path(np.ones(1), 2) for found in (plain, mean))
    np.testing.assert_allclose(both.mean, (first.mean + second.mean) / 2, rtol=1e-12)
    np.testing.assert_array_equal(mean.bias, plain.bias)
    assert mean.noise_variance == 0
    assert mean.left_out >= plain.left_out


@pytest.mark.slow
@pytest.mark.parametrize("average", [fh.Averaged, lambda method: fh.GeometricAverage(method, 0.9)])
@pytest.mark.parametrize("family", ["td", "logistic"])
def test_means_of_methods_with_memory_are_those_of_simulation(average, family):
    """400 seeds, at most 4 standard errors from the exact law, and 15 % more from that of nonlinear rounds."""
    problem = fh.problems.td.random(3, 4, 2, laziness=0.5) if family == "td" else fh.problems.logistic.random(3, 4, 2)
    method = average(fh.SCAFFLSA(0.05, 2))
    expected = predict(problem, method).error(100)[[20, 100]]
    runs = fh.simulate(problem, method, rounds=100, seeds=400).error[:, [20, 100]]
    allowed = 4 * runs.std(0) / 20 + (0.15 * expected if family == "logistic" else 0.0)
    assert (abs(runs.mean(0) - expected) < allowed).all()
