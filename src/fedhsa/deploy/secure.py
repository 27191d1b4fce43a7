"""Secure aggregation: sites mask their replies, the masks cancel in the sum, and the server learns only the sum.

`check` rejects unsupported methods, `Secure` contains a site's settings, and `Masking` is a site's part in one run. The
server needs no secret: it forwards the sites' public keys and adds their masked replies.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _check, tree
from .._types import precision
from ..algorithms import AbstractAlgorithm, FixedPoint
from ..algorithms.base import Coded, PerAgent
from ..algorithms.demands import ON_THE_WAY, Effect, before_rounding
from ..algorithms.fixed_point import TOO_LARGE
from ..algorithms.trace import exchange_shapes
from ..algorithms.wrapper import AbstractWrapper
from .fit import MismatchError
from .masks import KEY_BYTES, Cohort, KeyPair, Member, label
from .missing import Missing
from .schema import Schema
from .task import Task
from .wire import Packet, RejectedError, dtype_name

if TYPE_CHECKING:
    from .signing import Identity, Trust

KEYS, ROSTER = "keys", "roster"
"""Two kinds of messages: the first requests a site's public key, the second contains the keys of the whole cohort."""
OFFER, ACCEPTED = "offer", "accepted"
"""The kinds of answers to these messages."""
AGENTS = "secure/agents"
"""The array with the number of agents in a masked reply; its sum shows the server whether all masks have cancelled."""
PURPOSE = "secure aggregation"
HEAVIEST = 10
"""The largest ratio of the largest to the smallest agent weight."""
REFUSALS = 10
"""The largest number of out-of-range answers of a site in a run, since each reveals something about this site."""
OFFER_BYTES = 4096
"""The longest signed key that is read: a certificate, a signature and a few facts."""


def whole(algorithm: AbstractAlgorithm, bits: int | None = None) -> AbstractAlgorithm:
    """The algorithm with whole numbers as replies, as masks require."""
    if any(exchange.sum_bits is None for exchange in algorithm.exchanges):
        return FixedPoint(algorithm) if bits is None else FixedPoint(algorithm, bits)
    return algorithm


def check(task: Task, missing: Missing, num_sites: int) -> None:
    """Raises if a sum would not hide single agents, or if the method needs more than sums."""
    if num_sites < 2:
        raise ValueError("`secure_aggregation` needs at least two sites: the sum of one is what that one sent.")
    for exchange, (message, reply) in zip(task.algorithm.exchanges, task.shapes, strict=True):
        if exchange.sum_bits is None:
            raise ValueError(
                f"`secure_aggregation` needs replies that add up, but those of exchange {exchange.name!r} are not "
                "whole numbers. Put FixedPoint(...) around the method."
            )
        kinds = jax.tree.leaves((message, reply), is_leaf=lambda x: isinstance(x, PerAgent | Coded))
        if any(isinstance(kind, PerAgent) for kind in kinds):
            raise ValueError(
                "`secure_aggregation` is not supported with messages that differ between agents: a server could send "
                "one agent a different request, and recognise its answer in the sum. Exchange "
                f"{exchange.name!r} has such messages; use FedHSA, LocalSA or SCAFFOLD."
            )
        if any(isinstance(kind, Coded) for kind in kinds):
            raise ValueError(_on_the_way("coded replies"))
        weights = exchange.mean_weights
        if weights is not None and (ratio := float(np.max(weights) / np.min(weights))) > HEAVIEST:
            raise ValueError(
                f"`weights` may differ by a factor of {HEAVIEST} with secure aggregation, got {ratio:.3g}: the sum "
                "would be little else than the reply of the heaviest agent. Use weights that are more alike."
            )
    for layer in task.algorithm.layers:
        if layer.effects & ON_THE_WAY:
            raise ValueError(_on_the_way(type(layer).__name__))
    _check_alike(task)
    if missing.action == "skip" and remembers(task):
        raise ValueError(
            "`secure_aggregation` with `missing='skip'` is for methods whose agents remember nothing from round to "
            "round, like FedHSA and LocalSA: agents that were absent remember something else than the others, and no "
            "site could tell whether all were asked the same. Use 'wait'."
        )
    if missing.action == "skip" and missing.at_least < 2:
        raise ValueError(
            "`at_least` must be at least 2 with `secure_aggregation` and 'skip': the sum of one agent is what it sent."
        )


class _Anonymous(AbstractWrapper):
    """The algorithm with agents that do not have their numbers."""

    algorithm: AbstractAlgorithm

    effects = Effect.NOTHING

    @property
    def exchanges(self):
        def unnumbered(exchange):
            def local(message, memory, agent, block, round):
                return exchange.local(message, memory, agent, block, round._replace(agent=object()))

            return exchange._replace(local=local)

        return tuple(unnumbered(exchange) for exchange in self.algorithm.exchanges)


def _check_alike(task: Task) -> None:
    """Raises if agents compute differently by their numbers: agents with known replies would expose the others."""
    weighted = any(exchange.mean_weights is not None for exchange in task.algorithm.exchanges)
    # Weights depend on numbers, and are checked separately.
    algorithm = before_rounding(task.settings) if weighted else task.settings
    with precision(task.dtype):
        example = None if task.example is None else tree.to_device(task.example, task.dtype)
        theta = jnp.asarray(task.theta, task.dtype)
        try:
            exchange_shapes(_Anonymous(algorithm), theta, task.num_agents, example)
        except Exception:  # tracing succeeded with numbers
            names = ", ".join(type(layer).__name__ for layer in before_rounding(task.algorithm).layers)
            raise ValueError(
                f"`secure_aggregation` needs agents that all do the same, and those of {names} do different things by "
                "their numbers: if some send what everybody knows, the sum tells what the others sent. Use equal "
                "settings for all, and no hostile agents."
            ) from None


def _on_the_way(what: str) -> str:
    return (
        f"`secure_aggregation` is not supported with {what}: its random choices follow from the run's key, which is "
        "public, so that a sum may contain the replies of few agents, or of one. Leave it out."
    )


def remembers(task: Task) -> bool:
    """Whether the agents of a method keep something from one round to the next."""
    with precision(task.dtype):
        memory = jax.eval_shape(lambda theta: task.settings.init(theta)[1], jnp.asarray(task.theta, task.dtype))
    return task.algorithm.memory_lasts and bool(jax.tree.leaves(memory))


@dataclasses.dataclass(frozen=True)
class Secure:
    """A site's settings for secure aggregation: its identity, the authority it trusts and its minimum cohort.

    **Arguments:**

    - `identity`: the site's certificate and key, with which it signs the key of a run.
    - `trust`: the authority whose certificates identify the other sites.
    - `minimum`: the smallest number of sites in a round in which the site takes part. Default: all agents of the run.
      With fewer, which `missing='skip'` requires, a server can compare sums with and without a site;
      docs/deploy/secure-aggregation.md describes what it learns from this.

    !!! example
        >>> import tempfile
        >>> from fedhsa.deploy.keys import make_keys
        >>> folder = make_keys(tempfile.mkdtemp() + "/federation", nodes=3)
        >>> Secure.load(folder / "node-1").identity.name
        'node-1'
    """

    identity: "Identity"
    trust: "Trust"
    minimum: int | None = None

    def __post_init__(self):
        if self.minimum is not None:
            _check.count("minimum_cohort", self.minimum, least=2, remedy="The sum of one site is what it sent.")

    @classmethod
    def load(cls, folder: str | os.PathLike, minimum: int | None = None) -> "Secure":
        """Reads the settings from a node's folder of keys.

        If it has a folder `peers` with certificates `node-0.crt`, `node-1.crt`, ..., only those keys are trusted, so
        that the holder of the authority's key cannot invent sites.
        """
        from .signing import Identity, Trust, read_certificate  # not before they are needed

        peers = pathlib.Path(folder) / "peers"
        authority = read_certificate(pathlib.Path(folder) / "ca.crt")
        return cls(Identity.load(folder), Trust(authority, peers if peers.is_dir() else None), minimum)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], number: int) -> "Secure":
        """Reads a node's settings `keys` (a folder; `{number}` stands for the agent's number) and `minimum_cohort`."""
        folder, minimum = config.get("keys"), config.get("minimum_cohort")
        if folder in (None, ""):
            raise MismatchError(
                "the run is with secure aggregation, for which this site needs keys: give their folder with `--keys`"
            )
        return cls.load(str(folder).replace("{number}", str(number)), None if minimum in (None, "") else int(minimum))


def rehearse(folder: str | os.PathLike, num_nodes: int) -> str:
    """Makes the keys of all nodes for a run that one person starts and can see entirely; returns their folder."""
    from .keys import make_keys

    if not pathlib.Path(folder).is_dir():
        make_keys(folder, nodes=num_nodes)
    return str(pathlib.Path(folder).absolute() / "node-{number}")


class Masking:
    """A site's part in secure aggregation during one run, for its agents `numbers`."""

    def __init__(self, secure: Secure, task: Task, run: str, numbers: np.ndarray):
        self.secure, self.task, self.run = secure, task, run
        self.first, self.agents = int(numbers[0]), len(numbers)
        if secure.identity.name != f"node-{self.first}":
            raise ValueError(
                f"The certificate is that of {secure.identity.name}, but the site's first agent is number "
                f"{self.first}. Use that agent's folder of keys."
            )
        check(task, Missing(), task.num_agents)
        self.remembers = remembers(task)
        self.renew()

    def renew(self) -> None:
        """Creates a new key, so that no mask is used for two values; the other sites must receive it."""
        self._keys, self.cohort = KeyPair(), None

    def offer(self) -> dict[str, np.ndarray]:
        """This site's public key, signed."""
        said = [self.run, self.task.digest, self.first, self.agents, self._keys.public.hex()]
        return {"offer": np.frombuffer(self.secure.identity.sign(json.dumps(said).encode(), PURPOSE), np.uint8)}

    def accept(self, arrays: Mapping[str, np.ndarray]) -> str:
        """Accepts the keys of a cohort if a trusted site has signed each of them; returns the cohort's digest."""
        members = [self._open(first, envelope) for first, envelope in read_roster(arrays).items()]
        own = Member(self.first, self.agents, self._keys.public)
        if own not in members:
            raise RejectedError("keys", "the key of this site is not, or no longer, among those of the cohort")
        if len({member.public for member in members}) < len(members):
            raise RejectedError("forged", "two sites have the same public key")
        taken = [number for m in members for number in range(m.first, m.first + m.agents)]
        if len(set(taken)) < len(taken) or max(taken) >= self.task.num_agents:
            raise RejectedError("forged", "the sites of the cohort share agents, or have more than the run")
        minimum, least = self.secure.minimum, max(2, self.secure.minimum or 0)
        if minimum is None and len(taken) < self.task.num_agents:
            raise RejectedError(
                "mismatch",
                f"this site answers only if all {self.task.num_agents} agents take part, and these are {len(taken)}; "
                "its owner can allow fewer with `--minimum-cohort`",
            )
        if len(members) < least:
            raise RejectedError(
                "mismatch",
                f"this site answers only among {least} or more (`--minimum-cohort`), and these are {len(members)}",
            )
        for member in members:
            if member != own:
                self._keys.share(member.public)
        self.cohort = Cohort(members)
        return self.cohort.digest

    def _open(self, first: int, envelope: bytes) -> Member:
        """The key that a site has signed for this run."""
        said = self.secure.trust.open(envelope, f"node-{first}", PURPOSE)
        try:
            run, task, number, agents, public = json.loads(said)
            key = bytes.fromhex(public)
        except (ValueError, TypeError, RecursionError):  # a site with a certificate may still send anything
            raise RejectedError("forged", f"what node-{first} has signed is not a key") from None
        if (run, task, number) != (self.run, self.task.digest, first):
            raise RejectedError("forged", f"the key of node-{first} was signed for another run")
        if type(agents) is not int or not 1 <= agents <= self.task.num_agents or len(key) != KEY_BYTES:
            raise RejectedError("forged", f"what node-{first} has signed is not a key")
        return Member(first, agents, key)

    def check(self, digest: Any, begun_with: str) -> None:
        """Raises if a request is not for the cohort that this site accepted, or for a second cohort in one round."""
        if self.cohort is None or digest != self.cohort.digest:
            raise RejectedError("keys", "this site does not know the keys of the round, or has a new one itself")
        if begun_with not in ("", self.cohort.names):
            raise RejectedError(
                "cohort",
                "this site has answered in this round among other sites, and answers among one set of them per round",
            )

    @property
    def members(self) -> str:
        """The members of the cohort as text, without their keys; raises if there is no cohort."""
        if self.cohort is None:
            raise RejectedError("keys", "this site does not know the keys of the round")
        return self.cohort.names

    def apply(self, arrays: dict[str, np.ndarray], facts: Sequence[Any]) -> dict[str, np.ndarray]:
        """The masked sum of the site's replies. `facts` distinguish it from every other masked value."""
        if self.cohort is None:
            raise RejectedError("keys", "this site does not know the keys of the round")
        sums = {name: array.view(np.uint64).sum(axis=0, keepdims=True) for name, array in arrays.items()}
        sums[AGENTS] = np.array([self.agents], np.uint64)
        what = label(self.run, self.task.digest, self.cohort.digest, *facts, [*sums])
        joined = np.concatenate([array.ravel() for array in sums.values()])
        masked = self._keys.mask(joined, self.first, self.cohort, what).view(np.int64)
        parts = np.split(masked, np.cumsum([array.size for array in sums.values()])[:-1])
        return {name: part.reshape(sums[name].shape) for name, part in zip(sums, parts, strict=True)}


def check_range(arrays: Mapping[str, np.ndarray], bits: int, num_agents: int, numbers: np.ndarray) -> None:
    """Raises if a reply has numbers that do not fit into the sum: they are not clipped."""
    beyond = [name for name, array in arrays.items() if (array == TOO_LARGE).any()]
    if beyond:
        rows = [(arrays[name] == TOO_LARGE).reshape(len(numbers), -1).any(axis=1) for name in beyond]
        raise RejectedError(
            "diverged",
            f"its reply {beyond[0]!r} has numbers beyond {2.0 ** (62 - bits) / num_agents:.4g}, the largest for "
            f"{num_agents} agents and {bits} bits behind the point, or not finite. Is the step too large? Else use "
            "fewer bits (`--fixed-point-bits`)",
            diverged=numbers[np.any(rows, axis=0)].tolist(),
        )


def message_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The digest of a message's arrays, which is equal at sites that received equal arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, dtype_name(array), list(array.shape)]).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def chain(past: str, messages: Sequence[str]) -> str:
    """The digest of all messages to a site in the rounds that counted."""
    return hashlib.sha256(json.dumps([past, *messages]).encode()).hexdigest()


def make_roster(offers: Mapping[int, bytes]) -> dict[str, np.ndarray]:
    """The signed keys of a cohort as arrays, by the number of each site's first agent."""
    firsts = sorted(offers)
    joined = b"".join(offers[first] for first in firsts)
    sizes = [len(offers[first]) for first in firsts]
    return {"firsts": np.array(firsts), "sizes": np.array(sizes), "offers": np.frombuffer(joined, np.uint8)}


def read_roster(arrays: Mapping[str, np.ndarray]) -> dict[int, bytes]:
    """The signed keys in the arrays that `make_roster` returned; raises if the arrays are anything else."""
    if sorted(arrays) != ["firsts", "offers", "sizes"] or any(array.ndim != 1 for array in arrays.values()):
        raise RejectedError("malformed", "not a list of signed keys")
    firsts, sizes, joined = (arrays[name] for name in ("firsts", "sizes", "offers"))
    kinds = [array.dtype.name for array in (firsts, sizes, joined)]
    if kinds != ["int64", "int64", "uint8"] or len(firsts) != len(sizes) or len(set(firsts.tolist())) < len(firsts):
        raise RejectedError("malformed", "not a list of signed keys, one for each site")
    if (firsts < 0).any() or (sizes < 0).any() or (sizes > OFFER_BYTES).any() or sizes.sum() != len(joined):
        raise RejectedError("malformed", "the signed keys have other sizes than the list says")
    ends = np.cumsum(sizes)
    data = joined.tobytes()
    return {int(f): data[end - size : end] for f, size, end in zip(firsts, sizes.tolist(), ends.tolist(), strict=True)}


def read_offer(packet: Packet) -> bytes:
    """The signed key in a site's answer, unchecked, since the sites check it."""
    offer = packet.arrays.get("offer")
    if offer is None or offer.dtype != np.uint8 or offer.ndim != 1 or not 0 < len(offer) <= OFFER_BYTES:
        raise RejectedError("malformed", "the answer has no signed key")
    return offer.tobytes()


def read_accepted(packet: Packet) -> str:
    """The digest of the cohort that a site has accepted."""
    digest = packet.header.get("cohort")
    if not isinstance(digest, str) or len(digest) != 64:
        raise RejectedError("malformed", "the answer does not say which cohort was accepted")
    return digest


def read_masked(arrays: dict[str, np.ndarray], schema: Schema) -> dict[str, np.ndarray]:
    """A masked reply, shaped as one agent's reply, with the number of agents in it; raises if it is anything else."""
    arrays = dict(arrays)
    agents = arrays.pop(AGENTS, None)
    if agents is None or agents.shape != (1,) or dtype_name(agents) != "int64":
        raise RejectedError("malformed", "the reply is not masked")
    schema.join(arrays)
    return arrays | {AGENTS: agents}


def unmask(answers: Mapping[int, dict[str, np.ndarray]], agents: Mapping[int, int]) -> dict[str, np.ndarray] | None:
    """The sum of the replies of all sites in a cohort; None if the masks do not cancel."""
    names = next(iter(answers.values())).keys()
    total = {
        name: np.sum([a[name].view(np.uint64) for a in answers.values()], axis=0, dtype=np.uint64) for name in names
    }
    count = total.pop(AGENTS)
    if count.tolist() != [sum(agents[site] for site in answers)]:
        return None
    return {name: np.asarray(value).view(np.int64) for name, value in total.items()}
