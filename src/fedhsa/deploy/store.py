"""The saved state of a site or a server: one file, which is either complete or absent, and a lock."""

import contextlib
import os
import pathlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import _files
from .._files import BusyError as BusyError
from .wire import Packet, RejectedError, pack, unpack


class Store:
    """The saved state of one site or server: a file that is replaced atomically.

    **Arguments:**

    - `path`: the file.
    - `sync`: whether a state must survive a loss of power, and not only the end of a process. This is slower.

    !!! example
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp() + "/site.state")
        >>> store.save({"round": 3}, {"theta": np.zeros(2)})
        >>> store.load().header
        {'round': 3}
    """

    def __init__(self, path: str | os.PathLike, sync: bool = True):
        self.path, self.sync = pathlib.Path(path), sync
        self._lock = str(self.path.with_suffix(".lock"))
        self._seen: tuple[int, int, bytes] | None = None
        self._placed = False

    def save(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Replaces the state."""
        data = pack(header, arrays)
        if self.sync:
            with _files.atomic(self.path, private=True) as file:
                file.write(data)
            _sync_folder(self.path.parent)
            self._seen = self._now()
        else:
            written = _files.write_quickly(self.path, data)
            self._seen = written.st_ino, written.st_mtime_ns, data[:16]

    def load(self) -> Packet | None:
        """Returns the state that was saved last, or None. Raises `ValueError` if the file is damaged."""
        self._seen = self._now()
        try:
            with open(_files.open_quickly(self.path), "rb") as file:
                return unpack(file.read())
        except FileNotFoundError:
            return None
        except RejectedError as rejected:
            raise ValueError(
                f"{str(self.path)!r} is not a saved state ({rejected.reason}). Restore it from a backup, or delete it "
                "to start over."
            ) from rejected

    @property
    def changed(self) -> bool:
        """Whether another process has saved or removed the state since this one did."""
        return self._seen != self._now()

    def _now(self) -> tuple[int, int, bytes] | None:
        # Two files can have the same inode and time, but not the same checksum.
        try:
            handle = _files.open_quickly(self.path)
        except FileNotFoundError:
            return None
        try:
            found = os.fstat(handle)
            return found.st_ino, found.st_mtime_ns, os.read(handle, 16)
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def alone(self, wait: bool = True) -> Iterator[None]:
        """Locks the state; with `wait=False`, raises immediately if another process uses it."""
        if not self._placed:
            _files.make_private(self.path.parent)
        # Opened each time, since the lock does not separate threads that share an open file.
        handle = os.open(self._lock, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            if not self._placed and hasattr(os, "fchmod"):  # missing on Windows
                os.fchmod(handle, 0o600)  # earlier versions let other users open the file and hold the lock
                self._placed = True
            words = f"Another process is working in {str(self.path.parent)!r}. Wait for it, or stop it."
            with _files.locked(handle, wait, words):
                yield
        finally:
            os.close(handle)

    @property
    def busy(self) -> bool:
        """Whether a process uses the state now."""
        if not self.path.parent.is_dir():
            return False
        try:
            with self.alone(wait=False):
                return False
        except BusyError:
            return True


class Rows:
    """Rows of `width` numbers in a file that only grows; the store's state contains the number of valid rows.

    The file has the store's name with this suffix, and its `sync`.
    """

    def __init__(self, store: Store, suffix: str, width: int):
        self.store, self.path, self.width = store, store.path.with_suffix(suffix), width
        self.mark = (0, 0)
        """The number of valid rows and their checksum, which a state contains."""

    def extend(self, rows: np.ndarray) -> None:
        """Adds rows after the valid ones; rows of a process that ended before it saved its state are dropped."""
        data, (count, checksum) = np.ascontiguousarray(rows, "<f8").tobytes(), self.mark
        _files.write_at(self.path, 8 * self.width * count, data, self.store.sync)
        self.mark = count + len(rows), zlib.crc32(data, checksum)

    def read(self, mark: Sequence[int]) -> np.ndarray:
        """The rows that were valid when the state was saved."""
        count, checksum = mark
        data = b""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            data = file.read(8 * self.width * count)
        if len(data) != 8 * self.width * count or zlib.crc32(data) != checksum:
            raise ValueError(
                f"{str(self.path)!r} is not the one that belongs to {str(self.store.path)!r}: it was changed or "
                "removed. Restore both from the same backup, or use another folder."
            )
        self.mark = count, checksum
        return np.frombuffer(data, "<f8").astype(float).reshape(count, self.width)


def set_aside(*paths: pathlib.Path) -> None:
    """Renames files with a common number, so that new files can use their names; nothing is lost."""
    number = 1
    while any(_numbered(path, number).exists() for path in paths):
        number += 1
    for path in paths:
        for found in (f"{path}~", path):  # the first is older, left by a process that was killed while writing
            with contextlib.suppress(FileNotFoundError):
                os.replace(found, _numbered(path, number))


def _numbered(path: pathlib.Path, number: int) -> pathlib.Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def check_run_name(run: str) -> str:
    """Raises if the name of a run is not a valid folder name, or would lead out of the folder."""
    if not isinstance(run, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", run):
        raise ValueError(f"`run` must be up to 64 letters, digits, - and _, got {str(run)[:100]!r}.")
    return run


def _sync_folder(folder: pathlib.Path) -> None:
    """Ensures that the file's new name survives a loss of power."""
    if os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
