"""Keeps a process that compiles many programs below the number of memory maps that Linux allows it.

A program that JAX compiles for a CPU takes several memory maps, and JAX keeps it as long as its function exists. At
`vm.max_map_count` maps, 65530 by default, the compiler ends the process with an abort or a segmentation fault.
"""

import functools
import math
import pathlib
import time

import jax

FULL = 0.7
"""The share of the allowed maps above which compiled programs are dropped."""
SECONDS = 5.0
"""The least time between two counts, each of which takes up to 40 ms. About two thousand new maps come in it."""

_last_count, _kept = -math.inf, 0


def make_room() -> None:
    """Drops all compiled programs if the process has too many memory maps. JAX compiles them again when needed."""
    global _last_count, _kept
    if time.monotonic() < _last_count + SECONDS or (allowed := _allowed()) == math.inf:
        return
    # Maps that dropping did not return belong to others. It is repeated only after a tenth more has come.
    if _count() > max(FULL * allowed, _kept + 0.1 * allowed):
        jax.clear_caches()
        _kept = _count()
    _last_count = time.monotonic()


@functools.cache
def _allowed() -> float:
    try:
        return float(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    except OSError:  # not on Linux
        return math.inf


def _count() -> int:
    return pathlib.Path("/proc/self/maps").read_bytes().count(b"\n")
