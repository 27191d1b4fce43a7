"""Descriptions of values, from their numbers to the code of their functions, for manifests and to distinguish runs."""

import dataclasses
import enum
import functools
import hashlib
import inspect
import io
import re
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._arrays import is_shared

OURS = ("fedhsa", "equinox", "jax", "jaxlib", "jaxtyping", "lineax", "numpy", "optimistix", "scipy")
"""This package and the packages it computes with, which count as libraries wherever they are installed."""
DATA = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, np.ndarray, jax.Array, eqx.Module)
"""The types of class attributes that are part of a description, in addition to functions."""


class IndescribableError(TypeError):
    """Raised for a value that cannot be compared with another by its description."""


def plain_settings(setting: Any) -> Any:
    """A setting in JSON's types: numbers, modules with their name and fields, functions by their name."""
    if isinstance(setting, eqx.Module):
        fields = {f.name: plain_settings(getattr(setting, f.name)) for f in dataclasses.fields(setting)}
        return {"name": type(setting).__name__, **fields}
    if isinstance(setting, jax.Array) and jnp.issubdtype(setting.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(setting)).tolist()
    if isinstance(setting, np.ndarray | np.generic | jax.Array):
        return np.asarray(setting).tolist()
    if isinstance(setting, Mapping):
        return {str(name): plain_settings(value) for name, value in setting.items()}
    if isinstance(setting, tuple | list | set | frozenset):
        return [plain_settings(value) for value in setting]
    if setting is None or isinstance(setting, bool | int | float | str):
        return setting
    return getattr(setting, "__qualname__", None) or type(setting).__qualname__


def digest(value: Any, name: str) -> str:
    """A fingerprint of everything in a value: numbers, settings, the code of functions and the values they refer to.

    Raises `IndescribableError` if part of it cannot be described, such as an open file; the error names it by `name`.
    """
    text = hashlib.sha256()
    for word in _words(value, name, {}):
        text.update(len(word).to_bytes(8, "big"))
        text.update(word)
    return text.hexdigest()


def _words(value: Any, path: str, seen: dict[int, Any]) -> Iterator[bytes | memoryview]:
    """The value as a sequence of words, from the outside in; a repeated object yields only its number."""
    if value is None or value is Ellipsis or isinstance(value, bool | int | float | complex | str | bytes | slice):
        yield f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        yield from _array_words(value, path, seen)
    elif id(value) in seen:
        yield f"again {list(seen).index(id(value))}".encode()
    else:
        seen[id(value)] = value  # kept alive: an id may be reused
        yield from _compound_words(value, path, seen)


def _array_words(value: Any, path: str, seen: dict[int, Any]) -> Iterator[bytes | memoryview]:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype == object:
        yield b"objects"
        yield from _words(array.tolist(), path, seen)
    else:
        shared = is_shared(array)
        yield f"{array.dtype} {array.shape}{' shared' if shared else ''}".encode()
        yield np.ascontiguousarray(array[:1] if shared else array).reshape(-1).view(np.uint8).data  # without a copy


def _compound_words(value: Any, path: str, seen: dict[int, Any]) -> Iterator[bytes | memoryview]:
    kind = type(value)
    if isinstance(value, enum.Enum):
        yield f"{_full_name(kind)} {value.name}".encode()
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key in value:
            yield from _words(key, path, seen)
            yield from _words(value[key], f"{path}[{key!r}]", seen)
    elif isinstance(value, set | frozenset):
        yield from _words(sorted(value, key=repr), path, seen)
    elif isinstance(value, tuple | list):
        yield f"{_full_name(kind)} {len(value)}".encode()
        for i, entry in enumerate(value):
            yield from _words(entry, f"{path}[{i}]", seen)
    elif isinstance(value, types.ModuleType):
        yield f"module {value.__name__}".encode()
    elif isinstance(value, type):
        yield from _class_words(value, path, seen)
    elif isinstance(value, types.MethodType):
        yield from _words((value.__self__, value.__func__), path, seen)
    elif isinstance(value, functools.partial):
        yield from _words((value.func, value.args, value.keywords), path, seen)
    elif isinstance(value, types.FunctionType):
        yield from _function_words(value, path, seen)
    elif isinstance(value, types.CodeType):
        yield from _words((value.co_code, value.co_consts, value.co_names, value.co_varnames), path, seen)
    elif type(value) is object:  # a sentinel
        yield b"object"
    elif dataclasses.is_dataclass(value):
        yield from _object_words(value, path, seen)
    elif callable(getattr(value, "__wrapped__", None)):  # by `jax.jit`, for instance
        yield f"wrapped by {_full_name(kind)}".encode()
        others = {name: entry for name, entry in getattr(value, "__dict__", {}).items() if not name.startswith("__")}
        if not _of_a_library(value):
            yield from _words((value.__wrapped__, others), path, seen)
        else:
            yield _full_name(value).encode()
    elif inspect.isroutine(value) or isinstance(value, np.ufunc):  # written in C
        yield f"routine {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}".encode()
    elif kind is type(jax.tree.structure(0)):
        yield f"tree {value}".encode()
    elif isinstance(value, re.Pattern):
        yield f"pattern {value.pattern!r} {value.flags}".encode()
    else:
        yield from _object_words(value, path, seen)


def _object_words(value: Any, path: str, seen: dict[int, Any]) -> Iterator[bytes | memoryview]:
    names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else None
    if names is None:
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
        names = [*getattr(value, "__dict__", {}), *(name for name in slots if hasattr(value, name))]
        if isinstance(value, io.IOBase) or not (names or hasattr(value, "__dict__")):
            raise IndescribableError(
                f"`{path}` is a {_full_name(type(value))}, which cannot be described, so a checkpoint could not "
                "distinguish this run from another. Replace it by numbers, arrays, functions or Equinox modules."
            )
    yield from _words(type(value), path, seen)
    for name in names:
        yield name.encode()
        yield from _words(getattr(value, name, None), f"{path}.{name}", seen)


def _class_words(value: type, path: str, seen: dict[int, Any]) -> Iterator[bytes | memoryview]:
    yield f"class {_full_name(value)}".encode()
    if _of_a_library(value):
        return
    for base in value.__bases__:
        yield from _words(base, path, seen)
    for name, member in vars(value).items():
        member = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        member = member.fget if isinstance(member, property) else member
        member = member.func if isinstance(member, functools.cached_property) else member
        function = getattr(member, "__wrapped__", member)
        if isinstance(function, types.FunctionType) and not _of_a_library(function):
            yield name.encode()
            yield from _words(function, f"{path}.{name}", seen)
        elif not name.startswith(("__", "_abc_")) and isinstance(member, DATA):
            yield name.encode()
            yield from _words(member, f"{path}.{name}", seen)


def _function_words(function: types.FunctionType, path: str, seen: dict[int, Any]) -> Iterator[bytes | memoryview]:
    """The function's code, its defaults, and the outer variables it uses."""
    code, home = function.__code__, function.__globals__.get("__name__", "")
    library = _is_library(home.partition(".")[0])
    if library and "<" not in code.co_qualname:
        yield f"function {home}.{code.co_qualname}".encode()
        return
    # A function created by a library, such as that of `jax.vmap`, differs from others by the values in its closure.
    made = f"{home}.{code.co_qualname}" if library else code
    yield from _words(("function", made, code.co_code, function.__defaults__, function.__kwdefaults__), path, seen)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield from _words(cell.cell_contents, f"{path}: {name}", seen)
    if not library:
        yield from _named_words(function.__globals__, _global_names(code), path, seen)


def _named_words(
    values: Mapping[str, Any], names: set[str], path: str, seen: dict[int, Any]
) -> Iterator[bytes | memoryview]:
    """The values that code refers to by these names, also through the user's modules, such as `settings.SCALE`."""
    for name in sorted(names.intersection(values)):
        value = values[name]
        yield name.encode()
        yield from _words(value, f"{path}: {name}", seen)
        if isinstance(value, types.ModuleType) and not _is_library(value.__name__.partition(".")[0]):
            yield from _named_words(vars(value), names, f"{path}: {name}", seen)


def _global_names(code: types.CodeType) -> set[str]:
    inner = (_global_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*inner)


def _full_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _of_a_library(value: Any) -> bool:
    """Whether its name identifies it, because it belongs to an installed package."""
    return _is_library((getattr(value, "__module__", None) or "").partition(".")[0])


@functools.cache
def _is_library(package: str) -> bool:
    if package in sys.stdlib_module_names or package in OURS:
        return True
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return any(file.startswith(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))
