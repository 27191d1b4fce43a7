"""Certificates and keys of a federation, in one folder per machine.

One authority signs the certificates of the server and of the nodes. The name in a node's certificate, `node-3`, says
which agent it is. For a trial `make_keys` makes everything at once. Between real sites each node makes its own private
key, which never leaves its machine:

```
operator: make_keys("federation", hosts=["192.0.2.7"])                   the authority and the server
node:     request("my-node")                                             a key and a request
operator: sign("federation", "request.pem", number=0)                    the certificate, which is also the register
node:     accept("my-node", "node-0.crt")
```

The same again gives a node a new key. `renew` prolongs a certificate, `exclude` takes a node out of the register, and
`members` says who is in it.
"""

import contextlib
import datetime
import hashlib
import ipaddress
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedhsa import _check, _files

from .address import check_host, check_port
from .commands import all_commands, node_commands, server_commands
from .signing import SERVER, common_name, node_name, node_number, private_bytes, read_certificate, read_key

# The server's own helper processes reach it over loopback, whatever name the nodes use.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_AUTHORITY = "fedhsa federation authority"
_SSH = serialization.PrivateFormat.OpenSSH  # of Flower's nodes: the file that `ssh-keygen -t ecdsa` makes
_CURVE = ec.SECP256R1()  # Flower's nodes may have it, and it signs three times as fast as P-384
LONGEST = 36525
"""The largest number of days for which certificates are valid."""
AUTHORITY_DAYS = 3653
"""Days that an authority is valid at least: when it ends, every machine needs new keys."""


def make_keys(
    folder: str | os.PathLike,
    nodes: int = 0,
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    days: int = 365,
    *,
    port: int = 8000,
) -> pathlib.Path:
    """Makes the authority and the server's certificate, and the keys of some nodes; returns the folder.

    ```
    COMMANDS.txt                                  what each person types; each machine's part is in its folder too
    authority/{ca.key,ca.crt}                     signs certificates: stays here
    server/{ca.crt,server.pem,server.key}         for the server
    server/nodes/node-0.crt                       the register: who may be agent 0
    node-0/{ca.crt,node.crt,key,key.pub}          for the first node, and so on
    ```

    All files are readable by their owner alone. The folder appears complete or not at all, and existing keys are
    never overwritten.

    **Arguments:**

    - `folder`: where to write; must not exist yet, or be empty.
    - `nodes`: how many nodes get their keys here (numbered from 0), which is for trials: between real sites leave it
        at 0, and let nodes make their own with `request`.
    - `hosts`: names and IP addresses under which the nodes reach the server; the first one is used in `COMMANDS.txt`.
        Loopback is always included.
    - `days`: how long the certificates are valid.
    - `port`: the server's port, for `COMMANDS.txt`.
    """
    nodes, days = _check.count("nodes", nodes, least=0), _check_days(days)
    check_port("port", _check.count("port", port))
    names = _alternative_names(hosts)
    first = hosts if isinstance(hosts, str) else hosts[0]
    with _new_folder(folder) as staging:
        authority = ec.generate_private_key(_CURVE)
        root = _certificate(_AUTHORITY, authority.public_key(), authority, max(days, AUTHORITY_DAYS))
        _write(staging / "authority", {"ca.key": private_bytes(authority), "ca.crt": root})
        _write(staging / "server", {"ca.crt": root, "COMMANDS.txt": server_commands(nodes, first, port).encode()})
        _issue_server(staging, names, days)
        _files.make_private(staging / "server" / "nodes")
        for i in range(nodes):
            node = staging / node_name(i)
            accept(node, sign(staging, request(node), i, days=days))
            _write(node, {"COMMANDS.txt": node_commands(i, first, port).encode()})
        _write(staging, {"COMMANDS.txt": all_commands(nodes, first, port).encode()})
    return pathlib.Path(folder).absolute()


def request(folder: str | os.PathLike) -> pathlib.Path:
    """Makes a private key for a node in its folder, and returns the file to be sent to the operator.

    For a node that has a key already, this begins its replacement: the old one stays in use until `accept`. A request
    that was not answered yet is kept.
    """
    folder = pathlib.Path(folder).absolute()
    asked = folder / "request.pem"
    if not ((folder / "new" / "key").exists() and asked.exists()):
        if (folder / "server.key").exists() or (folder / "authority").exists():
            raise ValueError(f"`folder`: {str(folder)!r} is not a node's folder. Give a folder for this node only.")
        _files.check_writable("folder", folder)
        key = ec.generate_private_key(_CURVE)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedhsa node")])
        signed = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
        pem = signed.public_bytes(serialization.Encoding.PEM)
        _write(folder, {"new/key": private_bytes(key, _SSH), "request.pem": pem})
    return asked


def sign(
    folder: str | os.PathLike,
    request: str | os.PathLike,
    number: int,
    *,
    replace: bool = False,
    days: int = 365,
    expected: str | None = None,
) -> pathlib.Path:
    """Signs a node's request as agent `number`, and returns its certificate in the register, to be sent back.

    **Arguments:**

    - `folder`: the federation's, of `make_keys`.
    - `request`: the file from the node.
    - `number`: which agent it is from now on.
    - `replace`: whether another key may have been registered as this agent, which is refused from then on.
    - `days`: how long the certificate is valid.
    - `expected`: the fingerprint of the node's key, as the site has told it in another way.
    """
    folder, number, days = pathlib.Path(folder), _check_number(number), _check_days(days)
    public = _requested_key(request)
    if expected is not None and _digits(expected) != _digits(fingerprint(public)):
        raise ValueError(
            f"`fingerprint`: the key in {str(request)!r} has {fingerprint(public)}, not {expected}. Do not sign it: "
            "the request may have been replaced on its way. Ask the site to send it again."
        )
    for member in members(folder):
        if member.certificate.public_key() == public and member.number != number:
            raise ValueError(f"`number`: {member.name} already has this key, and every agent needs its own key.")
        if member.number == number and member.certificate.public_key() != public and not replace:
            raise ValueError(
                f"`number`: {member.name} is in the register with another key. If this site replaces its key, use "
                "`--replace` (in Python `replace=True`); a new site needs another number."
            )
    return _issue(folder, folder / "server" / "nodes" / f"{node_name(number)}.crt", public, days)


def accept(folder: str | os.PathLike, certificate: str | os.PathLike) -> pathlib.Path:
    """Installs the operator's answer to a request, or a renewed certificate, in a node's folder and returns it.

    If it is interrupted, it can be repeated.
    """
    folder, path = pathlib.Path(folder).absolute(), pathlib.Path(certificate)
    read_certificate(path)  # says what is wrong with it
    answer = x509.load_pem_x509_certificates(path.read_bytes())
    leaf, root = answer[0], answer[-1]
    if len(answer) != 2 or node_number(common_name(leaf)) is None or not _issued(leaf, root):
        raise ValueError(f"`certificate`: {str(path)!r} is not the file that the operator's `sign` has made.")
    known = folder / "ca.crt"
    if known.exists() and read_certificate(known) != root:
        raise ValueError(
            f"`certificate`: {str(path)!r} is of another authority than this node knows. If the operator has really "
            f"made a new one, remove {str(known)!r}; otherwise somebody else has made it."
        )
    candidates = [key for name in ("new/key", "key") if (key := folder / name).exists()]
    for candidate in candidates:
        key = read_key(candidate)
        if key.public_key() == leaf.public_key():
            break
    else:
        raise ValueError(f"`certificate`: {str(path)!r} does not belong to the key in {str(folder)!r}. {_ASK}")
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    own, pem = common_name(leaf), serialization.Encoding.PEM
    files = {"node.crt": leaf.public_bytes(pem), "ca.crt": root.public_bytes(pem)}
    _write(folder, {"key": private_bytes(key, _SSH), "key.pub": public + f" fedhsa-{own}\n".encode(), **files})
    if candidate.parent.name == "new":
        shutil.rmtree(folder / "new")
        (folder / "request.pem").unlink(missing_ok=True)
    return folder


def renew(
    folder: str | os.PathLike,
    who: int | str = SERVER,
    *,
    days: int = 365,
    hosts: Sequence[str] | None = None,
    new_key: bool = False,
) -> pathlib.Path:
    """Renews the certificate of a node in the register, or of the server, for the same key and returns it.

    A node's is sent to it, for `accept`; it goes on with its old one until then.

    **Arguments:**

    - `folder`: the federation's, of `make_keys`.
    - `who`: the node's number, or `"server"`.
    - `days`: how long the certificate is valid, from today.
    - `hosts`: new names of the server. Default: those it has.
    - `new_key`: whether the server gets a new private key too.
    """
    folder, days = pathlib.Path(folder), _check_days(days)
    if who != SERVER:
        member = _member(folder, _check_number(who))
        return _issue(folder, member.path, member.certificate.public_key(), days)
    path = folder / "server" / "server.pem"
    old = read_certificate(path)
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = names if hosts is None else _alternative_names(hosts)
    return _issue_server(folder, names, days, None if new_key else read_key(path.with_suffix(".key")))


def exclude(folder: str | os.PathLike, number: int) -> "Member":
    """Removes a node from the register and returns its entry; the server refuses its messages from then on."""
    member = _member(pathlib.Path(folder), _check_number(number))
    member.path.unlink()
    return member


class Member(NamedTuple):
    """One node in the register."""

    number: int
    path: pathlib.Path
    certificate: x509.Certificate

    @property
    def name(self) -> str:
        return node_name(self.number)


def members(folder: str | os.PathLike) -> list[Member]:
    """The nodes in the register, by their numbers; `folder` is that of the federation or of the server."""
    folder = pathlib.Path(folder)
    register = next((r for r in (folder / "server" / "nodes", folder / "nodes") if r.is_dir()), None)
    if register is None:
        raise FileNotFoundError(f"{str(folder)!r} is not the folder of a federation: it has no `server/nodes`. {_MAKE}")
    found = []
    for path in register.glob("node-*.crt"):
        if (number := node_number(path.stem)) is not None:
            certificate = read_certificate(path)
            if common_name(certificate) != path.stem:
                raise ValueError(
                    f"{str(path)!r} is the certificate of {common_name(certificate)!r}: its name says not."
                )
            found.append(Member(number, path, certificate))
    return sorted(found)


def request_fingerprint(request: str | os.PathLike) -> str:
    """The fingerprint of the key in a request."""
    return fingerprint(_requested_key(request))


def fingerprint(key: object) -> str:
    """Returns the fingerprint with which two people check that they have the same public key.

    >>> fingerprint(ec.derive_private_key(1, ec.SECP256R1()).public_key())
    '5cd2-52fb-0ce8-9324-36fa-f8cc-d104-0981'
    """
    assert isinstance(key, ec.EllipticCurvePublicKey)
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digits = hashlib.sha256(encoded).hexdigest()[:32]
    return "-".join(digits[i : i + 4] for i in range(0, 32, 4))


_MAKE = "`fedhsa deploy keys --help` says how one is made."
_ASK = "Ask the site for the file that `fedhsa deploy keys request` makes."


def _requested_key(request: str | os.PathLike) -> ec.EllipticCurvePublicKey:
    """Returns the public key of a request, whose signature proves that its maker has the private key."""
    try:
        asked = x509.load_pem_x509_csr(pathlib.Path(request).read_bytes())
        public, valid = asked.public_key(), asked.is_signature_valid
    except FileNotFoundError:
        raise FileNotFoundError(f"`request`: there is no file {str(request)!r}.") from None
    except ValueError:
        raise ValueError(f"`request`: {str(request)!r} is not a request, or is damaged. {_ASK}") from None
    if not valid or not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name != _CURVE.name:
        raise ValueError(f"`request`: {str(request)!r} was not made by fedhsa, or was changed. {_ASK}")
    return public


def _digits(text: str) -> str:
    return re.sub("[^0-9a-f]", "", text.lower())


def _check_days(days: int) -> int:
    return _check.count("days", days, most=LONGEST)


def _check_number(number: int | str) -> int:
    if isinstance(number, str) or not 0 <= number < 10**9:
        raise ValueError(f"`number` must be that of an agent, which is a whole number from 0, got {number!r}.")
    return _check.count("number", number, least=0)


def _member(folder: pathlib.Path, number: int) -> Member:
    found = {member.number: member for member in members(folder)}
    if number not in found:
        listed = ", ".join(map(str, found)) or "nobody"
        raise ValueError(f"`number`: {node_name(number)} is not in the register, which has {listed}.")
    return found[number]


def _issued(leaf: x509.Certificate, root: x509.Certificate) -> bool:
    with contextlib.suppress(Exception):
        leaf.verify_directly_issued_by(root)
        return True
    return False


def _issue(folder: pathlib.Path, path: pathlib.Path, public: object, days: int, names: object = None) -> pathlib.Path:
    """Writes a certificate: of a node, with the authority's below it, or of the server if it has names."""
    authority = folder / "authority"
    if not (authority / "ca.key").exists():
        raise FileNotFoundError(
            f"{str(folder)!r} has no `authority/ca.key`, which signs certificates. Copy it back from its backup."
        )
    key, root = read_key(authority / "ca.key"), (authority / "ca.crt").read_bytes()
    name = SERVER if names is not None else path.stem
    leaf = _certificate(name, public, key, days, names=names)
    _write(path.parent, {path.name: leaf if names is not None else leaf + root})
    return path.absolute()


def _issue_server(
    folder: pathlib.Path, names: x509.SubjectAlternativeName, days: int, key: ec.EllipticCurvePrivateKey | None = None
) -> pathlib.Path:
    """Writes the server's certificate, and its key if it gets a new one."""
    if key is None:
        key = ec.generate_private_key(_CURVE)
        _write(folder / "server", {"server.key": private_bytes(key)})
    return _issue(folder, folder / "server" / "server.pem", key.public_key(), days, names)


def _certificate(
    subject: str, public: object, issuer: ec.EllipticCurvePrivateKey, days: int, *, names: object = None
) -> bytes:
    """A certificate signed by the authority: of itself, of a server if it has names, of a node otherwise."""
    now = datetime.datetime.now(datetime.UTC)
    unused = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only crl_sign"
    is_authority = subject == _AUTHORITY
    uses = dict.fromkeys(unused.split(), False) | {"digital_signature": not is_authority, "key_cert_sign": is_authority}
    assert isinstance(public, ec.EllipticCurvePublicKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of other machines may be slow
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.KeyUsage(**uses), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)
    )
    if isinstance(names, x509.SubjectAlternativeName):
        builder = builder.add_extension(names, critical=False)
    if not is_authority:  # a node must not be able to play the server
        use = ExtendedKeyUsageOID.CLIENT_AUTH if names is None else ExtendedKeyUsageOID.SERVER_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    return builder.sign(issuer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    hosts = [hosts] if isinstance(hosts, str) else list(hosts)
    if not hosts:
        raise ValueError('`hosts` must not be empty. Name the server as the nodes see it, e.g. `hosts=["192.0.2.7"]`.')
    for host in hosts:
        check_host("host", host)
    return x509.SubjectAlternativeName([_alternative_name(host) for host in dict.fromkeys([*hosts, *_LOOPBACK])])


def _alternative_name(host: str) -> x509.GeneralName:
    """The name of a certificate for a host name or an IP address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", host):
        raise ValueError(
            f"`hosts` must be host names or IP addresses without scheme and port, got {host!r}. "
            'Write, e.g., "federation.example.org" or "192.0.2.7".'
        )
    return x509.DNSName(host)


@contextlib.contextmanager
def _new_folder(folder: str | os.PathLike) -> Iterator[pathlib.Path]:
    """A folder that appears under this name when the block ends without an error, if there is none with files."""
    folder = pathlib.Path(folder).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"`folder`: {str(folder)!r} already holds files, and keys are never overwritten. "
            "Name another folder, or move this one away if no machine uses its keys any more."
        )
    _files.check_writable("folder", folder)
    staging = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))  # mode 0700
    try:
        yield staging
        os.replace(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _write(folder: pathlib.Path, files: dict[str, bytes]) -> None:
    """Writes files that only their owner can read, at no moment more."""
    for name, content in files.items():
        _files.make_private((folder / name).parent)
        with _files.atomic(folder / name, private=True) as file:
            file.write(content)
