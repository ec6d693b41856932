"""What torch and Python raise where memory runs out, told from other failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from evalguard.models.failures import BatchTooLargeError, format_error
from evalguard.models.hf.batches import PackedBatch
from evalguard.models.hf.prefix_tree import TreeBatch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device's memory, or this machine's, was not enough."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    # torch's allocator of a CPU has no class of its own
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


@contextmanager
def detect_batch_too_large(batch: PackedBatch) -> Iterator[None]:
    """Tell from other failures that a batch, which can be halved, is too large.

    Raises:
        NoRoomError: not from the exception itself, whose traceback holds the memory.
    """
    message = ""
    try:
        yield
    except Exception as error:
        if len(batch.reads) == 1 or not is_out_of_memory(error):
            raise
        message = format_error(error)
    if message:
        sequences, shared = batch.input_ids.shape[0], isinstance(batch, TreeBatch)
        tokens = batch.input_ids.numel()
        raise BatchTooLargeError(message, tokens=tokens, sequences=sequences, shared=shared)
