import csv
import datetime as dt
import json
import math
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import values
from fedhsa._types import precision
from fedhsa.deploy import AgentContext, Plan, in_memory
from fedhsa.deploy.plan import load_agent

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def on_page(page: str, printed: str) -> None:
    """Every interval in the tables of a page is one that the script has printed, to a tenth of its width: versions of
    JAX round differently, and where the best of two actions is taken, this changes a run."""
    found = r"(-?[\d.]+) (?:±|\+-) +([\d.]+)"
    shown, said = (
        np.array(re.findall(found, text), float) for text in ((EXAMPLES.parent / "docs" / page).read_text(), printed)
    )
    assert len(shown)
    near = abs(shown[:, None] - said).max(-1) <= 0.1 * shown[:, None, 1] + 0.0011
    assert shown[~near.any(1)].tolist() == []


def as_stored(name: str, printed: str) -> None:
    """The example prints what pages quote from its file, to a tenth of an interval or, without one, to 5 %.

    With another version of JAX, which rounds differently, only intervals are compared: single runs may take other ways.
    """
    if name in values.files():
        stored = json.loads(values.files()[name].read_text())["versions"]["jax"]
        same = stored == jax.__version__
        said, kept = values.lines(printed), values.study(name).printed.text.splitlines()
        assert [values.PRINTED.sub("", line) for line in said] == [values.PRINTED.sub("", line) for line in kept]
        for line, before in zip(said, kept, strict=True):
            for now, then in zip(values.numbers(line), values.numbers(before), strict=True):
                if then.half or same:
                    most = 0.1 * then.half + 0.0011 if then.half else 0.05 * abs(then) + 1e-12
                    assert abs(now - then) <= most, line


def own_problem(printed: str, folder: pathlib.Path) -> None:
    """Local SA drifts, FedHSA does not: it ends several times nearer to the root; and there is a figure of it."""
    lines = [line.split() for line in printed.splitlines() if " error " in line]
    errors = {name: float(value) for name, _, value, *_ in lines}
    assert errors["FedHSA"] < errors["LocalSA"] / 3
    assert {path.name for path in folder.iterdir()} == {"own_problem.png", "own_problem.pdf"}


def one_slow_agent(printed: str, folder: pathlib.Path) -> None:
    """The floor grows with the average agent, the bound with the slowest; and there is a figure of it."""
    *floors, last = printed.splitlines()
    predicted, simulated = (np.array([float(line.split()[-i].strip(",")) for line in floors]) for i in (3, 1))
    np.testing.assert_allclose(simulated, predicted, rtol=0.15)
    assert float(last.split()[6].strip(",")) < 10 < 1000 < float(last.split()[-1])
    assert {path.name for path in folder.iterdir()} == {"one_slow_agent.png", "one_slow_agent.pdf"}


def pedestrians(printed: str, folder: pathlib.Path) -> None:
    """FedHSA finds the common fit, Local SA does not; the common fit is not what each counter would choose."""
    away = [float(line.split()[1]) for line in printed.splitlines() if "from the common fit" in line]
    assert away[0] < away[1] / 5
    station = next(line for line in printed.splitlines() if line.startswith("Southern Cross"))
    fed_hsa, _, in_one_place, alone, _ = (float(value) for value in station[30:].replace("±", " ").split()[::2])
    assert abs(fed_hsa - in_one_place) < 5 < 50 < fed_hsa - alone
    assert {path.name for path in folder.iterdir()} == {"pedestrians.png", "pedestrians.pdf"}


def employment(printed: str, folder: pathlib.Path) -> None:
    """Eighty branches are worth fewer than eight agents as they are, and many more once they are independent."""
    words = printed.splitlines()[-1].replace(",", "").split()
    together, apart = (float(words[i + 1]) for i, word in enumerate(words) if word == "speed-up")
    assert together < 8 < 25 < apart < 80
    assert {path.name for path in folder.iterdir()} == {"employment.png", "employment.pdf"}


def numbers(printed: str, pattern: str) -> list[list[float]]:
    """The numbers that the groups of a pattern find in a text, one list for each match."""
    return [[float(value) for value in found.groups()] for found in re.finditer(pattern, printed)]


def fading_channel(printed: str, folder: pathlib.Path) -> None:
    """The mean of FedHSA's rounds is several times nearer than Local SA's, and slow fading is harder than fast."""
    last, mean = np.array(numbers(printed, r"last (\S+), mean (\S+),")).T
    slow_corrected, slow_local, corrected, local = mean
    assert corrected < local / 3
    assert slow_corrected < slow_local / 3
    assert (last[:2] > last[2:]).all()
    assert {path.name for path in folder.iterdir()} == {"fading_channel.png", "fading_channel.pdf"}


def inverse_problem(printed: str, folder: pathlib.Path) -> None:
    """The map contracts, its fixed point is like the object, and FedHSA ends several times nearer to it."""
    [[contraction]], [[likeness]] = (numbers(printed, rf"{word} (\d\.\d+)") for word in ("contracts by", "object:"))
    assert contraction < 1
    assert likeness > 0.95
    (corrected,), (local,) = numbers(printed, r"error (\S+)")
    assert corrected < local / 10
    assert {path.name for path in folder.iterdir()} == {"inverse_problem.png", "inverse_problem.pdf"}


def value_network(printed: str, folder: pathlib.Path) -> None:
    """FedHSA stays near the values without local steps, Local SA does not; but those are not the mean of the values."""
    found = np.array(numbers(printed, r": (\S+) \+- (\S+), without noise (\S+)"))
    (near, _, quiet), (_, _, corrected), (far, off, drifted), (_, _, local) = found
    assert quiet < 0.1 < 0.5 < drifted
    assert near < far - off
    assert local < corrected
    assert {path.name for path in folder.iterdir()} == {"value_network.png", "value_network.pdf"}


def cart_poles(printed: str, folder: pathlib.Path) -> None:
    """A pole that stands upright is worth nearly as much as can be."""
    values = numbers(printed, r"upright pole (\S+) of at most 10")
    assert len(values) == 2
    assert all(8 < value < 10 for (value,) in values)


def grid_worlds(printed: str, folder: pathlib.Path) -> None:
    """Local SA is off by its predicted bias and FedHSA is not; its average is nearer, its single rounds are not."""
    on_page("tutorials/grid-worlds.md", printed)
    page = (EXAMPLES.parent / "docs/tutorials/grid-worlds.md").read_text()
    assert all(found in page for found in re.findall(r"predicted [\d.]+\d", printed))
    lines = [line.replace(",", "").split() for line in printed.splitlines()]
    biases = {words[0]: (float(words[7]), float(words[9]), float(words[11])) for words in lines if words[1] == "bias"}
    for predicted, measured, half in biases.values():
        assert abs(measured - predicted) < 2 * half
    assert biases["LocalSA"][1] > 0.04 > 0.02 > abs(biases["FedHSA"][1])
    single, averaged = ({w[0]: float(w[i]) for w in lines if w[1:3] == ["squared", "error:"]} for i in (5, 11))
    assert averaged["FedHSA"] < averaged["LocalSA"] / 2
    assert single["FedHSA"] > single["LocalSA"]
    names = ("grid_worlds", "grid_worlds_learned", "grid_worlds_errors", "grid_worlds_curves")
    assert {path.name for path in folder.iterdir()} == {f"{name}{end}" for name in names for end in (".png", ".pdf")}


def control(printed: str, folder: pathlib.Path) -> None:
    """Short rounds make no difference along cliffs, long ones harm FedHSA; without noise it alone has the root."""
    q_learning, _ = printed.split("SARSA")
    rows = re.findall(r"  (\w+), (\d+) local steps(?:, (exact|sampled)|) +(-?[\d.]+)", q_learning)
    found = {(name, int(steps), kind): float(value) for name, steps, kind, value in rows}
    short = found["FedHSA", 20, ""]
    assert abs(short - found["LocalSA", 20, ""]) < 1 < 20 < short - found["FedHSA", 100, ""]
    assert found["FedHSA", 20, "exact"] > 2 * found["LocalSA", 20, "exact"]
    assert found["FedHSA", 20, "sampled"] < found["FedHSA", 20, "exact"] / 2
    names = ("control_returns", "control_policies", "control_curves")
    assert {path.name for path in folder.iterdir()} == {f"{name}{end}" for name in names for end in (".png", ".pdf")}


def learn_cart_pole(printed: str, folder: pathlib.Path) -> None:
    """All together balance the poles of all planets, in the simulation and live, where one alone and chance do not."""
    (together,), (_,), (alone,) = numbers(printed, r"mean return (\d+) of 200")
    assert alone < together > 195
    [[live, start]] = numbers(printed, r"mean return (\d+) after 30 rounds, from (\d+)")
    assert live > 120 > 40 > start
    page = " ".join((EXAMPLES.parent / "docs/tutorials/policies.md").read_text().split())
    words = r"a return of (\d+) out of 200.* learns alone reaches (\d+),.* three agents reaches (\d+) after 30 rounds"
    # Rounding that depends on the compiler's options changes single episodes.
    np.testing.assert_allclose([together, alone, live], numbers(page, words)[0], atol=10)
    assert {path.name for path in folder.iterdir()} == {"learn_cart_pole.png", "learn_cart_pole.gif"}


def planets(printed: str, folder: pathlib.Path) -> None:
    """Averaging takes FedHSA's noise away and leaves Local SA's drift where it is."""
    _, averaged, local, drifted = (values for _, values in numbers(printed, r"distance (\S+), values (\S+)"))
    assert averaged < drifted / 20
    assert 0.8 < drifted / local < 1.25
    assert {path.name for path in folder.iterdir()} == {"planets.png", "planets.pdf"}


CHECKS = {
    "control.py": control,
    "grid_worlds.py": grid_worlds,
    "cart_poles.py": cart_poles,
    "employment.py": employment,
    "fading_channel.py": fading_channel,
    "inverse_problem.py": inverse_problem,
    "learn_cart_pole.py": learn_cart_pole,
    "one_slow_agent.py": one_slow_agent,
    "own_problem.py": own_problem,
    "pedestrians.py": pedestrians,
    "planets.py": planets,
    "value_network.py": value_network,
}
"""What a script must have done besides running, by its name."""
FEWER = {"learn_cart_pole.py": ("EVERY = 0.01, 5, 30, 4, 2", "EVERY = 0.01, 5, 30, 4, 30")}
"""Records of the last round alone: no number on a page depends on the others."""


@pytest.mark.slow
@pytest.mark.parametrize("script", [path.name for path in sorted(EXAMPLES.glob("*.py"))])
def test_every_example_runs_and_does_what_it_says(script, tmp_path):
    path = EXAMPLES / script
    if script in FEWER:
        before, after = FEWER[script]
        assert before in path.read_text()
        path = tmp_path.with_suffix(".py")
        path.write_text((EXAMPLES / script).read_text().replace(before, after))
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    as_stored(f"examples/{script.removesuffix('.py')}", done.stdout)
    CHECKS.get(script, lambda printed, folder: None)(done.stdout, tmp_path)


SERIES = EXAMPLES / "private_series"


@pytest.fixture
def series(monkeypatch):
    """The example's function, and its fit to all data in one place."""
    monkeypatch.setitem(sys.modules, "site", sys.modules["site"])  # Python's own has the name of the example's file
    build = load_agent(f"{SERIES / 'site.py'}:build")
    return build, runpy.run_path(str(SERIES / "pooled.py"))["fit"]()


def distance(algorithm: str, pooled: np.ndarray, folder: pathlib.Path) -> float:
    """How far the federation of the three files ends from the fit to all data, as the example's README runs it."""
    plan = Plan(agent=f"{SERIES / 'site.py'}:build", dim=4, algorithm=algorithm, step_size=0.1, local_steps=20)
    server = in_memory(plan, folder, config={"data": str(SERIES / "data" / "{number}.csv")})
    server.run(40)
    return float(np.linalg.norm(np.asarray(server.progress.server.theta)[0] - pooled))


@pytest.mark.slow
def test_private_series_end_at_the_fit_to_all_data_with_fed_hsa_and_elsewhere_with_local_sa(series, tmp_path):
    _, pooled = series
    ends = {name: distance(name, pooled, tmp_path / name) for name in ("FedHSA", "LocalSA")}
    ends |= {f"mean {name}": distance(f"Averaged({name}, burn_in=20)", pooled, tmp_path / f"m{name}") for name in ends}
    written = {"FedHSA": 0.017, "LocalSA": 0.079, "mean FedHSA": 0.007, "mean LocalSA": 0.066}
    assert ends == pytest.approx(written, abs=6e-4)  # what the README says


@pytest.mark.slow
def test_private_series_come_near_the_fit_to_all_data(series, tmp_path):
    _, pooled = series
    assert np.abs(pooled).max() > 0.5
    assert distance("Averaged(FedHSA, burn_in=20)", pooled, tmp_path) < 0.01


def test_a_private_series_has_as_its_root_what_numpy_fits_to_its_file(series):
    build, _ = series
    pairs = runpy.run_path(str(SERIES / "pooled.py"))["pairs"]
    for number in range(3):
        path = SERIES / "data" / f"{number}.csv"
        agent = build(AgentContext(number, 3, {"data": str(path)}))
        own = np.linalg.lstsq(*pairs(path), rcond=None)[0]
        with precision("float64"):
            assert np.abs(agent.mean_operator(own)).max() < 1e-12


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no file"),
        ("", "must begin with a line that names the columns"),
        ("time;value\n1;2\n", "must begin with a line that names the columns"),
        ("time,value\n0,1.5\n1,warm\n", "line 3 .* has 'warm' as its value"),
        ("time,value\n0,1.5\n1\n", "line 3 .* has None as its value"),
        ("time,value\n0,nan\n", "line 2 .* has 'nan' as its value"),
        ("time,value\n" + "".join(f"{t},20.5\n" for t in range(26)), "has 26 rows, a day of pairs needs 27"),
        (
            "time,value\n" + "".join(f"{t + (t > 9)},20.5\n" for t in range(30)),
            "time 9 is not followed by the next hour",
        ),
    ],
    ids=["missing", "empty", "other columns", "words", "cut off", "not finite", "short", "gap"],
)
def test_a_bad_file_of_a_private_series_is_refused_in_words(series, tmp_path, text, says):
    path = tmp_path / "my.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=says):
        series[0](AgentContext(0, 3, {"data": str(path)}))


def test_a_private_series_without_a_file_says_how_to_name_one(series):
    with pytest.raises(ValueError, match="--data PATH"):
        series[0](AgentContext(0, 3, {"data": ""}))


def test_the_files_of_the_private_series_are_those_that_the_script_writes(tmp_path):
    shutil.copy(SERIES / "make_data.py", tmp_path)
    runpy.run_path(str(tmp_path / "make_data.py"), run_name="__main__")
    for number in range(3):
        made, kept = (folder / "data" / f"{number}.csv" for folder in (tmp_path, SERIES))
        assert made.read_bytes() == kept.read_bytes()


COUNTERS = EXAMPLES / "pedestrians"


@pytest.fixture(scope="module")
def counters(tmp_path_factory):
    """The folder of the counters' files."""
    folder = tmp_path_factory.mktemp("counters")
    runpy.run_path(str(COUNTERS / "make_data.py"))["main"](str(folder))
    assert sorted(path.name for path in folder.iterdir()) == [f"{number}.csv" for number in range(4)]
    return folder


@pytest.mark.slow
def test_counters_of_pedestrians_come_near_their_common_fit_each_with_its_own_file(counters, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "site", sys.modules["site"])  # Python's own has the name of the example's file
    build = f"{COUNTERS / 'site.py'}:build"
    plan = Plan(agent=build, dim=5, num_agents=4, algorithm="FedHSA", step_size=0.1, local_steps=7)
    server = in_memory(plan, tmp_path, config={"data": str(counters / "{number}.csv")})
    server.run(30)
    read = runpy.run_path(str(COUNTERS / "site.py"))["read"]
    parts = [read(str(counters / f"{number}.csv")).problem.affine_parts() for number in range(4)]
    A, b = (np.concatenate(both).mean(0) for both in zip(*parts, strict=True))
    common, found = np.linalg.solve(A, b), np.asarray(server.progress.server.theta)[0]
    assert np.linalg.norm(found - common) < 0.1 < 0.7 < np.linalg.norm(common)


def test_a_counter_has_as_its_root_what_numpy_fits_to_its_file(counters, monkeypatch):
    monkeypatch.setitem(sys.modules, "site", sys.modules["site"])
    path = counters / "0.csv"
    with open(path, newline="") as file:
        rows = [(dt.datetime.fromisoformat(row["Date_Time"]), float(row["Count"])) for row in csv.DictReader(file)]
    at = {when: (count - 700) / 900 for when, count in rows}
    before = [dt.timedelta(hours=k) for k in (1, 2, 24, 168)]
    whole = [when for when in at if all(when - k in at for k in before)]
    whole = whole[: len(whole) - math.ceil(0.2 * len(whole) - 1e-9)]
    whole = whole[len(whole) % 168 :]  # whole weeks, the latest
    inputs = np.array([[1.0, *(at[when - k] for k in before)] for when in whole])
    own = np.linalg.lstsq(inputs, np.array([at[when] for when in whole]), rcond=None)[0]
    agent = load_agent(f"{COUNTERS / 'site.py'}:build")(AgentContext(0, 4, {"data": str(path)}))
    with precision("float64"):
        assert np.abs(agent.agent.mean_operator(own)).max() < 1e-12
    theta = np.array([0.1, 0.7, 0.0, 0.1, 0.2])
    held_out = [when for when in at if all(when - k in at for k in before)][-int(agent.counts) :]
    forecast = np.array([[1.0, *(at[when - k] for k in before)] for when in held_out]) @ theta
    miss = 900 * (forecast - np.array([at[when] for when in held_out]))
    assert agent.measure(theta)["rmse"] == pytest.approx(np.sqrt(np.mean(miss**2)))


def test_a_counter_without_a_file_says_so(counters):
    read = runpy.run_path(str(COUNTERS / "site.py"))["read"]
    with pytest.raises(ValueError, match="--data PATH"):
        read("")
    with pytest.raises(ValueError, match="there is no file"):
        read(str(counters / "4.csv"))
