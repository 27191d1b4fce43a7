"""The interface of transports, which carry bytes between the server and numbered sites without any guarantee."""

import abc
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple


class Refusal(NamedTuple):
    """The last refusal of a site."""

    code: str
    reason: str
    times: int
    """How often the site has refused in this way without interruption."""


class Refusals(dict[int, Refusal]):
    """The last refusals by site, and the rule for repeated ones.

    A first refusal may be temporary. A site that refuses again in the same way would probably do so for ever, and so
    would a site whose agent does not fit the plan: nobody waits for these sites.

    !!! example
        >>> refusals = Refusals()
        >>> refusals.note(3, "a full disk"), refusals.lasting(3)
        (1, None)
        >>> refusals.note(3, "a full disk"), refusals.lasting(3)
        (2, 'a full disk')
    """

    def note(self, site: int, reason: str, code: str = "") -> int:
        """Records a refusal; returns the number of consecutive equal ones."""
        before = self.get(site)
        times = 1 if before is None or (before.code, before.reason) != (code, reason) else before.times + 1
        self[site] = Refusal(code, reason, times)
        return times

    def lasting(self, site: int) -> str | None:
        """Returns the reason of a refusal that waiting does not change, or None."""
        last = self.get(site)
        return last.reason if last is not None and (last.code == "mismatch" or last.times > 1) else None


class AbstractTransport(abc.ABC):
    """Carries messages to sites and their answers back.

    Messages may be lost, late, repeated, reordered or garbled: server and sites handle that. A transport may also
    explain why a site did not answer, with `trouble`.
    """

    pause: float = 0.0
    """Seconds to wait before repeating a request that was not answered."""

    name: ClassVar[str]
    """The name of the transport in results."""

    @abc.abstractmethod
    def present(self) -> set[int]:
        """The sites that can be reached now, as far as is known."""

    @abc.abstractmethod
    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[bytes]:
        """Sends each site its message and yields the answers, in any order.

        Ends when every site has answered, and at the latest after `seconds`. Answers to an earlier exchange may be
        among those yielded.
        """

    def trouble(self, site: int) -> str | None:
        """Returns the reason why the site did not answer, if it is known."""
        return None

    def hopeless(self, site: int) -> str | None:
        """Returns the reason why repeating the request would not help, if there is one."""
        return None
