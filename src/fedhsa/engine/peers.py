"""Communication between the processes that run one simulation together."""

import contextlib
import io
import json
import os
import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._types import Device

PIECE_BYTES = 2**24
"""The largest message between processes, in bytes."""


class LostProcessError(RuntimeError):
    """Another process of the same run failed, or can no longer be reached."""


class _Asked:
    """A signal handler that remembers the first signal and acts on the second one immediately."""

    def __init__(self):
        self.times = 0

    def __call__(self, number: int, frame: Any) -> None:
        self.times += 1
        if self.times > 2:
            os._exit(130)


class Peers:
    """The processes that run a simulation together, seen from one of them. A single process sends nothing."""

    def __init__(self, devices: Sequence[Device]):
        self.ids = sorted({device.process_index for device in devices})
        self.alone = self.ids == [jax.process_index()]
        if not self.alone and self.ids != list(range(jax.process_count())):
            raise ValueError(
                f"`devices` must be those of this process, or some of every process; got those of processes {self.ids} "
                f"in process {jax.process_index()} of {jax.process_count()}."
            )
        self.index = 0 if self.alone else jax.process_index()

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.index == 0

    def numbers(self, *mine: int) -> np.ndarray:
        """Gathers the integers of every process, `(processes, numbers)`."""
        if self.alone:
            return np.array([mine])
        return self._gather(np.array(mine, np.int32))

    def arrays(self, mine: Sequence[np.ndarray] | None, everywhere: bool = True) -> list[list[np.ndarray]]:
        """Gathers the arrays of the processes that have any. Unless `everywhere`, only process 0 gets them."""
        if self.alone:
            return [] if mine is None else [list(mine)]
        file = io.BytesIO()
        if mine is not None:
            np.savez(file, *mine)
        found = []
        for text in filter(None, self._texts(file.getbuffer(), everywhere or self.first)):
            with np.load(io.BytesIO(text), allow_pickle=False) as arrays:
                found.append([arrays[name] for name in arrays.files])
        return found

    def from_first(self, function: Callable[[], tuple[Any, Sequence[np.ndarray]]]) -> tuple[Any, list[np.ndarray]]:
        """Calls a function in process 0 and shares its values and arrays. Its errors are raised in every process."""
        if self.alone:
            plain, arrays = function()
            return plain, list(arrays)
        failure, plain, arrays = None, None, ()
        if self.first:
            try:
                plain, arrays = function()
            except Exception as error:
                failure = error
        text = json.dumps({"plain": plain, "arrays": len(arrays), "failure": failure and str(failure)}).encode()
        said = json.loads(self._texts(memoryview(text if self.first else b""), True)[0])
        if failure is not None:
            raise failure
        if said["failure"] is not None:
            raise ValueError(said["failure"])
        return said["plain"], self.arrays(arrays if self.first else None)[0] if said["arrays"] else []

    def same(self, settings: Any) -> None:
        """Raises if the processes do not have the same settings."""
        digests = self.numbers(zlib.crc32(json.dumps(settings, sort_keys=True, default=str).encode()) >> 1)[:, 0]
        if (different := np.flatnonzero(digests != digests[0])).size:
            others = ", ".join(map(str, different))
            raise ValueError(f"All processes must run the same simulation, but these differ from process 0: {others}.")

    def _texts(self, mine: memoryview, keep: bool) -> list[bytes]:
        """Gathers the bytes of every process, in pieces of few sizes, so that few programs are compiled."""
        lengths = [int(high) * 2**30 + int(low) for high, low in self.numbers(len(mine) // 2**30, len(mine) % 2**30)]
        whole: list[list[bytes]] = [[] for _ in lengths]
        for begin in range(0, max(lengths), PIECE_BYTES):
            size = 1 << max(6, (min(PIECE_BYTES, max(lengths) - begin) - 1).bit_length())
            piece = np.zeros(size, np.uint8)
            part = mine[begin : begin + size]
            piece[: len(part)] = part
            for texts, row, length in zip(whole, self._gather(piece), lengths, strict=True):
                if keep and length > begin:
                    texts.append(row[: length - begin].tobytes())
        return [b"".join(texts) for texts in whole]

    def _gather(self, mine: np.ndarray) -> np.ndarray:
        from jax.experimental import multihost_utils  # imported here because few runs have several processes

        return multihost_utils.process_allgather(mine)

    @contextlib.contextmanager
    def stop_together(self) -> Iterator[Callable[[], bool]]:
        """Provides a function that tells whether Ctrl-C or SIGTERM has asked this process to stop.

        If one process stopped immediately, the others would keep waiting, and its part would end at another round.
        """
        if self.alone or threading.current_thread() is not threading.main_thread():
            yield lambda: False
            return
        outer = signal.getsignal(signal.SIGINT)
        asked = outer if isinstance(outer, _Asked) else _Asked()  # a signal between two simulations counts too
        before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield lambda: asked.times > 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def lost_if_silent() -> Iterator[None]:
    """Replaces JAX's errors about sockets by a sentence that says that another process is gone."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        text = str(error)
        if not any(word in text for word in ("Gloo", "gloo", "coordination", "UNAVAILABLE", "NCCL")):
            raise
        raise LostProcessError(
            f"Another process of this run ended or cannot be reached ({text.splitlines()[0]})."
        ) from error
