"""Conversions for ``call:`` settings of the guard files in this folder's tests."""

from __future__ import annotations

import torch


def round_linear_weights(model: torch.nn.Module, bits: int | None) -> None:
    """Round every linear layer's weights to signed integers of so many bits, in place.

    Symmetric round-to-nearest with one scale per output channel. An output layer that shares its
    weights with the embeddings is left alone. None leaves the model as it is.
    """
    if bits is None:
        return
    top = 2 ** (bits - 1) - 1
    shared = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and id(module.weight) not in shared:
            scale = module.weight.abs().amax(dim=1, keepdim=True) / top
            rounded = (module.weight / scale).round().clamp(-top, top) * scale
            module.weight.copy_(torch.where(scale > 0, rounded, module.weight))
