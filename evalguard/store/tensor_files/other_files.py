"""torch, GGUF and numpy files. Nothing in them is executed: a pickle of code is refused."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.errors import EvaluationError
from evalguard.store.tensor_files.gguf_bounds import bound_blocks
from evalguard.store.tensor_files.stored import (
    Bytes,
    FileBytes,
    LoadedBytes,
    NoBytes,
    OpenedFile,
    StoredTensor,
    TensorCodec,
    numpy_codec,
    plain_codec,
    unknown_codec,
)

if TYPE_CHECKING:
    import torch

_PICKLE_HINT = (
    "evalguard never runs what a pickle holds; save the state dict alone, or as safetensors "
    "(safetensors.torch.save_file)"
)
_GGUF_HINT = "pip install 'lm-evalguard[gguf]', or pip install gguf"
# Wrappers of training programs around the tensors.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")


def read_torch(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a torch file: a tensor, or dicts and lists of them, names with dots.

    Raises:
        EvaluationError: it holds more than tensors, which would have to be executed, or is damaged.
    """
    import pickle

    import torch

    arguments: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                content = torch.load(path, mmap=True, **arguments)
            except RuntimeError as error:
                if "mmap" not in str(error):
                    raise
                content = torch.load(path, mmap=False, **arguments)  # from before torch 1.6
    except pickle.UnpicklingError as error:
        said = " ".join(str(error).split())
        named = said.partition("Unsupported ")[2] or said.partition("WeightsUnpickler error: ")[2]
        what = f"something else than tensors ({named[:150]})" if named else "no tensors"
        raise EvaluationError(f"{path} holds {what}", hint=_PICKLE_HINT) from error
    except Exception as error:
        raise EvaluationError(
            f"{path} cannot be read as a torch file: {' '.join(str(error).split())[:200]}",
            hint="it was cut off or damaged, or is no torch file: copy or download it again",
        ) from error
    found = dict(_flatten(_unwrap(content), ""))
    return {name: _torch_tensor(name, tensor, path) for name, tensor in found.items()}


def _unwrap(content: Any) -> Any:
    while isinstance(content, Mapping):
        inner = [content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)]
        if not inner or any(hasattr(one, "is_floating_point") for one in content.values()):
            return content
        content = inner[0]
    return content


def _flatten(content: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if hasattr(content, "is_floating_point"):
        yield name or "tensor", content
        return
    entries: Any = ()
    if isinstance(content, Mapping):
        entries = content.items()
    elif isinstance(content, list | tuple):
        entries = enumerate(content)
    for key, value in entries:
        yield from _flatten(value, f"{name}.{key}" if name else str(key))


def _torch_tensor(name: str, tensor: torch.Tensor, path: Path) -> StoredTensor:
    dense = "strided" in str(tensor.layout)
    dtype = "float32" if dense and tensor.is_quantized else str(tensor.dtype).removeprefix("torch.")
    codec = plain_codec(dtype) if dense else None
    fault = "" if codec else f"evalguard does not read {tensor.dtype} of {tensor.layout}"
    return StoredTensor(
        name=name,
        shape=tuple(tensor.shape),
        codec=codec or unknown_codec(dtype),
        source=NoBytes() if fault else LoadedBytes(partial(_torch_bytes, tensor)),
        file=path.name,
        fault=fault,
    )


def _torch_bytes(tensor: torch.Tensor) -> Bytes:
    import torch

    plain = tensor.dequantize() if tensor.is_quantized else tensor.detach()
    found: Bytes = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
    return found


# numpy


def read_npz(path: Path, stack: ExitStack) -> dict[str, StoredTensor]:
    """Return the arrays of an npz file.

    Raises:
        EvaluationError: it is damaged. Arrays of objects have a fault: they are pickles.
    """
    file = OpenedFile(path, stack)
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
        members = [one for one in archive.infolist() if one.filename.endswith(".npy")]
        return {
            name: _member(name, one, archive, file)
            for one in members
            if (name := one.filename.removesuffix(".npy"))
        }
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise EvaluationError(
            f"{path} cannot be read as an npz file: {error}", hint="copy or download it again"
        ) from error


def _member(
    name: str, info: zipfile.ZipInfo, archive: zipfile.ZipFile, file: OpenedFile
) -> StoredTensor:
    with archive.open(info) as stream:
        shape, fortran, dtype = _npy_header(stream)
        header = stream.tell()
    if info.compress_type == zipfile.ZIP_STORED and not fortran:
        local = file.read(info.header_offset, info.header_offset + 30).tobytes()
        names = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        source: Any = FileBytes(file, info.header_offset + 30 + names + header)
    else:
        source = LoadedBytes(partial(_npz_bytes, file.path, name))
    return _numpy_tensor(name, shape, dtype, source, file.path)


def _npz_bytes(path: Path, name: str) -> Bytes:
    with np.load(path, allow_pickle=False) as arrays:
        return np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)


def read_npy(path: Path, stack: ExitStack) -> dict[str, StoredTensor]:
    """Return the one array of an npy file, under the file's name without its suffix.

    Raises:
        EvaluationError: it is damaged.
    """
    file = OpenedFile(path, stack)
    try:
        with path.open("rb") as stream:
            shape, fortran, dtype = _npy_header(stream)
            start = stream.tell()
    except (ValueError, EOFError) as error:
        raise EvaluationError(f"{path} cannot be read as an npy file: {error}") from error
    source: Any = FileBytes(file, start)
    if fortran:
        source = LoadedBytes(
            lambda: (
                np.ascontiguousarray(np.load(path, allow_pickle=False)).reshape(-1).view(np.uint8)
            )
        )
    tensor = _numpy_tensor(path.stem, shape, dtype, source, path)
    if start + tensor.nbytes > file.size and not tensor.fault:
        raise EvaluationError(
            f"{path} ends at byte {file.size:,}, before byte {start + tensor.nbytes:,}",
            hint="it was cut off: copy or download it again",
        )
    return {path.stem: tensor}


def _npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    reader: Any = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        reader = np.lib.format.read_array_header_2_0
    shape, fortran, dtype = reader(stream)
    return tuple(shape), bool(fortran and len(shape) > 1), dtype


def _numpy_tensor(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], source: Any, path: Path
) -> StoredTensor:
    fault = ""
    if dtype.hasobject:
        fault = "it holds Python objects, which are pickles; evalguard never runs them"
    elif dtype.kind not in "fiub" or dtype.itemsize > 8:
        fault = f"evalguard does not read the dtype {dtype}"
    known = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    codec = unknown_codec(str(dtype)) if fault else numpy_codec(known, name=dtype.name)
    return StoredTensor(
        name=name,
        shape=shape,
        codec=codec,
        source=NoBytes() if fault else source,
        file=path.name,
        fault=fault,
    )


# GGUF


def read_gguf(path: Path, stack: ExitStack) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """Return the tensors of a GGUF file, and its metadata without long lists (its vocabulary).

    Raises:
        EvaluationError: the package gguf is not there, or the file is damaged.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise EvaluationError(
            f"{path} is a GGUF file, and the package gguf is not installed", hint=_GGUF_HINT
        ) from error
    file = OpenedFile(path, stack)
    try:
        reader = GGUFReader(path)
    except Exception as error:
        raise EvaluationError(
            f"{path} cannot be read as a GGUF file: {' '.join(str(error).split())[:200]}",
            hint="it was cut off or damaged: copy or download it again",
        ) from error
    metadata = {
        name: value
        for name, part in reader.fields.items()
        if len(part.data) <= 1000 and isinstance(value := part.contents(), str | int | float | list)
    }
    return {one.name: _gguf_tensor(one, file) for one in reader.tensors}, metadata


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

    def decode(raw: Bytes) -> Any:
        return dequantize(raw.reshape(-1, size), kind).reshape(-1)

    try:
        decode(np.zeros(size, dtype=np.uint8))
    except (NotImplementedError, KeyError):
        return None
    return TensorCodec(
        dtype=name,
        block=int(block),
        size=int(size),
        decode=decode,
        quantised=True,
        bound=partial(bound_blocks, name, int(size)),
    )
