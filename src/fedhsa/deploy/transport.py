"""What a transport is: it carries bytes between the server and numbered sites, without any guarantee."""

import abc
from collections.abc import Iterator, Mapping
from typing import ClassVar


class AbstractTransport(abc.ABC):
    """Carries messages to sites and their answers back.

    Messages may be lost, late, repeated, reordered or garbled: server and sites handle that. A transport may also
    explain why a site did not answer, with `trouble`.
    """

    pause: float = 0.0
    """Seconds to wait before asking again when nothing came back."""

    name: ClassVar[str]
    """What the transport is called in results."""

    @abc.abstractmethod
    def present(self) -> set[int]:
        """The sites that can be reached now, as far as is known."""

    @abc.abstractmethod
    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[bytes]:
        """Sends each site its message and yields what comes back, in any order, until nothing more will come.

        Ends when every site has answered, at the latest after `seconds`. What it gives may stem from an earlier
        exchange.
        """

    def trouble(self, site: int) -> str | None:
        """Why the site did not answer, where that is known."""
        return None

    def hopeless(self, site: int) -> str | None:
        """Why asking the site again would not help, where that is known."""
        return None
