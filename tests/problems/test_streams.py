"""Tables of data as agents, against NumPy's least squares and SciPy's minima."""

import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.optimize import minimize

import fedhsa as fh
from fedhsa._types import precision
from fedhsa.problems.streams import _signs, from_dataframe

HOURS = 60


def table(hours: int = HOURS, sites: str = "abc", key: int = 0) -> pd.DataFrame:
    """Hours of unlike autoregressive sites, one after the other, with a column that is known beforehand."""
    rng = np.random.default_rng(key)
    parts = []
    for number, site in enumerate(sites):
        values = [0.0]
        for _ in range(hours - 1):
            values.append(0.3 * number + (0.8 - 0.3 * number) * values[-1] + rng.normal())
        when = pd.date_range("2015-01-01", periods=hours, freq="h")
        hour = np.cos(2 * np.pi * when.hour.to_numpy() / 24)
        parts.append(pd.DataFrame({"site": site, "when": when, "value": 50 + 10 * np.array(values), "hour": hour}))
    return pd.concat(parts, ignore_index=True)


def naive_pairs(df: pd.DataFrame, site: str, lags: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Constant, lags and hour, and the value, by loops."""
    rows = df[df["site"] == site]
    values, hours = rows["value"].tolist(), rows["hour"].tolist()
    inputs, target = [], []
    for t in range(max(lags), len(values)):
        inputs.append([1.0, *(values[t - k] for k in lags), hours[t]])
        target.append(values[t])
    return np.array(inputs), np.array(target)


def make(df, **changes):
    given = {"agent": "site", "target": "value", "lags": (1, 3), "time": "when", "inputs": ["hour"]} | changes
    return from_dataframe(df, **given)


def test_the_root_is_the_least_squares_fit_of_numpy_to_all_training_pairs():
    df = table()
    streams = make(df, standardise=False)
    pairs = [naive_pairs(df, site, (1, 3)) for site in "abc"]
    kept = HOURS - 3 - 12  # a fifth of 57, rounded up, is held out
    x, y = (np.concatenate([part[:kept] for part in parts]) for parts in zip(*pairs, strict=True))
    np.testing.assert_allclose(streams.problem.theta_star, np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-8)
    alone = [np.linalg.lstsq(x[:kept], y[:kept], rcond=None)[0] for x, y in pairs]
    np.testing.assert_allclose(streams.alone, alone, rtol=1e-7)
    assert streams.names == ("a", "b", "c")
    assert streams.columns == ("constant", "value 1 before", "value 3 before", "hour")
    assert streams.problem.affine


def test_scaling_changes_coefficients_but_not_predictions():
    df = table()
    plain, scaled = make(df, standardise=False), make(df)
    np.testing.assert_allclose(scaled.train.target.mean(), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.train.target.std(), 1)
    assert abs(plain.problem.theta_star - scaled.problem.theta_star).max() > 0.1
    both = (streams.predict(streams.problem.theta_star) for streams in (plain, scaled))
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    np.testing.assert_allclose(plain.test_error(plain.alone), scaled.test_error(scaled.alone), rtol=1e-8)


def test_the_test_error_is_that_of_the_last_rows_in_the_unit_of_the_table():
    df = table()
    streams = make(df, standardise=False)
    theta = np.array([3.0, 0.5, 0.4, 1.0])
    expected = []
    for site in "abc":
        x, y = naive_pairs(df, site, (1, 3))
        expected.append(np.sqrt(np.mean((y[-12:] - x[-12:] @ theta) ** 2)))
    np.testing.assert_allclose(streams.test_error(theta), expected, rtol=1e-12)
    np.testing.assert_allclose(streams.test_error(np.tile(theta, (3, 1))), expected, rtol=1e-12)
    when = df["when"].to_numpy()
    for train, test in zip(streams.train.rows, streams.test, strict=True):
        assert when[train].max() < when[test.rows].min()


def test_pandas_and_polars_and_rows_in_any_order_give_the_same():
    df = table()
    first = make(df)
    mixed = df.sample(frac=1, random_state=1).sort_values("site", kind="stable")
    others = [pl.DataFrame(df.to_dict("list")), mixed, df.assign(when=df["when"].dt.strftime("%Y-%m-%dT%H:%MZ"))]
    others.append(df.assign(when=df["when"].dt.tz_localize("Australia/Melbourne")))
    others.append(df.assign(when=(df["when"] - df["when"].min()).dt.total_seconds()))
    others.append(df.assign(value=df["value"].astype("Float64")))
    for other in others:
        found = make(other)
        np.testing.assert_array_equal(found.problem.theta_star, first.problem.theta_star)
        np.testing.assert_array_equal(found.train.inputs, first.train.inputs)
        assert found.names == first.names


def test_neither_library_of_tables_is_imported_by_ours():
    code = "import sys, fedhsa.problems.streams; sys.exit(bool({'pandas', 'polars'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("batch", [1, 5])
def test_observations_are_replayed_in_order_and_again_from_the_start(batch):
    df = table()
    streams = make(df, standardise=False, batch=batch)
    T = 45 // batch * batch
    with precision("float64"):
        for number, site in enumerate("abc"):
            source = jax.tree.map(lambda leaf: leaf[number], streams.problem.agents).source  # noqa: B023
            keys = jax.random.split(jax.random.key(0), T // batch + 2)
            inputs, target = source.draw(keys, source.init(keys[0]))[1]
            x, y = (part[:45][45 - T :] for part in naive_pairs(df, site, (1, 3)))
            seen = np.concatenate([y, y[: 2 * batch]])
            np.testing.assert_array_equal(np.ravel(target), seen)
            np.testing.assert_array_equal(np.reshape(inputs, (-1, 4)), np.concatenate([x, x[: 2 * batch]]))


@pytest.mark.parametrize("kind", ["linear", "logistic"])
def test_operators_equal_naive_loops(kind):
    df = table()
    df["busy"] = df["value"] > df["value"].median()
    target = {"linear": "value", "logistic": "busy"}[kind]
    streams = make(df, target=target, lags={"value": (1, 3)}, kind=kind, regularisation=0.3, batch=4)
    theta = np.random.default_rng(3).normal(size=4)
    inputs, targets = streams.train.inputs[1, :4], streams.train.target[1, :4]
    expected = -0.3 * theta
    for x, y in zip(inputs, targets, strict=True):
        if kind == "linear":
            expected = expected + x * (y - sum(x * theta)) / 4
        else:
            assert y in (-1, 1)
            expected = expected + x * y / (1 + np.exp(y * sum(x * theta))) / 4
    agent = jax.tree.map(lambda leaf: leaf[1], streams.problem.agents)
    with precision("float64"):
        np.testing.assert_allclose(agent.operator(theta, (inputs, targets)), expected, rtol=1e-12)
    slopes = inputs.T @ inputs / 4 / (1 if kind == "linear" else 4)
    with precision("float64"):
        bound = agent.lipschitz((jax.numpy.asarray(inputs), targets))
    np.testing.assert_allclose(bound, np.linalg.eigvalsh(slopes)[-1] + 0.3, rtol=1e-9)


def test_the_root_of_classes_is_the_minimum_that_scipy_finds_and_their_lags_are_signs():
    df = table(hours=80)
    df["busy"] = df["value"] > df["value"].median()
    streams = make(df, target="busy", lags={"value": 1, "busy": (1, 3)}, kind="logistic", regularisation=0.05)
    assert streams.columns == ("constant", "value 1 before", "busy 1 before", "busy 3 before", "hour")
    assert set(np.unique(streams.train.inputs[..., 2:4])) == {-1, 1}
    x, y = streams.train.inputs.reshape(-1, 5), streams.train.target.ravel()

    def loss(theta):
        return np.logaddexp(0, -y * (x @ theta)).mean() + 0.025 * theta @ theta

    root = streams.problem.theta_star
    np.testing.assert_allclose(root, minimize(loss, np.zeros(5), options={"gtol": 1e-8}).x, atol=1e-6)
    assert abs(streams.problem.mean_operator(root)).max() < 1e-10
    chance = streams.predict(root)[0]
    truth = df["busy"].to_numpy()[streams.test[0].rows]
    expected = -np.mean(np.log(np.where(truth, chance, 1 - chance)))
    np.testing.assert_allclose(streams.test_error(root)[0], expected, rtol=1e-10)


@pytest.mark.parametrize("classes", [(False, True), (0, 1), (-1, 1)])
def test_classes_of_any_kind_become_signs(classes):
    values = np.array([classes[0], classes[1], classes[1]], dtype=np.float64)
    np.testing.assert_array_equal(_signs("busy", values), [-1, 1, 1])


@pytest.mark.slow
def test_fed_hsa_comes_near_the_root_and_theory_reads_the_record():
    streams = make(table(hours=5000), inputs=())
    algorithm = fh.FedHSA(0.01, local_steps=5)
    assert fh.simulate(streams.problem, algorithm, rounds=600).error[0, -1] < 0.02
    with pytest.warns(fh.theory.PredictionWarning, match=r"may be off by \d+%, which its interval includes"):
        prediction = fh.theory.predict(streams.problem, algorithm)
    assert (prediction.basis, prediction.stable) == ("samples", True)
    assert fh.theory.constants(streams.problem).sampling == "recorded"


def test_pairs_that_need_what_is_missing_are_skipped_and_no_others():
    df = table(sites="a")
    gone = 20
    streams = make(df.drop(index=gone), missing="skip", standardise=False, test_share=0)
    complete = make(df, standardise=False, test_share=0)
    used = [t for t in range(3, HOURS) if gone not in (t, t - 1, t - 3)]
    rows = np.array([t - (t > gone) for t in used])  # a row after the missing one has moved up in the table
    by_label = df.drop(index=gone).index.to_numpy()
    np.testing.assert_array_equal(by_label[streams.train.rows[0]], used)
    np.testing.assert_array_equal(streams.train.rows[0], rows)
    np.testing.assert_array_equal(streams.train.inputs[0], complete.train.inputs[0][np.array(used) - 3])
    empty = df.astype({"value": float})
    empty.loc[gone, "value"] = np.nan
    np.testing.assert_array_equal(
        make(empty, missing="skip", standardise=False, test_share=0).train.inputs, streams.train.inputs
    )


def test_long_gaps_cost_no_memory_and_months_are_regular():
    df = table(hours=48, sites="a")
    df.loc[24:, "when"] += pd.Timedelta(days=365_000)
    streams = make(df, missing="skip", test_share=0)
    assert streams.train.inputs.shape == (1, 48 - 2 * 3, 4)
    months = table(hours=48, sites="a").assign(when=pd.date_range("2000-01-31", periods=48, freq="ME"))
    assert make(months, test_share=0).train.inputs.shape == (1, 45, 4)
    years = table(hours=72, sites="a").assign(when=pd.date_range("2000-01-31", periods=72, freq="ME"))
    plain = {"test_share": 0, "standardise": False, "regularisation": 1.0, "missing": "skip"}
    gone = make(years.drop(index=range(20, 56)), lags=(37,), **plain)  # of those left, only 56 has one 37 months before
    np.testing.assert_array_equal(gone.train.inputs[0, :, 1], years["value"][[19]])


def test_records_are_cut_at_their_beginning_to_the_shortest():
    df = table()
    streams = make(df[~((df["site"] == "b") & (df["when"] < "2015-01-01T20:00"))], standardise=False)
    kept = 40 - 3 - 8
    x, y = naive_pairs(df, "a", (1, 3))
    np.testing.assert_array_equal(streams.train.inputs[0], x[45 - kept : 45])
    np.testing.assert_array_equal(streams.train.target[0], y[45 - kept : 45])
    assert [len(pairs.target) for pairs in streams.test] == [12, 8, 12]


def test_a_very_short_record_that_cuts_the_others_is_warned_of():
    df = table()
    with pytest.warns(UserWarning, match="cut to 5 pairs, what the shortest has, that of agent 'b'"):
        make(df[~((df["site"] == "b") & (df["when"] > "2015-01-01T09:00"))])


def test_one_site_with_agreed_scales_is_the_agent_that_it_is_among_all():
    df = table()
    together = make(df)
    for number, site in enumerate("abc"):
        own = df[df["site"] == site].drop(columns="site").reset_index(drop=True)
        alone = make(own, agent=None, standardise=together.scales)
        assert alone.names == ("all",)
        np.testing.assert_array_equal(alone.train.inputs[0], together.train.inputs[number])
        np.testing.assert_allclose(alone.problem.theta_star, together.alone[number], rtol=1e-9)
        for mine, theirs in zip(*map(jax.tree.leaves, (alone.agent(), together.agent(number))), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def with_value(value, row=7):
    df = table()
    df["value"] = df["value"].astype(object)
    df.loc[row, "value"] = value
    return df


@pytest.mark.parametrize(
    ("df", "changes", "says"),
    [
        ([1, 2], {}, "`df` must be a table of pandas or polars, got list"),
        (pl.LazyFrame({"value": [1]}), {}, "call its `collect\\(\\)` first"),
        (table()[:0], {}, "has no rows"),
        (None, {"target": "valeu"}, "`target` names a column 'valeu'.* Did you mean 'value'"),
        (None, {"agent": "sites"}, "`agent` names a column 'sites'.* Did you mean 'site'"),
        (None, {"inputs": ["value"]}, "`inputs` must not name the target, got 'value'"),
        (None, {"inputs": "hour"}, "write \\['hour'\\]"),
        (None, {"inputs": ["when"]}, "`inputs`: column 'when' must hold numbers, got .*Timestamp|datetime"),
        (None, {"target": "site"}, "column 'site' must hold numbers, got 'a' in row 0"),
        (with_value("many"), {}, "column 'value' must hold numbers, got 'many' in row 7"),
        (with_value(np.inf), {}, "column 'value' is infinite in row 7"),
        (with_value(None), {}, "Agent 'a' has no value of 'value' in row 7.*missing='skip'"),
        (with_value(pd.NA), {}, "Agent 'a' has no value of 'value' in row 7"),
        (table().assign(site=None), {}, "`agent`: column 'site' is missing in row 0"),
        (table().assign(when="1939 Jan"), {}, "`time`: column 'when' must hold .* got '1939 Jan' in row 0"),
        (table().assign(when=pd.NaT), {}, "`time`: column 'when' is missing in row 0"),
        (pd.concat([table(), table()[3:4]], ignore_index=True), {}, "same time twice, in rows 3 and 180"),
        (table().drop(index=[7, 8]), {}, "agent 'a' has 1 gaps, the first after row 6, where 2 rows are missing"),
        (
            table().assign(when=np.arange(3.0 * HOURS) % HOURS + 0.5 * (np.arange(3 * HOURS) % 7 == 3)),
            {},
            "are not regular: after row 2 1.5 usual steps pass",
        ),
        (table(hours=4), {}, "Agent 'a' has 4 rows.* give 1 pairs, 1 of them for the test: too few"),
        (table(hours=2), {}, "Agent 'a' has 2 rows.* give 0 pairs"),
        (None, {"batch": 46}, "too few for one observation, `batch` is 46"),
        (None, {"lags": -1}, "`lags` must be at least 0, got -1"),
        (None, {"lags": (0, 1)}, "`lags` must be at least 1, got 0. A lag of 0 is the value to predict"),
        (None, {"lags": (1, 1)}, "must not name a lag twice"),
        (None, {"lags": "3"}, "`lags` must be a whole number, got '3'"),
        (None, {"kind": "quadratic"}, "`kind` must be one of 'linear', 'logistic', got 'quadratic'"),
        (None, {"missing": "drop"}, "`missing` must be one of"),
        (None, {"kind": "logistic"}, "column 'value' must contain 0 and 1, -1 and 1, or booleans, got .* and others"),
        (None, {"test_share": 1.0}, "`test_share` must be below 1"),
        (None, {"standardise": "own"}, "`standardise` must be True, False or a mapping"),
        (None, {"standardise": {"Value": (0, 1)}}, "a centre and a scale for column 'value'. Did you mean 'Value'"),
        (None, {"standardise": {"value": (0, 0), "hour": (0, 1)}}, "must be greater than 0.0, got 0. It is the scale"),
        (table().assign(hour=1.0), {}, "Column 'hour' is constant, 1, over all training rows"),
        (table().assign(hour=1.0), {"standardise": False}, "no unique fit: .* A positive `regularisation`"),
    ],
)
def test_bad_tables_and_settings_are_refused_in_words(df, changes, says):
    with pytest.raises(ValueError, match=says):
        make(table() if df is None else df, **changes)


def test_coefficients_of_another_shape_and_missing_tests_are_refused():
    with pytest.raises(ValueError, match="`theta` must have shape"):
        make(table()).test_error(np.zeros(3))
    with pytest.raises(ValueError, match="test_share=0"):
        make(table(), test_share=0).test_error(np.zeros(4))


def test_what_a_site_holds_out_is_compared_with_the_best_simple_forecast_and_the_sites_own_fit():
    rng = np.random.default_rng(3)
    week = np.tile([5.0, 9.0, 20.0], 40) + rng.normal(size=120)  # a season of three: repeating it beats the last value
    made = from_dataframe(pd.DataFrame({"y": week}), agent=None, target="y", lags=(1, 3))
    measure = made.held_out()
    pairs = np.array([[1.0, week[t - 1], week[t - 3], week[t]] for t in range(3, 120)])
    train, test = pairs[:93], pairs[93:]  # 117 pairs, a fifth of which is 24
    assert measure.weight == len(test) == 24
    own = np.linalg.lstsq(train[:, :3], train[:, 3], rcond=None)[0]
    found = measure(made.problem.theta_star)
    assert found["rmse_naive"] == pytest.approx(np.sqrt(np.mean((test[:, 3] - test[:, 2]) ** 2)))
    assert found["rmse_alone"] == pytest.approx(np.sqrt(np.mean((test[:, 3] - test[:, :3] @ own) ** 2)))
    assert found["rmse"] == pytest.approx(found["rmse_alone"])
    assert measure(np.zeros(3))["rmse"] > 3 * found["rmse"]
    table = pd.DataFrame({"y": np.tile([1, 0, 0, 1, 0], 20), "x": rng.normal(size=100)})
    # Seven of 25 pairs, although 0.28 * 25 is a little more than 7 in floating point.
    few = from_dataframe(table[:25], agent=None, target="x", lags=0, inputs=["y"], test_share=0.28)
    assert len(few.test[0].target) == 7
    two = from_dataframe(table, agent=None, target="y", lags=0, inputs=["x"], kind="logistic").held_out()
    chance = (1 + 32) / (2 + 80)
    assert two(np.zeros(2))["log_loss"] == pytest.approx(np.log(2))
    assert two(np.zeros(2))["log_loss_naive"] == pytest.approx(-(0.4 * np.log(chance) + 0.6 * np.log(1 - chance)))
    with pytest.raises(ValueError, match="no test pairs"):
        from_dataframe(table, agent=None, target="x", lags=1, test_share=0).held_out()
