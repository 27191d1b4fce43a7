"""Checks before the work begins whether it fits into this machine's memory."""

import contextlib
import inspect
import itertools
import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from .. import tree
from .._arrays import is_shared
from .._numbers import memory
from .._types import precision
from ..algorithms import AbstractAlgorithm
from ..problems import PROBLEMS, Problem
from .errors import UsageError

PART = 0.9
"""The part of the memory that a command may plan to use."""
LITTLE = 0.2
"""The part of the memory below which no closer estimate is made."""
PROBES = (4, 8, 16, 32)
"""The sizes of small problems whose memory is measured, to estimate the memory of a large problem."""


def check_problem(name: str, arguments: Mapping[str, Any]) -> None:
    """Raises if the random problem with these arguments would not fit."""
    found = estimate(name, arguments)
    if found is None or found <= PART * total():
        return
    sizes = {n: v for n, v in _sizes(name, arguments).items() if v > PROBES[-1]}
    most = max(sizes, key=lambda n: sizes[n])
    raise UsageError(
        f"`{most}` {sizes[most]} is too large: the problem takes about {memory(found)} of memory, and this machine has "
        f"{memory(total())}. Lower {' or '.join(f'`{n}`' for n in sizes)}."
    )


def check_runs(problem: Problem, algorithms: Iterable[AbstractAlgorithm], seeds: int, records: int) -> None:
    """Raises if the states of all seeds and their records would not fit."""
    if problem.streams is not None:
        return  # the memory of live environments is not known
    found = max(of_runs(problem, algorithm, seeds, records) for algorithm in algorithms)
    if found > PART * total():
        raise UsageError(
            f"The runs are too large: {seeds} seeds of {problem.num_agents} agents, with {records} records of each, "
            f"take about {memory(found)} of memory, and this machine has {memory(total())}. Use fewer of them."
        )


def of_runs(problem: Problem, algorithm: AbstractAlgorithm, seeds: int, records: int) -> float:
    """Returns the approximate number of bytes of the states of all seeds and their records."""

    def of_one_agent(agents, theta):
        agent, key = tree.take(agents, 0), jax.random.key(0)
        return agent.source.init(key), algorithm.init(theta)

    with precision():
        theta = jax.ShapeDtypeStruct((problem.dim,), np.float64)
        shapes = jax.eval_shape(of_one_agent, problem.flat_agents, theta)
    state = 16 + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))  # two keys
    return seeds * (problem.num_agents * state + 8.0 * (records + problem.dim))


def estimate(name: str, arguments: Mapping[str, Any]) -> float | None:
    """Returns the approximate number of bytes of a random problem; None if it is small or not known.

    Small problems are built to measure how the memory grows with each size.
    """
    sizes = _sizes(name, arguments)
    agents = sizes.pop("num_agents", 1)
    if name not in PROBLEMS or 32.0 * agents * sum(sizes.values()) ** 2 < LITTLE * total():
        return None
    large = sorted((n for n, size in sizes.items() if size > PROBES[-1]), key=lambda n: -sizes[n])
    base: dict[str, Any] = {**arguments, **dict.fromkeys(large, PROBES[-2])}
    if "num_agents" in inspect.signature(PROBLEMS[name]).parameters:
        base["num_agents"] = min(agents, 2)
    points = itertools.product(PROBES, repeat=min(len(large), 2))
    tried = {point: _measure(name, base | dict(zip(large, point, strict=False))) for point in points}
    known = {point: np.array([own, common]) for point, (own, common) in tried.items() if own >= 0}
    if not known:
        return None
    wanted = tuple(sizes[n] for n in large[:2])
    terms = np.array([_monomials(point) for point in known])
    fitted = np.linalg.lstsq(terms, np.array(list(known.values())), rcond=None)[0]
    own, common = np.maximum(_monomials(wanted) @ fitted, 0.0)
    return float(own * agents + common) + 32.0 * sizes.get("dim", 0) ** 2  # the root is found with a matrix


def _monomials(sizes: tuple[int, ...]) -> np.ndarray:
    """Returns products of at most three sizes; the memory of an agent is a sum of such products."""
    products = [math.prod(some) for n in range(4) for some in itertools.combinations_with_replacement(sizes, n)]
    return np.array(products, dtype=float)


def _measure(name: str, arguments: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the bytes per agent and the bytes that all agents share; -1 if there is no problem of this size."""
    with contextlib.suppress(ValueError, TypeError):
        problem = PROBLEMS[name](**arguments)
        leaves = [leaf for leaf in jax.tree.leaves(problem.agents) if isinstance(leaf, np.ndarray)]
        own = sum(leaf.nbytes for leaf in leaves if not is_shared(leaf)) / problem.num_agents
        return own, sum(leaf[:1].nbytes for leaf in leaves if is_shared(leaf))
    return -1.0, -1.0


def _sizes(name: str, arguments: Mapping[str, Any]) -> dict[str, int]:
    known = {n: p.default for n, p in inspect.signature(PROBLEMS[name]).parameters.items()} if name in PROBLEMS else {}
    return {
        n: value
        for n, value in {**known, **arguments}.items()
        if isinstance(value, int) and not isinstance(value, bool) and n != "key"
    }


def total() -> int:
    """Returns the memory that this process may use, in bytes."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**63
    with contextlib.suppress(OSError, ValueError):  # a container may have less; "max" means no limit
        found = min(found, int(pathlib.Path("/sys/fs/cgroup/memory.max").read_text()))
    return found
