"""Independent computations on an executor: threads or processes of this machine, or of a cluster."""

import concurrent.futures
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

LOOK = 0.2
"""Seconds between two checks of running calls."""

K = TypeVar("K", bound=Hashable)


def outcomes(
    executor: Executor, calls: Mapping[K, Callable[[], Any]], show: Callable[[list[K]], None] = lambda running: None
) -> Iterator[tuple[K, Future]]:
    """Computes all calls, and yields the name and future of each when it is done.

    If the caller stops iterating, by an exception (Ctrl-C) or otherwise, the remaining calls are cancelled.

    **Arguments:**

    - `executor`: the executor. If it works in other processes, the calls must be partial functions of named functions,
      so that they can be sent there.
    - `calls`: the calls by name, in the order in which they start.
    - `show`: a function that is called a few times a second with the names of the running calls.

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
    """Divides groups among workers, so that few workers share a group. Parts are proportional to the group's size.

    No part is larger than `largest`, so that little is lost with an unfinished part.

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
    """The number of calls that an executor computes at once, if it reports it."""
    return getattr(executor, "cores", None) or getattr(executor, "_max_workers", 1)


def kept_programs() -> dict[str, Any]:
    """JAX's settings for its cache of compiled programs, so that other processes can share it."""
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        return {}
    names = ("compilation_cache_dir", "compilation_cache_max_size", "persistent_cache_min_compile_time_secs")
    names = [f"jax_{name}" for name in (*names, "persistent_cache_min_entry_size_bytes")]
    return {name: getattr(config, name) for name in names}


def sentence(error: BaseException) -> str:
    """The error in one line, with its type only if its message is not meant for users."""
    words = " ".join(str(error).split())
    return words if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words}"
