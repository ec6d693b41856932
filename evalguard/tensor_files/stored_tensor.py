"""StoredTensor: one tensor of a file, read in pieces, and codecs of plain numbers.

Bytes are read with pread and not through a memory map: a file that somebody cuts off meanwhile is
an error then and not a bus error, and what has been read does not count as memory for long.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import Bound
from evalguard.errors import EvaluationError
from evalguard.regular_file import check_regular

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
T = TypeVar("T")
_PIECE = 1 << 20  # elements that are read at a time
CUT_HINT = "it was cut off or damaged: copy or download it again"


class ByteSource(Protocol):
    """Where the bytes of one tensor come from."""

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop``, counted from the tensor's first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCodec:
    """How numbers are stored: ``block`` elements in ``size`` bytes; ``decode`` gives them, flat.

    ``bound`` gives the greatest error that a healthy quantiser makes in each element, from the
    bytes, their numbers and those of the other side; None: the format has no such bound.
    """

    dtype: str
    block: int = 1
    size: int
    decode: Callable[[Bytes], Array]
    quantised: bool = False
    bound: Callable[[Bytes, Array, Array], Bound] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        file: the name of the file, for people.
        fault: why it cannot be read; "" if it can.
        first: element of the source with which it begins, on the bound of a block.
        packing: how a checkpoint packed it, for people: "GPTQ int4"; "" of plain numbers.
        parts: what a packed tensor is stored as.
        rounding: how far an element may be off, beside its dtype's tolerance, by the order in which
            it was rounded.
        shape_known: False where its file says how many elements it has, and not in which shape.
    """

    name: str
    shape: tuple[int, ...]
    codec: TensorCodec
    source: ByteSource
    file: str
    fault: str = ""
    first: int = 0
    packing: str = ""
    parts: tuple[StoredTensor, ...] = ()
    rounding: float = 0.0
    shape_known: bool = True

    @property
    def dtype(self) -> str:
        """Name of the stored dtype: "bfloat16", "q8_0"."""
        return self.codec.dtype

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file, of all its parts."""
        if self.parts:
            return sum(part.nbytes for part in self.parts)
        return self.elements // self.codec.block * self.codec.size

    def read_bytes(self, start: int = 0, stop: int | None = None) -> Bytes:
        """Return the bytes of the elements ``start`` to ``stop``, both on the bounds of blocks.

        Raises:
            EvaluationError: they cannot be read.
        """
        if self.fault:
            raise EvaluationError(f"{self.name} of {self.file} cannot be read: {self.fault}")
        codec = self.codec
        begin = self.first + start
        end = self.first + (self.elements if stop is None else stop)
        return self.source.read(begin // codec.block * codec.size, end // codec.block * codec.size)

    def read(self, start: int = 0, stop: int | None = None) -> Array:
        """Return the elements ``start`` to ``stop`` as numbers, flat."""
        return self.codec.decode(self.read_bytes(start, stop))

    def load(self) -> Array:
        """Return the whole tensor as numbers."""
        return self.read().reshape(self.shape)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield start and stop of parts that are read at a time, both on the bounds of blocks."""
        step = max(_PIECE // self.codec.block, 1) * self.codec.block
        for start in range(0, self.elements, step):
            yield start, min(start + step, self.elements)

    def has_bytes_of(self, other: StoredTensor) -> bool:
        """Whether another of this dtype and size has the same bytes; no if one cannot be read."""
        try:
            return all(
                np.array_equal(self.read_bytes(start, stop), other.read_bytes(start, stop))
                for start, stop in self.pieces()
            )
        except EvaluationError:
            return False


class OpenedFile:
    """A file that stays open while its tensors are read, by several threads at a time."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        try:
            check_regular(path)
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise EvaluationError(f"{path} cannot be read: {error.strerror}") from error
        stack.callback(os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop`` of the file.

        Raises:
            EvaluationError: the file ends before, or the disk fails.
        """
        buffer = np.empty(stop - start, dtype=np.uint8)
        view, at = memoryview(buffer.data), start
        while at < stop:
            try:
                count = os.preadv(self._descriptor, [view[at - start :]], at)
            except OSError as error:
                raise EvaluationError(f"{self.path} cannot be read: {error.strerror}") from error
            if not count:
                raise EvaluationError(
                    f"{self.path} ends at byte {at:,}, before byte {stop:,}",
                    hint="it was cut off: copy or download it again",
                )
            at += count
        return buffer


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Bytes that lie in a file one after the other."""

    file: OpenedFile
    offset: int

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes of the tensor."""
        return self.file.read(self.offset + start, self.offset + stop)


@dataclass(slots=True)
class Held(Generic[T]):
    """What is loaded as a whole when it is first asked for; kept while the same tensor is read."""

    load: Callable[[], T]
    _kept: list[T] = field(default_factory=list)

    def get(self) -> T:
        """Return it."""
        if not self._kept:
            self._kept.append(self.load())
        return self._kept[0]

    def forget(self) -> None:
        """Give the memory back."""
        self._kept.clear()


class LoadedBytes(Held[Bytes]):
    """Bytes that a library gives as a whole."""

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes of the tensor."""
        return self.get()[start:stop]


class NoBytes:
    """Of a tensor that cannot be read."""

    def read(self, start: int, stop: int) -> Bytes:
        """Raise: nobody asks a tensor with a fault."""
        raise EvaluationError(f"bytes {start:,} to {stop:,} cannot be read")


_NUMPY_NAMES = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4",
    "int16": "<i2", "int8": "i1", "uint64": "<u8", "uint32": "<u4", "uint16": "<u2", "uint8": "u1",
    "bool": "u1",
}  # fmt: skip


def plain_codec(dtype: str) -> TensorCodec | None:
    """Return the codec of a dtype by its name in torch, None for one that is not known."""
    if dtype in _NUMPY_NAMES:
        return numpy_codec(np.dtype(_NUMPY_NAMES[dtype]), name=dtype)
    if dtype == "bfloat16":
        return TensorCodec(dtype=dtype, size=2, decode=_decode_bfloat16)
    if dtype in _EIGHT_BITS:
        table = _eight_bit_table(dtype)
        return TensorCodec(dtype=dtype, size=1, decode=partial(_look_up, table))
    return None


def unknown_codec(dtype: str) -> TensorCodec:
    """Return a codec that only names its dtype, of a tensor that cannot be read."""
    return TensorCodec(dtype=dtype.lower(), size=1, decode=lambda raw: raw)


def numpy_codec(dtype: np.dtype[Any], *, name: str = "") -> TensorCodec:
    """Return the codec of a numpy dtype; float16 is decoded to float32, complex to pairs."""

    def decode(raw: Bytes) -> Array:
        values = raw.view(dtype)
        if dtype.kind == "f" and dtype.itemsize == 2:
            return values.astype(np.float32)
        return values if dtype.isnative else values.astype(dtype.newbyteorder("="))

    return TensorCodec(dtype=name or dtype.name, size=dtype.itemsize, decode=decode)


def _look_up(table: Array, raw: Bytes) -> Array:
    return np.take(table, raw, mode="wrap")  # not checked: all bytes are there


def _decode_bfloat16(raw: Bytes) -> Array:
    wide = raw.view("<u2").astype(np.uint32)
    wide <<= np.uint32(16)
    values: Array = wide.view(np.float32)
    return values


# name -> (bits of exponent, of mantissa, bias, whether it has infinities as IEEE 754)
_EIGHT_BITS = {
    "float8_e4m3fn": (4, 3, 7, False),
    "float8_e5m2": (5, 2, 15, True),
    "float8_e4m3fnuz": (4, 3, 8, False),
    "float8_e5m2fnuz": (5, 2, 16, False),
    "float8_e8m0fnu": (8, 0, 127, False),
}


@lru_cache
def _eight_bit_table(dtype: str) -> Array:
    """Return the 256 values of an 8-bit float (OCP 8-bit floating point, 1.0; fnuz: one NaN)."""
    exponent_bits, mantissa_bits, bias, ieee = _EIGHT_BITS[dtype]
    codes = np.arange(256)
    if not mantissa_bits:  # a power of two without a sign
        return np.where(codes == 255, np.nan, np.exp2(codes - 127.0)).astype(np.float32)
    exponent = (codes >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = (codes & (2**mantissa_bits - 1)) / 2**mantissa_bits
    values = np.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias)
    )
    values = np.where(codes >= 128, -values, values)
    if ieee:
        special = exponent == 2**exponent_bits - 1
        infinite = np.where(codes >= 128, -np.inf, np.inf)
        values = np.where(special, np.where(mantissa == 0, infinite, np.nan), values)
    elif dtype.endswith("fnuz"):
        values[128] = np.nan
    else:
        values[codes & 127 == 127] = np.nan
    table: Array = values.astype(np.float32)
    return table
