"""A quantiser of transformers: it packs linear layers while a model is loaded.

They hold int8 rows and scales in a form of their own, as bitsandbytes does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

NAME = "test_packed_rows"


class PackedLinear(nn.Module):
    """Two int8 codes in an int16 number; what is passed is called ``x``, as bitsandbytes has it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.data.float()
        scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
        codes = (weight / scale).round().to(torch.int8)
        self.weight = nn.Parameter(codes.view(torch.int16).flatten(), requires_grad=False)
        self.register_buffer("scale", scale.to(linear.weight.dtype))
        self.bias = linear.bias
        self.shape = tuple(weight.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = self.weight.view(torch.int8).view(self.shape)
        return nn.functional.linear(x, codes.to(x.dtype) * self.scale.to(x.dtype), self.bias)


def pack(model: nn.Module) -> None:
    """Pack every linear layer but the output's."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and "lm_head" not in name:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, PackedLinear(module))


@register_quantization_config(NAME)
class PackedRowsConfig(QuantizationConfigMixin):
    def __init__(self, **_: Any) -> None:
        self.quant_method = NAME


@register_quantizer(NAME)
class PackedRowsQuantizer(HfQuantizer):
    requires_calibration = False
    is_trainable = False

    def _process_model_after_weight_loading(self, model: nn.Module, **_: Any) -> nn.Module:
        pack(model)
        return model

    def is_serializable(self) -> bool:
        return False
