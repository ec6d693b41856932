"""Where a generated text ends: at its own stop string, whatever else its batch still generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.models.utils_hf import stop_sequences_criteria


def ended_alone(
    tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str]
) -> torch.Tensor:
    """Replace by padding what texts of a batch went on with after a stop string.

    lm-eval ends a batch when all its texts have met the string, and cuts the texts where they
    hold it. A string that is a special token, such as ``<|im_end|>``, is not in the text any more
    then, and what was generated for the others' sake stays.

    Args:
        tokenizer: that of the model.
        ids: contexts and what was generated, shape (texts, tokens).
        begin: length of the contexts, padded.
        stops: what ends a text.
    """
    ended = ids.clone()
    for row, text in enumerate(tokenizer.batch_decode(ids[:, begin:])):
        own = [stop for stop in stops if stop in text]
        if own:
            ended[row, _end(tokenizer, ids[row : row + 1], begin, own) :] = tokenizer.pad_token_id
    return ended


def _end(tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str]) -> int:
    """Number of tokens after which lm-eval would have stopped this text alone."""
    met = stop_sequences_criteria(tokenizer, list(stops), begin, 1)
    total = ids.shape[1]
    return next((end for end in range(begin + 1, total) if met(ids[:, :end], None).any()), total)
