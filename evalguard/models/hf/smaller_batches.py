"""Memory ran out on a batch: the same is done again with smaller ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from evalguard.errors import EvaluationError, FallbackError

_Result = TypeVar("_Result")

OUT_OF_MEMORY = "memory ran out"


class BatchTooLargeError(Exception):
    """A batch of several sequences is too large for the memory; a smaller one may not be.

    ``tokens`` and ``sequences`` are those of the batch; ``shared``: whether they share prefixes.
    """

    def __init__(self, message: str, *, tokens: int, sequences: int, shared: bool) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.sequences = sequences
        self.shared = shared


class BatchCutter(Protocol):
    """Something that cuts batches."""

    def make_room(self, found: BatchTooLargeError) -> bool:
        """Cut smaller batches from now on; return whether that can be."""


def retry_with_smaller_batches(
    scorers: Sequence[BatchCutter], attempt: Callable[[], _Result]
) -> _Result:
    """Do something, and anew with smaller batches of all scorers until there is room for it.

    All of it is done anew, so that its scores are those of the smaller batches throughout.

    Raises:
        FallbackError: batches are as small as they can be, with prefixes that are shared.
        EvaluationError: they are, and share none.
    """
    while True:
        try:
            return attempt()
        except BatchTooLargeError as error:
            # without the traceback, whose frames hold the memory
            found = error.with_traceback(None)
        _release_memory()
        smaller = [scorer.make_room(found) for scorer in scorers]
        if not any(smaller) and found.shared:
            raise FallbackError(
                f"{OUT_OF_MEMORY} on one tree of prefixes: {found}",
                giving_up="share_prefixes",
                hint="run: {share_prefixes: false}",
            )
        if not any(smaller):
            raise EvaluationError(
                f"{OUT_OF_MEMORY} on the smallest batch there is: {found}",
                hint="a model of a narrower dtype, a smaller model_args.max_length or another "
                "machine",
            )


def _release_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
