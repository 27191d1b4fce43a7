"""Compiled kernels for `fedhsa` on a CPU: one shared library, whose functions XLA calls."""

import ctypes
from pathlib import Path

INTERFACE = 1
"""Counts the changes of what the functions take and give: `fedhsa` uses only those it was written for."""
TARGETS = ("fedhsa_walk", "fedhsa_normal_walk", "fedhsa_rank_one", "fedhsa_affine")
"""The functions, by the names under which XLA knows them."""

library = ctypes.CDLL(str(Path(__file__).with_name("libfedhsa_native.so")))


def choose(number: int = 0) -> int:
    """Chooses among the kernels that this processor can run, the fastest first; gives how many there are."""
    return library.fedhsa_choose(number)
