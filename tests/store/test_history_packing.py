"""Packed vectors come back bit for bit, or not at all."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evalguard.store.files import DamagedBlockError
from evalguard.store.history.packing import needs_reference, pack, unpack

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


@given(st.integers(0, 30).flatmap(lambda n: arrays(np.float64, (2, n), elements=st.floats())))
def test_a_vector_comes_back_from_its_reference(pair: np.ndarray) -> None:
    values, reference = np.ascontiguousarray(pair[0]), np.ascontiguousarray(pair[1])
    assert same_bits(unpack(pack(values, reference), reference), values)


@pytest.mark.parametrize(
    "values", [[-0.0, 0.0, 1.0], [np.nan, 1.0], [np.inf, -np.inf], [5e-324, 1e300], [0.1, 0.2]]
)
def test_odd_numbers_come_back_bit_for_bit(values: list[float]) -> None:
    assert same_bits(unpack(pack(np.array(values))), np.array(values))


def test_scores_near_the_reference_are_smaller_with_it() -> None:
    rng = np.random.default_rng(1)
    base = rng.normal(-2.0, 1.5, 5_000).astype(np.float32).astype(np.float64)
    near = (base + rng.normal(0.0, 0.01, 5_000)).astype(np.float32).astype(np.float64)
    packed = pack(near, base)
    assert needs_reference(packed)
    assert len(packed) < 2.8 * 5_000
    assert len(pack(near)) < 3.6 * 5_000
    assert len(pack((base > -2.0).astype(np.float64))) < 0.14 * 5_000


def test_a_missing_reference_is_said() -> None:
    base = np.random.default_rng(2).normal(size=100)
    packed = pack(base + 1e-9, base)
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
    head = struct.pack("<BBII", 1, 3 | 0x40, 2**27, 0)
    bomb = struct.pack("<BBII", 1, 3 | 0x40, 2**27, zlib.crc32(head + body)) + body
    with pytest.raises(DamagedBlockError, match="length"):
        unpack(bomb)


@pytest.mark.parametrize("coding", [0, 1])
def test_a_few_bytes_never_take_all_memory(coding: int) -> None:
    # "2**30 times the same value" and as many bits are small, and 8 GiB of numbers
    n = 2**30
    body = struct.pack("<d", 1.0) if coding == 0 else zlib.compress(bytes(n // 8))
    said = coding | (0x40 if coding else 0)
    head = struct.pack("<BBII", 1, said, n, 0)
    packed = struct.pack("<BBII", 1, said, n, zlib.crc32(head + body)) + body
    with pytest.raises(DamagedBlockError, match="not a vector that evalguard packs"):
        unpack(packed)
