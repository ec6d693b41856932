"""Packing of per-document numbers: small, and back bit for bit.

A packed vector is a header (layout version, coding, length, CRC-32 of all else) and a body:

    coding    body, compressed by zlib where that makes it smaller
    bits      one bit a value, for 0.0 and 1.0
    float32   4 bytes a value, where nothing is lost by it
    float64   8 bytes a value
    int64     8 bytes a value

Layout 1, which is read and not written, has byte planes one after the other in place of values
(what HDF5 calls the shuffle filter), differences of neighbours in place of integers, a coding for
one value many times, and floats that were packed against those of another vector: a year of nights
is 16% smaller by it (``benchmarks.history``).
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.store.atomic_files import DamagedBlockError

PACKING_VERSION = 2
_PLANES_VERSION = 1
_HEADER = struct.Struct("<BBII")
_CONSTANT, _BITS, _FLOAT32, _FLOAT64, _INT64 = range(5)
_COMPRESSED, _AGAINST = 0x40, 0x80  # against another vector: of layout 1
_CODINGS = 0x0F
_WIDTHS = {_FLOAT32: 4, _FLOAT64: 8, _INT64: 8}
_TYPES = {_FLOAT32: "<f4", _FLOAT64: "<f8", _INT64: "<i8"}
# A few bytes may say that they are as many: a gigabyte when it is unpacked, and not all memory.
_MOST_VALUES = 2**27
_BITS_OF_ONE = np.float64(1.0).view(np.uint64)
_COMPRESSION_LEVEL = 6
Floats = NDArray[np.float64]
Numbers = NDArray[Any]


def pack(values: Numbers) -> bytes:
    """Pack a vector of float64, int64 or uint64 numbers, shape (n,)."""
    n = values.shape[0]
    if values.dtype != np.float64:
        return _with_header(_INT64, n, values.astype("<i8", copy=False).tobytes())
    bits = values.view(np.uint64)
    if bool(np.all((bits == 0) | (bits == _BITS_OF_ONE))):
        return _with_header(_BITS, n, np.packbits(values == 1.0).tobytes())
    if _fits_float32(values):
        return _with_header(_FLOAT32, n, values.astype("<f4").tobytes())
    return _with_header(_FLOAT64, n, values.astype("<f8", copy=False).tobytes())


def unpack(packed: bytes, reference: Floats | None = None) -> Numbers:
    """Return the vector: float64, or int64.

    Args:
        reference: of layout 1, the vector that it was packed against.

    Raises:
        DamagedBlockError: the bytes are not those that ``pack`` made, or the reference is missing.
    """
    version, coding, n, body = _open_packed(packed)
    kind = coding & _CODINGS
    if kind == _CONSTANT:
        return np.full(n, np.frombuffer(body, "<f8")[0])
    if kind == _BITS:
        return np.unpackbits(np.frombuffer(body, np.uint8), count=n).astype(np.float64)
    if version != _PLANES_VERSION:
        values = np.frombuffer(body, _TYPES[kind])
        return values.astype(np.int64 if kind == _INT64 else np.float64)
    words = _join_planes(body, n, _WIDTHS[kind])
    if kind == _INT64:
        return np.cumsum(words.view(np.int64), dtype=np.int64)
    if coding & _AGAINST:
        if reference is None or reference.shape != (n,):
            raise DamagedBlockError("the scores that it was packed against are not there")
        words = _unzigzag(words) + _to_integers(reference, kind)
    return words.view(np.float32 if kind == _FLOAT32 else np.float64).astype(np.float64)


def _with_header(coding: int, n: int, body: bytes) -> bytes:
    smaller = zlib.compress(body, _COMPRESSION_LEVEL)
    if len(smaller) < len(body):
        coding, body = coding | _COMPRESSED, smaller
    head = _HEADER.pack(PACKING_VERSION, coding, n, 0)
    return _HEADER.pack(PACKING_VERSION, coding, n, zlib.crc32(head + body)) + body


def _open_packed(packed: bytes) -> tuple[int, int, int, bytes]:
    """Layout, coding, length and uncompressed body of what is whole."""
    if len(packed) < _HEADER.size:
        raise DamagedBlockError("it is cut")
    version, coding, n, check = _HEADER.unpack_from(packed)
    body = packed[_HEADER.size :]
    if version not in (_PLANES_VERSION, PACKING_VERSION):
        raise DamagedBlockError(f"it is packed in a way of another evalguard (layout {version})")
    if zlib.crc32(_HEADER.pack(version, coding, n, 0) + body) != check:
        raise DamagedBlockError("it was changed or cut")
    size = _packed_size(coding & _CODINGS, n)
    if coding & _COMPRESSED:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(body, size + 1)
    if len(body) != size:
        raise DamagedBlockError("it is of another length than it says")
    return version, coding, n, body


def _packed_size(kind: int, n: int) -> int:
    """Bytes of an uncompressed body."""
    if n > _MOST_VALUES or kind > _INT64:
        raise DamagedBlockError("it is not a vector that evalguard packs")
    return {_CONSTANT: 8, _BITS: -(-n // 8)}.get(kind) or n * _WIDTHS.get(kind, 0)


def _fits_float32(values: Floats) -> bool:
    with np.errstate(over="ignore"):
        back = values.astype(np.float32).astype(np.float64)
    return np.array_equal(back.view(np.uint64), values.view(np.uint64))


def _to_integers(values: Numbers, coding: int) -> Numbers:
    """The unsigned integers that the bits of the values spell."""
    if coding == _FLOAT32:
        return values.astype(np.float32).view(np.uint32)
    return np.ascontiguousarray(values).view(np.uint64)


def _unzigzag(words: Numbers) -> Numbers:
    """0, 1, 2, 3 ... as 0, -1, 1, -2."""
    return (words >> 1) ^ (0 - (words & 1))


def _join_planes(body: bytes, n: int, width: int) -> Numbers:
    """Of all first bytes, then all second ones ..., the integers."""
    planes = np.frombuffer(body, np.uint8).reshape(width, n)
    words = np.frombuffer(planes.T.tobytes(), f"<u{width}")
    return words.astype(np.uint32 if width == 4 else np.uint64)
