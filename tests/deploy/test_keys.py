"""Certificates and keys: who has them, who checks them, and how a node joins, changes its key and leaves."""

import contextlib
import datetime
import pathlib
import shutil
import socket
import ssl
import stat
import threading

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedhsa import _files
from fedhsa.deploy import RejectedError, keys, signing, wire
from fedhsa.deploy.signing import Identity, Trust


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> pathlib.Path:
    return keys.make_keys(tmp_path_factory.mktemp("keys") / "federation", 2, ["federation.example.org", "192.0.2.7"])


@pytest.fixture
def federation(made, tmp_path) -> pathlib.Path:
    """A copy that a test may change."""
    return shutil.copytree(made, tmp_path / "federation")


def test_each_machine_gets_its_own_folder(made):
    files = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert files == {
        "COMMANDS.txt",
        "authority/ca.key",
        "authority/ca.crt",
        *(f"server/{name}" for name in ["COMMANDS.txt", "ca.crt", "server.pem", "server.key"]),
        *(f"server/nodes/node-{i}.crt" for i in range(2)),
        *(f"node-{i}/{name}" for i in range(2) for name in ["COMMANDS.txt", "ca.crt", "node.crt", "key", "key.pub"]),
    }


def test_keys_are_readable_by_their_owner_alone(made):
    for path in [made, *made.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_no_key_is_where_it_does_not_belong(made):
    private = {path.relative_to(made).as_posix() for path in made.rglob("*") if b"PRIVATE KEY" in path_bytes(path)}
    assert private == {"authority/ca.key", "server/server.key", "node-0/key", "node-1/key"}


def path_bytes(path: pathlib.Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_node_keys_are_what_flower_reads(made):
    pytest.importorskip("flwr")
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, uses_nist_ec_curve

    publics = set()
    for i, member in enumerate(keys.members(made)):
        private = serialization.load_ssh_private_key((made / f"node-{i}" / "key").read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert uses_nist_ec_curve(private.public_key())
        registered = try_load_public_key(made / f"node-{i}" / "key.pub")
        assert registered == public_key_to_bytes(private.public_key())
        assert private.public_key() == member.certificate.public_key()
        publics.add(registered)
    assert len(publics) == 2


def test_the_server_certificate_is_signed_by_the_authority_for_all_hosts(made):
    root = x509.load_pem_x509_certificate((made / "authority" / "ca.crt").read_bytes())
    leaf = x509.load_pem_x509_certificate((made / "server" / "server.pem").read_bytes())
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"federation.example.org", "localhost"}
    assert {str(ip) for ip in names.get_values_for_type(x509.IPAddress)} == {"192.0.2.7", "127.0.0.1", "::1"}
    assert root.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert 364 <= (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days <= 366


@pytest.mark.parametrize(
    ("host", "authority", "accepted"),
    [
        ("federation.example.org", "own", True),
        ("192.0.2.7", "own", True),
        ("127.0.0.1", "own", True),
        ("other.example.org", "own", False),
        ("federation.example.org", "foreign", False),
    ],
)
def test_tls_accepts_the_server_only_under_its_names_and_its_authority(made, tmp_path, host, authority, accepted):
    if authority == "foreign":
        trusted = keys.make_keys(tmp_path / "foreign", 1, ["federation.example.org"]) / "node-0" / "ca.crt"
    else:
        trusted = made / "node-0" / "ca.crt"
    client, pair = ssl.create_default_context(cafile=str(trusted)), made / "server" / "server.pem"
    outcome = contextlib.nullcontext() if accepted else pytest.raises(ssl.SSLCertVerificationError)
    with outcome:
        shake_hands(client, pair, pair.with_suffix(".key"), host)


def shake_hands(client: ssl.SSLContext, certificate, key, host: str | None = None) -> None:
    """Connects a client to a server with this certificate; raises what the client raises."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    near, far = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(far, server_side=True).close()
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(near, server_hostname=host).close()
    finally:
        near.close()
        thread.join()


def test_keys_are_never_overwritten(made):
    before = {path: path_bytes(path) for path in made.rglob("*")}
    with pytest.raises(FileExistsError, match="never overwritten"):
        keys.make_keys(made, 2)
    assert {path: path_bytes(path) for path in made.rglob("*")} == before


def test_a_failure_leaves_no_half_made_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "accept", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        keys.make_keys(tmp_path / "federation", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["", "https://example.org", "example.org:8000", "a b", "x'; rm"])
def test_what_is_not_a_host_is_rejected(tmp_path, host):
    with pytest.raises(ValueError, match="`hosts` must be host names or IP addresses"):
        keys.make_keys(tmp_path / "federation", 1, [host])


def test_the_commands_name_the_host_and_every_node(made):
    text = (made / "COMMANDS.txt").read_text()
    for machine in ("server", "node-0", "node-1"):
        assert (made / machine / "COMMANDS.txt").read_text() in text
    assert text.count("--server federation.example.org:8000 --keys .") == 2


def test_only_what_the_named_one_has_signed_for_this_purpose_opens(made, tmp_path):
    node, server = Identity.load(made / "node-0"), Identity.load(made / "server")
    assert (node.name, node.number, server.name, server.number) == ("node-0", 0, "server", None)
    at_server, at_node = Trust.load(made / "server"), Trust.load(made / "node-1")
    for data in (b"", b"x" * 100_000):
        assert at_server.open(node.sign(data), "node-0") == data
        assert at_node.open(node.sign(data, "key"), "node-0", "key") == data
        assert at_node.open(server.sign(data), "server") == data
    stranger = Identity.load(keys.make_keys(tmp_path / "other", 1) / "node-0")
    forged = [
        (at_server, node.sign(b"x"), "node-1", "message", "signed by node-0, not by node-1"),
        (at_node, node.sign(b"x"), "server", "message", "signed by node-0, not by server"),
        (at_server, node.sign(b"x"), "node-0", "key", "the signature is not one of node-0"),
        (at_server, stranger.sign(b"x"), "node-0", "message", "not one of this federation's authority"),
        (at_server, b"fedhsa/1 plain", "node-0", "message", "is not signed"),
        (at_server, b"", "node-0", "message", "is not signed"),
    ]
    for trust, envelope, name, purpose, words in forged:
        with pytest.raises(RejectedError, match=words) as caught:
            trust.open(envelope, name, purpose)
        assert caught.value.code == "forged"


def test_no_bit_of_an_envelope_can_be_changed_and_no_end_be_cut_off(made):
    trust, envelope = Trust.load(made / "server"), Identity.load(made / "node-0").sign(b"data")
    for i in range(len(envelope)):
        with pytest.raises(RejectedError) as caught:
            trust.open(envelope[:i] + bytes([envelope[i] ^ 1]) + envelope[i + 1 :], "node-0")
        assert caught.value.code == "forged"
        with pytest.raises(RejectedError):
            trust.open(envelope[:i], "node-0")
    assert trust.open(envelope, "node-0") == b"data"


def test_a_certificate_counts_only_while_it_is_valid(made, monkeypatch):
    trust, node = Trust.load(made / "server"), Identity.load(made / "node-0")
    trust.open(node.sign(b"x"), "node-0")
    for days in (-1, 366):
        then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        monkeypatch.setattr(signing, "_now", lambda then=then: then)
        with pytest.raises(RejectedError, match="renew it, or set the clock"):
            trust.open(node.sign(b"x"), "node-0")


def test_a_certificate_does_not_outlive_its_authority(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "AUTHORITY_DAYS", 1)
    home = keys.make_keys(tmp_path / "federation", 1, days=1)
    certificate, trust = keys.renew(home, 0, days=100).read_bytes(), Trust.load(home / "server")
    assert trust.admit(certificate) == "node-0"
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    monkeypatch.setattr(signing, "_now", lambda: then)
    with pytest.raises(RejectedError, match="renew it, or set the clock"):
        trust.admit(certificate)


def test_a_node_makes_its_own_key_and_only_the_request_leaves_it(federation, tmp_path):
    asked = keys.request(tmp_path / "mine")
    assert keys.request(tmp_path / "mine").read_bytes() == asked.read_bytes()  # asking again changes nothing
    assert b"PRIVATE" not in asked.read_bytes()
    answer = keys.sign(federation, asked, 7)
    keys.accept(tmp_path / "mine", answer)
    node = Identity.load(tmp_path / "mine")
    assert (node.name, [member.number for member in keys.members(federation)]) == ("node-7", [0, 1, 7])
    assert Trust.load(federation / "server").open(node.sign(b"x"), "node-7") == b"x"
    assert Trust.load(tmp_path / "mine").open(Identity.load(federation / "server").sign(b"x"), "server") == b"x"
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {"key", "key.pub", "node.crt", "ca.crt"}
    for path in [tmp_path / "mine", *(tmp_path / "mine").iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_new_key_replaces_the_old_one_only_if_the_operator_says_so(federation):
    trust, node = Trust.load(federation / "server"), federation / "node-0"
    old = Identity.load(node)
    asked = keys.request(node)
    assert trust.open(old.sign(b"x"), "node-0") == b"x"  # the old one is in use until the new one is accepted
    assert Identity.load(node).certificate == old.certificate
    with pytest.raises(ValueError, match="in the register with another key"):
        keys.sign(federation, asked, 0)
    answer = keys.sign(federation, asked, 0, replace=True)
    with pytest.raises(RejectedError, match="with another key"):
        trust.open(old.sign(b"x"), "node-0")
    keys.accept(node, answer)
    assert trust.open(Identity.load(node).sign(b"x"), "node-0") == b"x"


def test_a_renewed_certificate_has_the_same_key_so_that_nobody_is_refused_meanwhile(federation):
    trust, node = Trust.load(federation / "server"), federation / "node-1"
    old = Identity.load(node)
    answer = keys.renew(federation, 1, days=1000)
    assert trust.open(old.sign(b"x"), "node-1") == b"x"
    new = Identity.load(keys.accept(node, answer))
    assert trust.open(new.sign(b"x"), "node-1") == b"x"
    assert (new.certificate.not_valid_after_utc - old.certificate.not_valid_after_utc).days > 600
    names = Identity.load(federation / "server").certificate.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    keys.renew(federation, days=1000)
    server = Identity.load(federation / "server")
    assert server.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName) == names
    assert Trust.load(node).open(server.sign(b"x"), "server") == b"x"


def test_a_node_that_answers_signs_with_its_new_key_as_soon_as_it_has_one(federation):
    reply = signing.signed(lambda data: data + b"!", federation / "node-0")
    asked, trust = Identity.load(federation / "server").sign(b"x"), Trust.load(federation / "server")
    assert trust.open(reply(asked), "node-0") == b"x!"
    keys.accept(federation / "node-0", keys.sign(federation, keys.request(federation / "node-0"), 0, replace=True))
    assert trust.open(reply(asked), "node-0") == b"x!"
    forged = wire.unpack(trust.open(reply(b"x"), "node-0")).header
    assert (forged["kind"], forged["code"]) == ("rejection", "forged")


def test_an_excluded_node_is_refused_from_the_next_message_on(federation):
    trust, node = Trust.load(federation / "server"), Identity.load(federation / "node-0")
    trust.open(node.sign(b"x"), "node-0")
    assert trust.admit(node.certificate_pem) == "node-0"
    keys.exclude(federation, 0)
    for attempt in (lambda: trust.open(node.sign(b"x"), "node-0"), lambda: trust.admit(node.certificate_pem)):
        with pytest.raises(RejectedError, match="node-0 is not in the register"):
            attempt()
    with pytest.raises(ValueError, match="node-0 is not in the register, which has 1"):
        keys.exclude(federation, 0)


def test_what_is_exchanged_on_the_way_is_not_signed_and_not_accepted(federation, tmp_path):
    asked, foreign = keys.request(tmp_path / "mine"), keys.request(tmp_path / "theirs")
    told = keys.fingerprint(x509.load_pem_x509_csr(asked.read_bytes()).public_key())
    with pytest.raises(ValueError, match="Do not sign it"):
        keys.sign(federation, foreign, 2, expected=told)
    answer = keys.sign(federation, asked, 2, expected=told.upper().replace("-", " "))
    with pytest.raises(ValueError, match="node-2 already has this key"):
        keys.sign(federation, asked, 3)
    with pytest.raises(ValueError, match="does not belong to the key"):
        keys.accept(tmp_path / "theirs", answer)
    keys.accept(tmp_path / "mine", answer)
    other = keys.make_keys(tmp_path / "other")
    with pytest.raises(ValueError, match="of another authority than this node knows"):
        keys.accept(tmp_path / "mine", keys.sign(other, keys.request(tmp_path / "mine"), 2))
    request, bad = x509.load_pem_x509_csr(foreign.read_bytes()), tmp_path / "bad.pem"
    encoded = bytearray(request.public_bytes(serialization.Encoding.DER))
    encoded[-1] ^= 1  # the signature, which proves that whoever asks has the private key
    for content, words in (
        (foreign.read_bytes()[:100], "is not a request, or is damaged"),
        (
            ssl.DER_cert_to_PEM_cert(bytes(encoded)).replace("CERTIFICATE", "CERTIFICATE REQUEST").encode(),
            "was changed",
        ),
    ):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            keys.sign(federation, bad, 4)
    assert [member.number for member in keys.members(federation)] == [0, 1, 2]


@pytest.mark.parametrize("written", ["key", "key.pub", "node.crt", "ca.crt"])
def test_an_interrupted_acceptance_can_be_repeated(federation, monkeypatch, written):
    node = federation / "node-0"
    answer = keys.sign(federation, keys.request(node), 0, replace=True)
    real = _files.atomic

    def fail(path, private):
        if path.name == written:
            raise OSError("the machine stops")
        return real(path, private)

    with monkeypatch.context() as patch:
        patch.setattr(_files, "atomic", fail)
        with pytest.raises(OSError, match="stops"):
            keys.accept(node, answer)
    keys.accept(node, answer)
    assert Trust.load(federation / "server").open(Identity.load(node).sign(b"x"), "node-0") == b"x"


def test_a_certificate_is_believed_only_for_what_it_was_made_for(made):
    authority, node = signing.read_key(made / "authority" / "ca.key"), Identity.load(made / "node-0")
    public, trust = node.certificate.public_key(), Trust(node.authority)
    names = keys._alternative_names(["localhost"])
    assert trust.admit(keys._certificate("node-0", public, authority, 1)) == "node-0"
    for name, hosts in (("server", None), ("node-0", names), ("node-00", None), ("somebody", None)):
        with pytest.raises(RejectedError, match="neither a server's nor a node's"):
            trust.admit(keys._certificate(name, public, authority, 1, names=hosts))


def test_a_node_cannot_play_the_server_to_another_node(made, tmp_path):
    node = Identity.load(made / "node-0")
    (tmp_path / "both.pem").write_bytes(node.certificate_pem + node.key_pem)
    client = ssl.create_default_context(cafile=str(made / "node-1" / "ca.crt"))
    client.check_hostname = False
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake_hands(client, tmp_path / "both.pem", tmp_path / "both.pem")
