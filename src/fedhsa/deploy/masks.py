"""Masks that cancel in a sum: every two sites share a random stream, which one site adds and the other subtracts.

All arithmetic is modulo 2^64, so that a masked number is uniformly distributed, whatever its value.
"""

import hashlib
import hmac
import json
from typing import Any, NamedTuple

import numpy as np

from .._extras import load
from .wire import RejectedError

VERSION = b"fedhsa-masks-1\0"
KEY_BYTES = 32


class Member(NamedTuple):
    """A site of a cohort: the number of its first agent, its number of agents, and its public key in this cohort."""

    first: int
    agents: int
    public: bytes


class Cohort:
    """The sites whose masks cancel: all sites that take part in a round, in any order."""

    def __init__(self, members: list[Member]):
        self.members = tuple(sorted(members))
        self.names = ",".join(str(member.first) for member in self.members)
        """The members as text, without their keys."""
        plain = [[member.first, member.agents, member.public.hex()] for member in self.members]
        self.digest = hashlib.sha256(VERSION + json.dumps(plain).encode()).hexdigest()
        """Two sites with equal digests have the same members and the same keys."""


class KeyPair:
    """A site's temporary key. It is never saved, so its masks cannot be removed later.

    !!! example
        >>> sites = [KeyPair() for _ in range(3)]
        >>> cohort = Cohort([Member(i, 1, site.public) for i, site in enumerate(sites)])
        >>> seen = [site.mask(np.uint64([10 + i]), i, cohort, b"round 1") for i, site in enumerate(sites)]
        >>> np.sum(seen, dtype=np.uint64)
        np.uint64(33)
    """

    def __init__(self):
        needs = "Secure aggregation needs the package `cryptography`"
        crypto = load(needs, "cryptography.hazmat.primitives.asymmetric.x25519", "secure")
        self._ciphers = load(needs, "cryptography.hazmat.primitives.ciphers", "secure")
        self._private, self._read = crypto.X25519PrivateKey.generate(), crypto.X25519PublicKey.from_public_bytes
        self.public: bytes = self._private.public_key().public_bytes_raw()
        self._shared: dict[bytes, bytes] = {}

    def mask(self, values: np.ndarray, own: int, cohort: Cohort, label: bytes) -> np.ndarray:
        """Returns these unsigned 64-bit values with the masks of site `own` and all other members added.

        A label must never be used for two different values.
        """
        masked = values.copy()
        for member in cohort.members:
            if member.first != own:
                pair = f"{min(own, member.first)} {max(own, member.first)} ".encode()
                stream = self._stream(member.public, VERSION + pair + label, values.size)
                masked = masked + stream if own < member.first else masked - stream
        return masked

    def share(self, public: bytes) -> None:
        """Computes the secret shared with the owner of a public key; raises if the key is invalid."""
        if public not in self._shared:
            try:
                secret = self._private.exchange(self._read(public))
            except ValueError:
                raise RejectedError("forged", "what should be a public key is none") from None
            self._shared[public] = hmac.digest(bytes(KEY_BYTES), secret, "sha256")  # the first step of HKDF

    def _stream(self, public: bytes, label: bytes, count: int) -> np.ndarray:
        self.share(public)
        # The second step of HKDF derives a key for every label, so that the nonce can be constant.
        key = hmac.digest(self._shared[public], label + b"\x01", "sha256")
        chacha = self._ciphers.Cipher(self._ciphers.algorithms.ChaCha20(key, bytes(16)), None).encryptor()
        return np.frombuffer(chacha.update(bytes(8 * count)), "<u8").astype(np.uint64, copy=False)


def label(*facts: Any) -> bytes:
    """The label of a mask as bytes; different facts have different labels.

    !!! example
        >>> label("run", 12) == label("run1", 2)
        False
    """
    return hashlib.sha256(VERSION + json.dumps(facts).encode()).digest()
