"""Messages over Flower's grid, from the server's app to the nodes and back."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from flwr.serverapp import Grid

from ..journal import PREFIX
from ..signing import Identity, Trust, node_name, node_number
from ..transport import AbstractTransport, Refusals
from ..wire import RejectedError, unpack, words
from .fleet import Mailbox, Replied

SOONEST, LATEST = 0.02, 0.5
"""Seconds between checks for replies, longer while none arrive; Flower's `send_and_receive` checks every three."""
AGAIN, LONGEST = 15.0, 180.0
"""Seconds after which an unanswered message is sent again, at first and at most."""
STRANGE = 60.0
"""Seconds after which a node that could not identify itself is asked again: it may have been repaired."""
GREETING = 60.0
"""Seconds that the first nodes have to identify themselves."""


def print_for_user(words: str) -> None:
    """Prints a line in the server's output, which Flower shows to the user who started the run."""
    print(PREFIX + words, flush=True)


class FlowerTransport(AbstractTransport):
    """Reaches the nodes of a Flower federation, each with one agent, which its answers state.

    **Arguments:**

    - `grid`: Flower's grid.
    - `hello`: a function that makes the message that asks a node to identify itself.
    - `num_sites`: the number of agents, each of which is a site.
    - `keys`: the server's folder with keys. Requests are signed, and replies are accepted only if the right node has
      signed them, so that the owner of the SuperLink can forge neither. Without keys, Flower is trusted.
    """

    name = "flower"
    pause = 2.0

    def __init__(self, grid: Grid, hello: Callable[[], bytes], num_sites: int, keys: str | os.PathLike | None = None):
        self.mail, self.hello, self.num_sites = Mailbox(grid), hello, num_sites
        self._identity = None if keys is None else Identity.load(keys)
        self._trust = None if keys is None else Trust.load(keys)
        # Seconds that replies take; older replies, such as the first with its compilation, count less.
        self._slowest = 0.0
        # By site: the unanswered request, and its number of repetitions.
        self._unanswered: dict[int, tuple[bytes, int]] = {}
        self.node_of: dict[int, int] = {}
        """The node of each site that has identified itself."""
        self._troubles: dict[int, str] = {}
        self._open: dict[str, int] = {}  # messages that may still be answered, and their nodes
        self._greeted: dict[str, tuple[int, float]] = {}  # messages that ask nodes to identify themselves, and when
        self._refusals = Refusals()
        self._strange: dict[int, float] = {}  # nodes that are no site of this run, and the time to ask them again

    def present(self) -> set[int]:
        online, now = self.mail.nodes(), time.monotonic()
        self.node_of = {site: node for site, node in self.node_of.items() if node in online}
        # The greeting of a node that was killed is lost.
        for name in [name for name, (_, at) in self._greeted.items() if now > at + max(AGAIN, 10 * self._slowest)]:
            del self._greeted[name]
            self._open.pop(name, None)
        known = {*self.node_of.values(), *(node for node, _ in self._greeted.values())}
        strange = {node for node, again in self._strange.items() if now < again}
        sent = self._push(dict.fromkeys(online - known - strange, self.hello()))
        self._greeted |= {name: (node, now) for name, node in sent.items()}
        # The server waits for the first nodes only; nodes that are present do not wait for later ones.
        deadline = now if self.node_of else now + GREETING
        self._welcome()
        for _ in _looks(deadline):
            if not self._greeted:
                break
            self._welcome()
        return set(self.node_of)

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[bytes]:
        if messages.keys() - self.node_of.keys():
            self.present()
        began = time.monotonic()
        deadline = began + min(seconds, self._patience(messages))
        nodes = {self.node_of[site]: data for site, data in messages.items() if site in self.node_of}
        for site in messages.keys() - self.node_of.keys():
            self._troubles.setdefault(site, "the node is not connected")
        for site in messages.keys() & self.node_of.keys():
            self._troubles.pop(site, None)
        waiting = self._push(nodes).keys()
        self._slowest /= 2
        for _ in _looks(deadline):
            if not waiting & self._open.keys():
                break
            for data in self._pull():
                self._slowest = max(self._slowest, time.monotonic() - began)
                yield data

    def _patience(self, messages: Mapping[int, bytes]) -> float:
        """Seconds to wait before a request is repeated, since the message to a node that was killed is lost."""
        times = {site: self._unanswered.get(site, (b"", 0)) for site in messages}
        before = [count for site, (data, count) in times.items() if data == messages[site]]
        count = min(before) if len(before) == len(messages) else 0
        self._unanswered = {site: (data, count + 1) for site, data in messages.items()}
        return min(max(AGAIN, 10 * self._slowest) * 2**count, LONGEST)

    def trouble(self, site: int) -> str | None:
        return self._troubles.get(site)

    def hopeless(self, site: int) -> str | None:
        return self._refusals.lasting(site)

    def _welcome(self) -> None:
        """Reads the answers of nodes that have identified themselves."""
        for reply in self._receive(self._greeted):
            node, _ = self._greeted[reply.to]
            data, signer = reply.data or b"", None
            try:
                if self._trust is not None:
                    name = self._trust.signer(data)
                    data, signer = self._trust.open(data, name), node_number(name)
                self._introduce(node, data, signer)
            except RejectedError as rejected:
                self._reject(node, rejected.reason)
        self._greeted = {message: asked for message, asked in self._greeted.items() if message in self._open}

    def _reject(self, node: int, reason: str) -> None:
        self._strange[node] = time.monotonic() + STRANGE
        print_for_user(f"Node {node} does not take part: {reason}")

    def _introduce(self, node: int, data: bytes, signer: int | None = None) -> None:
        """Reads a node's answer to the greeting; `signer` is the agent whose key signed it, or None without keys."""
        try:
            header = unpack(data, 0).header
        except RejectedError:
            header = {}
        first = header.get("first")
        if signer is not None and first != signer:
            self._reject(node, f"it has the key of agent {signer}, and says that it is another")
            return
        named = first if type(first) is int and 0 <= first < self.num_sites else None
        site = named if header.get("kind") == "present" else None
        if site is None:
            reason = words(header.get("reason"), "it does not speak our language")
            times = 0
            if named is not None:
                times = self._refusals.note(named, reason, str(header.get("code", "")))
                self._troubles[named] = reason
            self._strange[node] = time.monotonic() + (self.pause if times == 1 else STRANGE)
            if times < 2:
                print_for_user(f"Node {node} does not take part: {reason}")
        elif site in self.node_of and self.node_of[site] != node:
            self._reject(node, f"it says that it is agent {first}, which node {self.node_of[site]} is")
        else:
            self.node_of[site] = node
            self._refusals.pop(site, None)

    def _push(self, nodes: Mapping[int, bytes]) -> dict[str, int]:
        """Sends messages to nodes; returns the messages' ids and their nodes."""
        if not nodes:
            return {}
        sign = (lambda data: data) if self._identity is None else self._identity.sign
        signed = {data: sign(data) for data in {*nodes.values()}}  # a greeting is the same for all
        sent = self.mail.push({node: signed[data] for node, data in nodes.items()})
        self._open |= sent
        return sent

    def _pull(self) -> Iterator[bytes]:
        asked = {message: node for message, node in self._open.items() if message not in self._greeted}
        for reply in self._receive(asked):
            data = reply.data or b""
            if self._trust is not None:
                site = self._site_at(asked[reply.to])
                if site is None:
                    continue
                try:
                    data = self._trust.open(data, node_name(site))
                except RejectedError as rejected:
                    self._troubles[site] = rejected.reason
                    print_for_user(f"A reply in the name of agent {site} was refused: {rejected.reason}")
                    continue
            yield data

    def _site_at(self, node: int) -> int | None:
        return next((site for site, known in self.node_of.items() if known == node), None)

    def _receive(self, messages: Collection[str]) -> list[Replied]:
        """The replies to these messages; an error that Flower reports for a node counts as a failure of its site."""
        replies = []
        for reply in self.mail.pull(messages) if messages else []:
            node = self._open.pop(reply.to, None)
            if reply.data is not None:
                replies.append(reply)
            elif (site := None if node is None else self._site_at(node)) is not None:
                self._troubles[site] = f"Flower says: {reply.error}"
                del self.node_of[site]  # if it returns, it may have another id
        return replies


def _looks(deadline: float) -> Iterator[None]:
    """Yields repeatedly until the deadline: soon at first, and less often if a check takes long."""
    pause = SOONEST
    while True:
        began = time.monotonic()
        yield
        now = time.monotonic()
        if now >= deadline:
            return
        time.sleep(min(max(pause, (now - began) / 2), LATEST, deadline - now))
        pause *= 1.2
