"""What is published: the wheel alone runs what the README says, and the source archive has what the tests need."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest

from fedhsa import __version__
from fedhsa.cli import completion, examples, main

ROOT = pathlib.Path(__file__).parents[1]
JUNK = (
    "examples/__pycache__/x.cpython-311.pyc",
    "runs/quadratic/curves.csv",
    ".venv/x.py",
    "native/x.so",
    "build/x.html",
)


def tracked() -> list[str]:
    """The files of the repository, without those that git ignores."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("this is no git repository")
    return [name for name in found.stdout.splitlines() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> pathlib.Path:
    """A source archive of the repository with junk in it, and the wheel that is built from the archive."""
    folder = tmp_path_factory.mktemp("built")
    for name in tracked():
        (folder / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "repository" / name)
    for name in JUNK:
        (folder / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "repository" / name).write_text("junk")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist")]
    subprocess.run([*build, "-t", "sdist"], cwd=folder / "repository", check=True, capture_output=True)
    (archive,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    subprocess.run([*build, "-t", "wheel"], cwd=source, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(built) -> pathlib.Path:
    """An environment with the wheel, which finds the dependencies of this one, but not the repository."""
    home = built / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    (wheel,) = (built / "dist").glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", str(wheel)], check=True)
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    # A line in a .pth file adds the folder only: the link to the repository in it is not followed.
    pathlib.Path(site, "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home / "bin"


def run(installed: pathlib.Path, folder: pathlib.Path, *command: str) -> str:
    """The output of a command in an empty folder, without what tests set up."""
    dropped = ("PYTHONPATH", "XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "FEDHSA_KERNELS")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    environment = kept | {"MPLBACKEND": "agg", "COLUMNS": "100"}
    done = subprocess.run(
        [installed / command[0], *command[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_archive_has_the_files_of_the_repository_and_nothing_else(built):
    with tarfile.open(next((built / "dist").glob("*.tar.gz"))) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names - {*tracked()} == {"PKG-INFO"}
    assert {*tracked()} - names == set()


@pytest.mark.slow
def test_the_wheel_has_the_package_and_the_examples_and_no_junk(built):
    with zipfile.ZipFile(next((built / "dist").glob("*.whl"))) as opened:
        names = {*opened.namelist()}
        metadata = opened.read(f"fedhsa-{__version__}.dist-info/METADATA").decode()
    package = {name.removeprefix("src/") for name in tracked() if name.startswith("src/")}
    inside = {f"fedhsa/{name}" for name in tracked() if name.startswith("examples/")}
    assert {name for name in names if ".dist-info/" not in name} == package | inside
    assert "Project-URL: Changelog" in metadata
    assert "Programming Language :: Python :: 3.13" in metadata


@pytest.mark.slow
def test_the_wheel_alone_runs_what_the_readme_says(installed, tmp_path):
    assert run(installed, tmp_path, "fedhsa", "--version") == f"fedhsa {__version__}\n"
    where = run(installed, tmp_path, "python", "-c", "import fedhsa; print(fedhsa.__file__)")
    assert str(installed.parent) in where
    assert "quadratic" in run(installed, tmp_path, "fedhsa", "examples", "list")
    run(installed, tmp_path, "fedhsa", "examples", "copy")
    assert {p.name for p in (tmp_path / "examples").iterdir()} == {p.name for p in (ROOT / "examples").iterdir()} - {
        "__pycache__",
        "runs",
    }
    small = ["--rounds", "20", "--seeds", "2", "--out", "here", "--no-progress"]
    assert "FedHSA" in run(installed, tmp_path, "fedhsa", "run", "--config", "examples/quadratic.toml", *small)
    assert (tmp_path / "here" / "curves.png").exists()
    own = ["quadratic", "--algorithm", "examples/own_algorithm/damped.py:DampedHSA"]
    run(installed, tmp_path, "fedhsa", "run", *own, "--rounds", "20", "--seeds", "2", "--out", "there", "--no-progress")
    block = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    run(installed, tmp_path, "python", "-c", block[1])


def test_examples_are_copied_where_pages_expect_them_and_changes_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["examples", "copy", "quadratic", "pedestrians.py"]) == 0
    assert capsys.readouterr().out.split() == [
        f"examples{os.sep}{n}" for n in ("pedestrians", "pedestrians.py", "quadratic.toml")
    ]
    copy = tmp_path / "examples/quadratic.toml"
    assert copy.read_bytes() == (ROOT / "examples/quadratic.toml").read_bytes()
    assert main(["examples", "copy", "quadratic"]) == 0, "what is the same may be copied again"
    copy.write_text("rounds = 3\n")
    assert main(["examples", "copy", "quadratic"]) == 1
    assert "Use `--force`" in capsys.readouterr().err
    assert copy.read_text() == "rounds = 3\n"
    assert main(["examples", "copy", "quadratic", "--to", "other"]) == 0
    assert main(["examples", "copy", "quadratic", "--force"]) == 0
    assert copy.read_bytes() == (tmp_path / "other/quadratic.toml").read_bytes()
    assert main(["examples", "copy", "quadratik"]) == 2
    assert "quadratic" in capsys.readouterr().err
    assert all(examples.names().values())


def test_bash_completes_commands_flags_and_names(tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    (tmp_path / "complete").write_text(completion.script("bash"))
    asked = """
source ./complete
t() { COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _fedhsa; echo "${COMPREPLY[*]}"; }
t fedhsa r; t fedhsa run q; t fedhsa run td --num; t fedhsa run td --algorithm FedHSA Loc; t fedhsa run --track ""
t fedhsa deploy memory --missing ""; t fedhsa deploy keys r; t fedhsa examples copy quad; t fedhsa reproduce ""
"""
    done = subprocess.run([bash, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "run reproduce",
        "quadratic q-learning",
        "--num-agents",
        "LocalSA LocalSVRG",
        "jsonl tensorboard mlflow wandb",
        "wait skip fail",
        "request renew",
        "quadratic",
        "",
    ]
    assert "bashcompinit" in completion.script("zsh")
    assert main(["completion", "fishy"]) == 2


def test_versions_changelog_and_citation_agree():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = re.search(rf"^## \[{re.escape(__version__)}\] - (\S+)$", changelog, re.MULTILINE)
    assert released is not None
    assert f"date-released: {released[1]}\n" in citation


def test_workflows_are_valid_and_run_targets_that_exist():
    yaml = pytest.importorskip("yaml")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands, pythons = [], set()
    for path in sorted((ROOT / ".github").rglob("*.yml")):
        content = yaml.safe_load(path.read_text())
        if path.parent.name != "workflows":
            assert content, path
            continue
        assert content["permissions"] == {"contents": "read"}
        assert "secrets." not in path.read_text()
        for job in content["jobs"].values():
            pythons |= {*job.get("strategy", {}).get("matrix", {}).get("python", [])}
            for step in job["steps"]:
                assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v1"))
                commands += step.get("run", "").splitlines()
    made = [command.split()[1:] for command in commands if command.startswith("make ")]
    assert {target for words in made for target in words} <= {*targets}
    assert {"lint", "test", "docs", "wheel"} <= {target for words in made for target in words}
    assert pythons == {"3.11", "3.12", "3.13"}
