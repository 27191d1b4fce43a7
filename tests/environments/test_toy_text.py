"""Gymnasium's toy texts: models equal the games' own tables, and long plays of the games themselves."""

import sys

import numpy as np
import pytest

from fedhsa.environments import toy_text

gymnasium = pytest.importorskip("gymnasium")
SEED = 7


def tables(game):
    """Transitions and mean rewards `(S, A, S)` and `(S, A)`, and who is ended, by the game's own book."""
    P = np.zeros((len(game.P), len(game.P[0]), len(game.P)))
    R, ended = np.zeros(P.shape[:2]), np.zeros(len(game.P), dtype=bool)
    for s, row in game.P.items():
        for a, outcomes in row.items():
            for chance, t, reward, over in outcomes:
                P[s, a, t] += chance
                R[s, a] += chance * reward
                ended[t] |= bool(over)
    return P, R, ended


EQUAL = {"num_agents": 1, "heterogeneity": 0.0}
GAMES = [
    pytest.param("FrozenLake", {}, toy_text.frozen_lake, {}, id="lake"),
    pytest.param("FrozenLake", {"is_slippery": False}, toy_text.frozen_lake, {"slipperiness": 0.0}, id="sure-lake"),
    pytest.param("FrozenLake8x8", {"success_rate": 0.5}, toy_text.frozen_lake,
                 {"layout": "8x8", "slipperiness": 0.5}, id="large-lake"),
    pytest.param("FrozenLake", {"success_rate": 0.0}, toy_text.frozen_lake, {"slipperiness": 1.0}, id="glass-lake"),
    pytest.param("CliffWalking", {}, toy_text.cliff_walking, {"wind": 0.0}, id="cliff"),
    pytest.param("CliffWalking", {"is_slippery": True}, toy_text.cliff_walking,
                 {"wind": 0.0, "slipperiness": 2 / 3}, id="slippery-cliff"),
    pytest.param("Taxi", {}, toy_text.taxi, {"rain": 0.0}, id="taxi"),
    pytest.param("Taxi", {"is_rainy": True}, toy_text.taxi, {"rain": 0.2}, id="rainy-taxi"),
    pytest.param("Taxi", {"is_rainy": True, "rainy_probability": 0.5}, toy_text.taxi, {"rain": 0.5}, id="storm"),
]  # fmt: skip


def open_game(name, options):
    newest = max(spec.version for spec in gymnasium.registry.values() if spec.name == name)
    try:
        return gymnasium.make(f"{name}-v{newest}", **options)
    except TypeError:
        pytest.skip(f"Gymnasium {gymnasium.__version__} does not know {options}")


@pytest.mark.parametrize(("name", "options", "world", "arguments"), GAMES)
def test_models_equal_the_tables_of_the_games(name, options, world, arguments):
    game = open_game(name, options).unwrapped
    P, R, ended = tables(game)
    model = world(**EQUAL, **arguments)
    goes_on = ~ended
    np.testing.assert_allclose(model.transitions[0, goes_on], P[goes_on], atol=1e-15)
    np.testing.assert_allclose(model.action_rewards()[0, goes_on], R[goes_on], atol=1e-13)
    assert (model.ends[0] == ended).all()
    np.testing.assert_array_equal(model.start[0], game.initial_state_distrib)


def play(game, steps):
    """Counts of transitions and sums of rewards (and of their squares) under random actions."""
    S, A = game.observation_space.n, game.action_space.n
    counts, sums, squares = np.zeros((S, A, S)), np.zeros((S, A)), np.zeros((S, A))
    starts, ends = np.zeros(S), set()
    actions = np.random.default_rng(SEED).integers(A, size=steps)
    state, _ = game.reset(seed=SEED)
    starts[state] += 1
    for action in actions:
        new, reward, ended, cut, _ = game.step(int(action))
        counts[state, action, new] += 1
        sums[state, action] += reward
        squares[state, action] += reward**2
        state = new
        if ended or cut:
            ends |= {new} if ended else set()
            state, _ = game.reset()
            starts[state] += 1
    return counts, sums, squares, starts, ends


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "world", "arguments"), GAMES)
def test_models_equal_long_plays_of_the_games(name, options, world, arguments):
    """Frequencies of transitions and of starts, and mean rewards of actions, within 4 standard errors."""
    model = world(**EQUAL, **arguments)
    counts, sums, squares, starts, ends = play(open_game(name, options), steps=100_000)
    tried = counts.sum(-1)
    seen = tried > 0
    assert seen.sum() > 40
    P = model.transitions[0]
    assert (counts[P == 0] == 0).all()
    error = np.sqrt(P * (1 - P) / np.maximum(tried, 1)[..., None])
    far = abs(counts / np.maximum(tried, 1)[..., None] - P)[seen] / np.where(error > 0, error, 1.0)[seen]
    often = np.broadcast_to(tried[..., None] > 30, P.shape)[seen]
    assert far[often].max() < 4.0
    # All of them together: counts have the mean square of a chi-square law, whose standard error is known.
    free = (error[seen] > 0) & often
    if free.any():
        square = (far[free] ** 2).mean()
        assert abs(square - 1) < 4 * np.sqrt(2 / (free.sum() / 2))
    R, many = model.action_rewards()[0], np.maximum(tried, 1)
    mean = sums / many
    spread = np.sqrt(np.maximum(squares / many - mean**2, 0.0) / many)
    often = tried > 30
    assert (abs(mean - R) <= 4 * spread + 1e-9)[often].all()
    starting = starts / starts.sum()
    law = model.start[0]
    assert (abs(starting - law) <= 4 * np.sqrt(law * (1 - law) / starts.sum()) + 1e-12).all()
    assert ends
    assert model.ends[0, sorted(ends)].all()


def test_the_wind_turns_actions_into_moves_down():
    calm, windy = (toy_text.cliff_walking(num_agents=1, wind=w, heterogeneity=0.0) for w in (0.0, 0.25))
    down = calm.actions.index("↓")
    expected = 0.75 * calm.transitions + 0.25 * calm.transitions[:, :, [down] * 4]
    np.testing.assert_allclose(windy.transitions, expected, atol=1e-15)
    rewards = 0.75 * calm.action_rewards() + 0.25 * calm.action_rewards()[:, :, [down] * 4]
    np.testing.assert_allclose(windy.action_rewards(), rewards, atol=1e-12)
    # At the start, a step right into the cliff and the wind that pushes down both lead back there.
    right = calm.actions.index("→")
    assert windy.rewards[0, 36, right, 36] == pytest.approx(-0.75 * 100 - 0.25)


def test_arrows_lead_where_they_point():
    for model, columns in (
        (toy_text.frozen_lake(**EQUAL, layout="8x8", slipperiness=0.0), 8),
        (toy_text.cliff_walking(**EQUAL, wind=0.0), 12),
    ):
        middle, steps = columns + 3, {"←": -1, "→": 1, "↑": -columns, "↓": columns}
        assert len(set(model.actions)) == 4
        for a, arrow in enumerate(model.actions):
            assert model.transitions[0, middle, a, middle + steps[arrow]] == 1


def test_slipperiness_and_rewards_differ_by_agent_as_far_as_they_may():
    model = toy_text.frozen_lake(num_agents=40, slipperiness=0.5, slip_spread=0.2, reward_spread=0.5, heterogeneity=0.5)
    ahead = model.transitions[:, 10, 1, 14]  # down from the middle
    assert 0.4 <= ahead.min() < 0.42
    assert 0.58 < ahead.max() <= 0.6
    np.testing.assert_allclose(model.transitions[:, 10, 1, [9, 11]], (1 - ahead[:, None]) / 2 * np.ones(2), rtol=1e-12)
    goal = model.rewards[:, 14, 2, 15]
    assert 0.75 <= goal.min() < 0.8
    assert 1.2 < goal.max() <= 1.25
    cliff = toy_text.cliff_walking(num_agents=30, reward_spread=0.5)
    step, fall = cliff.rewards[:, 0, 1, 1], cliff.rewards[:, 26, 2, 36]
    assert ((step > -1.5) & (step < -0.5) & (fall > -150) & (fall < -50)).all()
    assert abs(np.corrcoef(step, fall)[0, 1]) < 0.7  # factors of their own


def test_every_agent_can_have_its_own_lake_with_a_way_to_the_goal():
    model = toy_text.frozen_lake(num_agents=6, layout="own", size=5, frozen=0.6)
    assert len(set(model.cells)) == 6
    assert model.grid == (5, 5)
    for i, cells in enumerate(model.cells):
        assert cells[0] == "S"
        assert cells[-1] == "G"
        assert (model.ends[i] == [letter in "GH" for letter in cells]).all()
    assert (model.returns(model.greedy(model.optimal())) > 0).all()
    one = toy_text.frozen_lake(num_agents=6, layout="random", size=5, frozen=0.6)
    assert len(set(one.cells)) == 1
    assert (
        toy_text.frozen_lake(num_agents=2, layout="own", size=5, frozen=0.6, heterogeneity=0.0).cells == one.cells[:2]
    )


def test_a_taxi_visits_404_states():
    model = toy_text.taxi(num_agents=1)
    reached = model.start[0] > 0
    while True:
        more = reached | (model.transitions[0][reached & ~model.ends[0]] > 0).any((0, 1))
        if (more == reached).all():
            break
        reached = more
    assert reached.sum() == 404


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layout": "5x5"}, "`layout` must be one of '4x4', '8x8', 'random', 'own', got '5x5'"),
        ({"slipperiness": 0.9}, "`slip_spread` must keep .*, but `slipperiness` 0.9 plus or minus 0.333 does not"),
        ({"slipperiness": 2.0}, "`slipperiness` must be at most 1.0, got 2.0"),
        ({"size": -1}, "`size` must be at least 2, got -1"),
        ({"layout": "own", "size": 1}, "`size` must be at least 2"),
        ({"layout": "random", "frozen": 0.0}, "`frozen` must be greater than 0"),
        ({"reward_spread": -1.0}, "`reward_spread` must be at least 0"),
        ({"discount": 1.0, "slipperiness": 0.0, "slip_spread": 0.0}, "`discount` must be below 1"),
    ],
)
def test_lakes_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        toy_text.frozen_lake(**arguments)


def test_without_gymnasium_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium.envs", None)
    for world in (toy_text.frozen_lake, toy_text.cliff_walking, toy_text.taxi):
        with pytest.raises(ImportError, match=r"pip install 'fedhsa\[gym\]'"):
            world()
