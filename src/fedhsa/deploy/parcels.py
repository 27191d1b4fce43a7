"""Values for another process as JSON and plain arrays: classes and functions are sent by name, nothing is pickled.

The other side imports the named classes and functions and fills in the numbers; no code is sent. This requires the same
package on both sides, the same files if a user's classes are in files, and trust: this module is for your own cluster,
`wire` is for messages of strangers.
"""

import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import json
import pathlib
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _own


class Parcel(NamedTuple):
    """A value in its serialised form."""

    text: str
    """JSON with numbers, texts, names of classes and functions, and the positions of the arrays."""
    arrays: tuple[np.ndarray, ...]
    """The arrays, each of them once, however often it occurs."""


def pack(value: Any, name: str = "value") -> Parcel:
    """Serialises a value: numbers, texts, arrays, containers, dataclasses, modules, and functions by name.

    Raises `TypeError` for anything else, such as a lambda; the error gives its position, beginning with `name`.

    !!! example
        >>> parcel = pack({"algorithm": fedhsa.FedHSA(0.1, local_steps=5), "start": np.zeros(3)})
        >>> unpack(parcel)
        {'algorithm': FedHSA(step_size=0.1, local_steps=5, server_step=1.0), 'start': array([0., 0., 0.])}
        >>> pack([abs, lambda x: -x], "functions")
        Traceback (most recent call last):
        TypeError: `functions[1]` is <lambda>, which another process cannot import: ...
    """
    arrays: dict[int, np.ndarray] = {}
    text = json.dumps(_take_apart(value, name, arrays), separators=(",", ":"))
    return Parcel(text, tuple(arrays.values()))


def unpack(parcel: Parcel) -> Any:
    """Returns the value that `pack` serialised."""
    return _put_together(json.loads(parcel.text), parcel.arrays)


def _take_apart(value: Any, path: str, arrays: dict[int, np.ndarray]) -> Any:
    """The value in JSON types: JSON values are unchanged, all others become dictionaries from type to content."""

    def each(values: Any) -> list[Any]:
        return [_take_apart(part, f"{path}[{i}]", arrays) for i, part in enumerate(values)]

    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return each(value)
    if kind is tuple:
        return {"tuple": each(value)}
    if kind is dict:
        named = [_take_apart(part, f"{path}[{name!r}]", arrays) for name, part in value.items()]
        return {"dict": [each(value), named]}
    if isinstance(value, np.ndarray | np.generic | jax.Array | bytes):
        return _take_array(value, path, arrays)
    if isinstance(value, enum.Enum):
        return {"enum": [_importable(kind, path), value.name]}
    if isinstance(value, pathlib.Path):
        return {"path": str(value)}
    if isinstance(value, functools.partial):
        names = _argument_names(value.func)
        given = [_take_apart(part, name, arrays) for name, part in zip(names, value.args, strict=False)]
        keywords = {name: _take_apart(part, name, arrays) for name, part in value.keywords.items()}
        return {"partial": [_importable(value.func, path), given, keywords]}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"named": [_importable(kind, path), *each(value)]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # includes Equinox modules
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        fields = {name: _take_apart(getattr(value, name), f"{path}.{name}", arrays) for name in names}
        return {"object": [_importable(kind, path), fields]}
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return {"name": _importable(value, path)}
    raise TypeError(
        f"`{path}` is a {kind.__module__}.{kind.__qualname__}, which is not sent to other processes. Use numbers, "
        "texts, arrays, dataclasses or Equinox modules."
    )


def _take_array(value: Any, path: str, arrays: dict[int, np.ndarray]) -> Any:
    form: Any = "array"
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        form, value = f"key {jax.random.key_impl(value)}", np.asarray(jax.random.key_data(value))
    elif isinstance(value, jax.Array):
        form, value = "jax", np.asarray(value)
    elif isinstance(value, bytes):
        form, value = "bytes", np.frombuffer(value, np.uint8)
    elif isinstance(value, np.generic):
        form, value = "number", np.asarray(value)
    if value.dtype.hasobject:
        raise TypeError(f"`{path}` is an array of Python objects, which is not sent to other processes.")
    arrays[id(value)] = value  # the reference keeps the array alive, so that its id stays unique
    return {form: list(arrays).index(id(value))}


def _argument_names(function: Any) -> Iterator[str]:
    """The names of its arguments, or their positions if they have no names."""
    with contextlib.suppress(ValueError):  # some functions in C have no signature
        parameters = inspect.signature(function).parameters.values()
        yield from (p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    yield from (f"argument {i}" for i in itertools.count())


def _importable(value: Any, path: str) -> str:
    """The name under which another process finds a class or a function."""
    file = _own.file_of(value.__module__)
    place = value.__module__ if file is None else "?".join(map(str, file))
    name = f"{place}:{value.__qualname__}"
    try:
        found = _import(name)
    except (ImportError, AttributeError, ValueError):
        if file is not None:
            raise
        found = None
    if found is not value or value.__module__ == "__main__":
        raise TypeError(
            f"`{path}` is {value.__qualname__}, which another process cannot import: define it at the top of a module "
            "and not in the program itself or within a function."
        )
    return name


def _import(name: str) -> Any:
    place, _, path = name.rpartition(":")
    file, _, digest = place.partition("?")
    module = _load_same_file(pathlib.Path(file), digest) if digest else importlib.import_module(place)
    return functools.reduce(getattr, path.split("."), module)


def _load_same_file(path: pathlib.Path, digest: str) -> types.ModuleType:
    """A user's file as a module; raises if this machine does not have an identical file at the same path."""
    if not path.is_file() or _own.digest(path) != digest:
        what = "another file than the program's" if path.is_file() else "no file"
        raise ValueError(
            f"There is {what} {str(path)!r} on a machine of the cluster. Code does not travel: run the command from a "
            "folder that all machines share, or install the code there as a package."
        )
    return _own.load_file(path)


def _put_together(part: Any, arrays: tuple[np.ndarray, ...]) -> Any:
    """The inverse of `_take_apart`."""
    if isinstance(part, list):
        return [_put_together(entry, arrays) for entry in part]
    if not isinstance(part, dict):
        return part
    ((form, content),) = part.items()
    if form.startswith("key "):
        return jax.random.wrap_key_data(jnp.asarray(arrays[content]), impl=form.removeprefix("key "))
    match form:
        case "tuple":
            return tuple(_put_together(content, arrays))
        case "dict":
            return dict(zip(*_put_together(content, arrays), strict=True))
        case "array":
            return arrays[content]
        case "bytes":
            return arrays[content].tobytes()
        case "number":
            return arrays[content][()]
        case "jax":
            with jax.enable_x64(True):
                return jnp.asarray(arrays[content])
        case "enum":
            return _import(content[0])[content[1]]
        case "path":
            return pathlib.Path(content)
        case "partial":
            function, given, keywords = content
            named = {name: _put_together(value, arrays) for name, value in keywords.items()}
            return functools.partial(_import(function), *_put_together(given, arrays), **named)
        case "named":
            return _import(content[0])(*_put_together(content[1:], arrays))
        case "object":
            cls = _import(content[0])
            made = object.__new__(cls)  # its fields were checked when it was built
            for name, field in content[1].items():
                object.__setattr__(made, name, _put_together(field, arrays))
            return made
        case _:  # "name"
            return _import(content)
