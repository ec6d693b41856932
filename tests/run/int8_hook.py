"""A conversion whose scores depend on the batch: activations quantised together, as int8."""

from __future__ import annotations

import torch


def quantise_activations(model: torch.nn.Module, bits: int | None) -> None:
    """Round what every linear layer reads to so many bits, with one scale for the whole batch.

    What dynamic int8 quantisation does (``torch.ao.quantization.quantize_dynamic``): the scale is
    that of the largest activation in the batch, so that a document's scores depend on the others.
    """
    if bits is None:
        return
    top = 2 ** (bits - 1) - 1

    def rounded(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        x = inputs[0]
        scale = x.abs().amax() / top
        return ((x / scale).round() * scale, *inputs[1:])

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)
