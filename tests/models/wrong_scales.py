"""A wrong scale in an attention, and which suspects stand out."""

from __future__ import annotations

from typing import Any

import torch
from traced_models import make_sequences

DOCUMENTS = make_sequences()
HALF = (torch.float32, torch.bfloat16, torch.float16)


def scale_attention(layer: int, by: float) -> Any:
    def change(model: Any) -> None:
        model.model.layers[layer].self_attn.scaling *= by

    return change
