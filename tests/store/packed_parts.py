"""Parts of packed weights, small enough to be checked by hand."""

from __future__ import annotations

import json
from typing import Any

import torch

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
# Every code once, the even ones in the lower bits: 0x10 is 0 and then 0.5.
ALL_CODES = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8)
ALL_E2M1 = [*E2M1, *(-one for one in E2M1)]


def words(*values: int) -> torch.Tensor:
    return torch.tensor([value - (1 << 32) if value >> 31 else value for value in values]).int()


def quant_state(**more: Any) -> torch.Tensor:
    told = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [2, 64], **more}
    return torch.tensor([*json.dumps(told).encode()], dtype=torch.uint8)
