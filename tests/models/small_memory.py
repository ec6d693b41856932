"""A model whose memory is enough for so many tokens at a time and no more."""

from __future__ import annotations

from typing import Any

import torch
from opened_models import OpenedScorer

# What torch raises on a CPU and on a GPU, and Python itself.
EXHAUSTED = (
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
)


def with_memory_for(
    scorer: OpenedScorer, tokens: int, error: BaseException = EXHAUSTED[0]
) -> list[int]:
    """Let a model fail on larger batches; the list takes the tokens of each pass that is done."""
    passed: list[int] = []

    def check(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        size = (*args, named.get("input_ids"))[0].numel()
        if size > tokens:
            raise error
        passed.append(size)

    scorer.lm.model.register_forward_pre_hook(check, with_kwargs=True)
    return passed
