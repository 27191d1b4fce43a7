"""Messages as no server or site would send them: noise, and valid ones changed in every way we could think of."""

import json
import random
import struct
import zlib

from fedhsa.deploy.wire import MAGIC

START = len(MAGIC) + 8
UNREADABLE = (ValueError, struct.error, RecursionError)
ODD = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    2**31,
    2**53,
    2**64,
    -(2**70),
    10**400,
    0.5,
    1e300,
    float("inf"),
    "",
    "x",
    "reply",
    "rejection",
    "\ud800",
    "\x00",
    "../../etc",
    "long" * 500,
    [],
    {},
    [[[[[]]]]],
    [1, 2, 3],
    ["theta", "float64", [2**40, 2**40]],
    {"a": {"b": []}},
)
DESCRIPTIONS = (
    ["a", "float64", [2**40]],
    ["a", "float64", [0, 2**62, 2**62]],
    ["a", "float64", [0] * 40],
    ["a", "float64", [-1]],
    ["a", "float64", [True]],
    ["a", "object", [1]],
    ["a", "float128", [1]],
    ["a", ["float64"], [1]],
    ["a", "bool", [3]],
    [7, "float64", [1]],
    ["a", "float64", 3],
    ["a", "float64", [10**300, 10**300]],
    ["a", "uint8", []],
    ["a"],
    "a",
    None,
)


def seal(header: bytes, body: bytes) -> bytes:
    """A message with the right lengths and checksum around whatever it holds."""
    rest = header + body
    return MAGIC + struct.pack("<II", zlib.crc32(rest), len(header)) + rest


def parts(data: bytes) -> tuple[dict, bytes]:
    """The header with the description of the arrays, and the arrays."""
    length = struct.unpack_from("<II", data, len(MAGIC))[1]
    return json.loads(data[START : START + length]), data[START + length :]


def changed(data: bytes, **changes) -> bytes:
    """A valid message with other words in its header."""
    header, body = parts(data)
    return seal(json.dumps(header | changes).encode(), body)


def mangle(valid: list[bytes], chance: random.Random) -> bytes:
    """One message that is wrong in one way, or in two."""
    data = chance.choice(valid)
    for _ in range(chance.choice((1, 1, 2))):
        data = chance.choice(WAYS)(data, chance)
    return data


def _noise(data, chance):
    return chance.randbytes(chance.choice((0, 1, 8, 20, 100, 1000)))


def _noise_after_magic(data, chance):
    return MAGIC + chance.randbytes(chance.choice((0, 3, 8, 40, 500)))


def _sealed_noise(data, chance):
    return seal(chance.randbytes(chance.choice((0, 2, 30))), chance.randbytes(chance.choice((0, 8, 64))))


def _cut(data, chance):
    return data[: chance.randrange(len(data) + 1)]


def _longer(data, chance):
    return data + chance.randbytes(chance.choice((1, 8, 4000)))


def _flip(data, chance):
    changed = bytearray(data or b"x")
    for _ in range(chance.choice((1, 1, 3, 20))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _flip_and_seal(data, chance):
    if len(data) <= START:
        return seal(data, b"")
    length = min(struct.unpack_from("<II", data, len(MAGIC))[1], len(data) - START)
    rest = _flip(data[START:], chance)
    return seal(rest[:length], rest[length:])


def _other_length(data, chance):
    if len(data) < START:
        return data
    length = chance.choice((0, 1, 2**20, 2**31, 2**32 - 1, chance.randrange(4000)))
    return data[: len(MAGIC)] + struct.pack("<II", zlib.crc32(data[START:]), length) + data[START:]


def _with_header(data, chance, change):
    try:
        header, body = parts(data)
        if not isinstance(header, dict):
            return seal(b"[]", body)
        change(header)
        return seal(json.dumps(header).encode(), body)
    except UNREADABLE:
        return seal(b"{}", data)


def _odd_word(data, chance):
    def change(header):
        header[chance.choice(list(header) or ["x"])] = chance.choice(ODD)

    return _with_header(data, chance, change)


def _no_word(data, chance):
    return _with_header(data, chance, lambda header: header.pop(chance.choice(list(header) or ["x"]), None))


def _odd_description(data, chance):
    def change(header):
        arrays = header.get("arrays")
        if not isinstance(arrays, list) or not arrays or chance.random() < 0.3:
            header["arrays"] = [chance.choice(DESCRIPTIONS) for _ in range(chance.choice((1, 2, 50)))]
        else:
            arrays[chance.randrange(len(arrays))] = chance.choice(DESCRIPTIONS)

    return _with_header(data, chance, change)


def _twice(data, chance):
    def change(header):
        if isinstance(header.get("arrays"), list):
            header["arrays"] = header["arrays"] * 2

    return _with_header(data, chance, change)


def _deep(data, chance):
    depth = chance.choice((10, 900, 1100, 20_000))
    word = chance.choice((b'"round"', b'"first"', b'"reason"', b'"code"', b'"arrays"', b'"run"', b'"token"', b'"name"'))
    return seal(b'{"arrays":[],' + word + b":" + b"[" * depth + b"]" * depth + b"}", b"")


def _other_numbers(data, chance):
    return _with_body(data, chance.choice((b"\xff", b"\x00", b"\x7f", b"\xf0")))


def _with_body(data, byte):
    try:
        header, body = parts(data)
        return seal(json.dumps(header).encode(), byte * len(body))
    except UNREADABLE:
        return data


def _other_version(data, chance):
    return (
        chance.choice((b"fedhsa/2", b"fedhsa/0", b"PK\x03\x04PK\x03", b"\x80\x04\x95\x00\x00\x00\x00\x00")) + data[8:]
    )


WAYS = (
    _noise,
    _noise_after_magic,
    _sealed_noise,
    _cut,
    _longer,
    _flip,
    _flip_and_seal,
    _other_length,
    _odd_word,
    _odd_word,
    _no_word,
    _odd_description,
    _twice,
    _deep,
    _other_numbers,
    _other_version,
)
