"""npy and npz files. Nothing in them is executed: arrays of objects are refused."""

from __future__ import annotations

import zipfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evalguard.errors import EvaluationError
from evalguard.tensor_files.stored_tensor import (
    Bytes,
    FileBytes,
    LoadedBytes,
    NoBytes,
    OpenedFile,
    StoredTensor,
    numpy_codec,
    unknown_codec,
)


def read_npz(path: Path, stack: ExitStack) -> dict[str, StoredTensor]:
    """Return the arrays of an npz file.

    Raises:
        EvaluationError: it is damaged. Arrays of objects have a fault: they are pickles.
    """
    file = OpenedFile(path, stack)
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
        arrays = {}
        for member in archive.infolist():
            name, suffix, _ = member.filename.rpartition(".npy")
            if not (name and suffix):
                continue
            if name in arrays:
                raise ValueError(f"it holds {member.filename} twice")
            arrays[name] = _member(name, member, archive, file)
        return arrays
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
    tensor = _numpy_tensor(name, shape, dtype, source, file.path)
    if header + tensor.nbytes != info.file_size and not tensor.fault:
        raise ValueError(
            f"{info.filename} says that it holds {tensor.nbytes:,} bytes, and holds "
            f"{info.file_size - header:,}"
        )
    return tensor


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
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
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
