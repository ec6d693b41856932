"""Tensors and metadata of a GGUF file, read by its specification (docs/gguf.md of ggml).

Without the package gguf, which not every environment has, and of the metadata only what is asked
for. That package allocates what a header says; :func:`check_gguf_header` goes before it.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, TypeVar

from evalguard.core.split_files import gguf_parts
from evalguard.errors import EvaluationError
from evalguard.regular_file import open_regular

CUT_HINT = "it was cut off or damaged: copy or download it again"
# ggml's number of a type: name, weights of a block, bytes of a block (ggml.h, ggml-common.h).
GGML_TYPES = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 10: ("q2_K", 256, 84),
    11: ("q3_K", 256, 110), 12: ("q4_K", 256, 144), 13: ("q5_K", 256, 176),
    14: ("q6_K", 256, 210), 15: ("q8_K", 256, 292), 16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1), 25: ("i16", 1, 2), 26: ("i32", 1, 4),
    27: ("i64", 1, 8), 28: ("f64", 1, 8), 29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}  # fmt: skip
# struct's letter of each kind of number, all little-endian.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_ALIGNMENT = 32
_DEEPEST, _MOST_DIMENSIONS = 4, 4
# Of all arrays of the metadata: the largest vocabularies, with merges and scores, have two million.
_MOST_ELEMENTS = 20_000_000
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A tensor as the table has it: its type, its weights, and the bytes that they take."""

    name: str
    kind: str
    weights: int
    bytes: int


def read_gguf_table(path: Path) -> list[GgufTensor]:
    """Return the tensors of a GGUF file, of all its parts where it was split.

    Raises:
        EvaluationError: a part is missing, cut off or damaged, or has a type that is not known.
    """
    parts = [path.with_name(name) for name in gguf_parts(path.name)]
    for part in parts:
        if not part.exists():
            raise EvaluationError(f"{part.name} is not there, one of {len(parts)} parts")
    return [tensor for part in parts for tensor in _read_part(part)]


def check_gguf_header(path: Path) -> None:
    """Refuse a file whose header says more than the file has room for, before anything is read.

    What the package gguf reads would have that many objects. Types that are not known here, and
    tensors behind the end of a file that was cut, are left to who reads the tensors.

    Raises:
        EvaluationError: the header is damaged, or its tensors overlap.
    """
    _read_header(path, lambda table: table.read_entries(every_type=True))


def read_gguf_metadata(path: Path, keys: Collection[str]) -> dict[str, object]:
    """Return values of the metadata, as far as they are there; an array as a list.

    Raises:
        EvaluationError: the header is damaged.
    """
    return _read_header(path, lambda table: table.read_metadata(keys))


def _read_part(path: Path) -> list[GgufTensor]:
    return _read_header(path, lambda table: table.read())


def _read_header(path: Path, read: Callable[[_Table], _Read]) -> _Read:
    try:
        with open_regular(path) as file:
            return read(_Table(file, path, os.fstat(file.fileno()).st_size))
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, OverflowError, MemoryError) as error:
        raise EvaluationError(f"{path} ends in the middle of its header", hint=CUT_HINT) from error


class _Table:
    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file, self._path, self._size = file, path, size
        self._alignment, self._elements = _ALIGNMENT, 0

    def read(self) -> list[GgufTensor]:
        """Return the tensors, all of which the file holds."""
        entries = self.read_entries()
        start = -(-self._file.tell() // max(self._alignment, 1)) * max(self._alignment, 1)
        for entry, offset in entries:
            if start + offset + entry.bytes > self._size:
                raise EvaluationError(
                    f"{self._path.name} ends at byte {self._size:,}, in the middle of {entry.name}",
                    hint=CUT_HINT,
                )
        return [stored for stored, _ in entries]

    def read_entries(self, *, every_type: bool = False) -> list[tuple[GgufTensor, int]]:
        """Return the tensors and where each begins, which the file may be too short for.

        Args:
            every_type: whether a type that is not known here may be, as one of no bytes.
        """
        tensors, pairs = self._counts()
        for _ in range(self._checked(pairs)):
            key = self._text()
            (kind,) = self._take("<I")
            if key == "general.alignment" and kind == _UINT32:
                (self._alignment,) = self._take("<I")
            else:
                self._skip_value(kind)
        entries = [self._entry(every_type) for _ in range(self._checked(tensors))]
        for (earlier, begin), (later, after) in pairwise(
            sorted(entries, key=lambda entry: entry[1])
        ):
            if begin + earlier.bytes > after:
                raise EvaluationError(
                    f"{earlier.name[:80]} and {later.name[:80]} of {self._path.name} overlap"
                )
        return entries

    def read_metadata(self, keys: Collection[str]) -> dict[str, object]:
        """Return the values of these keys."""
        values: dict[str, object] = {}
        _, pairs = self._counts()
        for _ in range(self._checked(pairs)):
            key = self._text()
            (kind,) = self._take("<I")
            if key in keys:
                values[key] = self._value(kind)
            else:
                self._skip_value(kind)
        return values

    def _counts(self) -> tuple[int, ...]:
        """How many tensors and keys the file says that it has."""
        if self._file.read(4) != b"GGUF":
            raise EvaluationError(f"{self._path} is no GGUF file", hint=CUT_HINT)
        (version,) = self._take("<I")
        if version not in (2, 3):
            raise EvaluationError(f"{self._path} is GGUF of version {version}, known are 2 and 3")
        return self._take("<QQ")

    def _value(self, kind: int) -> object:
        """A value that is a text, a number or an array of these."""
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._numbers(kind, 1)[0]
        inner, count = self._take("<IQ")
        self._count_elements(count)
        if inner == _STRING:
            return [self._text() for _ in range(self._checked(count))]
        return list(self._numbers(inner, count))

    def _numbers(self, kind: int, count: int) -> tuple[object, ...]:
        if kind not in _NUMBERS:
            raise EvaluationError(f"{self._path} has metadata of type {kind}", hint=CUT_HINT)
        return self._take(f"<{self._checked(count)}{_NUMBERS[kind]}")

    def _count_elements(self, count: int) -> None:
        self._elements += count
        if self._elements > _MOST_ELEMENTS:
            raise EvaluationError(
                f"{self._path} has metadata of {self._elements:,} elements, more than any "
                "vocabulary",
                hint=CUT_HINT,
            )

    def _entry(self, every_type: bool) -> tuple[GgufTensor, int]:
        name = self._text()
        (dimensions,) = self._take("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise EvaluationError(f"{self._path}: {name[:80]} has {dimensions} dimensions")
        shape = self._take(f"<{dimensions}Q")
        kind, offset = self._take("<IQ")
        if every_type and kind not in GGML_TYPES:
            return GgufTensor(name=name, kind=str(kind), weights=math.prod(shape), bytes=0), offset
        if kind not in GGML_TYPES:
            raise EvaluationError(f"{self._path.name}: {name[:80]} has type {kind}, not known here")
        label, block, size = GGML_TYPES[kind]
        weights = math.prod(shape)
        if shape and shape[0] % block:
            raise EvaluationError(
                f"{self._path.name}: {name[:80]} has rows of {shape[0]}, and {label} has blocks of "
                f"{block}"
            )
        return GgufTensor(
            name=name, kind=label, weights=weights, bytes=weights // block * size
        ), offset

    def _skip_value(self, kind: int, depth: int = 0) -> None:
        if kind == _STRING:
            self._skip(*self._take("<Q"))
        elif kind == _ARRAY and depth < _DEEPEST:
            inner, count = self._take("<IQ")
            self._count_elements(count)
            if inner in _NUMBERS:
                self._skip(struct.calcsize(f"<{_NUMBERS[inner]}") * count)
            else:
                for _ in range(self._checked(count)):
                    self._skip_value(inner, depth + 1)
        elif kind in _NUMBERS:
            self._skip(struct.calcsize(f"<{_NUMBERS[kind]}"))
        else:
            raise EvaluationError(f"{self._path} has metadata of type {kind}", hint=CUT_HINT)

    def _take(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self._file.read(struct.calcsize(form)))

    def _text(self) -> str:
        (length,) = self._take("<Q")
        return self._file.read(self._checked(length)).decode("utf-8", "replace")

    def _skip(self, count: int) -> None:
        self._file.seek(self._checked(count), os.SEEK_CUR)

    def _checked(self, count: int) -> int:
        """A number of things of at least a byte each, which the file has room for."""
        if count > self._size - self._file.tell():
            raise EvaluationError(f"{self._path} ends in the middle of its header", hint=CUT_HINT)
        return count
