"""Scales beside the blocks of a GGUF file: one number a matrix, or one for each expert of a stack.

llama.cpp multiplies by ``X.scale`` what ``X.weight`` gives (NVFP4's second scale, BitNet's); of an
activation ``X.input_scale``, which no weight has (src/llama-model.cpp, load_tensors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tensors.bounds import Bound
from evalguard.errors import EvaluationError
from evalguard.store.tensor_files.stored import Array, Bytes, ByteSource, StoredTensor, TensorCodec

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
            unscaled = [np.where(each == 0, 0, one / each) for one in (values, exact)]
        assert codec.bound is not None
        found = codec.bound(own, *(one.astype(np.float32) for one in unscaled))
        allowed = found.allowed * np.abs(each)
        return Bound(allowed.astype(np.float32), (found.edge * np.sign(each)).astype(np.int8))

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
        first, last = (one // (self.size + _SCALE_BYTES) for one in (start, stop))
        raw = self.inner.read(first * self.size, last * self.size).reshape(-1, self.size)
        own = self.scales[np.arange(first, last) // self.blocks]
        return np.concatenate([raw, own[:, None].view(np.uint8)], axis=1).reshape(-1)


def _split(raw: Bytes, size: int) -> tuple[Bytes, NDArray[np.float32]]:
    blocks = raw.reshape(-1, size + _SCALE_BYTES)
    scales = np.ascontiguousarray(blocks[:, size:]).view(np.float32)[:, 0]
    return np.ascontiguousarray(blocks[:, :size]).reshape(-1), scales
