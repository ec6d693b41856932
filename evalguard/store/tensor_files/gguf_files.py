"""GGUF files, read with the gguf package; nothing in them is executed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.errors import EvaluationError
from evalguard.gguf_table import check_gguf_header
from evalguard.installation import extra_command
from evalguard.store.tensor_files.gguf_blocks import block_decoder
from evalguard.store.tensor_files.gguf_bounds import bound_blocks
from evalguard.store.tensor_files.gguf_scales import fold_scales
from evalguard.store.tensor_files.plain_codecs import plain_codec, unknown_codec
from evalguard.store.tensor_files.stored import (
    CUT_HINT,
    Bytes,
    FileBytes,
    NoBytes,
    OpenedFile,
    StoredTensor,
    TensorCodec,
)

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
        said = " ".join(str(error).split())[:200]
        unknown = _UNKNOWN_TYPE.fullmatch(said)
        if unknown is not None:
            raise EvaluationError(
                f"{path} has a tensor of ggml's type {unknown[1]}, which the package gguf "
                f"{version('gguf')} does not know",
                hint="a later gguf may (pip install -U gguf); else the file is damaged, or of a "
                "fork of llama.cpp",
            ) from error
        raise EvaluationError(
            f"{path} cannot be read as a GGUF file: {said}",
            hint=CUT_HINT,
        ) from error
    metadata = {
        name: value
        for name, part in reader.fields.items()
        if isinstance(value := part.contents(), str | int | float | list)
    }
    tensors = {str(one.name): _gguf_tensor(one, file) for one in reader.tensors}
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
    decode = next((one for one in decoders if one is not None and _decodes(one, size)), None)
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
