"""Coordinates of what a method carries: those that a run reaches and that affect the parameter, now or later."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .pieces import REMEMBERED, Part, Pieces, Step, apply

DRAWS, SEED = 3, 0
"""The number of random rounds without a new direction after which coordinates are complete, and their seed."""
CLEAR, FAINT = 1e-6, 1e-9
"""The relative size above which a random column shows a direction clearly, and that below which it is rounding."""
ROUNDING = 1e-13
"""The size below which a coefficient is zero."""
FEW = 3
"""The number of equal agents that show what any number of them carry."""
PATTERNS, MOST_ROUNDS = 8, 32
"""The number of patterns of present agents that show what unequal agents carry, from nobody to everybody, and that of
outcomes of a round."""


class Coordinates(NamedTuple):
    """Maps of (server, memories of all agents) into reduced coordinates and out of them, at the start of a round.

    If no agent remembers anything that matters, memories are left out of both.
    """

    into: np.ndarray
    out_of: np.ndarray


_known: dict[int, tuple[Pieces, Coordinates]] = {}


def coordinates_of(every: Sequence[Pieces], M: int) -> Coordinates:
    """Returns coordinates that serve all pieces, which may have other step sizes, as random operators show them.

    Those of single pieces are kept, which other step sizes may share.
    """
    pieces = every[0]
    if len(every) > 1:
        return _coordinates_of(every, M)
    if id(pieces) not in _known:
        while len(_known) >= REMEMBERED:
            _known.pop(next(iter(_known)))
        _known[id(pieces)] = pieces, _coordinates_of(every, M)
    return _known[id(pieces)][1]


def _coordinates_of(every: Sequence[Pieces], M: int) -> Coordinates:
    pieces = every[0]
    p = len(pieces.server)
    if M > FEW and all(map(all_alike, every)):
        first, later = (_of_all(every, FEW, first=which) for which in (True, False))
        into, out_of, _ = _reduced(pieces, first, later, FEW)
        if not out_of[p:].any():
            return Coordinates(into[:, :p], out_of[:p])
    first, later = (_of_all(every, M, first=which) for which in (True, False))
    into, out_of, _ = _reduced(pieces, first, later, M)
    return Coordinates(into, out_of) if out_of[p:].any() else Coordinates(into[:, :p], out_of[:p])


def only_sums_matter(pieces: Pieces) -> bool:
    """Returns whether agents remember something that the server only sums: all do the same in one exchange a round."""
    M, alone = len(pieces.rounds[0][0].send), len(pieces.rounds) == len(pieces.rounds[0]) == 1
    if M <= FEW or not alone or len(pieces.memory) == 0 or pieces.absences[0] is not None:
        return False
    return (
        all(alike(steps) for steps in (*pieces.rounds, *pieces.first)) and len(server_coordinates(pieces)[0].memory) > 0
    )


def server_coordinates(pieces: Pieces) -> tuple[Pieces, Coordinates, np.ndarray, np.ndarray]:
    """Returns coordinates of the server's state $w$ alone, for agents that do the same, and what rounds conserve.

    These are pairs of rows $a$, $b$ such that $a\\,w + \\sum_i b\\,m_i = 0$ for the memories $m_i$ in every run. The
    memories are those of the first result, the same method whose agents remember no more than what matters.
    """
    p, q, M = len(pieces.server), len(pieces.memory), len(pieces.rounds[0][0].send)
    few = _of_all([pieces], FEW, first=False)
    _, out_of, reach = _reduced(pieces, few, few, FEW)
    basis = _grown(np.zeros((p, 0)), out_of[:p])
    memories = _grown(np.zeros((q, 0)), np.moveaxis(out_of[p:].reshape(FEW, q, -1), 0, 1).reshape(q, -1))
    sums = np.concatenate([reach[:p], reach[p:].reshape(FEW, q, -1).sum(0) * (M / FEW)])
    left, values, _ = np.linalg.svd(sums / np.linalg.norm(reach, axis=0))
    still = left[:, np.append(values, np.zeros(len(sums)))[: len(sums)] < CLEAR].T
    found = pieces.remembering(memories)
    return found, Coordinates(basis.T, basis), still[:, :p] @ basis, still[:, p:] @ memories


def _of_all(every: Sequence[Pieces], M: int, *, first: bool) -> list[list[Step]]:
    """Returns the rounds of all pieces, for `M` of their agents; for agents with roles, in several patterns of them."""
    found = []
    for pieces in every:
        rounds = [*zip(pieces.first if first else pieces.rounds, pieces.absences, strict=True)]
        if len(rounds) > MOST_ROUNDS:  # some of them show what all do
            rounds = [rounds[k] for k in np.random.default_rng(SEED).choice(len(rounds), MOST_ROUNDS, replace=False)]
        for steps, absence in rounds:
            here = [_fewer(step, M) for step in steps]
            if absence is None:
                found.append(here)
                continue
            if M <= FEW:
                patterns = np.array([*itertools.product([False, True], repeat=M)])
            else:
                patterns = np.random.default_rng(SEED).random((PATTERNS, M)) < np.linspace(0, 1, PATTERNS)[:, None]
            for present in patterns:
                roles = [
                    tuple(x if is_here else y for is_here, x, y in zip(present, step.parts, away[:M], strict=True))
                    for step, away in zip(here, absence.parts, strict=True)
                ]
                found.append([step._replace(parts=parts) for step, parts in zip(here, roles, strict=True)])
    return found


def all_alike(pieces: Pieces) -> bool:
    """Returns whether all agents do the same, present or absent."""
    away = [parts for absence in pieces.absences if absence is not None for parts in absence.parts]
    return all(map(alike, (*pieces.rounds, *pieces.first))) and all(len(set(map(_ids, parts))) == 1 for parts in away)


def alike(steps: Sequence[Step]) -> bool:
    """Returns whether all agents do the same in a round."""
    return all(len(set(map(_ids, step.parts))) == 1 and same(step.send) and same(step.gather) for step in steps)


def same(x: np.ndarray) -> bool:
    """Returns whether all entries along the first axis are equal."""
    return bool((x == x[:1]).all())


def _ids(ways: Sequence[Part]) -> tuple[int, ...]:
    return tuple(map(id, ways))


def _fewer(step: Step, M: int) -> Step:
    """Returns the exchange of only the first agents, which stand for all."""
    return step._replace(send=step.send[:M], parts=step.parts[:M], gather=step.gather[:M] * (len(step.send) / M))


def _reduced(
    pieces: Pieces, first: Sequence[Sequence[Step]], later: Sequence[Sequence[Step]], M: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the maps into reduced coordinates and out of them, and a basis of what a run reaches."""
    p, q, rng = len(pieces.server), len(pieces.memory), np.random.default_rng(SEED)
    n, units = p + M * q, np.ones(p + M * q)

    def drawn(step: Step) -> np.ndarray:
        """A random exchange as a map of (z, 1), in `units`, in which operators move the next point by about one."""
        sizes = {number: size for ways in step.parts for way in ways for number, size in _sizes(way)}
        slopes, added = rng.standard_normal((2, M, max(sizes, default=-1) + 1, 1))
        mix = [rng.dirichlet(np.ones(len(ways))) for ways in step.parts]
        columns, one = np.eye(n, n + 1), np.eye(n + 1)[-1]

        def operator(agents: np.ndarray, call: int, points: np.ndarray) -> np.ndarray:
            return (0.5 * slopes[agents, call] * points + added[agents, call] * one) / sizes[call]

        w, m = apply(step, columns[:p], columns[p:].reshape(M, q, n + 1), operator, mix)
        w[:, -1] += step.noise @ rng.standard_normal(step.noise.shape[1])
        return np.concatenate([w, m.reshape(M * q, n + 1)]) / units[:, None] * np.append(units, 1.0)

    def round(steps: Sequence[Step]) -> np.ndarray:
        map = np.eye(n + 1)
        for step in steps:
            map = np.concatenate([drawn(step), np.eye(n + 1)[-1:]]) @ map
        return map[:-1]

    begun = np.concatenate([pieces.server, np.tile(pieces.memory, M)])
    visited = [begun]
    for steps in (*first, *later, *later):
        map = round(steps)
        visited.append(map[:, :-1] @ visited[-1] + map[:, -1])
    largest = np.abs(visited).max(0)
    # Memories may be large with the inverse of the step size; powers of 2 change no digits.
    units = 2.0 ** np.round(np.log2(np.where(largest > 0, largest, 1.0)))
    reach, quiet, turn = _grown(np.zeros((n, 0)), (begun / units)[:, None]), 0, 0
    while quiet < DRAWS:
        before = reach.shape[1]
        for steps in later if turn else first:
            map = round(steps)
            reach = _grown(reach, np.concatenate([map[:, :-1] @ reach, map[:, -1:]], axis=1))
        turn += 1
        quiet = quiet + 1 if before == reach.shape[1] else 0
    shown = np.concatenate([pieces.show, np.zeros(M * q)])
    seen, quiet = _grown(np.zeros((n, 0)), (units * shown)[:, None]), 0
    while quiet < DRAWS:
        before = seen.shape[1]
        for steps in (*later, *first):
            seen = _grown(seen, round(steps)[:, :-1].T @ seen)
        quiet = quiet + 1 if before == seen.shape[1] else 0
    W = reach @ _grown(np.zeros((reach.shape[1], 0)), reach.T @ seen)
    into, out_of = W.T / units, units[:, None] * W
    return into, np.where(np.abs(out_of) > ROUNDING * np.abs(out_of).max(), out_of, 0.0), units[:, None] * reach


def _sizes(way: Part) -> Iterator[tuple[int, float]]:
    """Yields the number of each call, and how far its value moves the next point, or else the least that it moves."""
    for call, later in itertools.zip_longest(way.calls, way.calls[1:]):
        enter = np.abs(call.enter)
        moved = enter[enter > ROUNDING * enter.max(initial=0.0)]
        least = float(moved.min()) if len(moved) else 1.0
        yield call.number, max(least, float(abs(later.point @ call.enter)) if later is not None else 0.0)


def _grown(basis: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns an orthonormal basis that also spans the columns, as far as they clearly leave what was spanned.

    A direction that one column hardly shows would be inaccurate; other random columns show it better.
    """
    sizes = np.linalg.norm(columns, axis=0)
    more = sizes > FAINT * sizes.max(initial=0.0)
    rest = columns[:, more] / sizes[more]
    for _ in range(2):  # two passes are sufficient against rounding
        rest = rest - basis @ (basis.T @ rest)
    left, values, _ = np.linalg.svd(rest, full_matrices=False)
    found = np.concatenate([basis, left[:, values > CLEAR]], axis=1)
    return np.eye(len(found)) if found.shape[1] == len(found) else found
