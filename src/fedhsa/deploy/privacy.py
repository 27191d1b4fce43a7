"""Clipping and Gaussian noise on what leaves a node, and the account of what they are worth."""

import dataclasses
import functools
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _check
from .schema import Schema
from .store import Store
from .wire import Refused

LEAST_NOISE = 0.1
"""One reply with less has an epsilon above 90."""


@dataclasses.dataclass(frozen=True)
class Privacy:
    r"""A node's own protection: every reply is shortened to norm $C$, and Gaussian noise is added to it.

    Of each reply of an agent, all numbers together as one vector $x$, the node sends

    $$x \min(1, C / |x|) + 2 C z\, \xi, \qquad \xi \sim N(0, I).$$

    Whatever the agent's data, two such replies without noise differ by at most $2 C$, so each is a Gaussian mechanism
    with noise multiplier $z$, for *all* data of the agent: the node need not trust the server (local differential
    privacy). Replies of all exchanges compose. The node counts what it has sent, in all runs, and also what was sent
    twice because a round was begun again; it answers no more once `epsilon` would be exceeded.

    The noise does not come from the run's key, which everyone knows, so that runs with it are not repeatable. It is
    made in floating point: in theory its lowest bits say more than real numbers would.

    **Arguments:**

    - `clip`: $C$.
    - `noise`: $z$, the standard deviation in units of $2 C$.
    - `epsilon`: how much privacy may be spent in all. Default: any amount; it is counted all the same.
    - `delta`: the probability with which `epsilon` may not hold.

    !!! example
        >>> privacy = Privacy(clip=1.0, noise=20.0)
        >>> round(privacy.spent(100), 2)
        1.99
    """

    clip: float
    noise: float
    epsilon: float | None = None
    delta: float = 1e-5

    def __post_init__(self):
        _check.number("clip", self.clip, above=0.0)
        _check.number("noise", self.noise, least=LEAST_NOISE, remedy="Less noise protects nothing.")
        if self.epsilon is not None:
            _check.number("epsilon", self.epsilon, above=0.0)
        _check.number("delta", self.delta, above=0.0, most=0.1)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Privacy | None":
        """What a node's settings `clip`, `noise`, `epsilon` and `delta` ask for; None without the first two."""
        given = {name: float(config[name]) for name in ("clip", "noise", "epsilon", "delta") if config.get(name)}
        if not given:
            return None
        if not {"clip", "noise"} <= given.keys():
            raise ValueError(f"`clip` and `noise` go together, got {', '.join(given)} alone.")
        return cls(**given)

    def check(self, replies: Schema) -> None:
        """Refuses replies of which a part would go without noise."""
        for leaf in replies.leaves:
            if not leaf.dtype.startswith("float"):
                raise ValueError(
                    f"`noise` is for replies of real numbers alone; this algorithm also sends {leaf.name!r}, which is "
                    f"{leaf.dtype}. Use one that does not."
                )

    def apply(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The replies of a site, arrays with a leading axis for its agents, shortened and with noise."""
        agents = len(next(iter(arrays.values())))
        flat = np.concatenate([a.reshape(agents, -1).astype(np.float64) for a in arrays.values()], axis=1)
        norms = np.linalg.norm(flat, axis=1, keepdims=True)
        # That a reply is not finite would say something of the data: nothing is said instead.
        flat = np.where(np.isfinite(norms), flat, 0.0)
        flat *= np.minimum(1.0, self.clip / np.maximum(np.where(np.isfinite(norms), norms, 1.0), 1e-300))
        generator = np.random.default_rng(secrets.randbits(256))
        flat += 2 * self.clip * self.noise * generator.standard_normal(flat.shape)
        ends = np.cumsum([a[0].size for a in arrays.values()])[:-1]
        parts = np.split(flat, ends, axis=1)
        return {
            name: part.reshape(a.shape).astype(a.dtype) for (name, a), part in zip(arrays.items(), parts, strict=True)
        }

    def spent(self, releases: int) -> float:
        r"""The $\varepsilon$ of so many replies."""
        return epsilon({self.noise: releases}, self.delta)


class Account:
    """What a site has sent with noise, in all runs: written down before it is sent.

    **Arguments:**

    - `store`: where it is kept.
    - `privacy`: the protection of what is sent now.
    """

    def __init__(self, store: Store, privacy: Privacy):
        self.store, self.privacy = store, privacy

    @property
    def sent(self) -> dict[float, int]:
        """How many replies were sent, by their noise."""
        packet = self.store.load()
        return {} if packet is None else {float(noise): count for noise, count in packet.header["sent"].items()}

    def charge(self) -> None:
        """Counts one more reply; refuses it if it would cost more than is left."""
        privacy = self.privacy
        with self.store.alone():
            sent = self.sent
            sent[privacy.noise] = sent.get(privacy.noise, 0) + 1
            if privacy.epsilon is not None and epsilon(sent, privacy.delta) > privacy.epsilon:
                raise Refused("exhausted", "the privacy that may be spent there is spent")
            self.store.save({"kind": "account", "sent": {str(noise): count for noise, count in sent.items()}}, {})


def epsilon(sent: Mapping[float, int], delta: float) -> float:
    r"""The $\varepsilon$ of replies with these noises, each so many times.

    !!! example
        >>> round(epsilon({20.0: 100, 50.0: 10}, 1e-5), 2)
        2.02
    """
    return _epsilon(tuple(sorted((noise, count) for noise, count in sent.items() if count)), delta)


@functools.lru_cache(maxsize=1024)
def _epsilon(sent: tuple[tuple[float, int], ...], delta: float) -> float:
    if not sent:
        return 0.0
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Counting what noise is worth needs dp-accounting. Install it with `pip install 'fedhsa[privacy]'`."
        ) from error
    accountant = PLDAccountant()
    for noise, count in sent:
        accountant.compose(dp_accounting.GaussianDpEvent(noise), count)
    return float(accountant.get_epsilon(delta))
