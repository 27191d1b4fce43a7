"""A transport to sites in the same process, with faults of messages and sites for tests."""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from .site import Site
from .transport import AbstractTransport

FAULTS = (
    *("lose request", "lose reply", "repeat request", "repeat reply", "late request", "late repeat", "late reply"),
    *("garble request", "garble reply", "kill received", "kill computed", "kill saved"),
)
"""The kinds of faults: a message is lost, repeated, late or changed, or its site is killed while it answers.

A late request or repeat arrives with the messages of a later exchange, before or after them.
"""


class Killed(BaseException):
    """Simulates the sudden end of the process of a site or a server."""


@dataclasses.dataclass
class Faults:
    """Faults that `MemoryTransport` injects, message by message.

    **Arguments:**

    - `probability`: the probability of a fault for each message.
    - `kinds`: the possible faults, from `FAULTS`, each with the same probability.
    - `seed`: the seed of the random faults.
    - `schedule`: instead of random faults, a sequence with a fault or None for each message in turn. Messages after
      its end have no faults.
    - `reorder`: whether replies arrive in random order.

    Raises `ValueError` if a fault is not in `FAULTS`.

    !!! example
        >>> faults = Faults(schedule=[None, "lose reply"])
        >>> faults.next(), faults.next(), faults.next(), faults.happened
        (None, 'lose reply', None, ['lose reply'])
    """

    probability: float = 0.2
    kinds: Sequence[str] = FAULTS
    seed: int = 0
    schedule: Sequence[str | None] | None = None
    reorder: bool = True

    def __post_init__(self):
        for kind in (*self.kinds, *(kind for kind in self.schedule or () if kind is not None)):
            if kind not in FAULTS:
                raise ValueError(f"`kinds` must be among {', '.join(FAULTS)}, got {kind!r}.")
        self._random = random.Random(self.seed)
        self._left = None if self.schedule is None else list(self.schedule)
        self.happened: list[str] = []
        """The faults so far."""

    def next(self) -> str | None:
        """Returns the fault of the next message, or None."""
        if self._left is not None:
            kind = self._left.pop(0) if self._left else None
        else:
            kind = self._random.choice(self.kinds) if self._random.random() < self.probability else None
        if kind is not None:
            self.happened.append(kind)
        return kind

    def shuffle(self, replies: list[bytes]) -> None:
        if self.reorder:
            self._random.shuffle(replies)

    def cut(self, count: int) -> int:
        """Returns the number of late messages, of `count`, that arrive before the others."""
        return self._random.randrange(count + 1) if count else 0

    def garble(self, data: bytes) -> bytes:
        """Returns the message with one byte changed, or truncated."""
        position = self._random.randrange(len(data))
        if self._random.random() < 0.5:
            return data[:position]
        return data[:position] + bytes([data[position] ^ (1 + self._random.randrange(255))]) + data[position + 1 :]


class MemoryTransport(AbstractTransport):
    """Passes messages to sites in this process. `in_memory` and `federate` make one.

    **Arguments:**

    - `start`: a function that takes a site's number and builds the site, which continues from its saved state.
    - `num_sites`: the number of sites.
    - `faults`: the faults of messages and sites. Default: none.
    """

    name = "memory"

    def __init__(self, start: Callable[[int], Site], num_sites: int, faults: Faults | None = None):
        self.start, self.faults = start, faults or Faults(schedule=[], reorder=False)
        self.sites: dict[int, Site] = {}
        self.absent: set[int] = set()
        """Sites that cannot be reached, until they are removed from this set."""
        self.num_sites = num_sites
        self._late: list[bytes] = []
        self._held: list[tuple[int, bytes]] = []

    def present(self) -> set[int]:
        return set(range(self.num_sites)) - self.absent

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[bytes]:
        arrived, self._late = self._late, []
        held, self._held = self._held, []
        before = held[: self.faults.cut(len(held))]
        arrived += [self._ask(site, message) for site, message in before if site not in self.absent]
        for site, message in messages.items():
            if site not in self.absent:
                arrived += self._deliver(site, message)
        arrived += [self._ask(site, message) for site, message in held[len(before) :] if site not in self.absent]
        self.faults.shuffle(arrived)
        yield from arrived

    def _deliver(self, site: int, message: bytes) -> list[bytes]:
        fault = self.faults.next()
        if fault in ("late request", "late repeat"):
            self._held.append((site, message))
        match fault:
            case "lose request" | "late request":
                return []
            case "garble request":
                return [self._ask(site, self.faults.garble(message))]
            case "repeat request":
                return [self._ask(site, message), self._ask(site, message)]
            case "kill received" | "kill computed" | "kill saved":
                self._ask_and_kill(site, message, fault.removeprefix("kill "))
                return []
        reply = self._ask(site, message)
        match fault:
            case "lose reply":
                return []
            case "garble reply":
                return [self.faults.garble(reply)]
            case "repeat reply":
                return [reply, reply]
            case "late reply":
                self._late.append(reply)
                return []
        return [reply]

    def _started(self, site: int) -> Site:
        if site not in self.sites:
            self.sites[site] = self.start(site)
        return self.sites[site]

    def _ask(self, site: int, message: bytes) -> bytes:
        return self._started(site).answer(message)

    def _ask_and_kill(self, site: int, message: bytes, when: str) -> None:
        def die(phase: str) -> None:
            if phase == when:
                raise Killed

        self._started(site).phase = die
        try:
            with contextlib.suppress(Killed):
                self.sites[site].answer(message)
        finally:
            del self.sites[site]
