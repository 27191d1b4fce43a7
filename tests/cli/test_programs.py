"""Programs that are kept on the disk: found again, complete, bounded, and never in the way."""

import os
import pathlib
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhsa.cli import main, programs

HITS, MISSES = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of this test alone, and JAX as it is without settings of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def events():
    seen: list[str] = []

    def listen(event, **_):
        seen.append(event)

    jax.monitoring.register_event_listener(listen)
    yield seen
    jax.monitoring.unregister_event_listener(listen)


def compile_and_run() -> float:
    """A program that this process has never seen, and the folder perhaps has: a new function, the same code."""

    def program(x):
        return jnp.sin(x).sum()

    return float(jax.jit(program)(np.arange(7.0)))


def names(path: pathlib.Path) -> set[str]:
    return {file.name for file in path.glob("*-cache")}


def test_a_program_is_compiled_once_and_found_again_with_the_same_numbers(cache, events):
    with programs.kept():
        first = compile_and_run()
    assert HITS not in events
    events.clear()
    with programs.kept():
        second = compile_and_run()
    assert MISSES not in events
    assert HITS in events
    assert first == second
    assert programs.folder().is_relative_to(cache)
    assert programs.folder().stat().st_mode & 0o077 == 0  # who can write programs can have them run


def test_processes_inherit_the_folder_and_afterwards_all_is_as_it_was(cache):
    before, environment = jax.config.values.copy(), dict(os.environ)
    with programs.kept():
        assert jax.config.jax_compilation_cache_dir == str(programs.folder())
        assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(programs.folder())
    assert jax.config.values == before
    assert dict(os.environ) == environment


def test_nothing_is_kept_where_it_is_not_wanted_or_the_user_has_a_cache_of_their_own(cache):
    with programs.kept(False):
        assert jax.config.jax_compilation_cache_dir is None
    jax.config.update("jax_compilation_cache_dir", str(cache / "own"))
    with programs.kept():
        assert jax.config.jax_compilation_cache_dir == str(cache / "own")
    assert not programs.folder().exists()


def test_what_an_interrupted_write_left_is_removed_and_does_not_keep_others_from_being_written(cache):
    with programs.kept():
        compile_and_run()
    (whole,) = names(programs.folder())
    torn = programs.folder() / "jit_program-0123-cache"
    torn.write_bytes((programs.folder() / whole).read_bytes()[:100])
    with warnings.catch_warnings(), programs.kept():
        warnings.simplefilter("error")
        jax.jit(lambda x: x * 3)(np.arange(7.0))
    assert not torn.exists()
    assert len(names(programs.folder())) == 2


def test_the_folder_does_not_outgrow_its_bound(cache, monkeypatch):
    with programs.kept():
        compile_and_run()
    (first,) = names(programs.folder())
    monkeypatch.setattr(programs, "SIZE", (programs.folder() / first).stat().st_size * 3 // 2)
    with programs.kept():
        jax.jit(lambda x: jnp.cos(x).sum())(np.arange(7.0))
    assert len(names(programs.folder())) == 1
    assert first not in names(programs.folder())


@pytest.mark.parametrize("obstacle", ["a file", "another user's", "a user without a name"])
def test_a_folder_that_cannot_be_used_is_a_warning_and_not_an_error(cache, monkeypatch, obstacle):
    if obstacle == "a file":
        (cache / "fedhsa").write_text("in the way")
    elif obstacle == "a user without a name":
        monkeypatch.setattr(pathlib.Path, "owner", lambda path: {}[path])
    else:
        monkeypatch.setattr(os, "getuid", lambda: -1)
    with pytest.warns(UserWarning, match="not kept for the next run.*--no-cache"), programs.kept():
        assert np.isfinite(compile_and_run())
    assert jax.config.jax_compilation_cache_dir is None


def test_every_command_that_computes_can_do_without(capsys):
    for command in (["run"], ["compare"], ["sweep"], ["analyze"], ["reproduce"], ["deploy", "memory"]):
        assert main([*command, "--help"]) == 0
        assert "--no-cache" in capsys.readouterr().out


@pytest.mark.slow
def test_of_a_run_like_one_before_nothing_is_compiled_though_two_were_made_at_once(tmp_path):
    code = """
import sys, jax
from fedhsa.cli import main
misses = []
jax.monitoring.register_event_listener(lambda event, **_: misses.append(event) if event.endswith("misses") else None)
code = main(sys.argv[1:])
print(f"compiled: {len(misses)}.")
sys.exit(code)
"""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "JAX_ENABLE_COMPILATION_CACHE": "1"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)

    def start(out: str) -> subprocess.Popen[str]:
        words = ["run", "--num-agents", "3", "--dim", "2", "--rounds", "20", "--out", str(tmp_path / out)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", code, *words], env=environment, **pipes)

    def end(process: subprocess.Popen[str]) -> str:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert not err
        return out

    both = [start("first"), start("second")]
    for process in both:
        assert "compiled: 0." not in end(process)
    assert "compiled: 0." in end(start("third"))
    arrays = [np.load(tmp_path / out / "curves.npz") for out in ("first", "second", "third")]
    for name in arrays[0].files:
        for other in arrays[1:]:
            np.testing.assert_array_equal(arrays[0][name], other[name])
