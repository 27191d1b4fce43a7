"""Compiled functions with arguments that never change, which are flattened once instead of in every call."""

import contextlib
import ctypes
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np


def keep(folder: pathlib.Path) -> Callable[[], None]:
    """Saves compiled programs on disk, so that the next process does not compile them again.

    Other users must not read the folder: values that an agent's code closes over, including data, are part of its
    program. Returns a function that ends this.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    new = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    old = {name: getattr(jax.config, name) for name in new}

    def apply(settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            jax.config.update(name, value)

    apply(new)
    return lambda: apply(old)


def trim() -> None:
    """Returns memory that compiling used to the system; the C library would keep it for this process."""
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


class Compiled:
    """A function with its first arguments fixed, compiled when it is called.

    Values other than arrays among the fixed arguments become part of the program; the remaining arguments must be
    pytrees of arrays. Functions with the same settings and shapes share their programs.

    !!! example
        >>> half = Compiled(lambda settings, x: settings["scale"] * x, {"scale": 0.5, "unused": np.zeros(2)})
        >>> float(half(np.array(3.0)))
        1.5
    """

    def __init__(self, function: Callable, *fixed: Any):
        arrays, rest = eqx.partition(fixed, lambda x: isinstance(x, jax.Array | np.ndarray))
        self._arrays, structure = jax.tree.flatten(arrays)
        leaves, form = jax.tree.flatten(rest)
        # All on which a program depends besides shapes, without arrays, which programs must not keep alive.
        self._program = function, structure, form, tuple(leaves)

    def __call__(self, *changing: Any) -> Any:
        return _run(self._program, self._arrays, changing)


@functools.partial(jax.jit, static_argnums=0)
def _run(program: tuple[Callable, Any, Any, tuple], arrays: list[Any], changing: tuple) -> Any:
    function, structure, form, leaves = program
    fixed = eqx.combine(structure.unflatten(arrays), form.unflatten(leaves))
    return function(*fixed, *changing)
