"""The binary format of messages and saved states: a JSON header and plain arrays, without executable content."""

import json
import math
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

MAGIC = b"fedhsa/1"
"""The format and its version."""
HEADER_BYTES = 2**20
"""The longest header that is read."""
REASON = 300
"""The largest number of characters of a reason, part of which may come from a stranger."""
DTYPES = ("bool", "int32", "int64", "uint8", "uint32", "uint64", "float32", "float64")
_NAMES = {np.dtype(name): name for name in DTYPES}
_LITTLE = {name: np.dtype(name).newbyteorder("<") for name in DTYPES}
# Built once, since `json.dumps` and `json.loads` build one in every call.
_write = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_LENGTHS = struct.Struct("<II")
_START = len(MAGIC) + _LENGTHS.size


def words(value: Any, default: str = "no reason given") -> str:
    """A stranger's text in a form that is safe to print: shortened, and without control characters.

    !!! example
        >>> words("gone\\x1b[2J for lunch"), words(3)
        ('gone?[2J for lunch', 'no reason given')
    """
    if not isinstance(value, str):
        return default
    return "".join(character if character.isprintable() else "?" for character in value[:REASON])


class RejectedError(Exception):
    """Raised for a message that is rejected, with a `code` for programs, a `reason` for people and further `facts`."""

    def __init__(self, code: str, reason: str, **facts: Any):
        super().__init__(reason[:REASON])
        self.code, self.reason, self.facts = code, reason[:REASON], facts


class Packet(NamedTuple):
    """The contents of one message: a header and named arrays."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]


def dtype_name(array: np.ndarray) -> str:
    """The name of an array's type, from a table, since NumPy composes it slowly in every call."""
    return _NAMES.get(array.dtype) or array.dtype.name


def pack(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """A packet as bytes: magic, checksum, length of the header, header, arrays in little-endian order.

    !!! example
        >>> data = pack({"round": 3}, {"theta": np.zeros(10_000)})
        >>> len(data) / 80_000 < 1.01
        True
        >>> unpack(data).header
        {'round': 3}
    """
    described, values = [], []
    for name, given in arrays.items():
        array = np.asarray(given)
        dtype = dtype_name(array)
        if dtype not in _LITTLE:
            raise TypeError(f"{name!r} has the type {array.dtype}, which messages do not carry.")
        described.append([name, dtype, array.shape])
        values.append(array.astype(_LITTLE[dtype], order="C", copy=False))  # the only copy is made below
    head = _write({**header, "arrays": described}).encode()
    if len(head) > HEADER_BYTES:
        raise ValueError(f"the header has {len(head):,} bytes, at most {HEADER_BYTES:,} can be read again")
    checksum = zlib.crc32(head)
    for array in values:
        checksum = zlib.crc32(array, checksum)
    return b"".join([MAGIC, _LENGTHS.pack(checksum, len(head)), head, *values])


def unpack(data: bytes, limit: int | None = None) -> Packet:
    """The packet in these bytes; raises if `pack` did not make them, or for more than `limit` bytes of arrays."""
    if not isinstance(data, bytes) or data[: len(MAGIC)] != MAGIC:
        raise RejectedError("foreign", f"not a message of this version: it does not begin with {MAGIC.decode()!r}")
    if limit is not None and len(data) > limit + HEADER_BYTES + _START:
        raise RejectedError("oversized", f"{len(data):,} bytes are more than the {limit:,} that were expected")
    if len(data) < _START:
        raise RejectedError("malformed", f"cut off after {len(data)} bytes")
    checksum, length = _LENGTHS.unpack_from(data, len(MAGIC))
    if length > HEADER_BYTES or _START + length > len(data):
        raise RejectedError("malformed", f"a header of {length:,} bytes in a message of {len(data):,}")
    if zlib.crc32(memoryview(data)[_START:]) != checksum:
        raise RejectedError("malformed", "the checksum is wrong: the message was changed or cut off on its way")
    header = _read_header(data[_START : _START + length])
    return Packet(header, _read_arrays(header.pop("arrays"), memoryview(data)[_START + length :], limit))


def peek(data: bytes) -> dict[str, Any]:
    """Only the header, which names the recipient; the checksum and the arrays are not read."""
    if not isinstance(data, bytes) or data[: len(MAGIC)] != MAGIC or len(data) < _START:
        raise RejectedError("foreign", f"not a message of this version: it does not begin with {MAGIC.decode()!r}")
    _, length = _LENGTHS.unpack_from(data, len(MAGIC))
    if length > HEADER_BYTES:
        raise RejectedError("malformed", f"a header of {length:,} bytes")
    return _read_header(data[_START : _START + length])


def _read_header(text: bytes) -> dict[str, Any]:
    try:
        header = _read(text.decode())
    except (ValueError, RecursionError) as error:
        raise RejectedError("malformed", f"the header is not JSON ({type(error).__name__})") from None
    if not isinstance(header, dict) or not isinstance(header.get("arrays"), list):
        raise RejectedError("malformed", "the header does not say which arrays follow")
    return header


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_read = json.JSONDecoder(parse_constant=_no_constant).decode


def _read_arrays(described: list, body: memoryview, limit: int | None) -> dict[str, np.ndarray]:
    arrays, offset = {}, 0
    for entry in described:
        name, dtype, shape = _description(entry)
        if name in arrays:
            raise RejectedError("malformed", f"two arrays are called {name!r}")
        little = _LITTLE[dtype]
        size = math.prod(shape) * little.itemsize
        if size > len(body) - offset:
            raise RejectedError("malformed", f"the array {name!r} is cut off")
        array = np.frombuffer(body[offset : offset + size], little)
        if dtype == "bool" and (array.view(np.uint8) > 1).any():
            raise RejectedError("malformed", f"the array {name!r} has truth values other than 0 and 1")
        arrays[name] = array.astype(dtype).reshape(shape)  # a copy in this machine's byte order
        offset += size
    if offset != len(body):
        raise RejectedError("malformed", f"{len(body) - offset:,} bytes follow the last array")
    if limit is not None and offset > limit:
        raise RejectedError("oversized", f"{offset:,} bytes of arrays are more than the {limit:,} that were expected")
    return arrays


def _description(entry: Any) -> tuple[str, str, tuple[int, ...]]:
    if isinstance(entry, list) and len(entry) == 3:
        name, dtype, shape = entry
        whole = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and n >= 0 for n in shape)
        # An empty array must also have a valid shape.
        if isinstance(name, str) and dtype in DTYPES and whole and math.prod(n for n in shape if n) < 2**48:
            return name, dtype, tuple(shape)
    raise RejectedError("malformed", "an array is not described by its name, type and shape")
