"""What the weights of a loaded model take in memory, those of quantisers in their parts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

# bitsandbytes keeps the scales of a weight in attributes of it, and those of scales once more.
_ATTRIBUTES = ("quant_state", "SCB", "CB", "absmax", "code", "offset", "state2")
_DEEPEST = 4


def count_weight_bytes(model: Any) -> int:
    """Return the bytes of a module's parameters and buffers, of what is shared once.

    A tensor subclass (torchao) counts as what it holds, with scales and zero points.
    """
    found: dict[tuple[str, int], int] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        for held in _held_tensors(tensor, 0):
            storage = held.untyped_storage()
            found[str(held.device), storage.data_ptr()] = int(storage.nbytes())
    return sum(found.values())


def _held_tensors(value: Any, depth: int) -> Iterator[Any]:
    import torch

    if depth > _DEEPEST or value is None:
        return
    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):
            for name in value.__tensor_flatten__()[0]:
                yield from _held_tensors(getattr(value, name), depth + 1)
            return
        if value.device.type == "meta":
            return
        yield value
    own = getattr(value, "__dict__", {})
    for name in _ATTRIBUTES:
        yield from _held_tensors(own.get(name), depth + 1)
