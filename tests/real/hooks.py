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


def perturb_module(model: torch.nn.Module, noise: float) -> None:
    """Add noise to the weights of the MLP of layer 2, in place, in parts of their scatter."""
    _perturb(model.get_submodule("model.layers.2.mlp"), noise)


def perturb_norms(model: torch.nn.Module, noise: float) -> None:
    """Add noise to the weights of all norms, likewise."""
    for name, module in model.named_modules():
        if name.endswith("norm"):
            _perturb(module, noise)


def scale_attention(model: torch.nn.Module, factor: float) -> None:
    """Multiply the attention scale of all layers."""
    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            module.scaling *= factor


def _perturb(module: torch.nn.Module, noise: float) -> None:
    made = torch.Generator().manual_seed(2)
    for weight in module.parameters():
        drawn = torch.randn(weight.shape, generator=made)
        weight.add_(noise * weight.std() * drawn)
