"""How many weights a checkpoint holds, and in how many bytes: read from its headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evalguard.store.tensor_files.opening import open_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """One tensor of a model, whatever it is stored as.

    Attributes:
        name: the weight's, not those of its parts: "model.layers.0.mlp.up_proj.weight".
        shape: as the model has it; () where ``weights`` is None.
        weights: number of elements; 0 of a scale of activations, None where the file does not say.
        stored_bytes: of all its parts: codes, scales, zero points, indices.
        dtype: "bfloat16", "q4_k", "nvfp4", "int4".
        packing: who packed it and how: "GPTQ int4"; "" of plain numbers and of GGUF's.
        fault: why its numbers cannot be read; "" if they can.
    """

    name: str
    shape: tuple[int, ...]
    weights: int | None
    stored_bytes: int
    dtype: str
    packing: str = ""
    fault: str = ""


def list_stored_weights(path: str | Path) -> tuple[StoredWeight, ...]:
    """Return the weights of a checkpoint in the order of its files.

    Args:
        path: a file, or a folder of shards: safetensors, packed or not, GGUF, torch, npz.

    Raises:
        UsageError: there is nothing at the path, or nothing of a known form.
        EvaluationError: a file is damaged.
    """
    with open_tensors(path) as found:
        weights = [
            StoredWeight(
                name=one.name,
                shape=one.shape,
                weights=None if one.fault and not one.shape else one.elements,
                stored_bytes=one.nbytes,
                dtype=one.dtype,
                packing=one.packing,
                fault=one.fault,
            )
            for one in found.tensors.values()
        ]
        scales = [
            StoredWeight(
                name=one.name,
                shape=one.shape,
                weights=0,
                stored_bytes=one.nbytes,
                dtype=one.dtype,
                packing="activation scale",
            )
            for one in found.activation_scales.values()
        ]
    return (*weights, *scales)
