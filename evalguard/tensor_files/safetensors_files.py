"""safetensors files. Their header is read here: the library gives no bfloat16 to numpy, and loads
torch for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any

from evalguard.core.split_files import parse_weight_map
from evalguard.errors import EvaluationError
from evalguard.regular_file import read_regular_text
from evalguard.tensor_files.stored_tensor import (
    CUT_HINT,
    FileBytes,
    NoBytes,
    OpenedFile,
    StoredTensor,
    plain_codec,
    unknown_codec,
)

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_MOST_DIMENSIONS = 64  # as numpy and torch have them
_LARGEST_HEADER = 100_000_000  # bytes; the format's own limit


def read_safetensors(
    path: Path, stack: ExitStack
) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return the tensors of a file by name, in their order in it, and its metadata.

    A file that was cut off still has the tensors that lie before its end; the others have a fault.

    Raises:
        EvaluationError: the file or its header cannot be read.
    """
    file = OpenedFile(path, stack)
    if file.size < 8:
        raise EvaluationError(f"{path} holds {file.size} bytes, no safetensors", hint=CUT_HINT)
    length = int.from_bytes(file.read(0, 8).tobytes(), "little")
    if not 2 <= length <= min(_LARGEST_HEADER, file.size - 8):
        raise EvaluationError(
            f"{path} is not safetensors, or cut off: its header would have {length:,} bytes, the "
            f"file has {file.size:,}",
            hint=CUT_HINT,
        )
    try:
        header = json.loads(file.read(8, 8 + length).tobytes(), object_pairs_hook=_unique)
    except _TwiceError as error:
        raise EvaluationError(
            f"{path} names {str(error)[:200]!r} twice in its header", hint=CUT_HINT
        ) from error
    except (ValueError, RecursionError) as error:
        raise EvaluationError(
            f"{path} has a safetensors header that is not JSON", hint=CUT_HINT
        ) from error
    if not isinstance(header, dict):
        raise EvaluationError(f"{path} has a safetensors header of no tensors", hint=CUT_HINT)
    metadata = header.pop("__metadata__", None)
    tensors = {name: _read_entry(name, entry, file, 8 + length) for name, entry in header.items()}
    tensors |= _misplaced(tensors, header, file.size - 8 - length)
    ordered = sorted(tensors.values(), key=_place)
    entries = metadata if isinstance(metadata, dict) else {}
    return {tensor.name: tensor for tensor in ordered}, {str(k): str(v) for k, v in entries.items()}


class _TwiceError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        if name in mapping:
            raise _TwiceError(name)
        mapping[name] = value
    return mapping


def _misplaced(
    tensors: Mapping[str, StoredTensor], header: Mapping[str, Any], size: int
) -> dict[str, StoredTensor]:
    """Tensors that do not lie one behind the other, as the format has it, with that as their fault.

    Bytes that two tensors share, or that none has, are no library's file: equal to another one or
    not, it says nothing of a model.
    """
    places = ((*entry["data_offsets"], name) for name, entry in header.items())
    spans: list[tuple[int, int, str]] = sorted(places)
    faulty: dict[str, StoredTensor] = {}
    end, before = 0, ""
    for begin, stop, name in spans:
        if begin < end and stop > begin:
            for current, neighbour in ((name, before), (before, name)):
                faulty[current] = _with_fault(
                    tensors[current], f"its bytes are those of {neighbour[:200]}, too"
                )
        elif begin > end:
            faulty[name] = _with_fault(
                tensors[name], f"bytes {end:,} to {begin:,} before it are of no tensor"
            )
        if stop > end:
            end, before = stop, name
    if before and end < size:
        faulty[before] = _with_fault(
            tensors[before], f"bytes {end:,} to {size:,} behind it are of no tensor"
        )
    return faulty


def _with_fault(tensor: StoredTensor, fault: str) -> StoredTensor:
    """A tensor that cannot be believed; an earlier fault stays."""
    return tensor if tensor.fault else replace(tensor, source=NoBytes(), fault=fault)


def _place(tensor: StoredTensor) -> int:
    return tensor.source.offset if isinstance(tensor.source, FileBytes) else 0


def _read_entry(name: str, entry: Any, file: OpenedFile, start: int) -> StoredTensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(map(index, entry["shape"]))  # whole numbers
        begin, end = map(index, entry["data_offsets"])
    except (TypeError, KeyError, ValueError) as error:
        raise EvaluationError(
            f"{file.path} has no dtype, shape and place of {name[:200]!r}", hint=CUT_HINT
        ) from error
    codec = plain_codec(_NAMES.get(dtype, ""))
    fault = ""
    if codec is None:
        fault = f"evalguard does not read the dtype {dtype}"
    elif begin < 0 or any(size < 0 for size in shape):
        fault = "its place or shape is below zero"
    elif len(shape) > _MOST_DIMENSIONS:
        fault = f"its shape has {len(shape):,} dimensions"
    elif end - begin != math.prod(shape) * codec.size:
        fault = f"{dtype} {list(shape)} is not {end - begin:,} bytes"
    elif start + end > file.size:
        fault = f"the file ends at byte {file.size:,}, before byte {start + end:,}"
    return StoredTensor(
        name=name,
        shape=shape,
        codec=codec or unknown_codec(dtype),
        source=NoBytes() if fault else FileBytes(file, start + begin),
        file=file.path.name,
        fault=fault,
    )


def read_weight_map(path: Path) -> Mapping[str, str]:
    """Return tensor -> file of an index of shards.

    Raises:
        EvaluationError: it cannot be read, or names a file outside its folder.
    """
    try:
        files = parse_weight_map(read_regular_text(path))
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise EvaluationError(f"{path} is no index of shards: it has no weight_map") from error
    for file in files.values():
        if Path(file).name != file:
            raise EvaluationError(f"{path} names {file}, which is not in its folder")
    return files
