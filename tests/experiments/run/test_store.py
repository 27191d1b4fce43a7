"""The store of outcomes: fresh as long as nothing that the numbers depend on has changed."""

import ast
import os
import pathlib
import shutil
import signal
import threading

import jax
import numpy as np
import pytest
import scipy

from fedhsa.experiments.run import code, lanes, presets, reproduce, store
from fedhsa.experiments.study.base import Outcome


@pytest.fixture
def edited(tmp_path):
    """A copy of the package in which one file is different."""

    def edit(name: str) -> pathlib.Path:
        package = tmp_path / name.replace("/", "-") / "fedhsa"
        shutil.copytree(code.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / name).write_text((package / name).read_text() + "\nCHANGED = True\n")
        return package

    return edit


@pytest.mark.parametrize(
    ("file", "stale"),
    [
        ("experiments/study/sampled.py", {"field/participation", "field/compressed"}),
        ("experiments/variants/contraction.py", {"field/boundary", "field/one-exchange"}),
        ("experiments/field/garnet.py", {"field/garnet"}),
        ("engine/batch.py", set(presets.studies())),
        ("plots/_style.py", set()),
        ("deploy/wire.py", set()),
    ],
)
def test_outcomes_are_stale_exactly_where_the_edited_module_is_imported_directly_or_indirectly(edited, file, stale):
    package = edited(file)
    found = set()
    for name, study in presets.studies().items():
        module = type(study).__module__
        if code.digest(module, store.DRAWING, package) != code.digest(module, store.DRAWING):
            found.add(name)
    assert found == stale


def test_a_figure_is_drawn_again_when_the_plots_change(edited):
    package = edited("plots/_style.py")
    module = type(presets.studies()["quadratic/markov"]).__module__
    assert code.digest(module, (), package) != code.digest(module)


def test_outcomes_of_other_settings_or_libraries_are_not_taken_for_these(monkeypatch):
    study = presets.studies()["quadratic/markov"]
    monkeypatch.setattr(code, "digest", lambda *_: "the same code")
    found = [store.fingerprint(study)]
    for name, value in (("seeds", 7), ("step_size", 0.011), ("heterogeneity", 0.35)):
        found.append(store.fingerprint(presets.change(study, name, value)))
    for library in (jax, np, scipy):
        with monkeypatch.context() as patch:
            patch.setattr(library, "__version__", "0")
            found.append(store.fingerprint(study))
    assert len(set(found)) == len(found)
    assert store.fingerprint(study) == found[0]


@pytest.mark.parametrize("again", [False, True])
def test_a_study_continues_what_it_had_begun_unless_it_is_to_begin_again(again, tmp_path, monkeypatch):
    study, found = presets.studies()["quadratic/markov"], []
    monkeypatch.setattr(code, "digest", lambda *_: "the same code")
    begun = store.unfinished(study, tmp_path)
    begun.mkdir(parents=True)
    monkeypatch.setattr(type(study), "run", lambda self, runner: found.append(begun.exists()) or Outcome({}, {}))
    monkeypatch.setattr(store, "present", lambda *_: None)
    assert all(finished.error is None for finished in reproduce.run([study], tmp_path, again=again))
    assert found == [not again]


def test_no_study_imports_another():
    modules = {type(study).__module__ for study in presets.studies().values()}
    for module in modules:
        assert code.closure(module) & modules == {module}


def test_code_is_parsed_by_one_thread_alone_when_several_studies_run_at_once(tmp_path, monkeypatch):
    """In Python 3.11 two threads that parse at the same time raise a SystemError now and then."""
    threads, parse = set(), ast.parse
    for cached in (code.digest, code._needed, code._named):
        cached.cache_clear()
    monkeypatch.setattr(ast, "parse", lambda text: threads.add(threading.current_thread()) or parse(text))
    studies = [presets.studies()[name] for name in ("proposition", "drift")]
    for study in studies:
        monkeypatch.setattr(type(study), "run", lambda self, runner: Outcome({}, {}))
    monkeypatch.setattr(store, "present", lambda *_: code.digest(type(studies[0]).__module__))  # as drawing does
    assert all(finished.error is None for finished in reproduce.run(studies, tmp_path, lanes=lanes.threads))
    assert threads == {threading.main_thread()}


def test_studies_that_share_programs_run_one_after_the_other_in_one_lane():
    names = ("quadratic/markov", "nonconvex/markov", "td/markov", "td/slow", "quadratic/noiseless")
    queue = reproduce._Queue([presets.studies()[name] for name in names])
    here, there = lanes.ThreadLane(), lanes.ThreadLane()
    taken = [queue.take(lane).name for lane in (here, there, here, there, there)]
    assert taken == ["td/slow", "nonconvex/markov", "td/markov", "quadratic/markov", "quadratic/noiseless"]


def test_a_process_that_dies_is_an_error_with_a_reason_and_ctrl_c_is_left_to_its_parent():
    """One process does all of it: starting one takes long."""
    (lane,) = lanes.processes(1)
    assert lane.submit(answer, 3).result() == 6
    with pytest.raises(ValueError, match="seven") as failure:
        lane.submit(answer, 7).result()
    assert "in answer" in failure.value.__notes__[0]
    with pytest.raises(MemoryError, match="exit code -9"):
        lane.submit(answer, -9).result()
    lane.stop()


def answer(value):
    os.kill(os.getpid(), signal.SIGINT)
    if value < 0:
        os.kill(os.getpid(), -value)
    if value == 7:
        raise ValueError("seven")
    return 2 * value
