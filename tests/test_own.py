"""What users bring themselves: algorithms and problems from files, modules and entry points."""

import contextlib
import json
import pathlib
import sys
import textwrap
import tomllib
from importlib import metadata

import numpy as np
import pytest

import fedhsa as fh
from fedhsa import _own
from fedhsa.algorithms import adapt, parse
from fedhsa.cli import main
from fedhsa.deploy import Plan
from fedhsa.deploy.parcels import pack, unpack
from fedhsa.engine import run as engine_run
from fedhsa.problems import make

MINE = """\
import equinox as eqx
import jax
import jax.numpy as jnp

import fedhsa as fh
from fedhsa.algorithms import AbstractAlgorithm, Demand, Exchange
from fedhsa.algorithms.base import check_step_size
from fedhsa.algorithms.local_sa import Server


class Half(AbstractAlgorithm):
    step_size: float
    local_steps: int = eqx.field(static=True)

    demands = Demand.NOTHING

    def __check_init__(self):
        check_step_size("step_size", self.step_size)

    @property
    def block_length(self):
        return self.local_steps

    def init(self, theta):
        return Server(theta), ()

    @property
    def exchanges(self):
        return (Exchange("operator", self.send, self.local, self.move),)

    def send(self, server, round):
        return server.theta

    def local(self, theta, memory, agent, block, round):
        def add(total, o):
            return total + agent.operator(theta, o), None

        total, _ = jax.lax.scan(add, jnp.zeros_like(theta), block, length=self.local_steps)
        return total / self.local_steps, memory

    def move(self, server, replies, round):
        return Server(server.theta + 0.5 * self.step_size * replies.mean())


class Unfinished(AbstractAlgorithm):
    def init(self, theta):
        return Server(theta), ()


ready = Half(0.1, 3)
number = 3


def made(local_steps):
    return Half(0.2, local_steps)


def fails(local_steps):
    return [][local_steps]


def build(num_agents=2, noise_std=0.1):
    return fh.problems.quadratic.random(num_agents=num_agents, dim=2, noise_std=noise_std)


def needs(data):
    return build()


def divides():
    return 1 / 0


def nothing():
    build()


problem = build()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_an_algorithm_from_a_file_reads_like_one_of_the_library(mine):
    half = parse("mine.py:Half(local_steps=5)", step_size=0.1, local_steps=9)
    assert (type(half).__name__, half.step_size, half.local_steps) == ("Half", 0.1, 5)
    nested = parse(f"Averaged({mine}:Half, burn_in=3)", step_size=0.1, local_steps=9)
    assert (nested.algorithm.local_steps, nested.burn_in) == (9, 3)
    assert type(nested.algorithm) is type(half)  # loaded once
    assert parse("mine.py:ready").local_steps == 3
    assert parse("mine.py:made", step_size=0.1, local_steps=7).local_steps == 7


def test_a_module_that_can_be_imported_is_a_place_too():
    assert parse("fedhsa.algorithms:FedHSA(0.1, 3)") == fh.FedHSA(0.1, 3)
    assert make("fedhsa.problems.td:random", {"num_agents": 3}).num_agents == 3


def test_a_problem_from_a_file_takes_options_like_one_of_the_library(mine):
    found = make("mine.py:build", {"num_agents": 3, "noise_std": 0.0})
    assert found.num_agents == 3
    np.testing.assert_array_equal(make("mine.py:problem", {}).theta_star, make("mine.py:build", {}).theta_star)


def test_a_file_that_has_changed_is_loaded_again(mine):
    assert make("mine.py:build", {}).num_agents == 2
    mine.write_text(MINE.replace("num_agents=2", "num_agents=4"))
    assert make("mine.py:build", {}).num_agents == 4


def test_files_of_the_same_name_are_kept_apart_and_may_import_their_neighbours(tmp_path):
    for name, agents in (("one", 2), ("two", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"import {name}_sizes\ndef f():\n    return {name}_sizes.M")
        (tmp_path / name / f"{name}_sizes.py").write_text(f"M = {agents}")
    functions = [_own.load("problem", _own.Reference(f"{tmp_path}/{name}/mine.py", "f")) for name in ("one", "two")]
    assert [f() for f in functions] == [2, 3]
    assert _own.neighbours(tmp_path / "one" / "mine.py") == ["one_sizes"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min.py:Half", "there is no file 'min.py'"),
        ("mine.py:Hlaf", "mine.py has no 'Hlaf'. Did you mean 'Half'?"),
        ("mine:Half", "For the file, write `mine.py:Half`"),
        ("no-module:Half", "must be FILE.py:NAME or PACKAGE.MODULE:NAME"),
        ("mine.py:number", "must be an algorithm, its class, or a function that returns one, got 3"),
        ("mine.py:build", "must name an algorithm, but mine.py:build makes Problem, which is not one"),
        ("mine.py:ready(0.1)", "mine.py:ready is complete and takes no arguments"),
        (
            "mine.py:Half(steps=3)",
            "mine.py:Half got an unexpected keyword argument 'steps'. Its arguments",
        ),
        ("mine.py:Half(1, 2, 3)", "mine.py:Half got too many positional arguments. Its arguments are step_size, local"),
        ("mine.py:Half(-1.0, 3)", "`step_size` must be greater than 0"),
        ("mine.py:Unfinished", "is not complete: the class must define `block_length`, `exchanges`"),
        ("mine.py:fails(local_steps=3)", "mine.py, line 59, in `fails`: IndexError: list index out of range."),
        ("mine.py:Half + 1", "'mine.py:Half + 1' in 'mine.py:Half + 1' is neither a name nor a value"),
    ],
)
def test_what_is_wrong_with_an_own_algorithm_is_told_in_a_sentence(mine, text, words):
    with pytest.raises(ValueError, match=r"algorithm|step_size") as refusal:
        parse(text, step_size=0.1)
    assert words in str(refusal.value)


VIOLATIONS = {
    "def init(self, theta): return (theta,), ()": "`init` of Bad (bad.py) must return a server state with the param",
    "def init(self, theta): return Server(theta)": "`Bad.init` (bad.py, line 4) must return two values, the server's",
    "def init(self, theta): return Server(theta), 0": "`Bad.init` (bad.py, line 4) must return arrays, got 0 at `[1]`",
    "block_length = 0": "`block_length` of Bad (bad.py) must be a whole number of at least 1",
    "exchanges = Exchange('x', 1, 2, 3)": "must be a tuple with at least one `Exchange`, got Exchange",
    "name: str = 'fast'": "`name` of Bad (bad.py) is 'fast', which is not a number",
    "def send(self, server, round): return server.thta": "`Bad.send` (bad.py, line 4) raised an error: bad.py, line 4",
    "def local(self, theta, memory, agent, block, round): return theta": "a reply and the agent's memory, got an",
    "def local(self, theta, memory, agent, block, round): return theta[theta > 0], ()": "`Bad.local` (bad.py, line 4) "
    "raised an error: bad.py, line 4, in `local`: NonConcreteBooleanIndexError",
    "def local(self, theta, memory, agent, block, round): return theta, theta": "`Bad.local` (bad.py, line 4) must "
    "return the agent's memory with the structure that `Bad.init` gives it",
    "def move(self, server, replies, round): return Server(replies.values)": "`Bad.move` (bad.py, line 4) must return "
    "the server's state with the structure that `Bad.init` gives it, because the next round begins with it: `theta` "
    "has shape (2, 2) instead",
    "def move(self, server, replies, round): return Server(server.theta > 0)": "has dtype bool instead of",
}


@pytest.mark.parametrize(("line", "words"), VIOLATIONS.items())
def test_a_method_that_breaks_the_contract_is_told_so_before_anything_is_compiled(mine, monkeypatch, line, words):
    mine.with_name("bad.py").write_text(f"from mine import *\n\nclass Bad(Half):\n    {line}\n")
    problem = make("mine.py:build", {})
    monkeypatch.setattr(engine_run.Run, "compile", lambda self: pytest.fail("compiled"))
    for text in ("bad.py:Bad", "Averaged(bad.py:Bad)"):
        with pytest.raises((TypeError, ValueError)) as refusal:
            fh.simulate(problem, parse(text, problem, step_size=0.1, local_steps=3), rounds=1)
        assert words in str(refusal.value)


def test_an_own_method_keeps_its_contract_wrapped_and_on_chains_that_depend_on_the_parameter(mine):
    problem = make("mine.py:build", {})
    adapt(parse("Compressed(mine.py:Half, TopK(0.5))", problem, step_size=0.1, local_steps=3), problem)
    controlled = fh.problems.policy_gradient.random(num_agents=2)
    with pytest.raises(ValueError, match=r"`o = agent.observe\(theta, o\)` comes before"):
        adapt(parse("mine.py:Half(0.1, 3)"), controlled)
    mine.write_text(MINE.replace("agent.operator(theta, o)", "agent.operator(theta, agent.observe(theta, o))"))
    adapt(parse("mine.py:Half(0.1, 3)"), controlled)


@pytest.mark.parametrize("step", ["0.1", True, None, [0.1]])
def test_a_step_that_only_looks_like_a_number_is_refused(step):
    with pytest.raises(ValueError, match=r"`step_size` must be (a|one) number, got"):
        fh.FedHSA(step, 5)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("mine.py:divides", {}, "mine.py:divides raised an error: mine.py, line 71, in `divides`: ZeroDivisionError"),
        ("mine.py:nothing", {}, "mine.py:nothing must return a `Problem`, got None"),
        ("mine.py:Half", {}, "must be a function that returns a `Problem`, or a `Problem`, got the class Half"),
        ("mine.py:needs", {}, "needs a value for its argument `data`"),
        ("mine.py:build", {"noise": 1.0}, "has no argument `noise`. Did you mean 'noise_std'?"),
        ("mine.py:build", {"noise_std": "much"}, "`noise_std` must be a number, got 'much'. The default is 0.1."),
        ("mine.py:problem", {"num_agents": 3}, "has no argument `num_agents`"),
    ],
)
def test_what_is_wrong_with_an_own_problem_is_told_in_a_sentence(mine, name, arguments, words):
    with pytest.raises((TypeError, ValueError)) as refusal:
        make(name, arguments)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def build(:", "mine.py, line 1: SyntaxError: invalid syntax"),
        ("import nowhere_to_be_found", "mine.py, line 1: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("\nx = y", "mine.py, line 2: NameError: name 'y' is not defined"),
        ("import sys\nsys.exit()", "mine.py, line 2: SystemExit: without a message."),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told_with_the_line(mine, content, words):
    mine.write_text(content)
    with pytest.raises(ValueError, match=r"mine.py cannot be loaded") as refusal:
        make("mine.py:build", {})
    assert words in str(refusal.value)


def test_packages_offer_algorithms_and_problems_by_entry_points(mine, monkeypatch, capsys):
    monkeypatch.syspath_prepend(mine.parent)
    mine.rename(mine.parent / "own_package.py")
    info = mine.parent / "own_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        textwrap.dedent("""\
            [fedhsa.algorithms]
            Half = own_package:Half
            [fedhsa.problems]
            mine = own_package:build
            broken = own_package:gone
        """)
    )
    assert metadata.distribution("own-package").version == "1.0"
    _own.entry_points.cache_clear()
    try:
        assert parse("Averaged(Half)", step_size=0.1, local_steps=4).algorithm.local_steps == 4
        assert make("mine", {"num_agents": 3}).num_agents == 3
        with pytest.raises(ValueError, match=r"broken of own-package .own_package:gone. cannot be loaded"):
            make("broken", {})
        assert main(["list", "problems"]) == 0
        shown = capsys.readouterr().out
        assert "num_agents=2, noise_std=0.1" in shown
        assert "Not usable (from own-package)." in shown
        with pytest.raises(ValueError, match="Did you mean 'mine'"):
            make("mines", {})
    finally:
        _own.entry_points.cache_clear()


def test_a_plan_takes_own_algorithms_and_problems_and_knows_their_number_of_agents(mine):
    plan = Plan(problem="mine.py:build", num_agents=2, algorithm="mine.py:Half", step_size=0.1, local_steps=3)
    assert Plan.from_json(plan.to_json()).task.digest == plan.task.digest
    assert plan.title.startswith("mine-build: $M = 2$")
    whole = plan.with_whole_paths()
    assert (whole.problem, whole.task.digest) == (f"{mine}:build", plan.task.digest)
    with pytest.raises(ValueError, match=r"`num_agents` must be 2, as many as mine.py:problem makes, got 5"):
        _ = Plan(problem="mine.py:problem", num_agents=5).built_problem


def test_methods_and_problems_from_files_travel_to_other_processes_by_their_files(mine):
    problem = make("mine.py:build", {})
    method = parse("Averaged(mine.py:Half)", problem, step_size=0.1, local_steps=3)
    parcel = pack([problem, method])
    found = unpack(parcel)[1]
    assert type(found.algorithm) is type(method.algorithm)
    assert str(mine) in parcel.text
    assert "step_size * replies" not in parcel.text  # the code stays here
    mine.write_text(MINE + "# changed")
    with pytest.raises(ValueError, match=r"There is another file than the program's .*mine.py"):
        unpack(parcel)
    mine.unlink()
    with pytest.raises(ValueError, match=r"There is no file .*mine.py' on a machine of the cluster"):
        unpack(parcel)


@contextlib.contextmanager
def imported_afresh(package):
    """Imports a package afresh and forgets it again: the tests have a module of the same name."""
    known = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}
    for name in known:
        del sys.modules[name]
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.modules.update(known)


def test_a_flower_app_carries_the_files_of_a_plan(mine, monkeypatch):
    pytest.importorskip("flwr")
    from fedhsa.deploy.flower.write import write_app

    plan = Plan(problem="mine.py:build", num_agents=2, algorithm="Averaged(mine.py:Half)", step_size=0.1, local_steps=3)
    app = write_app(mine.parent / "app", plan, rounds=3)
    assert (app / "federation" / "own" / "mine.py").read_text() == MINE
    sent = json.loads(tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["plan"])
    assert sent["problem"] == "federation.own.mine:build"
    assert sent["algorithm"] == "Averaged(federation.own.mine:Half)"
    monkeypatch.syspath_prepend(app)
    with imported_afresh("federation"):
        assert Plan(**sent).task.digest == plan.task.digest
    mine.with_name("helper.py").write_text("")
    mine.write_text("import helper\n" + MINE)
    with pytest.raises(ValueError, match=r"mine.py imports helper from its folder, which a Flower app does not carry"):
        write_app(mine.parent / "app", plan, rounds=3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine.py:nothing"], "mine.py:nothing must return a `Problem`, got None"),
        (["mine.py:divides"], "mine.py, line 71, in `divides`: ZeroDivisionError"),
        (
            ["mine.py:build", "--problem-key", "3"],
            "`--problem-key` cannot be used with mine.py:build, which",
        ),
        (["mine.py:build", "--algorithm", "bad.py:Bad"], "`Bad.move` (bad.py, line 4) must return the server's state"),
        (["mine.py:build", "--algorithm", "mine.py"], "must say what to take from the file, like `mine.py:NAME`"),
        (["elsewhere.py:build"], "there is no file 'elsewhere.py'"),
        (["--algorithm", "FedHSA('0.1', 5)"], "`step_size` must be a number, got '0.1'"),
    ],
)
def test_the_command_line_ends_with_one_sentence_and_code_two(mine, capsys, arguments, words):
    line = "def move(self, server, replies, round): return Server(replies.values)"
    mine.with_name("bad.py").write_text(f"from mine import *\n\nclass Bad(Half):\n    {line}\n")
    assert main(["run", *arguments, "--rounds", "2", "--no-cache"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (mine.parent / "runs").exists()
