"""Messages by way of Flower's grid: from the server's app to the nodes' apps and back."""

import time
from collections.abc import Callable, Iterator, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from ..journal import PREFIX
from ..transport import AbstractTransport
from ..wire import RejectedError, unpack
from .client import unwrap, wrap

POLL = 0.2
"""Seconds between looks for replies; Flower's own `send_and_receive` looks every three."""
AGAIN = 180.0
"""Seconds after which a message that got no answer is sent once more."""
STRANGE = 60.0
"""Seconds after which a node that could not identify itself is asked again: it may have been repaired."""
GREETING = 60.0
"""Seconds that the first nodes have to identify themselves."""
TYPE = "query.fedhsa"


def print_for_user(words: str) -> None:
    """Prints a line in the server's output, which Flower carries to whoever started the run."""
    print(PREFIX + words, flush=True)


class FlowerTransport(AbstractTransport):
    """Reaches the nodes of a Flower federation, whose answers say which agents they have.

    **Arguments:**

    - `grid`: Flower's.
    - `hello`: makes the message that asks a node who it is.
    - `site_of`: the site that begins with an agent.
    """

    name = "flower"
    pause = 2.0

    def __init__(self, grid: Grid, hello: Callable[[], bytes], site_of: Mapping[int, int]):
        self.grid, self.hello, self.site_of = grid, hello, site_of
        self.node_of: dict[int, int] = {}
        """The node of each site that has said who it is."""
        self._troubles: dict[int, str] = {}
        self._open: dict[str, int] = {}  # messages that may still be answered, and the nodes they went to
        self._greeted: dict[str, int] = {}  # messages that ask nodes who they are
        self._refusals: dict[int, tuple[str, str, int]] = {}  # by site: code and reason, and how often in a row
        self._strange: dict[int, float] = {}  # nodes that are no site of this run, and when to ask them again

    def present(self) -> set[int]:
        online, now = set(self.grid.get_node_ids()), time.monotonic()
        self.node_of = {site: node for site, node in self.node_of.items() if node in online}
        known = {*self.node_of.values(), *self._greeted.values()}
        strange = {node for node, again in self._strange.items() if now < again}
        self._greeted |= self._push(dict.fromkeys(online - known - strange, self.hello()))
        # Whoever is here already need not wait for newcomers; only the first of all are waited for.
        deadline = now if self.node_of else now + GREETING
        self._welcome()
        while self._greeted and time.monotonic() < deadline:
            time.sleep(POLL)
            self._welcome()
        return set(self.node_of)

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[bytes]:
        deadline = time.monotonic() + min(seconds, AGAIN)
        if messages.keys() - self.node_of.keys():
            self.present()
        nodes = {self.node_of[site]: data for site, data in messages.items() if site in self.node_of}
        for site in messages.keys() - self.node_of.keys():
            self._troubles.setdefault(site, "the node is not connected")
        for site in messages.keys() & self.node_of.keys():
            self._troubles.pop(site, None)
        waiting = self._push(nodes).keys()
        while waiting & self._open.keys() and time.monotonic() < deadline:
            yield from self._pull()
            if waiting & self._open.keys():
                time.sleep(POLL)

    def trouble(self, site: int) -> str | None:
        return self._troubles.get(site)

    def hopeless(self, site: int) -> str | None:
        code, reason, times = self._refusals.get(site, ("", "", 0))
        return reason if code == "mismatch" or times > 1 else None

    def _welcome(self) -> None:
        """Hears those nodes that have said by now who they are."""
        for reply in self._receive(self._greeted):
            self._introduce(self._greeted[reply.metadata.reply_to_message_id], unwrap(reply.content))
        self._greeted = {message: node for message, node in self._greeted.items() if message in self._open}

    def _introduce(self, node: int, data: bytes) -> None:
        try:
            header = unpack(data, 0).header
        except RejectedError:
            header = {}
        first = header.get("first")
        named = self.site_of.get(first) if type(first) is int else None
        site = named if header.get("kind") == "present" else None
        if site is None:
            reason = str(header.get("reason", "it does not speak our language"))[:300]
            times = 0
            if named is not None:
                code = str(header.get("code", ""))
                before = self._refusals.get(named, ("", "", 0))
                times = 1 + before[2] * (before[:2] == (code, reason))
                self._refusals[named], self._troubles[named] = (code, reason, times), reason
            # What fails once is asked again soon: if it then fails in the same way, nobody need wait for it.
            self._strange[node] = time.monotonic() + (self.pause if times == 1 else STRANGE)
            if times < 2:
                print_for_user(f"Node {node} does not take part: {reason}")
        elif site in self.node_of and self.node_of[site] != node:
            self._strange[node] = time.monotonic() + STRANGE
            print_for_user(f"Node {node} says it is agent {first}, which node {self.node_of[site]} is.")
        else:
            self.node_of[site] = node
            self._refusals.pop(site, None)

    def _push(self, nodes: Mapping[int, bytes]) -> dict[str, int]:
        """Sends messages to nodes; gives their ids, and the nodes they went to."""
        messages = [Message(wrap(data), node, TYPE) for node, data in nodes.items()]
        if not messages:
            return {}
        ids = list(self.grid.push_messages(messages))
        sent = {name: node for name, node in zip(ids, nodes, strict=True) if name}
        self._open |= sent
        return sent

    def _pull(self) -> Iterator[bytes]:
        asked = {message: node for message, node in self._open.items() if message not in self._greeted}
        for reply in self._receive(asked):
            yield unwrap(reply.content)

    def _receive(self, messages: Mapping[str, int]) -> list[Message]:
        """Replies to these messages; an error that Flower reports for a node is its site's trouble."""
        replies = []
        for reply in list(self.grid.pull_messages(list(messages))):
            node = self._open.pop(reply.metadata.reply_to_message_id, None)
            if reply.has_content():
                replies.append(reply)
                continue
            for site in [site for site, known in self.node_of.items() if known == node]:
                self._troubles[site] = f"Flower says: {reply.error.reason or f'error {reply.error.code}'}"
                del self.node_of[site]  # if it comes back, it may be under another id
        return replies
