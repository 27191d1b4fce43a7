"""Secure aggregation: the server learns sums and nothing else, and sites refuse whatever would tell it more."""

import functools
import json
import pathlib

import numpy as np
import pytest
import scipy

import fedhsa as fh
from cases import CASES
from fedhsa import tree
from fedhsa.algorithms.fixed_point import TOO_LARGE
from fedhsa.deploy import (
    Faults,
    FederationError,
    Killed,
    MemoryTransport,
    Missing,
    Plan,
    Privacy,
    RejectedError,
    Server,
    Site,
    Store,
    Task,
    federate,
    in_memory,
    masks,
    secure,
)
from fedhsa.deploy.fit import MismatchError
from fedhsa.deploy.masks import Cohort, KeyPair, Member
from fedhsa.deploy.secure import AGENTS, KEYS, PURPOSE, ROSTER, Masking, Secure
from fedhsa.deploy.server import BOOT
from fedhsa.deploy.wire import pack, unpack

M, ROUNDS = 3, 4
METHODS = {
    "FedHSA": fh.FedHSA(0.05, 3),
    "SCAFFOLD": fh.SCAFFOLD(0.05, 3),
    "Weighted": fh.Weighted(fh.LocalSA(0.05, 3), np.array([1.0, 2.0, 4.0])),
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The folders of a federation with four nodes, and those of another one's authority."""
    from fedhsa.deploy.keys import make_keys

    home = tmp_path_factory.mktemp("keys")
    return make_keys(home / "ours", nodes=4), make_keys(home / "theirs", nodes=3)


@functools.cache
def make_task(name="FedHSA", num_agents=M):
    problem = CASES["td"](num_agents).problem
    example = tree.take(problem.flat_agents, 0)
    method = fh.FixedPoint(METHODS[name] if isinstance(name, str) else name)
    return Task(method, num_agents, np.linspace(-1, 1, problem.dim), key=3, example=example, secure=True)


class World:
    """Sites in one folder, and a server that may ask them anything."""

    def __init__(self, folder: pathlib.Path, keys, name="FedHSA", minimum=None, num_agents=M):
        self.folder, self.keys, self.task, self.minimum = folder, keys[0], make_task(name, num_agents), minimum
        self.problem = CASES["td"](num_agents).problem
        self.live = {i: self.start(i) for i in range(num_agents)}
        self.attempt = BOOT

    def start(self, i: int) -> Site:
        """The process of a site starts, perhaps again."""
        agents = tree.take(self.problem.flat_agents, np.array([i]))
        own = Secure.load(self.keys / f"node-{i}", self.minimum)
        return Site(self.task, agents, [i], Store(self.folder / f"{i}.state", sync=False), "test", secure=own)

    def key(self, i: int) -> bytes:
        """The public key that a site has now."""
        masking = self.live[i].masking
        assert masking is not None
        return masking._keys.public

    def header(self, kind, i, t=0, number=0, **more):
        own = {"run": "test", "task": self.task.digest, "first": i, "agents": 1, "counted": -1, "token": "x"}
        name = self.task.schemas(1)[number][0]
        facts = {"kind": kind, "round": t, "attempt": self.attempt, "exchange": number, "name": name}
        return own | facts | more

    def ask(self, i, kind, arrays, **more):
        return unpack(self.live[i].answer(pack(self.header(kind, i, **more), arrays)))

    def offers(self, cohort) -> dict[int, bytes]:
        return {i: self.ask(i, KEYS, {}).arrays["offer"].tobytes() for i in cohort}

    def meet(self, cohort, offers=None):
        """Lets the sites know each other; gives what they say."""
        roster = secure.make_roster(self.offers(cohort) if offers is None else offers)
        return {i: self.ask(i, ROSTER, roster).header for i in cohort}

    def request(self, i, digest, theta=None, **more):
        theta = self.task.theta if theta is None else theta
        return self.ask(i, "request", {"value": theta}, cohort=digest, **more)


def total(answers):
    """What the server makes of masked replies: a number if the masks are gone."""
    found = secure.unmask(dict(enumerate(answers)), dict.fromkeys(range(len(answers)), 1))
    return None if found is None else found["value"][0]


def code(packet) -> str:
    return packet.header.get("code", "")


# The sums are right.


def same_as_simulated(name, faults):
    problem, method = CASES["td"]().problem, METHODS[name]
    options = {"rounds": ROUNDS, "key": 3, "theta": np.linspace(-1, 1, problem.dim)}
    found = federate(problem, method, **options, faults=faults, sites=[[0], [1, 2]], secure_aggregation=True)
    simulated, plain = (fh.simulate(problem, a, **options) for a in (fh.FixedPoint(method), method))
    assert found.theta.tobytes() == simulated.theta.tobytes()
    assert np.abs(found.theta - plain.theta).max() < 1e-13


def test_the_run_is_bit_for_bit_that_of_simulated_whole_numbers():
    same_as_simulated("SCAFFOLD", Faults(schedule=[*7 * [None], "kill saved", "lose reply", "garble reply"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_it_is_so_whatever_goes_wrong_with_every_third_message(name):
    faults = Faults(0.3, seed=3)
    same_as_simulated(name, faults)
    assert {"kill received", "kill saved"} <= {*faults.happened}


@pytest.mark.slow
@pytest.mark.parametrize(("num_agents", "bits", "near"), [(3, 48, 1e-14), (20, 40, 2e-12)])
def test_fifty_rounds_are_as_near_to_the_plain_run_as_the_page_says(num_agents, bits, near):
    problem = fh.problems.quadratic.random(num_agents=num_agents, dim=10)
    for method in (fh.FedHSA(0.02, 10), fh.LocalSA(0.02, 10), fh.SCAFFOLD(0.02, 10)):
        whole = fh.FixedPoint(method, bits)
        found = federate(problem, whole, rounds=50, secure_aggregation=True)
        assert found.theta.tobytes() == fh.simulate(problem, whole, rounds=50).theta.tobytes()
        assert np.abs(found.theta - fh.simulate(problem, method, rounds=50).theta).max() < near


def test_masks_cancel_modulo_the_word_and_do_not_without_one_of_them():
    sites, values = [KeyPair() for _ in range(5)], np.random.default_rng(0).integers(0, 2**64, (5, 7), np.uint64)
    cohort = Cohort([Member(2 * i, 1, site.public) for i, site in enumerate(sites)])
    seen = [site.mask(x, 2 * i, cohort, b"label") for i, (site, x) in enumerate(zip(sites, values, strict=True))]
    np.testing.assert_array_equal(np.add.reduce(seen), np.add.reduce(values))
    for left_out in range(5):
        others = [i for i in range(5) if i != left_out]
        assert not (np.add.reduce([seen[i] for i in others]) == np.add.reduce(values[others])).any()


def test_a_stream_is_what_the_standards_say():
    """X25519, HKDF with SHA-256 (RFC 5869) and ChaCha20 (RFC 8439), as another library has them."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    one, other = KeyPair(), KeyPair()
    secret = other._private.exchange(X25519PublicKey.from_public_bytes(one.public))
    info = b"fedhsa-masks-1\0" + b"3 12 " + b"label"
    key = HKDF(hashes.SHA256(), 32, None, info).derive(secret)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(80))
    cohort = Cohort([Member(3, 1, one.public), Member(12, 1, other.public)])
    masked = one.mask(np.zeros(10, np.uint64), 3, cohort, b"label")
    assert masked.astype("<u8").tobytes() == stream


def test_a_stream_belongs_to_two_sites_even_if_one_of_them_shows_the_key_of_another():
    one, other = KeyPair(), KeyPair()
    cohort = Cohort([Member(0, 1, one.public), Member(1, 1, other.public), Member(2, 1, other.public)])
    assert (one.mask(np.zeros(50, np.uint64), 0, cohort, b"") % 2).any()  # the same twice would be even


# The server sees nothing else.


def test_what_the_server_sees_is_uniform_whatever_is_under_the_masks():
    """Bytes of masked zeros and masked large numbers: chi-squared with 255 degrees of freedom, at 1e-4."""
    sites = [KeyPair() for _ in range(3)]
    cohort = Cohort([Member(i, 1, site.public) for i, site in enumerate(sites)])
    views = {}
    for what, value in (("zeros", 0), ("large", 2**62)):
        seen = [s.mask(np.full(5_000, value, np.uint64), i, cohort, masks.label(what)) for i, s in enumerate(sites)]
        views[what] = np.concatenate(seen)
        counts = np.bincount(views[what].view(np.uint8), minlength=256)
        assert scipy.stats.chisquare(counts).pvalue > 1e-4
    # Neither neighbours, nor sites, nor what was masked at another time go together.
    for one, other in ((views["zeros"], views["large"]), (views["zeros"][1:], views["zeros"][:-1])):
        close = np.corrcoef(one.astype(float), other.astype(float))[0, 1]
        assert abs(close) < 4 / np.sqrt(len(one))


class Given(KeyPair):
    """A site whose streams with the others are given."""

    def _stream(self, public, label, count):
        return self.streams[frozenset((self.public, public))]


def test_two_inputs_with_the_same_sum_give_the_same_view_for_as_many_masks():
    """To every choice of streams and inputs belongs one for other inputs of the same sum: so the view tells the sum.

    What changes at site i is taken up by the stream between sites i and i + 1, which is as likely as before.
    """
    draw = np.random.default_rng(1).integers
    x, y = draw(0, 2**64, (2, 4, 50), np.uint64)
    y[-1] = np.add.reduce(x) - np.add.reduce(y[:-1])
    sites = [Given() for _ in range(4)]
    cohort = Cohort([Member(i, 1, site.public) for i, site in enumerate(sites)])
    between = {frozenset((a.public, b.public)): draw(0, 2**64, 50, np.uint64) for a in sites for b in sites if a != b}
    other, change = dict(between), np.zeros(50, np.uint64)
    for i in range(3):
        change = change + x[i] - y[i]
        pair = frozenset((sites[i].public, sites[i + 1].public))
        other[pair] = between[pair] + change
    views = []
    for values, streams in ((x, between), (y, other)):
        for site in sites:
            site.streams = streams
        views.append(
            [site.mask(value, i, cohort, b"") for i, (site, value) in enumerate(zip(sites, values, strict=True))]
        )
    np.testing.assert_array_equal(*views)
    assert (x != y).all()


class Wire(MemoryTransport):
    """Keeps all that the server gets."""

    def exchange(self, messages, seconds):
        for reply in super().exchange(messages, seconds):
            self.seen.append(unpack(reply))
            yield reply


def eavesdrop(problem, method, keys, rounds, missing=None):
    """The whole view of an honest server, with the messages it has sent."""
    task = Task(fh.FixedPoint(method), problem.num_agents, np.zeros(problem.dim), secure=True)
    agents, folder = problem.flat_agents, keys[0] / f"run-{np.random.default_rng().integers(2**40)}"

    def start(i):
        own = Secure.load(keys[0] / f"node-{i}")
        store = Store(folder / f"{i}.state", sync=False)
        return Site(task, tree.take(agents, np.array([i])), [i], store, "run", secure=own)

    transport = Wire(start, problem.num_agents)
    transport.seen = []
    Server(task, transport, [[i] for i in range(problem.num_agents)], run="run", missing=missing).run(rounds)
    return [packet for packet in transport.seen if packet.header["kind"] == "reply"]


@pytest.mark.slow
def test_an_agents_matrix_cannot_be_solved_for_as_on_the_privacy_page_but_their_sum_can(keys):
    problem = fh.problems.quadratic.random(num_agents=3, dim=4).noiseless()
    seen = eavesdrop(problem, fh.FedHSA(0.05, 5), keys, rounds=5)
    assert len(seen) == 5 * 2 * 3
    said = [p.arrays["value"][0] * 2.0**-48 for p in seen if (p.header["first"], p.header["name"]) == (1, "operator")]
    plain = fh.simulate(problem, fh.FedHSA(0.05, 5), rounds=5, record=("theta",)).records["theta"][0, :5]
    solved = np.linalg.solve(np.column_stack([plain, -np.ones(5)]), np.array(said)).T
    A, _ = problem.affine_parts()
    assert np.abs(solved[:, :4] - A[1]).max() > 100
    sums = [np.add.reduce([p.arrays["value"][0] for p in seen[6 * t : 6 * t + 3]]) * 2.0**-48 for t in range(5)]
    solved = np.linalg.solve(np.column_stack([plain, -np.ones(5)]), np.array(sums)).T
    np.testing.assert_allclose(solved[:, :4], A.sum(0), atol=1e-6)


@pytest.mark.slow
def test_an_agents_states_cannot_be_read_off_as_on_the_privacy_page(keys):
    problem = fh.problems.td.random(num_agents=3, num_states=20, dim=4)
    path = np.random.default_rng(0).integers(20, size=(3, 101))
    visited = problem.replay(fh.sources.Transition(path[:, :-1], path[:, 1:]))
    seen = eavesdrop(visited, fh.FedHSA(0.05, 5), keys, rounds=20)
    said = np.array([p.arrays["value"][0] for p in seen if (p.header["first"], p.header["name"]) == (1, "operator")])
    features = problem.agents.features[1]
    directions = features / np.linalg.norm(features, axis=1, keepdims=True)
    guess = np.abs(said.astype(float) @ directions.T).argmax(axis=1)
    assert np.count_nonzero(guess == path[1, :-1:5]) <= 6  # one in twenty by chance: more than six in 1e-4 of cases


def test_no_reply_leaves_a_site_unmasked_nor_what_it_measures(keys, tmp_path):
    world = World(tmp_path, keys)
    digest = world.meet(range(M))[0]["cohort"]
    one = world.request(0, digest)
    assert sorted(one.arrays) == [AGENTS, "value"]
    assert (np.abs(one.arrays["value"].astype(float)) > 2**50).any()  # as numbers would be 4 and more
    measured = [lambda theta: {"loss": 0.5}] * M
    problem = CASES["td"]().problem
    result = federate(problem, fh.FedHSA(0.05, 3), rounds=1, measures=measured, secure_aggregation=True)
    assert "loss" not in result.records


# A malicious server.


def test_a_server_that_asks_one_site_something_else_learns_nothing(keys, tmp_path):
    """It would see that site's answer in the difference of two sums; the message is part of what the mask is for."""
    world = World(tmp_path, keys)
    digest = world.meet(range(M))[0]["cohort"]
    same = total([world.request(i, digest).arrays for i in range(M)])
    assert same is not None
    world.attempt += 1
    asked = [world.request(i, digest, theta=world.task.theta + (i == 2)) for i in range(M)]
    assert [code(packet) for packet in asked] == [""] * M
    assert total([packet.arrays for packet in asked]) is None
    # Nor later in the round, where the others are asked the same again.
    later = [world.ask(i, "request", {"value": np.ones(4)}, number=1, cohort=digest) for i in range(M)]
    assert [code(packet) for packet in later] == [""] * M
    assert total([packet.arrays for packet in later]) is None


def test_sites_that_were_shown_different_keys_use_different_masks(keys, tmp_path):
    """A site that works together with the server could give everybody another key of its own."""
    world, used = World(tmp_path, keys), []
    for i in (0, 1):
        offers = world.offers(range(M))  # of which site 2 has another each time
        world.live[2] = world.start(2)
        digest = world.meet([i], offers)[i]["cohort"]
        masking = world.live[i].masking
        assert masking is not None
        masking._keys.mask = lambda values, own, cohort, label: used.append(label) or values
        assert code(world.request(i, digest)) == ""
    assert len({*used}) == 2


@pytest.mark.parametrize("name", ["FedHSA", "SCAFFOLD"])
def test_what_one_site_alone_was_asked_in_an_earlier_round_shows_only_where_it_is_forgotten(name, keys, tmp_path):
    """SCAFFOLD's agents remember, so masks depend on all that they were sent; those of FedHSA begin anew."""
    world = World(tmp_path, keys, name)
    digest = world.meet(range(M))[0]["cohort"]
    leaves = [leaf.name for leaf in world.task.schemas(1)[0][1].leaves]

    def round(t, **changed):
        world.attempt, found = world.attempt + 1, []
        for i in range(M):
            arrays = {leaf: np.asarray(world.task.theta + changed.get(f"site{i}", 0.0)) for leaf in leaves}
            found.append(world.ask(i, "request", arrays, t=t, cohort=digest, counted=t - 1))
        assert [code(packet) for packet in found] == [""] * M
        return secure.unmask(dict(enumerate(p.arrays for p in found)), dict.fromkeys(range(M), 1))

    assert round(0) is not None
    assert round(1) is not None
    assert round(2, site1=1.0) is None
    assert (round(3) is None) == (name == "SCAFFOLD")


def test_a_second_cohort_in_a_round_is_refused_and_one_in_the_next_round_is_not(keys, tmp_path):
    world = World(tmp_path, keys, minimum=2)
    digest = world.meet(range(M))[0]["cohort"]
    assert code(world.request(0, digest)) == ""
    world.attempt += 1
    smaller = world.meet([0, 1])[0]["cohort"]
    refused = world.request(0, smaller)
    assert code(refused) == "cohort"
    assert "answers among one set of them per round" in refused.header["reason"]
    world.live[0] = world.start(0)  # also after it was killed
    smaller = world.meet([0, 1])[0]["cohort"]
    assert code(world.request(0, smaller)) == "cohort"
    assert code(world.request(1, smaller)) == ""  # which has not answered in this round before
    world.attempt += 1
    assert code(world.request(0, smaller, t=1)) == ""
    world.attempt += 1
    assert code(world.request(0, smaller, t=0)) == "stale"  # nor is there a way back


def test_fewer_than_all_agents_or_than_the_minimum_are_refused(keys, tmp_path):
    everyone = World(tmp_path / "a", keys).meet([0, 1])
    assert {header["code"] for header in everyone.values()} == {"mismatch"}
    assert "only if all 3 agents take part, and these are 2" in everyone[0]["reason"]
    few = World(tmp_path / "b", keys, minimum=3).meet([0, 1])
    assert "only among 3 or more (`--minimum-cohort`), and these are 2" in few[0]["reason"]
    alone = World(tmp_path / "c", keys, minimum=2).meet([0])
    assert "only among 2 or more" in alone[0]["reason"]
    with pytest.raises(ValueError, match="`minimum_cohort` must be at least 2"):
        Secure.load(keys[0] / "node-0", 1)


def test_a_repeated_question_gets_the_same_bytes_and_a_restarted_round_or_site_has_new_masks(keys, tmp_path):
    world = World(tmp_path, keys)
    digest = world.meet(range(M))[0]["cohort"]
    asked = pack(world.header("request", 0, cohort=digest), {"value": world.task.theta})
    first = world.live[0].answer(asked)
    assert world.live[0].answer(asked) == first
    key = world.key(0)
    world.live[0] = world.start(0)
    assert world.live[0].answer(asked) == first  # saved, and still right for the cohort it was made for
    assert code(world.ask(0, "request", {"value": np.ones(4)}, number=1, cohort=digest)) == "keys"
    assert world.key(0) != key
    assert not any(key in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    before = world.request(1, digest).arrays
    world.attempt += 1
    after = world.request(1, digest).arrays  # the same numbers, but with noise they would be others
    assert not any((after[name] == values).any() for name, values in before.items())


def test_a_state_that_was_put_back_does_not_bring_a_mask_back(keys, tmp_path):
    """The server asks the same of an older state, whose answer may differ: under one mask that would tell how."""
    world = World(tmp_path, keys)
    digest = world.meet(range(M))[0]["cohort"]
    assert code(world.request(0, digest)) == ""
    before = (tmp_path / "0.state").read_bytes()
    world.attempt += 1
    assert code(world.request(0, digest, t=1)) == ""
    (tmp_path / "0.state").write_bytes(before)
    assert code(world.request(0, digest, t=1)) == "keys"
    (tmp_path / "0.state").unlink()
    assert code(world.request(0, digest)) == "keys"


def test_a_server_cannot_play_other_sites(keys, tmp_path):
    """Keys must be signed by the named node, with a certificate of the authority, for this run, settings and agents."""
    world = World(tmp_path, keys)
    honest = world.offers(range(M))

    def refusal(**changed):
        offers = {i: changed.get(f"site{i}", offer) for i, offer in honest.items()}
        return world.meet([0], offers)[0]

    def offer(folder, **changed):
        own, facts = Secure.load(folder), {"run": "test", "task": world.task.digest, "first": 1, "agents": 1}
        said = [*(facts | changed).values(), KeyPair().public.hex()]
        return own.identity.sign(json.dumps(said).encode(), PURPOSE)

    ours, theirs = keys
    assert "cohort" in refusal(site1=offer(ours / "node-1"))  # what a right one looks like
    wrong = {
        "not one of this federation's authority": offer(theirs / "node-1"),
        "signed by node-3, not by node-1": offer(ours / "node-3"),
        "the certificate is neither|signed by server": offer(ours / "server"),
        "signed for another run": offer(ours / "node-1", run="other"),
        "the key of node-1 was signed for another run": offer(ours / "node-1", task="0" * 32),
        "for another": offer(ours / "node-1", first=2),
        "is not a key": offer(ours / "node-1", agents=0),
        "share agents": offer(ours / "node-1", agents=2),
        "the signature is not one of node-1": honest[1][:-1] + b"\0",
        "is not signed": b"nonsense",
        "same public key": Secure.load(ours / "node-1").identity.sign(
            json.dumps(["test", world.task.digest, 1, 1, world.key(0).hex()]).encode(), PURPOSE
        ),
        "what should be a public key is none": Secure.load(ours / "node-1").identity.sign(
            json.dumps(["test", world.task.digest, 1, 1, bytes(32).hex()]).encode(), PURPOSE
        ),
        "has signed is not a key": Secure.load(ours / "node-1").identity.sign(b"[1, 2]", PURPOSE),
        "the signature is not one": Secure.load(ours / "node-1").identity.sign(honest[1], "message"),
    }
    for words, forged in wrong.items():
        found = refusal(site1=forged)
        assert found["code"] == "forged", (words, found)
        assert any(part in found["reason"] for part in words.split("|")), (words, found)
    # Its own key must be there, and be its newest.
    assert refusal(site0=offer(ours / "node-0", first=0))["code"] == "keys"
    world.live[0] = world.start(0)
    assert refusal()["code"] == "keys"


def test_a_site_that_knows_the_certificates_of_the_others_believes_no_other(keys, tmp_path):
    """Whoever keeps the authority's key could sign further ones; the sites may have exchanged theirs."""
    import shutil

    from fedhsa.deploy.keys import accept, request, sign

    ours = tmp_path / "federation"
    shutil.copytree(keys[0], ours)
    peers = ours / "node-0" / "peers"
    peers.mkdir()
    for i in range(M):
        shutil.copy(ours / f"node-{i}" / "node.crt", peers / f"node-{i}.crt")
    world = World(tmp_path / "sites", (ours, None))
    assert all("cohort" in header for header in world.meet(range(M)).values())
    asked = request(tmp_path / "made-up")
    accept(tmp_path / "made-up", sign(ours, asked, number=1, replace=True))
    false = Masking(Secure.load(tmp_path / "made-up"), world.task, "test", np.array([1])).offer()["offer"].tobytes()
    offers = world.offers(range(M)) | {1: false}
    assert "not in the register, or with another key" in world.meet([0], offers)[0]["reason"]
    assert "cohort" in world.meet([2], offers)[2]  # which has no such folder


# A malicious or broken site.


MALFORMED = {
    "no count": lambda a: {"value": a["value"]},
    "another count": lambda a: a | {AGENTS: a[AGENTS].repeat(2)},
    "a count of another type": lambda a: a | {AGENTS: a[AGENTS].astype(float)},
    "plain numbers": lambda a: {"value": a["value"].astype(float), AGENTS: a[AGENTS]},
    "unsigned numbers": lambda a: a | {"value": a["value"].view(np.uint64)},
    "too few numbers": lambda a: a | {"value": a["value"][:, 1:]},
    "a row too many": lambda a: a | {"value": a["value"].repeat(2, axis=0)},
    "another array": lambda a: a | {"more": a["value"]},
    "no numbers": lambda a: {AGENTS: a[AGENTS]},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_share_is_refused(what, keys, tmp_path):
    schema = make_task().schemas(1)[0][2]
    good = {"value": np.zeros((1, 4), np.int64), AGENTS: np.zeros(1, np.int64)}
    assert secure.read_masked(good, schema).keys() == good.keys()
    with pytest.raises(RejectedError):
        secure.read_masked(MALFORMED[what](good), schema)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": np.array([-1, 1, 0])},
        {"sizes": np.array([2**62, 2**62, 0])},
        {"sizes": np.array([5000, 0, 0]), "offers": np.zeros(5000, np.uint8)},
        {"firsts": np.array([0, 0, 1])},
        {"firsts": np.array([0, 1])},
        {"firsts": np.array([-1, 0, 1])},
        {"firsts": np.zeros((3, 1), int)},
        {"firsts": np.zeros(3)},
        {"offers": np.zeros(3, np.int64)},
        {"more": np.zeros(3)},
    ],
)
def test_a_malformed_roster_is_refused(change):
    good = secure.make_roster({0: b"a", 1: b"b", 2: b"c"})
    assert secure.read_roster(good) == {0: b"a", 1: b"b", 2: b"c"}
    with pytest.raises(RejectedError, match="signed keys"):
        secure.read_roster(good | change)


class Broken(MemoryTransport):
    """Site 1 adds something to what it sends."""

    def exchange(self, messages, seconds):
        for reply in super().exchange(messages, seconds):
            said = unpack(reply)
            if said.header["first"] == 1 and AGENTS in said.arrays:
                said.arrays[AGENTS] += 1
                reply = pack(said.header, said.arrays)
            yield reply


def server(world, kind=MemoryTransport, missing=None, faults=None, **options):
    transport = kind(world.start, len(world.live), faults)
    return Server(world.task, transport, [[i] for i in world.live], missing=missing, run="test", **options)


def test_masks_that_are_left_over_stop_the_run_and_are_no_result(keys, tmp_path):
    with pytest.raises(FederationError, match="Round 1 stopped: the masks of the sites do not cancel"):
        server(World(tmp_path, keys), Broken).run(1)


def test_numbers_out_of_range_are_refused_by_name_and_not_for_ever(keys, tmp_path):
    world = World(tmp_path, keys)
    digest = world.meet(range(M))[0]["cohort"]
    words = "its reply 'value' has numbers beyond 5461, the largest for 3 agents and 48 bits"
    for _ in range(secure.REFUSALS):
        world.attempt += 1
        refused = world.request(0, digest, theta=np.full(4, 1e6))
        assert code(refused) == "diverged"
        assert words in refused.header["reason"]
    world.attempt += 1
    assert code(world.request(0, digest)) == "limit"


# Agents that are absent.


class Absent(MemoryTransport):
    """Sites whose answers to some requests are lost."""

    mute = staticmethod(lambda t, number, site: False)

    def exchange(self, messages, seconds):
        for site, message in messages.items():
            asked, reply = unpack(message).header, self._ask(site, message)
            if asked["kind"] != "request" or not self.mute(asked["round"], asked["exchange"], site):
                yield reply


def test_a_round_that_lost_somebody_is_given_up_and_the_next_has_fresh_observations(keys, tmp_path):
    """Two sums of the same observations, with and without agent 2, would be its reply: there is only one of them."""
    world, events = World(tmp_path, keys, minimum=2), []
    found = server(world, Absent, Missing("skip", patience=0.2, at_least=2), watch=events.append)
    found.transport.mute = lambda *asked: asked == (1, 1, 2)
    progress = found.run(4)
    assert [record.agents for record in progress.records[1:]] == [3, 0, 2, 3]
    assert progress.records[2].error == progress.records[1].error or np.isnan(progress.records[1].error)
    assert progress.records[2].movement == 0
    assert [event["agents"] for event in events if event["event"] == "given up"] == [[2]]
    states = [unpack((tmp_path / f"{i}.state").read_bytes()).header for i in range(M)]
    assert [state["blocks"] for state in states] == [4, 4, 3]  # a block for every round that was begun
    assert {state["cohort"] for state in states} == {"0,1,2"}


def test_a_site_that_never_answers_stops_fewer_and_fewer_rounds(keys, tmp_path):
    found = server(World(tmp_path, keys, minimum=2), Absent, Missing("skip", patience=0.05, at_least=2))
    found.transport.mute = lambda t, number, site: site == 2
    assert [record.agents for record in found.run(10).records[1:]] == [0, 2, 0, 2, 2, 0, 2, 2, 2, 2]


class Coming(MemoryTransport):
    """Sites that come and go, and messages that are lost, late, garbled and repeated.

    In every tenth round one goes between two exchanges and stays away, however often it is asked in the meantime.
    """

    draws = None

    def exchange(self, messages, seconds):
        draws = self.draws = self.draws or np.random.default_rng(5)
        self.absent = {site for site in range(self.num_sites) if draws.random() < 0.1}
        asked = [unpack(message).header for message in messages.values()]
        if any(one["kind"] == "request" and one["round"] % 10 == 9 and one["exchange"] == 1 for one in asked):
            self.absent.add(max(messages))
        yield from super().exchange(messages, seconds)


@pytest.mark.slow
def test_whoever_comes_and_goes_the_masks_of_every_round_that_counts_are_gone(keys, tmp_path):
    """Four sites, of which two are enough; every round has a result over those who answered, or is given up."""
    world, events = World(tmp_path, keys, minimum=2, num_agents=4), []
    policy = Missing("skip", patience=0.1, at_least=2)
    found = server(world, Coming, policy, Faults(0.1, seed=2), watch=events.append)
    progress = found.run(60)
    agents = [record.agents for record in progress.records[1:]]
    assert {*agents} >= {0, 2, 3, 4}
    assert agents.count(0) == sum(event["event"] == "given up" for event in events) < 40
    assert np.isfinite(progress.server.theta).all()
    assert np.abs(progress.server.theta).max() < 10  # what is left of a mask would be thousands


def test_a_server_that_is_started_again_with_others_gives_its_round_up_and_goes_on(keys, tmp_path):
    world = World(tmp_path / "sites", keys, minimum=2)
    policy = Missing("skip", patience=0.2, at_least=2)
    first = server(world, missing=policy, folder=tmp_path)

    def die(phase):
        if phase == "collected":
            raise Killed

    first.phase = die
    with pytest.raises(Killed):
        first.run(3)
    second = server(world, missing=policy, folder=tmp_path)
    second.resume()
    second.transport.absent = {2}
    assert [record.agents for record in second.run(3).records[1:]] == [0, 2, 2]


@pytest.mark.parametrize("place", [1, *(pytest.param(p, marks=pytest.mark.slow) for p in (0, 3, 4))])
def test_a_server_that_was_killed_continues_bit_for_bit(place, keys, tmp_path):
    whole = server(World(tmp_path / "whole", keys, "SCAFFOLD")).run(3)
    world, left = World(tmp_path / "sites", keys, "SCAFFOLD"), [place]

    def die(phase):
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    first = server(world, folder=tmp_path)
    first.phase = die
    with pytest.raises(Killed):
        first.run(3)
    second = server(world, folder=tmp_path)
    second.resume()
    assert second.run(3).server.theta.tobytes() == whole.server.theta.tobytes()


# What is refused before the start.


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (fh.Robust(METHODS["FedHSA"], fh.rules.CoordinateMedian()), "needs the agents' individual replies"),
        (fh.Partial(METHODS["FedHSA"], fh.sampling.Bernoulli(0.5)), "needs the agents' individual replies"),
        (fh.Lossy(METHODS["FedHSA"], 0.1), "is not supported with Lossy"),
        (fh.Delayed(fh.LocalSA(0.1, 2), 2), "is not supported with Delayed"),
        (fh.Byzantine(METHODS["FedHSA"], (1, 2), fh.attacks.Zero()), "those of Byzantine, FedHSA do different things"),
        (fh.FedLin(0.1, (3, 1, 1)), "those of FedLin do different things by their numbers"),
        (fh.Weighted(METHODS["FedHSA"], np.array([1.0, 1e-9, 1e-9])), "by a factor of 10 with secure aggregation"),
        (fh.Compressed(METHODS["FedHSA"], fh.codecs.TopK(0.5)), "is not supported with coded replies"),
    ],
)
def test_methods_that_need_more_than_sums_or_hide_too_little_are_refused_with_the_reason(method, words):
    with pytest.raises((TypeError, ValueError), match=words):
        federate(CASES["td"]().problem, method, rounds=1, secure_aggregation=True)


def test_settings_under_which_a_sum_would_not_hide_an_agent_are_refused(keys, tmp_path):
    problem, method = CASES["td"]().problem, METHODS["FedHSA"]
    with pytest.raises(ValueError, match="at least two sites"):
        federate(problem, method, rounds=1, sites=[[0, 1, 2]], secure_aggregation=True)
    skip = Missing("skip", at_least=2)
    with pytest.raises(ValueError, match="agents remember nothing from round to round"):
        federate(problem, METHODS["SCAFFOLD"], rounds=1, missing=skip, secure_aggregation=True)
    with pytest.raises(ValueError, match="`at_least` must be at least 2"):
        federate(problem, method, rounds=1, missing=Missing("skip"), secure_aggregation=True)
    with pytest.raises(ValueError, match="`reply_bound` is not supported with secure aggregation"):
        federate(problem, method, rounds=1, reply_bound=1.0, secure_aggregation=True)
    with pytest.raises(ValueError, match="`dtype` must be 'float64'"):
        federate(problem, method, rounds=1, dtype="float32", secure_aggregation=True)
    with pytest.raises(ValueError, match="`secure` is needed"):
        Site(make_task(), tree.take(problem.flat_agents, np.array([0])), [0], Store(tmp_path / "0"), "run")
    with pytest.raises(ValueError, match="certificate is that of node-1, but the site's first agent is number 0"):
        Masking(Secure.load(keys[0] / "node-1"), make_task(), "run", np.array([0]))


def test_a_site_that_wants_masks_takes_part_in_no_run_without_them_and_needs_keys_for_one_with(keys, tmp_path):
    plan, store = Plan(problem="quadratic", num_agents=3, dim=2), Store(tmp_path / "run" / "0.state")
    with pytest.raises(MismatchError, match=r"sends replies under masks alone .* and the run is without"):
        plan.site([0], store, "run", {"secure_aggregation": "true"})
    with pytest.raises(MismatchError, match="for which this site needs keys"):
        plan.replace(secure_aggregation=True).site([0], store, "run")
    own = {"secure_aggregation": "true", "keys": str(keys[0] / "node-{number}"), "minimum_cohort": "3"}
    site = plan.replace(secure_aggregation=True).site([0], store, "run", own)
    assert site.masking is not None
    assert site.masking.secure.minimum == 3


# With noise.


def test_noise_that_agents_share_adds_up_to_all_of_it():
    """The variance of a sum over k agents, each with a k-th; the estimate from n numbers is off by sqrt(2 / n)."""
    privacy, n = Privacy(clip=0.5, noise=2.0, shared_by=4), 20_000
    one = {"value": np.full((4, n), 2**40)}  # 1/256 each, a norm of 0.55: shortened to 0.5
    sent = privacy.apply(one, bits=48, num_agents=4)["value"]
    assert sent.dtype == np.int64
    noise = sent.sum(axis=0) * 2.0**-48 - 4 * 0.5 / np.sqrt(n)
    assert abs(noise.var() / 4.0 - 1) < 4 * np.sqrt(2 / n)
    assert abs(sent[0].var() * 2.0**-96 / 1.0 - 1) < 4 * np.sqrt(2 / n)
    lost = privacy.apply({"value": np.full((1, 3), TOO_LARGE)}, bits=48, num_agents=4)["value"]
    assert np.abs(lost * 2.0**-48).max() < 10  # as if it were zero: that a number is not finite tells something
    far = Privacy(clip=1e6, noise=1.0).apply(one, bits=48, num_agents=4)["value"]
    assert (far == TOO_LARGE).any()  # refused afterwards, not clipped


@pytest.mark.slow
def test_noise_goes_under_the_masks(tmp_path):
    plan = Plan(problem="quadratic", num_agents=3, dim=2, step_size=0.01, local_steps=2, secure_aggregation=True)
    config = {"clip": 1.0, "noise": 1.0, "noise_shared_by": 3}
    given = {"a": config, "b": {}}
    moved = [in_memory(plan, tmp_path / name, config=own).run(1).server.theta for name, own in given.items()]
    assert 1e-3 < np.abs(moved[0] - moved[1]).max() < 100
    with pytest.raises(FederationError, match="unless the server sees only sums over that many agents, got 3"):
        in_memory(plan.replace(secure_aggregation=False), tmp_path / "c", config=config).run(1)
    with pytest.raises(FederationError, match="got 4, and secure aggregation is among 3 agents"):
        in_memory(plan, tmp_path / "d", config=config | {"noise_shared_by": 4}).run(1)
