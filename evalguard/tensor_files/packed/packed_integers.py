"""Integers of 1 to 8 bits packed in words: compressed-tensors' pack-quantized, GPTQ, AWQ, and
ModelOpt's int4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import CAST
from evalguard.tensor_files.packed.levels import offset_levels
from evalguard.tensor_files.packed.parts import (
    PackingError,
    Parts,
    check_shape,
    count_rows,
    lay_codes,
    load_once,
    read_rows,
    split_nibbles,
    transpose,
    unpack_bits,
)
from evalguard.tensor_files.packed.row_codec import PackedRows, RowBytes, RowGrid, make_packed
from evalguard.tensor_files.stored_tensor import Held, StoredTensor

Array = NDArray[Any]
_FLOATS = ("float16", "bfloat16", "float32")
# AutoAWQ packs columns 0, 2, 4, 6, 1, 3, 5, 7 into a word from its lowest bits on
# (awq.utils.packing_utils.AWQ_ORDER); this is the place of each column in its word.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def read_compressed_tensors_integers(parts: Parts) -> StoredTensor:
    """Return a weight of compressed-tensors' pack-quantized.

    ``weight_packed`` (rows, words) holds code + 2^(bits-1) along the columns, the zero point too,
    along the rows (pack_to_int32); value = (code - zero point) * scale.
    """
    packed = parts.take(".weight_packed", "int32")
    scale = parts.take(".weight_scale", *_FLOATS)
    stored = parts.take(".weight_shape")
    zero = parts.find(".weight_zero_point")
    index = parts.find(".weight_g_idx")
    shape = tuple(int(size) for size in stored.load().reshape(-1))
    if len(shape) != len(packed.shape) or len(shape) < 2 or shape[:-1] != packed.shape[:-1]:
        raise PackingError(
            f"{stored.name} says {list(shape)}, {packed.name} is of shape {list(packed.shape)}"
        )
    columns, words = shape[-1], packed.shape[-1]
    fitting = [width for width in range(1, 9) if -(-columns * width // 32) == words]
    declared = parts.told.integer_bits  # of under 32 columns several fit
    bits = declared if declared in fitting else max(fitting, default=0)
    if not bits:
        raise PackingError(
            f"{packed.name} has {words:,} words a row, which hold {columns:,} columns of no whole "
            "number of bits"
        )
    groups = scale.shape[-1] if len(scale.shape) == len(shape) else 1
    if scale.elements != 1:
        wanted = (*shape[:-1], groups) if len(scale.shape) == len(shape) else shape[:-1]
        check_shape(scale, wanted, f"{stored.name} {list(shape)}")
    if not groups or (columns % groups and index is None):
        raise PackingError(f"{groups:,} scales a row do not fit {columns:,} columns")
    offset = 1 << (bits - 1)
    height = shape[-2]
    nibbles = bits == 4 and columns % 2 == 0
    if zero is not None and zero.dtype == "int32":
        high = -(-height * bits // 32)
        check_shape(zero, (*shape[:-2], high, groups), f"{scale.name} {list(scale.shape)}")
    grid = RowGrid(
        levels=offset_levels(bits, offset),
        columns=columns,
        groups=groups,
        nibbles=nibbles,
        has_zeros=zero is not None,
        lost=2 * CAST if scale.dtype == "bfloat16" else CAST,
        group_of=_read_index(index, columns, groups),
    )

    def read(first: int, stop: int) -> PackedRows:
        codes = lay_codes(read_rows(packed, first, stop), bits, columns, nibbles=nibbles)
        if scale.elements == 1:
            steps = np.full((stop - first, 1), scale.load().reshape(-1)[0], dtype=np.float32)
        else:
            steps = scale.read(first * groups, stop * groups).reshape(-1, groups)
        taken = None if zero is None else _read_zeros(zero, bits, height, groups, first, stop)
        return PackedRows(codes=codes, scales=steps.astype(np.float32), zeros=taken)

    name = f"{parts.stem}.weight"
    source = RowBytes(name=name, grid=grid, rows=count_rows(shape), read_rows=read)
    packing = f"compressed-tensors int{bits}"
    return make_packed(name, shape, packing, tuple(parts.used.values()), source)


def _read_zeros(
    zero: StoredTensor, bits: int, height: int, groups: int, first: int, stop: int
) -> Array:
    """Return zero points that are packed along the rows of each matrix, or stored as they are."""
    if zero.dtype != "int32":
        return zero.read(first * groups, stop * groups).reshape(-1, groups).astype(np.float32)
    words = zero.shape[-2]
    rows = []
    for matrix in range(first // height, -(-stop // height)):
        size = words * groups
        table = zero.read(matrix * size, (matrix + 1) * size).reshape(words, groups)
        codes = unpack_bits(np.ascontiguousarray(table.T), bits).T[:height]
        begin = matrix * height
        rows.append(codes[max(first - begin, 0) : stop - begin])
    return np.concatenate(rows).astype(np.float32) - (1 << (bits - 1))


def _read_index(index: StoredTensor | None, columns: int, groups: int) -> Array | None:
    """Return the group of each column; None where they are in order.

    Raises:
        PackingError: it names groups that are not there.
    """
    if index is None:
        return None
    if not index.dtype.startswith(("int", "uint")):
        raise PackingError(f"{index.name} is {index.dtype}, not whole numbers")
    if index.elements != columns:
        raise PackingError(f"{index.name} has {index.elements:,} groups of {columns:,} columns")
    labels = index.load().reshape(-1).astype(np.int64)
    if (labels < 0).all():  # compressed-tensors: not used
        return None
    if labels.min() < 0 or labels.max() >= groups:
        raise PackingError(
            f"{index.name} names the groups {labels.min()} to {labels.max()}, there are {groups:,}"
        )
    if columns % groups == 0 and np.array_equal(labels, np.arange(columns) // (columns // groups)):
        return None
    return labels


def read_gptq_or_awq(parts: Parts) -> StoredTensor:
    """Return a weight of GPTQ or of AWQ, whose parts have the same names and other shapes."""
    packed = parts.take(".qweight", "int32", ndim=2)
    scales = parts.take(".scales", *_FLOATS, ndim=2)
    outputs = scales.shape[1]
    if packed.shape[1] == outputs:
        if parts.told.method == "awq":
            version = parts.told.settings.get("version", "gemm")
            raise PackingError(f"evalguard does not know AWQ's version {version!r}")
        return _read_gptq(parts, packed, scales)
    version = str(parts.told.settings.get("version") or "gemm").lower()
    if packed.shape[1] * 8 == outputs and parts.told.method in ("", "awq", "auto-round"):
        if parts.told.method == "awq" and version != "gemm":
            raise PackingError(f"evalguard does not know AWQ's version {version!r}")
        return _read_awq(parts, packed, scales)
    raise PackingError(
        f"{packed.name} {list(packed.shape)} and {scales.name} {list(scales.shape)} are neither "
        "GPTQ's nor AWQ's"
    )


def _read_gptq(parts: Parts, packed: StoredTensor, scales: StoredTensor) -> StoredTensor:
    """Return a weight of GPTQ: (inputs * bits / 32, outputs) words, packed along the inputs.

    value = (code - zero) * scale, of the group that g_idx names; in version 1 of the format the
    stored zero is one less (gptqmodel.utils.model.convert_gptq_v1_to_v2_format).
    """
    groups, outputs = scales.shape
    zeros = parts.take(".qzeros", "int32", ndim=2)
    index = parts.find(".g_idx")
    bits = zeros.shape[1] * 32 // outputs if outputs else 0
    if bits not in (2, 3, 4, 8) or zeros.shape != (groups, -(-outputs * bits // 32)):
        raise PackingError(
            f"{zeros.name} is of shape {list(zeros.shape)}, {scales.name} {list(scales.shape)} "
            "asks for as many words as hold 2, 3, 4 or 8 bits each"
        )
    inputs = packed.shape[0] * 32 // bits
    form = (
        parts.told.settings.get("checkpoint_format")
        or parts.told.settings.get("packing_format")
        or ""
    )
    form = str(form).rpartition(":")[2].replace("auto_gptq", "gptq")
    if form not in ("", "gptq", "gptq_v2"):
        raise PackingError(f"evalguard does not know GPTQ's checkpoint format {form!r}")
    if index is None and inputs % groups:
        raise PackingError(f"{groups:,} groups do not fit {inputs:,} inputs")
    grid = RowGrid(
        levels=offset_levels(bits, 0),
        columns=inputs,
        groups=groups,
        nibbles=bits == 4,
        has_zeros=True,
        group_of=_read_index(index, inputs, groups),
    )
    own = 2**bits - 1

    def load() -> _Columns:
        taken = unpack_bits(zeros.load(), bits)[:, :outputs].astype(np.int16)
        if form == "gptq" or (not form and not _is_second_version(taken, bits)):
            taken = (taken + 1) & (own if bits < 8 else 511)
        return _Columns(packed.load(), scales.load(), taken)

    held = Held(load)

    def read(first: int, stop: int) -> PackedRows:
        columns = held.get()
        words = transpose(columns.words[:, first:stop])
        codes = lay_codes(words, bits, inputs, nibbles=grid.nibbles)
        return columns.rows(codes, first, stop)

    packing = f"GPTQ int{bits}" + (", act-order" if grid.group_of is not None else "")
    return _make_by_inputs(parts, packing, outputs, grid, read, held)


class _Columns:
    """A weight that is stored by its inputs: words, and scales and zero points as rows."""

    def __init__(self, words: Array, scales: Array, zeros: Array) -> None:
        self.words = words
        self._scales, self._zeros = (
            np.ascontiguousarray(plane.T, dtype=np.float32) for plane in (scales, zeros)
        )

    def rows(self, codes: Array, first: int, stop: int) -> PackedRows:
        """Return the rows of some outputs, whose codes are given."""
        here = slice(first, stop)
        return PackedRows(codes=codes, scales=self._scales[here], zeros=self._zeros[here])


def _make_by_inputs(
    parts: Parts,
    packing: str,
    outputs: int,
    grid: RowGrid,
    read: Callable[[int, int], PackedRows],
    held: Held[_Columns],
) -> StoredTensor:
    """Make a weight that is stored by its inputs, read in slabs of outputs."""
    name = f"{parts.stem}.weight"
    source = RowBytes(
        name=name,
        grid=grid,
        rows=outputs,
        read_rows=read,
        at_once=_slab(grid.columns),
        held=held,
    )
    shape = (outputs, grid.columns)
    return make_packed(name, shape, packing, tuple(parts.used.values()), source)


def _slab(inputs: int) -> int:
    """Return how many outputs are turned into rows at a time: whole lines of a core's cache, and no
    more than fit it."""
    return max(_TURNED // max(inputs, 1) // 64, 1) * 64


_TURNED = 1 << 18  # weights


def _is_second_version(zeros: Array, bits: int) -> bool:
    """Whether all zero points are the middle, as symmetric weights have them in version 2."""
    return bool((zeros == 1 << (bits - 1)).all())


def _read_awq(parts: Parts, packed: StoredTensor, scales: StoredTensor) -> StoredTensor:
    """Return a weight of AWQ's gemm version: (inputs, outputs / 8) words, packed along the outputs
    (awq.utils.packing_utils.dequantize_gemm)."""
    groups, outputs = scales.shape
    inputs = packed.shape[0]
    zeros = parts.take(".qzeros", "int32", ndim=2)
    check_shape(zeros, (groups, outputs // 8), f"{scales.name} {list(scales.shape)}")
    if not groups or inputs % groups:
        raise PackingError(f"{groups:,} groups do not fit {inputs:,} inputs")
    if inputs % 2:
        raise PackingError(f"{packed.name} has an odd number of inputs")
    grid = RowGrid(
        levels=offset_levels(4, 0), columns=inputs, groups=groups, nibbles=True, has_zeros=True
    )
    order = (np.arange(outputs).reshape(-1, 8)[:, list(_AWQ_PLACES)]).reshape(-1)

    def load() -> _Columns:
        taken = unpack_bits(zeros.load(), 4)[:, order]
        return _Columns(packed.load(), scales.load(), taken)

    held = Held(load)

    def read(first: int, stop: int) -> PackedRows:
        columns = held.get()
        words = transpose(columns.words[:, first // 8 : -(-stop // 8)])
        pairs = words.view(np.uint64)  # of neighbouring inputs
        codes = np.empty((8 * len(words), inputs // 2), dtype=np.uint8)
        for output, position in enumerate(_AWQ_PLACES):
            two = (pairs >> np.uint64(4 * position)) & np.uint64(0xF0000000F)
            two |= two >> np.uint64(28)
            codes[output::8] = two.astype(np.uint8)
        return columns.rows(codes[: stop - first], first, stop)

    return _make_by_inputs(parts, "AWQ int4", outputs, grid, read, held)


def read_modelopt_int4(parts: Parts) -> StoredTensor:
    """Return a weight of ModelOpt's int4 (INT4_AWQ): two rows a byte, the earlier in the lower bits
    (modelopt.torch.export.quant_utils.pack_int4_in_uint8)."""
    packed, scale = parts.take("", "uint8", "int8"), parts.take("_scale", *_FLOATS)
    rows, columns = 2 * packed.shape[-2], packed.shape[-1]
    shape = (*packed.shape[:-2], rows, columns)
    groups = scale.shape[-1] if scale.shape else 0
    if not groups or columns % groups:
        raise PackingError(f"{scale.name} of {list(scale.shape)} does not fit {list(shape)}")
    check_shape(scale, (*shape[:-1], groups), f"{packed.name} {list(packed.shape)}")
    smooth = parts.find_smoothing()
    grid = RowGrid(
        levels=offset_levels(4, 8),
        columns=columns,
        groups=groups,
        factors=None if smooth is None else load_once(smooth)().reshape(-1),
    )

    def read(first: int, stop: int) -> PackedRows:
        begin, end = first // 2, -(-stop // 2)
        raw = packed.read_bytes(begin * columns, end * columns).reshape(-1, columns, 1)
        both = split_nibbles(raw).transpose(0, 2, 1).reshape(-1, columns)
        return PackedRows(
            codes=(both ^ 8)[first - 2 * begin : stop - 2 * begin],  # two's complement to offset
            scales=read_rows(scale, first, stop).astype(np.float32),
        )

    source = RowBytes(name=parts.stem, grid=grid, rows=count_rows(shape), read_rows=read)
    return make_packed(parts.stem, shape, "ModelOpt int4", tuple(parts.used.values()), source)
