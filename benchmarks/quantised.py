"""Copies of a model folder with rounded weights: round to nearest, symmetric, weights only."""

from __future__ import annotations

import shutil
from pathlib import Path

GROUP = 32


def quantised_copy(model: Path, folder: Path, *, bits: int, group: int | None) -> Path:
    """Copy a model folder with every linear layer's weights rounded to signed integers.

    Embeddings, and an output layer that shares their weights, stay as they are. The rounded
    weights are stored as float32, so that nothing but the rounding differs.

    Args:
        group: inputs that share a scale; None for one scale per output channel.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, weight in weights.items():
        if name.endswith("_proj.weight"):
            weights[name] = _rounded(weight, bits, group or weight.shape[1]).contiguous()
    path.unlink()
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def _rounded(weight, bits: int, group: int):  # type: ignore[no-untyped-def]
    import torch

    top = 2 ** (bits - 1) - 1
    parts = []
    for part in weight.float().split(group, dim=1):  # the last group may be shorter
        scale = part.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / top
        parts.append((part / scale).round().clamp(-top, top) * scale)
    return torch.cat(parts, dim=1)
