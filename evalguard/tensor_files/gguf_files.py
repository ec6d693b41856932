"""GGUF files, read with the gguf package; nothing in them is executed.

llama.cpp multiplies by ``X.scale`` what ``X.weight`` gives (NVFP4's second scale, BitNet's); of an
activation ``X.input_scale``, which no weight has (src/llama-model.cpp, load_tensors).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import Bound
from evalguard.errors import EvaluationError
from evalguard.gguf_table import check_gguf_header
from evalguard.installation import extra_command
from evalguard.tensor_files.gguf_blocks import block_decoder
from evalguard.tensor_files.gguf_bounds import bound_blocks
from evalguard.tensor_files.stored_tensor import (
    CUT_HINT,
    Array,
    Bytes,
    ByteSource,
    FileBytes,
    NoBytes,
    OpenedFile,
    StoredTensor,
    TensorCodec,
    plain_codec,
    unknown_codec,
)

_SCALE_BYTES = 4


def fold_scales(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors of a file, of which weights that have a scale are taken with it."""
    folded = dict(tensors)
    for name, weight in tensors.items():
        stem = name.removesuffix(".weight")
        scale = tensors.get(f"{stem}.scale")
        if stem == name or scale is None or scale.fault or scale.dtype != "float32":
            continue
        folded[name] = _scaled(weight, scale)
        folded.pop(f"{stem}.scale", None)
    return folded


def _scaled(weight: StoredTensor, scale: StoredTensor) -> StoredTensor:
    parts = (weight, scale)
    count = scale.elements
    if weight.fault or count < 1 or (count != 1 and count != math.prod(weight.shape[:-2])):
        wrong = f"it has {count:,} scales, for a shape of {list(weight.shape)}"
        return replace(weight, fault=weight.fault or wrong, parts=parts)
    try:
        scales = scale.read().astype(np.float32)
    except EvaluationError as error:
        return replace(weight, fault=str(error), parts=parts)
    codec = weight.codec
    blocks = weight.elements // codec.block
    inner = ScaledBlocks(weight.source, codec.size, scales, blocks // count)

    def decode(raw: Bytes) -> Array:
        own, sizes = _split(raw, codec.size)
        values = codec.decode(own).reshape(-1, codec.block) * sizes[:, None]
        return values.reshape(-1)

    def bound(raw: Bytes, values: Array, exact: Array) -> Bound:
        own, sizes = _split(raw, codec.size)
        each = np.repeat(sizes, codec.block)
        with np.errstate(divide="ignore", invalid="ignore"):
            unscaled = [np.where(each == 0, 0, array / each) for array in (values, exact)]
        assert codec.bound is not None
        inner_bound = codec.bound(own, *(array.astype(np.float32) for array in unscaled))
        allowed = inner_bound.allowed * np.abs(each)
        return Bound(allowed.astype(np.float32), (inner_bound.edge * np.sign(each)).astype(np.int8))

    return replace(
        weight,
        codec=TensorCodec(
            dtype=codec.dtype,
            block=codec.block,
            size=codec.size + _SCALE_BYTES,
            decode=decode,
            quantised=codec.quantised,
            bound=None if codec.bound is None else bound,
        ),
        source=inner,
        packing=f"{codec.dtype} and a scale",
        parts=parts,
    )


@dataclass(frozen=True, slots=True)
class ScaledBlocks:
    """Blocks of ``size`` bytes, each with its scale behind it; ``blocks`` of them share one."""

    inner: ByteSource
    size: int
    scales: NDArray[np.float32]
    blocks: int

    def read(self, start: int, stop: int) -> Bytes:
        """Return whole blocks with their scales."""
        first, last = (offset // (self.size + _SCALE_BYTES) for offset in (start, stop))
        raw = self.inner.read(first * self.size, last * self.size).reshape(-1, self.size)
        own = self.scales[np.arange(first, last) // self.blocks]
        return np.concatenate([raw, own[:, None].view(np.uint8)], axis=1).reshape(-1)


def _split(raw: Bytes, size: int) -> tuple[Bytes, NDArray[np.float32]]:
    blocks = raw.reshape(-1, size + _SCALE_BYTES)
    scales = np.ascontiguousarray(blocks[:, size:]).view(np.float32)[:, 0]
    return np.ascontiguousarray(blocks[:, :size]).reshape(-1), scales


_UNKNOWN_TYPE = re.compile(r"(?:np.uint32\()?(\d+)\)? is not a valid GGMLQuantizationType")


def read_gguf(path: Path, stack: ExitStack) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """Return the tensors of a GGUF file, and its metadata.

    Raises:
        EvaluationError: the package gguf is not there, or the file is damaged.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise EvaluationError(
            f"{path} is a GGUF file, and the package gguf is not installed",
            hint=f"{extra_command('gguf')}, or pip install gguf",
        ) from error
    file = OpenedFile(path, stack)
    check_gguf_header(path)
    try:
        reader = GGUFReader(path)
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        unknown = _UNKNOWN_TYPE.fullmatch(message)
        if unknown is not None:
            raise EvaluationError(
                f"{path} has a tensor of ggml's type {unknown[1]}, which the package gguf "
                f"{version('gguf')} does not know",
                hint="a later gguf may (pip install -U gguf); else the file is damaged, or of a "
                "fork of llama.cpp",
            ) from error
        raise EvaluationError(
            f"{path} cannot be read as a GGUF file: {message}",
            hint=CUT_HINT,
        ) from error
    metadata = {
        name: value
        for name, part in reader.fields.items()
        if isinstance(value := part.contents(), str | int | float | list)
    }
    tensors = {str(tensor.name): _gguf_tensor(tensor, file) for tensor in reader.tensors}
    return fold_scales(tensors), metadata


def _gguf_tensor(stored: Any, file: OpenedFile) -> StoredTensor:
    shape = tuple(int(size) for size in reversed(stored.shape))
    kind = stored.tensor_type.name.lower()
    names = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
    names |= {f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}
    codec = plain_codec(names.get(kind, "")) or _block_codec(stored.tensor_type, kind)
    offset, fault = int(stored.data_offset), ""
    if codec is None:
        fault = f"the package gguf cannot dequantise {kind}"
    elif offset + math.prod(shape) // codec.block * codec.size > file.size:
        fault = f"the file ends at byte {file.size:,}, in the middle of it"
    return StoredTensor(
        name=str(stored.name),
        shape=shape,
        codec=codec or unknown_codec(kind),
        source=NoBytes() if fault else FileBytes(file, offset),
        file=file.path.name,
        fault=fault,
    )


def _block_codec(kind: Any, name: str) -> TensorCodec | None:
    from gguf import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    block, size = GGML_QUANT_SIZES[kind]

    def decode_with_gguf(raw: Bytes) -> Any:
        return dequantize(raw.reshape(1, -1), kind).reshape(-1)

    # a codebook that evalguard asks gguf for may be elsewhere in another version of it
    decoders = (block_decoder(name), decode_with_gguf)
    decode = next(
        (decoder for decoder in decoders if decoder is not None and _decodes(decoder, size)), None
    )
    if decode is None:
        return None
    return TensorCodec(
        dtype=name,
        block=int(block),
        size=int(size),
        decode=decode,
        quantised=True,
        bound=partial(bound_blocks, name, int(size)),
    )


def _decodes(decode: Callable[[Bytes], Any], size: int) -> bool:
    """Whether the package gguf has what numbers of a type are made from."""
    try:
        decode(np.zeros(size, dtype=np.uint8))
    except (NotImplementedError, KeyError, AttributeError):
        return False
    return True
