"""Moments of what agents do in an exchange, along their chains: against sums over all that may happen to each agent."""

import itertools

import numpy as np
import pytest

from fedhsa.theory.laws import walks
from fedhsa.theory.laws.agents import AddedNoise, Agents
from fedhsa.theory.laws.draws import CODES
from fedhsa.theory.laws.federation import Federation
from fedhsa.theory.laws.moments import NotDerivedError
from fedhsa.theory.laws.pieces import MEAN, Call, Part, pieces_of_rule
from fedhsa.theory.laws.walks import Code, Walk, actions_of
from fedhsa.theory.rule import LocalRule
from theory.test_enumerated import chains_of

LENGTH = 3
"""The number of observations of a round."""
AHEAD, BACK = np.array([[1.0, 0.4], [0.0, 1.0]]), np.array([[1.0, 0.0], [0.4, 1.0]])
PARTS = {
    "later variables enter earlier ones": [(0, AHEAD), (1, AHEAD), (2, AHEAD)],
    "earlier variables enter later ones": [(0, BACK), (1, AHEAD), (2, BACK)],
    "more and fewer variables": [(0, (3, 2)), (1, (1, 3)), (2, (2, 1))],
    "two calls on an observation": [(0, AHEAD), (1, BACK), (1, (3, 2)), (2, (2, 3))],
    "an observation without calls": [(0, AHEAD), (2, (3, 2))],
    "mean operators": [(MEAN, AHEAD), (0, (3, 2)), (MEAN, (2, 3)), (1, AHEAD)],
    "equal steps": [(0, AHEAD)] * LENGTH,
    "codes": [(0, AHEAD), (CODES, AHEAD), (1, (3, 2)), (CODES - 1, (2, 3))],
}
"""The place of each call, and the map of live variables or the numbers of them after it and before it."""
KINDS = ("states", "td", "edges", "draws", "noise")
CASES = [(kind, name) for kind in KINDS for name in PARTS if (kind, name) != ("noise", "codes")]
SCALES = 1.0, 2.0
EXACT = [Code(scale / 2, 0.0, scale**2 / 2, np.zeros((2, 2, 2))) for scale in SCALES]
"""The moments of two codes: one of two entries is kept, as it is or twice as large."""


def part_of(name):
    """An agent's part with random numbers."""
    rng, made = np.random.default_rng(0), []
    for number, (place, carry) in enumerate(PARTS[name]):
        F = rng.normal(size=carry) if isinstance(carry, tuple) else carry
        if name == "equal steps" and number:
            made.append(made[0]._replace(place=number, number=number))
        else:
            made.append(Call(place, rng.normal(size=F.shape[1]), F, 0.3 * rng.normal(size=len(F)), number))
    return Part(np.zeros((2, 1)), tuple(made), np.zeros((1, len(made[-1].carry))))


def agents_of(kind):
    """Two agents that observe states, transitions (with operators in one direction or in all), or independent draws, or
    whose noise is added."""
    if kind in ("states", "td", "edges"):
        return chains_of(kind, 2, (0, 1)).arrays
    rng, one = np.random.default_rng(1), np.ones((2, 1))
    if kind == "draws":
        return Agents(one[..., None], one, one, rng.dirichlet(np.ones(3), (2, 1)), rng.normal(size=(2, 1, 3, 2, 3)))
    Q, fresh = 0.5 * rng.normal(size=(2, 2, 2)), np.stack([np.eye(2), np.array([[2.0, 0.5], [0.5, 1.0]])])
    noise = AddedNoise(Q, fresh, fresh, fresh)
    return Agents(one[..., None], one, one, one[..., None], rng.normal(size=(2, 1, 1, 2, 3)), noise=noise)


def walk_of(kind, name):
    agents, part = agents_of(kind), part_of(name)
    (actions,), end = actions_of([part], 0, True, LENGTH, set())
    assert end == LENGTH
    return agents, part, Walk(part, actions, agents, EXACT)


def courses(agents, i, part):
    """All that may happen to an agent in a round: its first and last state, the probability, the map of (live, z, 1),
    and the number and state of each point that it uses with its map of (live, z, 1)."""
    S, T = agents.num_states, agents.W.shape[2]
    masks = itertools.product(np.eye(2), repeat=sum(call.place <= CODES for call in part.calls))
    drawn = itertools.product(range(T if S == 1 else 1), repeat=LENGTH)
    for states, numbers, kept, noise in itertools.product(
        itertools.product(range(S), repeat=LENGTH + 1), list(drawn), list(masks), list(added_noises(agents, i))
    ):
        seen = [states[n + 1] if T == S > 1 else numbers[n] for n in range(LENGTH)]
        chance = np.prod([agents.P[i, s, t] for s, t in itertools.pairwise(states)]) / 2.0 ** len(kept) * noise[0]
        chance *= np.prod([agents.chances[i, 0, t] for t in seen]) if S == 1 else 1.0
        yield states[0], states[-1], chance, *course(agents, i, part, states, seen, list(kept), noise[1])


def course(agents, i, part, states, seen, kept, noise):
    """One course, with the entries that each code keeps, and the maps of (z, 1) to the noise at each observation."""
    d, now, points = agents.dim, 0, []
    G = agents.W[i] if agents.D is None else np.einsum("ska,stkb->stab", agents.D[i], agents.W[i])
    mean = np.einsum("s,st,stab->ab", agents.pi[i], agents.chances[i], G)
    map = np.eye(len(part.begin) * d + (0 if agents.noise is None else d) + 1)
    for call in part.calls:
        n = len(call.point) * d
        point = np.kron(call.point, np.eye(d)) @ map[:n]
        if call.place <= CODES:
            points.append((1 + CODES - call.place, states[now], point))
            value = SCALES[CODES - call.place] * np.diag(kept.pop(0)) @ point
        elif call.place == MEAN:
            value = mean @ np.concatenate([point, map[-1:]])
        else:
            points.append((0, states[call.place], point))
            now = call.place + 1
            value = G[states[call.place], seen[call.place]] @ np.concatenate([point, map[-1:]])
            value = value if noise is None else value + noise[call.place] @ map[n:]
        live = np.kron(call.carry, np.eye(d)) @ map[:n] + np.kron(call.enter[:, None], value)
        map = np.concatenate([live, map[n:]])
    if noise is not None:
        map = np.concatenate([map[: -1 - d], noise[LENGTH] @ map[-1 - d :], map[-1:]])
    return map, points


def added_noises(agents, i):
    """The probability and the maps of (z, 1) to additive noise at each observation, if its fresh part has two values in
    each of two directions."""
    if agents.noise is None:
        yield 1.0, None
        return
    d, Q, L = agents.dim, agents.noise.Q[i], np.linalg.cholesky(agents.noise.fresh[i])
    values = [sign * np.sqrt(d) * column for column in L.T for sign in (1, -1)]
    for fresh in itertools.product(values, repeat=LENGTH):
        maps = [np.eye(d, d + 1)]
        for value in fresh:
            maps.append(Q @ maps[-1] + np.outer(value, np.eye(d + 1)[-1]))
        yield float(len(values)) ** -LENGTH, maps


def moments_before(agents, walk):
    """Random second moments of (live, z, 1) by the state, first moments with something else, and rows at the end."""
    rng, shape = np.random.default_rng(2), (2, agents.num_states)
    B = rng.normal(size=(*shape, walk.begins, walk.begins))
    return B @ B.swapaxes(-1, -2), rng.normal(size=(*shape, walk.begins, 2)), rng.normal(size=(*shape, 3, walk.ends))


@pytest.mark.parametrize("matrix", [0, 10**6], ids=["walked", "matrix"])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_moments_after_an_exchange_are_sums_over_all_that_may_happen(kind, name, matrix, monkeypatch):
    """First and second moments by the last state, and the mean of rows at the end, given the first state."""
    monkeypatch.setattr(walks, "MATRIX", matrix)
    agents, part, walk = walk_of(kind, name)
    Z, X, N = moments_before(agents, walk)
    first, second = (np.zeros((*X.shape[:2], walk.ends, n)) for n in (X.shape[-1], walk.ends))
    back = np.zeros((*N.shape[:-1], walk.begins))
    for i in range(2):
        for s, t, chance, map, _ in courses(agents, i, part):
            first[i, t] += chance * map @ X[i, s]
            second[i, t] += chance * map @ Z[i, s] @ map.T
            back[i, s] += chance * N[i, t] @ map
    square, also_first = walk.second(Z, X)
    for found, expected in ((walk.first(X), first), (also_first, first), (square, second), (walk.back(N), back)):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_points_are_counted_by_the_states_in_which_they_are_used(kind, name):
    """Those of calls on observations together, and those of each code."""
    agents, part, walk = walk_of(kind, name)
    Z, X, _ = moments_before(agents, walk)
    shape = (2, agents.num_states, 3, 3)
    found, expected = ({k: np.zeros(shape) for k in range(3)} for _ in range(2))
    for i in range(2):
        for s, _, chance, _, points in courses(agents, i, part):
            for k, state, point in points:
                rows = np.concatenate([point, np.eye(walk.begins)[-1:]])
                expected[k][i, state] += chance * rows @ Z[i, s] @ rows.T
    square, cross = walk.second(Z, X, found)
    for k in expected:
        np.testing.assert_allclose(found[k], expected[k], rtol=1e-10, atol=1e-10)
    for one, other in zip(walk.second(Z, X), (square, cross), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_rows_at_the_end_given_the_start_are_the_adjoint_of_first_moments(kind, name):
    agents, _, walk = walk_of(kind, name)
    _, X, N = moments_before(agents, walk)
    after, before = (N @ walk.first(X)).sum(1), (walk.back(N) @ X).sum(1)
    np.testing.assert_allclose(after, before, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in PARTS if name != "codes"])
def test_fresh_noise_gives_rows_at_the_end_their_covariance(name):
    agents, part, walk = walk_of("noise", name)
    _, _, N = moments_before(agents, walk)
    for i in range(2):
        every = [(chance, (N[i, 0] @ map)[:, -1]) for _, _, chance, map, _ in courses(agents, i, part)]
        mean = sum(chance * x for chance, x in every)
        expected = sum(chance * np.outer(x - mean, x - mean) for chance, x in every)
        found = np.zeros((2, 1, 3, 3))
        walk.back(N, found)
        np.testing.assert_allclose(found[i, 0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("correction", [0.0, 1.0])
@pytest.mark.parametrize("family", ["states", "td"])
def test_in_every_exchange_rows_among_the_others_are_the_adjoint_of_first_moments(family, correction):
    """Of (x, own coordinates, 1), where all others are as they are on average."""
    pieces, rng = pieces_of_rule(LocalRule(0.3, 3, 0.8, correction), 3), np.random.default_rng(0)
    federation = Federation(pieces, chains_of(family, 2, (0, 1, 2)).arrays, "")
    ((role,),), which = federation.rounds, np.array([0, 2])
    for exchange in role.exchanges:
        before, after = exchange.n + exchange.own + 1, exchange.ends + exchange.own_after + 1
        X, N = rng.normal(size=(2, 2, before, 4)), rng.normal(size=(2, 2, 3, after))
        rows, _ = exchange.back_of_each(N, which)
        share = exchange.share(which)
        first = share.moved(exchange.without(which[:, None])[:, None] @ X) + share.first(X)
        found, expected = (rows @ X).sum(1), (N @ first).sum(1)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_over_a_round_a_chain_moves_once_for_every_observation(correction):
    arrays = chains_of("states", 3, (0, 1, 2)).arrays
    federation = Federation(pieces_of_rule(LocalRule(0.3, LENGTH, 0.8, correction), 3), arrays, "")
    expected = np.linalg.matrix_power(arrays.P, LENGTH)
    np.testing.assert_allclose(federation.kernels(np.arange(3)), expected, rtol=1e-12)


def test_an_observation_that_another_exchange_uses_again_is_the_state_and_no_more():
    part = part_of("equal steps")
    (actions,), end = actions_of([part._replace(calls=part.calls[:1])], 0, False, LENGTH, {0})
    assert end == 0
    agents = agents_of("states")
    walk = Walk(part, actions, agents)
    _, X, _ = moments_before(agents, walk)
    for i, s in itertools.product(range(2), repeat=2):  # the chain does not move
        map, _ = course(agents, i, part._replace(calls=part.calls[:1]), [s], [0], [], None)
        np.testing.assert_allclose(walk.first(X)[i, s], map @ X[i, s], rtol=1e-12)
    with pytest.raises(NotDerivedError, match="An observation is used in two exchanges"):
        Walk(part, actions, agents_of("td"))


def test_chains_of_agents_that_use_fewer_observations_move_as_far_as_those_of_others():
    parts = [part_of(name) for name in ("equal steps", "mean operators")]
    for last, length in ((False, 3), (True, 5)):
        every, end = actions_of(parts, 0, last, 5, set())
        assert end == length
        assert [sum(action.times for action in actions if action.moves) for actions in every] == [length] * 2
    with pytest.raises(NotDerivedError, match="different numbers of observations"):
        actions_of(parts, 0, False, 5, {1})
