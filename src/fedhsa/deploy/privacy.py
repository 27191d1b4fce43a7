"""Clipping of and Gaussian noise on a node's replies, and the account of the privacy spent."""

import dataclasses
import functools
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from .. import _check
from .._extras import load
from .._random import Stream
from ..algorithms import AbstractAlgorithm, Effect
from ..algorithms.demands import before_rounding, objections
from ..algorithms.fixed_point import TOO_LARGE
from .schema import Schema
from .store import Store
from .wire import RejectedError

SETTINGS = ("clip", "noise", "epsilon", "delta")
LEAST_NOISE = 0.1
"""One reply with less has an epsilon above 90."""


@dataclasses.dataclass(frozen=True)
class Privacy:
    r"""A node's local differential privacy: every reply is clipped to norm $C$, and Gaussian noise is added to it.

    Of each reply of an agent, all numbers together as one vector $x$, the node sends

    $$x \min(1, C / |x|) + 2 C z\, \xi, \qquad \xi \sim N(0, I).$$

    Whatever the agent's data, two such replies without noise differ by at most $2 C$, so each is a Gaussian mechanism
    with noise multiplier $z$, for *all* data of the agent: the node need not trust the server (local differential
    privacy). Replies of all exchanges compose. The node counts its replies over all runs, including those that were
    sent twice because a round was restarted; it stops answering before `epsilon` is exceeded.

    The noise does not come from the run's key, which is public, so runs with noise are not repeatable. It is generated
    in floating point, whose lowest bits could in theory reveal more than the theory of real numbers allows.

    **Arguments:**

    - `clip`: the norm $C$.
    - `noise`: the noise multiplier $z$, the standard deviation in units of $2 C$.
    - `epsilon`: the total privacy budget. Default: no limit, but the spending is counted.
    - `delta`: the probability with which `epsilon` may not hold.
    - `shared_by`: the number $k$ of agents that share the noise, only with secure aggregation: each adds $1/k$ of the
      variance, so that the sum over $k$ such agents has all of it. This protects only against parties that see sums;
      see docs/deploy/secure-aggregation.md.

    Raises `ValueError` if a number is out of range.

    !!! example
        >>> privacy = Privacy(clip=1.0, noise=20.0)
        >>> round(privacy.spent(100), 2)
        1.99
    """

    clip: float
    noise: float
    epsilon: float | None = None
    delta: float = 1e-5
    shared_by: int = 1

    def __post_init__(self):
        _check.number("clip", self.clip, above=0.0)
        _check.number("noise", self.noise, least=LEAST_NOISE, remedy="Less noise protects nothing.")
        if self.epsilon is not None:
            _check.number("epsilon", self.epsilon, above=0.0)
        _check.number("delta", self.delta, above=0.0, most=0.1)
        _check.count("shared_by", self.shared_by)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Privacy | None":
        """Reads a node's settings `clip`, `noise`, `epsilon` and `delta`; None if none of them is given."""
        found = {name: config.get(name) for name in SETTINGS}
        given = {name: float(value) for name, value in found.items() if value not in (None, "")}
        if not given:
            return None
        if "noise" not in given and "epsilon" in given:
            raise ValueError(
                "`epsilon` requires `noise` on a node, which does not know how many replies it will send. `fedhsa "
                "deploy --epsilon` computes the noise."
            )
        if not {"clip", "noise"} <= given.keys():
            raise ValueError(f"`clip` and `noise` must be given together, got only {', '.join(given)}.")
        shared = config.get("noise_shared_by")
        return cls(**given, shared_by=int(shared) if shared not in (None, "") else 1)

    @classmethod
    def calibrated(cls, epsilon: float, releases: int, *, clip: float = 1.0, delta: float = 1e-5) -> "Privacy":
        r"""Returns the smallest noise with which a number of replies of an agent cost at most $\varepsilon$.

        **Arguments:**

        - `epsilon`, `clip`, `delta`: as above.
        - `releases`: the number of replies, over all rounds and exchanges.

        !!! example
            >>> privacy = Privacy.calibrated(epsilon=2.0, releases=40)
            >>> round(privacy.noise, 1), round(privacy.spent(40), 3)
            (12.6, 2.0)
        """
        _check.number("epsilon", epsilon, above=0.0)
        _check.number("delta", delta, above=0.0, most=0.1)
        _check.count("releases", releases)
        if _epsilon(releases / LEAST_NOISE**2, delta) <= epsilon:
            raise ValueError(f"`epsilon` is too large, got {epsilon:g}: the noise that it requires protects nothing.")
        sigma = _accounting().get_sigma_gaussian(epsilon, delta)
        noise = float(sigma) * math.sqrt(releases) * (1 + 1e-9)  # rounding must not cost the last reply
        return cls(clip, noise, epsilon, delta)

    def check(self, algorithm: AbstractAlgorithm, replies: Schema) -> None:
        """Raises `ValueError` if the method needs exact replies, or if a part of a reply would have no noise."""
        inside = before_rounding(algorithm)
        # Noise changes replies as much as a loss does.
        for _, layer, reason in objections(inside, Effect.LOSES_REPLIES, Stream.LOSS, "noise"):
            raise ValueError(f"`noise` is not supported with {layer}: {reason}")
        for leaf in replies.leaves:
            if inside is algorithm and not leaf.dtype.startswith("float"):
                raise ValueError(
                    f"`noise` requires replies of real numbers; this algorithm also sends {leaf.name!r}, which is "
                    f"{leaf.dtype}. Use another algorithm."
                )

    def check_shared(self, num_agents: int | None) -> None:
        """Raises `ValueError` if agents share the noise, but the sums are over too few agents to contain all of it."""
        if self.shared_by > 1 and (num_agents is None or self.shared_by > num_agents):
            among = "is not on" if num_agents is None else f"is among {num_agents} agents"
            raise ValueError(
                f"`noise_shared_by` must be 1 unless the server sees only sums over that many agents, got "
                f"{self.shared_by}, and secure aggregation {among}."
            )

    def apply(
        self, arrays: dict[str, np.ndarray], bits: int | None = None, num_agents: int = 1
    ) -> dict[str, np.ndarray]:
        """Returns the clipped and noisy replies of a site, arrays with a leading axis for its agents.

        With `bits` they are whole numbers in units of 2 to the minus `bits`, and `num_agents` of them are added.
        """
        if bits is not None:
            real = {name: np.where(a == TOO_LARGE, np.nan, a * 2.0**-bits) for name, a in arrays.items()}
            return {name: to_whole(a, bits, num_agents) for name, a in self.apply(real).items()}
        agents = len(next(iter(arrays.values())))
        flat = np.concatenate([a.reshape(agents, -1).astype(np.float64) for a in arrays.values()], axis=1)
        norms = np.linalg.norm(flat, axis=1, keepdims=True)
        # That a reply is not finite would reveal something about the data: zero is sent instead.
        flat = np.where(np.isfinite(norms), flat, 0.0)
        flat *= np.minimum(1.0, self.clip / np.maximum(np.where(np.isfinite(norms), norms, 1.0), 1e-300))
        flat += 2 * self.clip * self.noise / math.sqrt(self.shared_by) * _secret_normals(flat.shape)
        ends = np.cumsum([a[0].size for a in arrays.values()])[:-1]
        columns = np.split(flat, ends, axis=1)
        return {
            name: column.reshape(a.shape).astype(a.dtype)
            for (name, a), column in zip(arrays.items(), columns, strict=True)
        }

    def spent(self, releases: int) -> float:
        r"""The $\varepsilon$ of so many replies."""
        return epsilon({self.noise: releases}, self.delta)


class Account:
    """Counts what agents have sent with noise, in all runs; written to disk before it is sent.

    The store has the counts of all agents of a folder; the agents `numbers` are charged.
    """

    def __init__(self, store: Store, privacy: Privacy, numbers: Sequence[int]):
        self.store, self.privacy, self.numbers = store, privacy, [str(number) for number in numbers]

    @property
    def sent(self) -> dict[str, dict[float, int]]:
        """How many replies each agent has sent, by their noise."""
        packet = self.store.load()
        found = {} if packet is None else packet.header["sent"]
        return {agent: {float(noise): count for noise, count in counts.items()} for agent, counts in found.items()}

    @property
    def spent(self) -> float:
        """The most that one of the agents has spent."""
        sent = self.sent
        return max(epsilon(sent.get(number, {}), self.privacy.delta) for number in self.numbers)

    def charge(self) -> None:
        """Counts one more reply of each agent; raises if one of them would cost more than is left."""
        privacy = self.privacy
        with self.store.alone():
            sent = self.sent
            for number in self.numbers:
                counts = sent.setdefault(number, {})
                counts[privacy.noise] = counts.get(privacy.noise, 0) + 1
                if privacy.epsilon is not None and epsilon(counts, privacy.delta) > privacy.epsilon:
                    raise RejectedError("exhausted", "the privacy that may be spent there is spent")
            self.store.save({"kind": "account", "sent": sent}, {})


def epsilon(sent: Mapping[float, int], delta: float) -> float:
    r"""The $\varepsilon$ of replies with these noises, each so many times.

    Gaussian mechanisms compose to one whose $1/z^2$ is the sum of theirs.

    !!! example
        >>> round(epsilon({20.0: 100, 50.0: 10}, 1e-5), 2)
        2.01
    """
    total = sum(count / noise**2 for noise, count in sent.items())
    return _epsilon(total, delta) if total else 0.0


@functools.lru_cache(maxsize=4096)
def _epsilon(total: float, delta: float) -> float:
    return float(_accounting().get_epsilon_gaussian(total**-0.5, delta))


def _accounting() -> Any:
    return load("Accounting for privacy needs dp-accounting", "dp_accounting", "privacy")


def to_whole(values: np.ndarray, bits: int, num_agents: int) -> np.ndarray:
    """Numbers in units of 2 to the minus `bits`; those beyond the range of so many agents are marked."""
    scaled = np.rint(values * 2.0**bits)
    fits = np.abs(scaled) <= 2.0**62 / num_agents
    return np.where(fits, np.where(fits, scaled, 0.0).astype(np.int64), TOO_LARGE)


def _secret_normals(shape: tuple[int, ...]) -> np.ndarray:
    """Standard normals from the system's source of secrets: those that were seen reveal nothing about the others."""
    words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), np.uint64).reshape(shape)
    return scipy.special.ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
