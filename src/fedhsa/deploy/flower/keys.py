"""Certificates and keys of a Flower federation: one folder per machine, so that what to copy where is plain."""

import datetime
import ipaddress
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from fedhsa import _check, _files
from fedhsa._extras import need

from ..address import check_host, check_port

# The SuperLink's own helper process reaches it over loopback, whatever name the nodes use.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


LONGEST = 36525
"""Days that certificates may be valid."""


def make_keys(
    folder: str | os.PathLike,
    nodes: int,
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    days: int = 365,
    *,
    port: int = 8000,
) -> pathlib.Path:
    """Makes what a federation needs to be encrypted and to know its nodes by their keys, and returns the folder.

    ```
    COMMANDS.txt                                      what each person types; each machine's part is in its folder too
    authority/ca.{key,crt}                            signs certificates: stays here
    server/{ca.crt,server.pem,server.key,node-*.pub}  for the server
    node-0/{ca.crt,key,key.pub}                       for the first node, and so on
    ```

    All files are readable by their owner alone. The folder appears complete or not at all, and existing keys are
    never overwritten.

    **Arguments:**

    - `folder`: where to write; must not exist yet, or be empty.
    - `nodes`: how many nodes get a key of their own (numbered from 0).
    - `hosts`: names and IP addresses under which the nodes reach the server; the first one is used in `COMMANDS.txt`.
        Loopback is always included.
    - `days`: how long the certificates are valid.
    - `port`: the server's port, for `COMMANDS.txt`.
    """
    nodes, days, port = _check.count("nodes", nodes), _check.count("days", days), _check.count("port", port)
    check_port("port", port)
    if days > LONGEST:
        raise ValueError(f"`days` must be at most {LONGEST}, a hundred years, got {days}.")
    hosts = [hosts] if isinstance(hosts, str) else list(hosts)
    for host in hosts:
        check_host("host", host)
    need("cryptography, which makes keys,", "cryptography", "flower")
    if not hosts:
        raise ValueError('`hosts` must not be empty. Name the server as the nodes see it, e.g. `hosts=["192.0.2.7"]`.')
    names = [_alternative_name(host) for host in dict.fromkeys([*hosts, *_LOOPBACK])]
    folder = pathlib.Path(folder).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"`folder`: {str(folder)!r} already holds files, and keys are never overwritten. "
            "Name another folder, or move this one away if no machine uses its keys any more."
        )
    _files.check_writable("folder", folder)
    staging = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))  # mode 0700
    try:
        _write(staging, _federation(nodes, names, days))
        typed = {"": commands(nodes, hosts[0], port), "server/": _server_commands(nodes, hosts[0], port)}
        typed |= {f"node-{i}/": _node_commands(i, nodes, hosts[0], port) for i in range(nodes)}
        _write(staging, {f"{machine}COMMANDS.txt": text.encode() for machine, text in typed.items()})
        os.replace(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return folder


def commands(nodes: int, host: str, port: int = 8000) -> str:
    """What each person types, on which machine, to run a federation with the keys of `make_keys`."""
    machines = [_server_commands(nodes, host, port), *(_node_commands(i, nodes, host, port) for i in range(nodes))]
    return "\n\n".join(
        [
            f"""\
Copy the folder `server` to the server, and each folder `node-...` to its node, over a channel you trust. Nobody else
may have `server.key` or a `key`. The folder `authority` is copied nowhere.

Every machine needs the same packages: pip install '.[flower]' in a clone of fedhsa, elsewhere
pip install 'fedhsa[flower]'.

Let only the nodes' machines reach port {port} of the server (firewall or VPN): Flower lets whoever reaches it register
a node and start an app, which then runs on all nodes.""",
            *machines,
        ]
    )


_EXPORT = 'export FLWR_HOME="$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1'


def _server_commands(nodes: int, host: str, port: int) -> str:
    register = "\n".join(f"flwr supernode register node-{i}.pub federation" for i in range(nodes))
    return f"""\
== Server ({host}), in its copy of the folder `server` ==

{_EXPORT}
mkdir -p "$FLWR_HOME" && cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "federation"
[superlink.federation]
address = "127.0.0.1:{port}"
root-certificates = "$PWD/ca.crt"
END
flower-superlink --host 0.0.0.0 --port {port} --database superlink.db --ssl-ca-certfile ca.crt \\
    --ssl-certfile server.pem --ssl-keyfile server.key --enable-supernode-auth \\
    --disable-runtime-dependency-installation

In a second terminal, in the same folder, once:

{_EXPORT}
{register}

and when all nodes are online (`flwr supernode list federation`):

flwr run PATH_OF_THE_APP federation --stream
"""


def _node_commands(node: int, nodes: int, host: str, port: int) -> str:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"""\
== Node {node}, in its copy of the folder `node-{node}` ==

{_EXPORT}
while true; do  # a node that has died is let in again after a minute or so
    flower-supernode --superlink {address} --root-certificates ca.crt --auth-supernode-private-key key \\
        --node-config "partition-id={node} num-partitions={nodes}"
    sleep 10
done
"""


def _federation(nodes: int, names: list[Any], days: int) -> dict[str, bytes]:
    """All files of a federation, by their path within its folder."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = _certificate("fedhsa federation authority", authority, "fedhsa federation authority", authority, days)
    leaf = _certificate(
        "fedhsa federation server",
        server,
        "fedhsa federation authority",
        authority,
        days,
        names=x509.SubjectAlternativeName(names),
    )
    files = {
        "authority/ca.key": _pem(authority),
        "authority/ca.crt": root,
        "server/ca.crt": root,
        "server/server.pem": leaf,
        "server/server.key": _pem(server),
    }
    for i in range(nodes):
        private, public = _pair(f"fedhsa-node-{i}")
        files |= {
            f"node-{i}/ca.crt": root,
            f"node-{i}/key": private,
            f"node-{i}/key.pub": public,
            f"server/node-{i}.pub": public,
        }
    return files


def _certificate(subject: str, key: Any, issuer: str, issuer_key: Any, days: int, *, names: Any = None) -> bytes:
    """A certificate of `key` signed by `issuer_key`: of a server if it has names, of an authority otherwise."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    unused = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only crl_sign"
    is_authority = names is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of other machines may be slow
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority, key_cert_sign=is_authority, **dict.fromkeys(unused.split(), False)
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not is_authority:
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(issuer_key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _pem(key: Any) -> bytes:
    """A private key as the TLS server reads it."""
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pair(comment: str) -> tuple[bytes, bytes]:
    """A fresh private and public key as Flower's nodes read them: the files that `ssh-keygen -t ecdsa -b 384` makes."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + f" {comment}\n".encode()


def _alternative_name(host: str) -> Any:
    """The name of a certificate for a host name or an IP address."""
    from cryptography import x509

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


def _write(folder: pathlib.Path, files: dict[str, bytes]) -> None:
    """Writes files that only their owner can read, at no moment more."""
    mask = os.umask(0o077)
    try:
        for name, content in files.items():
            with _files.atomic(folder / name) as file:
                file.write(content)
    finally:
        os.umask(mask)
