"""A process that `fedhsa run --hosts N` starts, with the arguments `coordinator count index arguments...`."""

import os
import sys
import threading

from . import main


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the parent process ends
    os._exit(1)


def _own_cores(count: int, index: int) -> None:
    """Restricts this process to its share of the available cores, if there is at least one core for each."""
    if hasattr(os, "sched_setaffinity"):  # not on macOS
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= count:
            os.sched_setaffinity(0, cores[index * len(cores) // count : (index + 1) * len(cores) // count])


if __name__ == "__main__":
    where, count, index, *rest = sys.argv[1:]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _own_cores(int(count), int(index))
    sys.exit(main(["run", *rest], member=(where, int(count), int(index))))
