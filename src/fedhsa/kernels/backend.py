"""The backend whose kernels are used while a program is traced: a setting of the tracing, not of the program."""

import contextlib
import contextvars
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

_backend: contextvars.ContextVar[str | None] = contextvars.ContextVar("backend", default=None)

_wanted: contextvars.ContextVar[bool] = contextvars.ContextVar("wanted", default=True)


@contextlib.contextmanager
def using(backend: str | None) -> Iterator[None]:
    """Traces the code inside with the kernels of `backend`, a module of this package; None for plain steps."""
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


def in_use() -> bool:
    """Whether a backend is in use."""
    return _backend.get() is not None


def kernel_for(operation: str) -> Callable | None:
    """The backend's kernel for an operation; None if it has no such kernel, or if no backend is in use."""
    backend = _backend.get()
    return None if backend is None else getattr(_module(backend), operation, None)


@contextlib.contextmanager
def without() -> Iterator[None]:
    """Simulations that start inside use the plain steps, for comparison.

    !!! example
        >>> with without():
        ...     backend_of("cpu") is None
        True
    """
    token = _wanted.set(False)
    try:
        yield
    finally:
        _wanted.reset(token)


def backend_of(platform: str) -> str | None:
    """The backend whose kernels run on this kind of device; None for the plain steps.

    `FEDHSA_KERNELS=off` in the environment makes everything run the plain steps.
    """
    if os.environ.get("FEDHSA_KERNELS") == "off" or not _wanted.get():
        return None
    name = {"gpu": "triton", "cpu": "native"}.get(platform)
    return name if name is not None and _module(name) is not None else None


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f".{name}", __package__)
    except ImportError:  # this JAX has no Pallas for the device, or the optional package is not installed
        return None
