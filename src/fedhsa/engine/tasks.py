"""Independent computations, handed to an executor: threads or processes of this machine, or those of a cluster."""

import concurrent.futures
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

LOOK = 0.2
"""Seconds between two looks at what runs."""

K = TypeVar("K", bound=Hashable)


def outcomes(
    executor: Executor, calls: Mapping[K, Callable[[], Any]], show: Callable[[list[K]], None] = lambda running: None
) -> Iterator[tuple[K, Future]]:
    """Has all calls computed, and gives each with its name when it is done; the caller asks what came out.

    When the caller stops asking, by an exception (Ctrl-C) or otherwise, what is not done is given up.

    **Arguments:**

    - `executor`: who computes. One that works in other processes must be able to send the calls there, as partial
      functions of functions that have a name.
    - `calls`: by name, in the order in which to begin them.
    - `show`: called a few times a second with the names of what is under way.

    !!! example
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor(2) as executor:
        ...     sorted((name, done.result()) for name, done in outcomes(executor, {"two": lambda: 2, "one": lambda: 1}))
        [('one', 1), ('two', 2)]
    """
    futures: dict[Future, K] = {}
    try:
        for name, call in calls.items():
            futures[executor.submit(call)] = name
        while futures:
            done, _ = concurrent.futures.wait(futures, LOOK, concurrent.futures.FIRST_COMPLETED)
            for future in done:
                yield futures.pop(future), future
            show([name for future, name in futures.items() if future.running()])
    finally:
        for future in futures:
            future.cancel()


def parts(groups: Sequence[Sequence[K]], workers: int, largest: int) -> list[Sequence[K]]:
    """Divides groups for workers such that few workers share a group: each gets as many parts as its share of them.

    No part is larger than `largest`, so that one that is lost, or still under way, is not much.

    !!! example
        >>> parts([[1, 2, 3, 4, 5, 6], ["a", "b"]], workers=4, largest=8)
        [[1, 2], [3, 4], [5, 6], ['a', 'b']]
    """
    total, found = sum(map(len, groups)), []
    for group in groups:
        number = min(len(group), max(-(-len(group) // largest), round(workers * len(group) / total), 1))
        ends = [len(group) * i // number for i in range(number + 1)]
        found += [group[first:last] for first, last in itertools.pairwise(ends)]
    return found


def workers(executor: Executor) -> int:
    """How many calls an executor computes at once, as far as it says."""
    return getattr(executor, "cores", None) or getattr(executor, "_max_workers", 1)


def kept_programs() -> dict[str, Any]:
    """JAX's settings of where compiled programs are kept, for other processes to look there too; none for nowhere."""
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        return {}
    names = ("compilation_cache_dir", "compilation_cache_max_size", "persistent_cache_min_compile_time_secs")
    names = [f"jax_{name}" for name in (*names, "persistent_cache_min_entry_size_bytes")]
    return {name: getattr(config, name) for name in names}


def sentence(error: BaseException) -> str:
    """What went wrong, in one line; the name of the error only where its words are not meant for users."""
    words = " ".join(str(error).split())
    return words if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words}"
