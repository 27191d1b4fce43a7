"""One of the processes that `fedhsa run --hosts N` starts: `coordinator count index arguments...`."""

import os
import sys
import threading
from collections.abc import Sequence

from . import main


def _end_with_parent() -> None:
    os.read(0, 1)  # ends when the process that started this one does
    os._exit(1)


def _own_cores(count: int, index: int) -> None:
    """Keeps to this process's part of the cores that it may use, if there are enough for all."""
    if hasattr(os, "sched_setaffinity"):  # macOS has not
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= count:
            os.sched_setaffinity(0, cores[index * len(cores) // count : (index + 1) * len(cores) // count])


def _run(coordinator: str, count: int, index: int, arguments: Sequence[str]) -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _own_cores(count, index)
    return main(["run", *arguments], member=(coordinator, count, index))


if __name__ == "__main__":
    where, number, mine, *rest = sys.argv[1:]
    sys.exit(_run(where, int(number), int(mine), rest))
