"""Compiled functions most of whose arguments never change: these are flattened once, not in every call."""

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
    """Keeps compiled programs on disk for the next process, which would compile the same again.

    Others must not look into the folder: what an agent's code closed over is part of its program, data among it.
    Gives a function that ends it.
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
    """Gives memory that compiling took back to the system; the C library would keep it for this process."""
    with contextlib.suppress(OSError, AttributeError):  # where there is another library, it does as it likes
        ctypes.CDLL(None).malloc_trim(0)


class Compiled:
    """A function with its first arguments fixed, compiled when it is called.

    What is not an array among the fixed arguments becomes part of the program; the others must be pytrees of arrays.
    Functions with the same settings and shapes share their programs.

    !!! example
        >>> half = Compiled(lambda settings, x: settings["scale"] * x, {"scale": 0.5, "unused": np.zeros(2)})
        >>> float(half(np.array(3.0)))
        1.5
    """

    def __init__(self, function: Callable, *fixed: Any):
        arrays, rest = eqx.partition(fixed, lambda x: isinstance(x, jax.Array | np.ndarray))
        self._arrays, structure = jax.tree.flatten(arrays)
        self._program = _Program(function, structure, rest)

    def __call__(self, *changing: Any) -> Any:
        return _run(self._program, self._arrays, changing)


class _Program:
    """What a program depends on besides shapes; without the arrays, which programs must not keep alive."""

    def __init__(self, function: Callable, structure: Any, rest: Any):
        self.function, self.structure, self.rest = function, structure, rest
        leaves, form = jax.tree.flatten(rest)
        self._facts = (function, structure, form, tuple(leaves))
        self._hash = hash(self._facts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Program) and self._facts == other._facts)


@functools.partial(jax.jit, static_argnums=0)
def _run(program: _Program, arrays: list[Any], changing: tuple) -> Any:
    fixed = eqx.combine(program.structure.unflatten(arrays), program.rest)
    return program.function(*fixed, *changing)
