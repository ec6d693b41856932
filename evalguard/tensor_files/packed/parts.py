"""The stored parts of one packed weight: looked up, checked and read by rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.tensor_files.packed.declared_quantisation import Quantisation
from evalguard.tensor_files.stored_tensor import StoredTensor

Array = NDArray[Any]
_LINE = 64  # bytes


def split_nibbles(packed: Array) -> Array:
    """Return the two numbers of each byte of the last axis, the lower first."""
    pairs = packed.astype("<u2")
    pairs |= pairs << np.uint16(4)
    pairs &= np.uint16(0x0F0F)
    return pairs.view(np.uint8)


def exchange_nibbles(packed: Array) -> Array:
    """Return bytes whose higher four bits are the lower ones."""
    kind = "u8" if packed.shape[-1] % 8 == 0 else "u1"  # numpy shifts single bytes slowly
    words: Array = np.ascontiguousarray(packed).view(kind)
    lower = np.array(0x0F0F0F0F0F0F0F0F).astype(kind)
    swapped: Array = (words & lower) << 4
    swapped |= (words >> 4) & lower
    return swapped.view(np.uint8)


def unpack_bits(words: Array, bits: int) -> Array:
    """Return the numbers packed along the last axis of int32 words.

    Dense, as compressed-tensors (pack_to_int32) and GPTQ pack: of 3 bits, 32 lie in 3 words.

    Args:
        words: (..., words) of 4 bytes each, little-endian.
        bits: 1 to 8.
    """
    packed = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return packed
    if bits == 4:
        return split_nibbles(packed)
    flags = np.unpackbits(packed, axis=-1, bitorder="little")
    usable = flags.shape[-1] // bits * bits
    grid = flags[..., :usable].reshape(*flags.shape[:-1], -1, bits)
    return np.packbits(grid, axis=-1, bitorder="little")[..., 0]


def lay_codes(words: Array, bits: int, columns: int, *, nibbles: bool) -> Array:
    """Return the first ``columns`` numbers of rows of words: one a byte, or two of 4 bits.

    Args:
        words: (rows, words) of 4 bytes each.
    """
    if not nibbles:
        return unpack_bits(words, bits)[:, :columns]
    return np.ascontiguousarray(words).view(np.uint8)[:, : columns // 2]


def transpose(table: Array) -> Array:
    """Return rows as columns, in memory too; read by lines of a core's cache, four times as fast
    as numpy does it."""
    transposed = np.empty(table.shape[::-1], dtype=table.dtype)
    step = max(_LINE // table.itemsize, 1)
    for first in range(0, len(table), step):
        transposed[:, first : first + step] = table[first : first + step].T
    return transposed


class PackingError(ValueError):
    """Why a packed weight cannot be read: a part that is missing or does not fit, or a packing that
    is not known."""


@dataclass(slots=True)
class Parts:
    """The tensors of a module by what follows its name; remembers which were used.

    Attributes:
        told: how the checkpoint says it was quantised.
    """

    stem: str
    tensors: Mapping[str, StoredTensor]
    told: Quantisation
    used: dict[str, StoredTensor] = field(default_factory=dict)

    def find(self, suffix: str) -> StoredTensor | None:
        """Return a part, None where there is none.

        Raises:
            PackingError: it is there and cannot be read.
        """
        tensor = self.tensors.get(self.stem + suffix)
        if tensor is not None:
            self.used[tensor.name] = tensor
            if tensor.fault:
                raise PackingError(f"{tensor.name}: {tensor.fault}")
        return tensor

    def find_smoothing(self) -> StoredTensor | None:
        """Return what ModelOpt multiplies a module's inputs with before its weight, where it does.

        Raises:
            PackingError: it cannot be read, or there is a low-rank residual beside the weight.
        """
        module = Parts(self.stem.rpartition(".")[0], self.tensors, self.told, self.used)
        if module.stem + ".svdquant_lora_a" in self.tensors:
            raise PackingError("it has a low-rank residual (SVDQuant) that evalguard does not add")
        return module.find(".pre_quant_scale")

    def take(self, suffix: str, *dtypes: str, ndim: int | None = None) -> StoredTensor:
        """Return a part that has to be there, of one of some dtypes.

        Raises:
            PackingError: it is not there, or is another.
        """
        tensor = self.find(suffix)
        if tensor is None:
            raise PackingError(f"{self.stem}{suffix} is missing")
        if dtypes and tensor.dtype not in dtypes:
            raise PackingError(f"{tensor.name} is {tensor.dtype}, not {' or '.join(dtypes)}")
        if ndim is not None and len(tensor.shape) != ndim:
            raise PackingError(f"{tensor.name} is of shape {list(tensor.shape)}, not {ndim}-D")
        return tensor


def check_shape(tensor: StoredTensor, shape: Sequence[int], why: str) -> None:
    """Refuse a part of another shape than follows from the others.

    Raises:
        PackingError: it is.
    """
    if tensor.shape != tuple(shape):
        raise PackingError(
            f"{tensor.name} is of shape {list(tensor.shape)}, {why} asks for {list(shape)}"
        )


def read_rows(tensor: StoredTensor, first: int, stop: int) -> Array:
    """Return rows of a matrix, or of a stack of matrices, as numbers: (rows, columns)."""
    columns = tensor.shape[-1]
    return tensor.read(first * columns, stop * columns).reshape(stop - first, columns)


def read_row_bytes(tensor: StoredTensor, first: int, stop: int) -> Array:
    """Return rows as bytes: (rows, bytes)."""
    columns = tensor.shape[-1]
    return tensor.read_bytes(first * columns, stop * columns).reshape(stop - first, -1)


def load_once(tensor: StoredTensor, change: Callable[[Array], Array] | None = None) -> Any:
    """Return a function that gives a small part as float32, read when it is first asked for."""

    @lru_cache(maxsize=1)
    def load() -> Array:
        values = tensor.load().astype(np.float32)
        return values if change is None else change(values)

    return load


def power_of_two(exponents: Array) -> Array:
    """Return scales that are stored as an exponent with a bias of 127 (E8M0; 255 is NaN)."""
    codes = exponents.astype(np.float64)
    return np.where(codes == 255, np.nan, np.exp2(codes - 127)).astype(np.float32)


def count_rows(shape: Sequence[int]) -> int:
    """Return how many rows a tensor has, all leading axes together."""
    return math.prod(shape[:-1])


def spread_axis(size: int, have: int, blocks: Sequence[int]) -> Array | None:
    """Return which of ``have`` scales each of ``size`` elements of an axis has.

    Args:
        blocks: sizes of a block that are tried first, of which the last may be cut.

    Returns:
        None where they cannot be laid over it.
    """
    if have == 1:
        return np.zeros(size, dtype=np.intp)
    for width in blocks:
        if width and -(-size // width) == have:
            return np.arange(size) // width
    if have and size % have == 0:
        return np.arange(size) // (size // have)
    for width in (128, 64, 32, 16):  # of which the last is cut
        if -(-size // width) == have:
            return np.arange(size) // width
    return None


class SpreadScale:
    """A scale laid over the rows of a weight: one a tensor, a row, a group of columns, or a block.

    Attributes:
        groups: numbers of a row.
        group_of: which of them each column has; None: equal parts, one after the other.
    """

    def __init__(
        self,
        scale: StoredTensor,
        shape: Sequence[int],
        *,
        blocks: Sequence[int] = (),
        change: Callable[[Array], Array] | None = None,
    ) -> None:
        """Lay a scale over a weight of a shape.

        Args:
            blocks: size of a block along each axis of the weight, where somebody says it.

        Raises:
            PackingError: it does not fit.
        """
        misfit = f"a scale of {list(scale.shape)} does not fit {list(shape)}"
        have = scale.shape if scale.elements != 1 else ()
        if len(have) > len(shape) or 0 in (len(shape), *shape, *have):
            raise PackingError(misfit)
        have = (*have, *([1] * (len(shape) - len(have))))
        tried = [0] * (len(shape) - len(blocks)) + list(blocks)
        axes = [
            spread_axis(size, count, (block,))
            for size, count, block in zip(shape, have, tried, strict=True)
        ]
        if any(axis is None for axis in axes):
            raise PackingError(misfit)
        self._axes: list[Array] = axes[:-1]  # type: ignore[assignment]
        self._shape, self._have = tuple(shape[:-1]), have
        self._load = load_once(scale, change)
        self.groups = have[-1]
        last = axes[-1]
        assert last is not None
        even = self.groups and shape[-1] % self.groups == 0
        equal = even and np.array_equal(last, np.arange(shape[-1]) // (shape[-1] // self.groups))
        self.group_of: Array | None = None if equal else last

    def rows(self, first: int, stop: int) -> Array:
        """Return the (rows, groups) scales of some rows."""
        table: Array = self._load().reshape(-1, self.groups)
        if len(table) == 1:
            return np.repeat(table, stop - first, axis=0)
        places = np.unravel_index(np.arange(first, stop), self._shape)
        index = [axis[position] for axis, position in zip(self._axes, places, strict=True)]
        return table[np.ravel_multi_index(index, self._have[:-1])]
