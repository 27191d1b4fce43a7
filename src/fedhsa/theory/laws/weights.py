"""Weights of participating agents, and means of sums over agents that products of these weights multiply."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np


class EqualChances:
    r"""Weights $w_i = b_i / N$ of participating agents; given their number $N$, all sets are equally likely.

    $E[w_a w_b \cdots]$ of a product with $k$ different agents is $E[N^{-g} (N)_k / (M)_k]$, $g$ the number of factors.
    """

    def __init__(self, counts: np.ndarray):
        self.counts, self.num_agents = counts, len(counts) - 1

    def moment(self, agents: int, degree: int) -> float:
        """Returns the mean of a product of `degree` weights of `agents` different agents; zero for empty rounds."""
        N, part = np.arange(1, self.num_agents + 1, dtype=float), 1.0
        for k in range(agents):
            part = part * np.clip(N - k, 0, None) / max(self.num_agents - k, 1)
        return float(self.counts[1:] @ (part * N**-degree))

    def contract(self, spec: str, letters: str, degree: int, *arrays: np.ndarray) -> np.ndarray:
        """Returns the mean of an `einsum` whose agents, capital `letters`, have a product of `degree` weights.

        Sums over distinct agents are sums over patterns of equal agents, by inclusion and exclusion.
        """
        found: Any = 0.0
        for blocks in _partitions(list(letters)):
            coefficient = sum(
                sign * self.moment(parts, degree) for parts, sign in _refinements(tuple(len(b) for b in blocks))
            )
            merged = spec.translate({ord(letter): block[0] for block in blocks for letter in block})
            found = found + coefficient * _einsum(merged, *arrays)
        return found


class OwnChances:
    r"""Weights $b_i / (M p_i)$ of agents that participate independently with probabilities $p_i$; products of two."""

    def __init__(self, chances: np.ndarray):
        self.chances, self.num_agents = chances, len(chances)

    def contract(self, spec: str, letters: str, degree: int, *arrays: np.ndarray) -> np.ndarray:
        """See `EqualChances`."""
        M = self.num_agents
        inputs, output = spec.split("->")
        if degree == len(letters) == 1:
            return _einsum(spec, *arrays) / M
        assert degree == 2
        first = letters[0]
        merged = f"{inputs.replace(letters[-1], first)},{first}->{output.replace(letters[-1], first)}"
        if len(letters) == 1:
            return _einsum(merged, *arrays, 1 / self.chances) / M**2
        return (_einsum(spec, *arrays) + _einsum(merged, *arrays, 1 / self.chances - 1)) / M**2


def _partitions(letters: list[str]) -> Iterator[list[list[str]]]:
    """Yields all partitions of letters into blocks."""
    if not letters:
        yield []
        return
    head, *rest = letters
    for blocks in _partitions(rest):
        yield [[head], *blocks]
        for k, block in enumerate(blocks):
            yield [*blocks[:k], [head, *block], *blocks[k + 1 :]]


@functools.cache
def _refinements(sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Returns the numbers of parts of finer partitions, and their signed counts in inclusion and exclusion."""
    if not sizes:
        return ((0, 1),)
    found = []
    for blocks in _partitions([str(k) for k in range(sizes[0])]):
        sign = (-1) ** (len(blocks) - 1) * math.factorial(len(blocks) - 1)
        found += [(len(blocks) + parts, sign * others) for parts, others in _refinements(sizes[1:])]
    return tuple(found)


def _einsum(spec: str, *arrays: np.ndarray) -> np.ndarray:
    if not all(x.any() for x in arrays):  # without noise, many arrays are zero
        inputs, output = spec.split("->")
        sizes = dict(zip("".join(inputs.split(",")), (n for x in arrays for n in x.shape), strict=True))
        return np.zeros([sizes[letter] for letter in output])
    return np.einsum(spec, *arrays, optimize=_order(spec, tuple(x.shape for x in arrays)))


@functools.cache
def _order(spec: str, shapes: tuple[tuple[int, ...], ...]) -> Any:
    return np.einsum_path(spec, *(np.broadcast_to(0.0, shape) for shape in shapes), optimize="optimal")[0]
