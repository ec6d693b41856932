"""How far numbers of one model may differ that were computed in another order."""

from __future__ import annotations

from typing import Any

import torch

# Units in the last place by which sums in another order may differ: many terms in float32, and the
# last rounding of one sum in a narrower dtype.
_ULPS_WIDE, _ULPS_NARROW = 256, 4


def rounding_limit(model: Any, logits: torch.Tensor) -> float:
    """How far logits may differ that were summed in another order."""
    narrow = rounding_unit(model)
    unit = _ULPS_WIDE * torch.finfo(torch.float32).eps if narrow is None else _ULPS_NARROW * narrow
    finite = logits.float()[logits.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return unit * max(1.0, largest)


def rounding_unit(model: torch.nn.Module) -> float | None:
    """The relative rounding error of a model's dtype; None for float32 and wider."""
    units = [
        torch.finfo(tensor.dtype).eps
        for tensor in model.parameters()
        if tensor.dtype.is_floating_point
    ]
    if any(tensor.is_cuda for tensor in model.parameters()) and _multiplies_in_tf32():
        units.append(torch.finfo(torch.float16).eps)  # tf32 has as many digits
    unit = max(units, default=0.0)
    return unit if unit > torch.finfo(torch.float32).eps else None


def _multiplies_in_tf32() -> bool:
    backends: Any = torch.backends
    if hasattr(backends, "fp32_precision"):  # since torch 2.9; asking the old way may raise
        own = str(backends.cuda.matmul.fp32_precision)
        return (str(backends.fp32_precision) if own == "none" else own) == "tf32"
    return bool(backends.cuda.matmul.allow_tf32)
