"""Codecs of arrays, and of the records of scored positions that are made of them."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evalguard.divergence import Divergence
from evalguard.execution.codec import (
    INTEGER,
    Codec,
    WireError,
    optional,
    record,
    rooted,
    sequence,
)
from evalguard.reference import Reference
from evalguard.settings import Value

_SHAPE = sequence(INTEGER)


def array(dtype: DTypeLike, *, dimensions: int = 1) -> Codec[NDArray[Any]]:
    """Return the codec of arrays of one type: their shape, and their little-endian bytes."""
    kind = np.dtype(dtype)
    wanted = f"an array of {kind} with {dimensions} dimensions"

    def encode(value: NDArray[Any]) -> Value:
        if not isinstance(value, np.ndarray) or (value.dtype, value.ndim) != (kind, dimensions):
            raise WireError(f"expected {wanted}, found {_said(value)}")
        little = np.ascontiguousarray(value, dtype=kind.newbyteorder("<"))
        data = base64.b64encode(little.tobytes()).decode("ascii")
        return {"shape": [*value.shape], "data": data}

    def decode(value: Value) -> NDArray[Any]:
        if not isinstance(value, dict) or value.keys() != {"shape", "data"}:
            raise WireError(f"expected {wanted}, found {_said(value)}")
        shape, data = _SHAPE.decode(value["shape"]), value["data"]
        try:
            raw = base64.b64decode(str(data), validate=True)
        except ValueError as error:
            raise WireError(f"not base64 ({error})") from error
        if (
            len(shape) != dimensions
            or min(shape) < 0
            or len(raw) != math.prod(shape) * kind.itemsize
        ):
            raise WireError(f"{len(raw)} bytes of shape {shape} are not {wanted}")
        return np.frombuffer(raw, dtype=kind.newbyteorder("<")).astype(kind).reshape(shape)

    return Codec(encode, decode)


def _said(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"one of {value.dtype} with {value.ndim}"
    return type(value).__name__


_INTEGERS, _FLOATS = array(np.int64), array(np.float64)
_IDS, _LOGPROBS = array(np.int32, dimensions=2), array(np.float32, dimensions=2)

REFERENCE: Codec[Reference] = rooted(
    "reference",
    record(
        Reference,
        token_ids=_INTEGERS,
        token_logprobs=_FLOATS,
        vocabulary_size=INTEGER,
        top_ids=_IDS,
        top_logprobs=_LOGPROBS,
        tail_mass=_FLOATS,
        full_support=array(np.bool_),
        sample_ids=_IDS,
        sample_logprobs=_LOGPROBS,
    ),
)

DIVERGENCE: Codec[Divergence] = rooted(
    "divergence",
    record(
        Divergence,
        token_ids=_INTEGERS,
        base_logprobs=_FLOATS,
        candidate_logprobs=_FLOATS,
        kl=_FLOATS,
        kl_low=optional(_FLOATS),
        kl_high=optional(_FLOATS),
        base_top=_INTEGERS,
        candidate_top=_INTEGERS,
        shared_top=_INTEGERS,
        top_k=INTEGER,
    ),
)
