"""Files that are either whole or absent: everything is written under a temporary name, then renamed."""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np


@contextlib.contextmanager
def atomic(path: str | os.PathLike, sync: bool = True) -> Iterator[IO[bytes]]:
    """Opens a binary file that appears under `path` only when the block ends without an error.

    Without `sync` the file survives the end of this process, however violent, but not a loss of power.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name)
            raise


def check_writable(name: str, path: str | os.PathLike) -> None:
    """Refuses a file that could not be written later, before the work whose result it should hold."""
    folder = pathlib.Path(path).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"`{name}`: cannot write to {str(folder)!r}: {error.strerror}. Name another file.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes text atomically."""
    with atomic(path) as file:
        file.write(text.encode())


def write_arrays(path: str | os.PathLike, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Writes arrays and a JSON header as one `.npz` file, without pickle."""
    encoded = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    with atomic(path) as file:
        np.savez(file, __header__=encoded, **arrays)  # pyright: ignore[reportArgumentType]


def read_arrays(path: str | os.PathLike, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads what `write_arrays` wrote, refusing a file that is truncated or of another kind."""
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r}.")
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop("__header__").tobytes())
        found = header["kind"]
    except Exception as error:
        raise ValueError(
            f"{os.fspath(path)!r} is not a complete fedhsa file ({type(error).__name__}: {error}). "
            "It may be truncated, or come from another program; delete it or name another."
        ) from error
    if found != kind:
        raise ValueError(f"{os.fspath(path)!r} holds a fedhsa {found}, not a {kind}.")
    return arrays, header
