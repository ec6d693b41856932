"""Packed vectors come back bit for bit, or not at all."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evalguard.nights.history.packing import pack, unpack
from evalguard.store.atomic_files import DamagedBlockError

SIZES = st.integers(0, 40)
FLOATS = arrays(np.float64, SIZES, elements=st.floats(width=64))
NARROW = arrays(np.float64, SIZES, elements=st.floats(width=32))
BITS = arrays(np.float64, SIZES, elements=st.sampled_from([0.0, 1.0]))
INTEGERS = arrays(np.int64, SIZES)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and np.array_equal(one.view(np.int64), other.view(np.int64))


@given(FLOATS | NARROW | BITS | INTEGERS)
def test_a_vector_comes_back_bit_for_bit(values: np.ndarray) -> None:
    assert same_bits(unpack(pack(values)), values)


@pytest.mark.parametrize(
    "values", [[-0.0, 0.0, 1.0], [np.nan, 1.0], [np.inf, -np.inf], [5e-324, 1e300], [0.1, 0.2]]
)
def test_odd_numbers_come_back_bit_for_bit(values: list[float]) -> None:
    assert same_bits(unpack(pack(np.array(values))), np.array(values))


def test_few_bytes_are_kept_of_scores_that_few_bytes_tell() -> None:
    rng = np.random.default_rng(1)
    wide = rng.normal(-2.0, 1.5, 5_000)
    narrow = wide.astype(np.float32).astype(np.float64)
    assert len(pack(wide)) <= 8 * 5_000 + 16
    assert len(pack(narrow)) < 3.8 * 5_000
    assert len(pack((wide > -2.0).astype(np.float64))) < 0.14 * 5_000
    assert len(pack(np.zeros(5_000))) < 40


def of_layout_one(coding: int, n: int, body: bytes) -> bytes:
    head = struct.pack("<BBII", 1, coding, n, 0)
    return struct.pack("<BBII", 1, coding, n, zlib.crc32(head + body)) + body


def planes(words: np.ndarray) -> bytes:
    rows = np.frombuffer(words.tobytes(), np.uint8).reshape(-1, words.itemsize)
    return rows.T.tobytes()


def test_byte_planes_of_an_earlier_evalguard_are_read() -> None:
    values = np.array([0.5, -1.25, 3.0])
    narrow = values.astype("<f4").view("<u4")
    assert same_bits(unpack(of_layout_one(2, 3, planes(narrow))), values)
    assert same_bits(unpack(of_layout_one(3, 3, planes(values.view("<u8")))), values)
    assert same_bits(unpack(of_layout_one(0, 3, struct.pack("<d", 2.5))), np.full(3, 2.5))
    ids = np.array([3, 4, 9])
    steps = np.diff(ids, prepend=0).astype("<i8").view("<u8")
    assert same_bits(unpack(of_layout_one(4 | 0x40, 3, zlib.compress(planes(steps)))), ids)


def packed_against(values: np.ndarray, base: np.ndarray) -> bytes:
    left = (values.view(np.uint64) - base.view(np.uint64)).view(np.int64)
    return of_layout_one(3 | 0x80, len(values), planes(((left << 1) ^ (left >> 63)).view("<u8")))


def test_scores_that_were_packed_against_others_are_read_with_them() -> None:
    base = np.random.default_rng(2).normal(size=100)
    packed = packed_against(base - 1e-9, base)
    assert same_bits(unpack(packed, base), base - 1e-9)
    for wrong in (None, base[:50]):
        with pytest.raises(DamagedBlockError, match="packed against"):
            unpack(packed, wrong)


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    packed = bytearray(pack(np.linspace(0.0, 1.0, 30)))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedBlockError):
        unpack(bytes(packed))


@given(st.integers(0, 200))
def test_any_cut_is_noticed(size: int) -> None:
    packed = pack(np.linspace(0.0, 1.0, 30))
    with pytest.raises(DamagedBlockError):
        unpack(packed[: min(size, len(packed) - 1)])


def test_a_length_that_was_made_up_takes_no_memory() -> None:
    body = zlib.compress(bytes(1_000_000))
    with pytest.raises(DamagedBlockError, match="length"):
        unpack(of_layout_one(3 | 0x40, 2**27, body))


@pytest.mark.parametrize("coding", [0, 1])
def test_a_few_bytes_never_take_all_memory(coding: int) -> None:
    # "2**30 times the same value" and as many bits are small, and 8 GiB of numbers
    n = 2**30
    body = struct.pack("<d", 1.0) if coding == 0 else zlib.compress(bytes(n // 8))
    said = coding | (0x40 if coding else 0)
    with pytest.raises(DamagedBlockError, match="not a vector that evalguard packs"):
        unpack(of_layout_one(said, n, body))
