import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import ALGORITHMS, CASES
from fedhsa._types import precision
from fedhsa.algorithms.local import Server
from fedhsa.engine import batch, placement
from fedhsa.engine.run import Run, _Progress
from fedhsa.sources import FiniteChain

PAIRS = [*((case, "FedHSA") for case in CASES), *(("td", name) for name in ALGORITHMS if name != "FedHSA")]
FAST = ("quadratic", "FedHSA"), ("td", "LocalSA")


@pytest.mark.parametrize(
    ("case", "algorithm"), [pair if pair in FAST else pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS]
)
def test_runs_are_deterministic_and_do_not_depend_on_how_seeds_are_batched(case, algorithm):
    """Shapes, dtypes, determinism bit for bit, and independence of the number of seeds and of the chunk size."""
    problem, algorithm = CASES[case]().problem, ALGORITHMS[algorithm]
    result = fh.simulate(problem, algorithm, rounds=6, seeds=3, key=5)
    assert result.error.shape == (3, 7)
    assert result.theta.shape == (3, problem.dim)
    assert result.error.dtype == result.theta.dtype == np.float64
    assert result.status.tolist() == ["ok"] * 3
    np.testing.assert_allclose(result.error[:, 0], problem.theta_star @ problem.theta_star)
    assert len(np.unique(result.error[:, -1])) == 3
    again = fh.simulate(problem, algorithm, rounds=6, seeds=3, key=5)
    assert np.array_equal(result.error, again.error)
    chunked = fh.simulate(problem, algorithm, rounds=6, seeds=3, key=5, chunk=2)
    np.testing.assert_allclose(chunked.error, result.error, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["td", *(pytest.param(case, marks=pytest.mark.slow) for case in ("quadratic", "finite-sum", "logistic"))]
)
def test_the_debug_engine_agrees_with_the_compiled_one(case):
    problem = CASES[case](2).problem
    algorithm = fh.FedHSA(0.05, 3)
    fast = fh.simulate(problem, algorithm, rounds=2, seeds=2, key=3)
    slow = fh.simulate(problem, algorithm, rounds=2, seeds=2, key=3, debug=True)
    np.testing.assert_allclose(slow.error, fast.error, rtol=1e-12)
    np.testing.assert_allclose(slow.theta, fast.theta, rtol=1e-12)


class Watching(fh.AbstractAgent):
    """Its operator is the observation itself, so that parameters are sums of what was seen."""

    source: fh.AbstractSource
    weight: np.ndarray

    def operator(self, theta, o, /):
        return self.weight * jnp.asarray(o, theta.dtype)[None]

    def mean_operator(self, theta, /):
        return -theta


def watching(num_agents: int = 3) -> fh.Problem:
    P = np.random.default_rng(0).dirichlet(np.ones(5), size=(num_agents, 5))
    # Powers of 7 keep the agents' states apart in the sum: each parameter determines all the observations.
    weight = num_agents * 7.0 ** np.arange(num_agents)[:, None]
    return fh.Problem(Watching(FiniteChain(P), weight), like=np.zeros(1))


def test_two_algorithms_with_the_same_key_see_the_same_observations():
    problem = watching()
    options = {"rounds": 10, "seeds": 3, "record": ("theta",)}
    hsa = fh.simulate(problem, fh.FedHSA(1.0, 4), key=1, **options)
    local = fh.simulate(problem, fh.LocalSA(1.0, 4), key=1, **options)
    np.testing.assert_allclose(hsa.error, local.error, rtol=1e-12)
    other = fh.simulate(problem, fh.LocalSA(1.0, 4), key=2, **options)
    assert not np.isclose(other.error[:, -1], local.error[:, -1]).any()


def test_methods_with_other_round_lengths_see_the_same_trajectory():
    problem = watching()
    long = fh.simulate(problem, fh.LocalSA(1.0, 4), rounds=6, seeds=3, record=("theta",))
    short = fh.simulate(problem, fh.SynchronisedSA(1.0), rounds=24, seeds=3, record=("theta",))
    np.testing.assert_allclose(long.records["theta"], short.records["theta"][:, ::4], rtol=1e-12)


def test_agents_keep_their_trajectories_when_others_join():
    def states(num_agents):
        run = fh.simulate(watching(num_agents), fh.SynchronisedSA(1.0), rounds=30, seeds=3, record=("theta",))
        sums = np.diff(run.records["theta"][0, :, 0]).round().astype(int)
        return np.stack([sums // 7**i % 7 for i in range(num_agents)])

    few, many = states(2), states(3)
    np.testing.assert_array_equal(many[:2], few)
    assert len({tuple(row) for row in many}) == 3


def test_the_chains_states_follow_their_kernel():
    """Over 4000 seeds, the state after 3 steps from state 0 has the law of the third power; chi-square, 4 degrees."""
    P = np.random.default_rng(3).dirichlet(np.ones(5), size=5)
    problem = fh.Problem(Watching(FiniteChain(P[None], start=0), np.ones((1, 1))), like=np.zeros(1))
    result = fh.simulate(problem, fh.SA(1.0), rounds=4, seeds=4000, record=("theta",))
    states = np.diff(result.records["theta"][:, :, 0], axis=1)
    assert (states[:, 0] == 0).all()
    expected = 4000 * np.linalg.matrix_power(P, 3)[0]
    counts = np.bincount(states[:, 3].astype(int), minlength=5)
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # the 0.1 % point


def test_a_simulation_compiles_its_start_and_its_rounds_and_a_new_step_size_nothing(caplog):
    traces = []

    class Counting(fh.AbstractAgent):
        source: fh.AbstractSource
        target: np.ndarray

        def operator(self, theta, o, /):
            traces.append(1)
            return self.target - theta

        def mean_operator(self, theta, /):
            return self.target - theta

    agents = Counting(FiniteChain(np.full((2, 2, 2), 0.5)), np.ones((2, 1)))
    problem = fh.Problem(agents, like=np.zeros(1))
    with jax.log_compiles():
        fh.simulate(problem, fh.FedHSA(0.1, 5), rounds=10)
        first = len(traces)
        assert first <= 6
        fh.simulate(problem, fh.FedHSA(0.2, 5), rounds=30, key=1)
    assert len(traces) == first
    programs = re.findall(r"Finished XLA compilation of jit\(_*(\w+)\)", caplog.text)  # and one that tries the options
    assert programs == ["begin", "advance"]


def test_a_state_that_depends_on_no_agent_compiles_nothing_more(caplog):
    problem = fh.problems.quadratic.random(2, 3)  # its noise starts alike for everyone, wherever the agents are
    with jax.log_compiles():
        fh.simulate(problem, fh.LocalSA(0.1, 2), rounds=3, seeds=2)
    assert re.findall(r"Finished XLA compilation of jit\(_*(\w+)\)", caplog.text) == ["begin", "advance"]


def test_float32_gives_nearly_the_same_numbers_from_the_same_observations():
    problem = CASES["td"]().problem
    double = fh.simulate(problem, fh.FedHSA(0.05, 4), rounds=50, seeds=3)
    single = fh.simulate(problem, fh.FedHSA(0.05, 4), rounds=50, seeds=3, dtype="float32")
    assert single.error.dtype == np.float32
    np.testing.assert_allclose(single.error, double.error, rtol=1e-3)


def test_the_users_jax_configuration_is_left_alone():
    assert jnp.zeros(1).dtype == jnp.float32
    fh.simulate(CASES["quadratic"]().problem, fh.FedHSA(0.05, 4), rounds=2, seeds=3)
    assert jnp.zeros(1).dtype == jnp.float32
    assert not jax.config.read("jax_enable_x64")


def test_records_hold_what_was_asked_for():
    problem = CASES["quadratic"]().problem
    result = fh.simulate(
        problem,
        fh.FedHSA(0.05, 2),
        rounds=12,
        seeds=2,
        every=4,
        record={
            "theta": lambda s: s.theta,
            "norm": lambda s: jnp.linalg.norm(s.theta),
            "round": lambda s: s.round,
        },
    )
    assert result.rounds.tolist() == [0, 4, 8, 12]
    assert result.records["theta"].shape == (2, 4, 4)
    np.testing.assert_allclose(np.linalg.norm(result.records["theta"], axis=-1), result.records["norm"])
    assert result.records["round"].tolist() == [[0, 4, 8, 12]] * 2
    np.testing.assert_array_equal(result.records["theta"][:, -1], result.theta)
    error = ((result.records["theta"] - problem.theta_star) ** 2).sum(-1)
    np.testing.assert_allclose(result.error, error)


def test_the_operator_norm_is_that_of_the_average_mean_operator():
    problem = CASES["td"]().problem
    options = {"rounds": 3, "record": ("operator_norm", "theta"), "theta": problem.theta_star}
    result = fh.simulate(problem, fh.LocalSA(0.05, 2), **options)
    expected = [np.linalg.norm(problem.mean_operator(theta)) for theta in result.records["theta"][0]]
    assert expected[0] < 1e-12  # the agents' own operators are not zero there
    np.testing.assert_allclose(result.records["operator_norm"][0], expected, rtol=1e-12, atol=1e-12)


def test_a_diverging_seed_is_reported_and_does_not_poison_the_others():
    class Exploding(fh.AbstractAgent):
        source: fh.AbstractSource
        rate: np.ndarray

        def operator(self, theta, o, /):
            return jnp.where(o == 1, 1e3, -1.0) * self.rate * theta

        def mean_operator(self, theta, /):
            return -theta

    # State 1 is transient: a seed that starts there explodes before it leaves, the others never see it.
    P = np.array([[[1.0, 0.0], [0.01, 0.99]]])
    agents = Exploding(FiniteChain(P, start=np.array([0.5, 0.5])), np.ones(1))
    problem = fh.Problem(agents, like=np.zeros(1))
    result = fh.simulate(problem, fh.SA(0.5), rounds=40, seeds=16, theta=np.ones(1))
    diverged = result.status == "diverged"
    assert 0 < diverged.sum() < 16
    assert (result.failed_round[diverged] > 0).all()
    assert (result.failed_round[~diverged] == -1).all()
    assert np.isinf(result.error[diverged, -1]).all()
    assert (result.error[~diverged, -1] < 1e-6).all()
    when = result.failed_round[diverged][0]
    curve = result.error[diverged][0]
    assert np.isfinite(curve[:when]).all()
    assert np.isinf(curve[when:]).all()
    assert "diverged" in repr(result)


def test_a_seed_fails_once_beyond_the_bound_or_without_numbers():
    """After the eighth round, with the bound 10: on it, beyond it, NaN, infinite, and one that failed in round 2."""
    theta = jnp.array([[6.0, 8.0], [6.0, 8.1], [np.nan, 0.0], [0.0, -np.inf], [np.nan, 0.0]])
    failed = jnp.array([-1, -1, -1, -1, 2], dtype="int32")
    carry = batch.Carry(Server(theta), (), (), failed)
    marked = batch.mark_diverged(carry, jnp.asarray(7), jnp.asarray(10.0))
    assert marked.failed.tolist() == [-1, 8, 8, 8, 2]


def test_when_all_seeds_diverge_the_run_ends_early():
    problem = CASES["quadratic"]().problem
    result = fh.simulate(problem, fh.LocalSA(100.0, 5), rounds=10**7, every=10**5, seeds=2)
    assert result.error.shape == (2, 101)
    assert (result.status == "diverged").all()


def test_any_pytree_of_parameters_will_do():
    class Line(fh.AbstractAgent):
        source: fh.AbstractSource
        x: np.ndarray
        y: np.ndarray

        def operator(self, theta, o, /):
            residual = self.y[o] - theta["slope"] * self.x[o] - theta["intercept"][0]
            return {"slope": residual * self.x[o], "intercept": residual[None]}

    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6))
    y = np.array([[1.0], [3.0]]) * x + 0.5
    agents = Line(FiniteChain(rng.dirichlet(np.ones(6), size=(2, 6))), x, y)
    problem = fh.Problem(agents, like={"slope": np.zeros(()), "intercept": np.zeros(1)})
    assert problem.dim == 2
    result = fh.simulate(problem.noiseless(), fh.FedHSA(0.1, 3), rounds=300, theta={"slope": 1.0, "intercept": [2.0]})
    assert result.error[0, -1] < 1e-20
    assert result.theta["intercept"].shape == (1, 1)
    np.testing.assert_allclose(result.theta["slope"], problem.unravel(problem.theta_star)["slope"])


@pytest.mark.slow
def test_debug_names_agent_exchange_and_round():
    class Broken(fh.AbstractAgent):
        source: fh.AbstractSource
        number: np.ndarray

        def operator(self, theta, o, /):
            if not isinstance(self.number, jax.core.Tracer) and float(self.number) == 2:
                raise ZeroDivisionError("sensor offline")
            return -theta

        def mean_operator(self, theta, /):
            return -theta

    problem = fh.Problem(Broken(FiniteChain(np.full((3, 2, 2), 0.5)), np.arange(3.0)), like=np.zeros(1))
    with pytest.raises(RuntimeError, match=r"agent 2, exchange 'operator', round 0, seed 0: ZeroDivisionError: sensor"):
        fh.simulate(problem, fh.FedHSA(0.1, 2), rounds=2, debug=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, r"`rounds` must be at least 1, got 0"),
        ({"rounds": 2.5}, r"`rounds` must be a whole number, got 2.5"),
        ({"rounds": 5, "seeds": 0}, r"`seeds` must be at least 1"),
        ({"rounds": 5, "every": 2}, r"`rounds` must be a multiple of `every`, got 5 and 2"),
        (
            {"rounds": 5, "theta": np.zeros(3)},
            r"`theta` must be shaped like the parameter, \(4,\), or a vector of length 4, got \(3,\)",
        ),
        ({"rounds": 5, "theta": np.full(4, np.nan)}, r"`theta` must be finite"),
        ({"rounds": 5, "dtype": "float16"}, r"`dtype` must be one of float64, float32"),
        ({"rounds": 5, "record": ("loss",)}, r"`record` supports error, theta, operator_norm here, got 'loss'"),
        ({"rounds": 5, "key": "seed"}, r"`key` must be an int or one JAX key"),
        ({"rounds": 5, "key": -1}, r"`key` must be an int from 0 to 2\^64 - 1, got -1"),
        ({"rounds": 5, "resume": True}, r"`resume=True` requires `checkpoint`"),
        ({"rounds": 5, "debug": True, "checkpoint": "x.npz"}, r"`debug=True` does not support `checkpoint`"),
        ({"rounds": 5, "chunk": 0}, r"`chunk` must be at least 1"),
    ],
)
def test_bad_arguments_are_named_shown_and_remedied(options, message):
    with pytest.raises(ValueError, match=message):
        fh.simulate(CASES["quadratic"]().problem, fh.FedHSA(0.1, 2), **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fh.FedHSA(0.0, 5), r"`step_size` must be greater than 0.0, got 0.0"),
        (lambda: fh.FedHSA(-0.1, 5), r"`step_size` must be greater than 0.0, got -0.1"),
        (lambda: fh.FedHSA("fast", 5), r"`step_size` must be a number, got 'fast'"),
        (lambda: fh.FedHSA(np.inf, 5), r"`step_size` must be finite, got inf"),
        (lambda: fh.FedHSA(0.1, 0), r"`local_steps` must be at least 1, got 0. Use `local_steps=1`"),
        (lambda: fh.LocalSA(0.1, 2.0), r"`local_steps` must be a whole number, got 2.0"),
        (lambda: fh.LocalSA(0.1, 2, server_step=0), r"`server_step` must be greater than 0.0, got 0"),
        (lambda: fh.SynchronisedSA(-1), r"`step_size` must be greater than 0.0"),
        (lambda: fh.Polynomial(0.0), r"`scale` must be greater than 0.0"),
        (lambda: fh.Polynomial(1.0, power=-1), r"`power` must be at least 0.0"),
        (lambda: fh.Stages((0.1, 0.0), (5,)), r"`step_sizes` must be greater than 0.0"),
        (
            lambda: fh.Stages((0.2, 0.1), ()),
            r"`begins` must have a round for each of the 1 stages after the first",
        ),
        (lambda: fh.Stages((0.3, 0.2, 0.1), (5, 5)), r"`begins` must be at least 6, got 5"),
        (lambda: fh.PerBlock((0.2, 0.1), (3,)), r"`sizes` must have a number for each of the 2 blocks, got \(3,\)"),
        (lambda: fh.PerBlock((0.2, 0.0), (3, 1)), r"`step_sizes` must be greater than 0.0, got 0.0"),
        (lambda: fh.PerBlock((0.2, fh.PerBlock((0.1,), (1,))), (3, 1)), "schedules of one number"),
        (lambda: fh.Projected(fh.SA(0.1), radius=1.0, part=(2, 2)), r"`part` must be `\(begin, end\)` with"),
        (lambda: fh.corollary_step(0, 1, 1, 10), r"`mu` must be greater than 0.0"),
    ],
)
def test_bad_settings_are_refused_at_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_sa_asks_for_one_agent():
    with pytest.raises(
        ValueError, match=r"SA runs a single agent, got a problem with 3 agents. Select one with `problem.take"
    ):
        fh.simulate(CASES["quadratic"]().problem, fh.SA(0.1), rounds=5)


def test_a_replay_that_is_too_short_is_refused():
    problem, _, record = CASES["finite-sum"]()
    replayed, _ = record(10, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"requires 12 observations of each agent, but the source has 10"):
        fh.simulate(problem.replay(replayed), fh.FedHSA(0.1, 3), rounds=4)
    wrapped = fh.simulate(problem.replay(replayed, wrap=True), fh.FedHSA(0.1, 3), rounds=4)
    assert wrapped.status[0] == "ok"


def test_a_start_of_other_names_or_shapes_raises():
    agents = [Two(fh.sources.Silent(), np.ones(())) for _ in range(2)]
    problem = fh.Problem(agents, like={"a": np.zeros(2), "b": np.zeros(1)})
    for theta in ({"x": np.zeros(2), "y": np.zeros(1)}, {"a": np.zeros(1), "b": np.zeros(2)}):
        with pytest.raises(
            ValueError, match=r"`theta` must be shaped like the parameter, \{'a': \(2,\), 'b': \(1,\)\}"
        ):
            fh.simulate(problem, fh.FedHSA(0.1, 2), rounds=1, theta=theta)


class Two(fh.AbstractAgent):
    """Decays towards zero, or where `rate` is zero not at all."""

    source: fh.AbstractSource
    rate: np.ndarray

    def operator(self, theta, o, /):
        return jax.tree.map(lambda x: -self.rate * x, theta)


@pytest.mark.slow
def test_a_problem_without_a_root_records_the_norm_of_the_operator_and_pytrees_come_out_as_they_went_in(tmp_path):
    agents = [Two(fh.sources.Silent(), np.full((), rate)) for rate in (0.5, 1.5)]
    problem = fh.Problem(agents, like={"a": np.zeros(2), "b": np.zeros(1)}, theta_star=None)
    start = {"a": np.array([3.0, 0.0]), "b": np.array([4.0])}
    options = {"rounds": 2, "seeds": 2, "theta": start, "record": {"first": lambda snapshot: snapshot.theta["a"][0]}}
    for debug in (False, True):
        result = fh.simulate(problem, fh.FedHSA(0.1, 1), debug=debug, **options)
        np.testing.assert_allclose(result.records["operator_norm"], 5 * 0.9 ** np.arange(3) * np.ones((2, 1)))
        np.testing.assert_allclose(result.records["first"][0], 3 * 0.9 ** np.arange(3))
        assert np.isnan(result.error).all()
        assert result.error.shape == (2, 3)
        np.testing.assert_allclose(result.theta["b"], np.full((2, 1), 4 * 0.81))
    result.save(tmp_path / "result.npz")
    assert np.isnan(fh.load(tmp_path / "result.npz").error).all()
    with pytest.raises(ValueError, match=r"got 'error'. The problem has no root."):
        result.mean("error")


def test_records_map_names_to_names_or_functions_and_the_error_keeps_its_name():
    problem, method = CASES["td"]().problem, fh.FedHSA(0.05, 3)
    result = fh.simulate(problem, method, rounds=2, record={"where": "theta", "norm": "operator_norm"})
    assert sorted(result.records) == ["error", "norm", "where"]
    assert result.records["where"].shape == (1, 3, 4)
    for record, message in (
        ({"error": lambda snapshot: 0.0}, r"`record`: 'error' is the name of a built-in recorder"),
        ({"x": lambda snapshot: {"a": 0.0}}, r"`record`: 'x' must return one number or array, got dict"),
        ({"x": 3}, r"`record`: 'x' must be the name of a recorder or a function, got 3"),
        ([len], r"`record`: a function needs a name"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            fh.simulate(problem, method, rounds=2, record=record)


def test_a_fresh_function_of_the_same_code_compiles_nothing_and_one_of_other_values_does(caplog):
    problem, method = CASES["td"]().problem, fh.FedHSA(0.05, 3)

    def run(scale):
        caplog.clear()
        with jax.log_compiles():
            result = fh.simulate(problem, method, rounds=2, record={"x": lambda snapshot: scale * snapshot.theta[0]})
        return result.records["x"], sum("Compiling" in record.message for record in caplog.records)

    first, compiled = run(1.0)
    assert compiled > 0
    same, compiled = run(1.0)
    assert compiled == 0
    np.testing.assert_array_equal(same, first)
    doubled, compiled = run(2.0)
    assert compiled > 0
    np.testing.assert_allclose(doubled, 2 * first)


def test_large_keys_keep_their_high_word_at_any_precision():
    large, small = 2**33 + 5, 5
    assert fh._random.key_words(large) == [2, 5]
    assert not np.array_equal(
        fh.problems.td.random(2, 3, 2, key=large).theta_star, fh.problems.td.random(2, 3, 2, key=small).theta_star
    )
    problem, method = CASES["td"]().problem, fh.FedHSA(0.05, 3)
    runs = {dtype: fh.simulate(problem, method, rounds=2, key=large, dtype=dtype) for dtype in ("float64", "float32")}
    np.testing.assert_allclose(runs["float32"].error, runs["float64"].error, rtol=1e-5)
    assert runs["float32"].settings["key"] == runs["float64"].settings["key"] == [2, 5]


@pytest.mark.slow
def test_whole_numbers_stay_what_they_are_after_divergence_in_debug_mode_too():
    problem, record = CASES["td"](2).problem, {"t": lambda snapshot: jnp.asarray(snapshot.round)}
    for debug in (False, True):
        result = fh.simulate(problem, fh.FedHSA(1e9, 2), rounds=3, record=record, debug=debug)
        assert result.status.tolist() == ["diverged"]
        assert result.records["t"].tolist() in ([[0, 1, 2, 3]], [[0, 1, 1, 1]])  # once all have diverged nothing runs
        assert np.isinf(result.error[0, -1])


def test_a_class_in_place_of_an_algorithm_is_told_in_a_sentence():
    with pytest.raises(TypeError, match=r"`algorithm` must be an algorithm with its settings, got the class FedHSA"):
        fh.simulate(CASES["td"]().problem, fh.FedHSA, rounds=1)
    with pytest.raises(TypeError, match=r"`problem` must be a `Problem`, got NoneType"):
        fh.simulate(None, fh.FedHSA(0.1, 2), rounds=1)


def test_a_seed_has_diverged_when_its_parameter_is_a_million_million_times_start_and_root():
    """From 1, ten times larger each round: beyond 1e12 (1 + 1 + 50) in round 14, and not before."""
    problem = fh.Problem([Two(fh.sources.Silent(), np.full((), -1.0))], like=np.zeros(1), theta_star=np.full(1, 50.0))
    result = fh.simulate(problem, fh.SA(9.0), rounds=15, theta=np.ones(1))
    assert result.failed_round.tolist() == [14]
    assert result.error[0, 13] == pytest.approx(1e26)


def test_a_run_that_ends_early_is_filled_with_its_last_records():
    run = Run.__new__(Run)  # of two seeds that have made four of eight rounds
    run.every = 2
    run.progress = _Progress(4, [], [{"error": np.array([[1.0, 2.0], [3.0, np.inf]]), "count": np.array([[5, 6]] * 2)}])
    run.fill(8)
    rest = run.progress.records[-1]
    assert run.round == 8
    np.testing.assert_array_equal(rest["error"], [[2.0, 2.0], [np.inf, np.inf]])
    np.testing.assert_array_equal(rest["count"], [[6, 6], [6, 6]])


def test_every_process_simulates_its_own_seeds(monkeypatch):
    """Seeds 2 and 3 of four, as the second of two processes has them."""
    problem = CASES["quadratic"]().problem
    share = placement.Share(range(2, 4), [0], jax.devices())
    monkeypatch.setattr(placement, "share_out", lambda seeds, devices: [share])
    with precision():
        method = fh.SynchronisedSA(0.1)
        run = Run(problem, method, np.zeros(problem.dim), jax.random.key(3), 4, 1, "float64", {}, jax.devices())
        run.begin(1)
    found = [jax.random.key_data(keys.server[0]).tolist() for keys in run.keys]
    expected = [jax.random.fold_in(jax.random.fold_in(jax.random.key(3), seed), 1) for seed in (2, 3)]
    assert found == [jax.random.key_data(key).tolist() for key in expected]
