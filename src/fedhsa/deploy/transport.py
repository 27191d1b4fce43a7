"""The interface of transports, which carry bytes between the server and numbered sites without any guarantee."""

import abc
from collections.abc import Iterator, Mapping
from typing import ClassVar


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
