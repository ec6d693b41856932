"""What a loaded model's weights take, quantised ones with their scales."""

from __future__ import annotations

import torch
from torch import nn

from evalguard.models.description import count_weight_bytes


class State:
    """As bitsandbytes' QuantState: scales, and those of the scales once more."""

    def __init__(self, blocks: int, inner: State | None = None) -> None:
        self.absmax = torch.zeros(blocks, dtype=torch.uint8 if inner is not None else torch.float32)
        self.state2 = inner


def test_parameters_and_buffers_count_once_each_in_their_dtype() -> None:
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(8, 4, bias=False)).bfloat16()
    model[1].weight = model[0].weight
    model.register_buffer("scale", torch.ones(3))
    assert count_weight_bytes(model) == 2 * 32 + 4 * 3


def test_scales_in_the_attributes_of_a_weight_count() -> None:
    model = nn.Linear(64, 2, bias=False)
    model.weight = nn.Parameter(torch.zeros(64, 1, dtype=torch.uint8), requires_grad=False)
    model.weight.quant_state = State(2, State(1))  # type: ignore[assignment]
    assert count_weight_bytes(model) == 64 + 2 + 4
