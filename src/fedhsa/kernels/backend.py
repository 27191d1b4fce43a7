"""Which backend's kernels the program that is being traced uses: a setting of the tracing, not of what is traced."""

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
    """Traces what is inside with the kernels of `backend`, a module of this package, or with none."""
    token = _backend.set(backend)
    try:
        yield
    finally:
        _backend.reset(token)


def in_use() -> bool:
    """Whether there is a backend in use."""
    return _backend.get() is not None


def kernel_for(operation: str) -> Callable | None:
    """The kernel of the backend in use; None if it has none, or if there is no backend."""
    backend = _backend.get()
    return None if backend is None else getattr(_module(backend), operation, None)


@contextlib.contextmanager
def without() -> Iterator[None]:
    """Simulations that start inside take the plain steps, to be compared with."""
    token = _wanted.set(False)
    try:
        yield
    finally:
        _wanted.reset(token)


def backend_of(platform: str) -> str | None:
    """The backend whose kernels run on this kind of device; None where the plain steps do.

    `FEDHSA_KERNELS=off` in the environment makes everything run the plain steps.
    """
    if os.environ.get("FEDHSA_KERNELS") == "off" or not _wanted.get():
        return None
    name = {"gpu": "triton", "cpu": "native"}.get(platform)
    return name if name is not None and _module(name) is not None else None


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f".{name}", __package__)
    except ImportError:  # this JAX has no Pallas for it, or the optional package is not installed
        return None
