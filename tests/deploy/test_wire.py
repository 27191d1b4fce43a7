"""The one binary form: what goes in comes out, and nothing else is let in."""

import contextlib
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedhsa.deploy.wire import DTYPES, HEADER_BYTES, RejectedError, pack, unpack, words
from fuzz import changed, mangle, parts, seal

VALID = [
    pack({"kind": "request", "round": 3, "name": "delta"}, {"theta": np.arange(4.0), "bits": np.array([True, False])}),
    pack({"kind": "reply", "first": 0}, {"value": np.zeros((2, 3), np.float32), "n": np.array(7)}),
    pack({}, {}),
]


SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.text(max_size=3), st.sampled_from(DTYPES).flatmap(lambda d: arrays.arrays(d, SHAPES)), max_size=3
    )
)
def test_arrays_come_out_as_they_went_in(values):
    header, found = unpack(pack({"round": 1}, values))
    assert header == {"round": 1}
    assert list(found) == list(values)
    for name, array in values.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
        assert found[name].flags.writeable  # a copy, which does not keep the message alive


def test_arrays_in_another_order_of_bytes_or_of_axes_come_out_right():
    big, turned = np.arange(3.0).astype(">f8"), np.asfortranarray(np.arange(6.0).reshape(2, 3))
    found = unpack(pack({}, {"big": big, "turned": turned})).arrays
    assert found["big"].tolist() == [0, 1, 2]
    assert found["turned"].tolist() == turned.tolist()
    assert found["big"].dtype == np.dtype("float64")


@pytest.mark.parametrize("array", [np.array(["word"]), np.array([object()]), np.zeros(2, complex), np.zeros(2, "f2")])
def test_only_plain_numbers_travel(array):
    with pytest.raises(TypeError, match="'a' has the type"):
        pack({}, {"a": array})


def test_a_header_that_could_not_be_read_again_is_not_written():
    with pytest.raises(ValueError, match="header has"):
        pack({"word": "x" * HEADER_BYTES}, {})


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"", "foreign", "does not begin with"),
        ("text", "foreign", "does not begin with"),
        (b"fedhsa/2" + VALID[0][8:], "foreign", "this version"),
        (VALID[0][:12], "malformed", "cut off after 12"),
        (VALID[0][:-1], "malformed", "checksum"),
        (VALID[0] + b"x", "malformed", "checksum"),
        (VALID[0][:20] + b"X" + VALID[0][21:], "malformed", "checksum"),
        (seal(b"[1, 2", b""), "malformed", "not JSON"),
        (seal(b'{"arrays": [], "x": NaN}', b""), "malformed", "not JSON"),
        (seal(b'{"arrays": [], "x": ' + b"[" * 9999 + b"]" * 9999 + b"}", b""), "malformed", "not JSON"),
        (seal(b"\xff\xfe\xff", b""), "malformed", "not JSON"),
        (seal(b"[]", b""), "malformed", "which arrays"),
        (seal(b'{"arrays": 3}', b""), "malformed", "which arrays"),
        (changed(VALID[0], arrays=[["a", "float64", [2**47]]]), "malformed", "cut off"),
        (changed(VALID[0], arrays=[["a", "float64", [2**60]]]), "malformed", "not described"),
        (changed(VALID[0], arrays=[["a", "float64", [0, 2**62, 2**62]]]), "malformed", "not described"),
        (changed(VALID[0], arrays=[["a", "object", [1]]]), "malformed", "not described"),
        (changed(VALID[0], arrays=[["a", "uint8", [-1]]]), "malformed", "not described"),
        (changed(VALID[0], arrays=[["a", "uint8", [34]], ["a", "uint8", [0]]]), "malformed", "two arrays"),
        (changed(VALID[0], arrays=[["a", "uint8", [33]]]), "malformed", "1 bytes follow"),
        (changed(VALID[0], arrays=[["a", "bool", [34]]]), "malformed", "truth values"),
    ],
)
def test_everything_else_is_rejected_with_its_reason(data, code, words):
    with pytest.raises(RejectedError, match=words) as rejected:
        unpack(data)
    assert rejected.value.code == code


def test_more_bytes_than_expected_are_rejected():
    assert unpack(VALID[0], 34).arrays["theta"].shape == (4,)
    with pytest.raises(RejectedError, match="34 bytes of arrays are more than the 33") as rejected:
        unpack(VALID[0], 33)
    assert rejected.value.code == "oversized"
    with pytest.raises(RejectedError, match="bytes are more than") as rejected:  # not even looked at
        unpack(VALID[0][:8] + bytes(HEADER_BYTES + 1000), 100)
    assert rejected.value.code == "oversized"


def test_a_reason_is_short_and_harmless_to_a_terminal_whatever_was_sent():
    assert words("gone\x1b[2J\r\nfor lunch" + 1000 * "!") == "gone?[2J??for lunch" + 281 * "!"
    data = changed(VALID[0], arrays=[["x" * 100_000, "float64", [9]]])
    with pytest.raises(RejectedError) as rejected:
        unpack(data)
    assert len(rejected.value.reason) <= 300


def check_decoder(count: int, seed: int) -> int:
    """How many of so many mangled messages were rejected; anything but `RejectedError` is an error."""
    chance, rejected = random.Random(seed), 0
    for _ in range(count):
        data = mangle(VALID, chance)
        try:
            packet = unpack(data, 10_000)
        except RejectedError:
            rejected += 1
            continue
        assert isinstance(packet.header, dict)
        assert sum(array.nbytes for array in packet.arrays.values()) <= len(data)
    return rejected


def test_the_decoder_rejects_mangled_messages_and_never_fails():
    """3,000 inputs: noise, cut, flipped, resealed, odd words, shapes of petabytes, JSON 20,000 deep."""
    assert check_decoder(3_000, 0) > 1_500


@pytest.mark.slow
def test_the_decoder_rejects_very_many_mangled_messages():
    """200,000 inputs."""
    assert check_decoder(200_000, 1) > 100_000


def test_the_decoder_takes_no_more_memory_than_messages_are_long():
    chance = random.Random(2)
    inputs = [mangle(VALID, chance) for _ in range(500)]
    tracemalloc.start()
    try:
        for data in inputs:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with contextlib.suppress(RejectedError):
                unpack(data, 10_000)
            assert tracemalloc.get_traced_memory()[1] - before < 100_000 + 60 * len(data)
    finally:
        tracemalloc.stop()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda b: seal(b, b""))))
def test_noise_is_rejected(data):
    try:
        header, values = unpack(data)
    except RejectedError:
        return
    assert parts(data)[0] == header | {"arrays": [[n, v.dtype.name, list(v.shape)] for n, v in values.items()]}
