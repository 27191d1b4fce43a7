"""Checkpoints: the whole state of a run in one file."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from .. import _files
from .peers import Peers
from .result import Result, pack

KIND = "checkpoint"
LAYOUT = 2
"""The version of the layout, which changes with it."""


class Saved(NamedTuple):
    """The content of a checkpoint: the state of all seeds after `round`, and the records up to it.

    It does not depend on the number of processes. `chunk` is stored because it affects rounding.
    """

    round: int
    chunk: int
    state: PyTree
    records: dict[str, np.ndarray]


def write(path: str | os.PathLike, saved: Saved, result: Result, fingerprint: str) -> None:
    """Writes the checkpoint atomically: the state, and the result so far, which other programs can read."""
    arrays, header = pack(result)
    del arrays["rounds"]  # they follow from the settings
    arrays |= {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(saved.state))}
    header |= {"kind": KIND, "layout": LAYOUT, "fingerprint": fingerprint, "round": saved.round, "chunk": saved.chunk}
    _files.write_arrays(path, arrays, header)


def read(path: str | os.PathLike, fingerprint: str) -> tuple[dict[str, Any], list[np.ndarray], dict[str, np.ndarray]]:
    """Returns the header, the leaves of the state and the records. Raises if the checkpoint belongs to another run."""
    try:
        arrays, header = _files.read_arrays(path, KIND)
    except ValueError as error:
        raise ValueError(f"`checkpoint`: {error} Leave out `resume` to start over.") from error
    if header.get("layout") != LAYOUT:
        raise ValueError(
            f"The checkpoint {os.fspath(path)!r} was written by another version of fedhsa, in another layout. "
            "Finish the run with that version, or choose another file."
        )
    if header["fingerprint"] != fingerprint:
        raise ValueError(
            f"The checkpoint {os.fspath(path)!r} belongs to another run: its problem, algorithm, key, seeds, start, "
            "recorders or precision differ. Repeat that call exactly, or choose another file."
        )
    leaves = [arrays[f"state/{i}"] for i in range(sum(name.startswith("state/") for name in arrays))]
    records = {name.removeprefix("record/"): a for name, a in arrays.items() if name.startswith("record/")}
    return header, leaves, records


@contextlib.contextmanager
def claimed(path: str | os.PathLike, peers: Peers) -> Iterator[None]:
    """Checks that the file can be written and locks it against other simulations. Process 0 does this for all."""
    with contextlib.ExitStack() as stack:

        def claim() -> tuple[Any, list[np.ndarray]]:
            _files.check_writable("checkpoint", path)
            stack.enter_context(_files.alone(path))
            return None, []

        peers.from_first(claim)
        yield


def prepare(
    path: str | os.PathLike, fingerprint: str, rounds: int, resume: bool, peers: Peers
) -> tuple[dict[str, Any], list[np.ndarray], dict[str, np.ndarray]] | None:
    """Reads the file if the run resumes. Process 0 does this for all."""

    def look() -> tuple[Any, list[np.ndarray]]:
        if not (resume and os.path.exists(path)):
            return None, []
        header, leaves, records = read(path, fingerprint)
        if header["round"] > rounds:
            raise ValueError(f"`rounds` must be at least {header['round']}, the round of the checkpoint, got {rounds}.")
        return [header, list(records)], [*records.values(), *leaves]

    found, arrays = peers.from_first(look)
    if found is None:
        return None
    header, names = found
    return header, arrays[len(names) :], dict(zip(names, arrays, strict=False))
