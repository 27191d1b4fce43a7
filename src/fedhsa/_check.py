"""Checks of arguments: each error names the argument, shows the value that arrived and says what to do.

Inside JAX transformations a setting may be a tracer, whose value is not known; then only its shape is checked.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from . import _arrays

DTYPES = ("float64", "float32")
"""The supported precisions."""
LARGEST_COUNT = 2**53
"""The largest size or number of anything: a float64 counts exactly up to it."""
LARGEST_GRID = 100
"""The largest number of step sizes in a grid, which spans more than thirty orders of magnitude."""
LARGEST_NUMBER = 1e100
"""The largest number: the products and squares of larger numbers would overflow."""


def traced(value: Any) -> bool:
    """Whether the value, or a part of it, is known only when the program runs."""
    if value is None or isinstance(value, int | float | str | np.ndarray):
        return False  # the settings of the command line are of these types and are checked without loading JAX
    import jax
    from jax.core import Tracer

    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def not_traced(name: str, value: Any, reason: str) -> None:
    """Raises `ValueError` if a value that determines the structure of the program is traced."""
    if traced(value):
        raise ValueError(f"`{name}` must be known before the program is compiled, got {value}. {reason}")


def array(name: str, value: Any, shape: tuple[str | int, ...], sizes: dict[str, int] | None = None) -> np.ndarray:
    """Returns `value` as a finite, read-only float64 array of the given shape; a tracer remains a tracer.

    Letters in `shape` are sizes: they are looked up in `sizes` if present there, and stored there otherwise.
    """
    sizes, known = {} if sizes is None else sizes, not traced(value)
    try:
        if known:
            value = _arrays.own(value)
        else:
            import jax.numpy as jnp

            value = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be an array of numbers, got {type(value).__name__}.") from error
    found = dict(sizes)
    fits = value.ndim == len(shape) and all(
        m == (n if isinstance(n, int) else found.setdefault(n, m)) for n, m in zip(shape, value.shape, strict=True)
    )
    if not fits:
        dimensions = ", ".join(str(sizes.get(n, n) if isinstance(n, str) else n) for n in shape)
        raise ValueError(f"`{name}` must have shape ({dimensions}{',' if len(shape) == 1 else ''}), got {value.shape}.")
    if 0 in value.shape:
        raise ValueError(f"`{name}` must not be empty, got shape {value.shape}.")
    if known and not (finite := np.isfinite(value[:1] if _arrays.is_shared(value) else value)).all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"`{name}` must be finite, got {value[where]} at index {where}.")
    sizes.update(found)
    return value


def count(name: str, value: Any, *, least: int = 1, most: int | None = None, remedy: str = "") -> int:
    """Returns `value` as an int in the given range; a tracer remains a tracer."""
    if traced(value) and value.shape == () and np.issubdtype(value.dtype, np.integer):
        return value
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"`{name}` must be a whole number, got {value!r}.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}. {remedy}".rstrip())
    if value > (most or LARGEST_COUNT):
        raise ValueError(f"`{name}` must be at most {most or LARGEST_COUNT}, got {value}.")
    return int(value)


def grid(value: Any) -> None:
    """Raises `ValueError` if the grid has too many step sizes; half of them are a factor of 4 apart."""
    if count("grid", value) > LARGEST_GRID:
        raise ValueError(
            f"`grid` must be at most {LARGEST_GRID}, got {value}. Half of the step sizes are a factor of 4 apart."
        )


def counts(value: Any) -> Any:
    """Converts whole numbers of any type to Python's ints; a list or an array of them becomes a tuple."""
    if isinstance(value, list | tuple | np.ndarray) and np.ndim(value) == 1:
        return tuple(counts(part) for part in value)
    return int(value) if isinstance(value, np.integer) else value


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    remedy: str = "",
) -> None:
    """Raises `ValueError` if `value` is not a finite number (or an array of them) in the given range."""
    if traced(value):
        return
    try:
        if np.asarray(value).dtype.kind in "USbO":  # NumPy would turn some of these into numbers
            raise TypeError(value)
        values = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be a number, got {value!r}. {remedy}".rstrip()) from error
    bounds = [
        (np.isfinite(values), "finite"),
        (above is None or values > above, f"greater than {above}"),
        (least is None or values >= least, f"at least {least}"),
        (most is None or values <= most, f"at most {most}"),
        (below is None or values < below, f"below {below}"),
    ]
    for holds, requirement in bounds:
        if not np.all(holds):
            raise ValueError(f"`{name}` must be {requirement}, got {value}. {remedy}".rstrip())


def scalar(name: str, value: Any, *, remedy: str = "", **bounds: float) -> None:
    """Raises `ValueError` if `value` is not one finite number in the given range."""
    if np.shape(value) != () and not isinstance(value, str):
        raise ValueError(f"`{name}` must be one number, got an array of shape {np.shape(value)}. {remedy}".rstrip())
    number(name, value, remedy=remedy, **bounds)


def choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    """Raises `ValueError` if `value` is not one of the named options."""
    if value not in options:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, options))}, got {value!r}.")


def nearest(name: Any, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known name, or an empty string."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return f" Did you mean {by_lower[found[0]]!r}?" if found else ""


def arguments(
    what: str,
    name: Any,
    known: Mapping[str, Callable[..., Any]],
    given: Mapping[str, Any],
    *,
    common: tuple[str, ...] = (),
) -> None:
    """Raises `ValueError` if the name is not known, or if its function lacks an argument or expects another type.

    Arguments in `common` are not listed among the options, because most functions have them.
    """
    if name not in known:
        raise ValueError(f"`{what}` must be one of {', '.join(known)}, got {name!r}.{nearest(name, known)}")
    parameters = inspect.signature(known[name]).parameters
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for argument, value in given.items():
        if argument not in parameters:
            if passes_on:  # to another function, which checks it
                continue
            options = [p for p in parameters if p not in common]
            raise ValueError(
                f"The {what} {name} has no argument `{argument}`.{nearest(argument, options)} "
                f"Its options are {', '.join(options) or 'none'}."
            )
        kind(argument, value, parameters[argument].default)
        _size(argument, value)


def _size(name: str, value: Any) -> None:
    """Raises `ValueError` if a number is too large to compute with."""
    if isinstance(value, float):
        number(name, value)
        if abs(value) > LARGEST_NUMBER:
            raise ValueError(f"`{name}` must be at most {LARGEST_NUMBER:g} in size, got {value:g}.")
    for part in value if isinstance(value, list | tuple) else ():
        _size(name, part)


def kind(name: str, value: Any, default: Any) -> None:
    """Raises `ValueError` if the value has another type than the default, before a generator fails on it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    kinds = [
        (bool, "true or false", isinstance(value, bool)),
        (int, "a whole number", number and isinstance(value, int)),
        (float, "a number", number),
        (str, "a word", isinstance(value, str)),
    ]
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise ValueError(f"`{name}` must be a list of {len(default)}, like {list(default)}, got {value!r}.")
        for part, example in zip(value, default, strict=True):
            kind(name, part, example)
        return
    for type_, requirement, fits in kinds:
        if isinstance(default, type_):
            if not fits:
                raise ValueError(f"`{name}` must be {requirement}, got {value!r}. The default is {default}.")
            return
