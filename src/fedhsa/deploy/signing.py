"""Signed messages: a sender signs with its certificate's key, and receivers trust the certificate's authority."""

import contextlib
import datetime
import functools
import hashlib
import os
import pathlib
import re
import struct
from collections.abc import Callable
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .wire import RejectedError, pack

MAGIC = b"fedhsa-signed-1\n"
SERVER = "server"
"""The name in a server's certificate; that of agent `n` is `node-n`."""
_LENGTHS = struct.Struct("<HB")
_START = len(MAGIC) + _LENGTHS.size
_KNOWN = 1024  # the largest number of cached certificates; only the authority's, so strangers cannot fill the cache


def node_name(number: int) -> str:
    """The name in the certificate of the agent with this number."""
    return f"node-{number}"


def node_number(name: str) -> int | None:
    """The number of the agent with this name, or `None` if the name is not an agent's.

    >>> node_number("node-12"), node_number("node-012"), node_number("server")
    (12, None, None)
    """
    return int(name[5:]) if re.fullmatch(r"node-(0|[1-9][0-9]{0,8})", name) else None


class Identity:
    """The certificate and private key of a server or a node, which sign its messages.

    ```python
    node = Identity.load("node-0")
    envelope = node.sign(b"a reply")
    assert Trust.load("server").open(envelope, "node-0") == b"a reply"
    ```
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, authority: x509.Certificate):
        self.certificate, self.authority, self._key = certificate, authority, key
        self.name = common_name(certificate)
        self.number = node_number(self.name)
        """The agent's number, or `None` for the server."""
        pem = serialization.Encoding.PEM
        self.key_pem, self.certificate_pem = private_bytes(key), certificate.public_bytes(pem)
        self.authority_pem = authority.public_bytes(pem)
        self._encoded = certificate.public_bytes(serialization.Encoding.DER)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """The identity in the folder of a server (`server.pem`, `server.key`) or a node (`node.crt`, `key`)."""
        folder = pathlib.Path(folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"There is no folder {str(folder)!r} with keys. {_MAKE}")
        is_server = (folder / "server.key").exists()
        certificate = read_certificate(folder / ("server.pem" if is_server else "node.crt"))
        key = read_key(folder / ("server.key" if is_server else "key"))
        if key.public_key() != certificate.public_key():
            raise ValueError(
                f"The certificate and the private key in {str(folder)!r} do not belong together. If a certificate was "
                "being accepted when the machine stopped, repeat `fedhsa deploy keys accept`."
            )
        return cls(certificate, key, read_certificate(folder / "ca.crt"))

    def sign(self, data: bytes, purpose: str = "message") -> bytes:
        """Returns an envelope of `data`: the format's name, the certificate, the signature and the data.

        Data signed for one purpose are not accepted for another.
        """
        signature = self._key.sign(_digest(self._encoded, data, purpose), _ECDSA)
        return b"".join([MAGIC, _LENGTHS.pack(len(self._encoded), len(signature)), self._encoded, signature, data])


class _Known(NamedTuple):
    name: str
    key: ec.EllipticCurvePublicKey
    begin: datetime.datetime
    end: datetime.datetime


class Trust:
    """The trusted parties: they have a certificate of the authority and, if there is a register, are in it.

    The register of a server is its folder `nodes`, with the certificate of each node. It is read for every message, so
    that a node whose file is removed or replaced is refused from then on. The register compares keys: a node may
    continue with an older certificate of the same key while that certificate is valid.

    **Arguments:**

    - `authority`: the authority's certificate.
    - `register`: the folder with the nodes' certificates; without it, every certificate of the authority is trusted.
    """

    def __init__(self, authority: x509.Certificate, register: str | os.PathLike | None = None):
        self.authority = authority
        self.register = None if register is None else pathlib.Path(register)
        self._known = functools.lru_cache(_KNOWN)(self._examine)
        self._registered: dict[str, tuple[tuple[int, ...], object]] = {}

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """Reads the trust of the server or node with this folder; only a server has a register."""
        folder = pathlib.Path(folder)
        register = folder / "nodes"
        return cls(read_certificate(folder / "ca.crt"), register if (folder / "server.pem").exists() else None)

    def open(self, data: bytes, name: str, purpose: str = "message") -> bytes:
        """Returns the data in an envelope; raises `RejectedError` unless `name` signed it for this purpose."""
        encoded, signature, content = _parts(data)
        key = self._admit(encoded, name).key
        try:
            key.verify(signature, _digest(encoded, content, purpose), _ECDSA)
        except InvalidSignature:
            raise RejectedError("forged", f"the signature is not one of {name}") from None
        return bytes(content)

    def signer(self, data: bytes) -> str:
        """The name in an envelope's certificate, unchecked until `open`; raises `RejectedError` if there is none."""
        return self._admit(_parts(data)[0]).name

    def admit(self, certificate: bytes) -> str:
        """The name in a trusted certificate (PEM or DER), such as one from TLS; raises `RejectedError` otherwise."""
        if certificate.lstrip().startswith(b"-----BEGIN"):
            try:
                loaded = x509.load_pem_x509_certificate(certificate)
            except ValueError:
                raise RejectedError("forged", "what should be a certificate is none") from None
            certificate = loaded.public_bytes(serialization.Encoding.DER)
        return self._admit(certificate).name

    def _admit(self, encoded: bytes, name: str | None = None) -> _Known:
        known = self._known(encoded)
        if name is not None and known.name != name:
            raise RejectedError("forged", f"signed by {known.name}, not by {name}")
        now = _now()
        if not known.begin <= now <= known.end:
            raise RejectedError(
                "forged",
                f"the certificate of {known.name} is valid from {known.begin:%Y-%m-%d %H:%M} to "
                f"{known.end:%Y-%m-%d %H:%M} UTC, and here it is {now:%Y-%m-%d %H:%M}: renew it, or set the clock",
            )
        if self.register is not None and known.name != SERVER and self._registered_key(known.name) != known.key:
            raise RejectedError("forged", f"{known.name} is not in the register, or with another key")
        return known

    def _examine(self, encoded: bytes) -> _Known:
        try:
            certificate = x509.load_der_x509_certificate(encoded)
            certificate.verify_directly_issued_by(self.authority)
            name, key = common_name(certificate), certificate.public_key()
            uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except Exception:  # a stranger may send anything
            raise RejectedError("forged", "the certificate is not one of this federation's authority") from None
        needed = ExtendedKeyUsageOID.SERVER_AUTH if name == SERVER else ExtendedKeyUsageOID.CLIENT_AUTH
        is_one = name == SERVER or node_number(name) is not None
        if not is_one or needed not in uses or not isinstance(key, ec.EllipticCurvePublicKey):
            raise RejectedError("forged", "the certificate is neither a server's nor a node's")
        begin = max(certificate.not_valid_before_utc, self.authority.not_valid_before_utc)
        return _Known(name, key, begin, min(certificate.not_valid_after_utc, self.authority.not_valid_after_utc))

    def _registered_key(self, name: str) -> object:
        """The key of a node in the register, read again when its file changes; `None` if it is not in the register."""
        path = pathlib.Path(str(self.register), f"{name}.crt")
        try:
            seen = file_state(path)
            if name not in self._registered or self._registered[name][0] != seen:
                self._registered[name] = seen, read_certificate(path).public_key()
        except (OSError, ValueError):
            return None
        return self._registered[name][1]


def signed(answer: Callable[[bytes], bytes], folder: str | os.PathLike) -> Callable[[bytes], bytes]:
    """Wraps a node's `answer` for an untrusted channel: answers only messages signed by the server, and signs replies.

    `folder` is that of the node's keys.
    """
    certificate, trust = pathlib.Path(folder) / "node.crt", Trust.load(folder)
    identity, seen = Identity.load(folder), file_state(certificate)

    def reply(data: bytes) -> bytes:
        nonlocal identity, seen
        if (now := file_state(certificate)) != seen:  # a new certificate has arrived, perhaps with a new key
            with contextlib.suppress(OSError, ValueError):  # the file is not yet complete
                identity, seen = Identity.load(folder), now
        try:
            asked = trust.open(data, SERVER)
        except RejectedError as rejected:
            said = {"kind": "rejection", "first": identity.number, "agents": 1}
            return identity.sign(pack({**said, "code": rejected.code, "reason": rejected.reason}, {}))
        return identity.sign(answer(asked))

    return reply


_MAKE = "`fedhsa deploy keys --help` says how they are made."
_ECDSA = ec.ECDSA(utils.Prehashed(hashes.SHA256()))


def _parts(data: bytes) -> tuple[bytes, bytes, memoryview]:
    """The certificate, the signature and the data of an envelope."""
    if not isinstance(data, bytes) or data[: len(MAGIC)] != MAGIC or len(data) < _START:
        raise RejectedError("forged", "the message is not signed")
    certificate, signature = _LENGTHS.unpack_from(data, len(MAGIC))
    middle = _START + certificate
    end = middle + signature
    if end > len(data):
        raise RejectedError("forged", "the signature is cut off")
    return data[_START:middle], data[middle:end], memoryview(data)[end:]


def _digest(certificate: bytes, data: bytes | memoryview, purpose: str) -> bytes:
    """The signed bytes. They include the certificate, some of whose bits could otherwise be changed unnoticed."""
    digest = hashlib.sha256(b"".join([MAGIC, purpose.encode(), b"\0", hashlib.sha256(certificate).digest()]))
    digest.update(data)
    return digest.digest()


def file_state(path: pathlib.Path) -> tuple[int, ...]:
    """The properties that change when a file is replaced."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def common_name(certificate: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """The name in a certificate or a request; empty if it has none."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def read_certificate(path: str | os.PathLike) -> x509.Certificate:
    """The first certificate in a file."""
    try:
        return x509.load_pem_x509_certificate(pathlib.Path(path).read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no certificate {str(path)!r}. {_MAKE}") from None
    except ValueError:
        raise ValueError(f"{str(path)!r} is not a certificate, or is damaged. {_MAKE}") from None


def private_bytes(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8
) -> bytes:
    """A private key as a file without a password; by default as TLS libraries read it."""
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def read_key(path: str | os.PathLike) -> ec.EllipticCurvePrivateKey:
    """The private key in a file, in OpenSSH or PEM format."""
    try:
        data = pathlib.Path(path).read_bytes()
        is_ssh = data.startswith(b"-----BEGIN OPENSSH")
        read = serialization.load_ssh_private_key if is_ssh else serialization.load_pem_private_key
        key = read(data, None)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no private key {str(path)!r}. {_MAKE}") from None
    except (ValueError, TypeError):
        raise ValueError(f"{str(path)!r} is not a private key without a password, or is damaged. {_MAKE}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{str(path)!r} is not a private key of an elliptic curve, which certificates here are for.")
    return key
