"""ggml's own quantiser, from the library that llama.cpp's packages bring."""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import UsageError

# Where the packages keep it: one library of all, or one of ggml alone.
_PLACES = {"xllamacpp": "xllamacpp/*.so", "llama_cpp": "llama_cpp/lib/libggml*"}
_HINT = "add xllamacpp to the model's requirements"


def quantise_rows(values: NDArray[Any], kind: Any) -> NDArray[np.uint8]:
    """Return rows of float32 as the bytes of a ggml type, rounded as llama-quantize rounds.

    Args:
        values: (rows, columns); columns are a multiple of the type's block.
        kind: the package gguf's ``GGMLQuantizationType``.

    Raises:
        UsageError: the library is not there, or the type needs an importance matrix.
    """
    library = _library()
    number = int(kind)
    if library.ggml_quantize_requires_imatrix(number):
        raise UsageError(
            f"GGUF type '{kind.name}' needs an importance matrix, which this recipe has not",
            hint="llama.cpp's own llama-quantize --imatrix FILE as build: {command: ...}",
        )
    rows, columns = values.shape
    source = np.ascontiguousarray(values, dtype=np.float32)
    found = np.empty((rows, int(library.ggml_row_size(number, columns))), dtype=np.uint8)
    library.ggml_quantize_init(number)
    written = library.ggml_quantize_chunk(
        number, source.ctypes.data, found.ctypes.data, 0, rows, columns, None
    )
    if written != found.nbytes:
        raise UsageError(f"ggml wrote {written:,} bytes of {kind.name}, not {found.nbytes:,}")
    return found


@cache
def _library() -> Any:
    for name, pattern in _PLACES.items():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for path in sorted(Path(str(module.__file__)).parent.parent.glob(pattern)):
            library = ctypes.CDLL(str(path))
            if hasattr(library, "ggml_quantize_chunk"):
                return _declare(library)
    raise UsageError("K-quants are written by ggml's library, which is not here", hint=_HINT)


def _declare(library: Any) -> Any:
    """Types of the functions that are called, as ggml.h has them."""
    number, size, pointer = ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p
    library.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    library.ggml_quantize_requires_imatrix.argtypes = [ctypes.c_int]
    library.ggml_quantize_init.restype = None
    library.ggml_quantize_init.argtypes = [ctypes.c_int]
    library.ggml_row_size.restype = size
    library.ggml_row_size.argtypes = [ctypes.c_int, number]
    library.ggml_quantize_chunk.restype = size
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, pointer, pointer, number, number, number, pointer,
    ]  # fmt: skip
    return library
