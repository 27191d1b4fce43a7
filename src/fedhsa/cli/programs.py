"""Keeps compiled programs on disk, so that a repeated command compiles nothing."""

import contextlib
import os
import pathlib
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

SIZE = 2**27
"""The number of bytes that are kept; the programs of a command with two algorithms have about a hundred thousand."""
PATIENCE = 10.0
"""Seconds to wait for another process that is reading or writing, as JAX does."""


@contextlib.contextmanager
def kept(wanted: bool = True) -> Iterator[None]:
    """Lets JAX read and write its compiled programs in the user's cache folder inside the block.

    Processes that are started in the block do the same. Nothing changes if the user has set
    `JAX_COMPILATION_CACHE_DIR` or `JAX_ENABLE_COMPILATION_CACHE`. A folder that cannot be used causes a warning, not
    an error.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    enabled, own = (
        getattr(jax.config, f"jax_{name}") for name in ("enable_compilation_cache", "compilation_cache_dir")
    )
    path = _usable_folder() if wanted and enabled and own is None else None
    if path is None:
        yield
        return
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(path),
        "jax_compilation_cache_max_size": SIZE,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    environment = {name: os.environ.get(name.upper()) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
            os.environ[name.upper()] = str(value)
        compilation_cache.reset_cache()
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
            os.environ.pop(name.upper())
        os.environ.update({name.upper(): value for name, value in environment.items() if value is not None})
        compilation_cache.reset_cache()


def folder() -> pathlib.Path:
    """Returns the folder of the programs. JAX distinguishes programs for different processors by their names."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "fedhsa", "programs")


def _usable_folder() -> pathlib.Path | None:
    try:
        return _prepared(folder())
    except (OSError, RuntimeError) as error:  # no permission to write, a lock that is not released, or no home folder
        warnings.warn(
            f"Compiled programs are not kept for the next run: {error}. `XDG_CACHE_HOME` names another place for the "
            "folder; `--no-cache` does without.",
            stacklevel=5,
        )
        return None


def _prepared(path: pathlib.Path) -> pathlib.Path:
    """Creates and returns the folder, checks that it is writable, and removes the files of interrupted writes.

    A program is complete once the file with the time of its last use exists. JAX would fail on an incomplete program
    each time it deletes old programs.
    """
    import filelock

    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid") and path.stat().st_uid != os.getuid():  # who can write programs can run code
        raise PermissionError(f"{str(path)!r} belongs to another user")
    try:
        path.owner()
    except KeyError:  # as in a container; JAX would fail with every program
        raise PermissionError(f"user {os.getuid()} has no name on this machine") from None
    except NotImplementedError:  # on Windows
        pass
    with tempfile.TemporaryFile(dir=path), filelock.FileLock(path / ".lockfile", timeout=PATIENCE):
        for program in path.glob("*-cache"):
            if not program.with_name(program.name.removesuffix("-cache") + "-atime").exists():
                program.unlink()
    return path
