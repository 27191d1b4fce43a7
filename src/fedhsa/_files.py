"""Files that are either complete or absent: everything is written under a temporary name and then renamed."""

import contextlib
import csv
import io
import json
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np

try:
    import fcntl
except ImportError:  # not on Windows, where the user must keep processes apart
    fcntl = None


class BusyError(Exception):
    """Raised if another process is using the same files."""


@contextlib.contextmanager
def locked(handle: int, wait: bool, words: str) -> Iterator[None]:
    """Locks an open file; without `wait`, raises `BusyError` with these words if another process holds the lock."""
    if fcntl is None:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise BusyError(words) from error
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


@contextlib.contextmanager
def alone(path: str | os.PathLike) -> Iterator[None]:
    """Excludes other processes that call it for the same file or folder, by a temporary lock file next to it."""
    path = pathlib.Path(path)
    lock, words = path.with_name(f".{path.name}.lock"), f"Another process is using {str(path)!r}. Wait for it, stop it,"
    with contextlib.ExitStack() as stack:
        while True:
            handle = _open_placed(lock, os.O_WRONLY | os.O_CREAT, 0o600)
            stack.callback(os.close, handle)
            stack.enter_context(locked(handle, False, f"{words} or choose another name."))
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(lock)):  # otherwise its owner has just removed it
                    break
        try:
            yield
        finally:
            with contextlib.suppress(PermissionError):  # Windows does not remove an open file
                lock.unlink(missing_ok=True)


@contextlib.contextmanager
def _telling(path: str | os.PathLike) -> Iterator[None]:
    """Adds the name of the file to errors of the disk; the error of a full disk does not contain it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


@contextlib.contextmanager
def atomic(path: str | os.PathLike, private: bool = False) -> Iterator[IO[bytes]]:
    """Opens a binary file that appears under `path` only when the block ends without an error.

    With `private`, only its owner can read it.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    with _telling(path), tempfile.NamedTemporaryFile(dir=path.parent, prefix=prefix, delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            file.close()  # Windows does not rename an open file
            if not private:
                os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name)
            raise


def write_quickly(path: pathlib.Path, data: bytes) -> os.stat_result:
    """Writes a file such that `open_quickly` finds either it or the previous one, complete; for one process at a time.

    Returns the status of the new file, with its number and time.

    The file is private. It survives the end of this process, even by `kill -9`, but not a power failure. It never
    replaces an existing name by renaming: some file systems (ext4) would first write the data to the disk, which takes
    a hundred times as long.
    """
    new, old = f"{path}.new", f"{path}~"
    handle = _open_placed(new, _WRITE, 0o600)
    try:
        with _telling(path):
            _write_all(handle, data)
        written = os.fstat(handle)
    finally:
        os.close(handle)
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, old)
    os.replace(new, path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(old)
    return written


def open_quickly(path: pathlib.Path) -> int:
    """A handle of the file that `write_quickly` has written last, even if it was killed half-way."""
    for name in (path, f"{path}~"):
        with contextlib.suppress(FileNotFoundError):
            return os.open(name, _READ)
    return os.open(path, _READ)  # it may have appeared between the two attempts


def write_at(path: pathlib.Path, start: int, data: bytes, sync: bool) -> None:
    """Writes to a private file from the position `start`; the file then ends with this data."""
    handle = _open_placed(path, os.O_WRONLY | os.O_CREAT | _BINARY, 0o600)
    try:
        with _telling(path):
            os.ftruncate(handle, start)
            os.lseek(handle, start, os.SEEK_SET)
            _write_all(handle, data)
            if sync:
                os.fsync(handle)
    finally:
        os.close(handle)


def append_line(path: pathlib.Path, line: bytes, mode: int = 0o666) -> None:
    """Appends a line to a file; an incomplete last line, left by a killed process, is terminated first."""
    handle = _open_placed(path, _APPEND, mode)
    try:
        if size := os.fstat(handle).st_size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            line = line if os.read(handle, 1) == b"\n" else b"\n" + line
        with _telling(path):
            _write_all(handle, line + b"\n")
    finally:
        os.close(handle)


def _open_placed(path: str | os.PathLike, flags: int, mode: int) -> int:
    """Opens a file for writing; creates its folder if necessary."""
    try:
        return os.open(path, flags, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, mode)


def _write_all(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


_BINARY = getattr(os, "O_BINARY", 0)  # on Windows, where text files have different line endings
_READ = os.O_RDONLY | _BINARY
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY


def make_private(folder: pathlib.Path) -> None:
    """Creates a folder and its missing parents, readable only by their owner."""
    for part in (*reversed(folder.parents), folder):
        if not part.is_dir():
            part.mkdir(mode=0o700, exist_ok=True)


def check_writable(name: str, path: str | os.PathLike) -> None:
    """Raises `ValueError` if a file could not be written, before the work whose result it is meant to hold."""
    folder = pathlib.Path(path).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"`{name}`: cannot write to {str(folder)!r}: {error.strerror}. Use another file.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes text atomically."""
    with atomic(path) as file:
        file.write(text.encode())


def write_csv(path: str | os.PathLike, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Writes a table as comma-separated values, atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_npz(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as one `.npz` file, atomically."""
    with atomic(path) as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def write_arrays(path: str | os.PathLike, arrays: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    """Writes arrays and a JSON header as one `.npz` file, without pickle."""
    write_npz(path, {"__header__": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays})


def read_npz(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of any `.npz` file, and the header from `write_arrays`; an empty header if there is none.

    Raises `FileNotFoundError` if there is no such file, and `ValueError` if it is damaged or has another format.
    """
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r}.")
    name = repr(os.fspath(path))
    with open(path, "rb") as opened:
        if not opened.read(4).startswith(b"PK"):
            raise ValueError(f"{name} is damaged or was not written by fedhsa.")
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop("__header__").tobytes()) if "__header__" in arrays else {}
        return arrays, dict(header)
    except Exception as error:
        raise ValueError(f"{name} is damaged: a part of it is missing or has been changed.") from error


def read_arrays(path: str | os.PathLike, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads a file from `write_arrays`; raises `ValueError` if it is damaged or of another kind."""
    arrays, header = read_npz(path)
    found = header.get("kind")
    if found != kind:
        holds = "was not written by fedhsa" if found is None else f"holds a fedhsa {found}, not a {kind}"
        raise ValueError(f"{os.fspath(path)!r} {holds}.")
    return arrays, header
